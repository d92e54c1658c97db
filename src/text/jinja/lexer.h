// SPDX-License-Identifier: Apache-2.0
// Splits chat templates into tokens. White space control happens here, with trim_blocks and
// lstrip_blocks on, as published libraries render chat templates. Each token has its line and
// column.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moebius::jinja {

struct SourcePosition {
  uint32_t line = 1, column = 1;
};

struct Token {
  enum class Kind : uint8_t {
    kText,
    kVariableBegin,
    kVariableEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string text;  // a string's value
  SourcePosition place;
  bool is(std::string_view op) const { return kind == Kind::kOperator && text == op; }
  bool is_name(std::string_view name) const { return kind == Kind::kName && text == name; }
};

// Returns the tokens of a template. Throws Error("<name>, line L, column C: ...").
std::vector<Token> tokenize(std::string_view source, const std::string& name);
[[noreturn]] void fail_at(const std::string& name, SourcePosition place,
                          const std::string& message);

}  // namespace moebius::jinja
