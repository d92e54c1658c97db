// SPDX-License-Identifier: Apache-2.0
#include "text/answer/call_grammar.h"

#include <functional>

#include "base/error.h"

namespace moebius {
namespace {

using Rule = GrammarBuilder::Rule;

constexpr size_t kFreeLevels = 8;  // levels of objects and lists in forms that are not JSON

Rule open_channel(GrammarBuilder& b, const char* name) {
  return b.sequence({b.marker("<|channel|>"), b.literal(name), b.marker("<|message|>")});
}

// Allows what may precede an answer's content or calls: reasoning up to its end, if the prompt
// leaves room for it.
Rule reasoning_rule(GrammarBuilder& b, const AnswerRules& rules) {
  const ReasoningFormat* r = rules.reasoning;
  if (r == nullptr || rules.start == AnswerStart::kContent) return b.literal("");
  const std::string ends[] = {std::string(r->end)};
  if (r->name == "harmony") {  // one or several messages in the channel of reasoning
    const Rule rest =
        b.sequence({b.text_until(ends), b.marker("<|start|>"), b.literal("assistant")});
    const Rule more = b.repeat(b.sequence({open_channel(b, "analysis"), rest}), 0);
    return rules.start == AnswerStart::kReasoning ? b.sequence({rest, more}) : more;
  }
  const Rule rest = b.sequence({b.text_until(ends), b.repeat(b.literal("\n"), 0, 2)});
  if (rules.start == AnswerStart::kReasoning) return rest;
  return b.optional(b.sequence({b.marker(std::string(r->begin)), rest}));
}

// Builds the rules of one format's calls.
class CallRules {
 public:
  CallRules(const AnswerRules& rules, const Tokenizer& tokenizer, const GrammarLimits& limits)
      : f_(*rules.format), rules_(rules), b_(&tokenizer, limits) {}

  GrammarPtr required(const Tool* only) {
    std::vector<const Tool*> tools;
    for (const Tool& t : rules_.tools->tools())
      if (only == nullptr || only == &t) tools.push_back(&t);
    std::vector<Rule> calls;
    for (const Tool* t : tools) calls.push_back(whole_call(*t));
    several_ = rules_.parallel && only == nullptr;
    return b_.build(
        b_.sequence({reasoning_rule(b_, rules_), no_content(), sections(b_.choice(calls))}));
  }

  // Builds a grammar of free text in which every marker is followed by a tool's name, and for
  // strict tools by the arguments.
  GrammarPtr free() {
    const std::string marker = trigger();
    if (marker.empty()) return nullptr;
    std::vector<Rule> names;
    for (const Tool& t : rules_.tools->tools())
      names.push_back(t.strict ? call_behind(t, marker) : name_behind(t, marker));
    GrammarBuilder::Trigger triggers[] = {{marker, b_.choice(names)}};
    // The special token is only a part of the marker, and other markers contain it, too.
    if (const auto s = b_.special_in(marker); s && s->bytes < marker.size()) {
      const Rule rest = mark(std::string_view(marker).substr(s->at + s->bytes));
      triggers[0] = {marker.substr(s->at, s->bytes),
                     b_.choice({b_.sequence({rest, triggers[0].then}), b_.words(other_markers())})};
    }
    return b_.build(b_.triggered(triggers));
  }

 private:
  Rule text(std::string_view s) { return b_.literal(std::string(s)); }
  Rule mark(std::string_view s) { return s.empty() ? text("") : b_.marker(std::string(s)); }
  Rule until(std::string_view s) {
    const std::string markers[] = {std::string(s)};
    return b_.text_until(markers);
  }
  // Lists how other markers than that of a call continue after the special token that they share
  // with it.
  std::vector<std::string> other_markers() const {
    std::vector<std::string> out;
    if (f_.name == "kimi_k3") out = {"think", "response", "tools", "argument"};
    if (f_.name == "minimax_m3") out = {"<tool_call>", "</"};
    if (f_.name == "deepseek_v32" || f_.name == "deepseek_v4")
      out = {"function_calls>", "tool_calls>", "invoke>", "parameter"};
    if (f_.name == "minimax_m3")
      for (const Tool& t : rules_.tools->tools())
        for (const auto& [key, kinds] : t.parameters) out.push_back("<" + key + ">");
    if (f_.name == "minimax_m3") out.emplace_back("<item>");
    return out;
  }

