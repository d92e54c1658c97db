// SPDX-License-Identifier: Apache-2.0
#include "model/run/pooling.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/formats/format.h"
#include "model/run/step_runner.h"

namespace moebius {
namespace {

constexpr uint64_t kMaxSettings = 1 << 20;
constexpr int64_t kMostFeatures = 1 << 16;

// Reads an object from a file of the folder; empty if there is no such file.
Json settings(const std::string& folder, const std::string& name) {
  const std::string path = join_path(folder, name);
  if (!path_exists(path)) return Json::object();
  Json j = parse_json(read_text_file(path, kMaxSettings), path);
  if (!j.is_object()) fail("{}: expected an object", printable(path));
  return j;
}

bool flag(const Json& object, std::string_view name, bool otherwise) {
  const Json* v = object.find(name);
  return v != nullptr && v->is_bool() ? v->as_bool() : otherwise;
}

std::string text(const Json& object, std::string_view name) {
  const Json* v = object.find(name);
  return v != nullptr && v->is_string() ? v->as_string() : "";
}

struct ModeRow {
  std::string_view name, field;  // the word of today, and the field of older versions
};
// Lists the ways of pooling in the order of PoolingMode, in which results are concatenated.
constexpr ModeRow kModes[] = {{"cls", "pooling_mode_cls_token"},
                              {"max", "pooling_mode_max_tokens"},
                              {"mean", "pooling_mode_mean_tokens"},
                              {"mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"},
                              {"weightedmean", "pooling_mode_weightedmean_tokens"},
                              {"lasttoken", "pooling_mode_lasttoken"}};

void read_modes(const Json& config, const std::string& where, size_t hidden, PoolingPlan& plan) {
  const Json* mode = config.find("pooling_mode");
  std::vector<Json> words;
  if (mode != nullptr && mode->is_array()) words = mode->items();
  if (mode != nullptr && mode->is_string()) words = {*mode};
  for (const Json& word : words) {
    const auto* row = std::find_if(std::begin(kModes), std::end(kModes), [&](const ModeRow& m) {
      return word.is_string() && m.name == word.as_string();
    });
    if (row == std::end(kModes)) fail("{}: pooling_mode {} is not known", where, word.dump());
    plan.modes.push_back(static_cast<PoolingMode>(row - kModes));
  }
  if (mode == nullptr)
    for (const ModeRow& row : kModes)
      if (flag(config, row.field, false))
        plan.modes.push_back(static_cast<PoolingMode>(&row - kModes));
  if (plan.modes.empty()) plan.modes = {PoolingMode::kMean};
  plan.include_prompt = flag(config, "include_prompt", /*otherwise=*/true);
  for (const char* name : {"embedding_dimension", "word_embedding_dimension"})
    if (const Json* n = config.find(name);
        n != nullptr && n->as_int() != static_cast<int64_t>(hidden))
      fail("{}: {} is {}; expected the model's {}", where, name, n->dump(), hidden);
}

int32_t token_id(const Json& config, const char* name, const std::string& where, int64_t vocab) {
  const Json* id = config.find(name);
  const auto value = id != nullptr && id->is_integer() ? id->as_int() : std::nullopt;
  if (!value || *value < 0 || *value >= vocab)
    fail("{}: {} is {}; expected a token below {}", where, name,
         id != nullptr ? id->dump() : "missing", vocab);
  return static_cast<int32_t>(*value);
}

void read_prompts(const Json& config, PoolingPlan& plan) {
  if (const Json* prompts = config.find("prompts"); prompts != nullptr && prompts->is_object())
    for (const auto& [name, prompt] : prompts->members())
      if (prompt.is_string()) plan.prompts[name] = prompt.as_string();
  plan.default_prompt = text(config, "default_prompt_name");
}

void read_truncation(const Json& config, size_t hidden, PoolingPlan& plan) {
  const Json* sizes = config.find("matryoshka_dimensions");
  if (sizes != nullptr && sizes->is_array())
    for (const Json& n : sizes->items())
      if (const auto size = n.is_integer() ? n.as_int() : std::nullopt;
          size && *size > 0 && static_cast<size_t>(*size) <= hidden)
        plan.dimensions.push_back(static_cast<size_t>(*size));
  plan.truncates = !plan.dimensions.empty() || flag(config, "is_matryoshka", /*otherwise=*/false);
}

// Reads the activation of a score. named: path of a torch class.
void read_activation(const std::string& named, const std::string& where, PoolingPlan& plan) {
  if (named.empty() || named.ends_with(".Sigmoid"))
    plan.sigmoid = true;
  else if (named.ends_with(".Identity"))
    plan.sigmoid = false;
  else
    fail("{}: scores go through {}; only Sigmoid and Identity are offered", where,
         printable(named));
}

struct ActivationRow {
  std::string_view name;  // of a class of torch.nn
  float (*function)(float v);
};
// Lists functions in the order of PooledLayer::Activation.
constexpr ActivationRow kActivations[] = {
    {"Identity", [](float v) { return v; }},
    {"Tanh", [](float v) { return std::tanh(v); }},
    {"ReLU", [](float v) { return std::max(v, 0.0f); }},
    {"GELU", [](float v) { return 0.5f * v * (1.0f + std::erf(v * 0.70710678118654752f)); }},
    {"SiLU", [](float v) { return v / (1.0f + std::exp(-v)); }},
    {"Sigmoid", [](float v) { return 1.0f / (1.0f + std::exp(-v)); }}};

// Reads a matrix that torch stores as [out,in], transposed.
std::vector<float> read_turned(const TensorStore& store, const char* name, size_t in, size_t out) {
  const TensorInfo& info = store.require(name);
  if (info.shape != std::vector<uint64_t>{out, in})
    fail("{} is {}; expected [{}, {}]", store.where(info), describe(info), out, in);
  const std::vector<float> w = read_floats(store, info);
  std::vector<float> turned(w.size());
  for (size_t o = 0; o < out; ++o)
    for (size_t i = 0; i < in; ++i) turned[i * out + o] = w[o * in + i];
  return turned;
}

size_t features(const Json& config, const char* name, const std::string& where) {
  const Json* v = config.find(name);
  const auto n = v != nullptr && v->is_integer() ? v->as_int() : std::nullopt;
  if (!n || *n < 1 || *n > kMostFeatures)
    fail("{}: {} is {}; expected 1 to {}", printable(where), name,
         v != nullptr ? printable(v->dump(), 40) : "missing", kMostFeatures);
  return static_cast<size_t>(*n);
}

PooledLayer read_dense(const std::string& where, size_t width) {
  const Json config = settings(where, "config.json");
  PooledLayer layer;
  layer.in = features(config, "in_features", where);
  layer.out = features(config, "out_features", where);
  if (layer.in != width)
    fail("{}: in_features is {}; expected {}, the size of the vector before it", printable(where),
         layer.in, width);
  for (const char* name : {"module_input_name", "module_output_name"})
    if (const Json* v = config.find(name);
        v != nullptr && !v->is_null() && text(config, name) != "sentence_embedding")
      fail("{}: {} is {}; only sentence_embedding is offered", printable(where), name,
           printable(v->dump(), 60));
  if (const Json* named = config.find("activation_function")) {
    const std::string word = text(config, "activation_function");
    const auto* known =
        std::find_if(std::begin(kActivations), std::end(kActivations), [&](const auto& a) {
          return word.starts_with("torch.nn.") && word.substr(word.rfind('.') + 1) == a.name;
        });
    if (known == std::end(kActivations))
      fail(
          "{}: activation_function is {}; Identity, Tanh, ReLU, GELU, SiLU and Sigmoid of torch.nn "
          "are offered",
          printable(where), printable(named->dump(), 80));
    layer.activation = static_cast<PooledLayer::Activation>(known - kActivations);
  }
  const TensorStore store = TensorStore::open_file(join_path(where, "model.safetensors"));
  layer.weight = read_turned(store, "linear.weight", layer.in, layer.out);
  if (flag(config, "bias", /*otherwise=*/true)) {
    const TensorInfo& bias = store.require("linear.bias");
    if (bias.shape != std::vector<uint64_t>{layer.out})
      fail("{} is {}; expected [{}]", store.where(bias), describe(bias), layer.out);
    layer.bias = read_floats(store, bias);
  }
  layer.residual = flag(config, "use_residual", /*otherwise=*/false);
  if (layer.residual && layer.in != layer.out)
    layer.projected = read_turned(store, "residual.weight", layer.in, layer.out);
  return layer;
}

// Reads the classification head of a folder.
void read_head(const TensorStore& store, size_t hidden, PoolingPlan& plan) {
  const TensorInfo& score = store.require("score.weight");
  plan.scores = true;
  plan.head = read_floats(store, score);
  if (plan.head.size() != hidden)
    fail("{} is {}; one label, of [1, {}], is offered", store.where(score), describe(score),
         hidden);
}

}  // namespace

bool PoolingPlan::needs_all_rows() const {
  return !scores && std::any_of(modes.begin(), modes.end(),
                                [](PoolingMode m) { return m != PoolingMode::kLast; });
}

std::optional<PoolingPlan> read_pooling(const Checkpoint& checkpoint) {
  const ModelConfig& c = checkpoint.config();
  return read_pooling(PoolingFolder{checkpoint.folder(), c.raw, static_cast<size_t>(c.hidden),
                                    c.vocab, checkpoint.store()});
}

std::optional<PoolingPlan> read_pooling(const PoolingFolder& source) {
  const std::string& folder = source.folder;
  const Json& config = source.config;
  const size_t hidden = source.hidden;
  const Json* names = config.find("architectures");
  const bool head = names != nullptr && names->is_array() && !names->items().empty() &&
                    names->items()[0].is_string() &&
                    names->items()[0].as_string().ends_with("ForSequenceClassification");
  const std::string modules_path = join_path(folder, "modules.json");
  if (!head && !path_exists(modules_path)) return std::nullopt;

  if (!flag(config, "is_causal", true) || flag(config, "use_bidirectional_attention", false))
    fail(
        "{}: its tokens see those behind them (is_causal, use_bidirectional_attention); not "
        "offered",
        folder);
  PoolingPlan plan;
  const Json about = settings(folder, "config_sentence_transformers.json");
  read_prompts(about, plan);
  const Json transformer = settings(folder, "sentence_bert_config.json");
  if (const Json* most = transformer.find("max_seq_length"); most != nullptr && most->is_integer())
    plan.most_tokens = static_cast<size_t>(std::max<int64_t>(1, most->as_int().value_or(1)));
  if (flag(transformer, "do_lower_case", /*otherwise=*/false))
    fail("{}: do_lower_case of sentence_bert_config.json is not offered", folder);
  if (const Json* how = transformer.find("processing_kwargs"); how != nullptr)
    if (const Json* chat = how->find("chat_template"); chat != nullptr)
      plan.template_generates = flag(*chat, "add_generation_prompt", /*otherwise=*/false);
  std::string activation = text(about, "activation_fn");
  if (const Json* own = config.find("sentence_transformers"); own != nullptr && activation.empty())
    activation = text(*own, "activation_fn");
  if (activation.empty()) activation = text(config, "sbert_ce_default_activation_function");
  read_activation(activation, folder, plan);
  if (head) {
    read_head(source.store, hidden, plan);
    return plan;
  }

  const Json modules = parse_json(read_text_file(modules_path, kMaxSettings), modules_path);
  for (const Json& m : modules.items()) {
    const std::string type = text(m, "type"), path = text(m, "path");
    const std::string kind = type.substr(type.rfind('.') + 1), where = join_path(folder, path);
    if (path.find("..") != std::string::npos || path.starts_with('/'))
      fail("{}: the path '{}' leads out of the folder", printable(modules_path), printable(path));
    if (kind == "Pooling") {
      if (!plan.modes.empty() || !plan.layers.empty() || plan.normalize)
        fail("{}: the module {} comes behind others of a vector", printable(modules_path),
             printable(type));
      read_modes(settings(where, "config.json"), where, hidden, plan);
    } else if (kind == "Normalize") {
      plan.normalize = true;
    } else if (kind == "Dense") {
      if (plan.modes.empty())
        fail("{}: the module {} comes before Pooling", printable(modules_path), printable(type));
      PooledLayer layer = read_dense(where, plan.width(hidden));
      layer.unit = std::exchange(plan.normalize, false);
      plan.layers.push_back(std::move(layer));
    } else if (kind == "LogitScore") {
      const Json tokens = settings(where, "config.json");
      plan.scores = true;
      plan.yes = token_id(tokens, "true_token_id", where, source.vocab);
      if (const Json* no = tokens.find("false_token_id"); no != nullptr && !no->is_null())
        plan.no = token_id(tokens, "false_token_id", where, source.vocab);
    } else if (kind != "Transformer" || !path.empty()) {
      fail(
          "{}: the module {} is not offered; Transformer, Pooling, Dense, Normalize and LogitScore "
          "are",
          printable(modules_path), printable(type));
    }
  }
  if (!plan.scores && plan.modes.empty())
    fail("{}: has no module Pooling or LogitScore", printable(modules_path));
  if (!plan.scores) read_truncation(config, plan.width(hidden), plan);
  return plan;
}

std::unique_ptr<DecoderModel> load_rows_model(const Checkpoint& checkpoint,
                                              const ModelOptions& options) {
  if (options.ranks != nullptr) fail("rows instead of logits come from one process, without ranks");
  const ModelPlan plan = plan_model(checkpoint, options, this_process(options.gpu, 1));
  require_fit(plan, checkpoint.folder());
  ModelPart part(checkpoint, plan.spec, nullptr);
  part.projects = false;
  return std::make_unique<StepRunner>(checkpoint, options, std::move(part), nullptr);
}

Pooler::Pooler(const PoolingPlan& plan, size_t row, size_t skipped)
    : plan_(plan), row_(row), skipped_(plan.include_prompt ? 0 : skipped) {}

void Pooler::add(std::span<const float> row) {
  const size_t position = position_++;
  last_.assign(row.begin(), row.end());
  if (!plan_.needs_all_rows() || position < skipped_) return;
  if (counted_++ == 0) {
    first_ = most_ = last_;
    sum_.assign(row_, 0.0f), weighted_.assign(row_, 0.0f);
  }
  const auto weight = static_cast<float>(position + 1);
  weights_ += weight;
  for (size_t i = 0; i < row_; ++i) {
    most_[i] = std::max(most_[i], row[i]);
    sum_[i] += row[i];
    weighted_[i] += weight * row[i];
  }
}

std::vector<float> Pooler::finish() {
  std::vector<float> out = result();
  for (size_t i = 0; i < out.size(); ++i)
    if (!std::isfinite(out[i]))
      fail("number {} of the model's result is {}", i, std::isnan(out[i]) ? "nan" : "infinite");
  return out;
}

std::vector<float> Pooler::result() const {
  if (plan_.needs_logits()) {
    const float score = last_.at(static_cast<size_t>(*plan_.yes)) -
                        (plan_.no ? last_.at(static_cast<size_t>(*plan_.no)) : 0.0f);
    return {plan_.sigmoid ? 1.0f / (1.0f + std::exp(-score)) : score};
  }
  if (plan_.scores) {
    float score = 0;
    for (size_t i = 0; i < row_; ++i) score = std::fma(plan_.head[i], last_[i], score);
    return {plan_.sigmoid ? 1.0f / (1.0f + std::exp(-score)) : score};
  }
  std::vector<float> out;
  const auto append = [&](const std::vector<float>& v, float divisor) {
    for (size_t i = 0; i < row_; ++i) out.push_back(i < v.size() ? v[i] / divisor : 0.0f);
  };
  const float count = static_cast<float>(std::max<size_t>(1, counted_));
  for (const PoolingMode mode : plan_.modes) {
    if (mode == PoolingMode::kCls) append(first_, 1);
    if (mode == PoolingMode::kMax) append(most_, 1);
    if (mode == PoolingMode::kMean) append(sum_, count);
    if (mode == PoolingMode::kMeanSqrt) append(sum_, std::sqrt(count));
    if (mode == PoolingMode::kWeightedMean) append(weighted_, std::max(weights_, 1.0f));
    if (mode == PoolingMode::kLast) append(last_, 1);
  }
  for (const PooledLayer& layer : plan_.layers) out = layer(std::move(out));
  if (plan_.normalize) cut_vector(out, out.size(), /*normalize=*/true);
  return out;
}

std::vector<float> PooledLayer::operator()(std::vector<float> x) const {
  if (unit) cut_vector(x, x.size(), /*normalize=*/true);
  // Computes y column by column, so that the compiler can vectorize over outputs; sums are in the
  // order of inputs.
  const auto times = [&](const std::vector<float>& w, std::vector<float>& y) {
    for (size_t i = 0; i < in; ++i)
      for (size_t o = 0; o < out; ++o) y[o] += x[i] * w[i * out + o];
  };
  std::vector<float> y(out, 0.0f);
  times(weight, y);
  for (size_t o = 0; o < bias.size(); ++o) y[o] += bias[o];
  for (float& v : y) v = kActivations[static_cast<size_t>(activation)].function(v);
  if (!projected.empty())
    times(projected, y);
  else if (residual)
    for (size_t o = 0; o < out; ++o) y[o] += x[o];
  return y;
}

void cut_vector(std::vector<float>& vector, size_t dimensions, bool normalize) {
  vector.resize(std::min(dimensions, vector.size()));
  if (!normalize) return;
  double squares = 0;
  for (const float x : vector) squares += double{x} * x;
  const auto length = static_cast<float>(std::max(std::sqrt(squares), 1e-12));
  for (float& x : vector) x /= length;
}

}  // namespace moebius
