// SPDX-License-Identifier: Apache-2.0
// Quark, FBGEMM FP8 and MLX: what their configurations give a module, and weights with an offset per
// group from the file to every kernel that takes them.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory_resource>
#include <random>

#include "checkpoint/methods/method.h"
#include "device/cpu/layer_build.h"
#include "kernels/list.h"
#include "kernels/oracle.h"
#include "kernels/packed_matrix.h"
#include "quant/quant_access.h"
#include "quant/reference.h"
#include "quant/slice.h"
#include "unit/checkpoint/checkpoint_util.h"
#include "unit/checkpoint/formats_util.h"
#include "unit/quant/rows_util.h"

namespace moebius::test::methods_vendors_test {
namespace {

struct Section {
  QuantConfig config;
  std::vector<std::string> warnings;

  explicit Section(const std::string& section, const std::string& key = "quantization_config") {
    config = QuantConfig::parse(parse_json("{\"" + key + "\": " + section + "}", "config.json"),
                                "config.json", warnings);
  }
  SchemeDecision decide(const std::string& module) const {
    FileMaker file;
    const TensorStore& store = file.put<uint8_t>("m.weight", DType::kU8, {1, 1}, {0})
                                   .put<uint8_t>("m.weight_scale", DType::kU8, {1, 1}, {0})
                                   .open();
    ModuleTensors tensors = collect(store, "m");
    return config.rules()->decide({module, module, false, tensors, store});
  }
  std::string scheme(const std::string& module) const { return describe(decide(module).scheme); }
};

std::string quark(const std::string& weight, const std::string& input = "null",
                  const std::string& more = "") {
  return R"({"quant_method": "quark", "global_quant_config": {"weight": )" + weight +
         R"(, "input_tensors": )" + input + "}" + more + "}";
}

TEST(VendorMethods, QuarkSpecifications) {
  const std::string fp4 = R"({"dtype": "fp4", "qscheme": "per_group", "group_size": 32,
                              "scale_format": "e8m0", "is_dynamic": )";
  const std::string fp8 = R"({"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": )";
  EXPECT_EQ(Section(quark(fp4 + "false}")).scheme("m"), "mxfp4a16 e2m1 g32, mxfp4-pack-quantized");
  EXPECT_EQ(Section(quark(fp4 + "false}", fp4 + "true}")).scheme("m"),
            "mxfp4 e2m1 g32, e2m1 g32 dynamic, mxfp4-pack-quantized");
  const Section mixed(quark(fp4 + "false}", fp8 + "false}"));
  EXPECT_EQ(mixed.scheme("m"), "w4a8_mxfp4 e2m1 g32, static e4m3 per tensor, mxfp4-pack-quantized");
  EXPECT_EQ(unsupported_reason(mixed.decide("m").scheme), std::nullopt);
  EXPECT_EQ(Section(quark(fp8 + "false}", fp8 + "true}")).scheme("m"),
            "fp8 e4m3 per tensor, e4m3 per tensor dynamic, native-fp8");
  EXPECT_EQ(Section(quark(R"({"dtype": "fp8_e4m3", "qscheme": "per_channel", "ch_axis": 0})",
                          R"({"dtype": "fp8_e4m3", "qscheme": "per_token", "is_dynamic": true})"))
                .scheme("m"),
            "fp8 e4m3 per channel, e4m3 per token dynamic, native-fp8");
  EXPECT_EQ(Section(quark(R"({"dtype": "int4", "qscheme": "per_group", "group_size": 128,
                              "symmetric": true})"))
                .scheme("m"),
            "w4a16 int4 g128 sym, quark-int4");
  EXPECT_EQ(Section(quark(R"({"dtype": "uint4", "qscheme": "per_group", "group_size": 32,
                              "symmetric": false})"))
                .scheme("m"),
            "w4a16 int4 g32 asym, awq");
  EXPECT_EQ(Section(quark(R"({"dtype": "int8", "qscheme": "per_channel", "symmetric": true})",
                          R"({"dtype": "int8", "qscheme": "per_channel", "is_dynamic": true})"))
                .scheme("m"),
            "w8a8 int8 per channel sym, int8 per token sym dynamic, int-quantized");
}

TEST(VendorMethods, QuarkPatternsComeFirst) {
  const Section s(quark(R"({"dtype": "fp8_e4m3", "qscheme": "per_tensor"})", "null", R"(,
      "exclude": ["lm_head", "*.self_attn.*"], "layer_quant_config": {
      "*.down_proj": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_channel"}},
      "*.layers.1.*": {"weight": null},
      "model.layers.2.mlp.up_proj and others": {"weight": {"dtype": "int8",
        "qscheme": "per_tensor"}}})"));
  EXPECT_EQ(s.decide("model.layers.1.mlp.down_proj").rule, "layer_quant_config '*.down_proj'");
  EXPECT_EQ(s.scheme("model.layers.0.mlp.up_proj"), "fp8a16 e4m3 per tensor, native-fp8");
  EXPECT_EQ(s.scheme("model.layers.2.mlp.up_proj"), "w8a16 int8 per tensor sym, int-quantized");
  const MethodRules& rules = *s.config.rules();
  EXPECT_EQ(rules.dense_by("model.layers.0.self_attn.q_proj"), "exclude '*.self_attn.*'");
  EXPECT_EQ(rules.dense_by("model.layers.1.mlp.up_proj"), "layer_quant_config '*.layers.1.*'");
  EXPECT_TRUE(s.warnings.empty());
}

TEST(VendorMethods, FbgemmBound) {
  const Section s(R"({"quant_method": "fbgemm_fp8", "activation_scale_ub": 900})");
  const Scheme scheme = s.decide("m").scheme;
  EXPECT_EQ(describe(scheme), "fp8 e4m3 per channel, e4m3 per token dynamic up to 900, native-fp8");
  // Scales count magnitudes up to the bound; what lies above becomes the bound.
  const ActSpec act = act_spec_of(scheme, Int8Mode::kDeclared);
  EXPECT_EQ(act.bound, 900.0f);
  const float x[4] = {450.0f, -1800.0f, 0.5f, 900.0f};
  const QuantRowsBuffer q = quantize_rows(x, 4, 1, 4, act, {}, XType::kF32);
  EXPECT_EQ(q.scales[0], 900.0f / 448.0f);
  float y[4];
  dequantize_rows(q.rows, y);
  EXPECT_EQ(y[1], -448.0f * (900.0f / 448.0f));
  EXPECT_EQ(y[3], -y[1]);
  // Every kernel's rows are the same.
  std::mt19937 random(28);
  std::normal_distribution<float> normal(0.0f, 700.0f);
  std::vector<float> rows(5 * 96);
  for (float& v : rows) v = normal(random);
  std::vector<uint8_t> codes(8 * 96);
  for (uint8_t& c : codes) c = static_cast<uint8_t>(random() % 0x7f);
  std::vector<float> scales(8, 0.5f);
  QuantMatrix w;
  w.N = 8, w.K = 96, w.code = CodeType::kFp8, w.bits = 8;
  w.codes = codes.data(), w.row_bytes = 96, w.scale_type = ScaleType::kF32;
  w.scales = reinterpret_cast<const uint8_t*>(scales.data()), w.scale_stride = 1, w.block_k = 96;
  const QuantRowsBuffer quantized = quantize_rows(rows.data(), 96, 5, 96, act, {}, XType::kF32);
  std::vector<float> want(5 * 8);
  reference_gemm(w, quantized.rows, 0, 8, want.data(), 8, std::pmr::get_default_resource());
  size_t ran = 0;
  for (const Kernel* k : kernel_list()) {
    const Problem p = make_problem(w, act, XType::kF32);
    if (!missing_features(host_cpu(), k->arch, k->needs).empty() || k->supports(p) != nullptr)
      continue;
    std::vector<float> got(5 * 8);
    OwnedPackedMatrix(*k, w, act, XType::kF32, {}).multiply(rows.data(), 96, 5, got.data(), 8);
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], want[i], std::fabs(want[i]) * 1e-4f) << title_of(*k);
    ++ran;
  }
  EXPECT_GE(ran, 2u);
}

