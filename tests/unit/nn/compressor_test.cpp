// SPDX-License-Identifier: Apache-2.0
// Compressed keys against their definition (nn/compressor.h) in double precision, and attention that sees
// them beside a window: its definition, equal bytes in any pieces, and only chosen entries read.
#include "nn/compressor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/error.h"
#include "nn/attention.h"
#include "nn/indexer.h"
#include "nn/ops.h"
#include "runtime/cpu.h"
#include "unit/nn/kv_cases.h"

namespace moebius::test::compressor_test {
namespace {

std::vector<float> normal_numbers(size_t n, unsigned seed, XType type = XType::kF32) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng);
  round_to(type, v.data(), n);
  return v;
}

TEST(Compressor, KeysEqualTheirDefinition) {
  for (const bool overlaps : {false, true})
    for (const bool first : {false, true}) {
      const CompressorSpec spec{11, 4, overlaps};
      const size_t n = spec.width, all = spec.parts() * n;
      const std::vector<float> bias = normal_numbers(spec.ratio * all, 1),
                               rows = normal_numbers(spec.reach() * spec.source_width(), 2),
                               weight = normal_numbers(n, 3);
      const Norm norm{NormKind::kRmsFused, 1e-6f, weight, {}};
      const Compressor c(spec, bias, norm, XType::kF32);
      std::vector<const float*> at;
      for (size_t s = 0; s < spec.reach(); ++s)
        at.push_back(first && s + spec.ratio < spec.reach()
                         ? nullptr
                         : rows.data() + s * spec.source_width());
      std::vector<float> key(n), scratch(c.scratch_floats());
      c.make(at.data(), key.data(), scratch.data());
      std::vector<double> want(n);
      double squares = 0;
      for (size_t i = 0; i < n; ++i) {
        double sum = 0, total = 0;
        for (size_t s = 0; s < spec.reach(); ++s) {
          if (at[s] == nullptr) continue;
          const size_t column = (overlaps && s >= spec.ratio ? n : 0) + i;
          const double p =
              std::exp(double{at[s][all + column]} + bias[s % spec.ratio * all + column]);
          total += p, sum += p * at[s][column];
        }
        want[i] = sum / total;
        squares += want[i] * want[i];
      }
      for (size_t i = 0; i < n; ++i)
        EXPECT_NEAR(key[i],
                    want[i] / std::sqrt(squares / static_cast<double>(n) + 1e-6) * weight[i], 1e-5);
    }
}

// Keys of an indexer: with gates and no norm, or the mean of their tokens behind a norm.
TEST(Compressor, PooledKeysEqualTheirDefinition) {
  for (const bool gated : {true, false}) {
    const CompressorSpec spec{13, 8, false, gated};
    const size_t n = spec.width;
    ASSERT_EQ(spec.source_width(), gated ? 2 * n : n);
    const std::vector<float> bias = normal_numbers(gated ? spec.ratio * n : 0, 1),
                             rows = normal_numbers(spec.ratio * spec.source_width(), 2),
                             weight = normal_numbers(n, 3);
    const Norm norm{NormKind::kRmsOnePlus, 1e-6f, gated ? std::vector<float>() : weight, {}};
    const Compressor c(spec, bias, norm, XType::kF32);
    std::vector<const float*> at;
    for (size_t s = 0; s < spec.ratio; ++s) at.push_back(rows.data() + s * spec.source_width());
    std::vector<float> key(n), scratch(c.scratch_floats());
    c.make(at.data(), key.data(), scratch.data());
    std::vector<double> want(n);
    double squares = 0;
    for (size_t i = 0; i < n; ++i) {
      double sum = 0, total = 0;
      for (size_t s = 0; s < spec.ratio; ++s) {
        const double p = gated ? std::exp(double{at[s][n + i]} + bias[s * n + i]) : 1;
        total += p, sum += p * at[s][i];
      }
      want[i] = sum / total;
      squares += want[i] * want[i];
    }
    const double r = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-6);
    for (size_t i = 0; i < n; ++i)
      EXPECT_NEAR(key[i], gated ? want[i] : want[i] * r * (1 + double{weight[i]}), 1e-5);
  }
  EXPECT_THROW(Compressor({8, 4, false, false}, std::vector<float>(32), {}, XType::kF32), Error);
  EXPECT_THROW(Compressor({8, 4, true, false}, {}, {}, XType::kF32), Error);
  EXPECT_THROW(
      Compressor({8, 4, false, false}, {}, {NormKind::kRms, 1e-6f, {1, 1}, {}}, XType::kF32),
      Error);
}

