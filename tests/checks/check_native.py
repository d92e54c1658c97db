#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""MOEBIUS_KERNELS=native: which kernel files a CPU leaves out, and that the others have the flags of a whole build.

    check_native.py ROOT [CMAKE]     one line per thing that is wrong; exit status 1 if there are any

A file whose flags differed would be compiled twice: by ./moebius, and by ./test behind it.
"""
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = """cmake_minimum_required(VERSION 3.25)
project(some LANGUAGES NONE)
set(CMAKE_SYSTEM_PROCESSOR {processor})
set(PROJECT_SOURCE_DIR "{root}")
include("{root}/cmake/kernel_flags.cmake")
file(GLOB_RECURSE sources "{root}/src/kernels/*.cpp")
moebius_apply_kernel_flags("${{sources}}")
foreach(source IN LISTS sources)
  get_source_file_property(options "${{source}}" COMPILE_OPTIONS)
  cmake_path(GET source STEM name)
  message("UNIT ${{name}} ${{options}}")
endforeach()
"""
BODIES = "-DMOEBIUS_KERNEL_BODIES"
AMX = "x86_amx_attend x86_amx_float x86_amx_int8"
AVX512 = "x86_avx512_float x86_avx512_int8 x86_avx512_rows x86_avx512bw_int8"
AVX2 = "x86_avx2_float x86_avx2_int8 x86_avx2_rows"
AVX512_WORDS = "avx2 avx512f avx512bw avx512_vnni"
I8MM, BF16, FHM = "arm_i8mm arm_limbs_i8mm", "arm_bf16 arm_bf16_attend", "arm_fhm"
# Architecture, words of /proc/cpuinfo, files that are left out.
CPUS = [
    ("x86_64", "sse2", f"{AMX} {AVX512} {AVX2} x86_avx2_int8_pack x86_avxvnni_int8"),
    ("x86_64", "sse2 avx2", f"{AMX} {AVX512} x86_avxvnni_int8"),
    ("x86_64", "avx2 avx_vnni", f"{AMX} {AVX512}"),
    ("x86_64", "avx2 avx512f avx512bw", f"{AMX} {AVX2} x86_avx512_int8 x86_avxvnni_int8"),
    ("x86_64", AVX512_WORDS, f"{AMX} {AVX2} x86_avx512bw_int8 x86_avxvnni_int8"),
    ("x86_64", AVX512_WORDS + " avx_vnni amx_tile", f"{AVX2} x86_avx512bw_int8 x86_avxvnni_int8"),
    ("aarch64", "asimd", f"{I8MM} {BF16} {FHM} arm_dotprod arm_dotprod_lanes arm_limbs_dotprod"),
    ("aarch64", "asimd asimddp", f"{I8MM} {BF16} {FHM}"),
    ("aarch64", "asimd asimddp asimdfhm i8mm bf16", ""),
]


def units(root, cmake, processor, *options):
    """Options of every file of src/kernels, and the text of kernels_left_out (None: no such file)"""
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "CMakeLists.txt").write_text(PROJECT.format(root=root, processor=processor), encoding="utf-8")
        run = subprocess.run([cmake, "-S", work, "-B", f"{work}/build", "-G", "Ninja", *options], capture_output=True, text=True)
        found = {}
        for line in (run.stdout + run.stderr).splitlines():
            if line.startswith("UNIT "):
                _, name, *flags = line.split(" ", 2)
                found[name] = flags[0].split(";") if flags else []
        if run.returncode != 0 or len(found) < 30:
            sys.exit(f"cmake failed, or named too few files: {(run.stdout + run.stderr)[-1500:]}")
        file = Path(work) / "build/kernels_left_out"
        return found, file.read_text(encoding="utf-8") if file.exists() else None


def complaints(root, cmake):
    wrong = []
    every = {processor: units(root, cmake, processor) for processor in ("x86_64", "aarch64")}
    for processor, words, expected in CPUS:
        whole, written = every[processor]
        if written is not None:
            wrong.append(f"{processor}: a whole build writes kernels_left_out")
        with tempfile.NamedTemporaryFile("w", suffix=".cpuinfo") as cpuinfo:
            cpuinfo.write(f"processor\t: 0\n{'flags' if processor == 'x86_64' else 'Features'}\t: {words}\n\nprocessor\t: 1\n")
            cpuinfo.flush()
            native = ("-DMOEBIUS_KERNELS=native", f"-DMOEBIUS_CPUINFO={cpuinfo.name}")
            some, written = units(root, cmake, processor, *native)
            if words == "sse2" and units(root, cmake, processor, *native, "-DMOEBIUS_TESTS=ON") != every[processor]:
                wrong.append("a build with tests leaves kernels out")
        left_out = {name for name in whole if BODIES in whole[name] and BODIES not in some[name]}
        if left_out != set(expected.split()):
            wrong.append(f"{processor} with {words}: left out {sorted(left_out)}, expected {sorted(expected.split())}")
        wrong += [f"{processor} with {words}: other flags for {name}" for name in whole
                  if name not in left_out and whole[name] != some[name]]
        wrong += [f"{processor} with {words}: {name} is left out and has flags of its instruction set" for name in left_out
                  if any(flag.startswith("-m") for flag in some[name])]
        if (written is not None) != bool(expected):
            wrong.append(f"{processor} with {words}: kernels_left_out is {written!r}")
        for word in (written or "").split():
            if word.startswith("!") == (word.strip("!") in words.split()):
                wrong.append(f"{processor} with {words}: kernels_left_out says {word}")
    return wrong


def main():
    root, cmake = Path(sys.argv[1]).resolve(), sys.argv[2] if len(sys.argv) > 2 else "cmake"
    wrong = complaints(root, cmake)
    for line in wrong:
        print(line)
    print(f"kernels of this CPU alone: {len(wrong)} complaints")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
