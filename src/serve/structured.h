// SPDX-License-Identifier: Apache-2.0
// The form that a request wants its answer to have, by the several names that clients use.
#pragma once
#include <string>

#include "serve/api_error.h"
#include "serve/fields.h"
#include "text/answer/tool_format.h"
#include "text/grammar/answer_format.h"

namespace moebius {

// response_format, structured_outputs, guided_json, guided_regex, guided_choice or json_schema: one
// of them at most. Throws ApiError.
AnswerFormat read_answer_format(const Fields& fields);
// {"type": "text" | "json_object" | "json_schema", ...}, with the schema under json_schema or at hand.
AnswerFormat format_of_type(const Json& value, const std::string& path);
AnswerFormat format_of_schema(const Json& value, const std::string& path);

// 400 with the path as its parameter.
ApiError api_error(const GrammarError& error, const std::string& path);
// Throws ApiError.
GrammarPtr compile_format(const AnswerFormat& format, const GrammarLimits& limits,
                          GrammarCache& cache);
// The same behind reasoning, where an answer by these rules begins with it or may: the form is that
// of the content. Throws ApiError.
GrammarPtr compile_format(const AnswerFormat& format, const GrammarLimits& limits,
                          const AnswerRules& rules, const Tokenizer& tokenizer,
                          GrammarCache& cache);

}  // namespace moebius
