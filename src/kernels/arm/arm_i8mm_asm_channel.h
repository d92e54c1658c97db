// SPDX-License-Identifier: Apache-2.0
// Assembly of arm_i8mm, written by scripts/generate_i8mm.py (register maps and schedules are there),
// not by hand.
#pragma once
// clang-format off

#define MOEBIUS_I8MM_CHANNEL_8X8 \
  "ldp q16, q17, [%[x]]\n" \
  "ldp q20, q21, [%[w]]\n" \
  "ldp q18, q19, [%[x], #32]\n" \
  "ldp q22, q23, [%[w], #32]\n" \
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
  "cbz %[n], 2f\n" \
  ".p2align 5\n" \
  "1:\n" \
  "smmla v0.4s, v16.16b, v20.16b\n" \
  "smmla v1.4s, v16.16b, v21.16b\n" \
  "ldp q24, q25, [%[x], #64]\n" \
  "smmla v2.4s, v16.16b, v22.16b\n" \
  "smmla v3.4s, v16.16b, v23.16b\n" \
  "smmla v4.4s, v17.16b, v20.16b\n" \
  "smmla v5.4s, v17.16b, v21.16b\n" \
  "ldp q28, q29, [%[w], #64]\n" \
  "smmla v6.4s, v17.16b, v22.16b\n" \
  "smmla v7.4s, v17.16b, v23.16b\n" \
  "smmla v8.4s, v18.16b, v20.16b\n" \
  "smmla v9.4s, v18.16b, v21.16b\n" \
  "ldp q26, q27, [%[x], #96]\n" \
  "smmla v10.4s, v18.16b, v22.16b\n" \
  "smmla v11.4s, v18.16b, v23.16b\n" \
  "smmla v12.4s, v19.16b, v20.16b\n" \
  "smmla v13.4s, v19.16b, v21.16b\n" \
  "ldp q30, q31, [%[w], #96]\n" \
  "smmla v14.4s, v19.16b, v22.16b\n" \
  "smmla v15.4s, v19.16b, v23.16b\n" \
  "smmla v0.4s, v24.16b, v28.16b\n" \
  "smmla v1.4s, v24.16b, v29.16b\n" \
  "ldp q16, q17, [%[x], #128]\n" \
  "smmla v2.4s, v24.16b, v30.16b\n" \
  "smmla v3.4s, v24.16b, v31.16b\n" \
  "smmla v4.4s, v25.16b, v28.16b\n" \
  "smmla v5.4s, v25.16b, v29.16b\n" \
  "ldp q20, q21, [%[w], #128]\n" \
  "smmla v6.4s, v25.16b, v30.16b\n" \
  "smmla v7.4s, v25.16b, v31.16b\n" \
  "smmla v8.4s, v26.16b, v28.16b\n" \
  "smmla v9.4s, v26.16b, v29.16b\n" \
  "ldp q18, q19, [%[x], #160]\n" \
  "smmla v10.4s, v26.16b, v30.16b\n" \
  "smmla v11.4s, v26.16b, v31.16b\n" \
  "smmla v12.4s, v27.16b, v28.16b\n" \
  "smmla v13.4s, v27.16b, v29.16b\n" \
  "ldp q22, q23, [%[w], #160]\n" \
  "smmla v14.4s, v27.16b, v30.16b\n" \
  "smmla v15.4s, v27.16b, v31.16b\n" \
  "add %[x], %[x], #128\n" \
  "add %[w], %[w], #128\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 1b\n" \
  "2:\n" \
  "smmla v0.4s, v16.16b, v20.16b\n" \
  "smmla v1.4s, v16.16b, v21.16b\n" \
  "ldp q24, q25, [%[x], #64]\n" \
  "smmla v2.4s, v16.16b, v22.16b\n" \
  "smmla v3.4s, v16.16b, v23.16b\n" \
  "smmla v4.4s, v17.16b, v20.16b\n" \
  "smmla v5.4s, v17.16b, v21.16b\n" \
  "ldp q28, q29, [%[w], #64]\n" \
  "smmla v6.4s, v17.16b, v22.16b\n" \
  "smmla v7.4s, v17.16b, v23.16b\n" \
  "smmla v8.4s, v18.16b, v20.16b\n" \
  "smmla v9.4s, v18.16b, v21.16b\n" \
  "ldp q26, q27, [%[x], #96]\n" \
  "smmla v10.4s, v18.16b, v22.16b\n" \
  "smmla v11.4s, v18.16b, v23.16b\n" \
  "smmla v12.4s, v19.16b, v20.16b\n" \
  "smmla v13.4s, v19.16b, v21.16b\n" \
  "ldp q30, q31, [%[w], #96]\n" \
  "smmla v14.4s, v19.16b, v22.16b\n" \
  "smmla v15.4s, v19.16b, v23.16b\n" \
  "smmla v0.4s, v24.16b, v28.16b\n" \
  "smmla v1.4s, v24.16b, v29.16b\n" \
  "smmla v2.4s, v24.16b, v30.16b\n" \
  "smmla v3.4s, v24.16b, v31.16b\n" \
  "smmla v4.4s, v25.16b, v28.16b\n" \
  "smmla v5.4s, v25.16b, v29.16b\n" \
  "smmla v6.4s, v25.16b, v30.16b\n" \
  "smmla v7.4s, v25.16b, v31.16b\n" \
  "smmla v8.4s, v26.16b, v28.16b\n" \
  "smmla v9.4s, v26.16b, v29.16b\n" \
  "smmla v10.4s, v26.16b, v30.16b\n" \
  "smmla v11.4s, v26.16b, v31.16b\n" \
  "smmla v12.4s, v27.16b, v28.16b\n" \
  "smmla v13.4s, v27.16b, v29.16b\n" \
  "smmla v14.4s, v27.16b, v30.16b\n" \
  "smmla v15.4s, v27.16b, v31.16b\n"

