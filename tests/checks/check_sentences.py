#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every sentence that docs/troubleshooting.md quotes is still one of the program's.

    check_sentences.py ROOT     prints the sentences that the sources no longer hold; exit status 1 if there are any

A quoted sentence is a line that starts with "> "; "..." stands for what the program fills in ("{}" in the sources).
"""
import re
import sys
from pathlib import Path

QUOTE = re.compile(r"^> (.+)$", re.M)


def literals(text):
    """String literals of C++ code, those that stand side by side joined, placeholders as '...'."""
    found = re.findall(r'"(?:\\.|[^"\\\n])*"(?:\s*"(?:\\.|[^"\\\n])*")*', text)
    joined = ("".join(re.findall(r'"((?:\\.|[^"\\\n])*)"', f)) for f in found)
    return [re.sub(r"\{[^{}]*\}", "...", j.replace('\\"', '"')) for j in joined]


def missing(page, sources):
    """Sentences of the page that no literal of the sources holds."""
    held = [line for text in sources for line in literals(text)]
    sentences = QUOTE.findall(page)
    return sentences, [s for s in sentences if not any(s in line for line in held)]


def main():
    root = Path(sys.argv[1])
    page = (root / "docs/troubleshooting.md").read_text(encoding="utf-8")
    sources = [p.read_text(encoding="utf-8") for p in sorted((root / "src").rglob("*.cpp"))]
    sentences, lost = missing(page, sources)
    for sentence in lost:
        print(f"docs/troubleshooting.md quotes what the program does not say: {sentence}")
    print(f"{len(sentences)} sentences, {len(lost)} not found")
    return 1 if lost or not sentences else 0


if __name__ == "__main__":
    sys.exit(main())
