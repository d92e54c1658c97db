# SPDX-License-Identifier: Apache-2.0
"""Makes the quantization configs of build/data/negative/configs that must be refused, and expected.json: what each refusal says.

Two kinds. "parse": the config itself is refused, in a message that names field and value. "scheme": the config is legal, but the
scheme of its experts is one the engine does not run; the reason names the field that is in the way.
Standard library only; a second run changes nothing.

    make_negative_configs.py [DATA]          default: build/data
"""
import json
import math
import pathlib
import sys

FOLDER = (pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2] / "build/data") / "negative/configs"
EXPERT = "model.layers.0.mlp.experts.3.down_proj"

INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
INT8_TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
INT8_STATIC = {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False, "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
FP8_TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
FP8_STATIC = {"num_bits": 8, "type": "float", "strategy": "tensor"}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
MXFP4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}

parse, scheme = {}, {}


def section(**fields):
    return {"quantization_config": {"quant_method": "compressed-tensors", "version": "0.18.0", "format": "pack-quantized", **fields}}


def group(weights=INT4, inputs=None, outputs=None, targets=("Linear",), **fields):
    return {"targets": list(targets), "weights": weights, "input_activations": inputs, "output_activations": outputs, **fields}


def bad_weights(name, change, *says):
    parse[name] = (section(config_groups={"group_0": group({**INT4, **change})}), says)


def unsupported(name, fmt, says, weights, inputs=None, outputs=None):
    scheme[name] = (section(format=fmt, config_groups={"group_0": group(weights, inputs, outputs)}), [says])


W = "quantization_config.config_groups.group_0.weights."
for method in ("bitsandbytes", "hqq", "torchao", "exl2", "exl3", "aqlm", "vptq", "spqr", "higgs", "quanto", "bitnet"):
    parse["method_" + method] = ({"quantization_config": {"quant_method": method}},
                                 [f"quant_method is '{method}'", f"this is {method}, which is not run", "llm-compressor"])
for method, tool in (("gptq_marlin", "GPTQ or AWQ folder"), ("gguf", "safetensors form"), ("eetq", "W8A16"), ("qqq", "W4A8")):
    parse["method_" + method] = ({"quantization_config": {"quant_method": method}}, [f"quant_method is '{method}'", "which is not run", tool])
parse["method_new"] = ({"quantization_config": {"quant_method": "something-new"}},
                       ["quant_method is 'something-new'", "expected one of compressed-tensors, mxfp4"])
parse["section_is_list"] = ({"quantization_config": []}, ["quantization_config is an array", "expected an object"])
for name in ("marlin-24", "sparse-24-bitmask", "sparse-bitmask", "lut-b"):
    parse["format_" + name] = (section(format=name, config_groups={}), [f"quantization_config.format is '{name}'"])
parse["format_mixed_in_group"] = (section(config_groups={"g": group(format="mixed-precision")}), ["config_groups.g.format is 'mixed-precision'"])
parse["format_missing_in_mixed"] = (section(format="mixed-precision", config_groups={"g": group()}), ["config_groups.g.format is missing"])
parse["groups_missing"] = (section(), ["config_groups is missing"])
parse["targets_missing"] = (section(config_groups={"g": {"weights": INT4}}), ["config_groups.g.targets is missing"])
parse["unknown_preset"] = (section(config_groups={"W9A16": ["Linear"]}), ["config_groups.W9A16", "name of a preset"])
parse["bad_expression"] = (section(config_groups={"g": group(targets=["re:(.*"])}), ["config_groups.g.targets[0] is 're:(.*'"])
parse["bad_ignore_expression"] = (section(config_groups={"g": group()}, ignore=["re:*"]), ["ignore[0] is 're:*'"])
parse["sparsity"] = (section(config_groups={"g": group()}, sparsity_config={"format": "sparse-24-bitmask", "targets": ["Linear"]}),
                     ["sparsity_config.format is 'sparse-24-bitmask'"])
parse["online_rotation"] = (section(config_groups={"g": group()}, transform_config={"config_groups": {"R3": {
    "type": "hadamard", "apply": [{"targets": ["self_attn"], "location": "q_attn"}]}}}), ["R3.apply[0].location is 'q_attn'", "online rotations"])
