// SPDX-License-Identifier: Apache-2.0
// Parses native FP8 (quant_method fp8), as DeepSeek, Qwen, GLM, MiniMax and others publish: E4M3
// weights with a multiplying scale per block (weight_scale_inv) or per matrix (weight_scale).
// DeepSeek-V4 calls the scale `scale` and stores its experts as MXFP4.
#include "checkpoint/formats/piece.h"
#include "checkpoint/methods/schemes.h"
#include "checkpoint/methods/skip_list.h"

namespace moebius {
namespace {

struct Fp8Config {
  std::optional<std::pair<int64_t, int64_t>> block;  // outputs x inputs of a block
  bool block_stated = false;                         // true also when stated as "none"
  bool is_static = false;
  bool ue8m0 = false;
  std::optional<bool> fp4_experts;
};

class Fp8Rules : public MethodRules {
 public:
  Fp8Rules(Fp8Config config, SkipList skip) : config_(std::move(config)), skip_(std::move(skip)) {}

  SchemeDecision decide(const StoredModule& m) const override {
    const TensorRef& weight = m.tensors[Role::kWeight];
    if (!weight) fail("{}: no tensor weight; method fp8 needs it", m.name);
    const DType type = weight.info->dtype;
    const bool packed = type == DType::kI8 || type == DType::kU8;
    if (packed && m.tensors[Role::kWeightGlobalScale])
      return decided(nvfp4_scheme(true), "fp8, moe_quant_algo NVFP4");
    if (packed) return decided(fp4_expert(m), "fp8, FP4 experts");
    const Scheme scheme = fp8(m);
    return decided(scheme, fmt::format("fp8, {}", describe(*scheme.weights)));
  }

  Scheme declared(std::string_view) const override {
    return config_.block ? block_scheme(*config_.block) : tensor_scheme();
  }

  std::string dense_by(std::string_view module) const override { return skip_.entry_for(module); }
  bool lists_dense() const override { return skip_.stated(); }

 private:
  Scheme block_scheme(std::pair<int64_t, int64_t> block) const {
    Scheme s;
    s.format = Format::kNativeFp8;
    s.weights = float_args(8, Strategy::kBlock);
    s.weights->block_n = block.first;
    s.weights->block_k = block.second;
    s.input = float_args(8, Strategy::kGroup, block.second, Dynamic::kDynamic);
    if (config_.ue8m0) s.input->scale_dtype = kPowerOfTwoScales;
    return s;
  }

  Scheme tensor_scheme() const {
    Scheme s;
    s.format = Format::kNativeFp8;
    s.weights = float_args(8, Strategy::kTensor);
    s.input = float_args(8, Strategy::kTensor, 0,
                         config_.is_static ? Dynamic::kStatic : Dynamic::kDynamic);
    return s;
  }

  Scheme fp4_expert(const StoredModule& m) const {
    if (config_.fp4_experts == false)
      wrong_tensor(m.store, *m.tensors[Role::kWeight].info,
                   "dtype F8_E4M3: expert_dtype of the configuration is fp8");
    if (!m.tensors[Role::kWeightScale]) fail("{}: no tensor scale; FP4 experts need it", m.name);
    rename_role(m.tensors, Role::kWeight, Role::kWeightPacked);
    Scheme s;
    s.weights = float_args(4, Strategy::kGroup, 32, Dynamic::kStatic, "float8_e8m0fnu");
    s.input = float_args(8, Strategy::kGroup, 32, Dynamic::kDynamic, kPowerOfTwoScales);
    s.format = Format::kMxfp4Pack;
    return s;
  }

  Scheme fp8(const StoredModule& m) const {
    const TensorRef& weight = m.tensors[Role::kWeight];
    const TensorRef& scale = m.tensors[Role::kWeightScale];
    if (weight.info->dtype != DType::kF8E4M3)
      wrong_tensor(m.store, *weight.info, "dtype F8_E4M3, because {} is stored beside it",
                   scale ? m.store.where(*scale.info) : std::string("another tensor"));
    if (!scale)
      wrong_tensor(m.store, *weight.info,
                   "its scale beside it: no tensor weight_scale_inv or weight_scale belongs to {}",
                   m.name);
    const std::optional<std::pair<int64_t, int64_t>> block = block_of(m);
    if (!block) return tensor_scheme();
    check_halves(m, block->first);
    if (config_.is_static)
      fail(
          "{}: activation_scheme is static, but its weights have scales per block; blocks take "
          "dynamic inputs",
          m.name);
    return block_scheme(*block);
  }

