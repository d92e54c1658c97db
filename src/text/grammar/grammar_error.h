// SPDX-License-Identifier: Apache-2.0
// What is wrong with a schema, a regular expression or a grammar of a stranger, and how much work
// one may cost. Work is counted, not timed: the same text is refused on every machine.
#pragma once
#include <cstddef>
#include <string>
#include <utility>

#include "base/error.h"

namespace moebius {

class GrammarError : public Error {
 public:
  // `where`: a path within the schema ("properties.a.pattern"); empty: all of it.
  GrammarError(std::string word, const std::string& what, std::string where = {})
      : Error(what), code(std::move(word)), path(std::move(where)) {}
  std::string code;  // unsupported_keyword, schema_too_complex, empty_schema, invalid_schema, ...
  std::string path;
};

// Of one grammar.
struct GrammarLimits {
  size_t states = 20000;    // of all automata
  size_t nodes = 200000;    // of all rules
  size_t work = 6'000'000;  // steps of a few nanoseconds
  // The limit for compiling beside other requests: ten milliseconds. More is compiled apart.
  static GrammarLimits quick() { return {.work = 500'000}; }
};

class GrammarBudget {
 public:
  explicit GrammarBudget(const GrammarLimits& limits = {}) : limits_(limits) {}
  const std::string& path() const { return path_; }
  void at(std::string path) { path_ = std::move(path); }  // what the work is for

  void work(size_t steps) {
    if ((spent_ += steps) > limits_.work) too_complex("takes too much work");
  }
  void states(size_t count) {
    if ((states_ += count) > limits_.states) too_complex("needs too many states");
  }
  void check_states(size_t count) const {
    if (states_ + count > limits_.states) too_complex("needs too many states");
  }
  void nodes(size_t count) {
    if ((nodes_ += count) > limits_.nodes) too_complex("needs too many rules");
  }
  size_t spent() const { return spent_; }
  [[noreturn]] void too_complex(const std::string& why) const {
    throw GrammarError("schema_too_complex",
                       path_.empty() ? "this " + why : printable(path_) + " " + why, path_);
  }

 private:
  GrammarLimits limits_;
  size_t spent_ = 0, states_ = 0, nodes_ = 0;
  std::string path_;
};

}  // namespace moebius
