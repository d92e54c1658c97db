// SPDX-License-Identifier: Apache-2.0
// WAIST 2 (ARCHITECTURE.md), second half: operations of layers on rows between products, as one
// plain record of functions per instruction set, of which one is chosen for the machine. Every
// record computes equal bytes (any NaN equals any NaN), because no lane does anything that the
// scalar definition in base/ does not, and sums have one lane order (docs/numerics.md). Like
// kernel.h this is included by units compiled for any instruction set: plain data and declarations,
// no function is defined here.
//
// How a unit (src/kernels/<isa>_rows.cpp) joins: it includes kernels/isa_rows.h, says what its
// instruction set does better, exports one table, and gets one line in kernels/list.cpp. It
// compiles on every architecture; where it cannot run, its functions are null.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/kernel.h"

namespace moebius {

// Functions of one number (y = f(x)) and gated functions (y = f(gate, x)) of base/math_functions.h.
enum class RowFunction : uint8_t {
  kSiluAndMul,
  kSiluLimitAndMul,
  kGeluAndMul,
  kGeluTanhAndMul,
  kSwigluOai,
  kSwigluStep,
  kSitu,
  kSituBoth,  // the functions up to and including this one are gated
  kSilu,
  kGelu,
  kGeluTanh,
  kRelu2,
  kSigmoid,
  kSoftplus,
  kSqrtSoftplus,
  kCap,  // limit * tanh(x / limit)
};
struct RowActivation {
  RowFunction function = RowFunction::kSiluAndMul;
  // constants of the functions that have them (base/math_functions.h)
  float limit = 0.0f, alpha = 0.0f, beta = 0.0f;
  float b = 0.0f, lb = 0.0f;  // constants of situ
};

enum class NormKind : uint8_t {
  kRms,         // x / rms rounded to the activation type, then times w (Llama and most)
  kRmsFused,    // x / rms times w in f32, then one rounding (GPT-OSS)
  kRmsOnePlus,  // as kRmsFused with weight 1 + w (Gemma, Qwen3-Next)
  kRmsPlain,    // x / rms without weight (L2 norm of Llama-4's q and k)
  kLayer,       // (x - mean) / sqrt(var + eps) * w + b (Phi-MoE)
};
struct RowNorm {
  NormKind kind = NormKind::kRms;
  XType type = XType::kF32;  // the result is rounded to this type
  float epsilon = 0.0f;
  const float *weight = nullptr, *bias = nullptr;  // [n] parameters; bias null: none
};

// Constants of token_weight_f32, which gives each token its weight in a random draw.
struct RowWeights {
  float top = 0.0f, rate = 1.0f, grid = 0.0f;
};

// Views one row of numbers per token: that of token t begins at first + t * stride.
struct TokenRows {
  const float* first = nullptr;
  size_t stride = 0;
};
// Advances the state S [rows, width] of one head of a recurrent layer over its tokens, in order:
//   plain: S = S * decay + key (value * gain)
//   delta: S = S * decay, then S = S + key ((value - key S) * gain)
//   y = query S
// Sums over the rows of S run in ascending order from 0, one fma each; so does every addition to S.
struct RowScan {
  size_t rows = 0, width = 0, tokens = 0;
  bool delta = false;
  bool decay_per_row = false;   // true: decay is [rows]; false: one number
  const float* from = nullptr;  // S before the first token; null: zeros
  float* to = nullptr;          // receives S after the last token; may be `from`
  TokenRows decay, gain;        // gain: one number per token
  TokenRows key, value, query;  // [rows], [width], [rows]
  float* y = nullptr;           // [width] receives the result of the token
  size_t y_stride = 0;
};
// Arguments of a causal convolution for one token: y = bias + sum over j of taps[j] * x[j], in
// ascending j.
struct RowTaps {
  size_t count = 0;
  const float* const* x = nullptr;  // [count] rows of n numbers; null: the term is left out
  const float* taps = nullptr;      // [count, n] factors
  const float* bias = nullptr;      // [n]; null: 0
};

// Arguments of adding products to a block of rows: y[i] += a[t][i] * b[t] for every row i, t in
// ascending order, one fma each.
struct RowProducts {
  float* y = nullptr;  // [rows, n] block to add to
  size_t y_stride = 0, rows = 0, n = 0;
  const float *a = nullptr, *b = nullptr;  // [count, rows], [count, n]
  size_t a_stride = 0, b_stride = 0, count = 0;
};

// Says how a row of stored weights is encoded to one byte per code (quant/encode.h): `group`
// consecutive numbers share a scale, and the last group may be shorter.
enum class RowCode : uint8_t { kInt, kFp8, kFp4 };
struct RowEncode {
  RowCode code = RowCode::kInt;
  XType type = XType::kBf16;  // type of the row
  // Type to which quotients and sums are rounded: `type`, or f32; for f32 rows also bf16. Scales
  // are numbers of this type, too.
  XType rounding = XType::kBf16;
  float low = 0.0f, high = 0.0f;  // bounds of codes
  size_t group = 0;
};

// Arguments for the losses of a row's integer codes with each of several scales: sum over i of h[i]
// (x[i] - (q - z) s)^2 in f32, with q = rne(clamp(x[i] (1 / s) + z)), the product and the sum
// rounded to bf16 if `bf16`. Sums run in 16 lanes as everywhere; the lanes are added in ascending
// order in f64.
struct RowLosses {
  const float *x = nullptr, *h = nullptr;  // [n]; h null: all 1
  size_t n = 0;
  float low = 0.0f, high = 0.0f;  // bounds of codes
  bool bf16 = false;
  const float *scales = nullptr, *zero_points = nullptr;  // [count]; zero_points null: all 0
  size_t count = 0;
};
// Arguments for encoding one column of weights to integer codes, each with its own scale and zero
// point: q = rne(clamp(w / s + z)), lost = (w - (q - z) s) / divisor.
struct ColumnCodes {
  // [n] weights, and scale and zero point of each.
  const float *w = nullptr, *scales = nullptr, *zero_points = nullptr;
  size_t n = 0;
  float low = 0.0f, high = 0.0f, divisor = 1.0f;
  int8_t* codes = nullptr;
  float* lost = nullptr;
};

// Functions on rows of n numbers, at any address that is aligned for their elements. y may be one
// of the inputs; other overlap is not allowed. All are thread-safe.
struct RowFunctions {
  const char* name;  // name of the unit: "x86_avx512"
  Arch arch;         // kOther: runs everywhere
  uint32_t needs;    // CpuFeature bits that the CPU must have