#define MOEBIUS_I8MM_CHANNEL_FINISH \
  "ldp q16, q17, [%[s]]\n" \
  "ldp q18, q19, [%[s], #32]\n" \
  "ldp q28, q29, [%[r]]\n" \
  "scvtf v0.4s, v0.4s\n" \
  "scvtf v1.4s, v1.4s\n" \
  "scvtf v2.4s, v2.4s\n" \
  "scvtf v3.4s, v3.4s\n" \
  "scvtf v4.4s, v4.4s\n" \
  "scvtf v5.4s, v5.4s\n" \
  "scvtf v6.4s, v6.4s\n" \
  "scvtf v7.4s, v7.4s\n" \
  "movi v20.4s, #0\n" \
  "movi v21.4s, #0\n" \
  "movi v22.4s, #0\n" \
  "movi v23.4s, #0\n" \
  "fmla v20.4s, v0.4s, v16.4s\n" \
  "fmla v21.4s, v1.4s, v17.4s\n" \
  "fmla v22.4s, v2.4s, v18.4s\n" \
  "fmla v23.4s, v3.4s, v19.4s\n" \
  "zip1 v24.2d, v20.2d, v21.2d\n" \
  "zip1 v25.2d, v22.2d, v23.2d\n" \
  "zip2 v26.2d, v20.2d, v21.2d\n" \
  "zip2 v27.2d, v22.2d, v23.2d\n" \
  "fmul v24.4s, v24.4s, v28.s[0]\n" \
  "fmul v25.4s, v25.4s, v28.s[0]\n" \
  "fmul v26.4s, v26.4s, v28.s[1]\n" \
  "fmul v27.4s, v27.4s, v28.s[1]\n" \
  "stp q24, q25, [%[y]]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "stp q26, q27, [%[y]]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "scvtf v8.4s, v8.4s\n" \
  "scvtf v9.4s, v9.4s\n" \
  "scvtf v10.4s, v10.4s\n" \
  "scvtf v11.4s, v11.4s\n" \
  "movi v20.4s, #0\n" \
  "movi v21.4s, #0\n" \
  "movi v22.4s, #0\n" \
  "movi v23.4s, #0\n" \
  "fmla v20.4s, v4.4s, v16.4s\n" \
  "fmla v21.4s, v5.4s, v17.4s\n" \
  "fmla v22.4s, v6.4s, v18.4s\n" \
  "fmla v23.4s, v7.4s, v19.4s\n" \
  "zip1 v24.2d, v20.2d, v21.2d\n" \
  "zip1 v25.2d, v22.2d, v23.2d\n" \
  "zip2 v26.2d, v20.2d, v21.2d\n" \
  "zip2 v27.2d, v22.2d, v23.2d\n" \
  "fmul v24.4s, v24.4s, v28.s[2]\n" \
  "fmul v25.4s, v25.4s, v28.s[2]\n" \
  "fmul v26.4s, v26.4s, v28.s[3]\n" \
  "fmul v27.4s, v27.4s, v28.s[3]\n" \
  "stp q24, q25, [%[y]]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "stp q26, q27, [%[y]]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "scvtf v12.4s, v12.4s\n" \
  "scvtf v13.4s, v13.4s\n" \
  "scvtf v14.4s, v14.4s\n" \
  "scvtf v15.4s, v15.4s\n" \
  "movi v20.4s, #0\n" \
  "movi v21.4s, #0\n" \
  "movi v22.4s, #0\n" \
  "movi v23.4s, #0\n" \
  "fmla v20.4s, v8.4s, v16.4s\n" \
  "fmla v21.4s, v9.4s, v17.4s\n" \
  "fmla v22.4s, v10.4s, v18.4s\n" \
  "fmla v23.4s, v11.4s, v19.4s\n" \
  "zip1 v24.2d, v20.2d, v21.2d\n" \
  "zip1 v25.2d, v22.2d, v23.2d\n" \
  "zip2 v26.2d, v20.2d, v21.2d\n" \
  "zip2 v27.2d, v22.2d, v23.2d\n" \
  "fmul v24.4s, v24.4s, v29.s[0]\n" \
  "fmul v25.4s, v25.4s, v29.s[0]\n" \
  "fmul v26.4s, v26.4s, v29.s[1]\n" \
  "fmul v27.4s, v27.4s, v29.s[1]\n" \
  "stp q24, q25, [%[y]]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "stp q26, q27, [%[y]]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "movi v20.4s, #0\n" \
  "movi v21.4s, #0\n" \
  "movi v22.4s, #0\n" \
  "movi v23.4s, #0\n" \
  "fmla v20.4s, v12.4s, v16.4s\n" \
  "fmla v21.4s, v13.4s, v17.4s\n" \
  "fmla v22.4s, v14.4s, v18.4s\n" \
  "fmla v23.4s, v15.4s, v19.4s\n" \
  "zip1 v24.2d, v20.2d, v21.2d\n" \
  "zip1 v25.2d, v22.2d, v23.2d\n" \
  "zip2 v26.2d, v20.2d, v21.2d\n" \
  "zip2 v27.2d, v22.2d, v23.2d\n" \
  "fmul v24.4s, v24.4s, v29.s[2]\n" \
  "fmul v25.4s, v25.4s, v29.s[2]\n" \
  "fmul v26.4s, v26.4s, v29.s[3]\n" \
  "fmul v27.4s, v27.4s, v29.s[3]\n" \
  "stp q24, q25, [%[y]]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "stp q26, q27, [%[y]]\n" \
  "add %[y], %[y], %[ldy]\n"

