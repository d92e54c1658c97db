// SPDX-License-Identifier: Apache-2.0
// Assembly of arm_i8mm, written by scripts/generate_i8mm.py (register maps and schedules are there),
// not by hand.
#pragma once
// clang-format off

#define MOEBIUS_I8MM_GROUPED_BEGIN_8 \
  "ldp q12, q13, [%[f]]\n" \
  "ldp q14, q15, [%[f], #32]\n" \
  "ldp q16, q17, [%[f], #64]\n" \
  "ldp q18, q19, [%[f], #96]\n" \
  "dup v31.4s, %w[magic]\n"

#define MOEBIUS_I8MM_GROUPED_BEGIN_12 \
  "ldp q12, q13, [%[f]]\n" \
  "ldp q14, q15, [%[f], #32]\n" \
  "ldp q16, q17, [%[f], #64]\n" \
  "ldp q18, q19, [%[f], #96]\n" \
  "ldp q20, q21, [%[f], #128]\n" \
  "ldp q22, q23, [%[f], #160]\n" \
  "dup v31.4s, %w[magic]\n"

#define MOEBIUS_I8MM_GROUPED_ZERO_8 \
  "2:\n" \
  "mov %[n], %[steps]\n" \
  "movi v0.4s, #0\n" \
  "movi v1.4s, #0\n" \
  "movi v2.4s, #0\n" \
  "movi v3.4s, #0\n" \
  "movi v4.4s, #0\n" \
  "movi v5.4s, #0\n" \
  "movi v6.4s, #0\n" \
  "movi v7.4s, #0\n" \
  "1:\n"

#define MOEBIUS_I8MM_GROUPED_MIXED_8 \
  "2:\n" \
  "mov %[n], %[steps]\n" \
  "movi v0.4s, #0\n" \
  "mov v1.16b, v31.16b\n" \
  "movi v2.4s, #0\n" \
  "mov v3.16b, v31.16b\n" \
  "movi v4.4s, #0\n" \
  "mov v5.16b, v31.16b\n" \
  "movi v6.4s, #0\n" \
  "mov v7.16b, v31.16b\n" \
  "1:\n"

#define MOEBIUS_I8MM_GROUPED_ZERO_12 \
  "2:\n" \
  "mov %[n], %[steps]\n" \
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
  "1:\n"

#define MOEBIUS_I8MM_GROUPED_MIXED_12 \
  "2:\n" \
  "mov %[n], %[steps]\n" \
  "movi v0.4s, #0\n" \
  "mov v1.16b, v31.16b\n" \
  "movi v2.4s, #0\n" \
  "mov v3.16b, v31.16b\n" \
  "movi v4.4s, #0\n" \
  "mov v5.16b, v31.16b\n" \
  "movi v6.4s, #0\n" \
  "mov v7.16b, v31.16b\n" \
  "movi v8.4s, #0\n" \
  "mov v9.16b, v31.16b\n" \
  "movi v10.4s, #0\n" \
  "mov v11.16b, v31.16b\n" \
  "1:\n"

