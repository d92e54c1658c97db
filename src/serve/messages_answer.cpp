// SPDX-License-Identifier: Apache-2.0
// Writes answers of /v1/messages, in Anthropic's form.
#include <fmt/core.h>

#include "serve/block_answer.h"
#include "text/answer/json_stream.h"

namespace moebius {
namespace {

std::string named_event(std::string_view type, const std::string& members) {
  return fmt::format("event: {0}\ndata: {{\"type\":\"{0}\"{1}}}\n\n", type, members);
}

class MessagesAnswer final : public BlockAnswer {
 public:
  explicit MessagesAnswer(const AnswerInput& in)
      : BlockAnswer(in), id_("msg_" + random_hex(24)), request_id_(in.request_id) {}

  std::string whole() override {
    std::string content;
    for (const Block& b : blocks_) {
      if (!content.empty()) content += ',';
      content += block_json(b);
    }
    return message_json(content, true);
  }

  std::string error_events(const ApiError& error) override {
    return "event: error\ndata: " + anthropic_error_json(error, request_id_) + "\n\n";
  }

  std::string ping() const override { return named_event("ping", ""); }

 private:
  using Kind = Block::Kind;

  Block make_block(Kind kind, const AnswerEvent* call) override {
    Block b{kind, "", "", "", ""};
    if (call != nullptr) {
      b.call_id = call_id_of(*call);
      b.name = call->text;
    }
    return b;
  }
  std::string call_id_of(const AnswerEvent& call) const { return call_id(model_, "toolu_", call); }

  std::string usage_json(size_t output) const {
    return fmt::format(
        "{{\"input_tokens\":{},\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":{},"
        "\"output_tokens\":{}}}",
        usage_.prompt - usage_.cached, usage_.cached, output);
  }

  std::string stop_json() const {
    std::string_view reason = "end_turn";
    if (end_ == "tool_calls") reason = "tool_use";
    if (end_ == "length") reason = "max_tokens";
    if (context_full()) reason = "model_context_window_exceeded";
    if (!stop_text_.empty()) reason = "stop_sequence";
    return fmt::format("\"stop_reason\":\"{}\",\"stop_sequence\":{}", reason,
                       stop_text_.empty() ? "null" : json_quoted(stop_text_));
  }

  std::string message_json(const std::string& content, bool done) const {
    return fmt::format(
        "{{\"id\":\"{}\",\"type\":\"message\",\"role\":\"assistant\",\"model\":{},\"content\":[{}],"
        "{},\"usage\":{}}}",
        id_, json_quoted(model_.name), content,
        done ? stop_json() : "\"stop_reason\":null,\"stop_sequence\":null",
        usage_json(done ? usage_.completion : 0));
  }

  static std::string block_json(const Block& b) {
    if (b.kind == Kind::kReasoning)
      return fmt::format("{{\"type\":\"thinking\",\"thinking\":{},\"signature\":\"moebius\"}}",
                         json_quoted(b.text));
    if (b.kind == Kind::kText)
      return fmt::format("{{\"type\":\"text\",\"text\":{}}}", json_quoted(b.text));
    // Arguments that were cut at the most tokens are no valid JSON.
    const bool json = json_value(b.text).has_value();
    return fmt::format("{{\"type\":\"tool_use\",\"id\":{},\"name\":{},\"input\":{}}}",
                       json_quoted(b.call_id), json_quoted(b.name), json ? b.text : "{}");
  }

  std::string began() override {
    return named_event("message_start", ",\"message\":" + message_json("", false)) +
           named_event("ping", "");
  }

  std::string opened(const Block& b) override {
    std::string block = "{\"type\":\"text\",\"text\":\"\"}";
    if (b.kind == Kind::kReasoning)
      block = "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}";
    if (b.kind == Kind::kCall)
      block = fmt::format("{{\"type\":\"tool_use\",\"id\":{},\"name\":{},\"input\":{{}}}}",
                          json_quoted(b.call_id), json_quoted(b.name));
    return named_event("content_block_start",
                       fmt::format(",\"index\":{},\"content_block\":{}", index(), block));
  }

  std::string delta(const std::string& inner) const {
    return named_event("content_block_delta",
                       fmt::format(",\"index\":{},\"delta\":{{{}}}", index(), inner));
  }

  std::string grown(const Block& b, const std::string& text, const std::string&) override {
    if (b.kind == Kind::kReasoning)
      return delta("\"type\":\"thinking_delta\",\"thinking\":" + json_quoted(text));
    if (b.kind == Kind::kText)
      return delta("\"type\":\"text_delta\",\"text\":" + json_quoted(text));
    return delta("\"type\":\"input_json_delta\",\"partial_json\":" + json_quoted(text));
  }

  std::string closed(const Block& b) override {
    std::string out;
    if (b.kind == Kind::kReasoning)
      out = delta("\"type\":\"signature_delta\",\"signature\":\"moebius\"");
    return out + named_event("content_block_stop", fmt::format(",\"index\":{}", index()));
  }

  std::string ended() override {
    return named_event("message_delta",
                       fmt::format(",\"delta\":{{{}}},\"usage\":{{\"output_tokens\":{}}}",
                                   stop_json(), usage_.completion)) +
           named_event("message_stop", "");
  }

  const std::string id_, request_id_;
};

}  // namespace

std::unique_ptr<InterfaceAnswer> make_messages_answer(const AnswerInput& in) {
  return std::make_unique<MessagesAnswer>(in);
}

}  // namespace moebius
