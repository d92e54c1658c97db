// SPDX-License-Identifier: Apache-2.0
// Messages of a chat, in the form that templates expect; prompts to tokens; the two endpoints that
// only do that.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/file.h"
#include "serve/api_error.h"
#include "serve/fields.h"
#include "serve/request.h"

namespace moebius {
namespace {

constexpr size_t kMostMessages = 4096;
constexpr uint64_t kTemplateSteps = 2'000'000;
constexpr size_t kTemplateMemory = 64 << 20;
constexpr std::chrono::milliseconds kTemplateTime{200};

// The text of a content: a string, or parts that are text.
std::string content_text(const Json& content, const std::string& path) {
  if (content.is_string()) return content.as_string();
  if (!content.is_array()) wrong_type(content, path, "a string or an array of parts");
  std::string text;
  for (size_t i = 0; i < content.items().size(); ++i) {
    const Json& part = content.items()[i];
    const std::string at = fmt::format("{}[{}]", path, i);
    if (!part.is_object()) wrong_type(part, at, "an object");
    const Fields f(part, at);
    const auto type = f.string("type");
    if (!type) throw ApiError(400, "missing", at + ".type is missing", at + ".type");
    if (*type != "text")
      throw ApiError(400, "unsupported",
                     fmt::format("{}.type is '{}'; only text is offered", at, printable(*type, 40)),
                     at + ".type");
    const auto words = f.string("text");
    if (!words) throw ApiError(400, "missing", at + ".text is missing", at + ".text");
    text += *words;
  }
  return text;
}

// Past calls of tools: their arguments are JSON within a string; templates want the object.
Json past_calls(const Json& calls, const std::string& path) {
  if (!calls.is_array()) wrong_type(calls, path, "an array");
  Json out = Json::array();
  for (size_t i = 0; i < calls.items().size(); ++i) {
    const std::string at = fmt::format("{}[{}].function", path, i);
    const Json* function = calls.items()[i].find("function");
    if (function == nullptr || !function->is_object())
      throw ApiError(400, "missing", at + " is missing", at);
    Json call = Json::object(), inner = Json::object();
    for (const auto& [key, value] : function->members()) {
      if (key == "arguments" && value.is_string()) {
        try {
          inner.set(key, parse_json_strictly(value.as_string(), at + ".arguments", 64));
        } catch (const Error& e) {
          invalid(at + ".arguments", e.what());
        }
      } else {
        inner.set(key, value);
      }
    }
    for (const auto& [key, value] : calls.items()[i].members())
      call.set(key, key == "function" ? inner : value);
    out.push(std::move(call));
  }
  return out;
}

Json message_at(const Json& message, const std::string& path) {
  if (!message.is_object()) wrong_type(message, path, "an object");
  const Fields f(message, path);
  auto role = f.string("role");
  if (!role) throw ApiError(400, "missing", path + ".role is missing", path + ".role");
  static constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  if (std::find(std::begin(kRoles), std::end(kRoles), *role) == std::end(kRoles))
    invalid(path + ".role",
            fmt::format("{}.role is '{}'; expected system, developer, user, assistant or tool",
                        path, printable(*role, 40)));
  Json out = Json::object();
  out.set("role", *role == "developer" ? "system" : *role);
  const Json* content = f.find("content");
  if (content != nullptr)
    out.set("content", content_text(*content, path + ".content"));
  else if (f.has("tool_calls") && *role == "assistant")
    out.set("content", Json());
  else
    throw ApiError(400, "missing", path + ".content is missing", path + ".content");
  if (const Json* calls = f.find("tool_calls"))
    out.set("tool_calls", past_calls(*calls, path + ".tool_calls"));
  for (const char* name : {"name", "tool_call_id"})
    if (const auto text = f.string(name)) out.set(name, *text);
  auto reasoning = f.string("reasoning_content");
  if (!reasoning) reasoning = f.string("reasoning");
  if (reasoning) out.set("reasoning_content", *reasoning);
  return out;
}

std::vector<int32_t> encode_chat(const ApiRequest& request, const ServedModel& model) {
  if (model.templates == nullptr || model.templates->empty())
    throw ApiError(400, "no_chat_template", "this model has no chat template; use /v1/completions",
                   "messages");
  ChatInput input;
  input.messages = &request.messages;
  input.extra = &request.template_extra;
  input.steps = kTemplateSteps;
  input.memory = kTemplateMemory;
  input.time = kTemplateTime;
  try {
    return model.tokenizer->encode_segments(model.templates->render(input), request.add_special);
  } catch (const Error& e) {
    // Where the model lies is nobody's business.
    std::string words = e.what();
    const std::string folder = join_path(model.templates->folder(), "");
    for (size_t at; !folder.empty() && (at = words.find(folder)) != std::string::npos;)
      words.erase(at, folder.size());
    throw ApiError(400, "template_error",
                   fmt::format("the chat template refuses these messages: {}", words), "messages");
  }
}

void fit(GenerationRequest& g, const ApiRequest& request, const ServedModel& model,
         const std::string& param) {
  const size_t n = g.prompt.size();
  if (n == 0)
    throw ApiError(400, "empty_prompt", "the prompt is empty: there is no token to start from",
                   param);
  if (n >= model.context)
    throw ApiError(
        400, "context_length_exceeded",
        fmt::format("the prompt has {} tokens, but the context holds {}", n, model.context), param);
  g.max_new =
      std::min({request.max_tokens.value_or(SIZE_MAX), model.context - n, model.max_output});
  g.min_new = std::min(g.min_new, g.max_new);
}

}  // namespace

void read_messages(const Json& body, ApiRequest& r) {
  const Fields f(body, "");
  const Json* messages = f.find("messages");
  if (messages == nullptr) throw ApiError(400, "missing", "messages is missing", "messages");
  if (!messages->is_array()) wrong_type(*messages, "messages", "an array");
  const size_t count = messages->items().size();
  if (count == 0 || count > kMostMessages)
    throw ApiError(400, "out_of_range",
                   fmt::format("messages has {} entries; expected 1 to {}", count, kMostMessages),
                   "messages");
  r.messages = Json::array();
  for (size_t i = 0; i < count; ++i)
    r.messages.push(message_at(messages->items()[i], fmt::format("messages[{}]", i)));
  if (const auto effort = f.string("reasoning_effort"))
    r.template_extra.set("reasoning_effort", *effort);
  const Json* extra = f.find("chat_template_kwargs");
  if (extra == nullptr) return;
  if (!extra->is_object()) wrong_type(*extra, "chat_template_kwargs", "an object");
  for (const auto& [key, value] : extra->members()) {
    const std::string path = "chat_template_kwargs." + printable(key, 40);
    if (key == "messages" || key == "tools" || key == "documents" ||
        key == "add_generation_prompt" || key.ends_with("_token"))
      throw ApiError(400, "reserved", fmt::format("{}: this name is the server's", path), path);
    if (r.template_extra.find(key) == nullptr) r.template_extra.set(key, value);
  }
}

std::vector<GenerationRequest> prepare(const ApiRequest& request, const ServedModel& model) {
  std::vector<GenerationRequest> out;
  if (request.chat) {
    out.push_back(request.generation);
    out.back().prompt = encode_chat(request, model);
    fit(out.back(), request, model, "messages");
    return out;
  }
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    out.push_back(request.generation);
    if (const auto* text = std::get_if<std::string>(&request.prompts[i]))
      out.back().prompt = model.tokenizer->encode(*text, request.add_special);
    else
      out.back().prompt = std::get<std::vector<int32_t>>(request.prompts[i]);
    fit(out.back(), request, model,
        request.prompts.size() > 1 ? fmt::format("prompt[{}]", i) : "prompt");
  }
  return out;
}

