// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any text as an answer in any format, cut anywhere. The events are those of the uncut
// text; arguments of calls that ended are JSON objects; without calls nothing but markers is lost.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/json.h"
#include "fuzz/byte_tokenizer.h"
#include "fuzz/target.h"
#include "text/answer/splitter.h"

namespace moebius::fuzz_splitter {
namespace {

// Accepts keys that come twice, as JSON does.
class Grammar final : public JsonHandler {
 public:
  void begin(bool) override {}
  void value(Json) override {}
};

AnswerEvents split(const std::shared_ptr<const AnswerRules>& rules, std::string_view text,
                   size_t piece, bool cut) {
  AnswerSplitter splitter(rules);
  AnswerEvents out;
  const auto add = [&](AnswerEvents now) {
    for (AnswerEvent& e : now) add_event(out, std::move(e));
  };
  for (size_t i = 0; i < text.size(); i += piece) {
    AnswerEvents now;
    splitter.push(text.substr(i, piece), now);
    add(std::move(now));
  }
  AnswerEvents last;
  splitter.finish(cut, last);
  add(std::move(last));
  return out;
}

}  // namespace

// The first bytes choose format, reasoning, start and cut; the rest is the answer.
FUZZ_TARGET(splitter) {
  if (size < 4) return 0;
  const std::string text =
      unicode::lossy(std::string_view(reinterpret_cast<const char*>(data) + 4, size - 4));
  auto rules = std::make_shared<AnswerRules>();
  const auto formats = tool_formats();
  const auto reasoning = reasoning_formats();
  if (data[0] % 32 < formats.size()) rules->format = &formats[data[0] % 32];
  if (data[1] % 8 < reasoning.size()) rules->reasoning = &reasoning[data[1] % 8];
  rules->start = static_cast<AnswerStart>(data[2] % 3);
  rules->parallel = data[2] < 128;
  const bool cut = data[3] % 2 != 0;
  if (rules->format != nullptr) {
    auto tools = std::make_shared<ToolSet>();
    tools->add("f",
               parse_json(R"({"properties":{"a":{"type":"string"},"b":{"type":"integer"}}})", "s"),
               false);
    tools->add("g", Json(), false);
    rules->tools = tools;
  }
  const AnswerEvents whole = split(rules, text, text.size() + 1, cut);
  for (const size_t piece : {size_t{1}, size_t{2}, size_t{7}})
    require(split(rules, text, piece, cut) == whole);
  std::string arguments;
  for (const AnswerEvent& e : whole) {
    if (e.kind == AnswerEvent::Kind::kCallBegin) arguments.clear();
    if (e.kind == AnswerEvent::Kind::kCallArguments) arguments += e.text;
    if (e.kind != AnswerEvent::Kind::kCallEnd) continue;
    require(arguments.starts_with('{'));
    Grammar handler;
    parse_json_events(arguments, handler, "arguments", 256);
  }
  if (rules->format == nullptr && rules->reasoning == nullptr) {
    std::string content;
    for (const AnswerEvent& e : whole) content += e.text;
    require(content == text);
  }
  return 0;
}

}  // namespace moebius::fuzz_splitter
