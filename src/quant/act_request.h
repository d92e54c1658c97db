// SPDX-License-Identifier: Apache-2.0
// What a user asks of the inputs of products beyond what a checkpoint declares. A request becomes an
// ActSpec and nothing else: kernels and the reference compute it like any declared scheme.
#pragma once
#include "quant/activation.h"
#include "quant/scheme.h"

namespace moebius {

struct ActRequest {
  constexpr ActRequest() = default;
  constexpr ActRequest(Int8Mode m, bool rows = false) : mode(m), int8_rows(rows) {}  // NOLINT
  Int8Mode mode = Int8Mode::kDeclared;  // how dynamic int8 rows are scaled
  // Integer weights whose inputs are not quantized meet dynamic int8 rows, one scale per token:
  // other arithmetic than declared (class approximate), for speed.
  bool int8_rows = false;
};

bool is_weight_only_integer(const Scheme& scheme);
// How the input of a matrix of this scheme is quantized: act_spec_of of reference.h for the scheme
// as it is requested.
ActSpec act_spec_of(const Scheme& scheme, const ActRequest& request);
// Whether the input is quantized otherwise than the scheme declares.
inline bool departs(const Scheme& scheme, const ActSpec& act) {
  return !scheme.input && act.code != ActCode::kAsIs;
}

}  // namespace moebius
