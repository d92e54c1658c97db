// SPDX-License-Identifier: Apache-2.0
// Matches regular expressions from configs with the semantics of Python's re.match: anchored at the
// start, free at the end. Patterns are untrusted: length, steps, depth and memory are bounded, and
// every failure is an Error that names the pattern.
#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace moebius {

class Regex {
 public:
  // Compiles the pattern. `where` names the config's field in messages:
  // "quantization_config.ignore[3]". Throws Error.
  Regex(std::string_view pattern, std::string_view where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  // Returns true if the pattern matches at the start; thread-safe.
  bool matches_start(std::string_view subject) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moebius
