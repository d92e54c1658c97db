// SPDX-License-Identifier: Apache-2.0
// What a body costs: memory in multiples of its bytes, lists that are left at their first entry too
// many, fields that are passed over, texts that are encoded no further than the context reaches.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "runtime/memory.h"
#include "serve/body.h"
#include "unit/allocations_util.h"
#include "unit/serve/serve_util.h"
#include "unit/test_util.h"

namespace moebius::serve_body_test {
namespace {

using test::eventually;
using test::FakeServer;
using test::Response;

std::string repeated(std::string_view text, size_t count) {
  std::string out;
  out.reserve(text.size() * count);
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

ServedModel small_model() {
  ServedModel m;
  m.name = "m";
  m.tokenizer = &test::bundled_tokenizer();
  m.templates = &test::bundled_templates();
  m.context = 2048;
  m.vocab = 4096;
  m.slots = 4;
  return m;
}

std::string error_of(const std::string& body, Endpoint endpoint) {
  const ServedModel model = small_model();
  try {
    parse_body(body, endpoint, model);
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status, 400);
    return fmt::format("{}|{}|{}", e.code, e.param, e.what());
  }
  return "none";
}

// Nothing of it is kept, so nothing is asked for.
TEST(ServeBody, UnknownFieldsArePassedOver) {
  const ServedModel model = small_model();
  const std::string values = repeated(R"(1,"ab",[{"c":[]}],null,)", 20000);
  const std::string body =
      R"({"prompt":"a","x":[)" + values + "1],\"y\":{\"x\":[" + values + "2]}}";
  const size_t before = test::allocations();
  const RequestBody read = parse_body(body, Endpoint::kCompletion, model);
  EXPECT_LT(test::allocations() - before, 200u);
  EXPECT_EQ(read.fields.members().size(), 0u);
  EXPECT_EQ(std::get<std::string>(read.lists.at("prompt")[0]), "a");
  // What an endpoint does not know is unknown, known elsewhere or not.
  EXPECT_EQ(error_of(R"({"prompt":"a","messages":[)" + repeated("1,", 5000) + "1]}",
                     Endpoint::kCompletion),
            "none");
}

// A schema is answered in the digits that it names.
TEST(ServeBody, LongIntegersKeepTheirDigits) {
  const std::string digits = "123456789012345678901234567890";
  const RequestBody body = parse_body(R"({"prompt":"a","guided_json":{"enum":[)" + digits + "]}}",
                                      Endpoint::kCompletion, small_model());
  EXPECT_EQ(body.fields.find("guided_json")->dump(), "{\"enum\": [" + digits + "]}");
  size_t left = 10;
  EXPECT_EQ(parse_inner_json("[-" + digits + ", 1e30]", "text", left).dump(),
            "[-" + digits + ", 1e+30]");
}

TEST(ServeBody, TheNameOfTheModelIsReadAloneAndFirst) {
  const auto name = [](std::string_view text) { return model_of_body(text).value_or("none"); };
  EXPECT_EQ(name(R"({"n":{"model":"x"},"stop":["model","y"],"model":"a"})"), "a");
  EXPECT_EQ(name(R"({"model":"a","prompt":[1,2,)"), "a");  // what follows is not read
  EXPECT_EQ(name(R"({"model":null,"model":7})"), "none");
  EXPECT_EQ(name(R"({"prompt":"a"})"), "none");
  EXPECT_EQ(name(R"({"prompt":"a",)"), "none");
  EXPECT_EQ(name(R"("model")"), "none");
}

// Behind the entry too many stands what is no JSON: it is never reached.
TEST(ServeBody, ListsAreRefusedAtTheirFirstEntryTooMany) {
  const auto list = [](const char* name, std::string_view entry, size_t count) {
    return fmt::format(R"({{"{}":[{} no JSON)", name, repeated(entry, count));
  };
  const std::tuple<const char*, std::string_view, size_t, Endpoint> lists[] = {
      {"stop", "\"a\",", 32, Endpoint::kChat},
      {"stop_token_ids", "1,", 1024, Endpoint::kCompletion},
      {"messages", R"({"role":"user","content":"a"},)", 4096, Endpoint::kChat},
      {"messages", "{},", 4096, Endpoint::kTokenize},
      {"prompt", "\"a\",", 128, Endpoint::kCompletion},
      {"prompt", "[1],", 128, Endpoint::kCompletion},
      {"tokens", "1,", 1 << 17, Endpoint::kDetokenize},
  };
  for (const auto& [name, entry, most, endpoint] : lists) {
    EXPECT_EQ(error_of(list(name, entry, most + 1), endpoint),
              fmt::format("invalid_value|{0}|{0} has more than {1} entries", name, most));
    EXPECT_TRUE(error_of(list(name, entry, most), endpoint).starts_with("invalid_json||"));
  }
  std::string bias;
  for (int i = 0; i < 1025; ++i) bias += fmt::format("\"{}\":1,", i);
  EXPECT_EQ(error_of("{\"logit_bias\":{" + bias + " no JSON", Endpoint::kChat),
            "invalid_value|logit_bias|logit_bias has more than 1024 entries");
  EXPECT_EQ(error_of("{\"prompt\":[" + repeated("1,", 2049) + " no JSON", Endpoint::kCompletion),
            "context_length_exceeded|prompt|the prompt has more than 2048 tokens, but the context "
            "holds 2048");
  EXPECT_EQ(
      error_of("{\"prompt\":[[1],[" + repeated("1,", 2049) + " no JSON", Endpoint::kCompletion),
      "context_length_exceeded|prompt[1]|the prompt has more than 2048 tokens, but the "
      "context holds 2048");
  std::string fields;
  for (int i = 0; i < 1025; ++i) fields += fmt::format("\"x{}\":1,", i);
  EXPECT_EQ(error_of("{" + fields + " no JSON", Endpoint::kChat),
            "invalid_value||the body has more than 1024 fields");
  // Trees count as a whole, those within strings too.
  EXPECT_EQ(error_of("{\"chat_template_kwargs\":{\"a\":[" + repeated("1,", 40000) + " no JSON",
                     Endpoint::kChat),
            "invalid_json||the body: more than 32768 values");
  size_t left = kMostBodyValues;
  EXPECT_THROW(parse_inner_json("[" + repeated("1,", 40000) + "no JSON", "a", left), Error);
  EXPECT_EQ(left, 0u);
}

TEST(ServeBody, WrongKindsAreNamedByTheirPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"prompt":1})",
       "invalid_type|prompt|prompt is an integer; expected a string, strings, token ids or lists "
       "of token ids"},
      {R"({"prompt":{}})",
       "invalid_type|prompt|prompt is an object; expected a string, strings, token ids or lists "
       "of token ids"},
      {R"({"prompt":[null]})", "invalid_type|prompt[0]|prompt[0] is null; expected a string"},
      {R"({"prompt":["a",1]})",
       "invalid_type|prompt[1]|prompt[1] is an integer; expected a string"},
      {R"({"prompt":["a",[1]]})",
       "invalid_type|prompt[1]|prompt[1] is an array; expected a string"},
      {R"({"prompt":[1,"a"]})",
       "invalid_type|prompt[1]|prompt[1] is a string; expected an integer"},
      {R"({"prompt":[1,[1]]})",
       "invalid_type|prompt[1]|prompt[1] is an array; expected an integer"},
      {R"({"prompt":[1,2.5]})",
       "invalid_type|prompt[1]|prompt[1] is a number; expected an integer"},
      {R"({"prompt":[1,-1]})", "out_of_range|prompt[1]|prompt[1] is -1; expected 0 to 4095"},
      {R"({"prompt":[[1],2]})",
       "invalid_type|prompt[1]|prompt[1] is an integer; expected a list of token ids"},
      {R"({"prompt":[[1,[2]]]})",
       "invalid_type|prompt[0][1]|prompt[0][1] is an array; expected an integer"},
      {R"({"prompt":[[1,4096]]})",
       "out_of_range|prompt[0][1]|prompt[0][1] is 4096; expected 0 to 4095"},
      {R"({"stop_token_ids":"a"})",
       "invalid_type|stop_token_ids|stop_token_ids is a string; expected an array of token ids"},
      {R"({"stop_token_ids":[1,"a"]})",
       "invalid_type|stop_token_ids[1]|stop_token_ids[1] is a string; expected an integer"},
      {R"({"stop":1,"stop":2})", "invalid_json||the body: duplicate key 'stop'"},
      {R"({"x":1,"x":2})", "invalid_json||the body: duplicate key 'x'"},
      {R"({"stream_options":{"a":1,"a":2}})", "invalid_json||the body: duplicate key 'a'"},
      {R"({"prompt":[1.0,2],"stop_token_ids":null})", "none"},
      {R"({"prompt":[[],[1]]})", "none"},
  };
  for (const auto& [body, expected] : cases)
    EXPECT_EQ(error_of(body, Endpoint::kCompletion), expected) << body;
}