TEST(VendorMethods, MlxNumbers) {
  const Section s(R"({"group_size": 64, "bits": 4, "model.layers.0.mlp.gate": {"group_size": 32,
                      "bits": 8}, "model.layers.1.mlp.switch_mlp.up_proj": {"mode": "mxfp4"},
                      "lm_head": false, "model.norm": true})",
                  "quantization");
  EXPECT_EQ(s.config.method(), "mlx");
  EXPECT_EQ(s.scheme("a"), "w4a16 int4 g64 offset, mlx");
  EXPECT_EQ(s.scheme("model.layers.0.mlp.gate"), "w8a16 int8 g32 offset, mlx");
  EXPECT_EQ(s.scheme("model.layers.1.mlp.switch_mlp.up_proj"), "mxfp4a16 e2m1 g32, mlx");
  EXPECT_EQ(s.config.rules()->dense_by("lm_head"), "'lm_head': false");
  EXPECT_EQ(s.config.rules()->dense_by("model.norm"), "");
  EXPECT_TRUE(s.warnings.empty());
  EXPECT_EQ(Section(R"({"group_size": 16, "bits": 4, "mode": "nvfp4"})").scheme("a"),
            "nvfp4a16 e2m1 g16, mlx");
}

// Two files of one folder that disagree: config.json counts, and it is said.
TEST(VendorMethods, ModeloptFilesThatDisagree) {
  const auto open = [](const std::string& file) {
    const TempDir dir;
    std::filesystem::copy(test_data_dir() / "golden" / "glm4moe-modelopt-nvfp4", dir.path());
    std::ofstream(dir / "hf_quant_config.json") << file;
    const Checkpoint c = Checkpoint::open(dir.path().string());
    std::string text;
    for (const std::string& w : c.warnings()) text += w + "\n";
    return text;
  };
  EXPECT_EQ(open(R"({"quantization": {"quant_algo": "NVFP4", "group_size": 16}})"), "");
  EXPECT_EQ(open(R"({"quantization": {"quant_algo": "FP8"}})"),
            "hf_quant_config.json says FP8, but config.json says NVFP4; config.json counts\n");
  EXPECT_EQ(open(R"({"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers":
                     {"a": {"quant_algo": "NVFP4"}, "b": {"quant_algo": "FP8"}}}})"),
            "hf_quant_config.json says MIXED_PRECISION, 1 x FP8, 1 x NVFP4, but config.json says "
            "NVFP4; config.json counts\n");
  EXPECT_TRUE(contains(open("{"), "hf_quant_config.json is not read, because config.json counts"));
}

