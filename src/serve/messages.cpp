// SPDX-License-Identifier: Apache-2.0
// Turns messages of a chat into the form that templates expect, and prompts into tokens; implements
// the two endpoints that do only that.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "serve/fields.h"
#include "serve/request.h"
#include "serve/tools.h"
#include "text/answer/past_messages.h"

namespace moebius {
namespace {

constexpr uint64_t kTemplateSteps = 2'000'000;
constexpr size_t kTemplateMemory = 64 << 20;
// Marks the end of the content of a last message that the answer continues: whatever the template
// writes after it is removed. The characters are for private use, so no text contains them by
// chance; the space shows whether the template trims contents.
constexpr std::string_view kContinueMark = "\U000f6d6f\U000f6562\U000f6975\U000f7320 ";

}  // namespace

void limit_template(ChatInput& input, std::chrono::nanoseconds time) {
  input.steps = kTemplateSteps;
  input.memory = kTemplateMemory;
  input.time = time;
}

ApiError template_refusal(const Error& error, const ServedModel& model, const std::string& texts,
                          const std::string& param) {
  std::string words = error.what();
  const std::string folder = join_path(model.templates->folder(), "");
  for (size_t at; !folder.empty() && (at = words.find(folder)) != std::string::npos;)
    words.erase(at, folder.size());
  return {400, "template_error",
          fmt::format("the chat template refuses these {}: {}", texts, words), param};
}

std::string content_text(const Json& content, const std::string& path,
                         std::initializer_list<std::string_view> types) {
  if (content.is_string()) return content.as_string();
  if (!content.is_array()) wrong_type(content, path, "a string or an array of parts");
  std::string text;
  for (size_t i = 0; i < content.items().size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    const Fields f = fields_of(content.items()[i], at);
    const std::string type = f.required_string("type");
    if (std::find(types.begin(), types.end(), type) == types.end())
      refuse("unsupported", at + ".type", "{}.type is '{}'; only text is offered", at,
             printable(type, 40));
    text += f.required_string("text");
  }
  return text;
}

// Parses the arguments of a past call, which are JSON within a string, to the object that templates
// expect. Clients send nothing, or null, for calls without arguments.
Json past_arguments(const std::string& text, const std::string& path, size_t& values_left) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return Json::object();
  try {
    Json arguments = parse_inner_json(text, path, values_left);
    return arguments.is_null() ? Json::object() : arguments;
  } catch (const Error& e) {
    invalid(path, "{}", e.what());
  }
}

