// SPDX-License-Identifier: Apache-2.0
#include "text/grammar/answer_format.h"

#include <fmt/core.h>

#include "text/grammar/json_text.h"

namespace moebius {

GrammarBuilder::Rule AnswerFormat::add_to(GrammarBuilder& builder) const {
  switch (kind) {
    case Kind::kObject:
      return builder.json_object();
    case Kind::kSchema:
      return builder.schema(schema, path);
    case Kind::kRegex:
      return builder.regex(regex, path);
    case Kind::kChoice: {
      builder.budget().at(path);
      size_t bytes = 0;
      for (const std::string& w : choices) bytes += w.size() + 1;
      if (bytes > kMostGrammarBytes) builder.budget().too_complex("is longer than 64 KiB");
      if (choices.empty())
        throw GrammarError("empty_schema", "there is nothing to choose from", path);
      return builder.words(choices);
    }
    case Kind::kFree:
      break;
  }
  return builder.text_until({});
}

std::string AnswerFormat::key() const {
  std::string out = fmt::format("{} {} ", static_cast<int>(kind), path);
  if (kind == Kind::kSchema) out += compact_json(schema);
  if (kind == Kind::kRegex) out += regex;
  for (const std::string& c : choices) out += fmt::format("{}:{}", c.size(), c);
  return out;
}

AnswerFormat format_of_texts(const std::string& json_schema, const std::string& regex,
                             std::vector<std::string> choice) {
  AnswerFormat f;
  const auto take = [&](AnswerFormat::Kind kind, const char* path) {
    if (f.given())
      throw GrammarError("conflict", fmt::format("{} and {} cannot both be given", f.path, path),
                         path);
    f.kind = kind;
    f.path = path;
  };
  if (!json_schema.empty()) {
    take(AnswerFormat::Kind::kSchema, "json_schema");
    if (json_schema.size() > 4 * kMostGrammarBytes)
      throw GrammarError("schema_too_complex", "json_schema is longer than 64 KiB", f.path);
    try {
      f.schema = parse_json_strictly(json_schema, "json_schema");
    } catch (const Error& e) {
      throw GrammarError("invalid_schema", e.what(), f.path);
    }
  }
  if (!regex.empty()) {
    take(AnswerFormat::Kind::kRegex, "regex");
    f.regex = regex;
  }
  if (!choice.empty()) {
    take(AnswerFormat::Kind::kChoice, "choice");
    f.choices = std::move(choice);
  }
  return f;
}

GrammarPtr compile(const AnswerFormat& format, const GrammarLimits& limits) {
  if (format.kind == AnswerFormat::Kind::kObject) return grammar_from_json_object();
  GrammarBuilder builder(nullptr, limits);
  return builder.build(format.add_to(builder));
}

GrammarPtr GrammarCache::get(const AnswerFormat& format, const GrammarLimits& limits) {
  return get(format.key(), [&] { return compile(format, limits); });
}

GrammarPtr GrammarCache::get(const std::string& key, const std::function<GrammarPtr()>& make) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = index_.find(key); it != index_.end()) {
      kept_.splice(kept_.begin(), kept_, it->second);
      return it->second->grammar;
    }
  }
  GrammarPtr grammar = make();
  const std::lock_guard lock(mutex_);
  if (index_.contains(key) || grammar->bytes() > most_bytes_) return grammar;
  kept_.push_front({key, grammar});
  index_.emplace(key, kept_.begin());
  bytes_ += grammar->bytes() + kept_.front().key.size();
  while (bytes_ > most_bytes_) {
    bytes_ -= kept_.back().grammar->bytes() + kept_.back().key.size();
    index_.erase(kept_.back().key);
    kept_.pop_back();
  }
  return grammar;
}

}  // namespace moebius
