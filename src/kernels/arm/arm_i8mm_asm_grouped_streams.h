// SPDX-License-Identifier: Apache-2.0
// Assembly of arm_i8mm, written by scripts/generate_i8mm.py (register maps and schedules are there),
// not by hand.
#pragma once
// clang-format off

#define MOEBIUS_I8MM_CODES_GROUPED_STREAMS_ONE \
  "ldp q20, q21, [%[w]]\n" \
  "ldp q22, q23, [%[w], #32]\n" \
  "movi v8.4s, #0\n" \
  "movi v9.4s, #0\n" \
  "movi v10.4s, #0\n" \
  "movi v11.4s, #0\n" \
  "movi v12.4s, #0\n" \
  "movi v13.4s, #0\n" \
  "movi v14.4s, #0\n" \
  "movi v15.4s, #0\n" \
  "movi v31.16b, #0xf0\n" \
  "shl v16.16b, v20.16b, #4\n" \
  "shl v17.16b, v21.16b, #4\n" \
  "shl v18.16b, v22.16b, #4\n" \
  "shl v19.16b, v23.16b, #4\n" \
  "2:\n" \
  "mov %[t], %[x]\n" \
  "mov %[n], %[twice]\n" \
  "movi v0.4s, #0\n" \
  "movi v1.4s, #0\n" \
  "movi v2.4s, #0\n" \
  "movi v3.4s, #0\n" \
  "cbz %[n], 3f\n" \
  "1:\n" \
  "ldr d28, [%[t]]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "and v20.16b, v20.16b, v31.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v21.16b, v21.16b, v31.16b\n" \
  "ldp q24, q25, [%[w], #64]\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "ldp q26, q27, [%[w], #96]\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "and v23.16b, v23.16b, v31.16b\n" \
  "ldr d28, [%[t], #8]\n" \
  "smmla v0.4s, v28.16b, v20.16b\n" \
  "shl v16.16b, v24.16b, #4\n" \
  "smmla v1.4s, v28.16b, v21.16b\n" \
  "shl v17.16b, v25.16b, #4\n" \
  "smmla v2.4s, v28.16b, v22.16b\n" \
  "shl v18.16b, v26.16b, #4\n" \
  "smmla v3.4s, v28.16b, v23.16b\n" \
  "shl v19.16b, v27.16b, #4\n" \
  "ldr d28, [%[t], #16]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "and v24.16b, v24.16b, v31.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v25.16b, v25.16b, v31.16b\n" \
  "ldp q20, q21, [%[w], #128]\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "and v26.16b, v26.16b, v31.16b\n" \
  "ldp q22, q23, [%[w], #160]\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "and v27.16b, v27.16b, v31.16b\n" \
  "ldr d28, [%[t], #24]\n" \
  "smmla v0.4s, v28.16b, v24.16b\n" \
  "shl v16.16b, v20.16b, #4\n" \
  "smmla v1.4s, v28.16b, v25.16b\n" \
  "shl v17.16b, v21.16b, #4\n" \
  "smmla v2.4s, v28.16b, v26.16b\n" \
  "shl v18.16b, v22.16b, #4\n" \
  "smmla v3.4s, v28.16b, v27.16b\n" \
  "shl v19.16b, v23.16b, #4\n" \
  "add %[t], %[t], #32\n" \
  "add %[w], %[w], #128\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 1b\n" \
  "3:\n" \
  "ldr d28, [%[t]]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "and v20.16b, v20.16b, v31.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v21.16b, v21.16b, v31.16b\n" \
  "ldp q24, q25, [%[w], #64]\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "ldp q26, q27, [%[w], #96]\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "and v23.16b, v23.16b, v31.16b\n" \
  "ldr d28, [%[t], #8]\n" \
  "smmla v0.4s, v28.16b, v20.16b\n" \
  "shl v16.16b, v24.16b, #4\n" \
  "smmla v1.4s, v28.16b, v21.16b\n" \
  "shl v17.16b, v25.16b, #4\n" \
  "smmla v2.4s, v28.16b, v22.16b\n" \
  "shl v18.16b, v26.16b, #4\n" \
  "smmla v3.4s, v28.16b, v23.16b\n" \
  "shl v19.16b, v27.16b, #4\n" \
  "ldr d28, [%[t], #16]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "and v24.16b, v24.16b, v31.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v25.16b, v25.16b, v31.16b\n" \
  "ldp q20, q21, [%[v]]\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "and v26.16b, v26.16b, v31.16b\n" \
  "ldp q22, q23, [%[v], #32]\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "and v27.16b, v27.16b, v31.16b\n" \
  "ldr d28, [%[t], #24]\n" \
  "smmla v0.4s, v28.16b, v24.16b\n" \
  "shl v16.16b, v20.16b, #4\n" \
  "smmla v1.4s, v28.16b, v25.16b\n" \
  "shl v17.16b, v21.16b, #4\n" \
  "smmla v2.4s, v28.16b, v26.16b\n" \
  "shl v18.16b, v22.16b, #4\n" \
  "smmla v3.4s, v28.16b, v27.16b\n" \
  "shl v19.16b, v23.16b, #4\n" \
  "ldr q30, [%[w], #128]\n" \
  "add %[w], %[w], #144\n" \
  "zip1 v28.2d, v0.2d, v1.2d\n" \
  "zip1 v29.2d, v2.2d, v3.2d\n" \
  "shll v0.4s, v30.4h, #16\n" \
  "scvtf v28.4s, v28.4s, #4\n" \
  "shll2 v1.4s, v30.8h, #16\n" \
  "scvtf v29.4s, v29.4s, #4\n" \
  "fmla v8.4s, v28.4s, v0.4s\n" \
  "fmla v9.4s, v29.4s, v1.4s\n" \
  "cmp %[g], #1\n" \
  "csel %[next], %[v], %[w], eq\n" \
  "mov %[t], %[x]\n" \
  "mov %[n], %[twice]\n" \
  "movi v0.4s, #0\n" \
  "movi v1.4s, #0\n" \
  "movi v2.4s, #0\n" \
  "movi v3.4s, #0\n" \
  "cbz %[n], 5f\n" \
  "4:\n" \
  "ldr d28, [%[t]]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "and v20.16b, v20.16b, v31.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v21.16b, v21.16b, v31.16b\n" \
  "ldp q24, q25, [%[v], #64]\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "ldp q26, q27, [%[v], #96]\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "and v23.16b, v23.16b, v31.16b\n" \
  "ldr d28, [%[t], #8]\n" \
  "smmla v0.4s, v28.16b, v20.16b\n" \
  "shl v16.16b, v24.16b, #4\n" \
  "smmla v1.4s, v28.16b, v21.16b\n" \
  "shl v17.16b, v25.16b, #4\n" \
  "smmla v2.4s, v28.16b, v22.16b\n" \
  "shl v18.16b, v26.16b, #4\n" \
  "smmla v3.4s, v28.16b, v23.16b\n" \
  "shl v19.16b, v27.16b, #4\n" \
  "ldr d28, [%[t], #16]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "and v24.16b, v24.16b, v31.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v25.16b, v25.16b, v31.16b\n" \
  "ldp q20, q21, [%[v], #128]\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "and v26.16b, v26.16b, v31.16b\n" \
  "ldp q22, q23, [%[v], #160]\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "and v27.16b, v27.16b, v31.16b\n" \
  "ldr d28, [%[t], #24]\n" \
  "smmla v0.4s, v28.16b, v24.16b\n" \
  "shl v16.16b, v20.16b, #4\n" \
  "smmla v1.4s, v28.16b, v25.16b\n" \
  "shl v17.16b, v21.16b, #4\n" \
  "smmla v2.4s, v28.16b, v26.16b\n" \
  "shl v18.16b, v22.16b, #4\n" \
  "smmla v3.4s, v28.16b, v27.16b\n" \
  "shl v19.16b, v23.16b, #4\n" \
  "add %[t], %[t], #32\n" \
  "add %[v], %[v], #128\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 4b\n" \
  "5:\n" \
  "ldr d28, [%[t]]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "and v20.16b, v20.16b, v31.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v21.16b, v21.16b, v31.16b\n" \
  "ldp q24, q25, [%[v], #64]\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "ldp q26, q27, [%[v], #96]\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "and v23.16b, v23.16b, v31.16b\n" \
  "ldr d28, [%[t], #8]\n" \
  "smmla v0.4s, v28.16b, v20.16b\n" \
  "shl v16.16b, v24.16b, #4\n" \
  "smmla v1.4s, v28.16b, v21.16b\n" \
  "shl v17.16b, v25.16b, #4\n" \
  "smmla v2.4s, v28.16b, v22.16b\n" \
  "shl v18.16b, v26.16b, #4\n" \
  "smmla v3.4s, v28.16b, v23.16b\n" \
  "shl v19.16b, v27.16b, #4\n" \
  "ldr d28, [%[t], #16]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "and v24.16b, v24.16b, v31.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v25.16b, v25.16b, v31.16b\n" \
  "ldp q20, q21, [%[next]]\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "and v26.16b, v26.16b, v31.16b\n" \
  "ldp q22, q23, [%[next], #32]\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "and v27.16b, v27.16b, v31.16b\n" \
  "ldr d28, [%[t], #24]\n" \
  "smmla v0.4s, v28.16b, v24.16b\n" \
  "shl v16.16b, v20.16b, #4\n" \
  "smmla v1.4s, v28.16b, v25.16b\n" \
  "shl v17.16b, v21.16b, #4\n" \
  "smmla v2.4s, v28.16b, v26.16b\n" \
  "shl v18.16b, v22.16b, #4\n" \
  "smmla v3.4s, v28.16b, v27.16b\n" \
  "shl v19.16b, v23.16b, #4\n" \
  "ldr q30, [%[v], #128]\n" \
  "add %[v], %[v], #144\n" \
  "zip1 v28.2d, v0.2d, v1.2d\n" \
  "zip1 v29.2d, v2.2d, v3.2d\n" \
  "shll v0.4s, v30.4h, #16\n" \
  "scvtf v28.4s, v28.4s, #4\n" \
  "shll2 v1.4s, v30.8h, #16\n" \
  "scvtf v29.4s, v29.4s, #4\n" \
  "fmla v10.4s, v28.4s, v0.4s\n" \
  "fmla v11.4s, v29.4s, v1.4s\n" \
  "add %[x], %[t], #32\n" \
  "subs %[g], %[g], #1\n" \
  "b.ne 2b\n" \
  "stp q8, q9, [%[o]]\n" \
  "stp q10, q11, [%[o], #32]\n"

#define MOEBIUS_I8MM_CODES_GROUPED_STREAMS_PAIR \
  "ldp q20, q21, [%[w]]\n" \
  "ldp q22, q23, [%[w], #32]\n" \
  "movi v8.4s, #0\n" \
  "movi v9.4s, #0\n" \
  "movi v10.4s, #0\n" \
  "movi v11.4s, #0\n" \
  "movi v12.4s, #0\n" \
  "movi v13.4s, #0\n" \
  "movi v14.4s, #0\n" \
  "movi v15.4s, #0\n" \
  "movi v31.16b, #0xf0\n" \
  "shl v16.16b, v20.16b, #4\n" \
  "shl v17.16b, v21.16b, #4\n" \
  "shl v18.16b, v22.16b, #4\n" \
  "shl v19.16b, v23.16b, #4\n" \
  "2:\n" \
  "mov %[t], %[x]\n" \
  "mov %[n], %[twice]\n" \
  "movi v0.4s, #0\n" \
  "movi v1.4s, #0\n" \
  "movi v2.4s, #0\n" \
  "movi v3.4s, #0\n" \
  "cbz %[n], 3f\n" \
  "1:\n" \
  "ldr q28, [%[t]]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "and v20.16b, v20.16b, v31.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v21.16b, v21.16b, v31.16b\n" \
  "ldp q24, q25, [%[w], #64]\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "ldp q26, q27, [%[w], #96]\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "and v23.16b, v23.16b, v31.16b\n" \
  "ldr q28, [%[t], #16]\n" \
  "smmla v0.4s, v28.16b, v20.16b\n" \
  "shl v16.16b, v24.16b, #4\n" \
  "smmla v1.4s, v28.16b, v21.16b\n" \
  "shl v17.16b, v25.16b, #4\n" \
  "smmla v2.4s, v28.16b, v22.16b\n" \
  "shl v18.16b, v26.16b, #4\n" \
  "smmla v3.4s, v28.16b, v23.16b\n" \
  "shl v19.16b, v27.16b, #4\n" \
  "ldr q28, [%[t], #32]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "and v24.16b, v24.16b, v31.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v25.16b, v25.16b, v31.16b\n" \
  "ldp q20, q21, [%[w], #128]\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "and v26.16b, v26.16b, v31.16b\n" \
  "ldp q22, q23, [%[w], #160]\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "and v27.16b, v27.16b, v31.16b\n" \
  "ldr q28, [%[t], #48]\n" \
  "smmla v0.4s, v28.16b, v24.16b\n" \
  "shl v16.16b, v20.16b, #4\n" \
  "smmla v1.4s, v28.16b, v25.16b\n" \
  "shl v17.16b, v21.16b, #4\n" \
  "smmla v2.4s, v28.16b, v26.16b\n" \
  "shl v18.16b, v22.16b, #4\n" \
  "smmla v3.4s, v28.16b, v27.16b\n" \
  "shl v19.16b, v23.16b, #4\n" \
  "add %[t], %[t], #64\n" \
  "add %[w], %[w], #128\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 1b\n" \
  "3:\n" \
  "ldr q28, [%[t]]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "and v20.16b, v20.16b, v31.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v21.16b, v21.16b, v31.16b\n" \
  "ldp q24, q25, [%[w], #64]\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "ldp q26, q27, [%[w], #96]\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "and v23.16b, v23.16b, v31.16b\n" \
  "ldr q28, [%[t], #16]\n" \
  "smmla v0.4s, v28.16b, v20.16b\n" \
  "shl v16.16b, v24.16b, #4\n" \
  "smmla v1.4s, v28.16b, v21.16b\n" \
  "shl v17.16b, v25.16b, #4\n" \
  "smmla v2.4s, v28.16b, v22.16b\n" \
  "shl v18.16b, v26.16b, #4\n" \
  "smmla v3.4s, v28.16b, v23.16b\n" \
  "shl v19.16b, v27.16b, #4\n" \
  "ldr q28, [%[t], #32]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "and v24.16b, v24.16b, v31.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v25.16b, v25.16b, v31.16b\n" \
  "ldp q20, q21, [%[v]]\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "and v26.16b, v26.16b, v31.16b\n" \
  "ldp q22, q23, [%[v], #32]\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "and v27.16b, v27.16b, v31.16b\n" \
  "ldr q28, [%[t], #48]\n" \
  "smmla v0.4s, v28.16b, v24.16b\n" \
  "shl v16.16b, v20.16b, #4\n" \
  "smmla v1.4s, v28.16b, v25.16b\n" \
  "shl v17.16b, v21.16b, #4\n" \
  "smmla v2.4s, v28.16b, v26.16b\n" \
  "shl v18.16b, v22.16b, #4\n" \
  "smmla v3.4s, v28.16b, v27.16b\n" \
  "shl v19.16b, v23.16b, #4\n" \
  "ldr q30, [%[w], #128]\n" \
  "add %[w], %[w], #144\n" \
  "scvtf v0.4s, v0.4s, #4\n" \
  "shll v29.4s, v30.4h, #16\n" \
  "scvtf v1.4s, v1.4s, #4\n" \
  "shll2 v30.4s, v30.8h, #16\n" \
  "scvtf v2.4s, v2.4s, #4\n" \
  "zip1 v4.2d, v29.2d, v29.2d\n" \
  "zip2 v5.2d, v29.2d, v29.2d\n" \
  "scvtf v3.4s, v3.4s, #4\n" \
  "zip1 v6.2d, v30.2d, v30.2d\n" \
  "zip2 v7.2d, v30.2d, v30.2d\n" \
  "fmla v8.4s, v0.4s, v4.4s\n" \
  "fmla v9.4s, v1.4s, v5.4s\n" \
  "fmla v10.4s, v2.4s, v6.4s\n" \
  "fmla v11.4s, v3.4s, v7.4s\n" \
  "cmp %[g], #1\n" \
  "csel %[next], %[v], %[w], eq\n" \
  "mov %[t], %[x]\n" \
  "mov %[n], %[twice]\n" \
  "movi v0.4s, #0\n" \
  "movi v1.4s, #0\n" \
  "movi v2.4s, #0\n" \
  "movi v3.4s, #0\n" \
  "cbz %[n], 5f\n" \
  "4:\n" \
  "ldr q28, [%[t]]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "and v20.16b, v20.16b, v31.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v21.16b, v21.16b, v31.16b\n" \
  "ldp q24, q25, [%[v], #64]\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "ldp q26, q27, [%[v], #96]\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "and v23.16b, v23.16b, v31.16b\n" \
  "ldr q28, [%[t], #16]\n" \
  "smmla v0.4s, v28.16b, v20.16b\n" \
  "shl v16.16b, v24.16b, #4\n" \
  "smmla v1.4s, v28.16b, v21.16b\n" \
  "shl v17.16b, v25.16b, #4\n" \
  "smmla v2.4s, v28.16b, v22.16b\n" \
  "shl v18.16b, v26.16b, #4\n" \
  "smmla v3.4s, v28.16b, v23.16b\n" \
  "shl v19.16b, v27.16b, #4\n" \
  "ldr q28, [%[t], #32]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "and v24.16b, v24.16b, v31.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v25.16b, v25.16b, v31.16b\n" \
  "ldp q20, q21, [%[v], #128]\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "and v26.16b, v26.16b, v31.16b\n" \
  "ldp q22, q23, [%[v], #160]\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "and v27.16b, v27.16b, v31.16b\n" \
  "ldr q28, [%[t], #48]\n" \
  "smmla v0.4s, v28.16b, v24.16b\n" \
  "shl v16.16b, v20.16b, #4\n" \
  "smmla v1.4s, v28.16b, v25.16b\n" \
  "shl v17.16b, v21.16b, #4\n" \
  "smmla v2.4s, v28.16b, v26.16b\n" \
  "shl v18.16b, v22.16b, #4\n" \
  "smmla v3.4s, v28.16b, v27.16b\n" \
  "shl v19.16b, v23.16b, #4\n" \
  "add %[t], %[t], #64\n" \
  "add %[v], %[v], #128\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 4b\n" \
  "5:\n" \
  "ldr q28, [%[t]]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "and v20.16b, v20.16b, v31.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v21.16b, v21.16b, v31.16b\n" \
  "ldp q24, q25, [%[v], #64]\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "ldp q26, q27, [%[v], #96]\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "and v23.16b, v23.16b, v31.16b\n" \
  "ldr q28, [%[t], #16]\n" \
  "smmla v0.4s, v28.16b, v20.16b\n" \
  "shl v16.16b, v24.16b, #4\n" \
  "smmla v1.4s, v28.16b, v21.16b\n" \
  "shl v17.16b, v25.16b, #4\n" \
  "smmla v2.4s, v28.16b, v22.16b\n" \
  "shl v18.16b, v26.16b, #4\n" \
  "smmla v3.4s, v28.16b, v23.16b\n" \
  "shl v19.16b, v27.16b, #4\n" \
  "ldr q28, [%[t], #32]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "and v24.16b, v24.16b, v31.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v25.16b, v25.16b, v31.16b\n" \
  "ldp q20, q21, [%[next]]\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "and v26.16b, v26.16b, v31.16b\n" \
  "ldp q22, q23, [%[next], #32]\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "and v27.16b, v27.16b, v31.16b\n" \
  "ldr q28, [%[t], #48]\n" \
  "smmla v0.4s, v28.16b, v24.16b\n" \
  "shl v16.16b, v20.16b, #4\n" \
  "smmla v1.4s, v28.16b, v25.16b\n" \
  "shl v17.16b, v21.16b, #4\n" \
  "smmla v2.4s, v28.16b, v26.16b\n" \
  "shl v18.16b, v22.16b, #4\n" \
  "smmla v3.4s, v28.16b, v27.16b\n" \
  "shl v19.16b, v23.16b, #4\n" \
  "ldr q30, [%[v], #128]\n" \
  "add %[v], %[v], #144\n" \
  "scvtf v0.4s, v0.4s, #4\n" \
  "shll v29.4s, v30.4h, #16\n" \
  "scvtf v1.4s, v1.4s, #4\n" \
  "shll2 v30.4s, v30.8h, #16\n" \
  "scvtf v2.4s, v2.4s, #4\n" \
  "zip1 v4.2d, v29.2d, v29.2d\n" \
  "zip2 v5.2d, v29.2d, v29.2d\n" \
  "scvtf v3.4s, v3.4s, #4\n" \
  "zip1 v6.2d, v30.2d, v30.2d\n" \
  "zip2 v7.2d, v30.2d, v30.2d\n" \
  "fmla v12.4s, v0.4s, v4.4s\n" \
  "fmla v13.4s, v1.4s, v5.4s\n" \
  "fmla v14.4s, v2.4s, v6.4s\n" \
  "fmla v15.4s, v3.4s, v7.4s\n" \
  "add %[x], %[t], #64\n" \
  "subs %[g], %[g], #1\n" \
  "b.ne 2b\n" \
  "stp q8, q9, [%[o]]\n" \
  "stp q10, q11, [%[o], #32]\n" \
  "stp q12, q13, [%[o], #64]\n" \
  "stp q14, q15, [%[o], #96]\n"
// clang-format on
