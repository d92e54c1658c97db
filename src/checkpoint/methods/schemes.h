// SPDX-License-Identifier: Apache-2.0
// Makes schemes that several methods declare, each in its own terms.
#pragma once
#include "base/error.h"
#include "checkpoint/methods/method.h"

namespace moebius {

inline QuantArgs float_args(int bits, Strategy strategy, int64_t group = 0,
                            Dynamic dynamic = Dynamic::kStatic) {
  QuantArgs a;
  a.kind = NumberKind::kFloat;
  a.bits = bits;
  a.strategy = strategy;
  a.group_size = group;
  a.dynamic = dynamic;
  return a;
}

// Returns the scheme of NVFP4 with global scales that multiply (ModelOpt). `inputs`: inputs are
// NVFP4, too.
inline Scheme nvfp4_scheme(bool inputs) {
  Scheme s;
  s.weights = float_args(4, Strategy::kTensorGroup, 16);
  s.weights->scale_dtype = "float8_e4m3fn";
  if (inputs) {
    s.input = float_args(4, Strategy::kTensorGroup, 16, Dynamic::kLocal);
    s.input->scale_dtype = "float8_e4m3fn";
  }
  s.format = Format::kModeloptNvfp4;
  return s;
}

// Moves the tensor of one role to another role, under which the format reader expects it.
inline void rename_role(ModuleTensors& tensors, Role from, Role to) {
  tensors[to] = tensors[from];
  tensors[from] = {};
}

}  // namespace moebius