  // Returns the block that shares a scale, or nothing for one scale per matrix. Where the
  // configuration does not say, the shape of the scales does (files without the field mean blocks
  // of 128 to some readers and none to others). A token table has one scale beside matrices with
  // blocks.
  std::optional<std::pair<int64_t, int64_t>> block_of(const StoredModule& m) const {
    const TensorRef& scale = m.tensors[Role::kWeightScale];
    const std::vector<uint64_t> dims = slice_dims(m.store, scale);
    const bool table = dims.size() == 2 && dims[0] * dims[1] > 1;
    if (config_.block_stated && (table || !m.embedding)) return config_.block;
    if (table) return std::pair<int64_t, int64_t>(128, 128);
    return std::nullopt;
  }

  // Refuses blocks that hold rows of both gate and up in a tensor of all experts, because writers
  // disagree on where the blocks of the second half begin. One matrix of both is a matrix like any
  // other.
  void check_halves(const StoredModule& m, int64_t block_n) const {
    const TensorRef& scale = m.tensors[Role::kWeightScale];
    if (scale.index < 0 || scale.row_count == 0 ||
        scale.row_count % static_cast<uint64_t>(block_n) == 0)
      return;
    wrong_tensor(
        m.store, *(is_whole(m.tensors[Role::kWeight]) ? scale : m.tensors[Role::kWeight]).info,
        "gate and up of a width that blocks of {} rows divide, but it is {}: the blocks of "
        "the halves do not meet",
        block_n, scale.row_count);
  }

  Fp8Config config_;
  SkipList skip_;
};

std::optional<std::string> expert_dtype(const QuantFields& f, const MethodConfig& c) {
  if (auto own = f.lower_text("expert_dtype")) return own;
  for (const Json* place : {&c.config, c.config.find("text_config")})
    if (const Json* v =
            place != nullptr && place->is_object() ? place->find("expert_dtype") : nullptr;
        v != nullptr && v->is_string())
      return v->as_string();
  return std::nullopt;
}

}  // namespace

void parse_fp8(const MethodConfig& c) {
  const QuantFields f(
      c.section, c.out.path, c.context,
      "quant_method weight_block_size activation_scheme fmt scale_fmt expert_dtype "
      "modules_to_not_convert ignored_layers modules_to_convert moe_quant_algo dequantize "
      "kv_cache_scheme export");
  Fp8Config config;
  config.block_stated = c.section.find("weight_block_size") != nullptr;
  config.block = f.positive_pair("weight_block_size", 1 << 20);
  if (!config.block && f.find("weight_block_size") != nullptr)
    f.reject("weight_block_size", "expected two positive numbers, outputs and inputs of a block");
  const std::string scheme = f.lower_text("activation_scheme").value_or("dynamic");
  if (scheme != "dynamic" && scheme != "static")
    f.reject("activation_scheme", "expected dynamic or static");
  config.is_static = scheme == "static";
  if (f.lower_text("fmt").value_or("e4m3") != "e4m3") f.reject("fmt", "expected e4m3");
  const std::string scale_fmt = f.lower_text("scale_fmt").value_or("float");
  if (scale_fmt != "float" && scale_fmt != "ue8m0")
    f.reject("scale_fmt", "expected float or ue8m0");
  config.ue8m0 = scale_fmt == "ue8m0";
  if (const auto type = expert_dtype(f, c)) {
    if (*type != "fp4" && *type != "fp8")
      fail("{}: expert_dtype is '{}'; expected fp4 or fp8", c.context.file, printable(*type, 40));
    config.fp4_experts = *type == "fp4";
  }
  if (const auto algo = f.lower_text("moe_quant_algo"); algo && *algo != "nvfp4")
    f.reject("moe_quant_algo", "expected NVFP4");
  c.out.rules = std::make_shared<Fp8Rules>(
      std::move(config),
      SkipList(f, {"ignored_layers", "modules_to_not_convert"}, SkipSyntax::kPaths));
}

}  // namespace moebius
