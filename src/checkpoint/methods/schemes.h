// SPDX-License-Identifier: Apache-2.0
// Makes schemes that several methods declare, each in its own terms.
#pragma once
#include "base/error.h"
#include "checkpoint/methods/method.h"

namespace moebius {

inline QuantArgs quant_args(NumberKind kind, int bits, Strategy strategy, int64_t group = 0,
                            Dynamic dynamic = Dynamic::kStatic, std::string_view scale_dtype = "") {
  QuantArgs a;
  a.kind = kind;
  a.bits = bits;
  a.strategy = strategy;
  a.group_size = group;
  a.dynamic = dynamic;
  a.scale_dtype = scale_dtype;
  return a;
}

inline QuantArgs float_args(int bits, Strategy strategy, int64_t group = 0,
                            Dynamic dynamic = Dynamic::kStatic, std::string_view scale_dtype = "") {
  return quant_args(NumberKind::kFloat, bits, strategy, group, dynamic, scale_dtype);
}

// Returns the decision for a module that a rule gives this scheme.
inline SchemeDecision decided(Scheme scheme, std::string rule) {
  SchemeDecision d;
  d.matched = true;
  d.scheme = std::move(scheme);
  d.rule = std::move(rule);
  return d;
}

inline std::string upper_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return out;
}

// Returns the scheme of NVFP4 with global scales that multiply (ModelOpt). `inputs`: inputs are
// NVFP4, too.
inline Scheme nvfp4_scheme(bool inputs) {
  Scheme s;
  constexpr std::string_view kScales = "float8_e4m3fn";
  s.weights = float_args(4, Strategy::kTensorGroup, 16, Dynamic::kStatic, kScales);
  if (inputs) s.input = float_args(4, Strategy::kTensorGroup, 16, Dynamic::kLocal, kScales);
  s.format = Format::kModeloptNvfp4;
  return s;
}

// Moves the tensor of one role to another role, under which the format reader expects it.
inline void rename_role(ModuleTensors& tensors, Role from, Role to) {
  tensors[to] = tensors[from];
  tensors[from] = {};
}

}  // namespace moebius