// What the builder takes for declared, before tensors are there.
TEST(VendorMethods, SchemesOfTheBuilder) {
  const auto scheme = [](const std::string& json) {
    return describe(parse_stored_scheme(json).scheme);
  };
  EXPECT_EQ(scheme(R"({"quant_method": "gptq", "bits": 4, "group_size": 64})"),
            "w4a16 int4 g64 sym, gptq");
  EXPECT_EQ(scheme(R"({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true})"),
            "w4a16 int4 g32 asym, awq");
  EXPECT_EQ(scheme(R"({"quant_method": "mlx", "bits": 5, "group_size": 32})"),
            "w5a16 int5 g32 offset, mlx");
  EXPECT_EQ(scheme(quark(R"({"dtype": "fp8_e4m3", "qscheme": "per_tensor"})")),
            "fp8a16 e4m3 per tensor, native-fp8");
  EXPECT_EQ(scheme(R"({"quant_method": "fp8", "weight_block_size": [128, 64]})"),
            "fp8_block e4m3 block 128x64, e4m3 g64 dynamic, native-fp8");
  EXPECT_EQ(scheme(R"({"quant_method": "fp8", "activation_scheme": "static"})"),
            "fp8_static e4m3 per tensor, static e4m3 per tensor, native-fp8");
  EXPECT_EQ(scheme(R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
                       "quantized_layers": {"a.b": {"quant_algo": "W4A16_NVFP4", "group_size": 16}},
                       "module": "a.b"})"),
            "nvfp4a16 e2m1 g16, modelopt-nvfp4");
  EXPECT_EQ(scheme(R"({"quant_method": "fbgemm_fp8"})"),
            "fp8 e4m3 per channel, e4m3 per token dynamic up to 1200, native-fp8");
}

