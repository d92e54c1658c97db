// SPDX-License-Identifier: Apache-2.0
// Reads the fields that both generating endpoints share, then those of each.
#include "serve/request.h"

#include <fmt/core.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "serve/body_fields.h"
#include "serve/tools.h"

namespace moebius {
namespace {

constexpr size_t kStopBytes = 1024, kBadWordBytes = 128;
constexpr int64_t kMostDrafted = 16;

uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

void read_number(const BodyFields& f, std::string_view name, float& to) {
  if (const auto v = f.number(name)) to = static_cast<float>(*v);
}
void read_number(const BodyFields& f, std::string_view name, int& to) {
  if (const auto v = f.integer(name)) to = std::max(static_cast<int>(*v), 0);
}

void read_sampling(const BodyFields& f, const GenerationDefaults& d, SamplingParams& g) {
  g.temperature = static_cast<float>(d.temperature.value_or(1));
  g.top_p = static_cast<float>(d.top_p.value_or(1));
  g.top_k = static_cast<int>(d.top_k.value_or(0));
  g.min_p = static_cast<float>(d.min_p.value_or(0));
  g.repetition_penalty = static_cast<float>(d.repetition_penalty.value_or(1));
#define MOEBIUS_SAMPLING_NUMBER(type, name, none, least, greatest) read_number(f, #name, g.name);
#include "base/sampling_numbers.inc"
  const auto seed = f.integer("seed");
  g.seed = seed ? static_cast<uint64_t>(*seed) : random_seed();
}

void read_bias(const Fields& f, size_t vocab, Request& g) {
  const Json* bias = f.object("logit_bias");
  if (bias == nullptr) return;
  for (const auto& [key, value] : bias->members()) {
    const std::string path = "logit_bias." + printable(key, 40);
    const bool digits = !key.empty() && key.size() < 10 && (key[0] != '0' || key.size() == 1) &&
                        key.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || std::stoul(key) >= vocab)
      refuse("unknown_token", path, "{}: there is no such token; ids are below {}", path, vocab);
    if (!value.is_number()) wrong_type(value, path, "a number");
    const double v = value.as_double();
    if (!(v >= -100 && v <= 100))
      refuse("out_of_range", path, "{} is {}; expected -100 to 100", path, value.dump());
    g.sampling.logit_bias.push_back({std::stoi(key), static_cast<float>(v)});
  }
}

void read_stops(const Fields& f, const RequestBody& body, const ServedModel& model, Request& g) {
  g.text.stops = f.strings("stop", kStopBytes, true);
  const auto& more = model.defaults.stop_strings;
  g.text.stops.insert(g.text.stops.end(), more.begin(), more.end());
  g.text.end_tokens = model.defaults.eos;
  if (!f.boolean("ignore_eos", false)) g.stop_tokens = model.defaults.eos;
  if (const auto* ids = body.ids("stop_token_ids"))
    g.stop_tokens.insert(g.stop_tokens.end(), ids->begin(), ids->end());
  g.text.include_stop = f.boolean("include_stop_str_in_output", false);
  g.text.skip_special = f.boolean("skip_special_tokens", true);
}

// Reads which tokens may be chosen, and which words may not appear.
void read_constraints(const Fields& f, const RequestBody& body, ApiRequest& r) {
  if (const auto* ids = body.ids("allowed_token_ids")) {
    if (ids->empty())
      invalid("allowed_token_ids", "allowed_token_ids is empty: no token could be chosen");
    r.generation.sampling.allowed_tokens = *ids;
  }
  r.bad_words = f.strings("bad_words", kBadWordBytes);
}

// Reads how many tokens may be drafted, and from what besides the text itself.
void read_drafts(const Fields& f, ApiRequest& r) {
  if (const Json* speculate = f.find("speculate")) {
    if (speculate->is_object()) {
      const Fields o(*speculate, "speculate");
      if (const auto most = o.integer("max", 0, kMostDrafted))
        r.generation.drafts = static_cast<size_t>(*most);
    } else if (!f.boolean("speculate", true)) {
      r.generation.drafts = 0;
    }
  }
  const Json* prediction = f.object("prediction");
  if (prediction == nullptr) return;
  const Fields p(*prediction, "prediction");
  if (const auto type = p.string("type"); type && *type != "content")
    invalid("prediction.type", "prediction.type is '{}'; expected 'content'", *type);
  const Json* content = p.find("content");
  if (content == nullptr) invalid("prediction.content", "prediction.content is missing");
  r.prediction = content_text(*content, "prediction.content");
}

// Reads the log-probabilities of the prompt, which need an answer without a stream.
void read_prompt_logprobs(const BodyFields& f, ApiRequest& r) {
  const auto n = f.integer("prompt_logprobs");
  if (!n) return;
  if (r.stream) invalid("prompt_logprobs", "prompt_logprobs are not offered with stream");
  r.prompt_logprobs = static_cast<int>(*n);
  r.generation.prompt_logprobs = std::max(r.generation.prompt_logprobs, *r.prompt_logprobs);
}

void read_stream(const Fields& f, ApiRequest& r) {
  r.stream = f.boolean("stream", false);
  const Json* options = f.object("stream_options");
  if (options == nullptr) return;
  if (!r.stream) invalid("stream_options", "stream_options is given without stream");
  const Fields o(*options, "stream_options");
  r.include_usage = o.boolean("include_usage", false);
  r.continuous_usage = o.boolean("continuous_usage_stats", false);
}

}  // namespace

