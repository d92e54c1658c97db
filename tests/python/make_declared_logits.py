# SPDX-License-Identifier: Apache-2.0
"""Logits of a folder whose inputs are quantized, with transformers alone (make_checkpoints_logits.py needs llm-compressor).

transformers' model code in f32; every quantized matrix gets its decoded weight, and its input goes through the function that the
folder declares. Experts, which transformers holds in two stacks, run one by one.
"""
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from make_checkpoints_logits import plain, stable_tokens, to_e2m1


def to_e4m3(x):
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def static_fp8(scale):
    return lambda x: to_e4m3(x / scale) * scale


def grouped_fp8(group, power_of_two=False):
    """A scale for each row and group; the last group may be short."""
    def apply(x):
        parts = []
        for p in x.split(group, -1):
            s = p.abs().amax(-1, keepdim=True) / 448.0
            if power_of_two:
                s = torch.exp2(torch.ceil(torch.log2(s)))
            s = torch.where(s == 0, 1.0, s)
            parts.append(to_e4m3(p / s) * s)
        return torch.cat(parts, -1)
    return apply


def nvfp4(scale):
    """Groups of 16 under a global scale that multiplies."""
    def apply(x):
        p = x.reshape(*x.shape[:-1], -1, 16)
        s8 = to_e4m3(((p.abs().amax(-1, keepdim=True) / 6.0) / scale).clamp(max=448.0))
        s = s8 * scale
        q = to_e2m1((p / torch.where(s8 == 0, 1.0, s)).clamp(-6, 6)) * s
        return torch.where(s8 == 0, 0.0, q).reshape(x.shape)
    return apply


class Experts(torch.nn.Module):
    """One matrix per projection and expert, each with its own input."""

    def __init__(self, own, prefix, count):
        super().__init__()
        self.each = [[own[f"{prefix}.{e}.{p}_proj"] for p in ("gate", "up", "down")] for e in range(count)]

    def forward(self, x, ids, weights):
        y = torch.zeros_like(x)
        for e, (gate, up, down) in enumerate(self.each):
            rows, slots = (ids == e).nonzero(as_tuple=True)
            if len(rows):
                h = torch.nn.functional.silu(product(gate, x[rows])) * product(up, x[rows])
                y.index_add_(0, rows, product(down, h) * weights[rows, slots, None])
        return y


def product(matrix, x):
    weight, quantize = matrix
    return (quantize(x) if quantize else x) @ weight.T


def logits_of(source, matrices, out):
    """matrices: module -> (decoded f32 weight, function of its input or None); the others are those of the dense folder `source`."""
    from transformers import AutoModelForCausalLM
    with tempfile.TemporaryDirectory() as folder:
        save_file({k: v.float() for k, v in load_file(source / "model.safetensors").items()}, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        shutil.copy(source / "config.json", folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    dense = {plain(k.removesuffix(".weight")): (v.float(), None) for k, v in load_file(source / "model.safetensors").items() if v.ndim == 2}
    own = {**dense, **{plain(k): v for k, v in matrices.items()}}
    used = set()
    for name, module in model.named_modules():
        key = plain(name)
        if isinstance(module, torch.nn.Linear) and key in own:
            used.add(key)
            module.weight.data = own[key][0]
            if own[key][1]:
                module.register_forward_pre_hook(lambda _, x, f=own[key][1]: (f(x[0]),))
    for name, module in list(model.named_modules()):
        key = plain(name)
        if key.endswith(".experts") and f"{key}.0.up_proj" in own:
            experts = Experts(own, key, sum(k.startswith(key + ".") and k.endswith(".up_proj") for k in own))
            used.update(f"{key}.{e}.{p}_proj" for e in range(len(experts.each)) for p in ("gate", "up", "down"))
            model.get_submodule(name.rpartition(".")[0]).experts = experts
    missed = {plain(k) for k in matrices} - used
    assert not missed, sorted(missed)
    change, tokens, logits = stable_tokens(model)
    print(f"     {out.name}: noise of 1e-6 moves the logits by {change:.1e}")
    save_file({"tokens": tokens, "logits": logits.contiguous()}, out / "logits.safetensors")
