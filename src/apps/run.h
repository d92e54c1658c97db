// SPDX-License-Identifier: Apache-2.0
// Implements the command run: continues a text, printed as it comes, or chats.
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
  // Sources of the prompt, of which at most one is set. None: standard input, which on a terminal
  // starts a chat.
  std::optional<std::string> prompt, prompt_file, messages_file;
  std::vector<std::string> tokens;  // ids such as "1,2,3"
  // Most new tokens; -1: until the end or the context; unset: most_new().
  std::optional<int> max_new;
  bool chat = false, interactive = false;
  std::string system;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  std::optional<std::string> schema_file, regex;  // form of the answer
  GrammarPtr grammar;                             // grammar made from that form
  std::optional<std::string> tools_file;
  std::string tool_choice = "auto";  // auto, none, required, or the name of a tool
  std::string tool_format = "auto";  // format of the model's calls
  Json tools;                        // content of the file of tools; null: none
  size_t context = 0;                // longest sequence in tokens; 0: what the model allows
  EngineRunOptions engine;
  KvDirOptions kv_dir;
  std::string route_trace;  // file that receives the experts of every token; "": none
  bool json = false;

  bool uses_template() const {
    return chat || interactive || messages_file.has_value() || tools_file.has_value() ||
           !model.chat_template.empty();
  }
  // Returns the most new tokens: unlimited for a chat, whose answers end by themselves, and 256 for
  // a text.
  int most_new() const { return max_new.value_or(uses_template() ? -1 : 256); }
};
int run_run(const RunCommandOptions& options);

}  // namespace moebius
