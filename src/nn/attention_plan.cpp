// SPDX-License-Identifier: Apache-2.0
// Kernels and scratch memory of an attention layer (attention.h).
#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "kernels/oracle.h"
#include "nn/attention.h"

namespace moebius {

AttentionPlan plan_attention(AttentionSpec spec, XType type, const KvStorage& storage,
                             const Cpu& cpu, const Policy& policy) {
  const auto choose = [&](const Problem& p) {
    return choose_kernel(p, cpu, request_for(p, policy)).chosen;
  };
  AttentionPlan plan;
  plan.type = type;
  plan.kv = KvLayout(spec.kv_heads, spec.key_dim, spec.value_dim, storage, type, choose);
  if (spec.ratio != 0) {
    if (spec.kv_heads != 1 || spec.key_dim != spec.value_dim || kKeyBlock % spec.ratio != 0)
      fail("entries of {} tokens for {} kv heads with keys of {} and values of {} features",
           spec.ratio, spec.kv_heads, spec.key_dim, spec.value_dim);
    plan.entries = {spec.key_dim, storage.type, kKeyBlock / spec.ratio};
    plan.gathered = KvLayout(1, spec.key_dim, spec.key_dim, {kv_type_of(type)}, type, choose);
  }
  const KvMatrix &keys = plan.kv.keys(), &values = plan.kv.values();
  if (keys.kernel == values.kernel)
    plan.attend = attend_kernel(*keys.kernel, keys.problem, values.problem);
  plan.spec = std::move(spec);
  return plan;
}

void AttentionScratch::reserve(const AttentionPlan& plan, size_t M, size_t heads) {
  const KvMatrix &keys = plan.kv.keys(), &values = plan.kv.values();
  const Kernel &kk = *keys.kernel, &vk = *values.kernel;
  const size_t dv = plan.spec.value_dim, all_rows = M * heads;
  size_t row_bytes = std::max(kk.row_bytes(keys.problem), vk.row_bytes(values.problem)),
         values_bytes = vk.row_panel_bytes(values.problem, M), gathered_bytes = 0, panel_bytes = 0,
         scratch_bytes =
             std::max(kk.scratch_bytes(keys.problem, M), vk.scratch_bytes(values.problem, M));
  if (plan.attend != nullptr) scratch_bytes = std::max(scratch_bytes, plan.attend->scratch_bytes);
  key_panel_bytes = round_up(kk.row_panel_bytes(keys.problem, M), 64);
  if (plan.spec.ratio != 0) {
    const KvMatrix &ek = plan.gathered.keys(), &ev = plan.gathered.values();
    row_bytes =
        std::max({row_bytes, ek.kernel->row_bytes(ek.problem), ev.kernel->row_bytes(ev.problem)});
    values_bytes = std::max(values_bytes, ev.kernel->row_panel_bytes(ev.problem, M));
    scratch_bytes = std::max({scratch_bytes, ek.kernel->scratch_bytes(ek.problem, M),
                              ev.kernel->scratch_bytes(ev.problem, M)});
    gathered_bytes = plan.gathered.block_bytes();
    panel_bytes = ek.kernel->row_panel_bytes(ek.problem, M);
  }
  ScratchLayout layout;
  const size_t at_rows = layout.add(M * row_bytes), at_keys = layout.add(heads * key_panel_bytes),
               at_values = layout.add(values_bytes), at_scratch = layout.add(scratch_bytes),
               at_gathered = layout.add(gathered_bytes), at_panel = layout.add(panel_bytes),
               at_seen = layout.add(2 * M);
  struct Floats {
    float** to;
    size_t count, at = 0;
  };
  Floats all[] = {{&q, M * plan.spec.key_dim},
                  {&scores, M * kKeyBlock},
                  {&sums, M * dv},
                  {&keep, M},
                  {&entry, plan.spec.ratio != 0 ? plan.spec.key_dim : 0},
                  {&out, all_rows * dv},
                  {&best, all_rows},
                  {&total, all_rows},
                  {&all_out, all_rows * dv},
                  {&all_best, all_rows},
                  {&all_total, all_rows}};
  for (Floats& a : all) a.at = layout.add_array<float>(a.count);
  uint8_t* base = memory_.reserve(layout.bytes());
  rows = base + at_rows, key_panel = base + at_keys, value_panel = base + at_values,
  scratch = base + at_scratch, gathered = base + at_gathered, entry_panel = base + at_panel,
  seen = base + at_seen;
  for (const Floats& a : all) *a.to = reinterpret_cast<float*>(base + a.at);
}

}  // namespace moebius
