# SPDX-License-Identifier: Apache-2.0
"""Makes the GGUF files of build/data/negative/gguf: good ones of the dense folders in build/data/golden, by the rules of llama.cpp's
converter, and broken ones, with the words of their refusals in bad.json.

Standard library only; the output depends on this file and the folders alone.

    make_negative_gguf.py [DATA]          default: build/data
"""
import json
import math
import pathlib
import re
import struct
import sys

DATA = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2] / "build/data"
OUT = DATA / "negative/gguf"

F32, F16, BF16, I32, Q4_0, Q8_0, MXFP4 = 0, 1, 30, 26, 2, 8, 39
BYTES = {F32: 4, F16: 2, BF16: 2, I32: 4}
PLAIN = {"F32": F32, "F16": F16, "BF16": BF16}

# Kinds of values.
U8, I8, U16, U32, INT32, REAL, BOOL, TEXT, ARRAY, U64 = 0, 1, 2, 4, 5, 6, 7, 8, 9, 10
PACK = {U8: "<B", I8: "<b", U16: "<H", U32: "<I", INT32: "<i", REAL: "<f", BOOL: "<B", U64: "<Q"}


class Tensor:
    """Numbers of one type, with the slowest dimension first."""

    def __init__(self, kind, shape, data):
        self.kind, self.shape, self.data = kind, list(shape), bytes(data)

    def rows(self):
        size = len(self.data) // self.shape[0]
        return [self.data[i * size:(i + 1) * size] for i in range(self.shape[0])]

    def picked(self, order):
        rows = self.rows()
        return Tensor(self.kind, [len(order)] + self.shape[1:], b"".join(rows[i] for i in order))

    def expert(self, e):
        return Tensor(self.kind, self.shape[1:], self.rows()[e])

    def turned(self):
        n, k = self.shape
        size = BYTES[self.kind]
        return Tensor(self.kind, [k, n], b"".join(self.data[(i * k + j) * size:(i * k + j + 1) * size] for j in range(k) for i in range(n)))

    def as_f32(self):
        if self.kind == F32:
            return self
        assert self.kind == BF16
        out = bytearray(2 * len(self.data))
        out[2::4], out[3::4] = self.data[::2], self.data[1::2]
        return Tensor(F32, self.shape, out)


def stacked(tensors):
    return Tensor(tensors[0].kind, [len(tensors)] + tensors[0].shape, b"".join(t.data for t in tensors))


def floats(values, shape=None):
    return Tensor(F32, shape or [len(values)], struct.pack(f"<{len(values)}f", *values))


def text(value):
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def value_bytes(kind, value):
    if kind == TEXT:
        return text(value)
    if kind == ARRAY:
        inner, values = value
        return struct.pack("<IQ", inner, len(values)) + b"".join(value_bytes(inner, v) for v in values)
    return struct.pack(PACK[kind], value)


