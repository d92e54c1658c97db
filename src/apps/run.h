// SPDX-License-Identifier: Apache-2.0
// The run command: text in, text out, as it comes.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "apps/engine_options.h"
#include "apps/kv_dir.h"
#include "apps/model_commands.h"
#include "base/json.h"
#include "engine/sampling_choices.h"
#include "text/grammar/grammar.h"

namespace moebius {

struct RunCommandOptions : SamplingChoices {
  ModelRunOptions model;
  // At most one; none: standard input, which on a terminal means a chat.
  std::optional<std::string> prompt, prompt_file, messages_file;
  std::vector<std::string> tokens;  // "1,2,3"
  std::optional<int> max_new;       // -1: until the end or the context; none: most_new()
  bool chat = false, interactive = false;
  std::string system;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  std::optional<std::string> schema_file, regex;  // the form of the answer
  GrammarPtr grammar;                             // made of these
  std::optional<std::string> tools_file;
  std::string tool_choice = "auto";  // or required, or the name of a tool
  std::string tool_format = "auto";  // of the model's calls
  Json tools;                        // read from the file; null: none
  size_t context = 0;                // 0: what the model allows
  EngineRunOptions engine;
  KvDirOptions kv_dir;
  bool json = false;

  bool uses_template() const {
    return chat || interactive || messages_file.has_value() || tools_file.has_value();
  }
  // A text goes on for ever, a chat's answer ends by itself.
  int most_new() const { return max_new.value_or(uses_template() ? -1 : 256); }
};
int run_run(const RunCommandOptions& options);

}  // namespace moebius
