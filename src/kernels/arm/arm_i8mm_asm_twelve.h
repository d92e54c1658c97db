// SPDX-License-Identifier: Apache-2.0
// Assembly of arm_i8mm, written by scripts/generate_i8mm.py (register maps and schedules are there),
// not by hand.
#pragma once
// clang-format off

#define MOEBIUS_I8MM_TWELVE_ZERO \
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
  "movi v10.4s, #0\n" \
  "movi v11.4s, #0\n" \
  "movi v12.4s, #0\n" \
  "movi v13.4s, #0\n" \
  "movi v14.4s, #0\n" \
  "movi v15.4s, #0\n" \
  "movi v16.4s, #0\n" \
  "movi v17.4s, #0\n" \
  "movi v18.4s, #0\n" \
  "movi v19.4s, #0\n" \
  "movi v20.4s, #0\n" \
  "movi v21.4s, #0\n" \
  "movi v22.4s, #0\n" \
  "movi v23.4s, #0\n"

#define MOEBIUS_I8MM_TWELVE_LOAD \
  "ldp q0, q1, [%[b]]\n" \
  "ldp q2, q3, [%[b], #32]\n" \
  "ldp q4, q5, [%[b], #64]\n" \
  "ldp q6, q7, [%[b], #96]\n" \
  "ldp q8, q9, [%[b], #128]\n" \
  "ldp q10, q11, [%[b], #160]\n" \
  "ldp q12, q13, [%[b], #192]\n" \
  "ldp q14, q15, [%[b], #224]\n" \
  "ldp q16, q17, [%[b], #256]\n" \
  "ldp q18, q19, [%[b], #288]\n" \
  "ldp q20, q21, [%[b], #320]\n" \
  "ldp q22, q23, [%[b], #352]\n"

#define MOEBIUS_I8MM_TWELVE_STORE \
  "stp q0, q1, [%[b]]\n" \
  "stp q2, q3, [%[b], #32]\n" \
  "stp q4, q5, [%[b], #64]\n" \
  "stp q6, q7, [%[b], #96]\n" \
  "stp q8, q9, [%[b], #128]\n" \
  "stp q10, q11, [%[b], #160]\n" \
  "stp q12, q13, [%[b], #192]\n" \
  "stp q14, q15, [%[b], #224]\n" \
  "stp q16, q17, [%[b], #256]\n" \
  "stp q18, q19, [%[b], #288]\n" \
  "stp q20, q21, [%[b], #320]\n" \
  "stp q22, q23, [%[b], #352]\n"

#define MOEBIUS_I8MM_TWELVE_3 \
  ".p2align 5\n" \
  "1:\n" \
  "ldp q24, q25, [%[x]]\n" \
  "ldr q26, [%[x], #32]\n" \
  "ldp q28, q29, [%[w]]\n" \
  "smmla v0.4s, v24.16b, v28.16b\n" \
  "smmla v6.4s, v25.16b, v28.16b\n" \
  "smmla v12.4s, v26.16b, v28.16b\n" \
  "smmla v1.4s, v24.16b, v29.16b\n" \
  "smmla v7.4s, v25.16b, v29.16b\n" \
  "smmla v13.4s, v26.16b, v29.16b\n" \
  "ldp q30, q31, [%[w], #32]\n" \
  "smmla v2.4s, v24.16b, v30.16b\n" \
  "smmla v8.4s, v25.16b, v30.16b\n" \
  "smmla v14.4s, v26.16b, v30.16b\n" \
  "smmla v3.4s, v24.16b, v31.16b\n" \
  "smmla v9.4s, v25.16b, v31.16b\n" \
  "smmla v15.4s, v26.16b, v31.16b\n" \
  "ldp q28, q29, [%[w], #64]\n" \
  "smmla v4.4s, v24.16b, v28.16b\n" \
  "smmla v10.4s, v25.16b, v28.16b\n" \
  "smmla v16.4s, v26.16b, v28.16b\n" \
  "smmla v5.4s, v24.16b, v29.16b\n" \
  "smmla v11.4s, v25.16b, v29.16b\n" \
  "smmla v17.4s, v26.16b, v29.16b\n" \
  "ldp q24, q25, [%[x], #48]\n" \
  "ldr q26, [%[x], #80]\n" \
  "ldp q28, q29, [%[w], #96]\n" \
  "smmla v0.4s, v24.16b, v28.16b\n" \
  "smmla v6.4s, v25.16b, v28.16b\n" \
  "smmla v12.4s, v26.16b, v28.16b\n" \
  "smmla v1.4s, v24.16b, v29.16b\n" \
  "smmla v7.4s, v25.16b, v29.16b\n" \
  "smmla v13.4s, v26.16b, v29.16b\n" \
  "ldp q30, q31, [%[w], #128]\n" \
  "smmla v2.4s, v24.16b, v30.16b\n" \
  "smmla v8.4s, v25.16b, v30.16b\n" \
  "smmla v14.4s, v26.16b, v30.16b\n" \
  "smmla v3.4s, v24.16b, v31.16b\n" \
  "smmla v9.4s, v25.16b, v31.16b\n" \
  "smmla v15.4s, v26.16b, v31.16b\n" \
  "ldp q28, q29, [%[w], #160]\n" \
  "smmla v4.4s, v24.16b, v28.16b\n" \
  "smmla v10.4s, v25.16b, v28.16b\n" \
  "smmla v16.4s, v26.16b, v28.16b\n" \
  "smmla v5.4s, v24.16b, v29.16b\n" \
  "smmla v11.4s, v25.16b, v29.16b\n" \
  "smmla v17.4s, v26.16b, v29.16b\n" \
  "add %[x], %[x], #96\n" \
  "add %[w], %[w], #192\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 1b\n"

