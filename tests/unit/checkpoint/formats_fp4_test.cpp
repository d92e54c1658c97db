// SPDX-License-Identifier: Apache-2.0
// nvfp4-pack, mxfp4-pack, mxfp8 and GPT-OSS's own MXFP4: decoding, global scales, exponent bytes,
// the exponents of writer version 0.13, interleaved expert rows, and every way such a module can be
// wrong.
#include <cmath>
#include <random>

#include "base/error.h"
#include "base/numeric.h"
#include "quant/quant_access.h"
#include "unit/checkpoint/formats_util.h"

namespace moebius::test::formats_fp4_test {
namespace {

std::vector<uint8_t> random_bytes(size_t n, unsigned limit, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> out;
  for (size_t i = 0; i < n; ++i) out.push_back(static_cast<uint8_t>(random() % limit));
  return out;
}

float fp4(const std::vector<uint8_t>& bytes, size_t element) {
  static const float magnitude[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const unsigned code = element % 2 == 0 ? bytes[element / 2] & 15u : bytes[element / 2] >> 4;
  return (code & 8u) != 0 ? -magnitude[code & 7u] : magnitude[code & 7u];
}

// NVFP4 module "m" of 4 x 64, with activations.
struct Nvfp4 {
  FileMaker file;
  Scheme scheme = scheme_of(Format::kNvfp4Pack, float_args(4, Strategy::kTensorGroup, 16));
  std::vector<uint8_t> codes = random_bytes(4 * 32, 256, 1), scales = random_bytes(16, 0x7f, 2);
  Nvfp4() {
    scheme.input = float_args(4, Strategy::kTensorGroup, 16);
    scheme.input->dynamic = Dynamic::kLocal;
    file.put("m.weight_packed", DType::kU8, {4, 32}, codes);
    file.put("m.weight_scale", DType::kF8E4M3, {4, 4}, scales);
    file.floats("m.weight_global_scale", DType::kF32, {1}, {300.0f});
    file.floats("m.input_global_scale", DType::kF32, {1}, {77.0f});
  }
  std::string error() {
    const TensorStore& store = file.open();
    return reader_error(store, collect(store, "m"), scheme);
  }
};

TEST(FormatsNvfp4, Decodes) {
  EXPECT_EQ(fp4({0xF3}, 0), 1.5f);
  EXPECT_EQ(fp4({0xF3}, 1), -6.0f);
  Nvfp4 m;
  const TensorStore& store = m.file.open();
  const auto loaded = run_reader(store, collect(store, "m"), m.scheme, "", 4, 64);
  EXPECT_EQ(loaded->plan.input.global_scale, GlobalScale{77.0f});
  EXPECT_EQ(loaded->view.global_scale, GlobalScale{300.0f});
  for (size_t r = 0; r < 4; ++r)
    for (size_t c = 0; c < 64; ++c)
      ASSERT_EQ(weight_at(loaded->view, r, c),
                fp4(m.codes, r * 64 + c) * (e4m3_to_f32(m.scales[r * 4 + c / 16]) / 300.0f));
  m.file.floats("m.weight_global_scale", DType::kF32, {}, {300.0f});  // no dimensions
  m.file.put("m.weight_scale", DType::kF8E4M3, {4, 4},
             std::vector<uint8_t>(16, 0));  // empty blocks
  const TensorStore& again = m.file.open();
  EXPECT_EQ(weight_at(run_reader(again, collect(again, "m"), m.scheme)->view, 1, 1), 0.0f);
}

TEST(FormatsNvfp4, WeightOnly) {
  Nvfp4 m;
  m.scheme.input.reset();
  EXPECT_NE(m.error().find("input_global_scale is stored"), std::string::npos);
  m.file.remove("m.input_global_scale");
  const TensorStore& store = m.file.open();
  EXPECT_EQ(run_reader(store, collect(store, "m"), m.scheme)->plan.input.global_scale,
            GlobalScale{});
}

TEST(FormatsNvfp4, RefusesByName) {
  const struct {
    const char* what;
    void (*spoil)(Nvfp4&);
  } cases[] = {
      {"weight_packed is I8[4,32]; expected dtype U8",
       [](Nvfp4& m) {
         m.file.put("m.weight_packed", DType::kI8, {4, 32}, m.codes);
       }},
      {"group size 16, but K is 56",
       [](Nvfp4& m) {
         m.file.put("m.weight_packed", DType::kU8, {4, 28}, random_bytes(112, 256, 1));
       }},
      {"weight_scale is U8[4,4]; expected dtype F8_E4M3",
       [](Nvfp4& m) {
         m.file.put("m.weight_scale", DType::kU8, {4, 4}, m.scales);
       }},
      {"weight_scale is F8_E4M3[4,2]; expected [4,4]",
       [](Nvfp4& m) {
         m.file.put("m.weight_scale", DType::kF8E4M3, {4, 2}, random_bytes(8, 100, 1));
       }},
      {"weight_scale[2,1] is nan",
       [](Nvfp4& m) {
         m.scales[9] = 0x7f;
         m.file.put("m.weight_scale", DType::kF8E4M3, {4, 4}, m.scales);
       }},
      {"weight_scale[2,1] is -0.001",
       [](Nvfp4& m) {
         m.scales[9] = 0x81;
         m.file.put("m.weight_scale", DType::kF8E4M3, {4, 4}, m.scales);
       }},
      {"weight_scale[2,1] is -0;",
       [](Nvfp4& m) {
         m.scales[9] = 0x80;
         m.file.put("m.weight_scale", DType::kF8E4M3, {4, 4}, m.scales);
       }},
      {"no tensor weight_global_scale", [](Nvfp4& m) { m.file.remove("m.weight_global_scale"); }},
      {"no tensor input_global_scale", [](Nvfp4& m) { m.file.remove("m.input_global_scale"); }},
      {"weight_global_scale is F32[2]; expected one element",
       [](Nvfp4& m) {
         m.file.floats("m.weight_global_scale", DType::kF32, {2}, {1, 1});
       }},
      {"weight_global_scale is BF16[1]; expected dtype F32",
       [](Nvfp4& m) { m.file.floats("m.weight_global_scale", DType::kBf16, {1}, {1}); }},
      {"weight_global_scale is 0;",
       [](Nvfp4& m) { m.file.floats("m.weight_global_scale", DType::kF32, {1}, {0}); }},
      {"weight_global_scale is -1;",
       [](Nvfp4& m) { m.file.floats("m.weight_global_scale", DType::kF32, {1}, {-1}); }},
      {"input_global_scale is inf;",
       [](Nvfp4& m) { m.file.floats("m.input_global_scale", DType::kF32, {1}, {INFINITY}); }},
      {"input_global_scale is nan;",
       [](Nvfp4& m) { m.file.floats("m.input_global_scale", DType::kF32, {1}, {NAN}); }},
      {"m.input_scale is stored",
       [](Nvfp4& m) { m.file.floats("m.input_scale", DType::kF32, {1}, {1}); }},
      {"m.weight_shape belongs to m",
       [](Nvfp4& m) {
         m.file.put("m.weight_shape", DType::kI64, {2}, std::vector<int64_t>{4, 64});
       }},
      {"groups of 16, not", [](Nvfp4& m) { m.scheme.weights->group_size = 32; }},
  };
  for (const auto& wrong : cases) {
    Nvfp4 m;
    wrong.spoil(m);
    EXPECT_NE(m.error().find(wrong.what), std::string::npos) << wrong.what << "\n" << m.error();
  }
}

TEST(FormatsMxfp4, DecodesAndCorrectsVersion013) {
  FileMaker file;
  const std::vector<uint8_t> codes = random_bytes(3 * 32, 256, 4);
  const std::vector<uint8_t> scales = {127, 120, 0, 130, 1, 252};
  file.put("m.weight_packed", DType::kU8, {3, 32}, codes);
  const Scheme scheme = scheme_of(Format::kMxfp4Pack, float_args(4, Strategy::kGroup, 32));
  for (const DType t : {DType::kU8, DType::kF8E8M0})
    for (const char* version : {"0.14.0", "0.13.0", "0.13", "0.130.0", ""}) {
      file.put("m.weight_scale", t, {3, 2}, scales);
      const TensorStore& store = file.open();
      const auto loaded = run_reader(store, collect(store, "m"), scheme, version, 3, 64);
      const bool old = std::string(version) == "0.13" || std::string(version) == "0.13.0";
      EXPECT_EQ(loaded->plan.warning.empty(), !old);
      for (size_t r = 0; r < 3; ++r)
        for (size_t c = 0; c < 64; ++c)
          ASSERT_EQ(
              weight_at(loaded->view, r, c),
              std::ldexp(fp4(codes, r * 64 + c), scales[r * 2 + c / 32] - 127 + (old ? 2 : 0)));
    }
  std::vector<uint8_t> high = scales;
  high[3] = 253;
  file.put("m.weight_scale", DType::kU8, {3, 2}, high);
  const TensorStore* store = &file.open();
  EXPECT_NE(
      reader_error(*store, collect(*store, "m"), scheme, "0.13.0").find("weight_scale[1,1] is 253"),
      std::string::npos);
  high[3] = 255;
  file.put("m.weight_scale", DType::kU8, {3, 2}, high);
  store = &file.open();
  EXPECT_NE(reader_error(*store, collect(*store, "m"), scheme).find("weight_scale[1,1] is 255"),
            std::string::npos);
  file.floats("m.weight_scale", DType::kBf16, {3, 2}, std::vector<float>(6, 1));
  store = &file.open();
  EXPECT_NE(reader_error(*store, collect(*store, "m"), scheme).find("expected dtype U8 or F8_E8M0"),
            std::string::npos);
}

TEST(FormatsMxfp8, DecodesAndRefuses) {
  FileMaker file;
  std::vector<uint8_t> codes = random_bytes(2 * 64, 0x7f, 5);
  std::vector<uint8_t> scales = {127, 120, 130, 0};
  file.put("m.weight", DType::kF8E4M3, {2, 64}, codes);
  file.put("m.weight_scale", DType::kU8, {2, 2}, scales);
  Scheme scheme = scheme_of(Format::kMxfp8, float_args(8, Strategy::kGroup, 32));
  const TensorStore* store = &file.open();
  const auto loaded = run_reader(*store, collect(*store, "m"), scheme);
  for (size_t r = 0; r < 2; ++r)
    for (size_t c = 0; c < 64; ++c)
      ASSERT_EQ(weight_at(loaded->view, r, c),
                e4m3_to_f32(codes[r * 64 + c]) * e8m0_to_f32(scales[r * 2 + c / 32]));
  codes[70] = 0xff;
  file.put("m.weight", DType::kF8E4M3, {2, 64}, codes);
  store = &file.open();
  EXPECT_NE(reader_error(*store, collect(*store, "m"), scheme).find("m.weight[1,6] is NaN"),
            std::string::npos);
  scales[2] = 255;
  codes[70] = 1;
  file.put("m.weight", DType::kF8E4M3, {2, 64}, codes);
  file.put("m.weight_scale", DType::kU8, {2, 2}, scales);
  store = &file.open();
  EXPECT_NE(reader_error(*store, collect(*store, "m"), scheme).find("weight_scale[1,0] is 255"),
            std::string::npos);
  file.put("m.weight", DType::kF8E4M3, {2, 48}, random_bytes(96, 0x7f, 5));
  store = &file.open();
  EXPECT_NE(reader_error(*store, collect(*store, "m"), scheme).find("group size 32, but K is 48"),
            std::string::npos);
}

TEST(FormatsGptOss, InterleavedExperts) {
  const size_t E = 3, I = 5, K = 96;
  FileMaker file;
  const std::vector<uint8_t> codes = random_bytes(E * 2 * I * K / 2, 256, 6);
  std::vector<uint8_t> scales = random_bytes(E * 2 * I * K / 32, 255, 7);
  std::vector<float> bias;
  for (size_t i = 0; i < E * 2 * I; ++i) bias.push_back(static_cast<float>(i));
  file.put("e.gate_up_proj_blocks", DType::kU8, {E, 2 * I, K / 32, 16}, codes);
  file.put("e.gate_up_proj_scales", DType::kU8, {E, 2 * I, K / 32}, scales);
  file.floats("e.gate_up_proj_bias", DType::kBf16, {E, 2 * I}, bias);
  Scheme scheme;
  scheme.format = Format::kGptOssMxfp4;
  const auto refs = [&](const TensorStore& store, int64_t e, uint64_t half) {
    ModuleTensors t;
    t.name = "e";
    t[Role::kWeightPacked].info = store.find("e.gate_up_proj_blocks");
    t[Role::kWeightScale].info = store.find("e.gate_up_proj_scales");
    t[Role::kBias].info = store.find("e.gate_up_proj_bias");
    for (const Role role : {Role::kWeightPacked, Role::kWeightScale, Role::kBias}) {
      t[role].index = e;
      t[role].row_begin = half;
      t[role].row_step = 2;
    }
    return t;
  };
  const TensorStore* store = &file.open();
  for (int64_t e = 0; e < 3; ++e)
    for (uint64_t half = 0; half < 2; ++half) {
      const auto loaded = run_reader(*store, refs(*store, e, half), scheme, "", I, K);
      const std::vector<float> b = load_bias(loaded->plan, *store);
      ASSERT_EQ(b.size(), I);
      for (size_t r = 0; r < I; ++r) {
        const size_t row = static_cast<size_t>(e) * 2 * I + 2 * r + half;
        EXPECT_EQ(b[r], bias[row]);
        for (size_t c = 0; c < K; ++c)
          ASSERT_EQ(weight_at(loaded->view, r, c),
                    fp4(codes, row * K + c) * e8m0_to_f32(scales[row * 3 + c / 32]));
      }
    }
  scales[2 * 3 + 1] = 255;  // expert 0, row 2 (gate)
  file.put("e.gate_up_proj_scales", DType::kU8, {E, 2 * I, K / 32}, scales);
  store = &file.open();
  EXPECT_NE(reader_error(*store, refs(*store, 0, 0), scheme).find("[0,2,1] is 255"),
            std::string::npos);
  EXPECT_NO_THROW(run_reader(*store, refs(*store, 0, 1), scheme));
  file.put("e.gate_up_proj_blocks", DType::kU8, {E, 2 * I, K / 2}, codes);
  store = &file.open();
  EXPECT_NE(reader_error(*store, refs(*store, 0, 0), scheme).find("[rows, K/32, 16]"),
            std::string::npos);
}

TEST(FormatsBuffer, GrowsToTheLargestRoundAndAligns) {
  LoadBuffer buffer;
  for (int round = 0; round < 3; ++round) {
    std::vector<uint8_t*> blocks;
    for (size_t n = 1; n < 100000; n = n * 3 + 1) {
      blocks.push_back(buffer.allocate(n));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back()) % 64, 0u);
      std::memset(blocks.back(), static_cast<int>(blocks.size()), n);
    }
    size_t i = 0;
    for (size_t n = 1; n < 100000; n = n * 3 + 1, ++i) {
      EXPECT_EQ(blocks[i][0], i + 1);
      EXPECT_EQ(blocks[i][n - 1], i + 1);
    }
    buffer.reset();
  }
  uint8_t* first = buffer.allocate(100);
  buffer.reset();
  EXPECT_EQ(buffer.allocate(64), first);  // one block now, reused
}

}  // namespace
}  // namespace moebius::test::formats_fp4_test
