// SPDX-License-Identifier: Apache-2.0
// The run command: text in, text out, as it comes.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "apps/engine_options.h"
#include "apps/model_commands.h"

namespace moebius {

struct RunCommandOptions {
  ModelRunOptions model;
  // At most one; none: standard input.
  std::optional<std::string> prompt, prompt_file, messages_file;
  std::vector<std::string> tokens;  // "1,2,3"
  int64_t max_new = 256;            // -1: until the end or the context
  bool chat = false, interactive = false;
  std::string system;
  std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty,
      frequency_penalty;
  std::optional<int> top_k;
  uint64_t seed = 0;
  std::optional<int> logprobs;  // alternatives per token, in the JSON
  std::vector<std::string> stop;
  bool ignore_eos = false;
  size_t context = 0;  // 0: what the model allows
  EngineRunOptions engine;
  bool json = false;
};
int run_run(const RunCommandOptions& options);

}  // namespace moebius
