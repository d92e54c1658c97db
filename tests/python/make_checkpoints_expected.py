# SPDX-License-Identifier: Apache-2.0
"""What a folder means, according to compressed-tensors itself: expected.json and expected.safetensors.

Input: a finished folder. Output, next to it:
- expected.json: `schemes`, and one entry per matrix in `modules`: N, K, whether its tensors are quantized, the index of the
  scheme that the library's own matching assigns (apply_quantization_config on a tree of Linear/Embedding modules named as
  in the file; null: none), and crc32 / sum / amax of the decoded f32 weight. `stored`: what expected.safetensors holds.
- expected.safetensors: the decoded weights of some modules, f32 [N, K], under the module's name; for dense folders
  `tokens` (I64 [T]) and `logits` (F32 [T, vocab]) of transformers' own f32 forward with eager attention.
Decoding is the library's `decompress` with every 16-bit scale cast to f32 first, and FP4 codes unpacked to f32 instead of
bf16, so that the products are exact f32 (no bf16 rounding). -0 is stored as +0, also for the crc32, which runs over
the little-endian f32 bytes in row order.
"""
import json
import re
import zlib
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from safetensors import safe_open
from safetensors.torch import save_file

SUFFIXES = ("weight_packed", "weight_shape", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_global_scale",
            "input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point", "weight")


def load(folder):
    tensors = {}
    for f in sorted(Path(folder).glob("*.safetensors")):
        if f.name not in ("expected.safetensors", "logits.safetensors"):
            with safe_open(f, "pt") as s:
                tensors |= {n: s.get_tensor(n) for n in s.keys()}
    return tensors


def modules_of(tensors):
    """module name -> {suffix: tensor} for everything that holds a 2-D matrix (or is packed)."""
    found = {}
    for name, t in tensors.items():
        owner, _, leaf = name.rpartition(".")
        if leaf in SUFFIXES:
            found.setdefault(owner, {})[leaf] = t
    return {m: d for m, d in found.items() if "weight_packed" in d or ("weight" in d and d["weight"].ndim == 2)}


def shape_of(d):
    if "weight_shape" in d:
        return [int(x) for x in d["weight_shape"]]
    if "weight_packed" in d:
        return [d["weight_packed"].shape[0], 2 * d["weight_packed"].shape[1]]
    return list(d["weight"].shape)


def schemes_of(config, mods):
    """The library's matching on modules that have the file's names and the right classes."""
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
    root = torch.nn.Module()
    with torch.device("meta"):
        for name, d in mods.items():
            n, k = shape_of(d)
            at = root
            *path, leaf = name.split(".")
            for p in path:
                if not hasattr(at, p):
                    at.add_module(p, torch.nn.Module())
                at = getattr(at, p)
            leaf_module = torch.nn.Embedding(n, k) if leaf == "embed_tokens" else torch.nn.Linear(k, n, bias=False)
            at.add_module(leaf, leaf_module)
        parsed = QuantizationConfig.model_validate(dict(config, kv_cache_scheme=None))
        apply_quantization_config(root, parsed)
        return {m: getattr(root.get_submodule(m), "quantization_scheme", None) for m in mods}, parsed.format


def decode(d, scheme, fmt):
    from compressed_tensors.compressors import BaseCompressor
    import compressed_tensors.compressors.nvfp4.base as fp4
    wide = {k: (v.float() if v.dtype in (torch.bfloat16, torch.float16) else v) for k, v in d.items()}
    compressor = BaseCompressor.get_value_from_registry(fmt)
    with mock.patch.object(fp4, "unpack_fp4_from_uint8", partial(fp4.unpack_fp4_from_uint8, dtype=torch.float32)):
        weight = compressor.decompress(wide, scheme)["weight"].float()
    return weight + 0.0      # -0 becomes +0


def describe(scheme, fmt):
    keep = ("num_bits", "type", "symmetric", "strategy", "group_size", "block_structure", "dynamic", "actorder")

    def one(a):
        if a is None:
            return None
        a = json.loads(a.model_dump_json(exclude={"scale_dtype", "zp_dtype"}))
        return {k: a[k] for k in keep}
    return {"format": fmt, "weights": one(scheme.weights), "input_activations": one(scheme.input_activations),
            "output_activations": one(scheme.output_activations)}