  // Convert rows of a type to f32 and back, with one rounding to nearest even; f32 is copied.
  void (*load)(XType type, const void* x, float* y, size_t n) noexcept = nullptr;
  void (*store)(XType type, const float* x, void* y, size_t n) noexcept = nullptr;
  void (*round)(XType type, float* x, size_t n) noexcept = nullptr;  // rounds x in place

  void (*add)(float* y, const float* x, size_t n) noexcept = nullptr;              // y += x
  void (*multiply)(float* y, const float* x, size_t n) noexcept = nullptr;         // y *= x
  void (*scale)(float* y, float s, size_t n) noexcept = nullptr;                   // y *= s
  void (*divide)(const float* x, float s, float* y, size_t n) noexcept = nullptr;  // y = x / s
  void (*fma)(float* y, float w, const float* x, size_t n) noexcept = nullptr;  // y = fma(w, x, y)
  // y = y + (w * x).
  void (*add_scaled)(float* y, float w, const float* x, size_t n) noexcept = nullptr;
  // y = (y * s) + x.
  void (*scale_and_add)(float* y, float s, const float* x, size_t n) noexcept = nullptr;

  // Applies an activation; gate is not read by functions of one number.
  void (*activate)(const RowActivation& what, const float* gate, const float* x, float* y,
                   size_t n) noexcept = nullptr;
  // Computes y = e^(x - top) for x <= top; NaN gives NaN.
  void (*exp_minus)(const float* x, float top, float* y, size_t n) noexcept = nullptr;
  // Does one step of a softmax over blocks of scores: with m' = max(m, max(scale * s)), scale > 0,
  // s = exp(scale * s - m'), l = l * exp(m - m') + sum(s), m = m'; returns exp(m - m'). Scores of
  // -infinity are not seen; a block that has no other scores changes nothing (returns 1, s = 0). A
  // NaN makes l NaN and s 0. coarse: uses exp_coarse_f32, for results that are rounded to bf16
  // next.
  float (*softmax_step)(float* s, size_t n, float scale, bool coarse, float* m,
                        float* l) noexcept = nullptr;

  // Returns the greatest logit (docs/numerics.md, "Sampling"); NaN is ignored; -infinity if there
  // is none.
  float (*greatest)(const float* x, size_t n) noexcept = nullptr;
  // Computes w = token_weight_f32(x) and returns the sum in f64, which is exact.
  double (*weigh)(const RowWeights& how, const float* x, float* w, size_t n) noexcept = nullptr;

  void (*normalize)(const RowNorm& norm, const float* x, float* y, size_t n) noexcept = nullptr;
  // Rotates the pairs (j, j + half), or (2j, 2j + 1) if interleaved, by angles given as cos and sin
  // [half], then rounds the 2 half numbers to the type.
  void (*rotate)(float* x, size_t half, const float* cos, const float* sin, bool interleaved,
                 XType type) noexcept = nullptr;

  // Operations of recurrent layers on a row and on a state (isa_scan.h).
  void (*convolve)(const RowTaps& taps, float* y, size_t n) noexcept = nullptr;
  void (*scan)(const RowScan& what) noexcept = nullptr;
  // Adds products to a block of rows (isa_products.h).
  void (*add_products)(const RowProducts& what) noexcept = nullptr;

  // Returns the largest magnitude; infinity if any x is NaN or infinite.
  float (*abs_max)(const float* x, size_t n) noexcept = nullptr;
  // Quantizes rows into the canonical form (prepared_rows.h).
  void (*prepare_rows)(const PrepareArgs& args) noexcept = nullptr;

  // Finds the least and the greatest number of each group of a row, zero included; not finite if a
  // number is not.
  void (*group_ranges)(XType type, const void* x, size_t n, size_t group, float* low,
                       float* high) noexcept = nullptr;
  // Encodes a row of weights. zero_points null: none. All x must be finite, all scales finite and
  // not 0.
  void (*encode)(const RowEncode& how, const void* x, size_t n, const float* scales,
                 const float* zero_points, uint8_t* codes) noexcept = nullptr;
  // Packs codes of four bits, one per byte, two per byte: y[i] = (x[2i] & 15 | x[2i + 1] << 4) ^
  // flip.
  void (*pack_nibbles)(const uint8_t* codes, uint8_t flip, uint8_t* y, size_t n) noexcept = nullptr;
  // Compute losses of scales, and codes of a column (isa_search.h); all numbers must be finite, all
  // scales and the divisor not 0.
  void (*integer_losses)(const RowLosses& what, double* losses) noexcept = nullptr;
  void (*column_codes)(const ColumnCodes& what) noexcept = nullptr;
};

// Returns the best table that runs on a CPU; the last one of the list runs everywhere.
const RowFunctions& choose_row_functions(const Cpu& cpu);
// Returns the table for this machine (host_cpu), chosen at the first call.
const RowFunctions& row_functions() noexcept;

}  // namespace moebius
