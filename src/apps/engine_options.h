// SPDX-License-Identifier: Apache-2.0
// Options of the commands that generate: memory for keys and values, length of steps.
#pragma once
#include "apps/command.h"
#include "model/engine.h"

namespace moebius {

struct EngineRunOptions {
  double kv_gib = 0;  // 0: chosen
  double max_step = 1;
};
void add_engine_options(Command& command, EngineRunOptions& options);
void set_engine_options(const EngineRunOptions& options, EngineOptions& engine);
// A line on stderr: memory for keys and values, and what it holds.
void say_budget(const Engine& engine);

}  // namespace moebius
