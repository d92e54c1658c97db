// SPDX-License-Identifier: Apache-2.0
// How the rows of x are quantized before a product, and the canonical form of quantized rows. Plain
// data, no functions.
#pragma once
#include <cstddef>
#include <cstdint>

#include "quant/global_scale.h"

namespace moebius {

enum class ActCode : uint8_t { kAsIs, kInt, kFp8, kFp4 };
enum class ActGranule : uint8_t {
  kStatic,
  kRow,
  kGroup
};  // one stored scale; one per row; one per `group` features
enum class ActScale : uint8_t {
  kF32,
  kFp8,     // NVFP4 block scales under a stored global scale
  kE8m0,    // powers of two, rounded as MX does
  kE8m0Up,  // powers of two, rounded up: no input is clamped (DeepSeek's ue8m0)
};
enum class Int8Mode : uint8_t {
  kDeclared,
  kCompressedTensors,
  kVllm
};  // how dynamic INT8 is read: rules.md

enum class XType : uint8_t {
  kF32,
  kBf16,
  kF16
};  // type of the layer's activations (weight-only schemes, rounding of mode vllm)

struct ActSpec {
  ActCode code = ActCode::kAsIs;
  uint8_t bits = 8;       // of kInt
  bool symmetric = true;  // of kInt
  ActGranule granule = ActGranule::kRow;
  uint32_t group = 0;  // features per scale for kGroup; the last group of a row may be shorter
  ActScale scale = ActScale::kF32;
  Int8Mode mode = Int8Mode::kDeclared;
  // Dynamic f32 scales of kFp8 count magnitudes up to this, and larger inputs are clamped; 0: none.
  float bound = 0.0f;
  bool operator==(const ActSpec&) const = default;
};

// Values stored in the file for the input of one matrix (static schemes and NVFP4).
struct ActParams {
  float scale = 1.0f;        // static scale
  int32_t zero_point = 0;    // static zero point
  GlobalScale global_scale;  // NVFP4
  bool operator==(const ActParams&) const = default;
};

// M quantized rows. codes: kInt int8_t[M,K]; kFp8 e4m3 bytes [M,K]; kFp4 one E2M1 code per byte
// [M,K]; kAsIs float[M,K]. x(m,k) is represented by (code - zero_point) * scale(m, k/granule), under
// the global scale for kFp4 with ActScale::kFp8.
struct QuantRows {
  size_t M = 0, K = 0;
  ActSpec spec;
  ActParams params;
  const void* codes = nullptr;
  const float* scales = nullptr;  // [M, groups]; kStatic: the stored scale; NaN where the granule
                                  // held NaN or infinity
  size_t groups = 1;              // scales per row; 0 for kAsIs
  const int32_t* zero_points = nullptr;  // [M, groups] for dynamic asymmetric rows, else null
};

}  // namespace moebius
