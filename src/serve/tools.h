// SPDX-License-Identifier: Apache-2.0
// Tools that a request offers, and past messages that called some.
#pragma once
#include "serve/fields.h"
#include "serve/request.h"

namespace moebius {

// One tool, whatever form it came in. Throws ApiError that names the path.
struct ToolInput {
  std::string name;
  std::optional<std::string> description;
  const Json* schema = nullptr;  // null: no arguments
  bool strict = false;
};
// `path` of the object that has both, and the name of the second.
void add_tool(ApiRequest& request, const ToolInput& tool, const std::string& path,
              std::string_view schema_name);
// After the last tool: whether the model can call any, and those that are asked for exist. With
// kNone the template does not see them.
void finish_tools(ApiRequest& request, const ServedModel& model, const std::string& choice_path);

// Of chat completions: tools, tool_choice, parallel_tool_calls.
void read_tools(const Fields& fields, ApiRequest& request, const ServedModel& model);
// "none", "auto", "required" as all interfaces of OpenAI write it; false: it is another value.
bool read_choice_word(const Json& value, ApiRequest& request);
// Arrays of tools by that name, or null.
const Json* tool_list(const Fields& fields);

// What the tokens of an answer may be where it can call: names of the tools once a call begins, and
// calls alone, in the form of the model's family, where the choice asks for one. Throws ApiError.
void mask_calls(GenerationRequest& generation, const ApiRequest& request, const ServedModel& model);

// Past calls and their results as this model's template expects them: ids in the form of its
// family, results with the name of their call. Throws ApiError where it cannot print them.
void repair_past_calls(Json& messages, const ServedModel& model, const std::string& param);

}  // namespace moebius