  // Allows no content between markers; only the frame around it remains.
  Rule no_content() {
    const ReasoningFormat* around = framed_by(&f_, rules_.reasoning);
    if (around == nullptr) return text("");
    const Rule end = mark(around->content_end);
    if (rules_.reasoning != nullptr && rules_.start == AnswerStart::kContent) return end;
    return b_.optional(b_.sequence({mark(around->content_begin), end}));
  }

  // Builds the rule of all calls of an answer.
  Rule sections(Rule call) {
    const auto more = [&](Rule first, Rule next) {
      return several_ ? b_.sequence({first, b_.repeat(next, 0)}) : first;
    };
    if (f_.layout == CallLayout::kPythonic)
      return b_.sequence({mark(f_.section_begin), text("["),
                          more(call, b_.sequence({text(", "), call})), text("]"),
                          mark(f_.section_end)});
    if (f_.layout == CallLayout::kObject && f_.list)
      return b_.sequence({mark(f_.section_begin), text("["),
                          more(call, b_.sequence({text(", "), call})), text("]"),
                          mark(f_.section_end)});
    if (f_.name == "minimax_m1")
      return b_.sequence(
          {mark(f_.section_begin), more(call, call), text("\n"), mark(f_.section_end)});
    if (f_.name == "llama3_json" || f_.layout == CallLayout::kChannels) return call;
    // One call per section.
    const bool one = f_.call_begin.empty() || f_.name == "qwen3_coder";
    const bool lines = (f_.layout == CallLayout::kTagged && !one && f_.lines) ||
                       f_.layout == CallLayout::kElements;
    if (one) {
      const Rule section = b_.sequence({mark(f_.section_begin), call, mark(f_.section_end)});
      const bool line = f_.name == "hermes" || f_.name == "qwen3_coder" || f_.name == "glm45";
      return more(section, b_.sequence({text(line ? "\n" : ""), section}));
    }
    return b_.sequence(
        {mark(f_.section_begin), text(lines ? "\n" : ""), more(call, call), mark(f_.section_end)});
  }

  // Builds the rule of one call within a section.
  Rule whole_call(const Tool& t) {
    switch (f_.layout) {
      case CallLayout::kObject: {
        const bool lines = f_.name == "hermes", line = lines || f_.name == "minimax_m1";
        return b_.sequence(
            {text(line ? "\n" : ""),
             text("{\"name\": \"" + t.name + "\", \"" + std::string(f_.separator) + "\": "),
             json(t), text(lines ? "}\n" : "}")});
      }
      case CallLayout::kNamed:
        return b_.sequence({mark(f_.call_begin), head(t), json(t),
                            text(f_.name == "deepseek_v3" ? "\n```" : ""), mark(f_.call_end)});
      case CallLayout::kTagged:
        return b_.sequence({text(f_.name == "qwen3_coder" ? "\n" : ""), mark(f_.call_begin),
                            text(t.name), tag_end(), tagged(t), mark(f_.call_end),
                            text(f_.lines ? "\n" : "")});
      case CallLayout::kPythonic:
        return b_.sequence({text(t.name + "("), pythonic(t), text(")")});
      case CallLayout::kChannels:
        return b_.sequence({mark("<|channel|>"), text("commentary to=functions." + t.name + " "),
                            mark("<|constrain|>"), text("json"), mark("<|message|>"), json(t)});
      case CallLayout::kGemma:
        return b_.sequence({text("call:" + t.name), gemma_object(t, t.schema, kFreeLevels)});
      case CallLayout::kElements:
        return b_.sequence({mark(f_.call_begin), text(t.name + std::string(f_.name_end)),
                            elements(t, t.schema, kFreeLevels), mark(f_.call_end), text("\n")});
    }
    return text("");
  }

