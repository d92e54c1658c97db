// SPDX-License-Identifier: Apache-2.0
// Attention against a plain double-precision definition, and its promises: no dependence on chunks,
// batch or tasks.
#include "nn/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/numeric.h"
#include "nn/ops.h"

namespace moebius {
namespace {

struct Data {
  std::vector<float> q, k, v;
};

Data random_data(const AttentionSpec& s, size_t T, XType type, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  Data d{std::vector<float>(T * s.heads * s.key_dim),
         std::vector<float>(T * s.kv_heads * s.key_dim),
         std::vector<float>(T * s.kv_heads * s.value_dim)};
  for (auto* part : {&d.q, &d.k, &d.v}) {
    for (float& x : *part) x = normal(rng);
    round_to(type, part->data(), part->size());
  }
  return d;
}

// Runs tokens [0, T) in pieces of the given sizes.
std::vector<float> run(const AttentionPlan& plan, const Data& d, size_t T,
                       const std::vector<size_t>& pieces) {
  const AttentionSpec& s = plan.spec;
  KvCache cache(plan);
  std::vector<float> out(T * s.heads * s.value_dim);
  AttentionScratch scratch;
  size_t t = 0;
  for (const size_t n : pieces) {
    cache.reserve(n);
    for (size_t h = 0; h < s.kv_heads; ++h)
      cache.append_head(h, d.k.data() + (t * s.kv_heads + h) * s.key_dim, s.kv_heads * s.key_dim,
                        d.v.data() + (t * s.kv_heads + h) * s.value_dim, s.kv_heads * s.value_dim,
                        n);
    cache.commit(n);
    const AttentionRows rows{&cache, d.q.data() + t * s.heads * s.key_dim,
                             out.data() + t * s.heads * s.value_dim, n};
    const Attention attention(plan, {&rows, 1});
    for (size_t i = 0; i < attention.tasks(); ++i) attention.run(i, scratch);
    t += n;
  }
  EXPECT_EQ(t, T);
  return out;
}

std::vector<double> definition(const AttentionSpec& s, const Data& d, size_t T) {
  std::vector<double> out(T * s.heads * s.value_dim, 0.0);
  const size_t rep = s.heads / s.kv_heads;
  for (size_t i = 0; i < T; ++i)
    for (size_t h = 0; h < s.heads; ++h) {
      std::vector<double> z(i + 1, -HUGE_VAL);
      double top = s.sinks.empty() ? -HUGE_VAL : s.sinks[h];
      for (size_t j = 0; j <= i; ++j) {
        if (s.window != 0 && j + s.window <= i) continue;
        if (s.chunk != 0 && j / s.chunk != i / s.chunk) continue;
        double dot = 0;
        for (size_t c = 0; c < s.key_dim; ++c)
          dot += double{d.q[(i * s.heads + h) * s.key_dim + c]} *
                 d.k[(j * s.kv_heads + h / rep) * s.key_dim + c];
        z[j] = dot * s.scale;
        top = std::max(top, z[j]);
      }
      double sum = s.sinks.empty() ? 0 : std::exp(s.sinks[h] - top);
      for (const double v : z) sum += std::exp(v - top);
      for (size_t j = 0; j <= i; ++j)
        for (size_t c = 0; c < s.value_dim; ++c)
          out[(i * s.heads + h) * s.value_dim + c] +=
              std::exp(z[j] - top) / sum * d.v[(j * s.kv_heads + h / rep) * s.value_dim + c];
    }
  return out;
}

struct Case {
  AttentionSpec spec;
  size_t T;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  all.push_back({{4, 2, 64, 64, 0.125f, 0, 0, {}}, 150});
  all.push_back({{6, 2, 32, 32, 0.2f, 20, 0, {}}, 200});  // window
  all.push_back({{4, 4, 24, 16, 0.2f, 0, 0, {}}, 70});    // key and value widths differ
  all.push_back({{8, 2, 64, 64, 0.125f, 128, 0, {0.5f, -1, 2, 0, 3, -4, 1, 0}}, 300});  // sinks
  all.push_back({{2, 1, 16, 16, 0.25f, 0, 50, {}}, 130});                               // chunks
  all.push_back({{1, 1, 7, 5, 0.4f, 3, 0, {}}, 9});                                     // odd sizes
  return all;
}

TEST(Attention, EqualsDefinition) {
  for (const XType type : {XType::kF32, XType::kBf16, XType::kF16})
    for (const Case& c : cases()) {
      const AttentionPlan plan = plan_attention(c.spec, type, host_cpu(), Policy{});
      const Data d = random_data(c.spec, c.T, type, 3);
      const std::vector<float> y = run(plan, d, c.T, {c.T});
      const std::vector<double> expected = definition(c.spec, d, c.T);
      const double tolerance = type == XType::kF32 ? 2e-5 : type == XType::kF16 ? 4e-3 : 3e-2;
      for (size_t i = 0; i < y.size(); ++i)
        ASSERT_NEAR(y[i], expected[i], tolerance)
            << "element " << i << " T " << c.T << " type " << static_cast<int>(type);
    }
}

TEST(Attention, NanStaysInItsRow) {
  for (const XType type : {XType::kF32, XType::kBf16})
    for (const Case& c : cases()) {
      const AttentionPlan plan = plan_attention(c.spec, type, host_cpu(), Policy{});
      Data d = random_data(c.spec, c.T, type, 5);
      const std::vector<float> good = run(plan, d, c.T, {c.T});
      const size_t row = (c.T - 2) * c.spec.heads, dv = c.spec.value_dim;  // first head of a token
      d.q[row * c.spec.key_dim] = std::nanf("");
      const std::vector<float> bad = run(plan, d, c.T, {c.T});
      for (size_t i = 0; i < good.size(); ++i) {
        if (i / dv == row)
          ASSERT_TRUE(std::isnan(bad[i])) << i;
        else
          ASSERT_EQ(bad[i], good[i]) << i;
      }
    }
}

TEST(Attention, PiecesOfAPromptDoNotMatter) {
  for (const XType type : {XType::kF32, XType::kBf16})
    for (const Case& c : cases()) {
      const AttentionPlan plan = plan_attention(c.spec, type, host_cpu(), Policy{});
      const Data d = random_data(c.spec, c.T, type, 5);
      const std::vector<float> whole = run(plan, d, c.T, {c.T});
      std::vector<size_t> ones(c.T, 1), mixed;
      for (size_t left = c.T, n = 3; left > 0; n = n * 2 + 1)
        mixed.push_back(std::min(left, n)), left -= mixed.back();
      for (const auto& pieces : {ones, mixed}) {
        const std::vector<float> y = run(plan, d, c.T, pieces);
        ASSERT_EQ(std::memcmp(y.data(), whole.data(), y.size() * 4), 0) << "T " << c.T;
      }
    }
}

TEST(Attention, BatchDoesNotMatter) {
  const AttentionSpec spec{4, 2, 32, 32, 0.17f, 40, 0, {}};
  const AttentionPlan plan = plan_attention(spec, XType::kBf16, host_cpu(), Policy{});
  const size_t lengths[] = {130, 1, 64, 77};
  std::vector<Data> data;
  std::vector<KvCache> caches;
  std::vector<std::vector<float>> outs;
  for (size_t i = 0; i < 4; ++i) {
    data.push_back(random_data(spec, lengths[i], XType::kBf16, static_cast<unsigned>(i)));
    outs.emplace_back(lengths[i] * spec.heads * spec.value_dim);
    caches.emplace_back(plan);
    caches[i].reserve(lengths[i]);
    for (size_t h = 0; h < 2; ++h)
      caches[i].append_head(h, data[i].k.data() + h * 32, 64, data[i].v.data() + h * 32, 64,
                            lengths[i]);
    caches[i].commit(lengths[i]);
  }
  std::vector<AttentionRows> rows;
  for (size_t i = 0; i < 4; ++i)
    rows.push_back({&caches[i], data[i].q.data(), outs[i].data(), lengths[i]});
  const Attention attention(plan, rows);
  AttentionScratch scratch;
  for (size_t i = 0; i < attention.tasks(); ++i) attention.run(i, scratch);
  for (size_t i = 0; i < 4; ++i) {
    const std::vector<float> alone = run(plan, data[i], lengths[i], {lengths[i]});
    EXPECT_EQ(std::memcmp(alone.data(), outs[i].data(), alone.size() * 4), 0) << i;
  }
}

TEST(Attention, FollowsThePolicy) {
  const AttentionSpec spec{2, 1, 32, 32, 0.25f, 0, 0, {}};
  for (const XType type : {XType::kF32, XType::kBf16}) {
    const AttentionPlan exact = plan_attention(spec, type, host_cpu(), {Accept::kExact, ""});
    EXPECT_EQ(exact.key_kernel->numerics(exact.keys), Numerics::kExact);
    EXPECT_EQ(exact.value_kernel->numerics(exact.values), Numerics::kExact);
    const AttentionPlan asked =
        plan_attention(spec, type, host_cpu(), {Accept::kDeclared, "generic"});
    EXPECT_STREQ(asked.key_kernel->name, "generic");
    EXPECT_STREQ(asked.value_kernel->name, "generic");
    // One for quantized weights alone does not stand in attention's way.
    const AttentionPlan other =
        plan_attention(spec, type, host_cpu(), {Accept::kDeclared, "generic/int4"});
    const AttentionPlan own = plan_attention(spec, type, host_cpu(), Policy{});
    EXPECT_EQ(other.key_kernel, own.key_kernel);
  }
}

TEST(KvCache, CutsOnlyAtBlocks) {
  const AttentionPlan plan =
      plan_attention({2, 1, 16, 16, 0.25f, 0, 0, {}}, XType::kF32, host_cpu(), Policy{});
  KvCache cache(plan);
  const std::vector<float> rows(200 * 16, 1.0f);
  cache.reserve(200);
  cache.append_head(0, rows.data(), 16, rows.data(), 16, 200);
  cache.commit(200);
  EXPECT_EQ(cache.length(), 200u);
  EXPECT_ANY_THROW(cache.truncate(70));
  cache.truncate(128);
  EXPECT_EQ(cache.length(), 128u);
}

}  // namespace
}  // namespace moebius
