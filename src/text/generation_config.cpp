// SPDX-License-Identifier: Apache-2.0
// Reads each field with the range that sampling accepts.
#include "text/generation_config.h"

#include <algorithm>
#include <cmath>

#include "base/json_shown.h"
#include "gguf/model_files.h"
#include "text/json_fields.h"

namespace moebius {
namespace {

std::optional<double> number(const Json& json, std::string_view key, double low, double high,
                             const std::string& where) {
  if (!has_value(json, key)) return std::nullopt;
  const Json& j = *json.find(key);
  const double v = j.is_number() ? j.as_double() : std::nan("");
  if (!(v >= low && v <= high))
    fail("{}{} is {}; expected a number in {}..{}", where, key, shown(j), low, high);
  return v;
}

std::optional<int64_t> integer(const Json& json, std::string_view key, const std::string& where) {
  if (!has_value(json, key)) return std::nullopt;
  const Json& j = *json.find(key);
  const auto v = j.is_integer() ? j.as_int() : std::nullopt;
  if (!v || *v < 0) fail("{}{} is {}; expected a non-negative integer", where, key, shown(j));
  return v;
}

int32_t checked_id(const Json& j, std::string_view key, uint64_t vocab, const std::string& where) {
  const auto v = j.is_integer() ? j.as_int() : std::nullopt;
  if (!v || *v < 0 || *v > INT32_MAX)
    fail("{}{} holds {}; expected token ids", where, key, shown(j));
  if (vocab > 0 && static_cast<uint64_t>(*v) >= vocab)
    fail("{}{} holds {}, but the vocabulary has {} tokens", where, key, *v, vocab);
  return static_cast<int32_t>(*v);
}

// Adds an id or a list of ids.
void add_ids(const Json& json, std::string_view key, uint64_t vocab, const std::string& where,
             std::vector<int32_t>& out) {
  if (!has_value(json, key)) return;
  const Json& j = *json.find(key);
  if (!j.is_array()) {
    out.push_back(checked_id(j, key, vocab, where));
    return;
  }
  for (const Json& item : j.items()) out.push_back(checked_id(item, key, vocab, where));
}

void add_stop_strings(const Json& json, const std::string& where, std::vector<std::string>& out) {
  if (!has_value(json, "stop_strings")) return;
  const Json& j = *json.find("stop_strings");
  if (j.is_string()) {
    out.push_back(j.as_string());
    return;
  }
  if (!j.is_array()) fail("{}stop_strings is {}; expected strings", where, kind_name(j.kind()));
  for (const Json& s : j.items()) {
    if (!s.is_string())
      fail("{}stop_strings holds {}; expected strings", where, kind_name(s.kind()));
    out.push_back(s.as_string());
  }
}

void read_sampling(const Json& json, const std::string& where, GenerationDefaults& out) {
  out.do_sample = bool_field(json, "do_sample", false, where.substr(0, where.size() - 2));
  out.temperature = number(json, "temperature", 0, 100, where);
  out.top_p = number(json, "top_p", 0, 1, where);
  out.min_p = number(json, "min_p", 0, 1, where);
  out.repetition_penalty = number(json, "repetition_penalty", 1e-6, 1e6, where);
  out.top_k = integer(json, "top_k", where);
  out.max_length = integer(json, "max_length", where);
  out.max_new_tokens = integer(json, "max_new_tokens", where);
  add_stop_strings(json, where, out.stop_strings);
}

void one_id(const Json& json, std::string_view key, uint64_t vocab, const std::string& where,
            std::optional<int32_t>& out) {
  std::vector<int32_t> ids;
  add_ids(json, key, vocab, where, ids);
  if (!out && !ids.empty()) out = ids.front();
}

}  // namespace

GenerationDefaults parse_generation_defaults(
    const Json* generation_config, const Json* config, const Json* tokenizer_config,
    const std::function<std::optional<int32_t>(std::string_view)>& token_id, uint64_t vocab) {
  GenerationDefaults out;
  if (generation_config != nullptr) {
    const std::string where = "generation_config.json: ";
    if (!generation_config->is_object())
      fail("generation_config.json is {}; expected an object",
           kind_name(generation_config->kind()));
    read_sampling(*generation_config, where, out);
    add_ids(*generation_config, "eos_token_id", vocab, where, out.eos);
    one_id(*generation_config, "bos_token_id", vocab, where, out.bos);
    one_id(*generation_config, "pad_token_id", vocab, where, out.pad);
  }
  if (config != nullptr && config->is_object()) {
    // Wrappers for several kinds of input keep the text model's ids in text_config.
    const Json* text = config->find("text_config");
    for (const Json* c : {config, text}) {
      if (c == nullptr || !c->is_object()) continue;
      add_ids(*c, "eos_token_id", vocab, "config.json: ", out.eos);
      one_id(*c, "bos_token_id", vocab, "config.json: ", out.bos);
      one_id(*c, "pad_token_id", vocab, "config.json: ", out.pad);
    }
  }
  if (tokenizer_config != nullptr && token_id) {
    const Json* eos = tokenizer_config->find("eos_token");
    if (eos != nullptr && eos->is_object()) eos = eos->find("content");
    if (eos != nullptr && eos->is_string())
      if (const auto id = token_id(eos->as_string());
          id && (vocab == 0 || static_cast<uint64_t>(*id) < vocab))
        out.eos.push_back(*id);
  }
  std::sort(out.eos.begin(), out.eos.end());
  out.eos.erase(std::unique(out.eos.begin(), out.eos.end()), out.eos.end());
  return out;
}

GenerationDefaults read_generation_defaults(
    const std::string& folder,
    const std::function<std::optional<int32_t>(std::string_view)>& token_id, uint64_t vocab) {
  const auto read = [&](std::string_view name) -> std::optional<Json> {
    const auto found = read_model_text(folder, name, uint64_t{64} << 20);
    return found ? std::optional(parse_json(found->text, found->place)) : std::nullopt;
  };
  const auto generation = read("generation_config.json"), config = read("config.json"),
             tokenizer = read("tokenizer_config.json");
  const auto pointer = [](const std::optional<Json>& j) { return j ? &*j : nullptr; };
  return parse_generation_defaults(pointer(generation), pointer(config), pointer(tokenizer),
                                   token_id, vocab);
}

}  // namespace moebius