// A window of 20 keys and entries of 4 tokens, one kv head whose keys are its values.
struct EntryCase {
  AttentionSpec spec{4, 1, 16, 16, 0.25f, 20, 0, 0, {0.5f, -1, 2, 0}, 4};
  size_t T = 1400;  // more than a segment of entries
  XType type;
  AttentionPlan plan;
  std::vector<float> q, k, entries;
  std::vector<AlignedBuffer> memory;
  std::vector<const uint8_t*> blocks;
  size_t words = 0;
  std::vector<uint64_t> chosen;

  EntryCase(XType t, KvType storage, bool chooses)
      : type(t), plan(plan_attention(spec, t, KvStorage{storage}, host_cpu(), Policy{})) {
    const size_t d = spec.key_dim, each = kKeyBlock / spec.ratio, n = T / spec.ratio;
    q = normal_numbers(T * spec.heads * d, 4, type), k = normal_numbers(T * d, 5, type);
    entries = normal_numbers(n * d, 6, type);
    for (size_t i = 0; i < n; ++i) {
      if (i % each == 0) memory.emplace_back(plan.entries.block_bytes());
      plan.entries.put(memory.back().data(), i % each, entries.data() + i * d);
    }
    for (const AlignedBuffer& m : memory) blocks.push_back(m.data());
    blocks.push_back(nullptr);  // of tokens that make no entry yet
    if (!chooses) return;
    words = IndexRows::words_of(n);
    chosen.assign(T * words, 0);
    for (size_t row = 0; row < T; ++row)
      for (size_t e = 0; e < (row + 1) / spec.ratio; ++e)
        if ((row + e * e) % 7 < 5) chosen[row * words + e / 64] |= uint64_t{1} << (e % 64);
  }
  bool sees(size_t row, size_t e) const {
    return e < (row + 1) / spec.ratio &&
           (words == 0 || (chosen[row * words + e / 64] >> (e % 64) & 1) != 0);
  }

  std::vector<float> run(size_t piece, uint64_t* bytes = nullptr) const {
    LayerCache cache(plan);
    const size_t d = spec.key_dim;
    std::vector<float> out(T * spec.heads * d);
    for (size_t t = 0; t < T; t += piece) {
      const size_t n = std::min(piece, T - t);
      cache.append(k.data() + t * d, k.data() + t * d, n);
      AttentionRows rows =
          cache.rows(q.data() + t * spec.heads * d, out.data() + t * spec.heads * d, n);
      rows.entries = blocks.data();
      if (words != 0) rows.chosen = chosen.data() + t * words, rows.entry_words = words;
      Attention attention(plan, {&rows, 1}, Segments::kParallel, 2);
      if (bytes != nullptr) *bytes = attention.bytes_read();
      run_all(attention);
    }
    return out;
  }

  std::vector<double> definition(size_t row, size_t h) const {
    const size_t d = spec.key_dim;
    std::vector<double> sum(d, 0);
    double total = std::exp(double{spec.sinks[h]});
    const auto add = [&](const float* key) {
      double dot = 0;
      for (size_t i = 0; i < d; ++i) dot += double{q[(row * spec.heads + h) * d + i]} * key[i];
      const double p = std::exp(dot * spec.scale);
      total += p;
      for (size_t i = 0; i < d; ++i) sum[i] += p * key[i];
    };
    for (size_t j = row + 1 - std::min(row + 1, spec.window); j <= row; ++j) add(k.data() + j * d);
    for (size_t e = 0; e < T / spec.ratio; ++e)
      if (sees(row, e)) add(entries.data() + e * d);
    for (double& v : sum) v /= total;
    return sum;
  }
};

TEST(AttentionEntries, EqualTheirDefinition) {
  for (const XType type : {XType::kF32, XType::kBf16})
    for (const bool chooses : {false, true}) {
      const EntryCase c(type, kv_type_of(type), chooses);
      const std::vector<float> y = c.run(c.T);
      const size_t d = c.spec.key_dim;
      for (size_t row = 0; row < c.T; row = row < 24 ? row + 1 : row + 37)
        for (size_t h = 0; h < c.spec.heads; ++h) {
          const std::vector<double> want = c.definition(row, h);
          for (size_t i = 0; i < d; ++i)
            ASSERT_NEAR(y[(row * c.spec.heads + h) * d + i], want[i],
                        type == XType::kF32 ? 2e-5 : 2e-2)
                << row << " " << h << " " << i << " " << chooses;
        }
    }
}

