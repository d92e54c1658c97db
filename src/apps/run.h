// SPDX-License-Identifier: Apache-2.0
// The run command: text in, text out, as it comes.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "apps/model_commands.h"

namespace moebius {

struct RunCommandOptions {
  ModelRunOptions model;
  std::string prompt, prompt_file;  // neither: standard input
  bool has_prompt = false;
  int64_t max_new = 256;  // -1: until the end or the context
  bool chat = false, interactive = false;
  std::string system;
  std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty,
      frequency_penalty;
  std::optional<int> top_k;
  uint64_t seed = 0;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  size_t context = 0;
  bool json = false;
};
int run_run(const RunCommandOptions& options);

}  // namespace moebius