#define MOEBIUS_I8MM_GROUPED_4X8 \
  "ldp q24, q25, [%[x]]\n" \
  "ldp q27, q28, [%[w]]\n" \
  "ldp q29, q30, [%[w], #32]\n" \
  "smmla v0.4s, v24.16b, v27.16b\n" \
  "smmla v1.4s, v24.16b, v28.16b\n" \
  "smmla v2.4s, v24.16b, v29.16b\n" \
  "smmla v3.4s, v24.16b, v30.16b\n" \
  "smmla v4.4s, v25.16b, v27.16b\n" \
  "smmla v5.4s, v25.16b, v28.16b\n" \
  "smmla v6.4s, v25.16b, v29.16b\n" \
  "smmla v7.4s, v25.16b, v30.16b\n" \
  "ldp q24, q25, [%[x], #32]\n" \
  "ldp q27, q28, [%[w], #64]\n" \
  "ldp q29, q30, [%[w], #96]\n" \
  "smmla v0.4s, v24.16b, v27.16b\n" \
  "smmla v1.4s, v24.16b, v28.16b\n" \
  "smmla v2.4s, v24.16b, v29.16b\n" \
  "smmla v3.4s, v24.16b, v30.16b\n" \
  "smmla v4.4s, v25.16b, v27.16b\n" \
  "smmla v5.4s, v25.16b, v28.16b\n" \
  "smmla v6.4s, v25.16b, v29.16b\n" \
  "smmla v7.4s, v25.16b, v30.16b\n" \
  "ldp q24, q25, [%[x], #64]\n" \
  "ldp q27, q28, [%[w], #128]\n" \
  "ldp q29, q30, [%[w], #160]\n" \
  "smmla v0.4s, v24.16b, v27.16b\n" \
  "smmla v1.4s, v24.16b, v28.16b\n" \
  "smmla v2.4s, v24.16b, v29.16b\n" \
  "smmla v3.4s, v24.16b, v30.16b\n" \
  "smmla v4.4s, v25.16b, v27.16b\n" \
  "smmla v5.4s, v25.16b, v28.16b\n" \
  "smmla v6.4s, v25.16b, v29.16b\n" \
  "smmla v7.4s, v25.16b, v30.16b\n" \
  "ldp q24, q25, [%[x], #96]\n" \
  "ldp q27, q28, [%[w], #192]\n" \
  "ldp q29, q30, [%[w], #224]\n" \
  "smmla v0.4s, v24.16b, v27.16b\n" \
  "smmla v1.4s, v24.16b, v28.16b\n" \
  "smmla v2.4s, v24.16b, v29.16b\n" \
  "smmla v3.4s, v24.16b, v30.16b\n" \
  "smmla v4.4s, v25.16b, v27.16b\n" \
  "smmla v5.4s, v25.16b, v28.16b\n" \
  "smmla v6.4s, v25.16b, v29.16b\n" \
  "smmla v7.4s, v25.16b, v30.16b\n" \
  "add %[x], %[x], #128\n" \
  "add %[w], %[w], #256\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 1b\n"

