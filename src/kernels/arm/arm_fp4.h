// SPDX-License-Identifier: Apache-2.0
// Tests whether the integer kernels on Arm (arm_int8.h, arm_lanes.h) support a problem with fp4 on
// both sides. Internal linkage.
#pragma once
#include "kernels/kernel.h"

namespace moebius {
namespace {

// Returns null, or why weights and rows are not E2M1 codes in the same regular groups.
inline const char* not_fp4_pair(const Problem& p) {
  if (p.code != CodeType::kFp4) return "the weights are not fp4";
  if (p.act.code != ActCode::kFp4) return "the checkpoint declares other activations than fp4";
  if (p.ragged || p.act_order) return "groups are not regular";
  if (p.act.granule != ActGranule::kGroup || p.act.group != p.block_k)
    return "groups of weights and of activations differ";
  return nullptr;
}

}  // namespace
}  // namespace moebius
