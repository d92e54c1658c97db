#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes python/moebius/_abi.py, the ctypes declarations of include/moebius/moebius.h, with the ranges of sampling parameters.

    generate_abi.py [--check]      --check: exit status 1 when the file is not what would be written
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER, OUTPUT = ROOT / "include/moebius/moebius.h", ROOT / "python/moebius/_abi.py"
# The table of sampling numbers; and where the library checks others: name, file, what stands before "least, greatest".
NUMBERS = ROOT / "src/base/sampling_numbers.inc"
CHECKED = {"logprobs": ("src/nn/sampler.cpp", r'in_range\("logprobs", p.logprobs, '),
           "min_tokens": ("src/nn/sampler.cpp", r'in_range\("min_tokens", p.min_tokens, ')}
MOST_ANSWERS = ("src/api/models.cpp", r"constexpr size_t kMaxAnswers = (\d+);")

SCALARS = {"size_t": "c_size_t", "int32_t": "c_int32", "uint32_t": "c_uint32", "int64_t": "c_int64",
           "uint64_t": "c_uint64", "float": "c_float", "double": "c_double", "int": "c_int"}

HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""ctypes declarations of moebius.h; written by scripts/generate_abi.py, not by hand."""
from __future__ import annotations

from ctypes import (CDLL, CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int32, c_int64,
                    c_size_t, c_uint32, c_uint64, c_void_p)
'''


def without_comments(text):
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    return re.sub(r"^\s*#.*$", "", text, flags=re.M)


def sampling_ranges():
    """Lines of two dictionaries: which numbers a sampling parameter may be, real or whole."""
    def number(words):
        return str(eval(words, {"__builtins__": {}}))  # 100, 0.01, 1 << 30

    ranges = {"float": [], "int": []}
    for kind, name, least, greatest in re.findall(
            r"^MOEBIUS_SAMPLING_NUMBER\((\w+), (\w+), [^,]+, ([^,]+), ([^)]+)\)", NUMBERS.read_text(encoding="utf-8"), flags=re.M):
        ranges[kind].append(f'"{name}": ({number(least)}, {number(greatest)})')
    for name, (file, before) in CHECKED.items():
        least, greatest = re.search(before + r"([^,]+), ([^)]+)\)", (ROOT / file).read_text(encoding="utf-8")).groups()
        ranges["int"].append(f'"{name}": ({number(least)}, {number(greatest)})')
    most = re.search(MOST_ANSWERS[1], (ROOT / MOST_ANSWERS[0]).read_text(encoding="utf-8")).group(1)
    ranges["int"].append(f'"n": (1, {most})')
    return [f"{title} = {{\n    " + ",\n    ".join(ranges[kind]) + ",\n}"
            for title, kind in (("SAMPLING_REAL", "float"), ("SAMPLING_WHOLE", "int"))]


class Types:
    def __init__(self):
        self.structs, self.enums, self.handles, self.callbacks = [], [], [], []

    def of(self, words, stars, result=False):
        """The ctypes name of a C type: its words without const, and how many stars follow."""
        name = " ".join(w for w in words.split() if w not in ("const", "struct"))
        if stars == 0:
            if name == "void":
                return "None"
            return name if name in self.callbacks else "c_int" if name in self.enums else SCALARS[name]
        if name in self.handles or name == "void":
            return "c_void_p"
        if name == "char" and stars == 1:  # a char* that is ours to free must stay a pointer
            return "c_void_p" if result and "const" not in words.split() else "c_char_p"
        inner = "c_char_p" if name == "char" else name if name in self.structs else SCALARS[name]
        for _ in range(stars - 1 if name == "char" else stars):
            inner = f"POINTER({inner})"
        return inner


def declarators(line):
    """(type words, stars, name) of each member that a declaration names."""
    match = re.match(r"((?:const )?\w+(?: const)?)\s*(.*)$", line.strip(), flags=re.S)
    words, rest = match.groups()
    for part in rest.split(","):
        part = part.strip()
        yield words, part.count("*"), re.sub(r"[\*\s]|\bconst\b", "", part)


def generate(text):
    abi = re.search(r"^#define MOEBIUS_ABI (\d+)", text, flags=re.M).group(1)
    text = without_comments(text)
    text = text[text.index('extern "C" {') + 12:text.rindex("}")]
    types = Types()
    types.handles = re.findall(r"typedef struct (\w+) \1;", text)
    out = [HEAD, f"ABI = {abi}\n", "# Ranges of sampling parameters: src/base/sampling_numbers.inc, and the library's checks of the rest.",
           *sampling_ranges(), ""]
    for body, name in re.findall(r"typedef enum \{(.*?)\} (\w+);", text, flags=re.S):
        types.enums.append(name)
        out += [f"{k} = {v}" for k, v in re.findall(r"(\w+) = (\d+)", body)]
    out.append("")
    order = re.finditer(r"typedef struct \{(.*?)\} (\w+);|typedef (\w+) \(\*(\w+)\)\((.*?)\);", text, flags=re.S)
    for m in order:
        if m.group(4):
            arguments = [types.of(w, s) for a in m.group(5).split(",") for w, s, _ in declarators(a)]
            types.callbacks.append(m.group(4))
            out.append(f"{m.group(4)} = CFUNCTYPE({', '.join([types.of(m.group(3), 0)] + arguments)})\n\n")
            continue
        fields = [(n, types.of(w, s)) for line in m.group(1).split(";") if line.strip() for w, s, n in declarators(line)]
        types.structs.append(m.group(2))
        lines = ",\n".join(f'        ("{n}", {t})' for n, t in fields)
        out.append(f"\nclass {m.group(2)}(Structure):\n    _fields_ = [\n{lines},\n    ]\n")
    body = text[text.rindex("typedef"):]
    body = body[body.index(";", body.index("}") if "}" in body else 0) + 1:]
    functions = re.findall(r"([\w][\w \*]*?)\b(moebius_\w+)\(([^)]*)\);", body, flags=re.S)
    out.append("\ndef declare(lib: CDLL) -> None:")
    out.append('    """Gives every function of the library its types."""')
    for result, name, arguments in functions:
        arguments = [] if arguments.strip() == "void" else \
            [types.of(w, s) for a in arguments.split(",") for w, s, _ in declarators(a)]
        out.append(f"    lib.{name}.argtypes = [{', '.join(arguments)}]")
        out.append(f"    lib.{name}.restype = {types.of(result.replace('*', ' '), result.count('*'), True)}")
    return "\n".join(out) + "\n"


def main():
    text = generate(HEADER.read_text(encoding="utf-8"))
    if "--check" in sys.argv[1:]:
        if not OUTPUT.is_file() or OUTPUT.read_text(encoding="utf-8") != text:
            print(f"{OUTPUT.relative_to(ROOT)} is stale: run scripts/generate_abi.py")
            return 1
        return 0
    OUTPUT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
