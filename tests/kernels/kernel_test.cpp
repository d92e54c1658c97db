// SPDX-License-Identifier: Apache-2.0
// The judge of every kernel: each entry of the list, each problem it claims, random shapes and
// edges, against quant/reference.
//   exact        equal bytes (any NaN equals any NaN)
//   reordered    within reordered_bound; NaN exactly where the reference has it, unless a partial sum may overflow
// Besides: a row's result does not depend on the other rows or on their number, nor on how N is cut
// into blocks; packing may be cut too; no buffer is left (guard pages, patterns) and nothing is
// allocated while rows are prepared and multiplied. What this machine cannot run is printed, never
// passed over silently; check_emulated.sh judges it under an emulator.
// MOEBIUS_SEED=N takes other numbers, MOEBIUS_TEST_SHAPES=few a fixed subset of the shapes (emulators).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "kernels/kernel_cases.h"
#include "kernels/list.h"
#include "kernels/prepared_rows.h"
#include "quant/quant_access.h"
#include "quant/slice.h"
#include "unit/allocations_util.h"
#include "unit/test_util.h"

namespace moebius::test::kernel_test {
namespace {

bool same_bytes(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof a) == 0;
}

std::string title(const Kernel& k) { return std::string(k.name) + "/" + k.codec; }

// One matrix packed by one kernel, in guarded memory.
struct Packed {
  const Kernel* kernel;
  Problem problem;
  ColumnOrder order;
  GuardedBytes data;
  PackedMatrix view;

  Packed(const Kernel& k, const SchemeCase& s, const MatrixCase& m, Rng& rng)
      : kernel(&k),
        problem(make_problem(m.w, s.act, s.x_type)),
        order(column_order(m.w)),
        data(k.packed_bytes(problem)) {
    const size_t tiles = (m.w.N + k.n_step - 1) / k.n_step;
    for (size_t t = 0; t < tiles;) {  // in pieces, as threads would, of the whole or of a slice
      const size_t next = std::min(tiles, t + 1 + rng() % 3);
      const size_t n0 = t * k.n_step, n1 = std::min(m.w.N, next * k.n_step);
      if (rng() % 2 == 0) {
        k.pack(
            {&problem, &m.w, n0, n1, data.data(), order.columns_or_null(), order.ends_or_null()});
      } else {
        const QuantMatrix piece = slice_rows(m.w, n0, n1);
        k.pack({&problem, &piece, 0, piece.N, data.data(), order.columns_or_null(),
                order.ends_or_null(), n0});
      }
      t = next;
    }
    view = {&problem,
            data.data(),
            m.w.global_scale,
            m.params,
            order.columns_or_null(),
            order.ends_or_null()};
  }
};

// y of the picked rows; N is cut into pieces of `tiles` tiles (0: one piece).
std::vector<float> run(const Packed& p, const float* x, size_t ldx, size_t M,
                       const std::vector<int32_t>& ids, size_t tiles, std::string& damage) {
  const Kernel& k = *p.kernel;
  const size_t N = p.problem.N, picked = ids.size(), step = tiles == 0 ? N : tiles * k.n_step;
  GuardedBytes rows(k.row_bytes(p.problem) * M);
  GuardedBytes panel(k.row_panel_bytes(p.problem, picked));
  GuardedBytes scratch(k.scratch_bytes(p.problem, picked));
  // NaN in every float type, -1 in every integer: what was not written must not count.
  for (const GuardedBytes* memory : {&rows, &panel, &scratch})
    std::memset(memory->data(), 0xFF, memory->size());
  size_t allocated = allocations();
  k.prepare_rows({&p.problem, &p.view.act, x, ldx, M, rows.data()});
  k.make_row_panel({&p.problem, &p.view, rows.data(), ids.data(), picked, panel.data()});
  if (allocations() != allocated) damage = "the heap";
  std::vector<float> out(picked * N);
  for (size_t n0 = 0; n0 < N; n0 += step) {
    const size_t n1 = std::min(N, n0 + step), ldy = n1 - n0 + 3;
    GuardedBytes y(((picked - 1) * ldy + (n1 - n0)) * sizeof(float), 4);
    std::memset(y.data(), 0x5A, y.size());
    allocated = allocations();
    k.gemm({&p.view, panel.data(), picked, n0, n1, y.as<float>(), ldy, scratch.data()});
    if (allocations() != allocated) damage = "the heap";
    for (size_t m = 0; m < picked; ++m) {
      std::memcpy(&out[m * N + n0], y.as<float>() + m * ldy, (n1 - n0) * sizeof(float));
      for (size_t g = 0; m + 1 < picked && g < 3; ++g)
        if (y.as<uint32_t>()[m * ldy + (n1 - n0) + g] != 0x5A5A5A5Au) damage = "y between rows";
    }
    if (y.damaged()) damage = "y";
  }
  if (rows.damaged()) damage = "prepared rows";
  if (panel.damaged()) damage = "panel";
  if (scratch.damaged()) damage = "scratch";
  if (p.data.damaged()) damage = "packed matrix";
  return out;
}

struct Shape {
  size_t N, K, M;
};

std::string describe(const Kernel& k, const SchemeCase& s, const Shape& shape) {
  return title(k) + ", " + s.name + ", N=" + std::to_string(shape.N) +
         " K=" + std::to_string(shape.K) + " M=" + std::to_string(shape.M) + ", seed " +
         std::to_string(test_seed());
}

std::string compare(const Numerics numerics, const std::vector<float>& y,
                    const std::vector<float>& expected, const std::vector<double>& bound,
                    size_t N) {
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t m = i / N, n = i % N;
    if (same_bytes(y[i], expected[i])) continue;
    const std::string where = "y[" + std::to_string(m) + "," + std::to_string(n) +
                              "] = " + std::to_string(y[i]) + ", reference " +
                              std::to_string(expected[i]);
    if (numerics == Numerics::kExact) return where + " (exact)";
    if (std::isinf(bound[i])) continue;
    if (std::isnan(bound[i]) && !std::isnan(expected[i]) && !std::isfinite(y[i])) continue;
    const double error = std::fabs(static_cast<double>(y[i]) - static_cast<double>(expected[i]));
    if (!(error <= bound[i])) return where + ", bound " + std::to_string(bound[i]);
  }
  return "";
}