// Codes in order, scales and offsets that tell outputs and groups apart.
struct Affine {
  FileMaker file;
  const TensorStore* store;
  ModuleTensors tensors;
  Scheme scheme;
  std::vector<float> want;  // [N, K]

  Affine(unsigned bits, size_t N, size_t K, int64_t group) {
    std::mt19937 random(bits);
    const size_t G = K / static_cast<size_t>(group);
    std::vector<uint32_t> words(N * K * bits / 32);
    std::vector<float> scales(N * G), offsets(N * G);
    for (size_t i = 0; i < N * G; ++i) {
      scales[i] = (i % 3 == 0 ? -1.0f : 1.0f) * (0.25f + 0.125f * static_cast<float>(i % 5));
      offsets[i] = 0.5f * static_cast<float>(i % 7) - 1.5f;
    }
    for (size_t i = 0; i < N * K; ++i) {
      const uint64_t q = random() % (1u << bits), at = i % K * bits;
      uint32_t* row = words.data() + i / K * (K * bits / 32);
      row[at / 32] |= static_cast<uint32_t>(q << at % 32);
      if (at % 32 + bits > 32) row[at / 32 + 1] |= static_cast<uint32_t>(q >> (32 - at % 32));
      const size_t g = i / K * G + i % K / static_cast<size_t>(group);
      want.push_back(static_cast<float>(q) * scales[g] + offsets[g]);
    }
    file.put("m.weight", DType::kU32, {N, K * bits / 32}, words)
        .floats("m.scales", DType::kBf16, {N, G}, scales)
        .floats("m.biases", DType::kBf16, {N, G}, offsets);
    store = &file.open();
    tensors.name = "m";
    tensors[Role::kWeight].info = store->find("m.weight");
    tensors[Role::kWeightScale].info = store->find("m.scales");
    tensors[Role::kWeightOffset].info = store->find("m.biases");
    scheme =
        scheme_of(Format::kMlx, int_args(static_cast<int>(bits), Strategy::kGroup, group, false));
    scheme.weights->offsets = true;
  }
};

TEST(Offsets, EveryWidthDecodesBySpecification) {
  for (const unsigned bits : {2u, 3u, 4u, 5u, 6u, 8u}) {
    SCOPED_TRACE(bits);
    Affine a(bits, 10, 96, 32);
    const auto loaded = run_reader(*a.store, a.tensors, a.scheme);
    EXPECT_TRUE(loaded->plan.offsets);
    EXPECT_EQ(decode(loaded->view), a.want);
    // Slices of rows and of columns, as ranks take them; and pieces of rows, as large ones are read.
    SliceMemory memory;
    const QuantMatrix part = slice(loaded->view, 3, 9, 40, 96, memory);
    for (size_t r = 0; r < part.N; ++r)
      for (size_t c = 0; c < part.K; ++c)
        ASSERT_EQ(weight_at(part, r, c), a.want[(r + 3) * 96 + c + 40]);
    ASSERT_TRUE(can_cut_rows(loaded->plan));
    LoadBuffer buffer;
    const QuantMatrix rows =
        reader_for(Format::kMlx).load(rows_of(loaded->plan, 4, 7), *a.store, buffer);
    EXPECT_EQ(weight_at(rows, 2, 95), a.want[6 * 96 + 95]);
  }
}

