// SPDX-License-Identifier: Apache-2.0
#include "apps/engine_options.h"

#include <algorithm>

#include "apps/cli/manners.h"
#include "base/error.h"
#include "base/human.h"
#include "engine/draft.h"
#include "runtime/memory.h"

namespace moebius {

void add_engine_options(Command& c, EngineRunOptions& o) {
  c.option("--kv-gib", "X", &o.kv_gib, "memory of the KV cache, in GiB; 0: enough for --ctx",
           {.limits = {{0, 1 << 20}},
            .default_text = "enough for --ctx, at most half of the free memory"});
  c.option("--max-step", "S", &o.max_step, "longest prefill step, in seconds",
           {.limits = {{0.001, 3600}}, .rare = true});
  c.option(
      "--speculate", "HOW", &o.speculate,
      "tokens that run ahead where that is faster; the answer stays the same. lookup: those that "
      "followed the same text before; mtp: those that the model's layer for multi-token "
      "prediction expects",
      {.choices = {"lookup", "mtp", "off"},
       .default_text = o.speculate.empty() ? "lookup; off with --pp" : o.speculate,
       .rare = true});
}

void settle_speculation(const EngineRunOptions& o, ModelRunOptions& model) {
  const RankOptions& r = model.ranks;
  if (r.pp > 1 && !o.speculate.empty() && o.speculate != "off")
    fail("--speculate {}: pipeline stages (--pp {}) run without drafts; leave one of them out",
         o.speculate, r.pp);
  if (o.speculate == "mtp" && (r.ranks > 1 || r.tp > 1 || r.ep > 1))
    fail(
        "--speculate mtp: multi-token prediction runs in one process; leave out the ranks, or "
        "take lookup");
  model.predictor = o.speculate == "mtp";
}

size_t context_of(size_t asked, const ModelConfig& config) {
  if (asked != 0) return asked;
  return config.max_positions > 0 ? static_cast<size_t>(config.max_positions) : kUsualContext;
}

EngineOptions engine_options(const EngineRunOptions& o, OpenModel& open, size_t context) {
  EngineOptions e;
  e.context = context_of(context, open.checkpoint.config());
  e.kv_bytes = static_cast<uint64_t>(o.kv_gib * 0x1p30);
  e.max_step = o.max_step;
  if (o.speculate != "off") e.drafts = kMostDrafts;
  e.backend_drafts = o.speculate == "mtp";
  e.pool = &open.pool;
  return e;
}

void check_kv_budget(const EngineRunOptions& o) {
  const uint64_t free = available_memory_bytes();
  if (free != 0 && o.kv_gib * 0x1p30 > static_cast<double>(free))
    fail("--kv-gib {}: only {:.1f} GiB of memory are free", o.kv_gib,
         static_cast<double>(free) / 0x1p30);
}

void say_budget(const Engine& engine, const Checkpoint& checkpoint, size_t context) {
  const int64_t trained = checkpoint.config().max_positions;
  if (trained > 0 && context > static_cast<size_t>(trained))
    warning(
        "--ctx {} is beyond the {} tokens that the model was trained for; expect poor text there",
        context, trained);
  if (context > engine.longest())
    warning("--ctx {}: the KV cache only has room for {}; free memory or --kv-gib decides", context,
            counted(engine.longest(), "token"));
  note("KV cache: up to {} for {} of {}", human_bytes(engine.kv_bytes()),
       counted(engine.sequences(), "sequence"), counted(engine.longest(), "token"));
}

}  // namespace moebius
