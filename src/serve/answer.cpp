// SPDX-License-Identifier: Apache-2.0
#include "serve/answer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/json.h"
#include "serve/token_text.h"

namespace moebius {

std::string json_quoted(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

std::string call_id(const ServedModel& model, std::string_view prefix, const AnswerEvent& begin) {
  const CallIds ids = model.markup.tools != nullptr ? model.markup.tools->ids : CallIds::kOwn;
  if (ids != CallIds::kOwn && !begin.id.empty()) return begin.id;
  return ids == CallIds::kNine ? random_hex(9) : std::string(prefix) + random_hex(24);
}

AnswerEvents parts_of(const StepResult& e) {
  if (!e.parts.empty() || e.text.empty()) return e.parts;
  return {{AnswerEvent::Kind::kContent, e.text, 0, ""}};
}

void InterfaceAnswer::count(size_t prompt, const StepResult& e) {
  if (cached_known_.size() <= prompt) cached_known_.resize(prompt + 1, false);
  if (!cached_known_[prompt] && e.choice) {
    cached_known_[prompt] = true;
    usage_.cached += e.cached_tokens;
  }
  if (e.choice) ++usage_.completion;
  Counted& before = counted_[{prompt, e.index}];
  usage_.drafts_right += e.drafts_right - before.drafts_right;
  usage_.drafts_wrong += e.drafts_wrong - before.drafts_wrong;
  usage_.reasoning += e.reasoning_tokens - before.reasoning;
  before = {e.reasoning_tokens, e.drafts_right, e.drafts_wrong, before.called};
  for (const AnswerEvent& part : e.parts)
    if (part.kind == AnswerEvent::Kind::kCallEnd && part.whole) before.called = true;
}

std::string_view InterfaceAnswer::finish_word(size_t prompt, const StepResult& last) const {
  static constexpr std::string_view kWords[] = {"",       "stop",      "length",
                                                "length", "cancelled", "error"};
  static_assert(std::size(kWords) == kFinishes);
  const auto counted = counted_.find({prompt, last.index});
  if (last.finish == Finish::kStop && counted != counted_.end() && counted->second.called)
    return "tool_calls";
  return kWords[static_cast<size_t>(last.finish)];
}

namespace {

// Returns the shortest text that reads back equal. JSON has no infinity; other servers write this
// number for it.
std::string number(float v) { return std::isfinite(v) ? fmt::format("{}", v) : "-9999.0"; }

void separate(std::string& list) {
  if (!list.empty()) list += ',';
}

std::string id_list(const std::vector<int32_t>& ids) {
  std::string out;
  for (const int32_t id : ids) {
    separate(out);
    out += std::to_string(id);
  }
  return "[" + out + "]";
}

std::string entry(const std::string& bytes, float logprob) {
  std::string list;
  for (const char c : bytes) {
    separate(list);
    list += std::to_string(static_cast<unsigned char>(c));
  }
  return fmt::format("{{\"token\":{},\"logprob\":{},\"bytes\":[{}]",
                     json_quoted(shown_token(bytes)), number(logprob), list);
}

std::string event(const std::string& json) { return "data: " + json + "\n\n"; }

}  // namespace

std::string random_hex(size_t digits) {
  static thread_local std::mt19937_64 random{std::random_device{}()};
  std::string out;
  while (out.size() < digits) out += fmt::format("{:016x}", random());
  out.resize(digits);
  return out;
}

void LogprobLists::add(const TokenChoice& token, bool known) {
  ++count_;
  if (chat_) return add_chat(token);
  const std::string bytes = tokenizer_->token_bytes(token.token);
  for (std::string* list : {&tokens_, &logprobs_, &tops_, &offsets_}) separate(*list);
  tokens_ += json_quoted(shown_token(bytes));
  logprobs_ += known ? number(token.logprob) : "null";
  offsets_ += std::to_string(characters_);
  for (const char c : bytes) characters_ += (static_cast<unsigned char>(c) & 0xc0u) != 0x80u;
  if (!known) {
    tops_ += "null";
    return;
  }
  std::string top;
  bool listed = false;
  for (const auto& [id, logprob] : token.alternatives) {
    separate(top);
    top += json_quoted(shown_token(tokenizer_->token_bytes(id))) + ":" + number(logprob);
    listed = listed || id == token.token;
  }
  if (!listed) {
    separate(top);
    top += json_quoted(shown_token(bytes)) + ":" + number(token.logprob);
  }
  tops_ += "{" + top + "}";
}

void LogprobLists::add_chat(const TokenChoice& token) {
  separate(tokens_);
  tokens_ += entry(tokenizer_->token_bytes(token.token), token.logprob) + ",\"top_logprobs\":[";
  std::string top;
  for (const auto& [id, logprob] : token.alternatives) {
    separate(top);
    top += entry(tokenizer_->token_bytes(id), logprob) + "}";
  }
  tokens_ += top + "]}";
}

std::string LogprobLists::json() const {
  if (chat_) return "{\"content\":[" + tokens_ + "]}";
  return fmt::format(
      "{{\"tokens\":[{}],\"token_logprobs\":[{}],\"top_logprobs\":[{}],\"text_offset\":[{}]}}",
      tokens_, logprobs_, tops_, offsets_);
}

void LogprobLists::clear() {
  for (std::string* list : {&tokens_, &logprobs_, &tops_, &offsets_}) list->clear();
  count_ = 0;
}

ApiAnswer::ApiAnswer(const AnswerInput& in)
    : model_(in.model),
      shape_(in.request),
      logprobs_(in.request.generation.sampling.logprobs),
      details_(in.request.chat && model_.markup.reasoning != nullptr),
      predicted_(in.request.prediction.has_value()),
      id_((in.request.chat ? "chatcmpl-" : "cmpl-") + random_hex(24)),
      prompt_logprobs_(in.prompts.size()),
      choices_(in.prompts.size() * in.request.generation.n,
               Choice(LogprobLists(*in.model.tokenizer, in.request.chat))),
      per_prompt_(in.request.generation.n) {
  const std::string object = shape_.chat ? "chat.completion" : "text_completion";
  const std::string rest =
      fmt::format("\"created\":{},\"model\":{}", in.seconds, json_quoted(model_.name));
  chunk_head_ = fmt::format("{{\"id\":\"{}\",\"object\":\"{}\",{},\"choices\":[", id_,
                            object + (shape_.chat ? ".chunk" : ""), rest);
  whole_head_ =
      fmt::format("{{\"id\":\"{}\",\"object\":\"{}\",{},\"system_fingerprint\":{},\"choices\":[",
                  id_, object, rest, json_quoted(model_.fingerprint()));
  for (size_t i = 0; i < in.prompts.size(); ++i) {
    usage_.prompt += in.prompts[i].prompt.size();
    if (shape_.echo || shape_.return_token_ids) prompts_.push_back(in.prompts[i].prompt);
    if (!shape_.echo) continue;
    const auto* text = std::get_if<std::string>(&in.request.prompts[i]);
    prompt_texts_.push_back(
        text != nullptr ? *text : model_.tokenizer->decode(in.prompts[i].prompt, false));
  }
}

// Begins a choice before its first token; with echo its text begins with the prompt.
void ApiAnswer::begin_choice(Choice& choice, size_t prompt) {
  choice.begun = true;
  if (!shape_.echo) return;
  choice.text = prompt_texts_[prompt];
  if (logprobs_ < 0) return;
  choice.logprobs.add({prompts_[prompt].front(), 0, {}}, false);
  for (TokenChoice t : prompt_logprobs_[prompt]) {
    t.alternatives.resize(std::min(t.alternatives.size(), static_cast<size_t>(logprobs_)));
    choice.logprobs.add(t);
  }
}

std::string ApiAnswer::take(size_t prompt, const StepResult& e) {
  auto& list = prompt_logprobs_[prompt];
  list.insert(list.end(), e.prompt_choices.begin(), e.prompt_choices.end());
  const size_t index = prompt * per_prompt_ + e.index;
  Choice& choice = choices_[index];
  if (choice.ended || (!e.choice && e.text.empty() && e.finish == Finish::kNone)) return {};
  const bool first = !choice.begun;
  if (first) begin_choice(choice, prompt);
  count(prompt, e);
  if (e.choice && logprobs_ >= 0) choice.logprobs.add(*e.choice);
  if (e.choice && shape_.return_token_ids) choice.ids.push_back(e.choice->token);
  for (AnswerEvent& part : parts_of(e)) keep(choice, std::move(part));
  if (e.finish != Finish::kNone) {
    choice.ended = true;
    ++ended_;
    choice.finish = json_quoted(finish_word(prompt, e));
    if (!e.stop_token && !e.stop_text.empty()) choice.stop_reason = json_quoted(e.stop_text);
    // End tokens of the folder need not be reported.
    const auto& eos = model_.defaults.eos;
    if (e.stop_token && e.choice && std::find(eos.begin(), eos.end(), e.choice->token) == eos.end())
      choice.stop_reason = std::to_string(e.choice->token);
  }
  if (!shape_.stream) return {};
  const std::string text = std::exchange(choice.text, {});
  std::string out = chunk(index, choice, text, prompt, first);
  choice.logprobs.clear();
  choice.ids.clear();
  choice.parts.clear();
  return out;
}

void ApiAnswer::keep(Choice& choice, AnswerEvent part) {
  using Kind = AnswerEvent::Kind;
  switch (part.kind) {
    case Kind::kContent:
      choice.text += part.text;
      break;
    case Kind::kReasoning:
      if (!shape_.show_reasoning) return;
      choice.reasoning += part.text;
      break;
    case Kind::kCallBegin:
      part.id = call_id(model_, "call_", part);
      choice.calls.push_back({part.id, part.text, ""});
      break;
    case Kind::kCallArguments:
      choice.calls[part.call].arguments += part.text;
      break;
    default:
      return;
  }
  if (shape_.stream && shape_.chat) choice.parts.push_back(std::move(part));
}

std::string ApiAnswer::logprobs_of(const Choice& choice) const {
  return logprobs_ >= 0 && !choice.logprobs.empty() ? choice.logprobs.json() : "null";
}

// Returns the log-probabilities of a prompt: for each position its token first, then the best ones;
// nothing is known of the first token.
std::string ApiAnswer::prompt_logprobs_of(size_t prompt) const {
  if (!shape_.prompt_logprobs) return {};
  std::string out = ",\"prompt_logprobs\":[null";
  for (const TokenChoice& t : prompt_logprobs_[prompt]) {
    const auto add = [&](int32_t id, float logprob, size_t rank) {
      out += fmt::format("\"{}\":{{\"logprob\":{},\"rank\":{},\"decoded_token\":{}}}", id,
                         number(logprob), rank,
                         json_quoted(shown_token(model_.tokenizer->token_bytes(id))));
    };
    out += ",{";
    add(t.token, t.logprob, t.rank);
    size_t rank = 0;
    for (const auto& [id, logprob] : t.alternatives) {
      if (rank++ == static_cast<size_t>(*shape_.prompt_logprobs)) break;
      if (id == t.token) continue;
      out += ',';
      add(id, logprob, rank);
    }
    out += '}';
  }
  return out + "]";
}

std::string ApiAnswer::ends_of(const Choice& choice) const {
  std::string out = choice.ended ? choice.finish : "null";
  if (choice.ended && !choice.stop_reason.empty()) out += ",\"stop_reason\":" + choice.stop_reason;
  return out;
}

std::string ApiAnswer::usage_json() const {
  std::string details;
  if (details_) details = fmt::format("\"reasoning_tokens\":{}", usage_.reasoning);
  if (predicted_) {
    separate(details);
    details += fmt::format("\"accepted_prediction_tokens\":{},\"rejected_prediction_tokens\":{}",
                           usage_.drafts_right, usage_.drafts_wrong);
  }
  if (!details.empty()) details = ",\"completion_tokens_details\":{" + details + "}";
  return fmt::format(
      "{{\"prompt_tokens\":{},\"completion_tokens\":{},\"total_tokens\":{},"
      "\"prompt_tokens_details\":{{\"cached_tokens\":{}}}{}}}",
      usage_.prompt, usage_.completion, usage_.prompt + usage_.completion, usage_.cached, details);
}

// Returns the members that hold reasoning, each with a comma after it.
std::string ApiAnswer::reasoning_members(const std::string& text, bool whole) const {
  const ReasoningField f = model_.reasoning_field;
  const bool first = f != ReasoningField::kReasoning;
  const bool second = f == ReasoningField::kReasoning || f == ReasoningField::kBoth ||
                      (f == ReasoningField::kDefault && whole);
  std::string out;
  if (first) out += "\"reasoning_content\":" + json_quoted(text) + ",";
  if (second) out += "\"reasoning\":" + json_quoted(text) + ",";
  return out;
}

std::string ApiAnswer::delta(const Choice& choice, const AnswerEvent& part) const {
  using Kind = AnswerEvent::Kind;
  if (part.kind == Kind::kContent) return "{\"content\":" + json_quoted(part.text) + "}";
  if (part.kind == Kind::kReasoning) {
    std::string members = reasoning_members(part.text, false);
    members.back() = '}';
    return "{" + members;
  }
  if (part.kind == Kind::kCallBegin)
    return fmt::format(
        "{{\"tool_calls\":[{{\"index\":{},\"id\":{},\"type\":\"function\",\"function\":{{\"name\":{"
        "},"
        "\"arguments\":\"\"}}}}]}}",
        part.call, json_quoted(choice.calls[part.call].id), json_quoted(part.text));
  return fmt::format("{{\"tool_calls\":[{{\"index\":{},\"function\":{{\"arguments\":{}}}}}]}}",
                     part.call, json_quoted(part.text));
}

std::string ApiAnswer::message(const Choice& c) const {
  std::string out = "{\"role\":\"assistant\",\"content\":";
  out += c.text.empty() && !c.calls.empty() ? "null" : json_quoted(c.text);
  if (!c.reasoning.empty()) {
    out += "," + reasoning_members(c.reasoning, true);
    out.pop_back();
  }
  for (size_t i = 0; i < c.calls.size(); ++i)
    out += fmt::format(
        "{}{{\"id\":{},\"type\":\"function\",\"function\":{{\"name\":{},\"arguments\":{}}}}}",
        i == 0 ? ",\"tool_calls\":[" : ",", json_quoted(c.calls[i].id),
        json_quoted(c.calls[i].name), json_quoted(c.calls[i].arguments));
  return out + (c.calls.empty() ? "}" : "]}");
}

// Returns what one step adds to one choice. A chat sends its role first, then text, and its end
// alone.
std::string ApiAnswer::chunk(size_t index, Choice& choice, const std::string& text, size_t prompt,
                             bool first) const {
  const std::string usage = shape_.continuous_usage ? ",\"usage\":" + usage_json() : "";
  const std::string ids =
      shape_.return_token_ids && !choice.ids.empty() ? ",\"token_ids\":" + id_list(choice.ids) : "";
  const std::string asked =
      shape_.return_token_ids && first ? ",\"prompt_token_ids\":" + id_list(prompts_[prompt]) : "";
  if (!shape_.chat) {
    if (text.empty() && choice.logprobs.empty() && ids.empty() && !choice.ended) return {};
    return event(fmt::format(
        "{}{{\"index\":{},\"text\":{},\"logprobs\":{},\"finish_reason\":{}{}{}}}]{}}}", chunk_head_,
        index, json_quoted(text), logprobs_of(choice), ends_of(choice), ids, asked, usage));
  }
  const auto piece = [&](const std::string& change, const std::string& logprobs,
                         const std::string& finish, const std::string& more) {
    return event(
        fmt::format("{}{{\"index\":{},\"delta\":{},\"logprobs\":{},\"finish_reason\":{}{}}}]{}{}}}",
                    chunk_head_, index, change, logprobs, finish, more, usage, first ? asked : ""));
  };
  std::string out;
  if (first) out += piece("{\"role\":\"assistant\",\"content\":\"\"}", "null", "null", "");
  // Log-probabilities and ids go with the last part, or alone.
  const AnswerEvents& parts = choice.parts;
  for (size_t i = 0; i + 1 < parts.size(); ++i)
    out += piece(delta(choice, parts[i]), "null", "null", "");
  if (!parts.empty() || !choice.logprobs.empty() || !ids.empty())
    out += piece(parts.empty() ? "{\"content\":\"\"}" : delta(choice, parts.back()),
                 logprobs_of(choice), "null", ids);
  if (choice.ended) out += piece("{}", "null", ends_of(choice), "");
  return out;
}

std::string ApiAnswer::stream_end() {
  std::string out;
  if (shape_.include_usage) out = event(chunk_head_ + "],\"usage\":" + usage_json() + "}");
  return out + "data: [DONE]\n\n";
}

std::string ApiAnswer::whole() {
  std::string out = whole_head_;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& c = choices_[i];
    if (i > 0) out += ',';
    const std::string logprobs = logprobs_of(c);
    if (shape_.chat)
      out += fmt::format("{{\"index\":{},\"message\":{},\"logprobs\":{},\"finish_reason\":{}", i,
                         message(c), logprobs, ends_of(c));
    else
      out += fmt::format("{{\"index\":{},\"text\":{},\"logprobs\":{},\"finish_reason\":{}", i,
                         json_quoted(c.text), logprobs, ends_of(c));
    if (shape_.return_token_ids) out += ",\"token_ids\":" + id_list(c.ids);
    if (shape_.return_token_ids && !shape_.chat)
      out += ",\"prompt_token_ids\":" + id_list(prompts_[i / per_prompt_]);
    if (!shape_.chat) out += prompt_logprobs_of(i / per_prompt_);
    out += '}';
  }
  out += "],\"usage\":" + usage_json();
  if (shape_.return_token_ids && shape_.chat)
    out += ",\"prompt_token_ids\":" + id_list(prompts_[0]);
  if (shape_.chat) out += prompt_logprobs_of(0);
  return out + "}";
}

std::string ApiAnswer::error_events(const ApiError& error) {
  return event(error_json(error)) + "data: [DONE]\n\n";
}

}  // namespace moebius