#define MOEBIUS_I8MM_GROUPED_6X8 \
  "ldp q24, q25, [%[x]]\n" \
  "ldp q27, q28, [%[w]]\n" \
  "ldr q26, [%[x], #32]\n" \
  "ldp q29, q30, [%[w], #32]\n" \
  "smmla v0.4s, v24.16b, v27.16b\n" \
  "smmla v1.4s, v24.16b, v28.16b\n" \
  "smmla v2.4s, v24.16b, v29.16b\n" \
  "smmla v3.4s, v24.16b, v30.16b\n" \
  "smmla v4.4s, v25.16b, v27.16b\n" \
  "smmla v5.4s, v25.16b, v28.16b\n" \
  "smmla v6.4s, v25.16b, v29.16b\n" \
  "smmla v7.4s, v25.16b, v30.16b\n" \
  "smmla v8.4s, v26.16b, v27.16b\n" \
  "smmla v9.4s, v26.16b, v28.16b\n" \
  "smmla v10.4s, v26.16b, v29.16b\n" \
  "smmla v11.4s, v26.16b, v30.16b\n" \
  "ldp q24, q25, [%[x], #48]\n" \
  "ldp q27, q28, [%[w], #64]\n" \
  "ldr q26, [%[x], #80]\n" \
  "ldp q29, q30, [%[w], #96]\n" \
  "smmla v0.4s, v24.16b, v27.16b\n" \
  "smmla v1.4s, v24.16b, v28.16b\n" \
  "smmla v2.4s, v24.16b, v29.16b\n" \
  "smmla v3.4s, v24.16b, v30.16b\n" \
  "smmla v4.4s, v25.16b, v27.16b\n" \
  "smmla v5.4s, v25.16b, v28.16b\n" \
  "smmla v6.4s, v25.16b, v29.16b\n" \
  "smmla v7.4s, v25.16b, v30.16b\n" \
  "smmla v8.4s, v26.16b, v27.16b\n" \
  "smmla v9.4s, v26.16b, v28.16b\n" \
  "smmla v10.4s, v26.16b, v29.16b\n" \
  "smmla v11.4s, v26.16b, v30.16b\n" \
  "ldp q24, q25, [%[x], #96]\n" \
  "ldp q27, q28, [%[w], #128]\n" \
  "ldr q26, [%[x], #128]\n" \
  "ldp q29, q30, [%[w], #160]\n" \
  "smmla v0.4s, v24.16b, v27.16b\n" \
  "smmla v1.4s, v24.16b, v28.16b\n" \
  "smmla v2.4s, v24.16b, v29.16b\n" \
  "smmla v3.4s, v24.16b, v30.16b\n" \
  "smmla v4.4s, v25.16b, v27.16b\n" \
  "smmla v5.4s, v25.16b, v28.16b\n" \
  "smmla v6.4s, v25.16b, v29.16b\n" \
  "smmla v7.4s, v25.16b, v30.16b\n" \
  "smmla v8.4s, v26.16b, v27.16b\n" \
  "smmla v9.4s, v26.16b, v28.16b\n" \
  "smmla v10.4s, v26.16b, v29.16b\n" \
  "smmla v11.4s, v26.16b, v30.16b\n" \
  "ldp q24, q25, [%[x], #144]\n" \
  "ldp q27, q28, [%[w], #192]\n" \
  "ldr q26, [%[x], #176]\n" \
  "ldp q29, q30, [%[w], #224]\n" \
  "smmla v0.4s, v24.16b, v27.16b\n" \
  "smmla v1.4s, v24.16b, v28.16b\n" \
  "smmla v2.4s, v24.16b, v29.16b\n" \
  "smmla v3.4s, v24.16b, v30.16b\n" \
  "smmla v4.4s, v25.16b, v27.16b\n" \
  "smmla v5.4s, v25.16b, v28.16b\n" \
  "smmla v6.4s, v25.16b, v29.16b\n" \
  "smmla v7.4s, v25.16b, v30.16b\n" \
  "smmla v8.4s, v26.16b, v27.16b\n" \
  "smmla v9.4s, v26.16b, v28.16b\n" \
  "smmla v10.4s, v26.16b, v29.16b\n" \
  "smmla v11.4s, v26.16b, v30.16b\n" \
  "add %[x], %[x], #192\n" \
  "add %[w], %[w], #256\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 1b\n"

#define MOEBIUS_I8MM_GROUPED_ROWS_6X8 \
  "ldp q24, q25, [%[x]]\n" \
  "ldp q27, q28, [%[w]]\n" \
  "ldr q26, [%[x], #32]\n" \
  "ldp q29, q30, [%[w], #32]\n" \
  "smmla v0.4s, v24.16b, v27.16b\n" \
  "smmla v1.4s, v24.16b, v28.16b\n" \
  "smmla v2.4s, v24.16b, v29.16b\n" \
  "smmla v3.4s, v24.16b, v30.16b\n" \
  "smmla v4.4s, v25.16b, v27.16b\n" \
  "smmla v5.4s, v25.16b, v28.16b\n" \
  "smmla v6.4s, v25.16b, v29.16b\n" \
  "smmla v7.4s, v25.16b, v30.16b\n" \
  "smmla v8.4s, v26.16b, v27.16b\n" \
  "smmla v9.4s, v26.16b, v28.16b\n" \
  "smmla v10.4s, v26.16b, v29.16b\n" \
  "smmla v11.4s, v26.16b, v30.16b\n" \
  "ldp q24, q25, [%[x], #48]\n" \
  "ldp q27, q28, [%[w], #64]\n" \
  "ldr q26, [%[x], #80]\n" \
  "ldp q29, q30, [%[w], #96]\n" \
  "smmla v0.4s, v24.16b, v27.16b\n" \
  "smmla v1.4s, v24.16b, v28.16b\n" \
  "smmla v2.4s, v24.16b, v29.16b\n" \
  "smmla v3.4s, v24.16b, v30.16b\n" \
  "smmla v4.4s, v25.16b, v27.16b\n" \
  "smmla v5.4s, v25.16b, v28.16b\n" \
  "smmla v6.4s, v25.16b, v29.16b\n" \
  "smmla v7.4s, v25.16b, v30.16b\n" \
  "smmla v8.4s, v26.16b, v27.16b\n" \
  "smmla v9.4s, v26.16b, v28.16b\n" \
  "smmla v10.4s, v26.16b, v29.16b\n" \
  "smmla v11.4s, v26.16b, v30.16b\n" \
  "add %[x], %[x], #96\n" \
  "add %[w], %[w], #128\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 1b\n"

