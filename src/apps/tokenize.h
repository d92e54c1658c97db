// SPDX-License-Identifier: Apache-2.0
// Implements the commands tokenize and detokenize: text to ids on one line, ids to text.
#pragma once
#include <iosfwd>
#include <optional>
#include <string>

namespace moebius {

struct TokenizeOptions {
  std::string folder;
  std::optional<std::string> text;  // else the file is read, else standard input
  std::optional<std::string> file;
  bool add_special = true;  // add what the post-processor adds
  bool json = false;        // print {"ids": [...], "tokens": [...], "count": n}
  int repeat = 0;           // above 0: encode this often, and print times as JSON instead of ids
  bool lines = false;       // with repeat: encode every line by itself
};
int run_tokenize(const TokenizeOptions& options, std::istream& in, std::ostream& out);

struct DetokenizeOptions {
  std::string folder;
  std::optional<std::string> ids;  // separated by commas or white space; unset: standard input
  bool special = false;            // write special tokens, too
  bool json = false;               // print {"text": "..."}
};
int run_detokenize(const DetokenizeOptions& options, std::istream& in, std::ostream& out);

}  // namespace moebius
