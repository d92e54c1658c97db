// SPDX-License-Identifier: Apache-2.0
// Declares the facts of the float family on x86-64 for its tables. They are defined in a unit
// compiled for the baseline (facts_x86_float.cpp), because kernels are chosen on any CPU.
#pragma once
#include "kernels/kernel.h"

namespace moebius::x86_float_facts {

// Return the facts of kernels; kForm: a value of float_panels::Form.
template <int kForm>
const char* amx_supports(const Problem& p);
template <int kForm>
const char* fma_supports(const Problem& p);
Numerics reordered(const Problem& p);
Numerics exact(const Problem& p);
size_t amx_packed_bytes(const Problem& p);
size_t amx_code_at(const Problem& p, size_t n, size_t k);
size_t amx_row_bytes(const Problem& p);
size_t amx_panel_bytes(const Problem& p, size_t M);
size_t amx_scratch_bytes(const Problem& p, size_t M);
// Most features per head of keys and values for the attention kernel (kernels/attend.h).
constexpr size_t kAttendedDim = 256;
bool amx_attends(const Problem& keys, const Problem& values);
size_t fma_packed_bytes(const Problem& p);
size_t fma_code_at(const Problem& p, size_t n, size_t k);
size_t fma_panel_bytes(const Problem& p, size_t M);
size_t fma_scratch_bytes(const Problem& p, size_t M);

}  // namespace moebius::x86_float_facts