void judge(const Kernel& k, const SchemeCase& s, const Shape& shape, bool ugly, Rng& rng) {
  const MatrixCase matrix = make_matrix(s, shape.N, shape.K, rng);
  const Problem problem = make_problem(matrix.w, s.act, s.x_type);
  if (k.supports(problem) != nullptr) return;
  const Numerics numerics = k.numerics(problem);
  const Packed packed(k, s, matrix, rng);
  const size_t ldx = shape.K + rng() % 3;
  const GuardedBytes x = make_rows(s, shape.M, shape.K, ldx, ugly, rng);
  const auto quantized = quantize_rows(x.as<float>(), ldx, shape.M, shape.K, s.act, matrix.params,
                                       quantizer_row_type(problem));
  std::vector<float> expected(shape.M * shape.N);
  reference_gemm(matrix.w, quantized.rows, 0, shape.N, expected.data(), shape.N);
  std::vector<double> bound(shape.M * shape.N);
  if (numerics != Numerics::kExact)
    reordered_bound(matrix.w, quantized.rows, 0, shape.N, bound.data(), shape.N);

  std::string damage;
  std::vector<int32_t> all(shape.M);
  for (size_t m = 0; m < shape.M; ++m) all[m] = static_cast<int32_t>(m);
  const std::vector<float> y = run(packed, x.as<float>(), ldx, shape.M, all, 0, damage);
  if (numerics != Numerics::kApproximate) {
    const std::string wrong = compare(numerics, y, expected, bound, shape.N);
    ASSERT_EQ(wrong, "") << describe(k, s, shape);
  }
  // Any selection of rows, in any order, with N cut anywhere, gives the same bytes per row.
  std::vector<int32_t> picked(1 + rng() % (2 * shape.M));
  for (int32_t& id : picked) id = static_cast<int32_t>(rng() % shape.M);
  for (const auto& [ids, tiles] : {std::pair<std::vector<int32_t>, size_t>{picked, 1 + rng() % 3},
                                   {{static_cast<int32_t>(rng() % shape.M)}, 1}}) {
    const std::vector<float> again = run(packed, x.as<float>(), ldx, shape.M, ids, tiles, damage);
    for (size_t i = 0; i < again.size(); ++i) {
      const size_t row = static_cast<size_t>(ids[i / shape.N]);
      ASSERT_TRUE(same_bytes(again[i], y[row * shape.N + i % shape.N]))
          << describe(k, s, shape) << ": row " << row << " column " << i % shape.N << " is "
          << again[i] << " among " << ids.size() << " rows in blocks of " << tiles << " tiles, but "
          << y[row * shape.N + i % shape.N] << " among " << shape.M;
    }
  }
  ASSERT_EQ(damage, "") << describe(k, s, shape) << ": written outside";
}

