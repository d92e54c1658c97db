// SPDX-License-Identifier: Apache-2.0
// Implements the command logits, and the parts that commands running a whole model share.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/cli/options.h"
#include "apps/expert_options.h"
#include "model/plan/rank_plan.h"
#include "model/ranks/ranked_model.h"
#include "runtime/runtime.h"

namespace moebius {

struct ModelRunOptions {
  std::string folder;
  std::string dtype = "auto", kv_dtype = "auto";
  RunOptions run;
  RankOptions ranks;
  std::string pack_dir;  // folder that caches packed weights; "": none
  ExpertDiskOptions experts{};
  std::string chat_template;  // file of a template in place of the folder's; "": none
  ModuleTap* tap = nullptr;   // receives the rows that layers read; may be null
  bool predictor = false;     // true: also loads the layer for multi-token prediction
};

void add_model_options(Command& command, ModelRunOptions& options);
void add_pack_option(Command& command, std::string& pack_dir);
void add_chat_template_option(Command& command, std::string& file);
// Opens a checkpoint that will run. Throws Error for an architecture that cannot run, and what
// `check` throws for input that does not fit the config, before anything else is read.
Checkpoint open_to_run(const std::string& folder,
                       const std::function<void(const ModelConfig&)>& check = {});
// Returns the question for the planner of ranks, with costs measured on so many of them. threads:
// number of threads of this process.
RankQuestion measured_question(size_t ranks, size_t threads, const Checkpoint& checkpoint,
                               ModelOptions options);
// Returns the split that the options state; if they only give a number of ranks, the planner's
// choice. Throws Error.
RankSplit split_of(const RankOptions& ranks, size_t threads, const Checkpoint& checkpoint,
                   const ModelOptions& options);
// Returns the threads of rank 0 of ranks that share this process's `threads`.
std::shared_ptr<Runtime> runtime_of(const RankSplit& split, size_t threads);
// Copies all options of ranks except the split to a model's options.
void take_rank_options(ModelOptions& options, const RankOptions& ranks);
// Converts what the command line says to the options of a model, without threads and split.
// context: longest sequence in tokens that will run; 0: what the config allows. Throws Error.
ModelOptions model_options_of(const ModelRunOptions& options, const Checkpoint& checkpoint,
                              size_t context = 0);
// Loads a model on the requested ranks, which are threads or processes; `followers` outlive it.
// Throws Error.
std::unique_ptr<DecoderModel> load_model(const Checkpoint& checkpoint, ModelOptions options,
                                         const RankSplit& split,
                                         std::unique_ptr<RankThreads>& followers);

// Owns a loaded model with its threads.
struct OpenModel {
  // Loads the checkpoint, which must outlive this, on ranks with so many threads together. loaded:
  // called from any thread with the share of bytes that were read.
  OpenModel(const Checkpoint& opened, ModelOptions options, const RankOptions& ranks,
            size_t threads, const std::function<void(double share)>& loaded = {});
  const Checkpoint& checkpoint;
  RankSplit split;
  std::shared_ptr<Runtime> runtime;
  ThreadPool& pool = runtime->pool();
  std::unique_ptr<RankThreads> followers;  // outlive the model
  std::unique_ptr<DecoderModel> model;
  double load_seconds = 0;
};

// Returns a check for open_to_run() that every token is in the vocabulary. The tokens must outlive it.
std::function<void(const ModelConfig&)> known_tokens(std::span<const int32_t> tokens);

struct TokenSource {
  std::vector<std::string> list;  // ids such as "1,2,3"
  std::string file;               // file of little-endian integers
  std::string type = "u16";       // type in the file: u16 or u32
  std::string text, text_file;    // texts for the folder's tokenizer
};
std::vector<int32_t> read_tokens(const TokenSource& source, const std::string& folder,
                                 bool add_special);
// Parses lists of ids such as "1,2" and "3". Throws Error.
std::vector<int32_t> parse_token_lists(std::span<const std::string> lists);
void add_tokens_file(Command& command, TokenSource& tokens);
void add_tokens_type(Command& command, TokenSource& tokens);

struct LogitsOptions {
  ModelRunOptions model;
  TokenSource tokens;
  std::string out;
};
int run_logits(const LogitsOptions& options);

}  // namespace moebius