#define MOEBIUS_I8MM_CHANNEL_FINISH_16 \
  "ldp q16, q17, [%[s]]\n" \
  "ldp q18, q19, [%[s], #32]\n" \
  "ldp q28, q29, [%[r]]\n" \
  "scvtf v0.4s, v0.4s, #4\n" \
  "scvtf v1.4s, v1.4s, #4\n" \
  "scvtf v2.4s, v2.4s, #4\n" \
  "scvtf v3.4s, v3.4s, #4\n" \
  "scvtf v4.4s, v4.4s, #4\n" \
  "scvtf v5.4s, v5.4s, #4\n" \
  "scvtf v6.4s, v6.4s, #4\n" \
  "scvtf v7.4s, v7.4s, #4\n" \
  "movi v20.4s, #0\n" \
  "movi v21.4s, #0\n" \
  "movi v22.4s, #0\n" \
  "movi v23.4s, #0\n" \
  "fmla v20.4s, v0.4s, v16.4s\n" \
  "fmla v21.4s, v1.4s, v17.4s\n" \
  "fmla v22.4s, v2.4s, v18.4s\n" \
  "fmla v23.4s, v3.4s, v19.4s\n" \
  "zip1 v24.2d, v20.2d, v21.2d\n" \
  "zip1 v25.2d, v22.2d, v23.2d\n" \
  "zip2 v26.2d, v20.2d, v21.2d\n" \
  "zip2 v27.2d, v22.2d, v23.2d\n" \
  "fmul v24.4s, v24.4s, v28.s[0]\n" \
  "fmul v25.4s, v25.4s, v28.s[0]\n" \
  "fmul v26.4s, v26.4s, v28.s[1]\n" \
  "fmul v27.4s, v27.4s, v28.s[1]\n" \
  "stp q24, q25, [%[y]]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "stp q26, q27, [%[y]]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "scvtf v8.4s, v8.4s, #4\n" \
  "scvtf v9.4s, v9.4s, #4\n" \
  "scvtf v10.4s, v10.4s, #4\n" \
  "scvtf v11.4s, v11.4s, #4\n" \
  "movi v20.4s, #0\n" \
  "movi v21.4s, #0\n" \
  "movi v22.4s, #0\n" \
  "movi v23.4s, #0\n" \
  "fmla v20.4s, v4.4s, v16.4s\n" \
  "fmla v21.4s, v5.4s, v17.4s\n" \
  "fmla v22.4s, v6.4s, v18.4s\n" \
  "fmla v23.4s, v7.4s, v19.4s\n" \
  "zip1 v24.2d, v20.2d, v21.2d\n" \
  "zip1 v25.2d, v22.2d, v23.2d\n" \
  "zip2 v26.2d, v20.2d, v21.2d\n" \
  "zip2 v27.2d, v22.2d, v23.2d\n" \
  "fmul v24.4s, v24.4s, v28.s[2]\n" \
  "fmul v25.4s, v25.4s, v28.s[2]\n" \
  "fmul v26.4s, v26.4s, v28.s[3]\n" \
  "fmul v27.4s, v27.4s, v28.s[3]\n" \
  "stp q24, q25, [%[y]]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "stp q26, q27, [%[y]]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "scvtf v12.4s, v12.4s, #4\n" \
  "scvtf v13.4s, v13.4s, #4\n" \
  "scvtf v14.4s, v14.4s, #4\n" \
  "scvtf v15.4s, v15.4s, #4\n" \
  "movi v20.4s, #0\n" \
  "movi v21.4s, #0\n" \
  "movi v22.4s, #0\n" \
  "movi v23.4s, #0\n" \
  "fmla v20.4s, v8.4s, v16.4s\n" \
  "fmla v21.4s, v9.4s, v17.4s\n" \
  "fmla v22.4s, v10.4s, v18.4s\n" \
  "fmla v23.4s, v11.4s, v19.4s\n" \
  "zip1 v24.2d, v20.2d, v21.2d\n" \
  "zip1 v25.2d, v22.2d, v23.2d\n" \
  "zip2 v26.2d, v20.2d, v21.2d\n" \
  "zip2 v27.2d, v22.2d, v23.2d\n" \
  "fmul v24.4s, v24.4s, v29.s[0]\n" \
  "fmul v25.4s, v25.4s, v29.s[0]\n" \
  "fmul v26.4s, v26.4s, v29.s[1]\n" \
  "fmul v27.4s, v27.4s, v29.s[1]\n" \
  "stp q24, q25, [%[y]]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "stp q26, q27, [%[y]]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "movi v20.4s, #0\n" \
  "movi v21.4s, #0\n" \
  "movi v22.4s, #0\n" \
  "movi v23.4s, #0\n" \
  "fmla v20.4s, v12.4s, v16.4s\n" \
  "fmla v21.4s, v13.4s, v17.4s\n" \
  "fmla v22.4s, v14.4s, v18.4s\n" \
  "fmla v23.4s, v15.4s, v19.4s\n" \
  "zip1 v24.2d, v20.2d, v21.2d\n" \
  "zip1 v25.2d, v22.2d, v23.2d\n" \
  "zip2 v26.2d, v20.2d, v21.2d\n" \
  "zip2 v27.2d, v22.2d, v23.2d\n" \
  "fmul v24.4s, v24.4s, v29.s[2]\n" \
  "fmul v25.4s, v25.4s, v29.s[2]\n" \
  "fmul v26.4s, v26.4s, v29.s[3]\n" \
  "fmul v27.4s, v27.4s, v29.s[3]\n" \
  "stp q24, q25, [%[y]]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "stp q26, q27, [%[y]]\n" \
  "add %[y], %[y], %[ldy]\n"

