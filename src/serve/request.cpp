// SPDX-License-Identifier: Apache-2.0
// Fields that both generating endpoints share, then those of each.
#include "serve/request.h"

#include <fmt/core.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "serve/api_error.h"
#include "serve/fields.h"

namespace moebius {
namespace {

constexpr size_t kBodyDepth = 64;
constexpr size_t kMostPrompts = 128, kMostChoices = 16;
constexpr size_t kMostStops = 32, kStopBytes = 1024, kMostBiases = 1024;
constexpr int64_t kMostLogprobs = 20;
constexpr int64_t kMostTokens = int64_t{1} << 31;

// What is known but not offered: better refused than silently left out.
void refuse_fields(const Fields& f) {
  for (const char* name :
       {"structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"})
    if (f.has(name))
      throw ApiError(400, "unsupported",
                     fmt::format("{}: structured output is not offered yet", name), name);
  if (const Json* format = f.find("response_format")) {
    const Json* type = format->find("type");
    if (!format->is_object() || type == nullptr || !type->is_string())
      invalid("response_format", "response_format is not an object with a type");
    if (type->as_string() != "text")
      throw ApiError(400, "unsupported", "response_format.type: only \"text\" is offered yet",
                     "response_format.type");
  }
  for (const char* name : {"tools", "functions"})
    if (const Json* list = f.find(name);
        list != nullptr && !(list->is_array() && list->items().empty()))
      throw ApiError(400, "unsupported", fmt::format("{}: tools are not offered yet", name), name);
  if (const Json* choice = f.find("tool_choice");
      choice != nullptr && !(choice->is_string() && choice->as_string() == "none"))
    throw ApiError(400, "unsupported", "tool_choice: tools are not offered yet", "tool_choice");
  for (const char* name : {"parallel_tool_calls", "function_call"})
    if (f.has(name))
      throw ApiError(400, "unsupported", fmt::format("{}: tools are not offered yet", name), name);
  if (f.has("chat_template"))
    throw ApiError(400, "unsupported", "chat_template: templates come with the model only",
                   "chat_template");
  for (const char* name : {"audio", "web_search_options"})
    if (f.has(name))
      throw ApiError(400, "unsupported", fmt::format("{} is not offered", name), name);
  if (const Json* kinds = f.find("modalities"))
    if (!kinds->is_array() || kinds->items().size() != 1 || !kinds->items()[0].is_string() ||
        kinds->items()[0].as_string() != "text")
      throw ApiError(400, "unsupported", "modalities: only [\"text\"] is offered", "modalities");
  if (f.has("logits_processors"))
    throw ApiError(400, "unsupported", "logits_processors are not offered", "logits_processors");
  if (f.boolean("use_beam_search", false))
    throw ApiError(400, "unsupported", "use_beam_search: beam search is not offered",
                   "use_beam_search");
}

uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

void read_sampling(const Fields& f, const GenerationDefaults& d, GenerationRequest& g) {
  const auto as_float = [](double v) { return static_cast<float>(v); };
  g.temperature = as_float(f.number("temperature", 0, 100).value_or(d.temperature.value_or(1)));
  g.top_p = as_float(f.number("top_p", 0, 1).value_or(d.top_p.value_or(1)));
  g.top_k = static_cast<int>(f.integer("top_k", -1, 1 << 30).value_or(d.top_k.value_or(0)));
  g.top_k = std::max(g.top_k, 0);  // -1 is vLLM's word for all
  g.min_p = as_float(f.number("min_p", 0, 1).value_or(d.min_p.value_or(0)));
  g.repetition_penalty = as_float(
      f.number("repetition_penalty", 0.01, 100).value_or(d.repetition_penalty.value_or(1)));
  g.presence_penalty = as_float(f.number("presence_penalty", -100, 100).value_or(0));
  g.frequency_penalty = as_float(f.number("frequency_penalty", -100, 100).value_or(0));
  const auto seed = f.integer("seed", INT64_MIN, INT64_MAX);
  g.seed = seed ? static_cast<uint64_t>(*seed) : random_seed();
}

void read_bias(const Fields& f, size_t vocab, GenerationRequest& g) {
  const Json* bias = f.find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) wrong_type(*bias, "logit_bias", "an object");
  if (bias->members().size() > kMostBiases)
    invalid("logit_bias", fmt::format("logit_bias has {} entries; expected at most {}",
                                      bias->members().size(), kMostBiases));
  for (const auto& [key, value] : bias->members()) {
    const std::string path = "logit_bias." + printable(key, 40);
    const bool digits = !key.empty() && key.size() < 10 && (key[0] != '0' || key.size() == 1) &&
                        key.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || std::stoul(key) >= vocab)
      throw ApiError(400, "unknown_token",
                     fmt::format("{}: there is no such token; ids are below {}", path, vocab),
                     path);
    if (!value.is_number()) wrong_type(value, path, "a number");
    const double v = value.as_double();
    if (!(v >= -100 && v <= 100))
      throw ApiError(400, "out_of_range",
                     fmt::format("{} is {}; expected -100 to 100", path, value.dump()), path);
    g.logit_bias.emplace_back(std::stoi(key), static_cast<float>(v));
  }
}