namespace {

Json past_calls(const Json& calls, const std::string& path, size_t& values_left) {
  if (!calls.is_array()) wrong_type(calls, path, "an array");
  Json out = Json::array();
  for (size_t i = 0; i < calls.items().size(); ++i) {
    const std::string at = fmt::format("{}[{}].function", path, i);
    const Json* function = calls.items()[i].find("function");
    if (function == nullptr || !function->is_object()) missing(at);
    Json call = Json::object(), inner = Json::object();
    for (const auto& [key, value] : function->members()) {
      if (key == "arguments" && value.is_string())
        inner.set(key, past_arguments(value.as_string(), at + ".arguments", values_left));
      else if (key == "arguments" && value.is_null())
        inner.set(key, Json::object());
      else
        inner.set(key, value);
    }
    for (const auto& [key, value] : calls.items()[i].members())
      call.set(key, key == "function" ? inner : value);
    out.push(std::move(call));
  }
  return out;
}

Json message_at(const Json& message, const std::string& path, size_t& values_left) {
  const Fields f = fields_of(message, path);
  const std::string role = f.word("role", {"system", "developer", "user", "assistant", "tool"});
  Json out = Json::object();
  out.set("role", role == "developer" ? "system" : role);
  const Json* content = f.find("content");
  if (content != nullptr)
    out.set("content", content_text(*content, path + ".content"));
  else if (f.has("tool_calls") && role == "assistant")
    out.set("content", Json());
  else if (role == "assistant" &&
           (f.has("refusal") || f.has("reasoning_content") || f.has("reasoning")))
    out.set("content", f.string("refusal").value_or(""));
  else
    missing(path + ".content");
  if (const Json* calls = f.find("tool_calls"))
    out.set("tool_calls", past_calls(*calls, path + ".tool_calls", values_left));
  for (const char* name : {"name", "tool_call_id"})
    if (const auto text = f.string(name)) out.set(name, *text);
  auto reasoning = f.string("reasoning_content");
  if (!reasoning) reasoning = f.string("reasoning");
  if (reasoning) out.set("reasoning_content", *reasoning);
  return out;
}

// Cuts the prompt at the end of the last message's content.
void cut_at_mark(std::vector<TextSegment>& segments) {
  const std::string_view mark = kContinueMark.substr(0, kContinueMark.size() - 1);
  for (; !segments.empty(); segments.pop_back()) {
    std::string& text = segments.back().text;
    const size_t at = text.rfind(mark);
    if (at == std::string::npos) continue;
    const bool trims = std::string_view(text).substr(at, kContinueMark.size()) != kContinueMark;
    text.erase(at);
    while (trims && !text.empty() && std::string_view(" \t\r\n").find(text.back()) < 4)
      text.pop_back();
    return;
  }
  fail("it does not show the content of the last message, which therefore cannot go on");
}

// Adds the tokens of a word in every position: as it is written, and with or without a space before
// it.
void add_bad_word(const Tokenizer& tokenizer, const std::string& word,
                  std::vector<std::vector<int32_t>>& words) {
  const size_t begin = word.find_first_not_of(" \t\r\n");
  const std::string other = begin == 0                  ? " " + word
                            : begin < std::string::npos ? word.substr(begin)
                                                        : word;
  for (const std::string& text : {word, other}) {
    std::vector<int32_t> ids = tokenizer.encode(text, false);
    if (!ids.empty() && std::find(words.begin(), words.end(), ids) == words.end())
      words.push_back(std::move(ids));
  }
}

std::vector<TextSegment> render_chat(const ApiRequest& request, const ServedModel& model) {
  if (model.templates == nullptr || model.templates->empty())
    refuse("no_chat_template", "messages", "this model has no chat template; use /v1/completions");
  ChatInput input;
  input.messages = &request.messages;
  input.tools = request.tools.is_null() ? nullptr : &request.tools;
  input.extra = &request.template_extra;
  input.add_generation_prompt = request.add_generation_prompt;
  limit_template(input);
  return render_filled(*model.templates, input);
}

struct EncodedChat {
  std::optional<std::vector<int32_t>> ids;  // nothing: the prompt has more than `most` tokens
  std::string end;                          // last bytes of the prompt's text, some hundred
};

// Returns the field that held the messages.
std::string messages_field(const ApiRequest& request) {
  return request.endpoint == Endpoint::kResponses ? "input" : "messages";
}

EncodedChat encode_chat(ApiRequest& request, const ServedModel& model, size_t most) {
  constexpr size_t kEnd = 256;
  const std::string param = messages_field(request);
  repair_past_calls(request.messages, model, param);
  try {
    std::vector<TextSegment> segments = render_chat(request, model);
    request.messages = Json();  // frees messages, whose texts are in the segments
    if (request.continue_final) cut_at_mark(segments);
    EncodedChat out;
    for (size_t i = segments.size(); i > 0 && out.end.size() < kEnd; --i) {
      const std::string_view text = segments[i - 1].text;
      out.end.insert(0, text.substr(text.size() - std::min(text.size(), kEnd)));
    }
    out.ids =
        model.tokenizer->encode_segments_within(std::move(segments), request.add_special, most);
    return out;
  } catch (const Error& e) {
    throw template_refusal(e, model, "messages", param);
  }
}

// Decides how the answer is read, and what ends it.
void set_answer(Request& g, const ApiRequest& request, const ServedModel& model,
                std::string_view prompt_end) {
  const std::shared_ptr<AnswerRules> rules = model.markup.rules(request.tool_set, prompt_end);
  if (!rules) return;
  rules->parallel = request.parallel_calls;
  g.text.thinking_budget = request.thinking_budget;
  const auto& more = model.markup.stop_tokens;
  if (!g.stop_tokens.empty()) g.stop_tokens.insert(g.stop_tokens.end(), more.begin(), more.end());
  g.text.answer = rules;
}

void fit(Request& g, const ApiRequest& request, const ServedModel& model,
         const std::string& param) {
  const size_t n = g.prompt.size();
  if (n == 0) refuse("empty_prompt", param, "the prompt is empty: there is no token to start from");
  if (n >= model.context && request.endpoint == Endpoint::kMessages)
    throw prompt_too_long(n, model.context);
  if (n >= model.context) throw context_exceeded(n, model.context, param);
  g.max_new =
      std::min({request.max_tokens.value_or(SIZE_MAX), model.context - n, model.max_output});
  g.sampling.min_tokens = static_cast<int>(std::min(request.min_tokens, g.max_new));
}

}  // namespace

