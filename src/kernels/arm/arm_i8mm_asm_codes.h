// SPDX-License-Identifier: Apache-2.0
// Assembly of arm_i8mm, written by scripts/generate_i8mm.py (register maps and schedules are there),
// not by hand.
#pragma once
// clang-format off

#define MOEBIUS_I8MM_CODES_1 \
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
  "cbz %[n], 2f\n" \
  ".p2align 5\n" \
  "1:\n" \
  "ldr q28, [%[x]]\n" \
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
  "ldr q28, [%[x], #16]\n" \
  "smmla v0.4s, v28.16b, v20.16b\n" \
  "shl v16.16b, v24.16b, #4\n" \
  "smmla v1.4s, v28.16b, v21.16b\n" \
  "shl v17.16b, v25.16b, #4\n" \
  "smmla v2.4s, v28.16b, v22.16b\n" \
  "shl v18.16b, v26.16b, #4\n" \
  "smmla v3.4s, v28.16b, v23.16b\n" \
  "shl v19.16b, v27.16b, #4\n" \
  "ldr q28, [%[x], #32]\n" \
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
  "ldr q28, [%[x], #48]\n" \
  "smmla v0.4s, v28.16b, v24.16b\n" \
  "shl v16.16b, v20.16b, #4\n" \
  "smmla v1.4s, v28.16b, v25.16b\n" \
  "shl v17.16b, v21.16b, #4\n" \
  "smmla v2.4s, v28.16b, v26.16b\n" \
  "shl v18.16b, v22.16b, #4\n" \
  "smmla v3.4s, v28.16b, v27.16b\n" \
  "shl v19.16b, v23.16b, #4\n" \
  "add %[x], %[x], #64\n" \
  "add %[w], %[w], #128\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 1b\n" \
  "2:\n" \
  "cbz %[odd], 3f\n" \
  "ldr q28, [%[x]]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "and v20.16b, v20.16b, v31.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v21.16b, v21.16b, v31.16b\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "and v23.16b, v23.16b, v31.16b\n" \
  "ldr q28, [%[x], #16]\n" \
  "smmla v0.4s, v28.16b, v20.16b\n" \
  "smmla v1.4s, v28.16b, v21.16b\n" \
  "smmla v2.4s, v28.16b, v22.16b\n" \
  "smmla v3.4s, v28.16b, v23.16b\n" \
  "3:\n"

