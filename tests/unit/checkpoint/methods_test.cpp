// SPDX-License-Identifier: Apache-2.0
// Native FP8 and ModelOpt: a golden folder written in the names of another method gives the same
// matrices bit for bit; what the configuration says and what the tensors say; names of DeepSeek-V4.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/numeric.h"
#include "checkpoint/methods/skip_list.h"
#include "quant/quant_access.h"
#include "quant/reference.h"
#include "unit/checkpoint/checkpoint_util.h"

namespace moebius::test::methods_test {
namespace {

struct Tensor {
  DType dtype;
  std::vector<uint64_t> shape;
  std::vector<uint8_t> bytes;
};
using Tensors = std::map<std::string, Tensor>;

// A folder that can be changed: the tensors and the config of a golden one.
struct Twin {
  std::unique_ptr<TempDir> dir = std::make_unique<TempDir>();
  Tensors tensors;
  Json config;

  explicit Twin(const std::string& golden) {
    const std::string folder = (test_data_dir() / "golden" / golden).string();
    config = parse_json(read_file(folder + "/config.json"), "config.json");
    const TensorStore store = TensorStore::open_file(folder + "/model.safetensors");
    for (const TensorInfo& t : store.tensors()) {
      Tensor& own = tensors[t.name] = {t.dtype, t.shape, std::vector<uint8_t>(t.bytes)};
      store.read(t, 0, own.bytes);
    }
  }

