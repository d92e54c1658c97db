// SPDX-License-Identifier: Apache-2.0
// The run command: text in, text out, as it comes.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "apps/engine_options.h"
#include "apps/model_commands.h"
#include "model/sampling_choices.h"

namespace moebius {

struct RunCommandOptions : SamplingChoices {
  ModelRunOptions model;
  // At most one; none: standard input.
  std::optional<std::string> prompt, prompt_file, messages_file;
  std::vector<std::string> tokens;  // "1,2,3"
  int64_t max_new = 256;            // -1: until the end or the context
  bool chat = false, interactive = false;
  std::string system;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  size_t context = 0;  // 0: what the model allows
  EngineRunOptions engine;
  bool json = false;
};
int run_run(const RunCommandOptions& options);

}  // namespace moebius