  // Builds the rule of the text between name and arguments.
  Rule tag_end() {
    if (f_.tag_end.empty()) return text(std::string(f_.name_end) + (f_.lines ? "\n" : ""));
    return b_.sequence({text(std::string(f_.name_end) + " index=\""), b_.regex("[0-9]{1,4}"),
                        text("\""), mark(f_.tag_end)});
  }

  // Builds the rule of the text between marker and arguments.
  Rule head(const Tool& t) {
    if (f_.ids == CallIds::kFunctions)
      return b_.sequence(
          {text("functions." + t.name + ":"), b_.regex("[0-9]{1,4}"), mark(f_.separator)});
    if (f_.name == "deepseek_v3") return text(t.name + std::string(f_.separator));
    return b_.sequence({text(t.name), mark(f_.separator)});
  }

  Rule json(const Tool& t) {
    if (t.schema.is_null()) return b_.json_object();
    return b_.schema(t.schema, "tools." + t.name);
  }

  // Returns a property's schema as a document of its own, with the definitions it refers to.
  Json alone(const Tool& t, const Json& property) const {
    Json out = property;
    for (const char* name : {"$defs", "definitions"})
      if (const Json* defs = t.schema.find(name); defs != nullptr && out.is_object())
        out.set(name, *defs);
    return out;
  }

  static bool must(const Json& schema, std::string_view key) {
    const Json* list = schema.find("required");
    if (list != nullptr)
      for (const Json& name : list->items())
        if (name.is_string() && name.as_string() == key) return true;
    return false;
  }

  // Builds the rule of all properties in order; optional ones may be absent.
  Rule tagged(const Tool& t) {
    std::vector<Rule> parts;
    const Json* properties = t.schema.find("properties");
    if (properties == nullptr) return text("");
    for (const auto& [key, property] : properties->members()) {
      const Rule one = tagged_argument(t, key, property);
      parts.push_back(must(t.schema, key) ? one : b_.optional(one));
    }
    if (f_.name == "glm45") parts.push_back(text("\n"));
    return parts.empty() ? text("") : b_.sequence(parts);
  }

  Rule tagged_argument(const Tool& t, const std::string& key, const Json& property) {
    const bool string = kinds_of_schema(property) == kStringKind;
    const std::string_view before = f_.name == "glm45" ? "\n" : "",
                           between = f_.name.starts_with("hy3") ? "\n" : before;
    std::vector<Rule> parts = {text(before), mark(f_.key_begin), text(key), mark(f_.key_end)};
    if (!f_.type_end.empty())
      parts.push_back(b_.sequence({value_type(property), mark(f_.type_end)}));
    if (!f_.value_begin.empty())
      parts.push_back(b_.sequence({text(between), mark(f_.value_begin)}));
    parts.push_back(text(f_.line_feed));
    const Json* words = property.find("enum");
    if (string && words != nullptr) {
      parts.push_back(b_.sequence({one_of(*words), text(f_.line_feed), mark(f_.value_end)}));
    } else if (string) {
      parts.push_back(until(std::string(f_.line_feed) + std::string(f_.value_end)));
    } else {
      parts.push_back(b_.schema(alone(t, property), "tools." + t.name + "." + key));
      parts.push_back(b_.sequence({text(f_.line_feed), mark(f_.value_end)}));
    }
    if (f_.lines) parts.push_back(text("\n"));
    return b_.sequence(parts);
  }

