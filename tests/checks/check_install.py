#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What people meet who install: documents, the unit, cmake --install behind ./moebius, pip install behind ./moebius.

    check_install.py ROOT [CMAKE]     one line per thing that is wrong; exit status 1 if there are any
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# Where pip install . begins, with targets that write down that they were compiled. As ./moebius: no SKBUILD.
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(some LANGUAGES NONE)
include("{wheel}")
if(wheel_from_release)
  return()
endif()
foreach(pair "moebius_cli;moebius" "moebius_bench;moebius-bench" "moebius_shared;libmoebius.so")
  list(GET pair 0 target)
  list(GET pair 1 file)
  add_custom_command(OUTPUT ${{file}} COMMAND "${{CMAKE_COMMAND}}" -E touch ${{file}})
  add_custom_target(${{target}} DEPENDS ${{file}})
endforeach()
add_custom_target(wheel_files DEPENDS moebius_cli moebius_bench moebius_shared)
"""


def run(*words, cwd=None):
    result = subprocess.run([str(w) for w in words], cwd=cwd, capture_output=True, text=True, errors="replace")
    return result.returncode, result.stdout + result.stderr


def wheel_complaints(root, cmake, name, linked):
    """pip behind ./moebius in a folder of this name, or by a link to it"""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work).resolve() / name
        (folder / "models/moebius-tiny-w4a8").mkdir(parents=True)
        (folder / "CMakeLists.txt").write_text(PROJECT.format(wheel=root / "cmake/wheel.cmake"), encoding="utf-8")
        where = folder
        if linked:
            where = Path(work).resolve() / "link"
            os.symlink(folder, where)
        release, python, prefix = folder / "build/release", where / "build/python", Path(work) / "prefix"
        steps = [(cmake, "-S", folder, "-B", release, "-G", "Ninja"),
                 (cmake, "--build", release, "--target", "moebius_cli"),
                 (cmake, "-S", where, "-B", python, "-G", "Ninja", "-DSKBUILD=2"),
                 (cmake, "--build", python, "--target", "wheel_files"),
                 (cmake, "--install", python, "--prefix", prefix, "--component", "python")]
        said = f"pip install . behind ./moebius in a folder {name}{', by a link' if linked else ''}"
        for step in steps:
            status, words = run(*step)
            if status != 0:
                return [f"{said}: {' '.join(map(str, step[1:3]))} failed: {words[-600:]}"]
        wrong = [f"{said}: compiled again" for file in ("moebius", "moebius-bench", "libmoebius.so")
                 if not (release / file).exists() or (file != "libmoebius.so" and (python / file).exists())]
        wrong += [f"{said}: {file} is missing" for file in ("libmoebius.so", "bin/moebius", "bin/moebius-bench") if not (prefix / file).exists()]
        return wrong


def install_complaints(root, cmake):
    """cmake --install where a file was not built"""
    status, words = run(cmake, "-DMOEBIUS_NEEDED=/nowhere/libmoebius.so", "-DMOEBIUS_BUILD=build/release", "-P", root / "cmake/built.cmake")
    wrong = []
    for part in ("libmoebius.so is not built yet", "cmake --build build/release"):
        if status == 0 or part not in words:
            wrong.append(f"cmake --install behind ./moebius does not say '{part}'")
    if run(cmake, f"-DMOEBIUS_NEEDED={root}/README.md", "-P", root / "cmake/built.cmake")[0] != 0:
        wrong.append("cmake --install refuses a file that is there")
    with tempfile.TemporaryDirectory() as build:
        (Path(build) / "kernels_left_out").touch()
        status, words = run(cmake, f"-DMOEBIUS_NEEDED={root}/README.md", f"-DMOEBIUS_BUILD={build}", "-P", root / "cmake/built.cmake")
        if status == 0 or f"cmake -DMOEBIUS_KERNELS=all {build}" not in words:
            wrong.append("cmake --install behind ./moebius does not say that kernels were left out")
    lists = (root / "CMakeLists.txt").read_text(encoding="utf-8")
    if "install(SCRIPT cmake/built.cmake" not in lists.split("include(cmake/mpi.cmake)")[0]:
        wrong.append("CMakeLists.txt: cmake/built.cmake is not the first rule of installation")
    return wrong


def text_complaints(root):
    """Words that must be in documents and in the unit."""
    wrong = []

    def has(name, pattern, what):
        if not re.search(pattern, (root / name).read_text(encoding="utf-8"), re.M):
            wrong.append(f"{name}: {what}")

    has("docs/install.md", r"apt install \./build/", "apt takes a file only with ./ before its path")
    for name in ("docs/install.md", "docs/serve.md"):
        has(name, r"systemctl enable --now moebius", "how the service is started")
    has("cmake/moebius.service", r"^RestartPreventExitStatus=1 2$", "a wrong folder or option must not be tried again")
    for name in ("README.md", "CMakeLists.txt", "pyproject.toml"):
        has(name, r"H200", "which card was measured")
        has(name, r"8\.0", "which cards have kernels of their own")
    has("README.md", r"two sockets type[ \n]+`\./moebius serve DIR --tp 2`", "what to type on two sockets")
    return wrong


def main():
    root, cmake = Path(sys.argv[1]).resolve(), sys.argv[2] if len(sys.argv) > 2 else "cmake"
    wrong = text_complaints(root) + install_complaints(root, cmake)
    for name, linked in (("plain", False), ("t\u00fcr \u00e4\u00f6", False), ("plain", True)):
        wrong += wheel_complaints(root, cmake, name, linked)
    for line in wrong:
        print(line)
    print(f"installation: {len(wrong)} complaints")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