#define MOEBIUS_I8MM_GROUPED_ROWS_END \
  "ldp q27, q28, [%[s]]\n" \
  "ldr q24, [%[r]]\n" \
  "ldp q29, q30, [%[s], #32]\n" \
  "add %[s], %[s], #64\n" \
  "add %[w], %[w], %[gap]\n" \
  "fmul v25.4s, v27.4s, v24.4s\n" \
  "scvtf v0.4s, v0.4s, #2\n" \
  "fmla v12.4s, v0.4s, v25.4s\n" \
  "fmul v26.4s, v28.4s, v24.4s\n" \
  "fsub v1.4s, v1.4s, v31.4s\n" \
  "fmla v13.4s, v1.4s, v26.4s\n" \
  "fmul v25.4s, v29.4s, v24.4s\n" \
  "scvtf v2.4s, v2.4s, #2\n" \
  "fmla v14.4s, v2.4s, v25.4s\n" \
  "fmul v26.4s, v30.4s, v24.4s\n" \
  "fsub v3.4s, v3.4s, v31.4s\n" \
  "fmla v15.4s, v3.4s, v26.4s\n" \
  "ldr q24, [%[r], #16]\n" \
  "fmul v25.4s, v27.4s, v24.4s\n" \
  "scvtf v4.4s, v4.4s, #2\n" \
  "fmla v16.4s, v4.4s, v25.4s\n" \
  "fmul v26.4s, v28.4s, v24.4s\n" \
  "fsub v5.4s, v5.4s, v31.4s\n" \
  "fmla v17.4s, v5.4s, v26.4s\n" \
  "fmul v25.4s, v29.4s, v24.4s\n" \
  "scvtf v6.4s, v6.4s, #2\n" \
  "fmla v18.4s, v6.4s, v25.4s\n" \
  "fmul v26.4s, v30.4s, v24.4s\n" \
  "fsub v7.4s, v7.4s, v31.4s\n" \
  "fmla v19.4s, v7.4s, v26.4s\n" \
  "ldr q24, [%[r], #32]\n" \
  "fmul v25.4s, v27.4s, v24.4s\n" \
  "scvtf v8.4s, v8.4s, #2\n" \
  "fmla v20.4s, v8.4s, v25.4s\n" \
  "fmul v26.4s, v28.4s, v24.4s\n" \
  "fsub v9.4s, v9.4s, v31.4s\n" \
  "fmla v21.4s, v9.4s, v26.4s\n" \
  "fmul v25.4s, v29.4s, v24.4s\n" \
  "scvtf v10.4s, v10.4s, #2\n" \
  "fmla v22.4s, v10.4s, v25.4s\n" \
  "fmul v26.4s, v30.4s, v24.4s\n" \
  "fsub v11.4s, v11.4s, v31.4s\n" \
  "fmla v23.4s, v11.4s, v26.4s\n" \
  "add %[r], %[r], %[r_next]\n" \
  "subs %[g], %[g], #1\n" \
  "b.ne 2b\n"

