// SPDX-License-Identifier: Apache-2.0
// Expressions against a matcher that tries everything, schemas against a validator of its own, and
// grammars put together from parts.
#include "text/grammar/grammar.h"

#include <gtest/gtest.h>

#include <chrono>
#include <ctime>

#include "text/grammar/answer_format.h"
#include "text/grammar/json_text.h"
#include "text/grammar/matcher.h"
#include "text/grammar/regex.h"
#include "unit/test_util.h"
#include "unit/text/grammar_util.h"

namespace moebius::grammar_test {
namespace {

using test::random_text;
using test::sample_schemas;

// A random expression over a and b, as text and as a tree that is matched by trying every way.
struct RandomRegex {
  enum class Kind : uint8_t { kSet, kSequence, kChoice, kRepeat, kBegin, kEnd };
  Kind kind = Kind::kSet;
  std::string set;
  std::vector<RandomRegex> parts;
  size_t least = 0, most = 0;

  static RandomRegex make(SplitMix64& r, int depth) {
    RandomRegex out;
    const size_t what = depth == 0 ? r.below(6) : r.below(12);
    if (what == 4) out.kind = Kind::kBegin;
    if (what == 5) out.kind = Kind::kEnd;
    if (what < 4) out.set = std::array{"a", "b", "ab", "b"}[what];
    if (what < 6) return out;
    if (what < 8) {
      out.kind = Kind::kSequence;
      for (size_t i = 0; i < 2; ++i) out.parts.push_back(make(r, depth - 1));
    } else if (what < 10) {
      out.kind = Kind::kChoice;
      for (size_t i = 0; i < 2; ++i) out.parts.push_back(make(r, depth - 1));
    } else {
      out.kind = Kind::kRepeat;
      out.parts.push_back(make(r, depth - 1));
      out.least = r.below(3);
      out.most = r.below(2) == 0 ? SIZE_MAX : out.least + r.below(3);
    }
    return out;
  }
  std::string text() const {
    switch (kind) {
      case Kind::kSet:
        return set.size() == 1 ? set : "[" + set + "]";
      case Kind::kBegin:
        return "(?:^)";
      case Kind::kEnd:
        return "(?:$)";
      case Kind::kSequence:
        return parts[0].text() + parts[1].text();
      case Kind::kChoice:
        return "(" + parts[0].text() + "|" + parts[1].text() + ")";
      case Kind::kRepeat:
        break;
    }
    return "(?:" + parts[0].text() + "){" + std::to_string(least) + "," +
           (most == SIZE_MAX ? "" : std::to_string(most)) + "}";
  }
  // Where a match that begins at `from` may end.
  std::set<size_t> ends(const std::string& t, size_t from) const {
    std::set<size_t> out;
    switch (kind) {
      case Kind::kSet:
        if (from < t.size() && set.find(t[from]) != std::string::npos) out.insert(from + 1);
        break;
      case Kind::kBegin:
        if (from == 0) out.insert(from);
        break;
      case Kind::kEnd:
        if (from == t.size()) out.insert(from);
        break;
      case Kind::kSequence:
        for (const size_t m : parts[0].ends(t, from))
          for (const size_t e : parts[1].ends(t, m)) out.insert(e);
        break;
      case Kind::kChoice:
        for (const RandomRegex& p : parts)
          for (const size_t e : p.ends(t, from)) out.insert(e);
        break;
      case Kind::kRepeat: {
        std::set<size_t> now = {from};
        for (size_t n = 0; n <= std::min(most, least + t.size() + 1); ++n) {
          if (n >= least) out.insert(now.begin(), now.end());
          std::set<size_t> next;
          for (const size_t m : now)
            for (const size_t e : parts[0].ends(t, m)) next.insert(e);
          now = std::move(next);
        }
        break;
      }
    }
    return out;
  }
  bool matches(const std::string& t, bool search) const {
    if (!search) return ends(t, 0).contains(t.size());
    for (size_t from = 0; from <= t.size(); ++from)
      if (!ends(t, from).empty()) return true;
    return false;
  }
};

TEST(GrammarRegex, EqualsTryingEveryWay) {
  SplitMix64 random(7);
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size() && texts[i].size() < 5; ++i)
    for (const char c : {'a', 'b', 'c'}) texts.push_back(texts[i] + c);
  size_t matched = 0, refused = 0;
  for (int n = 0; n < 300; ++n) {
    const RandomRegex expression = RandomRegex::make(random, 3);
    GrammarBudget budget({1'000'000, 1, 1'000'000'000});
    for (const bool search : {false, true}) {
      DfaPtr dfa;
      try {
        dfa = regex_dfa(expression.text(), {RegexBytes::kPlain, search}, budget);
      } catch (const GrammarError& e) {
        ASSERT_NE(std::string(e.what()).find("the same alternative twice"), std::string::npos);
        ++refused;
        break;
      }
      for (const std::string& t : texts) {
        ASSERT_EQ(dfa->matches(t), expression.matches(t, search))
            << expression.text() << " on '" << t << "', search " << search;
        matched += dfa->matches(t) ? 1 : 0;
      }
    }
  }
  EXPECT_GT(matched, 10000u);
  EXPECT_LT(refused, 60u);
}

TEST(GrammarRegex, CharactersAreCodePoints) {
  const auto matches = [](const char* expression, std::string_view text,
                          RegexBytes bytes = RegexBytes::kPlain) {
    GrammarBudget budget;
    return regex_dfa(expression, {bytes, false}, budget)->matches(text);
  };
  EXPECT_TRUE(matches("^.$", "\xf0\x9f\x98\x80"));
  EXPECT_TRUE(matches("[\xc3\xa0-\xc3\xbf]+", "\xc3\xa4\xc3\xb6"));
  EXPECT_FALSE(matches("[^\xc3\xa4]", "\xc3\xa4"));
  EXPECT_TRUE(matches("\\u00e4\\x41\\u{1F600}",
                      "\xc3\xa4"
                      "A\xf0\x9f\x98\x80"));
  EXPECT_TRUE(matches("\\p{Lu}\\p{Nd}",
                      "\xc3\x84"
                      "7"));
  EXPECT_FALSE(matches(".", "\xed\xa0\x80"));  // half a surrogate pair
  EXPECT_FALSE(matches(".", "\xc3"));
  EXPECT_TRUE(matches("a.c", "a\\\"c", RegexBytes::kJson));
  EXPECT_TRUE(matches("\\n\\x01", "\\n\\u0001", RegexBytes::kJson));
  EXPECT_FALSE(matches("a\"", "a\"", RegexBytes::kJson));
}

struct Refusal {
  const char* text;
  const char* code;
  const char* path;
};

void expect_refused(const Refusal& r) {
  try {
    grammar_from_schema(parse_json_strictly(r.text, "schema"));
    ADD_FAILURE() << r.text << " was kept";
  } catch (const GrammarError& e) {
    EXPECT_EQ(e.code, r.code) << r.text << ": " << e.what();
    EXPECT_EQ(e.path, r.path) << r.text;
    EXPECT_NE(std::string(e.what()), "");
  }
}

TEST(GrammarSchema, RefusesByPathAndName) {
  const char *kUnsupported = "unsupported_keyword", *kInvalid = "invalid_schema",
             *kEmpty = "empty_schema", *kComplex = "schema_too_complex";
  for (const char* name :
       {"not", "if", "then", "else", "dependentRequired", "dependentSchemas", "unevaluatedItems",
        "unevaluatedProperties", "contains", "propertyNames", "$dynamicRef", "$anchor"}) {
    const std::string text =
        std::string(R"({"properties":{"a":{")") + name + R"(":{"type":"string"}}}})";
    expect_refused({text.c_str(), kUnsupported, (std::string("properties.a.") + name).c_str()});
  }
  const Refusal refusals[] = {
      {R"({"uniqueItems":true})", kUnsupported, "uniqueItems"},
      {R"({"items":[{"format":"idn-email"}]})", kUnsupported, "items"},
      {R"({"anyOf":[{},{"format":"idn-email"}]})", kUnsupported, "anyOf[1].format"},
      {R"({"$ref":"http://example.org/x"})", kUnsupported, "$ref"},
      {R"({"$ref":"#foo"})", kUnsupported, "$ref"},
      {R"({"$ref":"#/$defs/gone"})", kInvalid, "$ref"},
      {R"({"$ref":"#"})", kInvalid, ""},
      {R"({"anyOf":[{"$ref":"#"},{"type":"string"}]})", kInvalid, ""},
      {R"({"$defs":{"a":{"allOf":[{"$ref":"#/$defs/b"}]},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})",
       kInvalid, "$defs.a"},
      {R"({"pattern":"(?=a)b"})", kUnsupported, "pattern"},
      {R"({"pattern":"(a)\\1"})", kUnsupported, "pattern"},
      {R"({"properties":{"p":{"pattern":"[z"}}})", "invalid_regex", "properties.p.pattern"},
      {R"({"type":"text"})", kInvalid, "type"},
      {R"({"minLength":-1})", kInvalid, "minLength"},
      {R"({"required":"a"})", kInvalid, "required"},
      {R"({"properties":{"a":7}})", kInvalid, "properties.a"},
      {R"(7)", kInvalid, ""},
      {R"({"type":"string","minLength":3,"maxLength":2})", kEmpty, ""},
      {R"(false)", kEmpty, ""},
      {R"({"enum":[]})", kEmpty, ""},
      {R"({"type":"string","enum":[1,2]})", kEmpty, ""},
      {R"({"type":"string","pattern":"^$","minLength":2})", kEmpty, ""},
      {R"({"type":"object","properties":{"a":false},"required":["a"]})", kEmpty, ""},
      {R"({"$defs":{"n":{"type":"object","properties":{"n":{"$ref":"#/$defs/n"}},"required":["n"]}},"$ref":"#/$defs/n"})",
       kEmpty, ""},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", kUnsupported, "oneOf"},
      {R"({"patternProperties":{"a":{},"b":{}}})", kUnsupported, "patternProperties"},
      {R"({"properties":{"a":{}},"minProperties":1})", kUnsupported, "minProperties"},
      {R"({"type":"array","maxItems":1025})", kComplex, "maxItems"},
      {R"({"type":"integer","multipleOf":10001})", kComplex, "multipleOf"},
      {R"({"type":"number","multipleOf":0.3})", kUnsupported, "multipleOf"},
  };
  for (const Refusal& r : refusals) expect_refused(r);
}

TEST(GrammarSchema, KeepsWhatTheTextsSay) {
  struct Case {
    const char* schema;
    std::vector<const char*> fit, do_not;
  };
  const Case cases[] = {
      {R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer"}},"required":["b"]})",
       {R"({"a":"x","b":1})", R"({"b": 1, "z": [1, {"q": null}]})", "{\n  \"b\": 1\n}"},
       {R"({"b":1,"a":"x"})", R"({"a":"x"})", R"({"b":1.5})", R"({"b":1,"b":2})", " {\"b\":1}"}},
      {R"({"type":"object","properties":{"a":{},"ab":{}},"additionalProperties":{"type":"boolean"}})",
       {R"({"a":1,"ab":2,"abc":true})", R"({"b":true})", "{}"},
       {R"({"abc":1})", R"({"\u0061":true})"}},
      {R"({"type":"object","patternProperties":{"^n":{"type":"integer"}},"additionalProperties":false})",
       {R"({"n1":1,"nn":2})", "{}"},
       {R"({"m":1})", R"({"n":"x"})"}},
      {R"({"type":"string","pattern":"^a+$","maxLength":3})",
       {R"("a")", R"("aaa")"},
       {R"("aaaa")", R"("b")"}},
      {R"({"type":"string","pattern":"x"})", {R"("axb")", R"("\"x")"}, {R"("ab")"}},
      {R"({"type":"string","format":"date-time"})",
       {R"("2024-02-29T12:00:00Z")", R"("1999-12-31T23:59:59.5+01:00")"},
       {R"("2023-02-29T12:00:00Z")", R"("2024-02-29")", R"("2024-13-01T00:00:00Z")",
        R"("0000-02-29T00:00:00Z")", R"("0000-06-30T00:00:00Z")"}},
      {R"({"type":"string","format":"ipv6"})",
       {R"("::1")", R"("1:2:3:4:5:6:7:8")", R"("fe80::a:b")"},
       {R"("1::2::3")", R"("12345::")", R"("1:2:3:4:5:6:7")"}},
      {R"({"type":"string","format":"ipv4"})",
       {R"("127.0.0.1")"},
       {R"("256.0.0.1")", R"("1.2.3")", R"("01.2.3.4")"}},
      {R"({"type":"string","format":"email"})",
       {R"("a.b@example.org")"},
       {R"("a@")", R"("@b")", R"("a b@c")"}},
      {R"({"type":"string","format":"hostname"})", {R"("a-b.example")"}, {R"("-a")", R"("a..b")"}},
      {R"({"type":"string","format":"uuid"})",
       {R"("2eb8aa08-aa98-11ea-b4aa-73b441d16380")"},
       {R"("2eb8aa08")"}},
      {R"({"type":"string","format":"uri"})",
       {R"("http://a.b/c?d=e#f")", R"("mailto:x")"},
       {R"("a b")", R"("//x")"}},
      {R"({"type":"string","format":"duration"})",
       {R"("P1DT2H")", R"("P4W")", R"("PT1S")"},
       {R"("P")", R"("P1Y2D")", R"("P1DT")"}},
      {R"({"type":"string","format":"time"})",
       {R"("08:30:06Z")"},
       {R"("24:00:00Z")", R"("08:30")"}},
      {R"({"type":"integer","minimum":-3,"maximum":12})",
       {"-3", "0", "9", "12"},
       {"-4", "13", "1.5", "-0"}},
      {R"({"type":"number","exclusiveMinimum":0,"maximum":0.25})",
       {"0.25", "0.001", "0.250"},
       {"0", "0.0", "0.26", "1", "-0.1"}},
      {R"({"type":"number","multipleOf":0.01})", {"1.25", "3", "0.1"}, {"1.255"}},
      {R"({"const":{"a":[1,"x"],"b":null}})",
       {R"({"a":[1,"x"],"b":null})", R"({"a": [1, "x"], "b": null})"},
       {R"({"b":null,"a":[1,"x"]})"}},
      {R"({"type":"array","items":{"type":"string"},"minItems":2})",
       {R"(["a","b","c"])"},
       {R"(["a"])", "[]", R"(["a",1])"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"}],"items":false})",
       {"[]", "[1]"},
       {"[1,2]", "[\"x\"]"}},
      {R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"}},
      {R"({"enum":["a","ab",1,10,true,null]})",
       {R"("a")", R"("ab")", "1", "10", "true", "null"},
       {R"("abc")", "100"}},
      {R"({"enum":[123456789012345678901234567890,-18446744073709551616]})",
       {"123456789012345678901234567890", "-18446744073709551616"},
       {"1.2345678901234568e+29", "123456789012345677877719597056",
        "123456789012345678901234567891"}},
      {R"({"const":{"a":[99999999999999999999]}})",
       {R"({"a":[99999999999999999999]})"},
       {R"({"a":[100000000000000000000]})"}},
      {R"({"allOf":[{"enum":[99999999999999999998,99999999999999999999]},{"const":99999999999999999999}]})",
       {"99999999999999999999"},
       {"99999999999999999998", "100000000000000000000"}},
      {R"({"allOf":[{"minimum":3},{"maximum":5}],"type":"integer"})", {"3", "5"}, {"2", "6"}},
      {R"({"anyOf":[{"required":["a"]},{"required":["b"]}],"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"additionalProperties":false})",
       {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"},
       {"{}"}},
      {R"({"type":"object","properties":{"a":true},"required":["a","z"],"additionalProperties":{"type":"integer"}})",
       {R"({"a":"x","z":1})"},
       {R"({"a":"x"})", R"({"a":"x","z":"y"})"}},
      {R"({"$defs":{"a/b":{"type":"null"}},"$ref":"#/$defs/a~1b"})", {"null"}, {"1"}},
      {R"({"title":"t","description":"d","default":1,"examples":[2],"x-own":{"not":1},"$comment":"c","type":"null"})",
       {"null"},
       {"1"}},
      {R"({"type":"string","minLength":1,"maxLength":2})",
       {R"("\u00e4\n")", "\"\xf0\x9f\x98\x80\"", R"("\ud83d\ude00")"},
       {R"("")", R"("abc")", R"("\ud83d")"}},
  };
  for (const Case& c : cases) {
    const GrammarPtr g = grammar_from_schema(parse_json_strictly(c.schema, "schema"));
    const auto whole = [&](const char* text) {
      GrammarMatcher m(g);
      return m.accept(text) && m.may_end();
    };
    for (const char* text : c.fit) EXPECT_TRUE(whole(text)) << text << " of " << c.schema;
    for (const char* text : c.do_not) EXPECT_FALSE(whole(text)) << text << " of " << c.schema;
  }
}

TEST(GrammarSchema, RandomTextsValidate) {
  SplitMix64 random(11);
  for (const std::string& text : sample_schemas()) {
    const Json schema = parse_json_strictly(text, "schema");
    const GrammarPtr g = grammar_from_schema(schema);
    size_t found = 0;
    for (int n = 0; n < 6; ++n) {
      const std::string out = random_text(g, random, 60);
      if (out.empty()) continue;
      ++found;
      Json value;
      ASSERT_NO_THROW(value = parse_json_strictly(out, "text")) << out << " of " << text;
      EXPECT_TRUE(test::validates(value, schema, schema)) << out << " of " << text;
    }
    EXPECT_GT(found, 2u) << text;
  }
}

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Counted, so that the same is refused everywhere; what is counted is what takes time.
TEST(GrammarSchema, AttacksEndEarly) {
  for (const test::SchemaAttack& a : test::schema_attacks()) {
    const std::string shown = a.schema.substr(0, 80);
    GrammarBuilder b;
    const double begin = cpu_seconds();
    try {
      b.build(b.schema(parse_json_strictly(a.schema, "schema", 256)));
      ADD_FAILURE() << shown << " was kept";
    } catch (const GrammarError& e) {
      EXPECT_EQ(e.code, a.code) << e.what();
      EXPECT_EQ(e.path, a.path) << e.what();
      EXPECT_NE(std::string(e.what()).find(a.path), std::string::npos) << e.what();
    }
    EXPECT_LE(b.budget().spent(), 2 * GrammarLimits().work) << shown;
    if (test::plain_build()) {
      EXPECT_LE(cpu_seconds() - begin, 3) << shown;
    }
  }
  EXPECT_THROW(parse_json_strictly(std::string(5000, '['), "schema"), Error);
}

// What only looks like an attack is kept, and costs as little.
TEST(GrammarSchema, LargeIsNoAttack) {
  std::string deep, chain = R"({"$ref":"#/$defs/a0","$defs":{)";
  for (int i = 0; i < 30; ++i) deep += R"({"items":)";
  deep += "{}" + std::string(30, '}');
  for (int k = 0; k < 30; ++k)  // each level is a value of its own
    chain += fmt::format(
        R"("a{0}":{{"anyOf":[{{"items":{{"$ref":"#/$defs/a{1}"}}}},{{"properties":{{"b":{{"$ref":"#/$defs/a{1}"}}}}}}]}},)",
        k, k + 1);
  chain += R"("a30":{}}})";
  std::string kinds = R"({"oneOf":[)";  // told apart by the last name that they require
  for (int i = 0; i < 100; ++i) {
    std::string names, required;
    for (int k = 0; k < 8; ++k) {
      names += fmt::format(R"("f{}":{{"type":"string"}},)", k);
      required += fmt::format(R"("f{}",)", k);
    }
    kinds += fmt::format(
        R"({}{{"type":"object","properties":{{{}"kind":{{"const":"k{}"}}}},"required":[{}"kind"],"additionalProperties":false}})",
        i > 0 ? "," : "", names, i, required);
  }
  kinds += "]}";
  std::string many = R"({"enum":[0)";
  for (int i = 1; i < 3000; ++i) many += fmt::format(",{}", i);
  for (const std::string& text :
       {deep, chain, kinds, many + "]}", std::string(R"({"type":"string","maxLength":16777216})"),
        std::string(R"({"type":"string","pattern":"(a|b)*b"})"),
        std::string(R"({"type":"string","pattern":"^(jpg|png|jpg)$"})"),
        std::string(R"({"type":"string","pattern":"^([a-z]+)*$"})"),
        std::string(R"({"properties":{"n":{"$ref":"#"}},"additionalProperties":false})")}) {
    GrammarBuilder b;
    EXPECT_NO_THROW(b.build(b.schema(parse_json_strictly(text, "schema")))) << text.substr(0, 80);
    EXPECT_LE(b.budget().spent(), GrammarLimits().work) << text.substr(0, 80);
  }
}

TEST(GrammarBuilderParts, AToolCallIsAGrammar) {
  GrammarBuilder b;
  const auto schema = b.schema(parse_json_strictly(
      R"({"type":"object","properties":{"city":{"type":"string"}},"required":["city"],"additionalProperties":false})",
      "schema"));
  std::vector<GrammarBuilder::Rule> calls;
  for (const char* name : {"get_weather", "get_time"})
    calls.push_back(
        b.sequence({b.literal(std::string("{\"name\": \"") + name + "\", \"arguments\": "), schema,
                    b.literal("}")}));
  const auto call =
      b.sequence({b.literal("<tool_call>\n"), b.choice(calls), b.literal("\n</tool_call>")});
  const GrammarPtr g = b.build(b.repeat(call, 1, 2));
  const std::string one =
      "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
  GrammarMatcher m(g);
  EXPECT_EQ(test::forced_text(m, 100), "<tool_call>\n{\"name\": \"get_");
  EXPECT_TRUE(m.accept(one));
  EXPECT_TRUE(m.may_end());
  EXPECT_FALSE(m.must_end());
  EXPECT_FALSE(m.accept("x"));
  EXPECT_TRUE(m.accept(one));
  EXPECT_TRUE(m.must_end());
  GrammarMatcher other(g);
  EXPECT_FALSE(other.accept("<tool_call>\n{\"name\": \"get_food"));
}

TEST(GrammarBuilderParts, TextUntilAMarker) {
  GrammarBuilder b;
  const std::vector<std::string> ends = {"</think>"};
  const GrammarPtr g = b.build(b.sequence({b.text_until(ends), b.literal("\n"), b.json_object()}));
  GrammarMatcher m(g);
  EXPECT_TRUE(m.accept("so <b> </thin </think>"));
  EXPECT_EQ(test::forced_text(m, 10), "\n{");
  EXPECT_FALSE(m.accept("x"));
  EXPECT_TRUE(m.accept("\n{\"a\": 1}"));
  EXPECT_TRUE(m.may_end() && m.must_end());
}

TEST(GrammarBuilderParts, MarkersTriggerRules) {
  GrammarBuilder b;
  const std::vector<std::string> names = {"f", "g"};
  const std::vector<GrammarBuilder::Trigger> triggers = {
      {"<call>", b.sequence({b.words(names), b.literal("</call>")})}, {"<ask>", b.literal("?")}};
  const GrammarPtr g = b.build(b.triggered(triggers));
  GrammarMatcher m(g);
  EXPECT_TRUE(m.may_end());
  EXPECT_TRUE(m.accept("text <cal"));
  EXPECT_TRUE(m.may_end());
  EXPECT_TRUE(m.accept("l>"));
  EXPECT_FALSE(m.may_end());
  EXPECT_FALSE(m.accept("h"));
  EXPECT_TRUE(m.accept("g</call>more <ask>"));
  EXPECT_EQ(test::forced_text(m, 5), "?");
  EXPECT_TRUE(m.accept("? and <call>f"));
  EXPECT_FALSE(m.may_end());
  EXPECT_TRUE(m.accept("</call>"));
  EXPECT_TRUE(m.may_end());
}

TEST(GrammarCacheTest, ForgetsTheLeastUsed) {
  const auto schema = [](int i) {
    AnswerFormat f;
    f.kind = AnswerFormat::Kind::kRegex;
    f.regex = fmt::format("[a-z]{{{}}}", i);
    return f;
  };
  GrammarCache cache(compile(schema(50))->bytes() * 3);
  const GrammarPtr first = cache.get(schema(50));
  EXPECT_EQ(cache.get(schema(50)), first);
  for (int i = 51; i < 54; ++i) cache.get(schema(i));
  EXPECT_NE(cache.get(schema(50)), first);
}

}  // namespace
}  // namespace moebius::grammar_test