// Widths around every tile and group: one, odd, just below and above powers of two.
std::vector<Shape> shapes_for(const SchemeCase& s, Rng& rng) {
  const size_t unit = s.code == CodeType::kFp4 ? std::max<size_t>(2, s.block_k) : 1;
  const auto pick = [&](std::initializer_list<size_t> from) {
    return from.begin()[rng() % from.size()];
  };
  const auto fit = [&](size_t K) {
    if (s.columns == Columns::kShuffled) return (K + s.block_k - 1) / s.block_k * s.block_k;
    return (K + unit - 1) / unit * unit;
  };
  return {
      {pick({1, 2, 3, 5}), fit(pick({1, 2, 7, 15})), pick({1, 2, 3})},
      {pick({7, 8, 9, 15, 17}), fit(pick({31, 32, 33, 63, 64})), pick({1, 4, 5, 8})},
      {pick({16, 24, 33, 40}), fit(pick({128, 256, 192, 384})), pick({1, 2, 6, 16, 23})},
      {pick({12, 31, 64, 65}), fit(pick({97, 130, 257, 333, 515})), pick({1, 3, 7, 12, 33})},
      {pick({8, 16, 20, 48}), fit(pick({512, 640, 768})), pick({2, 8, 9, 17})},
      {pick({24, 36, 49, 50}), fit(pick({16, 100, 160})), pick({32, 34, 37, 45, 63})},
  };
}

bool few_shapes() {
  const char* text = std::getenv("MOEBIUS_TEST_SHAPES");
  return text != nullptr && std::strcmp(text, "few") == 0;
}

// Products of the largest shape. Kernels that run on every CPU are the slow ones and the same in each class of them: smaller
// shapes do, and all with ./test --full.
size_t most_products(const Kernel& k) {
  if (test::full_run() && !few_shapes()) return SIZE_MAX;
  if (k.needs == 0) return few_shapes() ? 5000 : 20000;
  return few_shapes() ? 20000 : SIZE_MAX;
}

uint64_t hash_of(const std::string& text) {  // FNV-1a: the same numbers with every standard library
  uint64_t h = 14695981039346656037u;
  for (const char c : text) h = (h ^ static_cast<uint8_t>(c)) * 1099511628211u;
  return h;
}

class EveryKernel : public testing::TestWithParam<size_t> {
 protected:
  const Kernel& k = *kernel_list()[GetParam()];
  void SetUp() override {
    const std::string missing = missing_features(host_cpu(), k.arch, k.needs);
    if (missing.empty() && k.gemm != nullptr) return;
    // Kernels of another architecture are no gap of this one, nor are those that MOEBIUS_CPU left out.
    const std::string gap = missing_features(detect_cpu(), k.arch, k.needs);
    if (k.arch == detect_cpu().arch && !gap.empty())
      std::printf("skipped kernel %s: %s\n", title(k).c_str(), gap.c_str());
    GTEST_SKIP() << gap;
  }
};

