# SPDX-License-Identifier: Apache-2.0
"""Golden folders written by transformers' own fine-grained FP8 quantizer, from the dense golden folders.

    python -m venv env && env/bin/pip install torch transformers==5.22.2 accelerate
    env/bin/python tests/python/make_finegrained_fp8.py [name ...]

from_pretrained with a FineGrainedFP8Config, then save_pretrained. The quantizer asks for a GPU before it begins (validate_environment), although
what it does with the weights is plain torch; that question is answered with yes here. Blocks divide every matrix: where they do not, it
saves the weight cast to FP8 beside scales that it never wrote (uninitialized memory).
`logits.safetensors`: transformers' model code in f32 with weights decoded here by the definition and inputs in groups of a block's width, each with
its own scale (make_declared_logits.py).
"""
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parent))
from make_declared_logits import grouped_fp8, logits_of
from make_packed import GOLDEN

# folder -> dense folder, block of outputs x inputs
FOLDERS = {"qwen3moe-finegrained-real-fp8": ("qwen3moe", (32, 32)), "deepseekv3-finegrained-real-fp8": ("deepseekv3", (16, 32))}


def decode(weight, scale, block):
    wide = scale.float().repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return weight.float() * wide[:weight.shape[0], :weight.shape[1]]


def matrices_of(stored, block):
    """Module -> (weight, function of its input). Weights of experts are saved one by one, their scales in stacks."""
    out = {}
    for key, scale in stored.items():
        if key.endswith(".weight_scale_inv"):
            module = key.removesuffix(".weight_scale_inv")
            out[module] = (decode(stored[module + ".weight"], scale, block), grouped_fp8(block[1]))
        elif key.endswith("_proj_scale_inv"):
            stem, _, last = key.removesuffix("_scale_inv").rpartition(".")
            names = ("gate_proj", "up_proj") if last == "gate_up_proj" else (last,)
            for e in range(scale.shape[0]):
                for name, part in zip(names, scale[e].chunk(len(names), 0)):
                    out[f"{stem}.{e}.{name}"] = (decode(stored[f"{stem}.{e}.{name}.weight"], part, block), grouped_fp8(block[1]))
    return out


def make(name):
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config
    from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer
    FineGrainedFP8HfQuantizer.validate_environment = lambda self, *args, **named: None
    family, block = FOLDERS[name]
    source, out = GOLDEN / f"{family}-dense", GOLDEN / name
    shutil.rmtree(out, ignore_errors=True)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16, device_map="cpu",
                                                 quantization_config=FineGrainedFP8Config(weight_block_size=block))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        out.mkdir()
        for file in ("config.json", "model.safetensors"):
            shutil.copy(Path(folder) / file, out)
    stored = load_file(out / "model.safetensors")
    logits_of(source, matrices_of(stored, block), out)


if __name__ == "__main__":
    with torch.no_grad():
        for wanted in sys.argv[1:] or FOLDERS:
            make(wanted)
            print(wanted, flush=True)
