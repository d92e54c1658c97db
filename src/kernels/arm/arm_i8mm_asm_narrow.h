// SPDX-License-Identifier: Apache-2.0
// Assembly of arm_i8mm, written by scripts/generate_i8mm.py (register maps and schedules are there),
// not by hand.
#pragma once
// clang-format off

#define MOEBIUS_I8MM_CODES_NARROW_3 \
  "ldp q22, q23, [%[w]]\n" \
  "ldp q10, q11, [%[o]]\n" \
  "ldp q12, q13, [%[o], #32]\n" \
  "ldp q14, q15, [%[o], #64]\n" \
  "ldp q16, q17, [%[o], #96]\n" \
  "ldp q18, q19, [%[o], #128]\n" \
  "movi v31.16b, #0xf0\n" \
  "shl v20.16b, v22.16b, #4\n" \
  "shl v21.16b, v23.16b, #4\n" \
  "2:\n" \
  "mov %[n], %[twice]\n" \
  "add %[next], %[w], %[group]\n" \
  "cmp %[g], #1\n" \
  "csel %[next], %[w], %[next], eq\n" \
  "movi v0.4s, #0\n" \
  "movi v1.4s, #0\n" \
  "movi v2.4s, #0\n" \
  "movi v3.4s, #0\n" \
  "movi v4.4s, #0\n" \
  "movi v5.4s, #0\n" \
  "movi v6.4s, #0\n" \
  "movi v7.4s, #0\n" \
  "movi v8.4s, #0\n" \
  "movi v9.4s, #0\n" \
  "cbz %[n], 4f\n" \
  "1:\n" \
  "ldp q26, q27, [%[x]]\n" \
  "ldr q28, [%[x], #32]\n" \
  "smmla v0.4s, v26.16b, v20.16b\n" \
  "smmla v1.4s, v26.16b, v21.16b\n" \
  "ldp q24, q25, [%[w], #64]\n" \
  "smmla v2.4s, v27.16b, v20.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "smmla v3.4s, v27.16b, v21.16b\n" \
  "and v23.16b, v23.16b, v31.16b\n" \
  "smmla v4.4s, v28.16b, v20.16b\n" \
  "smmla v5.4s, v28.16b, v21.16b\n" \
  "ldp q26, q27, [%[x], #48]\n" \
  "ldr q28, [%[x], #80]\n" \
  "smmla v0.4s, v26.16b, v22.16b\n" \
  "smmla v1.4s, v26.16b, v23.16b\n" \
  "smmla v2.4s, v27.16b, v22.16b\n" \
  "shl v20.16b, v24.16b, #4\n" \
  "smmla v3.4s, v27.16b, v23.16b\n" \
  "shl v21.16b, v25.16b, #4\n" \
  "smmla v4.4s, v28.16b, v22.16b\n" \
  "smmla v5.4s, v28.16b, v23.16b\n" \
  "ldp q26, q27, [%[x], #96]\n" \
  "ldr q28, [%[x], #128]\n" \
  "smmla v0.4s, v26.16b, v20.16b\n" \
  "smmla v1.4s, v26.16b, v21.16b\n" \
  "ldp q22, q23, [%[w], #128]\n" \
  "smmla v2.4s, v27.16b, v20.16b\n" \
  "and v24.16b, v24.16b, v31.16b\n" \
  "smmla v3.4s, v27.16b, v21.16b\n" \
  "and v25.16b, v25.16b, v31.16b\n" \
  "smmla v4.4s, v28.16b, v20.16b\n" \
  "smmla v5.4s, v28.16b, v21.16b\n" \
  "ldp q26, q27, [%[x], #144]\n" \
  "ldr q28, [%[x], #176]\n" \
  "smmla v0.4s, v26.16b, v24.16b\n" \
  "smmla v1.4s, v26.16b, v25.16b\n" \
  "smmla v2.4s, v27.16b, v24.16b\n" \
  "shl v20.16b, v22.16b, #4\n" \
  "smmla v3.4s, v27.16b, v25.16b\n" \
  "shl v21.16b, v23.16b, #4\n" \
  "smmla v4.4s, v28.16b, v24.16b\n" \
  "smmla v5.4s, v28.16b, v25.16b\n" \
  "add %[x], %[x], #192\n" \
  "add %[w], %[w], #128\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 1b\n" \
  "4:\n" \
  "ldp q26, q27, [%[x]]\n" \
  "ldr q28, [%[x], #32]\n" \
  "smmla v0.4s, v26.16b, v20.16b\n" \
  "smmla v1.4s, v26.16b, v21.16b\n" \
  "ldp q24, q25, [%[w], #64]\n" \
  "smmla v2.4s, v27.16b, v20.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "smmla v3.4s, v27.16b, v21.16b\n" \
  "and v23.16b, v23.16b, v31.16b\n" \
  "smmla v4.4s, v28.16b, v20.16b\n" \
  "smmla v5.4s, v28.16b, v21.16b\n" \
  "ldp q26, q27, [%[x], #48]\n" \
  "ldr q28, [%[x], #80]\n" \
  "smmla v0.4s, v26.16b, v22.16b\n" \
  "smmla v1.4s, v26.16b, v23.16b\n" \
  "smmla v2.4s, v27.16b, v22.16b\n" \
  "shl v20.16b, v24.16b, #4\n" \
  "smmla v3.4s, v27.16b, v23.16b\n" \
  "shl v21.16b, v25.16b, #4\n" \
  "smmla v4.4s, v28.16b, v22.16b\n" \
  "smmla v5.4s, v28.16b, v23.16b\n" \
  "ldp q26, q27, [%[x], #96]\n" \
  "ldr q28, [%[x], #128]\n" \
  "smmla v0.4s, v26.16b, v20.16b\n" \
  "smmla v1.4s, v26.16b, v21.16b\n" \
  "ldp q22, q23, [%[next]]\n" \
  "smmla v2.4s, v27.16b, v20.16b\n" \
  "and v24.16b, v24.16b, v31.16b\n" \
  "smmla v3.4s, v27.16b, v21.16b\n" \
  "and v25.16b, v25.16b, v31.16b\n" \
  "smmla v4.4s, v28.16b, v20.16b\n" \
  "smmla v5.4s, v28.16b, v21.16b\n" \
  "ldp q26, q27, [%[x], #144]\n" \
  "ldr q28, [%[x], #176]\n" \
  "smmla v0.4s, v26.16b, v24.16b\n" \
  "smmla v1.4s, v26.16b, v25.16b\n" \
  "smmla v2.4s, v27.16b, v24.16b\n" \
  "shl v20.16b, v22.16b, #4\n" \
  "smmla v3.4s, v27.16b, v25.16b\n" \
  "shl v21.16b, v23.16b, #4\n" \
  "smmla v4.4s, v28.16b, v24.16b\n" \
  "smmla v5.4s, v28.16b, v25.16b\n" \
  "ldr d26, [%[w], %[s]]\n" \
  "add %[x], %[x], #192\n" \
  "mov %[w], %[next]\n" \
  "scvtf v0.4s, v0.4s, #4\n" \
  "scvtf v1.4s, v1.4s, #4\n" \
  "shll v26.4s, v26.4h, #16\n" \
  "scvtf v2.4s, v2.4s, #4\n" \
  "zip1 v24.2d, v26.2d, v26.2d\n" \
  "scvtf v3.4s, v3.4s, #4\n" \
  "zip2 v25.2d, v26.2d, v26.2d\n" \
  "scvtf v4.4s, v4.4s, #4\n" \
  "fmla v10.4s, v0.4s, v24.4s\n" \
  "scvtf v5.4s, v5.4s, #4\n" \
  "fmla v11.4s, v1.4s, v25.4s\n" \
  "fmla v12.4s, v2.4s, v24.4s\n" \
  "fmla v13.4s, v3.4s, v25.4s\n" \
  "fmla v14.4s, v4.4s, v24.4s\n" \
  "fmla v15.4s, v5.4s, v25.4s\n" \
  "subs %[g], %[g], #1\n" \
  "b.ne 2b\n" \
  "stp q10, q11, [%[o]]\n" \
  "stp q12, q13, [%[o], #32]\n" \
  "stp q14, q15, [%[o], #64]\n" \
  "stp q16, q17, [%[o], #96]\n" \
  "stp q18, q19, [%[o], #128]\n"

#define MOEBIUS_I8MM_CODES_NARROW_4 \
  "ldp q22, q23, [%[w]]\n" \
  "ldp q10, q11, [%[o]]\n" \
  "ldp q12, q13, [%[o], #32]\n" \
  "ldp q14, q15, [%[o], #64]\n" \
  "ldp q16, q17, [%[o], #96]\n" \
  "ldp q18, q19, [%[o], #128]\n" \
  "movi v31.16b, #0xf0\n" \
  "shl v20.16b, v22.16b, #4\n" \
  "shl v21.16b, v23.16b, #4\n" \
  "2:\n" \
  "mov %[n], %[twice]\n" \
  "add %[next], %[w], %[group]\n" \
  "cmp %[g], #1\n" \
  "csel %[next], %[w], %[next], eq\n" \
  "movi v0.4s, #0\n" \
  "movi v1.4s, #0\n" \
  "movi v2.4s, #0\n" \
  "movi v3.4s, #0\n" \
  "movi v4.4s, #0\n" \
  "movi v5.4s, #0\n" \
  "movi v6.4s, #0\n" \
  "movi v7.4s, #0\n" \
  "movi v8.4s, #0\n" \
  "movi v9.4s, #0\n" \
  "cbz %[n], 4f\n" \
  "1:\n" \
  "ldp q26, q27, [%[x]]\n" \
  "ldp q28, q29, [%[x], #32]\n" \
  "smmla v0.4s, v26.16b, v20.16b\n" \
  "smmla v1.4s, v26.16b, v21.16b\n" \
  "ldp q24, q25, [%[w], #64]\n" \
  "smmla v2.4s, v27.16b, v20.16b\n" \
  "smmla v3.4s, v27.16b, v21.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "and v23.16b, v23.16b, v31.16b\n" \
  "smmla v4.4s, v28.16b, v20.16b\n" \
  "smmla v5.4s, v28.16b, v21.16b\n" \
  "smmla v6.4s, v29.16b, v20.16b\n" \
  "smmla v7.4s, v29.16b, v21.16b\n" \
  "ldp q26, q27, [%[x], #64]\n" \
  "ldp q28, q29, [%[x], #96]\n" \
  "smmla v0.4s, v26.16b, v22.16b\n" \
  "smmla v1.4s, v26.16b, v23.16b\n" \
  "smmla v2.4s, v27.16b, v22.16b\n" \
  "smmla v3.4s, v27.16b, v23.16b\n" \
  "shl v20.16b, v24.16b, #4\n" \
  "shl v21.16b, v25.16b, #4\n" \
  "smmla v4.4s, v28.16b, v22.16b\n" \
  "smmla v5.4s, v28.16b, v23.16b\n" \
  "smmla v6.4s, v29.16b, v22.16b\n" \
  "smmla v7.4s, v29.16b, v23.16b\n" \
  "ldp q26, q27, [%[x], #128]\n" \
  "ldp q28, q29, [%[x], #160]\n" \
  "smmla v0.4s, v26.16b, v20.16b\n" \
  "smmla v1.4s, v26.16b, v21.16b\n" \
  "ldp q22, q23, [%[w], #128]\n" \
  "smmla v2.4s, v27.16b, v20.16b\n" \
  "smmla v3.4s, v27.16b, v21.16b\n" \
  "and v24.16b, v24.16b, v31.16b\n" \
  "and v25.16b, v25.16b, v31.16b\n" \
  "smmla v4.4s, v28.16b, v20.16b\n" \
  "smmla v5.4s, v28.16b, v21.16b\n" \
  "smmla v6.4s, v29.16b, v20.16b\n" \
  "smmla v7.4s, v29.16b, v21.16b\n" \
  "ldp q26, q27, [%[x], #192]\n" \
  "ldp q28, q29, [%[x], #224]\n" \
  "smmla v0.4s, v26.16b, v24.16b\n" \
  "smmla v1.4s, v26.16b, v25.16b\n" \
  "smmla v2.4s, v27.16b, v24.16b\n" \
  "smmla v3.4s, v27.16b, v25.16b\n" \
  "shl v20.16b, v22.16b, #4\n" \
  "shl v21.16b, v23.16b, #4\n" \
  "smmla v4.4s, v28.16b, v24.16b\n" \
  "smmla v5.4s, v28.16b, v25.16b\n" \
  "smmla v6.4s, v29.16b, v24.16b\n" \
  "smmla v7.4s, v29.16b, v25.16b\n" \
  "add %[x], %[x], #256\n" \
  "add %[w], %[w], #128\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 1b\n" \
  "4:\n" \
  "ldp q26, q27, [%[x]]\n" \
  "ldp q28, q29, [%[x], #32]\n" \
  "smmla v0.4s, v26.16b, v20.16b\n" \
  "smmla v1.4s, v26.16b, v21.16b\n" \
  "ldp q24, q25, [%[w], #64]\n" \
  "smmla v2.4s, v27.16b, v20.16b\n" \
  "smmla v3.4s, v27.16b, v21.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "and v23.16b, v23.16b, v31.16b\n" \
  "smmla v4.4s, v28.16b, v20.16b\n" \
  "smmla v5.4s, v28.16b, v21.16b\n" \
  "smmla v6.4s, v29.16b, v20.16b\n" \
  "smmla v7.4s, v29.16b, v21.16b\n" \
  "ldp q26, q27, [%[x], #64]\n" \
  "ldp q28, q29, [%[x], #96]\n" \
  "smmla v0.4s, v26.16b, v22.16b\n" \
  "smmla v1.4s, v26.16b, v23.16b\n" \
  "smmla v2.4s, v27.16b, v22.16b\n" \
  "smmla v3.4s, v27.16b, v23.16b\n" \
  "shl v20.16b, v24.16b, #4\n" \
  "shl v21.16b, v25.16b, #4\n" \
  "smmla v4.4s, v28.16b, v22.16b\n" \
  "smmla v5.4s, v28.16b, v23.16b\n" \
  "smmla v6.4s, v29.16b, v22.16b\n" \
  "smmla v7.4s, v29.16b, v23.16b\n" \
  "ldp q26, q27, [%[x], #128]\n" \
  "ldp q28, q29, [%[x], #160]\n" \
  "smmla v0.4s, v26.16b, v20.16b\n" \
  "smmla v1.4s, v26.16b, v21.16b\n" \
  "ldp q22, q23, [%[next]]\n" \
  "smmla v2.4s, v27.16b, v20.16b\n" \
  "smmla v3.4s, v27.16b, v21.16b\n" \
  "and v24.16b, v24.16b, v31.16b\n" \
  "and v25.16b, v25.16b, v31.16b\n" \
  "smmla v4.4s, v28.16b, v20.16b\n" \
  "smmla v5.4s, v28.16b, v21.16b\n" \
  "smmla v6.4s, v29.16b, v20.16b\n" \
  "smmla v7.4s, v29.16b, v21.16b\n" \
  "ldp q26, q27, [%[x], #192]\n" \
  "ldp q28, q29, [%[x], #224]\n" \
  "smmla v0.4s, v26.16b, v24.16b\n" \
  "smmla v1.4s, v26.16b, v25.16b\n" \
  "smmla v2.4s, v27.16b, v24.16b\n" \
  "smmla v3.4s, v27.16b, v25.16b\n" \
  "shl v20.16b, v22.16b, #4\n" \
  "shl v21.16b, v23.16b, #4\n" \
  "smmla v4.4s, v28.16b, v24.16b\n" \
  "smmla v5.4s, v28.16b, v25.16b\n" \
  "smmla v6.4s, v29.16b, v24.16b\n" \
  "smmla v7.4s, v29.16b, v25.16b\n" \
  "ldr d26, [%[w], %[s]]\n" \
  "add %[x], %[x], #256\n" \
  "mov %[w], %[next]\n" \
  "scvtf v0.4s, v0.4s, #4\n" \
  "scvtf v1.4s, v1.4s, #4\n" \
  "shll v26.4s, v26.4h, #16\n" \
  "scvtf v2.4s, v2.4s, #4\n" \
  "zip1 v24.2d, v26.2d, v26.2d\n" \
  "scvtf v3.4s, v3.4s, #4\n" \
  "zip2 v25.2d, v26.2d, v26.2d\n" \
  "scvtf v4.4s, v4.4s, #4\n" \
  "fmla v10.4s, v0.4s, v24.4s\n" \
  "scvtf v5.4s, v5.4s, #4\n" \
  "fmla v11.4s, v1.4s, v25.4s\n" \
  "scvtf v6.4s, v6.4s, #4\n" \
  "fmla v12.4s, v2.4s, v24.4s\n" \
  "scvtf v7.4s, v7.4s, #4\n" \
  "fmla v13.4s, v3.4s, v25.4s\n" \
  "fmla v14.4s, v4.4s, v24.4s\n" \
  "fmla v15.4s, v5.4s, v25.4s\n" \
  "fmla v16.4s, v6.4s, v24.4s\n" \
  "fmla v17.4s, v7.4s, v25.4s\n" \
  "subs %[g], %[g], #1\n" \
  "b.ne 2b\n" \
  "stp q10, q11, [%[o]]\n" \
  "stp q12, q13, [%[o], #32]\n" \
  "stp q14, q15, [%[o], #64]\n" \
  "stp q16, q17, [%[o], #96]\n" \
  "stp q18, q19, [%[o], #128]\n"

#define MOEBIUS_I8MM_CODES_NARROW_5 \
  "ldp q22, q23, [%[w]]\n" \
  "ldp q10, q11, [%[o]]\n" \
  "ldp q12, q13, [%[o], #32]\n" \
  "ldp q14, q15, [%[o], #64]\n" \
  "ldp q16, q17, [%[o], #96]\n" \
  "ldp q18, q19, [%[o], #128]\n" \
  "movi v31.16b, #0xf0\n" \
  "shl v20.16b, v22.16b, #4\n" \
  "shl v21.16b, v23.16b, #4\n" \
  "2:\n" \
  "mov %[n], %[twice]\n" \
  "add %[next], %[w], %[group]\n" \
  "cmp %[g], #1\n" \
  "csel %[next], %[w], %[next], eq\n" \
  "movi v0.4s, #0\n" \
  "movi v1.4s, #0\n" \
  "movi v2.4s, #0\n" \
  "movi v3.4s, #0\n" \
  "movi v4.4s, #0\n" \
  "movi v5.4s, #0\n" \
  "movi v6.4s, #0\n" \
  "movi v7.4s, #0\n" \
  "movi v8.4s, #0\n" \
  "movi v9.4s, #0\n" \
  "cbz %[n], 4f\n" \
  "1:\n" \
  "ldp q26, q27, [%[x]]\n" \
  "ldp q28, q29, [%[x], #32]\n" \
  "ldr q30, [%[x], #64]\n" \
  "smmla v0.4s, v26.16b, v20.16b\n" \
  "smmla v1.4s, v26.16b, v21.16b\n" \
  "ldp q24, q25, [%[w], #64]\n" \
  "smmla v2.4s, v27.16b, v20.16b\n" \
  "smmla v3.4s, v27.16b, v21.16b\n" \
  "smmla v4.4s, v28.16b, v20.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "and v23.16b, v23.16b, v31.16b\n" \
  "smmla v5.4s, v28.16b, v21.16b\n" \
  "smmla v6.4s, v29.16b, v20.16b\n" \
  "smmla v7.4s, v29.16b, v21.16b\n" \
  "smmla v8.4s, v30.16b, v20.16b\n" \
  "smmla v9.4s, v30.16b, v21.16b\n" \
  "ldp q26, q27, [%[x], #80]\n" \
  "ldp q28, q29, [%[x], #112]\n" \
  "ldr q30, [%[x], #144]\n" \
  "smmla v0.4s, v26.16b, v22.16b\n" \
  "smmla v1.4s, v26.16b, v23.16b\n" \
  "smmla v2.4s, v27.16b, v22.16b\n" \
  "smmla v3.4s, v27.16b, v23.16b\n" \
  "smmla v4.4s, v28.16b, v22.16b\n" \
  "shl v20.16b, v24.16b, #4\n" \
  "shl v21.16b, v25.16b, #4\n" \
  "smmla v5.4s, v28.16b, v23.16b\n" \
  "smmla v6.4s, v29.16b, v22.16b\n" \
  "smmla v7.4s, v29.16b, v23.16b\n" \
  "smmla v8.4s, v30.16b, v22.16b\n" \
  "smmla v9.4s, v30.16b, v23.16b\n" \
  "ldp q26, q27, [%[x], #160]\n" \
  "ldp q28, q29, [%[x], #192]\n" \
  "ldr q30, [%[x], #224]\n" \
  "smmla v0.4s, v26.16b, v20.16b\n" \
  "smmla v1.4s, v26.16b, v21.16b\n" \
  "ldp q22, q23, [%[w], #128]\n" \
  "smmla v2.4s, v27.16b, v20.16b\n" \
  "smmla v3.4s, v27.16b, v21.16b\n" \
  "smmla v4.4s, v28.16b, v20.16b\n" \
  "and v24.16b, v24.16b, v31.16b\n" \
  "and v25.16b, v25.16b, v31.16b\n" \
  "smmla v5.4s, v28.16b, v21.16b\n" \
  "smmla v6.4s, v29.16b, v20.16b\n" \
  "smmla v7.4s, v29.16b, v21.16b\n" \
  "smmla v8.4s, v30.16b, v20.16b\n" \
  "smmla v9.4s, v30.16b, v21.16b\n" \
  "ldp q26, q27, [%[x], #240]\n" \
  "ldp q28, q29, [%[x], #272]\n" \
  "ldr q30, [%[x], #304]\n" \
  "smmla v0.4s, v26.16b, v24.16b\n" \
  "smmla v1.4s, v26.16b, v25.16b\n" \
  "smmla v2.4s, v27.16b, v24.16b\n" \
  "smmla v3.4s, v27.16b, v25.16b\n" \
  "smmla v4.4s, v28.16b, v24.16b\n" \
  "shl v20.16b, v22.16b, #4\n" \
  "shl v21.16b, v23.16b, #4\n" \
  "smmla v5.4s, v28.16b, v25.16b\n" \
  "smmla v6.4s, v29.16b, v24.16b\n" \
  "smmla v7.4s, v29.16b, v25.16b\n" \
  "smmla v8.4s, v30.16b, v24.16b\n" \
  "smmla v9.4s, v30.16b, v25.16b\n" \
  "add %[x], %[x], #320\n" \
  "add %[w], %[w], #128\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 1b\n" \
  "4:\n" \
  "ldp q26, q27, [%[x]]\n" \
  "ldp q28, q29, [%[x], #32]\n" \
  "ldr q30, [%[x], #64]\n" \
  "smmla v0.4s, v26.16b, v20.16b\n" \
  "smmla v1.4s, v26.16b, v21.16b\n" \
  "ldp q24, q25, [%[w], #64]\n" \
  "smmla v2.4s, v27.16b, v20.16b\n" \
  "smmla v3.4s, v27.16b, v21.16b\n" \
  "smmla v4.4s, v28.16b, v20.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "and v23.16b, v23.16b, v31.16b\n" \
  "smmla v5.4s, v28.16b, v21.16b\n" \
  "smmla v6.4s, v29.16b, v20.16b\n" \
  "smmla v7.4s, v29.16b, v21.16b\n" \
  "smmla v8.4s, v30.16b, v20.16b\n" \
  "smmla v9.4s, v30.16b, v21.16b\n" \
  "ldp q26, q27, [%[x], #80]\n" \
  "ldp q28, q29, [%[x], #112]\n" \
  "ldr q30, [%[x], #144]\n" \
  "smmla v0.4s, v26.16b, v22.16b\n" \
  "smmla v1.4s, v26.16b, v23.16b\n" \
  "smmla v2.4s, v27.16b, v22.16b\n" \
  "smmla v3.4s, v27.16b, v23.16b\n" \
  "smmla v4.4s, v28.16b, v22.16b\n" \
  "shl v20.16b, v24.16b, #4\n" \
  "shl v21.16b, v25.16b, #4\n" \
  "smmla v5.4s, v28.16b, v23.16b\n" \
  "smmla v6.4s, v29.16b, v22.16b\n" \
  "smmla v7.4s, v29.16b, v23.16b\n" \
  "smmla v8.4s, v30.16b, v22.16b\n" \
  "smmla v9.4s, v30.16b, v23.16b\n" \
  "ldp q26, q27, [%[x], #160]\n" \
  "ldp q28, q29, [%[x], #192]\n" \
  "ldr q30, [%[x], #224]\n" \
  "smmla v0.4s, v26.16b, v20.16b\n" \
  "smmla v1.4s, v26.16b, v21.16b\n" \
  "ldp q22, q23, [%[next]]\n" \
  "smmla v2.4s, v27.16b, v20.16b\n" \
  "smmla v3.4s, v27.16b, v21.16b\n" \
  "smmla v4.4s, v28.16b, v20.16b\n" \
  "and v24.16b, v24.16b, v31.16b\n" \
  "and v25.16b, v25.16b, v31.16b\n" \
  "smmla v5.4s, v28.16b, v21.16b\n" \
  "smmla v6.4s, v29.16b, v20.16b\n" \
  "smmla v7.4s, v29.16b, v21.16b\n" \
  "smmla v8.4s, v30.16b, v20.16b\n" \
  "smmla v9.4s, v30.16b, v21.16b\n" \
  "ldp q26, q27, [%[x], #240]\n" \
  "ldp q28, q29, [%[x], #272]\n" \
  "ldr q30, [%[x], #304]\n" \
  "smmla v0.4s, v26.16b, v24.16b\n" \
  "smmla v1.4s, v26.16b, v25.16b\n" \
  "smmla v2.4s, v27.16b, v24.16b\n" \
  "smmla v3.4s, v27.16b, v25.16b\n" \
  "smmla v4.4s, v28.16b, v24.16b\n" \
  "shl v20.16b, v22.16b, #4\n" \
  "shl v21.16b, v23.16b, #4\n" \
  "smmla v5.4s, v28.16b, v25.16b\n" \
  "smmla v6.4s, v29.16b, v24.16b\n" \
  "smmla v7.4s, v29.16b, v25.16b\n" \
  "smmla v8.4s, v30.16b, v24.16b\n" \
  "smmla v9.4s, v30.16b, v25.16b\n" \
  "ldr d26, [%[w], %[s]]\n" \
  "add %[x], %[x], #320\n" \
  "mov %[w], %[next]\n" \
  "scvtf v0.4s, v0.4s, #4\n" \
  "scvtf v1.4s, v1.4s, #4\n" \
  "shll v26.4s, v26.4h, #16\n" \
  "scvtf v2.4s, v2.4s, #4\n" \
  "zip1 v24.2d, v26.2d, v26.2d\n" \
  "scvtf v3.4s, v3.4s, #4\n" \
  "zip2 v25.2d, v26.2d, v26.2d\n" \
  "scvtf v4.4s, v4.4s, #4\n" \
  "fmla v10.4s, v0.4s, v24.4s\n" \
  "scvtf v5.4s, v5.4s, #4\n" \
  "fmla v11.4s, v1.4s, v25.4s\n" \
  "scvtf v6.4s, v6.4s, #4\n" \
  "fmla v12.4s, v2.4s, v24.4s\n" \
  "scvtf v7.4s, v7.4s, #4\n" \
  "fmla v13.4s, v3.4s, v25.4s\n" \
  "scvtf v8.4s, v8.4s, #4\n" \
  "fmla v14.4s, v4.4s, v24.4s\n" \
  "scvtf v9.4s, v9.4s, #4\n" \
  "fmla v15.4s, v5.4s, v25.4s\n" \
  "fmla v16.4s, v6.4s, v24.4s\n" \
  "fmla v17.4s, v7.4s, v25.4s\n" \
  "fmla v18.4s, v8.4s, v24.4s\n" \
  "fmla v19.4s, v9.4s, v25.4s\n" \
  "subs %[g], %[g], #1\n" \
  "b.ne 2b\n" \
  "stp q10, q11, [%[o]]\n" \
  "stp q12, q13, [%[o], #32]\n" \
  "stp q14, q15, [%[o], #64]\n" \
  "stp q16, q17, [%[o], #96]\n" \
  "stp q18, q19, [%[o], #128]\n"
// clang-format on