#define MOEBIUS_I8MM_GROUPED_ZERO_END_8 \
  "ldp q27, q28, [%[s]]\n" \
  "ldp q29, q30, [%[s], #32]\n" \
  "add %[s], %[s], #64\n" \
  "add %[w], %[w], %[gap]\n" \
  "scvtf v0.4s, v0.4s\n" \
  "scvtf v1.4s, v1.4s\n" \
  "scvtf v2.4s, v2.4s\n" \
  "scvtf v3.4s, v3.4s\n" \
  "scvtf v4.4s, v4.4s\n" \
  "scvtf v5.4s, v5.4s\n" \
  "scvtf v6.4s, v6.4s\n" \
  "scvtf v7.4s, v7.4s\n" \
  "fmla v12.4s, v0.4s, v27.4s\n" \
  "fmla v13.4s, v1.4s, v28.4s\n" \
  "fmla v14.4s, v2.4s, v29.4s\n" \
  "fmla v15.4s, v3.4s, v30.4s\n" \
  "fmla v16.4s, v4.4s, v27.4s\n" \
  "fmla v17.4s, v5.4s, v28.4s\n" \
  "fmla v18.4s, v6.4s, v29.4s\n" \
  "fmla v19.4s, v7.4s, v30.4s\n" \
  "subs %[g], %[g], #1\n" \
  "b.ne 2b\n"

#define MOEBIUS_I8MM_GROUPED_ZERO_END_8_16 \
  "ldp q27, q28, [%[s]]\n" \
  "ldp q29, q30, [%[s], #32]\n" \
  "add %[s], %[s], #64\n" \
  "add %[w], %[w], %[gap]\n" \
  "scvtf v0.4s, v0.4s, #4\n" \
  "scvtf v1.4s, v1.4s, #4\n" \
  "scvtf v2.4s, v2.4s, #4\n" \
  "scvtf v3.4s, v3.4s, #4\n" \
  "scvtf v4.4s, v4.4s, #4\n" \
  "scvtf v5.4s, v5.4s, #4\n" \
  "scvtf v6.4s, v6.4s, #4\n" \
  "scvtf v7.4s, v7.4s, #4\n" \
  "fmla v12.4s, v0.4s, v27.4s\n" \
  "fmla v13.4s, v1.4s, v28.4s\n" \
  "fmla v14.4s, v2.4s, v29.4s\n" \
  "fmla v15.4s, v3.4s, v30.4s\n" \
  "fmla v16.4s, v4.4s, v27.4s\n" \
  "fmla v17.4s, v5.4s, v28.4s\n" \
  "fmla v18.4s, v6.4s, v29.4s\n" \
  "fmla v19.4s, v7.4s, v30.4s\n" \
  "subs %[g], %[g], #1\n" \
  "b.ne 2b\n"

#define MOEBIUS_I8MM_GROUPED_MIXED_END_8 \
  "ldp q27, q28, [%[s]]\n" \
  "ldp q29, q30, [%[s], #32]\n" \
  "add %[s], %[s], #64\n" \
  "add %[w], %[w], %[gap]\n" \
  "scvtf v0.4s, v0.4s\n" \
  "fsub v1.4s, v1.4s, v31.4s\n" \
  "scvtf v2.4s, v2.4s\n" \
  "fsub v3.4s, v3.4s, v31.4s\n" \
  "scvtf v4.4s, v4.4s\n" \
  "fsub v5.4s, v5.4s, v31.4s\n" \
  "scvtf v6.4s, v6.4s\n" \
  "fsub v7.4s, v7.4s, v31.4s\n" \
  "fmla v12.4s, v0.4s, v27.4s\n" \
  "fmla v13.4s, v1.4s, v28.4s\n" \
  "fmla v14.4s, v2.4s, v29.4s\n" \
  "fmla v15.4s, v3.4s, v30.4s\n" \
  "fmla v16.4s, v4.4s, v27.4s\n" \
  "fmla v17.4s, v5.4s, v28.4s\n" \
  "fmla v18.4s, v6.4s, v29.4s\n" \
  "fmla v19.4s, v7.4s, v30.4s\n" \
  "subs %[g], %[g], #1\n" \
  "b.ne 2b\n"