  // Tensors whose names end so are called otherwise, or go through f.
  Twin& rename(const std::string& from, const std::string& to,
               const std::function<void(Tensor&)>& f = {}) {
    Tensors out;
    for (auto& [name, t] : tensors) {
      const bool hit = name.ends_with(from);
      if (hit && f) f(t);
      out[hit ? name.substr(0, name.size() - from.size()) + to : name] = std::move(t);
    }
    tensors = std::move(out);
    return *this;
  }
  Twin& quantization(const std::string& section) {
    Json other = Json::object();
    for (const auto& [key, value] : config.members())
      if (key != "quantization_config") other.set(key, value);
    if (!section.empty()) other.set("quantization_config", parse_json(section, "section"));
    config = std::move(other);
    return *this;
  }
  std::string write() const {
    write_file(*dir / "config.json", config.dump());
    std::vector<TensorData> data;
    for (const auto& [name, t] : tensors) data.push_back({name, t.dtype, t.shape, t.bytes});
    write_safetensors((*dir / "model.safetensors").string(), data);
    return dir->path().string();
  }
  Checkpoint open() const { return Checkpoint::open(write()); }
};

float& value_of(Tensor& t) { return *reinterpret_cast<float*>(t.bytes.data()); }

// Every module of both means the same: weights, inputs, and the values stored for them.
void expect_same(const Checkpoint& a, const Checkpoint& b) {
  size_t quantized = 0;
  for (const Module& m : a.modules()) {
    const Module* other = b.find_module(m.name);
    ASSERT_NE(other, nullptr) << m.name;
    if (!has_matrix(m)) continue;
    SCOPED_TRACE(m.name);
    ASSERT_TRUE(other->supported) << other->reason;
    LoadBuffer x, y;
    const QuantMatrix v = reader_for(m.plan.scheme.format).load(m.plan, a.store(), x);
    const QuantMatrix w = reader_for(other->plan.scheme.format).load(other->plan, b.store(), y);
    ASSERT_EQ(v.N, w.N);
    ASSERT_EQ(v.K, w.K);
    EXPECT_EQ(v.code, w.code);
    EXPECT_EQ(v.block_n, w.block_n);
    EXPECT_EQ(v.block_k, w.block_k);
    std::vector<float> p(v.N * v.K), q(v.N * v.K);
    dequantize(v, p.data());
    dequantize(w, q.data());
    EXPECT_EQ(std::memcmp(p.data(), q.data(), p.size() * sizeof(float)), 0);
    EXPECT_EQ(act_spec_of(m.plan.scheme, Int8Mode::kDeclared),
              act_spec_of(other->plan.scheme, Int8Mode::kDeclared));
    EXPECT_EQ(m.plan.input.scale, other->plan.input.scale);
    quantized += m.plan.scheme.is_dense() ? 0 : 1;
  }
  EXPECT_GT(quantized, 6u);
}

Checkpoint golden(const std::string& name) {
  return Checkpoint::open((test_data_dir() / "golden" / name).string());
}

constexpr const char* kNative =
    R"({"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic",
        "fmt": "e4m3", "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]})";

TEST(MethodFp8, BlocksAreThoseOfCompressedTensors) {
  for (const char* name : {"qwen3moe-fp8-block", "qwen3moe-fp8-block-ragged"}) {
    SCOPED_TRACE(name);
    Twin twin(name);
    twin.rename(".weight_scale", ".weight_scale_inv").quantization(kNative);
    const Checkpoint c = twin.open();
    expect_same(golden(name), c);
    EXPECT_EQ(c.quant().method(), "fp8");
    EXPECT_TRUE(c.warnings().empty()) << c.warnings()[0];
    const Module& m = *c.find_module("model.layers.0.mlp.experts.0.up_proj");
    EXPECT_EQ(m.decision.rule, "fp8, e4m3 block 128x128");
    EXPECT_EQ(family_of(m.plan.scheme), "fp8_block");
  }
}

TEST(MethodFp8, TensorScalesStaticAndDynamic) {
  Twin fixed("qwen3moe-fp8-static");
  fixed.quantization(R"({"quant_method": "fp8", "activation_scheme": "static"})");
  expect_same(golden("qwen3moe-fp8-static"), fixed.open());
  fixed.rename(".input_scale", ".activation_scale").rename(".weight_scale", ".weight_scale_inv");
  expect_same(golden("qwen3moe-fp8-static"), fixed.open());
  Twin dynamic("qwen3moe-fp8-tensor-dynamic");
  dynamic.quantization(R"({"quant_method": "fp8", "activation_scheme": "dynamic"})");
  expect_same(golden("qwen3moe-fp8-tensor-dynamic"), dynamic.open());
}

// Powers of two as F32, and as exponent bytes under both types: one model.
TEST(MethodFp8, Ue8m0ScalesInEveryForm) {
  Twin twin("qwen3moe-fp8-block");
  twin.rename(".weight_scale", ".weight_scale_inv", [](Tensor& t) {
    std::vector<uint8_t> wide(t.bytes.size() / (bits_of(t.dtype) / 8) * 4);
    for (size_t i = 0; i < wide.size() / 4; ++i) {
      const float s = std::ldexp(1.0f, -7 - static_cast<int>(i % 3));
      std::memcpy(wide.data() + 4 * i, &s, 4);
    }
    t = {DType::kF32, t.shape, std::move(wide)};
  });
  twin.quantization(
      R"({"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0",
          "ignored_layers": ["lm_head", "mlp.gate"]})");
  const Checkpoint floats = twin.open();
  const Module& m = *floats.find_module("model.layers.0.self_attn.q_proj");
  const ActSpec act = act_spec_of(m.plan.scheme, Int8Mode::kDeclared);
  EXPECT_EQ(act.scale, ActScale::kE8m0Up);
  EXPECT_EQ(act.group, 128u);
  EXPECT_TRUE(floats.warnings().empty()) << floats.warnings()[0];
  for (const DType type : {DType::kF8E8M0, DType::kU8}) {
    Twin bytes("qwen3moe-fp8-block");
    bytes.tensors = twin.tensors;
    bytes.config = twin.config;
    bytes.rename(".weight_scale_inv", ".scale", [&](Tensor& t) {
      std::vector<uint8_t> exponents;
      for (size_t i = 0; i < t.bytes.size(); i += 4) {
        float s;
        std::memcpy(&s, t.bytes.data() + i, 4);
        exponents.push_back(static_cast<uint8_t>(std::ilogb(s) + 127));
      }
      t = {type, t.shape, std::move(exponents)};
    });
    expect_same(floats, bytes.open());
  }
}

TEST(MethodFp8, WorkedExample) {
  TinyModel m(R"("model_type": "somebody", "quantization_config":
      {"quant_method": "fp8", "weight_block_size": [2, 2]})");
  const auto e4m3 = [](std::vector<float> v) {
    std::vector<uint8_t> out;
    for (const float x : v) out.push_back(f32_to_e4m3(x));
    return out;
  };
  std::vector<float> s = {.5f, 2, 1, .25f};
  std::vector<uint8_t> scales(16);
  std::memcpy(scales.data(), s.data(), 16);
  m.add("a.weight", {3, 3}, DType::kF8E4M3, e4m3({1, 2, 448, -1, .5f, 1, 2, 2, 2}));
  m.add("a.weight_scale_inv", {2, 2}, DType::kF32, scales);
  const TempDir dir;
  const Checkpoint c = Checkpoint::open(m.write(dir));
  LoadBuffer buffer;
  const QuantMatrix w =
      reader_for(Format::kNativeFp8).load(c.find_module("a")->plan, c.store(), buffer);
  std::vector<float> got(9);
  dequantize(w, got.data());
  EXPECT_EQ(got, (std::vector<float>{.5f, 1, 896, -.5f, .25f, 2, 2, 2, .5f}));
}

// What the list says and what is stored: the tensors count, and a warning says so.
TEST(MethodFp8, TensorsCountMoreThanLists) {
  Twin twin("qwen3moe-fp8-block");
  twin.rename(".weight_scale", ".weight_scale_inv")
      .quantization(R"({"quant_method": "fp8", "weight_block_size": [128, 128],
                        "modules_to_not_convert": ["lm_head", "q_proj", "model.layers.0.mlp.gate"]})");
  Tensor& k = twin.tensors.at("model.layers.0.self_attn.k_proj.weight");
  k = {DType::kBf16, k.shape, std::vector<uint8_t>(k.bytes.size() * 2)};
  twin.tensors.erase("model.layers.0.self_attn.k_proj.weight_scale_inv");
  const Checkpoint c = twin.open();
  EXPECT_FALSE(c.find_module("model.layers.0.self_attn.q_proj")->plan.scheme.is_dense());
  EXPECT_TRUE(c.find_module("model.layers.0.self_attn.k_proj")->plan.scheme.is_dense());
  ASSERT_EQ(c.warnings().size(), 2u);
  EXPECT_TRUE(contains(c.warnings()[0],
                       "k_proj: stored as a plain weight although the "
                       "configuration does not exclude it"))
      << c.warnings()[0];
  EXPECT_TRUE(contains(c.warnings()[1],
                       "q_proj: stored quantized although "
                       "modules_to_not_convert 'q_proj' excludes it"))
      << c.warnings()[1];
}

