// SPDX-License-Identifier: Apache-2.0
#include "text/answer/call_grammar.h"

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
  if (r->channels) {  // one or several messages in the channel of reasoning
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
      : f_(*rules.format), rules_(rules), trigger_(trigger_of(f_)), b_(&tokenizer, limits) {}

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
    if (trigger_.empty()) return nullptr;
    std::vector<Rule> names;
    for (const Tool& t : rules_.tools->tools())
      names.push_back(t.strict ? call_behind(t) : name_behind(t));
    GrammarBuilder::Trigger triggers[] = {{trigger_, b_.choice(names)}};
    // The special token is only a part of the marker, and other markers contain it, too.
    if (const auto s = b_.special_in(trigger_); s && s->bytes < trigger_.size()) {
      const Rule rest = mark(std::string_view(trigger_).substr(s->at + s->bytes));
      triggers[0] = {trigger_.substr(s->at, s->bytes),
                     b_.choice({b_.sequence({rest, triggers[0].then}), b_.words(other_markers())})};
    }
    return b_.build(b_.triggered(triggers));
  }

 private:
  // Returns the marker that a name follows; empty: nothing tells a call from other text.
  static std::string trigger_of(const ToolFormat& f) {
    if (!f.trigger.empty()) return std::string(f.trigger);
    if (f.calls == SectionCalls::kNone) return {};
    const bool call = f.calls == SectionCalls::kSeveral && !f.call_begin.empty();
    return std::string(call ? f.call_begin : f.section_begin);
  }

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
    for (const std::string_view m : f_.other_markers)
      if (!m.empty()) out.emplace_back(m);
    if (f_.layout == CallLayout::kElements)
      for (const Tool& t : rules_.tools->tools())
        for (const auto& [key, kinds] : t.parameters) out.push_back("<" + key + ">");
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
    const auto listed = [&](Rule one) {
      return several_ ? b_.sequence({one, b_.repeat(b_.sequence({text(f_.comma), one}), 0)}) : one;
    };
    if (f_.calls == SectionCalls::kNone) return call;
    const bool one = f_.calls == SectionCalls::kOne;
    const Rule section =
        b_.sequence({mark(f_.section_begin), text(f_.section_open), one ? call : listed(call),
                     text(f_.section_close), mark(f_.section_end)});
    return one ? listed(section) : section;
  }

  // Builds the rule of one call within a section.
  Rule whole_call(const Tool& t) {
    return b_.sequence({text(f_.call_open), mark(f_.call_begin), text(f_.name_begin),
                        call_from_name(t), text(f_.call_close)});
  }
  Rule call_from_name(const Tool& t) {
    return b_.sequence({text(t.name), name_end(), text(f_.arguments_open), arguments(t),
                        text(f_.arguments_close), mark(f_.call_end)});
  }
  Rule name_end() {
    if (f_.number_begin.empty()) return mark(f_.name_end);
    return b_.sequence({text(f_.number_begin), b_.regex("[0-9]{1,4}"), mark(f_.number_end)});
  }

  Rule arguments(const Tool& t) {
    switch (f_.layout) {
      case CallLayout::kTagged:
        return members_of(t.schema, "", [&](const std::string& key, const Json& property) {
          return tagged_argument(t, key, property);
        });
      case CallLayout::kPythonic:
        return members_of(t.schema, ", ", [&](const std::string& key, const Json& property) {
          return b_.sequence(
              {text(key + "="), b_.schema(alone(t, property), "tools." + t.name + "." + key)});
        });
      case CallLayout::kGemma:
        return gemma_object(t, t.schema, kFreeLevels);
      case CallLayout::kElements:
        return elements(t, t.schema, kFreeLevels);
      default:
        return t.schema.is_null() ? b_.json_object() : b_.schema(t.schema, "tools." + t.name);
    }
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

  Rule tagged_argument(const Tool& t, const std::string& key, const Json& property) {
    const bool string = kinds_of_schema(property) == kStringKind;
    std::vector<Rule> parts = {text(f_.argument_open), mark(f_.key_begin), text(key),
                               mark(f_.key_end)};
    if (!f_.type_end.empty())
      parts.push_back(b_.sequence({value_type(property), mark(f_.type_end)}));
    if (!f_.value_begin.empty())
      parts.push_back(b_.sequence({text(f_.key_close), mark(f_.value_begin)}));
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
    parts.push_back(text(f_.argument_close));
    return b_.sequence(parts);
  }

  // Returns the text by which an argument's tag states the argument's type.
  Rule value_type(const Json& property) {
    const JsonKinds kinds = kinds_of_schema(property);
    if (!f_.type_words) return text(kinds == kStringKind ? "true" : "false");
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
    if (words == nullptr) return b_.sequence({mark(f_.mark), until(f_.mark)});
    return b_.sequence({mark(f_.mark), one_of(*words), mark(f_.mark)});
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
      const Rule more = b_.repeat(b_.sequence({text(","), item}), 0);
      return b_.sequence({text("["), b_.optional(b_.sequence({item, more})), text("]")});
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
    const std::string mark_text(f_.mark), close = mark_text + "</" + key + ">";
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

  Rule one_of(const Json& words) {
    std::vector<std::string> list;
    for (const Json& w : words.items())
      if (w.is_string()) list.push_back(w.as_string());
    return b_.words(list);
  }

  // Builds the rule of the text between the trigger and a name; `gap` may precede the call.
  Rule before_name(Rule gap) {
    if (trigger_ == f_.section_begin)
      return b_.sequence({text(f_.section_open), gap, mark(f_.call_begin), text(f_.name_begin)});
    const size_t at = f_.call_begin.find(trigger_);
    if (at == f_.call_begin.npos) return text("");  // the trigger ends with name_begin
    return b_.sequence({mark(f_.call_begin.substr(at + trigger_.size())), text(f_.name_begin)});
  }

  // Builds the rule of the text after the trigger, up to the end of the name.
  Rule name_behind(const Tool& t) {
    const Rule space = b_.regex("[ \\n]{0,2}");
    if (f_.layout == CallLayout::kObject)
      return b_.sequence({space, text(f_.section_open), space, text("{"), space, text("\"name\""),
                          space, text(":"), space, text("\"" + t.name + "\"")});
    std::vector<Rule> ends;
    for (const std::string_view end : f_.name_ends)
      if (!end.empty()) ends.push_back(mark(end));
    return b_.sequence({before_name(f_.layout == CallLayout::kTagged ? space : text("")),
                        text(t.name), ends.empty() ? name_end() : b_.choice(ends)});
  }

  // Builds the rule of a strict tool's call, from after the trigger to its end.
  Rule call_behind(const Tool& t) {
    const Rule call = b_.sequence({before_name(text(f_.call_open)), call_from_name(t)});
    if (trigger_ != f_.section_begin) return call;
    return b_.sequence({call, text(f_.call_close), mark(f_.is_list() ? "" : f_.section_end)});
  }

  const ToolFormat& f_;
  const AnswerRules& rules_;
  const std::string trigger_;
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
  return r->channels ? b.sequence({before, open_channel(b, "final"), content})
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
