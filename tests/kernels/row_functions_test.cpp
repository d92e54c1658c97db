// SPDX-License-Identifier: Apache-2.0
// The judge of the row functions: every table that can run here, every function, against the scalar
// definitions of base/ (and quant/reference for quantization), equal bytes, any NaN for any NaN where
// the definition does not say which. All lengths around the widths of vectors, every alignment of a
// float, special values, memory that faults when it is left. What cannot run here is printed.
#include "kernels/row_functions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>

#include "base/math_functions.h"
#include "kernels/kernel_cases.h"
#include "kernels/list.h"
#include "kernels/prepared_rows.h"

namespace moebius::test::row_functions_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<const RowFunctions*> runnable() {
  std::vector<const RowFunctions*> found;
  for (const RowFunctions* f : row_function_list())
    if (missing_features(detect_cpu(), f->arch, f->needs).empty()) found.push_back(f);
  return found;
}

std::vector<size_t> lengths() {
  std::vector<size_t> n;
  for (size_t i = 0; i <= 70; ++i) n.push_back(i);
  n.insert(n.end(), {127, 128, 129, 255, 256, 257, 1000});
  return n;
}

// n numbers that end at an unmapped page (so that every length has another alignment): the usual
// ones, and with `ugly` special values and any bits among them.
GuardedBytes numbers(size_t n, bool ugly, Rng& rng) {
  static const float kSpecial[] = {0.0f,
                                   -0.0f,
                                   kInf,
                                   -kInf,
                                   kNan,
                                   -kNan,
                                   f32_from_bits(0x7F800001u),
                                   f32_from_bits(0xFFABCDEFu),
                                   1e-45f,
                                   -1e-45f,
                                   1.1754942e-38f,
                                   std::numeric_limits<float>::max(),
                                   -std::numeric_limits<float>::max(),
                                   65504.0f,
                                   65519.996f,
                                   65520.0f,
                                   -5.9604645e-8f,
                                   2.9802322e-8f,
                                   88.72284f,
                                   -87.0f,
                                   -103.97f,
                                   -104.5f,
                                   0.625f,
                                   20.000002f};
  GuardedBytes bytes(n * sizeof(float), 4);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < n; ++i) {
    float v = normal(rng) * (rng() % 4 == 0 ? 30.0f : 1.5f);
    if (ugly && rng() % 3 == 0) v = kSpecial[rng() % std::size(kSpecial)];
    if (ugly && rng() % 5 == 0) v = f32_from_bits(static_cast<uint32_t>(rng()));
    bytes.as<float>()[i] = v;
  }
  return bytes;
}
GuardedBytes copy_of(const GuardedBytes& from) {
  GuardedBytes to(from.size(), 4);
  std::memcpy(to.data(), from.data(), from.size());
  return to;
}

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof a) == 0;
}
::testing::AssertionResult all_same(const float* got, const float* expected, size_t n) {
  for (size_t i = 0; i < n; ++i)
    if (!same(got[i], expected[i]))
      return ::testing::AssertionFailure()
             << "element " << i << " of " << n << ": " << got[i] << ", expected " << expected[i];
  return ::testing::AssertionSuccess();
}

float rounded(XType type, float v) {
  if (type == XType::kBf16) return bf16_to_f32(f32_to_bf16(v));
  return type == XType::kF16 ? f16_to_f32(f32_to_f16(v)) : v;
}
constexpr XType kTypes[] = {XType::kF32, XType::kBf16, XType::kF16};

// Runs `judge` for every table, length and kind of numbers.
void for_each_case(const std::function<void(const RowFunctions&, size_t, bool, Rng&)>& judge) {
  for (const RowFunctions* f : runnable()) {
    Rng rng(test_seed());
    for (const size_t n : lengths())
      for (const bool ugly : {false, true}) {
        SCOPED_TRACE(std::string(f->name) + ", " + std::to_string(n) + (ugly ? " ugly" : "") +
                     " numbers, seed " + std::to_string(test_seed()));
        judge(*f, n, ugly, rng);
        if (::testing::Test::HasFatalFailure()) return;
      }
  }
}

TEST(RowFunctions, WhatRunsHere) {
  size_t count = 0;
  for (const RowFunctions* f : row_function_list()) {
    const std::string missing = missing_features(detect_cpu(), f->arch, f->needs);
    if (!missing.empty()) {
      std::printf("%s was not run: %s\n", f->name, missing.c_str());
      continue;
    }
    ++count;
    EXPECT_NE(f->load, nullptr) << f->name;
    EXPECT_NE(f->prepare_rows, nullptr) << f->name;
  }
  EXPECT_GE(count, 1u);
  EXPECT_EQ(row_function_list().back()->arch, Arch::kOther);
}

