# SPDX-License-Identifier: Apache-2.0
"""Reference outputs of a quantized folder under the declared arithmetic: logits.safetensors.

Input: a finished folder, its dense model, its decoded weights (DECODED, written by make_checkpoints_expected). Output:
`tokens` I64 [T], `logits` F32 [T, vocab]; `apply.<module>.x` [3, K] and `apply.<module>.y` [3, N] for one MoE block and one
attention projection. Everything in f32: transformers' own model code with one Linear per expert (llmcompressor's
load_context), weights replaced by the exactly decoded ones, and every quantized Linear's input (and output, where declared)
fake-quantized per row with the rules of this project: INT8 dynamic is amax / 127, dynamic "tensor" is per row, the last
group of a ragged row is shorter. KV cache schemes are not applied.
"""
import contextlib
import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

T, ROWS, SEEDS = 10, 3, 6
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
EDGES = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])

# DeepSeek-V4's own names, in this order, and those of transformers.
DEEPSEEK = [(".attn.", ".self_attn."), (".ffn", ".mlp"), (".indexer.compressor.", ".compressor.indexer."),
            ("attn.indexer.weights_proj", "attn.compressor.indexer.scorer.weights_proj"), ("attn.indexer.wq_b", "attn.compressor.indexer.q_b_proj"),
            (".wq_", ".q_"), (".q_a", ".q_a_proj"), (".q_b", ".q_b_proj"), ("_proj_proj", "_proj"), (".wkv", ".kv_proj"), (".wgate", ".gate_proj"),
            (".wo_a", ".o_a_proj"), (".wo_b", ".o_b_proj"), ("shared_experts.w1", "shared_experts.gate_proj"),
            ("shared_experts.w3", "shared_experts.up_proj"), ("shared_experts.w2", "shared_experts.down_proj")]


def plain(name):
    """One spelling for all: the names in memory and the names in the file differ."""
    name = name.removeprefix("language_model.").replace("block_sparse_moe", "mlp").replace("feed_forward", "mlp")
    name = name.replace("backbone.", "model.").replace("forget_gate.", "").replace("model.language_model.", "model.")
    name = re.sub(r"(experts\.\d+)\.w([123])$", lambda m: m[1] + "." + {"1": "gate", "3": "up", "2": "down"}[m[2]] + "_proj", name)
    name = name.replace(".linear_gate", ".gate_proj").replace(".index_", ".indexer.").replace(".share_expert.", ".mlp.shared_experts.")
    for ours, theirs in DEEPSEEK:
        name = name.replace(ours, theirs)
    name = name.replace(".attention.dense", ".self_attn.o_proj").replace(".attention.", ".self_attn.")
    name = re.sub(r"^layers\.", "model.layers.", name)                      # Mistral's own names, and A.X-K2's
    name = re.sub(r"\.wkv_(a_with_mqa|b)$", lambda m: ".kv_" + {"a_with_mqa": "a_proj_with_mqa", "b": "b_proj"}[m[1]], name)
    name = re.sub(r"\.w([qo])$", r".\1_proj", name)
    name = re.sub(r"(layers\.\d+)\.(gate$|experts\.|shared_experts\.)", r"\1.mlp.\2", name)
    name = re.sub(r"(mlp|shared_experts)\.w([123])$", lambda m: m[1] + "." + {"1": "gate", "3": "up", "2": "down"}[m[2]] + "_proj", name)
    name = re.sub(r"\.attn\.w([qkvro])_\w\w$", r".self_attn.\1_proj", name.replace("model.llm.", "model.")).replace(".w2_md", ".down_proj")
    name = name.replace(".W_down", ".mlp.fc1").replace(".W_up", ".mlp.fc2").replace(".q_gate_proj", ".q_b_proj")
    return re.sub(r"mlp\.router(\.layer)?$", "mlp.gate", name).replace("shared_expert.", "shared_experts.").replace("shared_mlp.", "shared_experts.")


def to_e2m1(x):
    a, up = x.abs()[..., None], torch.arange(7) % 2 == 1            # a tie goes to the even code
    code = ((a > EDGES) | ((a == EDGES) & up)).sum(-1)
    return E2M1[code].copysign(x)


def to_type(x, a):
    if a["type"] == "float":
        return to_e2m1(x.clamp(-6, 6)) if a["num_bits"] == 4 else x.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    return x.clamp(-(2.0 ** (a["num_bits"] - 1)), 2.0 ** (a["num_bits"] - 1) - 1).round()


def dynamic_scale(amax, a, mx):
    if mx:                                                          # power of two; mantissa >= 1.75 counts as the next one
        m, e = torch.frexp(amax)
        e = e - 1 + (2 * m >= 1.75).int() - (2 if a["num_bits"] == 4 else 8)
        s = torch.ldexp(torch.ones_like(amax), e.clamp(-127, 127))
    elif a["type"] == "float":
        s = amax / (6.0 if a["num_bits"] == 4 else 448.0)
    else:
        s = amax / (2.0 ** (a["num_bits"] - 1) - 1)
    return torch.where((amax == 0) | (s == 0), torch.ones_like(s), s)