void read_stops(const Fields& f, const ServedModel& model, GenerationRequest& g) {
  if (const Json* stop = f.find("stop")) {
    if (!stop->is_string() && !stop->is_array())
      wrong_type(*stop, "stop", "a string or an array of strings");
    const std::vector<Json> one = {*stop};
    const std::vector<Json>& list = stop->is_array() ? stop->items() : one;
    if (list.size() > kMostStops)
      invalid("stop",
              fmt::format("stop has {} strings; expected at most {}", list.size(), kMostStops));
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string path = stop->is_array() ? fmt::format("stop[{}]", i) : "stop";
      if (!list[i].is_string()) wrong_type(list[i], path, "a string");
      const size_t bytes = list[i].as_string().size();
      if (bytes == 0 || bytes > kStopBytes)
        throw ApiError(400, "out_of_range",
                       fmt::format("{} has {} bytes; expected 1 to {}", path, bytes, kStopBytes),
                       path);
      g.stops.push_back(list[i].as_string());
    }
  }
  const auto& more = model.defaults.stop_strings;
  g.stops.insert(g.stops.end(), more.begin(), more.end());
  if (!f.boolean("ignore_eos", false)) g.stop_tokens = model.defaults.eos;
  if (const Json* ids = f.find("stop_token_ids")) {
    if (!ids->is_array()) wrong_type(*ids, "stop_token_ids", "an array of token ids");
    if (ids->items().size() > kMostBiases)
      invalid("stop_token_ids", "stop_token_ids has more than 1024 entries");
    for (size_t i = 0; i < ids->items().size(); ++i)
      g.stop_tokens.push_back(
          static_cast<int32_t>(integer_at(ids->items()[i], fmt::format("stop_token_ids[{}]", i), 0,
                                          static_cast<int64_t>(model.vocab) - 1)));
  }
  g.include_stop = f.boolean("include_stop_str_in_output", false);
  g.skip_special = f.boolean("skip_special_tokens", true);
}

void read_stream(const Fields& f, ApiRequest& r) {
  r.stream = f.boolean("stream", false);
  const Json* options = f.find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) wrong_type(*options, "stream_options", "an object");
  if (!r.stream) invalid("stream_options", "stream_options is given without stream");
  const Fields o(*options, "stream_options");
  r.include_usage = o.boolean("include_usage", false);
  r.continuous_usage = o.boolean("continuous_usage_stats", false);
}

ApiRequest read_common(const Fields& f, const ServedModel& model) {
  ApiRequest r;
  if (const auto name = f.string("model")) check_model_name(*name, model);
  refuse_fields(f);
  GenerationRequest& g = r.generation;
  read_sampling(f, model.defaults, g);
  read_bias(f, model.vocab, g);
  read_stops(f, model, g);
  read_stream(f, r);
  const auto most = static_cast<int64_t>(std::min(kMostChoices, model.slots));
  const int64_t n = f.integer("n", 1, most).value_or(1);
  g.choices = static_cast<size_t>(n);
  if (const auto best = f.integer("best_of", 0, INT32_MAX); best && *best != n)
    invalid("best_of", fmt::format("best_of is {}; only that of n ({}) is offered", *best, n));
  g.min_new = static_cast<size_t>(f.integer("min_tokens", 0, kMostTokens).value_or(0));
  if (const auto priority = f.integer("priority", INT32_MIN, INT32_MAX);
      priority && *priority != 0) {
    if (!model.priorities) invalid("priority", "priority: this server runs without --priorities");
    g.priority = static_cast<int>(*priority);
  }
  if (const auto salt = f.string("cache_salt")) {
    if (salt->size() > kStopBytes) invalid("cache_salt", "cache_salt is longer than 1024 bytes");
    g.salt = *salt;
  }
  r.return_token_ids = f.boolean("return_token_ids", false);
  return r;
}

