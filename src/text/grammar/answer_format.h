// SPDX-License-Identifier: Apache-2.0
// Describes the form that a request demands of an answer: all of a grammar, or a part of one.
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
  std::string path;  // path of the format within the request, for errors

  bool given() const { return kind != Kind::kFree; }
  GrammarBuilder::Rule add_to(GrammarBuilder& builder) const;
  std::string key() const;  // returns a text that is equal for equal formats
};
// Makes a format from texts of which at most one is not empty. Throws GrammarError.
AnswerFormat format_of_texts(const std::string& json_schema, const std::string& regex,
                             std::vector<std::string> choice);
// Compiles a format to a grammar. Throws GrammarError.
GrammarPtr compile(const AnswerFormat& format, const GrammarLimits& limits = {});

// Keeps recently compiled grammars; the least recently used are dropped first. Thread-safe.
class GrammarCache {
 public:
  explicit GrammarCache(size_t most_bytes = size_t{64} << 20) : most_bytes_(most_bytes) {}
  GrammarPtr get(const AnswerFormat& format, const GrammarLimits& limits = {});
  // Returns the grammar under this key; if there is none, calls `make` and keeps its result.
  GrammarPtr get(const std::string& key, const std::function<GrammarPtr()>& make);

 private:
  struct Kept {
    std::string key;
    GrammarPtr grammar;
  };
  const size_t most_bytes_;
  std::mutex mutex_;
  size_t bytes_ = 0;
  std::list<Kept> kept_;  // most recently used first
  std::unordered_map<std::string, std::list<Kept>::iterator> index_;
};

}  // namespace moebius
