// SPDX-License-Identifier: Apache-2.0
// Lists the quantization methods: a new one is one file here and one line in the list. Refused
// methods stand in the same list, with a description and the tool that converts them.
#include "checkpoint/families.h"
#include "checkpoint/methods/method.h"

namespace moebius {
namespace {

constexpr QuantMethod refused(std::string_view name, std::string_view spellings,
                              std::string_view refusal) {
  return {name, spellings, nullptr, {}, refusal};
}

constexpr RoleAlias kFp8Suffixes[] = {
    {"weight_scale_inv", Role::kWeightScale, true},
    {"scale", Role::kWeightScale},          // DeepSeek-V4
    {"qscale_weight", Role::kWeightScale},  // Mistral
    {"qscale_act", Role::kInputScale},
    {"activation_scale", Role::kInputScale},
    {"weight_scale_2", Role::kWeightGlobalScale, true},  // NVFP4 experts in an fp8 folder
};
constexpr RoleAlias kModeloptSuffixes[] = {
    {"weight_scale_2", Role::kWeightGlobalScale, true},
};
constexpr RoleAlias kTurnedSuffixes[] = {
    {"qweight", Role::kWeightPacked, true},
    {"qzeros", Role::kWeightZeroPoint, true},
    {"scales", Role::kWeightScale, true},
    {"g_idx", Role::kWeightGIdx, true},
};
constexpr RoleAlias kQuarkSuffixes[] = {
    {"weight_scale_2", Role::kWeightGlobalScale, true},
    {"input_scale_2", Role::kInputGlobalScale, true},
    {"qweight", Role::kWeightPacked},  // Quark's export under AWQ's names
    {"qzeros", Role::kWeightZeroPoint},
    {"scales", Role::kWeightScale},
};
constexpr RoleAlias kMlxSuffixes[] = {
    {"scales", Role::kWeightScale, true},
    {"biases", Role::kWeightOffset, true},
    {"global_scale", Role::kWeightGlobalScale, true},
};

constexpr QuantMethod kMethods[] = {
    {"compressed-tensors", "compressed-tensors compressed_tensors", parse_compressed_tensors},
    {"mxfp4", "mxfp4", parse_native_mxfp4},
    {"fp8", "fp8", parse_fp8, kFp8Suffixes},
    {"modelopt", "modelopt modelopt_fp4 modelopt_fp8 modelopt_mixed", parse_modelopt,
     kModeloptSuffixes},
    {"gptq", "gptq gptq_v2", parse_gptq, kTurnedSuffixes},
    {"awq", "awq", parse_awq, kTurnedSuffixes},
    {"auto-round", "auto-round auto_round intel/auto-round", parse_auto_round, kTurnedSuffixes},
    {"quark", "quark", parse_quark, kQuarkSuffixes},
    {"mlx", "mlx", parse_mlx, kMlxSuffixes},
    {"fbgemm_fp8", "fbgemm_fp8", parse_fbgemm_fp8},
    refused("bitsandbytes", "bitsandbytes bitsandbytes_4bit bitsandbytes_8bit",
            "code tables over blocks that do not follow rows; dequantize() of transformers gives "
            "a model that llm-compressor quantizes"),
    refused("hqq", "hqq",
            "groups with float zero points, stored as Python objects; llm-compressor quantizes "
            "the original model"),
    refused("torchao", "torchao",
            "tensor subclasses of PyTorch; llm-compressor quantizes the original model"),
    refused("exl2", "exl2",
            "ExLlamaV2's mixed widths in a GPU's order; llm-compressor quantizes the original "
            "model"),
    refused("exl3", "exl3",
            "ExLlamaV3's trellis codes; llm-compressor quantizes the original model"),
    refused("aqlm", "aqlm", "additive code books; llm-compressor quantizes the original model"),
    refused("vptq", "vptq", "vector code books; llm-compressor quantizes the original model"),
    refused("spqr", "spqr",
            "sparse outliers beside packed codes; llm-compressor quantizes the original model"),
    refused("quip", "quip quip_sharp quip#",
            "lattice code books under rotations; llm-compressor quantizes the original model"),
    refused("higgs", "higgs", "grids under rotations; llm-compressor quantizes the original model"),
    refused("eetq", "eetq",
            "int8 in a GPU kernel's order; llm-compressor's W8A16 writes the same numbers as "
            "compressed-tensors"),
    refused("quanto", "quanto",
            "tensor subclasses of PyTorch; llm-compressor quantizes the original model"),
    refused("bitnet", "bitnet",
            "ternary weights packed by outputs; llm-compressor quantizes the original model"),
    refused("marlin", "marlin gptq_marlin awq_marlin marlin24",
            "tiles of one GPU kernel; take the GPTQ or AWQ folder that it was made from"),
    refused("qqq", "qqq", "tiles of one GPU kernel; llm-compressor's W4A8 is the same idea"),
    refused("gguf", "gguf", "llama.cpp's container; take the safetensors form of the same model"),
};

constexpr ConfigFile kOtherFiles[] = {
    {"hf_quant_config.json", "modelopt"},
    {"quantize_config.json", "gptq"},
    {"quant_config.json", "awq"},
    {"quantization_config.json", "auto-round"},
};

}  // namespace

Scheme MethodRules::declared(std::string_view module) const {
  ModuleTensors tensors;
  tensors.name = module;
  const TensorStore none;
  return decide({module, module, false, tensors, none}).scheme;
}

std::span<const QuantMethod> quant_methods() { return kMethods; }

const QuantMethod* find_method(std::string_view spelling) {
  for (const QuantMethod& m : kMethods)
    if (in_list(m.spellings, spelling)) return &m;
  return nullptr;
}

std::span<const ConfigFile> other_config_files() { return kOtherFiles; }

}  // namespace moebius
