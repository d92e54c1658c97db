#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes wgmma.h: wrappers of wgmma.mma_async for (type of the operands, N), A from registers (rs) or from shared memory (ss).

    make_wgmma.py > wgmma.h
"""
TYPES = {  # name: PTX types, inputs, constraint of the sums, immediates of rs and ss
    "Bf16": ("f32.bf16.bf16", 16, "f", ",1,1,0", ",1,1,0,0"),
    "F16": ("f32.f16.f16", 16, "f", ",1,1,0", ",1,1,0,0"),
    "E4m3": ("f32.e4m3.e4m3", 32, "f", ",1,1", ",1,1"),
    "S8": ("s32.s8.s8", 32, "r", "", ""),
}
print("// SPDX-License-Identifier: Apache-2.0")
print("// Made by make_wgmma.py.\n// clang-format off\n#pragma once\n#include <cstdint>\n\nnamespace moebius::cuda {\n")
for name in TYPES:
    print(f"struct {name} {{}};")
print("template <class T, int N>\nstruct Wgmma;")
for name, (suffix, k, c, imm_rs, imm_ss) in TYPES.items():
    for n in (8, 16, 32, 64, 128):
        r = n // 2
        number = "float" if c == "f" else "int"
        d = "{" + ",".join(f"%{i}" for i in range(r)) + "}"
        outs = ",".join(f'"+{c}"(d[{i}])' for i in range(r))
        a = "{" + ",".join(f"%{r + i}" for i in range(4)) + "}"
        begin = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{suffix} {d}"
        print(f"template <>\nstruct Wgmma<{name}, {n}> {{\n  static constexpr int K = {k};\n  using Acc = {number};")
        print(f"  __device__ __forceinline__ static void rs(Acc (&d)[{r}], const uint32_t (&a)[4], uint64_t b, int add) {{\n"
              f'    asm volatile("{{.reg .pred p; setp.ne.b32 p, %{r + 5}, 0; {begin}, {a}, %{r + 4}, p{imm_rs};}}"\n'
              f'                 : {outs}\n                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));\n  }}')
        print(f"  __device__ __forceinline__ static void ss(Acc (&d)[{r}], uint64_t a, uint64_t b, int add) {{\n"
              f'    asm volatile("{{.reg .pred p; setp.ne.b32 p, %{r + 2}, 0; {begin}, %{r}, %{r + 1}, p{imm_ss};}}"\n'
              f'                 : {outs}\n                 : "l"(a), "l"(b), "r"(add));\n  }}\n}};')
print("\n}  // namespace moebius::cuda")