namespace {

// Decides whether the answer begins a message or continues the last one.
void read_continuation(const Fields& f, const Json& messages, ApiRequest& r) {
  r.continue_final = f.boolean("continue_final_message", false);
  r.add_generation_prompt = f.boolean("add_generation_prompt", !r.continue_final);
  if (!r.continue_final) return;
  if (r.add_generation_prompt)
    invalid("continue_final_message",
            "continue_final_message and add_generation_prompt cannot both be true");
  const Json& last = messages.items().back();
  const Json* role = last.find("role");
  if (role == nullptr || !role->is_string() || role->as_string() != "assistant")
    invalid("continue_final_message",
            "continue_final_message: the last message is not the assistant's");
}

// Returns the message with the mark after its content.
Json continued(const Json& message) {
  Json out = Json::object();
  for (const auto& [key, value] : message.members()) {
    if (key == "content" && !value.is_string())
      invalid("continue_final_message",
              "continue_final_message: the last message has no content to go on with");
    if (key == "content")
      out.set(key, value.as_string() + std::string(kContinueMark));
    else
      out.set(key, value);
  }
  return out;
}

}  // namespace

void continue_last_message(ApiRequest& r) {
  Json out = Json::array();
  const auto& list = r.messages.items();
  for (size_t i = 0; i < list.size(); ++i)
    out.push(i + 1 < list.size() ? list[i] : continued(list[i]));
  r.messages = std::move(out);
  r.continue_final = true;
  r.add_generation_prompt = false;
}

void read_messages(const Json& fields, ApiRequest& r) {
  const Fields f(fields, "");
  f.required("messages");
  const Json* messages = f.array("messages");
  if (messages->items().empty())
    refuse("out_of_range", "messages", "messages has 0 entries; expected 1 to {}", kMostMessages);
  r.messages = Json::array();
  size_t values_left = kMostBodyValues;
  const size_t count = messages->items().size();
  read_continuation(f, *messages, r);
  for (size_t i = 0; i < count; ++i) {
    Json m = message_at(messages->items()[i], fmt::format("messages[{}]", i), values_left);
    r.messages.push(r.continue_final && i + 1 == count ? continued(m) : std::move(m));
  }
  read_template_names(f, r);
}

void read_template_names(const Fields& f, ApiRequest& r) {
  if (const auto effort = f.string("reasoning_effort"))
    r.template_extra.set("reasoning_effort", *effort);
  const Json* extra = f.object("chat_template_kwargs");
  if (extra == nullptr) return;
  for (const auto& [key, value] : extra->members()) {
    const std::string path = "chat_template_kwargs." + printable(key, 40);
    if (key == "messages" || key == "tools" || key == "documents" ||
        key == "add_generation_prompt" || key.ends_with("_token"))
      refuse("reserved", path, "{}: this name is the server's", path);
    if (r.template_extra.find(key) == nullptr) r.template_extra.set(key, value);
  }
}

ApiError context_exceeded(std::optional<size_t> tokens, size_t context, const std::string& param) {
  const std::string words =
      tokens ? fmt::format("{}", *tokens) : fmt::format("more than {}", context);
  return {400, "context_length_exceeded",
          fmt::format("the prompt has {} tokens, but the context holds {}", words, context), param};
}

ApiError prompt_too_long(size_t tokens, size_t context) {
  return {400, "context_length_exceeded",
          fmt::format("prompt is too long: {} tokens > {} maximum", tokens, context), "messages"};
}

