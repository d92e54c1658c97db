// SPDX-License-Identifier: Apache-2.0
// Makes a grammar for answers that may call tools, in the family's format: names are always those
// of the given tools; arguments are constrained to their schemas if a call is required or the tool
// is strict.
#pragma once
#include "text/answer/tool_format.h"
#include "text/grammar/grammar.h"

namespace moebius {

class Tokenizer;

struct CallDemand {
  bool required = false;  // true: the answer consists of calls only
  // The only tool that may be called, once; null: any tools, several if calls may be parallel.
  const Tool* only = nullptr;
};
// Parses "auto", "required" or the name of a tool. Throws Error if there is no tool of that name.
CallDemand call_demand(const ToolSet& tools, std::string_view choice);

// Returns the rule of an answer with this content, after reasoning if the prompt leaves it open.
GrammarBuilder::Rule content_rule(GrammarBuilder& builder, const AnswerRules& rules,
                                  GrammarBuilder::Rule content);

// Returns the grammar of an answer, or null if nothing can be constrained, because the format marks
// no calls. Throws GrammarError.
GrammarPtr call_grammar(const AnswerRules& rules, const CallDemand& demand,
                        const Tokenizer& tokenizer, const GrammarLimits& limits = {});

}  // namespace moebius
