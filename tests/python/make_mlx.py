# SPDX-License-Identifier: Apache-2.0
"""Golden folders written by MLX itself, from the dense golden folders.

    python -m venv env && env/bin/pip install torch transformers==5.22.2 numpy mlx==0.32.4 mlx-cpu==0.32.4 && env/bin/pip install --no-deps mlx-lm==0.32.2
    env/bin/python tests/python/make_mlx.py [name ...]

mlx-lm loads and quantizes the model (on the CPU); the tensors are saved as it saves them. `logits.safetensors` has `tokens` and `logits`:
transformers' model code in f32 with weights decoded here by the definition, w = code * scale + bias, or code * scale for the MX modes.
"""
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parent))
from make_packed import GOLDEN, logits_of, unstream

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def affine(bits, group_size=32):
    return dict(bits=bits, group_size=group_size, mode="affine")


MX4, MX8, NV4 = (dict(bits=b, group_size=g, mode=m) for b, g, m in ((4, 32, "mxfp4"), (8, 32, "mxfp8"), (4, 16, "nvfp4")))


WIDTHS = {"layers.1.self_attn.q_proj": False, "q_proj": affine(2), "k_proj": affine(3), "v_proj": affine(5), "o_proj": affine(6, 64),
          "mlp.gate": affine(8, 64), "switch_mlp.up_proj": affine(6), "switch_mlp.down_proj": affine(3), "embed_tokens": affine(8),
          "lm_head": affine(5, 64)}                # the first that ends the name
MODES = {"q_proj": MX8, "k_proj": NV4, "o_proj": affine(4, 64), "switch_mlp.gate_proj": NV4, "switch_mlp.up_proj": dict(NV4, global_scale=True),
         "switch_mlp.down_proj": MX8, "block_sparse_moe.gate": affine(8), "embed_tokens": MX4}

# folder -> dense folder, numbers of all modules, numbers of some
TABLE = {
    "qwen3moe-mlx-real-widths": ("qwen3moe", affine(4), WIDTHS),
    "mixtral-mlx-real-modes": ("mixtral", MX4, MODES),
    "llama-mlx-real-tied": ("llama", affine(4, 64), {}),       # one matrix for tokens and outputs
}


def e4m3(codes):
    return torch.from_numpy(codes.astype(np.uint8)).view(torch.float8_e4m3fn).float().numpy()


def decode(t, name, n):
    """[.., N, K]: what a stored module means."""
    weight, scales = t[name + ".weight"].numpy(), t[name + ".scales"]
    lead, words = weight.shape[:-1], weight.shape[-1]
    K, g = words * 32 // n["bits"], n["group_size"]
    codes = unstream(weight.reshape(-1, words), K, n["bits"]).reshape(*lead, K)
    spread = lambda x: np.repeat(x, g, -1)
    if n["mode"] == "affine":
        s, b = scales.float().numpy(), t[name + ".biases"].float().numpy()
        return torch.from_numpy(codes.astype(np.float32) * spread(s) + spread(b))
    values = E2M1[codes] if n["bits"] == 4 else e4m3(codes)
    bytes_ = scales.numpy()
    s = e4m3(bytes_) if n["mode"] == "nvfp4" else np.exp2(bytes_.astype(np.float32) - 127)
    if name + ".global_scale" in t:                # of each expert
        s = s * (t[name + ".global_scale"].float().numpy().reshape(-1, 1, 1) / np.float32(448 * 6))
    return torch.from_numpy((values * spread(s)).astype(np.float32))


def dense_names(name, experts):
    """Names in the dense folder of a module, or of all experts of a stack."""
    m = re.match(r"(.*)\.switch_mlp\.(\w+)$", name)
    if m is None:
        return [name]
    block, projection = m.groups()
    if "block_sparse_moe" in block:
        projection = dict(gate_proj="w1", down_proj="w2", up_proj="w3")[projection]
    return [f"{block}.experts.{e}.{projection}" for e in range(experts)]


def make(name):
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.utils import load_model, quantize_model
    mx.set_default_device(mx.cpu)
    family, numbers, own = TABLE[name]
    source, out = GOLDEN / f"{family}-dense", GOLDEN / name
    said = json.loads((source / "config.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        shutil.copy(source / "model.safetensors", folder)
        # what mlx-lm wants under older names
        older = dict(num_experts=said.get("num_local_experts"), rope_theta=said.get("rope_parameters", {}).get("rope_theta", 10000.0))
        (folder / "config.json").write_text(json.dumps({**said, **older}))
        model, config = load_model(folder, lazy=False)
        if name.endswith("tied"):
            said["tie_word_embeddings"] = True
            model.args.tie_word_embeddings = True
            model.pop("lm_head")

        def predicate(path, module):
            if not hasattr(module, "to_quantized"):
                return False
            return next((n for end, n in own.items() if path.endswith(end)), True)

        model, config = quantize_model(model, config, numbers["group_size"], numbers["bits"], mode=numbers["mode"], quant_predicate=predicate)
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        mx.save_safetensors(str(out / "model.safetensors"), dict(tree_flatten(model.parameters())), metadata={"format": "mlx"})
    section = config["quantization"]
    (out / "config.json").write_text(json.dumps({**said, "quantization": section, "quantization_config": section}, indent=2) + "\n")
    stored = {k: v if v.dtype != torch.uint32 else v.view(torch.int32) for k, v in load_file(out / "model.safetensors").items()}
    experts = said.get("num_local_experts", 0)
    decoded = {}
    for key in stored:
        if not key.endswith(".scales"):
            continue
        module = key.removesuffix(".scales")
        n = section.get(module)
        value = decode(stored, module, n if isinstance(n, dict) else section)
        names = dense_names(module, experts)
        decoded.update(zip(names, value if len(names) > 1 else [value]))
    if name.endswith("tied"):
        decoded["lm_head"] = decoded["model.embed_tokens"].clone()
    logits_of(source, decoded, out)


if __name__ == "__main__":
    with torch.no_grad():
        for wanted in sys.argv[1:] or TABLE:
            make(wanted)
            print(wanted, flush=True)