#define MOEBIUS_I8MM_TWELVE_4 \
  ".p2align 5\n" \
  "1:\n" \
  "ldp q24, q25, [%[x]]\n" \
  "ldp q26, q27, [%[x], #32]\n" \
  "ldp q28, q29, [%[w]]\n" \
  "smmla v0.4s, v24.16b, v28.16b\n" \
  "smmla v6.4s, v25.16b, v28.16b\n" \
  "smmla v12.4s, v26.16b, v28.16b\n" \
  "smmla v18.4s, v27.16b, v28.16b\n" \
  "smmla v1.4s, v24.16b, v29.16b\n" \
  "smmla v7.4s, v25.16b, v29.16b\n" \
  "smmla v13.4s, v26.16b, v29.16b\n" \
  "smmla v19.4s, v27.16b, v29.16b\n" \
  "ldp q30, q31, [%[w], #32]\n" \
  "smmla v2.4s, v24.16b, v30.16b\n" \
  "smmla v8.4s, v25.16b, v30.16b\n" \
  "smmla v14.4s, v26.16b, v30.16b\n" \
  "smmla v20.4s, v27.16b, v30.16b\n" \
  "smmla v3.4s, v24.16b, v31.16b\n" \
  "smmla v9.4s, v25.16b, v31.16b\n" \
  "smmla v15.4s, v26.16b, v31.16b\n" \
  "smmla v21.4s, v27.16b, v31.16b\n" \
  "ldp q28, q29, [%[w], #64]\n" \
  "smmla v4.4s, v24.16b, v28.16b\n" \
  "smmla v10.4s, v25.16b, v28.16b\n" \
  "smmla v16.4s, v26.16b, v28.16b\n" \
  "smmla v22.4s, v27.16b, v28.16b\n" \
  "smmla v5.4s, v24.16b, v29.16b\n" \
  "smmla v11.4s, v25.16b, v29.16b\n" \
  "smmla v17.4s, v26.16b, v29.16b\n" \
  "smmla v23.4s, v27.16b, v29.16b\n" \
  "ldp q24, q25, [%[x], #64]\n" \
  "ldp q26, q27, [%[x], #96]\n" \
  "ldp q28, q29, [%[w], #96]\n" \
  "smmla v0.4s, v24.16b, v28.16b\n" \
  "smmla v6.4s, v25.16b, v28.16b\n" \
  "smmla v12.4s, v26.16b, v28.16b\n" \
  "smmla v18.4s, v27.16b, v28.16b\n" \
  "smmla v1.4s, v24.16b, v29.16b\n" \
  "smmla v7.4s, v25.16b, v29.16b\n" \
  "smmla v13.4s, v26.16b, v29.16b\n" \
  "smmla v19.4s, v27.16b, v29.16b\n" \
  "ldp q30, q31, [%[w], #128]\n" \
  "smmla v2.4s, v24.16b, v30.16b\n" \
  "smmla v8.4s, v25.16b, v30.16b\n" \
  "smmla v14.4s, v26.16b, v30.16b\n" \
  "smmla v20.4s, v27.16b, v30.16b\n" \
  "smmla v3.4s, v24.16b, v31.16b\n" \
  "smmla v9.4s, v25.16b, v31.16b\n" \
  "smmla v15.4s, v26.16b, v31.16b\n" \
  "smmla v21.4s, v27.16b, v31.16b\n" \
  "ldp q28, q29, [%[w], #160]\n" \
  "smmla v4.4s, v24.16b, v28.16b\n" \
  "smmla v10.4s, v25.16b, v28.16b\n" \
  "smmla v16.4s, v26.16b, v28.16b\n" \
  "smmla v22.4s, v27.16b, v28.16b\n" \
  "smmla v5.4s, v24.16b, v29.16b\n" \
  "smmla v11.4s, v25.16b, v29.16b\n" \
  "smmla v17.4s, v26.16b, v29.16b\n" \
  "smmla v23.4s, v27.16b, v29.16b\n" \
  "add %[x], %[x], #128\n" \
  "add %[w], %[w], #192\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 1b\n"