ApiRequest read_common(const RequestBody& body, const ServedModel& model) {
  const BodyFields f(body);
  refuse_fields(f, body.endpoint);
  ApiRequest r;
  r.endpoint = body.endpoint;
  r.chat = body.endpoint != Endpoint::kCompletion;
  r.add_special = !r.chat;
  if (const auto name = f.string("model")) check_model_name(*name, model);
  Request& g = r.generation;
  read_sampling(f, model.defaults, g.sampling);
  read_bias(f, model.vocab, g);
  read_stops(f, body, model, g);
  read_constraints(f, body, r);
  read_drafts(f, r);
  read_stream(f, r);
  read_prompt_logprobs(f, r);
  const int64_t n = f.integer("n", 1, static_cast<int64_t>(model.slots)).value_or(1);
  g.n = static_cast<size_t>(n);
  if (const auto best = f.integer("best_of"); best && *best != n)
    invalid("best_of", "best_of is {}; only that of n ({}) is offered", *best, n);
  r.min_tokens = static_cast<size_t>(f.integer("min_tokens").value_or(0));
  if (const auto priority = f.integer("priority"); priority && *priority != 0) {
    if (!model.priorities) invalid("priority", "priority: this server runs without --priorities");
    g.priority = static_cast<int>(*priority);
  }
  if (const auto salt = f.string("cache_salt")) {
    if (salt->size() > kStopBytes) invalid("cache_salt", "cache_salt is longer than 1024 bytes");
    g.salt = *salt;
  }
  r.return_token_ids = f.boolean("return_token_ids", false);
  r.format = read_answer_format(f);
  if (r.format.given()) {
    if (f.boolean("ignore_eos", false))
      invalid("ignore_eos", "ignore_eos: an answer in a format ends where the format does");
    if (r.min_tokens > 0)
      invalid("min_tokens", "min_tokens: an answer in a format ends where the format does");
  }
  return r;
}

void read_length(const BodyFields& f, std::string_view name, ApiRequest& r, int64_t least) {
  const auto n = f.integer(name, least);
  if (n) r.max_tokens = static_cast<size_t>(*n);
  if (r.max_tokens && r.min_tokens > *r.max_tokens)
    invalid("min_tokens", "min_tokens is {}, more than {} ({})", r.min_tokens, name, *r.max_tokens);
}

std::string ServedModel::fingerprint() const {
  return fmt::format("moebius-{}-{}", version, commit.substr(0, 8));
}

std::vector<std::string> ServedModel::names() const {
  std::vector<std::string> out = {name};
  out.insert(out.end(), aliases.begin(), aliases.end());
  return out;
}

bool ServedModel::is_called(std::string_view word) const {
  return word == name || std::find(aliases.begin(), aliases.end(), word) != aliases.end();
}

void check_model_name(const std::string& name, const ServedModel& model) {
  if (model.any_model || model.is_called(name)) return;
  throw ApiError(404, "model_not_found",
                 fmt::format("the model '{}' is not served here; this is '{}'",
                             printable(name, 100), model.name),
                 "model");
}

ApiRequest parse_completion_request(RequestBody body, const ServedModel& model) {
  const BodyFields f(body);
  ApiRequest r = read_common(body, model);
  const auto prompts = body.lists.find("prompt");
  if (prompts == body.lists.end()) missing("prompt");
  if (prompts->second.empty()) refuse("empty_prompt", "prompt", "prompt is empty");
  r.prompts = std::move(prompts->second);
  r.add_special = f.boolean("add_special_tokens", true);
  r.echo = f.boolean("echo", false);
  if (const Json* tools = f.find("tools"); tools != nullptr && !tools->items().empty())
    refuse("unsupported", "tools", "tools are offered by /v1/chat/completions only");
  if (const auto suffix = f.string("suffix"); suffix && !suffix->empty())
    refuse("unsupported", "suffix", "suffix is not offered");
  r.max_tokens = 16;
  if (!f.has("max_tokens") && r.min_tokens > 16) r.max_tokens = r.min_tokens;
  read_length(f, "max_tokens", r, r.echo ? 0 : 1);
  if (const auto n = f.integer("logprobs")) {
    r.generation.sampling.logprobs = static_cast<int>(*n);
    if (r.echo)
      r.generation.prompt_logprobs =
          std::max(r.generation.prompt_logprobs, r.generation.sampling.logprobs);
  }
  return r;
}

ApiRequest parse_chat_request(const RequestBody& body, const ServedModel& model) {
  const BodyFields f(body);
  ApiRequest r = read_common(body, model);
  read_messages(body.fields, r);
  read_tools(f, r, model);
  r.show_reasoning = f.boolean("include_reasoning", true);
  if (const auto budget = f.integer("thinking_token_budget")) {
    if (model.markup.reasoning == nullptr)
      refuse("unsupported", "thinking_token_budget",
             "thinking_token_budget: this model marks no reasoning");
    r.thinking_budget = static_cast<size_t>(*budget);
  }
  if (f.boolean("echo", false))
    refuse("unsupported", "echo", "echo is offered by /v1/completions only");
  r.add_special = f.boolean("add_special_tokens", false);
  read_length(f, "max_tokens", r);
  read_length(f, "max_completion_tokens", r);
  const auto top = f.integer("top_logprobs");
  if (f.boolean("logprobs", false))
    r.generation.sampling.logprobs = static_cast<int>(top.value_or(0));
  else if (top && *top > 0)
    invalid("top_logprobs", "top_logprobs is given without logprobs");
  return r;
}

}  // namespace moebius
