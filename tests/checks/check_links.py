#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The documents hang together and stay short.

    check_links.py ROOT     exit status 1 on any violation

 - a relative link of README.md, ARCHITECTURE.md, CONTRIBUTING.md, CHANGELOG.md or docs/*.md leads to a file, and what follows # to a heading of it
 - docs/README.md links every page of docs/
 - README.md has at most 700 words, all documents together at most 50,000, comments aside
 - lines have at most 120 characters; tables, generated blocks and indented commands may have longer ones
 - no document uses the words of WORDS, for which the field has better ones
"""
import re
import sys
from pathlib import Path

MAX_WORDS = 700
MAX_ALL_WORDS = 50_000
MAX_COLUMNS = 120
# Words that readers stumbled over, and what to write instead.
WORDS = {
    r"weights alone": "weight-only",
    r"(cache of|memory for|memory of) keys and values": "KV cache",
    r"^who has|\bwhoever\b": "for ..., if you ...",
    r"what is said": "the text, the answer",
    r"bare product": "only the matrix product",
    r"(sits?|sat) out\b": "is left out",
    r"^of models that": "for models that",
}
# What tools write, and CHANGELOG.md, which is history, may have longer lines and other words.
GENERATED = re.compile(r"^<!-- generated:.*?^<!-- end -->", re.M | re.S)
FREE = {"CHANGELOG.md"}
LINK = re.compile(r"\]\(([^)\s]*)\)")
COMMENT = re.compile(r"<!--.*?-->", re.S)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.M | re.S)


def without(pattern, text):
    """The text with what matches replaced by as many empty lines."""
    return pattern.sub(lambda found: "\n" * found[0].count("\n"), text)


def links(text):
    """Targets of the links of a page, those in code left out."""
    return LINK.findall(CODE.sub("", text))


def anchors(text):
    """What can follow # for this page: its headings as the usual viewers name them."""
    headings = re.findall(r"^#+ +(.+?) *$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def check_page(root, name):
    """Complaints about the links of one page."""
    complaints = []
    page = root / name
    for link in links(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists():
            complaints.append(f"{name}: links {link}, which does not exist")
        elif anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
            complaints.append(f"{name}: links {link}, and there is no such heading")
    return complaints


def check_contents(root):
    """Pages of docs/ that its table of contents does not link."""
    linked = set(links((root / "docs/README.md").read_text(encoding="utf-8")))
    pages = sorted(p.name for p in (root / "docs").glob("*.md"))
    return [f"docs/README.md: does not link {p}" for p in pages if p != "README.md" and p not in linked]


def count_words(text):
    """Words of a page, comments aside; marks of tables count."""
    return len(COMMENT.sub("", text).split())


def check_total(texts, most=MAX_ALL_WORDS):
    """Complaints about the words of all pages together."""
    count = sum(map(count_words, texts))
    return [f"all documents: {count} words, at most {most}"] if count > most else []


def check_size(name, text, words=None):
    """Complaints about the length of a page and of its lines."""
    complaints = [f"{name}:{number}: {len(line)} characters, at most {MAX_COLUMNS}"
                  for number, line in enumerate(without(GENERATED, text).split("\n"), 1)
                  if len(line) > MAX_COLUMNS and not line.startswith(("|", "    "))]
    count = count_words(text)
    if words is not None and count > words:
        complaints.append(f"{name}: {count} words, at most {words}")
    return complaints


def check_words(name, text):
    """Complaints about words for which the field has better ones, also where a line ends between them."""
    prose = without(CODE, without(GENERATED, text))
    return [f"{name}:{prose.count(chr(10), 0, found.start()) + 1}: '{' '.join(found[0].split())}', better: {better}"
            for words, better in WORDS.items() for found in re.finditer(words.replace(" ", r"\s+"), prose, re.I | re.M)]


def main():
    root = Path(sys.argv[1])
    names = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
    names += sorted(p.relative_to(root).as_posix() for p in (root / "docs").glob("*.md"))
    texts = {name: (root / name).read_text(encoding="utf-8") for name in names}
    complaints = [c for name in names for c in check_page(root, name)] + check_contents(root) + check_total(texts.values())
    for name, text in texts.items():
        if name in FREE:
            continue
        complaints += check_size(name, text, MAX_WORDS if name == "README.md" else None) + check_words(name, text)
    for complaint in complaints:
        print(complaint)
    print(f"{len(names)} pages, {len(complaints)} violations")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
