// SPDX-License-Identifier: Apache-2.0
// What an answer was asked to be, in the words of a request: a part of a grammar, or all of it.
#pragma once
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/grammar/grammar.h"

namespace moebius {

struct AnswerFormat {
  enum class Kind : uint8_t { kFree, kObject, kSchema, kRegex, kChoice };
  Kind kind = Kind::kFree;
  Json schema;
  std::string regex;
  std::vector<std::string> choices;
  std::string path;  // of it in the request, for errors

  bool given() const { return kind != Kind::kFree; }
  GrammarBuilder::Rule add_to(GrammarBuilder& builder) const;
  std::string key() const;  // equal for equal formats
};
// From texts that a program gives: one of them at most is not empty. Throws GrammarError.
AnswerFormat format_of_texts(const std::string& json_schema, const std::string& regex,
                             std::vector<std::string> choice);
// Throws GrammarError.
GrammarPtr compile(const AnswerFormat& format, const GrammarLimits& limits = {});

// Grammars that were compiled lately; the least used go first. Safe to use from several threads.
class GrammarCache {
 public:
  explicit GrammarCache(size_t most_bytes = size_t{64} << 20) : most_bytes_(most_bytes) {}
  GrammarPtr get(const AnswerFormat& format, const GrammarLimits& limits = {});
  // Of another kind: `make` is called where there is none under this key.
  GrammarPtr get(const std::string& key, const std::function<GrammarPtr()>& make);

 private:
  struct Kept {
    std::string key;
    GrammarPtr grammar;
  };
  const size_t most_bytes_;
  std::mutex mutex_;
  size_t bytes_ = 0;
  std::list<Kept> kept_;  // last used first
  std::unordered_map<std::string, std::list<Kept>::iterator> index_;
};

}  // namespace moebius
