// SPDX-License-Identifier: Apache-2.0
// dense and int-/float-/naive-quantized: strategies and scale shapes, transposed and fused storage,
// static activations, content checks, and every way such a module can be wrong.
#include <cmath>
#include <random>

#include "base/error.h"
#include "base/numeric.h"
#include "quant/quant_access.h"
#include "unit/checkpoint/formats_util.h"

namespace moebius::test::formats_plain_test {
namespace {

std::vector<float> ramp(size_t n, float first, float step) {
  std::vector<float> out;
  for (size_t i = 0; i < n; ++i) out.push_back(first + step * static_cast<float>(i));
  return out;
}

std::vector<int8_t> random_codes(size_t n, int bits, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<int8_t> out;
  for (size_t i = 0; i < n; ++i)
    out.push_back(
        static_cast<int8_t>(static_cast<int>(random() % (1u << bits)) - (1 << (bits - 1))));
  return out;
}

std::vector<uint8_t> random_fp8(size_t n, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<uint8_t> out;
  while (out.size() < n) {
    const auto b = static_cast<uint8_t>(random());
    if ((b & 0x7f) != 0x7f) out.push_back(b);
  }
  return out;
}

TEST(FormatsDense, TypesAndOrientation) {
  const std::vector<float> values = ramp(15, -1.0f, 0.25f);
  for (const DType t : {DType::kF32, DType::kBf16, DType::kF16}) {
    FileMaker file;
    file.floats("m.weight", t, {5, 3}, values);
    const TensorStore& store = file.open();
    ModuleTensors tensors = collect(store, "m");
    EXPECT_EQ(decode(run_reader(store, tensors, {}, "", 5, 3)->view), values);
    tensors[Role::kWeight].transposed = true;
    const auto turned = run_reader(store, tensors, {}, "", 3, 5);
    for (size_t r = 0; r < 3; ++r)
      for (size_t c = 0; c < 5; ++c) EXPECT_EQ(weight_at(turned->view, r, c), values[c * 3 + r]);
  }
}

TEST(FormatsDense, LargeTransposedFusedHalves) {
  // [experts, K, 2 I] as GPT-OSS (interleaved) and Llama-4 (halves) store it; larger than one tile
  // and one stretch.
  const size_t E = 2, K = 700, I = 601;
  std::vector<float> values;
  for (size_t i = 0; i < E * K * 2 * I; ++i) values.push_back(static_cast<float>(i));
  FileMaker file;
  file.put("m.weight", DType::kF32, {E, K, 2 * I}, values);
  file.put("m.bias", DType::kF32, {E, 2 * I}, ramp(E * 2 * I, 0, 1));
  const TensorStore& store = file.open();
  for (const bool interleaved : {false, true})
    for (size_t half = 0; half < 2; ++half) {
      ModuleTensors tensors = collect(store, "m");
      for (const Role role : {Role::kWeight, Role::kBias}) {
        tensors[role].index = 1;
        tensors[role].transposed = role == Role::kWeight;
        tensors[role].row_begin = interleaved ? half : half * I;
        tensors[role].row_count = I;
        tensors[role].row_step = interleaved ? 2 : 1;
      }
      const auto loaded = run_reader(store, tensors, {}, "", I, K);
      const std::vector<float> bias = load_bias(loaded->plan, store);
      ASSERT_EQ(bias.size(), I);
      for (size_t r = 0; r < I; ++r) {
        const size_t row = interleaved ? 2 * r + half : half * I + r;
        ASSERT_EQ(bias[r], static_cast<float>(2 * I + row));
        for (size_t c = 0; c < K; ++c)
          ASSERT_EQ(weight_at(loaded->view, r, c), values[(K + c) * 2 * I + row]);
      }
    }
}

TEST(FormatsDense, MayHoldAnything) {
  FileMaker file;
  file.floats("m.weight", DType::kBf16, {1, 2}, {NAN, INFINITY});
  const TensorStore& store = file.open();
  EXPECT_TRUE(std::isnan(decode(run_reader(store, collect(store, "m"), {})->view)[0]));
}

TEST(FormatsDense, Refuses) {
  FileMaker file;
  file.put("a.weight", DType::kI8, {2, 2}, std::vector<int8_t>(4));
  file.floats("b.weight", DType::kF32, {2, 2}, ramp(4, 0, 1));
  file.floats("b.weight_scale", DType::kF32, {1}, {1});
  file.floats("c.weight", DType::kF32, {4}, ramp(4, 0, 1));
  file.floats("d.weight", DType::kF32, {2, 2}, ramp(4, 0, 1));
  file.floats("d.bias", DType::kF32, {2}, {1, NAN});
  const TensorStore& store = file.open();
  const auto error = [&](const char* m) { return reader_error(store, collect(store, m), {}); };
  EXPECT_NE(error("a").find("a.weight is I8[2,2]; expected dtype BF16, F16 or F32"),
            std::string::npos);
  EXPECT_NE(error("b").find("b.weight_scale belongs to b"), std::string::npos);
  EXPECT_NE(error("c").find("c.weight is F32[4]; expected 2 dimensions"), std::string::npos);
  EXPECT_NE(error("e").find("no tensor weight"), std::string::npos);
  const auto d = run_reader(store, collect(store, "d"), {});
  EXPECT_THROW(load_bias(d->plan, store), Error);
  ModuleTensors out = collect(store, "d");
  out[Role::kBias] = {};
  for (const auto& [begin, count, step] : {std::array<uint64_t, 3>{2, 0, 1},
                                           {1, 2, 1},
                                           {0, 2, 2},
                                           {0, 1, 0},
                                           {1, UINT64_MAX, UINT64_MAX}}) {
    out[Role::kWeight].row_begin = begin;
    out[Role::kWeight].row_count = count;
    out[Role::kWeight].row_step = step;
    EXPECT_NE(reader_error(store, out, {}).find("output rows"), std::string::npos)
        << begin << " " << count << " " << step;
  }
  ModuleTensors expert = collect(store, "d");
  expert[Role::kWeight].index = 2;
  EXPECT_NE(reader_error(store, expert, {}).find("at least 3 experts"), std::string::npos);
}

TEST(FormatsPlain, IntegerStrategies) {
  const std::vector<int8_t> codes = random_codes(6 * 24, 4);
  const struct {
    QuantArgs args;
    std::vector<uint64_t> shape;
    size_t (*index)(size_t r, size_t c);
  } cases[] = {
      {int_args(4, Strategy::kTensor), {1}, [](size_t, size_t) -> size_t { return 0; }},
      {int_args(4, Strategy::kTensor), {}, [](size_t, size_t) -> size_t { return 0; }},
      {int_args(4, Strategy::kChannel), {6, 1}, [](size_t r, size_t) { return r; }},
      {int_args(4, Strategy::kChannel), {6}, [](size_t r, size_t) { return r; }},
      {int_args(4, Strategy::kGroup, 8), {6, 3}, [](size_t r, size_t c) { return r * 3 + c / 8; }},
      {int_args(4, Strategy::kGroup, 24), {6, 1}, [](size_t r, size_t) { return r; }},
  };
  for (const auto& t : cases) {
    size_t n = 1;
    for (const uint64_t d : t.shape) n *= d;
    const std::vector<float> scales = ramp(n, 0.5f, 0.25f);
    FileMaker file;
    file.put("m.weight", DType::kI8, {6, 24}, codes);
    file.floats("m.weight_scale", DType::kF16, t.shape, scales);
    const TensorStore& store = file.open();
    for (const Format f : {Format::kIntQuantized, Format::kNaiveQuantized}) {
      const auto loaded = run_reader(store, collect(store, "m"), scheme_of(f, t.args), "", 6, 24);
      EXPECT_EQ(loaded->view.bits, 4);
      for (size_t r = 0; r < 6; ++r)
        for (size_t c = 0; c < 24; ++c)
          ASSERT_EQ(weight_at(loaded->view, r, c),
                    static_cast<float>(codes[r * 24 + c]) * scales[t.index(r, c)]);
    }
  }
}

TEST(FormatsPlain, Fp8RaggedBlocks) {
  const size_t N = 200, K = 192;
  const std::vector<uint8_t> codes = random_fp8(N * K);
  const std::vector<float> scales = ramp(4, 0.5f, 0.5f);
  FileMaker file;
  file.put("m.weight", DType::kF8E4M3, {N, K}, codes);
  file.floats("m.weight_scale", DType::kBf16, {2, 2}, scales);
  const TensorStore& store = file.open();
  Scheme scheme = scheme_of(Format::kFloatQuantized, float_args(8, Strategy::kBlock));
  scheme.weights->block_n = scheme.weights->block_k = 128;
  const auto loaded = run_reader(store, collect(store, "m"), scheme);
  EXPECT_EQ(loaded->view.code, CodeType::kFp8);
  for (size_t r = 0; r < N; ++r)
    for (size_t c = 0; c < K; ++c)
      ASSERT_EQ(weight_at(loaded->view, r, c),
                e4m3_to_f32(codes[r * K + c]) * scales[r / 128 * 2 + c / 128]);
  // The upper half begins in the middle of a block.
  ModuleTensors half = collect(store, "m");
  for (const Role role : {Role::kWeight, Role::kWeightScale}) {
    half[role].row_begin = 100;
    half[role].row_count = 100;
  }
  const auto up = run_reader(store, half, scheme, "", 100, K);
  for (size_t r = 0; r < 100; ++r)
    for (size_t c = 0; c < K; ++c)
      ASSERT_EQ(weight_at(up->view, r, c), weight_at(loaded->view, 100 + r, c));
  half[Role::kWeight].row_step = half[Role::kWeightScale].row_step = 2;
  half[Role::kWeight].row_begin = half[Role::kWeightScale].row_begin = 0;
  EXPECT_NE(reader_error(store, half, scheme).find("interleaved"), std::string::npos);
}

TEST(FormatsPlain, TransposedExpertsWithScales) {
  const size_t E = 3, N = 70, K = 96, G = 3;
  const std::vector<int8_t> codes = random_codes(E * K * N, 8);
  const std::vector<float> scales = ramp(E * G * N, 1, 1);
  FileMaker file;
  file.put("m.weight", DType::kI8, {E, K, N}, codes);
  file.put("m.weight_scale", DType::kF32, {E, G, N}, scales);
  const TensorStore& store = file.open();
  ModuleTensors tensors = collect(store, "m");
  for (const Role role : {Role::kWeight, Role::kWeightScale}) {
    tensors[role].index = 2;
    tensors[role].transposed = true;
  }
  const auto loaded =
      run_reader(store, tensors,
                 scheme_of(Format::kIntQuantized, int_args(8, Strategy::kGroup, 32)), "", N, K);
  for (size_t r = 0; r < N; ++r)
    for (size_t c = 0; c < K; ++c)
      ASSERT_EQ(weight_at(loaded->view, r, c),
                static_cast<float>(codes[(2 * K + c) * N + r]) * scales[(2 * G + c / 32) * N + r]);
}

TEST(FormatsPlain, PerExpertScalars) {
  FileMaker file;
  file.put("m.weight", DType::kF8E4M3, {2, 3, 4}, random_fp8(24));
  file.floats("m.weight_scale", DType::kF32, {2, 1, 1}, {2.0f, 3.0f});
  file.floats("m.input_scale", DType::kF32, {2}, {0.5f, 0.25f});
  const TensorStore& store = file.open();
  Scheme scheme = scheme_of(Format::kFloatQuantized, float_args(8, Strategy::kTensor));
  scheme.input = float_args(8, Strategy::kTensor);
  ModuleTensors tensors = collect(store, "m");
  for (TensorRef& ref : tensors.by_role) ref.index = 1;
  const auto loaded = run_reader(store, tensors, scheme);
  EXPECT_EQ(scale_of(loaded->view, 2, 3), 3.0f);
  EXPECT_EQ(loaded->plan.input.scale, 0.25f);
  EXPECT_TRUE(loaded->plan.has_input_scale);
  tensors[Role::kInputScale].index = -1;
  EXPECT_NE(
      reader_error(store, tensors, scheme).find("input_scale is F32[2]; expected one element"),
      std::string::npos);
}

// An INT8 module "m" with everything that can be stored for its activations.
struct Static {
  FileMaker file;
  Scheme scheme = scheme_of(Format::kIntQuantized, int_args(8, Strategy::kChannel));
  Static() {
    file.put("m.weight", DType::kI8, {2, 4}, random_codes(8, 8));
    file.floats("m.weight_scale", DType::kBf16, {2, 1}, {1, 2});
  }
  std::string error() {
    const TensorStore& store = file.open();
    return reader_error(store, collect(store, "m"), scheme);
  }
  MatrixPlan plan() {
    const TensorStore& store = file.open();
    return run_reader(store, collect(store, "m"), scheme)->plan;
  }
};

TEST(FormatsPlain, StaticInputs) {
  Static s;
  s.scheme.input = int_args(8, Strategy::kTensor, 0, false);
  EXPECT_NE(s.error().find("no tensor input_scale"), std::string::npos);
  s.file.floats("m.input_scale", DType::kBf16, {1}, {0.5f});
  EXPECT_NE(s.error().find("no tensor input_zero_point"), std::string::npos);
  s.file.put("m.input_zero_point", DType::kI8, {1}, std::vector<int8_t>{-7});
  EXPECT_EQ(s.plan().input.scale, 0.5f);
  EXPECT_EQ(s.plan().input.zero_point, -7);
  EXPECT_TRUE(s.plan().has_input_scale);
  s.scheme.input->symmetric = true;
  EXPECT_NE(s.error().find("symmetric"), std::string::npos);
  s.file.put("m.input_zero_point", DType::kI8, {1}, std::vector<int8_t>{0});
  EXPECT_EQ(s.plan().input.zero_point, 0);
  for (const float bad : {0.0f, -1.0f, INFINITY, NAN}) {
    s.file.floats("m.input_scale", DType::kF32, {1}, {bad});
    EXPECT_NE(s.error().find("input_scale is"), std::string::npos) << bad;
  }
  s.file.floats("m.input_scale", DType::kF32, {2}, {1, 1});
  EXPECT_NE(s.error().find("input_scale is F32[2]; expected one element"), std::string::npos);
  s.file.put("m.input_scale", DType::kI32, {1}, std::vector<int32_t>{1});
  EXPECT_NE(s.error().find("expected dtype"), std::string::npos);
  s.scheme.input->dynamic = Dynamic::kDynamic;
  EXPECT_NE(s.error().find("dynamic input quantization"), std::string::npos);
}

TEST(FormatsPlain, FakeQuantizedInputAndOutput) {
  Static s;
  s.scheme.input = s.scheme.output = int_args(8, Strategy::kTensor);
  s.file.floats("m.input_scale", DType::kF32, {1}, {0.05f});
  EXPECT_NE(s.error().find("no tensor output_scale"), std::string::npos);
  s.file.floats("m.output_scale", DType::kF32, {}, {0.0f});  // never calibrated
  EXPECT_TRUE(s.plan().has_input_scale);
  EXPECT_FALSE(s.plan().has_output_scale);
  s.file.floats("m.output_scale", DType::kF32, {1}, {0.25f});
  EXPECT_EQ(s.plan().output.scale, 0.25f);
  EXPECT_TRUE(s.plan().has_output_scale);
  for (const float bad : {-1.0f, INFINITY, NAN}) {
    s.file.floats("m.output_scale", DType::kF32, {1}, {bad});
    EXPECT_NE(s.error().find("output_scale is"), std::string::npos) << bad;
  }
}

TEST(FormatsPlain, ContentIsChecked) {
  const Scheme int4 = scheme_of(Format::kIntQuantized, int_args(4, Strategy::kChannel));
  const Scheme fp8 = scheme_of(Format::kFloatQuantized, float_args(8, Strategy::kChannel));
  for (const size_t at : {size_t{0}, size_t{7}, size_t{1023}, size_t{1024}, size_t{2999}}) {
    for (const int8_t bad : {int8_t{8}, int8_t{-9}, int8_t{127}, int8_t{-128}, int8_t{16}}) {
      FileMaker file;
      std::vector<int8_t> codes = random_codes(3000, 4);
      codes[at] = bad;
      file.put("m.weight", DType::kI8, {3, 1000}, codes);
      file.floats("m.weight_scale", DType::kBf16, {3, 1}, {1, 1, 1});
      const TensorStore& store = file.open();
      EXPECT_NE(reader_error(store, collect(store, "m"), int4)
                    .find(fmt::format("m.weight[{},{}] is {}; expected a 4-bit code in [-8, 7]",
                                      at / 1000, at % 1000, bad)),
                std::string::npos);
    }
    for (const uint8_t bad : {uint8_t{0x7f}, uint8_t{0xff}}) {
      FileMaker file;
      std::vector<uint8_t> codes = random_fp8(3000);
      codes[at] = bad;
      file.put("m.weight", DType::kF8E4M3, {3, 1000}, codes);
      file.floats("m.weight_scale", DType::kBf16, {3, 1}, {1, 1, 1});
      const TensorStore& store = file.open();
      EXPECT_NE(reader_error(store, collect(store, "m"), fp8)
                    .find(fmt::format("m.weight[{},{}] is NaN", at / 1000, at % 1000)),
                std::string::npos);
    }
  }
}

TEST(FormatsPlain, EveryWidthAcceptsExactlyItsRange) {
  FileMaker file;
  const auto name = [](int v) { return "m" + std::to_string(v + 128); };
  for (int v = -128; v < 128; ++v) {
    file.put(name(v) + ".weight", DType::kI8, {1, 3},
             std::vector<int8_t>{0, static_cast<int8_t>(v), 0});
    file.floats(name(v) + ".weight_scale", DType::kF32, {1}, {1});
  }
  const TensorStore& store = file.open();
  for (int bits = 1; bits <= 8; ++bits)
    for (int v = -128; v < 128; ++v) {
      const Scheme scheme = scheme_of(Format::kIntQuantized, int_args(bits, Strategy::kTensor));
      const int half = 1 << (bits - 1);
      const ModuleTensors tensors = collect(store, name(v));
      if (v >= -half && v < half) {
        EXPECT_NO_THROW(run_reader(store, tensors, scheme)) << bits << " " << v;
      } else {
        EXPECT_THROW(run_reader(store, tensors, scheme), Error) << bits << " " << v;
      }
    }
}

TEST(FormatsPlain, ZeroScales) {
  FileMaker file;
  file.put("m.weight", DType::kF8E4M3, {2, 4}, std::vector<uint8_t>{1, 2, 3, 4, 0, 0x80, 0, 0});
  file.floats("m.weight_scale", DType::kBf16, {2, 1}, {1, 0});
  const TensorStore* store = &file.open();
  const Scheme scheme = scheme_of(Format::kFloatQuantized, float_args(8, Strategy::kChannel));
  EXPECT_EQ(weight_at(run_reader(*store, collect(*store, "m"), scheme)->view, 1, 2), 0.0f);
  file.floats("m.weight_scale", DType::kBf16, {2, 1}, {0, 1});
  store = &file.open();
  EXPECT_NE(reader_error(*store, collect(*store, "m"), scheme).find("weight_scale is 0 for row 0"),
            std::string::npos);
  file.floats("m.weight_scale", DType::kBf16, {2, 1}, {1, -0.0f});
  store = &file.open();
  EXPECT_NE(reader_error(*store, collect(*store, "m"), scheme).find("weight_scale[1,0] is -0"),
            std::string::npos);
}

TEST(FormatsPlain, Asymmetric) {
  FileMaker file;
  const std::vector<int8_t> codes = random_codes(2 * 8, 4), zero = {-8, 7, 3, 0};
  file.put("m.weight", DType::kI8, {2, 8}, codes);
  file.floats("m.weight_scale", DType::kF32, {2, 2}, {1, 2, 3, 4});
  file.put("m.weight_zero_point", DType::kI8, {2, 2}, zero);
  const TensorStore* store = &file.open();
  const Scheme scheme = scheme_of(Format::kIntQuantized, int_args(4, Strategy::kGroup, 4, false));
  const auto loaded = run_reader(*store, collect(*store, "m"), scheme);
  for (size_t r = 0; r < 2; ++r)
    for (size_t c = 0; c < 8; ++c)
      EXPECT_EQ(weight_at(loaded->view, r, c),
                static_cast<float>(codes[r * 8 + c] - zero[r * 2 + c / 4]) *
                    static_cast<float>(1 + r * 2 + c / 4));
  file.put("m.weight_zero_point", DType::kI32, {2, 2}, std::vector<int32_t>(4, 0));
  store = &file.open();
  EXPECT_NE(reader_error(*store, collect(*store, "m"), scheme)
                .find("weight_zero_point is I32[2,2]; expected dtype I8"),
            std::string::npos);
}

TEST(FormatsPlain, Refuses) {
  FileMaker file;
  file.put("a.weight", DType::kF8E4M3, {2, 2}, random_fp8(4));
  file.floats("a.weight_scale", DType::kBf16, {2, 1}, {1, 1});
  file.floats("b.weight", DType::kBf16, {2, 2}, {1, 1, 1, 1});
  file.floats("b.weight_scale", DType::kBf16, {2, 1}, {1, 1});
  file.put("c.weight", DType::kI8, {2, 2}, random_codes(4, 8));
  file.floats("c.weight_scale", DType::kBf16, {2}, {1, 1});
  const TensorStore& store = file.open();
  const Scheme int8 = scheme_of(Format::kIntQuantized, int_args(8, Strategy::kChannel));
  Scheme tensor = int8, group = int8, fp4 = int8;
  tensor.weights->strategy = Strategy::kTensor;
  group.weights = int_args(8, Strategy::kGroup, 3);
  fp4.weights = float_args(4, Strategy::kChannel);
  EXPECT_NE(reader_error(store, collect(store, "a"), int8)
                .find("a.weight is F8_E4M3[2,2]; expected dtype I8"),
            std::string::npos);
  EXPECT_NE(reader_error(store, collect(store, "b"), int8)
                .find("b.weight is BF16[2,2]; expected dtype I8"),
            std::string::npos);
  EXPECT_NE(reader_error(store, collect(store, "c"), tensor)
                .find("c.weight_scale is BF16[2]; expected one element"),
            std::string::npos);
  EXPECT_NE(reader_error(store, collect(store, "c"), group).find("group size 3, but K is 2"),
            std::string::npos);
  EXPECT_NE(reader_error(store, collect(store, "a"), fp4).find("4-bit float"), std::string::npos);
}

}  // namespace
}  // namespace moebius::test::formats_plain_test