TEST_P(EveryKernel, MatchesTheReferenceOnAllItClaims) {
  size_t claimed = 0, total = 0;
  std::map<std::string, std::string> reasons;
  for (const SchemeCase& s : scheme_cases()) {
    Rng rng(test_seed() ^ hash_of(s.name));
    for (const Shape& shape : shapes_for(s, rng)) {
      if (shape.N * shape.K * shape.M > most_products(k)) continue;
      ++total;
      const MatrixCase probe = make_matrix(s, shape.N, shape.K, rng);
      if (k.supports(make_problem(probe.w, s.act, s.x_type)) == nullptr) ++claimed;
      judge(k, s, shape, false, rng);
      if (HasFatalFailure()) return;
      judge(k, s, shape, true, rng);
      if (HasFatalFailure()) return;
    }
  }
  std::printf("%s: %zu of %zu problems claimed, seed %llu\n", title(k).c_str(), claimed, total,
              static_cast<unsigned long long>(test_seed()));
  EXPECT_GT(claimed, 0u) << title(k) << " claims nothing that any scheme needs";
}

// A rank may have no row, no token and no output of its own, and asks all the same, for any kernel.
// Division by zero ends the test on any CPU (cmake/kernel_flags.cmake).
TEST(KernelFacts, AnswerForNothing) {
  constexpr size_t kSmall = size_t{1} << 20;  // of scratch that does not depend on the rows
  for (const SchemeCase& s : scheme_cases())
    for (const size_t K : {size_t{1}, size_t{256}, size_t{5120}}) {
      if (s.columns != Columns::kRegular && K < s.block_k) continue;
      Rng rng(test_seed());
      Problem p = make_problem(make_matrix(s, 16, K, rng).w, s.act, s.x_type);
      for (const Kernel* k : kernel_list()) {
        if (k->supports(p) != nullptr) continue;
        const std::string what = title(*k) + ' ' + s.name + " K " + std::to_string(K);
        EXPECT_LT(k->row_panel_bytes(p, 0), kSmall) << what;
        EXPECT_LT(k->scratch_bytes(p, 0), kSmall) << what;
        for (const size_t M : {size_t{0}, size_t{1}, size_t{4096}}) {
          EXPECT_LE(k->row_panel_bytes(p, 0), k->row_panel_bytes(p, M)) << what;
          EXPECT_LE(k->scratch_bytes(p, 0), k->scratch_bytes(p, M)) << what;
        }
        EXPECT_GE(k->row_bytes(p), K / 2) << what;
        Problem none = p;
        none.N = 0, none.block_n = 1;
        EXPECT_EQ(k->supports(none), nullptr) << what;
        EXPECT_EQ(k->packed_bytes(none), 0u) << what;
        EXPECT_EQ(k->row_bytes(none), k->row_bytes(p)) << what;
        EXPECT_LT(k->row_panel_bytes(none, 0), kSmall) << what;
        EXPECT_LT(k->scratch_bytes(none, 0), kSmall) << what;
      }
    }
}

// Callers ask once, for the most rows: on any CPU, since these are facts.
TEST(KernelFacts, FewerRowsNeedNoMoreMemory) {
  for (const SchemeCase& s : scheme_cases())
    for (const size_t K : {size_t{256}, size_t{5120}}) {
      Rng rng(test_seed());
      const Problem p = make_problem(make_matrix(s, 16, K, rng).w, s.act, s.x_type);
      for (const Kernel* k : kernel_list()) {
        if (k->supports(p) != nullptr) continue;
        for (size_t M = 1; M <= 300; M += M < 40 ? 1 : 13) {
          ASSERT_LE(k->scratch_bytes(p, M - 1), k->scratch_bytes(p, M))
              << title(*k) << ' ' << s.name << " K " << K << " rows " << M;
          ASSERT_LE(k->row_panel_bytes(p, M - 1), k->row_panel_bytes(p, M))
              << title(*k) << ' ' << s.name << " K " << K << " rows " << M;
        }
      }
    }
}

