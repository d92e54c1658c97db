#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Names in unnamed namespaces differ among the files of a folder that g++ compiles several at a time: which of them meet depends on how
many there are, so a clash would show up in somebody else's change. A file whose names are right as they are is listed as unbundled in
cmake/bundles.cmake. Types of headers differ in all of src/: two types of one name are one to the linker, which then calls the wrong
destructor.

    check_names.py ROOT     exit status 1 on any violation
"""
import re
import sys
from collections import defaultdict
from pathlib import Path

# What a line at the first column of an unnamed namespace can define: a type, a constant, a function (an alias may
# be repeated).
TYPE = re.compile(r"^(?:struct|class|enum class|enum|union)\s+(?:alignas\([^)]*\)\s*)?(\w+)[^;]*$")
VALUE = re.compile(r"^(?:static\s+|inline\s+|thread_local\s+)*(?:constexpr|const|constinit|std::atomic<[^>]*>)[^(=]*?\b(\w+)(?:\[[^\]]*\])*\s*(?:=|\{)")
FUNCTION = re.compile(r"^(?=\w)(?!return\b|if\b|for\b|while\b|else\b|using\b|#)[\w:<>,&*\s\[\]\.]*?[\w>&*\]]\s+[*&]?(\w+)\(")


def names_of(text):
    """(line number, name) of what the unnamed namespaces of a file define."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("namespace {"):
            inside = True
        elif line.startswith("}  // namespace"):
            inside = False
        elif inside:
            for pattern in (TYPE, VALUE, FUNCTION):
                match = pattern.match(line)
                if match:
                    yield number, match.group(1)
                    break


def check_folder(files):
    """Complaints, given {path: text} of one folder."""
    seen = defaultdict(dict)
    for path, text in sorted(files.items()):
        for number, name in names_of(text):
            seen[name].setdefault(path, number)
    return [f"{path}:{number}: {name} is also a name of {', '.join(str(p) for p in list(where)[:i])}"
            for name, where in sorted(seen.items()) for i, (path, number) in enumerate(where.items()) if i > 0]


def check_types(headers):
    """Complaints, given {path: text} of all headers: types of namespace moebius itself that are defined twice."""
    seen, complaints = {}, []
    for path, text in sorted(headers.items()):
        space = ""
        for number, line in enumerate(text.splitlines(), 1):
            opened = re.match(r"namespace ([\w:]*) *\{", line)
            if opened:
                space = opened.group(1)
            match = TYPE.match(line)
            if space != "moebius" or not match or "::" in line.split(" : ")[0] or not line.rstrip().endswith("{"):
                continue
            name = match.group(1)
            if name in seen:
                complaints.append(f"{path}:{number}: type {name} is also defined in {seen[name]}")
            seen.setdefault(name, path)
    return complaints


def check_tests(files):
    """Complaints, given {path: text} of test files: each has a namespace of its own, so that names need not differ in a bundle of them."""
    return [f"{path}: its names lie in no namespace that ends with ::{Path(path).stem}" for path, text in sorted(files.items())
            if not re.search(rf"^namespace moebius(::\w+)*::{Path(path).stem} {{$", text, re.MULTILINE)]


def bundled(cmake):
    """The folders and the files to leave out, given the text of cmake/bundles.cmake."""
    folders = re.search(r'MOEBIUS_BUNDLE_FOLDERS "\^\(([\w|]+)\)/"\)', cmake).group(1).split("|")
    alone = re.search(r"MOEBIUS_UNBUNDLED_FILES\n([^)]*)\)", cmake).group(1).split()
    return folders, alone


def main():
    root = Path(sys.argv[1])
    folders, alone = bundled((root / "cmake/bundles.cmake").read_text(encoding="utf-8"))
    alone = {root / "src" / name for name in alone}
    headers = {p.relative_to(root): p.read_text(encoding="utf-8") for p in (root / "src").rglob("*.h")
               if not re.match(r"(arm|x86|isa)_", p.name)}
    complaints, files = check_types(headers), 0
    complaints += check_tests({p.relative_to(root): p.read_text(encoding="utf-8") for p in (root / "tests").rglob("*_test.cpp")})
    complaints += [f"cmake/bundles.cmake: there is no {path}" for path in alone if not path.exists()]
    for folder in folders:
        by_parent = defaultdict(dict)
        for path in (root / "src" / folder).rglob("*.cpp"):
            if path in alone:
                continue
            by_parent[path.parent][path.relative_to(root)] = path.read_text(encoding="utf-8")
        for texts in by_parent.values():
            files += len(texts)
            complaints += check_folder(texts)
    for complaint in complaints:
        print(complaint)
    print(f"{files} files, {len(complaints)} clashes")
    return 1 if complaints or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
