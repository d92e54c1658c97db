// SPDX-License-Identifier: Apache-2.0
// The body of a request while it is read: fields that the endpoint knows are kept, all others are
// passed over without a value of theirs being built, and a list is refused at its first entry too
// many. What is kept costs a few times the bytes that came, whatever they are.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"

namespace moebius {

struct ServedModel;

enum class Endpoint : uint8_t {
  kChat = 1,
  kCompletion = 2,
  kTokenize = 4,
  kDetokenize = 8,
  kMessages = 16,  // Anthropic's
  kResponses = 32,
  kEmbeddings = 64,
  kRerank = 128,
};

using PromptInput = std::variant<std::string, std::vector<int32_t>>;

struct RequestBody {
  Json fields = Json::object();
  // Fields that hold token ids, texts or lists of ids: one entry for ids that stand alone.
  std::map<std::string, std::vector<PromptInput>, std::less<>> lists;

  // Of a field that is one list of token ids; null: absent.
  const std::vector<int32_t>* ids(std::string_view name) const;
};

// By the rules for strangers. Throws ApiError 400.
RequestBody parse_body(std::string_view text, Endpoint endpoint, const ServedModel& model);

// The name that a body asks for, read no further than that; none: it has none, or is no body
// (parse_body says what is wrong).
std::optional<std::string> model_of_body(std::string_view text);

// How many values a body may hold beside lists of token ids.
inline constexpr size_t kMostBodyValues = 1 << 15;
// JSON within a string of a body; its values count too, and `left` says how many more there may be.
// Throws Error.
Json parse_inner_json(std::string_view text, const std::string& what, size_t& left);

}  // namespace moebius