parse["kv_cache_width"] = (section(config_groups={}, kv_cache_scheme={"num_bits": 5, "type": "float"}), ["kv_cache_scheme.num_bits is 5"])
parse["input_channel"] = (section(config_groups={"g": group(inputs=INT8)}), ["g.input_activations.strategy is 'channel'"])
parse["input_actorder"] = (section(config_groups={"g": group(inputs={**INT8_TOKEN, "actorder": "group"})}), ["input_activations.actorder is 'group'"])
bad_weights("bits_9", {"num_bits": 9}, W + "num_bits is 9", "1 to 8 bits")
bad_weights("bits_nan", {"num_bits": math.nan}, W + "num_bits is NaN", "expected an integer")
bad_weights("group_size_nan", {"group_size": math.nan}, W + "group_size is NaN", "expected an integer")
bad_weights("group_size_infinite", {"group_size": math.inf}, W + "group_size is Infinity", "expected an integer")
bad_weights("symmetric_nan", {"symmetric": math.nan}, W + "symmetric is NaN", "expected true or false")
bad_weights("block_with_nan", {"strategy": "block", "group_size": None, "block_structure": [128, math.nan]}, W + "block_structure")
parse["input_bits_nan"] = (section(config_groups={"g": group(inputs={**INT8_TOKEN, "num_bits": math.nan})}), ["input_activations.num_bits is NaN"])
parse["weights_nan"] = (section(config_groups={"g": group(math.nan)}), ["config_groups.g.weights is NaN", "expected an object"])
bad_weights("float_6", {"num_bits": 6, "type": "float"}, W + "num_bits is 6", "4 or 8 bits")
bad_weights("type_unknown", {"type": "posit"}, W + "type is 'posit'")
bad_weights("strategy_unknown", {"strategy": "row"}, W + "strategy is 'row'")
bad_weights("group_without_size", {"group_size": None}, W + "group_size is null", "positive group_size")
bad_weights("group_size_minus_2", {"group_size": -2}, W + "group_size is -2")
bad_weights("group_size_with_channel", {"strategy": "channel"}, W + "group_size is 128", "channel has no group_size")
bad_weights("block_without_structure", {"strategy": "block", "group_size": None}, W + "block_structure is missing")
bad_weights("block_with_zero", {"strategy": "block", "group_size": None, "block_structure": [0, 128]}, W + "block_structure")
bad_weights("static_token", {"strategy": "token", "group_size": None}, W + "dynamic is missing", "token needs dynamic")
bad_weights("dynamic_channel", {"strategy": "channel", "group_size": None, "dynamic": True}, W + "dynamic is true", "static only")
bad_weights("local_without_tensor_group", {"dynamic": "local"}, W + "dynamic is 'local'")
bad_weights("actorder_with_channel", {"strategy": "channel", "group_size": None, "actorder": "group"}, W + "actorder is 'group'")

unsupported("nvfp4_with_int8_inputs", "nvfp4-pack-quantized", "NVFP4 weights need NVFP4 inputs or none", NVFP4, INT8_TOKEN)
unsupported("fp8_static_channel", "float-quantized", "per channel with dynamic per-token", FP8, FP8_STATIC)
unsupported("fp8_tensor_token", "float-quantized", "per tensor in both", {**FP8, "strategy": "tensor"}, FP8_TOKEN)
unsupported("fp8_with_int8_inputs", "float-quantized", "8-bit float weights need 8-bit float inputs", FP8, INT8_TOKEN)
unsupported("fp4_group_16", "mxfp4-pack-quantized", "4-bit floats are NVFP4", {**MXFP4, "group_size": 16})
unsupported("nvfp4_group_32", "nvfp4-pack-quantized", "4-bit floats are NVFP4", {**NVFP4, "group_size": 32})
unsupported("pack_of_floats", "pack-quantized", "format is pack-quantized", FP8)
unsupported("mxfp4_as_nvfp4", "nvfp4-pack-quantized", "format is nvfp4-pack-quantized", MXFP4)
unsupported("dense_format", "dense", "format is dense", INT4)
unsupported("wna8o8_3_bits", "pack-quantized", "supported widths are 2, 4, 8", {**INT4, "num_bits": 3}, INT8_STATIC, INT8_STATIC)
unsupported("wna8o8_asymmetric", "pack-quantized", "must be symmetric", {**INT4, "symmetric": False}, INT8_STATIC, INT8_STATIC)
unsupported("output_without_input", "pack-quantized", "quantized outputs need", INT4, None, INT8_STATIC)
unsupported("dynamic_weights", "int-quantized", "weights.dynamic", {**INT8, "strategy": "token", "dynamic": True})
unsupported("attn_head_inputs", "int-quantized", "input_activations.strategy is attn_head", INT8, {**INT8_STATIC, "strategy": "attn_head"})

FOLDER.mkdir(parents=True, exist_ok=True)
for old in FOLDER.glob("*.json"):
    old.unlink()
expected = {}
for kind, cases in (("parse", parse), ("scheme", scheme)):
    for name, (config, says) in cases.items():
        (FOLDER / f"{name}.json").write_text(json.dumps({"model_type": "qwen3_moe", **config}, indent=1) + "\n")
        expected[name] = {"kind": kind, "module": EXPERT, "says": list(says)}
(FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
print(f"{len(expected)} configs")