TEST(Offsets, KernelsThatTakeThemAgreeAndOthersSaySo) {
  for (const unsigned bits : {3u, 4u, 8u}) {
    Affine a(bits, 20, 128, 32);
    const auto loaded = run_reader(*a.store, a.tensors, a.scheme);
    const ActSpec act = act_spec_of(a.scheme, Int8Mode::kDeclared);
    const Problem p = make_problem(loaded->view, act, XType::kBf16);
    EXPECT_TRUE(p.offsets);
    std::vector<float> x(3 * 128), want(3 * 20);
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<float>(static_cast<int>(i * 37 % 64) - 32) / 16.0f;
    for (size_t m = 0; m < 3; ++m)
      for (size_t n = 0; n < 20; ++n) {
        double sum = 0;
        for (size_t k = 0; k < 128; ++k)
          sum += static_cast<double>(x[m * 128 + k]) * a.want[n * 128 + k];
        want[m * 20 + n] = static_cast<float>(sum);
      }
    size_t took = 0, others = 0;
    for (const Kernel* k : kernel_list()) {
      if (const char* reason = k->supports(p)) {
        Problem plain = p;
        plain.offsets = false;
        const bool else_fine = k->supports(plain) == nullptr;
        EXPECT_TRUE(!else_fine || contains(reason, "offset per group")) << title_of(*k) << reason;
        others += else_fine ? 1 : 0;
        continue;
      }
      if (k->gemm == nullptr || !missing_features(host_cpu(), k->arch, k->needs).empty()) continue;
      std::vector<float> y(3 * 20);
      OwnedPackedMatrix(*k, loaded->view, act, XType::kBf16, {})
          .multiply(x.data(), 128, 3, y.data(), 20);
      for (size_t i = 0; i < y.size(); ++i)
        EXPECT_NEAR(y[i], want[i], 1e-4f * (1.0f + std::fabs(want[i]))) << title_of(*k);
      ++took;
    }
    EXPECT_GE(took, 2u);    // generic and the reference at least
    EXPECT_GE(others, 1u);  // those of AMX at least, which say why not
  }
}

// The numbers of a repacked folder meet the same kernel in the same bytes: nothing is left that could
// run at another speed.
TEST(VendorMethods, RepackedFoldersPackToTheSameBytes) {
  const std::pair<const char*, const char*> kTwins[] = {
      {"qwen3moe-mxfp4", "qwen3moe-quark-mxfp4"},
      {"olmoe-fp8-static", "olmoe-quark-fp8-static"},
      {"olmoe-fp8-static", "olmoe-native-fp8-static"},
      {"qwen3moe-fp8-block-ragged", "qwen3moe-native-fp8-ragged"}};
  for (const auto& [one, two] : kTwins) {
    SCOPED_TRACE(two);
    const auto golden = [](const char* name) {
      return Checkpoint::open((test_data_dir() / "golden" / name).string());
    };
    const Checkpoint a = golden(one), b = golden(two);
    size_t compared = 0;
    for (const Module& m : a.modules()) {
      if (!has_matrix(m) || m.plan.scheme.is_dense()) continue;
      const Module* n = b.find_module(m.name);
      ASSERT_NE(n, nullptr) << m.name;
      LoadBuffer left, right;
      const QuantMatrix v = reader_for(m.plan.scheme.format).load(m.plan, a.store(), left);
      const QuantMatrix w = reader_for(n->plan.scheme.format).load(n->plan, b.store(), right);
      const ActSpec act = act_spec_of(m.plan.scheme, Int8Mode::kDeclared);
      ASSERT_EQ(act, act_spec_of(n->plan.scheme, Int8Mode::kDeclared)) << m.name;
      EXPECT_EQ(m.plan.input, n->plan.input) << m.name;
      const Problem p = make_problem(v, act, XType::kBf16), q = make_problem(w, act, XType::kBf16);
      ASSERT_EQ(p, q) << m.name;
      const Kernel* kernel = choose_kernel(p, host_cpu(), {}).chosen;
      ASSERT_EQ(kernel, choose_kernel(q, host_cpu(), {}).chosen);
      const auto packed = [&](const QuantMatrix& x) {
        std::vector<uint8_t> memory(kernel->packed_bytes(p) + 64, 0);
        uint8_t* at = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
        kernel->pack({&p, &x, 0, x.N, at});
        return std::vector<uint8_t>(at, at + kernel->packed_bytes(p));
      };
      EXPECT_EQ(packed(v), packed(w)) << m.name;
      ++compared;
    }
    EXPECT_GE(compared, 10u);
  }
}

}  // namespace
}  // namespace moebius::test::methods_vendors_test
