// SPDX-License-Identifier: Apache-2.0
// Reads and runs models that return a vector per text, or a score per pair of texts, instead of
// text: as their folder says (sentence-transformers' modules.json, or a classification head with
// one label). Nothing is guessed: a folder that says nothing is neither.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/run/decoder.h"

namespace moebius {

struct PoolingPlan {
  bool scores = false;         // true: a score per pair of texts; false: a vector per text
  bool mean = false;           // true: a vector is the mean of the rows; false: the last row
  bool normalize = false;      // true: the vector is scaled to unit length at the end
  bool include_prompt = true;  // true: tokens of the prompt are pooled, too
  std::map<std::string, std::string> prompts;
  std::string default_prompt;      // name of a prompt; empty: none
  size_t most_tokens = SIZE_MAX;   // most tokens of a text
  bool truncates = false;          // true: vectors may be shortened
  std::vector<size_t> dimensions;  // lengths to which vectors may be shortened; empty: any
  std::vector<float> head;         // for scores: weights of the only label, applied to the last row
  std::optional<int32_t> yes, no;  // for scores: tokens whose logits give the score
  bool sigmoid = true;             // true: a sigmoid is applied to scores
  // Value of add_generation_prompt when the template renders a pair.
  bool template_generates = false;

  bool needs_logits() const { return yes.has_value(); }
  bool needs_all_rows() const { return mean && !scores; }
};

// Holds the facts about a folder that are known before its modules are read.
struct PoolingFolder {
  std::string folder;
  const Json& config;  // the folder's config.json
  size_t hidden = 0;
  int64_t vocab = 0;
  const TensorStore& store;
};

// Reads how a folder pools. Returns nothing if it does not say; throws Error if it asks for what
// cannot run.
std::optional<PoolingPlan> read_pooling(const PoolingFolder& folder);
std::optional<PoolingPlan> read_pooling(const Checkpoint& checkpoint);

// Loads a model whose steps return rows after the final norm, [rows, hidden], in place of logits;
// for callers without an engine. Throws Error.
std::unique_ptr<DecoderModel> load_rows_model(const Checkpoint& checkpoint,
                                              const ModelOptions& options);

// Turns the rows of one text, added in the order of its tokens, into its vector or score. Sums are
// f32, in this order.
class Pooler {
 public:
  // row: numbers per row; skipped: number of tokens at the start that are not pooled.
  Pooler(const PoolingPlan& plan, size_t row, size_t skipped);
  void add(std::span<const float> row);  // row: the next token's
  // Returns the vector or score of the text. Throws Error for values that are not finite. (A plan
  // that uses only the last row needs no add() of other rows.)
  std::vector<float> finish();

 private:
  std::vector<float> result() const;

  const PoolingPlan& plan_;
  size_t row_, skipped_, position_ = 0, counted_ = 0;
  std::vector<float> last_, sum_;
};

// Shortens a vector to its first `dimensions` numbers, and scales it to unit length if the plan
// says so.
void cut_vector(std::vector<float>& vector, size_t dimensions, bool normalize);

}  // namespace moebius
