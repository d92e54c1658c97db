// SPDX-License-Identifier: Apache-2.0
// Commands that run a whole model on tokens: logits and perplexity, and what they share with run.
#pragma once
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "apps/options.h"
#include "model/decoder.h"

namespace moebius {

struct ModelRunOptions {
  std::string folder;
  std::string dtype = "auto";
  RunOptions run;
};

void add_model_options(Command& command, ModelRunOptions& options);

// A checkpoint with its model and threads; `context`: longest sequence that will be run (0: what
// the config allows).
struct OpenModel {
  OpenModel(const ModelRunOptions& options, size_t context);
  Checkpoint checkpoint;
  ThreadPool pool;
  std::unique_ptr<DecoderModel> model;
  double load_seconds = 0;
};

struct TokenSource {
  std::string list;             // "1,2,3"
  std::string file;             // little-endian integers
  std::string type = "u16";     // of the file: u16 or u32
  std::string text, text_file;  // tokenized by the folder's tokenizer
};
std::vector<int32_t> read_tokens(const TokenSource& source, const std::string& folder,
                                 bool add_special);

struct LogitsOptions {
  ModelRunOptions model;
  TokenSource tokens;
  std::string out;
};
int run_logits(const LogitsOptions& options);

struct PerplexityOptions {
  ModelRunOptions model;
  TokenSource tokens;
  size_t context = 512;
  size_t windows = 0;  // 0: all
  bool json = false;
};
int run_perplexity(const PerplexityOptions& options, std::ostream& out);

}  // namespace moebius
