// SPDX-License-Identifier: Apache-2.0
// Lists the formats in which model families write tool calls and reasoning: one row per format. A
// model's format is recognised from the text of its chat template; parsers, masks, tests and
// documents read the same rows, and none of them asks for a format's name.
#pragma once
#include <array>
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

// Selects the layout of a call's name and arguments.
enum class CallLayout : uint8_t {
  kObject,    // one JSON object that contains the name
  kNamed,     // the name, a separator, then the arguments as JSON
  kTagged,    // each argument between its own tags
  kPythonic,  // a call is f(a='x', b=2)
  kChannels,  // GPT-OSS: a message addressed to the function
  kGemma,     // a call is call:f{a:<|"|>x<|"|>,b:2}
  kElements,  // each argument is an element with its name
};

enum class CallIds : uint8_t {
  kOwn,        // ids are made by this program
  kFunctions,  // ids are functions.NAME:N, written by the model and printed by the template
  kNine,       // ids are nine letters or digits, as the template demands
};

enum class SectionCalls : uint8_t {
  kSeveral,
  kOne,
  kNone,  // an answer that must be a call is the call alone, without a section
};

// Holds all that parsers and masks know of a format. An answer's calls are written as
//
//   section_begin section_open CALL comma CALL ... section_close section_end
//   CALL: call_open call_begin name_begin NAME name_end arguments_open ARGUMENTS arguments_close
//         call_end call_close
//   ARGUMENTS of kTagged: argument_open key_begin KEY key_end TYPE type_end key_close value_begin
//         line_feed VALUE line_feed value_end argument_close
//
// Fields named begin and end are markers, which parsers look for. Fields named open, close and
// comma are what templates print around them: masks demand it, parsers accept any white space.
struct ToolFormat {
  std::string_view name;
  std::string_view families;
  CallLayout layout;
  SectionCalls calls = SectionCalls::kSeveral;
  // Markers of a section. If call_begin is empty, the call follows the section's marker directly. A
  // section_open of "[" begins a list, which parsers demand.
  std::string_view section_begin, section_end = {}, section_open = {}, section_close = {};
  // Text between calls; if a section holds one call, between sections.
  std::string_view comma = {};
  std::string_view call_begin = {}, call_end = {}, call_open = {}, call_close = {};
  // Texts around the name. An empty name_end of kTagged: white space or the next tag ends it.
  std::string_view name_begin = {}, name_end = {};
  // Texts around the number that masks demand after the name, instead of name_end.
  std::string_view number_begin = {}, number_end = {};
  // Alternatives that end a name in masks of free text, if they are not name_end.
  std::array<std::string_view, 3> name_ends = {};
  std::string_view arguments_open = {}, arguments_close = {};
  std::string_view key_begin = {}, key_end = {}, key_close = {}, value_begin = {}, value_end = {};
  std::string_view argument_open = {}, argument_close = {}, line_feed = {};
  // kTagged. tag_end: end of the tag that contains the name, after other attributes. type_end:
  // key_end is followed by the value's type, then type_end. type_words: the type is a word of JSON
  // schemas; else it says whether the value is a string.
  std::string_view tag_end = {}, type_end = {};
  bool type_words = false;
  // kGemma: text at both ends of a string. kElements: text before each tag.
  std::string_view mark = {};
  // First byte of an answer that is a call without the section's marker; '\0': none.
  char unmarked = '\0';
  // trigger: marker after which masks of free text demand a tool's name; empty: call_begin if
  // sections hold several calls, else section_begin. other_markers: texts that may follow the
  // trigger's special token without being a call.
  std::string_view trigger = {};
  std::array<std::string_view, 4> other_markers = {};
  CallIds ids = CallIds::kOwn;
  std::string_view stop_tokens = {};  // tokens that end an answer, separated by spaces

  bool is_list() const { return section_open == "["; }
};

std::span<const ToolFormat> tool_formats();
const ToolFormat* find_tool_format(std::string_view name);
// Returns the format that the text of a template uses, or null.
const ToolFormat* recognise_tool_format(std::string_view template_text);

struct ReasoningFormat {
  std::string_view name;
  std::string_view begin, end;
  // Text that is appended to reasoning which is cut off before the model ends it.
  std::string_view cut;
  // Texts around the content, and after a message, that are part of neither.
  std::string_view content_begin = {}, content_end = {}, message_end = {};
  bool channels = false;  // true: reasoning is a message of GPT-OSS's channels
};

std::span<const ReasoningFormat> reasoning_formats();
const ReasoningFormat* find_reasoning_format(std::string_view name);
const ReasoningFormat* recognise_reasoning(std::string_view template_text);
// Returns true if answers are messages in GPT-OSS's channels. Either format may be null.
bool has_channels(const ToolFormat* format, const ReasoningFormat* reasoning);
// Returns which of the formats (either may be null) has texts around the content, or null.
const ReasoningFormat* framed_by(const ToolFormat* format, const ReasoningFormat* reasoning);

// Bits for the kinds of JSON values that a schema allows; 0: the schema does not say.
using JsonKinds = unsigned;
inline constexpr JsonKinds kStringKind = 1, kNumberKind = 2, kBoolKind = 4, kNullKind = 8,
                           kObjectKind = 16, kArrayKind = 32;
JsonKinds kinds_of_schema(const Json& schema);

// A tool that a request offers.
struct Tool {
  std::string name;
  bool strict = false;
  Json schema;  // schema of the arguments; null: any object
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

// Selects the kind of text with which an answer begins.
enum class AnswerStart : uint8_t { kUndecided, kReasoning, kContent };

// Rules for reading one answer.
struct AnswerRules {
  const ReasoningFormat* reasoning = nullptr;  // format of reasoning; null: everything is content
  const ToolFormat* format = nullptr;          // format of calls; null: they are content
  std::shared_ptr<const ToolSet> tools;
  AnswerStart start = AnswerStart::kUndecided;
  bool parallel = true;  // false: the answer ends with its first call
  // Special tokens that occur in markers, ascending.
  std::shared_ptr<const std::vector<int32_t>> marker_tokens;
};

// Returns the texts of both formats' markers; either may be null.
std::vector<std::string_view> marker_texts(const ToolFormat* format,
                                           const ReasoningFormat* reasoning);

// Returns how an answer starts after this end of a rendered prompt.
AnswerStart answer_start(const ReasoningFormat* reasoning, std::string_view prompt);

}  // namespace moebius
