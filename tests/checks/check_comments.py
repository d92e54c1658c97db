#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Comments begin with their noun or verb, so that a reader who sees one comment alone knows its subject.

    check_comments.py ROOT            exit status 1 on any violation
    check_comments.py ROOT --list     prints every comment that begins without its noun, too

A block is a run of lines that hold only a comment, or the comment at the end of a line of code with the lines that
continue it. No block in include/ and in the headers where layers meet (WAISTS) may begin with a word of WORDS, and at
most MOST blocks of cmake/, include/, src/ and plugins/ together. MOST may only become smaller.
"""
import re
import sys
from pathlib import Path

MOST = 30
FOLDERS = ["cmake", "include", "plugins", "src"]
SUFFIXES = {".h", ".hpp", ".cpp", ".c", ".cu", ".cuh", ".inc", ".S"}
# Headers in which layers meet, wherever they stand in src/.
WAISTS = {"device.h", "ops.h", "kernel.h", "backend.h", "graph.h", "engine.h", "generator.h", "model_plan.h"}
WORDS = ["Of", "Those", "That", "What", "With", "Behind", "Between", "By", "From", "As", "Which", "Who", "Why", "How",
         "Where", "Whether", "Its", "Both", "The same", "The other"]
BEGINS = re.compile(r"(" + "|".join(WORDS) + r")\b")
# A comment, or what may hold the marks of one without being one: a raw string, a string, a character. The quote of
# 1'000 follows a digit and opens nothing.
TOKEN = re.compile(r'R"([^()\s\\]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])+\''
                   r"|(?P<comment>//[^\n]*|/\*.*?\*/)", re.S)


def blocks(text):
    """(line number, words) of each comment block, in order; licence lines and the formatter's marks are no blocks."""
    found = []
    next_line = next_column = None  # where a comment must stand to continue the last block
    for token in TOKEN.finditer(text):
        comment = token.group("comment")
        if comment is None:
            continue
        start = text.rfind("\n", 0, token.start()) + 1
        number = text.count("\n", 0, token.start()) + 1
        column = token.start() - start
        words = " ".join(re.sub(r"^\s*(?://+|/\*|\*(?!/))|\*/$", "", comment, flags=re.M).split())
        if words.startswith(("SPDX-License", "clang-format", "NOLINT")):
            words, next_line = re.sub(r"^SPDX\S+ \S+|^(clang-format|NOLINT).*", "", words).strip(), None
            if not words:
                continue
        own_line = not text[start:token.start()].strip()
        if own_line and (number, column) == (next_line, next_column):
            found[-1] = (found[-1][0], f"{found[-1][1]} {words}".strip())
        else:
            found.append((number, words))
        next_line, next_column = number + comment.count("\n") + 1, column
    return [(number, words) for number, words in found if words]


def without_noun(text):
    """The blocks of a file that begin with a word of WORDS."""
    return [(number, words) for number, words in blocks(text) if BEGINS.match(words)]


def check(files, most=MOST):
    """Complaints about {name: text}, the number of blocks, and those that begin without their noun."""
    complaints, found, total = [], [], 0
    for name, text in sorted(files.items()):
        total += len(blocks(text))
        here = [f"{name}:{number}: {words[:90]}" for number, words in without_noun(text)]
        found += here
        if name.startswith("include/") or Path(name).name in WAISTS:
            complaints += [f"begins without its noun: {line}" for line in here]
    if len(found) > most:
        complaints.append(f"{len(found)} comments begin without their noun, at most {most}")
    return complaints, total, found


def main():
    root = Path(sys.argv[1])
    paths = [p for folder in FOLDERS for p in sorted((root / folder).rglob("*")) if p.suffix in SUFFIXES]
    complaints, total, found = check({p.relative_to(root).as_posix(): p.read_text(encoding="utf-8") for p in paths})
    if not total:
        complaints.append("no comment found")
    for line in (found if "--list" in sys.argv[2:] else []) + complaints:
        print(line)
    print(f"{total} comments, {len(found)} begin without their noun")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