void read_length(const Fields& f, std::string_view name, ApiRequest& r, bool zero) {
  const auto n = f.integer(name, zero ? 0 : 1, kMostTokens);
  if (n) r.max_tokens = static_cast<size_t>(*n);
  if (r.max_tokens && r.generation.min_new > *r.max_tokens)
    invalid("min_tokens", fmt::format("min_tokens is {}, more than {} ({})", r.generation.min_new,
                                      name, *r.max_tokens));
}

std::vector<int32_t> token_ids(const Json& list, const std::string& path, size_t vocab) {
  std::vector<int32_t> ids;
  ids.reserve(list.items().size());
  for (size_t i = 0; i < list.items().size(); ++i)
    ids.push_back(static_cast<int32_t>(integer_at(list.items()[i], fmt::format("{}[{}]", path, i),
                                                  0, static_cast<int64_t>(vocab) - 1)));
  return ids;
}

std::vector<PromptInput> read_prompts(const Fields& f, size_t vocab) {
  const Json* prompt = f.find("prompt");
  if (prompt == nullptr) throw ApiError(400, "missing", "prompt is missing", "prompt");
  if (prompt->is_string()) return {prompt->as_string()};
  if (!prompt->is_array())
    wrong_type(*prompt, "prompt", "a string, strings, token ids or lists of token ids");
  const std::vector<Json>& items = prompt->items();
  if (items.empty()) throw ApiError(400, "empty_prompt", "prompt is empty", "prompt");
  if (items[0].is_number()) return {token_ids(*prompt, "prompt", vocab)};
  if (items.size() > kMostPrompts)
    invalid("prompt", fmt::format("prompt holds {} prompts; expected at most {}", items.size(),
                                  kMostPrompts));
  std::vector<PromptInput> out;
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string path = fmt::format("prompt[{}]", i);
    if (items[i].kind() != items[0].kind() || !(items[i].is_string() || items[i].is_array()))
      wrong_type(items[i], path, items[0].is_array() ? "a list of token ids" : "a string");
    if (items[i].is_string())
      out.emplace_back(items[i].as_string());
    else
      out.emplace_back(token_ids(items[i], path, vocab));
  }
  return out;
}

}  // namespace

std::string ServedModel::fingerprint() const {
  return fmt::format("moebius-{}-{}", version, commit.substr(0, 8));
}

void check_model_name(const std::string& name, const ServedModel& model) {
  const auto& more = model.aliases;
  if (model.any_model || name == model.name ||
      std::find(more.begin(), more.end(), name) != more.end())
    return;
  throw ApiError(404, "model_not_found",
                 fmt::format("the model '{}' is not served here; this is '{}'",
                             printable(name, 100), model.name),
                 "model");
}

Json parse_body(std::string_view text) {
  Json body;
  try {
    body = parse_json_strictly(text, "the body", kBodyDepth);
  } catch (const Error& e) {
    throw ApiError(400, "invalid_json", e.what());
  }
  if (!body.is_object())
    throw ApiError(400, "invalid_type",
                   fmt::format("the body is {}; expected an object", kind_name(body.kind())));
  return body;
}

ApiRequest parse_completion_request(const Json& body, const ServedModel& model) {
  const Fields f(body, "");
  ApiRequest r = read_common(f, model);
  r.prompts = read_prompts(f, model.vocab);
  r.add_special = f.boolean("add_special_tokens", true);
  r.echo = f.boolean("echo", false);
  if (const auto suffix = f.string("suffix"); suffix && !suffix->empty())
    throw ApiError(400, "unsupported", "suffix is not offered", "suffix");
  r.max_tokens = 16;
  if (!f.has("max_tokens") && r.generation.min_new > 16) r.max_tokens = r.generation.min_new;
  read_length(f, "max_tokens", r, r.echo);
  if (const auto n = f.integer("logprobs", 0, kMostLogprobs)) {
    r.generation.logprobs = static_cast<int>(*n);
    r.generation.prompt_logprobs = r.echo;
  }
  return r;
}

ApiRequest parse_chat_request(const Json& body, const ServedModel& model) {
  const Fields f(body, "");
  ApiRequest r = read_common(f, model);
  r.chat = true;
  read_messages(body, r);
  r.add_special = f.boolean("add_special_tokens", false);
  read_length(f, "max_tokens", r, false);
  read_length(f, "max_completion_tokens", r, false);
  const auto top = f.integer("top_logprobs", 0, kMostLogprobs);
  if (f.boolean("logprobs", false))
    r.generation.logprobs = static_cast<int>(top.value_or(0));
  else if (top && *top > 0)
    invalid("top_logprobs", "top_logprobs is given without logprobs");
  return r;
}

}  // namespace moebius
