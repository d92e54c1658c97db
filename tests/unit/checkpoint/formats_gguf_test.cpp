// SPDX-License-Identifier: Apache-2.0
// Blocks of GGUF (checkpoint/formats/gguf.cpp): what every type decodes to, beside the gguf package,
// and bad scales.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/sha256.h"
#include "checkpoint/formats/format.h"
#include "checkpoint/formats/gguf.h"
#include "kernels/oracle.h"
#include "kernels/packed_matrix.h"
#include "quant/act_request.h"
#include "quant/reference.h"

namespace moebius::formats_gguf_test {
namespace {

struct Decoded {
  uint32_t id;
  std::string_view name;
  std::string_view sha256;  // of the numbers of 32 blocks
};

// tests/python/make_gguf_decodings.py prints these rows.
constexpr Decoded kDecoded[] = {
    {2, "Q4_0", "fc44e6ede9f738fc0a18f9ed00976e96f1e03cc94b399bb2f152172098f1f72a"},
    {3, "Q4_1", "b1e16d892e9e6230781870a35f28264488a560249dfd39fb295f8dde91150827"},
    {6, "Q5_0", "6f93b994c7fcfe0a18f75f4863826d41b8d47051c4ce5c5d6ad9ecc761a29931"},
    {7, "Q5_1", "699721b4292a7b4541a2988307a75c0ae45e1cc05e2be40e276f0e01e265554e"},
    {8, "Q8_0", "73c9eb34f7d98db4bc597d37dd19866e8d8e146a32c2e960a0ea07370319ac53"},
    {10, "Q2_K", "3ce895cd6463e2b75446eb0b3eca54f48b24aa438ed78159f8980a37d3774941"},
    {11, "Q3_K", "ab1b779935cd62b6d7cf32c28e2aed562986f945732e2dd628035c33653639fd"},
    {12, "Q4_K", "541489bf58e7a860cb461e3e2213f41a7c3a2d4339981d99ee7a8036bc07842d"},
    {13, "Q5_K", "94020ac8b4f4722f479c59463a82a20bcc8c5a1d983fcc77dd7ff35a3ac41bcc"},
    {14, "Q6_K", "46853f19d7eaccc789316237b35d944faeaaa19fbaec17d0d593bada55b95e25"},
    {16, "IQ2_XXS", "ea3ad389e8f919aafb2bb749b5d9225c85884bebe8972c596eb43762a2cc4e73"},
    {17, "IQ2_XS", "c83ad316fc7c1e85fed8e2ec988e565d6062d2bfca5864de425c55537a53ebdf"},
    {18, "IQ3_XXS", "4df01fce63dd45b657ea5b5b85f46748cf09c044c29aa735f3cf22aa31b9a17b"},
    {19, "IQ1_S", "8a6c99bddae70bacc651b447e3ab792e21070a92a49588edf21274fecd258ab5"},
    {20, "IQ4_NL", "8b766013747b26a7d2d97bd6720998fa0c4715905416c333871fd6635c8459df"},
    {21, "IQ3_S", "ce4532ba59ece54c90c2c9d5f6e6e8bcaff3de9aae0cae2b718c24fa9ecd6988"},
    {22, "IQ2_S", "7c491a2093a024a7f327bc68ceb18b7fc37ef8daa6beac98bd8c518ef836236d"},
    {23, "IQ4_XS", "6e07d5ce4dbf0930cbf204af74ed392a704911b5a2ee1d7251690ce26562de37"},
    {29, "IQ1_M", "c7a654ca346c1672f3bed495e80838ba6b87ab8a7263e0e53c8ec08dfee1fe2a"},
    {34, "TQ1_0", "d6fc24056b9c6363eebd6799c2f3850eea672506cad992a81c7a6e350b7e0ff0"},
    {35, "TQ2_0", "93e58284f1cea2e2b35ad18d14bf5b33d03df4e1d0dac36e941a43a789a2a80e"},
    {39, "MXFP4", "090c69bb3098e1a345ceaa3e19a0ef8b1cdc1b97361238abf67807cc208c4a27"},
    {40, "NVFP4", "a5daa3141260a7e171703f98f25a250f1e6d70734b527ce57f38bd08af2bb41f"},
};

constexpr uint64_t kRandomBlocks = 32;

// Where the upper byte of a 16-bit float lies in a block.
std::vector<size_t> upper_bytes(uint32_t id) {
  switch (id) {
    case 3:
    case 7:
    case 12:
    case 13:
      return {1, 3};
    case 10:
      return {81, 83};
    case 11:
      return {109};
    case 14:
      return {209};
    case 29:
      return {55};
    case 34:
      return {53};
    case 35:
      return {65};
    case 39:
    case 40:
      return {};
    default:
      return {1};
  }
}

// The bytes that make_gguf_decodings.py decodes.
std::vector<uint8_t> random_blocks(const GgufType& type) {
  std::vector<uint8_t> bytes(kRandomBlocks * type.bytes);
  uint64_t state = type.id;
  for (uint8_t& b : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    b = static_cast<uint8_t>(state >> 56);
  }
  for (uint64_t block = 0; block < kRandomBlocks; ++block) {
    uint8_t* begin = bytes.data() + block * type.bytes;
    for (const size_t at : upper_bytes(type.id)) begin[at] &= 0xbf;
    for (size_t at = 0; at < (type.id == 39 ? 1 : type.id == 40 ? 4 : 0); ++at) begin[at] &= 0x7f;
  }
  return bytes;
}

// A matrix of `rows` rows in memory.
struct Matrix {
  Matrix(const GgufType& type, const std::vector<uint8_t>& bytes, uint64_t rows)
      : data{{"m.weight", DType::kU8, {rows, bytes.size() / rows}, bytes, &type}},
        store(TensorStore::from_memory("m.gguf", data)),
        scheme(*scheme_of_gguf(type)) {
    tensors.name = "m";
    tensors[Role::kWeight].info = &store.require("m.weight");
  }
  MatrixPlan plan() const {
    return reader_for(Format::kGguf).plan(tensors, scheme, store, 0, 0, "");
  }
  std::vector<float> numbers(const MatrixPlan& p) const {
    LoadBuffer buffer;
    const QuantMatrix w = reader_for(Format::kGguf).load(p, store, buffer);
    std::vector<float> out(w.N * w.K);
    dequantize(w, out.data());
    for (float& v : out) v += 0.0f;  // one zero, without sign
    return out;
  }
  std::string refusal() const {
    try {
      (void)numbers(plan());
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  }
  std::vector<TensorData> data;
  TensorStore store;
  Scheme scheme;
  ModuleTensors tensors;
};

// The kernel that this CPU takes, beside decoded weights times decoded rows in double precision.
TEST(FormatsGguf, EveryTypeTakesInt8RowsOnRequest) {
  constexpr size_t kRows = 11;
  for (const Decoded& expected : kDecoded) {
    SCOPED_TRACE(expected.name);
    const GgufType& type = *find_gguf_type(expected.id);
    const std::vector<uint8_t> bytes = random_blocks(type);
    const Matrix m(type, bytes, 4);
    const MatrixPlan plan = m.plan();
    LoadBuffer buffer;
    const QuantMatrix w = reader_for(Format::kGguf).load(plan, m.store, buffer);
    const ActSpec act = act_spec_of(m.scheme, ActRequest{Int8Mode::kDeclared, true});
    ASSERT_EQ(act.code, ActCode::kInt);
    const Problem problem = make_problem(w, act, XType::kF32);
    EXPECT_STREQ(portable_reason(problem), nullptr);
    const Choice choice = choose_kernel(problem, host_cpu(), {});
    EXPECT_EQ(choice.numerics, Numerics::kExact);
    std::vector<float> x(kRows * w.K), y(kRows * w.N);
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i * i % 9973));
    OwnedPackedMatrix(*choice.chosen, w, act, XType::kF32)
        .multiply(x.data(), w.K, kRows, y.data(), w.N);
    const std::vector<float> decoded = m.numbers(plan);
    const QuantRowsBuffer rows = quantize_rows(x.data(), w.K, kRows, w.K, act, {}, XType::kF32);
    for (size_t i = 0; i < kRows; ++i)
      for (size_t n = 0; n < w.N; ++n) {
        double sum = 0.0, size = 0.0;
        for (size_t k = 0; k < w.K; ++k) {
          const double term = static_cast<double>(row_code_value(rows.rows, i, k)) *
                              static_cast<double>(rows.scales[i]) *
                              static_cast<double>(decoded[n * w.K + k]);
          sum += term;
          size += std::fabs(term);
        }
        EXPECT_NEAR(static_cast<double>(y[i * w.N + n]), sum, 3e-6 * size);
      }
  }
}

TEST(FormatsGguf, EveryTypeDecodesAsTheGgufPackageDoes) {
  for (const Decoded& expected : kDecoded) {
    const GgufType& type = *find_gguf_type(expected.id);
    EXPECT_EQ(type.name, expected.name);
    const std::vector<uint8_t> bytes = random_blocks(type);
    const Matrix m(type, bytes, 4);
    const std::vector<float> numbers = m.numbers(m.plan());
    ASSERT_EQ(numbers.size(), kRandomBlocks * type.numbers);
    Sha256 sha;
    sha.add({reinterpret_cast<const uint8_t*>(numbers.data()), numbers.size() * sizeof(float)});
    EXPECT_EQ(sha.hex(), expected.sha256) << type.name;
    // Rows by themselves are the rows of the whole.
    const std::vector<float> middle = m.numbers(rows_of(m.plan(), 1, 3));
    const size_t row = numbers.size() / 4;
    EXPECT_TRUE(std::equal(middle.begin(), middle.end(), numbers.begin() + static_cast<long>(row)))
        << type.name;
  }
}

// Types that the package does not decode, by their definition.
TEST(FormatsGguf, OneAndTwoBitsByTheirDefinition) {
  std::vector<uint8_t> one(18, 0), two(18, 0);
  one[1] = two[1] = 0x38;  // d = 0.5
  one[2] = 0b101;
  two[2] = 0b11100100;
  const Matrix q1(*find_gguf_type(41), one, 1), q2(*find_gguf_type(42), two, 1);
  const std::vector<float> a = q1.numbers(q1.plan()), b = q2.numbers(q2.plan());
  ASSERT_EQ(a.size(), 128u);
  ASSERT_EQ(b.size(), 64u);
  EXPECT_EQ(std::vector<float>(a.begin(), a.begin() + 4), (std::vector<float>{.5, -.5, .5, -.5}));
  EXPECT_EQ(std::vector<float>(b.begin(), b.begin() + 5), (std::vector<float>{-.5, 0, .5, 1, -.5}));
}

TEST(FormatsGguf, ScalesThatAreNoNumbersAreRefused) {
  for (const Decoded& expected : kDecoded) {
    const GgufType& type = *find_gguf_type(expected.id);
    for (const size_t at : upper_bytes(type.id)) {
      std::vector<uint8_t> bytes = random_blocks(type);
      const size_t block = kRandomBlocks / 4 + 1;  // the second of the second row
      if (type.id == 29)
        for (const size_t piece : {49, 51, 53, 55}) bytes[block * type.bytes + piece] |= 0xf0;
      else
        bytes[block * type.bytes + at] |= 0x7c;
      const std::string said = Matrix(type, bytes, 4).refusal();
      EXPECT_TRUE(said.starts_with("m.gguf: m.weight, row 1, block 1: a scale is ")) << said;
      EXPECT_TRUE(said.ends_with("; expected a finite number")) << said;
    }
  }
  std::vector<uint8_t> mx(17, 0), nv(36, 0);
  mx[0] = 255;
  nv[2] = 0x80;
  EXPECT_EQ(
      Matrix(*find_gguf_type(39), mx, 1).refusal(),
      "m.gguf: m.weight, row 0, block 0: a scale is 255 (NaN); expected an exponent from 0 to "
      "254");
  EXPECT_EQ(Matrix(*find_gguf_type(40), nv, 1).refusal(),
            "m.gguf: m.weight, row 0, block 0: a scale is 0x80; expected a number without sign");
}

TEST(FormatsGguf, SchemesSayWhatTheBlocksHold) {
  const auto words = [](uint32_t id) { return describe(*scheme_of_gguf(*find_gguf_type(id))); };
  EXPECT_TRUE(scheme_of_gguf(*find_gguf_type(30))->is_dense());
  EXPECT_EQ(scheme_of_gguf(*find_gguf_type(26)), std::nullopt);
  EXPECT_EQ(words(2), "w4a16 int4 g32 sym, gguf");
  EXPECT_EQ(words(39), "mxfp4a16 e2m1 g32, gguf");
  EXPECT_EQ(family_of(*scheme_of_gguf(*find_gguf_type(40))), "nvfp4a16");
  EXPECT_EQ(family_of(*scheme_of_gguf(*find_gguf_type(14))), "w6a16");
  EXPECT_EQ(words(23), "iq4a16 iq4 g32 sym, gguf");
  EXPECT_EQ(family_of(*scheme_of_gguf(*find_gguf_type(21))), "iq3a16");
  EXPECT_EQ(family_of(*scheme_of_gguf(*find_gguf_type(22))), "iq2a16");
  EXPECT_EQ(family_of(*scheme_of_gguf(*find_gguf_type(29))), "iq1a16");
}

}  // namespace
}  // namespace moebius::formats_gguf_test