def choose(entries, sizes, budget):
    """One module per scheme (a last expert's if small, none if all are large), then the smallest of each scheme and projection, within the budget."""
    experts = sorted({int(i) for m in entries for i in re.findall(r"experts\.(\d+)\.", m)})

    def rank(m):
        i = re.findall(r"experts\.(\d+)\.", m)
        big = sizes[m] > budget
        return (big, sizes[m] if big else 0, not (i and int(i[0]) == experts[-1]), sizes[m], m)

    def kind(m):
        i = re.findall(r"experts\.(\d+)\.", m)
        return (json.dumps(entries[m], sort_keys=True), m.rpartition(".")[2], bool(i))
    chosen, total = {}, 0
    for m in sorted(entries, key=rank):
        if kind(m)[0] not in {k[0] for k in chosen} and (sizes[m] <= 70_000 or not chosen):
            chosen[kind(m)] = m
            total += sizes[m]
    for m in sorted(entries, key=lambda m: (sizes[m], m)):
        if kind(m) not in chosen and total + sizes[m] <= budget:
            chosen[kind(m)] = m
            total += sizes[m]
    return sorted(chosen.values())


def dense_logits(folder):
    from transformers import AutoModelForCausalLM
    return logits_of(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval())


def logits_of(model):
    tokens = torch.randint(3, model.config.get_text_config().vocab_size, (20,), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        logits = model(tokens[None], use_cache=False).logits[0]
    return {"tokens": tokens, "logits": logits.float().contiguous()}


def native_mxfp4(folder, tensors):
    """GPT-OSS's own format, decoded by transformers: last expert of every layer as gate/up/down [N, K], and logits."""
    from transformers import AutoModelForCausalLM, Mxfp4Config
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    out = {}
    for name in [n.removesuffix("_blocks") for n in tensors if n.endswith("_blocks")]:
        last = convert_moe_packed_tensors(tensors[name + "_blocks"], tensors[name + "_scales"], dtype=torch.float32)[-1].T
        stem, e = name.rpartition(".")[0], tensors[name + "_blocks"].shape[0] - 1
        halves = {"gate_proj": last[0::2], "up_proj": last[1::2]} if "gate_up" in name else {"down_proj": last}
        out |= {f"{stem}.{e}.{k}": (v + 0.0).contiguous() for k, v in halves.items()}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                 quantization_config=Mxfp4Config(dequantize=True)).float().eval()  # float(): transformers leaves the decoded experts in bf16
    return out | logits_of(model)


def write(folder, case, decoded=None):
    from compressed_tensors import __version__
    folder = Path(folder)
    config = json.loads((folder / "config.json").read_text())
    qc = config.get("quantization_config") or config.get("text_config", {}).get("quantization_config")
    tensors = load(folder)
    mods = modules_of(tensors)
    if not qc or qc.get("quant_method") != "compressed-tensors":
        if qc:
            save_file(native_mxfp4(folder, tensors), folder / "expected.safetensors")
        elif case.stage == "dense":
            save_file(dense_logits(folder), folder / "expected.safetensors")
        return
    schemes, global_format = schemes_of(qc, mods)
    out, values, kinds = {}, {}, {}
    for m in sorted(mods):
        n, k = shape_of(mods[m])
        quantized = "weight_packed" in mods[m] or "weight_scale" in mods[m]
        out[m] = {"N": n, "K": k, "quantized": quantized, "scheme": None}
        if schemes[m] is not None:
            fmt = schemes[m].format or global_format
            out[m]["scheme"] = describe(schemes[m], str(getattr(fmt, "value", fmt)))
        if not quantized:
            continue
        for suffix, t in mods[m].items():
            assert not suffix.endswith("scale") or (t.float().isfinite().all() and (t.float() > 0).all()), (m, suffix, t)
        v = decode(mods[m], schemes[m], out[m]["scheme"]["format"]).contiguous()
        assert list(v.shape) == [n, k] and v.isfinite().all(), (m, v.shape, n, k)
        out[m] |= {"crc32": zlib.crc32(v.numpy().tobytes()), "sum": v.double().sum().item(), "amax": v.abs().max().item()}
        values[m] = v
        kinds[m] = out[m]["scheme"]
    if decoded:
        save_file(values, decoded)
    picked = choose(kinds, {m: values[m].numel() * 4 for m in values}, case.budget)
    save_file({m: values[m] for m in picked}, folder / "expected.safetensors")
    table = []               # distinct schemes; a module names one by its index
    for e in out.values():
        if e["scheme"] is not None:
            table += [e["scheme"]] if e["scheme"] not in table else []
            e["scheme"] = table.index(e["scheme"])
    modules = ",\n".join(f"  {json.dumps(m)}: {json.dumps(e)}" for m, e in out.items())
    schemes = ",\n".join(f"  {json.dumps(e)}" for e in table)
    head = json.dumps({"compressed_tensors": __version__, "stored": picked})[1:-1]
    text = "{" + head + ',\n "schemes": [\n' + schemes + '\n ],\n "modules": {\n' + modules + "\n }}\n"
    (folder / "expected.json").write_text(text)