// One tensor for the gate and up of all experts, as transformers saves them.
TEST(MethodFp8, FusedExperts) {
  Twin twin("qwen3moe-fp8-block");
  twin.rename(".weight_scale", ".weight_scale_inv").quantization(kNative);
  const Checkpoint split = twin.open();
  Twin fused("qwen3moe-fp8-block");
  fused.tensors = twin.tensors;
  fused.config = twin.config;
  const std::string block = "model.layers.0.mlp.experts.";
  for (const bool scale : {false, true}) {
    const std::string from = scale ? ".weight_scale_inv" : ".weight",
                      to = scale ? "_scale_inv" : "";
    const auto join = [&](const std::string& name, std::vector<std::string> parts) {
      Tensor all{};
      for (const char* e : {"0.", "1."}) {
        uint64_t rows = 0;
        for (const std::string& p : parts) {
          const Tensor& t = twin.tensors.at(block + e + p + from);
          all.dtype = t.dtype;
          rows += t.shape[0];
          all.shape = {2, rows, t.shape[1]};
          all.bytes.insert(all.bytes.end(), t.bytes.begin(), t.bytes.end());
          fused.tensors.erase(block + e + p + from);
        }
      }
      fused.tensors[block + name + to] = std::move(all);
    };
    join("gate_up_proj", {"gate_proj", "up_proj"});
    join("down_proj", {"down_proj"});
  }
  expect_same(split, fused.open());
}

