#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes build/data/negative/packed: broken folders of GPTQ, AWQ and AutoRound, and expected.json with what the refusal must say.

    make_negative_packed.py [DATA]          default: build/data

The good folders are two tiny experts (width 32, hidden 64) in each layout; each other folder is one of them with one thing wrong.
expected.json is that of make_negative_folders.py. Standard library only.
"""
import json
import shutil
import struct
import sys
from pathlib import Path

import make_negative_folders as base
from make_negative_folders import E0, E1, PROJECTIONS, qwen

base.BITS["I16"] = 16
D0, G0 = E0 + "down_proj", E0 + "gate_proj"
SCALE = b"\x00\x3c"                                # 1 in F16
FILE = "model.safetensors: "
CONFIG = "config.json: quantization_config."


def words(n, value=0x77777777):
    return struct.pack(f"<{n}I", *[value] * n)


def int32(*values):
    return struct.pack(f"<{len(values)}i", *values)


def gptq_module(f, name, N, K, bits, group, g_idx=True):
    G = -(-K // group)
    f.add(name + ".qweight", "I32", [K * bits // 32, N]).add(name + ".qzeros", "I32", [G, N * bits // 32], words(G * N * bits // 32))
    f.add(name + ".scales", "F16", [G, N], SCALE * (G * N))
    if g_idx:
        f.add(name + ".g_idx", "I32", [K], int32(*[k // group for k in range(K)]))


def gptq(width=4, group=16, **config):
    f = qwen(dict(quant_method="gptq", bits=width, group_size=group, sym=False, desc_act=True, checkpoint_format="gptq_v2"))
    f.quant().update(config)
    for e in (E0, E1):
        for name, N, K in PROJECTIONS:
            gptq_module(f, e + name, N, K, width, group)
    return f


def awq(gemv=False, **config):
    f = qwen(dict(quant_method="awq", bits=4, group_size=16, zero_point=True, version="gemv" if gemv else "gemm"))
    f.quant().update(config)
    for e in (E0, E1):
        for name, N, K in PROJECTIONS:
            m, G = e + name, K // 16
            if gemv:
                f.add(m + ".qweight", "I32", [N, K // 8]).add(m + ".qzeros", "I32", [N, 1]).add(m + ".scales", "F16", [N, 8], SCALE * (8 * N))
            else:
                f.add(m + ".qweight", "I32", [K, N // 8]).add(m + ".qzeros", "I32", [G, N // 8], words(G * N // 8, 0x88888888))
                f.add(m + ".scales", "F16", [G, N], SCALE * (G * N))
    return f


def auto_round(**config):
    f = qwen(dict(quant_method="auto-round", bits=4, group_size=16, sym=True, packing_format="auto_round:auto_gptq"))
    f.quant().update(config)
    for e in (E0, E1):
        for name, N, K in PROJECTIONS:
            gptq_module(f, e + name, N, K, 4, 16, g_idx=False)
    return f


def own_file(name, text):
    f = gptq()
    del f.config["quantization_config"]
    f.files[name] = text if isinstance(text, bytes) else json.dumps(text).encode()
    return f


def stacks(kind, outputs=64):
    """The experts in one tensor per role, gate and up side by side."""
    f = kind()
    f.drop(*[t for t in f.tensors if ".experts." in t])
    x = "model.layers.0.mlp.experts."
    for name, N, K in (("gate_up_proj.", 64, 64), ("down_proj.", 64, 32)):
        rows, cols = (K // 8, N) if kind is gptq else (K, N // 8)
        f.add(x + name + "qweight", "I32", [2, rows, cols]).add(x + name + "scales", "F16", [2, K // 16, outputs], SCALE * (2 * K // 16 * outputs))
        f.add(x + name + "qzeros", "I32", [2, K // 16, N // 8], words(2 * K // 16 * N // 8, 0x88888888))
    return f


DOWN = [k // 16 for k in range(32)]
MARLIN = "tiled for one GPU kernel"
GOOD = {"good-gptq": gptq, "good-gptq-w3": lambda: gptq(3, 32), "good-gptq-short-group": lambda: gptq(4, 24, desc_act=False),
        "good-awq": awq, "good-awq-gemv": lambda: awq(True), "good-auto-round": auto_round,
        "good-gptq-stacks": lambda: stacks(gptq), "good-awq-stacks": lambda: stacks(awq)}
CASES = [
    # tensors against each other
    ("gptq-words-missing", "open", gptq().add(D0 + ".qweight", "I32", [3, 64]), FILE + D0 + ".qweight is I32[3,64], a matrix of 64 x 24; expected 64 x 32"),
    ("gptq-words-turned", "open", gptq().add(G0 + ".qweight", "I32", [32, 8]), FILE + G0 + ".qweight is I32[32,8]", "expected 32 x 64"),
    ("gptq-words-of-8-bytes", "open", gptq().add(D0 + ".qweight", "I64", [2, 64]), FILE + D0 + ".qweight is I64[2,64]; expected dtype I32"),
    ("gptq-words-3d", "open", gptq().add(D0 + ".qweight", "I32", [1, 4, 64]), FILE + D0 + ".qweight is I32[1,4,64]", "2 dimensions"),
    ("gptq-3-bits-half-a-block", "open", gptq(3, 32).add(D0 + ".qweight", "I32", [4, 64]), D0 + ".qweight is I32[4,64]; expected a multiple of 3 rows"),
    ("gptq-no-qweight", "open", gptq().drop(D0 + ".qweight"), "no tensor weight_packed", D0),
    ("gptq-no-scales", "open", gptq().drop(D0 + ".scales"), FILE + D0, "no tensor weight_scale"),
    ("gptq-no-qzeros", "open", gptq().drop(D0 + ".qzeros"), FILE + D0, "no tensor weight_zero_point"),
    ("gptq-weight-beside-qweight", "open", gptq().add(D0 + ".weight", "BF16", [64, 32]), FILE + D0 + ".weight belongs to", "module has no weight"),
    ("gptq-scales-of-other-group", "open", gptq().add(D0 + ".scales", "F16", [1, 64]), FILE + D0 + ".scales is F16[1,64]; expected [2,64]"),
    ("gptq-scales-turned", "open", gptq().add(D0 + ".scales", "F16", [64, 2]), FILE + D0 + ".scales is F16[64,2]; expected [2,64]"),
    ("gptq-scales-of-integers", "open", gptq().add(D0 + ".scales", "I32", [2, 64]), FILE + D0 + ".scales is I32[2,64]; expected dtype F16"),
    ("gptq-scale-infinite", "deep", gptq().add(D0 + ".scales", "F16", [2, 64], SCALE * 127 + b"\x00\x7c"), D0 + ".scales[1,63] is inf; expected a finite"),
    ("gptq-scale-nan", "deep", gptq().add(D0 + ".scales", "F16", [2, 64], b"\x01\x7e" + SCALE * 127), D0 + ".scales[0,0] is nan"),
    ("gptq-zeros-short", "open", gptq().add(D0 + ".qzeros", "I32", [2, 7]), FILE + D0 + ".qzeros is I32[2,7]; expected [2,8]"),
    ("gptq-zeros-of-bytes", "open", gptq().add(D0 + ".qzeros", "I8", [2, 64]), FILE + D0 + ".qzeros is I8[2,64]; expected dtype I32"),
    ("gptq-index-high", "open", gptq().add(D0 + ".g_idx", "I32", [32], int32(*DOWN[:-1], 2)), D0 + ".g_idx[31] is 2; expected a group in [0, 1]"),
    ("gptq-index-uneven", "open", gptq().add(D0 + ".g_idx", "I32", [32]), D0 + ".g_idx: group 0 has 32 columns; expected 16"),
    ("gptq-index-unset", "open", gptq().add(D0 + ".g_idx", "I32", [32], int32(*[-1] * 32)), D0 + ".g_idx holds -1"),
    ("gptq-index-short", "open", gptq().add(D0 + ".g_idx", "I32", [31]), D0 + ".g_idx is I32[31]; expected [32]"),
    ("gptq-index-wide", "open", gptq().add(D0 + ".g_idx", "I64", [32]), D0 + ".g_idx is I64[32]; expected dtype I32"),
    ("gptq-bias-short", "open", gptq().add(D0 + ".bias", "F16", [63]), D0 + ".bias is F16[63]; expected a bias of [64]"),
    ("gptq-stack-outputs", "open", stacks(gptq, 60), "_proj.qweight is I32[2,", "60 rows per expert; expected 64"),
    ("gptq-stack-experts", "open", stacks(gptq).add("model.layers.0.mlp.experts.down_proj.qweight", "I32", [3, 4, 64]), "down_proj.qweight is I32[3,4,64]",
     "expected a fused tensor of 2 experts"),
    ("gptq-stack-without-weights", "open", stacks(gptq).drop("model.layers.0.mlp.experts.down_proj.qweight"),
     "experts.down_proj.", " is stored, but", "neither a weight nor weight_packed"),
    ("awq-stack-zeros", "open", stacks(awq).add("model.layers.0.mlp.experts.down_proj.qzeros", "I32", [2, 2, 7]), "down_proj.qzeros is I32[2,2,7]",
     "one slice per expert of [2,8]"),
    ("gptq-other-width", "open", gptq(8, bits=4), D0 + ".qweight is I32[8,64], a matrix of 64 x 64; expected 64 x 32"),
    ("gptq-compressed-names", "open", gptq().drop(D0 + ".qweight").add(D0 + ".weight_scale_inv", "F32", [1, 1]), "weight_scale_inv"),
    ("awq-words-of-2-bytes", "open", awq().add(D0 + ".qweight", "I16", [32, 16]), D0 + ".qweight is I16[32,16]; expected dtype I32"),
    ("awq-outputs-missing", "open", awq().add(D0 + ".qweight", "I32", [32, 7]), D0 + ".qweight is I32[32,7], a matrix of 56 x 32; expected 64 x 32"),
    ("awq-inputs-missing", "open", awq().add(D0 + ".qweight", "I32", [31, 8]), "a matrix of 64 x 31; expected 64 x 32"),
    ("awq-zeros-turned", "open", awq().add(D0 + ".qzeros", "I32", [8, 2]), D0 + ".qzeros is I32[8,2]; expected [2,8]"),
    ("awq-no-zeros", "open", awq().drop(D0 + ".qzeros"), "no tensor weight_zero_point"),
    ("awq-index", "open", awq().add(D0 + ".g_idx", "I32", [32]), D0 + ".g_idx belongs to", "has no weight_g_idx"),
    ("awq-zeros-in-symmetric", "deep", awq(zero_point=False).add(D0 + ".qzeros", "I32", [2, 8], words(16, 0x88888878)),
     D0 + ".qzeros holds 7 for output 2, group 0", "expected 8"),
    ("awq-scale-infinite", "deep", awq().add(D0 + ".scales", "F16", [2, 64], b"\x00\xfc" + SCALE * 127), D0 + ".scales[0,0] is -inf"),
    ("gemv-words-turned", "open", awq(True).add(D0 + ".qweight", "I32", [4, 64]), D0 + ".qweight is I32[4,64]", "expected 64 x 32"),
    ("gemv-scales-unpadded", "open", awq(True).add(D0 + ".scales", "F16", [64, 2]), D0 + ".scales is F16[64,2]; expected [64, a multiple of 8"),
    ("gemv-zeros-wide", "open", awq(True).add(D0 + ".qzeros", "I32", [64, 2]), D0 + ".qzeros is I32[64,2]; expected [64,1]"),
    ("gemv-said-gemm", "open", awq(True, version="gemm"), ".qweight is I32[", "; expected"),
    # configurations
    ("gptq-bits-9", "open", gptq(bits=9), CONFIG + "bits is 9; expected 2 to 8"),
    ("gptq-bits-16", "open", gptq(bits=16), CONFIG + "bits is 16; expected 2 to 8"),
    ("gptq-bits-text", "open", gptq(bits="4"), CONFIG + "bits"),
    ("gptq-group-0", "open", gptq(group_size=0), CONFIG + "group_size is 0; expected a positive number, or -1"),
    ("gptq-marlin", "open", gptq(checkpoint_format="marlin"), CONFIG + "checkpoint_format is 'marlin'", MARLIN),
    ("gptq-is-marlin", "open", gptq(is_marlin_format=True), CONFIG + "is_marlin_format", MARLIN),
    ("gptq-other-format", "open", gptq(checkpoint_format="gptq_v9"), CONFIG + "checkpoint_format is 'gptq_v9'; expected gptq, gptq_v2 or gptq_p"),
    ("gptq-pack-int64", "open", gptq(pack_dtype="int64"), CONFIG + "pack_dtype is 'int64'; expected int32"),
    ("gptq-other-method", "open", gptq(method="qqq"), CONFIG + "method is 'qqq'"),
    ("gptq-dynamic-list", "open", gptq(dynamic=["x"]), CONFIG + "dynamic"),
    ("gptq-dynamic-expression", "open", gptq(dynamic={"+:(": {}}), "config.json: quantization_config.dynamic.+:("),
    ("gptq-dynamic-bits", "open", gptq(dynamic={".*down_proj": {"bits": 1}}), CONFIG + "dynamic..*down_proj.bits is 1"),
    ("gptq-dynamic-other-width", "open", gptq(dynamic={".*experts.0.down_proj": {"bits": 8}}), D0 + ".qweight is I32[4,64], a matrix of 64 x 16"),
    ("gptq-own-file-broken", "open", own_file("quantize_config.json", b'{"bits": '), "quantize_config.json", "malformed JSON"),
    ("gptq-own-file-bits", "open", own_file("quantize_config.json", {"bits": 1}), "quantize_config.json: bits is 1"),
    ("awq-own-file-bits", "open", own_file("quant_config.json", {"w_bit": 3}), "quant_config.json: w_bit is 3; AWQ has 4 bits"),
    ("awq-bits-8", "open", awq(bits=8), CONFIG + "bits is 8; AWQ has 4 bits"),
    ("awq-gemv-fast", "open", awq(version="gemv_fast"), CONFIG + "version is 'gemv_fast'", "tiled for one kernel"),
    ("awq-other-version", "open", awq(version="gemx"), CONFIG + "version is 'gemx'; expected gemm or gemv"),
    ("round-packing", "open", auto_round(packing_format="auto_round:fp8_static"), CONFIG + "packing_format is 'auto_round:fp8_static'"),
    ("round-inputs", "open", auto_round(act_bits=8), CONFIG + "act_bits is 8"),
    ("round-type", "open", auto_round(data_type="mx_fp"), CONFIG + "data_type is 'mx_fp'; packing gptq holds int"),
    ("round-awq-8-bits", "open", auto_round(packing_format="auto_round:auto_awq", bits=8), CONFIG + "bits is 8; AWQ has 4 bits"),
    ("round-extra-list", "open", auto_round(extra_config=[]), CONFIG + "extra_config"),
    ("round-extra-bits", "open", auto_round(extra_config={"x": {"bits": 12}}), CONFIG + "extra_config.x.bits is 12"),
    ("round-extra-expression", "open", auto_round(extra_config={"x(": {}}), "config.json: quantization_config.extra_config.x("),
    ("round-rotated", "open", auto_round(rotation_config={"block_size": 32}), CONFIG + "rotation_config", "rotated at run time"),
    ("round-floats-without-names", "open", auto_round(packing_format="auto_round:llm_compressor", data_type="nv_fp", bits=8), "data_type nv_fp with 8 bits"),
]


def write_folders(out, cases, good):
    """Writes every folder of `cases` (name, stage, folder, what the error says) and `good`, and what is expected of them."""
    if out.exists():
        shutil.rmtree(out)
    expected = {}
    for name, stage, folder, *says in cases:
        assert name not in expected, name
        folder.write(out / name)
        expected[name] = {"stage": stage, "says": says}
    for name, make in good.items():
        make().write(out / name)
        expected[name] = {"stage": "good", "says": []}
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    print(f"{len(expected)} folders in {out}")


if __name__ == "__main__":
    write_folders((Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2] / "build/data") / "negative/packed", CASES, GOOD)
