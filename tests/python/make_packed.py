# SPDX-License-Identifier: Apache-2.0
"""Golden folders in the layouts of GPTQ and AWQ, from the dense golden folders.

    python -m venv env && env/bin/pip install torch transformers==5.22.2 numpy auto-round==0.16.1
    env/bin/python tests/python/make_packed.py [name ...]

Weights are rounded to the nearest code and packed by the formats' definitions (numpy, code by code and not for speed); folders named
-autoround-real are written by auto-round itself (iters=0). `logits.safetensors` has `tokens` and `logits`: transformers' model code in
f32, with weights decoded by the definition w = (code - zero point) * scale. Widths, groups, versions and packings are in the table below.
"""
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parent))
GOLDEN = Path(__file__).resolve().parents[2] / "build/data/golden"
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]           # the output at nibble i
LINEAR = re.compile(r"(_proj|w[123]|_proj_with_mqa|\.mlp\.gate|lm_head)$")


# ---- packing: codes are unsigned integers [lines, n], packed along the second axis ----
def stream(codes, bits):
    lines, n = codes.shape
    words = np.zeros((lines, -(-n * bits // 32)), np.uint64)
    for i in range(n):
        at, shift = i * bits // 32, i * bits % 32
        wide = codes[:, i].astype(np.uint64) << np.uint64(shift)
        words[:, at] |= wide & np.uint64(0xFFFFFFFF)
        if shift + bits > 32:
            words[:, at + 1] |= wide >> np.uint64(32)
    return words.astype(np.uint32)


def planes(codes, bits):
    if 32 % bits == 0:
        return stream(codes, bits)
    blocks = []
    for first in range(0, codes.shape[1], 32):
        block, offset = codes[:, first:first + 32], 0
        for width in (4, 2, 1):
            if bits & width:
                blocks.append(stream((block >> offset) & ((1 << width) - 1), width))
                offset += width
    return np.concatenate(blocks, 1)


def words(array):
    return torch.from_numpy(np.ascontiguousarray(array).view(np.int32).copy())


def awq_words(codes):                          # codes [lines, N] -> [lines, N/8]
    return stream(codes.reshape(codes.shape[0], -1, 8)[:, :, AWQ_ORDER].reshape(codes.shape), 4)


# ---- rounding ----
def quantize(weight, n, seed):
    """Codes [N, K], zero points [N, G], scales [N, G] (f16), group of each input, decoded weights."""
    w = weight.float().numpy().astype(np.float64)
    N, K = w.shape
    group = K if n["group_size"] == -1 else n["group_size"]
    g_idx = np.arange(K) // group
    if n.get("desc_act") and n["group_size"] != -1:
        g_idx = np.random.default_rng(seed).permutation(g_idx)
    G, top, half = g_idx.max() + 1, (1 << n["bits"]) - 1, 1 << (n["bits"] - 1)
    codes, zeros, scales = np.zeros((N, K), np.uint32), np.zeros((N, G), np.uint32), np.zeros((N, G), np.float16)
    for g in range(G):
        part = w[:, g_idx == g]
        if n["sym"]:                           # the larger side gets the code 0: scales of both signs
            low, high = part.min(1), part.max(1)
            s = np.where(-low >= high, -low, -high) / half
            z = np.full(N, half)
        else:
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            low = np.where(np.arange(N) % 5 == 0, 0, low)      # some zero points of 0
            s = (high - low) / top
            z = np.clip(np.round(-low / np.where(s == 0, 1, s)), 0, top)
        s = np.where(s == 0, 1, s).astype(np.float16)
        scales[:, g], zeros[:, g] = s, z
        codes[:, g_idx == g] = np.clip(np.round(part / s.astype(np.float64)[:, None] + z[:, None]), 0, top)
    decoded = (codes.astype(np.float32) - zeros[:, g_idx].astype(np.float32)) * scales[:, g_idx].astype(np.float32)
    return codes, zeros, scales, g_idx.astype(np.int32), torch.from_numpy(decoded)


def gptq(n, codes, zeros, scales, g_idx, form):
    pack = planes if form["zeros"] == "gptq_p" else stream
    less = 1 if form["zeros"] == "gptq" else 0
    out = {"qweight": words(pack(codes, n["bits"]).T), "scales": torch.from_numpy(np.ascontiguousarray(scales.T)),
           "qzeros": words(pack((zeros.T.astype(np.int64) - less) & ((1 << n["bits"]) - 1), n["bits"]))}
    if form.get("g_idx", True):
        out["g_idx"] = torch.from_numpy(g_idx)
    return out


def awq(n, codes, zeros, scales, form):
    if form.get("gemv"):
        pad = -zeros.shape[1] % 8
        out = {"qweight": words(stream(codes, 4)), "scales": torch.from_numpy(np.pad(scales, ((0, 0), (0, pad)))),
               "qzeros": words(stream(np.pad(zeros, ((0, 0), (0, pad))), 4))}
    else:
        out = {"qweight": words(awq_words(np.ascontiguousarray(codes.T))), "scales": torch.from_numpy(np.ascontiguousarray(scales.T)),
               "qzeros": words(awq_words(np.ascontiguousarray(zeros.T)))}
    if not form.get("stored_zeros", True):
        del out["qzeros"]
    return out


# ---- the table: folder -> dense folder, configuration, numbers of each module (None: dense) ----
def numbers(bits=4, group_size=32, sym=True, desc_act=False):
    return dict(bits=bits, group_size=group_size, sym=sym, desc_act=desc_act)


def attention_and_experts(n):
    return lambda name: None if re.search(r"(lm_head|\.gate)$", name) else n


def everything(n):                             # router and lm_head too
    return lambda name: n


def planar(name):
    if re.search(r"(lm_head|\.gate)$", name):
        return None
    return numbers(5 if "self_attn" in name else 6 if "gate_proj" in name else 7 if "up_proj" in name else 3, sym=False)


def mixed(name):
    if re.search(r"(lm_head|\.gate|v_proj)$", name):
        return None
    if "self_attn" in name:
        return numbers(8, -1, False)
    return numbers(2, 16, False) if "down_proj" in name else numbers(4, 48, True)


def round_mixed(name):
    if re.search(r"(\.gate|layers\.1\.self_attn\.o_proj)$", name):
        return None
    if name == "lm_head" or "down_proj" in name:
        return numbers(8, 16, False)
    return numbers(2 if "up_proj" in name else 4, 32, False)


def config(method, n, **more):
    return {"quant_method": method, **n, **more}


MIXED_DYNAMIC = {"-:.*v_proj$": {}, r"+:.*\.self_attn\..*": {"bits": 8, "group_size": -1, "sym": False},
                 r".*\.down_proj": {"bits": 2, "group_size": 16, "sym": False}, r".*\.self_attn\.q_proj": {"bits": 3}}
PLANAR_DYNAMIC = {".*gate_proj": {"bits": 6}, ".*up_proj": {"bits": 7}, ".*down_proj": {"bits": 3}}
ROUND_EXTRA = {"model.layers.1.self_attn.o_proj": {"bits": 16, "data_type": "float"}, "lm_head": {"bits": 8, "group_size": 16},
               r".*\.experts\.\d+\.down_proj": {"bits": 8, "group_size": 16}, "up_proj": {"bits": 2},
               r".*\.mlp\.gate$": {"bits": 16}, "shared_experts.down_proj": {"bits": 8, "group_size": 16},
               "mlp.down_proj": {"bits": 8, "group_size": 16}}
AWQ_NUMBERS = dict(bits=4, group_size=32, zero_point=True, version="gemm")

TABLE = {
    # symmetric, act order, quantized router and lm_head
    "qwen3moe-gptq-w4-g32": ("qwen3moe", config("gptq", numbers(desc_act=True), lm_head=True, checkpoint_format="gptq"),
                             everything(numbers(desc_act=True)), {"zeros": "gptq"}),
    # zero points stored less 1, some as 15; no g_idx; configuration in its own file
    "mixtral-gptq-w4-asym-g32": ("mixtral", config("gptq", numbers(sym=False), checkpoint_format="gptq"),
                                 attention_and_experts(numbers(sym=False)),
                                 {"zeros": "gptq", "g_idx": False, "file": "quantize_config.json"}),
    "deepseekv3-gptq-v2-w3-asym-actorder": ("deepseekv3", config("gptq", numbers(3, 16, False, True), checkpoint_format="gptq_v2"),
                                            attention_and_experts(numbers(3, 16, False, True)), {"zeros": "gptq_v2"}),
    # first rule wins; short last groups (48 of 64), one group per output, dense modules
    "qwen3moe-gptq-v2-dynamic": ("qwen3moe", config("gptq", numbers(4, 48), format="gptq_v2", dynamic=MIXED_DYNAMIC), mixed,
                                 {"zeros": "gptq_v2"}),
    "qwen3moe-gptq-p-w5": ("qwen3moe", config("gptq", numbers(5, 32, False), checkpoint_format="gptq_p", dynamic=PLANAR_DYNAMIC), planar,
                           {"zeros": "gptq_p", "g_idx": False}),
    "glm4moe-autoround-mixed": ("glm4moe", config("auto-round", numbers(sym=False), packing_format="auto_round:gptqmodel",
                                                  block_name_to_quantize="model.layers", extra_config=ROUND_EXTRA), round_mixed,
                                {"zeros": "gptq_v2"}),
    "deepseekv3-awq-g16": ("deepseekv3", {"quant_method": "awq", **AWQ_NUMBERS, "group_size": 16, "modules_to_not_convert": ["kv_b", "lm_head"]},
                           lambda name: None if re.search(r"(lm_head|\.gate|kv_b_proj)$", name) else numbers(4, 16, False), {"awq": True}),
    "glm4moe-awq-sym-channel": ("glm4moe", {"quant_method": "awq", **AWQ_NUMBERS, "group_size": -1, "zero_point": False},
                                attention_and_experts(numbers(4, -1)), {"awq": True, "stored_zeros": False}),
    "mixtral-awq-gemv-g32": ("mixtral", {"quant_method": "awq", "w_bit": 4, "q_group_size": 32, "zero_point": True, "version": "GEMV"},
                             attention_and_experts(numbers(4, 32, False)), {"awq": True, "gemv": True}),
}
REAL = {  # written by auto-round
    "qwen3moe-autoround-real-gptq": ("qwen3moe", "auto_round:auto_gptq", dict(bits=4, group_size=32, sym=True)),
    "qwen3moe-autoround-real-w3": ("qwen3moe", "auto_round", dict(bits=3, group_size=32, sym=False)),
    "llama-autoround-real-awq": ("llama", "auto_round:auto_awq", dict(bits=4, group_size=32, sym=False)),
}


def logits_of(source, decoded, out):
    """transformers in f32 over the dense folder with some weights replaced."""
    from transformers import AutoModelForCausalLM
    from make_checkpoints_logits import stable_tokens
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        tensors = {k: v.float() for k, v in load_file(source / "model.safetensors").items()}
        for name, value in decoded.items():
            assert tensors[name + ".weight"].shape == value.shape, name
            tensors[name + ".weight"] = value.contiguous()
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        shutil.copy(source / "config.json", folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        change, tokens, logits = stable_tokens(model)
    assert change < 1e-4, change
    save_file({"tokens": tokens, "logits": logits.contiguous()}, out / "logits.safetensors")


def write_config(source, out, section, file=None):
    text = json.loads((source / "config.json").read_text())
    if file is None:
        text["quantization_config"] = section
    else:
        (out / file).write_text(json.dumps(section, indent=2) + "\n")
    (out / "config.json").write_text(json.dumps(text, indent=2) + "\n")


def make(name):
    family, section, numbers_of, form = TABLE[name]
    source, out = GOLDEN / f"{family}-dense", GOLDEN / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    tensors, decoded = {}, {}
    for i, (key, value) in enumerate(sorted(load_file(source / "model.safetensors").items())):
        module = key.removesuffix(".weight")
        n = numbers_of(module) if key.endswith(".weight") and LINEAR.search(module) and value.ndim == 2 else None
        if n is None:
            tensors[key] = value
            continue
        codes, zeros, scales, g_idx, decoded[module] = quantize(value, n, i)
        packed = awq(n, codes, zeros, scales, form) if form.get("awq") else gptq(n, codes, zeros, scales, g_idx, form)
        tensors.update({f"{module}.{k}": v.contiguous() for k, v in packed.items()})
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    write_config(source, out, section, form.get("file"))
    logits_of(source, decoded, out)


def unstream(packed, n, bits):
    """[lines, words] -> codes [lines, n]"""
    w = packed.astype(np.int64).astype(np.uint64) & np.uint64(0xFFFFFFFF)
    codes = []
    for i in range(n):
        at, shift = i * bits // 32, i * bits % 32
        v = w[:, at] >> np.uint64(shift)
        if shift + bits > 32:
            v |= w[:, at + 1] << np.uint64(32 - shift)
        codes.append(v & np.uint64((1 << bits) - 1))
    return np.stack(codes, 1).astype(np.int64)


def decode(t, prefix, bits, form):
    """What a stored module means; the second decoder of folders that another tool wrote."""
    qweight, qzeros, scales = (t[f"{prefix}.{k}"] for k in ("qweight", "qzeros", "scales"))
    G, N = scales.shape
    if form == "awq":
        order = np.argsort(AWQ_ORDER)          # the nibble of output t
        def turn(x):
            return unstream(x.numpy(), x.shape[1] * 8, 4).reshape(x.shape[0], -1, 8)[:, :, order].reshape(x.shape[0], -1)
        codes, zeros = turn(qweight).T, turn(qzeros)
    else:
        codes = unstream(qweight.numpy().T, qweight.shape[0] * 32 // bits, bits)
        zeros = unstream(qzeros.numpy(), N, bits) + (1 if form == "gptq" else 0)
    group = -(-codes.shape[1] // G)
    g = np.arange(codes.shape[1]) // group
    return torch.from_numpy((codes - zeros.T[:, g]).astype(np.float32) * scales.float().numpy().T[:, g])


def tokenizer():
    """auto-round asks for one; rounding to the nearest never uses it."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    words_of = Tokenizer(models.WordLevel({str(i): i for i in range(32)}, unk_token="0"))
    return PreTrainedTokenizerFast(tokenizer_object=words_of, unk_token="0", eos_token="2", pad_token="0")


def make_real(name):
    from auto_round import AutoRound
    from transformers import AutoModelForCausalLM
    family, packing, numbers_of = REAL[name]
    source, out = GOLDEN / f"{family}-dense", GOLDEN / name
    shutil.rmtree(out, ignore_errors=True)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        AutoRound(model, tokenizer(), iters=0, disable_opt_rtn=True, device_map="cpu", **numbers_of).quantize_and_save(folder, format=packing)
        written = next(Path(folder).rglob("config.json")).parent
        out.mkdir()
        shutil.copy(written / "model.safetensors", out)
        said = json.loads((written / "config.json").read_text())
        said.pop("torch_dtype", None)
        said["dtype"] = "bfloat16"             # as all folders here have it; auto-round writes float16 for AWQ
        (out / "config.json").write_text(json.dumps(said, indent=2) + "\n")
    stored = load_file(out / "model.safetensors")
    form = "awq" if "awq" in packing else "gptq" if packing.endswith("auto_gptq") else "v2"
    decoded = {k.removesuffix(".qweight"): decode(stored, k.removesuffix(".qweight"), numbers_of["bits"], form)
               for k in stored if k.endswith(".qweight")}
    logits_of(source, decoded, out)


if __name__ == "__main__":
    with torch.no_grad():
        for wanted in sys.argv[1:] or [*TABLE, *REAL]:
            (make if wanted in TABLE else make_real)(wanted)
            print(wanted, flush=True)