std::string tokenize_answer(const Json& body, const ServedModel& model) {
  const Fields f(body, "");
  if (const auto name = f.string("model")) check_model_name(*name, model);
  std::vector<int32_t> ids;
  if (f.has("messages")) {
    ApiRequest request;
    request.add_special = f.boolean("add_special_tokens", false);
    read_messages(body, request);
    ids = encode_chat(request, model);
  } else {
    auto text = f.string("prompt");
    if (!text) text = f.string("content");
    if (!text) throw ApiError(400, "missing", "prompt is missing", "prompt");
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

std::string detokenize_answer(const Json& body, const ServedModel& model) {
  const Fields f(body, "");
  if (const auto name = f.string("model")) check_model_name(*name, model);
  const Json* tokens = f.find("tokens");
  if (tokens == nullptr) throw ApiError(400, "missing", "tokens is missing", "tokens");
  if (!tokens->is_array()) wrong_type(*tokens, "tokens", "an array of token ids");
  std::vector<int32_t> ids;
  for (size_t i = 0; i < tokens->items().size(); ++i)
    ids.push_back(static_cast<int32_t>(integer_at(tokens->items()[i], fmt::format("tokens[{}]", i),
                                                  0, static_cast<int64_t>(model.vocab) - 1)));
  const std::string text = model.tokenizer->decode(ids, false);
  std::string out = "{\"prompt\":";
  append_json_string(out, text);
  out += ",\"content\":";
  append_json_string(out, text);
  return out + "}";
}

}  // namespace moebius
