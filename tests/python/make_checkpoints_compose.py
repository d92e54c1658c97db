# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that no released tool writes end to end: composed from a dense folder with the libraries' own classes.

Input: a case of the table, the dense folder. Output: a folder like a saved one. Scales come from the library's
calculate_qparams on the min and max of every group, codes and packing from its compressors; only the file names and the
configuration around them are put together here.
"""
import json
import re
import shutil

import torch
from safetensors import safe_open
from safetensors.torch import save_file


def read(dense):
    with safe_open(dense / "model.safetensors", "pt") as f:
        return {n: f.get_tensor(n) for n in f.keys()}


def compress(weight, scheme, fmt):
    """One matrix [N, K] -> the tensors of a module, by compressed-tensors itself."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization.utils import calculate_qparams
    a = scheme.weights
    groups = weight.reshape(weight.shape[0], -1, a.group_size) if a.group_size else weight[:, None, :]
    scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), a)
    state = {"weight": weight, "weight_scale": scale.to(weight.dtype)}
    if not a.symmetric:
        state["weight_zero_point"] = zero
    return BaseCompressor.get_value_from_registry(fmt).compress(state, scheme)


def config_of(case, scheme, fmt, ignore):
    import compressed_tensors
    from compressed_tensors.quantization import QuantizationConfig
    scheme.format = fmt
    qc = QuantizationConfig(config_groups={"group_0": scheme}, format=fmt, quantization_status="compressed", ignore=ignore)
    return dict(json.loads(qc.model_dump_json(exclude={"config_groups": {"__all__": {
        k: {"scale_dtype", "zp_dtype"} for k in ("weights", "input_activations", "output_activations")}}})),
        version=compressed_tensors.__version__, sparsity_config={}, transform_config={})


def put(out, dense, tensors, config):
    out.mkdir(parents=True)
    save_file({n: t.contiguous() for n, t in tensors.items()}, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    shutil.copyfile(dense / "generation_config.json", out / "generation_config.json")


def quantize(case, dense, wanted, fmt):
    scheme = case.schemes()[0]
    tensors = {}
    for name, t in read(dense).items():
        if wanted(name):
            done = compress(t, scheme, fmt)
            tensors |= {name.removesuffix("weight") + k: v for k, v in done.items()}
        else:
            tensors[name] = t
    return tensors, scheme


def from_schemes(case, dense, out):
    """Every projection, pack-quantized, by whatever compressed-tensors version is installed."""
    tensors, scheme = quantize(case, dense, lambda n: "_proj" in n, "pack-quantized")
    config = json.loads((dense / "config.json").read_text())
    config["quantization_config"] = config_of(case, scheme, "pack-quantized", ["lm_head", r"re:.*mlp\.gate$"])
    put(out, dense, tensors, config)


def static_io(case, dense, out):
    """Static input and output scales from the ranges of a dense f32 run. llmcompressor 0.14 cannot do this: its output hook
    quantizes with a scale that is still uninitialized, and it never shows lm_head's output to an observer."""
    from compressed_tensors.quantization.utils import calculate_qparams
    from llmcompressor.utils import load_context
    from transformers import AutoModelForCausalLM
    with load_context():
        model = AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32).eval()
    ranges = {}

    def watch(name):
        def hook(_, x, y):
            ranges[name] = [t if old is None else torch.stack([torch.minimum(t[0], old[0]), torch.maximum(t[1], old[1])])
                            for t, old in zip([torch.stack(v.aminmax()) for v in (x[0], y)], ranges.get(name, (None, None)))]
        return hook
    for name, m in model.named_modules():
        if isinstance(m, torch.nn.Linear) and name not in case.ignore:
            m.register_forward_hook(watch(name))
    ids = torch.randint(3, model.config.vocab_size, (8, 64), generator=torch.Generator().manual_seed(11))
    with torch.no_grad():
        model(ids)
    fmt = str(getattr(case.schemes()[0].format, "value", case.schemes()[0].format))
    tensors, scheme = quantize(case, dense, lambda n: n.removesuffix(".weight") in ranges, fmt)
    for name, (x, y) in ranges.items():
        for side, r, a in (("input", x, scheme.input_activations), ("output", y, scheme.output_activations)):
            tensors[f"{name}.{side}_scale"] = calculate_qparams(r[:1], r[1:], a)[0].to(torch.bfloat16)
    config = json.loads((dense / "config.json").read_text())
    config["quantization_config"] = config_of(case, scheme, fmt, [i for i in case.ignore if i == "lm_head" or "mlp" in i])
    put(out, dense, tensors, config)


