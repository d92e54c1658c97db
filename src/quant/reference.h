// SPDX-License-Identifier: Apache-2.0
// THE SPECIFICATION of the arithmetic, in readable scalar code: what activations become, what a
// weight means, and in which order a product is added. No instruction set, no threads. Every kernel
// is judged against it, and it ends the kernel list. docs/numerics.md says the same in words.
//
// Everything is f32 unless said otherwise; `/` is an f32 division; RNE = round to nearest, ties to
// even. Nothing here checks its arguments: shapes were proven when the matrix was read and the
// layer was built.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include "quant/activation.h"
#include "quant/quant_matrix.h"
#include "quant/scheme.h"

namespace moebius {

// ---- how a scheme treats the input of a matrix (reference_activation.cpp) ----

// Mode kVllm binds only INT4 symmetric weights with dynamic per-token INT8 input, mode
// kCompressedTensors only dynamic symmetric integer input; everything else is read as declared.
// Dynamic "tensor" is per row.
ActSpec act_spec_of(const Scheme& scheme, Int8Mode mode);

size_t act_groups(const ActSpec& spec,
                  size_t K);  // scales per row: 0 for kAsIs, else 1 or ceil(K / group)
size_t act_code_bytes(const ActSpec& spec);  // bytes of one code: 4 for kAsIs, else 1
bool act_has_zero_points(
    const ActSpec& spec);  // dynamic asymmetric: zero points are made per granule

// ---- activation quantization (reference_activation.cpp) ----

// Quantizes M rows of x. codes [M,K] of act_code_bytes, scales [M, act_groups], zero_points [M,
// act_groups] where act_has_zero_points (else not touched). row_type matters to mode kVllm alone:
// its bf16 rows round ties differently.
void quantize_rows(const float* x, size_t ldx, size_t M, size_t K, const ActSpec& spec,
                   const ActParams& params, XType row_type, void* codes, float* scales,
                   int32_t* zero_points);

// The same with its own memory.
struct QuantRowsBuffer {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  std::vector<int32_t> zero_points;
  QuantRows rows;
};
QuantRowsBuffer quantize_rows(const float* x, size_t ldx, size_t M, size_t K, const ActSpec& spec,
                              const ActParams& params, XType row_type);

// The number that element (m, k) stands for before its scale: q - zp, e4m3, e2m1 or x itself.
float row_code_value(const QuantRows& x, size_t m, size_t k);
// What the product sees of x: code value * scale (/ G_x). x [M,K].
void dequantize_rows(const QuantRows& x, float* out);

// WNA8O8: q * s with q = clamp(RNE(v / s), -128, 127). In f32 this is our rule; for a 16-bit type
// scale, quotient and result are each rounded to it (how others compute it).
float fake_quantize(float v, float s, XType type = XType::kF32);
void fake_quantize(float* v, size_t n, float s);

// ---- weights (reference_gemm.cpp) ----

void dequantize(const QuantMatrix& w, float* out);  // [N,K]: weight_at of quant_access.h

// ---- the product (reference_gemm.cpp) ----

// y[M, n1 - n0] = x * w[n0..n1)^T, row stride ldy, without bias. The order of all operations is
// drawn in reference_gemm.cpp.
void reference_gemm(const QuantMatrix& w, const QuantRows& x, size_t n0, size_t n1, float* y,
                    size_t ldy,
                    std::pmr::memory_resource* memory = std::pmr::get_default_resource());
// What it takes from `memory` at most, for M rows of K columns.
size_t reference_gemm_bytes(size_t M, size_t K);

// How far a kernel of class reordered may be from reference_gemm: bound[m, n - n0] (row stride ldy)
// for each output. Infinity: finite numbers so large that one order of the sum may overflow and
// another not. NaN: the operands hold NaN or infinity, the result must not be finite.
// docs/numerics.md derives it.
void reordered_bound(const QuantMatrix& w, const QuantRows& x, size_t n0, size_t n1, double* bound,
                     size_t ldy);

}  // namespace moebius
