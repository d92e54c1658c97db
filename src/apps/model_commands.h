// SPDX-License-Identifier: Apache-2.0
// The logits command, and what commands that run a whole model on tokens share.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/cli/options.h"
#include "model/ranks/rank_plan.h"
#include "model/ranks/ranked_model.h"
#include "runtime/runtime.h"

namespace moebius {

struct ModelRunOptions {
  std::string folder;
  std::string dtype = "auto", kv_dtype = "auto";
  RunOptions run;
  RankOptions ranks;
  std::string pack_dir;      // of weights that were packed before; "": none
  ModuleTap* tap = nullptr;  // sees what layers read
  bool predictor = false;    // with its layer for multi-token prediction
};

void add_model_options(Command& command, ModelRunOptions& options);
void add_pack_option(Command& command, std::string& pack_dir);
// How a model is opened by threads of one's choice.
using OptionsOfPool = std::function<ModelOptions(ThreadPool& pool)>;
// What the planner is asked for so many ranks, as measured on them; `threads`: of this process.
RankQuestion measured_question(size_t ranks, size_t threads, const Checkpoint& checkpoint,
                               const OptionsOfPool& options);
// Where only a number of ranks is given, the planner's choice. Throws Error.
RankSplit split_of(const RankOptions& ranks, size_t threads, const Checkpoint& checkpoint,
                   const OptionsOfPool& options);
// Threads for rank 0 of ranks that share this process's `threads`.
std::shared_ptr<Runtime> runtime_of(const RankSplit& split, size_t threads);
// What of these a model is told beside its split.
void take_rank_options(ModelOptions& options, const RankOptions& ranks);
ModelOptions model_options_of(const ModelRunOptions& options, const Checkpoint& checkpoint,
                              ThreadPool& pool);
// A model on the ranks that were asked for, threads or processes; `followers` outlive it.
std::unique_ptr<DecoderModel> load_model(const Checkpoint& checkpoint, ModelOptions options,
                                         const RankSplit& split,
                                         std::unique_ptr<RankThreads>& followers);

// A checkpoint with its model and threads; `context`: longest sequence that will be run (0: what
// the config allows).
struct OpenModel {
  // `loaded`, where given, is told the share of the bytes that were read, from any thread. `check`, where
  // given, sees the config before a weight is read, and throws Error for input that does not fit it.
  OpenModel(const ModelRunOptions& options, size_t context,
            const std::function<void(double share)>& loaded = {},
            const std::function<void(const ModelConfig&)>& check = {});
  Checkpoint checkpoint;
  RankSplit split;
  std::shared_ptr<Runtime> runtime;
  ThreadPool& pool = runtime->pool();
  std::unique_ptr<RankThreads> followers;  // outlive the model
  std::unique_ptr<DecoderModel> model;
  double load_seconds = 0;
};

// Returns a check for OpenModel: every token is in the vocabulary. The tokens outlive it.
std::function<void(const ModelConfig&)> known_tokens(std::span<const int32_t> tokens);

struct TokenSource {
  std::vector<std::string> list;  // "1,2,3"
  std::string file;               // little-endian integers
  std::string type = "u16";       // of the file: u16 or u32
  std::string text, text_file;    // tokenized by the folder's tokenizer
};
std::vector<int32_t> read_tokens(const TokenSource& source, const std::string& folder,
                                 bool add_special);
std::vector<int32_t> parse_token_lists(std::span<const std::string> lists);  // "1,2", "3"
void add_tokens_file(Command& command, TokenSource& tokens);
void add_tokens_type(Command& command, TokenSource& tokens);

struct LogitsOptions {
  ModelRunOptions model;
  TokenSource tokens;
  std::string out;
};
int run_logits(const LogitsOptions& options);

}  // namespace moebius
