// SPDX-License-Identifier: Apache-2.0
#include "model/plan/predictor_plan.h"

#include <algorithm>

#include "base/error.h"
#include "model/arch/arch.h"
#include "nn/kv_layout.h"

namespace moebius {
namespace {

size_t kind_like(KvPlan& plan, const KvKind& wanted) {
  const auto alike = [&](const KvKind& k) {
    return k.reach == wanted.reach && k.cuttable == wanted.cuttable && k.name == wanted.name;
  };
  const auto found = std::find_if(plan.kinds.begin(), plan.kinds.end(), alike);
  const auto kind = static_cast<size_t>(found - plan.kinds.begin());
  if (found == plan.kinds.end()) {
    plan.kinds.push_back(wanted);
    plan.kinds.back().block_bytes = 0;
    for (DeviceKinds& d : plan.devices) d.block_bytes.push_back(0);
  }
  return kind;
}

// Adds bytes to the blocks of a kind on a device; returns where they begin.
KvOffset add_bytes(KvPlan& plan, const Device& device, size_t kind, size_t bytes) {
  const auto on = std::find_if(plan.devices.begin(), plan.devices.end(),
                               [&](const DeviceKinds& d) { return d.device == &device; });
  const KvOffset place{kind, on->block_bytes[kind]};
  on->block_bytes[kind] += bytes;
  plan.kinds[kind].block_bytes += bytes;
  return place;
}

}  // namespace

PredictorPlan plan_predictor(const Checkpoint& model, const KvChoice& options,
                             const DeviceSet& devices, KvPlan& kv) {
  if (!devices.placement().gpu().empty())
    fail("multi-token prediction runs on the CPU; leave out --device {}",
         devices.placement().gpu());
  DecoderSpec spec = predictor_spec(model.config());
  PredictorPlan p{model.open_predictor(), ModelPart(std::move(spec), {0, 1}), {}, {}};
  p.checkpoint.require_supported();
  p.kv = plan_kv(p.checkpoint, p.part.spec, options, devices, p.part.own);
  // The predictor's only layer is on one device, in one kind of blocks.
  const Device& device = attention_device(devices, p.part.spec, 0);
  const size_t own = p.kv.layers[0].mixer.kind;
  const KvOffset at =
      add_bytes(kv, device, kind_like(kv, p.kv.kinds[own]), p.kv.kinds[own].block_bytes);
  for (KvOffset* place : {&p.kv.layers[0].mixer, &p.kv.layers[0].indexer})
    if (place->kind == own) *place = {at.kind, at.offset + place->offset};
  const KvRowLayout rows{static_cast<size_t>(model.config().hidden), kv_type_of(options.type)};
  p.rows = add_bytes(kv, devices.ends(), kind_like(kv, {"rows", 0, 2, true}), rows.block_bytes());
  return p;
}

}  // namespace moebius
