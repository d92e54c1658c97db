// SPDX-License-Identifier: Apache-2.0
// Implements the commands tokenize and detokenize: text to ids on one line, ids to text.
#pragma once
#include <iosfwd>
#include <optional>
#include <string>

namespace moebius {

struct TokenizeOptions {
  std::string folder;
  // Text to encode; unset: the file, and without a file standard input.
  std::optional<std::string> text;
  std::optional<std::string> file;
  bool add_special = true;  // true: add what the post-processor adds
  bool json = false;        // true: print {"ids": [...], "tokens": [...], "count": n}
};
int run_tokenize(const TokenizeOptions& options, std::istream& in, std::ostream& out);

struct DetokenizeOptions {
  std::string folder;
  std::optional<std::string> ids;  // ids separated by commas or white space; unset: standard input
  bool special = false;            // true: write special tokens, too
  bool json = false;               // true: print {"text": "..."}
};
int run_detokenize(const DetokenizeOptions& options, std::istream& in, std::ostream& out);

}  // namespace moebius
