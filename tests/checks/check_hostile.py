#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hostile model folders through inspect, explain and run: what a stranger may have put into each file of one.

    check_hostile.py MOEBIUS [--cases N] [--seed S] [--case NUMBER] [--keep FOLDER]

Folders come from a seed: mutated configurations, tokenizers, chat templates and safetensors headers, sizes, links. Every command ends with
exit status 0, or with 1 or 2 and one sentence; no signal ends it, and it takes at most CPU_SECONDS and MEMORY_MB. Prints counts; --case
repeats one folder. Exit status 1 where a folder breaks a rule.
"""
import argparse
import collections
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BUNDLED = ROOT / "models" / "moebius-tiny-w4a8"
GOLDEN = ["qwen3moe-dense", "gptoss-mxfp4-native", "deepseekv3-finegrained-real-fp8", "glm4moe-modelopt-nvfp4", "mixtral-awq-gemv-g32", "deepseekv4-dense",
          "granitehybrid-dense", "kimilinear-w4a16-g32"]
CPU_SECONDS, MEMORY_MB, WALL_SECONDS = 10, 1024, 600  # the last only ends what hangs

HOSTILE = [None, True, -1, 0, 1, 2**31, 2**32, 2**63 - 1, 2**63, -2**63, 2**64, 10**30, 1e308, -0.0, 1e-320, float("nan"), float("inf"), "", "x" * 100000, "\u0000",
           "../../etc/passwd", "/dev/zero", "re:(a*)*b", "re:(?:a|a)*$", "re:(", [], {}, [[]], [0] * 5000, {"": {}}, {"x": {"y": [None]}}]
REGEXES = ["a*a*c|a", "(a*)*b", "(?:a|a)*c|a", "(?:aa)*(?:aa)*c|aa", "(?=(a*))\\1b", "(?i)(?:a|b)*?c", "(?>a*)+c|a", "(a?){50}a{50}", "(", "[", "\\p{Nope}", "",
           ".*.*.*c|.", "(?:.|\\n)*x|.", "\\w*\\w*\\w*1", "(?<=a*)b", "((((((a*)*)*)*)*)*)c", "a{1,1000}{1,1000}c", "(?~ab)*c|a", "x" * 70000]
PATHS = ["/dev/zero", "/dev/null", "/proc/self/mem", "/nonexistent", "/", "/proc/self/fd/0", "/dev/full", "."]


def places(value, at=()):
    """All places of a JSON value."""
    yield at
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, at + (key,))


def change(rng, value, skip=()):
    """One hostile change inside a JSON value."""
    where = [p for p in places(value) if p and not any(p[:len(s)] == s for s in skip)]
    at = rng.choice(where) if where else ()
    parent = value
    for key in at[:-1]:
        parent = parent[key]
    if not at:
        return rng.choice(HOSTILE)
    kind = rng.randrange(6)
    if kind == 0 and isinstance(parent, dict):
        del parent[at[-1]]
    elif kind == 1 and isinstance(parent[at[-1]], list):
        parent[at[-1]] = parent[at[-1]] * rng.choice([2, 1000])
    elif kind == 2 and isinstance(parent[at[-1]], (int, float)):
        parent[at[-1]] = parent[at[-1]] * rng.choice([-1, 0, 2, 3, 10**6, 10**12]) + rng.choice([-1, 0, 1])
    elif kind == 3 and isinstance(parent, dict):
        parent[rng.choice(["", "quantization_config", "rope_scaling", "text_config", "x" * 5000])] = rng.choice(HOSTILE)
    else:
        parent[at[-1]] = rng.choice(HOSTILE)
    return value


def damage(rng, data):
    """Text or bytes that are no longer what they were."""
    data = bytearray(data)
    kind = rng.randrange(7)
    if kind == 0:
        return bytes(data[:rng.randrange(len(data) + 1)])
    if kind == 1:
        for _ in range(rng.randrange(1, 20)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data)
    if kind == 2:
        at, length = rng.randrange(len(data)), rng.randrange(1, 200)
        return bytes(data[:at] + data[at:at + length] * rng.choice([2, 50, 5000]) + data[at + length:])
    if kind == 3:
        return b"\xef\xbb\xbf" + bytes(data)
    if kind == 4:
        return rng.choice([b"[" * 10**6, b'{"a":' * 10**5, b"[" + b"0," * rng.choice([10**5, 10**7]) + b"0]", b'"' + b"\\u0000" * 10**5 + b'"', b"\x00" * 1000, b""])
    if kind == 5:
        text = bytes(data)
        at = text.rfind(b"}")
        return text[:at] + b', "x": [' + b"{}," * rng.choice([10, 10**6]) + b"{}]" + text[at:]
    many = b",".join(b'"k%d": %d' % (i, i) for i in range(rng.choice([100, 500000])))
    return bytes(data[:1]) + many + b"," + bytes(data[1:])


def mutate_json(rng, path, skip=()):
    if rng.random() < 0.3:
        return path.write_bytes(damage(rng, path.read_bytes()))
    value = json.loads(path.read_text(encoding="utf-8"))
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        value = change(rng, value, skip)
    path.write_text(json.dumps(value), encoding="utf-8")


def mutate_tokenizer(rng, folder):
    path = folder / "tokenizer.json"
    if rng.random() < 0.4:
        return mutate_json(rng, path, [("model", "vocab"), ("model", "merges")])
    t = json.loads(path.read_text(encoding="utf-8"))
    kind = rng.randrange(7)
    pattern = {rng.choice(["Regex", "Regex", "String"]): rng.choice(REGEXES)}
    if kind <= 1:
        t["pre_tokenizer"] = {"type": "Split", "pattern": pattern, "behavior": rng.choice(["Isolated", "Removed", "Contiguous", "MergedWithNext"]), "invert": rng.random() < 0.3}
    elif kind == 2:
        t["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": pattern, "content": rng.choice(["", "aa", "a" * 100000])}] * rng.choice([1, 3, 40])}
    elif kind == 3:
        t["added_tokens"] = [{"id": rng.choice([0, i, 2**31, -1, 10**6 + i]), "content": rng.choice(["a", "aa", " ", "x" * 70000, f"t{i}", ""]), "special": rng.random() < 0.5,
                              "normalized": rng.random() < 0.5, "lstrip": True, "rstrip": True, "single_word": rng.random() < 0.5} for i in range(rng.choice([3, 2000]))]
    elif kind == 4:
        words = list(t["model"]["vocab"])
        for _ in range(rng.choice([1, 50])):
            t["model"]["vocab"][rng.choice(words)] = rng.choice([-1, 0, 2**31, 2**63, 5, "5", None, 1.5])
    elif kind == 5:
        t["model"]["merges"] = rng.choice([[["a"]], [["a", "a"]] * 100000, ["a a", "aa aa"], [0], ["a"], {"a": "b"}, [["", ""]], t["model"]["merges"][::-1]])
    else:
        t["model"] = rng.choice([{"type": "Unigram", "vocab": [["a" * i, -float(i)] for i in range(1, 3000)], "unk_id": rng.choice([0, -1, 10**9])},
                                 {"type": "WordPiece", "vocab": {"a": 0}}, {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "b"}, {"type": "BPE", "vocab": {}, "merges": []}])
    path.write_text(json.dumps(t), encoding="utf-8")


def hostile_template(rng):
    big = rng.choice(["'x' * 1000000", "messages | string", "range(99999) | list", "'ab' * 500000", "[0] * 65536", "{'a': 'x' * 100000}"])
    operate = ["{% set y = x | string | upper %}", "{% set y = x | tojson %}", "{% set y = x ~ x %}", "{% set y = x | length %}", "{% set y = x == x ~ '' %}", "{% set y = x | int(0) %}",
               "{% set y = x | reverse | list %}", "{% set y = 'xxxxy' in (x | string) %}", "{% set y = (x | string).replace('x', 'yy') %}", "{% set y = (x | string).split('x') %}",
               "{{ x }}", "{% set y = x | list | unique | list %}", "{% set y = x | sort %}", "{% set ns.s = ns.s ~ 'x' * 1000 %}", "{% set y = ns.s[::-1] %}",
               "{% set y = '%s' % (x | string) %}", "{% set y = x | map('string') | join(',') %}", "{% set y = (x | string).strip('x') %}", "{{ m(3) }}", "{% set y = x[5:] %}"]
    body = "".join(rng.choice(operate) for _ in range(rng.randrange(1, 5)))
    for i in range(rng.randrange(1, 4)):
        body = "{% for v" + str(i) + " in range(" + str(rng.choice([3, 1000, 100000])) + ") %}" + body + "{% endfor %}"
    macro = "{% macro m(n) %}{{ " + rng.choice(["m(n)", "m(n - 1) if n else 'x'", "m(n - 1) ~ m(n - 1) if n else 'x'", "'x' * 100000"]) + " }}{% endmacro %}"
    whole = "{% set ns = namespace(s='') %}" + macro + "{% set x = " + big + " %}" + body
    odd = ["{{ " + "(" * 50000 + "1", "{% if 1 %}" * 50000, "{{ 1" + " + 1" * 100000 + " }}", "{{ " + "a." * 50000 + "b }}", "{{ {}" + "|string" * 20000 + " }}", "{%", "{{ raise_exception('no') }}",
           "{{ " + "n" * 10**6 + " }}", "{{ 'x'.format(" + "1," * 50000 + ") }}", "{#" * 10000, "\x00", "{{ '{:>99999999}'.format(1) }}", "{{ 9**99999999 }}", "{{ messages[99999999999999999999] }}"]
    return whole if rng.random() < 0.7 else rng.choice(odd)


def mutate_template(rng, folder):
    (folder / "chat_template.jinja").write_text(hostile_template(rng), encoding="utf-8")


def mutate_header(rng, folder):
    """A safetensors file whose header lies."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    if rng.random() < 0.25:
        length = rng.choice([0, 1, length - 1, length + 1, len(data), len(data) - 8, 2**32, 2**63, 2**64 - 1, 100 << 20])
        path.write_bytes(struct.pack("<Q", length) + data[8:])
        return
    if rng.random() < 0.2:
        text = damage(rng, data[8:8 + length])
        path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length:])
        return
    header = json.loads(data[8:8 + length])
    names = [n for n in header if n != "__metadata__"]
    for _ in range(rng.choice([1, 1, 3, 20])):
        name = rng.choice(names)
        if name not in header:
            continue
        entry = header[name]
        kind = rng.randrange(9)
        if kind == 0:
            entry["dtype"] = rng.choice(["F64", "F16", "I8", "BOOL", "F4", "U64", "", None, 5])
        elif kind == 1:
            entry["shape"] = rng.choice([[], [0], [2**32, 2**32], [-1], [2**63], entry["shape"][::-1], entry["shape"] + [1], [1] * 1000, "4", [1.5]])
        elif kind == 2:
            entry["data_offsets"] = rng.choice([[0, 0], [5, 1], [0, 2**63], [2**64 - 1, 2**64 - 1], [-1, 4], [0], [0, len(data) * 2], "0", entry["data_offsets"][::-1]])
        elif kind == 3:
            header[rng.choice(names)] = header[name]
        elif kind == 4:
            del header[name]
        elif kind == 5:
            header[rng.choice(["", "x" * 5000, "../x", name + ".weight", name.replace("0", "99999999999999999999")])] = header.pop(name)
        elif kind == 6:
            header["__metadata__"] = rng.choice([{}, [], {"a": 1}, {"format": "x" * 10**6}, None])
        elif kind == 7:
            entry[rng.choice(["x", "shape2"])] = rng.choice(HOSTILE)
        else:
            header[name] = rng.choice(HOSTILE)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length:])


