// SPDX-License-Identifier: Apache-2.0
// Reads the tools that a request offers, and past messages that called tools.
#pragma once
#include "base/function_ref.h"
#include "serve/fields.h"
#include "serve/request.h"

namespace moebius {

// Calls `work` with each entry of the field `tools`, and its path. Throws ApiError if one is no
// object.
void each_tool(const Fields& fields,
               FunctionRef<void(const Fields& tool, const std::string& path)> work);
// Adds the tool of an object with name, description, strict and a schema under `schema_name`.
// Throws ApiError that names the path, which is the object's.
void add_tool(ApiRequest& request, const Fields& tool, const std::string& path,
              std::string_view schema_name);
// Checks, after the last tool was added, that the model can call tools and that demanded ones
// exist. With kNone the template does not get them. Throws ApiError.
void finish_tools(ApiRequest& request, const ServedModel& model, const std::string& choice_path);

// Reads the fields of chat completions: tools, tool_choice, parallel_tool_calls. Throws ApiError.
void read_tools(const Fields& fields, ApiRequest& request, const ServedModel& model);
// Reads "none", "auto" or "required", as all of OpenAI's APIs write it; returns false for other
// values.
bool read_choice_word(const Json& value, ApiRequest& request);

// Constrains the tokens of an answer that may call tools: to names of the tools once a call begins,
// and to calls only, in the form of the model's family, if the choice demands one. Throws ApiError.
void mask_calls(Request& generation, const ApiRequest& request, const ServedModel& model);

// One message of a past conversation, collected from the items of another API.
struct PastMessage {
  std::string text, reasoning;
  Json calls = Json::array();
  bool said = false;  // true: there is content, even if it is empty
  bool empty() const { return !said && reasoning.empty() && calls.items().empty(); }
  // Adds a call whose id is the field `id`.
  void add_call(const Fields& f, std::string_view id, Json arguments);
  // Appends the message to a chat, and begins the next.
  void push_to(Json& messages, const std::string& role);
};

// Adapts past calls and their results to what the model's template expects: ids in its family's
// form, results with the name of their call. Throws ApiError if the template cannot print them.
void repair_past_calls(Json& messages, const ServedModel& model, const std::string& param);

}  // namespace moebius
