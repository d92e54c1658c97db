// SPDX-License-Identifier: Apache-2.0
#include "model/ranks/step_plan.h"

#include "model/ranks/wire.h"

namespace moebius {
namespace {

constexpr uint32_t kPlanMark = 0x4e4c5053;  // "SPLN"

constexpr size_t kItemBytes = 33;  // bytes of an item without tokens and tables

// Passes everything behind the mark to a writer or reader.
template <class Way, class Plan>
void visit_plan(Way& way, Plan& plan) {
  const auto each = [&](auto& number) { way.number(number); };
  way.number(plan.serial);
  way.choice(plan.kind, StepPlan::Kind::kStop);
  for (auto* v : {&plan.block_kind, &plan.from, &plan.to, &plan.count}) way.number(*v);
  way.list(plan.ended, sizeof(uint64_t), each);
  way.list(plan.experts, sizeof(uint32_t), each);
  way.list(plan.items, kItemBytes, [&](auto& item) {
    for (auto* v : {&item.sequence, &item.position, &item.length}) way.number(*v);
    way.choice(item.logits, LogitsOf::kAll);
    way.list(item.tokens, sizeof(int32_t), each);
    way.list(item.tables, sizeof(uint32_t),
             [&](auto& table) { way.list(table, sizeof(BlockId), each); });
  });
}

}  // namespace

std::vector<uint8_t> encode(const StepPlan& plan) {
  WireWriter out;
  out.number(kPlanMark);
  visit_plan(out, plan);
  return std::move(out.bytes);
}

StepPlan decode_step_plan(std::span<const uint8_t> bytes) {
  WireReader in(bytes, "a step plan");
  uint32_t mark = 0;
  in.number(mark);
  if (mark != kPlanMark) fail("a step plan begins with {:#x}; expected {:#x}", mark, kPlanMark);
  StepPlan plan;
  visit_plan(in, plan);
  in.end();
  return plan;
}

}  // namespace moebius