TEST(RowFunctions, ChosenByTheCpu) {
  const auto name = [](Arch arch, uint32_t features) {
    Cpu cpu;
    cpu.arch = arch, cpu.features = features;
    return std::string(choose_row_functions(cpu).name);
  };
  EXPECT_EQ(name(Arch::kOther, 0), "generic");
  EXPECT_EQ(name(Arch::kAarch64, kNeon), "arm_neon");
  EXPECT_EQ(name(Arch::kAarch64, kNeon | kDotprod | kI8mm | kSve), "arm_neon");
  EXPECT_EQ(name(Arch::kX86_64, 0), "generic");
  EXPECT_EQ(name(Arch::kX86_64, kAvx2), "generic");
  EXPECT_EQ(name(Arch::kX86_64, kAvx2 | kFma | kF16c), "x86_avx2");
  EXPECT_EQ(name(Arch::kX86_64, kAvx2 | kFma | kF16c | kAvx512f), "x86_avx2");
  EXPECT_EQ(name(Arch::kX86_64, kAvx2 | kFma | kF16c | kAvx512f | kAvx512bw), "x86_avx512");
  EXPECT_EQ(&row_functions(), &choose_row_functions(host_cpu()));
  Cpu other = parse_cpu(kHostArch == Arch::kAarch64 ? "avx2" : "neon");
  other.here = true;  // their functions are not in this program
  EXPECT_STREQ(choose_row_functions(other).name, "generic");
}

TEST(RowFunctions, Conversions) {
  for_each_case([](const RowFunctions& f, size_t n, bool ugly, Rng& rng) {
    const GuardedBytes x = numbers(n, ugly, rng);
    for (const XType type : kTypes) {
      const size_t size = type == XType::kF32 ? 4 : 2;
      const GuardedBytes half(n * size, 2), back(n * 4, 4), round = copy_of(x);
      f.store(type, x.as<float>(), half.data(), n);
      f.round(type, round.as<float>(), n);
      for (size_t i = 0; i < n; ++i) {
        const float v = x.as<float>()[i];
        // The bits of a NaN count too.
        ASSERT_EQ(f32_bits(round.as<float>()[i]), f32_bits(rounded(type, v))) << f32_bits(v);
        if (type == XType::kF32) {
          ASSERT_EQ(half.as<uint32_t>()[i], f32_bits(v));
        } else {
          ASSERT_EQ(half.as<uint16_t>()[i], type == XType::kBf16 ? f32_to_bf16(v) : f32_to_f16(v))
              << v;
        }
      }
      for (size_t i = 0; ugly && i < n * size; ++i) half.data()[i] = static_cast<uint8_t>(rng());
      f.load(type, half.data(), back.as<float>(), n);
      for (size_t i = 0; i < n; ++i) {
        const float v = type == XType::kF32    ? half.as<float>()[i]
                        : type == XType::kBf16 ? bf16_to_f32(half.as<uint16_t>()[i])
                                               : f16_to_f32(half.as<uint16_t>()[i]);
        ASSERT_EQ(f32_bits(back.as<float>()[i]), f32_bits(v));
      }
      ASSERT_FALSE(half.damaged() || back.damaged() || round.damaged());
    }
  });
}

TEST(RowFunctions, EveryHalfAndManyFloats) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> floats(1u << 20);
  for (size_t i = 0; i < floats.size(); ++i)
    floats[i] = f32_from_bits(static_cast<uint32_t>(i) * 4099u);
  for (const RowFunctions* f : runnable()) {
    std::vector<float> wide(halves.size());
    f->load(XType::kF16, halves.data(), wide.data(), halves.size());
    for (size_t i = 0; i < halves.size(); ++i)
      ASSERT_EQ(f32_bits(wide[i]), f32_bits(f16_to_f32(halves[i]))) << f->name << " " << i;
    std::vector<uint16_t> narrow(floats.size());
    f->store(XType::kF16, floats.data(), narrow.data(), floats.size());
    for (size_t i = 0; i < floats.size(); ++i)
      ASSERT_EQ(narrow[i], f32_to_f16(floats[i])) << f->name << " " << i;
    f->store(XType::kBf16, floats.data(), narrow.data(), floats.size());
    for (size_t i = 0; i < floats.size(); ++i)
      ASSERT_EQ(narrow[i], f32_to_bf16(floats[i])) << f->name << " " << i;
  }
}

