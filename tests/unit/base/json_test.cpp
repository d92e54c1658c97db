// SPDX-License-Identifier: Apache-2.0
// The JSON reader: what it accepts, what it refuses and in which words, order and numbers of the
// value tree, the writer.
#include "base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/json_shown.h"
#include "base/json_tree.h"
#include "base/utf8.h"

namespace moebius::json_test {
namespace {

std::string error_of(std::string_view text) {
  try {
    parse_json(text, "file.json");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

void expect_error(std::string_view text, std::string_view part) {
  const std::string message = error_of(text);
  EXPECT_NE(message.find(part), std::string::npos)
      << "text: " << printable(text) << "\nmessage: " << message;
  EXPECT_TRUE(message.starts_with("file.json: ")) << message;
}

TEST(Json, KeepsOrderAndKinds) {
  const Json j = parse_json(R"({"z": 1, "a": [true, null, -2, 2.5, "x"], "m": {}})", "f");
  ASSERT_TRUE(j.is_object());
  EXPECT_EQ(j.members()[0].first, "z");
  EXPECT_EQ(j.members()[1].first, "a");
  const std::vector<Json>& items = j.find("a")->items();
  ASSERT_EQ(items.size(), 5u);
  EXPECT_TRUE(items[0].as_bool());
  EXPECT_TRUE(items[1].is_null());
  EXPECT_EQ(items[2].as_int(), -2);
  EXPECT_EQ(items[3].as_double(), 2.5);
  EXPECT_EQ(items[4].as_string(), "x");
  EXPECT_EQ(j.find("nothing"), nullptr);
  EXPECT_EQ(items[0].find("x"), nullptr);
}

TEST(Json, NumbersAtTheEdges) {
  const Json j = parse_json(
      "[18446744073709551615, 9223372036854775807, -9223372036854775808, 18446744073709551616, "
      "1e3]",
      "f");
  EXPECT_TRUE(j.items()[0].is_integer());
  EXPECT_EQ(j.items()[0].as_int(), std::nullopt);
  EXPECT_EQ(j.items()[0].dump(), "18446744073709551615");
  EXPECT_EQ(j.items()[1].as_int(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(j.items()[2].as_int(), std::numeric_limits<int64_t>::min());
  EXPECT_FALSE(j.items()[3].is_integer());
  EXPECT_FALSE(j.items()[4].is_integer());
  EXPECT_EQ(j.items()[4].as_double(), 1000.0);
}

TEST(Json, RefusesWhatIsNotJson) {
  expect_error("", "malformed JSON");
  expect_error("{", "malformed JSON at byte");
  expect_error("{} {}", "malformed JSON");
  expect_error("[1,]", "malformed JSON");
  expect_error("[01]", "malformed JSON");
  expect_error("{'a': 1}", "malformed JSON");
  expect_error("// comment\n{}", "malformed JSON");
  expect_error("\"\\ud800\"", "malformed JSON");
  expect_error("\"\x01\"", "malformed JSON");
  expect_error("\xef\xbb\xbf{}", "byte order mark");
  expect_error(std::string_view("{}\0", 3), "zero byte at 2");
  expect_error("\"\xff\"", "not valid UTF-8");
  expect_error("\"\xed\xa0\x80\"", "not valid UTF-8");
  expect_error("\"\xc0\xaf\"", "not valid UTF-8");
}

TEST(Json, Utf8AtEveryPlace) {
  for (size_t before = 0; before < 20; ++before) {
    for (size_t after = 0; after < 20; ++after) {
      const std::string a(before, 'a'), b(after, 'b');
      EXPECT_TRUE(is_utf8(a + "\u00e9\U0001f600" + b));
      EXPECT_FALSE(is_utf8(a + "\xff" + b));
      EXPECT_FALSE(is_utf8(a + "\xe2\x82" + b));
    }
  }
  EXPECT_TRUE(is_utf8(""));
}

TEST(Json, RefusesDuplicateKeys) {
  expect_error(R"({"a": {"b": 1, "b": 2}})", "duplicate key 'b'");
  expect_error(R"({"b": 1, "\u0062": 2})", "duplicate key 'b'");
  EXPECT_EQ(error_of(R"({"a": {"b": 1}, "c": {"b": 1}})"), "");
}

TEST(Json, BoundsDepth) {
  const auto nested = [](size_t n) { return std::string(n, '[') + std::string(n, ']'); };
  EXPECT_EQ(error_of(nested(kJsonMaxDepth)), "");
  expect_error(nested(kJsonMaxDepth + 1), "nested deeper than 128");
  expect_error(std::string(1'000'000, '['), "nested deeper than 128");
  expect_error(std::string(1'000'000, '{'), "malformed JSON");
}

// Lists and objects of a configuration take memory for each of their values; text that a caller
// gives has a limit of its own.
TEST(Json, BoundsValues) {
  const auto list = [](size_t n) {
    std::string text = "[0";
    for (size_t i = 2; i < n; ++i) text += ",0";  // the list is a value, too
    return text + "]";
  };
  EXPECT_EQ(error_of(list(kJsonMaxValues)), "");
  expect_error(list(10 * kJsonMaxValues), "more than 1000000 values");
  EXPECT_EQ(parse_json_strictly(list(kJsonMaxValues + 1), "f").items().size(), kJsonMaxValues);
}

// They are numbers that no accessor takes for finite, and not nulls, which mean absent.
TEST(Json, ReadsPythonsNumbers) {
  const Json j = parse_json(
      R"({"a": [null, Infinity], "b": -Infinity, "n": null, "c": NaN, "d": "null, NaN, \"Infinity"})",
      "f");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(j.find("a")->items()[0].is_null());
  EXPECT_EQ(j.find("a")->items()[1].as_double(), kInfinity);
  EXPECT_EQ(j.find("b")->as_double(), -kInfinity);
  EXPECT_TRUE(j.find("n")->is_null());
  EXPECT_TRUE(j.find("c")->is_number() && std::isnan(j.find("c")->as_double()));
  EXPECT_EQ(j.find("d")->as_string(), "null, NaN, \"Infinity");
  EXPECT_EQ(shown(*j.find("a")) + shown(*j.find("b")) + shown(*j.find("c")),
            "an array-InfinityNaN");
  EXPECT_EQ(j.dump(), R"({"a": [null, null], "b": null, "n": null, "c": null, )"
                      R"("d": "null, NaN, \"Infinity"})");
  expect_error("[Infinit]", "malformed JSON");
  expect_error("[nullNaN]", "malformed JSON");
  EXPECT_THROW(parse_json_strictly("[NaN]", "f"), Error);
}

TEST(Json, WritesWhatItReads) {
  const std::string text = R"({"a": [1, -2, 2.5, true, null, "q\"\\\n\u0001é"], "b": {}, "c": []})";
  EXPECT_EQ(parse_json(text, "f").dump(), text);
  EXPECT_EQ(parse_json(parse_json(text, "f").dump(2), "f").dump(), text);
}

// Counts what arrives, and stops where told.
class Counter final : public JsonHandler {
 public:
  size_t events = 0, stop_at = std::numeric_limits<size_t>::max();
  void key(std::string&) override { ++events; }
  void begin(bool) override { ++events; }
  void end() override { ++events; }
  void value(Json) override { ++events; }
  bool stops() const override { return events >= stop_at; }
};

TEST(Json, EventsStopWhenTheHandlerSaysSo) {
  Counter all;
  parse_json_events(R"({"a": [1, "x", null, true, -1, 1.5]})", all, "f");
  EXPECT_EQ(all.events, 11u);
  Counter some;
  some.stop_at = 4;
  parse_json_events(R"({"a": [1, "x", null]})", some, "f");
  EXPECT_EQ(some.events, 4u);
}

}  // namespace
}  // namespace moebius::json_test