// Step-3.7: stacks of experts under the names of an MLP, block scales beside them.
TEST(MethodFp8, StackedExperts) {
  TinyModel m(R"("model_type": "step3p7", "architectures": ["Step3p7ForConditionalGeneration"],
      "moe_num_experts": 2, "moe_top_k": 1, "moe_intermediate_size": 32,
      "quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 32]})");
  for (const auto& [p, N, K] : {std::tuple<const char*, uint64_t, uint64_t>{"gate_proj", 32, 64},
                                {"up_proj", 32, 64},
                                {"down_proj", 64, 32}}) {
    const std::string name = fmt::format("model.layers.0.moe.{}.", p);
    m.add(name + "weight", {2, N, K}, DType::kF8E4M3);
    std::vector<float> scales(2 * (N / 16) * (K / 32));
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = 1.0f + static_cast<float>(i);
    std::vector<uint8_t> bytes(scales.size() * 4);
    std::memcpy(bytes.data(), scales.data(), bytes.size());
    m.add(name + "weight_scale_inv", {2, N / 16, K / 32}, DType::kF32, bytes);
  }
  m.add("model.layers.0.moe.gate.weight", {2, 64});
  const TempDir dir;
  const Checkpoint c = Checkpoint::open(m.write(dir));
  const Module* up = c.find_module("model.layers.0.moe.experts.1.up_proj");
  ASSERT_NE(up, nullptr);
  LoadBuffer buffer;
  const QuantMatrix w = reader_for(up->plan.scheme.format).load(up->plan, c.store(), buffer);
  EXPECT_EQ(scale_of(w, 0, 0), 5.0f);  // behind the four of expert 0
  EXPECT_EQ(scale_of(w, 31, 63), 8.0f);
}

TEST(MethodFp8, QuarkUnderItsName) {
  const TempDir dir;
  TinyModel m(R"("model_type": "somebody", "quantization_config":
      {"quant_method": "fp8", "global_quant_config": {"weight": {"dtype": "fp8_e4m3",
       "qscheme": "per_tensor"}}, "export": {"pack_method": "reorder"}})");
  m.add("a.weight", {4, 4});
  EXPECT_EQ(Checkpoint::open(m.write(dir)).quant().method(), "quark");
}

// Gate and up in one matrix, whose blocks do not know the halves: as compressed-tensors has it.
TEST(MethodFp8, OneMatrixOfGateAndUpWithBlocksAcross) {
  Twin twin("granitehybrid-fp8-dynamic");
  for (auto& [name, t] : twin.tensors) {
    if (!name.ends_with(".weight_scale")) continue;
    const Tensor& w = twin.tensors.at(name.substr(0, name.size() - 6));
    const std::vector<uint64_t> shape = {(w.shape[0] + 23) / 24, (w.shape[1] + 39) / 40};
    std::vector<float> scales(shape[0] * shape[1]);
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = 0.01f + 0.003f * static_cast<float>(i);
    std::vector<uint8_t> bytes(scales.size() * 4);
    std::memcpy(bytes.data(), scales.data(), bytes.size());
    t = {DType::kF32, shape, std::move(bytes)};
  }
  twin.quantization(R"({"quant_method": "compressed-tensors", "format": "float-quantized",
      "version": "0.19.0", "quantization_status": "compressed", "ignore": ["lm_head"],
      "config_groups": {"g": {"targets": ["Linear"],
      "weights": {"type": "float", "num_bits": 8, "strategy": "block", "block_structure": [24, 40]},
      "input_activations": {"type": "float", "num_bits": 8, "strategy": "group", "group_size": 40,
                            "dynamic": true}}}})");
  const Checkpoint declared = twin.open();
  Twin native("granitehybrid-fp8-dynamic");
  native.tensors = twin.tensors;
  native.rename(".weight_scale", ".weight_scale_inv")
      .quantization(R"({"quant_method": "fp8", "weight_block_size": [24, 40]})");
  expect_same(declared, native.open());
}

