// SPDX-License-Identifier: Apache-2.0
// Regular expressions from configs, with the meaning of Python's re.match: anchored at the start,
// free at the end. Patterns come from strangers: length, steps, depth and memory are bounded, and
// every failure is an Error that names the pattern.
#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace moebius {

class Regex {
 public:
  // `where` names the field in messages: "quantization_config.ignore[3]".
  Regex(std::string_view pattern, std::string_view where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  bool matches_start(std::string_view subject) const;  // thread-safe

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moebius
