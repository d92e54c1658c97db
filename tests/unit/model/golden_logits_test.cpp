// SPDX-License-Identifier: Apache-2.0
// Whole models against logits that other libraries gave (build/data/golden/*/logits.safetensors), f32
// activations, and the promises of the engine: no dependence on threads, batch, or the pieces of a
// prompt.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/json.h"
#include "base/numeric.h"
#include "checkpoint/summary.h"
#include "checkpoint/token_table.h"
#include "model/arch/arch.h"
#include "model/run/decoder.h"
#include "moebius/error.h"
#include "unit/test_util.h"

namespace moebius::golden_logits_test {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<DecoderModel> load(const Checkpoint& checkpoint, ThreadPool& pool, XType type) {
  ModelOptions options;
  options.pool = &pool;
  options.type = type;
  options.kv_type = kv_type_of(type);  // the expected logits are without quantized keys and values
  options.context = 32;  // the original context of the folder with two sets of rotary factors
  return DecoderModel::load(checkpoint, options);
}

std::vector<int32_t> tokens_of(const TensorStore& store) {
  const TensorInfo& t = store.require("tokens");
  std::vector<uint8_t> bytes(t.bytes);
  store.read(t, 0, bytes);
  std::vector<int32_t> out;
  const size_t width = bits_of(t.dtype) / 8;
  for (size_t i = 0; i < bytes.size(); i += width) {
    int64_t v = 0;
    std::memcpy(&v, bytes.data() + i, width);
    out.push_back(static_cast<int32_t>(v));
  }
  return out;
}

// Runs the tokens in pieces of `piece`.
std::vector<float> logits_of(DecoderModel& model, const std::vector<int32_t>& tokens,
                             size_t piece) {
  SequenceState state = model.new_sequence();
  std::vector<float> all, some;
  for (size_t i = 0; i < tokens.size(); i += piece) {
    const StepItem item{&state, std::span(tokens).subspan(i, std::min(piece, tokens.size() - i)),
                        true};
    model.forward({&item, 1}, some);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

// Runs a prompt whose last row alone is asked for: its logits and the rows of every expert are those of
// `all`, the logits of every row. Returns how many rows the last block ran.
size_t rows_of_last_block(DecoderModel& model, const std::vector<int32_t>& tokens,
                          const std::vector<float>& all) {
  const std::vector<uint32_t> counted = model.last_step().expert_rows;
  SequenceState state = model.new_sequence();
  const StepItem item{&state, tokens};
  std::vector<float> last;
  model.forward({&item, 1}, last);
  EXPECT_EQ(last.size(), model.vocab());
  EXPECT_EQ(std::memcmp(last.data(), all.data() + all.size() - last.size(), last.size() * 4), 0);
  EXPECT_EQ(model.last_step().expert_rows, counted);
  return model.last_step().last_rows;
}

// Runs a prompt in two pieces, the first of which is asked for nothing: the last row of `all` follows.
void run_without_logits(DecoderModel& model, const std::vector<int32_t>& tokens,
                        const std::vector<float>& all) {
  ASSERT_LT(tokens.size(), kBlockTokens);
  const BlockTables tables(model.kv_kinds().size(), {0});
  const std::span<const int32_t> whole = tokens;
  const size_t first = whole.size() / 2;
  StepOutput out;
  for (const BatchItem& item :
       {BatchItem{&tables, 0, whole.first(first), LogitsOf::kNone, whole.size()},
        BatchItem{&tables, first, whole.subspan(first), LogitsOf::kLast, whole.size()}})
    if (!item.tokens.empty()) model.collect(model.submit({&item, 1}), out);
  ASSERT_EQ(out.logits.size(), model.vocab());
  EXPECT_EQ(std::memcmp(out.logits.data(), all.data() + all.size() - out.logits.size(),
                        out.logits.size() * sizeof(float)),
            0);
}

TEST(GoldenLogits, EveryFolder) {
  ThreadPool pool(2);
  size_t folders = 0, cut = 0;
  for (const auto& entry : fs::directory_iterator(test::test_data_dir() / "golden")) {
    fs::path file = entry.path() / "logits.safetensors";
    if (!fs::exists(file)) file = entry.path() / "expected.safetensors";  // dense folders
    if (!fs::exists(file)) continue;
    const std::string name = entry.path().filename().string();
    SCOPED_TRACE(name);
    const TensorStore store = TensorStore::open_file(file.string());
    if (store.find("logits") == nullptr) continue;
    const Checkpoint checkpoint = Checkpoint::open(entry.path().string());
    const auto model = load(checkpoint, pool, XType::kF32);
    const std::vector<float> expected = read_floats(store, store.require("logits"));
    const std::vector<int32_t> tokens = tokens_of(store);
    const std::vector<float> y = logits_of(*model, tokens, 1000);
    ASSERT_EQ(y.size(), expected.size());
    ASSERT_EQ(model->last_step().last_rows, tokens.size());
    cut += rows_of_last_block(*model, tokens, y) == 1 && tokens.size() > 1;
    run_without_logits(*model, tokens, y);
    double error = 0, norm = 0, worst = 0, top = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      const double d = double{y[i]} - expected[i];
      error += d * d, norm += double{expected[i]} * expected[i];
      worst = std::max(worst, std::fabs(d)), top = std::max(top, std::fabs(double{expected[i]}));
    }
    bool exact = false;  // inputs are not quantized, or no input is near a boundary
    for (const char* part : {"-dense", "-gptq-", "-awq-", "-autoround-", "-mlx-", "-real-"})
      exact = exact || name.find(part) != std::string::npos;
    // Quantized activations: a code on a rounding boundary may fall either way and moves the rows
    // behind it.
    EXPECT_LT(std::sqrt(error / norm), exact ? 1e-5 : 1e-3) << name;
    EXPECT_LT(worst / top, exact ? 1e-4 : 1e-2) << name;
    ++folders;
  }
  EXPECT_GT(folders, 150u);
  EXPECT_GT(cut, folders * 9 / 10);
}

// A shortlist leaves out logits on which sampling does not depend; the others have the bytes of the whole
// row. An int8 output projection is near the declared one.
TEST(GoldenLogits, FewLogitsAndAnInt8Head) {
  ThreadPool pool(2);
  const fs::path golden = test::test_data_dir() / "golden";
  for (const fs::path& path :
       {test::bundled_model_dir(), golden / "gptoss-dense", golden / "deepseekv3-dense"}) {
    SCOPED_TRACE(path);
    const Checkpoint checkpoint = Checkpoint::open(path.string());
    const std::vector<int32_t> tokens = {3, 1, 4, 1, 5, 9, 2, 6};
    ModelOptions options;
    options.pool = &pool;
    options.type = XType::kBf16;
    std::vector<float> whole, rounded;
    {
      const auto model = DecoderModel::load(checkpoint, options);
      SequenceState state = model->new_sequence();
      const StepItem item{&state, tokens};
      model->forward({&item, 1}, whole);
    }
    options.shortlist = true;
    const auto model = DecoderModel::load(checkpoint, options);
    const BlockTables tables(model->kv_kinds().size(), {0});
    BatchItem item{&tables, 0, tokens};
    size_t asked = 0;
    item.few = [&](const LogitBounds& row, std::vector<int32_t>& ids) {
      for (size_t i = 0; i < whole.size(); ++i)
        EXPECT_TRUE(row.lower[i] <= whole[i] && whole[i] <= row.upper[i]) << i;
      ids.assign({static_cast<int32_t>(whole.size() - 1)});
      return ++asked == 1;
    };
    StepOutput out;
    model->collect(model->submit({&item, 1}), out);
    ASSERT_EQ(asked, 1u);
    ASSERT_EQ(out.logits.size(), whole.size());
    EXPECT_EQ(out.logits.back(), whole.back());
    size_t left_out = 0;
    for (size_t i = 0; i < whole.size(); ++i)
      if (!std::isfinite(out.logits[i]))
        ++left_out;
      else
        EXPECT_EQ(out.logits[i], whole[i]) << i;
    EXPECT_EQ(left_out > 0, whole.size() > 1000);    // fewer are one tile
    model->collect(model->submit({&item, 1}), out);  // says that it needs all
    EXPECT_EQ(asked, 2u);
    EXPECT_EQ(std::memcmp(out.logits.data(), whole.data(), whole.size() * sizeof(float)), 0);

    options.act.int8_head = true;
    const auto approximate = DecoderModel::load(checkpoint, options);
    SequenceState state = approximate->new_sequence();
    const StepItem all{&state, tokens};
    approximate->forward({&all, 1}, rounded);
    double error = 0, norm = 0;
    for (size_t i = 0; i < whole.size(); ++i)
      error += std::pow(double{rounded[i]} - whole[i], 2), norm += std::pow(whole[i], 2);
    EXPECT_GT(error, 0) << "rounded weights give the same logits";
    EXPECT_LT(std::sqrt(error / norm), 0.02);
  }
}

// A token table in FP8 (quant_method fp8): rows are scaled after they are looked up. The same numbers in
// bf16 give the same bytes, with and without an output projection of its own.
TEST(GoldenLogits, TokenTableInFp8) {
  const fs::path folder = test::test_data_dir() / "golden" / "qwen3moe-native-fp8-ragged";
  const Json config =
      parse_json(read_text_file((folder / "config.json").string(), 1 << 20), "config.json");
  const TensorStore store = TensorStore::open_file((folder / "model.safetensors").string());
  const std::string table = "model.embed_tokens.weight";
  const TensorInfo& info = store.require(table);
  std::vector<uint8_t> codes(info.shape[0] * info.shape[1]), plain(codes.size() * 2);
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<uint8_t>(0x20 + i * 7 % 0x20 + (i % 3 == 0 ? 0x80 : 0));
    const uint16_t value = f32_to_bf16(e4m3_to_f32(codes[i]) * 0.25f);  // exact
    std::memcpy(plain.data() + 2 * i, &value, 2);
  }
  const float scale = 0.25f;
  std::vector<uint8_t> factor(4);
  std::memcpy(factor.data(), &scale, 4);
  ThreadPool pool(2);
  for (const bool tied : {false, true}) {
    std::vector<float> found[2];
    for (const bool fp8 : {false, true}) {
      std::deque<std::vector<uint8_t>> memory;
      std::vector<TensorData> tensors;
      for (const TensorInfo& t : store.tensors()) {
        if (t.name == table || (tied && t.name == "lm_head.weight")) continue;
        store.read(t, 0, memory.emplace_back(t.bytes));
        tensors.push_back({t.name, t.dtype, t.shape, memory.back()});
      }
      tensors.push_back(
          {table, fp8 ? DType::kF8E4M3 : DType::kBf16, info.shape, fp8 ? codes : plain});
      if (fp8) tensors.push_back({"model.embed_tokens.weight_scale", DType::kF32, {1}, factor});
      const test::TempDir dir;
      write_safetensors((dir / "model.safetensors").string(), tensors);
      Json json = Json::object();
      for (const auto& [key, value] : config.members())
        json.set(key, key == "tie_word_embeddings" ? Json(tied) : value);
      std::ofstream(dir / "config.json") << json.dump();
      const Checkpoint checkpoint = Checkpoint::open(dir.path().string());
      checkpoint.require_supported();
      found[fp8] = logits_of(*load(checkpoint, pool, XType::kF32), {3, 1, 4, 1, 5, 9, 2, 6}, 3);
    }
    ASSERT_FALSE(found[0].empty());
    for (size_t i = 0; i < found[0].size(); ++i)
      ASSERT_NEAR(found[0][i], found[1][i], tied ? 1e-5f * std::fabs(found[0][i]) + 1e-6f : 0.0f)
          << i;
  }
}

// A projection tied to the table, whatever a family calls it, computes what one with the table's numbers
// does that is stored beside it (in f32: in the table's type it would be the table again).
TEST(GoldenLogits, TiedToTheTableByAnyName) {
  struct Case {
    const char *folder, *table, *head;
  };
  ThreadPool pool(2);
  for (const Case& c :
       {Case{"mistrallarge4-dense", "tok_embeddings.weight", "output.weight"},
        Case{"bailinghybrid-dense", "model.word_embeddings.weight", "lm_head.weight"},
        Case{"deepseekv4-dense", "model.embed_tokens.weight", "head.weight"},
        Case{"inkling-dense", "model.llm.embed.weight", "model.llm.unembed.weight"}}) {
    SCOPED_TRACE(c.folder);
    const fs::path folder = test::test_data_dir() / "golden" / c.folder;
    const Json config =
        parse_json(read_text_file((folder / "config.json").string(), 1 << 20), "config.json");
    const TensorStore store = TensorStore::open_file((folder / "model.safetensors").string());
    std::vector<float> found[2];
    for (const bool stored : {false, true}) {
      std::deque<std::vector<uint8_t>> memory;
      std::vector<TensorData> tensors;
      for (const TensorInfo& t : store.tensors()) {
        if (t.name == c.head) continue;
        store.read(t, 0, memory.emplace_back(t.bytes));
        tensors.push_back({t.name, t.dtype, t.shape, memory.back()});
      }
      const TensorInfo& table = store.require(c.table);
      std::vector<uint8_t> raw(table.bytes), wide(table.bytes * 2);
      store.read(table, 0, raw);
      for (size_t i = 0; i < raw.size(); ++i) wide[i / 2 * 4 + 2 + i % 2] = raw[i];
      if (stored) tensors.push_back({c.head, DType::kF32, table.shape, wide});
      const test::TempDir dir;
      write_safetensors((dir / "model.safetensors").string(), tensors);
      Json json = Json::object();
      for (const auto& [key, value] : config.members())
        if (key != "tie_word_embeddings") json.set(key, value);
      json.set("tie_word_embeddings", true);
      std::ofstream(dir / "config.json") << json.dump();
      const Checkpoint checkpoint = Checkpoint::open(dir.path().string());
      EXPECT_EQ(checkpoint.output_module() == token_table(checkpoint), !stored);
      found[stored] = logits_of(*load(checkpoint, pool, XType::kF32), {3, 1, 4, 1, 5, 9, 2, 6}, 3);
    }
    ASSERT_FALSE(found[0].empty());
    for (size_t i = 0; i < found[0].size(); ++i)
      ASSERT_NEAR(found[0][i], found[1][i], 1e-5f * std::fabs(found[0][i]) + 1e-5f) << i;
  }
}

// ERNIE-4.5 with use_bias: of a tied projection its bias alone is stored. It computes what one with a
// copy of the table does, and the table counts once.
TEST(GoldenLogits, TiedWithABiasOfItsOwn) {
  const fs::path folder = test::test_data_dir() / "golden" / "ernie45moe-dense";
  const Json config =
      parse_json(read_text_file((folder / "config.json").string(), 1 << 20), "config.json");
  const TensorStore store = TensorStore::open_file((folder / "model.safetensors").string());
  const TensorInfo& table = store.require("model.embed_tokens.weight");
  ASSERT_NE(store.find("lm_head.bias"), nullptr);
  std::vector<uint8_t> rows(table.bytes);
  store.read(table, 0, rows);
  ThreadPool pool(2);
  std::vector<float> found[2];
  uint64_t params[2] = {};
  for (const bool tied : {false, true}) {
    std::deque<std::vector<uint8_t>> memory;
    std::vector<TensorData> tensors;
    for (const TensorInfo& t : store.tensors()) {
      if (t.name == "lm_head.weight") continue;
      store.read(t, 0, memory.emplace_back(t.bytes));
      tensors.push_back({t.name, t.dtype, t.shape, memory.back()});
    }
    if (!tied) tensors.push_back({"lm_head.weight", table.dtype, table.shape, rows});
    const test::TempDir dir;
    write_safetensors((dir / "model.safetensors").string(), tensors);
    Json json = Json::object();
    for (const auto& [key, value] : config.members())
      json.set(key, key == "tie_word_embeddings" ? Json(tied) : value);
    std::ofstream(dir / "config.json") << json.dump();
    const Checkpoint checkpoint = Checkpoint::open(dir.path().string());
    params[tied] = summarize(checkpoint).params_total;
    found[tied] = logits_of(*load(checkpoint, pool, XType::kF32), {3, 1, 4, 1, 5, 9, 2, 6}, 3);
  }
  EXPECT_EQ(params[0] - params[1], table.shape[0] * table.shape[1]);
  ASSERT_FALSE(found[0].empty());
  EXPECT_EQ(found[0], found[1]);
}

TEST(Decoder, PiecesThreadsAndBatchDoNotMatter) {
  for (const char* name : {"qwen3moe-w4a8-g32-pack",
                           "gptoss-dense",
                           "deepseekv3-dense",
                           "llama4-dense",
                           "gemma4-w4a16-g32",
                           "deepseekv32-fp8-dynamic",
                           "glmmoedsa-dense",
                           "longcatflash-dense",
                           "minimaxm3-dense",
                           "bailinghybrid-dense",
                           "beam-dense",
                           "step3p7-w4a16-g32",
                           "hyv4-dense",
                           "deepseekv4-dense",
                           "axk2-dense",
                           "jamba-dense",
                           "mistrallarge4-dense",
                           "dbrx-dense",
                           "inkling-dense",
                           "glm5next-dense",
                           "qwen4exp-dense",
                           "qwen4exptext-dense"}) {
    SCOPED_TRACE(name);
    const Checkpoint checkpoint =
        Checkpoint::open((test::test_data_dir() / "golden" / name).string());
    std::vector<int32_t> tokens;
    for (int i = 0; i < 90; ++i)
      tokens.push_back((i * 7 + i * i) % static_cast<int>(checkpoint.config().vocab));
    for (const XType type : {XType::kF32, XType::kBf16}) {
      ThreadPool one(1), three(3);
      const auto a = load(checkpoint, one, type), b = load(checkpoint, three, type);
      const std::vector<float> whole = logits_of(*a, tokens, tokens.size());
      for (const size_t piece : {1u, 7u, 64u}) {
        const std::vector<float> pieces = logits_of(*b, tokens, piece);
        ASSERT_EQ(std::memcmp(whole.data(), pieces.data(), whole.size() * 4), 0)
            << "pieces of " << piece;
      }
      SequenceState s = b->new_sequence(), other = b->new_sequence();
      const std::vector<int32_t> noise = {1, 2, 3, 4, 5};
      const StepItem items[] = {{&other, noise, false}, {&s, tokens, true}};
      std::vector<float> y;
      b->forward(items, y);
      ASSERT_EQ(std::memcmp(whole.data(), y.data() + b->vocab(), whole.size() * 4), 0)
          << "beside another sequence";
    }
  }
}

// The policy reaches everything, attention too: what is exact has the bytes of the definition.
TEST(Decoder, ExactMeansTheBytesOfTheReferenceEverywhere) {
  const Checkpoint checkpoint =
      Checkpoint::open((test::test_data_dir() / "golden/qwen3moe-w4a8-g32-pack").string());
  ThreadPool pool(1);
  const std::vector<int32_t> tokens = {1, 5, 9, 2, 7, 3};
  const auto logits = [&](const Policy& policy) {
    ModelOptions options;
    options.pool = &pool;
    options.policy = policy;
    const auto model = DecoderModel::load(checkpoint, options);
    SequenceState state = model->new_sequence();
    std::vector<float> out;
    model->forward(std::vector<StepItem>{{&state, tokens, true}}, out);
    return out;
  };
  const std::vector<float> want = logits({Accept::kDeclared, "reference"});
  EXPECT_EQ(logits({Accept::kExact, ""}), want);
}

TEST(Decoder, RefusesInWords) {
  ThreadPool pool(1);
  const Checkpoint checkpoint =
      Checkpoint::open((test::test_data_dir() / "golden" / "qwen3moe-dense").string());
  const auto model = load(checkpoint, pool, XType::kF32);
  SequenceState s = model->new_sequence();
  const std::vector<int32_t> bad = {0, 1 << 20};
  const StepItem item{&s, bad, false};
  std::vector<float> y;
  try {
    model->forward({&item, 1}, y);
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("1048576"), std::string::npos);
  }
  EXPECT_EQ(s.length(), 0u);
  ModelConfig config;
  config.architecture = "NopeForCausalLM", config.model_type = "nope", config.family = "";
  try {
    decoder_spec(config);
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("NopeForCausalLM"), std::string::npos);
    EXPECT_EQ(std::string(e.what()).find("Qwen3-MoE"), std::string::npos);  // not a list of names
  }
}

