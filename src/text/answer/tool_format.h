// SPDX-License-Identifier: Apache-2.0
// How model families write calls of tools and their reasoning: one row per format. Which one a model
// uses is recognised from the text of its chat template; parsers, masks, tests and documents read
// the same rows.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace moebius {

// How a call's name and arguments are laid out.
enum class CallLayout : uint8_t {
  kObject,    // one JSON object with the name in it
  kNamed,     // the name, a separator, the arguments as JSON
  kTagged,    // every argument between tags of its own
  kPythonic,  // f(a='x', b=2)
  kChannels,  // GPT-OSS: a message to the function
  kGemma,     // call:f{a:<|"|>x<|"|>,b:2}
  kElements,  // every argument an element of its name
};

enum class CallIds : uint8_t {
  kOwn,        // made here
  kFunctions,  // functions.NAME:N, written by the model and printed back by the template
  kNine,       // nine letters or digits
};

struct ToolFormat {
  std::string_view name;
  std::string_view families;
  CallLayout layout;
  // Markers. A section holds one call or several; where call_begin is empty, the call follows the
  // section's marker at once.
  std::string_view section_begin, section_end;
  std::string_view call_begin, call_end;
  // kObject: the key of the arguments; kNamed: what ends the name; kElements: what stands before
  // every tag.
  std::string_view separator = {};
  bool list = false;  // kObject: the calls of a section are a JSON list
  // kTagged: an argument is key_begin KEY key_end value_begin VALUE value_end.
  std::string_view key_begin = {}, key_end = {}, value_begin = {}, value_end = {};
  std::string_view line_feed = {};  // kTagged: what stands at each end of a value
  std::string_view name_end = {};   // kTagged; empty: white space or the next tag
  // kTagged: what ends the tag with the name, other attributes before it; behind key_end stands the
  // value's type, then type_end.
  std::string_view tag_end = {}, type_end = {};
  bool lines = true;  // kTagged: line feeds between the tags
  CallIds ids = CallIds::kOwn;
  std::string_view stop_tokens = {};  // separated by spaces
};

std::span<const ToolFormat> tool_formats();
const ToolFormat* find_tool_format(std::string_view name);
// By the text of the templates; null: they name none.
const ToolFormat* recognise_tool_format(std::string_view template_text);

struct ReasoningFormat {
  std::string_view name;
  std::string_view begin, end;
  // What is appended where reasoning has to end before the model ends it.
  std::string_view cut;
  // What stands around the content, and behind a message; not part of it.
  std::string_view content_begin = {}, content_end = {}, message_end = {};
};

std::span<const ReasoningFormat> reasoning_formats();
const ReasoningFormat* find_reasoning_format(std::string_view name);
const ReasoningFormat* recognise_reasoning(std::string_view template_text);
// The form whose texts stand around the content (either may be null); null: there are none.
const ReasoningFormat* framed_by(const ToolFormat* format, const ReasoningFormat* reasoning);

// Kinds of JSON values that a schema allows, as bits; none: it does not say.
using JsonKinds = unsigned;
inline constexpr JsonKinds kStringKind = 1, kNumberKind = 2, kBoolKind = 4, kNullKind = 8,
                           kObjectKind = 16, kArrayKind = 32;
JsonKinds kinds_of_schema(const Json& schema);

// One tool that a request offers.
struct Tool {
  std::string name;
  bool strict = false;
  Json schema;  // of the arguments; null: any object
  std::map<std::string, JsonKinds, std::less<>> parameters;
};

class ToolSet {
 public:
  void add(std::string name, Json schema, bool strict);
  const Tool* find(std::string_view name) const;
  const std::vector<Tool>& tools() const { return tools_; }

 private:
  std::vector<Tool> tools_;
};

// Where the answer stands when it begins.
enum class AnswerStart : uint8_t { kUndecided, kReasoning, kContent };

// How one answer is read.
struct AnswerRules {
  const ReasoningFormat* reasoning = nullptr;  // null: all is content
  const ToolFormat* format = nullptr;          // null: calls are content
  std::shared_ptr<const ToolSet> tools;
  AnswerStart start = AnswerStart::kUndecided;
  bool parallel = true;  // else the answer ends with its first call
  // Special tokens that markers are made of, in ascending order.
  std::shared_ptr<const std::vector<int32_t>> marker_tokens;
};

// Texts that stand in markers of both (either may be null).
std::vector<std::string_view> marker_texts(const ToolFormat* format,
                                           const ReasoningFormat* reasoning);

// By the rendered prompt's end.
AnswerStart answer_start(const ReasoningFormat* reasoning, std::string_view prompt);

}  // namespace moebius
