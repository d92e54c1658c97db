// SPDX-License-Identifier: Apache-2.0
// Models that give a vector per text, or a score per pair of texts, instead of text: what their folder
// says of it (sentence-transformers' modules.json, a classification head of one label), and rows
// becoming a vector. Nothing is guessed: a folder that says nothing makes neither.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/decoder.h"

namespace moebius {

enum class PoolingMode : uint8_t { kCls, kMax, kMean, kMeanSqrt, kWeightedMean, kLast };

// A module Dense of sentence-transformers: y[out] = activation(x[in] * w[in,out] + bias), and x beside it
// where it says so.
struct PooledLayer {
  enum class Activation : uint8_t { kIdentity, kTanh, kRelu, kGelu, kSilu, kSigmoid };
  Activation activation = Activation::kTanh;
  size_t in = 0, out = 0;
  std::vector<float> weight;     // [in,out]
  std::vector<float> bias;       // [out], or empty
  bool residual = false;         // x is added to the result
  std::vector<float> projected;  // [in,out], by which x goes where the sizes differ
  bool unit = false;             // x is made of unit length first
  std::vector<float> operator()(std::vector<float> x) const;
};

struct PoolingPlan {
  bool scores = false;              // a number per pair of texts; else a vector per text
  std::vector<PoolingMode> modes;   // of vectors: their results stand one behind the other
  std::vector<PooledLayer> layers;  // behind these
  bool normalize = false;           // at last
  bool include_prompt = true;       // tokens of the prompt count
  std::map<std::string, std::string> prompts;
  std::string default_prompt;       // a name; empty: none
  size_t most_tokens = SIZE_MAX;    // of a text
  bool truncates = false;           // vectors may be cut
  std::vector<size_t> dimensions;   // to these; empty: to any
  std::vector<float> head;          // scores: weights of the one label, for the last row
  std::optional<int32_t> yes, no;   // scores: tokens whose logits say it
  bool sigmoid = true;              // of scores
  bool template_generates = false;  // add_generation_prompt of the template for pairs

  bool needs_logits() const { return yes.has_value(); }
  bool needs_all_rows() const;
  size_t width(size_t hidden) const {
    return scores ? 1 : layers.empty() ? hidden * modes.size() : layers.back().out;
  }
};

// What is known of a folder before its modules are read.
struct PoolingFolder {
  std::string folder;
  const Json& config;  // config.json
  size_t hidden = 0;
  int64_t vocab = 0;
  const TensorStore& store;
};

// None: the folder says nothing of the kind. Throws Error for what it says and cannot be run.
std::optional<PoolingPlan> read_pooling(const PoolingFolder& folder);
std::optional<PoolingPlan> read_pooling(const Checkpoint& checkpoint);

// The model with rows behind the final norm, [rows, hidden], as the result of its steps instead of logits:
// for steps without an engine. Throws Error.
std::unique_ptr<DecoderModel> load_rows_model(const Checkpoint& checkpoint,
                                              const ModelOptions& options);

// Rows of one text, in the order of its tokens, become its vector or score: sums in this order, in f32.
class Pooler {
 public:
  // `skipped`: tokens at the start that do not count.
  Pooler(const PoolingPlan& plan, size_t row, size_t skipped);
  void add(std::span<const float> row);  // the next token's
  // The last row only, where the plan needs no others. Throws Error for what is not finite.
  std::vector<float> finish();

 private:
  std::vector<float> result() const;

  const PoolingPlan& plan_;
  size_t row_, skipped_, position_ = 0, counted_ = 0;
  float weights_ = 0;
  std::vector<float> first_, last_, most_, sum_, weighted_;
};

// The first `dimensions` of a vector, of unit length again where the plan says so.
void cut_vector(std::vector<float>& vector, size_t dimensions, bool normalize);

}  // namespace moebius