std::vector<Request> prepare(ApiRequest& request, const ServedModel& model) {
  std::vector<Request> out;
  if (request.format.given())
    request.generation.text.grammar =
        compile_format(request.format, request.grammar_limits, *model.grammars);
  for (const std::string& word : request.bad_words)
    add_bad_word(*model.tokenizer, word, request.generation.sampling.bad_words);
  if (request.prediction)
    if (auto ids = model.tokenizer->encode_within(*request.prediction, false, model.context))
      request.generation.prediction = std::move(*ids);
  const auto add = [&](std::optional<std::vector<int32_t>> ids, const std::string& param) {
    if (!ids) throw context_exceeded(std::nullopt, model.context, param);
    out.push_back(request.generation);
    out.back().prompt = std::move(*ids);
    fit(out.back(), request, model, param);
  };
  if (request.chat) {
    const std::string param = messages_field(request);
    // Clients of /v1/messages get the prompt's length even if it exceeds the context.
    const size_t most = request.endpoint == Endpoint::kMessages ? 8 * model.context : model.context;
    EncodedChat chat = encode_chat(request, model, most);
    add(std::move(chat.ids), param);
    set_answer(out.back(), request, model, chat.end);
    TextRules& rules = out.back().text;
    if (request.format.given() && rules.answer != nullptr)
      rules.grammar = compile_format(request.format, request.grammar_limits, *rules.answer,
                                     *model.tokenizer, *model.grammars);
    if (!request.format.given()) mask_calls(out.back(), request, model);
    request.tools = Json();
    return out;
  }
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    const std::string param = request.prompts.size() > 1 ? fmt::format("prompt[{}]", i) : "prompt";
    if (auto* ids = std::get_if<std::vector<int32_t>>(&request.prompts[i])) {
      add(std::move(*ids), param);
      continue;
    }
    auto& text = std::get<std::string>(request.prompts[i]);
    add(model.tokenizer->encode_within(text, request.add_special, model.context), param);
    if (!request.echo) std::string().swap(text);
  }
  return out;
}

std::string tokenize_answer(const RequestBody& body, const ServedModel& model) {
  const Fields f(body.fields, "");
  if (const auto name = f.string("model")) check_model_name(*name, model);
  std::vector<int32_t> ids;
  if (f.has("messages")) {
    ApiRequest request = read_common(body, model);
    request.add_special = f.boolean("add_special_tokens", false);
    read_messages(body.fields, request);
    read_tools(f, request, model);
    ids = *encode_chat(request, model, SIZE_MAX).ids;
  } else {
    if (f.has("tools")) refuse("unsupported", "tools", "tools are counted beside messages only");
    auto text = f.string("prompt");
    if (!text) text = f.string("content");
    if (!text) missing("prompt");
    ids = model.tokenizer->encode(*text, f.boolean("add_special_tokens", f.has("prompt")));
  }
  std::string out =
      fmt::format("{{\"count\":{},\"max_model_len\":{},\"tokens\":[", ids.size(), model.context);
  for (size_t i = 0; i < ids.size(); ++i) out += fmt::format("{}{}", i == 0 ? "" : ",", ids[i]);
  out += "],\"token_strs\":";
  if (!f.boolean("return_token_strs", false)) return out + "null}";
  out += '[';
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ',';
    append_json_string(out, model.tokenizer->id_to_token(ids[i]).value_or(""));
  }
  return out + "]}";
}

std::string count_tokens_answer(const RequestBody& body, const ServedModel& model) {
  ApiRequest request = parse_anthropic_request(body, model);
  const size_t count = encode_chat(request, model, SIZE_MAX).ids->size();
  return fmt::format("{{\"input_tokens\":{}}}", count);
}

std::string detokenize_answer(const RequestBody& body, const ServedModel& model) {
  const Fields f(body.fields, "");
  if (const auto name = f.string("model")) check_model_name(*name, model);
  const std::vector<int32_t>* ids = body.ids("tokens");
  if (ids == nullptr) missing("tokens");
  const std::string text = model.tokenizer->decode(*ids, false);
  std::string out = "{\"prompt\":";
  append_json_string(out, text);
  out += ",\"content\":";
  append_json_string(out, text);
  return out + "}";
}

}  // namespace moebius
