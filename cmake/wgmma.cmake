# SPDX-License-Identifier: Apache-2.0
# Run by the build:  cmake -DOUTPUT=wgmma.h -P wgmma.cmake
# Writes wrappers of wgmma.mma_async for (type of the operands, N): A comes from registers (rs) or from shared memory (ss). All
# 4 to 64 sums of an instruction are operands of one assembly statement, which no template can list.

# "BEFORE 0 AFTER,BEFORE 1 AFTER,..." for `count` numbers from `first` on.
function(numbered out before first count after)
  set(text "")
  math(EXPR last "${first} + ${count} - 1")
  foreach(i RANGE ${first} ${last})
    string(APPEND text ",${before}${i}${after}")
  endforeach()
  string(SUBSTRING "${text}" 1 -1 text)
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

# Appends the wrappers of one type to `text`. number: type of the sums; letter: their constraint; rs, ss: immediate operands.
function(add_wrappers type suffix k number letter rs ss)
  foreach(n 8 16 32 64 128)
    math(EXPR sums "${n} / 2")
    foreach(i RANGE 5)
      math(EXPR at${i} "${sums} + ${i}")
    endforeach()
    numbered(d "%" 0 ${sums} "")
    numbered(a "%" ${sums} 4 "")
    numbered(outs "\"+${letter}\"(d[" 0 ${sums} "])")
    set(call "wgmma.mma_async.sync.aligned.m64n${n}k${k}.${suffix} {${d}}")
    string(APPEND text "template <>
struct Wgmma<${type}, ${n}> {
  static constexpr int K = ${k};
  using Acc = ${number};
  __device__ __forceinline__ static void rs(Acc (&d)[${sums}], const uint32_t (&a)[4], uint64_t b, int add) {
    asm volatile(\"{.reg .pred p; setp.ne.b32 p, %${at5}, 0; ${call}, {${a}}, %${at4}, p${rs};}\"
                 : ${outs}
                 : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"l\"(b), \"r\"(add));
  }
  __device__ __forceinline__ static void ss(Acc (&d)[${sums}], uint64_t a, uint64_t b, int add) {
    asm volatile(\"{.reg .pred p; setp.ne.b32 p, %${at2}, 0; ${call}, %${at0}, %${at1}, p${ss};}\"
                 : ${outs}
                 : \"l\"(a), \"l\"(b), \"r\"(add));
  }
};
")
  endforeach()
  set(text "${text}" PARENT_SCOPE)
endfunction()

set(text "// SPDX-License-Identifier: Apache-2.0
// Written by cmake/wgmma.cmake.
#pragma once
#include <cstdint>

namespace moebius::cuda {

struct Bf16 {};
struct F16 {};
struct E4m3 {};
struct S8 {};
template <class T, int N>
struct Wgmma;
")
add_wrappers(Bf16 f32.bf16.bf16 16 float f ",1,1,0" ",1,1,0,0")
add_wrappers(F16 f32.f16.f16 16 float f ",1,1,0" ",1,1,0,0")
add_wrappers(E4m3 f32.e4m3.e4m3 32 float f ",1,1" ",1,1")
add_wrappers(S8 s32.s8.s8 32 int r "" "")
file(WRITE "${OUTPUT}" "${text}
}  // namespace moebius::cuda
")