def fake_quantize(x, a, mx, tensors, side):
    """x [..., K] in f32 under QuantizationArgs `a`; `tensors`: the module's own static scales."""
    if not a["dynamic"]:
        s, zp = tensors[f"{side}_scale"].float(), tensors.get(f"{side}_zero_point", torch.zeros(1)).float()
        return (to_type(x / s + zp, a) - zp) * s
    step = a["group_size"] if a["strategy"] in ("group", "tensor_group") else x.shape[-1]
    parts = []
    for p in x.split(step, dim=-1):                                 # the last one may be shorter
        amax = p.abs().amax(-1, keepdim=True)
        if a["dynamic"] == "local":
            g = tensors[f"{side}_global_scale"].float()
            s8 = ((amax / 6.0) * g).clamp(max=448.0).to(torch.float8_e4m3fn).float()
            s = s8 / g
            parts.append(torch.where(s8 == 0, torch.zeros_like(p), to_type(p / torch.where(s8 == 0, 1.0, s), a) * s))
        else:
            s = dynamic_scale(amax, a, mx)
            parts.append(to_type(p / s, a) * s)
    return torch.cat(parts, -1)


class SplitExperts:
    """A stack of experts run one by one, each matrix with its own weight and what its scheme does to its inputs."""

    def __init__(self, stack):
        self.weights, self.rounds, own = {}, {}, getattr(stack, "mlp", stack)
        if hasattr(own, "w1"):                                              # DBRX: [E * F, H], the last one not turned
            parts = [t.view(stack.num_experts, -1, t.shape[-1]) for t in (own.w1, own.v1, own.w2)]
            parts[2] = parts[2].transpose(1, 2)
            self.act = lambda gate, up: own.activation_fn(gate) * up
        else:
            parts = [*own.gate_up_proj.chunk(2, dim=1), own.down_proj]
            self.act = (lambda gate, up: own._apply_gate(torch.cat([gate, up], -1))) if hasattr(own, "_apply_gate") else (
                lambda gate, up: own.act_fn(gate) * up)
        for p, t in zip(("gate", "up", "down"), parts):
            self.weights |= {(e, p): w.data.clone() for e, w in enumerate(t)}

    def linear(self, e, p, x):
        return torch.nn.functional.linear(self.rounds.get((e, p), lambda v: v)(x), self.weights[e, p])

    def __call__(self, hidden_states, top_k_index, top_k_weights):
        x = hidden_states.reshape(-1, hidden_states.shape[-1])
        y = torch.zeros_like(x)
        for t in range(len(x)):
            for e, w in zip(top_k_index[t].tolist(), top_k_weights[t]):
                row = x[t:t + 1]
                y[t] += w * self.linear(e, "down", self.act(self.linear(e, "gate", row), self.linear(e, "up", row)))[0]
        return y.view(hidden_states.shape)


def stacks_of(model):
    found = {}
    for name, module in model.named_modules():
        if type(module).__name__.endswith("Experts") and (hasattr(module, "gate_up_proj") or hasattr(getattr(module, "mlp", None), "w1")):
            if torch.is_tensor(getattr(module, "gate_up_proj", module.mlp.w1 if hasattr(module, "mlp") else None)):
                found[plain(name).replace(".text_moe", "").replace(".moe.", ".mlp.")] = module.forward = SplitExperts(module)
    return found


def expert_of(name):
    """(stack, expert, projection) of a module in the file, or None."""
    m = re.fullmatch(r"(.*\.experts)(?:\.mlp)?\.(\d+)\.(gate_proj|up_proj|down_proj|w1|v1|w2)", plain(name))
    part = {"w1": "gate", "v1": "up", "w2": "down"}
    return m and (m[1].replace(".moe.", ".mlp."), int(m[2]), part.get(m[3], m[3].removesuffix("_proj")))


