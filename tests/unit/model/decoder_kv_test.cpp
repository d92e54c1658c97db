// SPDX-License-Identifier: Apache-2.0
// A model as the backend of an engine: blocks under any numbers, shared prefixes, copies and cuts
// give the bytes of a sequence of its own; what windows have left is given back; latents are what
// latent attention keeps; a step that fails leaves everything as it was.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "model/run/decoder.h"
#include "moebius/error.h"
#include "unit/allocations_util.h"
#include "unit/test_util.h"

namespace moebius::test::decoder_kv_test {
namespace {

struct Loaded {
  explicit Loaded(const char* name, XType type = XType::kF32, std::optional<KvType> kv = {},
                  Accept accept = Accept::kDeclared)
      : checkpoint(Checkpoint::open((test_data_dir() / "golden" / name).string())), pool(2) {
    ModelOptions options;
    options.pool = &pool, options.type = type, options.kv_type = kv;
    options.policy.accept = accept;
    model = DecoderModel::load(checkpoint, options);
  }
  std::vector<int32_t> tokens(size_t n, unsigned seed) const {
    std::mt19937 rng(seed);
    std::vector<int32_t> out(n);
    for (int32_t& t : out) t = static_cast<int32_t>(rng() % model->vocab());
    return out;
  }
  // Logits of every token, in pieces.
  std::vector<float> alone(const std::vector<int32_t>& all, size_t piece) {
    SequenceState state = model->new_sequence();
    std::vector<float> logits, some;
    for (size_t i = 0; i < all.size(); i += piece) {
      const StepItem item{&state, std::span(all).subspan(i, std::min(piece, all.size() - i)), true};
      model->forward({&item, 1}, some);
      logits.insert(logits.end(), some.begin(), some.end());
    }
    return logits;
  }
  // Of tokens [position, ...) through blocks.
  std::vector<float> through(const BlockTables& tables, size_t position,
                             std::span<const int32_t> some) {
    const BatchItem item{&tables, position, some, LogitsOf::kAll};
    StepOutput out;
    model->collect(model->submit({&item, 1}), out);
    return out.logits;
  }
  BlockTables tables(std::vector<BlockId> ids) const {
    return BlockTables(model->kv_kinds().size(), std::move(ids));
  }
  Checkpoint checkpoint;
  ThreadPool pool;
  std::unique_ptr<DecoderModel> model;
};

constexpr const char* kFolders[] = {
    "qwen3moe-w4a8-g32-pack", "gptoss-dense", "llama4-dense",      "deepseekv3-dense",
    "deepseekv3-w4a8-g32",    "gemma4-dense", "deepseekv32-dense", "glmmoedsa-fp8-dynamic"};

bool same(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

TEST(DecoderKv, BlocksOfAnyNumbersGiveTheBytesOfASequence) {
  for (const char* name : kFolders) {
    SCOPED_TRACE(name);
    Loaded m(name);
    const size_t T = 300, vocab = m.model->vocab();
    const std::vector<int32_t> a = m.tokens(T, 1);
    std::vector<int32_t> b = a;
    b[280] = (b[280] + 1) % static_cast<int32_t>(vocab);
    const std::vector<float> ya = m.alone(a, 1000), yb = m.alone(b, 37);
    // a in blocks 7, 2, 5; b shares 7 and 2 and has a copy of the 20 tokens of 5 before they part.
    const BlockTables ta = m.tables({7, 2, 5}), tb = m.tables({7, 2, 11});
    EXPECT_TRUE(same(m.through(ta, 0, std::span(a).first(200)), std::span(ya).first(200 * vocab)));
    EXPECT_TRUE(
        same(m.through(ta, 200, std::span(a).subspan(200)), std::span(ya).subspan(200 * vocab)));
    for (size_t k = 0; k < m.model->kv_kinds().size(); ++k) m.model->copy_block(k, 5, 11, 24);
    EXPECT_TRUE(
        same(m.through(tb, 280, std::span(b).subspan(280)), std::span(yb).subspan(280 * vocab)));
    // Cut to 270 tokens and gone on with others.
    for (size_t k = 0; k < m.model->kv_kinds().size(); ++k) m.model->cut_block(k, 5, 14);
    EXPECT_TRUE(
        same(m.through(ta, 270, std::span(b).subspan(270)), std::span(yb).subspan(270 * vocab)));
    // A used block begins anew.
    EXPECT_TRUE(
        same(m.through(m.tables({11}), 0, std::span(b).first(9)), std::span(yb).first(9 * vocab)));
  }
}

// Recurrent layers: states lie at the ends of blocks; a prefix of whole blocks goes on from there,
// and from nowhere else.
TEST(DecoderKv, StatesGoOnFromTheEndsOfBlocks) {
  for (const char* name :
       {"qwen3next-w4a8-g32", "qwen35moe-dense", "nemotronh-dense", "nemotronh-fp8-dynamic",
        "granitehybrid-w4a16-g32", "lfm2moe-dense", "kimilinear-dense", "kimilinear-fp8-dynamic",
        "minimax-dense", "glm5next-dense", "qwen4exp-dense"}) {
    SCOPED_TRACE(name);
    Loaded m(name);
    const size_t vocab = m.model->vocab();
    const std::vector<int32_t> a = m.tokens(300, 1);
    std::vector<int32_t> b = a;
    for (size_t i = 256; i < b.size(); ++i) b[i] = (b[i] + 1) % static_cast<int32_t>(vocab);
    const std::vector<float> ya = m.alone(a, 1000), yb = m.alone(b, 37);
    EXPECT_TRUE(same(std::span(ya).first(256 * vocab), std::span(yb).first(256 * vocab)));
    const BlockTables ta = m.tables({7, 2, 5}), tb = m.tables({7, 2, 9});
    EXPECT_TRUE(same(m.through(ta, 0, std::span(a).first(270)), std::span(ya).first(270 * vocab)));
    EXPECT_TRUE(
        same(m.through(ta, 270, std::span(a).subspan(270)), std::span(ya).subspan(270 * vocab)));
    EXPECT_TRUE(
        same(m.through(tb, 256, std::span(b).subspan(256)), std::span(yb).subspan(256 * vocab)));
    // A copy of a block goes on where the block was; the state of 270 tokens is still beside it.
    for (size_t k = 0; k < m.model->kv_kinds().size(); ++k) m.model->copy_block(k, 5, 11, 14);
    EXPECT_TRUE(same(m.through(m.tables({7, 2, 11}), 270, std::span(a).subspan(270)),
                     std::span(ya).subspan(270 * vocab)));
    EXPECT_THROW(m.through(ta, 280, std::span(a).subspan(280)), Error);  // no such state
    SequenceState state = m.model->new_sequence();
    std::vector<float> logits;
    for (size_t i = 0; i < 300; i += 100) {
      const StepItem item{&state, std::span(a).subspan(i, 100), false};
      m.model->forward({&item, 1}, logits);
    }
    // Of states, the last one and the one before.
    const auto kinds = m.model->kv_kinds();
    size_t most = 0;
    for (const KvKind& k : kinds) most += k.block_bytes * (k.cuttable ? 3 : 2);
    EXPECT_LE(state.kv_bytes(), most);
    EXPECT_EQ(
        std::count_if(kinds.begin(), kinds.end(), [](const KvKind& k) { return !k.cuttable; }), 1);
  }
}

TEST(DecoderKv, BatchesAreCollectedInOrderAndBadItemsAreRefusedInWords) {
  Loaded m("qwen3moe-w4a8-g32-pack");
  const std::vector<int32_t> a = m.tokens(5, 3), none, wrong = {1, 1 << 20};
  const BlockTables first = m.tables({0}), second = m.tables({1}), missing = m.tables({kNoBlock});
  const auto submit = [&](const BlockTables& t, size_t position, std::span<const int32_t> tokens) {
    const BatchItem item{&t, position, tokens, LogitsOf::kLast};
    return m.model->submit({&item, 1});
  };
  EXPECT_THROW(submit(first, 0, none), Error);
  EXPECT_THROW(submit(first, 0, wrong), Error);
  EXPECT_THROW(submit(first, 126, a), Error);  // needs a second block
  EXPECT_THROW(submit(missing, 0, a), Error);
  const Backend::Ticket one = submit(first, 0, a), two = submit(second, 0, a);
  StepOutput x, y;
  EXPECT_THROW(m.model->collect(two, y), Error);
  m.model->collect(one, x);
  m.model->collect(two, y);
  EXPECT_TRUE(same(x.logits, y.logits));
  EXPECT_EQ(x.logits.size(), m.model->vocab());
  EXPECT_EQ(x.stats.rows, 5u);
  const size_t slots = std::accumulate(x.stats.expert_rows.begin(), x.stats.expert_rows.end(), 0u);
  EXPECT_EQ(slots % 5, 0u);
  EXPECT_GT(slots, 0u);
  EXPECT_GT(x.stats.weight_bytes, 0u);
  EXPECT_GT(x.stats.kv_bytes, 0u);
}

TEST(DecoderKv, WindowsGiveBackWhatTheyHaveLeft) {
  Loaded m("mistral-dense");  // every layer sees 8 tokens
  ASSERT_EQ(m.model->kv_kinds().size(), 1u);
  EXPECT_EQ(m.model->kv_kinds()[0].reach, 8u);
  SequenceState state = m.model->new_sequence();
  const std::vector<int32_t> all = m.tokens(1000, 5);
  std::vector<float> logits;
  for (size_t i = 0; i < all.size(); i += 50) {
    const StepItem item{&state, std::span(all).subspan(i, 50), false};
    m.model->forward({&item, 1}, logits);
    EXPECT_LE(state.kv_bytes(), 2 * m.model->kv_kinds()[0].block_bytes) << i;
  }
  EXPECT_EQ(m.model->kv_plan().bytes_of(1000), m.model->kv_kinds()[0].block_bytes);
  EXPECT_EQ(m.model->kv_plan().bytes_of(1026), 2 * m.model->kv_kinds()[0].block_bytes);
}

TEST(DecoderKv, LatentAttentionKeepsLatents) {
  // 2 layers, latents of 32 and 16 rotated: as keys and as values, or as rows alone.
  Loaded absorbed("deepseekv3-dense", XType::kBf16), rows("deepseekv3-w4a8-g32", XType::kBf16);
  EXPECT_LE(absorbed.model->kv_plan().bytes_per_token(), 2u * (48 + 32) * 2 * 5 / 4);
  EXPECT_EQ(rows.model->kv_plan().bytes_per_token(), 2u * 48 * 2);
  // The same numbers whether the up-projection is absorbed or not.
  Loaded plain("deepseekv3-dense"), exact("deepseekv3-dense", XType::kF32, {}, Accept::kExact);
  EXPECT_EQ(exact.model->kv_plan().bytes_per_token(), 2u * 48 * 4);
  const std::vector<int32_t> all = plain.tokens(150, 7);
  const std::vector<float> a = plain.alone(all, 1000), b = exact.alone(all, 13);
  float worst = 0, top = 0;
  for (size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::fabs(a[i] - b[i])), top = std::max(top, std::fabs(a[i]));
  EXPECT_LE(worst, 2e-5f * top);
}

TEST(DecoderKv, EveryTypeOfKeysAndValuesRunsAndCostsWhatItSays) {
  for (const char* name : {"qwen3moe-w4a8-g32-pack", "deepseekv3-w4a8-g32", "deepseekv3-dense"}) {
    SCOPED_TRACE(name);
    Loaded m(name, XType::kF32);
    const std::vector<int32_t> all = m.tokens(140, 2);
    const std::vector<float> expected = m.alone(all, 1000);
    double norm = 0;
    for (const float v : expected) norm += double{v} * v;
    for (const auto& [type, tolerance] : {std::pair{KvType::kF32, 0.0},
                                          {KvType::kBf16, 0.03},
                                          {KvType::kF16, 0.03},
                                          {KvType::kInt8, 0.06},
                                          {KvType::kFp8, 0.12}}) {
      Loaded other(name, XType::kF32, type);
      const std::vector<float> y = other.alone(all, 11);
      double error = 0;
      for (size_t i = 0; i < y.size(); ++i)
        error += (double{y[i]} - expected[i]) * (double{y[i]} - expected[i]);
      EXPECT_LE(std::sqrt(error / norm), tolerance) << "type " << static_cast<int>(type);
    }
  }
  // 6 layers, 2 heads of 64. Codes have a scale of 4 bytes per token, head and side, and what the
  // kernel keeps beside them.
  ThreadPool pool(2);
  const Checkpoint bundled = Checkpoint::open(bundled_model_dir().string());
  for (const auto& [type, least, most] : {std::tuple{KvType::kF32, 6144u, 6144u},
                                          {KvType::kBf16, 3072u, 3072u},
                                          {KvType::kInt8, 1536u + 96, 1850u},
                                          {KvType::kFp8, 1536u + 96, 1850u}}) {
    ModelOptions options;
    options.pool = &pool, options.kv_type = type;
    const uint64_t bytes = DecoderModel::load(bundled, options)->kv_plan().bytes_per_token();
    EXPECT_GE(bytes, least);
    EXPECT_LE(bytes, most);
  }
}

TEST(DecoderKv, TheDeclaredTypeOfKeysAndValuesIsTaken) {
  Loaded declared("qwen3moe-fp8-static-kv"),
      stated("qwen3moe-fp8-static-kv", XType::kF32, KvType::kF32);
  EXPECT_LT(declared.model->kv_plan().bytes_per_token(),
            stated.model->kv_plan().bytes_per_token() / 2);
  const std::vector<int32_t> all = declared.tokens(20, 2);
  EXPECT_FALSE(same(declared.alone(all, 20), stated.alone(all, 20)));
}

// Every allocation of a step fails once: the step throws, and going on gives the bytes it would
// have given.
TEST(DecoderKv, AFailedStepLeavesSequencesAsTheyWere) {
  if (!allocations_can_fail()) GTEST_SKIP() << "sanitizers bring an allocator of their own";
  for (const char* name :
       {"qwen3moe-w4a8-g32-pack", "deepseekv3-w4a8-g32", "gptoss-dense", "qwen3next-dense"}) {
    SCOPED_TRACE(name);
    Loaded m(name);
    const std::vector<int32_t> all = m.tokens(140, 4);
    const std::vector<float> expected = m.alone(all, 1000);
    size_t failed = 0;
    for (long n = 0;; ++n) {
      SequenceState state = m.model->new_sequence();
      std::vector<float> logits;
      const StepItem before{&state, std::span(all).first(100), false};
      m.model->forward({&before, 1}, logits);
      // More rows than will be there in the end: what they left must not be seen.
      std::vector<int32_t> other(all.rbegin(), all.rend());
      const StepItem bad{&state, other, true};
      bool threw = false;
      {
        const FailAllocation fail(n);
        try {
          m.model->forward({&bad, 1}, logits);
        } catch (const std::exception&) {
          threw = true;
        }
      }
      if (!threw) break;
      ++failed;
      ASSERT_EQ(state.length(), 100u);
      const StepItem after{&state, std::span(all).subspan(100), true};
      m.model->forward({&after, 1}, logits);
      ASSERT_TRUE(same(logits, std::span(expected).subspan(100 * m.model->vocab()))) << n;
    }
    EXPECT_GT(failed, 3u);
  }
}

}  // namespace
}  // namespace moebius::test::decoder_kv_test
