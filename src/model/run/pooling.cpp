// SPDX-License-Identifier: Apache-2.0
#include "model/run/pooling.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/formats/format.h"
#include "model/run/step_runner.h"

namespace moebius {
namespace {

constexpr uint64_t kMaxSettings = 1 << 20;

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

// Reads the way of pooling: a word, a list of one, or the fields of older versions.
void read_mode(const Json& config, const std::string& where, size_t hidden, PoolingPlan& plan) {
  const Json* mode = config.find("pooling_mode");
  if (mode != nullptr && mode->is_array() && mode->items().size() == 1) mode = &mode->items()[0];
  std::string word = mode != nullptr && mode->is_string() ? mode->as_string() : "";
  if (mode == nullptr) {
    constexpr std::string_view kFlag = "pooling_mode_";
    for (const auto& [name, value] : config.members())
      if (name.starts_with(kFlag) && value.is_bool() && value.as_bool())
        word += name.substr(kFlag.size());
    if (word.empty() || word == "mean_tokens") word = "mean";
  }
  if (word != "mean" && word != "lasttoken")
    fail("{}: pooling_mode is {}; expected mean or lasttoken", printable(where),
         mode != nullptr ? printable(mode->dump(), 80) : printable(word, 80));
  plan.mean = word == "mean";
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
  bool pools = false;
  for (const Json& m : modules.items()) {
    const std::string type = text(m, "type"), path = text(m, "path");
    const std::string kind = type.substr(type.rfind('.') + 1), where = join_path(folder, path);
    if (path.find("..") != std::string::npos || path.starts_with('/'))
      fail("{}: the path '{}' leads out of the folder", printable(modules_path), printable(path));
    if (kind == "Pooling" && !pools && !plan.normalize) {
      pools = true;
      read_mode(settings(where, "config.json"), where, hidden, plan);
    } else if (kind == "Normalize") {
      plan.normalize = true;
    } else if (kind == "LogitScore") {
      const Json tokens = settings(where, "config.json");
      plan.scores = true;
      plan.yes = token_id(tokens, "true_token_id", where, source.vocab);
      if (const Json* no = tokens.find("false_token_id"); no != nullptr && !no->is_null())
        plan.no = token_id(tokens, "false_token_id", where, source.vocab);
    } else if (kind != "Transformer" || !path.empty()) {
      fail(
          "{}: the module {} is not offered here; Transformer, then Pooling and Normalize, or "
          "LogitScore are",
          printable(modules_path), printable(type));
    }
  }
  if (!plan.scores && !pools)
    fail("{}: has no module Pooling or LogitScore", printable(modules_path));
  if (!plan.scores) read_truncation(config, hidden, plan);
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
  if (counted_++ == 0) sum_.assign(row_, 0.0f);
  for (size_t i = 0; i < row_; ++i) sum_[i] += row[i];
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
  std::vector<float> out = plan_.mean ? sum_ : last_;
  out.resize(row_);
  if (plan_.mean)
    for (float& v : out) v /= static_cast<float>(std::max<size_t>(1, counted_));
  if (plan_.normalize) cut_vector(out, out.size(), /*normalize=*/true);
  return out;
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
