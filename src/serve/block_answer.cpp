// SPDX-License-Identifier: Apache-2.0
#include "serve/block_answer.h"

namespace moebius {

BlockAnswer::BlockAnswer(const ApiRequest& request, const ServedModel& model,
                         const std::vector<GenerationRequest>& prompts, int64_t seconds)
    : model_(model),
      seconds_(seconds),
      stream_(request.stream),
      show_reasoning_(request.show_reasoning) {
  const GenerationRequest& g = prompts.at(0);
  usage_.prompt = g.prompt.size();
  fills_context_ = g.prompt.size() + g.max_new == model.context;
}

std::string BlockAnswer::take(size_t prompt, const GenerationEvent& e) {
  if (ended_ ||
      (e.tokens.empty() && e.text.empty() && e.parts.empty() && e.end == EndReason::kNone))
    return {};
  count(prompt, e);
  std::string out;
  if (!begun_ && stream_) out += began();
  begun_ = true;
  for (const AnswerEvent& part : parts_of(e)) out += add(part);
  if (e.end == EndReason::kNone) return out;
  end_ = e.end;
  stop_string_ = e.stop_string;
  out += close();
  ended_ = true;
  return stream_ ? out + ended() : out;
}

std::string BlockAnswer::add(const AnswerEvent& part) {
  using Kind = AnswerEvent::Kind;
  const auto text_of = [&](Block::Kind kind) {
    std::string out;
    if (!open_ || blocks_.back().kind != kind) out = close() + open(kind, nullptr);
    return out + grow(part.text);
  };
  switch (part.kind) {
    case Kind::kReasoning:
      return show_reasoning_ ? text_of(Block::Kind::kReasoning) : "";
    case Kind::kContent:
      return text_of(Block::Kind::kText);
    case Kind::kCallBegin:
      return close() + open(Block::Kind::kCall, &part);
    case Kind::kCallArguments:
      return grow(part.text);
    case Kind::kReasoningEnd:
      return close();
    case Kind::kCallEnd:
      blocks_.back().whole = part.whole;
      return close();
    case Kind::kCallBroken:
      break;
  }
  return {};
}

std::string BlockAnswer::open(Block::Kind kind, const AnswerEvent* call) {
  open_ = true;
  blocks_.push_back(make_block(kind, call));
  return stream_ ? opened(blocks_.back()) : "";
}

std::string BlockAnswer::grow(const std::string& text) {
  blocks_.back().text += text;
  return stream_ && !text.empty() ? grown(blocks_.back(), text) : "";
}

std::string BlockAnswer::close() {
  if (!std::exchange(open_, false)) return {};
  return stream_ ? closed(blocks_.back()) : "";
}

std::unique_ptr<InterfaceAnswer> make_answer(const ApiRequest& request, const ServedModel& model,
                                             const TokenTexts& texts,
                                             const std::vector<GenerationRequest>& prompts,
                                             int64_t seconds, const std::string& request_id) {
  if (request.face == Interface::kMessages)
    return make_messages_answer(request, model, prompts, seconds, request_id);
  if (request.face == Interface::kResponses)
    return make_responses_answer(request, model, prompts, seconds);
  return std::make_unique<ApiAnswer>(request, model, texts, prompts, seconds);
}

}  // namespace moebius
