#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden folders of native FP8, ModelOpt, Quark and FBGEMM from those of compressed-tensors.

    make_foreign_fp8.py [GOLDEN]          default: build/data/golden

The numbers are those of the source folder in the names and the configuration of another method, so the logits of the source
(transformers' forward over exactly decoded weights, inputs quantized as declared) are the expected ones. `build/data/golden-blocks/deepseekv4` is random,
with inputs and outputs of some linears by the definition. Global scales of ModelOpt and Quark are the
reciprocals in f32, the nearest that this form can say. Standard library only; a second run gives the same bytes.
"""
import json
import math
import random
import shutil
import struct
import sys
from pathlib import Path


def read(path):
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]) for name, t in header.items()}


def write(path, tensors):
    header, blob = {}, b""
    for name in sorted(tensors):
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(blob), len(blob) + len(data)]}
        blob += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob)


def renamed(tensors, names):
    out = {}
    for name, tensor in tensors.items():
        stem, _, suffix = name.rpartition(".")
        out[f"{stem}.{names[suffix]}" if suffix in names else name] = tensor
    return out


def reciprocals(tensors, *suffixes):
    for name, (dtype, shape, data) in tensors.items():
        if name.endswith(suffixes):
            assert dtype == "F32" and len(data) == 4
            tensors[name] = (dtype, [], struct.pack("<f", 1 / struct.unpack("<f", data)[0]))


def native(names=None, **section):
    def change(tensors, config):
        config["quantization_config"] = dict(quant_method="fp8", fmt="e4m3", **section)
        return renamed(tensors, names or {}), {}
    return change


def exclusions(config):
    return [n if not n.startswith("re:") else n[3:].replace(".*", "*").replace("\\.", ".").rstrip("$") for n in config["quantization_config"]["ignore"]]


def modelopt(algo, own_file=False):
    def change(tensors, config):
        ignore = exclusions(config)
        if algo == "NVFP4":
            tensors = renamed(tensors, {"weight_packed": "weight", "weight_global_scale": "weight_scale_2", "input_global_scale": "input_scale"})
            reciprocals(tensors, ".weight_scale_2", ".input_scale")
        section = dict(quant_algo=algo, group_size=16 if algo == "NVFP4" else None)
        if own_file:
            del config["quantization_config"]
            return tensors, {"hf_quant_config.json": dict(producer=dict(name="modelopt", version="0.47.0"), quantization=dict(
                section, kv_cache_quant_algo=None, exclude_modules=ignore))}
        config["quantization_config"] = dict(section, quant_method="modelopt", ignore=ignore)
        return tensors, {}
    return change


def fp4(group, dynamic, **more):
    return dict(dtype="fp4", qscheme="per_group", group_size=group, is_dynamic=dynamic, symmetric=None, ch_axis=-1, **more)


def quark(weight, inputs, names):
    """All modules but one kind by the global specification, which is wrong for that kind: patterns come first."""
    def change(tensors, config):
        layer = dict(weight=weight, input_tensors=inputs, output_tensors=None, bias=None)
        other = dict(layer, weight=dict(dtype="int8", qscheme="per_channel", is_dynamic=False, symmetric=True, ch_axis=0), input_tensors=None)
        config["quantization_config"] = dict(quant_method="quark", global_quant_config=layer, exclude=exclusions(config), layer_type_quant_config={},
                                             layer_quant_config={"*down_proj": layer, "*.experts.*.down_proj": other}, version="0.13",
                                             export=dict(kv_cache_group=[], pack_method="reorder", weight_format="real_quantized"))
        tensors = renamed(tensors, names)
        if isinstance(weight, list):
            reciprocals(tensors, ".weight_scale_2", ".input_scale_2")
        return tensors, {}
    return change


def fbgemm(tensors, config):
    config["quantization_config"] = dict(quant_method="fbgemm_fp8", activation_scale_ub=1200.0, modules_to_not_convert=["lm_head", "mlp.gate"])
    return tensors, {}


BLOCK_SCALES = dict(dtype="fp8_e4m3", qscheme="per_tensor", is_dynamic=False, is_scale_quant=True)
FP8_TENSOR = dict(dtype="fp8_e4m3", qscheme="per_tensor", is_dynamic=False, symmetric=True)
FOLDERS = {
    "qwen3moe-native-fp8-ragged": ("qwen3moe-fp8-block-ragged", native({"weight_scale": "weight_scale_inv"}, activation_scheme="dynamic",
                                   weight_block_size=[128, 128], modules_to_not_convert=["lm_head", "model.layers.0.mlp.gate"])),
    "olmoe-native-fp8-static": ("olmoe-fp8-static", native(activation_scheme="static", ignored_layers=["lm_head", "mlp.gate"])),
    "glm4moe-modelopt-nvfp4": ("glm4moe-nvfp4", modelopt("NVFP4")),
    "qwen3moe-modelopt-nvfp4-file": ("qwen3moe-nvfp4", modelopt("NVFP4", own_file=True)),
    "qwen3moe-quark-mxfp4": ("qwen3moe-mxfp4", quark(fp4(32, False, scale_format="e8m0"), fp4(32, True, scale_format="e8m0"),
                                                     {"weight_packed": "weight"})),
    "glm4moe-quark-nvfp4": ("glm4moe-nvfp4", quark([fp4(16, False), BLOCK_SCALES], [fp4(16, True), BLOCK_SCALES], {
        "weight_packed": "weight", "weight_global_scale": "weight_scale_2", "input_global_scale": "input_scale_2"})),
    "olmoe-quark-fp8-static": ("olmoe-fp8-static", quark(FP8_TENSOR, FP8_TENSOR, {})),
    "qwen3moe-fbgemm-fp8": ("qwen3moe-fp8-dynamic", fbgemm),
    "granitemoeshared-modelopt-fp8": ("granitemoeshared-fp8-dynamic", modelopt("FP8_PER_CHANNEL_PER_TOKEN")),
}


# --- blocks of DeepSeek-V4, by the format's definition ---

def e4m3(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    value = mantissa / 512 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -value if code & 128 else value


def to_e4m3(value):
    """The nearest number, ties to the even code."""
    best = min(range(127), key=lambda c: (abs(e4m3(c) - abs(value)), c & 1))
    return math.copysign(e4m3(best), value)


def e2m1(code):
    value = (0, 0.5, 1, 1.5, 2, 3, 4, 6)[code & 7]
    return -value if code & 8 else value


def product(rows, weights, group):
    """Inputs as E4M3 in groups whose scale is the smallest power of two not below amax / 448; sums are exact in double."""
    out = []
    for row in rows:
        x = []
        for at in range(0, len(row), group):
            part = row[at:at + group]
            scale = 2.0 ** math.ceil(math.log2(max(map(abs, part)) / 448))
            x += [to_e4m3(v / scale) * scale for v in part]
        out += [sum(a * b for a, b in zip(x, w)) for w in weights]
    return out


def deepseek_v4(out):
    """Two linears in FP8 blocks with E8M0 scales, four FP4 experts, a shared expert; x and y of three linears."""
    random.seed(28)
    H, I = 64, 32
    config = dict(architectures=["DeepseekV4ForCausalLM"], model_type="deepseek_v4", num_hidden_layers=1, hidden_size=H, vocab_size=8,
                  num_attention_heads=2, num_key_value_heads=1, head_dim=8, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=I,
                  n_shared_experts=1, expert_dtype="fp4", scoring_func="sqrtsoftplus", norm_topk_prob=True, routed_scaling_factor=1.5,
                  quantization_config=dict(quant_method="fp8", fmt="e4m3", scale_fmt="ue8m0", activation_scheme="dynamic", weight_block_size=[128, 128]))
    tensors, weights = {}, {}

    def zeros(name, dtype, shape, width):
        tensors["layers.0." + name] = (dtype, shape, bytes(math.prod(shape) * width))

    def linear(name, N, K):
        codes = bytes(random.choice((c, c | 128)) for c in random.choices(range(0x10, 0x50), k=N * K))
        scales = bytes(random.choices(range(118, 123), k=-(-N // 128) * -(-K // 128)))
        tensors[f"layers.0.{name}.weight"] = ("F8_E4M3", [N, K], codes)
        tensors[f"layers.0.{name}.scale"] = ("F8_E8M0", [-(-N // 128), -(-K // 128)], scales)
        weights[name] = [[e4m3(codes[n * K + k]) * 2.0 ** (scales[n // 128 * -(-K // 128) + k // 128] - 127) for k in range(K)] for n in range(N)]

    def expert(name, N, K):
        codes, scales = random.randbytes(N * K // 2), bytes(random.choices(range(118, 123), k=N * K // 32))
        tensors[f"layers.0.{name}.weight"] = ("I8", [N, K // 2], codes)
        tensors[f"layers.0.{name}.scale"] = ("F8_E8M0", [N, K // 32], scales)
        weights[name] = [[e2m1(codes[n * K // 2 + k // 2] >> 4 * (k % 2) & 15) * 2.0 ** (scales[(n * K + k) // 32] - 127) for k in range(K)] for n in range(N)]

    linear("attn.wq_a", 40, H)
    linear("attn.wo_a", 200, 136)
    zeros("attn.compressor.wkv.weight", "BF16", [8, H], 2)
    zeros("attn_norm.weight", "BF16", [H], 2)
    zeros("ffn_norm.weight", "BF16", [H], 2)
    zeros("ffn.gate.weight", "BF16", [4, H], 2)
    zeros("ffn.gate.bias", "F32", [4], 4)
    for name, N, K in (("w1", I, H), ("w2", H, I), ("w3", I, H)):
        linear("ffn.shared_experts." + name, N, K)
        for e in range(4):
            expert(f"ffn.experts.{e}.{name}", N, K)
    apply = {}
    for name in ("attn.wq_a", "attn.wo_a", "ffn.experts.2.w1", "ffn.experts.3.w2"):
        N, K = len(weights[name]), len(weights[name][0])
        x = [list(struct.unpack(f"<{K}f", struct.pack(f"<{K}f", *(random.gauss(0, 2) for _ in range(K))))) for _ in range(3)]
        y = product(x, weights[name], 32 if "experts." in name and "shared" not in name else 128)
        apply[f"apply.layers.0.{name}.x"] = ("F32", [3, K], struct.pack(f"<{3 * K}f", *sum(x, [])))
        apply[f"apply.layers.0.{name}.y"] = ("F32", [3, N], struct.pack(f"<{3 * N}f", *y))
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    write(out / "model.safetensors", tensors)
    write(out / "logits.safetensors", apply)


def main():
    golden = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2] / "build/data/golden"
    for name, (source, change) in FOLDERS.items():
        out = golden / name
        if out.exists():
            shutil.rmtree(out)
        out.mkdir()
        config = json.loads((golden / source / "config.json").read_text())
        tensors, files = change(read(golden / source / "model.safetensors"), config)
        (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        for file, content in files.items():
            (out / file).write_text(json.dumps(content, indent=1) + "\n")
        write(out / "model.safetensors", tensors)
        shutil.copyfile(golden / source / "logits.safetensors", out / "logits.safetensors")
        print(name)
    out = golden.parent / "golden-blocks" / "deepseekv4"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    deepseek_v4(out)
    print(out.name)


if __name__ == "__main__":
    main()
