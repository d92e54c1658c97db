#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds what cmake/kernel_flags.cmake says of cold files (built with -O1): no step and no token runs their functions.

    check_cold.py ROOT BUILD OBJECT...     exit status 1 on any violation

Follows references between functions in the objects of the library and the server, from the functions that run per step or per token. Calls of virtual
functions and through std::function are not seen: what such calls reach is a root of its own. Inline functions have copies everywhere:
they are followed, not judged. What only errors reach (the compiler's .cold parts) is left out.
"""
import re
import struct
import subprocess
import sys
from bisect import bisect_right
from collections import deque
from pathlib import Path

# Per step, per token, per character of a prompt. Each must match a function of the library.
ROOTS = [
    r"moebius::(Text)?Engine::(step|add)\b",
    r"moebius::StepRunner::(submit|collect|forward|copy_block|cut_block)\b",
    r"moebius::RankedBackend::(submit|collect|forward|copy_block|cut_block|follow)\b",
    r"moebius::Graph::(embed|run|logits)\b",
    r"moebius::.*Cpu(Linear|HeadLinear|Experts|Recurrent|Embedding|RowProgram|Attention|LatentAttention|Indexer)::(forward|run|select|cut)\b",
    r"moebius::.*Gathered(Output|Experts|Logits)::forward\b",
    r"moebius::LinearLayer::forward\b",
    r"moebius::MoeLayer::forward_(ids|logits)\b",
    r"moebius::Sampler::next\b",
    r"moebius::Tokenizer::(encode|decode|encode_segments)\b",
    r"moebius::Tokenizer::Stream::push\b",
    r"moebius::ChoiceText::push\b",
    r"moebius::score\b",
    # The server, per event of an answer.
    r"moebius::EngineGenerator::run\b",
    r"moebius::ApiServer::(take|flush)\b",
    r"moebius::.*Answer::(take|stream_end)\b",
    r"moebius::HttpExchangeOf<.*>::(send|end)\b",
]
# Reached, but no part of a step: not followed, and why.
ASIDE = {
    r"moebius::(try_later|error_reply|HttpRequest::path|ApiServer::(log_event|finish_reply|note|stop|drain|complete|fail_generation))\b":
        "once per request at the most: its head, its end, its line of the log",
    r"moebius::ExpertMoves::begin_move\b": "packs copies of experts on a thread of its own, between steps that go on",
}
FUNC, SECTION = 2, 3  # ELF: types of symbols
LOCAL, WEAK = 0, 2    # and their bindings


def read_object(path):
    """Functions {(section, value): (name, binding)} of an object, and references of code [((section, offset), name or place)]."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path}: no 64-bit little-endian ELF object")
    offset, = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]
    symbols, functions, references = [], {}, []
    for h in (h for h in heads if h[1] == 2):
        strings = heads[h[6]][4]
        for at in range(h[4], h[4] + h[5], 24):
            name, info, _, section, value, _ = struct.unpack_from("<IBBHQQ", data, at)
            text = data[strings + name:data.index(b"\0", strings + name)].decode()
            symbols.append((text, info & 15, section, value))
            if info & 15 == FUNC and section != 0:
                functions[section, value] = (text, info >> 4)
    for h in heads:
        if h[1] != 4 or not heads[h[7]][2] & 4:  # relocations of code
            continue
        for at in range(h[4], h[4] + h[5], 24):
            where, info, addend = struct.unpack_from("<QQq", data, at)
            name, kind, section, value = symbols[info >> 32]
            # x86-64 counts from behind the operand.
            behind = 4 if info & 0xFFFFFFFF in (2, 4) and data[18] == 62 else 0
            target = name if section == 0 else (section, value + (addend + behind if kind == SECTION else 0))
            references.append(((h[7], where), target))
    return functions, references


def graph_of(objects):
    """{function: functions it names}, {function: (object, binding)}. Functions of one object alone have its name behind theirs."""
    calls, known = {}, {}
    for path in objects:
        functions, references = read_object(path)
        values = {}
        for section, value in sorted(functions):
            values.setdefault(section, []).append(value)

        def name_at(section, value):
            """Of the function that holds a place; none for a part that only errors reach."""
            i = bisect_right(values.get(section, []), value)
            name, binding = functions[section, values[section][i - 1]] if i > 0 else (".cold", LOCAL)
            if ".cold" in name:
                return None
            return f"{name} {path}" if binding == LOCAL else name

        for (section, value), (name, binding) in functions.items():
            if ".cold" not in name:
                known.setdefault(name_at(section, value), (path, binding))
        for place, target in references:
            user = name_at(*place)
            used = target if isinstance(target, str) else name_at(*target)
            if user is not None and used is not None:
                calls.setdefault(user, set()).add(used)
    return calls, known


def demangled(names):
    run = subprocess.run(["c++filt"], input="\n".join(n.split(" ")[0] for n in names), check=True, capture_output=True, text=True)
    return dict(zip(names, run.stdout.splitlines()))


def sources_of(path, build):
    """Paths below src/ that an object was made of."""
    text = str(path)
    if "/bundles/" in text:
        lines = (build / "bundles" / path.name.removesuffix(".o")).read_text()
        return re.findall(r'#include ".*?/src/(.*)"', lines)
    return [text.rsplit("/src/", 1)[1].removesuffix(".o")]


def patterns(root):
    text = (root / "cmake/kernel_flags.cmake").read_text()
    return [re.compile(re.search(rf'set\(MOEBIUS_{name}_FILES "(.*)"\)', text)[1]) for name in ("HOT", "COLD")]


def judge(calls, known, words, cold):
    """Complaints, given the graph, names for people, and the files of cold objects {object: files}."""
    complaints = []
    seen, line = {}, deque()
    for root in ROOTS:
        found = [n for n in known if re.match(root, words[n])]
        if not found:
            complaints.append(f"no function matches {root}")
        for n in found:
            seen.setdefault(n, None)
            line.append(n)
    while line:
        n = line.popleft()
        if any(re.match(aside, words[n]) for aside in ASIDE):
            continue
        path, binding = known[n]
        if binding != WEAK and path in cold:
            way, at = [], n
            while at is not None:
                way.append(words[at].replace("(anonymous namespace)::", "").split("(")[0])
                at = seen[at]
            complaints.append(f"{path.name} ({', '.join(cold[path])}): {' <- '.join(way)}")
            continue
        for m in calls.get(n, ()):
            if m in known and m not in seen:
                seen[m] = n
                line.append(m)
    return complaints


def check(root, build, objects):
    hot, cold = patterns(root)
    objects = [path for path in objects if path.suffix == ".o"]  # a precompiled header is among them
    cold_objects = {}
    for path in objects:
        files = sources_of(path, build)
        if all(cold.match(f) and not hot.match(f) for f in files):
            cold_objects[path] = files
    calls, known = graph_of(objects)
    complaints = [] if cold_objects else ["no cold object was given: nothing was checked"]
    complaints += judge(calls, known, demangled(list(known)), cold_objects)
    for complaint in complaints:
        print(complaint)
    print(f"{len(known)} functions, {len(cold_objects)} cold objects, {len(complaints)} violations")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(check(Path(sys.argv[1]), Path(sys.argv[2]), [Path(p) for p in sys.argv[3:]]))
