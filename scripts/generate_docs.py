#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fills the generated blocks of the documents from the tool's own lists.

    generate_docs.py TOOL [--check]     TOOL: the built moebius; --check: change nothing, exit 1 if a block is out of step

A block stands between two marks, in README.md, ARCHITECTURE.md or docs/*.md:

    <!-- generated:NAME -->
    ...
    <!-- end -->

and holds what `moebius docs NAME` prints.
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- generated:([\w-]+) -->\n)(.*?)(<!-- end -->)", re.S)


def documents(root):
    return [p for p in [root / "README.md", root / "ARCHITECTURE.md", *sorted((root / "docs").glob("*.md"))] if p.is_file()]


def fill(text, make):
    """The text with every block replaced by make(NAME)."""
    return BLOCK.sub(lambda m: m.group(1) + make(m.group(2)).rstrip("\n") + "\n" + m.group(4), text)


def main():
    args = [a for a in sys.argv[1:] if a != "--check"]
    check = "--check" in sys.argv[1:]
    tool = str(Path(args[0]).resolve())
    cache = {}

    def make(name):
        if name not in cache:
            run = subprocess.run([tool, "docs", name], capture_output=True, text=True, cwd=ROOT)
            if run.returncode != 0:
                sys.exit(f"`moebius docs {name}` failed: {run.stderr.strip()}")
            cache[name] = run.stdout
        return cache[name]

    stale = []
    for path in documents(ROOT):
        text = path.read_text(encoding="utf-8")
        opened = len(re.findall(r"^<!-- generated:", text, re.M))
        if opened != len(BLOCK.findall(text)):
            sys.exit(f"{path.name}: a generated block is not closed by <!-- end -->")
        new = fill(text, make)
        if new != text:
            stale.append(path.relative_to(ROOT).as_posix())
            if not check:
                path.write_text(new, encoding="utf-8")
    if check and stale:
        print("out of step with the tool: " + ", ".join(stale) + " (run scripts/generate_docs.py)")
        return 1
    print(f"{len(cache)} generated blocks" + ("" if check else f", rewritten: {', '.join(stale) or 'none'}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