TEST(RowFunctions, Combine) {
  for_each_case([](const RowFunctions& f, size_t n, bool ugly, Rng& rng) {
    const GuardedBytes a = numbers(n, ugly, rng), b = numbers(n, ugly, rng);
    const float s = ugly && rng() % 4 == 0 ? 1e-40f : 0.37f;
    using Scalar = std::function<float(float, float)>;
    const auto expect = [&](const char* what, const GuardedBytes& y, const Scalar& scalar) {
      std::vector<float> expected(n);
      for (size_t i = 0; i < n; ++i) expected[i] = scalar(a.as<float>()[i], b.as<float>()[i]);
      ASSERT_TRUE(all_same(y.as<float>(), expected.data(), n)) << what;
      ASSERT_FALSE(y.damaged()) << what;
    };
    const GuardedBytes add = copy_of(a), scale = copy_of(a), divide(n * 4, 4), fma = copy_of(a),
                       scaled = copy_of(a), scale_add = copy_of(a);
    f.add(add.as<float>(), b.as<float>(), n);
    expect("add", add, [](float x, float y) { return x + y; });
    const GuardedBytes multiply = copy_of(a);
    f.multiply(multiply.as<float>(), b.as<float>(), n);
    expect("multiply", multiply, [](float x, float y) { return x * y; });
    f.scale(scale.as<float>(), s, n);
    expect("scale", scale, [=](float x, float) { return x * s; });
    f.divide(a.as<float>(), s, divide.as<float>(), n);
    expect("divide", divide, [=](float x, float) { return x / s; });
    f.fma(fma.as<float>(), s, b.as<float>(), n);
    expect("fma", fma, [=](float x, float y) { return std::fma(s, y, x); });
    f.add_scaled(scaled.as<float>(), s, b.as<float>(), n);
    expect("add_scaled", scaled, [=](float x, float y) { return x + s * y; });
    f.scale_and_add(scale_add.as<float>(), s, b.as<float>(), n);
    expect("scale_and_add", scale_add, [=](float x, float y) { return x * s + y; });
  });
}

TEST(RowFunctions, TokensOfADraw) {
  for_each_case([](const RowFunctions& f, size_t n, bool ugly, Rng& rng) {
    const GuardedBytes x = numbers(n, ugly, rng), w(n * 4, 4);
    float top = -kInf;
    for (size_t i = 0; i < n; ++i) top = x.as<float>()[i] > top ? x.as<float>()[i] : top;
    ASSERT_EQ(f.greatest(x.as<float>(), n), top);
    if (!std::isfinite(top)) top = 30.0f;
    for (const float rate : {1.44269504f, 0.01f, 3e38f}) {
      std::vector<float> expected(n);
      double sum = 0;
      for (size_t i = 0; i < n; ++i)
        sum += static_cast<double>(
            expected[i] = token_weight_f32(std::min(x.as<float>()[i], top), top, rate, 0x1p-11f));
      const GuardedBytes bounded = copy_of(x);
      for (size_t i = 0; i < n; ++i)
        bounded.as<float>()[i] = std::min(x.as<float>()[i], top);  // a NaN stays one
      ASSERT_EQ(f.weigh({top, rate, 0x1p-11f}, bounded.as<float>(), w.as<float>(), n), sum);
      ASSERT_TRUE(all_same(w.as<float>(), expected.data(), n));
      ASSERT_FALSE(w.damaged());
    }
  });
}

TEST(RowFunctions, WeightsOfTokens) {
  for (int i = 0; i <= 30000; ++i) {
    const float x = static_cast<float>(i) * -1e-3f;
    const double want = std::exp2(static_cast<double>(x));
    const double got = static_cast<double>(token_weight_f32(x, 0.0f, 1.0f, 0x1p-11f));
    EXPECT_EQ(got, std::nearbyint(got * 0x1p34) * 0x1p-34) << x;  // on the grid
    EXPECT_LE(std::abs(got - want), 3e-7 * want + 0x1p-35) << x;
  }
  EXPECT_EQ(token_weight_f32(5.0f, 5.0f, 3e38f, 0x1p-11f), 1.0f);
  for (const float never : {kNan, -kInf, -100.0f})
    EXPECT_EQ(token_weight_f32(never, 0.0f, 1.44269504f, 0x1p-11f), 0.0f);
}

