// SPDX-License-Identifier: Apache-2.0
// The indexer of sparse attention against its definition in double precision: which keys a row sees,
// on both sides of top_k, over several blocks of keys; and attention that sees only these.
#include "nn/indexer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/error.h"
#include "nn/attention.h"
#include "runtime/cpu.h"

namespace moebius::indexer_test {
namespace {

struct IndexCase {
  IndexerSpec spec{3, 24, 20};
  size_t T = 300;
  std::vector<float> q, k, w;
  Indexer indexer;
  std::vector<AlignedBuffer> memory;
  std::vector<const uint8_t*> blocks;
  size_t words = IndexRows::words_of(300);

  explicit IndexCase(XType type, KvType storage, const IndexerSpec& s = {3, 24, 20})
      : spec(s), indexer(spec, type, storage, host_cpu(), Policy{}) {
    std::mt19937 rng(5);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& v, size_t n) {
      v.resize(n);
      for (float& x : v) x = std::round(normal(rng) * 16) / 16;  // exact in every type
    };
    fill(q, T * spec.heads * spec.head_dim), fill(k, T * spec.head_dim), fill(w, T * spec.heads);
    const size_t keys = T / spec.tokens(), each = spec.block_keys();
    for (size_t t = 0; t < keys; t += each) {
      memory.emplace_back(64 + indexer.keys().block_bytes());  // 64: what lies before
      indexer.keys().put(memory.back().data() + 64, 0, 0, std::min(each, keys - t),
                         k.data() + t * spec.head_dim, spec.head_dim, nullptr, 0);
      blocks.push_back(memory.back().data());
    }
  }

  std::vector<uint64_t> select(size_t first, size_t count) const {
    std::vector<uint64_t> bits(count * spec.selections() * words, ~uint64_t{0});
    const IndexRows rows{blocks.data(),
                         64,
                         first,
                         q.data() + first * spec.heads * spec.head_dim,
                         w.data() + first * spec.heads,
                         spec.heads,
                         bits.data(),
                         words,
                         count};
    IndexScratch scratch;
    for (size_t t = count; t-- > 0;) indexer.select(rows, t, scratch);
    return bits;
  }

  double score(size_t row, size_t key) const {
    double sum = 0;
    for (size_t h = 0; h < spec.heads; ++h) {
      double dot = 0;
      for (size_t i = 0; i < spec.head_dim; ++i)
        dot += double{q[(row * spec.heads + h) * spec.head_dim + i]} * k[key * spec.head_dim + i];
      sum += (spec.weighted ? w[row * spec.heads + h] : 1.0f) * std::max(dot, 0.0);
    }
    return sum;
  }
};

bool bit(const uint64_t* bits, size_t i) { return (bits[i / 64] >> (i % 64) & 1) != 0; }

TEST(Indexer, RowsSeeTheirBestKeysAndNoOthers) {
  for (const auto& [type, storage] :
       {std::pair{XType::kF32, KvType::kF32}, std::pair{XType::kBf16, KvType::kBf16}}) {
    const IndexCase c(type, storage);
    const std::vector<uint64_t> bits = c.select(0, c.T);
    for (size_t row = 0; row < c.T; ++row) {
      const uint64_t* seen = bits.data() + row * c.words;
      std::vector<double> scores;
      for (size_t key = 0; key <= row; ++key) scores.push_back(c.score(row, key));
      size_t count = 0;
      double least = INFINITY, best_left_out = -INFINITY;
      for (size_t key = 0; key < c.words * 64; ++key) {
        if (bit(seen, key)) ++count;
        if (key > row)
          ASSERT_FALSE(bit(seen, key)) << row << " sees " << key;
        else if (bit(seen, key))
          least = std::min(least, scores[key]);
        else
          best_left_out = std::max(best_left_out, scores[key]);
      }
      ASSERT_EQ(count, std::min(row + 1, c.spec.top_k)) << row;
      ASSERT_GE(least, best_left_out - 1e-4 * std::fabs(best_left_out)) << row;
    }
    // A row is a function of itself and of the keys, not of the rows beside it.
    const std::vector<uint64_t> alone = c.select(250, 7);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(),
                           bits.begin() + static_cast<std::ptrdiff_t>(250 * c.words)));
  }
}

// Every head's best blocks, the last of them always; only positions up to the row's own.
TEST(Indexer, HeadsChooseBlocksForTheirOwnKeys) {
  IndexerSpec spec{3, 24, 40};
  spec.by_head = true, spec.block = 8, spec.local = 2;
  const IndexCase c(XType::kF32, KvType::kF32, spec);
  const std::vector<uint64_t> bits = c.select(0, c.T);
  for (size_t row = 0; row < c.T; ++row)
    for (size_t h = 0; h < spec.heads; ++h) {
      const size_t own = row / spec.block;
      std::vector<double> scores(own + 1, -INFINITY);
      for (size_t key = 0; key <= row; ++key) {
        double dot = 0;
        for (size_t i = 0; i < spec.head_dim; ++i)
          dot += double{c.q[(row * spec.heads + h) * spec.head_dim + i]} *
                 c.k[key * spec.head_dim + i];
        scores[key / spec.block] = std::max(scores[key / spec.block], dot);
      }
      for (size_t i = 0; i < std::min(spec.local, own + 1); ++i) scores[own - i] = INFINITY;
      std::vector<size_t> order(own + 1);
      std::iota(order.begin(), order.end(), size_t{0});
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t a, size_t b) { return scores[a] > scores[b]; });
      order.resize(std::min(order.size(), spec.top_k / spec.block));
      const uint64_t* seen = bits.data() + (row * spec.heads + h) * c.words;
      for (size_t key = 0; key < c.words * 64; ++key)
        ASSERT_EQ(bit(seen, key), key <= row && std::find(order.begin(), order.end(),
                                                          key / spec.block) != order.end())
            << "row " << row << " head " << h << " key " << key;
    }
  const std::vector<uint64_t> alone = c.select(250, 7);
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(),
                         bits.begin() + static_cast<std::ptrdiff_t>(250 * 3 * c.words)));
}

