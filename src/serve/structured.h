// SPDX-License-Identifier: Apache-2.0
// Reads the form that a request demands of its answer, under the various names that clients use.
#pragma once
#include <string>

#include "serve/api_error.h"
#include "serve/fields.h"
#include "text/answer/tool_format.h"
#include "text/grammar/answer_format.h"

namespace moebius {

// Reads response_format, structured_outputs, guided_json, guided_regex, guided_choice or
// json_schema, of which at most one may be given. Throws ApiError.
AnswerFormat read_answer_format(const Fields& fields);
// Parse {"type": "text" | "json_object" | "json_schema", ...}, with the schema under json_schema or
// directly. Throw ApiError.
AnswerFormat format_of_type(const Json& value, const std::string& path);
AnswerFormat format_of_schema(const Json& value, const std::string& path);

// Returns the grammar's error as an ApiError 400 whose parameter is `path`.
ApiError api_error(const GrammarError& error, const std::string& path);
// Compiles a format that constrains the whole answer to a grammar. Throws ApiError for an
// unsupported or too complex one.
GrammarPtr compile_format(const AnswerFormat& format, const GrammarLimits& limits,
                          GrammarCache& cache);
// Compiles a format for an answer that may begin with reasoning by these rules: the format then
// constrains the content after it. Throws ApiError.
GrammarPtr compile_format(const AnswerFormat& format, const GrammarLimits& limits,
                          const AnswerRules& rules, const Tokenizer& tokenizer,
                          GrammarCache& cache);

}  // namespace moebius
