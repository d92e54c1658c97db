// SPDX-License-Identifier: Apache-2.0
#include "text/answer/call_grammar.h"

#include <functional>

#include "base/error.h"

namespace moebius {
namespace {

using Rule = GrammarBuilder::Rule;

Rule open_channel(GrammarBuilder& b, const char* name) {
  return b.sequence({b.marker("<|channel|>"), b.literal(name), b.marker("<|message|>")});
}

// What may stand before an answer's content or calls: reasoning up to its end, where the prompt
// leaves room for it.
Rule reasoning_rule(GrammarBuilder& b, const AnswerRules& rules) {
  const ReasoningFormat* r = rules.reasoning;
  if (r == nullptr || rules.start == AnswerStart::kContent) return b.literal("");
  const std::string ends[] = {std::string(r->end)};
  if (r->name == "harmony") {  // a message in the channel of reasoning, or several
    const Rule rest =
        b.sequence({b.text_until(ends), b.marker("<|start|>"), b.literal("assistant")});
    const Rule more = b.repeat(b.sequence({open_channel(b, "analysis"), rest}), 0);
    return rules.start == AnswerStart::kReasoning ? b.sequence({rest, more}) : more;
  }
  const Rule rest = b.sequence({b.text_until(ends), b.repeat(b.literal("\n"), 0, 2)});
  if (rules.start == AnswerStart::kReasoning) return rest;
  return b.optional(b.sequence({b.marker(std::string(r->begin)), rest}));
}

// Parts of one format's calls.
class CallRules {
 public:
  CallRules(const AnswerRules& rules, const Tokenizer& tokenizer)
      : f_(*rules.format), rules_(rules), b_(&tokenizer) {}

  GrammarPtr required(const Tool* only) {
    std::vector<const Tool*> tools;
    for (const Tool& t : rules_.tools->tools())
      if (only == nullptr || only == &t) tools.push_back(&t);
    std::vector<Rule> calls;
    for (const Tool* t : tools) calls.push_back(whole_call(*t));
    several_ = rules_.parallel && only == nullptr;
    return b_.build(b_.sequence({reasoning_rule(b_, rules_), sections(b_.choice(calls))}));
  }

  // Free text; where a marker comes, a name follows, and of strict tools the arguments.
  GrammarPtr free() {
    const std::string marker = trigger();
    if (marker.empty()) return nullptr;
    std::vector<Rule> names;
    for (const Tool& t : rules_.tools->tools())
      names.push_back(t.strict ? call_behind(t, marker) : name_behind(t, marker));
    const GrammarBuilder::Trigger triggers[] = {{marker, b_.choice(names)}};
    return b_.build(b_.triggered(triggers));
  }

 private:
  Rule text(std::string_view s) { return b_.literal(std::string(s)); }
  Rule mark(std::string_view s) { return s.empty() ? text("") : b_.marker(std::string(s)); }
  Rule maybe(std::string_view s) { return b_.optional(text(s)); }
  Rule until(std::string_view s) {
    const std::string markers[] = {std::string(s)};
    return b_.text_until(markers);
  }
  // The text where it may be written as one token, the rest as text.
  Rule written(std::string_view s) {
    // Markers in a longer text: DeepSeek's "function<sep>".
    static constexpr std::string_view kSeparator = "<｜tool▁sep｜>";
    const size_t at = s.find(kSeparator);
    if (at == s.npos || s == kSeparator) return mark(s);
    std::vector<Rule> parts;
    const std::string_view head = s.substr(0, at);
    const size_t close = head.find("｜>");
    if (close != head.npos) {
      parts.push_back(mark(head.substr(0, close + std::string_view("｜>").size())));
      parts.push_back(text(head.substr(close + std::string_view("｜>").size())));
    } else {
      parts.push_back(text(head));
    }
    parts.push_back(mark(kSeparator));
    return b_.sequence(parts);
  }

  // All of an answer's calls.
  Rule sections(Rule call) {
    const auto more = [&](Rule first, Rule next) {
      return several_ ? b_.sequence({first, b_.repeat(next, 0)}) : first;
    };
    if (f_.layout == CallLayout::kPythonic)
      return b_.sequence({mark(f_.section_begin), text("["),
                          more(call, b_.sequence({text(", "), call})), text("]"),
                          mark(f_.section_end)});
    if (f_.name == "mistral_old")
      return b_.sequence({mark(f_.section_begin), text("["),
                          more(call, b_.sequence({text(", "), call})), text("]")});
    if (f_.name == "llama3_json" || f_.layout == CallLayout::kChannels) return call;
    const bool one = f_.call_begin.empty() || f_.name == "qwen3_coder";  // per section
    const bool lines = f_.layout == CallLayout::kTagged && !one;
    if (one) {
      const Rule section = b_.sequence({mark(f_.section_begin), call, mark(f_.section_end)});
      const bool line = f_.name == "hermes" || f_.name == "qwen3_coder" || f_.name == "glm45";
      return more(section, b_.sequence({text(line ? "\n" : ""), section}));
    }
    return b_.sequence(
        {mark(f_.section_begin), text(lines ? "\n" : ""), more(call, call), mark(f_.section_end)});
  }

