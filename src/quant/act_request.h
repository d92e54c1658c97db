// SPDX-License-Identifier: Apache-2.0
// A user's choice of how inputs of products are quantized, and the output projection stored, beyond
// what a checkpoint declares. A request is turned into an ActSpec or a QuantMatrix, so that kernels
// and the reference compute it like any declared scheme.
#pragma once
#include "quant/activation.h"
#include "quant/scheme.h"

namespace moebius {

struct ActRequest {
  constexpr ActRequest() = default;
  constexpr ActRequest(Int8Mode m, bool rows = false) : mode(m), int8_rows(rows) {}  // NOLINT
  Int8Mode mode = Int8Mode::kDeclared;  // how dynamic int8 rows are scaled
  // true: weights of integers or 4-bit floats whose checkpoint declares no quantization of inputs are
  // multiplied with dynamic int8 rows, one scale per token: faster, class approximate.
  bool int8_rows = false;
  // true: a dense output projection is stored as int8 with one scale per output: class approximate.
  bool int8_head = false;
};

// Returns true if a request for int8 rows concerns the weights.
bool may_take_int8_rows(const Scheme& scheme);
// Returns how the input of a matrix is quantized: as the scheme declares, changed by the request.
ActSpec act_spec_of(const Scheme& scheme, const ActRequest& request);
// Returns true if `act` quantizes the input otherwise than the scheme declares.
inline bool departs(const Scheme& scheme, const ActSpec& act) {
  return !scheme.input && act.code != ActCode::kAsIs;
}

}  // namespace moebius