def install(model, folder, decoded):
    """Decoded weights and activation quantizers into the model in memory."""
    from make_checkpoints_expected import load, modules_of
    said = json.loads((Path(folder) / "expected.json").read_text())
    here = {plain(n): m for n, m in model.named_modules() if getattr(m, "weight", None) is not None}
    own = modules_of(load(folder))
    stored = load(folder)
    for name, p in model.named_parameters():     # norms with 1 + w come back rounded once more
        if p.ndim == 1 and name in stored and stored[name].shape == p.shape:
            p.data = stored[name].float()
    stacks = stacks_of(model)
    for name, value in decoded.items():
        scheme = said["schemes"][said["modules"][name]["scheme"]]
        if plain(name) not in here and (at := expert_of(name)) and at[0] in stacks:
            stack, ins = stacks[at[0]], scheme["input_activations"]
            assert stack.weights[at[1:]].shape == value.shape, name
            stack.weights[at[1:]] = value
            if ins:
                stack.rounds[at[1:]] = lambda v, a=ins, t=own[name], mx=scheme["format"].startswith("mxfp"): fake_quantize(v, a, mx, t, "input")
            continue
        module = here[plain(name)]
        assert module.weight.shape == value.shape, (name, module.weight.shape, value.shape)
        module.weight.data = value
        mx = scheme["format"].startswith("mxfp")
        ins, outs = scheme["input_activations"], scheme["output_activations"]
        if ins:
            module.register_forward_pre_hook(lambda _, x, a=ins, t=own[name], mx=mx: (fake_quantize(x[0], a, mx, t, "input"),))
        if outs:
            module.register_forward_hook(lambda _, x, y, a=outs, t=own[name], mx=mx: fake_quantize(y, a, mx, t, "output"))


def stable_tokens(model):
    """The token sequence whose logits react least to noise of one part in a million: no routing or rounding tie in it."""
    noise = {"on": False}
    g = torch.Generator().manual_seed(1)
    hook = model.get_input_embeddings().register_forward_hook(
        lambda _, x, y: y * (1 + 1e-6 * torch.randn(y.shape, generator=g)) if noise["on"] else None)
    best = None
    for seed in range(SEEDS):
        tokens = torch.randint(3, model.config.get_text_config().vocab_size, (T,), generator=torch.Generator().manual_seed(100 + seed))
        runs = []
        for on in (False, True, True):
            noise["on"] = on
            runs.append(model(tokens[None], use_cache=False).logits[0])
        change = max((r - runs[0]).abs().max().item() for r in runs[1:])
        if best is None or change < best[0]:
            best = (change, tokens, runs[0])
    hook.remove()
    return best


def call(module, x):
    y = module(x[None])
    return (y[0] if isinstance(y, tuple) else y).reshape(x.shape[0], -1)


@torch.no_grad()
def write(folder, dense, decoded):
    from llmcompressor.utils import load_context
    from transformers import AutoModelForCausalLM
    folder = Path(folder)
    whole = any(n in folder.name for n in ("ernie45vlmoe", "step3p7", "dbrx", "inkling"))       # load_context cannot take their experts apart
    with contextlib.nullcontext() if whole else load_context():
        model = AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32, attn_implementation="eager").eval()
    if model.config.model_type == "jamba":        # steps are then made by their module, whose input is quantized
        model.config._is_quantized = True
    for module in model.modules():               # experts taken apart forget what their class knew besides weights
        if "Linear" in type(module).__name__ and "Experts" in type(module).__name__:
            for name in ("swiglu_alpha", "swiglu_limit"):
                setattr(module, name, getattr(model.config.get_text_config(), name, None))
            module.limit = module.swiglu_limit     # DeepSeek-V4's word
    family = folder.parent / (folder.name.split("-")[0].replace("kimik2", "deepseekv3") + "-dense")
    if (family / "config.json").exists() and (family / "config.json").read_bytes() == (Path(dense) / "config.json").read_bytes():
        want = load_file(family / "expected.safetensors")                              # the split experts must mean what the fused ones mean
        got = model(want["tokens"][None], use_cache=False).logits[0]
        assert torch.allclose(got, want["logits"], rtol=1e-4, atol=1e-4), (folder, (got - want["logits"]).abs().max())
    install(model, folder, load_file(decoded))
    change, tokens, logits = stable_tokens(model)
    out = {"tokens": tokens, "logits": logits}
    names = {plain(n): m for n, m in model.named_modules()}
    in_file = json.loads((folder / "expected.json").read_text())["modules"]
    linear = [m for m in in_file if in_file[m]["quantized"] and ("q_proj" in m or "kv_a_proj" in m)][-1:] or [
        m for m in in_file if in_file[m]["quantized"] and plain(m) in names][-1:]
    blocks = sorted({m.split(".experts.")[0] for m in in_file if re.search(r"\.experts\.\d+\.", m)})[-1:]
    blocks = [] if whole else blocks             # stacks run one by one are not called as blocks are
    blocks = [b for b in blocks if not re.search(r"\.\d+$", b)]       # experts that hang on the layer: no block of their own
    blocks = [b for b in blocks if not hasattr(names[plain(b)], "post_mlp_layernorm")]     # a norm that the file keeps on the layer
    for name in linear + blocks:
        k = in_file[name]["K"] if name in in_file else model.config.get_text_config().hidden_size
        x = torch.randn(ROWS, k, generator=torch.Generator().manual_seed(9))
        out |= {f"apply.{name}.x": x, f"apply.{name}.y": call(names[plain(name)], x).contiguous()}
    save_file(out, folder / "logits.safetensors")
    print(f"     {folder.name}: noise of 1e-6 moves the logits by {change:.1e}")
