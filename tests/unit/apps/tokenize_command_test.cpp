// SPDX-License-Identifier: Apache-2.0
// The commands tokenize and detokenize as functions: round trips, formats, and what is wrong with
// bad input.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "apps/tokenize.h"
#include "base/error.h"
#include "base/json.h"
#include "unit/test_util.h"

namespace moebius::tokenize_command_test {
namespace {

std::string tokenize(TokenizeOptions o, const std::string& input = "") {
  if (o.folder.empty()) o.folder = test::bundled_model_dir().string();
  std::istringstream in(input);
  std::ostringstream out;
  EXPECT_EQ(run_tokenize(o, in, out), 0);
  return out.str();
}

std::string detokenize(DetokenizeOptions o, const std::string& input = "") {
  o.folder = test::bundled_model_dir().string();
  std::istringstream in(input);
  std::ostringstream out;
  EXPECT_EQ(run_detokenize(o, in, out), 0);
  return out.str();
}

template <class F>
std::string error_of(F f) {
  try {
    f();
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(TokenizeCommand, RoundTrip) {
  const std::string text = "Once upon a time, caf\u00e9 \U0001f600\n<|im_end|> 12";
  TokenizeOptions given;
  given.text = text;
  const std::string ids = tokenize(given);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), '\n'), 1);
  EXPECT_EQ(tokenize({}, text), ids);
  DetokenizeOptions special;
  special.special = true;
  EXPECT_EQ(detokenize(special, ids), text);
  EXPECT_EQ(detokenize({}, "[4094, 4092]"), "");
  special.ids = "4094,4092";
  EXPECT_EQ(detokenize(special), "<|im_end|><|endoftext|>");
  EXPECT_EQ(tokenize({}, ""), "\n");
  EXPECT_EQ(detokenize({}, ""), "");
  EXPECT_EQ(tokenize({}, "\xff\xfe"), tokenize({}, "\ufffd\ufffd"));
}

TEST(TokenizeCommand, Json) {
  TokenizeOptions o;
  o.text = "the <|im_end|>";
  o.json = true;
  const Json j = parse_json(tokenize(o), "output");
  EXPECT_EQ(j.find("ids")->items().size(), j.find("tokens")->items().size());
  EXPECT_EQ(static_cast<size_t>(*j.find("count")->as_int()), j.find("ids")->items().size());
  EXPECT_EQ(j.find("tokens")->items().back().as_string(), "<|im_end|>");
}

TEST(TokenizeCommand, BadInput) {
  const auto wrong = [](const std::string& ids) {
    return error_of([&] {
      DetokenizeOptions o;
      o.ids = ids;
      detokenize(o);
    });
  };
  EXPECT_EQ(wrong("1 x"), "'x' is not a token id");
  EXPECT_EQ(wrong("4096"), "token id 4096 is out of range: the tokenizer has ids 0 to 4095");
  EXPECT_EQ(wrong("-1"), "token id -1 is out of range: the tokenizer has ids 0 to 4095");
  EXPECT_NE(wrong("99999999999999999999"), "");
  const test::TempDir empty;
  TokenizeOptions o;
  o.folder = empty.path().string();
  EXPECT_NE(error_of([&] { tokenize(o, "x"); }).find("text needs tokenizer.json"),
            std::string::npos);
  o.folder.clear();
  o.file = (empty / "missing.txt").string();
  EXPECT_NE(error_of([&] { tokenize(o); }).find("missing.txt"), std::string::npos);
}

}  // namespace
}  // namespace moebius::tokenize_command_test