def kimi_k2(case, dense, out):
    """Kimi-K2.5's way: a multimodal wrapper, routed experts only, int4 group 32, weight_shape in I32."""
    tensors, scheme = quantize(case, dense, lambda n: ".experts." in n and "shared" not in n, "pack-quantized")
    for n in [n for n in tensors if n.endswith("weight_shape")]:
        tensors[n] = tensors[n].to(torch.int32)
    text = json.loads((dense / "config.json").read_text())
    text |= {"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]}
    ignore = ["lm_head", r"re:.*self_attn.*", r"re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]
    text["quantization_config"] = config_of(case, scheme, "pack-quantized", ignore)
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "dtype": "bfloat16",
              "tie_word_embeddings": False, "text_config": text}
    put(out, dense, {f"language_model.{n}": t for n, t in tensors.items()}, config)


def llama4(case, dense, out):
    """Llama-4's way: the multimodal wrapper's names, fused transposed experts split into one module per matrix."""
    scheme, fmt = case.schemes()[0], "float-quantized"
    tensors, todo = {}, {}
    for name, t in read(dense).items():
        stem = name.rpartition(".")[0]
        if name.endswith("experts.gate_up_proj"):                            # [E, H, 2I], gate columns first
            for e, m in enumerate(t):
                gate, up = m.T.chunk(2)
                todo |= {f"{stem}.{e}.gate_proj": gate, f"{stem}.{e}.up_proj": up}
        elif name.endswith("experts.down_proj"):                             # [E, I, H]
            todo |= {f"{stem}.{e}.down_proj": m.T for e, m in enumerate(t)}
        elif name.endswith("_proj.weight"):
            todo[stem] = t
        else:
            tensors[name] = t
    for module, m in todo.items():
        tensors |= {f"{module}.{k}": v for k, v in compress(m.contiguous(), scheme, fmt).items()}
    text = json.loads((dense / "config.json").read_text())
    text.pop("architectures")
    prefixed = {f"language_model.{n}": t for n, t in tensors.items()}
    ignore = ["language_model.lm_head", r"re:.*router$", r"re:.*vision_model.*", "re:.*multi_modal_projector.*"]
    config = {"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "dtype": "bfloat16",
              "text_config": text, "quantization_config": config_of(case, scheme, fmt, ignore)}
    put(out, dense, prefixed, config)


def gpt_oss_native(case, dense, out):
    """GPT-OSS as released: fused experts, gate and up rows interleaved, *_blocks [E, N, K/32, 16] and *_scales [E, N, K/32]."""
    scheme = case.schemes()[0]
    tensors = {}
    for name, t in read(dense).items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):      # dense: [E, K, N]
            done = [compress(m.T.contiguous(), scheme, "mxfp4-pack-quantized") for m in t]
            e, (n, half) = len(done), done[0]["weight_packed"].shape
            tensors[name + "_blocks"] = torch.stack([d["weight_packed"] for d in done]).reshape(e, n, half // 16, 16)
            tensors[name + "_scales"] = torch.stack([d["weight_scale"] for d in done])
        else:
            tensors[name] = t
    config = json.loads((dense / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    put(out, dense, tensors, config)


def split_stacks(tensors, experts):
    """Stacks of experts, as Step, Inkling and DBRX save them, become one module per matrix."""
    out = {}
    for name, t in tensors.items():
        if m := re.fullmatch(r"(.*\.moe)\.(gate|up|down)_proj\.weight", name):                   # [E, N, K]
            out |= {f"{m[1]}.experts.{e}.{m[2]}_proj.weight": w for e, w in enumerate(t)}
        elif m := re.fullmatch(r"(.*\.experts)\.w13_weight", name):                              # rows of gate and up take turns
            out |= {f"{m[1]}.{e}.{p}_proj.weight": w[i::2] for e, w in enumerate(t) for i, p in enumerate(("gate", "up"))}
        elif m := re.fullmatch(r"(.*\.experts)\.w2_weight", name):
            out |= {f"{m[1]}.{e}.down_proj.weight": w for e, w in enumerate(t)}
        elif m := re.fullmatch(r"(.*\.experts\.mlp)\.(w1|v1|w2)", name):                          # [E * F, H], the last one not turned
            out |= {f"{m[1]}.{e}.{m[2]}.weight": w.T if m[2] == "w2" else w for e, w in enumerate(t.chunk(experts))}
        else:
            out[name] = t
    return {n: t.contiguous() for n, t in out.items()}


def split_experts(case, dense, out):
    """Families whose stacked experts llm-compressor does not find: every matrix by itself."""
    config = json.loads((dense / "config.json").read_text())
    text = config.get("text_config", config)
    experts = text.get("n_routed_experts") or text.get("ffn_config", {}).get("moe_num_experts")
    scheme = case.schemes()[0]
    fmt = "float-quantized" if scheme.weights.type == "float" else "pack-quantized"
    keep = re.compile(r"(^|\.)(lm_head|unembed|embed\w*|wte|gate|router\.layer|router|vision\w*|visual|audio|g_proj|mlp\.w13_dn|"
                      r"multi_modal_projector|vit_large_projector)(\.|$)")
    tensors = {}
    for name, t in split_stacks(read(dense), experts).items():
        if name.endswith(".weight") and t.ndim == 2 and not keep.search(name.removesuffix(".weight")):
            done = compress(t, scheme, fmt)
            tensors |= {name.removesuffix("weight") + k: v for k, v in done.items()}
        else:
            tensors[name] = t
    config["quantization_config"] = config_of(case, scheme, fmt, ["re:" + keep.pattern.replace("(^|\\.)", "(.*\\.)?").replace("(\\.|$)", "(\\..*)?$")])
    put(out, dense, tensors, config)