#define MOEBIUS_I8MM_GROUPED_MIXED_END_8_16 \
  "ldp q27, q28, [%[s]]\n" \
  "ldp q29, q30, [%[s], #32]\n" \
  "add %[s], %[s], #64\n" \
  "add %[w], %[w], %[gap]\n" \
  "scvtf v0.4s, v0.4s, #4\n" \
  "fsub v1.4s, v1.4s, v31.4s\n" \
  "scvtf v2.4s, v2.4s, #4\n" \
  "fsub v3.4s, v3.4s, v31.4s\n" \
  "scvtf v4.4s, v4.4s, #4\n" \
  "fsub v5.4s, v5.4s, v31.4s\n" \
  "scvtf v6.4s, v6.4s, #4\n" \
  "fsub v7.4s, v7.4s, v31.4s\n" \
  "fmla v12.4s, v0.4s, v27.4s\n" \
  "fmla v13.4s, v1.4s, v28.4s\n" \
  "fmla v14.4s, v2.4s, v29.4s\n" \
  "fmla v15.4s, v3.4s, v30.4s\n" \
  "fmla v16.4s, v4.4s, v27.4s\n" \
  "fmla v17.4s, v5.4s, v28.4s\n" \
  "fmla v18.4s, v6.4s, v29.4s\n" \
  "fmla v19.4s, v7.4s, v30.4s\n" \
  "subs %[g], %[g], #1\n" \
  "b.ne 2b\n"

#define MOEBIUS_I8MM_GROUPED_ZERO_END_12 \
  "ldp q27, q28, [%[s]]\n" \
  "ldp q29, q30, [%[s], #32]\n" \
  "add %[s], %[s], #64\n" \
  "add %[w], %[w], %[gap]\n" \
  "scvtf v0.4s, v0.4s\n" \
  "scvtf v1.4s, v1.4s\n" \
  "scvtf v2.4s, v2.4s\n" \
  "scvtf v3.4s, v3.4s\n" \
  "scvtf v4.4s, v4.4s\n" \
  "scvtf v5.4s, v5.4s\n" \
  "scvtf v6.4s, v6.4s\n" \
  "scvtf v7.4s, v7.4s\n" \
  "scvtf v8.4s, v8.4s\n" \
  "scvtf v9.4s, v9.4s\n" \
  "scvtf v10.4s, v10.4s\n" \
  "scvtf v11.4s, v11.4s\n" \
  "fmla v12.4s, v0.4s, v27.4s\n" \
  "fmla v13.4s, v1.4s, v28.4s\n" \
  "fmla v14.4s, v2.4s, v29.4s\n" \
  "fmla v15.4s, v3.4s, v30.4s\n" \
  "fmla v16.4s, v4.4s, v27.4s\n" \
  "fmla v17.4s, v5.4s, v28.4s\n" \
  "fmla v18.4s, v6.4s, v29.4s\n" \
  "fmla v19.4s, v7.4s, v30.4s\n" \
  "fmla v20.4s, v8.4s, v27.4s\n" \
  "fmla v21.4s, v9.4s, v28.4s\n" \
  "fmla v22.4s, v10.4s, v29.4s\n" \
  "fmla v23.4s, v11.4s, v30.4s\n" \
  "subs %[g], %[g], #1\n" \
  "b.ne 2b\n"

#define MOEBIUS_I8MM_GROUPED_ZERO_END_12_16 \
  "ldp q27, q28, [%[s]]\n" \
  "ldp q29, q30, [%[s], #32]\n" \
  "add %[s], %[s], #64\n" \
  "add %[w], %[w], %[gap]\n" \
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
  "fmla v12.4s, v0.4s, v27.4s\n" \
  "fmla v13.4s, v1.4s, v28.4s\n" \
  "fmla v14.4s, v2.4s, v29.4s\n" \
  "fmla v15.4s, v3.4s, v30.4s\n" \
  "fmla v16.4s, v4.4s, v27.4s\n" \
  "fmla v17.4s, v5.4s, v28.4s\n" \
  "fmla v18.4s, v6.4s, v29.4s\n" \
  "fmla v19.4s, v7.4s, v30.4s\n" \
  "fmla v20.4s, v8.4s, v27.4s\n" \
  "fmla v21.4s, v9.4s, v28.4s\n" \
  "fmla v22.4s, v10.4s, v29.4s\n" \
  "fmla v23.4s, v11.4s, v30.4s\n" \
  "subs %[g], %[g], #1\n" \
  "b.ne 2b\n"