def mutate_sizes(rng, folder):
    path = rng.choice([p for p in folder.iterdir() if p.suffix in (".json", ".safetensors")])
    size = path.stat().st_size
    os.truncate(path, rng.choice([0, 1, 7, 8, 9, size // 2, max(size - 1, 0), size + 1, size + 4096, 1 << 26, (1 << 26) + 1, 1 << 31, 1 << 36]))


def mutate_links(rng, folder):
    path = rng.choice([p for p in folder.iterdir() if p.suffix in (".json", ".safetensors")] + [folder / "model.safetensors.index.json", folder / "chat_template.jinja"])
    if path.exists():
        path.unlink()
    kind = rng.randrange(6)
    if kind == 0:
        path.symlink_to(path.name)
    elif kind == 1:
        path.symlink_to(rng.choice(PATHS))
    elif kind == 2:
        os.mkfifo(path)
    elif kind == 3:
        path.mkdir()
    elif kind == 4:
        path.symlink_to(rng.choice(["config.json", "model.safetensors"]))
    else:
        path.write_text(json.dumps({"weight_map": {"a": rng.choice(PATHS + ["model.safetensors", "../x", "config.json", "x" * 300])}}), encoding="utf-8")


KINDS = {"config": lambda rng, folder: mutate_json(rng, rng.choice([folder / "config.json"] * 4 + [folder / "generation_config.json"])),
         "tokenizer": mutate_tokenizer, "template": mutate_template, "header": mutate_header, "sizes": mutate_sizes, "links": mutate_links}


def first(number, folder):
    """The first folders of every seed: work and memory without end in a few words."""
    if number == 0:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps({**config, "list": [0] * 10**7}), encoding="utf-8")
    elif number == 1:
        tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        tokenizer["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "a*a*c|a"}, "behavior": "Isolated", "invert": False}
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    else:
        big = "{% set x = 'x' * 1000000 %}{% for i in range(100000) %}{% for j in range(1000) %}{% set y = x | int(0) %}{% endfor %}{% endfor %}"
        (folder / "chat_template.jinja").write_text(big, encoding="utf-8")


def write_folder(seed, number, folder):
    """Folder `number` of a seed, and the kind of its mutation."""
    rng = random.Random(f"{seed}:{number}")
    kind = list(KINDS)[number % len(KINDS)]
    base = BUNDLED if kind in ("tokenizer", "template") or rng.random() < 0.6 else ROOT / "tests" / "golden" / rng.choice(GOLDEN)
    folder.mkdir()
    for path in base.iterdir():
        if path.suffix == ".json" or path.name == "model.safetensors":
            shutil.copyfile(path, folder / path.name)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):  # so that every folder has them
        if not (folder / name).exists():
            shutil.copyfile(BUNDLED / name, folder / name)
    if number < 3:
        first(number, folder)
    else:
        KINDS[kind](rng, folder)
    return kind


def run(command, environment):
    """Exit status (negative: a signal), output, CPU seconds and MB of a command."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment,
                                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (3 * CPU_SECONDS, 4 * CPU_SECONDS)))
        timer = threading.Timer(WALL_SECONDS, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        err.seek(0)
        return process.returncode, err.read().decode(errors="replace"), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def broken_rules(status, words, cpu, memory):
    said = [line for line in words.splitlines() if line.startswith("moebius: ") and not line.startswith("moebius: warning: ")]
    if status < 0:
        yield f"ended by {signal.Signals(-status).name}"
    elif status not in (0, 1, 2):
        yield f"exit status {status}"
    elif status and (len(said) != 1 or not words.rstrip("\n").splitlines()[-1].startswith(said[0]) or len(said[0]) > 4000):
        yield f"exit status {status} with {len(said)} sentences"
    if "terminate called" in words or "unexpected error" in words or "runtime error:" in words:
        yield "an unexpected error"
    if cpu > CPU_SECONDS:
        yield f"{cpu:.1f} s of CPU time"
    if memory > MEMORY_MB:
        yield f"{memory:.0f} MB of memory"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", type=Path)
    parser.add_argument("--cases", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="one folder alone")
    parser.add_argument("--keep", type=Path, help="where folders that break a rule are kept")
    options = parser.parse_args()
    tool = options.tool.resolve()
    environment = {**os.environ, "MOEBIUS_THREADS": "1"}  # so that CPU time is that of one thread
    counts, slowest, largest, failures = collections.Counter(), (0, ""), (0, ""), []
    lock = threading.Lock()

    def one(number):
        nonlocal slowest, largest
        with tempfile.TemporaryDirectory(prefix="moebius-hostile-") as work:
            folder = Path(work) / "model"
            kind = write_folder(options.seed, number, folder)
            text = Path(work) / "text"
            text.write_text("a" * 20000 + " b aab ==", encoding="utf-8")
            prompt = ["-f", str(text)] if kind == "tokenizer" else ["-p", "aab "]
            for command in (["inspect"], ["explain"], ["run", "-n", "2", *prompt, *(["--chat"] if kind == "template" else [])]):
                status, words, cpu, memory = run([str(tool), command[0], str(folder), "--quiet", *command[1:]], environment)
                wrong = list(broken_rules(status, words, cpu, memory))
                with lock:
                    counts[kind, "refused" if status else "taken"] += 1
                    slowest = max(slowest, (cpu, f"{command[0]}, case {number}"))
                    largest = max(largest, (memory, f"{command[0]}, case {number}"))
                    if wrong:
                        failures.append(number)
                        print(f"case {number} ({kind}), {command[0]}: {'; '.join(wrong)}\n  {words.strip()[-600:]}", flush=True)
                    elif options.case is not None:
                        print(f"case {number} ({kind}), {command[0]}: status {status}, {cpu:.1f} s, {memory:.0f} MB\n  {words.strip()[-600:]}", flush=True)
                if wrong and options.keep and not (options.keep / str(number)).exists():
                    shutil.copytree(folder, options.keep / str(number), symlinks=True)

    begin = time.monotonic()
    numbers = range(options.cases) if options.case is None else [options.case]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(one, numbers))
    for kind in KINDS:
        print(f"{kind}: {counts[kind, 'refused']} commands refused, {counts[kind, 'taken']} ran")
    print(f"{len(numbers)} folders, {sum(counts.values())} commands, {len(failures)} of them broke a rule; most CPU time {slowest[0]:.1f} s ({slowest[1]}), "
          f"most memory {largest[0]:.0f} MB ({largest[1]}); {time.monotonic() - begin:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