// One sentence that names the field, before anything is read.
TEST(Decoder, WhatAFamilyCannotDoYetNamesItsField) {
  const struct {
    const char *folder, *from, *to, *said;
  } cases[] = {
      {"gemma4-dense", "\"hidden_size_per_layer_input\": 0", "\"hidden_size_per_layer_input\": 8",
       "hidden_size_per_layer_input"},
      {"gemma4-dense", "\"use_bidirectional_attention\": null",
       "\"use_bidirectional_attention\": \"all\"", "use_bidirectional_attention"},
      {"nemotronh-dense", "\"mamba_hidden_act\": \"silu\"", "\"mamba_hidden_act\": \"gelu\"",
       "mamba_hidden_act"},
      {"nemotronh-dense", "\"moe_latent_size\": null", "\"moe_latent_size\": 16",
       "moe_latent_size"},
      {"cohere2moe-dense", "\"num_shared_experts\": 0", "\"num_shared_experts\": 1",
       "shared_expert_combination_strategy"},
      {"deepseekv32-dense", "\"index_head_dim\": 16", "\"index_head_dim\": 8", "index_head_dim"},
      {"jamba-dense", "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "hidden_act"},
      {"mistrallarge4-dense", "\"index_head_dim\": 16", "\"index_head_dim\": 8", "index_head_dim"},
      // latents of the layer before, which has no rotated part
      {"mistrallarge4-dense", "      0,\n      1,\n      0,\n      1\n    ],\n    \"layer_types",
       "      0,\n      1,\n      1,\n      1\n    ],\n    \"layer_types", "kv_source_layers"},
      {"mistrallarge4-dense", "\"kv_lora_rank\": 32", "\"kv_lora_rank\": 32, \"q_lora_rank\": 8",
       "q_lora_rank"},
      {"dbrx-dense", "\"clip_qkv\": 0.5", "\"clip_qkv\": -1", "clip_qkv"},
      {"dbrx-dense", "\"moe_normalize_expert_weights\": 1.0",
       "\"moe_normalize_expert_weights\": 2.0", "moe_normalize_expert_weights"},
      {"inkling-dense", "\"shared_expert_sink\": true", "\"shared_expert_sink\": false",
       "shared_expert_sink"},
      {"inkling-dense", "\"hybrid\"", "\"hybrid_chunked\"", "layer_types"},
  };
  for (const auto& c : cases) {
    const fs::path file = test::test_data_dir() / "golden" / c.folder / "config.json";
    std::string text = read_text_file(file.string(), 1 << 20);
    const size_t at = text.find(c.from);
    ASSERT_NE(at, std::string::npos) << c.folder << ": " << c.from;
    text.replace(at, std::strlen(c.from), c.to);
    std::vector<std::string> warnings;
    try {
      decoder_spec(ModelConfig::parse(parse_json(text, "config.json"), "config.json", warnings));
      ADD_FAILURE() << c.folder << " accepted " << c.to;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(c.said), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace moebius::golden_logits_test