struct ScalarActivation {
  RowActivation what;
  float (*scalar)(float g, float x);
};
const ScalarActivation kActivations[] = {
    {{RowFunction::kSiluAndMul}, [](float g, float x) { return silu_and_mul(g, x); }},
    {{RowFunction::kSiluLimitAndMul, 7.0f},
     [](float g, float x) { return silu_limit_and_mul(g, x, 7.0f); }},
    {{RowFunction::kGeluAndMul}, [](float g, float x) { return gelu_and_mul(g, x); }},
    {{RowFunction::kGeluTanhAndMul}, [](float g, float x) { return gelu_tanh_and_mul(g, x); }},
    {{RowFunction::kSwigluOai, 7.0f, 1.702f, 1.0f},
     [](float g, float x) { return swigluoai(g, x, 1.702f, 7.0f, 1.0f); }},
    {{RowFunction::kSwigluStep, 6.0f}, [](float g, float x) { return swiglustep(g, x, 6.0f); }},
    {{RowFunction::kSitu, 0.0f, 0.0f, 0.0f, 2.0f},
     [](float g, float x) { return situ(g, x, 2.0f); }},
    {{RowFunction::kSituBoth, 0.0f, 0.0f, 0.0f, 2.0f, 3.0f},
     [](float g, float x) { return situ(g, x, 2.0f, 3.0f); }},
    {{RowFunction::kSilu}, [](float, float x) { return silu_f32(x); }},
    {{RowFunction::kGelu}, [](float, float x) { return gelu_f32(x); }},
    {{RowFunction::kGeluTanh}, [](float, float x) { return gelu_tanh_f32(x); }},
    {{RowFunction::kRelu2}, [](float, float x) { return relu2_f32(x); }},
    {{RowFunction::kSigmoid}, [](float, float x) { return sigmoid_f32(x); }},
    {{RowFunction::kSoftplus}, [](float, float x) { return softplus_f32(x); }},
    {{RowFunction::kSqrtSoftplus}, [](float, float x) { return sqrtsoftplus_f32(x); }},
    {{RowFunction::kCap, 30.0f}, [](float, float x) { return 30.0f * tanh_f32(x / 30.0f); }},
};

TEST(RowFunctions, Activations) {
  for_each_case([](const RowFunctions& f, size_t n, bool ugly, Rng& rng) {
    const GuardedBytes g = numbers(n, ugly, rng), x = numbers(n, ugly, rng);
    for (const ScalarActivation& a : kActivations) {
      const bool gated = a.what.function <= RowFunction::kSituBoth;
      std::vector<float> expected(n);
      for (size_t i = 0; i < n; ++i) expected[i] = a.scalar(g.as<float>()[i], x.as<float>()[i]);
      const GuardedBytes y(n * 4, 4), on_gate = copy_of(g), on_x = copy_of(x);
      const int which = static_cast<int>(a.what.function);
      f.activate(a.what, gated ? g.as<float>() : nullptr, x.as<float>(), y.as<float>(), n);
      ASSERT_TRUE(all_same(y.as<float>(), expected.data(), n)) << which;
      f.activate(a.what, gated ? g.as<float>() : nullptr, on_x.as<float>(), on_x.as<float>(), n);
      ASSERT_TRUE(all_same(on_x.as<float>(), expected.data(), n)) << which << " in place";
      if (gated) {
        f.activate(a.what, on_gate.as<float>(), x.as<float>(), on_gate.as<float>(), n);
        ASSERT_TRUE(all_same(on_gate.as<float>(), expected.data(), n)) << which;
      }
      ASSERT_FALSE(y.damaged() || on_x.damaged() || on_gate.damaged());
    }
  });
}