#define MOEBIUS_I8MM_CODES_2 \
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
  "cbz %[n], 2f\n" \
  ".p2align 5\n" \
  "1:\n" \
  "ldp q28, q29, [%[x]]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v20.16b, v20.16b, v31.16b\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "and v21.16b, v21.16b, v31.16b\n" \
  "ldp q24, q25, [%[w], #64]\n" \
  "smmla v4.4s, v29.16b, v16.16b\n" \
  "smmla v5.4s, v29.16b, v17.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "ldp q26, q27, [%[w], #96]\n" \
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
  "ldp q28, q29, [%[x], #64]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v24.16b, v24.16b, v31.16b\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "and v25.16b, v25.16b, v31.16b\n" \
  "ldp q20, q21, [%[w], #128]\n" \
  "smmla v4.4s, v29.16b, v16.16b\n" \
  "smmla v5.4s, v29.16b, v17.16b\n" \
  "and v26.16b, v26.16b, v31.16b\n" \
  "ldp q22, q23, [%[w], #160]\n" \
  "smmla v6.4s, v29.16b, v18.16b\n" \
  "smmla v7.4s, v29.16b, v19.16b\n" \
  "and v27.16b, v27.16b, v31.16b\n" \
  "ldp q28, q29, [%[x], #96]\n" \
  "smmla v0.4s, v28.16b, v24.16b\n" \
  "smmla v1.4s, v28.16b, v25.16b\n" \
  "shl v16.16b, v20.16b, #4\n" \
  "smmla v2.4s, v28.16b, v26.16b\n" \
  "smmla v3.4s, v28.16b, v27.16b\n" \
  "shl v17.16b, v21.16b, #4\n" \
  "smmla v4.4s, v29.16b, v24.16b\n" \
  "smmla v5.4s, v29.16b, v25.16b\n" \
  "shl v18.16b, v22.16b, #4\n" \
  "smmla v6.4s, v29.16b, v26.16b\n" \
  "smmla v7.4s, v29.16b, v27.16b\n" \
  "shl v19.16b, v23.16b, #4\n" \
  "add %[x], %[x], #128\n" \
  "add %[w], %[w], #128\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 1b\n" \
  "2:\n" \
  "cbz %[odd], 3f\n" \
  "ldp q28, q29, [%[x]]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v20.16b, v20.16b, v31.16b\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "and v21.16b, v21.16b, v31.16b\n" \
  "smmla v4.4s, v29.16b, v16.16b\n" \
  "smmla v5.4s, v29.16b, v17.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "smmla v6.4s, v29.16b, v18.16b\n" \
  "smmla v7.4s, v29.16b, v19.16b\n" \
  "and v23.16b, v23.16b, v31.16b\n" \
  "ldp q28, q29, [%[x], #32]\n" \
  "smmla v0.4s, v28.16b, v20.16b\n" \
  "smmla v1.4s, v28.16b, v21.16b\n" \
  "smmla v2.4s, v28.16b, v22.16b\n" \
  "smmla v3.4s, v28.16b, v23.16b\n" \
  "smmla v4.4s, v29.16b, v20.16b\n" \
  "smmla v5.4s, v29.16b, v21.16b\n" \
  "smmla v6.4s, v29.16b, v22.16b\n" \
  "smmla v7.4s, v29.16b, v23.16b\n" \
  "3:\n"

#define MOEBIUS_I8MM_CODES_3 \
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
  "cbz %[n], 2f\n" \
  ".p2align 5\n" \
  "1:\n" \
  "ldp q28, q29, [%[x]]\n" \
  "ldr q30, [%[x], #32]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v20.16b, v20.16b, v31.16b\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "smmla v4.4s, v29.16b, v16.16b\n" \
  "and v21.16b, v21.16b, v31.16b\n" \
  "smmla v5.4s, v29.16b, v17.16b\n" \
  "ldp q24, q25, [%[w], #64]\n" \
  "smmla v6.4s, v29.16b, v18.16b\n" \
  "smmla v7.4s, v29.16b, v19.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "smmla v8.4s, v30.16b, v16.16b\n" \
  "ldp q26, q27, [%[w], #96]\n" \
  "smmla v9.4s, v30.16b, v17.16b\n" \
  "smmla v10.4s, v30.16b, v18.16b\n" \
  "and v23.16b, v23.16b, v31.16b\n" \
  "smmla v11.4s, v30.16b, v19.16b\n" \
  "ldp q28, q29, [%[x], #48]\n" \
  "ldr q30, [%[x], #80]\n" \
  "smmla v0.4s, v28.16b, v20.16b\n" \
  "smmla v1.4s, v28.16b, v21.16b\n" \
  "shl v16.16b, v24.16b, #4\n" \
  "smmla v2.4s, v28.16b, v22.16b\n" \
  "smmla v3.4s, v28.16b, v23.16b\n" \
  "smmla v4.4s, v29.16b, v20.16b\n" \
  "shl v17.16b, v25.16b, #4\n" \
  "smmla v5.4s, v29.16b, v21.16b\n" \
  "smmla v6.4s, v29.16b, v22.16b\n" \
  "smmla v7.4s, v29.16b, v23.16b\n" \
  "shl v18.16b, v26.16b, #4\n" \
  "smmla v8.4s, v30.16b, v20.16b\n" \
  "smmla v9.4s, v30.16b, v21.16b\n" \
  "smmla v10.4s, v30.16b, v22.16b\n" \
  "shl v19.16b, v27.16b, #4\n" \
  "smmla v11.4s, v30.16b, v23.16b\n" \
  "ldp q28, q29, [%[x], #96]\n" \
  "ldr q30, [%[x], #128]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v24.16b, v24.16b, v31.16b\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "smmla v4.4s, v29.16b, v16.16b\n" \
  "and v25.16b, v25.16b, v31.16b\n" \
  "smmla v5.4s, v29.16b, v17.16b\n" \
  "ldp q20, q21, [%[w], #128]\n" \
  "smmla v6.4s, v29.16b, v18.16b\n" \
  "smmla v7.4s, v29.16b, v19.16b\n" \
  "and v26.16b, v26.16b, v31.16b\n" \
  "smmla v8.4s, v30.16b, v16.16b\n" \
  "ldp q22, q23, [%[w], #160]\n" \
  "smmla v9.4s, v30.16b, v17.16b\n" \
  "smmla v10.4s, v30.16b, v18.16b\n" \
  "and v27.16b, v27.16b, v31.16b\n" \
  "smmla v11.4s, v30.16b, v19.16b\n" \
  "ldp q28, q29, [%[x], #144]\n" \
  "ldr q30, [%[x], #176]\n" \
  "smmla v0.4s, v28.16b, v24.16b\n" \
  "smmla v1.4s, v28.16b, v25.16b\n" \
  "shl v16.16b, v20.16b, #4\n" \
  "smmla v2.4s, v28.16b, v26.16b\n" \
  "smmla v3.4s, v28.16b, v27.16b\n" \
  "smmla v4.4s, v29.16b, v24.16b\n" \
  "shl v17.16b, v21.16b, #4\n" \
  "smmla v5.4s, v29.16b, v25.16b\n" \
  "smmla v6.4s, v29.16b, v26.16b\n" \
  "smmla v7.4s, v29.16b, v27.16b\n" \
  "shl v18.16b, v22.16b, #4\n" \
  "smmla v8.4s, v30.16b, v24.16b\n" \
  "smmla v9.4s, v30.16b, v25.16b\n" \
  "smmla v10.4s, v30.16b, v26.16b\n" \
  "shl v19.16b, v23.16b, #4\n" \
  "smmla v11.4s, v30.16b, v27.16b\n" \
  "add %[x], %[x], #192\n" \
  "add %[w], %[w], #128\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 1b\n" \
  "2:\n" \
  "cbz %[odd], 3f\n" \
  "ldp q28, q29, [%[x]]\n" \
  "ldr q30, [%[x], #32]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v20.16b, v20.16b, v31.16b\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "smmla v4.4s, v29.16b, v16.16b\n" \
  "and v21.16b, v21.16b, v31.16b\n" \
  "smmla v5.4s, v29.16b, v17.16b\n" \
  "smmla v6.4s, v29.16b, v18.16b\n" \
  "smmla v7.4s, v29.16b, v19.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "smmla v8.4s, v30.16b, v16.16b\n" \
  "smmla v9.4s, v30.16b, v17.16b\n" \
  "smmla v10.4s, v30.16b, v18.16b\n" \
  "and v23.16b, v23.16b, v31.16b\n" \
  "smmla v11.4s, v30.16b, v19.16b\n" \
  "ldp q28, q29, [%[x], #48]\n" \
  "ldr q30, [%[x], #80]\n" \
  "smmla v0.4s, v28.16b, v20.16b\n" \
  "smmla v1.4s, v28.16b, v21.16b\n" \
  "smmla v2.4s, v28.16b, v22.16b\n" \
  "smmla v3.4s, v28.16b, v23.16b\n" \
  "smmla v4.4s, v29.16b, v20.16b\n" \
  "smmla v5.4s, v29.16b, v21.16b\n" \
  "smmla v6.4s, v29.16b, v22.16b\n" \
  "smmla v7.4s, v29.16b, v23.16b\n" \
  "smmla v8.4s, v30.16b, v20.16b\n" \
  "smmla v9.4s, v30.16b, v21.16b\n" \
  "smmla v10.4s, v30.16b, v22.16b\n" \
  "smmla v11.4s, v30.16b, v23.16b\n" \
  "3:\n"

#define MOEBIUS_I8MM_CODES_4 \
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
  "cbz %[n], 2f\n" \
  ".p2align 5\n" \
  "1:\n" \
  "ldp q28, q29, [%[x]]\n" \
  "ldr q30, [%[x], #32]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v20.16b, v20.16b, v31.16b\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "ldr q28, [%[x], #48]\n" \
  "smmla v4.4s, v29.16b, v16.16b\n" \
  "smmla v5.4s, v29.16b, v17.16b\n" \
  "and v21.16b, v21.16b, v31.16b\n" \
  "smmla v6.4s, v29.16b, v18.16b\n" \
  "smmla v7.4s, v29.16b, v19.16b\n" \
  "ldp q24, q25, [%[w], #64]\n" \
  "smmla v8.4s, v30.16b, v16.16b\n" \
  "smmla v9.4s, v30.16b, v17.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "smmla v10.4s, v30.16b, v18.16b\n" \
  "smmla v11.4s, v30.16b, v19.16b\n" \
  "ldp q26, q27, [%[w], #96]\n" \
  "smmla v12.4s, v28.16b, v16.16b\n" \
  "smmla v13.4s, v28.16b, v17.16b\n" \
  "and v23.16b, v23.16b, v31.16b\n" \
  "smmla v14.4s, v28.16b, v18.16b\n" \
  "smmla v15.4s, v28.16b, v19.16b\n" \
  "ldp q28, q29, [%[x], #64]\n" \
  "ldr q30, [%[x], #96]\n" \
  "smmla v0.4s, v28.16b, v20.16b\n" \
  "smmla v1.4s, v28.16b, v21.16b\n" \
  "shl v16.16b, v24.16b, #4\n" \
  "smmla v2.4s, v28.16b, v22.16b\n" \
  "smmla v3.4s, v28.16b, v23.16b\n" \
  "ldr q28, [%[x], #112]\n" \
  "smmla v4.4s, v29.16b, v20.16b\n" \
  "smmla v5.4s, v29.16b, v21.16b\n" \
  "shl v17.16b, v25.16b, #4\n" \
  "smmla v6.4s, v29.16b, v22.16b\n" \
  "smmla v7.4s, v29.16b, v23.16b\n" \
  "smmla v8.4s, v30.16b, v20.16b\n" \
  "smmla v9.4s, v30.16b, v21.16b\n" \
  "shl v18.16b, v26.16b, #4\n" \
  "smmla v10.4s, v30.16b, v22.16b\n" \
  "smmla v11.4s, v30.16b, v23.16b\n" \
  "smmla v12.4s, v28.16b, v20.16b\n" \
  "smmla v13.4s, v28.16b, v21.16b\n" \
  "shl v19.16b, v27.16b, #4\n" \
  "smmla v14.4s, v28.16b, v22.16b\n" \
  "smmla v15.4s, v28.16b, v23.16b\n" \
  "ldp q28, q29, [%[x], #128]\n" \
  "ldr q30, [%[x], #160]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v24.16b, v24.16b, v31.16b\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "ldr q28, [%[x], #176]\n" \
  "smmla v4.4s, v29.16b, v16.16b\n" \
  "smmla v5.4s, v29.16b, v17.16b\n" \
  "and v25.16b, v25.16b, v31.16b\n" \
  "smmla v6.4s, v29.16b, v18.16b\n" \
  "smmla v7.4s, v29.16b, v19.16b\n" \
  "ldp q20, q21, [%[w], #128]\n" \
  "smmla v8.4s, v30.16b, v16.16b\n" \
  "smmla v9.4s, v30.16b, v17.16b\n" \
  "and v26.16b, v26.16b, v31.16b\n" \
  "smmla v10.4s, v30.16b, v18.16b\n" \
  "smmla v11.4s, v30.16b, v19.16b\n" \
  "ldp q22, q23, [%[w], #160]\n" \
  "smmla v12.4s, v28.16b, v16.16b\n" \
  "smmla v13.4s, v28.16b, v17.16b\n" \
  "and v27.16b, v27.16b, v31.16b\n" \
  "smmla v14.4s, v28.16b, v18.16b\n" \
  "smmla v15.4s, v28.16b, v19.16b\n" \
  "ldp q28, q29, [%[x], #192]\n" \
  "ldr q30, [%[x], #224]\n" \
  "smmla v0.4s, v28.16b, v24.16b\n" \
  "smmla v1.4s, v28.16b, v25.16b\n" \
  "shl v16.16b, v20.16b, #4\n" \
  "smmla v2.4s, v28.16b, v26.16b\n" \
  "smmla v3.4s, v28.16b, v27.16b\n" \
  "ldr q28, [%[x], #240]\n" \
  "smmla v4.4s, v29.16b, v24.16b\n" \
  "smmla v5.4s, v29.16b, v25.16b\n" \
  "shl v17.16b, v21.16b, #4\n" \
  "smmla v6.4s, v29.16b, v26.16b\n" \
  "smmla v7.4s, v29.16b, v27.16b\n" \
  "smmla v8.4s, v30.16b, v24.16b\n" \
  "smmla v9.4s, v30.16b, v25.16b\n" \
  "shl v18.16b, v22.16b, #4\n" \
  "smmla v10.4s, v30.16b, v26.16b\n" \
  "smmla v11.4s, v30.16b, v27.16b\n" \
  "smmla v12.4s, v28.16b, v24.16b\n" \
  "smmla v13.4s, v28.16b, v25.16b\n" \
  "shl v19.16b, v23.16b, #4\n" \
  "smmla v14.4s, v28.16b, v26.16b\n" \
  "smmla v15.4s, v28.16b, v27.16b\n" \
  "add %[x], %[x], #256\n" \
  "add %[w], %[w], #128\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 1b\n" \
  "2:\n" \
  "cbz %[odd], 3f\n" \
  "ldp q28, q29, [%[x]]\n" \
  "ldr q30, [%[x], #32]\n" \
  "smmla v0.4s, v28.16b, v16.16b\n" \
  "smmla v1.4s, v28.16b, v17.16b\n" \
  "and v20.16b, v20.16b, v31.16b\n" \
  "smmla v2.4s, v28.16b, v18.16b\n" \
  "smmla v3.4s, v28.16b, v19.16b\n" \
  "ldr q28, [%[x], #48]\n" \
  "smmla v4.4s, v29.16b, v16.16b\n" \
  "smmla v5.4s, v29.16b, v17.16b\n" \
  "and v21.16b, v21.16b, v31.16b\n" \
  "smmla v6.4s, v29.16b, v18.16b\n" \
  "smmla v7.4s, v29.16b, v19.16b\n" \
  "smmla v8.4s, v30.16b, v16.16b\n" \
  "smmla v9.4s, v30.16b, v17.16b\n" \
  "and v22.16b, v22.16b, v31.16b\n" \
  "smmla v10.4s, v30.16b, v18.16b\n" \
  "smmla v11.4s, v30.16b, v19.16b\n" \
  "smmla v12.4s, v28.16b, v16.16b\n" \
  "smmla v13.4s, v28.16b, v17.16b\n" \
  "and v23.16b, v23.16b, v31.16b\n" \
  "smmla v14.4s, v28.16b, v18.16b\n" \
  "smmla v15.4s, v28.16b, v19.16b\n" \
  "ldp q28, q29, [%[x], #64]\n" \
  "ldr q30, [%[x], #96]\n" \
  "smmla v0.4s, v28.16b, v20.16b\n" \
  "smmla v1.4s, v28.16b, v21.16b\n" \
  "smmla v2.4s, v28.16b, v22.16b\n" \
  "smmla v3.4s, v28.16b, v23.16b\n" \
  "ldr q28, [%[x], #112]\n" \
  "smmla v4.4s, v29.16b, v20.16b\n" \
  "smmla v5.4s, v29.16b, v21.16b\n" \
  "smmla v6.4s, v29.16b, v22.16b\n" \
  "smmla v7.4s, v29.16b, v23.16b\n" \
  "smmla v8.4s, v30.16b, v20.16b\n" \
  "smmla v9.4s, v30.16b, v21.16b\n" \
  "smmla v10.4s, v30.16b, v22.16b\n" \
  "smmla v11.4s, v30.16b, v23.16b\n" \
  "smmla v12.4s, v28.16b, v20.16b\n" \
  "smmla v13.4s, v28.16b, v21.16b\n" \
  "smmla v14.4s, v28.16b, v22.16b\n" \
  "smmla v15.4s, v28.16b, v23.16b\n" \
  "3:\n"
// clang-format on
