#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seeds of the module-map fuzzer from the golden folders: config.json and the list of tensors of each.

    make_module_map_corpus.py            writes build/data/fuzz/corpus/module_map/
"""
import json
import struct
from pathlib import Path

data = Path(__file__).resolve().parents[2] / "build/data"
out = data / "fuzz" / "corpus" / "module_map"
out.mkdir(parents=True, exist_ok=True)
seen = set()
for folder in sorted((data / "golden").iterdir()):
    family = folder.name.split("-")[0]
    form = "dense" if folder.name.endswith("dense") else "quantized" if "native" not in folder.name else "native"
    if not (folder / "model.safetensors").exists() or (family, form) in seen:
        continue
    seen.add((family, form))
    config = json.loads((folder / "config.json").read_text())
    config.pop("quantization_config", None)
    with open(folder / "model.safetensors", "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    lines = [f"{name} {t['dtype']} {' '.join(map(str, t['shape']))}" for name, t in sorted(header.items()) if name != "__metadata__"]
    (out / f"{family}-{form}.txt").write_text(json.dumps(config) + "\n---\n" + "\n".join(lines) + "\n")
qwen = (out / "qwen3moe-quantized.txt").read_text()
(out / "unknown-family.txt").write_text(qwen.replace("Qwen3MoeForCausalLM", "NewMoeForCausalLM").replace("qwen3_moe", "new_moe"))
(out / "fused-quantized.txt").write_text(qwen.split("\n---\n")[0] + "\n---\n" + "\n".join([
    "model.layers.0.mlp.experts.w13_weight.weight_packed I32 4 64 8", "model.layers.0.mlp.experts.w13_weight.weight_scale BF16 4 64 2",
    "model.layers.0.mlp.experts.w13_weight.weight_shape I64 3", "model.layers.0.mlp.experts.w2_weight.weight_packed I32 4 64 4",
    "model.layers.0.mlp.experts.w2_weight.weight_global_scale F32 4", "model.layers.0.mlp.experts.3.gate_up_proj.weight BF16 64 64",
    "model.layers.0.self_attn.k_scale F32 1", "visual.x BF16 1", "mtp.y BF16 1"]) + "\n")
print(len(list(out.iterdir())), "seeds")
