// SPDX-License-Identifier: Apache-2.0
// Plain values for what a checkpoint declares about a module. No fact is inferred from another one:
// number type, width, granularity, scale type and storage format are separate fields.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "quant/lut.h"

namespace moebius {

enum class NumberKind : uint8_t { kInt, kFloat };
enum class Strategy : uint8_t {
  kTensor,
  kChannel,
  kGroup,
  kTensorGroup,
  kBlock,
  kToken,
  kAttnHead
};
// kLocal: the global scale is static, block scales are dynamic.
enum class Dynamic : uint8_t { kStatic, kDynamic, kLocal };
// Order of columns as declared; only kGroup changes how a file is read (weight_g_idx).
enum class ActOrder : uint8_t { kNone, kWeight, kGroup };
enum class Format : uint8_t {
  kDense,
  kIntQuantized,
  kFloatQuantized,
  kNaiveQuantized,
  kPackQuantized,
  kNvfp4Pack,
  kMxfp4Pack,
  kMxfp8,
  kGptOssMxfp4,
  kNativeFp8,
  kModeloptNvfp4,
  // Formats with codes in 32-bit words and outputs side by side ("turned"): see formats/gptq.cpp
  // and formats/awq.cpp.
  kGptq,        // stores zero points less 1
  kGptqV2,      // stores zero points as they are
  kGptqPlanar,  // stores zero points as they are, and codes in bit planes
  kAwq,
  kQuarkInt4,  // stores codes in AWQ's order, in two's complement
  kAwqGemv,
  kMlx,   // rows of words: integers with a float offset per group, or MX and NVFP4 codes
  kGguf,  // blocks of codes with their scales; the type of the tensor says which (formats/gguf.cpp)
};

// Describes one quantized operand: a QuantizationArgs of the config, validated, with defaults
// filled in.
struct QuantArgs {
  NumberKind kind = NumberKind::kInt;
  int bits = 8;
  bool symmetric = true;
  Strategy strategy = Strategy::kTensor;
  int64_t group_size = 0;            // > 0 for kGroup and kTensorGroup
  int64_t block_n = 0, block_k = 0;  // > 0 for kBlock
  Dynamic dynamic = Dynamic::kStatic;
  ActOrder act_order = ActOrder::kNone;
  // true: integer weights whose codes count from 0, with a float per group: w = code * scale +
  // offset (MLX). `symmetric` is then false, and there are no zero points.
  bool offsets = false;
  Lut lut = Lut::kNone;  // integer weights of 4 bits: the table into which codes are indices
  // For dynamic inputs: the largest magnitude that enters a scale; larger ones are clamped
  // (FBGEMM). 0: no bound.
  float bound = 0.0f;
  // Type name of scales as declared, without "torch.". The config parser fills it in for number
  // systems with only one (MXFP4, MXFP8, NVFP4); else empty if not declared.
  std::string scale_dtype;
  bool operator==(const QuantArgs&) const = default;
};

// Value of scale_dtype for FP8 inputs whose dynamic scales are powers of two, rounded up.
inline constexpr std::string_view kPowerOfTwoScales = "ue8m0";

struct Scheme {
  std::optional<QuantArgs> weights;  // unset: a dense module
  std::optional<QuantArgs> input;
  std::optional<QuantArgs> output;  // fake quantization of outputs (WNA8O8); unset: none
  Format format = Format::kDense;
  bool operator==(const Scheme&) const = default;
  bool is_dense() const { return !weights.has_value(); }
};

// Return true if an operand has this declared number system. Each tests all fields, so that any
// QuantArgs may be passed.
bool is_nvfp4(const QuantArgs& a);         // float 4 bit, tensor_group 16, symmetric
bool is_mxfp4(const QuantArgs& a);         // float 4 bit, group 32, symmetric, scales E8M0
bool is_mxfp8(const QuantArgs& a);         // float 8 bit, group 32, symmetric, scales E8M0
bool has_e8m0_scales(const QuantArgs& a);  // scale_dtype is uint8 or float8_e8m0fnu

bool is_turned(Format format);  // true for GPTQ, AWQ and Quark's int4: kGptq ... kAwqGemv

std::string_view name_of(Format format);  // returns the name in configs: "pack-quantized", ...
std::optional<Format> format_from_name(std::string_view name);
std::string_view name_of(Strategy strategy);

// Returns the family name of a scheme: "dense"; integer weights w4a16, w4a8, w8a8, w8a8_static,
// w4a4, w4afp8, w4a8o8 (any width), iq4a16 to iq1a16 (codes into a table); fp8, fp8_static, fp8_block, fp8_group, fp8a16; nvfp4, nvfp4a16,
// mxfp4, mxfp4a16, w4a8_mxfp4, mxfp8, mxfp8a16. Never throws; other schemes get a name by the same
// pattern.
std::string family_of(const Scheme& scheme);
// Returns one line of text: "w4a8 int4 g128 sym, int8 per token dynamic, pack-quantized".
std::string describe(const Scheme& scheme);
std::string describe(const QuantArgs& args);

// Returns nothing if the scheme can be run, else one sentence that names the field which prevents
// it. routed_expert: the module is an expert of a MoE layer, for which FP8 has fewer pairs of
// strategies than for a plain linear layer.
std::optional<std::string> unsupported_reason(const Scheme& scheme, bool routed_expert = true);

}  // namespace moebius
