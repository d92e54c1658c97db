#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes build/data/negative/vendors: broken folders of Quark, FBGEMM FP8 and MLX, and expected.json with what the refusal must say.

    make_negative_vendors.py [DATA]          default: build/data

The good folders are two tiny experts (width 32, hidden 64) in each form; each other folder is one of them with one thing wrong.
expected.json is that of make_negative_folders.py. Standard library only.
"""
import struct
import sys
from pathlib import Path

import make_negative_folders as base
from make_negative_folders import E0, E1, PROJECTIONS, qwen
from make_negative_packed import write_folders

base.BITS["U32"] = 32
D0, FILE, CONFIG = E0 + "down_proj", "model.safetensors: ", "config.json: quantization_config."
STACK = "model.layers.0.mlp.switch_mlp."
DOWN = STACK + "down_proj"
ONE = b"\x80\x3f"                                  # 1 in BF16


def spec(dtype, qscheme="per_tensor", **more):
    return dict(dtype=dtype, qscheme=qscheme, is_dynamic=False, symmetric=True, **more)


FP8, INT4 = spec("fp8_e4m3"), spec("int4", "per_group", group_size=16, ch_axis=1)
MX = spec("fp4", "per_group", group_size=32, scale_format="e8m0")
NV = [spec("fp4", "per_group", group_size=16), spec("fp8_e4m3", is_scale_quant=True)]


def quark(weight=FP8, inputs=None, **config):
    f = qwen(dict(quant_method="quark", global_quant_config=dict(weight=weight, input_tensors=inputs), exclude=["lm_head", "*self_attn*", "*.gate"],
                  export=dict(pack_method="reorder")))
    f.quant().update(config)
    first = weight[0] if isinstance(weight, list) else weight
    for e in (E0, E1):
        for name, N, K in PROJECTIONS:
            m = e + name
            if first["dtype"] == "fp8_e4m3":
                f.add(m + ".weight", "F8_E4M3", [N, K]).add(m + ".weight_scale", "F32", [])
            elif first["dtype"] == "int4":
                f.add(m + ".weight", "I32", [K, N // 8]).add(m + ".weight_scale", "BF16", [K // 16, N])
                f.add(m + ".weight_zero_point", "I32", [K // 16, N // 8])
            else:
                g = first["group_size"]
                f.add(m + ".weight", "U8", [N, K // 2]).add(m + ".weight_scale", "U8" if g == 32 else "F8_E4M3", [N, K // g])
                if g == 16:
                    f.add(m + ".weight_scale_2", "F32", [])
    return f


def fbgemm(**config):
    f = qwen(dict(quant_method="fbgemm_fp8", activation_scale_ub=1200.0, modules_to_not_convert=["lm_head"]))
    f.quant().update(config)
    for e in (E0, E1):
        for name, N, K in PROJECTIONS:
            f.add(e + name + ".weight", "F8_E4M3", [N, K]).add(e + name + ".weight_scale", "F32", [N, 1])
    return f


def mlx(bits=4, group=32, mode="affine", **config):
    f = qwen()
    f.config["quantization"] = dict(bits=bits, group_size=group, mode=mode, **config)
    for name, N, K in PROJECTIONS:
        m = STACK + name
        f.add(m + ".weight", "U32", [2, N, K * bits // 32])
        if mode == "affine":
            f.add(m + ".scales", "BF16", [2, N, K // group], ONE * (2 * N * K // group)).add(m + ".biases", "BF16", [2, N, K // group])
        else:
            f.add(m + ".scales", "U8", [2, N, K // group], b"\x38" * (2 * N * K // group))
    return f


def said(**numbers):
    f = mlx()
    f.config["quantization"].update(numbers)
    return f


MLX = "config.json: quantization."
FOUND = 2 * 64                                     # scales of down in groups of 32
GOOD = {"good-quark-fp8": quark, "good-quark-int4": lambda: quark(INT4), "good-quark-mxfp4": lambda: quark(MX), "good-quark-nvfp4": lambda: quark(NV),
        "good-fbgemm": fbgemm, "good-mlx": mlx, "good-mlx-5-bits": lambda: mlx(5), "good-mlx-nvfp4": lambda: mlx(4, 16, "nvfp4"),
        "good-mlx-mxfp8": lambda: mlx(8, 32, "mxfp8")}
CASES = [
    # Quark: tensors
    ("quark-no-weight", "open", quark().drop(D0 + ".weight"), D0),
    ("quark-no-scale", "open", quark().drop(D0 + ".weight_scale"), "no tensor weight_scale"),
    ("quark-scale-per-output", "open", quark().add(D0 + ".weight_scale", "F32", [64]), D0 + ".weight_scale is F32[64]; expected one element"),
    ("quark-channel-one-scale", "open", quark(spec("fp8_e4m3", "per_channel", ch_axis=0)), ".weight_scale is F32[]; expected [64,1]"),
    ("quark-weight-of-integers", "open", quark().add(D0 + ".weight", "I8", [64, 32]), D0 + ".weight is I8[64,32]; expected dtype F8_E4M3"),
    ("quark-input-scale-missing", "open", quark(FP8, FP8), "no tensor input_scale"),
    ("quark-input-scale-unsaid", "open", quark().add(D0 + ".input_scale", "F32", []), D0 + ".input_scale is stored, but", "no input quantization"),
    ("quark-scale-negative", "deep", quark().add(D0 + ".weight_scale", "F32", [], struct.pack("<f", -1)), D0 + ".weight_scale", "-1; expected a finite scale above 0"),
    ("quark-mxfp4-odd-scales", "open", quark(MX).add(D0 + ".weight_scale", "U8", [64, 2]), D0 + ".weight_scale is U8[64,2]; expected [64,1]"),
    ("quark-mxfp4-words", "open", quark(MX).add(D0 + ".weight", "I32", [64, 4]), D0 + ".weight is I32[64,4]; expected dtype U8"),
    ("quark-nvfp4-no-global", "open", quark(NV).drop(D0 + ".weight_scale_2"), "no tensor weight_scale_2"),
    ("quark-nvfp4-global-zero", "open", quark(NV).add(D0 + ".weight_scale_2", "F32", [], bytes(4)), D0 + ".weight_scale_2 is 0; expected a finite global scale"),
    ("quark-int4-turned", "open", quark(INT4).add(D0 + ".weight", "I32", [64, 4]), D0 + ".weight is I32[64,4], a matrix of 32 x 64; expected 64 x 32"),
    ("quark-int4-scales-turned", "open", quark(INT4).add(D0 + ".weight_scale", "BF16", [64, 2]), D0 + ".weight_scale is BF16[64,2]; expected [2,64]"),
    ("quark-int4-zero-point", "deep", quark(INT4).add(D0 + ".weight_zero_point", "I32", [2, 8], struct.pack("<i", 0xf) + bytes(60)),
     D0 + ".weight_zero_point holds -1 for output 0, group 0", "expected 0"),
    ("quark-dense-rule", "open", quark(layer_quant_config={"*down_proj": dict(weight=None)}), D0, "'*down_proj' gives it no weight specification"),
    # Quark: configurations
    ("quark-global-list", "open", quark(global_quant_config=[]), CONFIG + "global_quant_config"),
    ("quark-fp6", "open", quark(global_quant_config=dict(weight=dict(MX, dtype="fp6_e3m2"))), CONFIG + "global_quant_config.weight", "expected fp4 per_group 32"),
    ("quark-mx-type", "open", quark(global_quant_config=dict(weight=dict(dtype="mx", mx_element_dtype="fp4", qscheme="per_group", group_size=32))),
     CONFIG + "global_quant_config.weight", "expected fp4"),
    ("quark-three-specs", "open", quark(global_quant_config=dict(weight=NV + NV)), CONFIG + "global_quant_config.weight", "or two for NVFP4"),
    ("quark-fp8-over-int4", "open", quark(global_quant_config=dict(weight=[FP8, dict(INT4, qscheme="per_channel")])), "two specifications mean NVFP4"),
    ("quark-group-0", "open", quark(global_quant_config=dict(weight=dict(INT4, group_size=0))), "global_quant_config.weight.group_size is 0; expected a positive"),
    ("quark-block-text", "open", quark(global_quant_config=dict(weight=spec("fp8_e4m3", "per_block", block_size="x"))), "weight.block_size is 'x'; expected two"),
    ("quark-dynamic-weights", "open", quark(global_quant_config=dict(weight=dict(FP8, is_dynamic=True))), "expected is_dynamic false"),
    ("quark-bias", "open", quark(global_quant_config=dict(weight=FP8, bias=FP8)), "global_quant_config.bias", "a quantized bias is not run"),
    ("quark-outputs", "open", quark(global_quant_config=dict(weight=FP8, output_tensors=FP8)), FILE, E0,
     "output_tensors of global_quant_config: quantized outputs are run for the KV cache alone"),
    ("quark-outputs-text", "open", quark(global_quant_config=dict(weight=FP8, output_tensors="fp8")), CONFIG + "global_quant_config.output_tensors"),
    ("quark-inputs-alone", "open", quark(global_quant_config=dict(weight=None, input_tensors=FP8)), "inputs are quantized but weights are not"),
    ("quark-input-int4", "open", quark(global_quant_config=dict(weight=FP8, input_tensors=INT4)), "global_quant_config.input_tensors", "expected fp4 or fp8_e4m3"),
    ("quark-order", "open", quark(INT4, export=dict(pack_method="order")), CONFIG + "export.pack_method is 'order'; expected reorder"),
    ("quark-fake", "open", quark(export=dict(weight_format="fake_quantized")), CONFIG + "export.weight_format is 'fake_quantized'"),
    ("quark-layers-list", "open", quark(layer_quant_config=["*"]), CONFIG + "layer_quant_config"),
    ("quark-float-zeros", "open", quark(global_quant_config=dict(weight=dict(INT4, zero_point_type="float32"))), "zero_point_type is 'float32'; expected int32"),
    # FBGEMM
    ("fbgemm-bound-0", "open", fbgemm(activation_scale_ub=0), CONFIG + "activation_scale_ub is 0; expected a finite number above 0"),
    ("fbgemm-bound-text", "open", fbgemm(activation_scale_ub="high"), CONFIG + "activation_scale_ub is 'high'"),
    ("fbgemm-one-scale", "open", fbgemm().add(D0 + ".weight_scale", "F32", [1]), D0 + ".weight_scale is F32[1]; expected [64,1]"),
    ("fbgemm-no-scale", "open", fbgemm().drop(D0 + ".weight_scale"), "no tensor weight_scale belongs to " + D0),
    ("fbgemm-no-weight", "open", fbgemm().drop(D0 + ".weight"), D0),
    ("fbgemm-scale-negative", "deep", fbgemm().add(D0 + ".weight_scale", "F32", [64, 1], struct.pack("<f", -2) * 64), D0 + ".weight_scale[0,0] is -2"),
    # MLX: tensors
    ("mlx-no-weight", "open", mlx().drop(DOWN + ".weight"), DOWN, "has neither a weight nor weight_packed"),
    ("mlx-no-scales", "open", mlx().drop(DOWN + ".scales"), "no tensor weight_scale"),
    ("mlx-no-biases", "open", mlx().drop(DOWN + ".biases"), "no tensor weight_offset"),
    ("mlx-words-missing", "open", mlx().add(DOWN + ".weight", "U32", [2, 64, 3]), DOWN + ".weight is U32[2,64,3], a matrix of 64 x 24; expected 64 x 32"),
    ("mlx-words-that-hold-no-codes", "open", mlx(5).add(DOWN + ".weight", "U32", [2, 64, 4]), "words that hold whole codes of 5 bits"),
    ("mlx-signed-words", "open", mlx().add(DOWN + ".weight", "I32", [2, 64, 4]), DOWN + ".weight is I32[2,64,4]"),
    ("mlx-one-expert", "open", mlx().add(DOWN + ".weight", "U32", [1, 64, 4]), "expected a fused tensor of 2 experts"),
    ("mlx-scales-of-other-group", "open", mlx().add(DOWN + ".scales", "BF16", [2, 64, 2], ONE * 256), DOWN + ".scales is BF16[2,64,2]; expected", "[64,1]"),
    ("mlx-biases-of-other-type", "open", mlx().add(DOWN + ".biases", "F16", [2, 64, 1]), DOWN + ".biases is F16[2,64,1]; expected dtype BF16"),
    ("mlx-biases-of-other-group", "open", mlx().add(DOWN + ".biases", "BF16", [2, 64, 2]), DOWN + ".biases is BF16[2,64,2]; expected"),
    ("mlx-scales-of-bytes", "open", mlx().add(DOWN + ".scales", "U8", [2, 64, 1]), DOWN + ".scales is U8[2,64,1]; expected dtype BF16"),
    ("mlx-scale-infinite", "deep", mlx().add(DOWN + ".scales", "BF16", [2, 64, 1], ONE * (FOUND - 1) + b"\x80\x7f"), DOWN + ".scales[1,63,0] is inf"),
    ("mlx-bias-nan", "deep", mlx().add(DOWN + ".biases", "BF16", [2, 64, 1], b"\xc0\x7f" + ONE * (FOUND - 1)), DOWN + ".biases[0,0,0] is nan; expected a finite offset"),
    ("mlx-biases-in-mxfp8", "open", mlx(8, 32, "mxfp8").add(DOWN + ".biases", "BF16", [2, 64, 1]), DOWN + ".biases belongs to", "has no weight_offset"),
    ("mlx-mxfp8-nan", "deep", mlx(8, 32, "mxfp8").add(DOWN + ".weight", "U32", [2, 64, 8], b"\x7f" + bytes(4095)), DOWN + ".weight", "is NaN (0x7F)"),
    ("mlx-mxfp8-exponent", "deep", mlx(8, 32, "mxfp8").add(DOWN + ".scales", "U8", [2, 64, 1], b"\xff" * 128), DOWN + ".scales[0,0,0] is 255 (NaN)"),
    ("mlx-global-in-mxfp8", "open", mlx(8, 32, "mxfp8").add(DOWN + ".global_scale", "F32", [2]), "expected mode nvfp4 for a global scale"),
    ("mlx-bias-short", "open", mlx().add(DOWN + ".bias", "BF16", [2, 63]), DOWN + ".bias is BF16[2,63]; expected a bias of [64] per expert"),
    # MLX: configurations
    ("mlx-bits-7", "open", said(bits=7), MLX + "bits is 7; expected 2, 3, 4, 5, 6 or 8"),
    ("mlx-bits-1", "open", said(bits=1), MLX + "bits is 1"),
    ("mlx-group-0", "open", said(group_size=0), MLX + "group_size is 0; expected a positive number"),
    ("mlx-mode", "open", said(mode="nf4"), MLX + "mode is 'nf4'; expected affine, mxfp4, mxfp8 or nvfp4"),
    ("mlx-mxfp4-bits", "open", said(mode="mxfp4", bits=8), MLX + "bits is 8; mxfp4 has 4 bits"),
    ("mlx-mxfp4-group", "open", said(mode="mxfp4", group_size=64), MLX + "group_size is 64; mxfp4 has groups of 32"),
    ("mlx-inputs", "open", said(quantize_input=True), MLX + "quantize_input", "expected weights alone"),
    ("mlx-module-bits", "open", said(**{DOWN: {"bits": 9}}), MLX + DOWN + ".bits is 9"),
    ("mlx-module-other-width", "open", said(**{DOWN: {"bits": 8, "group_size": 16}}), DOWN + ".weight is U32[2,64,4], a matrix of 64 x 16"),
]

if __name__ == "__main__":
    write_folders((Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2] / "build/data") / "negative/vendors", CASES, GOOD)
