// SPDX-License-Identifier: Apache-2.0
// Options of the commands that generate: memory of the KV cache, length of steps.
#pragma once
#include "apps/cli/command.h"
#include "apps/model_commands.h"
#include "engine/engine.h"

namespace moebius {

struct EngineRunOptions {
  double kv_gib = 0;  // 0: chosen
  double max_step = 1;
  std::string speculate;  // lookup, mtp, off; empty: nothing was said, lookup where it can be
};
void add_engine_options(Command& command, EngineRunOptions& options);
// What of the model is loaded for --speculate. Throws Error where it cannot be had with these ranks.
void settle_speculation(const EngineRunOptions& options, ModelRunOptions& model);
// Returns the context length in tokens that an engine gets; `asked` 0: what the model was trained for.
size_t context_of(size_t asked, const ModelConfig& config);
EngineOptions engine_options(const EngineRunOptions& options, OpenModel& open, size_t context);
// Throws Error where --kv-gib is more than the machine has free; asked before weights are loaded.
void check_kv_budget(const EngineRunOptions& options);
// On stderr: the memory of the KV cache and the longest sequence it holds; warns where that is less
// than the `context` that was asked for (0: nothing was), or the model was not trained for it.
void say_budget(const Engine& engine, const Checkpoint& checkpoint, size_t context);

}  // namespace moebius