  // One call, within a section.
  Rule whole_call(const Tool& t) {
    switch (f_.layout) {
      case CallLayout::kObject: {
        const bool lines = f_.name == "hermes";
        return b_.sequence(
            {text(lines ? "\n" : ""),
             text("{\"name\": \"" + t.name + "\", \"" + std::string(f_.separator) + "\": "),
             json(t), text(lines ? "}\n" : "}")});
      }
      case CallLayout::kNamed:
        return b_.sequence({written(f_.call_begin), head(t), json(t),
                            text(f_.name == "deepseek_v3" ? "\n```" : ""), mark(f_.call_end)});
      case CallLayout::kTagged:
        return b_.sequence({text(f_.name == "qwen3_coder" ? "\n" : ""), written(f_.call_begin),
                            text(t.name), text(f_.name_end), text(line()), tagged(t),
                            mark(f_.call_end), text(line_after_call())});
      case CallLayout::kPythonic:
        return b_.sequence({text(t.name + "("), pythonic(t), text(")")});
      case CallLayout::kChannels:
        return b_.sequence({mark("<|channel|>"), text("commentary to=functions." + t.name + " "),
                            mark("<|constrain|>"), text("json"), mark("<|message|>"), json(t)});
    }
    return text("");
  }

  // Between marker and arguments.
  Rule head(const Tool& t) {
    if (f_.ids == CallIds::kFunctions)
      return b_.sequence(
          {text("functions." + t.name + ":"), b_.regex("[0-9]{1,4}"), mark(f_.separator)});
    if (f_.name == "deepseek_v3") return text(t.name + std::string(f_.separator));
    return b_.sequence({text(t.name), mark(f_.separator)});
  }

  std::string_view line() const { return f_.name == "glm47" || f_.name == "glm45" ? "" : "\n"; }
  std::string_view line_after_call() const {
    return f_.name == "glm45" || f_.name == "glm47" ? "" : "\n";
  }

  Rule json(const Tool& t) {
    if (t.schema.is_null()) return b_.json_object();
    return b_.schema(t.schema, "tools." + t.name);
  }

  // A property's schema by itself: what it refers to comes along.
  Json alone(const Tool& t, const Json& property) const {
    Json out = property;
    for (const char* name : {"$defs", "definitions"})
      if (const Json* defs = t.schema.find(name); defs != nullptr && out.is_object())
        out.set(name, *defs);
    return out;
  }

  bool must(const Tool& t, std::string_view key) const {
    const Json* list = t.schema.find("required");
    if (list != nullptr)
      for (const Json& name : list->items())
        if (name.is_string() && name.as_string() == key) return true;
    return false;
  }

  // Every property in its order, those that need not come perhaps.
  Rule tagged(const Tool& t) {
    std::vector<Rule> parts;
    const Json* properties = t.schema.find("properties");
    if (properties == nullptr) return text("");
    for (const auto& [key, property] : properties->members()) {
      const Rule one = tagged_argument(t, key, property);
      parts.push_back(must(t, key) ? one : b_.optional(one));
    }
    if (f_.name == "glm45") parts.push_back(text("\n"));
    return parts.empty() ? text("") : b_.sequence(parts);
  }

  Rule tagged_argument(const Tool& t, const std::string& key, const Json& property) {
    const bool typed = f_.key_end.ends_with("string=\"");
    const bool string = kinds_of_schema(property) == kStringKind;
    const std::string_view before = f_.name == "glm45" ? "\n" : "";
    std::vector<Rule> parts = {text(before), written(f_.key_begin), text(key), text(f_.key_end)};
    if (typed) parts.push_back(text(string ? "true\">" : "false\">"));
    if (!f_.value_begin.empty()) parts.push_back(b_.sequence({text(before), mark(f_.value_begin)}));
    parts.push_back(text(f_.line_feed));
    const Json* words = property.find("enum");
    if (string && words != nullptr) {
      std::vector<std::string> list;
      for (const Json& w : words->items())
        if (w.is_string()) list.push_back(w.as_string());
      parts.push_back(b_.sequence({b_.words(list), text(f_.line_feed), mark(f_.value_end)}));
    } else if (string) {
      parts.push_back(until(std::string(f_.line_feed) + std::string(f_.value_end)));
    } else {
      parts.push_back(b_.schema(alone(t, property), "tools." + t.name + "." + key));
      parts.push_back(b_.sequence({text(f_.line_feed), mark(f_.value_end)}));
    }
    const bool line_behind = f_.name != "glm45" && f_.name != "glm47";
    if (line_behind) parts.push_back(text("\n"));
    return b_.sequence(parts);
  }