// What fits is encoded as ever, at every limit; what does not is left at the first token beyond.
TEST(ServeBody, PromptsAreEncodedUpToTheContext) {
  const Tokenizer& t = test::bundled_tokenizer();
  const std::string special = t.id_to_token(4092).value();
  const std::string texts[] = {"", "It was a dark and stormy night; the rain fell in torrents.",
                               special + "a" + special + special, repeated("a", 300),
                               repeated("\U0001f600 \xff", 20)};
  for (const std::string& text : texts)
    for (const bool add : {false, true}) {
      const std::vector<int32_t> all = t.encode(text, add);
      const TextSegment segment{text, true};
      const std::vector<int32_t> of_segment = t.encode_segments({segment}, add);
      for (size_t most = 0; most <= all.size() + 2; ++most) {
        const auto some = t.encode_within(text, add, most);
        EXPECT_EQ(some.has_value(), all.size() <= most) << text << " " << most;
        if (some) {
          EXPECT_EQ(*some, all);
        }
        const auto within = t.encode_segments_within({segment}, add, most);
        EXPECT_EQ(within.has_value(), of_segment.size() <= most) << text << " " << most;
        if (within) {
          EXPECT_EQ(*within, of_segment);
        }
      }
    }
  // Neither many pieces nor a single long one cost more than the context: they ask for little.
  for (const std::string& text : {repeated("word and word. ", 200000), repeated("a", 3'000'000),
                                  repeated(special, 300'000)}) {
    t.encode_within(text, false, 2048);  // the cache has what it needs
    const size_t before = test::allocations();
    EXPECT_FALSE(t.encode_within(text, false, 2048));
    EXPECT_LT(test::allocations() - before, 10000u);
  }
}

void forget_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

struct Cost {
  uint64_t peak = 0, left = 0;  // beyond what there was
  int status = 0;
};
// In a process of its own: a server that was asked before, then the body.
Cost cost_of(const std::string& path, const std::string& body) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    Cost cost;
    {
      const FakeServer server;
      const std::string bytes = test::post(path, body);
      server.completion(R"("prompt":"a","max_tokens":1)");
      forget_peak();
      const uint64_t before = resident_bytes();
      test::Client client(server.port);
      client.send(bytes);
      cost.status = client.read().status;
      cost.peak = peak_resident_bytes() - before;
      eventually([&] { return resident_bytes() < before + (8 << 20); });
      const uint64_t after = resident_bytes();
      cost.left = after > before ? after - before : 0;
    }
    const bool written = write(ends[1], &cost, sizeof cost) == sizeof cost;
    _exit(written ? 0 : 1);
  }
  Cost cost;
  const bool read_back = read(ends[0], &cost, sizeof cost) == sizeof cost;
  EXPECT_TRUE(read_back);
  close(ends[0]);
  close(ends[1]);
  waitpid(child, nullptr, 0);
  return cost;
}