  // Returns the text by which an argument's tag states the argument's type.
  Rule value_type(const Json& property) {
    const JsonKinds kinds = kinds_of_schema(property);
    if (f_.name != "kimi_k3") return text(kinds == kStringKind ? "true" : "false");
    static constexpr std::pair<JsonKinds, const char*> kTypes[] = {
        {kStringKind, "string"}, {kNumberKind, "number"}, {kBoolKind, "boolean"},
        {kNullKind, "null"},     {kObjectKind, "object"}, {kArrayKind, "array"}};
    std::vector<std::string> words;
    for (const auto& [kind, word] : kTypes)
      if (kinds == kStringKind ? kind == kStringKind
                               : kind != kStringKind && (kinds == 0 || (kinds & kind) != 0))
        words.emplace_back(word);
    return words.empty() ? text("object") : b_.words(words);
  }

  // Builds the rule of an object's members by their schema; `member` writes each, `comma` separates
  // them, and optional ones may be absent.
  template <class Member>
  Rule members_of(const Json& object, std::string_view comma, const Member& member) {
    const Json* properties = object.find("properties");
    // Positions where nothing was written yet, and where something was.
    Rule none = text(""), some = text("");
    if (properties == nullptr) return none;
    const auto& list = properties->members();
    for (size_t i = list.size(); i > 0; --i) {
      const auto& [key, property] = list[i - 1];
      const Rule first = b_.sequence({member(key, property), some});
      const Rule next = comma.empty() ? first : b_.sequence({text(comma), first});
      const bool needed = must(object, key);
      none = needed ? first : b_.choice({first, none});
      some = needed ? next : b_.choice({next, some});
    }
    return none;
  }

  static Json below(const Json& schema, const char* key) {
    const Json* found = schema.find(key);
    return found != nullptr ? *found : Json();
  }

  // Builds Gemma's values, which are JSON except for strings and keys.
  Rule gemma_string(const Json& schema) {
    const Json* words = schema.find("enum");
    if (words == nullptr) return b_.sequence({mark(f_.separator), until(f_.separator)});
    return b_.sequence({mark(f_.separator), one_of(*words), mark(f_.separator)});
  }
  Rule gemma_object(const Tool& t, const Json& schema, size_t depth) {
    const Rule members = members_of(schema, ",", [&](const std::string& key, const Json& property) {
      return b_.sequence({text(key + ":"), gemma_value(t, property, depth - 1)});
    });
    return b_.sequence({text("{"), members, text("}")});
  }
  Rule gemma_value(const Tool& t, const Json& schema, size_t depth) {
    const JsonKinds kinds = kinds_of_schema(schema);
    if (kinds == kStringKind) return gemma_string(schema);
    if (kinds == kObjectKind && depth > 0) return gemma_object(t, schema, depth);
    if (kinds == kArrayKind && depth > 0) {
      const Rule item = gemma_value(t, below(schema, "items"), depth - 1);
      return b_.sequence({text("["), listed(item, text(",")), text("]")});
    }
    if (kinds != 0 && (kinds & (kStringKind | kObjectKind | kArrayKind)) == 0)
      return b_.schema(alone(t, schema), "tools." + t.name);
    return b_.choice({gemma_string(Json()), b_.regex("-?(0|[1-9][0-9]{0,18})(\\.[0-9]{1,17})?"),
                      b_.words(std::vector<std::string>{"true", "false", "null"})});
  }

  // Builds MiniMax-M3's values: an element for each member, and `item` elements for a list.
  Rule elements(const Tool& t, const Json& schema, size_t depth) {
    return members_of(schema, "", [&](const std::string& key, const Json& property) {
      return element(t, key, property, depth);
    });
  }
  Rule element(const Tool& t, const std::string& key, const Json& schema, size_t depth) {
    const std::string mark_text(f_.separator), close = mark_text + "</" + key + ">";
    const JsonKinds kinds = kinds_of_schema(schema);
    const Rule open = mark(mark_text + "<" + key + ">");
    const Json* words = schema.find("enum");
    if (kinds == kStringKind && words != nullptr)
      return b_.sequence({open, one_of(*words), mark(close)});
    if (kinds == kObjectKind && depth > 0)
      return b_.sequence({open, elements(t, schema, depth - 1), mark(close)});
    if (kinds == kArrayKind && depth > 0) {
      const Rule item = element(t, "item", below(schema, "items"), depth - 1);
      return b_.sequence({open, b_.repeat(item, 0), mark(close)});
    }
    if (kinds != 0 && (kinds & (kStringKind | kObjectKind | kArrayKind)) == 0)
      return b_.sequence({open, b_.schema(alone(t, schema), "tools." + t.name), mark(close)});
    return b_.sequence({open, until(close)});
  }