#define MOEBIUS_I8MM_GROUPED_MIXED_END_12 \
  "ldp q27, q28, [%[s]]\n" \
  "ldp q29, q30, [%[s], #32]\n" \
  "add %[s], %[s], #64\n" \
  "add %[w], %[w], %[gap]\n" \
  "scvtf v0.4s, v0.4s\n" \
  "fsub v1.4s, v1.4s, v31.4s\n" \
  "scvtf v2.4s, v2.4s\n" \
  "fsub v3.4s, v3.4s, v31.4s\n" \
  "scvtf v4.4s, v4.4s\n" \
  "fsub v5.4s, v5.4s, v31.4s\n" \
  "scvtf v6.4s, v6.4s\n" \
  "fsub v7.4s, v7.4s, v31.4s\n" \
  "scvtf v8.4s, v8.4s\n" \
  "fsub v9.4s, v9.4s, v31.4s\n" \
  "scvtf v10.4s, v10.4s\n" \
  "fsub v11.4s, v11.4s, v31.4s\n" \
  "fmla v12.4s, v0.4s, v27.4s\n" \
  "fmla v13.4s, v1.4s, v28.4s\n" \
  "fmla v14.4s, v2.4s, v29.4s\n" \
  "fmla v15.4s, v3.4s, v30.4s\n" \
  "fmla v16.4s, v4.4s, v27.4s\n" \
  "fmla v17.4s, v5.4s, v28.4s\n" \
  "fmla v18.4s, v6.4s, v29.4s\n" \
  "fmla v19.4s, v7.4s, v30.4s\n" \
  "fmla v20.4s, v8.4s, v27.4s\n" \
  "fmla v21.4s, v9.4s, v28.4s\n" \
  "fmla v22.4s, v10.4s, v29.4s\n" \
  "fmla v23.4s, v11.4s, v30.4s\n" \
  "subs %[g], %[g], #1\n" \
  "b.ne 2b\n"

#define MOEBIUS_I8MM_GROUPED_MIXED_END_12_16 \
  "ldp q27, q28, [%[s]]\n" \
  "ldp q29, q30, [%[s], #32]\n" \
  "add %[s], %[s], #64\n" \
  "add %[w], %[w], %[gap]\n" \
  "scvtf v0.4s, v0.4s, #4\n" \
  "fsub v1.4s, v1.4s, v31.4s\n" \
  "scvtf v2.4s, v2.4s, #4\n" \
  "fsub v3.4s, v3.4s, v31.4s\n" \
  "scvtf v4.4s, v4.4s, #4\n" \
  "fsub v5.4s, v5.4s, v31.4s\n" \
  "scvtf v6.4s, v6.4s, #4\n" \
  "fsub v7.4s, v7.4s, v31.4s\n" \
  "scvtf v8.4s, v8.4s, #4\n" \
  "fsub v9.4s, v9.4s, v31.4s\n" \
  "scvtf v10.4s, v10.4s, #4\n" \
  "fsub v11.4s, v11.4s, v31.4s\n" \
  "fmla v12.4s, v0.4s, v27.4s\n" \
  "fmla v13.4s, v1.4s, v28.4s\n" \
  "fmla v14.4s, v2.4s, v29.4s\n" \
  "fmla v15.4s, v3.4s, v30.4s\n" \
  "fmla v16.4s, v4.4s, v27.4s\n" \
  "fmla v17.4s, v5.4s, v28.4s\n" \
  "fmla v18.4s, v6.4s, v29.4s\n" \
  "fmla v19.4s, v7.4s, v30.4s\n" \
  "fmla v20.4s, v8.4s, v27.4s\n" \
  "fmla v21.4s, v9.4s, v28.4s\n" \
  "fmla v22.4s, v10.4s, v29.4s\n" \
  "fmla v23.4s, v11.4s, v30.4s\n" \
  "subs %[g], %[g], #1\n" \
  "b.ne 2b\n"

#define MOEBIUS_I8MM_STORE_F_8 \
  "stp q12, q13, [%[o]]\n" \
  "stp q14, q15, [%[o], #32]\n" \
  "stp q16, q17, [%[o], #64]\n" \
  "stp q18, q19, [%[o], #96]\n"
// clang-format on