// The tokens of the best keys, on both sides of their number, and those that make no whole key yet.
TEST(Indexer, PooledKeysBringTheirTokens) {
  for (const size_t ratio : {size_t{1}, size_t{4}, size_t{16}})
    for (const bool weighted : {true, false}) {
      IndexerSpec spec{3, 24, 5};
      spec.ratio = ratio, spec.pooled = true, spec.weighted = weighted;
      const IndexCase c(XType::kF32, KvType::kF32, spec);
      const std::vector<uint64_t> bits = c.select(0, c.T);
      for (size_t row = 0; row < c.T; ++row) {
        const size_t keys = (row + 1) / ratio;
        std::vector<size_t> order(keys);
        std::iota(order.begin(), order.end(), size_t{0});
        std::vector<double> scores;
        for (const size_t key : order) scores.push_back(c.score(row, key));
        std::stable_sort(order.begin(), order.end(),
                         [&](size_t a, size_t b) { return scores[a] > scores[b]; });
        order.resize(std::min(keys, spec.top_k));
        const uint64_t* seen = bits.data() + row * c.words;
        for (size_t i = 0; i < c.words * 64; ++i) {
          const bool chosen =
              std::find(order.begin(), order.end(), i / ratio) != order.end() && i / ratio < keys;
          ASSERT_EQ(bit(seen, i), i <= row && (chosen || i >= keys * ratio))
              << "ratio " << ratio << " row " << row << " position " << i;
        }
      }
      const std::vector<uint64_t> alone = c.select(250, 7);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(),
                             bits.begin() + static_cast<std::ptrdiff_t>(250 * c.words)));
    }
  IndexerSpec wrong{3, 24, 5};
  wrong.pooled = true;
  EXPECT_THROW(Indexer(wrong, XType::kF32, KvType::kF32, host_cpu(), Policy{}), Error);
}

TEST(Indexer, TiesGoToTheLowerPosition) {
  IndexCase c(XType::kF32, KvType::kF32);
  std::fill(c.w.begin(), c.w.end(), 0.0f);  // every score is 0
  const std::vector<uint64_t> bits = c.select(200, 1);
  for (size_t key = 0; key < 300; ++key)
    EXPECT_EQ(bit(bits.data(), key), key < c.spec.top_k) << key;
}

TEST(Indexer, EightBitKeysScoreAsTheyAreKept) {
  const IndexCase c(XType::kF32, KvType::kInt8), exact(XType::kF32, KvType::kF32);
  const std::vector<uint64_t> a = c.select(299, 1), b = exact.select(299, 1);
  size_t common = 0;
  for (size_t key = 0; key < 300; ++key) common += bit(a.data(), key) && bit(b.data(), key);
  EXPECT_GE(common, c.spec.top_k * 3 / 4);
}

// Attention of a row that sees some keys is that of a sequence of these keys alone.
TEST(Indexer, AttentionSeesTheSelectedKeysAlone) {
  const size_t T = 300, d = 16, heads = 2;
  std::mt19937 rng(9);
  std::normal_distribution<float> normal;
  std::vector<float> k(T * d), v(T * d), q(heads * d);
  for (std::vector<float>* x : {&k, &v, &q})
    for (float& y : *x) y = normal(rng);
  AttentionSpec spec;
  spec.heads = heads, spec.kv_heads = 1, spec.key_dim = spec.value_dim = d, spec.scale = 0.25f;
  const AttentionPlan plan =
      plan_attention(spec, XType::kF32, {KvType::kF32}, host_cpu(), Policy{});
  const auto attend = [&](const std::vector<size_t>& keys, const std::vector<uint64_t>& bits) {
    std::vector<AlignedBuffer> memory;
    std::vector<const uint8_t*> blocks;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (i % kKeyBlock == 0) {
        memory.emplace_back(plan.kv.block_bytes());
        blocks.push_back(memory.back().data());
      }
      plan.kv.put(memory.back().data(), 0, i % kKeyBlock, 1, k.data() + keys[i] * d, d,
                  v.data() + keys[i] * d, d);
    }
    std::vector<float> out(heads * d);
    AttentionRows rows{blocks.data(), keys.size() - 1, q.data(), out.data(), 1};
    if (!bits.empty()) rows.selected = bits.data(), rows.words = bits.size();
    Attention attention(plan, {&rows, 1});
    AttentionScratch scratch;
    for (size_t i = 0; i < attention.tasks(); ++i) attention.run(i, scratch);
    for (size_t i = 0; i < attention.merges(); ++i) attention.merge(i);
    return out;
  };
  std::vector<size_t> all(T), some = {3, 64, 65, 127, 290, 299};  // none of the second block
  std::iota(all.begin(), all.end(), size_t{0});
  std::vector<uint64_t> bits(IndexRows::words_of(T));
  for (const size_t i : some) bits[i / 64] |= uint64_t{1} << (i % 64);
  const std::vector<float> a = attend(all, bits), b = attend(some, {});
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5f) << i;
  std::fill(bits.begin(), bits.end(), ~uint64_t{0});
  EXPECT_EQ(attend(all, bits), attend(all, {}));
}

}  // namespace
}  // namespace moebius::indexer_test
