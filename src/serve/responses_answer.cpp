// SPDX-License-Identifier: Apache-2.0
// Writes answers of /v1/responses: items, or a stream of numbered events. Nothing is stored.
#include <fmt/core.h>

#include "serve/block_answer.h"

namespace moebius {
namespace {

class ResponsesAnswer final : public BlockAnswer {
 public:
  explicit ResponsesAnswer(const AnswerInput& in) : BlockAnswer(in), id_("resp_" + random_hex(24)) {
    for (const auto& [key, value] : in.request.echoed.members())
      echoed_ += "," + json_quoted(key) + ":" + value.dump();
  }

  std::string whole() override { return response(status(), "null"); }

  std::string error_events(const ApiError& error) override {
    const std::string words =
        fmt::format("{{\"code\":{},\"message\":{}}}",
                    json_quoted(error.status == 429 ? "rate_limit_exceeded" : "server_error"),
                    json_quoted(error.what()));
    return event("response.failed", ",\"response\":" + response("failed", words));
  }

 private:
  using Kind = Block::Kind;

  std::string event(std::string_view type, const std::string& members) {
    return fmt::format("event: {0}\ndata: {{\"type\":\"{0}\",\"sequence_number\":{1}{2}}}\n\n",
                       type, sequence_++, members);
  }

  std::string_view status() const { return end_ == "length" ? "incomplete" : "completed"; }

  Block make_block(Kind kind, const AnswerEvent* call) override {
    static constexpr std::string_view kPrefixes[] = {"rs_", "msg_", "fc_"};
    Block b{kind, std::string(kPrefixes[static_cast<size_t>(kind)]) + random_hex(24), "", "", ""};
    if (call != nullptr) {
      b.call_id = call_id(model_, "call_", *call);
      b.name = call->text;
    }
    return b;
  }

  std::string usage_json() const {
    return fmt::format(
        "{{\"input_tokens\":{},\"input_tokens_details\":{{\"cached_tokens\":{},"
        "\"cache_write_tokens\":0}},\"output_tokens\":{},\"output_tokens_details\":{{"
        "\"reasoning_tokens\":{}}},\"total_tokens\":{}}}",
        usage_.prompt, usage_.cached, usage_.completion, usage_.reasoning,
        usage_.prompt + usage_.completion);
  }

  std::string response(std::string_view state, const std::string& error) const {
    std::string output;
    const bool running = state == "in_progress";
    for (size_t i = 0; !running && i < blocks_.size(); ++i) {
      if (i > 0) output += ',';
      output += item(blocks_[i], i + 1 == blocks_.size() ? status() : "completed");
    }
    const bool cut = state == "incomplete";
    return fmt::format(
        "{{\"id\":\"{}\",\"object\":\"response\",\"created_at\":{},\"status\":\"{}\","
        "\"background\":false,\"error\":{},\"incomplete_details\":{},\"model\":{},\"output\":[{}],"
        "\"previous_response_id\":null,\"store\":false,\"truncation\":\"disabled\"{},\"usage\":{}}"
        "}",
        id_, seconds_, state, error, cut ? "{\"reason\":\"max_output_tokens\"}" : "null",
        json_quoted(model_.name), output, echoed_, running ? "null" : usage_json());
  }

  static std::string part(const Block& b, const std::string& text, const std::string& logprobs) {
    if (b.kind == Kind::kReasoning)
      return "{\"type\":\"reasoning_text\",\"text\":" + json_quoted(text) + "}";
    return "{\"type\":\"output_text\",\"text\":" + json_quoted(text) +
           ",\"annotations\":[],\"logprobs\":[" + logprobs + "]}";
  }

  static std::string item(const Block& b, std::string_view state) {
    const std::string head = fmt::format("{{\"id\":\"{}\",\"type\":", b.id);
    const std::string parts =
        state == "in_progress" ? "[]" : "[" + part(b, b.text, b.logprobs) + "]";
    if (b.kind == Kind::kReasoning)
      return fmt::format("{}\"reasoning\",\"summary\":[],\"content\":{},\"status\":\"{}\"}}", head,
                         parts, state);
    if (b.kind == Kind::kText)
      return fmt::format("{}\"message\",\"status\":\"{}\",\"role\":\"assistant\",\"content\":{}}}",
                         head, state, parts);
    return fmt::format(
        "{}\"function_call\",\"status\":\"{}\",\"call_id\":{},\"name\":{},\"arguments\":{}}}", head,
        state, json_quoted(b.call_id), json_quoted(b.name), json_quoted(b.text));
  }

  std::string began() override {
    const std::string now = ",\"response\":" + response("in_progress", "null");
    std::string out = event("response.created", now);
    return out += event("response.in_progress", now);
  }

  std::string at(const Block& b, bool content) const {
    return fmt::format(",\"item_id\":\"{}\",\"output_index\":{}{}", b.id, index(),
                       content ? ",\"content_index\":0" : "");
  }

  std::string opened(const Block& b) override {
    std::string out =
        event("response.output_item.added",
              fmt::format(",\"output_index\":{},\"item\":{}", index(), item(b, "in_progress")));
    if (b.kind != Kind::kCall)
      out += event("response.content_part.added", at(b, true) + ",\"part\":" + part(b, "", ""));
    return out;
  }

  std::string grown(const Block& b, const std::string& text, const std::string& logprobs) override {
    const std::string delta = ",\"delta\":" + json_quoted(text);
    if (b.kind == Kind::kReasoning)
      return event("response.reasoning_text.delta", at(b, true) + delta);
    if (b.kind == Kind::kText)
      return event("response.output_text.delta",
                   at(b, true) + delta + ",\"logprobs\":[" + logprobs + "]");
    return event("response.function_call_arguments.delta", at(b, false) + delta);
  }

  std::string closed(const Block& b) override {
    const std::string text = ",\"text\":" + json_quoted(b.text);
    std::string out;
    if (b.kind == Kind::kReasoning) out = event("response.reasoning_text.done", at(b, true) + text);
    if (b.kind == Kind::kText)
      out = event("response.output_text.done",
                  at(b, true) + text + ",\"logprobs\":[" + b.logprobs + "]");
    if (b.kind != Kind::kCall)
      out += event("response.content_part.done",
                   at(b, true) + ",\"part\":" + part(b, b.text, b.logprobs));
    else
      out = event("response.function_call_arguments.done",
                  at(b, false) + ",\"arguments\":" + json_quoted(b.text) +
                      ",\"name\":" + json_quoted(b.name));
    return out + event("response.output_item.done",
                       fmt::format(",\"output_index\":{},\"item\":{}", index(),
                                   item(b, end_ == "length" ? status() : "completed")));
  }

  std::string ended() override {
    return event(fmt::format("response.{}", status()),
                 ",\"response\":" + response(status(), "null"));
  }

  const std::string id_;
  std::string echoed_;  // members that repeat the request
  size_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<InterfaceAnswer> make_responses_answer(const AnswerInput& in) {
  return std::make_unique<ResponsesAnswer>(in);
}

}  // namespace moebius
