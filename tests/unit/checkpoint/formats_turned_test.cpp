// SPDX-License-Identifier: Apache-2.0
// GPTQ and AWQ: worked examples of the layouts, every width against a packing done code by code,
// zero points of both versions, act order, short groups, and files that contradict their
// configuration.
#include <cmath>
#include <functional>
#include <random>

#include "base/error.h"
#include "checkpoint/formats/unpack.h"
#include "unit/checkpoint/checkpoint_util.h"
#include "unit/checkpoint/formats_util.h"

namespace moebius::test::formats_turned_test {
namespace {

constexpr std::pair<Role, const char*> kNames[] = {{Role::kWeightPacked, "qweight"},
                                                   {Role::kWeightZeroPoint, "qzeros"},
                                                   {Role::kWeightScale, "scales"},
                                                   {Role::kWeightGIdx, "g_idx"},
                                                   {Role::kBias, "bias"}};

ModuleTensors turned(const TensorStore& store, const std::string& module = "m") {
  ModuleTensors out;
  out.name = module;
  for (const auto& [role, name] : kNames) out[role].info = store.find(module + "." + name);
  return out;
}

// A matrix by its definition: unsigned codes [N][K], zero points [N][G], scales [N][G].
struct Matrix {
  unsigned bits = 4;
  size_t N = 0, K = 0, group = 0;
  std::vector<std::vector<int>> codes, zeros;
  std::vector<std::vector<float>> scales;
  std::vector<int32_t> g_idx;  // empty: in order
  size_t groups() const { return (K + group - 1) / group; }
  size_t group_of(size_t k) const {
    return g_idx.empty() ? k / group : static_cast<size_t>(g_idx[k]);
  }
  std::vector<float> values() const {
    std::vector<float> out;
    for (size_t n = 0; n < N; ++n)
      for (size_t k = 0; k < K; ++k)
        out.push_back(static_cast<float>(codes[n][k] - zeros[n][group_of(k)]) *
                      scales[n][group_of(k)]);
    return out;
  }
};

Matrix make(unsigned bits, size_t N, size_t K, size_t group, bool symmetric, unsigned seed = 1) {
  Matrix m{bits, N, K, group, {}, {}, {}, {}};
  std::mt19937 random(seed);
  const int top = (1 << bits) - 1;
  std::uniform_int_distribution<int> code(0, top);
  for (size_t n = 0; n < N; ++n) {
    std::vector<int> row(K), zero(m.groups());
    std::vector<float> scale(m.groups());
    for (int& c : row) c = code(random);
    for (int& z : zero) z = symmetric ? 1 << (bits - 1) : code(random);
    for (float& s : scale)  // both signs, exact in f16
      s = static_cast<float>(code(random) + 1) / 64.0f * (code(random) % 2 == 0 ? 1.0f : -1.0f);
    m.codes.push_back(row);
    m.zeros.push_back(zero);
    m.scales.push_back(scale);
  }
  return m;
}

enum class Layout { kStream, kPlanes };

void put_bits(std::vector<uint32_t>& words, size_t at, unsigned value, unsigned bits) {
  for (unsigned b = 0; b < bits; ++b)
    if ((value >> b & 1u) != 0) words[(at + b) / 32] |= 1u << ((at + b) % 32);
}

// One line of codes as words, by the definition of the layout.
std::vector<uint32_t> pack_line(const std::vector<int>& codes, unsigned bits, Layout layout) {
  std::vector<uint32_t> words((codes.size() * bits + 31) / 32, 0);
  for (size_t i = 0; i < codes.size(); ++i) {
    const auto code = static_cast<unsigned>(codes[i]);
    if (layout == Layout::kStream || 32 % bits == 0) {
      put_bits(words, i * bits, code, bits);
      continue;
    }
    size_t plane = i / 32 * bits * 32;
    unsigned offset = 0;
    for (const unsigned width : {4u, 2u, 1u}) {
      if ((bits & width) == 0) continue;
      put_bits(words, plane + i % 32 * width, code >> offset & ((1u << width) - 1u), width);
      plane += width * 32;
      offset += width;
    }
  }
  return words;
}

std::vector<uint32_t> turn(const std::vector<std::vector<uint32_t>>& rows) {
  std::vector<uint32_t> out;
  for (size_t c = 0; c < rows[0].size(); ++c)
    for (const auto& row : rows) out.push_back(row[c]);
  return out;
}

// less: subtracted from stored zero points (1 for gptq).
void put_gptq(FileMaker& f, const Matrix& m, Layout layout, int less) {
  std::vector<std::vector<uint32_t>> rows;
  for (const auto& row : m.codes) rows.push_back(pack_line(row, m.bits, layout));
  f.put("m.qweight", DType::kI32, {rows[0].size(), m.N}, turn(rows));
  std::vector<uint32_t> zeros;
  std::vector<float> scales;
  for (size_t g = 0; g < m.groups(); ++g) {
    std::vector<int> line;
    for (size_t n = 0; n < m.N; ++n) {
      line.push_back((m.zeros[n][g] - less) & ((1 << m.bits) - 1));
      scales.push_back(m.scales[n][g]);
    }
    const std::vector<uint32_t> words = pack_line(line, m.bits, layout);
    zeros.insert(zeros.end(), words.begin(), words.end());
  }
  f.put("m.qzeros", DType::kI32, {m.groups(), zeros.size() / m.groups()}, zeros);
  f.floats("m.scales", DType::kF16, {m.groups(), m.N}, scales);
  if (!m.g_idx.empty()) f.put("m.g_idx", DType::kI32, {m.K}, m.g_idx);
}

uint32_t awq_word(const int* codes, size_t step, bool gemm) {
  constexpr unsigned kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};  // output at nibble i
  uint32_t word = 0;
  for (unsigned i = 0; i < 8; ++i)
    word |= static_cast<uint32_t>(codes[(gemm ? kOrder[i] : i) * step]) << (4 * i);
  return word;
}

void put_awq(FileMaker& f, const Matrix& m, bool gemm, size_t zero_words = 1) {
  std::vector<uint32_t> codes, zeros;
  std::vector<float> scales;
  if (gemm) {
    for (size_t k = 0; k < m.K; ++k)
      for (size_t n = 0; n < m.N; n += 8) {
        int eight[8];
        for (size_t t = 0; t < 8; ++t) eight[t] = m.codes[n + t][k];
        codes.push_back(awq_word(eight, 1, true));
      }
    for (size_t g = 0; g < m.groups(); ++g)
      for (size_t n = 0; n < m.N; ++n) {
        scales.push_back(m.scales[n][g]);
        if (n % 8 != 0) continue;
        int eight[8];
        for (size_t t = 0; t < 8; ++t) eight[t] = m.zeros[n + t][g];
        zeros.push_back(awq_word(eight, 1, true));
      }
    f.put("m.qweight", DType::kI32, {m.K, m.N / 8}, codes);
    f.put("m.qzeros", DType::kI32, {m.groups(), m.N / 8}, zeros);
    f.floats("m.scales", DType::kF16, {m.groups(), m.N}, scales);
    return;
  }
  for (size_t n = 0; n < m.N; ++n) {
    for (size_t k = 0; k < m.K; k += 8) codes.push_back(awq_word(&m.codes[n][k], 1, false));
    std::vector<int> padded(8 * zero_words, 0);
    for (size_t g = 0; g < 8 * zero_words; ++g) {
      scales.push_back(g < m.groups() ? m.scales[n][g] : 0.0f);
      if (g < m.groups()) padded[g] = m.zeros[n][g];
    }
    for (size_t w = 0; w < zero_words; ++w) zeros.push_back(awq_word(&padded[8 * w], 1, false));
  }
  f.put("m.qweight", DType::kI32, {m.N, m.K / 8}, codes);
  f.put("m.qzeros", DType::kI32, {m.N, zero_words}, zeros);
  f.floats("m.scales", DType::kF16, {m.N, 8 * zero_words}, scales);
}

Scheme scheme_for(const Matrix& m, Format format, bool symmetric) {
  Scheme s = scheme_of(format, int_args(static_cast<int>(m.bits), Strategy::kGroup,
                                        static_cast<int64_t>(m.group), symmetric));
  if (m.group >= m.K) s.weights->strategy = Strategy::kChannel, s.weights->group_size = 0;
  if (!m.g_idx.empty()) s.weights->act_order = ActOrder::kGroup;
  return s;
}

void expect_decodes(FileMaker& f, const Matrix& m, Format format, bool symmetric,
                    const std::string& warning = "") {
  const TensorStore& store = f.open();
  const auto loaded =
      run_reader(store, turned(store), scheme_for(m, format, symmetric), "", m.N, m.K);
  EXPECT_EQ(decode(loaded->view), m.values());
  EXPECT_EQ(loaded->view.zero_points == nullptr, symmetric);
  if (warning.empty())
    EXPECT_EQ(loaded->plan.warning, "");
  else
    EXPECT_TRUE(contains(loaded->plan.warning, warning)) << loaded->plan.warning;
}

TEST(Turned, GptqWorkedExample) {
  FileMaker f;
  f.put("m.qweight", DType::kI32, {1, 1}, std::vector<uint32_t>{0x76543210});
  f.put("m.qzeros", DType::kI32, {1, 1}, std::vector<uint32_t>{7});
  f.floats("m.scales", DType::kF16, {1, 1}, {0.5f});
  const TensorStore& store = f.open();
  for (const bool symmetric : {true, false}) {
    const Scheme s = scheme_of(Format::kGptq, int_args(4, Strategy::kChannel, 0, symmetric));
    EXPECT_EQ(decode(run_reader(store, turned(store), s)->view),
              (std::vector<float>{-4, -3.5, -3, -2.5, -2, -1.5, -1, -.5}));
  }
}

TEST(Turned, ThreeBitsCrossWords) {
  // Code 10 has its low bits in word 0 and its top bit in word 1; code 21 one bit in word 1.
  std::vector<int> codes(32, 0);
  codes[10] = 5, codes[21] = 6;
  const std::vector<uint32_t> words = pack_line(codes, 3, Layout::kStream);
  EXPECT_EQ(words, (std::vector<uint32_t>{1u << 30, 1u, 3u}));
  int8_t out[32];
  unpack_row(reinterpret_cast<const uint8_t*>(words.data()), 32, 3, false, out);
  EXPECT_EQ(out[10], 5 - 4);
  EXPECT_EQ(out[21], 6 - 4);
  EXPECT_EQ(out[11], -4);
}

TEST(Turned, PlanesOfSevenBits) {
  // 4 words of low nibbles, 2 of the next two bits, 1 of the top bit.
  std::vector<uint32_t> words(7, 0);
  words[1] = 0x5u << 4;  // code 9: low nibble 5
  words[4] = 2u << 18;   // code 9: bits 4-5 are 2
  words[6] = 1u << 9;    // code 9: bit 6
  int8_t out[32];
  unpack_planes(reinterpret_cast<const uint8_t*>(words.data()), 32, 7, out);
  EXPECT_EQ(out[9], 0x5 + (2 << 4) + (1 << 6) - 64);
  EXPECT_EQ(out[8], -64);
}

TEST(Turned, AwqWorkedExample) {
  FileMaker f;
  f.put("m.qweight", DType::kI32, {1, 1}, std::vector<uint32_t>{0x75316420});
  f.put("m.qzeros", DType::kI32, {1, 1}, std::vector<uint32_t>{0x88888888});
  f.floats("m.scales", DType::kF16, {1, 8}, std::vector<float>(8, 1.0f));
  const TensorStore& store = f.open();
  for (const bool symmetric : {true, false}) {
    const Scheme s = scheme_of(Format::kAwq, int_args(4, Strategy::kChannel, 0, symmetric));
    EXPECT_EQ(decode(run_reader(store, turned(store), s)->view),
              (std::vector<float>{-8, -7, -6, -5, -4, -3, -2, -1}));
  }
}

TEST(Turned, EveryWidthOfGptq) {
  for (const unsigned bits : {2u, 3u, 4u, 5u, 6u, 7u, 8u})
    for (const Format format : {Format::kGptq, Format::kGptqV2, Format::kGptqPlanar})
      for (const bool symmetric : {true, false})
        for (const size_t group : {size_t{32}, size_t{160}}) {
          SCOPED_TRACE(std::to_string(bits) + " bits, group " + std::to_string(group));
          Matrix m = make(bits, 96, 160, group, symmetric);
          for (auto& row : m.zeros)  // the zero point 0 has a test of its own
            for (int& z : row) z = std::max(z, 1);
          FileMaker f;
          put_gptq(f, m, format == Format::kGptqPlanar ? Layout::kPlanes : Layout::kStream,
                   format == Format::kGptq ? 1 : 0);
          expect_decodes(f, m, format, symmetric);
        }
}

TEST(Turned, OddShapes) {
  // Inputs that no block of 32 fills, outputs that no word of zero points fills, many tiles.
  for (const auto& [N, K, group] : {std::array<size_t, 3>{200, 1032, 8},
                                    {3, 8, 8},
                                    {65, 72, 24},
                                    {130, 136, 48},
                                    {16, 40, 1000}}) {
    SCOPED_TRACE(std::to_string(N) + " x " + std::to_string(K));
    const Matrix m = make(4, N, K, group, false);
    FileMaker f;
    put_gptq(f, m, Layout::kStream, 0);
    expect_decodes(f, m, Format::kGptqV2, false);
  }
}

TEST(Turned, AwqBothLayouts) {
  for (const bool symmetric : {true, false})
    for (const auto& [N, K, group] : {std::array<size_t, 3>{64, 128, 32},
                                      {8, 64, 64},
                                      {136, 200, 40},
                                      {72, 1040, 16},
                                      {16, 96, 64}}) {
      SCOPED_TRACE(std::to_string(N) + " x " + std::to_string(K));
      const Matrix m = make(4, N, K, group, symmetric);
      FileMaker gemm, gemv;
      put_awq(gemm, m, true);
      expect_decodes(gemm, m, Format::kAwq, symmetric);
      put_awq(gemv, m, false, (m.groups() + 7) / 8 + 1);  // one word of padding
      expect_decodes(gemv, m, Format::kAwqGemv, symmetric);
      if (!symmetric) continue;
      expect_decodes(gemm.remove("m.qzeros"), m, Format::kAwq, true);
      expect_decodes(gemv.remove("m.qzeros"), m, Format::kAwqGemv, true);
    }
}

// The same symmetric int4 weights in every layout give the same bytes.
TEST(Turned, EqualBytesInEveryForm) {
  const Matrix m = make(4, 64, 160, 32, true);
  FileMaker files[4];
  put_gptq(files[0], m, Layout::kStream, 1);
  put_gptq(files[1], m, Layout::kStream, 0);
  put_awq(files[2], m, true);
  put_awq(files[3], m, false);
  FileMaker packed;
  std::vector<uint32_t> words;
  std::vector<float> scales;
  for (size_t n = 0; n < m.N; ++n) {
    const std::vector<uint32_t> line = pack_line(m.codes[n], 4, Layout::kStream);
    words.insert(words.end(), line.begin(), line.end());
    for (float s : m.scales[n]) scales.push_back(std::abs(s));  // pack-quantized has no signs
  }
  packed.put("m.weight_packed", DType::kI32, {m.N, m.K / 8}, words);
  packed.floats("m.weight_scale", DType::kF16, {m.N, m.groups()}, scales);
  const TensorStore& store = packed.open();
  const auto expected =
      run_reader(store, collect(store, "m"), scheme_for(m, Format::kPackQuantized, true));
  constexpr Format kFormats[] = {Format::kGptq, Format::kGptqV2, Format::kAwq, Format::kAwqGemv};
  for (size_t i = 0; i < 4; ++i) {
    const TensorStore& other = files[i].open();
    const auto loaded = run_reader(other, turned(other), scheme_for(m, kFormats[i], true));
    const QuantMatrix &a = expected->view, &b = loaded->view;
    ASSERT_EQ(a.row_bytes, b.row_bytes);
    EXPECT_EQ(std::memcmp(a.codes, b.codes, a.row_bytes * a.N), 0) << name_of(kFormats[i]);
    EXPECT_EQ(b.zero_points, nullptr);
    EXPECT_EQ(a.code, b.code);
    for (size_t r = 0; r < a.N; ++r)
      for (size_t g = 0; g < a.groups; ++g) {
        uint16_t x, y;
        std::memcpy(&x, a.scales + 2 * (r * a.scale_stride + g), 2);
        std::memcpy(&y, b.scales + 2 * (r * b.scale_stride + g), 2);
        ASSERT_EQ(x, y & 0x7fff);
      }
  }
}

TEST(Turned, ZeroPointNoughtOfVersionOne) {
  Matrix m = make(4, 32, 64, 32, false);
  m.zeros[3][1] = 0;  // stored as 15
  m.zeros[0][0] = 0;
  FileMaker f;
  put_gptq(f, m, Layout::kStream, 1);
  expect_decodes(f, m, Format::kGptq, false, "qzeros hold 15");
}

TEST(Turned, VersionOneFilesWithZeroPointsOfVersionTwo) {
  const Matrix m = make(4, 32, 64, 32, true);
  FileMaker two, one, other;
  put_gptq(two, m, Layout::kStream, 0);
  expect_decodes(two, m, Format::kGptq, true, "says format gptq, but qzeros hold 8, as gptq_v2");
  put_gptq(one, m, Layout::kStream, 1);
  expect_decodes(one, m, Format::kGptqV2, true, "says format gptq_v2, but qzeros hold 7, as gptq");
  put_gptq(other, m, Layout::kStream, 3);
  expect_decodes(other, m, Format::kGptq, true, "qzeros hold other values than 7");
}

TEST(Turned, SymmetricNeedsNoZeroPoints) {
  const Matrix m = make(4, 32, 64, 32, true);
  FileMaker f;
  put_gptq(f, m, Layout::kStream, 1);
  expect_decodes(f.remove("m.qzeros"), m, Format::kGptq, true);
  // Some writers cut the last zero points where outputs do not fill 32.
  const Matrix odd = make(4, 40, 64, 32, true);
  FileMaker g;
  put_gptq(g, odd, Layout::kStream, 1);
  g.put("m.qzeros", DType::kI32, {2, 4}, std::vector<uint32_t>(8, 0x77777777));
  expect_decodes(g, odd, Format::kGptq, true);
}

std::vector<int32_t> shuffled_groups(size_t K, size_t group) {
  std::vector<int32_t> g(K);
  for (size_t k = 0; k < K; ++k) g[k] = static_cast<int32_t>(k / group);
  std::shuffle(g.begin(), g.end(), std::mt19937(7));
  return g;
}

TEST(Turned, ActOrder) {
  for (const unsigned bits : {2u, 3u, 4u, 8u})
    for (const size_t group : {size_t{32}, size_t{48}}) {  // 48: the last group is short
      Matrix m = make(bits, 32, 160, group, false);
      m.g_idx = shuffled_groups(m.K, group);
      FileMaker f;
      put_gptq(f, m, Layout::kStream, 0);
      expect_decodes(f, m, Format::kGptqV2, false);
    }
}

TEST(Turned, GroupIndexAndConfigurationDisagree) {
  Matrix m = make(4, 32, 160, 32, true);
  m.g_idx = shuffled_groups(m.K, 32);
  FileMaker f;
  put_gptq(f, m, Layout::kStream, 1);
  Scheme s = scheme_for(m, Format::kGptq, true);
  s.weights->act_order = ActOrder::kNone;
  const TensorStore& store = f.open();
  const auto loaded = run_reader(store, turned(store), s);
  EXPECT_EQ(decode(loaded->view), m.values());
  EXPECT_TRUE(contains(loaded->plan.warning, "does not say desc_act")) << loaded->plan.warning;
  // In order: dropped without a word, whatever is declared.
  for (size_t k = 0; k < m.K; ++k) m.g_idx[k] = static_cast<int32_t>(k / 32);
  FileMaker plain;
  put_gptq(plain, m, Layout::kStream, 1);
  const TensorStore& in_order = plain.open();
  const auto dropped = run_reader(in_order, turned(in_order), scheme_for(m, Format::kGptq, true));
  EXPECT_EQ(dropped->view.g_idx, nullptr);
  EXPECT_EQ(dropped->plan.warning, "");
  // Missing although declared.
  const TensorStore& missing = plain.remove("m.g_idx").open();
  const auto absent = run_reader(missing, turned(missing), scheme_for(m, Format::kGptq, true));
  EXPECT_TRUE(contains(absent->plan.warning, "no g_idx is stored")) << absent->plan.warning;
  EXPECT_EQ(decode(absent->view), m.values());
}

TEST(Turned, OneGroupIgnoresItsIndex) {
  Matrix m = make(4, 32, 64, 64, true);
  FileMaker f;
  put_gptq(f, m, Layout::kStream, 1);
  f.put("m.g_idx", DType::kI32, {64}, std::vector<int32_t>(64, 0));
  expect_decodes(f, m, Format::kGptq, true);
}

TEST(Turned, RowsOfAFusedMatrix) {
  const Matrix m = make(4, 64, 96, 32, false);
  const std::vector<float> all = m.values();
  for (const Format format : {Format::kGptqV2, Format::kAwq, Format::kAwqGemv}) {
    SCOPED_TRACE(name_of(format));
    FileMaker f;
    if (format == Format::kGptqV2)
      put_gptq(f, m, Layout::kStream, 0);
    else
      put_awq(f, m, format == Format::kAwq);
    const TensorStore& store = f.open();
    const auto rows = [&](uint64_t begin, uint64_t step) {
      ModuleTensors t = turned(store);
      for (const Role role : {Role::kWeightPacked, Role::kWeightScale, Role::kWeightZeroPoint})
        t[role].row_begin = begin, t[role].row_count = 32, t[role].row_step = step;
      return t;
    };
    const Scheme scheme = scheme_for(m, format, false);
    for (const auto& [begin, step] : {std::pair{0u, 1u}, {24u, 1u}, {1u, 2u}, {4u, 1u}}) {
      if (format == Format::kAwq && (begin % 8 != 0 || step != 1)) {  // inside a word
        const std::string said = reader_error(store, rows(begin, step), scheme, "", 32, 96);
        EXPECT_TRUE(contains(said,
                             "m.qweight is I32[96,8]; expected gate and up in halves of "
                             "whole words: awq packs 8 outputs"))
            << said;
        continue;
      }
      const auto half = run_reader(store, rows(begin, step), scheme, "", 32, 96);
      std::vector<float> want;
      for (size_t r = 0; r < 32; ++r)
        want.insert(want.end(), all.begin() + static_cast<std::ptrdiff_t>((begin + r * step) * 96),
                    all.begin() + static_cast<std::ptrdiff_t>((begin + r * step + 1) * 96));
      EXPECT_EQ(decode(half->view), want) << begin << " step " << step;
    }
    // Tables of other outputs than the codes.
    for (const Role role : {Role::kWeightScale, Role::kWeightZeroPoint}) {
      ModuleTensors t = turned(store);
      t[role].row_begin = 8, t[role].row_count = 40;
      const std::string said = reader_error(store, t, scheme, "", 64, 96);
      EXPECT_TRUE(contains(said, role == Role::kWeightScale ? "m.scales is" : "m.qzeros is"))
          << said;
    }
  }
}

struct Broken {
  const char* says;
  std::function<void(FileMaker&, Scheme&)> change;
};

void expect_refused(const Matrix& m, Format format, bool symmetric,
                    const std::vector<Broken>& all) {
  for (const Broken& b : all) {
    FileMaker f;
    if (format == Format::kAwq || format == Format::kAwqGemv)
      put_awq(f, m, format == Format::kAwq);
    else
      put_gptq(f, m, Layout::kStream, format == Format::kGptq ? 1 : 0);
    Scheme s = scheme_for(m, format, symmetric);
    b.change(f, s);
    const TensorStore& store = f.open();
    const std::string message = reader_error(store, turned(store), s, "", m.N, m.K);
    EXPECT_TRUE(contains(message, b.says)) << b.says << "\n  " << message;
    EXPECT_TRUE(contains(message, "m")) << message;
  }
}

std::vector<uint32_t> words(size_t n) { return std::vector<uint32_t>(n, 0x77777777); }

TEST(Turned, BrokenGptq) {
  Matrix m = make(4, 32, 64, 32, false);
  m.g_idx = shuffled_groups(64, 32);
  const auto index = [](std::vector<int32_t> v) {
    return [v](FileMaker& f, Scheme&) { f.put("m.g_idx", DType::kI32, {v.size()}, v); };
  };
  std::vector<int32_t> high(m.g_idx), unset(m.g_idx), uneven(m.g_idx), negative(m.g_idx);
  high[5] = 2, unset[5] = -1, negative[3] = -7;
  for (int32_t& g : uneven) g = 0;
  expect_refused(
      m, Format::kGptq, false,
      {{"m.qweight is I64",
        [](FileMaker& f, Scheme&) {
          f.put("m.qweight", DType::kI64, {4, 32}, std::vector<int64_t>(128, 0));
        }},
       {"m.qweight is I32[8]",
        [](FileMaker& f, Scheme&) { f.put("m.qweight", DType::kI32, {8}, words(8)); }},
       {"a matrix of 32 x 56; expected 32 x 64",
        [](FileMaker& f, Scheme&) {
          f.put("m.qweight", DType::kI32, {7, 32}, words(224));
        }},
       {"a matrix of 24 x 64; expected 32 x 64",
        [](FileMaker& f, Scheme&) {
          f.put("m.qweight", DType::kI32, {8, 24}, words(192));
        }},
       {"m.scales is F16[3,32]; expected [2,32]",
        [](FileMaker& f, Scheme&) {
          f.floats("m.scales", DType::kF16, {3, 32}, std::vector<float>(96, 1));
        }},
       {"m.scales is F16[32,2]; expected [2,32]",
        [](FileMaker& f, Scheme&) {
          f.floats("m.scales", DType::kF16, {32, 2}, std::vector<float>(64, 1));
        }},
       {"m.scales is I32[2,32]; expected dtype F16, BF16 or F32",
        [](FileMaker& f, Scheme&) {
          f.put("m.scales", DType::kI32, {2, 32}, words(64));
        }},
       {"m.scales[1,3] is nan; expected a finite scale",
        [](FileMaker& f, Scheme&) {
          std::vector<float> v(64, 1.0f);
          v[35] = std::nanf("");
          f.floats("m.scales", DType::kF32, {2, 32}, v);
        }},
       {"no tensor", [](FileMaker& f, Scheme&) { f.remove("m.scales"); }},
       {"no tensor", [](FileMaker& f, Scheme&) { f.remove("m.qzeros"); }},
       {"no tensor", [](FileMaker& f, Scheme&) { f.remove("m.qweight"); }},
       {"m.qzeros is I32[2,3]; expected [2,4]",
        [](FileMaker& f, Scheme&) {
          f.put("m.qzeros", DType::kI32, {2, 3}, words(6));
        }},
       {"m.qzeros is I8",
        [](FileMaker& f, Scheme&) {
          f.put("m.qzeros", DType::kI8, {2, 32}, std::vector<int8_t>(64, 0));
        }},
       {"m.g_idx[5] is 2; expected a group in [0, 1]", index(high)},
       {"m.g_idx: group 0 has 64 columns; expected 32", index(uneven)},
       {"m.g_idx[3] is -7", index(negative)},
       {"m.g_idx holds -1", index(unset)},
       {"m.g_idx is I32[63]; expected [64]", index(std::vector<int32_t>(63, 0))},
       {"m.g_idx is I64",
        [](FileMaker& f, Scheme&) {
          f.put("m.g_idx", DType::kI64, {64}, std::vector<int64_t>(64, 0));
        }},
       {"m.bias is F16[31]; expected a bias of [32]",
        [](FileMaker& f, Scheme&) {
          f.floats("m.bias", DType::kF16, {31}, std::vector<float>(31, 1));
        }},
       {"integer weights of 2 to 8 bits", [](FileMaker&, Scheme& s) { s.weights->bits = 1; }},
       {"a scale per group or per output",
        [](FileMaker&, Scheme& s) { s.weights->strategy = Strategy::kTensor; }}});
  const Matrix three = make(3, 32, 64, 32, true);
  expect_refused(three, Format::kGptq, true,
                 {{"a multiple of 3 rows of words", [](FileMaker& f, Scheme&) {
                     f.put("m.qweight", DType::kI32, {7, 32}, words(224));
                   }}});
}

TEST(Turned, BrokenAwq) {
  const Matrix m = make(4, 32, 64, 32, false);
  const auto zeros = [](std::vector<uint64_t> shape) {
    return [shape](FileMaker& f, Scheme&) {
      f.put("m.qzeros", DType::kI32, shape, words(shape[0] * shape[1]));
    };
  };
  expect_refused(m, Format::kAwq, false,
                 {{"m.qweight is I16",
                   [](FileMaker& f, Scheme&) {
                     f.put("m.qweight", DType::kI16, {64, 4}, std::vector<int16_t>(256, 0));
                   }},
                  {"a matrix of 24 x 64; expected 32 x 64",
                   [](FileMaker& f, Scheme&) {
                     f.put("m.qweight", DType::kI32, {64, 3}, words(192));
                   }},
                  {"m.qzeros is I32[4,2]; expected [2,4]", zeros({4, 2})},
                  {"m.scales is F16[2,31]; expected [2,32]",
                   [](FileMaker& f, Scheme&) {
                     f.floats("m.scales", DType::kF16, {2, 31}, std::vector<float>(62, 1));
                   }},
                  {"a awq module has no weight_g_idx",
                   [](FileMaker& f, Scheme&) {
                     f.put("m.g_idx", DType::kI32, {64}, std::vector<int32_t>(64, 0));
                   }},
                  {"4-bit integer weights", [](FileMaker&, Scheme& s) { s.weights->bits = 8; }},
                  {"m.qzeros holds 7 for output 0, group 0", [&](FileMaker& f, Scheme& s) {
                     zeros({2, 4})(f, s);
                     s.weights->symmetric = true;
                   }}});
  expect_refused(m, Format::kAwqGemv, false,
                 {{"a matrix of 32 x 56; expected 32 x 64",
                   [](FileMaker& f, Scheme&) {
                     f.put("m.qweight", DType::kI32, {32, 7}, words(224));
                   }},
                  {"m.scales is F16[32,2]; expected [32, a multiple of 8 from 8 on]",
                   [](FileMaker& f, Scheme&) {
                     f.floats("m.scales", DType::kF16, {32, 2}, std::vector<float>(64, 1));
                   }},
                  {"m.qzeros is I32[32,2]; expected [32,1]", zeros({32, 2})},
                  {"m.scales[4,1] is inf; expected a finite scale", [](FileMaker& f, Scheme&) {
                     std::vector<float> v(256, 1.0f);
                     v[33] = HUGE_VALF;
                     f.floats("m.scales", DType::kF32, {32, 8}, v);
                   }}});
}

}  // namespace
}  // namespace moebius::test::formats_turned_test