// DeepSeek-V4: names of its own, I8 codes of MXFP4 experts, inputs in groups of 32.
TEST(MethodFp8, DeepseekV4Names) {
  TinyModel m(R"("model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"],
      "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32,
      "expert_dtype": "fp4", "quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
      "scale_fmt": "ue8m0", "activation_scheme": "dynamic", "weight_block_size": [128, 128]})",
              "");
  m.add("layers.0.attn.wo_a.weight", {200, 64}, DType::kF8E4M3)
      .add("layers.0.attn.wo_a.scale", {2, 1}, DType::kF8E8M0, {127, 128})
      .add("layers.0.attn.compressor.wkv.weight", {8, 64})
      .add("layers.0.ffn.gate.weight", {2, 64})
      .add("layers.0.ffn.gate.bias", {2}, DType::kF32);
  for (const char* e : {"0", "1"})
    for (const auto& [p, N, K] :
         {std::tuple{"w1", 32, 64}, std::tuple{"w2", 64, 32}, std::tuple{"w3", 32, 64}}) {
      const std::string name = fmt::format("layers.0.ffn.experts.{}.{}", e, p);
      const auto n = static_cast<uint64_t>(N), k = static_cast<uint64_t>(K);
      m.add(name + ".weight", {n, k / 2}, DType::kI8, std::vector<uint8_t>(n * k / 2, 0x2F));
      m.add(name + ".scale", {n, k / 32}, DType::kF8E8M0, std::vector<uint8_t>(n * k / 32, 126));
    }
  const TempDir dir;
  const Checkpoint c = Checkpoint::open(m.write(dir));
  const Module* expert = c.find_module("layers.0.ffn.experts.1.w2");
  ASSERT_NE(expert, nullptr);
  EXPECT_TRUE(expert->supported) << expert->reason;
  EXPECT_EQ(family_of(expert->plan.scheme), "w4a8_mxfp4");
  EXPECT_EQ(act_spec_of(expert->plan.scheme, Int8Mode::kDeclared).group, 32u);
  LoadBuffer buffer;
  const QuantMatrix w =
      reader_for(expert->plan.scheme.format).load(expert->plan, c.store(), buffer);
  EXPECT_EQ(weight_at(w, 0, 0), -3.0f);  // the low nibble first: -6 * 2^-1
  EXPECT_EQ(weight_at(w, 0, 1), 0.5f);
  const Module* linear = c.find_module("layers.0.attn.wo_a");
  ASSERT_NE(linear, nullptr);
  EXPECT_EQ(family_of(linear->plan.scheme), "fp8_block");
  EXPECT_EQ(linear->plan.N, 200u);
  EXPECT_TRUE(c.find_module("layers.0.attn.compressor.wkv")->plan.scheme.is_dense());
  EXPECT_TRUE(c.warnings().empty()) << c.warnings()[0];  // no list says what stays dense
  ASSERT_EQ(c.moe_blocks().size(), 1u);
  EXPECT_EQ(c.moe_blocks()[0].experts.size(), 2u);
}

constexpr const char* kNvfp4 =
    R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
        "ignore": ["lm_head", "model.layers.1.mlp.gate"]})";

// Globals that a reciprocal does not change are the same model bit for bit.
Twin nvfp4_twin(const std::string& name, bool exact, const std::string& section) {
  Twin twin(name);
  twin.rename(".weight_packed", ".weight");
  for (const auto& [from, to] : {std::pair{".weight_global_scale", ".weight_scale_2"},
                                 {".input_global_scale", ".input_scale"}})
    twin.rename(from, to, [&](Tensor& t) {
      float& g = value_of(t);
      g = exact ? std::ldexp(1.0f, -std::ilogb(g)) : 1.0f / g;
    });
  twin.quantization(section);
  return twin;
}

TEST(MethodModelopt, Nvfp4EqualsCompressedTensorsWhereGlobalsInvert) {
  for (const char* name : {"qwen3moe-nvfp4", "glm4moe-nvfp4"}) {
    SCOPED_TRACE(name);
    Twin declared(name);
    for (const char* suffix : {".weight_global_scale", ".input_global_scale"})
      declared.rename(suffix, suffix,
                      [](Tensor& t) { value_of(t) = std::ldexp(1.0f, std::ilogb(value_of(t))); });
    const Twin other = nvfp4_twin(name, true, kNvfp4);
    const Checkpoint a = declared.open(), b = other.open();
    expect_same(a, b);
    for (const Module& m : b.modules()) {
      if (m.plan.scheme.is_dense()) continue;
      EXPECT_TRUE(m.plan.global_scale.multiplies && m.plan.input.global_scale.multiplies);
      const MatrixPlan& other_plan = a.find_module(m.name)->plan;
      EXPECT_EQ(other_plan.global_scale.value, 1.0f / m.plan.global_scale.value);
      EXPECT_EQ(other_plan.input.global_scale.value, 1.0f / m.plan.input.global_scale.value);
    }
  }
}