def gguf(keys, tensors, version=3):
    """The bytes of a file; keys: {name: (kind, value)}, tensors: {name: Tensor}."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    for name, (kind, value) in keys.items():
        head += text(name) + struct.pack("<I", kind) + value_bytes(kind, value)
    data = b""
    for name, t in tensors.items():
        data += bytes(-len(data) % 32)
        head += text(name) + struct.pack("<I", len(t.shape)) + b"".join(struct.pack("<Q", d) for d in reversed(t.shape))
        head += struct.pack("<IQ", t.kind, len(data))
        data += t.data
    return head + bytes(-len(head) % 32) + data


def read_folder(name):
    folder = DATA / "golden" / name
    raw = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    tensors = {}
    for key, t in json.loads(raw[8:8 + size]).items():
        if key != "__metadata__":
            begin, end = t["data_offsets"]
            tensors[key] = Tensor(PLAIN.get(t["dtype"], t["dtype"]), t["shape"], raw[8 + size + begin:8 + size + end])
    for key in [k for k in tensors if k.endswith(".weight_packed")]:
        stem = key[:-len("_packed")]
        tensors[stem] = blocks(tensors.pop(key), tensors.pop(stem + "_scale"))
        tensors.pop(stem + "_shape", None)
    return json.loads((folder / "config.json").read_text()), tensors


def blocks(codes, scales):
    """Q4_0, Q8_0 or MXFP4 of the codes and scales of compressed-tensors in groups of 32."""
    rows, groups = scales.shape
    each = len(codes.data) // rows // groups
    out = b""
    for g in range(rows * groups):
        run = codes.data[g * each:(g + 1) * each]
        if each == 32:  # bytes with 128 added
            out += struct.pack("<e", *struct.unpack("<f", b"\0\0" + scales.data[2 * g:2 * g + 2])) + bytes(b ^ 128 for b in run)
            continue
        nibbles = [n for b in run for n in (b & 15, b >> 4)]
        scale = scales.data[g:g + 1] if scales.kind == "U8" else struct.pack("<e", *struct.unpack("<f", b"\0\0" + scales.data[2 * g:2 * g + 2]))
        out += scale + bytes(nibbles[i] | nibbles[i + 16] << 4 for i in range(16))
    return Tensor(MXFP4 if scales.kind == "U8" else Q8_0 if each == 32 else Q4_0, [rows, 32 * groups], out)


LAYER = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "gate": "ffn_gate_inp", "router": "ffn_gate_inp",
         "router.layer": "ffn_gate_inp", "router.gate": "ffn_gate_inp", "gate.wg": "ffn_gate_inp", "gate_proj": "ffn_gate", "up_proj": "ffn_up",
         "down_proj": "ffn_down", "w1": "ffn_gate", "w3": "ffn_up", "w2": "ffn_down", "shared_expert_gate": "ffn_gate_inp_shexp"}
ATTENTION = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "q_norm": "attn_q_norm",
             "k_norm": "attn_k_norm", "q_a_proj": "attn_q_a", "q_a_layernorm": "attn_q_a_norm", "q_b_proj": "attn_q_b",
             "kv_a_proj_with_mqa": "attn_kv_a_mqa", "kv_a_layernorm": "attn_kv_a_norm", "out_proj": "attn_output", "q_layernorm": "attn_q_norm",
             "k_layernorm": "attn_k_norm", "query_layernorm": "attn_q_norm", "key_layernorm": "attn_k_norm", "dense": "attn_output",
             "indexer.wk": "indexer.attn_k", "indexer.wq_b": "indexer.attn_q_b", "indexer.k_norm": "indexer.k_norm",
             "indexer.weights_proj": "indexer.proj", "index_q_proj": "indexer.q_proj", "index_k_proj": "indexer.k_proj",
             "index_q_norm": "indexer.q_norm", "index_k_norm": "indexer.k_norm", "q_conv1d": "ssm_conv1d_q", "k_conv1d": "ssm_conv1d_k",
             "v_conv1d": "ssm_conv1d_v", "b_proj": "ssm_beta", "f_a_proj": "ssm_f_a", "f_b_proj": "ssm_f_b", "g_a_proj": "ssm_g_a",
             "g_b_proj": "ssm_g_b", "o_norm": "ssm_norm", "qkv_proj": "attn_qkv", "output_gate": "attn_gate", "norm": "attn_norm_2"}
STATE = {"in_proj": "ssm_in", "out_proj": "ssm_out", "conv1d": "ssm_conv1d", "norm": "ssm_norm", "in_proj_ba": "ssm_ba", "in_proj_a": "ssm_alpha",
         "in_proj_b": "ssm_beta", "in_proj_qkv": "attn_qkv", "in_proj_z": "attn_gate", "x_proj": "ssm_x", "dt_proj": "ssm_dt",
         "dt_layernorm": "ssm_dt_norm", "b_layernorm": "ssm_b_norm", "c_layernorm": "ssm_c_norm"}
for block, names in (("self_attn", ATTENTION), ("attention", ATTENTION), ("linear_attn", STATE), ("mamba", STATE)):
    LAYER.update({f"{block}.{stem}": name for stem, name in names.items()})
TOP = {"embed_tokens": "token_embd", "embeddings": "token_embd", "wte": "token_embd", "word_embeddings": "token_embd",
       "embedding_norm": "token_embd_norm", "norm": "output_norm", "norm_f": "output_norm", "final_layernorm": "output_norm", "lm_head": "output"}
BEHIND = {"post_attention_layernorm": "post_attention_norm"}
OWN = {
    "glm4moe": BEHIND, "gpt-oss": BEHIND, "qwen3next": BEHIND, "qwen35moe": BEHIND,
    "lfm2moe": {"operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "conv.conv": "shortconv.conv", "conv.in_proj": "shortconv.in_proj",
                "conv.out_proj": "shortconv.out_proj"},
    "afmoe": {**BEHIND, "pre_mlp_layernorm": "ffn_norm", "post_mlp_layernorm": "post_ffw_norm", "self_attn.gate_proj": "attn_gate"},
    "laguna": {"self_attn.g_proj": "attn_gate"},
    "gemma4": {**BEHIND, "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
               "pre_feedforward_layernorm_2": "pre_ffw_norm_2", "post_feedforward_layernorm_1": "post_ffw_norm_1",
               "post_feedforward_layernorm_2": "post_ffw_norm_2", "router.proj": "ffn_gate_inp"},
    "step35": {"self_attn.g_proj": "attn_gate", "moe.gate": "ffn_gate_inp", "moe.gate_proj": "ffn_gate_exps", "moe.up_proj": "ffn_up_exps",
               "moe.down_proj": "ffn_down_exps", "share_expert.gate_proj": "ffn_gate_shexp", "share_expert.up_proj": "ffn_up_shexp",
               "share_expert.down_proj": "ffn_down_shexp"},
    "dbrx": {"norm_attn_norm.norm_1": "attn_norm", "norm_attn_norm.norm_2": "attn_output_norm", "norm_attn_norm.attn.Wqkv": "attn_qkv",
             "norm_attn_norm.attn.out_proj": "attn_output", "ffn.router.layer": "ffn_gate_inp"},
    "jamba": {"pre_ff_layernorm": "ffn_norm"},
    "nemotron_h_moe": {"norm": "attn_norm", "mixer.gate": "ffn_gate_inp", "mixer.up_proj": "ffn_up", "mixer.down_proj": "ffn_down",
                       **{f"mixer.{n}": g for n, g in {**ATTENTION, **STATE}.items()}},
    "bailingmoe3": {"attention.f_proj": "ssm_f_a", "attention.g_proj": "ssm_g_a"},
}
OWN["gemma3"] = {k: v for k, v in OWN["gemma4"].items() if not k.endswith(("_1", "_2"))}
NORMS_PLUS_ONE = ("qwen3next", "qwen35moe", "minimax-m3", "step35", "gemma3")
PAIRS = ("llama", "granitemoe", "granitehybrid", "granite_swa", "mistral3", "nemotron_h_moe")


def pairs(t, heads):
    """Rows 2 i + j of a head come from its rows j d / 2 + i."""
    half = t.shape[0] // heads // 2
    return t.picked([h * 2 * half + j * half + i for h in range(heads) for i in range(half) for j in range(2)])


def tiled(first, heads, each, width):
    """Rows before `first` as they are, then the first value head of every key head, the second ones, ..."""
    return list(range(first)) + [first + (g * each + j) * width + w for j in range(each) for g in range(heads) for w in range(width)]


def mapped(t, function):
    values = struct.unpack(f"<{len(t.as_f32().data) // 4}f", t.as_f32().data)
    return floats([function(v) for v in values], t.shape)


def text_config(folder):
    config, tensors = read_folder(folder)
    return config.get("text_config", config), tensors


def keys_of(folder, c, arch):
    """The metadata that the converter makes of a config.json."""
    dbrx = {**c.get("attn_config", {}), **c.get("ffn_config", {})}
    get = lambda *names: next((x[n] for n in names for x in (c, dbrx) if x.get(n) is not None), None)
    heads, layers = get("num_attention_heads", "n_heads"), get("num_hidden_layers", "n_layers")
    types = get("layer_types", "layers_block_type") or []
    layers = layers or len(types)
    hidden = get("hidden_size", "d_model")
    kv = get("kv_n_heads", "num_key_value_heads", "num_attention_heads")
    rope = get("rope_parameters") or {}
    full, swa = rope.get("full_attention", rope), rope.get("sliding_attention", {})
    head_dim = get("head_dim") or hidden // heads
    experts = get("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts") or 0
    keys = {"general.architecture": (TEXT, arch), "general.name": (TEXT, folder), "general.file_type": (U32, 32)}

    def put(name, kind, value):
        if value is not None:
            keys[f"{arch}.{name}"] = (kind, value)

    put("block_count", U32, layers)
    put("context_length", U32, get("max_position_embeddings", "max_seq_len", "model_max_length"))
    put("embedding_length", U32, hidden)
    put("feed_forward_length", U32, get("intermediate_size_mlp", "dense_intermediate_size", "intermediate_size", "ffn_hidden_size"))
    put("attention.head_count", U32, heads)
    put("attention.head_count_kv", U32, kv)
    layer_norm = arch in ("cohere2moe", "dbrx", "nemotron_h_moe")
    put("attention.layer_norm_epsilon" if layer_norm else "attention.layer_norm_rms_epsilon", REAL,
        get("rms_norm_eps", "norm_eps", "layer_norm_eps", "layer_norm_epsilon") or 1e-5)
    put("attention.key_length", U32, head_dim)
    put("attention.value_length", U32, c.get("v_head_dim", head_dim) if arch == "mimo2" else head_dim)
    put("attention.value_scale", REAL, get("attention_value_scale"))
    base = full.get("rope_theta", 10000.0)
    if full.get("rope_type") == "dynamic":  # HunYuan's alpha
        base *= full["alpha"] ** (head_dim / (head_dim - 2))
    put("rope.freq_base", REAL, base)
    put("rope.freq_base_swa", REAL, swa.get("rope_theta"))
    share = full.get("partial_rotary_factor", 1)
    put("rope.dimension_count", U32, head_dim if arch == "step35" else int(head_dim * share))
    if arch in ("laguna", "gemma4"):
        put("rope.dimension_count_swa", U32, int(head_dim * swa.get("partial_rotary_factor", 1)))
    put("vocab_size", U32, c["vocab_size"])
    recurrent = [t in ("linear_attention", "mamba", "conv") for t in types]
    if arch in ("qwen3next", "qwen35moe"):
        put("attention.recurrent_layers", ARRAY, (BOOL, recurrent))
        put("ssm.conv_kernel", U32, c["linear_conv_kernel_dim"])
        put("ssm.state_size", U32, c["linear_key_head_dim"])
        put("ssm.group_count", U32, c["linear_num_key_heads"])
        put("ssm.time_step_rank", U32, c["linear_num_value_heads"])
        put("ssm.inner_size", U32, c["linear_num_value_heads"] * c["linear_value_head_dim"])
    elif any(recurrent) and arch != "minimax-01":
        put("attention.head_count_kv", ARRAY, (INT32, [0 if r or t in ("moe", "mlp") else kv for r, t in zip(recurrent, types)]))
    if arch == "jamba":
        put("attention.head_count_kv", ARRAY, (INT32, [kv if i % c["attn_layer_period"] == c["attn_layer_offset"] else 0 for i in range(layers)]))
    if arch in ("granitehybrid", "jamba", "nemotron_h_moe"):
        count = get("mamba_n_heads", "mamba_num_heads", "mamba_dt_rank")
        put("ssm.conv_kernel", U32, get("mamba_d_conv", "conv_kernel"))
        put("ssm.state_size", U32, get("mamba_d_state", "ssm_state_size"))
        put("ssm.group_count", U32, get("mamba_n_groups", "n_groups"))
        put("ssm.time_step_rank", U32, count)
        put("ssm.inner_size", U32, c["mamba_num_heads"] * c["mamba_head_dim"] if arch == "nemotron_h_moe" else c["mamba_expand"] * hidden)
    if arch == "nemotron_h_moe":
        put("feed_forward_length", ARRAY, (U32, [c["intermediate_size"] if t in ("moe", "mlp") else 0 for t in types]))
    if arch in ("kimi-linear", "bailingmoe3"):
        put("ssm.conv_kernel", U32, c["linear_conv_kernel_dim"])
        put("kda.head_dim", U32, c["linear_head_dim"])
        put("kda.gate_lower_bound", REAL, get("kda_lower_bound"))
    put("shortconv.l_cache", U32, get("conv_L_cache"))
    if get("kv_lora_rank"):  # attention of one head of keys, the latents
        latent, rotated = c["kv_lora_rank"], c["qk_rope_head_dim"]
        if not any(recurrent):
            put("attention.head_count_kv", U32, 1)
        put("attention.key_length", U32, latent + rotated)
        put("attention.value_length", U32, latent)
        put("attention.key_length_mla", U32, c["qk_nope_head_dim"] + rotated)
        put("attention.value_length_mla", U32, c["v_head_dim"])
        put("attention.kv_lora_rank", U32, latent)
        put("attention.q_lora_rank", U32, get("q_lora_rank"))
        put("rope.dimension_count", U32, rotated)
        if "mscale_all_dim" in rope:
            put("rope.scaling.yarn_log_multiplier", REAL, 0.1 * rope["mscale_all_dim"])
    if arch == "mistral3":
        put("rope.scaling.yarn_log_multiplier", REAL, rope["mscale_all_dim"])
    put("attention.temperature_scale", REAL, rope.get("llama_4_scaling_beta"))
    if full.get("rope_type") == "yarn":
        put("rope.scaling.type", TEXT, "yarn")
        put("rope.scaling.factor", REAL, full["factor"])
        put("rope.scaling.original_context_length", U32, full["original_max_position_embeddings"])
        put("rope.scaling.yarn_beta_fast", REAL, full.get("beta_fast", 32))
        put("rope.scaling.yarn_beta_slow", REAL, full.get("beta_slow", 1))
    if full.get("rope_type") == "linear":
        put("rope.scaling.type", TEXT, "linear")
        put("rope.scaling.factor", REAL, full["factor"])
    if rope.get("rope_type") == "longrope":
        old = rope["original_max_position_embeddings"]
        put("rope.scaling.original_context_length", U32, old)
        put("rope.scaling.attn_factor", REAL, math.sqrt(1 + math.log(c["max_position_embeddings"] / old) / math.log(old)))
    if experts:
        put("expert_count", U32, experts)
        put("expert_used_count", U32, get("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts", "moe_top_k"))
        put("expert_feed_forward_length", U32, c["intermediate_size"] if arch in ("llama4", "hunyuan-moe") else get("moe_intermediate_size"))
        put("expert_shared_feed_forward_length", U32, get("shared_expert_intermediate_size", "share_expert_dim", "moe_shared_expert_intermediate_size"))
        put("expert_shared_count", U32, get("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"))
        put("leading_dense_block_count", U32, get("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"))
        put("expert_weights_scale", REAL, get("routed_scaling_factor", "route_scale", "router_scaling_factor", "moe_routed_scaling_factor",
                                              "moe_router_scaling_factor"))
        put("expert_group_count", U32, get("n_group", "num_expert_group"))
        put("expert_group_used_count", U32, get("topk_group"))
        if c.get("norm_topk_prob") or arch in ("laguna", "minimax-m3", "hy_v3", "bailingmoe3"):
            put("expert_weights_norm", BOOL, 1)
        if arch in ("glm4moe", "minimax-m2", "deepseek2", "lfm2moe", "hy_v3", "laguna", "mimo2", "step35", "kimi-linear"):
            put("expert_gating_func", U32, 1 if folder.startswith("deepseekv2") else 2)
    put("attention.sliding_window", U32, get("sliding_window"))
    if "sliding_attention" in types:
        put("attention.sliding_window_pattern", ARRAY, (BOOL, [t == "sliding_attention" for t in types]))
    if arch == "dots1":
        del keys["dots1.attention.sliding_window"], keys["dots1.attention.sliding_window_pattern"]
    indexer = "attention.indexer."
    put(indexer + "head_count", U32, get("index_n_heads"))
    put(indexer + "key_length", U32, get("index_head_dim"))
    put(indexer + "top_k", U32, get("index_topk", "index_topk_blocks"))
    put(indexer + "block_size", U32, get("index_block_size"))
    put(indexer + "local_blocks", U32, get("index_local_blocks"))
    if "indexer_types" in c:
        put(indexer + "types", ARRAY, (BOOL, [t == "full" for t in c["indexer_types"]]))
    put("attention.scale", REAL, get("attention_multiplier"))
    put("attention.clamp_kqv", REAL, get("clip_qkv"))
    put("embedding_scale", REAL, get("embedding_multiplier"))
    put("residual_scale", REAL, get("residual_multiplier", "mlp_alpha_factor"))
    put("logit_scale", REAL, get("logits_scaling", "logit_scale"))
    put("final_logit_softcapping", REAL, get("final_logit_softcapping"))
    put("attention.shared_kv_layers", U32, get("num_kv_shared_layers"))
    put("interleave_moe_layer_step", U32, get("interleave_moe_layer_step"))
    # Numbers of single layers.
    if arch == "gemma4":
        own = c["per_layer_config"]
        put("attention.head_count_kv", ARRAY, (INT32, [own.get(str(i), c)["num_key_value_heads"] for i in range(layers)]))
        wide = next(iter(own.values()))["head_dim"]
        for name, width in (("key_length", wide), ("value_length", wide), ("key_length_swa", head_dim), ("value_length_swa", head_dim)):
            put(f"attention.{name}", U32, width)
        put("rope.dimension_count", U32, wide)
    if arch == "laguna":
        put("attention.head_count", ARRAY, (INT32, c["num_attention_heads_per_layer"]))
    if arch == "step35":
        put("attention.head_count", ARRAY, (INT32, [c["num_sliding_attention_heads"] if t == "sliding_attention" else heads for t in types]))
        put("swiglu_clamp_exp", ARRAY, (REAL, c["swiglu_limits"]))
        put("swiglu_clamp_shexp", ARRAY, (REAL, c["swiglu_limits_shared"]))
    if arch == "mimo2":
        put("attention.head_count_kv", ARRAY, (INT32, [kv * (2 if t == "sliding_attention" else 1) for t in types]))
    return keys, heads, kv, experts, layers


def rope_tensors(c, arch):
    rope = c.get("rope_parameters") or {}
    full = rope.get("full_attention", rope)
    if full.get("rope_type") == "proportional":  # pairs that are not rotated
        wide = next(iter(c["per_layer_config"].values()))["head_dim"]
        turned = int(wide * full["partial_rotary_factor"] / 2)
        return {"rope_freqs.weight": floats([1.0] * turned + [1e30] * (wide // 2 - turned))}
    if full.get("rope_type") == "llama3":  # as factors, in f32 as the converter computes them
        low, high, old, out = full["low_freq_factor"], full["high_freq_factor"], full["original_max_position_embeddings"], []
        dims = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        for i in range(dims // 2):
            length = 2 * 3.141592653589793 * full["rope_theta"] ** (2 * i / dims)
            smooth = (old / length - low) / (high - low)
            out.append(1.0 if length < old / high else full["factor"] if length > old / low else 1 / ((1 - smooth) / full["factor"] + smooth))
        return {"rope_freqs.weight": floats(out)}
    if full.get("rope_type") == "longrope":
        return {f"rope_factors_{x}.weight": floats(full[f"{x}_factor"]) for x in ("short", "long")}
    return {}


def value_heads(t, rest, c):
    """A tensor of Qwen3.5's linear attention with its value heads tiled."""
    heads, each, width = c["linear_num_key_heads"], c["linear_num_value_heads"] // c["linear_num_key_heads"], c["linear_value_head_dim"]
    first = 2 * heads * c["linear_key_head_dim"]
    if re.search(r"in_proj_qkv|conv1d", rest):
        return t.picked(tiled(first, heads, each, width))
    if "in_proj_z" in rest:
        return t.picked(tiled(0, heads, each, width))
    if re.search(r"in_proj_[ab]|A_log|dt_bias", rest):
        return t.picked(tiled(0, heads, each, 1))
    if "out_proj" in rest:
        return t.turned().picked(tiled(0, heads, each, width)).turned()
    return t


