// SPDX-License-Identifier: Apache-2.0
// /v1/embeddings and /v1/rerank of one server with four tiny folders and a model that gives text, against
// what sentence-transformers answered (tests/python/make_embeddings.py).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "cli/served_util.h"
#include "text/base64.h"
#include "text/tokenizer.h"
#include "unit/test_util.h"

namespace moebius::embed_test {
namespace {

using test::Response;
using test::Served;

std::string golden(const std::string& name) {
  return (test::test_data_dir() / "golden-embed" / name).string();
}

const Json& expected() {
  static const Json j = parse_json(test::read_file(golden("expected.json")), "expected");
  return j;
}

std::string texts() { return expected().find("texts")->dump(); }

double distance(const Json& found, const Json& wanted) {
  EXPECT_EQ(found.items().size(), wanted.items().size());
  double most = 0;
  for (size_t i = 0; i < std::min(found.items().size(), wanted.items().size()); ++i)
    most = std::max(most, std::abs(found.items()[i].as_double() - wanted.items()[i].as_double()));
  return most;
}

class Embed : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string args = "--dtype f32 --parallel 4 --kv-gib 0.1";
    for (const char* name : {"last", "mean", "head", "tokens"})
      args += " --model " + test::shell_quote(std::string(name) + "=" + golden(name));
    args += " --model " + test::shell_quote("text=" + test::bundled_model_dir().string());
    server_ = std::make_unique<Served>(args);
  }
  static void TearDownTestSuite() { server_.reset(); }
  static Response embed(const std::string& fields) {
    return server_->ask(test::post("/v1/embeddings", "{" + fields + "}"));
  }
  static Response rerank(const std::string& fields) {
    return server_->ask(test::post("/v1/rerank", "{" + fields + "}"));
  }
  static void expect_vectors(const Response& r, const Json& wanted) {
    ASSERT_EQ(r.status, 200) << r.body;
    const Json j = r.json();
    const auto& data = j.find("data")->items();
    ASSERT_EQ(data.size(), wanted.items().size());
    for (size_t i = 0; i < data.size(); ++i) {
      EXPECT_EQ(data[i].find("index")->as_int(), static_cast<int64_t>(i));
      EXPECT_LT(distance(*data[i].find("embedding"), wanted.items()[i]), 1e-5) << i;
    }
  }
  static std::unique_ptr<Served> server_;
};
std::unique_ptr<Served> Embed::server_;

TEST_F(Embed, VectorsAreThoseOfSentenceTransformers) {
  const std::string all = R"("input":)" + texts();
  const Json& last = *expected().find("last");
  expect_vectors(embed(all + R"(,"model":"last")"), *last.find("plain"));
  expect_vectors(embed(all + R"(,"model":"last","prompt_name":"query")"), *last.find("query"));
  expect_vectors(embed(all + R"(,"model":"mean")"), *expected().find("pooled")->find("mean"));
  expect_vectors(embed(all + R"(,"model":"mean","dimensions":8)"), *expected().find("truncated 8"));
}

TEST_F(Embed, FormsAndUsage) {
  const Response whole = embed(R"("input":"It was a dark night.","model":"last")");
  ASSERT_EQ(whole.status, 200) << whole.body;
  const Json j = whole.json();
  const Tokenizer tokenizer = Tokenizer::from_folder(golden("last"));
  const std::vector<int32_t> ids = tokenizer.encode("It was a dark night.", true);
  EXPECT_EQ(j.find("object")->as_string(), "list");
  EXPECT_EQ(j.find("model")->as_string(), "last");
  EXPECT_EQ(j.find("usage")->find("prompt_tokens")->as_int(), static_cast<int64_t>(ids.size()));
  EXPECT_EQ(j.find("usage")->find("total_tokens")->as_int(), static_cast<int64_t>(ids.size()));
  const Json& vector = *j.find("data")->items()[0].find("embedding");
  std::string list;
  for (const int32_t id : ids) list += (list.empty() ? "" : ",") + std::to_string(id);
  for (const std::string& input : {"[" + list + "]", "[[" + list + "]]"})  // ids, and lists of them
    EXPECT_EQ(embed(R"("model":"last","input":)" + input).json().find("data")->dump(),
              j.find("data")->dump());
  const Json coded =
      embed(R"("model":"last","input":"It was a dark night.","encoding_format":"base64")").json();
  std::string bytes;
  ASSERT_TRUE(decode_base64(coded.find("data")->items()[0].find("embedding")->as_string(), bytes));
  ASSERT_EQ(bytes.size(), 4 * vector.items().size());
  for (size_t i = 0; i < vector.items().size(); ++i) {
    float x;
    std::memcpy(&x, bytes.data() + 4 * i, 4);
    EXPECT_EQ(x, static_cast<float>(vector.items()[i].as_double()));
  }
}

// Bytes do not depend on who asks beside.
TEST_F(Embed, EqualAloneAndAmongOthers) {
  const auto& list = expected().find("texts")->items();
  std::vector<std::string> alone(list.size()), beside(list.size());
  const auto ask = [&](size_t i) {
    return embed(R"("model":"mean","input":)" + list[i].dump()).body;
  };
  for (size_t i = 0; i < list.size(); ++i) alone[i] = ask(i);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < list.size(); ++i) threads.emplace_back([&, i] { beside[i] = ask(i); });
    threads.emplace_back([&] { embed(R"("model":"mean","input":)" + texts()); });
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(beside, alone);
  }
}

