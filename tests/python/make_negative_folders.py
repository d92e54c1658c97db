#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes build/data/negative/folders: one tiny broken folder per fault, and expected.json with what the refusal must say.

    make_negative_folders.py [DATA]          default: build/data

Every folder is a copy of one good tiny model (two experts of width 32, hidden 64) with one thing wrong. expected.json maps the
folder's name to `stage` (open: refused when opened; deep: refused when payloads are read; unsupported: opens, but a module
cannot be run) and `says`: fragments of the message (file, tensor, what was found, what was expected). Standard library only.
"""
import copy
import json
import shutil
import struct
import sys
from pathlib import Path

BITS = {"BF16": 16, "F16": 16, "F32": 32, "I8": 8, "U8": 8, "I32": 32, "I64": 64, "F8_E4M3": 8}
ONE = {"BF16": b"\x80\x3f", "F32": b"\0\0\x80\x3f", "F8_E4M3": b"\x38", "U8": b"\x7f"}


def count(shape):
    n = 1
    for d in shape:
        n *= d
    return n


class Folder:
    """Tensors and configs of one folder; edits make it wrong."""

    def __init__(self, config):
        self.config, self.tensors, self.files = config, {}, {}
        self.config_bytes = None       # written instead of the config
        self.header = None             # function header -> header
        self.tail = lambda data: data  # function whole file -> whole file

    def add(self, name, dtype, shape, data=None):
        if data is None:
            data = ONE[dtype] * count(shape) if "scale" in name and dtype in ONE else bytes(count(shape) * BITS[dtype] // 8)
        self.tensors[name] = [dtype, list(shape), data]
        return self

    def drop(self, *names):
        for name in names:
            del self.tensors[name]
        return self

    def quant(self):
        return self.config["quantization_config"]

    def group(self):
        return self.quant()["config_groups"]["group_0"]

    def safetensors(self, names=None):
        header, offset, blob = {}, 0, b""
        for name in sorted(names if names is not None else self.tensors):
            dtype, shape, data = self.tensors[name]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
            offset += len(data)
            blob += data
        if self.header:
            header = self.header(header)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return self.tail(struct.pack("<Q", len(text)) + text + blob)

    def write(self, path):
        path.mkdir(parents=True)
        config = self.config_bytes if self.config_bytes is not None else json.dumps(self.config, indent=1).encode()
        (path / "config.json").write_bytes(config)
        if "model.safetensors" not in self.files:
            self.files["model.safetensors"] = self.safetensors()
        for name, data in self.files.items():
            if data is not None:
                (path / name).write_bytes(data)


W4 = dict(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32, dynamic=False)
A8 = dict(num_bits=8, type="int", symmetric=True, strategy="token", dynamic=True)
E0, E1 = "model.layers.0.mlp.experts.0.", "model.layers.0.mlp.experts.1."
PROJECTIONS = (("gate_proj", 32, 64), ("up_proj", 32, 64), ("down_proj", 64, 32))


def quant_section(weights, fmt, inputs=None, outputs=None, ignore=("lm_head", "re:.*self_attn.*", "re:.*mlp.gate$")):
    return dict(quant_method="compressed-tensors", format=fmt, quantization_status="compressed", version="0.18.0", ignore=list(ignore),
                config_groups={"group_0": dict(targets=["Linear"], weights=dict(weights), input_activations=inputs, output_activations=outputs)})


def skeleton(config, layers=1):
    f = Folder(dict(num_hidden_layers=layers, hidden_size=64, vocab_size=8, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
                    dtype="bfloat16", hidden_act="silu", tie_word_embeddings=False, **config))
    f.add("model.embed_tokens.weight", "BF16", [8, 64]).add("model.norm.weight", "BF16", [64]).add("lm_head.weight", "BF16", [8, 64])
    for i in range(layers):
        p = f"model.layers.{i}."
        for n in ("input_layernorm", "post_attention_layernorm"):
            f.add(p + n + ".weight", "BF16", [64])
        for n, shape in (("q_proj", [16, 64]), ("k_proj", [8, 64]), ("v_proj", [8, 64]), ("o_proj", [64, 16])):
            f.add(p + f"self_attn.{n}.weight", "BF16", shape)
    return f


def qwen(section=None):
    config = dict(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_experts=2, num_experts_per_tok=1,
                  moe_intermediate_size=32, intermediate_size=48, norm_topk_prob=True)
    if section:
        config["quantization_config"] = section
    f = skeleton(config)
    for n in ("q_norm", "k_norm"):
        f.add(f"model.layers.0.self_attn.{n}.weight", "BF16", [8])
    return f.add("model.layers.0.mlp.gate.weight", "BF16", [2, 64])


def packed(f, name, N, K, bits=4, groups=None):
    f.add(name + ".weight_packed", "I32", [N, K * bits // 32])
    f.add(name + ".weight_scale", "BF16", [N, groups or K // 32])
    f.add(name + ".weight_shape", "I64", [2], struct.pack("<qq", N, K))


def w4a16(weights=None):
    f = qwen(quant_section(weights or W4, "pack-quantized"))
    for e in (E0, E1):
        for name, N, K in PROJECTIONS:
            packed(f, e + name, N, K)
    return f


def plain(section, dtype, scale, extra=()):
    """One byte per code; `scale` gives dtype and shape of the scale from N, K."""
    f = qwen(section)
    for e in (E0, E1):
        for name, N, K in PROJECTIONS:
            f.add(e + name + ".weight", dtype, [N, K]).add(e + name + ".weight_scale", *scale(N, K))
            for suffix, kind, shape in extra:
                f.add(e + name + suffix, kind, shape)
    return f


def fp8_static():
    t = dict(num_bits=8, type="float", symmetric=True, strategy="tensor", dynamic=False)
    return plain(quant_section(t, "float-quantized", dict(t)), "F8_E4M3", lambda N, K: ("BF16", [1]), [(".input_scale", "BF16", [1])])


def w4a8_int():
    return plain(quant_section(W4, "int-quantized", A8), "I8", lambda N, K: ("BF16", [N, K // 32]))


def fp4(fmt, weights, inputs=None):
    f = qwen(quant_section(weights, fmt, inputs))
    nv = fmt.startswith("nv")
    for e in (E0, E1):
        for name, N, K in PROJECTIONS:
            f.add(e + name + ".weight_packed", "U8", [N, K // 2])
            f.add(e + name + ".weight_scale", "F8_E4M3" if nv else "U8", [N, K // (16 if nv else 32)])
            if nv:
                f.add(e + name + ".weight_global_scale", "F32", [1])
            if nv and inputs:
                f.add(e + name + ".input_global_scale", "F32", [1])
    return f


NV = dict(num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16, dynamic=False)
MX = dict(num_bits=4, type="float", symmetric=True, strategy="group", group_size=32, dynamic=False, scale_dtype="torch.uint8")


def gpt_oss_split_wrongly():
    """A splitter that takes [E, H, 2I] for [E, 2I, H] halves H instead of 2I and keeps down transposed."""
    config = dict(architectures=["GptOssForCausalLM"], model_type="gpt_oss", num_local_experts=2, num_experts_per_tok=1, intermediate_size=48,
                  quantization_config=quant_section(dict(num_bits=8, type="int", symmetric=True, strategy="channel", dynamic=False), "int-quantized", A8))
    f = skeleton(config)
    f.add("model.layers.0.self_attn.sinks", "BF16", [2]).add("model.layers.0.mlp.router.weight", "BF16", [2, 64]).add("model.layers.0.mlp.router.bias", "BF16", [2])
    for e in (E0, E1):
        for name, N, K in (("gate_proj", 32, 96), ("up_proj", 32, 96), ("down_proj", 48, 64)):
            f.add(e + name + ".weight", "I8", [N, K]).add(e + name + ".weight_scale", "BF16", [N, 1])
    return f


CASES = {}


def case(stage, *says):
    def register(make):
        name = make.__name__.replace("_", "-")
        CASES[name] = (make, stage, says)
        return make
    return register


def edit(base, **fields):
    """A good folder with some config fields replaced."""
    f = base()
    f.config.update(fields)
    return f


# --- tensors that do not fit each other ----------------------------------------------------------

@case("open", "model.safetensors: " + E1 + "gate_proj.weight_shape", "128", "64")
def wrong_weight_shape():
    return w4a16().add(E1 + "gate_proj.weight_shape", "I64", [2], struct.pack("<qq", 32, 128))


@case("open", "model.safetensors: " + E1 + "up_proj", "no tensor weight_scale", "pack-quantized")
def missing_scale():
    return w4a16().drop(E1 + "up_proj.weight_scale")


@case("open", E0 + "up_proj.weight_scale is BF16[32,3]", "expected", "[32,2]")
def scale_shape():
    return w4a16().add(E0 + "up_proj.weight_scale", "BF16", [32, 3])


@case("open", E0 + "up_proj.weight_packed is I32[32,7]", "expected")
def packed_words():
    return w4a16().add(E0 + "up_proj.weight_packed", "I32", [32, 7])


@case("open", E0 + "up_proj.weight_packed is U8[32,32]", "expected", "I32")
def packed_dtype():
    return w4a16().add(E0 + "up_proj.weight_packed", "U8", [32, 32])


@case("open", "model.safetensors: " + E0 + "down_proj", "weight_zero_point")
def missing_zero_point():
    f = w4a16(dict(W4, symmetric=False))
    for e in (E0, E1):
        for name, N, K in PROJECTIONS:
            f.add(e + name + ".weight_zero_point", "I32", [N * 4 // 32, K // 32])
    return f.drop(E0 + "down_proj.weight_zero_point")


@case("open", E0 + "down_proj.weight_packed", "group", "48")
def group_does_not_divide():
    return w4a16(dict(W4, group_size=48))


@case("open", E0 + "up_proj.weight_g_idx[3] is 9", "expected a group in [0, 1]")
def g_idx_out_of_range():
    index = [c // 32 for c in range(64)]
    index[3] = 9
    return w4a16(dict(W4, actorder="group")).add(E0 + "up_proj.weight_g_idx", "I32", [64], struct.pack("<64i", *index))


@case("open", E0 + "up_proj.weight_g_idx", "group 0 has 33 columns", "expected 32")
def g_idx_uneven():
    index = [c // 32 for c in range(64)]
    index[40] = 0
    return w4a16(dict(W4, actorder="group")).add(E0 + "up_proj.weight_g_idx", "I32", [64], struct.pack("<64i", *index))


@case("open", E0 + "gate_proj.weight_global_scale", "pack-quantized")
def leftover_tensor():
    return w4a16().add(E0 + "gate_proj.weight_global_scale", "F32", [1])


@case("open", E0 + "gate_proj.input_scale", "dynamic")
def input_scale_of_dynamic():
    return w4a8_int().add(E0 + "gate_proj.input_scale", "BF16", [1])


@case("open", E0 + "gate_proj.input_scale", "BF16[2]", "one element")
def scalar_with_two_elements():
    return fp8_static().add(E0 + "gate_proj.input_scale", "BF16", [2])


@case("open", "model.safetensors: " + E0 + "gate_proj", "no tensor input_scale", "static input")
def missing_input_scale():
    return fp8_static().drop(E0 + "gate_proj.input_scale")


@case("open", E0 + "gate_proj.input_scale is nan", "finite scale above 0")
def nan_input_scale():
    return fp8_static().add(E0 + "gate_proj.input_scale", "BF16", [1], b"\xc0\x7f")


@case("open", "model.safetensors: " + E0 + "gate_proj", "weight_global_scale", "nvfp4-pack-quantized")
def missing_global_scale():
    return fp4("nvfp4-pack-quantized", NV).drop(E0 + "gate_proj.weight_global_scale")


@case("open", E0 + "gate_proj.weight_global_scale is 0", "finite global scale above 0")
def zero_global_scale():
    return fp4("nvfp4-pack-quantized", NV).add(E0 + "gate_proj.weight_global_scale", "F32", [1], bytes(4))


@case("open", "model.layers.0.self_attn.q_proj.bias is BF16[63]", "expected")
def bias_length():
    f = w4a16().add("model.layers.0.self_attn.k_proj.bias", "BF16", [8]).add("model.layers.0.self_attn.v_proj.bias", "BF16", [8])
    return f.add("model.layers.0.self_attn.q_proj.bias", "BF16", [63])


@case("open", "model.layers.0.self_attn.k_proj has no bias", "model.layers.0.self_attn.q_proj has one")
def bias_missing():
    f = w4a16().add("model.layers.0.self_attn.q_proj.bias", "BF16", [16])
    return f.add("model.layers.0.self_attn.v_proj.bias", "BF16", [8])


@case("open", "name their layers differently", "layers.0.self_attn.o_proj.weight")
def two_prefixes():
    f = w4a16()
    return f.drop("model.layers.0.self_attn.o_proj.weight").add("layers.0.self_attn.o_proj.weight", "BF16", [64, 16])


@case("open", "model.norm.weight is BF16[63]", "expected [64]")
def norm_length():
    return w4a16().add("model.norm.weight", "BF16", [63])


@case("open", "model.layers.0.self_attn.q_proj.weight is BF16[48,64]", "expected 16 x 64")
def attention_shape():
    return w4a16().add("model.layers.0.self_attn.q_proj.weight", "BF16", [48, 64])


@case("open", E0 + "down_proj", "expected", "64 x 48")
def gpt_oss_transposed():
    return gpt_oss_split_wrongly()


# --- payloads ------------------------------------------------------------------------------------

@case("deep", E1 + "down_proj.weight_scale[5,0]", "nan", "finite")
def nan_scale():
    return w4a16().add(E1 + "down_proj.weight_scale", "BF16", [64, 1], ONE["BF16"] * 5 + b"\xc0\x7f" + ONE["BF16"] * 58)


@case("deep", E1 + "down_proj.weight_scale[0,0]", "inf")
def infinite_scale():
    return w4a16().add(E1 + "down_proj.weight_scale", "BF16", [64, 1], b"\x80\x7f" + ONE["BF16"] * 63)


@case("deep", E1 + "down_proj.weight_scale[2,0]", "-1")
def negative_scale():
    return w4a16().add(E1 + "down_proj.weight_scale", "BF16", [64, 1], ONE["BF16"] * 2 + b"\x80\xbf" + ONE["BF16"] * 61)


@case("deep", E0 + "up_proj.weight[1,3]", "100", "[-8, 7]")
def code_out_of_range():
    codes = bytearray(32 * 64)
    codes[64 + 3] = 100
    return w4a8_int().add(E0 + "up_proj.weight", "I8", [32, 64], bytes(codes))


@case("deep", E0 + "up_proj.weight", "NaN")
def nan_fp8_code():
    codes = bytearray(32 * 64)
    codes[70] = 0x7F
    return fp8_static().add(E0 + "up_proj.weight", "F8_E4M3", [32, 64], bytes(codes))


@case("deep", E0 + "up_proj.weight_scale", "255")
def mx_exponent_255():
    return fp4("mxfp4-pack-quantized", MX).add(E0 + "up_proj.weight_scale", "U8", [32, 2], b"\x7f" * 63 + b"\xff")


@case("deep", E0 + "up_proj.weight_scale")
def nvfp4_negative_scale():
    return fp4("nvfp4-pack-quantized", NV).add(E0 + "up_proj.weight_scale", "F8_E4M3", [32, 4], b"\x38" * 127 + b"\xb8")


# --- modules -------------------------------------------------------------------------------------

@case("open", "experts of one layer disagree", E0 + "up_proj", E1 + "up_proj", "one scheme per projection")
def experts_disagree():
    f = w4a16().drop(*(E1 + "up_proj." + s for s in ("weight_packed", "weight_scale", "weight_shape")))
    return f.add(E1 + "up_proj.weight", "BF16", [32, 64])


@case("open", E1 + "up_proj.weight_packed", "16 x 64", "expected 32 x 64")
def expert_shape():
    f = w4a16()
    packed(f, E1 + "up_proj", 16, 64)
    return f


@case("open", "model.layers.0.mlp.experts.1 has no gate_proj", "all 2 experts")
def missing_expert():
    f = w4a16()
    return f.drop(*[n for n in f.tensors if n.startswith(E1)])


@case("open", "model.layers.0.mlp.experts.0 has no down_proj")
def missing_projection():
    f = w4a16()
    return f.drop(*[n for n in f.tensors if n.startswith(E0 + "down_proj")])


@case("open", "is expert 2", "config.json says 2 experts")
def surplus_expert():
    f = w4a16()
    packed(f, "model.layers.0.mlp.experts.2.gate_proj", 32, 64)
    return f


@case("open", "w1", "gate_proj", "are both")
def two_names_for_one_projection():
    f = w4a16()
    packed(f, E1 + "w1", 32, 64)
    return f


@case("open", "model.safetensors: model.layers.0.self_attn.mystery.weight (BF16[4,4])", "cannot be placed", "qwen3_moe")
def unknown_tensor():
    return w4a16().add("model.layers.0.self_attn.mystery.weight", "BF16", [4, 4])


@case("open", E0 + "gate_proj.qweight", "GPTQ or AWQ")
def foreign_tensor():
    return w4a16().add(E0 + "gate_proj.qweight", "I32", [8, 32])


@case("open", "no tensor belongs to model.layers.0.self_attn.o_proj", "qwen3_moe needs it")
def missing_attention():
    return w4a16().drop("model.layers.0.self_attn.o_proj.weight")


@case("open", "no tensor belongs to lm_head", "tie_word_embeddings is false")
def missing_lm_head():
    return w4a16().drop("lm_head.weight")


@case("open", "has no router", "model.layers.0.mlp.gate.weight")
def missing_router():
    return w4a16().drop("model.layers.0.mlp.gate.weight")


@case("open", "belongs to layer 1", "num_hidden_layers = 1")
def layer_behind_the_last():
    return w4a16().add("model.layers.1.input_layernorm.weight", "BF16", [64])


@case("open", "no tensor belongs to model.layers.0.mlp.gate_proj")
def layer_declared_dense():
    return edit(w4a16, mlp_only_layers=[0])


@case("open", "no rule of quantization_config gives it a scheme", E1)
def quantized_but_ignored():
    f = w4a16()
    f.quant()["ignore"].append("re:.*experts.1.*")
    return f


@case("open", "no rule of quantization_config gives it a scheme", E0)
def quantized_without_config():
    f = w4a16()
    del f.config["quantization_config"]
    return f


# --- configuration -------------------------------------------------------------------------------

@case("open", "config.json", "num_experts is a string", "expected an integer")
def config_wrong_type():
    return edit(w4a16, num_experts="2")


@case("open", "config.json", "hidden_size is missing", "expected an integer")
def config_missing_field():
    f = w4a16()
    del f.config["hidden_size"]
    return f


@case("open", "config.json", "num_hidden_layers is an integer (1000000000)", "between 1 and 10000")
def config_absurd_number():
    return edit(w4a16, num_hidden_layers=10**9)


@case("open", "config.json", "num_experts_per_tok is an integer (3)", "between 1 and 2")
def config_top_k():
    return edit(w4a16, num_experts_per_tok=3)


@case("open", "config.json", "rms_norm_eps is a number (NaN)", "expected a finite number")
def config_nan():
    return edit(w4a16, rms_norm_eps=float("nan"))


@case("open", "model.layers.0.mlp.experts.2 has no gate_proj", "all 4 experts")
def config_expert_count():
    return edit(w4a16, num_experts=4)


@case("open", "expected", "128")
def config_hidden_size():
    return edit(w4a16, hidden_size=128)


@case("open", "config.json", "nested deeper than 128 levels")
def config_deep():
    f = w4a16()
    f.config_bytes = b'{"a":' * 2000 + b"1" + b"}" * 2000
    return f


@case("open", "config.json", "not valid UTF-8")
def config_utf8():
    f = w4a16()
    f.config_bytes = b'{"architectures": ["\xff\xfe"]}'
    return f


@case("open", "config.json", "malformed JSON")
def config_truncated():
    f = w4a16()
    f.config_bytes = json.dumps(f.config).encode()[:100]
    return f


@case("open", "config.json", "duplicate key 'hidden_size'")
def config_duplicate_key():
    f = w4a16()
    f.config_bytes = b'{"hidden_size": 64, "hidden_size": 65}'
    return f


@case("open", "generation_config.json", "malformed JSON")
def generation_config():
    f = w4a16()
    f.files["generation_config.json"] = b"{"
    return f


@case("open", "config.json", "format", "codebook-quantized")
def unknown_format():
    f = w4a16()
    f.quant()["format"] = "codebook-quantized"
    return f


@case("open", "config.json", "transform")
def online_transform():
    f = w4a16()
    f.quant()["transform_config"] = dict(config_groups=dict(R4=dict(type="hadamard", apply=[dict(targets=["re:.*down_proj$"], location="input")])))
    return f


@case("open", "config.json", "marlin-24")
def removed_format():
    f = w4a16()
    f.quant()["format"] = "marlin-24"
    return f


@case("open", "config.json", "sparsity_config")
def sparsity():
    f = w4a16()
    f.quant()["sparsity_config"] = dict(format="sparse-24-bitmask", targets=["Linear"], sparsity_structure="2:4")
    return f


@case("open", "config.json", "bitsandbytes", "llm-compressor")
def other_method():
    f = w4a16()
    f.quant()["quant_method"] = "bitsandbytes"
    return f


@case("open", "config.json", "token", "dynamic")
def static_per_token():
    f = w4a8_int()
    f.group()["input_activations"] = dict(A8, dynamic=False)
    return f


@case("open", "config.json", "mixed-precision")
def group_mixed_precision():
    f = w4a16()
    f.group()["format"] = "mixed-precision"
    return f


@case("open", "config.json", "num_bits")
def bits_out_of_range():
    f = w4a16()
    f.group()["weights"]["num_bits"] = 40
    return f


@case("unsupported", "model.embed_tokens", "an embedding", "int weights", "float")
def embedding_scheme():
    f = w4a16()
    w8 = dict(num_bits=8, type="float", symmetric=True, strategy="tensor", dynamic=False)
    f.quant()["config_groups"]["embedding"] = dict(targets=["Embedding"], weights=w8, input_activations=dict(w8), format="float-quantized")
    f.drop("model.embed_tokens.weight").add("model.embed_tokens.weight", "F8_E4M3", [8, 64])
    return f.add("model.embed_tokens.weight_scale", "BF16", [1]).add("model.embed_tokens.input_scale", "BF16", [1])


@case("unsupported", "model.layers.0.mlp.experts.", "NVFP4 weights need NVFP4 inputs or none", "int8 per token")
def nvfp4_with_int8_activations():
    f = fp4("nvfp4-pack-quantized", NV)
    f.group()["input_activations"] = dict(A8)
    return f


# --- files ---------------------------------------------------------------------------------------

@case("open", "model.safetensors", "model.norm.weight", "holds only")
def truncated_file():
    f = w4a16()
    f.tail = lambda data: data[:-100]
    return f


@case("open", "model.safetensors")
def trailing_bytes():
    f = w4a16()
    f.tail = lambda data: data + b"12345678"
    return f


@case("open", "model.safetensors", "model.norm.weight")
def overflowing_shape():
    f = w4a16()

    def change(header):
        header["model.norm.weight"]["shape"] = [1 << 63, 4]
        return header
    f.header = change
    return f


@case("open", "model.safetensors")
def overlapping_tensors():
    f = w4a16()

    def change(header):
        header["model.norm.weight"]["data_offsets"] = header["lm_head.weight"]["data_offsets"]
        return header
    f.header = change
    return f


@case("open", "model.safetensors")
def header_too_large():
    f = w4a16()
    f.tail = lambda data: struct.pack("<Q", 100_000_001) + data[8:]
    return f


@case("open", "model-00002-of-00002.safetensors")
def missing_shard():
    f = w4a16()
    names = sorted(f.tensors)
    first, second = names[:10], names[10:]
    weight_map = {n: "model-00001-of-00002.safetensors" for n in first} | {n: "model-00002-of-00002.safetensors" for n in second}
    f.files = {"model.safetensors": None, "model-00001-of-00002.safetensors": f.safetensors(first),
               "model.safetensors.index.json": json.dumps({"metadata": {}, "weight_map": weight_map}).encode()}
    return f


@case("open", "lm_head.weight", "other.safetensors")
def shard_without_its_tensor():
    f = w4a16()
    names = [n for n in f.tensors if n != "lm_head.weight"]
    weight_map = {n: "other.safetensors" for n in f.tensors}
    f.files = {"model.safetensors": None, "other.safetensors": f.safetensors(names),
               "model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode()}
    return f


@case("open", "model.safetensors.index.json", "..")
def index_path_traversal():
    f = w4a16()
    f.files = {"model.safetensors": None, "model.safetensors.index.json": json.dumps({"weight_map": {n: "../x.safetensors" for n in f.tensors}}).encode()}
    return f


@case("open", "safetensors")
def no_weights():
    f = w4a16()
    f.files = {"model.safetensors": None}
    return f


def main():
    out = (Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2] / "build/data") / "negative/folders"
    if out.exists():
        shutil.rmtree(out)
    expected = {}
    for name, (make, stage, says) in CASES.items():
        make().write(out / name)
        expected[name] = {"stage": stage, "says": list(says)}
    good = copy.deepcopy(w4a16())
    good.write(out / "good")
    expected["good"] = {"stage": "good", "says": []}
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    print(f"{len(expected)} folders in {out}")


if __name__ == "__main__":
    main()