#define MOEBIUS_I8MM_STORE_16 \
  "stp q0, q1, [%[o]]\n" \
  "stp q2, q3, [%[o], #32]\n" \
  "stp q4, q5, [%[o], #64]\n" \
  "stp q6, q7, [%[o], #96]\n" \
  "stp q8, q9, [%[o], #128]\n" \
  "stp q10, q11, [%[o], #160]\n" \
  "stp q12, q13, [%[o], #192]\n" \
  "stp q14, q15, [%[o], #224]\n"

#define MOEBIUS_I8MM_CODES_5 \
  "ldp q20, q21, [%[w]]\n" \
  "ldp q22, q23, [%[w], #32]\n" \
  "movi v31.16b, #0xf0\n" \
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
  "shl v20.16b, v20.16b, #4\n" \
  "shl v21.16b, v21.16b, #4\n" \
  "shl v22.16b, v22.16b, #4\n" \
  "shl v23.16b, v23.16b, #4\n" \
  ".p2align 5\n" \
  "1:\n" \
  "ldp q28, q29, [%[x]]\n" \
  "ldr q30, [%[x], #32]\n" \
  "ldp q24, q25, [%[w]]\n" \
  "ldp q26, q27, [%[w], #32]\n" \
  "smmla v0.4s, v28.16b, v20.16b\n" \
  "smmla v1.4s, v28.16b, v21.16b\n" \
  "smmla v2.4s, v28.16b, v22.16b\n" \
  "smmla v3.4s, v28.16b, v23.16b\n" \
  "smmla v4.4s, v29.16b, v20.16b\n" \
  "smmla v5.4s, v29.16b, v21.16b\n" \
  "and v24.16b, v24.16b, v31.16b\n" \
  "smmla v6.4s, v29.16b, v22.16b\n" \
  "smmla v7.4s, v29.16b, v23.16b\n" \
  "ldp q28, q29, [%[x], #48]\n" \
  "smmla v8.4s, v30.16b, v20.16b\n" \
  "smmla v9.4s, v30.16b, v21.16b\n" \
  "and v25.16b, v25.16b, v31.16b\n" \
  "smmla v10.4s, v30.16b, v22.16b\n" \
  "smmla v11.4s, v30.16b, v23.16b\n" \
  "and v26.16b, v26.16b, v31.16b\n" \
  "smmla v12.4s, v28.16b, v20.16b\n" \
  "smmla v13.4s, v28.16b, v21.16b\n" \
  "and v27.16b, v27.16b, v31.16b\n" \
  "smmla v14.4s, v28.16b, v22.16b\n" \
  "smmla v15.4s, v28.16b, v23.16b\n" \
  "smmla v16.4s, v29.16b, v20.16b\n" \
  "smmla v17.4s, v29.16b, v21.16b\n" \
  "smmla v18.4s, v29.16b, v22.16b\n" \
  "smmla v19.4s, v29.16b, v23.16b\n" \
  "ldp q28, q29, [%[x], #80]\n" \
  "ldr q30, [%[x], #112]\n" \
  "ldp q20, q21, [%[w], #64]\n" \
  "ldp q22, q23, [%[w], #96]\n" \
  "smmla v0.4s, v28.16b, v24.16b\n" \
  "smmla v1.4s, v28.16b, v25.16b\n" \
  "smmla v2.4s, v28.16b, v26.16b\n" \
  "smmla v3.4s, v28.16b, v27.16b\n" \
  "smmla v4.4s, v29.16b, v24.16b\n" \
  "smmla v5.4s, v29.16b, v25.16b\n" \
  "shl v20.16b, v20.16b, #4\n" \
  "smmla v6.4s, v29.16b, v26.16b\n" \
  "smmla v7.4s, v29.16b, v27.16b\n" \
  "ldp q28, q29, [%[x], #128]\n" \
  "smmla v8.4s, v30.16b, v24.16b\n" \
  "smmla v9.4s, v30.16b, v25.16b\n" \
  "shl v21.16b, v21.16b, #4\n" \
  "smmla v10.4s, v30.16b, v26.16b\n" \
  "smmla v11.4s, v30.16b, v27.16b\n" \
  "shl v22.16b, v22.16b, #4\n" \
  "smmla v12.4s, v28.16b, v24.16b\n" \
  "smmla v13.4s, v28.16b, v25.16b\n" \
  "shl v23.16b, v23.16b, #4\n" \
  "smmla v14.4s, v28.16b, v26.16b\n" \
  "smmla v15.4s, v28.16b, v27.16b\n" \
  "smmla v16.4s, v29.16b, v24.16b\n" \
  "smmla v17.4s, v29.16b, v25.16b\n" \
  "smmla v18.4s, v29.16b, v26.16b\n" \
  "smmla v19.4s, v29.16b, v27.16b\n" \
  "add %[x], %[x], #160\n" \
  "add %[w], %[w], #64\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 1b\n" \
  "stp q0, q1, [%[o]]\n" \
  "stp q2, q3, [%[o], #32]\n" \
  "stp q4, q5, [%[o], #64]\n" \
  "stp q6, q7, [%[o], #96]\n" \
  "stp q8, q9, [%[o], #128]\n" \
  "stp q10, q11, [%[o], #160]\n" \
  "stp q12, q13, [%[o], #192]\n" \
  "stp q14, q15, [%[o], #224]\n" \
  "stp q16, q17, [%[o], #256]\n" \
  "stp q18, q19, [%[o], #288]\n"