// Every number of rows that a choice of tile can hang on, at small N and K: each row's bytes are those it has among all rows.
TEST_P(EveryKernel, GivesARowTheSameBytesAmongAnyNumberOfRows) {
  std::vector<size_t> counts = {1, 2, 3, 5, 8, 11, 16, 19, 33, 48};
  if (most_products(k) == SIZE_MAX) {
    counts = {127, 128, 129, 256};
    for (size_t M = 1; M <= 70; ++M) counts.push_back(M);
  }
  const size_t most = *std::max_element(counts.begin(), counts.end());
  size_t claimed = 0;
  for (const SchemeCase& s : scheme_cases()) {
    Rng rng(test_seed() ^ hash_of(s.name));
    const size_t N = 2 * k.n_step + 3, K = std::max<size_t>(s.block_k, 32) * 2;
    const MatrixCase matrix = make_matrix(s, N, K, rng);
    const Problem problem = make_problem(matrix.w, s.act, s.x_type);
    if (k.supports(problem) != nullptr) continue;
    ++claimed;
    const Packed packed(k, s, matrix, rng);
    const GuardedBytes x = make_rows(s, most, K, K, false, rng);
    const auto quantized =
        quantize_rows(x.as<float>(), K, most, K, s.act, matrix.params, quantizer_row_type(problem));
    std::vector<float> expected(most * N);
    std::vector<double> bound(most * N);
    reference_gemm(matrix.w, quantized.rows, 0, N, expected.data(), N);
    reordered_bound(matrix.w, quantized.rows, 0, N, bound.data(), N);
    std::vector<int32_t> all(most);
    for (size_t m = 0; m < most; ++m) all[m] = static_cast<int32_t>(m);
    std::string damage;
    const std::vector<float> y = run(packed, x.as<float>(), K, most, all, 0, damage);
    if (k.numerics(problem) != Numerics::kApproximate) {
      ASSERT_EQ(compare(k.numerics(problem), y, expected, bound, N), "")
          << describe(k, s, {N, K, most});
    }
    for (const size_t M : counts) {
      const size_t first = rng() % (most - M + 1);
      const std::vector<int32_t> ids(all.begin() + static_cast<std::ptrdiff_t>(first),
                                     all.begin() + static_cast<std::ptrdiff_t>(first + M));
      const std::vector<float> again = run(packed, x.as<float>(), K, most, ids, 0, damage);
      for (size_t i = 0; i < again.size(); ++i)
        ASSERT_TRUE(same_bytes(again[i], y[first * N + i]))
            << describe(k, s, {N, K, M}) << ": row " << first + i / N << " column " << i % N
            << " is " << again[i] << " among " << M << " rows, but " << y[first * N + i]
            << " among " << most;
      ASSERT_EQ(damage, "") << describe(k, s, {N, K, M}) << ": written outside";
    }
  }
  EXPECT_GT(claimed, 0u);
}

// How many places of memory a thread reads at is a fact of the machine: it changes no byte.
TEST_P(EveryKernel, GivesTheSameBytesHoweverManyStreamsItReads) {
  const size_t of_machine = memory_streams();
  std::string damage;
  for (const SchemeCase& s : scheme_cases()) {
    Rng rng(test_seed() ^ hash_of(s.name));
    const size_t N = 5 * k.n_step + 1, K = std::max<size_t>(s.block_k, 32) * 2;
    const MatrixCase matrix = make_matrix(s, N, K, rng);
    if (k.supports(make_problem(matrix.w, s.act, s.x_type)) != nullptr) continue;
    const Packed packed(k, s, matrix, rng);
    const GuardedBytes x = make_rows(s, 4, K, K, false, rng);
    for (const auto& ids : {std::vector<int32_t>{0}, {0, 1}, {0, 1, 2, 3}}) {
      std::vector<float> first;
      for (const size_t streams : {1u, 2u, 4u}) {
        set_memory_streams(streams);
        const std::vector<float> y = run(packed, x.as<float>(), K, 4, ids, 0, damage);
        if (first.empty()) first = y;
        for (size_t i = 0; i < y.size(); ++i)
          EXPECT_TRUE(same_bytes(y[i], first[i])) << describe(k, s, {N, K, ids.size()});
      }
    }
    set_memory_streams(of_machine);
    ASSERT_EQ(damage, "") << describe(k, s, {N, K, 4}) << ": written outside";
  }
}

