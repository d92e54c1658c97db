// SPDX-License-Identifier: Apache-2.0
#include "apps/engine_options.h"

#include <algorithm>

#include "apps/manners.h"
#include "apps/terminal.h"

namespace moebius {

void add_engine_options(Command& c, EngineRunOptions& o) {
  c.option("--kv-gib", "X", &o.kv_gib, "memory for keys and values; 0: for the context")
      .range(0, 1 << 20)
      .by_default("the context, at most half of the free memory");
  c.option("--max-step", "S", &o.max_step, "longest step of a prompt, in seconds")
      .range(0.001, 3600)
      .seldom();
}

EngineOptions engine_options(const EngineRunOptions& o, OpenModel& open, size_t context) {
  EngineOptions e;
  const int64_t trained = open.checkpoint.config().max_positions;
  e.context = context != 0 ? context : static_cast<size_t>(std::max<int64_t>(0, trained));
  e.kv_bytes = static_cast<uint64_t>(o.kv_gib * 0x1p30);
  e.max_step = o.max_step;
  e.pool = &open.pool;
  return e;
}

void say_budget(const Engine& engine) {
  note("keys and values: up to {}, a sequence of {} tokens",
       human_bytes(static_cast<double>(engine.kv_bytes())), engine.longest());
}

}  // namespace moebius
