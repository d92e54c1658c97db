# SPDX-License-Identifier: Apache-2.0
"""Golden folders written by NVIDIA ModelOpt itself, from the dense golden folders.

    python -m venv env && env/bin/pip install torch nvidia-modelopt==0.47.0 "transformers<5.15" accelerate
    env/bin/python tests/python/make_modelopt.py [name ...]

Calibrated on random tokens and exported by export_hf_checkpoint, on the CPU. `logits.safetensors`: transformers' model code in f32 with
weights decoded here by the definition, and inputs quantized as the folder declares (make_declared_logits.py).
"""
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parent))
from make_checkpoints_logits import E2M1
from make_declared_logits import logits_of, nvfp4, static_fp8
from make_packed import GOLDEN

FOLDERS = {"qwen3moe-modelopt-real-fp8": ("qwen3moe", "FP8_DEFAULT_CFG"), "qwen3moe-modelopt-real-nvfp4": ("qwen3moe", "NVFP4_DEFAULT_CFG"),
           "mixtral-modelopt-real-mixed": ("mixtral", None)}


def mixed(mtq):
    """Attention in FP8, experts in NVFP4."""
    import copy
    config = copy.deepcopy(mtq.NVFP4_DEFAULT_CFG)
    fp8 = {"num_bits": (4, 3), "axis": None}
    if isinstance(config["quant_cfg"], dict):
        config["quant_cfg"].update({"*self_attn*weight_quantizer": fp8, "*self_attn*input_quantizer": fp8})
    else:
        config["quant_cfg"] += [{"quantizer_name": f"*self_attn*{q}_quantizer", "cfg": fp8} for q in ("weight", "input")]
    return config


def decode(t, module):
    """(weight, function of its input)"""
    w, scale = t[module + ".weight"], t[module + ".weight_scale"].float()
    inputs = t.get(module + ".input_scale")
    if w.dtype == torch.float8_e4m3fn:
        return w.float() * (scale[:, None] if scale.ndim else scale), static_fp8(inputs.float())
    nibbles = torch.stack([w & 15, w >> 4], -1).reshape(w.shape[0], -1).long()
    values = E2M1[nibbles & 7] * torch.where(nibbles > 7, -1.0, 1.0)
    factor = (scale * t[module + ".weight_scale_2"].float()).repeat_interleave(16, 1)
    return values * factor, nvfp4(inputs.float())


def make(name):
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from transformers import AutoModelForCausalLM
    family, preset = FOLDERS[name]
    source, out = GOLDEN / f"{family}-dense", GOLDEN / name
    shutil.rmtree(out, ignore_errors=True)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).eval()
    tokens = torch.randint(3, model.config.vocab_size, (8, 24))
    model = mtq.quantize(model, getattr(mtq, preset) if preset else mixed(mtq), lambda m: [m(t[None]) for t in tokens])
    with tempfile.TemporaryDirectory() as folder:
        export_hf_checkpoint(model, export_dir=folder)
        out.mkdir()
        for file in ("config.json", "hf_quant_config.json", "model.safetensors"):
            shutil.copy(Path(folder) / file, out)
    stored = load_file(out / "model.safetensors")
    modules = [k.removesuffix(".weight_scale") for k in stored if k.endswith(".weight_scale")]
    logits_of(source, {m: decode(stored, m) for m in modules}, out)


if __name__ == "__main__":
    with torch.no_grad():
        for wanted in sys.argv[1:] or FOLDERS:
            make(wanted)
            print(wanted, flush=True)
