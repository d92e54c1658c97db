// SPDX-License-Identifier: Apache-2.0
#include "quant/act_request.h"

#include "quant/reference.h"

namespace moebius {

bool may_take_int8_rows(const Scheme& scheme) {
  return scheme.weights &&
         (scheme.weights->kind == NumberKind::kInt || scheme.weights->bits == 4) && !scheme.input &&
         !scheme.output;
}

ActSpec act_spec_of(const Scheme& scheme, const ActRequest& request) {
  if (!request.int8_rows || !may_take_int8_rows(scheme)) return act_spec_of(scheme, request.mode);
  Scheme asked = scheme;
  asked.input.emplace();
  asked.input->strategy = Strategy::kToken;
  asked.input->dynamic = Dynamic::kDynamic;
  return act_spec_of(asked, request.mode);
}

}  // namespace moebius
