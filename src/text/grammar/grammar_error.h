// SPDX-License-Identifier: Apache-2.0
// Defines errors of untrusted schemas, regular expressions and grammars, and limits of the work
// that they may cause. Work is counted, not timed: a text is refused on all machines or on none.
#pragma once
#include <cstddef>
#include <string>
#include <utility>

#include "base/error.h"

namespace moebius {

class GrammarError : public Error {
 public:
  // `where`: path within the schema ("properties.a.pattern"); empty: the whole.
  GrammarError(std::string word, const std::string& what, std::string where = {})
      : Error(what), code(std::move(word)), path(std::move(where)) {}
  std::string code;  // unsupported_keyword, schema_too_complex, empty_schema, invalid_schema, ...
  std::string path;
};

// Limits for compiling one grammar.
struct GrammarLimits {
  size_t states = 20000;    // most states of all automata together
  size_t nodes = 200000;    // most nodes of all rules together
  size_t work = 6'000'000;  // most steps of a few nanoseconds each
  // Returns the limits for compiling on the serving thread: about ten milliseconds. Larger grammars
  // are compiled on another thread.
  static GrammarLimits quick() { return {.work = 500'000}; }
};

class GrammarBudget {
 public:
  explicit GrammarBudget(const GrammarLimits& limits = {}) : limits_(limits) {}
  const std::string& path() const { return path_; }
  // Sets the path for errors of the following work.
  void at(std::string path) { path_ = std::move(path); }

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
