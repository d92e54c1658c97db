// SPDX-License-Identifier: Apache-2.0
// Attention against a plain double-precision definition, and its promises: no dependence on chunks,
// batch or tasks.
#include "nn/attention.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <random>

#include "base/numeric.h"
#include "base/sha256.h"
#include "kernels/list.h"
#include "kernels/row_functions.h"
#include "nn/ops.h"
#include "runtime/memory.h"
#include "unit/nn/kv_cases.h"

namespace moebius::test::attention_test {
namespace {

struct Data {
  std::vector<float> q, k, v, r = {};
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
  d.r.resize(T * s.heads * s.relative_dims);
  for (float& x : d.r) x = normal(rng);
  return d;
}

// Runs tokens [0, T) in pieces of the given sizes.
std::vector<float> run(const AttentionPlan& plan, const Data& d, size_t T,
                       const std::vector<size_t>& pieces, Segments segments = Segments::kParallel,
                       size_t threads = 0) {
  const AttentionSpec& s = plan.spec;
  LayerCache cache(plan);
  std::vector<float> out(T * s.heads * s.value_dim);
  size_t t = 0;
  for (const size_t n : pieces) {
    cache.append(d.k.data() + t * s.kv_heads * s.key_dim, d.v.data() + t * s.kv_heads * s.value_dim,
                 n);
    AttentionRows rows =
        cache.rows(d.q.data() + t * s.heads * s.key_dim, out.data() + t * s.heads * s.value_dim, n);
    if (s.relative_dims > 0) rows.relative = d.r.data() + t * s.heads * s.relative_dims;
    Attention attention(plan, {&rows, 1}, segments, threads);
    run_all(attention);
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
        if (j < std::min(s.first, i)) continue;
        double dot = 0;
        for (size_t c = 0; c < s.key_dim; ++c)
          dot += double{d.q[(i * s.heads + h) * s.key_dim + c]} *
                 d.k[(j * s.kv_heads + h / rep) * s.key_dim + c];
        z[j] = dot * s.scale;
        for (size_t c = 0; c < s.relative_dims && i - j < s.relative_extent; ++c)
          z[j] += double{d.r[(i * s.heads + h) * s.relative_dims + c]} *
                  s.relative[c * s.relative_extent + s.relative_extent - 1 - (i - j)];
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
  all.push_back({{4, 2, 64, 64, 0.125f, 0, 0, 0, {}}, 150});
  all.push_back({{6, 2, 32, 32, 0.2f, 20, 0, 0, {}}, 200});  // window
  all.push_back({{8, 1, 128, 96, 0.0883883f, 0, 0, 0, {}}, 150});
  all.push_back({{4, 4, 24, 16, 0.2f, 0, 0, 0, {}}, 70});  // key and value widths differ
  all.push_back({{8, 2, 64, 64, 0.125f, 128, 0, 0, {0.5f, -1, 2, 0, 3, -4, 1, 0}}, 300});  // sinks
  all.push_back({{2, 1, 16, 16, 0.25f, 0, 50, 0, {}}, 130});                               // chunks
  all.push_back({{4, 2, 32, 32, 0.2f, 0, 0, 1, {}}, 300});  // the first key is for itself alone
  all.push_back({{2, 1, 16, 16, 0.25f, 140, 0, 130, {}}, 300});
  // logits by distance: further than a block and not; with a window of the same width
  for (const auto& [window, extent] : {std::pair<size_t, size_t>{0, 140}, {0, 5}, {33, 33}}) {
    AttentionSpec s{4, 2, 32, 32, 1 / 32.0f, window, 0, 0, {}};
    s.relative_dims = 3, s.relative_extent = extent;
    for (size_t i = 0; i < 3 * extent; ++i) s.relative.push_back(std::sin(static_cast<float>(i)));
    all.push_back({s, 300});
  }
  all.push_back({{1, 1, 7, 5, 0.4f, 3, 0, 0, {}}, 9});  // odd sizes
  return all;
}

TEST(Attention, EqualsDefinition) {
  for (const XType type : {XType::kF32, XType::kBf16, XType::kF16})
    for (const Case& c : cases()) {
      const AttentionPlan plan =
          plan_attention(c.spec, type, KvStorage{kv_type_of(type)}, host_cpu(), Policy{});
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
      const AttentionPlan plan =
          plan_attention(c.spec, type, KvStorage{kv_type_of(type)}, host_cpu(), Policy{});
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

// Where many rows go through a block of keys in one call, this changes no byte: rows that see nothing of
// a block, NaN, scores beyond f32 and sinks included.
TEST(Attention, ManyRowsInOneCallHaveTheBytesOfProducts) {
  const AttentionSpec specs[] = {{8, 1, 128, 96, 0.0883883f, 0, 0, 0, {}},
                                 {6, 2, 64, 32, 0.125f, 20, 0, 0, {}},
                                 {4, 4, 32, 64, 0.2f, 0, 50, 0, {0.5f, -1, 200, 0}},
                                 {3, 1, 256, 256, 0.0625f, 0, 0, 0, {}}};
  for (int c = 0; c < 12; ++c) {
    const AttentionSpec& spec = specs[c / 3];
    const KvType type = c % 3 == 0 ? KvType::kBf16 : c % 3 == 1 ? KvType::kInt8 : KvType::kFp8;
    const size_t T = kKeyBlock + 75, row = spec.heads * spec.key_dim;
    AttentionPlan plan = plan_attention(spec, XType::kBf16, KvStorage{type}, host_cpu(), Policy{});
    if (plan.attend == nullptr) GTEST_SKIP() << "this CPU multiplies, adds and multiplies";
    Data d = random_data(spec, T, XType::kBf16, 17);
    for (size_t t = 0; t < T; ++t)  // scales that differ
      for (size_t k = 0; k < spec.kv_heads * spec.key_dim; ++k)
        d.k[t * spec.kv_heads * spec.key_dim + k] *=
            t % 5 == 3 ? 0.0f : 1.0f + 0.25f * static_cast<float>(t % 3);
    d.k[(T - 3) * spec.kv_heads * spec.key_dim] = std::nanf("");
    d.q[40 * row] = std::nanf("");
    d.q[140 * row + 3] = HUGE_VALF;
    for (size_t i = 0; i < spec.key_dim; ++i)
      d.q[60 * row + i] = 0x1p126f, d.q[61 * row + i] = 1e4f;
    const std::vector<float> together = run(plan, d, T, {T}),
                             pieces = run(plan, d, T, {100, 7, T - 110, 1, 2});
    plan.attend = nullptr;
    const std::vector<float> apart = run(plan, d, T, {T});
    for (size_t i = 0; i < apart.size(); ++i)
      for (const float y : {together[i], pieces[i]})
        ASSERT_TRUE(f32_bits(y) == f32_bits(apart[i]) || (std::isnan(y) && std::isnan(apart[i])))
            << i << ": " << y << ", expected " << apart[i];
  }
}

// The same before anything is rounded: three blocks of keys one after the other.
TEST(Attention, ABlockInOneCallIsProductSoftmaxProduct) {
  const AttentionSpec spec{1, 1, 160, 96, 0.0883883f, 0, 0, 0, {}};
  const AttentionPlan plan =
      plan_attention(spec, XType::kBf16, KvStorage{KvType::kBf16}, host_cpu(), Policy{});
  if (plan.attend == nullptr) GTEST_SKIP() << "this CPU multiplies, adds and multiplies";
  const KvMatrix &keys = plan.kv.keys(), &values = plan.kv.values();
  const size_t M = 45, dk = spec.key_dim, dv = spec.value_dim;
  const Data d = random_data(spec, 3 * kKeyBlock, XType::kBf16, 23);
  AlignedBuffer rows(
      M * std::max(keys.kernel->row_bytes(keys.problem), values.kernel->row_bytes(values.problem))),
      q(keys.kernel->row_panel_bytes(keys.problem, M)),
      p(values.kernel->row_panel_bytes(values.problem, M)), block(plan.kv.block_bytes()),
      scratch(std::max({plan.attend->scratch_bytes, keys.kernel->scratch_bytes(keys.problem, M),
                        values.kernel->scratch_bytes(values.problem, M)}));
  const ActParams none;
  PackedMatrix k, v;
  k.problem = &keys.problem, k.data = plan.kv.keys_of(block.data(), 0);
  v.problem = &values.problem, v.data = plan.kv.values_of(block.data(), 0);
  keys.kernel->prepare_rows({&keys.problem, &none, d.q.data(), dk, M, rows.data()});
  keys.kernel->make_row_panel({&keys.problem, &k, rows.data(), nullptr, M, q.data()});
  std::vector<float> best(M, -HUGE_VALF), total(M), out(M * dv), scores(M * kKeyBlock),
      sums(M * dv), best_here = best, total_here = total, out_here = out;
  std::vector<uint8_t> seen(2 * M);
  const RowFunctions& f = row_functions();
  for (size_t b = 0; b < 3; ++b) {
    plan.kv.put(block.data(), 0, 0, kKeyBlock, d.k.data() + b * kKeyBlock * dk, dk,
                d.v.data() + b * kKeyBlock * dv, dv);
    for (size_t m = 0; m < M; ++m)
      seen[2 * m] = static_cast<uint8_t>(m % 3), seen[2 * m + 1] = static_cast<uint8_t>(m % 7 * 21);
    plan.attend->run({&keys.problem, &values.problem, k.data, v.data, k.data, q.data(), M,
                      kKeyBlock, b == 1 ? seen.data() : nullptr, spec.scale, nullptr, nullptr,
                      best_here.data(), total_here.data(), out_here.data(), scratch.data(),
                      f.softmax_step});
    keys.kernel->gemm({&k, q.data(), M, 0, kKeyBlock, scores.data(), kKeyBlock, scratch.data()});
    std::vector<float> keep(M);
    for (size_t m = 0; m < M; ++m) {
      float* s = scores.data() + m * kKeyBlock;
      for (size_t i = 0; i < kKeyBlock && b == 1; ++i)
        if (i < seen[2 * m] || i >= seen[2 * m + 1]) s[i] = -HUGE_VALF;
      keep[m] = f.softmax_step(s, kKeyBlock, spec.scale, true, &best[m], &total[m]);
    }
    values.kernel->prepare_rows({&values.problem, &none, scores.data(), kKeyBlock, M, rows.data()});
    values.kernel->make_row_panel({&values.problem, &v, rows.data(), nullptr, M, p.data()});
    values.kernel->gemm({&v, p.data(), M, 0, dv, sums.data(), dv, scratch.data()});
    for (size_t m = 0; m < M; ++m)
      f.scale_and_add(out.data() + m * dv, keep[m], sums.data() + m * dv, dv);
    EXPECT_EQ(best_here, best) << b;
    EXPECT_EQ(total_here, total) << b;
    EXPECT_EQ(out_here, out) << b;
  }
}

TEST(Attention, PiecesOfAPromptDoNotMatter) {
  for (const XType type : {XType::kF32, XType::kBf16})
    for (const Case& c : cases()) {
      const AttentionPlan plan =
          plan_attention(c.spec, type, KvStorage{kv_type_of(type)}, host_cpu(), Policy{});
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
  const AttentionSpec spec{4, 2, 32, 32, 0.17f, 40, 0, 0, {}};
  const AttentionPlan plan =
      plan_attention(spec, XType::kBf16, KvStorage{kv_type_of(XType::kBf16)}, host_cpu(), Policy{});
  const size_t lengths[] = {130, 1, 64, 77};
  std::vector<Data> data;
  std::vector<LayerCache> caches;
  std::vector<std::vector<float>> outs;
  std::vector<AttentionRows> rows;
  for (size_t i = 0; i < 4; ++i) {
    data.push_back(random_data(spec, lengths[i], XType::kBf16, static_cast<unsigned>(i)));
    outs.emplace_back(lengths[i] * spec.heads * spec.value_dim);
    caches.emplace_back(plan);
    caches[i].append(data[i].k.data(), data[i].v.data(), lengths[i]);
  }
  for (size_t i = 0; i < 4; ++i)
    rows.push_back(caches[i].rows(data[i].q.data(), outs[i].data(), lengths[i]));
  Attention attention(plan, rows);
  run_all(attention);
  for (size_t i = 0; i < 4; ++i) {
    const std::vector<float> alone = run(plan, data[i], lengths[i], {lengths[i]});
    EXPECT_EQ(std::memcmp(alone.data(), outs[i].data(), alone.size() * 4), 0) << i;
  }
}

// Few rows take several kv heads at once, as many as the number of threads leaves together.
TEST(Attention, HeadsTogetherHaveTheBytesOfHeadsApart) {
  const size_t T = kSegmentBlocks * kKeyBlock + 150;
  for (const XType type : {XType::kF32, XType::kBf16})
    for (const AttentionSpec& spec :
         {AttentionSpec{15, 5, 40, 24, 0.2f, 0, 0, 0, {}},
          AttentionSpec{4, 4, 32, 32, 0.2f, 200, 0, 0, {0.5f, -1.0f, 2.0f, 0.0f}}}) {
      const AttentionPlan plan =
          plan_attention(spec, type, KvStorage{kv_type_of(type)}, host_cpu(), Policy{});
      const Data d = random_data(spec, T, type, 21);
      const std::vector<size_t> pieces = {T - 150, 100, 1, 1, 3, 43, 1, 1};
      const std::vector<float> apart = run(plan, d, T, pieces);
      for (const size_t threads : {1u, 2u, 3u, 100u}) {
        const std::vector<float> together = run(plan, d, T, pieces, Segments::kParallel, threads);
        EXPECT_EQ(std::memcmp(apart.data(), together.data(), apart.size() * 4), 0) << threads;
      }
      const std::vector<float> in_turn = run(plan, d, T, pieces, Segments::kSequential, 1);
      EXPECT_EQ(std::memcmp(apart.data(), in_turn.data(), apart.size() * 4), 0);
    }
}

TEST(Attention, OneThreadTakesAllHeadsOfANewToken) {
  const AttentionSpec spec{8, 4, 32, 32, 0.2f, 0, 0, 0, {}};
  const AttentionPlan plan =
      plan_attention(spec, XType::kF32, KvStorage{KvType::kF32}, host_cpu(), Policy{});
  const AttentionRows token{nullptr, 5000, nullptr, nullptr, 1};  // five segments
  EXPECT_EQ(Attention(plan, {&token, 1}).tasks(), 20u);
  EXPECT_EQ(Attention(plan, {&token, 1}, Segments::kParallel, 1).tasks(), 1u);
  EXPECT_EQ(Attention(plan, {&token, 1}, Segments::kParallel, 2).tasks(), 8u);
  EXPECT_EQ(Attention(plan, {&token, 1}, Segments::kParallel, 64).tasks(), 20u);
}

// A plan that is the same on every CPU: 32 heads of 128 over 4, up to 512 rows in one call.
AttentionPlan plan_of_any_cpu() {
  static constexpr AttendKernel kMany = {"reference", "stored", nullptr, 0, 17, 512, nullptr};
  AttentionPlan plan =
      plan_attention({32, 4, 128, 128, 0.0883883f, 0, 0, 0, {}}, XType::kBf16,
                     KvStorage{KvType::kBf16}, host_cpu(), {Accept::kDeclared, "reference"});
  plan.attend = &kMany;
  return plan;
}

size_t partial_limit(const AttentionPlan& plan, size_t segments, size_t threads) {
  return std::max<size_t>(16'000'000, 8 * threads * segments * (plan.spec.value_dim + 2) * 4);
}

// Every row of every head meets each segment that it sees once, and none twice; what is folded later has its
// place.
void expect_covers(const AttentionWork& work, const AttentionPlan& plan,
                   const AttentionRows& rows) {
  const size_t kv_heads = plan.spec.kv_heads, keys = kSegmentBlocks * kKeyBlock,
               segments = (rows.position + rows.T - 1) / keys + 1;
  std::vector<uint8_t> met(rows.T * kv_heads * segments);
  for (const AttentionTask& t : work.tasks)
    for (size_t i = t.begin; i < t.end; ++i)
      for (size_t h = t.head; h < t.head + t.heads; ++h)
        for (size_t s = t.segment; s < t.segments; ++s) ++met[(i * kv_heads + h) * segments + s];
  for (size_t i = 0; i < met.size(); ++i) {
    const bool seen = i % segments * keys <= rows.position + i / segments / kv_heads;
    ASSERT_LE(met[i], 1);
    ASSERT_TRUE(met[i] == 1 || !seen);
  }
  size_t floats = 0, parts = 0;
  for (const AttentionMerge& m : work.merges) {
    EXPECT_EQ(m.task.partial, floats);
    EXPECT_EQ(m.stride, (m.task.end - m.task.begin) * m.task.heads * 8 * (plan.spec.value_dim + 2));
    floats += m.parts * m.stride, parts += m.parts;
  }
  EXPECT_EQ(floats, work.partial_floats);
  for (const AttentionTask& t : work.tasks) parts -= t.partial != kNoPartial ? 1 : 0;
  EXPECT_EQ(parts, 0u);
}

// Rows are cut first; keys where rows are few, and partial sums stay within their limit. Of each call:
// tasks, segments of the longest task, kB of partial sums.
TEST(Attention, RowsAreCutBeforeKeysAndPartialSumsAreBounded) {
  const AttentionPlan plan = plan_of_any_cpu();
  std::string table;
  for (const size_t tokens : {1u, 8u, 64u, 512u})
    for (const size_t keys : {2048u, 32768u, 131072u}) {
      table += fmt::format("{:>3} {:>6}:", tokens, keys);
      for (const size_t threads : {1u, 2u, 4u, 8u, 16u, 64u}) {
        const AttentionRows rows{nullptr, keys, nullptr, nullptr, tokens};
        const AttentionWork work = cut_attention(plan, {&rows, 1}, Segments::kParallel, threads);
        const size_t segments = keys / (kSegmentBlocks * kKeyBlock) + 1,
                     bytes = work.partial_floats * sizeof(float);
        size_t longest = 0;
        for (const AttentionTask& t : work.tasks)
          longest = std::max<size_t>(longest, t.segments - t.segment);
        table += fmt::format(" {}/{}/{}", work.tasks.size(), longest, bytes / 1000);
        EXPECT_LE(bytes, partial_limit(plan, segments, threads)) << table;
        expect_covers(work, plan, rows);
      }
      table += '\n';
    }
  std::cout << table;
  EXPECT_EQ(table, R"(  1   2048: 1/3/0 4/3/0 12/1/49 12/1/49 12/1/49 12/1/49
  1  32768: 1/33/0 26/8/432 30/4/499 32/2/532 64/2/532 132/1/549
  1 131072: 1/129/0 98/32/1630 114/16/1896 122/8/2030 126/4/2096 256/2/2129
  8   2048: 4/3/0 4/3/0 12/1/399 24/1/399 24/1/399 24/1/399
  8  32768: 4/33/0 4/33/0 72/16/2396 104/8/3461 120/4/3993 132/1/4392
  8 131072: 4/129/0 4/129/0 264/64/8785 392/32/13045 456/16/15175 504/4/16773
 64   2048: 4/3/0 8/3/0 16/3/0 16/3/0 48/1/3194 192/1/3194
 64  32768: 4/33/0 8/33/0 16/33/0 16/33/0 32/33/0 896/20/14909
 64 131072: 4/129/0 8/129/0 16/129/0 16/129/0 32/129/0 1920/100/31948
512   2048: 32/3/0 32/3/0 32/3/0 32/3/0 64/3/0 128/3/0
512  32768: 32/33/0 32/33/0 32/33/0 32/33/0 64/33/0 128/33/0
512 131072: 32/129/0 32/129/0 32/129/0 32/129/0 64/129/0 128/129/0
)");
}

// The same of other shapes: batches, windows, one kv head for all, more threads than rows.
TEST(Attention, EveryCutCoversEveryRowWithinTheLimit) {
  AttentionPlan plan = plan_of_any_cpu();
  std::mt19937 rng(3);
  for (int i = 0; i < 300; ++i) {
    plan.spec.kv_heads = size_t{1} << rng() % 4;
    plan.spec.heads = 8 * plan.spec.kv_heads;
    plan.spec.window = rng() % 3 == 0 ? 1 + rng() % 5000 : 0;
    const size_t threads = rng() % 3 == 0 ? 1 + rng() % 256 : 1 + rng() % 16;
    std::vector<AttentionRows> batch;
    size_t segments = 0;
    for (size_t n = 1 + rng() % 4; n > 0; --n) {
      const size_t T = rng() % 2 == 0 ? 1 + rng() % 4 : rng() % 700;
      batch.push_back({nullptr, rng() % 200'000, nullptr, nullptr, T});
      segments = std::max(segments, (batch.back().position + T) / 1024 + 1);
    }
    const AttentionWork all = cut_attention(plan, batch, Segments::kParallel, threads);
    EXPECT_LE(all.partial_floats * sizeof(float), partial_limit(plan, segments, threads));
    size_t cost = 0, most = 0;
    for (const AttentionTask& t : all.tasks) {
      const size_t here = size_t{8} * (t.end - t.begin) * t.heads * (t.segments - t.segment);
      cost += here, most = std::max(most, here);
    }
    // No task keeps the others waiting, except a segment of the fewest rows that go together.
    EXPECT_LE(most, std::max<size_t>(32, cost / threads * 5 / 4 + 1)) << i;
    if (plan.spec.window == 0 && batch.size() == 1 && batch[0].T > 0)
      expect_covers(all, plan, batch[0]);
  }
}

TEST(Attention, FollowsThePolicy) {
  const AttentionSpec spec{2, 1, 32, 32, 0.25f, 0, 0, 0, {}};
  for (const XType type : {XType::kF32, XType::kBf16}) {
    const AttentionPlan exact =
        plan_attention(spec, type, KvStorage{kv_type_of(type)}, host_cpu(), {Accept::kExact, ""});
    EXPECT_EQ(exact.kv.keys().kernel->numerics(exact.kv.keys().problem), Numerics::kExact);
    EXPECT_EQ(exact.kv.values().kernel->numerics(exact.kv.values().problem), Numerics::kExact);
    const AttentionPlan asked = plan_attention(spec, type, KvStorage{kv_type_of(type)}, host_cpu(),
                                               {Accept::kDeclared, "generic"});
    EXPECT_STREQ(asked.kv.keys().kernel->name, "generic");
    EXPECT_STREQ(asked.kv.values().kernel->name, "generic");
    // One for quantized weights alone does not stand in attention's way.
    const AttentionPlan other = plan_attention(spec, type, KvStorage{kv_type_of(type)}, host_cpu(),
                                               {Accept::kDeclared, "generic/int4"});
    const AttentionPlan own =
        plan_attention(spec, type, KvStorage{kv_type_of(type)}, host_cpu(), Policy{});
    EXPECT_EQ(other.kv.keys().kernel, own.kv.keys().kernel);
  }
}

// Long sequences: several segments, in every way of running them, are the definition and the same
// bytes.
TEST(Attention, SegmentsMergeInOrderHoweverTheyRun) {
  const size_t T = 2 * kSegmentBlocks * kKeyBlock + 200;
  for (const XType type : {XType::kF32, XType::kBf16})
    for (const AttentionSpec& spec : {AttentionSpec{4, 2, 16, 8, 0.25f, 0, 0, 0, {}},
                                      AttentionSpec{2, 1, 8, 8, 0.3f, 1500, 0, 0, {}},
                                      AttentionSpec{2, 2, 8, 8, 0.3f, 0, 0, 0, {1.5f, -2}},
                                      AttentionSpec{1, 1, 8, 8, 0.3f, 0, 1100, 0, {0.5f}}}) {
      const AttentionPlan plan =
          plan_attention(spec, type, KvStorage{kv_type_of(type)}, host_cpu(), Policy{});
      const Data d = random_data(spec, T, type, 11);
      const std::vector<float> whole = run(plan, d, T, {T});
      const std::vector<size_t> mixed = {1000, 24, 1, 1, 1022, 1, T - 2049};
      const std::vector<float> in_pieces = run(plan, d, T, mixed),
                               in_turn = run(plan, d, T, mixed, Segments::kSequential);
      EXPECT_EQ(std::memcmp(in_pieces.data(), whole.data(), whole.size() * 4), 0);
      EXPECT_EQ(std::memcmp(in_turn.data(), whole.data(), whole.size() * 4), 0);
      const std::vector<double> expected = definition(spec, d, T);
      for (size_t i = 0; i < whole.size(); ++i)
        ASSERT_NEAR(whole[i], expected[i], type == XType::kF32 ? 2e-5 : 3e-2) << i;
    }
}

// The bytes of a call for any number of threads, alone and in a batch, are the ordered fold of the segments,
// which a run in turn is.
TEST(Attention, BytesAreTheOrderedFoldOfSegmentsForEveryNumberOfThreads) {
  const size_t T = 3 * kSegmentBlocks * kKeyBlock + 300;
  for (const AttentionSpec& spec : {AttentionSpec{4, 2, 16, 8, 0.25f, 0, 0, 0, {}},
                                    AttentionSpec{4, 1, 16, 8, 0.25f, 2500, 0, 0, {0.5f, -1, 2, 0}},
                                    AttentionSpec{16, 2, 8, 8, 0.3f, 0, 2100, 0, {}}}) {
    const AttentionPlan plan =
        plan_attention(spec, XType::kBf16, KvStorage{KvType::kBf16}, host_cpu(), Policy{});
    const Data d = random_data(spec, T, XType::kBf16, 31);
    // A short sequence, a new token behind a long one, some tokens, a piece of a prompt.
    const size_t lengths[] = {40, T - 299, T - 5, T}, tokens[] = {40, 1, 9, 70};
    const size_t width = spec.heads * spec.value_dim;
    std::vector<LayerCache> caches;
    std::vector<AttentionRows> batch;
    std::vector<float> out(120 * width), fold(out.size());
    for (const size_t length : lengths) {
      caches.emplace_back(plan);
      caches.back().append(d.k.data(), d.v.data(), length);
    }
    for (size_t i = 0, at = 0; i < 4; at += tokens[i++]) {
      const float* q = d.q.data() + (lengths[i] - tokens[i]) * spec.heads * spec.key_dim;
      const AttentionRows rows = caches[i].rows(q, fold.data() + at * width, tokens[i]);
      Attention in_turn(plan, {&rows, 1}, Segments::kSequential);
      run_all(in_turn);
      batch.push_back(caches[i].rows(q, out.data() + at * width, tokens[i]));
    }
    for (size_t threads = 0; threads <= 16; ++threads) {
      std::fill(out.begin(), out.end(), 0.0f);
      Attention together(plan, batch, Segments::kParallel, threads);
      run_all(together);
      ASSERT_EQ(std::memcmp(out.data(), fold.data(), out.size() * 4), 0) << threads;
      std::fill(out.begin(), out.end(), 0.0f);
      for (const AttentionRows& rows : batch) {
        Attention alone(plan, {&rows, 1}, Segments::kParallel, threads);
        run_all(alone);
      }
      ASSERT_EQ(std::memcmp(out.data(), fold.data(), out.size() * 4), 0) << threads;
    }
  }
}

// The bytes themselves, of the portable kernel and of numbers that no library decides: another fold of the
// segments would be seen.
TEST(Attention, BytesAreThoseOfTheGolden) {
  const size_t T = 2 * kSegmentBlocks * kKeyBlock + 300;
  const std::vector<size_t> pieces = {1500, 1, 700, 8, 1, T - 2210};
  const std::pair<AttentionSpec, const char*> cases[] = {
      {{4, 2, 16, 8, 0.25f, 0, 0, 0, {}},
       "46313b0c06af75dbcaf93ce6136a4dd39a66a2fdf4cc7e4e458d0d7adf4a094e"},
      {{4, 1, 16, 8, 0.25f, 1500, 0, 0, {0.5f, -1, 2, 0}},
       "6f2e477a119a24f0d15bdbb266c93cdfd023eec6226957fbc149700df8c4232b"},
      {{16, 2, 8, 8, 0.3f, 0, 1100, 0, {}},
       "c3d6c8bbfed09b06423e584440e06134fbece80ec1318b87455c319f6ce39e23"}};
  for (const auto& [spec, golden] : cases) {
    Data d = random_data(spec, T, XType::kBf16, 31);
    std::mt19937 rng(31);
    for (auto* part : {&d.q, &d.k, &d.v})
      for (float& x : *part) x = static_cast<float>(static_cast<int>(rng() >> 24) - 128) / 64;
    const AttentionPlan plan = plan_attention(spec, XType::kBf16, KvStorage{KvType::kBf16},
                                              host_cpu(), {Accept::kDeclared, "reference"});
    const std::vector<float> y = run(plan, d, T, pieces, Segments::kParallel, 3);
    Sha256 sum;
    sum.add({reinterpret_cast<const uint8_t*>(y.data()), y.size() * sizeof(float)});
    EXPECT_EQ(sum.hex(), golden);
  }
}

// 8-bit keys and values: attention over what the codes mean, with scales of each token or given ones,
// whatever the pieces.
TEST(Attention, EightBitKeysAndValuesAreTheirCodes) {
  for (const KvType stored : {KvType::kInt8, KvType::kFp8})
    for (const float fixed : {0.0f, 0.02f})
      for (const XType type : {XType::kF32, XType::kBf16})
        for (const Case& c : cases()) {
          const KvStorage storage{stored, fixed, 2 * fixed};
          const AttentionPlan plan = plan_attention(c.spec, type, storage, host_cpu(), Policy{});
          Data d = random_data(c.spec, c.T, type, 3);
          d.k[5] = 100.0f;  // one token with a large key
          const std::vector<float> y = run(plan, d, c.T, {c.T});
          std::vector<size_t> ones(c.T, 1);
          const std::vector<float> by_ones = run(plan, d, c.T, ones);
          ASSERT_EQ(std::memcmp(y.data(), by_ones.data(), y.size() * 4), 0);
          const auto decode = [&](std::vector<float>& x, size_t n, float scale) {
            std::vector<uint8_t> codes(n);
            for (size_t i = 0; i < x.size(); i += n) {
              const float s = kv_encode(stored, scale, x.data() + i, n, codes.data());
              for (size_t j = 0; j < n; ++j)
                x[i + j] = s * (stored == KvType::kFp8
                                    ? e4m3_to_f32(codes[j])
                                    : static_cast<float>(static_cast<int8_t>(codes[j])));
            }
          };
          decode(d.k, c.spec.key_dim, storage.key_scale);
          decode(d.v, c.spec.value_dim, storage.value_scale);
          const std::vector<double> expected = definition(c.spec, d, c.T);
          for (size_t i = 0; i < y.size(); ++i)
            ASSERT_NEAR(y[i], expected[i], type == XType::kF32 ? 5e-5 : 4e-2) << i;
        }
}

TEST(KvLayout, CodesHaveTheNearestValueAndNanStaysNan) {
  std::vector<float> x = {0.0f, -1.0f, 0.5f, 127.0f, -127.0f, 3.49f, 2.5f, 3.5f};
  std::vector<uint8_t> codes(x.size());
  EXPECT_EQ(kv_encode(KvType::kInt8, 0, x.data(), x.size(), codes.data()), 1.0f);
  const int8_t expected[] = {0, -1, 0, 127, -127, 3, 2, 4};
  for (size_t i = 0; i < x.size(); ++i)
    EXPECT_EQ(static_cast<int8_t>(codes[i]), expected[i]) << x[i];
  EXPECT_EQ(kv_encode(KvType::kFp8, 0.25f, x.data(), x.size(), codes.data()), 0.25f);
  EXPECT_EQ(e4m3_to_f32(codes[3]), 448.0f) << "beyond the largest code";
  EXPECT_EQ(e4m3_to_f32(codes[2]), 2.0f);
  const std::vector<float> zeros(8);
  EXPECT_EQ(kv_encode(KvType::kInt8, 0, zeros.data(), 8, codes.data()), 1.0f);
  x[4] = std::nanf("");
  for (const KvType type : {KvType::kInt8, KvType::kFp8}) {
    EXPECT_TRUE(std::isnan(kv_encode(type, 0.5f, x.data(), x.size(), codes.data())));
    for (const uint8_t c : codes) EXPECT_EQ(c, 0);
  }
}

// Vectors of codes are those of one number after the other, negative zeros too.
TEST(KvLayout, CodesAreThoseOfTheDefinition) {
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  for (size_t n = 1; n < 140; n = n * 3 / 2 + 1)
    for (const KvType type : {KvType::kInt8, KvType::kFp8})
      for (const float fixed : {0.0f, 0.01f}) {
        std::vector<float> x(n);
        for (size_t i = 0; i < n; ++i)
          x[i] = i % 5 == 1 ? -0.0f : normal(rng) * (i % 7 == 3 ? 1e-6f : 1.0f);
        std::vector<uint8_t> codes(n + 1, 0xA5);
        const float scale = kv_encode(type, fixed, x.data(), n, codes.data());
        const float top = type == KvType::kFp8 ? 448.0f : 127.0f;
        EXPECT_TRUE(fixed == 0.0f || scale == fixed);
        for (size_t i = 0; i < n; ++i) {
          const float v = std::clamp(x[i] / scale, -top, top);
          const auto expected = type == KvType::kFp8
                                    ? f32_to_e4m3(v)
                                    : static_cast<uint8_t>(static_cast<int>(rne(v)));
          ASSERT_EQ(codes[i], expected) << n << " " << i << " " << x[i];
        }
        EXPECT_EQ(codes[n], 0xA5);
      }
}

// Kernels are told which matrix comes next, and may run otherwise; it changes no byte.
void expect_next_changes_nothing(const AttentionPlan& plan, bool of_keys, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  const size_t dim = plan.spec.key_dim;
  AlignedBuffer block(plan.kv.block_bytes());
  std::vector<float> k(kKeyBlock * dim), x(121 * std::max(kKeyBlock, dim));
  for (auto* part : {&k, &x})
    for (float& v : *part) v = normal(rng);
  plan.kv.put(block.data(), 0, 0, kKeyBlock, k.data(), dim, k.data(), dim);
  const KvMatrix& m = of_keys ? plan.kv.keys() : plan.kv.values();
  PackedMatrix w;
  w.problem = &m.problem;
  w.data = of_keys ? plan.kv.keys_of(block.data(), 0) : plan.kv.values_of(block.data(), 0);
  const ActParams none;
  for (const size_t M : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 12u, 13u, 29u, 121u}) {
    const size_t N = m.problem.N, K = m.problem.K;
    AlignedBuffer rows(M * m.kernel->row_bytes(m.problem)),
        panel(m.kernel->row_panel_bytes(m.problem, M)),
        scratch(m.kernel->scratch_bytes(m.problem, M) + 64);
    std::vector<float> y(M * N), z(M * N);
    m.kernel->prepare_rows({&m.problem, &none, x.data(), K, M, rows.data()});
    m.kernel->make_row_panel({&m.problem, &w, rows.data(), nullptr, M, panel.data()});
    m.kernel->gemm({&w, panel.data(), M, 0, N, y.data(), N, scratch.data()});
    m.kernel->gemm({&w, panel.data(), M, 0, N, z.data(), N, scratch.data(), &w});
    EXPECT_EQ(std::memcmp(y.data(), z.data(), y.size() * 4), 0)
        << m.kernel->name << "/" << m.kernel->codec << ", rows of type "
        << static_cast<int>(plan.type) << ", dim " << dim << ", M " << M;
  }
}

TEST(KvLayout, WhatComesNextChangesNothing) {
  std::mt19937 rng(5);
  for (const Kernel* kernel : kernel_list()) {
    if (kernel->code_at == nullptr ||
        !missing_features(host_cpu(), kernel->arch, kernel->needs).empty())
      continue;
    for (const KvType stored :
         {KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kInt8, KvType::kFp8})
      for (const XType type : {XType::kF32, XType::kF16, XType::kBf16})
        for (const size_t dim : {36u, 128u}) {
          bool supported = true;
          const auto choose = [&](const Problem& p) {
            supported = supported && kernel->supports(p) == nullptr;
            return supported ? kernel : &reference_kernel();
          };
          const AttentionPlan plan{{1, 1, dim, dim, 1.0f, 0, 0, 0, {}},
                                   type,
                                   {1, dim, dim, {stored}, type, choose},
                                   {},
                                   {}};
          if (!supported) continue;
          for (const bool of_keys : {true, false}) expect_next_changes_nothing(plan, of_keys, rng);
        }
  }
}

// One row over a long sequence has a task per segment and kv head, and a task is for one segment.
TEST(Attention, ALongSequenceHasWorkForManyThreads) {
  const AttentionSpec spec{8, 4, 8, 8, 0.3f, 0, 0, 0, {}};
  const AttentionPlan plan =
      plan_attention(spec, XType::kF32, KvStorage{kv_type_of(XType::kF32)}, host_cpu(), Policy{});
  const size_t T = 8 * kSegmentBlocks * kKeyBlock;
  const Data d = random_data(spec, T, XType::kF32, 1);
  LayerCache cache(plan);
  cache.append(d.k.data(), d.v.data(), T);
  std::vector<float> out(8 * 8);
  const AttentionRows rows = cache.rows(d.q.data(), out.data(), 1);
  Attention attention(plan, {&rows, 1});
  EXPECT_EQ(attention.tasks(), 4u * 8u);
  EXPECT_EQ(attention.merges(), 4u);
  EXPECT_EQ(attention.bytes_read(), 8 * kSegmentBlocks * plan.kv.block_bytes());
}

// A block that grew token by token, or was cut and grew again, has the bytes of one written at once.
TEST(KvLayout, BytesDoNotDependOnHowABlockGrew) {
  std::mt19937 rng(5);
  for (const KvType stored :
       {KvType::kF32, KvType::kBf16, KvType::kF16, KvType::kInt8, KvType::kFp8}) {
    const AttentionSpec spec{4, 2, 24, 40, 0.25f, 0, 0, 0, {}};
    const AttentionPlan plan =
        plan_attention(spec, XType::kF32, KvStorage{stored}, host_cpu(), Policy{});
    const size_t T = kKeyBlock;
    Data d = random_data(spec, T, XType::kF32, 8);
    LayerCache whole(plan), grown(plan);
    whole.append(d.k.data(), d.v.data(), T);
    for (size_t t = 0; t < T;) {
      const size_t n = std::min<size_t>(1 + rng() % 9, T - t);
      grown.append(d.k.data() + t * 48, d.v.data() + t * 80, n);
      t += n;
    }
    ASSERT_EQ(std::memcmp(whole.block(0), grown.block(0), plan.kv.block_bytes()), 0);
    const Data other = random_data(spec, T, XType::kF32, 9);
    LayerCache again(plan);
    again.append(d.k.data(), d.v.data(), 50);
    again.append(other.k.data(), other.v.data(), 60);
    plan.kv.cut(again.block(0), 50);
    LayerCache fresh(plan);
    fresh.append(d.k.data(), d.v.data(), 50);
    ASSERT_EQ(std::memcmp(fresh.block(0), again.block(0), plan.kv.block_bytes()), 0);
  }
}

}  // namespace
}  // namespace moebius::test::attention_test
