// SPDX-License-Identifier: Apache-2.0
// Describes how rows of x are quantized before a product, and holds quantized rows in one canonical
// form. Plain data, no functions.
#pragma once
#include <cstddef>
#include <cstdint>

#include "quant/global_scale.h"

namespace moebius {

enum class ActCode : uint8_t { kAsIs, kInt, kFp8, kFp4 };
// Says which numbers share a scale: all (kStatic: the scale is stored), a row, or `group` inputs of
// a row.
enum class ActGranule : uint8_t { kStatic, kRow, kGroup };
enum class ActScale : uint8_t {
  kF32,
  kFp8,     // NVFP4: block scales in e4m3, which a stored global scale multiplies or divides
  kE8m0,    // powers of two (e8m0), rounded as the MX specification says
  kE8m0Up,  // powers of two, rounded up: no input is clamped (DeepSeek's ue8m0)
};
// Selects the formulas for dynamic INT8 (docs/numerics.md): as the format prescribes, as
// compressed-tensors, as vLLM's CPU kernels.
enum class Int8Mode : uint8_t { kDeclared, kCompressedTensors, kVllm };

// Type of the layer's activations; matters for weight-only schemes and for rounding in mode vllm.
enum class XType : uint8_t { kF32, kBf16, kF16 };

struct ActSpec {
  ActCode code = ActCode::kAsIs;
  uint8_t bits = 8;       // width of kInt codes
  bool symmetric = true;  // false: kInt codes with zero points
  ActGranule granule = ActGranule::kRow;
  uint32_t group = 0;  // features per scale for kGroup; the last group of a row may be shorter
  ActScale scale = ActScale::kF32;
  Int8Mode mode = Int8Mode::kDeclared;
  // For kFp8 with dynamic f32 scales: the largest magnitude that enters a scale; larger inputs are
  // clamped. 0: no bound.
  float bound = 0.0f;
  bool operator==(const ActSpec&) const = default;
};

// Values that the checkpoint stores for the input of one matrix, for static schemes and NVFP4. Set
// at load.
struct ActParams {
  float scale = 1.0f;        // scale of static schemes
  int32_t zero_point = 0;    // zero point of static schemes
  GlobalScale global_scale;  // second-level scale of NVFP4
  bool operator==(const ActParams&) const = default;
};

// Views M quantized rows, which quantize_rows writes. codes: kInt int8_t[M,K]; kFp8 e4m3 bytes
// [M,K]; kFp4 one E2M1 code per byte [M,K]; kAsIs float[M,K]. x(m,k) is represented by (code -
// zero_point) * scale(m, k/granule), before the global scale for kFp4 with ActScale::kFp8.
struct QuantRows {
  size_t M = 0, K = 0;
  ActSpec spec;
  ActParams params;
  const void* codes = nullptr;
  // [M, groups]; kStatic: the stored scale; NaN if the group held NaN or infinity
  const float* scales = nullptr;
  size_t groups = 1;                     // scales per row; 0 for kAsIs
  const int32_t* zero_points = nullptr;  // [M, groups] for dynamic asymmetric rows, else null
};

}  // namespace moebius
