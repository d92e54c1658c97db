#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small rules about the files of the repository.

    check_tree.py ROOT     exit status 1 on any violation

 - src/ files have at most 600 lines; source files open with their licence line
 - no path of somebody's machine and no left-over note in any text file
 - no single file of more than 12 MB; at most 1,500 files below tests/, and 41 MB in all
 - src/ prints nothing with a function that throws when nobody reads
 - plugins/cuda launches kernels, and asks for shared memory, in launch.h alone
 - folders of src and plugins, and the C++ of bench, have at most the code lines of line_budget.txt

    check_tree.py ROOT --lines     prints the code lines of these folders as line_budget.txt has them
"""
import re
import subprocess
import sys
from pathlib import Path

MAX_LINES = 600
MAX_BYTES = 12_000_000
MAX_TREE_BYTES = 41_000_000
MAX_TEST_FILES = 1500
SOURCE = {".cpp", ".h", ".hpp", ".c", ".py", ".cmake", ".sh", ".js", ".css"}
SPDX = "SPDX-License-Identifier: Apache-2.0"
# Home folders and the like: a path that exists on one machine only.
PRIVATE_PATH = re.compile(r"(?<![\w.$}/-])/(work|root|farm|home|Users|mnt)/[\w.-]+")
# Spelled in halves, so that this file passes its own rule.
NOTES = re.compile(r"\b(" + "TO" + "DO|FIX" + "ME|XX" + r"X)\b")
# fmt throws where a stream of C cannot be written.
THROWING_PRINT = re.compile(r"print\((stderr|stdout)\b")
# What plugins/cuda/launch.h does for all kernels.
LAUNCH = re.compile(r"<<<|\bcudaLaunch|\bcudaFuncSetAttribute\b")
GENERATED = re.compile(r"^(models/|tests/golden|LICENSE$)")
# Languages whose lines are budgeted, in these folders; bench counts as one.
BUDGETED = re.compile(r"^(src/[^/]+|plugins/cuda|plugins|bench)(?=/).*\.(cpp|h|c|cu|cuh|S|inc|js|css|html)$")
# A literal, which may hold the signs of a comment, or (the named group) a comment.
COMMENT = re.compile(r"""R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'|(?P<comment>//[^\n]*|/\*.*?\*/|<!--.*?-->)""", re.S)
SKIPPED_FOLDERS = {"build", "out", ".git", ".cache", "__pycache__"}


def tracked_files(root):
    """Files git knows or would add; without git, every file outside build folders."""
    run = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                         capture_output=True, text=True)
    if run.returncode == 0 and run.stdout:
        paths = [root / name for name in run.stdout.split("\0") if name]
    else:
        paths = [p for p in root.rglob("*") if not SKIPPED_FOLDERS & set(p.relative_to(root).parts)]
    return sorted(p for p in paths if p.is_file() and not p.is_symlink())


def check_text(name, text):
    """Complaints about one text file."""
    complaints = []
    suffix = Path(name).suffix
    lines = text.split("\n")
    if name.startswith("src/") and len(lines) - 1 > MAX_LINES:
        complaints.append(f"{name}: {len(lines) - 1} lines, at most {MAX_LINES}")
    if GENERATED.match(name) and suffix not in SOURCE:
        return complaints
    if suffix in SOURCE and not any(SPDX in line for line in lines[:3]):
        complaints.append(f"{name}: no line '{SPDX}' at the top")
    for number, line in enumerate(lines, 1):
        if PRIVATE_PATH.search(line):
            complaints.append(f"{name}:{number}: path of one machine: {line.strip()[:80]}")
        if NOTES.search(line):
            complaints.append(f"{name}:{number}: left-over note: {line.strip()[:80]}")
        if name.startswith("src/") and THROWING_PRINT.search(line):
            complaints.append(f"{name}:{number}: throws where nobody reads: {line.strip()[:80]}")
        if name.startswith("plugins/cuda/") and name != "plugins/cuda/launch.h" and LAUNCH.search(line):
            complaints.append(f"{name}:{number}: a launch that is not launch()'s: {line.strip()[:80]}")
    return complaints


def check_size(sizes, most_files=MAX_TEST_FILES, most_bytes=MAX_TREE_BYTES):
    """Complaints about {name: bytes} of all files."""
    tests, total = sum(name.startswith("tests/") for name in sizes), sum(sizes.values())
    complaints = [f"tests/: {tests} files, at most {most_files}"] if tests > most_files else []
    return complaints + ([f"the tree: {total} bytes, at most {most_bytes}"] if total > most_bytes else [])


def code_lines(text):
    """Lines of a source file that are neither blank nor comment alone."""
    code = COMMENT.sub(lambda m: "\n" * m[0].count("\n") if m["comment"] else m[0], text)
    return sum(1 for line in code.split("\n") if line.strip())


def count_lines(root, files):
    """{folder: code lines} of what is budgeted."""
    counts = {}
    for path in files:
        if found := BUDGETED.match(path.relative_to(root).as_posix()):
            counts[found[1]] = counts.get(found[1], 0) + code_lines(path.read_text(encoding="utf-8"))
    return counts


def check_lines(counts, budget):
    """Complaints about {folder: code lines}; budget is the text of line_budget.txt."""
    most = {}
    for line in budget.splitlines():
        if line and not line.startswith("#"):
            folder, lines = line.split()
            most[folder] = int(lines)
    complaints = [f"{folder}: {lines} code lines, at most {most.get(folder, 0)} (tests/checks/line_budget.txt; more needs a reason)"
                  for folder, lines in sorted(counts.items()) if lines > most.get(folder, 0)]
    return complaints + [f"tests/checks/line_budget.txt: there is no {folder}" for folder in most if folder not in counts]


def main():
    root = Path(sys.argv[1])
    files = tracked_files(root)
    counts = count_lines(root, files)
    if "--lines" in sys.argv[2:]:
        for folder, lines in sorted(counts.items()):
            print(folder, lines)
        return 0
    complaints = check_size({path.relative_to(root).as_posix(): path.stat().st_size for path in files})
    complaints += check_lines(counts, (root / "tests/checks/line_budget.txt").read_text(encoding="utf-8"))
    for path in files:
        name = path.relative_to(root).as_posix()
        if path.stat().st_size > MAX_BYTES:
            complaints.append(f"{name}: {path.stat().st_size} bytes, at most {MAX_BYTES}")
        try:
            text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            complaints += check_text(name, text)
    for complaint in complaints:
        print(complaint)
    print(f"{len(files)} files, {len(complaints)} violations")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
