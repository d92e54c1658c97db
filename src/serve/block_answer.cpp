// SPDX-License-Identifier: Apache-2.0
#include "serve/block_answer.h"

#include <algorithm>

#include "serve/pooled.h"

namespace moebius {

BlockAnswer::BlockAnswer(const AnswerInput& in)
    : model_(in.model),
      seconds_(in.seconds),
      stream_(in.request.stream),
      show_reasoning_(in.request.show_reasoning) {
  const Request& g = in.prompts.at(0);
  usage_.prompt = g.prompt.size();
  fills_context_ = g.prompt.size() + g.max_new == model_.context;
  if (in.request.generation.sampling.logprobs < 0) return;
  logprobs_.emplace(*in.model.tokenizer, true);
  stop_tokens_ = g.stop_tokens;
}

std::string BlockAnswer::take(size_t prompt, const StepResult& e) {
  if (ended_ || (!e.choice && e.text.empty() && e.parts.empty() && e.finish == Finish::kNone))
    return {};
  if (logprobs_) keep_logprobs(e);
  count(prompt, e);
  std::string out;
  if (!begun_ && stream_) out += began();
  begun_ = true;
  for (const AnswerEvent& part : parts_of(e)) out += add(part);
  if (e.finish == Finish::kNone) return out;
  end_ = finish_word(prompt, e);
  if (!e.stop_token) stop_text_ = e.stop_text;
  out += close();
  ended_ = true;
  return stream_ ? out + ended() : out;
}

// Keeps the log-probabilities of content. Tokens of reasoning and of the end have no text here;
// those of calls are dropped with the call.
void BlockAnswer::keep_logprobs(const StepResult& e) {
  if (e.reasoning_tokens > usage_.reasoning || !e.choice) return;
  if (std::find(stop_tokens_.begin(), stop_tokens_.end(), e.choice->token) == stop_tokens_.end())
    logprobs_->add(*e.choice);
}

std::string BlockAnswer::take_logprobs() {
  if (!logprobs_) return {};
  std::string out = logprobs_->chat_entries();
  logprobs_->clear();
  return out;
}

std::string BlockAnswer::add(const AnswerEvent& part) {
  using Kind = AnswerEvent::Kind;
  const auto text_of = [&](Block::Kind kind) {
    std::string out;
    if (!open_ || blocks_.back().kind != kind) out = next(kind, nullptr);
    return out + grow(part.text);
  };
  switch (part.kind) {
    case Kind::kReasoning:
      return show_reasoning_ ? text_of(Block::Kind::kReasoning) : "";
    case Kind::kContent:
      return text_of(Block::Kind::kText);
    case Kind::kCallBegin:
      return next(Block::Kind::kCall, &part);
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

std::string BlockAnswer::next(Block::Kind kind, const AnswerEvent* call) {
  std::string out = close();
  open_ = true;
  if (kind != Block::Kind::kText) take_logprobs();
  blocks_.push_back(make_block(kind, call));
  if (stream_) out += opened(blocks_.back());
  return out;
}

std::string BlockAnswer::grow(const std::string& text) {
  Block& block = blocks_.back();
  block.text += text;
  if (text.empty()) return {};
  const std::string logprobs = take_logprobs();
  if (block.kind == Block::Kind::kText && !logprobs.empty())
    block.logprobs += (block.logprobs.empty() ? "" : ",") + logprobs;
  return stream_ ? grown(block, text, logprobs) : "";
}

std::string BlockAnswer::close() {
  if (!std::exchange(open_, false)) return {};
  if (blocks_.back().kind != Block::Kind::kText) take_logprobs();
  return stream_ ? closed(blocks_.back()) : "";
}

std::unique_ptr<InterfaceAnswer> make_answer(const AnswerInput& in) {
  if (in.request.pooled != nullptr) return make_pooled_answer(in);
  if (in.request.endpoint == Endpoint::kMessages) return make_messages_answer(in);
  if (in.request.endpoint == Endpoint::kResponses) return make_responses_answer(in);
  return std::make_unique<ApiAnswer>(in);
}

}  // namespace moebius