// Published files have gate and up with globals up to ten times apart: each matrix keeps its own.
TEST(MethodModelopt, GateAndUpKeepTheirOwnGlobals) {
  Twin twin = nvfp4_twin("qwen3moe-nvfp4", true, kNvfp4);
  const Checkpoint before = twin.open();
  const std::string expert = "model.layers.1.mlp.experts.1.";
  value_of(twin.tensors.at(expert + "up_proj.weight_scale_2")) *= 8.0f;
  value_of(twin.tensors.at(expert + "up_proj.input_scale")) *= 4.0f;
  const Checkpoint c = twin.open();
  EXPECT_EQ(c.warnings().size(), before.warnings().size());
  const auto plan = [&](const Checkpoint& from, const char* name) -> const MatrixPlan& {
    return from.find_module(expert + name)->plan;
  };
  EXPECT_EQ(plan(c, "up_proj").global_scale.value,
            8.0f * plan(before, "up_proj").global_scale.value);
  EXPECT_EQ(plan(c, "up_proj").input.global_scale.value,
            4.0f * plan(before, "up_proj").input.global_scale.value);
  EXPECT_EQ(plan(c, "gate_proj").global_scale.value, plan(before, "gate_proj").global_scale.value);
  EXPECT_EQ(plan(c, "gate_proj").input, plan(before, "gate_proj").input);
}

TEST(MethodModelopt, WeightsAloneMixedAndExcluded) {
  const Checkpoint a16 =
      nvfp4_twin("qwen3moe-nvfp4a16", false,
                 R"({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4", "ignore": []})")
          .open();
  const Module& m = *a16.find_module("model.layers.0.self_attn.q_proj");
  EXPECT_EQ(family_of(m.plan.scheme), "nvfp4a16");
  Twin unused = nvfp4_twin("qwen3moe-nvfp4", false, R"({"quant_method": "modelopt",
      "quant_algo": "W4A16_NVFP4", "ignore": ["lm_head"]})");
  value_of(unused.tensors.at("model.layers.0.self_attn.q_proj.input_scale")) = 0.0f;
  EXPECT_EQ(family_of(unused.open().find_module("model.layers.0.self_attn.q_proj")->plan.scheme),
            "nvfp4a16");
  Twin mixed = nvfp4_twin("qwen3moe-nvfp4", false, R"({"quant_method": "modelopt",
      "quant_algo": "mixed_precision", "ignore": ["*gate", "lm_head"], "quantized_layers": {
      "model.layers.1.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16},
      "model.layers.0.mlp": {"quant_algo": "NVFP4"},
      "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
      "model.layers.0.self_attn.k_proj": {"quant_algo": "NVFP4"}}})");
  const std::string q = "model.layers.0.self_attn.q_proj.";
  Tensor& weight = mixed.tensors.at(q + "weight");
  const uint64_t N = weight.shape[0], K = weight.shape[1] * 2;
  weight = {DType::kF8E4M3, {N, K}, std::vector<uint8_t>(N * K, 0x38)};
  mixed.tensors.erase(q + "weight_scale_2");
  mixed.tensors[q + "weight_scale"] = mixed.tensors.at(q + "input_scale");
  const Checkpoint c = mixed.open();
  EXPECT_EQ(family_of(c.find_module("model.layers.0.self_attn.q_proj")->plan.scheme), "fp8_static");
  EXPECT_EQ(c.find_module("model.layers.1.mlp.experts.0.up_proj")->decision.rule,
            "quantized_layers 'model.layers.1.mlp.experts': NVFP4");
  bool said = false;
  for (const std::string& w : c.warnings())
    said |= contains(w, "stored quantized although quantized_layers, which does not list");
  EXPECT_TRUE(said);
}

