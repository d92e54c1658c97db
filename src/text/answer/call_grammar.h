// SPDX-License-Identifier: Apache-2.0
// What an answer with tools may be, as a grammar in the family's own form: names are always those
// of the given tools; arguments follow their schemas where a call is asked for, or the tool says
// strict.
#pragma once
#include "text/answer/tool_format.h"
#include "text/grammar/grammar.h"

namespace moebius {

class Tokenizer;

struct CallDemand {
  bool required = false;       // the answer is calls and nothing else
  const Tool* only = nullptr;  // that is called, once; null: any, and several where they may
};
// Of "auto", "required" or the name of a tool. Throws Error where there is none of that name.
CallDemand call_demand(const ToolSet& tools, std::string_view choice);

// An answer whose content is this: reasoning before it, where the prompt leaves room for any.
GrammarBuilder::Rule content_rule(GrammarBuilder& builder, const AnswerRules& rules,
                                  GrammarBuilder::Rule content);

// Null: nothing is to be masked (the format has no marker that tells a call). Throws GrammarError.
GrammarPtr call_grammar(const AnswerRules& rules, const CallDemand& demand,
                        const Tokenizer& tokenizer, const GrammarLimits& limits = {});

}  // namespace moebius