  // key=value, with commas between those that come.
  Rule pythonic(const Tool& t) {
    const Json* properties = t.schema.find("properties");
    if (properties == nullptr) return text("");
    const auto& list = properties->members();
    Rule none = text(""), some = text("");  // behind nothing written, behind something
    for (size_t i = list.size(); i > 0; --i) {
      const auto& [key, property] = list[i - 1];
      const Rule value = b_.sequence(
          {text(key + "="), b_.schema(alone(t, property), "tools." + t.name + "." + key), some});
      const Rule first = value, next = b_.sequence({text(", "), value});
      if (must(t, key)) {
        none = first;
        some = next;
      } else {
        none = b_.choice({first, none});
        some = b_.choice({next, some});
      }
    }
    return none;
  }

  // The marker behind which a name comes.
  std::string trigger() const {
    if (f_.name == "llama3_json") return {};
    if (f_.layout == CallLayout::kChannels) return " to=functions.";
    if (f_.layout == CallLayout::kTagged && !f_.call_begin.empty() && f_.name != "qwen3_coder")
      return std::string(f_.call_begin);
    if (f_.ids == CallIds::kFunctions || f_.name == "deepseek_v31")
      return std::string(f_.call_begin);
    if (f_.name == "deepseek_v3") return "<｜tool▁call▁begin｜>";
    return std::string(f_.section_begin);
  }

  // What comes behind that marker, up to the end of the name.
  Rule name_behind(const Tool& t, const std::string&) {
    const Rule space = b_.regex("[ \\n]{0,2}");
    switch (f_.layout) {
      case CallLayout::kObject:
        return b_.sequence({space, text(f_.name == "mistral_old" ? "[" : ""), space, text("{"),
                            space, text("\"name\""), space, text(":"), space,
                            text("\"" + t.name + "\"")});
      case CallLayout::kNamed:
        if (f_.name == "deepseek_v3")
          return b_.sequence({text("function"), mark("<｜tool▁sep｜>"), text(t.name + "\n")});
        if (f_.name == "mistral")
          return b_.sequence({text(t.name), b_.choice({mark("[CALL_ID]"), mark("[ARGS]")})});
        return head(t);
      case CallLayout::kTagged:
        if (f_.name == "qwen3_coder")
          return b_.sequence({space, text("<function=" + t.name + ">")});
        if (f_.name_end.empty())
          return b_.sequence({space, text(t.name),
                              b_.choice({text("\n"), mark(f_.key_begin), mark(f_.call_end)})});
        return text(t.name + std::string(f_.name_end));
      case CallLayout::kPythonic:
        return text("[" + t.name + "(");
      case CallLayout::kChannels:
        return b_.sequence(
            {text(t.name), b_.choice({text(" "), mark("<|channel|>"), mark("<|message|>")})});
    }
    return text("");
  }

  // A strict tool's call, from behind the trigger to its end.
  Rule call_behind(const Tool& t, const std::string& marker) {
    if (f_.layout == CallLayout::kChannels)
      return b_.sequence(
          {text(t.name + " "), mark("<|constrain|>"), text("json"), mark("<|message|>"), json(t)});
    if (f_.layout == CallLayout::kPythonic) return b_.sequence({text("["), whole_call(t)});
    if (f_.layout == CallLayout::kNamed)
      return b_.sequence(
          {f_.name == "deepseek_v3" ? b_.sequence({text("function"), mark("<｜tool▁sep｜>")})
                                    : text(""),
           head(t), json(t), text(f_.name == "deepseek_v3" ? "\n```" : ""), mark(f_.call_end)});
    if (f_.layout == CallLayout::kTagged && marker == f_.call_begin)
      return b_.sequence(
          {text(t.name), text(f_.name_end), text(line()), tagged(t), mark(f_.call_end)});
    if (f_.name == "mistral_old") return b_.sequence({text("["), whole_call(t)});
    return b_.sequence({whole_call(t), mark(f_.section_end)});
  }

  const ToolFormat& f_;
  const AnswerRules& rules_;
  GrammarBuilder b_;
  bool several_ = true;  // calls in one answer
};

}  // namespace

Rule content_rule(GrammarBuilder& b, const AnswerRules& rules, Rule content) {
  const ReasoningFormat* r = rules.reasoning;
  if (r == nullptr || rules.start == AnswerStart::kContent) return content;
  const Rule before = reasoning_rule(b, rules);
  return r->name == "harmony" ? b.sequence({before, open_channel(b, "final"), content})
                              : b.sequence({before, content});
}

CallDemand call_demand(const ToolSet& tools, std::string_view choice) {
  if (choice == "auto") return {};
  if (choice == "required") return {true, nullptr};
  const Tool* only = tools.find(choice);
  if (only == nullptr)
    fail("tool_choice is '{}'; expected auto, required or the name of a tool",
         printable(choice, 80));
  return {true, only};
}

GrammarPtr call_grammar(const AnswerRules& rules, const CallDemand& demand,
                        const Tokenizer& tokenizer) {
  if (rules.format == nullptr || !rules.tools) return nullptr;
  CallRules calls(rules, tokenizer);
  return demand.required ? calls.required(demand.only) : calls.free();
}

}  // namespace moebius