INSTANTIATE_TEST_SUITE_P(List, EveryKernel, testing::Range<size_t>(0, kernel_list().size()),
                         [](const testing::TestParamInfo<size_t>& entry) {
                           const Kernel& k = *kernel_list()[entry.param];
                           return std::string(k.name) + "_" + k.codec;
                         });

TEST(KernelList, ReferenceIsLastAndRunsEverything) {
  ASSERT_FALSE(kernel_list().empty());
  EXPECT_EQ(kernel_list().back(), &reference_kernel());
  Rng rng(1);
  for (const SchemeCase& s : scheme_cases()) {
    const MatrixCase m = make_matrix(s, 4, s.block_k == 0 ? 64 : 2 * s.block_k, rng);
    EXPECT_EQ(reference_kernel().supports(make_problem(m.w, s.act, s.x_type)), nullptr) << s.name;
  }
}

TEST(KernelList, FactsThatAKernelDoesNotNameAreRefused) {
  Problem offsets, ragged, two_level, lut;
  offsets.offsets = ragged.ragged = true;
  two_level.scale_type = ScaleType::kTwoLevel;
  lut.code = CodeType::kLut4;
  const std::tuple<Problem, Fact, const char*> facts[] = {
      {offsets, kOffsets, "the weights have an offset per group"},
      {ragged, kRagged, "groups are of unequal length"},
      {two_level, kTwoLevel, "scales are in two levels"},
      {lut, kLut, "codes are indices into a table of numbers"}};
  for (const auto& [problem, fact, reason] : facts) {
    size_t takes = 0;
    for (const Kernel* k : kernel_list()) {
      if ((k->facts & fact) != 0)
        ++takes;
      else
        EXPECT_STREQ(k->supports(problem), reason) << title(*k);
    }
    EXPECT_GE(takes, 2u) << reason;
  }
}

TEST(KernelList, NamesAndFactsAreSane) {
  for (const Kernel* k : kernel_list()) {
    EXPECT_GE(k->n_step, 1u) << title(*k);
    EXPECT_EQ(k->n_tile % k->n_step, 0u) << title(*k);
    EXPECT_GE(k->m_tile, 1u) << title(*k);
    EXPECT_NE(k->limits, nullptr) << title(*k);
    EXPECT_NE(k->numerics, nullptr) << title(*k);
    EXPECT_NE(k->packed_bytes, nullptr) << title(*k);
    for (const char* c = k->name; *c != '\0'; ++c)
      EXPECT_TRUE((*c >= 'a' && *c <= 'z') || (*c >= '0' && *c <= '9') || *c == '_') << k->name;
    size_t same = 0;
    for (const Kernel* other : kernel_list()) same += title(*other) == title(*k) ? 1 : 0;
    EXPECT_EQ(same, 1u) << title(*k) << " stands twice in the list";
  }
}

