// SPDX-License-Identifier: Apache-2.0
#include "device/module_use.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/summary.h"
#include "device/device.h"
#include "device/module_problem.h"

namespace moebius {
namespace {

const MoeBlock* block_of(const Checkpoint& checkpoint, const Module& m) {
  if (m.kind != ModuleKind::kExpert || m.shared_expert) return nullptr;
  for (const MoeBlock& b : checkpoint.moe_blocks())
    if (b.layer == m.layer) return &b;
  return nullptr;
}

}  // namespace

std::shared_ptr<const ModuleUse> ModulePlanner::use(const Module& m) {
  return use(m, block_of(checkpoint_, m));
}

std::shared_ptr<const ModuleUse> ModulePlanner::use(const Module& m, const MoeBlock* block) {
  const bool product = has_product(checkpoint_, m);
  ModuleQuestion q;
  q.block = block;
  if (product) q.problem = problem_of(m, act_, type_);
  // Matrices that are alike give one answer; tables are few, and their sizes count.
  if (m.kind == ModuleKind::kEmbedding || m.kind == ModuleKind::kLmHead || !product) q.module = &m;
  const bool other = product && departs(m, *q.problem);
  // Neighbours are alike, so the last answers come first.
  const auto same = std::find_if(known_.rbegin(), known_.rend(), [&](const Known& k) {
    return k.departs == other && k.question == q;
  });
  if (same != known_.rend()) return same->use;
  auto use = std::make_shared<ModuleUse>();
  try {
    *use = device_.plan(q);
  } catch (const Error& e) {
    fail("{}: {}", m.name, e.what());
  }
  if (use->choice) use->numerics = other ? Numerics::kApproximate : use->choice->numerics;
  known_.push_back({q, other, use});
  return use;
}

}  // namespace moebius