// The order of sums, by its words: 16 lanes, then pairs `first` lanes apart, then `second`, 2, 1.
float lanes_sum(const std::vector<float>& terms, size_t first, size_t second) {
  float lane[16] = {};
  for (size_t i = 0; i < terms.size(); ++i) lane[i % 16] += terms[i];
  float four[4];
  for (size_t l = 0; l < 4; ++l)
    four[l] = (lane[l] + lane[l + first]) + (lane[l + second] + lane[l + first + second]);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

TEST(RowFunctions, ExpMinus) {
  for_each_case([](const RowFunctions& f, size_t n, bool ugly, Rng& rng) {
    const GuardedBytes x = numbers(n, ugly, rng), y(n * 4, 4);
    float top = ugly ? 1.0f : -kInf;
    for (size_t i = 0; i < n; ++i) {
      if (ugly) x.as<float>()[i] = std::min(x.as<float>()[i], top);  // a NaN stays
      top = std::max(top, x.as<float>()[i]);
    }
    f.exp_minus(x.as<float>(), top, y.as<float>(), n);
    std::vector<float> expected(n);
    for (size_t i = 0; i < n; ++i) expected[i] = exp_f32(x.as<float>()[i] - top);
    ASSERT_TRUE(all_same(y.as<float>(), expected.data(), n));
    ASSERT_FALSE(y.damaged());
  });
}

// One step by its words, with the scalar exponentials.
struct Softmax {
  std::vector<float> p;
  float m, l, keep;
};
Softmax softmax_by_definition(const float* s, size_t n, float scale, bool coarse, float m,
                              float l) {
  Softmax r{std::vector<float>(n), m, l, 1.0f};
  float most = -kInf;
  for (size_t i = 0; i < n; ++i) most = std::isnan(s[i]) || s[i] > most ? s[i] : most;
  for (size_t i = 0; i < n; ++i)
    if (std::isnan(s[i])) return r.l = kNan, r;
  const float top = std::max(m, most * scale);
  if (top == -kInf) return r;
  for (size_t i = 0; i < n; ++i)
    r.p[i] = coarse ? exp_coarse_f32(s[i] * scale - top) : exp_f32(s[i] * scale - top);
  r.keep = m == top ? 1.0f : exp_f32(m - top);
  r.l = l * r.keep + lanes_sum(r.p, 4, 8);
  r.m = top;
  return r;
}

TEST(RowFunctions, SoftmaxStep) {
  for_each_case([](const RowFunctions& f, size_t n, bool ugly, Rng& rng) {
    for (const bool coarse : {false, true}) {
      const GuardedBytes s = numbers(n, false, rng);
      for (size_t i = 0; i < n; ++i) {
        if (rng() % 4 == 0) s.as<float>()[i] = -kInf;           // not seen
        if (ugly && rng() % 8 == 0) s.as<float>()[i] = -3e38f;  // far below
        if (ugly && rng() % (8 * n) == 0) s.as<float>()[i] = kNan;
      }
      const float m = rng() % 3 == 0 ? -kInf : 2.0f, l = m == -kInf ? 0.0f : 1.75f, scale = 0.125f;
      const Softmax expected = softmax_by_definition(s.as<float>(), n, scale, coarse, m, l);
      float got_m = m, got_l = l;
      const float keep = f.softmax_step(s.as<float>(), n, scale, coarse, &got_m, &got_l);
      ASSERT_TRUE(all_same(s.as<float>(), expected.p.data(), n)) << "coarse " << coarse;
      ASSERT_TRUE(same(keep, expected.keep) && same(got_m, expected.m) && same(got_l, expected.l))
          << keep << " " << expected.keep << ", " << got_m << " " << expected.m << ", " << got_l
          << " " << expected.l;
      ASSERT_FALSE(s.damaged());
    }
  });
}

TEST(RowFunctions, Convolve) {
  for_each_case([](const RowFunctions& f, size_t n, bool ugly, Rng& rng) {
    const GuardedBytes a = numbers(n, ugly, rng), b = numbers(n, ugly, rng),
                       taps = numbers(3 * n, ugly, rng), bias = numbers(n, ugly, rng);
    for (const bool with_bias : {false, true}) {
      const float* x[] = {a.as<float>(), nullptr, b.as<float>()};
      const GuardedBytes y(n * 4, 4);
      f.convolve({3, x, taps.as<float>(), with_bias ? bias.as<float>() : nullptr}, y.as<float>(),
                 n);
      std::vector<float> expected(n);
      for (size_t i = 0; i < n; ++i) {
        float sum = with_bias ? bias.as<float>()[i] : 0.0f;
        for (size_t j = 0; j < 3; ++j)
          if (x[j] != nullptr) sum = sum + taps.as<float>()[j * n + i] * x[j][i];
        expected[i] = sum;
      }
      ASSERT_TRUE(all_same(y.as<float>(), expected.data(), n)) << "bias " << with_bias;
      ASSERT_FALSE(y.damaged());
    }
  });
}

// One token by its words; S is changed.
void scan_token_by_definition(const RowScan& s, size_t t, std::vector<float>& S, float* y) {
  const auto at = [t](const TokenRows& rows) { return rows.first + t * rows.stride; };
  const float gain = *at(s.gain);
  for (size_t c = 0; c < s.width; ++c) {
    const float value = at(s.value)[c];
    float memory = 0.0f;
    y[c] = 0.0f;
    for (size_t n = 0; n < s.rows; ++n) {
      float& state = S[n * s.width + c];
      state = state * at(s.decay)[s.decay_per_row ? n : 0];
      memory = std::fma(at(s.key)[n], state, memory);
    }
    const float x = s.delta ? (value - memory) * gain : value * gain;
    for (size_t n = 0; n < s.rows; ++n) {
      float& state = S[n * s.width + c];
      state = std::fma(at(s.key)[n], x, state);
      y[c] = std::fma(at(s.query)[n], state, y[c]);
    }
  }
}

TEST(RowFunctions, Scan) {
  for_each_case([](const RowFunctions& f, size_t n, bool ugly, Rng& rng) {
    constexpr size_t kRows = 3, kTokens = 7;
    const GuardedBytes keys = numbers(kTokens * kRows, ugly, rng),
                       queries = numbers(kTokens * kRows, ugly, rng),
                       decays = numbers(kTokens * kRows, false, rng),
                       gains = numbers(kTokens, false, rng),
                       values = numbers(kTokens * n, ugly, rng),
                       before = numbers(kRows * n, ugly, rng);
    for (int kind = 0; kind < 8; ++kind) {
      RowScan s;
      s.rows = kRows, s.width = n;
      s.delta = (kind & 1) != 0, s.decay_per_row = (kind & 2) != 0;
      s.key = {keys.as<float>(), kRows}, s.query = {queries.as<float>(), kRows};
      s.decay = {decays.as<float>(), kRows}, s.gain = {gains.as<float>(), 1};
      s.value = {values.as<float>(), n};
      const GuardedBytes y(kTokens * n * 4, 4), after = copy_of(before);
      s.from = (kind & 4) != 0 ? after.as<float>() : nullptr;  // in place, or from nothing
      s.to = after.as<float>(), s.y = y.as<float>(), s.y_stride = n;
      std::vector<float> S(kRows * n), expected(kTokens * n);
      if (s.from != nullptr) std::copy_n(before.as<float>(), kRows * n, S.begin());
      for (size_t t = 0; t < kTokens; ++t)
        scan_token_by_definition(s, t, S, expected.data() + t * n);
      s.tokens = kTokens;
      f.scan(s);
      ASSERT_TRUE(all_same(y.as<float>(), expected.data(), kTokens * n)) << kind;
      ASSERT_TRUE(all_same(after.as<float>(), S.data(), kRows * n)) << kind;
      // One token, beside what it reads.
      const GuardedBytes one(n * 4, 4), beside(kRows * n * 4, 4);
      std::copy_n(before.as<float>(), kRows * n, S.begin());
      s.tokens = 1, s.from = before.as<float>(), s.to = beside.as<float>(), s.y = one.as<float>();
      scan_token_by_definition(s, 0, S, expected.data());
      f.scan(s);
      ASSERT_TRUE(all_same(one.as<float>(), expected.data(), n)) << kind << ", one token";
      ASSERT_TRUE(all_same(beside.as<float>(), S.data(), kRows * n)) << kind << ", one token";
      ASSERT_FALSE(y.damaged() || after.damaged() || one.damaged() || beside.damaged());
    }
  });
}

TEST(RowFunctions, AddProducts) {
  for_each_case([](const RowFunctions& f, size_t n, bool ugly, Rng& rng) {
    constexpr size_t kCount = 5;
    for (const size_t rows : {size_t{1}, size_t{4}, size_t{7}}) {
      const GuardedBytes a = numbers(kCount * rows, ugly, rng),
                         b = numbers(kCount * (n + 3), ugly, rng),
                         y = numbers(rows * (n + 1), ugly, rng);
      std::vector<float> expected(rows * (n + 1));
      std::copy_n(y.as<float>(), expected.size(), expected.begin());
      for (size_t i = 0; i < rows; ++i)
        for (size_t c = 0; c < n; ++c)
          for (size_t t = 0; t < kCount; ++t)
            expected[i * (n + 1) + c] =
                std::fma(a.as<float>()[t * rows + i], b.as<float>()[t * (n + 3) + c],
                         expected[i * (n + 1) + c]);
      RowProducts p;
      p.y = y.as<float>(), p.y_stride = n + 1, p.rows = rows, p.n = n;
      p.a = a.as<float>(), p.a_stride = rows;
      p.b = b.as<float>(), p.b_stride = n + 3, p.count = kCount;
      f.add_products(p);
      ASSERT_TRUE(all_same(y.as<float>(), expected.data(), expected.size())) << rows;
      ASSERT_FALSE(y.damaged());
    }
  });
}

std::vector<float> norm_by_definition(const RowNorm& norm, const float* x, size_t n) {
  std::vector<float> terms(n), y(n);
  const auto count = static_cast<float>(n);
  const bool layer = norm.kind == NormKind::kLayer;
  float mean = 0.0f;
  if (layer) mean = lanes_sum({x, x + n}, 8, 4) / count;
  for (size_t i = 0; i < n; ++i) terms[i] = layer ? (x[i] - mean) * (x[i] - mean) : x[i] * x[i];
  const float r = 1.0f / std::sqrt(lanes_sum(terms, 8, 4) / count + norm.epsilon);
  for (size_t i = 0; i < n; ++i) {
    const float w = norm.weight[i], b = norm.bias == nullptr ? 0.0f : norm.bias[i];
    switch (norm.kind) {
      case NormKind::kRms:
        y[i] = rounded(norm.type, x[i] * r) * w;
        break;
      case NormKind::kRmsFused:
        y[i] = (x[i] * r) * w;
        break;
      case NormKind::kRmsOnePlus:
        y[i] = (x[i] * r) * (1.0f + w);
        break;
      case NormKind::kRmsPlain:
        y[i] = x[i] * r;
        break;
      case NormKind::kLayer:
        y[i] = std::fma((x[i] - mean) * r, w, b);
        break;
    }
    y[i] = rounded(norm.type, y[i]);
  }
  return y;
}

TEST(RowFunctions, Norms) {
  for_each_case([](const RowFunctions& f, size_t n, bool ugly, Rng& rng) {
    const GuardedBytes x = numbers(n, ugly, rng), w = numbers(n, ugly, rng),
                       b = numbers(n, ugly, rng);
    for (const NormKind kind : {NormKind::kRms, NormKind::kRmsFused, NormKind::kRmsOnePlus,
                                NormKind::kRmsPlain, NormKind::kLayer})
      for (const XType type : kTypes) {
        const RowNorm norm{kind, type, 1e-5f, w.as<float>(),
                           rng() % 2 == 0 ? b.as<float>() : nullptr};
        const std::vector<float> expected = norm_by_definition(norm, x.as<float>(), n);
        const GuardedBytes y(n * 4, 4), place = copy_of(x);
        f.normalize(norm, x.as<float>(), y.as<float>(), n);
        f.normalize(norm, place.as<float>(), place.as<float>(), n);
        const auto what = std::to_string(static_cast<int>(kind)) + " type " +
                          std::to_string(static_cast<int>(type));
        ASSERT_TRUE(all_same(y.as<float>(), expected.data(), n)) << what;
        ASSERT_TRUE(all_same(place.as<float>(), expected.data(), n)) << what << " in place";
        ASSERT_FALSE(y.damaged() || place.damaged());
      }
  });
}

TEST(RowFunctions, Rope) {
  for_each_case([](const RowFunctions& f, size_t half, bool ugly, Rng& rng) {
    const GuardedBytes x = numbers(2 * half, ugly, rng), c = numbers(half, false, rng),
                       s = numbers(half, false, rng);
    for (const bool interleaved : {false, true})
      for (const XType type : kTypes) {
        std::vector<float> expected(2 * half);
        for (size_t j = 0; j < half; ++j) {
          const size_t i = interleaved ? 2 * j : j, k = interleaved ? 2 * j + 1 : j + half;
          const float a = x.as<float>()[i], b = x.as<float>()[k];
          const float cos = c.as<float>()[j], sin = s.as<float>()[j];
          expected[i] = rounded(type, a * cos - b * sin);
          expected[k] = rounded(type, b * cos + a * sin);
        }
        const GuardedBytes y = copy_of(x);
        f.rotate(y.as<float>(), half, c.as<float>(), s.as<float>(), interleaved, type);
        ASSERT_TRUE(all_same(y.as<float>(), expected.data(), 2 * half)) << interleaved;
        ASSERT_FALSE(y.damaged());
      }
  });
}

TEST(RowFunctions, AbsMax) {
  for_each_case([](const RowFunctions& f, size_t n, bool ugly, Rng& rng) {
    const GuardedBytes x = numbers(n, ugly, rng);
    float expected = 0.0f;
    for (size_t i = 0; i < n; ++i) {
      const float a = std::fabs(x.as<float>()[i]);
      expected = std::isfinite(a) ? std::max(expected, a) : kInf;
      if (!std::isfinite(a)) break;
    }
    ASSERT_EQ(f.abs_max(x.as<float>(), n), expected);
  });
}

// Rows of one scheme against the reference.
void expect_reference_rows(const RowFunctions& f, const Problem& p, const ActParams& params,
                           const GuardedBytes& x, size_t ldx, size_t M) {
  const PreparedLayout l = prepared_layout(p);
  const GuardedBytes rows(l.row_bytes * M);
  f.prepare_rows({&p, &params, x.as<float>(), ldx, M, rows.data()});
  ASSERT_FALSE(rows.damaged());
  const auto expected =
      quantize_rows(x.as<float>(), ldx, M, p.K, p.act, params, quantizer_row_type(p));
  const size_t bytes = p.K * act_code_bytes(p.act);
  for (size_t r = 0; r < M; ++r) {
    const uint8_t* row = rows.data() + r * l.row_bytes;
    ASSERT_EQ(std::memcmp(row + l.codes, expected.codes.data() + r * bytes, bytes), 0)
        << "row " << r;
    ASSERT_TRUE(all_same(reinterpret_cast<const float*>(row), expected.scales.data() + r * l.groups,
                         l.groups));
    if (l.zero_points != 0) {
      ASSERT_EQ(
          std::memcmp(row + 4 * l.groups, expected.zero_points.data() + r * l.groups, 4 * l.groups),
          0);
    }
  }
}

TEST(RowFunctions, QuantizationIsTheReferenceByteForByte) {
  for (const RowFunctions* f : runnable()) {
    Rng rng(test_seed());
    for (const SchemeCase& s : scheme_cases())
      for (const size_t K : {1u, 8u, 17u, 32u, 100u, 256u, 515u, 2080u}) {
        if (s.code == CodeType::kFp4 && K % 32 != 0) continue;
        const size_t fit =
            s.columns == Columns::kShuffled ? (K + s.block_k - 1) / s.block_k * s.block_k : K;
        const MatrixCase m = make_matrix(s, 2, fit, rng);
        const Problem p = make_problem(m.w, s.act, s.x_type);
        const GuardedBytes x = make_rows(s, 7, fit, fit + 1, true, rng);
        SCOPED_TRACE(std::string(f->name) + ", " + s.name + ", K " + std::to_string(fit));
        expect_reference_rows(*f, p, m.params, x, fit + 1, 7);
        if (HasFatalFailure()) return;
      }
  }
}

// Values on and next to ties, for scales that are no powers of two: where a product with 1 / s would
// round to the other code.
TEST(RowFunctions, QuantizationOfTies) {
  for (const RowFunctions* f : runnable()) {
    Rng rng(test_seed());
    for (const float s : {0.1f, 0.01171875f, 3.3333333f, 1e-20f, 7e-36f, 3e-39f, 1.9e31f}) {
      for (const int32_t zero_point : {0, -7, 100}) {
        const size_t K = 4099;
        const GuardedBytes x(K * 4, 4);
        for (size_t i = 0; i < K; ++i) {
          float v = (static_cast<float>(rng() % 300) - 150.0f + 0.5f) * s;
          for (unsigned step = static_cast<unsigned>(rng() % 4); step > 0; --step)
            v = std::nextafter(v, rng() % 2 == 0 ? kInf : -kInf);
          x.as<float>()[i] = v;
        }
        Problem p;
        p.N = 1, p.K = K, p.act.code = ActCode::kInt;
        for (const ActGranule granule : {ActGranule::kStatic, ActGranule::kRow})
          for (const bool symmetric : {true, false}) {
            p.act.granule = granule, p.act.symmetric = symmetric;
            if (granule == ActGranule::kRow && zero_point != 0) continue;
            SCOPED_TRACE(std::string(f->name) + ", s " + std::to_string(s));
            ActParams params;
            params.scale = s, params.zero_point = zero_point;
            expect_reference_rows(*f, p, params, x, K, 1);
            if (HasFatalFailure()) return;
          }
        for (const ActCode code : {ActCode::kFp8, ActCode::kFp4}) {
          p.act = ActSpec{};
          p.act.code = code, p.act.granule = ActGranule::kStatic;
          ActParams params;
          params.scale = s;
          for (size_t i = 0; i < K; ++i) x.as<float>()[i] *= code == ActCode::kFp4 ? 0.05f : 3.0f;
          expect_reference_rows(*f, p, params, x, K, 1);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace moebius::test::row_functions_test