TEST(AttentionEntries, PiecesDoNotMatter) {
  for (const KvType storage : {KvType::kBf16, KvType::kInt8})
    for (const bool chooses : {false, true}) {
      const EntryCase c(XType::kBf16, storage, chooses);
      const std::vector<float> whole = c.run(c.T);
      for (const size_t piece : {5u, 128u})
        ASSERT_EQ(std::memcmp(whole.data(), c.run(piece).data(), whole.size() * 4), 0)
            << piece << " " << chooses;
    }
}

// The last row alone: its window in whole blocks, and the entries that it sees.
TEST(AttentionEntries, OnlySeenEntriesAreRead) {
  for (const bool chooses : {false, true}) {
    const EntryCase c(XType::kBf16, KvType::kBf16, chooses);
    uint64_t bytes = 0;
    c.run(c.T - 1, &bytes);
    uint64_t seen = 0;
    for (size_t e = 0; e < c.T / c.spec.ratio; ++e) seen += c.sees(c.T - 1, e) ? 1 : 0;
    const size_t window = (c.T - 1) / kKeyBlock - (c.T - c.spec.window) / kKeyBlock + 1;
    EXPECT_EQ(bytes, seen * c.spec.key_dim * 2 + window * c.plan.kv.block_bytes());
  }
}

// Keys of 4 tokens each: a row chooses among those that are whole.
TEST(AttentionEntries, IndexersChooseAmongWholeKeys) {
  IndexerSpec spec{3, 24, 20};
  spec.ratio = 4;
  const size_t T = 300, n = T / spec.ratio, words = IndexRows::words_of(n);
  const Indexer indexer(spec, XType::kF32, KvType::kF32, host_cpu(), Policy{});
  const std::vector<float> q = normal_numbers(T * spec.heads * spec.head_dim, 7),
                           k = normal_numbers(n * spec.head_dim, 8),
                           w = normal_numbers(T * spec.heads, 9);
  std::vector<AlignedBuffer> memory;
  std::vector<const uint8_t*> blocks;
  for (size_t i = 0; i < n; ++i) {
    const size_t at = i % spec.block_keys();
    if (at == 0) memory.emplace_back(indexer.keys().block_bytes());
    indexer.keys().put(memory.back().data(), 0, at, 1, k.data() + i * spec.head_dim, 0, nullptr, 0);
  }
  for (const AlignedBuffer& m : memory) blocks.push_back(m.data());
  std::vector<uint64_t> bits(T * words);
  const IndexRows rows{blocks.data(), 0, 0, q.data(), w.data(), spec.heads, bits.data(), words, T};
  IndexScratch scratch;
  for (size_t row = 0; row < T; ++row) {
    indexer.select(rows, row, scratch);
    const size_t whole = (row + 1) / spec.ratio;
    size_t count = 0;
    double least = INFINITY, left_out = -INFINITY;
    for (size_t key = 0; key < words * 64; ++key) {
      const bool seen = (bits[row * words + key / 64] >> (key % 64) & 1) != 0;
      count += seen ? 1 : 0;
      if (key >= whole) {
        ASSERT_FALSE(seen) << row << " sees " << key;
        continue;
      }
      double score = 0;
      for (size_t h = 0; h < spec.heads; ++h) {
        double dot = 0;
        for (size_t i = 0; i < spec.head_dim; ++i)
          dot += double{q[(row * spec.heads + h) * spec.head_dim + i]} * k[key * spec.head_dim + i];
        score += w[row * spec.heads + h] * std::max(dot, 0.0);
      }
      (seen ? least : left_out) = seen ? std::min(least, score) : std::max(left_out, score);
    }
    ASSERT_EQ(count, std::min(whole, spec.top_k)) << row;
    ASSERT_GE(least, left_out - 1e-4 * std::fabs(left_out)) << row;
  }
}

TEST(Rope, TurnsBack) {
  for (const bool interleaved : {false, true}) {
    RopeSpec spec;
    spec.dims = 16, spec.interleaved = interleaved;
    Rope rope(spec);
    rope.reserve(100);
    const std::vector<float> x = normal_numbers(20, 10);
    std::vector<float> y = x;
    rope.rotate(y.data(), 77, 100, XType::kF32);
    EXPECT_NE(y, x);
    rope.rotate_back(y.data(), 77, 100, XType::kF32);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i], 1e-6);
  }
}

}  // namespace
}  // namespace moebius::test::compressor_test