// A matrix of other codes, packed, with every code put where code_at says has the bytes of the matrix,
// packed: every dense type, and 8-bit codes with a scale per row. The place is a sum of one part per
// index.
TEST_P(EveryKernel, SaysWhereElementsLie) {
  Rng rng(test_seed());
  size_t ran = 0;
  for (const CodeType code :
       {CodeType::kF32, CodeType::kF16, CodeType::kBf16, CodeType::kInt8, CodeType::kFp8})
    for (const auto& [N, K] :
         {std::pair<size_t, size_t>{1, 128}, {8, 96}, {33, 40}, {128, 128}, {128, 576}}) {
      const bool eight = code == CodeType::kInt8 || code == CodeType::kFp8;
      const size_t element = code == CodeType::kF32 ? 4 : eight ? 1 : 2;
      std::vector<uint8_t> full(N * K * element), flat(N * K * element, 1);
      for (uint8_t& c : full) c = static_cast<uint8_t>(rng());
      if (code == CodeType::kFp8)  // no NaN; many subnormals in every row and group, as in `flat`
        for (size_t i = 0; i < full.size(); ++i)
          full[i] = i % 4 == 0 ? 1 : (full[i] & 0x7f) == 0x7f ? 0 : full[i];
      const std::vector<float> ones(N, 1.0f);
      QuantMatrix w;
      w.N = N, w.K = K, w.code = code, w.bits = static_cast<uint8_t>(8 * element);
      w.block_n = eight ? 1 : N, w.block_k = K, w.row_bytes = K * element;
      if (eight) {
        w.scale_type = ScaleType::kF32, w.scale_stride = 1;
        w.scales = reinterpret_cast<const uint8_t*>(ones.data());
      }
      const Problem problem = make_problem(w, ActSpec{}, XType::kBf16);
      if (k.supports(problem) != nullptr) continue;
      ASSERT_NE(k.code_at, nullptr) << title(k) << " does not say where codes lie";
      GuardedBytes packed(k.packed_bytes(problem)), expected(k.packed_bytes(problem));
      std::memset(packed.data(), 0, packed.size());
      std::memset(expected.data(), 0, expected.size());
      w.codes = flat.data();
      k.pack({&problem, &w, 0, N, packed.data()});
      w.codes = full.data();
      k.pack({&problem, &w, 0, N, expected.data()});
      const size_t origin = k.code_at(problem, 0, 0);
      std::map<uint8_t, uint8_t> byte_of;  // the same for every place
      for (size_t n = 0; n < N; ++n)
        for (size_t i = 0; i < K; ++i) {
          const size_t at = k.code_at(problem, n, i);
          ASSERT_LE(at + element, packed.size());
          ASSERT_EQ(at + origin, k.code_at(problem, n, 0) + k.code_at(problem, 0, i));
          const uint8_t* given = full.data() + (n * K + i) * element;
          if (eight) {
            const auto [kept, fresh] = byte_of.emplace(*given, expected.data()[at]);
            ASSERT_EQ(kept->second, expected.data()[at]) << "a code has two bytes";
            packed.data()[at] = kept->second;
          } else {
            std::memcpy(packed.data() + at, given, element);
          }
        }
      EXPECT_EQ(std::memcmp(packed.data(), expected.data(), packed.size()), 0)
          << title(k) << ", code " << static_cast<int>(code) << ", N=" << N << ", K=" << K;
      EXPECT_FALSE(packed.damaged());
      ++ran;
    }
  std::printf("%s: %zu matrices\n", title(k).c_str(), ran);
}

// A tiny bound check of the judge itself: a wrong answer must be seen.
TEST(KernelJudge, SeesAWrongElementAndAWrongNan) {
  const std::vector<float> expected = {1.0f, 2.0f};
  const std::vector<double> bound = {1e-6, 1e-6};
  EXPECT_EQ(compare(Numerics::kReordered, {1.0f, 2.0000005f}, expected, bound, 2), "");
  EXPECT_NE(compare(Numerics::kReordered, {1.0f, 2.00001f}, expected, bound, 2), "");
  EXPECT_NE(compare(Numerics::kExact, {1.0f, 2.0000002f}, expected, bound, 2), "");
  EXPECT_NE(compare(Numerics::kReordered, {1.0f, std::nanf("")}, expected, bound, 2), "");
}

}  // namespace
}  // namespace moebius::test::kernel_test
