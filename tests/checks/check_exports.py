#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the border of the shared library: it shows the functions of moebius.h and nothing else, and docs/api.md names each.

    check_exports.py NM LIBRARY ROOT      exit status 1 on any violation
"""
import re
import subprocess
import sys
from pathlib import Path


def declared(header):
    """Names of the functions that a C header declares."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    return set(re.findall(r"^[\w \*]*?\b(moebius_\w+)\(", text, flags=re.M))


def documented(name, page):
    """Whether the page has the name, whole or as `_rest` behind a name of its group."""
    if re.search(rf"\b{name}\b", page):
        return True
    group, rest = re.match(r"(moebius_[a-z]+)_(\w+)", name).groups()
    return any(re.search(rf"`{group}_\w+`.*`_{rest}`", line) for line in page.splitlines())


def main():
    nm, library, root = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    run = subprocess.run([nm, "-D", "--defined-only", library], check=True, capture_output=True, text=True)
    shown = {line.split()[-1].split("@")[0] for line in run.stdout.splitlines()} - {"MOEBIUS_1"}
    names = declared((root / "include/moebius/moebius.h").read_text(encoding="utf-8"))
    page = (root / "docs/api.md").read_text(encoding="utf-8")
    complaints = [f"{n}: leaves the library and is not declared in moebius.h" for n in sorted(shown - names)]
    complaints += [f"{n}: declared in moebius.h and not in the library" for n in sorted(names - shown)]
    complaints += [f"{n}: docs/api.md does not name it" for n in sorted(names) if not documented(n, page)]
    for complaint in complaints:
        print(complaint)
    print(f"{len(shown)} functions leave the library, {len(complaints)} violations")
    return 1 if complaints or not names else 0


if __name__ == "__main__":
    sys.exit(main())
