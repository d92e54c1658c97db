// SPDX-License-Identifier: Apache-2.0
// Declares options of the commands that generate: memory of the KV cache, length of steps.
#pragma once
#include "apps/cli/command.h"
#include "apps/model_commands.h"
#include "engine/engine.h"

namespace moebius {

struct EngineRunOptions {
  double kv_gib = 0;  // memory of the KV cache in GiB; 0: the engine chooses
  double max_step = 1;
  std::string speculate;  // lookup, mtp or off; empty: not given, so lookup where it is possible
};
void add_engine_options(Command& command, EngineRunOptions& options);
// Decides what the model must load for --speculate. Throws Error if that is impossible with these
// ranks.
void settle_speculation(const EngineRunOptions& options, ModelRunOptions& model);
// Returns the context length in tokens that an engine gets. asked 0: the length for which the model
// was trained.
size_t context_of(size_t asked, const ModelConfig& config);
EngineOptions engine_options(const EngineRunOptions& options, OpenModel& open, size_t context);
// Throws Error if --kv-gib exceeds the machine's free memory; called before weights are loaded.
void check_kv_budget(const EngineRunOptions& options);
// Writes to stderr the memory of the KV cache and the longest sequence that it holds; warns if that
// is less than the requested `context` (0: none was requested), or if the model was not trained for
// it.
void say_budget(const Engine& engine, const Checkpoint& checkpoint, size_t context);

}  // namespace moebius
