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
  const Tool* only = nullptr;  // that is called; null: any
};

// What may stand before an answer's content: reasoning up to its end, where the prompt leaves room
// for it.
GrammarBuilder::Rule reasoning_rule(GrammarBuilder& builder, const AnswerRules& rules);

// Null: nothing is to be masked (the format has no marker that tells a call). Throws GrammarError.
GrammarPtr call_grammar(const AnswerRules& rules, const CallDemand& demand,
                        const Tokenizer& tokenizer);

}  // namespace moebius
