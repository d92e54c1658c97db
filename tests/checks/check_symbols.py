#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the symbol rule of instruction-set objects: nothing a linker could merge with code for every CPU.

    check_symbols.py NM OBJECT...     exit status 1 on any violation

Each object must define no weak symbol and exactly one external symbol, its table of kernels. A weak definition (an inline
function or template compiled with, say, I8MM) could replace the plain copy of another unit and crash older CPUs.
"""
import subprocess
import sys
from pathlib import Path

# Objects with another number of external definitions, and why. Keep it short.
EXCEPTIONS = {"x86_amx_int8.cpp": 2}  # its kernels stand at two places of the order


def defined_symbols(nm, obj):
    """(letter, demangled name) of the symbols an object defines for others."""
    run = subprocess.run([nm, "--demangle", "--extern-only", "--defined-only", str(obj)],
                         check=True, capture_output=True, text=True)
    for line in run.stdout.splitlines():
        parts = line.split(maxsplit=2)
        if len(parts) == 3 and len(parts[1]) == 1:
            yield parts[1], parts[2]


def judge(name, symbols):
    """Complaints about one object, given its (letter, name) pairs."""
    # W, w, V, v: weak; u: GNU unique. Labels of the sanitizers' and the C++ runtime's own are kept out of it.
    ignored = ("DW.ref.", "__odr_asan")
    symbols = [(letter, text) for letter, text in symbols if not text.startswith(ignored)]
    weak = [text for letter, text in symbols if letter in "WwVvu"]
    strong = [text for letter, text in symbols if letter not in "WwVvu"]
    complaints = [f"{name}: weak symbol {text}" for text in weak]
    expected = EXCEPTIONS.get(name, 1)
    if len(strong) != expected:
        complaints.append(f"{name}: {len(strong)} external definitions, expected {expected}: {', '.join(strong) or 'none'}")
    return complaints


def check(nm, objects):
    """Exit status; complaints are printed."""
    complaints = [] if objects else ["no instruction-set object was given: nothing was checked"]
    for obj in objects:
        complaints += judge(obj.name.removesuffix(".o"), list(defined_symbols(nm, obj)))
    for complaint in complaints:
        print(complaint)
    print(f"{len(objects)} instruction-set objects, {len(complaints)} violations")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(check(sys.argv[1], [Path(p) for p in sys.argv[2:]]))
