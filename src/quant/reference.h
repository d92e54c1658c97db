// SPDX-License-Identifier: Apache-2.0
// THE SPECIFICATION of the arithmetic, in readable scalar code: how activations are quantized, what
// a weight means, and in which order products are added. No instruction set, no threads. Tests
// compare every kernel with it, and it is the last kernel of the list, so every problem has a
// kernel. docs/numerics.md describes it.
//
// Everything is f32 unless said otherwise; `/` is an f32 division; RNE = round to nearest, ties to
// even. Arguments are not checked: shapes were checked when the matrix was read and the layer was
// built.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include "quant/activation.h"
#include "quant/quant_matrix.h"
#include "quant/scheme.h"

namespace moebius {

// ---- from a scheme to the quantization of its input (reference_activation.cpp) ----

// Returns how the input of a matrix with this scheme is quantized. Mode kVllm affects only INT4
// symmetric weights with dynamic per-token INT8 input, mode kCompressedTensors only dynamic
// symmetric integer input; everything else is as declared. Dynamic "tensor" means one scale per
// row.
ActSpec act_spec_of(const Scheme& scheme, Int8Mode mode);

// Returns the number of scales per row: 0 for kAsIs, else 1 or ceil(K / group).
size_t act_groups(const ActSpec& spec, size_t K);
size_t act_code_bytes(const ActSpec& spec);  // returns the bytes of one code: 4 for kAsIs, else 1
// Returns true for dynamic asymmetric rows, where each granule gets a zero point.
bool act_has_zero_points(const ActSpec& spec);

// ---- activation quantization (reference_activation.cpp) ----

// Quantizes M rows of x. codes: [M,K] of act_code_bytes; scales: [M, act_groups]; zero_points: [M,
// act_groups], not touched unless act_has_zero_points. row_type affects mode kVllm only, whose bf16
// rows round ties differently.
void quantize_rows(const float* x, size_t ldx, size_t M, size_t K, const ActSpec& spec,
                   const ActParams& params, XType row_type, void* codes, float* scales,
                   int32_t* zero_points);

// Owns quantized rows, and views them as QuantRows.
struct QuantRowsBuffer {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  std::vector<int32_t> zero_points;
  QuantRows rows;
};
QuantRowsBuffer quantize_rows(const float* x, size_t ldx, size_t M, size_t K, const ActSpec& spec,
                              const ActParams& params, XType row_type);

// Returns the number that code (m, k) represents before its scale: q - zp, e4m3, e2m1 or x itself.
float row_code_value(const QuantRows& x, size_t m, size_t k);

// Rounds v to int8 and back (WNA8O8 outputs): q * s with q = clamp(RNE(v / s), -128, 127). For a
// 16-bit type, scale, quotient and result are each rounded to it, as other implementations do; in
// f32 they are not.
float fake_quantize(float v, float s, XType type = XType::kF32);
void fake_quantize(float* v, size_t n, float s);

// ---- weights (reference_gemm.cpp) ----

// Writes all weights, out [N,K], as weight_at of quant_access.h decodes them.
void dequantize(const QuantMatrix& w, float* out);

// ---- the product (reference_gemm.cpp) ----

// Computes y[M, n1 - n0] = x * w[n0..n1)^T with row stride ldy, without bias. reference_gemm.cpp
// draws the order of all operations.
void reference_gemm(const QuantMatrix& w, const QuantRows& x, size_t n0, size_t n1, float* y,
                    size_t ldy,
                    std::pmr::memory_resource* memory = std::pmr::get_default_resource());
// Returns the most bytes that reference_gemm takes from `memory` for M rows of K columns.
size_t reference_gemm_bytes(size_t M, size_t K);

// Computes how far a kernel of class reordered may be from reference_gemm: bound[m, n - n0] (row
// stride ldy) for each output. Infinity: numbers so large that one order of the sum may overflow
// and another not. NaN: the operands hold NaN or infinity, and the result must not be finite.
// docs/numerics.md derives it.
void reordered_bound(const QuantMatrix& w, const QuantRows& x, size_t n0, size_t n1, double* bound,
                     size_t ldy);

}  // namespace moebius