TEST(ServeBody, MemoryIsAFewTimesTheBytesAndGoesBack) {
  if (!test::plain_build()) GTEST_SKIP() << "sanitizers and emulators need memory of their own";
  constexpr size_t kBytes = 7'900'000;
  const std::string m = R"("messages":[{"role":"user","content":"a"}],"max_tokens":1)";
  const auto filled = [](const std::string& head, std::string_view entry, const std::string& tail) {
    return head + repeated(entry, (kBytes - head.size() - tail.size()) / entry.size()) + tail;
  };
  constexpr uint64_t kMost = 6;
  const std::tuple<const char*, const char*, std::string, int> cases[] = {
      {"an ignored list", "/v1/chat/completions", filled("{" + m + R"(,"x":[)", "1,", "1]}"), 200},
      {"an ignored tree", "/v1/chat/completions",
       filled("{" + m + R"(,"x":[)", R"({"a":[{}]},)", "1]}"), 200},
      {"an ignored text", "/v1/chat/completions", filled("{" + m + R"(,"x":")", "a", "\"}"), 200},
      {"stops", "/v1/chat/completions", filled("{" + m + R"(,"stop":[)", "\"a\",", "\"\"]}"), 400},
      {"a tree that is not offered", "/v1/chat/completions",
       filled("{" + m + R"(,"tools":[)", R"({"a":[{}]},)", "1]}"), 400},
      {"names for a template", "/v1/chat/completions",
       filled("{" + m + R"(,"chat_template_kwargs":{"a":[)", "1,", "1]}}"), 400},
      {"token ids", "/v1/completions", filled(R"({"prompt":[)", "1,", "1]}"), 400},
      {"a prompt of one word", "/v1/completions", filled(R"({"prompt":")", "a", "\"}"), 400},
      {"a prompt of words", "/v1/completions", filled(R"({"prompt":")", "a b ", "\"}"), 400},
      {"a prompt of special tokens", "/v1/completions",
       filled(R"({"prompt":")", test::bundled_tokenizer().id_to_token(4092).value(), "\"}"), 400},
      {"a message", "/v1/chat/completions",
       filled(R"({"messages":[{"role":"user","content":")", "a b ", "\"}]}"), 400},
      {"parts", "/v1/chat/completions",
       filled(R"({"messages":[{"role":"user","content":[)", R"({"type":"text","text":"a"},)",
              R"({"type":"text","text":"a"}]}]})"),
       400},
      {"arguments of a call", "/v1/chat/completions",
       filled(
           R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"[)",
           "1,", R"(1]"}}]}]})"),
       400},
  };
  for (const auto& [name, path, body, status] : cases) {
    const Cost cost = cost_of(path, body);
    EXPECT_EQ(cost.status, status) << name;
    EXPECT_LE(cost.peak, kMost * body.size()) << name;
    EXPECT_LE(cost.left, 8u << 20) << name;
  }
}

}  // namespace
}  // namespace moebius::serve_body_test
