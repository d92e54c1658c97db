// SPDX-License-Identifier: Apache-2.0
// Finds templates, and defines the names that they see.
#include "text/chat_template.h"

#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"
#include "gguf/model_files.h"
#include "text/jinja/run.h"

namespace moebius {
namespace {

// Templates have some 30 KiB; a parsed one takes 90 times its bytes.
constexpr uint64_t kMaxSource = uint64_t{256} << 10;
constexpr uint64_t kMaxConfig = uint64_t{64} << 20;
constexpr std::chrono::nanoseconds kTimePerByte{
    100};  // per byte of the input, beside the given time

size_t text_bytes(const Json& j) {
  size_t n = j.is_string() ? j.as_string().size() : 16;
  for (const Json& item : j.items()) n += text_bytes(item);
  for (const auto& [key, value] : j.members()) n += key.size() + text_bytes(value);
  return n;
}

std::vector<TextSegment> segments_of(jinja::Str s) {
  std::vector<TextSegment> out;
  if (s.trust.all() && !s.text.empty()) out.push_back({std::move(s.text), true});
  size_t begin = 0;
  for (const jinja::Trust::Stretch& stretch : s.trust.stretches()) {
    out.push_back({s.text.substr(begin, stretch.end - begin), stretch.trusted});
    begin = stretch.end;
  }
  return out;
}

}  // namespace

struct ChatTemplate::Parsed {
  std::string name;
  jinja::Block block;
};

ChatTemplate::ChatTemplate(std::string_view source, std::string name)
    : parsed_(std::make_unique<Parsed>()) {
  parsed_->name = std::move(name);
  if (source.size() > kMaxSource)
    fail("{}: {} bytes are too long (limit {})", parsed_->name, source.size(), kMaxSource);
  if (!is_utf8(source)) fail("{}: the text is not valid UTF-8", parsed_->name);
  parsed_->block = jinja::parse(source, parsed_->name);
}

std::vector<TextSegment> ChatTemplate::render(
    const ChatInput& in, const std::map<std::string, std::string>& tokens) const {
  size_t input = 0;
  for (const Json* j : {in.messages, in.tools, in.documents, in.extra})
    if (j != nullptr) input += text_bytes(*j);
  jinja::Limits limits;
  limits.steps = in.steps;
  limits.memory = limits.output = in.memory;
  limits.memory += 64 * input;
  limits.output += 16 * input;
  limits.steps += 4 * input;
  if (in.time.count() > 0) limits.time = in.time + kTimePerByte * static_cast<int64_t>(input);
  std::optional<jinja::Runtime> running(std::in_place, parsed_->name, limits, in.now);
  jinja::Runtime& runtime = *running;
  static const std::string kMessages = "messages", kTools = "tools", kDocuments = "documents",
                           kPrompt = "add_generation_prompt";
  for (const auto& [name, text] : tokens) runtime.define(name, runtime.heap().string(text));
  const auto value = [&](const Json* j) {
    return j ? jinja::from_json(*j, runtime.heap()) : jinja::Value::none();
  };
  runtime.define(kMessages, value(in.messages));
  runtime.define(kTools, value(in.tools));
  runtime.define(kDocuments, value(in.documents));
  runtime.define(kPrompt, jinja::Value(in.add_generation_prompt));
  if (in.extra != nullptr)
    for (const auto& [name, json] : in.extra->members())
      runtime.define(name, jinja::from_json(json, runtime.heap()));
  jinja::Str text = runtime.render(parsed_->block, input);
  running.reset();  // frees it first: a long text must not exist three times
  return segments_of(std::move(text));
}

ChatTemplates ChatTemplates::from_folder(const std::string& folder, const std::string& file) {
  ChatTemplates out;
  out.folder_ = folder;
  if (const auto found = read_model_text(folder, "tokenizer_config.json", kMaxConfig)) {
    const std::string& config_path = found->place;
    const Json config = parse_json(found->text, config_path);
    for (const auto& [key, value] : config.members()) {
      const Json* text = value.is_object() ? value.find("content") : &value;
      if (key.ends_with("_token") && text != nullptr && text->is_string())
        out.tokens_.emplace(key, text->as_string());
    }
    const Json* chat = config.find("chat_template");
    if (chat != nullptr && chat->is_string()) {
      out.sources_["default"] = {chat->as_string(), config_path + ": chat_template"};
    } else if (chat != nullptr && chat->is_array()) {
      for (const Json& entry : chat->items()) {
        const Json *name = entry.find("name"), *text = entry.find("template");
        if (name == nullptr || !name->is_string() || text == nullptr || !text->is_string())
          fail("{}: chat_template is a list; each entry needs \"name\" and \"template\"",
               config_path);
        out.sources_[name->as_string()] = {
            text->as_string(),
            fmt::format("{}: chat_template '{}'", config_path, printable(name->as_string(), 40))};
      }
    } else if (chat != nullptr && !chat->is_null()) {
      fail("{}: chat_template is {}; expected a string or a list", config_path,
           kind_name(chat->kind()));
    }
  }
  if (!file.empty()) {
    out.sources_.clear();
    out.sources_["default"] = {read_text_file(file, kMaxSource), printable(file)};
  } else if (const auto found = read_model_text(folder, "chat_template.jinja", kMaxSource)) {
    out.sources_.clear();
    out.sources_["default"] = {found->text, found->place};
    const std::string tool_use =
        join_path(join_path(folder, "additional_chat_templates"), "tool_use.jinja");
    if (path_exists(tool_use))
      out.sources_["tool_use"] = {read_text_file(tool_use, kMaxSource), tool_use};
  }
  return out;
}

std::string ChatTemplates::text() const {
  std::string out;
  for (const auto& [name, source] : sources_) out += source.text + "\n";
  return out;
}

std::vector<TextSegment> ChatTemplates::render(const ChatInput& input) const {
  if (sources_.empty())
    fail("{}: no chat template (chat_template.jinja, or chat_template in tokenizer_config.json)",
         folder_);
  auto it = input.tools != nullptr && !input.tools->is_null() ? sources_.find("tool_use")
                                                              : sources_.end();
  if (it == sources_.end()) it = sources_.find("default");
  if (it == sources_.end() && sources_.size() == 1) it = sources_.begin();
  if (it == sources_.end())
    fail("{}: chat_template names several templates but none is \"default\"", folder_);
  const Source& source = it->second;
  source.lazy->once.call([&] { source.lazy->parsed.emplace(source.text, source.where); });
  return source.lazy->parsed->render(input, tokens_);
}

}  // namespace moebius
