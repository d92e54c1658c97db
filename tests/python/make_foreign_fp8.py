#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden folders of native FP8 and ModelOpt from those of compressed-tensors.

    make_foreign_fp8.py [GOLDEN]          default: tests/golden

The numbers are those of the source folder in the names and the configuration of another method, so the logits of the source
(transformers' forward over exactly decoded weights, inputs quantized as declared) are the expected ones. Global scales of ModelOpt are the
reciprocals in f32, the nearest that this form can say. Standard library only; a second run gives the same bytes.
"""
import json
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


def modelopt(algo, own_file=False):
    def change(tensors, config):
        ignore = [n if not n.startswith("re:") else n[3:].replace(".*", "*").replace("\\.", ".").rstrip("$")
                  for n in config["quantization_config"]["ignore"]]
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


FOLDERS = {
    "qwen3moe-native-fp8-ragged": ("qwen3moe-fp8-block-ragged", native({"weight_scale": "weight_scale_inv"}, activation_scheme="dynamic",
                                   weight_block_size=[128, 128], modules_to_not_convert=["lm_head", "model.layers.0.mlp.gate"])),
    "olmoe-native-fp8-static": ("olmoe-fp8-static", native(activation_scheme="static", ignored_layers=["lm_head", "mlp.gate"])),
    "glm4moe-modelopt-nvfp4": ("glm4moe-nvfp4", modelopt("NVFP4")),
    "qwen3moe-modelopt-nvfp4-file": ("qwen3moe-nvfp4", modelopt("NVFP4", own_file=True)),
    "granitemoeshared-modelopt-fp8": ("granitemoeshared-fp8-dynamic", modelopt("FP8_PER_CHANNEL_PER_TOKEN")),
}


def main():
    golden = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1] / "golden"
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


if __name__ == "__main__":
    main()