TEST_F(Embed, ScoresAreThoseOfSentenceTransformers) {
  const std::string query = R"("query":)" + expected().find("query")->dump();
  for (const char* name : {"head", "tokens"}) {
    const Response r = rerank(query + R"(,"documents":)" + texts() + R"(,"model":")" + name + "\"");
    ASSERT_EQ(r.status, 200) << r.body;
    const Json j = r.json();
    const auto& wanted = expected().find(name)->items();
    const auto& results = j.find("results")->items();
    ASSERT_EQ(results.size(), wanted.size());
    double before = 2;
    for (const Json& one : results) {
      const auto index = static_cast<size_t>(one.find("index")->as_int().value());
      const double score = one.find("relevance_score")->as_double();
      EXPECT_NEAR(score, wanted[index].as_double(), 1e-5) << name << " " << index;
      EXPECT_LE(score, before);
      before = score;
      EXPECT_EQ(one.find("document")->find("text")->as_string(),
                expected().find("texts")->items()[index].as_string());
    }
    EXPECT_GT(j.find("usage")->find("total_tokens")->as_int().value(), 100);
    const Json few = rerank(query + R"(,"documents":[{"text":"a"},"b"],"top_n":1,)" +
                            R"("return_documents":false,"model":")" + name + "\"")
                         .json();
    ASSERT_EQ(few.find("results")->items().size(), 1u);
    EXPECT_EQ(few.find("results")->items()[0].find("document"), nullptr);
  }
}

TEST_F(Embed, WhatCannotBeIsRefusedInWords) {
  const auto refused = [](const Response& r, int status, const char* part) {
    EXPECT_EQ(r.status, status) << r.body;
    EXPECT_NE(r.body.find(part), std::string::npos) << r.body;
  };
  refused(embed(R"("input":"a","model":"text")"), 400, "declares no pooling");
  refused(embed(R"("input":"a","model":"head")"), 400, "ask /v1/rerank");
  refused(rerank(R"("query":"a","documents":["b"],"model":"last")"), 400, "ask /v1/embeddings");
  refused(rerank(R"("query":"a","documents":["b"],"model":"text")"), 400, "declares no score");
  refused(server_->ask(test::post("/v1/completions", R"({"prompt":"a","model":"last"})")), 400,
          "ask /v1/embeddings");
  refused(embed(R"("input":"a","model":"last","dimensions":8)"), 400, "does not say that");
  refused(embed(R"("input":"a","model":"mean","dimensions":9)"), 400, "one of 8, 16, 32");
  refused(embed(R"("input":"a","model":"last","encoding_format":"hex")"), 400,
          "'float' or 'base64'");
  refused(embed(R"("input":"a","model":"last","prompt_name":"x")"), 400, "no prompt 'x'");
  // What would change a vector or a score is refused by name, unless it asks for nothing.
  for (const char* field :
       {R"("truncate_prompt_tokens":4)", R"("truncate":"END")", R"("truncation":true)",
        R"("normalize":false)", R"("embed_dtype":"float16")", R"("task":"retrieval.query")",
        R"("input_type":"query")", R"("late_chunking":true)"}) {
    const std::string name = std::string(field).substr(1, std::string(field).find('"', 1) - 1);
    refused(embed(R"("input":"a","model":"last",)" + std::string(field)), 400, name.c_str());
    refused(rerank(R"("query":"a","documents":["b"],"model":"head",)" + std::string(field)), 400,
            name.c_str());
  }
  EXPECT_EQ(embed(R"("input":"a","model":"last","truncate":"NONE","embed_dtype":"float32",)"
                  R"("late_chunking":false,"truncate_prompt_tokens":null)")
                .status,
            200);
  refused(embed(R"("model":"last")"), 400, "input is missing");
  refused(embed(R"("input":[],"model":"last")"), 400, "input is empty");
  refused(embed(R"("input":[""],"model":"last")"), 400, "input[0] has no token");
  refused(embed(R"("input":[[1,600]],"model":"last")"), 400, "600");
  refused(embed(R"("input":")" + std::string(3000, 'x') + R"(","model":"last")"), 400,
          "context holds 512");
  refused(rerank(R"("query":"a","model":"head")"), 400, "documents is missing");
  refused(rerank(R"("query":"a","documents":[7],"model":"head")"), 400, "documents[0]");
  refused(rerank(R"("documents":["b"],"model":"head")"), 400, "query is missing");
  EXPECT_EQ(server_->completion(R"("prompt":"a","max_tokens":1,"model":"text")").status, 200);
}

// A template that a text makes slow has the limits of a chat's, and its refusal does not say where the
// folder lies.
TEST(EmbedTemplate, SlowPairsAreRefused) {
  const test::TempDir temp;
  std::filesystem::copy(golden("tokens"), temp.path(), std::filesystem::copy_options::recursive);
  test::write_file(temp / "chat_template.jinja",
                   test::read_file(temp / "chat_template.jinja") +
                       "{% if messages[-1].content | length > 9 %}{% for a in range(9999) %}"
                       "{% for b in range(9999) %}{% endfor %}{% endfor %}{% endif %}");
  Served server("--dtype f32 --kv-gib 0.1 --model " +
                test::shell_quote("slow=" + temp.path().string()));
  const auto ask = [&](const char* documents) {
    return server.ask(test::post(
        "/v1/rerank", fmt::format(R"({{"model":"slow","query":"a","documents":{}}})", documents)));
  };
  EXPECT_EQ(ask(R"(["b","c"])").status, 200);
  const Response r = ask(R"(["b","a long document"])");
  EXPECT_EQ(r.status, 400) << r.body;
  for (const char* part :
       {"template_error", "documents[1]", "refuses these texts: chat_template.jinja, line 1"})
    EXPECT_NE(r.body.find(part), std::string::npos) << r.body;
  EXPECT_EQ(r.body.find(temp.path().string()), std::string::npos) << r.body;
}

}  // namespace
}  // namespace moebius::embed_test
