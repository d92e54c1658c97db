// SPDX-License-Identifier: Apache-2.0
// The linear layer against the product's definition: every scheme, fused parts with their own
// output scales, padded outputs, independence of threads and batch, row-parallel ranks, bad calls.
#include "nn/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/math_functions.h"
#include "kernels/kernel_cases.h"
#include "kernels/list.h"
#include "kernels/prepared_rows.h"
#include "quant/reference.h"
#include "quant/slice.h"
#include "unit/nn/moe_cases.h"

namespace moebius::test::linear_test {
namespace {

SchemeCase scheme(const std::string& name) {
  for (const SchemeCase& s : scheme_cases())
    if (s.name == name) return s;
  throw std::runtime_error("no scheme " + name);
}

LinearPart part_of(const MatrixCase& m, const SchemeCase& s, const Kernel& kernel) {
  LinearPart p;
  p.plan = {make_problem(m.w, s.act, s.x_type), &kernel, {}};
  p.w = &m.w;
  p.act = m.params;
  p.name = "linear";
  return p;
}

std::unique_ptr<LinearLayer> layer_of(const MatrixCase& m, const SchemeCase& s,
                                      const Kernel& kernel, std::span<const float> bias = {}) {
  std::vector<LinearPart> parts{part_of(m, s, kernel)};
  parts[0].bias = bias;
  return std::make_unique<LinearLayer>(std::move(parts), nullptr);
}

std::vector<float> definition(const MatrixCase& m, const SchemeCase& s,
                              const std::vector<float>& x) {
  const size_t T = x.size() / m.w.K;
  const XType row_type = quantizer_row_type(make_problem(m.w, s.act, s.x_type));
  const QuantRowsBuffer rows = quantize_rows(x.data(), m.w.K, T, m.w.K, s.act, m.params, row_type);
  std::vector<float> y(T * m.w.N);
  reference_gemm(m.w, rows.rows, 0, m.w.N, y.data(), m.w.N);
  return y;
}

std::vector<float> rows_of(const SchemeCase& s, size_t T, size_t K, bool ugly, Rng& rng) {
  if (T == 0) return {};
  const GuardedBytes rows = make_rows(s, T, K, K, ugly, rng);
  return {rows.as<float>(), rows.as<float>() + T * K};
}

// x in the type the scheme wants.
struct Input {
  std::vector<float> values;
  std::vector<uint16_t> halves;
  ConstRows view;
  Input(const SchemeCase& s, std::vector<float> v, size_t K) : values(std::move(v)) {
    view = {values.data(), dtype_of(s.x_type), values.size() / K, K, K};
    if (s.x_type == XType::kF32) return;
    for (const float f : values)
      halves.push_back(s.x_type == XType::kBf16 ? f32_to_bf16(f) : f32_to_f16(f));
    view.data = halves.data();
  }
};

std::vector<float> run(const LinearLayer& layer, const ConstRows& x, ThreadPool& pool) {
  std::vector<float> y(x.rows * layer.out_features(), std::numeric_limits<float>::quiet_NaN());
  layer.forward(x, f32_rows(y.data(), x.rows, layer.out_features()), pool);
  return y;
}

TEST(Linear, EverySchemeEqualsTheDefinition) {
  Rng rng(test_seed());
  ThreadPool pool(3);
  for (const SchemeCase& s : scheme_cases()) {
    const size_t N = 1 + rng() % 90, K = 1 + rng() % 150;
    const MatrixCase m = make_matrix(s, N, K, rng);
    std::vector<float> bias(rng() % 2 == 0 ? N : 0);
    for (float& b : bias) b = static_cast<float>(rng() % 100) * 0.01f;
    for (const size_t T : {0u, 1u, 5u, 33u}) {
      const Input x(s, rows_of(s, T, K, true, rng), K);
      std::vector<float> want = definition(m, s, x.values);
      for (size_t i = 0; i < want.size() && !bias.empty(); ++i) want[i] += bias[i % N];
      for (const Kernel* k : kernel_list()) {
        if (!missing_features(detect_cpu(), k->arch, k->needs).empty()) continue;
        const Problem p = make_problem(m.w, s.act, s.x_type);
        if (k->supports(p) != nullptr || k->numerics(p) != Numerics::kExact) continue;
        const std::vector<float> got = run(*layer_of(m, s, *k, bias), x.view, pool);
        EXPECT_EQ(first_difference(got, want), -1) << s.name << " " << k->name << " T " << T;
      }
    }
  }
}

TEST(Linear, BytesDoNotDependOnThreadsOrBatch) {
  Rng rng(2);
  for (const char* name : {"w4a8 g32", "w4a16 g32 x1", "fp8 block 128x128", "dense bf16 x1",
                           "nvfp4", "two levels 4 bits g32 offsets", "table 1 two levels"}) {
    const SchemeCase s = scheme(name);
    const size_t N = 300, K = 256, T = 290;
    const MatrixCase m = make_matrix(s, N, K, rng);
    const Kernel* kernel = nullptr;
    for (const Kernel* k : kernel_list())
      if (kernel == nullptr && missing_features(detect_cpu(), k->arch, k->needs).empty() &&
          k->supports(make_problem(m.w, s.act, s.x_type)) == nullptr)
        kernel = k;
    const auto layer = layer_of(m, s, *kernel);
    const Input x(s, rows_of(s, T, K, true, rng), K);
    ThreadPool one(1);
    const std::vector<float> want = run(*layer, x.view, one);
    for (const size_t threads : {2u, 7u, 64u}) {
      ThreadPool pool(threads);
      EXPECT_EQ(first_difference(run(*layer, x.view, pool), want), -1) << name << " " << threads;
      for (const auto& [t0, t1] : {std::pair<size_t, size_t>{0, 1}, {5, 8}, {100, 290}}) {
        ConstRows part = x.view;
        part.rows = t1 - t0;
        part.data = static_cast<const uint8_t*>(part.data) + t0 * K * (bits_of(part.dtype) / 8);
        EXPECT_EQ(
            first_difference(run(*layer, part, pool), {want.begin() + static_cast<long>(t0 * N),
                                                       want.begin() + static_cast<long>(t1 * N)}),
            -1)
            << name << " rows " << t0;
      }
    }
  }
}

TEST(Linear, FusedPartsKeepTheirOwnScalesAndOrders) {
  Rng rng(3);
  ThreadPool pool(2);
  const SchemeCase a = scheme("w2a8 static (wna8o8)"), b = scheme("w4a8 static g32"),
                   c = scheme("w4a8 g32 columns 1"), d = scheme("w4a8 g32 columns 1");
  const size_t K = 96, T = 11;
  std::vector<MatrixCase> m;
  m.push_back(make_matrix(a, 20, K, rng));
  m.push_back(make_matrix(b, 33, K, rng));
  m.push_back(make_matrix(c, 8, K, rng));
  m.push_back(make_matrix(d, 16, K, rng));
  m[1].params.scale = 0.05f;
  const SchemeCase* s[] = {&a, &b, &c, &d};
  const float scales[] = {0.1f, 0.3f, 0.0f, 0.0f};
  std::vector<float> bias(33, 0.25f);
  std::vector<LinearPart> parts;
  for (size_t i = 0; i < 4; ++i) {
    parts.push_back(part_of(m[i], *s[i], reference_kernel()));
    parts[i].output_scale = scales[i];
  }
  parts[1].bias = bias;
  parts[3].padded_n = 24;
  const LinearLayer layer(std::move(parts), &pool);
  ASSERT_EQ(layer.out_features(), 20u + 33 + 8 + 24);
  const Input x(a, rows_of(a, T, K, false, rng), K);
  const std::vector<float> got = run(layer, x.view, pool);
  size_t n0 = 0;
  for (size_t i = 0; i < 4; ++i) {
    const std::vector<float> product = definition(m[i], *s[i], x.values);
    const size_t N = m[i].w.N;
    for (size_t t = 0; t < T; ++t) {
      for (size_t n = 0; n < N; ++n) {
        float want = product[t * N + n] + (i == 1 ? bias[n] : 0.0f);
        if (scales[i] != 0.0f) want = fake_quantize(want, scales[i]);
        EXPECT_EQ(got[t * 85 + n0 + n], want) << "part " << i << " row " << t << " column " << n;
      }
      for (size_t n = N; i == 3 && n < 24; ++n) EXPECT_EQ(got[t * 85 + n0 + n], 0.0f) << "padding";
    }
    n0 += N;
  }
}

TEST(Linear, OutputTypesAreRoundedOnce) {
  Rng rng(4);
  ThreadPool pool(2);
  const SchemeCase s = scheme("w4a8 g32");
  const MatrixCase m = make_matrix(s, 40, 64, rng);
  const auto layer = layer_of(m, s, reference_kernel());
  const Input x(s, rows_of(s, 7, 64, true, rng), 64);
  const std::vector<float> exact = run(*layer, x.view, pool);
  std::vector<uint16_t> half(7 * 50, 0x1234);
  layer->forward(x.view, Rows{half.data(), DType::kBf16, 7, 40, 50}, pool);
  for (size_t t = 0; t < 7; ++t) {
    for (size_t n = 0; n < 40; ++n) EXPECT_EQ(half[t * 50 + n], f32_to_bf16(exact[t * 40 + n]));
    for (size_t n = 40; n < 50; ++n) EXPECT_EQ(half[t * 50 + n], 0x1234);
  }
}

// Ranks hold slices of the columns, exchange row maxima, and their products add up to the single
// rank's.
TEST(Linear, RowParallelRanksAddUp) {
  Rng rng(5);
  const size_t N = 24, K = 128, T = 6;
  for (const char* name : {"w4a8 g32", "w8a8 packed", "fp8 channel token", "w4a8 ct g32",
                           "w4a8 static g32", "w4a16 g32 x0", "w4afp8 g128", "w4a4 g128"}) {
    const SchemeCase s = scheme(name);
    const MatrixCase m = make_matrix(s, N, K, rng);
    const Input x(s, rows_of(s, T, K, true, rng), K);
    const std::vector<float> want = definition(m, s, x.values);
    for (const size_t ranks : {2u, 4u, 8u}) {
      std::vector<std::vector<float>> partial(ranks, std::vector<float>(T * N));
      std::vector<std::vector<float>> amax(ranks);
      std::mutex mutex;
      std::condition_variable changed;
      size_t arrived = 0;
      std::vector<std::thread> threads;
      for (size_t r = 0; r < ranks; ++r) {
        threads.emplace_back([&, r] {
          SliceMemory memory;
          const auto [c0, c1] = parallel_range(K, r, ranks, "K");
          const QuantMatrix w = slice_columns(m.w, c0, c1, memory);
          LinearPart part;
          part.plan.problem = make_problem(w, s.act, s.x_type);
          if (needs_shared_amax(s.act)) part.plan.shared_amax = s.act;
          part.plan.problem = row_parallel_problem(part.plan.problem);
          part.plan.kernel = &reference_kernel();
          part.w = &w;
          part.act = m.params;
          std::vector<LinearPart> parts{part};
          const LinearLayer layer(std::move(parts), nullptr);
          const auto exchange = [&](float* mine, size_t n) {
            std::unique_lock lock(mutex);
            amax[r].assign(mine, mine + n);
            ++arrived;
            changed.notify_all();
            changed.wait(lock, [&] { return arrived == ranks; });
            for (size_t i = 0; i < n; ++i)
              for (size_t q = 0; q < ranks; ++q) mine[i] = std::max(mine[i], amax[q][i]);
          };
          const AmaxReduce reduce(exchange);
          ThreadPool pool(1);
          ConstRows view = x.view;
          view.cols = c1 - c0;
          view.data = static_cast<const uint8_t*>(view.data) + c0 * (bits_of(view.dtype) / 8);
          layer.forward(view, f32_rows(partial[r].data(), T, N), pool, &reduce);
        });
      }
      for (std::thread& t : threads) t.join();
      std::vector<float> sum(T * N, 0.0f);
      for (const auto& p : partial)
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += p[i];
      for (size_t t = 0; t < T; ++t) {
        double norm = 0;
        for (size_t n = 0; n < N; ++n) norm += std::fabs(static_cast<double>(want[t * N + n]));
        for (size_t n = 0; n < N; ++n) {
          if (!(norm < 1e30)) {  // overflow depends on the order of additions, NaN does not
            if (std::isnan(want[t * N + n])) {
              EXPECT_TRUE(std::isnan(sum[t * N + n])) << name << " row " << t;
            }
            continue;
          }
          EXPECT_NEAR(sum[t * N + n], want[t * N + n], 1e-5 * norm + 1e-44)
              << name << " ranks " << ranks << " row " << t;
        }
      }
    }
  }
  EXPECT_THROW(
      row_parallel_problem(make_problem(make_matrix(scheme("w4a8 asym rows g32"), N, K, rng).w,
                                        scheme("w4a8 asym rows g32").act, XType::kF32)),
      Error);
}

template <class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Linear, BadCallsNameBothSides) {
  Rng rng(6);
  ThreadPool pool(1);
  const SchemeCase s = scheme("w4a16 g32 x1");
  const MatrixCase m = make_matrix(s, 8, 32, rng);
  const auto layer = layer_of(m, s, reference_kernel());
  const Input x(s, rows_of(s, 3, 32, false, rng), 32);
  std::vector<float> y(24);
  const auto call = [&](const ConstRows& in, const Rows& out) {
    return message_of([&] { layer->forward(in, out, pool); });
  };
  EXPECT_EQ(call(x.view, f32_rows(y.data(), 3, 8)), "no error");
  EXPECT_EQ(call(f32_rows(x.values.data(), 3, 32), f32_rows(y.data(), 3, 8)), "no error");
  ConstRows half = x.view;
  half.dtype = DType::kF16;
  EXPECT_EQ(call(half, f32_rows(y.data(), 3, 8)), "x is F16; the layer was built for BF16");
  EXPECT_EQ(call(x.view, f32_rows(y.data(), 2, 8)), "y is [2,8]; expected [3,8]");
  EXPECT_EQ(call(f32_rows(x.values.data(), 3, 31), f32_rows(y.data(), 3, 8)),
            "x is [3,31]; expected [3,32]");
  LinearPart part = part_of(m, s, reference_kernel());
  part.plan.problem.N = 9;
  EXPECT_EQ(message_of([&] { LinearLayer bad({part}, nullptr); }),
            "linear is [8,32]; expected [9,32]");
  part = part_of(m, s, reference_kernel());
  part.plan.kernel = nullptr;
  EXPECT_EQ(message_of([&] { LinearLayer bad({part}, nullptr); }), "linear: no kernel was chosen");
  EXPECT_NE(message_of([&] { LinearLayer bad({}, nullptr); }), "no error");
}

}  // namespace
}  // namespace moebius::test::linear_test
