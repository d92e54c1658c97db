# SPDX-License-Identifier: Apache-2.0
"""Golden folders written by GPTQModel itself, from the dense golden folders.

    python -m venv env && env/bin/pip install torch transformers==5.22.2 accelerate && env/bin/pip install --no-build-isolation gptqmodel==7.7.0
    GPTQMODEL_CPU_WORKERS=2 env/bin/python tests/python/make_gptqmodel.py [name ...]

The variable is for machines of two cores, on which GPTQModel cannot load a model otherwise. Its AWQ needs outputs in multiples of 64, which the
dense folders do not have. Paths of this machine are taken out of the configuration. `logits.safetensors`: transformers' model code in f32 with weights decoded here by the definition, w = (code - zero point) * scale.
"""
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parent))
from make_packed import GOLDEN, logits_of, tokenizer, unstream

# folder -> dense folder, numbers
FOLDERS = {"qwen3moe-gptqmodel-real-asym-actorder": ("qwen3moe", dict(bits=4, group_size=32, sym=False, desc_act=True, format="gptq")),
           "qwen3moe-gptqmodel-real-v2-w3": ("qwen3moe", dict(bits=3, group_size=32, sym=True, desc_act=False, format="gptq_v2"))}


def decoded(t, module, bits, less):
    codes = unstream(t[module + ".qweight"].numpy().T, t[module + ".qweight"].shape[0] * 32 // bits, bits)
    scales = t[module + ".scales"].float().numpy()
    zeros = (unstream(t[module + ".qzeros"].numpy(), scales.shape[1], bits) + less) & ((1 << bits) - 1)
    g = t[module + ".g_idx"].numpy()
    return torch.from_numpy((codes - zeros.T[:, g]).astype(np.float32) * scales.T[:, g])


def make(name):
    from gptqmodel import GPTQModel, QuantizeConfig
    family, numbers = FOLDERS[name]
    source, out = GOLDEN / f"{family}-dense", GOLDEN / name
    shutil.rmtree(out, ignore_errors=True)
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)                       # it writes logs where it is
        dense, written = Path(folder) / "dense", Path(folder) / "written"
        shutil.copytree(source, dense)
        (dense / "expected.safetensors").unlink(missing_ok=True)
        tokenizer().save_pretrained(dense)
        model = GPTQModel.load(str(dense), QuantizeConfig(**numbers), device="cpu")
        model.quantize([{"input_ids": torch.randint(3, 32, (1, 48)), "attention_mask": torch.ones(1, 48, dtype=torch.long)} for _ in range(64)], batch_size=1)
        model.save(str(written))
        out.mkdir()
        shutil.copy(written / "model.safetensors", out)
        for file in ("config.json", "quantize_config.json"):
            said = json.loads((written / file).read_text())
            for key in ("offload_to_disk_path", "uri"):
                said.get("quantization_config", said)["meta"].pop(key)
            (out / file).write_text(json.dumps(said, indent=2) + "\n")
    stored = load_file(out / "model.safetensors")
    modules = [k.removesuffix(".qweight") for k in stored if k.endswith(".qweight")]
    less = 1 if numbers["format"] == "gptq" else 0
    logits_of(source, {m: decoded(stored, m, numbers["bits"], less) for m in modules}, out)


if __name__ == "__main__":
    for wanted in sys.argv[1:] or FOLDERS:
        make(wanted)
        print(wanted, flush=True)