#define MOEBIUS_I8MM_TWELVE_FINISH_3 \
  "ldp q24, q25, [%[s]]\n" \
  "ldp q26, q27, [%[s], #32]\n" \
  "ldp q28, q29, [%[s], #64]\n" \
  "ldr q30, [%[r]]\n" \
  "scvtf v0.4s, v0.4s, #4\n" \
  "scvtf v1.4s, v1.4s, #4\n" \
  "scvtf v2.4s, v2.4s, #4\n" \
  "scvtf v3.4s, v3.4s, #4\n" \
  "scvtf v4.4s, v4.4s, #4\n" \
  "scvtf v5.4s, v5.4s, #4\n" \
  "scvtf v6.4s, v6.4s, #4\n" \
  "scvtf v7.4s, v7.4s, #4\n" \
  "scvtf v8.4s, v8.4s, #4\n" \
  "scvtf v9.4s, v9.4s, #4\n" \
  "scvtf v10.4s, v10.4s, #4\n" \
  "scvtf v11.4s, v11.4s, #4\n" \
  "movi v31.4s, #0\n" \
  "fmla v31.4s, v0.4s, v24.4s\n" \
  "movi v0.4s, #0\n" \
  "fmla v0.4s, v1.4s, v25.4s\n" \
  "zip1 v1.2d, v31.2d, v0.2d\n" \
  "zip2 v31.2d, v31.2d, v0.2d\n" \
  "movi v0.4s, #0\n" \
  "fmla v0.4s, v2.4s, v26.4s\n" \
  "movi v2.4s, #0\n" \
  "fmla v2.4s, v3.4s, v27.4s\n" \
  "zip1 v3.2d, v0.2d, v2.2d\n" \
  "zip2 v0.2d, v0.2d, v2.2d\n" \
  "movi v2.4s, #0\n" \
  "fmla v2.4s, v4.4s, v28.4s\n" \
  "movi v4.4s, #0\n" \
  "fmla v4.4s, v5.4s, v29.4s\n" \
  "zip1 v5.2d, v2.2d, v4.2d\n" \
  "zip2 v2.2d, v2.2d, v4.2d\n" \
  "fmul v1.4s, v1.4s, v30.s[0]\n" \
  "fmul v3.4s, v3.4s, v30.s[0]\n" \
  "fmul v5.4s, v5.4s, v30.s[0]\n" \
  "fmul v31.4s, v31.4s, v30.s[1]\n" \
  "fmul v0.4s, v0.4s, v30.s[1]\n" \
  "fmul v2.4s, v2.4s, v30.s[1]\n" \
  "stp q1, q3, [%[y]]\n" \
  "str q5, [%[y], #32]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "stp q31, q0, [%[y]]\n" \
  "str q2, [%[y], #32]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "scvtf v12.4s, v12.4s, #4\n" \
  "scvtf v13.4s, v13.4s, #4\n" \
  "scvtf v14.4s, v14.4s, #4\n" \
  "scvtf v15.4s, v15.4s, #4\n" \
  "scvtf v16.4s, v16.4s, #4\n" \
  "scvtf v17.4s, v17.4s, #4\n" \
  "movi v4.4s, #0\n" \
  "fmla v4.4s, v6.4s, v24.4s\n" \
  "movi v6.4s, #0\n" \
  "fmla v6.4s, v7.4s, v25.4s\n" \
  "zip1 v7.2d, v4.2d, v6.2d\n" \
  "zip2 v4.2d, v4.2d, v6.2d\n" \
  "movi v6.4s, #0\n" \
  "fmla v6.4s, v8.4s, v26.4s\n" \
  "movi v8.4s, #0\n" \
  "fmla v8.4s, v9.4s, v27.4s\n" \
  "zip1 v9.2d, v6.2d, v8.2d\n" \
  "zip2 v6.2d, v6.2d, v8.2d\n" \
  "movi v8.4s, #0\n" \
  "fmla v8.4s, v10.4s, v28.4s\n" \
  "movi v10.4s, #0\n" \
  "fmla v10.4s, v11.4s, v29.4s\n" \
  "zip1 v11.2d, v8.2d, v10.2d\n" \
  "zip2 v8.2d, v8.2d, v10.2d\n" \
  "fmul v7.4s, v7.4s, v30.s[2]\n" \
  "fmul v9.4s, v9.4s, v30.s[2]\n" \
  "fmul v11.4s, v11.4s, v30.s[2]\n" \
  "fmul v4.4s, v4.4s, v30.s[3]\n" \
  "fmul v6.4s, v6.4s, v30.s[3]\n" \
  "fmul v8.4s, v8.4s, v30.s[3]\n" \
  "stp q7, q9, [%[y]]\n" \
  "str q11, [%[y], #32]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "stp q4, q6, [%[y]]\n" \
  "str q8, [%[y], #32]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "ldr d30, [%[r], #16]\n" \
  "movi v10.4s, #0\n" \
  "fmla v10.4s, v12.4s, v24.4s\n" \
  "movi v12.4s, #0\n" \
  "fmla v12.4s, v13.4s, v25.4s\n" \
  "zip1 v13.2d, v10.2d, v12.2d\n" \
  "zip2 v10.2d, v10.2d, v12.2d\n" \
  "movi v12.4s, #0\n" \
  "fmla v12.4s, v14.4s, v26.4s\n" \
  "movi v14.4s, #0\n" \
  "fmla v14.4s, v15.4s, v27.4s\n" \
  "zip1 v15.2d, v12.2d, v14.2d\n" \
  "zip2 v12.2d, v12.2d, v14.2d\n" \
  "movi v14.4s, #0\n" \
  "fmla v14.4s, v16.4s, v28.4s\n" \
  "movi v16.4s, #0\n" \
  "fmla v16.4s, v17.4s, v29.4s\n" \
  "zip1 v17.2d, v14.2d, v16.2d\n" \
  "zip2 v14.2d, v14.2d, v16.2d\n" \
  "fmul v13.4s, v13.4s, v30.s[0]\n" \
  "fmul v15.4s, v15.4s, v30.s[0]\n" \
  "fmul v17.4s, v17.4s, v30.s[0]\n" \
  "fmul v10.4s, v10.4s, v30.s[1]\n" \
  "fmul v12.4s, v12.4s, v30.s[1]\n" \
  "fmul v14.4s, v14.4s, v30.s[1]\n" \
  "stp q13, q15, [%[y]]\n" \
  "str q17, [%[y], #32]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "stp q10, q12, [%[y]]\n" \
  "str q14, [%[y], #32]\n" \
  "add %[y], %[y], %[ldy]\n"

#define MOEBIUS_I8MM_TWELVE_FINISH_4 \
  "scvtf v18.4s, v18.4s, #4\n" \
  "scvtf v19.4s, v19.4s, #4\n" \
  "scvtf v20.4s, v20.4s, #4\n" \
  "scvtf v21.4s, v21.4s, #4\n" \
  "scvtf v22.4s, v22.4s, #4\n" \
  "scvtf v23.4s, v23.4s, #4\n" \
  "ldp q24, q25, [%[s]]\n" \
  "ldp q26, q27, [%[s], #32]\n" \
  "ldp q28, q29, [%[s], #64]\n" \
  "ldr q30, [%[r]]\n" \
  "scvtf v0.4s, v0.4s, #4\n" \
  "scvtf v1.4s, v1.4s, #4\n" \
  "scvtf v2.4s, v2.4s, #4\n" \
  "scvtf v3.4s, v3.4s, #4\n" \
  "scvtf v4.4s, v4.4s, #4\n" \
  "scvtf v5.4s, v5.4s, #4\n" \
  "scvtf v6.4s, v6.4s, #4\n" \
  "scvtf v7.4s, v7.4s, #4\n" \
  "scvtf v8.4s, v8.4s, #4\n" \
  "scvtf v9.4s, v9.4s, #4\n" \
  "scvtf v10.4s, v10.4s, #4\n" \
  "scvtf v11.4s, v11.4s, #4\n" \
  "movi v31.4s, #0\n" \
  "fmla v31.4s, v0.4s, v24.4s\n" \
  "movi v0.4s, #0\n" \
  "fmla v0.4s, v1.4s, v25.4s\n" \
  "zip1 v1.2d, v31.2d, v0.2d\n" \
  "zip2 v31.2d, v31.2d, v0.2d\n" \
  "movi v0.4s, #0\n" \
  "fmla v0.4s, v2.4s, v26.4s\n" \
  "movi v2.4s, #0\n" \
  "fmla v2.4s, v3.4s, v27.4s\n" \
  "zip1 v3.2d, v0.2d, v2.2d\n" \
  "zip2 v0.2d, v0.2d, v2.2d\n" \
  "movi v2.4s, #0\n" \
  "fmla v2.4s, v4.4s, v28.4s\n" \
  "movi v4.4s, #0\n" \
  "fmla v4.4s, v5.4s, v29.4s\n" \
  "zip1 v5.2d, v2.2d, v4.2d\n" \
  "zip2 v2.2d, v2.2d, v4.2d\n" \
  "fmul v1.4s, v1.4s, v30.s[0]\n" \
  "fmul v3.4s, v3.4s, v30.s[0]\n" \
  "fmul v5.4s, v5.4s, v30.s[0]\n" \
  "fmul v31.4s, v31.4s, v30.s[1]\n" \
  "fmul v0.4s, v0.4s, v30.s[1]\n" \
  "fmul v2.4s, v2.4s, v30.s[1]\n" \
  "stp q1, q3, [%[y]]\n" \
  "str q5, [%[y], #32]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "stp q31, q0, [%[y]]\n" \
  "str q2, [%[y], #32]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "scvtf v12.4s, v12.4s, #4\n" \
  "scvtf v13.4s, v13.4s, #4\n" \
  "scvtf v14.4s, v14.4s, #4\n" \
  "scvtf v15.4s, v15.4s, #4\n" \
  "scvtf v16.4s, v16.4s, #4\n" \
  "scvtf v17.4s, v17.4s, #4\n" \
  "movi v4.4s, #0\n" \
  "fmla v4.4s, v6.4s, v24.4s\n" \
  "movi v6.4s, #0\n" \
  "fmla v6.4s, v7.4s, v25.4s\n" \
  "zip1 v7.2d, v4.2d, v6.2d\n" \
  "zip2 v4.2d, v4.2d, v6.2d\n" \
  "movi v6.4s, #0\n" \
  "fmla v6.4s, v8.4s, v26.4s\n" \
  "movi v8.4s, #0\n" \
  "fmla v8.4s, v9.4s, v27.4s\n" \
  "zip1 v9.2d, v6.2d, v8.2d\n" \
  "zip2 v6.2d, v6.2d, v8.2d\n" \
  "movi v8.4s, #0\n" \
  "fmla v8.4s, v10.4s, v28.4s\n" \
  "movi v10.4s, #0\n" \
  "fmla v10.4s, v11.4s, v29.4s\n" \
  "zip1 v11.2d, v8.2d, v10.2d\n" \
  "zip2 v8.2d, v8.2d, v10.2d\n" \
  "fmul v7.4s, v7.4s, v30.s[2]\n" \
  "fmul v9.4s, v9.4s, v30.s[2]\n" \
  "fmul v11.4s, v11.4s, v30.s[2]\n" \
  "fmul v4.4s, v4.4s, v30.s[3]\n" \
  "fmul v6.4s, v6.4s, v30.s[3]\n" \
  "fmul v8.4s, v8.4s, v30.s[3]\n" \
  "stp q7, q9, [%[y]]\n" \
  "str q11, [%[y], #32]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "stp q4, q6, [%[y]]\n" \
  "str q8, [%[y], #32]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "ldr d30, [%[r], #16]\n" \
  "movi v10.4s, #0\n" \
  "fmla v10.4s, v12.4s, v24.4s\n" \
  "movi v12.4s, #0\n" \
  "fmla v12.4s, v13.4s, v25.4s\n" \
  "zip1 v13.2d, v10.2d, v12.2d\n" \
  "zip2 v10.2d, v10.2d, v12.2d\n" \
  "movi v12.4s, #0\n" \
  "fmla v12.4s, v14.4s, v26.4s\n" \
  "movi v14.4s, #0\n" \
  "fmla v14.4s, v15.4s, v27.4s\n" \
  "zip1 v15.2d, v12.2d, v14.2d\n" \
  "zip2 v12.2d, v12.2d, v14.2d\n" \
  "movi v14.4s, #0\n" \
  "fmla v14.4s, v16.4s, v28.4s\n" \
  "movi v16.4s, #0\n" \
  "fmla v16.4s, v17.4s, v29.4s\n" \
  "zip1 v17.2d, v14.2d, v16.2d\n" \
  "zip2 v14.2d, v14.2d, v16.2d\n" \
  "fmul v13.4s, v13.4s, v30.s[0]\n" \
  "fmul v15.4s, v15.4s, v30.s[0]\n" \
  "fmul v17.4s, v17.4s, v30.s[0]\n" \
  "fmul v10.4s, v10.4s, v30.s[1]\n" \
  "fmul v12.4s, v12.4s, v30.s[1]\n" \
  "fmul v14.4s, v14.4s, v30.s[1]\n" \
  "stp q13, q15, [%[y]]\n" \
  "str q17, [%[y], #32]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "stp q10, q12, [%[y]]\n" \
  "str q14, [%[y], #32]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "ldr d30, [%[r], #24]\n" \
  "movi v16.4s, #0\n" \
  "fmla v16.4s, v18.4s, v24.4s\n" \
  "movi v18.4s, #0\n" \
  "fmla v18.4s, v19.4s, v25.4s\n" \
  "zip1 v19.2d, v16.2d, v18.2d\n" \
  "zip2 v16.2d, v16.2d, v18.2d\n" \
  "movi v18.4s, #0\n" \
  "fmla v18.4s, v20.4s, v26.4s\n" \
  "movi v20.4s, #0\n" \
  "fmla v20.4s, v21.4s, v27.4s\n" \
  "zip1 v21.2d, v18.2d, v20.2d\n" \
  "zip2 v18.2d, v18.2d, v20.2d\n" \
  "movi v20.4s, #0\n" \
  "fmla v20.4s, v22.4s, v28.4s\n" \
  "movi v22.4s, #0\n" \
  "fmla v22.4s, v23.4s, v29.4s\n" \
  "zip1 v23.2d, v20.2d, v22.2d\n" \
  "zip2 v20.2d, v20.2d, v22.2d\n" \
  "fmul v19.4s, v19.4s, v30.s[0]\n" \
  "fmul v21.4s, v21.4s, v30.s[0]\n" \
  "fmul v23.4s, v23.4s, v30.s[0]\n" \
  "fmul v16.4s, v16.4s, v30.s[1]\n" \
  "fmul v18.4s, v18.4s, v30.s[1]\n" \
  "fmul v20.4s, v20.4s, v30.s[1]\n" \
  "stp q19, q21, [%[y]]\n" \
  "str q23, [%[y], #32]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "stp q16, q18, [%[y]]\n" \
  "str q20, [%[y], #32]\n" \
  "add %[y], %[y], %[ldy]\n"
// clang-format on