TEST(MethodModelopt, Fp8InEveryGranularity) {
  Twin fixed("qwen3moe-fp8-static");
  fixed.quantization(R"({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]})");
  expect_same(golden("qwen3moe-fp8-static"), fixed.open());
  Twin channel("qwen3moe-fp8-dynamic");
  channel.quantization(
      R"({"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"})");
  expect_same(golden("qwen3moe-fp8-dynamic"), channel.open());
  Twin block("qwen3moe-fp8-block");
  block.quantization(R"({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"})");
  block.rename(".weight_scale", ".weight_scale", [](Tensor& t) {
    t.shape = {t.shape[0], 1, t.shape[1], 1};
  });
  expect_same(golden("qwen3moe-fp8-block"), block.open());
  Twin mx("qwen3moe-mxfp8");
  mx.quantization(R"({"quant_method": "modelopt", "quant_algo": "MXFP8", "group_size": 32})");
  expect_same(golden("qwen3moe-mxfp8"), mx.open());
}

// config.json without a section: the file of ModelOpt itself.
TEST(MethodModelopt, ItsOwnFile) {
  Twin twin = nvfp4_twin("qwen3moe-nvfp4", false, kNvfp4);
  const Checkpoint a = twin.open();
  twin.quantization("");
  write_file(*twin.dir / "hf_quant_config.json",
             R"({"producer": {"name": "modelopt", "version": "0.47.0"}, "quantization":
                 {"quant_algo": "NVFP4", "group_size": 16, "kv_cache_quant_algo": "FP8",
                  "exclude_modules": ["lm_head", "model.layers.1.mlp.gate"]}})");
  const Checkpoint b = twin.open();
  EXPECT_EQ(b.quant().method(), "modelopt");
  EXPECT_TRUE(b.warnings().empty()) << b.warnings()[0];
  expect_same(a, b);
}

// An expert that no token of the calibration reached.
TEST(MethodModelopt, ExpertsWithoutACalibratedInput) {
  const std::string experts = ".mlp.experts.1.";
  Twin twin = nvfp4_twin("qwen3moe-nvfp4", false, kNvfp4);
  twin.tensors.erase("model.layers.1" + experts + "gate_proj.input_scale");
  value_of(twin.tensors.at("model.layers.1" + experts + "up_proj.input_scale")) = 0.0f;
  const Checkpoint c = twin.open();
  for (const char* p : {"gate_proj", "up_proj"}) {
    float most = 0.0f;
    for (const auto& [name, t] : twin.tensors)
      if (name.starts_with("model.layers.1.mlp.experts.") &&
          name.ends_with(std::string(p) + ".input_scale"))
        most = std::max(most, *reinterpret_cast<const float*>(t.bytes.data()));
    const Module& m = *c.find_module("model.layers.1" + experts + p);
    EXPECT_EQ(m.plan.input.global_scale, (GlobalScale{most, true}));
  }
  EXPECT_EQ(c.warnings().size(), 2u);
  EXPECT_TRUE(contains(c.warnings()[0], "no input_scale was calibrated")) << c.warnings()[0];
  Twin fp8("qwen3moe-fp8-static");
  fp8.quantization(R"({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]})");
  fp8.tensors.erase("model.layers.0" + experts + "gate_proj.input_scale");
  const Checkpoint d = fp8.open();
  EXPECT_GT(d.find_module("model.layers.0" + experts + "gate_proj")->plan.input.scale, 0.0f);
  fp8.tensors.erase("model.layers.0.self_attn.q_proj.input_scale");
  EXPECT_TRUE(contains(error_of([&] { fp8.open(); }), "no tensor input_scale"));
}

TEST(SkipList, Wildcards) {
  EXPECT_TRUE(wildcard_matches("model.layers.3.self_attn*", "model.layers.3.self_attn.q_proj"));
  EXPECT_TRUE(wildcard_matches("*.mlp.gate", "model.layers.3.mlp.gate"));
  EXPECT_TRUE(wildcard_matches("a?c*", "abc"));
  EXPECT_FALSE(wildcard_matches("*.mlp.gate", "model.layers.3.mlp.gate_proj"));
  EXPECT_FALSE(wildcard_matches("a?c", "ac"));
  EXPECT_TRUE(wildcard_matches("*a*b*a*b*", std::string(200, 'a') + "bab"));
  EXPECT_FALSE(wildcard_matches("*a*a*a*a*a*a*a*b", std::string(20000, 'a')));
}

}  // namespace
}  // namespace moebius::test::methods_test