  Rule listed(Rule item, Rule comma) {
    return b_.optional(b_.sequence({item, b_.repeat(b_.sequence({comma, item}), 0)}));
  }
  Rule one_of(const Json& words) {
    std::vector<std::string> list;
    for (const Json& w : words.items())
      if (w.is_string()) list.push_back(w.as_string());
    return b_.words(list);
  }

  // Builds key=value pairs with commas between them.
  Rule pythonic(const Tool& t) {
    return members_of(t.schema, ", ", [&](const std::string& key, const Json& property) {
      return b_.sequence(
          {text(key + "="), b_.schema(alone(t, property), "tools." + t.name + "." + key)});
    });
  }

  // Returns the marker that a name follows.
  std::string trigger() const {
    if (f_.name == "llama3_json") return {};
    if (f_.layout == CallLayout::kChannels) return " to=functions.";
    if (f_.layout == CallLayout::kElements ||
        (f_.layout == CallLayout::kTagged && !f_.call_begin.empty() && f_.name != "qwen3_coder"))
      return std::string(f_.call_begin);
    if (f_.ids == CallIds::kFunctions || f_.name == "deepseek_v31")
      return std::string(f_.call_begin);
    if (f_.name == "deepseek_v3") return "<｜tool▁call▁begin｜>";
    return std::string(f_.section_begin);
  }

  // Builds the rule of the text after that marker, up to the end of the name.
  Rule name_behind(const Tool& t, const std::string&) {
    const Rule space = b_.regex("[ \\n]{0,2}");
    switch (f_.layout) {
      case CallLayout::kObject:
        return b_.sequence({space, text(f_.list ? "[" : ""), space, text("{"), space,
                            text("\"name\""), space, text(":"), space, text("\"" + t.name + "\"")});
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
      case CallLayout::kGemma:
        return text("call:" + t.name + "{");
      case CallLayout::kElements:
        return text(t.name + std::string(f_.name_end));
      case CallLayout::kChannels:
        return b_.sequence(
            {text(t.name), b_.choice({text(" "), mark("<|channel|>"), mark("<|message|>")})});
    }
    return text("");
  }

  // Builds the rule of a strict tool's call, from after the trigger to its end.
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
      return b_.sequence({text(t.name), tag_end(), tagged(t), mark(f_.call_end)});
    if (f_.layout == CallLayout::kElements)
      return b_.sequence({text(t.name + std::string(f_.name_end)),
                          elements(t, t.schema, kFreeLevels), mark(f_.call_end)});
    if (f_.list) return b_.sequence({text("["), whole_call(t)});
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
  if (r != nullptr && !r->content_begin.empty() && rules.start == AnswerStart::kContent)
    return b.sequence({content, b.marker(std::string(r->content_end))});
  if (r == nullptr || rules.start == AnswerStart::kContent) return content;
  const Rule before = reasoning_rule(b, rules);
  if (!r->content_begin.empty())
    return b.sequence({before, b.marker(std::string(r->content_begin)), content,
                       b.marker(std::string(r->content_end))});
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
                        const Tokenizer& tokenizer, const GrammarLimits& limits) {
  if (rules.format == nullptr || !rules.tools) return nullptr;
  CallRules calls(rules, tokenizer, limits);
  return demand.required ? calls.required(demand.only) : calls.free();
}

}  // namespace moebius
