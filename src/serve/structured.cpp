// SPDX-License-Identifier: Apache-2.0
#include "serve/structured.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "serve/body.h"
#include "text/answer/call_grammar.h"

namespace moebius {
namespace {

constexpr size_t kListedChoices = 4096;

AnswerFormat format_at(const std::string& path, AnswerFormat::Kind kind) {
  AnswerFormat f;
  f.kind = kind;
  f.path = path;
  return f;
}

AnswerFormat format_of_regex(const Json& value, const std::string& path) {
  if (!value.is_string()) wrong_type(value, path, "a string");
  AnswerFormat f = format_at(path, AnswerFormat::Kind::kRegex);
  f.regex = value.as_string();
  return f;
}

AnswerFormat format_of_choice(const Json& value, const std::string& path) {
  if (!value.is_array()) wrong_type(value, path, "an array of strings");
  AnswerFormat f = format_at(path, AnswerFormat::Kind::kChoice);
  if (value.items().size() > kListedChoices)
    invalid(path, "{} has more than {} entries", path, kListedChoices);
  for (size_t i = 0; i < value.items().size(); ++i) {
    const Json& v = value.items()[i];
    if (!v.is_string()) wrong_type(v, fmt::format("{}[{}]", path, i), "a string");
    f.choices.push_back(v.as_string());
  }
  return f;
}

AnswerFormat format_of_object(const Json& value, const std::string& path) {
  if (!value.is_bool()) wrong_type(value, path, "a boolean");
  return format_at(path, value.as_bool() ? AnswerFormat::Kind::kObject : AnswerFormat().kind);
}

struct FormatField {
  std::string_view name;
  AnswerFormat (*read)(const Json& value, const std::string& path);
};

// Reads vLLM's fields since version 0.12.
AnswerFormat format_of_outputs(const Json& value, const std::string& path) {
  constexpr FormatField kFields[] = {{"json", format_of_schema},
                                     {"regex", format_of_regex},
                                     {"choice", format_of_choice},
                                     {"json_object", format_of_object}};
  if (!value.is_object()) wrong_type(value, path, "an object");
  AnswerFormat out;
  for (const auto& [name, v] : value.members()) {
    const std::string at = path + "." + printable(name, 40);
    const bool off =
        v.is_null() || (v.is_bool() && !v.as_bool()) || (v.is_string() && v.as_string().empty());
    if (v.is_null()) continue;
    const auto* field = std::find_if(std::begin(kFields), std::end(kFields),
                                     [&n = name](const FormatField& f) { return f.name == n; });
    if (field == std::end(kFields)) {
      if (off) continue;
      refuse("unsupported", at, "{} is not offered", at);
    }
    AnswerFormat one = field->read(v, at);
    if (!one.given()) continue;
    if (out.given()) refuse("conflict", at, "{} and {} cannot both be given", out.path, at);
    out = std::move(one);
  }
  if (!out.given()) invalid(path, "{} names none of json, regex, choice and json_object", path);
  return out;
}

}  // namespace

AnswerFormat format_of_schema(const Json& value, const std::string& path) {
  AnswerFormat f = format_at(path, AnswerFormat::Kind::kSchema);
  f.schema = value;
  if (value.is_string()) {  // a schema written as text
    if (value.as_string().size() > kMostGrammarBytes)
      refuse("schema_too_complex", path, "{} is longer than 64 KiB", path);
    size_t left = kMostBodyValues;
    try {
      f.schema = parse_inner_json(value.as_string(), path, left);
    } catch (const Error& e) {
      refuse("invalid_schema", path, "{}", e.what());
    }
  }
  return f;
}

AnswerFormat format_of_type(const Json& value, const std::string& path) {
  const Json* type = value.find("type");
  if (!value.is_object() || type == nullptr || !type->is_string())
    invalid(path, "{} is not an object with a type", path);
  const std::string& name = type->as_string();
  if (name == "text") return format_at(path, AnswerFormat().kind);
  const Json* schema = value.find("schema");
  std::string at = path + ".schema";
  if (name == "json_object" && schema == nullptr)
    return format_at(path, AnswerFormat::Kind::kObject);
  if (name != "json_object" && name != "json_schema")
    refuse("unsupported", path + ".type",
           "{}.type: only text, json_object and json_schema are offered", path);
  if (const Json* inner = value.find("json_schema"); inner != nullptr && !inner->is_null()) {
    at = path + ".json_schema";
    if (!inner->is_object()) wrong_type(*inner, at, "an object");
    schema = inner->find("schema");
    at += ".schema";
  }
  if (schema == nullptr || schema->is_null()) missing(at);
  return format_of_schema(*schema, at);
}

AnswerFormat read_answer_format(const Fields& fields) {
  constexpr FormatField kFields[] = {
      {"response_format", format_of_type}, {"structured_outputs", format_of_outputs},
      {"guided_json", format_of_schema},   {"guided_regex", format_of_regex},
      {"guided_choice", format_of_choice}, {"json_schema", format_of_schema}};
  AnswerFormat out;
  for (const FormatField& field : kFields) {
    const Json* value = fields.find(field.name);
    if (value == nullptr) continue;
    AnswerFormat one = field.read(*value, std::string(field.name));
    if (!one.given()) continue;
    if (out.given())
      refuse("conflict", std::string(field.name), "{} and {} cannot both be given", out.path,
             field.name);
    out = std::move(one);
  }
  return out;
}

ApiError api_error(const GrammarError& error, const std::string& path) {
  const std::string& where = error.path.empty() ? path : error.path;
  const std::string what = error.what();
  const bool named = what.starts_with(printable(where));
  return {400, error.code, named || where.empty() ? what : printable(where) + ": " + what, where};
}

GrammarPtr compile_format(const AnswerFormat& format, const GrammarLimits& limits,
                          const AnswerRules& rules, const Tokenizer& tokenizer,
                          GrammarCache& cache) {
  if (rules.reasoning == nullptr || rules.start == AnswerStart::kContent)
    return compile_format(format, limits, cache);
  const std::string key =
      fmt::format("{} {} {}", rules.reasoning->name, static_cast<int>(rules.start), format.key());
  try {
    return cache.get(key, [&] {
      GrammarBuilder b(&tokenizer, limits);
      const auto inner = format.add_to(b);
      return b.build(content_rule(b, rules, inner));
    });
  } catch (const GrammarError& e) {
    throw api_error(e, format.path);
  }
}

GrammarPtr compile_format(const AnswerFormat& format, const GrammarLimits& limits,
                          GrammarCache& cache) {
  try {
    return cache.get(format, limits);
  } catch (const GrammarError& e) {
    throw api_error(e, format.path);
  }
}

}  // namespace moebius
