// SPDX-License-Identifier: Apache-2.0
// Options of the commands that generate: memory for keys and values, length of steps.
#pragma once
#include "apps/command.h"
#include "apps/model_commands.h"
#include "model/engine.h"

namespace moebius {

struct EngineRunOptions {
  double kv_gib = 0;  // 0: chosen
  double max_step = 1;
};
void add_engine_options(Command& command, EngineRunOptions& options);
// context: 0: what the model was trained for.
EngineOptions engine_options(const EngineRunOptions& options, OpenModel& open, size_t context);
// A line on stderr: memory for keys and values, and what it holds.
void say_budget(const Engine& engine);

}  // namespace moebius
