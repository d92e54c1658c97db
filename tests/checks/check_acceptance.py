#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every filter that tests/acceptance.md names runs at least one test.

    check_acceptance.py ROOT TESTS      TESTS: the built moebius_tests
"""
import fnmatch
import re
import subprocess
import sys
from pathlib import Path

FILTER = re.compile(r"`([A-Z*][\w/]*\.[\w*?/]+)`")  # `Moe.DifferentialFuzz`, `Schemes/MoeSchemes.*`


def filters(text):
    return sorted(set(FILTER.findall(text)))


def listed(output):
    """Names from --gtest_list_tests: a suite ends with a dot, its tests are indented."""
    names, suite = [], ""
    for line in output.splitlines():
        line = line.split("#")[0].rstrip()
        if line.startswith("  "):
            names.append(suite + line.strip())
        elif line.endswith("."):
            suite = line
    return names


def empty_filters(text, names):
    return [f for f in filters(text) if not any(fnmatch.fnmatchcase(n, f) for n in names)]


def main():
    root, tests = Path(sys.argv[1]), sys.argv[2]
    text = (root / "tests/acceptance.md").read_text(encoding="utf-8")
    run = subprocess.run([tests, "--gtest_list_tests"], capture_output=True, text=True, check=True)
    names = listed(run.stdout)
    if not filters(text) or not names:
        print(f"{len(filters(text))} filters, {len(names)} tests: nothing to compare")
        return 1
    empty = empty_filters(text, names)
    for f in empty:
        print(f"tests/acceptance.md: {f} runs 0 tests")
    print(f"{len(filters(text))} filters, {len(names)} tests, {len(empty)} empty")
    return 1 if empty else 0


if __name__ == "__main__":
    sys.exit(main())