def halves(t, names):
    """Matrices [E, 2 F, H] taken apart: gate rows, then up rows."""
    half = t.shape[1] // 2
    return {n: stacked([t.expert(e).picked(range(i * half, (i + 1) * half)) for e in range(t.shape[0])]) for i, n in enumerate(names)}


def converted(folder, arch):
    """(keys, tensors) of the GGUF file that the converter makes of a golden folder."""
    c, tensors = text_config(folder)
    keys, heads, kv, experts, layers = keys_of(folder, c, arch)
    own = OWN.get(arch, {})
    out, stacks = {}, {}
    for name in sorted(tensors):
        t = tensors[name]
        if re.search(r"visual\.|vision|vit_|multi_modal|patch_merge|_decay$|slope_rate$", name):
            continue
        if arch in NORMS_PLUS_ONE and name.endswith("norm.weight") and "linear_attn" not in name:
            t = mapped(t, lambda v: v + 1)
        placed = re.fullmatch(r"(?:.*\.)?(?:layers|blocks)\.(\d+)\.(.+)", name)
        if not placed:
            stem, _, end = name.rpartition(".")
            out[f"{TOP[stem.rpartition('.')[2]]}.{end}"] = t
            continue
        layer, rest = placed.groups()
        if int(layer) >= layers:
            continue
        blk = f"blk.{layer}."
        if arch == "qwen35moe":
            t = value_heads(t, rest, c)
        rest = re.sub(r"^(mlp|block_sparse_moe|feed_forward)\.", "", rest)
        one = re.fullmatch(r"(?:mixer\.)?experts\.(\d+)\.(\w+)\.(\w+)", rest)
        if one:
            stacks.setdefault(f"{blk}{LAYER[one[2]]}_exps.{one[3]}", {})[int(one[1])] = t
        elif rest == "input_linear.weight":
            out.update(halves(t, [f"{blk}ffn_gate_exps.weight", f"{blk}ffn_up_exps.weight"]))
        elif rest == "output_linear.weight":
            out[f"{blk}ffn_down_exps.weight"] = t
        elif rest == "shared_mlp.input_linear.weight":
            if arch == "granite_swa":
                out[f"{blk}ffn_up_shexp.weight"] = t
            else:
                half = t.shape[0] // 2
                out[f"{blk}ffn_gate_shexp.weight"], out[f"{blk}ffn_up_shexp.weight"] = t.picked(range(half)), t.picked(range(half, 2 * half))
        elif rest == "shared_mlp.output_linear.weight":
            out[f"{blk}ffn_down_shexp.weight"] = t
        elif rest.startswith("experts.gate_up_proj") and arch == "gpt-oss":  # gate and up alternate; matrices are turned
            end = "bias" if rest.endswith("_bias") else "weight"
            for i, part in enumerate(("gate", "up")):
                each = [t.expert(e) if end == "bias" else t.expert(e).turned() for e in range(experts)]
                out[f"{blk}ffn_{part}_exps.{end}"] = stacked([m.picked(range(i, m.shape[0], 2)) for m in each])
        elif rest in ("experts.gate_up_proj", "experts.down_proj") and arch in ("gpt-oss", "llama4"):
            t = stacked([t.expert(e).turned() for e in range(experts)])
            out.update({f"{blk}ffn_down_exps.weight": t} if rest.endswith("down_proj") else
                       halves(t, [f"{blk}ffn_gate_exps.weight", f"{blk}ffn_up_exps.weight"]))
        elif rest == "experts.gate_up_proj":
            out.update(halves(t, [f"{blk}ffn_gate_exps.weight", f"{blk}ffn_up_exps.weight"]) if arch == "qwen3vlmoe" else
                       {f"{blk}ffn_gate_up_exps.weight": t})
        elif rest == "experts.down_proj":
            out[f"{blk}ffn_down_exps.weight"] = t
        elif rest == "experts.down_proj_bias":
            out[f"{blk}ffn_down_exps.bias"] = t
        elif rest.startswith("ffn.experts.mlp."):  # DBRX: rows of all experts; w2 is turned
            t = Tensor(t.kind, [experts, t.shape[0] // experts, t.shape[1]], t.data)
            part = {"w1": "gate", "v1": "up", "w2": "down"}[rest[-2:]]
            out[f"{blk}ffn_{part}_exps.weight"] = stacked([t.expert(e).turned() for e in range(experts)]) if part == "down" else t
        elif rest.endswith(("e_score_correction_bias", "expert_bias", "router_bias")):
            out[f"{blk}exp_probs_b" + ("" if arch == "hy_v3" else ".bias")] = t
        elif rest.endswith("kv_b_proj.weight"):  # cut by heads; the part of the keys is turned
            nope, each = c["qk_nope_head_dim"], t.shape[0] // heads
            out[f"{blk}attn_k_b.weight"] = stacked([t.picked(range(h * each, h * each + nope)).turned() for h in range(heads)])
            out[f"{blk}attn_v_b.weight"] = stacked([t.picked(range(h * each + nope, (h + 1) * each)) for h in range(heads)])
        elif rest.endswith((".sinks", "attention_sink_bias")):
            out[f"{blk}attn_sinks.weight"] = t
        elif rest.endswith("A_log"):
            out[f"{blk}ssm_a"] = mapped(t, math.exp if arch == "bailingmoe3" else lambda v: -math.exp(v))
        elif rest.endswith("dt_bias"):
            out[f"{blk}ssm_dt.bias"] = t
        elif rest.endswith((".D", "layer_scalar")):
            out[f"{blk}ssm_d" if rest.endswith("D") else f"{blk}layer_output_scale.weight"] = t
        elif rest.startswith("router.") and rest.endswith("scale"):  # Gemma-4
            out[f"{blk}ffn_gate_inp.scale" if rest == "router.scale" else f"{blk}ffn_down_exps.scale"] = t
        elif rest.endswith("in_proj_qkvz.weight"):  # q, k, v, z of each key head
            each = c["linear_num_value_heads"] // c["linear_num_key_heads"] * c["linear_value_head_dim"]
            sizes = [c["linear_key_head_dim"]] * 2 + [each] * 2
            rows = [[g * sum(sizes) + sum(sizes[:p]) + i for g in range(c["linear_num_key_heads"]) for i in range(sizes[p])] for p in range(4)]
            out[f"{blk}attn_qkv.weight"], out[f"{blk}attn_gate.weight"] = t.picked(rows[0] + rows[1] + rows[2]), t.picked(rows[3])
        else:
            stem, _, end = rest.rpartition(".")
            shared = re.fullmatch(r"(?:mixer\.)?shared_(?:experts?|mlp)\.(\w+)", stem)
            if shared:
                out[f"{blk}{LAYER[shared[1]]}_shexp.{end}"] = t
                continue
            if arch in PAIRS and stem.endswith(("q_proj", "k_proj")):
                t = pairs(t, heads if stem.endswith("q_proj") else kv)
            gguf_stem = own.get(stem) or LAYER[stem]
            if arch == "bailingmoe3" and stem == "attention.g_proj" and c["layer_types"][int(layer)] == "full_attention":
                gguf_stem = "attn_gate"
            out[f"{blk}{gguf_stem}.{end}"] = t
    for name, experts_of in stacks.items():
        out[name] = stacked([experts_of[e] for e in range(experts)])
    # Vectors, routers and other small tensors are F32 in every file.
    for name, t in out.items():
        if "conv" in name and name.endswith(".weight") and len(t.shape) == 3:
            t = Tensor(t.kind, [1, t.shape[0], 1, t.shape[2]] if "conv1d_" in name else [t.shape[0], t.shape[2]], t.data)
        if arch in ("nemotron_h_moe", "granitehybrid") and name.endswith("ssm_norm.weight"):
            groups = c.get("n_groups") or c["mamba_n_groups"]
            t = Tensor(t.kind, [groups, t.shape[0] // groups], t.data)
        if arch in ("nemotron_h_moe", "granitehybrid", "bailingmoe3") and name.endswith(("ssm_a", "ssm_d")):
            t = Tensor(t.kind, [t.shape[0], 1], t.data)
        small = len(t.shape) == 1 or name.endswith((".bias", "exp_probs_b", "ssm_a", "ssm_d", "indexer.proj.weight")) or re.search(
            "ffn_gate_inp|conv|ssm_norm", name) or (arch == "minimax-m3" and ".indexer." in name)
        out[name] = t.as_f32() if small else t
    out.update(rope_tensors(c, arch))
    return keys, out


def write(name, content):
    path = OUT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


GOOD = [("qwen3moe", "qwen3moe"), ("mixtral", "llama"), ("mistral", "llama"), ("llama", "llama"), ("qwen3", "qwen3"), ("qwen2moe", "qwen2moe"),
        ("olmoe", "olmoe"), ("granitemoe", "granitemoe"), ("minimaxm2", "minimax-m2"), ("glm4moe", "glm4moe"), ("gptoss", "gpt-oss"),
        ("deepseekv2", "deepseek2"), ("deepseekv3", "deepseek2"), ("lfm2moe", "lfm2moe"), ("qwen3next", "qwen3next"), ("qwen35moe", "qwen35moe"),
        ("qwen3vlmoe", "qwen3vlmoe"), ("gemma4", "gemma4"), ("granitemoeshared", "granitemoe"), ("granitehybrid", "granitehybrid"),
        ("granitemoeswa", "granite_swa"), ("mistral4", "mistral4"), ("deepseekv32", "deepseek32"), ("glmmoedsa", "glm-dsa"),
        ("glm4moelite", "deepseek2"), ("solaropen", "glm4moe"), ("dots1", "dots1"), ("ernie45moe", "ernie4_5-moe"), ("hunyuanmoe", "hunyuan-moe"),
        ("hyv3", "hy_v3"), ("minimaxm3", "minimax-m3"), ("minimax", "minimax-01"), ("nemotronh", "nemotron_h_moe"), ("kimilinear", "kimi-linear"),
        ("phimoe", "phimoe"), ("afmoe", "afmoe"), ("exaonemoe", "exaone-moe"), ("laguna", "laguna"), ("mellum", "mellum"),
        ("mimov2flash", "mimo2"), ("step3p7", "step35"), ("cohere2moe", "cohere2moe"), ("dbrx", "dbrx"), ("jamba", "jamba"), ("llama4", "llama4"),
        ("bailinghybrid", "bailingmoe3"), ("gemma3", "gemma3")]


def make_good():
    made = {}
    for family, arch in GOOD:
        made[family] = converted(f"{family}-dense", arch)
        write(f"good/{family}.gguf", gguf(*made[family]))
    for family in ("qwen3moe-w4a16-g32", "qwen3moe-w8a16-g32", "qwen3moe-mxfp4a16"):
        write(f"good/{family}.gguf", gguf(*converted(family, "qwen3moe")))
    return made


def whole_latents(keys, tensors, c):
    """DeepSeek as before April 2025: kv_b in one piece, and the heads' own widths."""
    keys, tensors = dict(keys), dict(tensors)
    heads, nope, values = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"]
    for name in [n for n in tensors if n.endswith("attn_k_b.weight")]:
        k, v = tensors.pop(name), tensors.pop(name.replace("k_b", "v_b"))
        rows = b"".join(k.expert(h).turned().data + v.expert(h).data for h in range(heads))
        tensors[name.replace("k_b", "kv_b")] = Tensor(k.kind, [heads * (nope + values), k.shape[1]], rows)
    for name in ("key_length_mla", "value_length_mla"):
        keys.pop(f"deepseek2.attention.{name}")
    keys.update({"deepseek2.attention.head_count_kv": (U32, heads), "deepseek2.attention.key_length": (U32, nope + c["qk_rope_head_dim"]),
                 "deepseek2.attention.value_length": (U32, values)})
    return keys, tensors


def with_predictor(keys, tensors, arch):
    """The same model with a block behind its layers that predicts."""
    keys, tensors, last = dict(keys), dict(tensors), keys[f"{arch}.block_count"][1]
    keys.update({f"{arch}.block_count": (U32, last + 1), f"{arch}.nextn_predict_layers": (U32, 1)})
    begin = f"blk.{last - 1}."
    tensors.update({f"blk.{last}." + n[len(begin):]: t for n, t in list(tensors.items()) if n.startswith(begin)})
    norm = tensors[begin + "attn_norm.weight"]
    return keys, {**tensors, **{f"blk.{last}.nextn.{n}.weight": norm for n in ("enorm", "hnorm", "shared_head_norm")}}


def merged(keys, tensors):
    """The same model with q, k and v in one tensor, gate and up in another, and keys of other types of integer."""
    keys, tensors = dict(keys), dict(tensors)
    for name in [n for n in tensors if n.endswith("attn_q.weight")]:
        blk = name[:-len("attn_q.weight")]
        parts = [tensors.pop(f"{blk}attn_{x}.weight") for x in "qkv"]
        tensors[f"{blk}attn_qkv.weight"] = Tensor(parts[0].kind, [sum(p.shape[0] for p in parts), parts[0].shape[1]], b"".join(p.data for p in parts))
        if f"{blk}ffn_gate_exps.weight" not in tensors:
            continue
        gate, up = (tensors.pop(f"{blk}ffn_{x}_exps.weight") for x in ("gate", "up"))
        both = [Tensor(gate.kind, [2 * gate.shape[1], gate.shape[2]], gate.expert(e).data + up.expert(e).data) for e in range(gate.shape[0])]
        tensors[f"{blk}ffn_gate_up_exps.weight"] = stacked(both)
    for i, (name, (kind, value)) in enumerate(keys.items()):
        if kind == U32:
            keys[name] = ((U16, INT32, U64)[i % 3], value)
    return keys, tensors


def make_bad(keys, tensors, bad):
    """Broken models of qwen3moe's file, and what their refusals say."""

    def add(name, words, change=None, without=(), given=None, extra=None):
        k, t = dict(keys), dict(tensors)
        for key, value in (change or {}).items():
            if value is None:
                k.pop(key)
            else:
                k[key] = value
        for key in without:
            t.pop(key)
        t.update(given or {})
        k.update(extra or {})
        write(f"bad/{name}.gguf", gguf(k, t))
        bad[name] = words

    a = "qwen3moe."
    experts = tensors["blk.1.ffn_up_exps.weight"]
    nvfp4 = Tensor(40, experts.shape, (b"8888" + bytes(range(32))) * (len(experts.data) // 128))
    zeros = lambda *shape: Tensor(BF16, shape, bytes(2 * math.prod(shape)))
    add("37_architecture_missing", ["general.architecture"], {"general.architecture": None})
    add("38_architecture_clip", ["image encoder (mmproj)"], {"general.architecture": (TEXT, "clip")})
    add("39_architecture_unknown", ["architecture 'nosuch'", "moebius help architectures"], {"general.architecture": (TEXT, "nosuch")})
    add("36_architecture_list", ["general.architecture is an array of 1 string; expected a string"], {"general.architecture": (ARRAY, (TEXT, ["qwen3moe"]))})
    add("40_architecture_nul", ["architecture 'qwen3moe\\x00' of this GGUF cannot be run"], {"general.architecture": (TEXT, "qwen3moe\0")})
    for what, scale in (("short", [1.0] * 3), ("0", [0.0] * 4), ("nan", [float("nan")] * 4)):
        words = ["blk.1.ffn_up_exps.scale is F32[3]"] if what == "short" else [f"experts.0.up_proj.weight_global_scale is {what}; expected a finite"]
        add(f"83_scale_{what}", words, given={"blk.1.ffn_up_exps.weight": nvfp4, "blk.1.ffn_up_exps.scale": floats(scale)})
    add("type_adapter", ["LoRA adapter", "llama-export-lora"], {"general.type": (TEXT, "adapter")})
    add("type_mmproj", ["image encoder (mmproj)"], {"general.type": (TEXT, "mmproj")})
    add("type_imatrix", ["calibration data (imatrix)"], {"general.type": (TEXT, "imatrix")})
    add("control_vector", ["a control vector"], {"general.architecture": (TEXT, "controlvector")})
    add("draft_head", ["a draft model for speculation"], {"general.architecture": (TEXT, "eagle3")})
    add("encoder", ["does not generate text"], {"general.architecture": (TEXT, "t5")})
    add("not_causal", ["does not generate text"], {a + "attention.causal": (BOOL, 0)})
    add("no_tensors", ["a tokenizer without weights"], without=list(tensors))
    add("67_block_count_0", ["qwen3moe.block_count is 0", "1 to 4096"], {a + "block_count": (U32, 0)})
    add("68_block_count_2_31", ["qwen3moe.block_count is 2147483648"], {a + "block_count": (U32, 2**31)})
    add("69_block_count_513", ["layers.2", "but layer 0 has one; expected all layers alike"], {a + "block_count": (U32, 513)})
    add("70_head_counts_too_short", ["qwen3moe.attention.head_count", "one for each of 2 layers"], {a + "attention.head_count": (ARRAY, (U32, [4]))})
    add("71_kv_heads_do_not_divide", ["attention.head_count_kv is 3", "a divisor of attention.head_count = 4"], {a + "attention.head_count_kv": (U32, 3)})
    add("72_too_many_experts_used", ["qwen3moe.expert_used_count is 9", "at most expert_count = 4"], {a + "expert_used_count": (U32, 9)})
    add("73_groups_do_not_divide", ["expert_group_count is 3", "a divisor of expert_count = 4"], {a + "expert_group_count": (U32, 3)})
    add("74_eps_nan", ["attention.layer_norm_rms_epsilon"], {a + "attention.layer_norm_rms_epsilon": (REAL, float("nan"))})
    add("75_rope_base_negative", ["qwen3moe.rope.freq_base is -1", "a positive number"], {a + "rope.freq_base": (REAL, -1.0)})
    add("76_rope_freqs_short", ["rope_freqs.weight", "expected 8 numbers"], given={"rope_freqs.weight": floats([1.0] * 7)})
    add("76_rope_freqs_zero", ["rope_freqs.weight[3] is 0", "a positive number"], given={"rope_freqs.weight": floats([1.0] * 3 + [0.0] + [1.0] * 4)})
    add("77_attn_q_shape", ["self_attn.q_proj.weight is BF16[65,64]"], given={"blk.0.attn_q.weight": zeros(65, 64)})
    add("78_experts_of_two_counts", ["blk.1.ffn_up_exps.weight is BF16[3,32,64]", "4 experts"],
        given={"blk.1.ffn_up_exps.weight": Tensor(BF16, [3] + experts.shape[1:], experts.data[:3 * 32 * 64 * 2])})
    add("79_gate_up_odd", ["blk.1.ffn_gate_up_exps.weight", "an even number of rows"], without=["blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight"],
        given={"blk.1.ffn_gate_up_exps.weight": zeros(4, 63, 64)})
    add("81_norm_missing", ["model.layers.1.post_attention_layernorm", "but layer 0 has one; expected all layers alike"], without=["blk.1.ffn_norm.weight"])
    add("82_unknown_tensor", ["blk.1.ffn_unheard_of.weight", "cannot be placed"], given={"blk.1.ffn_unheard_of.weight": floats([1.0] * 8)})
    add("84_other_vocabulary", ["lm_head.weight is BF16[33,64]"], given={"output.weight": zeros(33, 64)})
    add("softcap", ["final_logit_softcapping is 30"], {a + "final_logit_softcapping": (REAL, 30.0)})
    add("other_gate", ["expert_gating_func is 2"], {a + "expert_gating_func": (U32, 2)})
    add("59_matrix_f64", ["F64"], given={"blk.0.attn_q.weight": Tensor(28, [64, 64], bytes(64 * 64 * 8))})

def make_bad_header(keys, tensors, bad):
    """Files whose container is broken: the number is the line of the specification's list."""
    whole = gguf(keys, tensors)
    entry = lambda name, ne, kind, offset=0: text(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, kind, offset)
    one_key = lambda raw, count=1: b"GGUF" + struct.pack("<IQQ", 3, 0, count) + raw + bytes(64)
    one = lambda raw, data=4096: b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + raw + bytes(data)
    patched = lambda at, form, value: whole[:at] + struct.pack(form, value) + whole[at + struct.calcsize(form):]
    u32 = struct.pack("<II", U32, 1)
    align = lambda kind, raw: one_key(text("general.alignment") + struct.pack("<I", kind) + raw)
    cut = "it is incomplete or damaged"
    for name, words, content in (
            ("01_empty", ["the file is empty"], b""), ("02_three_bytes", ["no GGUF file"], b"GGU"), ("03_magic", [cut], b"GGUF"),
            ("04_ggml", ["a GGML file"], b"GGML" + whole[4:]), ("05_ggjt", ["a GGJT file"], b"tjgg" + whole[4:]),
            ("06_lfs", ["a Git LFS pointer"], b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"),
            ("07_html", ["an HTML page"], b"<!DOCTYPE html><html></html>"), ("08_zip", ["a zip archive or a PyTorch file"], b"PK\3\4" + whole[4:]),
            ("09_version_0", ["GGUF version 0 is not supported"], patched(4, "<I", 0)),
            ("10_version_1", ["GGUF version 1 is not supported", "convert the model again"], patched(4, "<I", 1)),
            ("11_version_4", ["GGUF version 4 is not supported"], patched(4, "<I", 4)),
            ("12_big_endian", ["big-endian GGUF is not supported"], patched(4, "<I", 0x03000000)),
            ("13_tensors_2_63", [f"{2**63} tensors", "at most 1000000"], patched(8, "<Q", 2**63)),
            ("14_tensors_2_40", [f"{2**40} tensors", "at most 1000000"], patched(8, "<Q", 2**40)),
            ("15_keys_2_64", [f"{2**64 - 1} keys", "at most 65536"], patched(16, "<Q", 2**64 - 1)),
            ("16_a_key_more", [cut], patched(16, "<Q", len(keys) + 1)), ("17_a_key_less", ["dimensions; expected 1 to 4"], patched(16, "<Q", len(keys) - 1)),
            ("18_cut", [cut], whole[:400]),
            ("20_key_length", [f"a key has {2**64 - 1} bytes"], one_key(struct.pack("<Q", 2**64 - 1))),
            ("21_key_beyond", ["a key has 1000 bytes", cut], one_key(struct.pack("<Q", 1000))), ("22_key_empty", ["a key is empty"], one_key(text("") + u32)),
            ("23_key_twice", ["k occurs twice"], one_key((text("k") + u32) * 2, 2)),
            ("24_kind_13", ["k: value type 13 is not known"], one_key(text("k") + struct.pack("<I", 13))),
            ("25_array_of_arrays", ["k: an array of arrays"], one_key(text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1))),
            ("26_array_kind_13", ["k: value type 13"], one_key(text("k") + struct.pack("<IIQ", ARRAY, 13, 1))),
            ("27_array_2_61", [f"k: {2**61} elements"], one_key(text("k") + struct.pack("<IIQ", ARRAY, U64, 2**61))),
            ("28_strings_2_40", [f"k: {2**40} elements"], one_key(text("k") + struct.pack("<IIQ", ARRAY, TEXT, 2**40))),
            ("29_string_2_32", ["k has 4294967296 bytes"], one_key(text("k") + struct.pack("<IQ", TEXT, 2**32))),
            ("30_bool_2", ["k: a boolean is 2"], one_key(text("k") + struct.pack("<IB", BOOL, 2))),
            *((f"{31 + i}_alignment", ["general.alignment is", "a power of two from 8 to 1048576 of type u32"], align(kind, raw))
              for i, (kind, raw) in enumerate(((INT32, struct.pack("<i", 32)), *((U32, struct.pack("<I", v)) for v in (0, 3, 2**31)), (TEXT, text("32"))))),
            ("42_name_of_300", ["a tensor's name has 300 bytes"], one(entry("n" * 300, [64], F32))),
            ("43_name_twice", ["c occurs twice"], b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + entry("c", [8], F32) + entry("c", [8], F32, 32) + bytes(99)),
            ("45_no_dimensions", ["c has 0 dimensions"], one(entry("c", [], F32))), ("46_five_dimensions", ["c has 5 dimensions"], one(entry("c", [1] * 5, F32))),
            ("47_dimension_0", ["c: dimension 0 is 0"], one(entry("c", [0], F32))),
            ("48_product", ["c: the product of its dimensions exceeds 64 bits"], one(entry("c", [2**32, 2**32], F32))),
            ("49_2_42", ["c: ", "end behind the file"], one(entry("c", [2**42 + 1], F32))),
            *((f"50_type_{i}", [f"c: type {i}", "was removed from GGUF in December 2024"], one(entry("c", [64], i))) for i in (4, 31, 36)),
            *((f"51_type_{i}", [f"c: type {i} is", word], one(entry("c", [64], i))) for i, word in ((43, "newer"), (144, "(IQ4_KS)"), (2**31, "newer"))),
            ("52_rows", ["c: rows of 100 numbers", "256, the block of Q4_K"], one(entry("c", [100], 12))),
            ("53_unaligned", ["c: offset 1 is no multiple of 32"], one(entry("c", [8], F32, 1))),
            ("54_overlap", ["c and d overlap"], b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + entry("c", [64], F32) + entry("d", [64], F32, 128) + bytes(999)),
            ("55_beyond", ["c: ", "end behind the file"], one(entry("c", [64], F32, 2**20))),
            ("56_offset_2_64", ["c: ", "end behind the file"], one(entry("c", [64], F32, 2**64 - 32))),
            ("57_byte_short", ["which lacks 1 bytes"], whole[:-1]), ("58_q8_k", ["c: type 15 is a type of activations"], one(entry("c", [256], 15)))):
        write(f"bad/{name}.gguf", content)
        bad[name] = words

    def parts(name, words, second, count=2, first_tensors=None, tensors_of_second=None, number=2):
        names = list(tensors)
        split = lambda no, n: {"split.no": (U16, no), "split.count": (U16, n), "split.tensors.count": (INT32, len(tensors))}
        write(f"bad/{name}-00001-of-00002.gguf", gguf({**keys, **split(0, count), **(first_tensors or {})}, {n: tensors[n] for n in names[::2]}))
        if second is not None:
            write(f"bad/{name}-0000{number}-of-00002.gguf", gguf({**split(1, 2), **second}, tensors_of_second or {n: tensors[n] for n in names[1::2]}))
        bad[name + "-00001-of-00002"] = words

    parts("60_part_missing", ["2 parts, of which are missing: 60_part_missing-00002-of-00002.gguf"], None)
    parts("61_number", ["split.no is 3; expected 1, as the file's name says"], {"split.no": (U16, 3)})
    parts("62_count", ["split.count is 3; expected 2, as the file's name says"], {}, count=3)
    parts("63_tensors", [f"split.tensors.count is 99; expected {len(tensors)}, the tensors of all parts"], {"split.tensors.count": (INT32, 99)},
          first_tensors={"split.tensors.count": (INT32, 99)})
    parts("64_twice", ["is in two parts"], {}, tensors_of_second=dict(list(tensors.items())[:len(tensors) // 2]))
    parts("65_two_models", ["split.tensors.count is 12; expected", "as the first part has"], {"split.tensors.count": (INT32, 12)})


def tokenizer_of(tokens=None, **changes):
    """Keys of a byte-level tokenizer; each of `changes` is a kind and a value."""
    keys = {"model": (TEXT, "gpt2"), "pre": (TEXT, "qwen2"), "tokens": (ARRAY, (TEXT, tokens or [chr(97 + i) for i in range(26)] + ["ab", "abc", "<|im_end|>"])),
            "token_type": (ARRAY, (INT32, [1] * 28 + [3])), "merges": (ARRAY, (TEXT, ["a b", "ab c"])), "eos_token_id": (U32, 28)}
    keys.update(changes)
    return {f"tokenizer.ggml.{name}": value for name, value in keys.items() if value is not None}


def make_text(keys, tensors, bad):
    """Files whose tokenizers or templates are broken or odd, and one with all that `inspect` shows."""
    pieces = lambda tokens, scores, kind=REAL, **more: tokenizer_of(tokens, model=(TEXT, "llama"), token_type=None, merges=None, scores=(ARRAY, (kind, scores)), **more)
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}"
    for name, words, more in (
            ("85_no_tokens", ["tokenizer.ggml.tokens is missing"], {"tokenizer.ggml.model": (TEXT, "gpt2"), "tokenizer.ggml.pre": (TEXT, "qwen2")}),
            ("86_scores_short", ["tokenizer.ggml.scores is an array of 2 f32"], pieces(["<unk>", "a", "b"], [0.0, 1.0])),
            ("86_scores_u8", ["tokenizer.ggml.scores is an array of 3 u8"], pieces(["<unk>", "a", "b"], [1, 2, 3], U8)),
            ("87_types_i8", ["tokenizer.ggml.token_type is an array of 29 i8"], tokenizer_of(token_type=(ARRAY, (I8, [1] * 29)))),
            ("88_merge_without_space", ["tokenizer.ggml.merges[0] is 'ab'"], tokenizer_of(merges=(ARRAY, (TEXT, ["ab"])))),
            ("89_merge_unknown", ["model.merges[0]: 'zz' is not in"], tokenizer_of(merges=(ARRAY, (TEXT, ["a zz"])))),
            ("91_byte_name", ["tokenizer.ggml.tokens[1] is '<0x-1>'", "<0xHH>"], tokenizer_of(["a", "<0x-1>"], token_type=(ARRAY, (INT32, [1, 6])), merges=(ARRAY, (TEXT, [])))),
            ("91_byte_digits", ["tokenizer.ggml.tokens[1] is '<0xZZ>'", "<0xHH>"], tokenizer_of(["a", "<0xZZ>"], token_type=(ARRAY, (INT32, [1, 6])), merges=(ARRAY, (TEXT, [])))),
            ("93_token_of_1_mb", ["tokenizer.ggml.tokens has 1048576 bytes"], tokenizer_of(["a" * 2**20])),
            ("94_pre_unknown", ["tokenizer.ggml.pre 'xyz' is not known; token ids work"], tokenizer_of(pre=(TEXT, "xyz"))),
            ("95_bert", ["tokenizer.ggml.model is 'bert'", "token ids work"], tokenizer_of(model=(TEXT, "bert"))),
            ("96_template_loops", ["chat_template, line 1", "the template needs more than 16 MB"], {**tokenizer_of(), "tokenizer.chat_template": (TEXT, loop)}),
            ("more_tokens_than_rows", ["tokenizer.ggml.tokens is an array of 33 string", "at most 32, the rows of token_embd.weight"], tokenizer_of(["a"] * 33, token_type=None))):
        write(f"bad/{name}.gguf", gguf({**keys, **more}, tensors))
        bad[name] = words
    shown = {"general.name": (TEXT, "A small model"), "general.quantized_by": (TEXT, "somebody"), "general.file_type": (U32, 7),
             "quantize.imatrix.file": (TEXT, "small.imatrix"), "quantize.imatrix.entries_count": (INT32, 3), "general.sampling.temp": (REAL, 0.6),
             "tokenizer.chat_template": (TEXT, "{% for m in messages %}{{ m.content }}{% endfor %}")}
    blocks = {**tensors, "blk.0.attn_v.weight": q8_0(tensors["blk.0.attn_v.weight"])}
    write("odd/shown.gguf", gguf({**keys, **tokenizer_of(), **shown}, blocks))
    # Accepted, in places with a note: bytes behind the data, a newline in the name of a tensor that is not run, parts that are links, an id
    # beyond the vocabulary, tokens that are no text.
    write("odd/19_bytes_behind.gguf", gguf(keys, tensors) + b"more")
    write("odd/44_newline.gguf", gguf(keys, {**tensors, "v.a\nb": floats([1.0] * 8)}))
    write("odd/90_bos_beyond.gguf", gguf({**keys, **tokenizer_of(bos_token_id=(U32, 29))}, tensors))
    write("odd/92_not_utf8.gguf", gguf({**keys, **tokenizer_of(["a", "b", b"\xff\xc3"], token_type=None, merges=(ARRAY, (TEXT, [])))}, tensors))


def q8_0(t):
    """A BF16 tensor in blocks of Q8_0; the numbers are rounded."""
    values = struct.unpack(f"<{len(t.data) // 2}f", t.as_f32().data) if t.kind == BF16 else struct.unpack(f"<{len(t.data) // 4}f", t.data)
    out = b""
    for i in range(0, len(values), 32):
        block = values[i:i + 32]
        d = max(map(abs, block)) / 127 or 1.0
        out += struct.pack("<e32b", d, *(max(-127, min(127, round(v / d))) for v in block))
    return Tensor(8, t.shape, out)


def make_bad_latent(keys, tensors, bad):
    """A file of deepseekv3 whose k_b has another number of heads."""
    k = tensors["blk.0.attn_k_b.weight"]
    write("bad/80_k_b_heads.gguf", gguf(keys, {**tensors, "blk.0.attn_k_b.weight": Tensor(k.kind, [3] + k.shape[1:], k.data[:len(k.data) * 3 // 4])}))
    bad["80_k_b_heads"] = ["blk.0.attn_k_b.weight is BF16[3,32,16]", "4 heads"]


def make_bad_states(made, bad):
    """Files of Qwen's linear attention whose small tensors are not what the converter writes."""
    keys, tensors = made["qwen35moe"]
    norm = tensors["blk.0.attn_norm.weight"]
    write("bad/norm_type.gguf", gguf(keys, {**tensors, "blk.0.attn_norm.weight": Tensor(BF16, norm.shape, norm.data[:len(norm.data) // 2])}))
    bad["norm_type"] = ["blk.0.attn_norm.weight is BF16[64]", "type F32"]
    write("bad/value_heads.gguf", gguf(keys, {**tensors, "blk.0.ssm_beta.weight": tensors["blk.0.ssm_beta.weight"].picked(range(3))}))
    bad["value_heads"] = ["blk.0.ssm_beta.weight is BF16[3,64]", "4 rows"]
    keys, tensors = made["qwen3next"]
    write("bad/key_heads.gguf", gguf(keys, {**tensors, "blk.0.ssm_ba.weight": tensors["blk.0.ssm_ba.weight"].picked(range(6))}))
    bad["key_heads"] = ["blk.0.ssm_ba.weight is BF16[6,64]", "8 rows"]


def main():
    made = make_good()
    write("good/qwen3moe.merged.gguf", gguf(*merged(*made["qwen3moe"])))
    for family in ("mixtral", "qwen35moe", "mellum", "afmoe"):
        write(f"good/{family}.merged.gguf", gguf(*merged(*made[family])))
    write("good/deepseekv3.whole.gguf", gguf(*whole_latents(*made["deepseekv3"], text_config("deepseekv3-dense")[0])))
    for family, arch in (("glm4moe", "glm4moe"), ("mimov2flash", "mimo2"), ("qwen3next", "qwen3next")):
        write(f"good/{family}.nextn.gguf", gguf(*with_predictor(*made[family], arch)))
    # A split model: all metadata and no tensors first, then two parts.
    keys, tensors = made["qwen3moe"]
    names = list(tensors)
    parts = [{}, {n: tensors[n] for n in names[::2]}, {n: tensors[n] for n in names[1::2]}]
    for i, part in enumerate(parts):
        split = {"split.no": (U16, i), "split.count": (U16, 3), "split.tensors.count": (INT32, len(tensors))}
        write(f"split/qwen3moe-{i + 1:05}-of-00003.gguf", gguf({**(keys if i == 0 else {}), **split}, part))
    bad = {}
    make_bad(*made["qwen3moe"], bad)
    make_bad_latent(*made["deepseekv3"], bad)
    make_bad_header(*made["qwen3moe"], bad)
    make_text(*made["qwen3moe"], bad)
    make_bad_states(made, bad)
    (OUT / "bad.json").write_text(json.dumps(bad, indent=1))


main()
