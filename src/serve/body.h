// SPDX-License-Identifier: Apache-2.0
// Reads the body of a request: keeps the fields that the endpoint knows and skips all others
// without building values, and refuses a list at its first entry beyond the limit. Memory is at
// most a few times the bytes of the body, whatever it contains.
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
  kMessages = 16,  // Anthropic's /v1/messages
  kResponses = 32,
  kEmbeddings = 64,
  kRerank = 128,
};

using PromptInput = std::variant<std::string, std::vector<int32_t>>;

struct RequestBody {
  Endpoint endpoint = Endpoint::kChat;
  Json fields = Json::object();
  // Fields that hold token ids, texts, or lists of them, by name; a single list of ids is one
  // entry.
  std::map<std::string, std::vector<PromptInput>, std::less<>> lists;

  // Returns the ids of a field that is one list of token ids; null if absent.
  const std::vector<int32_t>* ids(std::string_view name) const;
};

// Parses an untrusted body. Throws ApiError 400.
RequestBody parse_body(std::string_view text, Endpoint endpoint, const ServedModel& model);

// Returns the model's name in a body, reading no further; nothing if it has none or is malformed
// (parse_body then reports the error).
std::optional<std::string> model_of_body(std::string_view text);

// Most values in a body, not counting lists of token ids.
inline constexpr size_t kMostBodyValues = 1 << 15;
// Parses JSON within a string of a body. Its values count as values of the body, of which `left`
// may follow. Throws Error.
Json parse_inner_json(std::string_view text, const std::string& what, size_t& left);

}  // namespace moebius
