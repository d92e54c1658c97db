# SPDX-License-Identifier: Apache-2.0
"""A golden folder written by Quark itself, from a dense golden folder.

    python -m venv env && env/bin/pip install torch transformers==5.22.2 numpy amd-quark==0.13
    env/bin/python tests/python/make_quark.py

int4 in groups of 32, symmetric, pack_method reorder. `logits.safetensors` has `tokens` and `logits`: transformers' model code in f32, with
weights decoded here by the definition, w = code * scale; codes are nibbles in two's complement, AWQ's order along the outputs.
"""
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parent))
from make_packed import AWQ_ORDER, GOLDEN, logits_of, unstream


def decode(words, scales):
    codes = unstream(words.numpy(), words.shape[1] * 8, 4).reshape(words.shape[0], -1, 8)[:, :, np.argsort(AWQ_ORDER)]
    codes = codes.reshape(words.shape[0], -1).T
    codes = np.where(codes > 7, codes - 16, codes)
    group = codes.shape[1] // scales.shape[0]
    return torch.from_numpy(codes.astype(np.float32) * np.repeat(scales.float().numpy().T, group, 1))


def make(source, out):
    from quark.torch import ModelQuantizer, export_safetensors
    from quark.torch.quantization.config.config import Int4PerGroupSpec, QConfig, QLayerConfig
    from transformers import AutoModelForCausalLM
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).eval()
    weight = Int4PerGroupSpec(ch_axis=1, is_dynamic=False, group_size=32, symmetric=True, scale_type="float", round_method="half_even")
    quantizer = ModelQuantizer(QConfig(global_quant_config=QLayerConfig(weight=weight.to_quantization_spec()), exclude=["lm_head"]))
    model = quantizer.freeze(quantizer.quantize_model(model, [torch.arange(3, 27).reshape(1, -1)]))
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        export_safetensors(model, folder)
        for name in ("config.json", "model.safetensors"):
            shutil.copy(Path(folder) / name, out)
    stored = load_file(out / "model.safetensors")
    decoded = {k.removesuffix(".weight"): decode(v, stored[k + "_scale"]) for k, v in stored.items() if v.dtype == torch.int32 and k.endswith(".weight")}
    logits_of(source, decoded, out)


if __name__ == "__main__":
    with torch.no_grad():
        make(GOLDEN / "llama-dense", GOLDEN / "llama-quark-real-int4")
