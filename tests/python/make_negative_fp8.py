#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes build/data/negative/fp8: broken folders of native FP8 and ModelOpt, and expected.json with what the refusal must say.

    make_negative_fp8.py [DATA]          default: build/data

The good folders are two tiny experts (width 32, hidden 64) in FP8 blocks of 16 x 32, FP8 per matrix, DeepSeek-V4's names with FP4 experts, and
ModelOpt's FP8 and NVFP4; each other folder is one of them with one thing wrong. expected.json is that of make_negative_folders.py.
Standard library only.
"""
import json
import shutil
import struct
import sys
from pathlib import Path

import make_negative_folders as base
from make_negative_folders import E0, E1, PROJECTIONS, qwen

base.BITS["F8_E8M0"] = 8
base.ONE["F8_E8M0"] = b"\x7f"
CASES = {}
D0 = E0 + "down_proj"
G0 = E0 + "gate_proj"


def case(stage, *says):
    def keep(make):
        CASES[make.__name__.replace("_", "-")] = (make, stage, says)
        return make
    return keep


def f32(*values):
    return struct.pack(f"<{len(values)}f", *values)


def native(**config):
    f = qwen(dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=[16, 32], modules_to_not_convert=["lm_head"]))
    f.quant().update(config)
    for e in (E0, E1):
        for name, N, K in PROJECTIONS:
            f.add(e + name + ".weight", "F8_E4M3", [N, K]).add(e + name + ".weight_scale_inv", "F32", [-(-N // 16), -(-K // 32)])
    return f


def per_tensor(**config):
    f = qwen(dict(quant_method="fp8", activation_scheme="static"))
    f.quant().update(config)
    for e in (E0, E1):
        for name, N, K in PROJECTIONS:
            f.add(e + name + ".weight", "F8_E4M3", [N, K]).add(e + name + ".weight_scale", "F32", []).add(e + name + ".input_scale", "F32", [])
    return f


def fused(rows):
    """Gate and up of all experts in one tensor, as transformers saves them."""
    f = qwen(dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=[rows, 32]))
    x = "model.layers.0.mlp.experts."
    f.add(x + "gate_up_proj", "F8_E4M3", [2, 64, 64]).add(x + "gate_up_proj_scale_inv", "F32", [2, -(-64 // rows), 2])
    return f.add(x + "down_proj", "F8_E4M3", [2, 64, 32]).add(x + "down_proj_scale_inv", "F32", [2, -(-64 // rows), 1])


def split_weights(rows=16):
    """Weights expert by expert and scales in stacks, as transformers 5.22 saves them."""
    f = qwen(dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=[rows, 32]))
    for e in (E0, E1):
        for name, N, K in PROJECTIONS:
            f.add(e + name + ".weight", "F8_E4M3", [N, K])
    x = "model.layers.0.mlp.experts."
    return f.add(x + "gate_up_proj_scale_inv", "F32", [2, -(-64 // rows), 2]).add(x + "down_proj_scale_inv", "F32", [2, -(-64 // rows), 1])


def token_table():
    f = native()
    return f.add("model.embed_tokens.weight", "F8_E4M3", f.tensors["model.embed_tokens.weight"][1]).add("model.embed_tokens.weight_scale", "F32", [1])


def v4(**config):
    f = qwen(dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=[16, 32], scale_fmt="ue8m0"))
    f.config["expert_dtype"] = "fp4"
    f.config.update(config)
    for e in (E0, E1):
        for name, N, K in PROJECTIONS:
            f.add(e + name + ".weight", "I8", [N, K // 2]).add(e + name + ".scale", "F8_E8M0", [N, K // 32])
    return f


def nvfp4(**config):
    f = qwen(dict(quant_method="modelopt", quant_algo="NVFP4", group_size=16, ignore=["lm_head", "*self_attn*", "*mlp.gate"]))
    f.quant().update(config)
    for e in (E0, E1):
        for name, N, K in PROJECTIONS:
            n = e + name
            f.add(n + ".weight", "U8", [N, K // 2]).add(n + ".weight_scale", "F8_E4M3", [N, K // 16])
            f.add(n + ".weight_scale_2", "F32", []).add(n + ".input_scale", "F32", [])
    return f


def modelopt_fp8(**config):
    f = per_tensor()
    f.config["quantization_config"] = dict(quant_method="modelopt", quant_algo="FP8", ignore=["lm_head", "*self_attn*", "*mlp.gate"], **config)
    return f


GOOD = dict(good_native=native, good_per_tensor=per_tensor, good_v4=v4, good_nvfp4=nvfp4, good_modelopt_fp8=modelopt_fp8,
            good_fused=lambda: fused(32), good_split_weights=split_weights, good_token_table=token_table)

X = "model.layers.0.mlp.experts."
for name, make, stage, says in (
        ("stacked-scales-experts", lambda: split_weights().add(X + "down_proj_scale_inv", "F32", [3, 4, 1]), "open",
         ("down_proj_scale_inv is F32[3,4,1]", "expected a stack of 2 experts")),
        ("stacked-scales-shape", lambda: split_weights().add(X + "gate_up_proj_scale_inv", "F32", [2, 4, 3]), "open",
         ("gate_up_proj_scale_inv is F32[2,4,3]", "one slice per expert of [4,2]")),
        ("stacked-scales-twice", lambda: split_weights().add(D0 + ".weight_scale_inv", "F32", [4, 1]), "open",
         ("are both the weight_scale of expert 0",)),
        ("stacked-scales-alone", lambda: split_weights().drop(*[E1 + p + ".weight" for p in ("gate_proj", "up_proj", "down_proj")]), "open",
         ("scale_inv is stored", "neither a weight nor weight_packed")),
        ("stacked-scales-halves", lambda: split_weights(64), "open",
         ("gate_up_proj_scale_inv is F32[2,1,2]", "blocks of 64 rows", "do not meet")),
        ("stacked-scale-negative", lambda: split_weights().add(X + "down_proj_scale_inv", "F32", [2, 4, 1], f32(1, 1, 1, 1, 1, -1, 1, 1)), "deep",
         ("down_proj_scale_inv[1,1,0] is -1", "expected a finite scale above 0")),
        ("token-table-no-scale", lambda: token_table().drop("model.embed_tokens.weight_scale"), "open",
         ("model.embed_tokens.weight is F8_E4M3", "its scale beside it")),
        ("token-table-scale-shape", lambda: token_table().add("model.embed_tokens.weight_scale", "F32", [2]), "open",
         ("model.embed_tokens.weight_scale is F32[2]", "expected one element")),
        ("token-table-of-bytes", lambda: token_table().add("model.embed_tokens.weight", "U8", [8, 64]), "unsupported",
         ("model.embed_tokens", "an embedding can hold", "native FP8"))):
    CASES["fp8-" + name] = (make, stage, says)


# --- native FP8: configuration ---

for name, key, value, says in (
        ("block-one-number", "weight_block_size", [128], "expected two positive numbers"),
        ("block-zero", "weight_block_size", [0, 128], "expected two positive numbers"),
        ("block-text", "weight_block_size", ["16", "32"], "expected two positive numbers"),
        ("activation-scheme", "activation_scheme", "sometimes", "expected dynamic or static"),
        ("fmt-e5m2", "fmt", "e5m2", "expected e4m3"),
        ("scale-fmt", "scale_fmt", "e5m2", "expected float or ue8m0"),
        ("skip-list-number", "modules_to_not_convert", 3, "modules_to_not_convert"),
        ("moe-quant-algo", "moe_quant_algo", "INT3", "expected NVFP4")):
    CASES["fp8-" + name] = (lambda key=key, value=value: native(**{key: value}), "open",
                            ("config.json", f"quantization_config.{key} is", says))


@case("open", "config.json", "expert_dtype is 'fp2'", "expected fp4 or fp8")
def fp8_expert_dtype():
    return v4(expert_dtype="fp2")


@case("open", "model.safetensors", D0 + ".weight is I8[64,16]", "expert_dtype of the configuration is fp8")
def fp8_expert_dtype_contradicts():
    return v4(expert_dtype="fp8")


@case("open", D0, "activation_scheme is static", "blocks take dynamic inputs")
def fp8_static_blocks():
    return native(activation_scheme="static")


# --- native FP8: tensors ---

@case("open", "model.safetensors: " + D0 + ".weight is F8_E4M3[64,32]", "no tensor weight_scale_inv or weight_scale")
def fp8_no_scale():
    return native().drop(D0 + ".weight_scale_inv")


@case("open", "model.safetensors: " + D0 + ".weight is BF16[64,32]", "expected dtype F8_E4M3", "weight_scale_inv")
def fp8_float_weight_with_scale():
    return native().add(D0 + ".weight", "BF16", [64, 32])


@case("open", "model.safetensors: " + D0 + ".weight_scale_inv is F32[4,2]", "expected [4,1]", "block 16x32")
def fp8_scale_shape():
    return native().add(D0 + ".weight_scale_inv", "F32", [4, 2])


@case("open", "model.safetensors: " + D0 + ".weight_scale_inv is F32[4,1]", "expected [1,1]", "block 64x64")
def fp8_block_contradicts():
    return native(weight_block_size=[64, 64])


@case("open", "model.safetensors: " + G0 + ".weight_scale_inv is F32[]", "expected [2,2]")
def fp8_one_scale_for_blocks():
    return native().add(G0 + ".weight_scale_inv", "F32", [])


@case("open", "model.safetensors: " + D0 + ".weight_scale_inv is F32[4,1]", "one element")
def fp8_blocks_for_one_scale():
    return native(weight_block_size=None)


@case("open", "model.safetensors: " + D0 + ".weight_scale_inv is I32[4,1]", "expected dtype F32, BF16, F16, F8_E8M0 or U8")
def fp8_scale_dtype():
    return native().add(D0 + ".weight_scale_inv", "I32", [4, 1])


@case("open", "model.safetensors", D0 + ".weight is F8_E4M3[64,33]", "expected 64 x 32")
def fp8_weight_shape():
    return native().add(D0 + ".weight", "F8_E4M3", [64, 33]).add(D0 + ".weight_scale_inv", "F32", [4, 2])


@case("open", "weight_scale_inv", "are both the weight_scale of")
def fp8_two_scales():
    return native().add(D0 + ".weight_scale", "F32", [4, 1])


@case("open", "model.safetensors: " + D0 + ".input_scale is stored", "dynamic input quantization")
def fp8_input_scale_of_dynamic():
    return native().add(D0 + ".input_scale", "F32", [])


@case("open", D0, "no tensor weight; method fp8 needs it")
def fp8_no_weight():
    return native().drop(D0 + ".weight")


@case("open", "model.layers.0.mlp.experts.gate_up_proj is F8_E4M3[2,64,64]", "blocks of 64 rows", "do not meet")
def fp8_fused_halves():
    return fused(64)


@case("open", "qweight", "GPTQ or AWQ", "config.json does not declare")
def fp8_with_gptq_tensor():
    return native().add(G0 + ".qweight", "I32", [8, 32])


@case("deep", "model.safetensors: " + D0 + ".weight_scale_inv[2,0] is nan", "expected a finite scale above 0")
def fp8_scale_nan():
    return native().add(D0 + ".weight_scale_inv", "F32", [4, 1], f32(1, 1, float("nan"), 1))


@case("deep", "model.safetensors: " + D0 + ".weight_scale_inv[1,0] is -1", "expected a finite scale above 0")
def fp8_scale_negative():
    return native().add(D0 + ".weight_scale_inv", "F32", [4, 1], f32(1, -1, 1, 1))


@case("deep", "model.safetensors: " + D0 + ".weight_scale_inv is 0 for row 48", "codes are not all 0")
def fp8_scale_zero():
    f = native().add(D0 + ".weight", "F8_E4M3", [64, 32], b"\x38" * 2048)
    return f.add(D0 + ".weight_scale_inv", "F32", [4, 1], f32(1, 1, 1, 0))


@case("deep", "model.safetensors: " + D0 + ".weight_scale_inv[3,0] is 255 (NaN)")
def fp8_exponent_nan():
    return native().add(D0 + ".weight_scale_inv", "F8_E8M0", [4, 1], b"\x7f\x7f\x7f\xff")


@case("deep", "model.safetensors: " + D0 + ".weight[63,31] is NaN (0x7F)", "expected an FP8 number")
def fp8_weight_nan():
    return native().add(D0 + ".weight", "F8_E4M3", [64, 32], bytes(2047) + b"\x7f")


@case("open", D0, "no tensor input_scale", "static input quantization needs it")
def fp8_static_without_input_scale():
    return per_tensor().drop(D0 + ".input_scale")


@case("open", "model.safetensors: " + D0 + ".input_scale is 0", "expected a finite scale above 0")
def fp8_input_scale_zero():
    return per_tensor().add(D0 + ".input_scale", "F32", [], f32(0))


@case("open", "model.safetensors: " + D0 + ".input_scale is inf", "expected a finite scale above 0")
def fp8_input_scale_infinite():
    return per_tensor().add(D0 + ".input_scale", "F32", [], f32(float("inf")))


@case("open", "model.safetensors: " + D0 + ".input_scale is F32[2]", "expected one element")
def fp8_input_scale_shape():
    return per_tensor().add(D0 + ".input_scale", "F32", [2])


# --- DeepSeek-V4 ---

@case("open", D0, "no tensor scale; FP4 experts need it")
def v4_no_scale():
    return v4().drop(D0 + ".scale")


@case("open", "model.safetensors: " + D0 + ".scale is F8_E8M0[64,2]", "expected [64,1]")
def v4_scale_shape():
    return v4().add(D0 + ".scale", "F8_E8M0", [64, 2])


@case("open", "model.safetensors: " + D0 + ".scale is F32[64,1]", "expected dtype U8 or F8_E8M0")
def v4_scale_dtype():
    return v4().add(D0 + ".scale", "F32", [64, 1])


@case("deep", "model.safetensors: " + D0 + ".scale[5,0] is 255 (NaN)")
def v4_scale_nan():
    return v4().add(D0 + ".scale", "F8_E8M0", [64, 1], b"\x7f" * 5 + b"\xff" + b"\x7f" * 58)


# --- ModelOpt ---

for name, section, says in (
        ("algo-missing", dict(quant_algo=None), ("quant_algo is null", "as FP8 or NVFP4")),
        ("algo-unknown", dict(quant_algo="INT3"), ("quant_algo is 'INT3'", "expected FP8, FP8_PER_CHANNEL_PER_TOKEN")),
        ("algo-awq", dict(quant_algo="W4A8_AWQ"), ("quant_algo is 'W4A8_AWQ'", "pre_quant_scale", "llm-compressor")),
        ("algo-svd", dict(quant_algo="NVFP4_SVD"), ("quant_algo is 'NVFP4_SVD'", "pre_quant_scale", "llm-compressor")),
        ("group-size", dict(group_size=32), ("group_size is 32", "NVFP4 has groups of 16")),
        ("mixed-without-layers", dict(quant_algo="MIXED_PRECISION"), ("quantized_layers is missing", "needs an object of modules")),
        ("mixed-layer-algo", dict(quant_algo="MIXED_PRECISION", quantized_layers={G0: {"quant_algo": "INT3"}}),
         ("quantized_layers." + G0 + ".quant_algo is 'INT3'",))):
    CASES["modelopt-" + name] = (lambda section=section: nvfp4(**section), "open", ("config.json: quantization_config.",) + says)


@case("open", "model.safetensors: " + D0 + ".weight is U8[64,16]", "expected dtype F8_E4M3 for quant_algo FP8")
def modelopt_algo_contradicts():
    return nvfp4(quant_algo="FP8", group_size=None)


@case("open", "model.safetensors: " + D0 + ".weight is F8_E4M3[64,32]", "expected dtype U8 for quant_algo NVFP4")
def modelopt_one_module_fp8():
    return nvfp4().add(D0 + ".weight", "F8_E4M3", [64, 32])


@case("open", D0, "no tensor weight_scale_2")
def modelopt_no_global_scale():
    return nvfp4().drop(D0 + ".weight_scale_2")


@case("open", "model.safetensors: " + D0 + ".weight is U8[64,16]", "no tensor weight_scale belongs to")
def modelopt_no_scale():
    return nvfp4().drop(D0 + ".weight_scale")


@case("open", "model.safetensors: " + D0 + ".weight_scale is F8_E4M3[64,1]", "expected [64,2]")
def modelopt_scale_shape():
    return nvfp4().add(D0 + ".weight_scale", "F8_E4M3", [64, 1])


@case("open", "model.safetensors: " + D0 + ".weight_scale is U8[64,2]", "expected dtype F8_E4M3")
def modelopt_scale_dtype():
    return nvfp4().add(D0 + ".weight_scale", "U8", [64, 2])


@case("open", "model.safetensors: " + D0 + ".weight_scale_2 is nan", "expected a finite global scale above 0")
def modelopt_global_scale_nan():
    return nvfp4().add(D0 + ".weight_scale_2", "F32", [], f32(float("nan")))


@case("open", "model.safetensors: " + D0 + ".weight_scale_2 is -1", "expected a finite global scale above 0")
def modelopt_global_scale_negative():
    return nvfp4().add(D0 + ".weight_scale_2", "F32", [], f32(-1))


@case("open", "model.safetensors: " + D0 + ".weight_scale_2 is F32[64]", "expected one element")
def modelopt_global_scale_shape():
    return nvfp4().add(D0 + ".weight_scale_2", "F32", [64])


@case("open", "model.safetensors: " + D0 + ".input_scale is inf", "expected a finite global scale above 0")
def modelopt_input_scale_infinite():
    return nvfp4().add(D0 + ".input_scale", "F32", [], f32(float("inf")))


@case("deep", "model.safetensors: " + D0 + ".weight_scale[63,1] is -1", "block scale without sign")
def modelopt_block_scale_negative():
    return nvfp4().add(D0 + ".weight_scale", "F8_E4M3", [64, 2], b"\x38" * 127 + b"\xb8")


@case("open", "pre_quant_scale", "cannot be placed")
def modelopt_pre_quant_scale():
    return nvfp4().add(D0 + ".pre_quant_scale", "BF16", [32])


@case("open", "model.safetensors: " + D0 + ".weight_scale is F32[64,1]", "expected one element")
def modelopt_fp8_channel_scale():
    return modelopt_fp8().add(D0 + ".weight_scale", "F32", [64, 1])


@case("open", "hf_quant_config.json: quantization.quant_algo is 'INT3'")
def modelopt_other_file():
    f = nvfp4()
    del f.config["quantization_config"]
    f.files["hf_quant_config.json"] = json.dumps(dict(producer=dict(name="modelopt"), quantization=dict(quant_algo="INT3"))).encode()
    return f


@case("open", "hf_quant_config.json", "malformed JSON")
def modelopt_other_file_broken():
    f = nvfp4()
    del f.config["quantization_config"]
    f.files["hf_quant_config.json"] = b'{"quantization": '
    return f


def main():
    out = (Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2] / "build/data") / "negative/fp8"
    if out.exists():
        shutil.rmtree(out)
    expected = {}
    for name, (make, stage, says) in CASES.items():
        make().write(out / name)
        expected[name] = {"stage": stage, "says": list(says)}
    for name, make in GOOD.items():
        make().write(out / name.replace("_", "-"))
        expected[name.replace("_", "-")] = {"stage": "good", "says": []}
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    print(f"{len(expected)} folders in {out}")


if __name__ == "__main__":
    main()
