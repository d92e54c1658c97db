// SPDX-License-Identifier: Apache-2.0
// Kernels and scratch memory of an attention layer (attention.h).
#include <algorithm>
#include <utility>

#include "kernels/oracle.h"
#include "nn/attention.h"

namespace moebius {

AttentionPlan plan_attention(AttentionSpec spec, XType type, const KvStorage& storage,
                             const Cpu& cpu, const Policy& policy) {
  KvLayout kv(spec.kv_heads, spec.key_dim, spec.value_dim, storage, type, [&](const Problem& p) {
    return choose_kernel(p, cpu, request_for(p, policy)).chosen;
  });
  return {std::move(spec), type, std::move(kv)};
}

void AttentionScratch::reserve(const AttentionPlan& plan, size_t M, size_t heads) {
  const KvMatrix &keys = plan.kv.keys(), &values = plan.kv.values();
  const Kernel &kk = *keys.kernel, &vk = *values.kernel;
  const size_t dv = plan.spec.value_dim, all_rows = M * heads;
  ScratchLayout layout;
  const size_t at_rows =
      layout.add(M * std::max(kk.row_bytes(keys.problem), vk.row_bytes(values.problem)));
  key_panel_bytes = round_up(kk.row_panel_bytes(keys.problem, M), 64);
  const size_t at_keys = layout.add(heads * key_panel_bytes),
               at_values = layout.add(vk.row_panel_bytes(values.problem, M));
  const size_t at_scratch =
      layout.add(std::max(kk.scratch_bytes(keys.problem, M), vk.scratch_bytes(values.problem, M)));
  struct Floats {
    float** to;
    size_t count, at = 0;
  };
  Floats all[] = {{&q, M * plan.spec.key_dim},
                  {&scores, M * kKeyBlock},
                  {&sums, M * dv},
                  {&keep, M},
                  {&out, all_rows * dv},
                  {&best, all_rows},
                  {&total, all_rows},
                  {&all_out, all_rows * dv},
                  {&all_best, all_rows},
                  {&all_total, all_rows}};
  for (Floats& a : all) a.at = layout.add_array<float>(a.count);
  uint8_t* base = memory_.reserve(layout.bytes());
  rows = base + at_rows, key_panel = base + at_keys, value_panel = base + at_values,
  scratch = base + at_scratch;
  for (const Floats& a : all) *a.to = reinterpret_cast<float*>(base + a.at);
}

}  // namespace moebius