#define MOEBIUS_I8MM_CODES_TWO_PANELS \
  "ldp q20, q21, [%[w]]\n" \
  "ldp q22, q23, [%[w], #32]\n" \
  "movi v31.16b, #0xf0\n" \
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
  "shl v16.16b, v20.16b, #4\n" \
  "shl v17.16b, v21.16b, #4\n" \
  "shl v18.16b, v22.16b, #4\n" \
  "shl v19.16b, v23.16b, #4\n" \
  ".p2align 5\n" \
  "1:\n" \
  "ldp q28, q29, [%[x]]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v20.16b, v20.16b, v31.16b\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "and v21.16b, v21.16b, v31.16b\n" \
  "ldp q24, q25, [%[v]]\n" \
  "smmla v4.4s, v29.16b, v16.16b\n" \
  "smmla v5.4s, v29.16b, v17.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "ldp q26, q27, [%[v], #32]\n" \
  "smmla v6.4s, v29.16b, v18.16b\n" \
  "smmla v7.4s, v29.16b, v19.16b\n" \
  "and v23.16b, v23.16b, v31.16b\n" \
  "ldp q28, q29, [%[x], #32]\n" \
  "smmla v0.4s, v28.16b, v20.16b\n" \
  "smmla v1.4s, v28.16b, v21.16b\n" \
  "shl v16.16b, v24.16b, #4\n" \
  "smmla v2.4s, v28.16b, v22.16b\n" \
  "smmla v3.4s, v28.16b, v23.16b\n" \
  "shl v17.16b, v25.16b, #4\n" \
  "smmla v4.4s, v29.16b, v20.16b\n" \
  "smmla v5.4s, v29.16b, v21.16b\n" \
  "shl v18.16b, v26.16b, #4\n" \
  "smmla v6.4s, v29.16b, v22.16b\n" \
  "smmla v7.4s, v29.16b, v23.16b\n" \
  "shl v19.16b, v27.16b, #4\n" \
  "ldp q28, q29, [%[x]]\n" \
  "smmla v8.4s, v28.16b, v16.16b\n" \
  "smmla v9.4s, v28.16b, v17.16b\n" \
  "and v24.16b, v24.16b, v31.16b\n" \
  "smmla v10.4s, v28.16b, v18.16b\n" \
  "smmla v11.4s, v28.16b, v19.16b\n" \
  "and v25.16b, v25.16b, v31.16b\n" \
  "ldp q20, q21, [%[w], #64]\n" \
  "smmla v12.4s, v29.16b, v16.16b\n" \
  "smmla v13.4s, v29.16b, v17.16b\n" \
  "and v26.16b, v26.16b, v31.16b\n" \
  "ldp q22, q23, [%[w], #96]\n" \
  "smmla v14.4s, v29.16b, v18.16b\n" \
  "smmla v15.4s, v29.16b, v19.16b\n" \
  "and v27.16b, v27.16b, v31.16b\n" \
  "ldp q28, q29, [%[x], #32]\n" \
  "smmla v8.4s, v28.16b, v24.16b\n" \
  "smmla v9.4s, v28.16b, v25.16b\n" \
  "shl v16.16b, v20.16b, #4\n" \
  "smmla v10.4s, v28.16b, v26.16b\n" \
  "smmla v11.4s, v28.16b, v27.16b\n" \
  "shl v17.16b, v21.16b, #4\n" \
  "smmla v12.4s, v29.16b, v24.16b\n" \
  "smmla v13.4s, v29.16b, v25.16b\n" \
  "shl v18.16b, v22.16b, #4\n" \
  "smmla v14.4s, v29.16b, v26.16b\n" \
  "smmla v15.4s, v29.16b, v27.16b\n" \
  "shl v19.16b, v23.16b, #4\n" \
  "add %[x], %[x], #64\n" \
  "add %[w], %[w], #64\n" \
  "add %[v], %[v], #64\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 1b\n" \
  "stp q0, q1, [%[o]]\n" \
  "stp q2, q3, [%[o], #32]\n" \
  "stp q4, q5, [%[o], #64]\n" \
  "stp q6, q7, [%[o], #96]\n" \
  "stp q8, q9, [%[o], #128]\n" \
  "stp q10, q11, [%[o], #160]\n" \
  "stp q12, q13, [%[o], #192]\n" \
  "stp q14, q15, [%[o], #224]\n"
// clang-format on
