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

F32, F16, BF16, I32 = 0, 1, 30, 26
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
            tensors[key] = Tensor(PLAIN[t["dtype"]], t["shape"], raw[8 + size + begin:8 + size + end])
    return json.loads((folder / "config.json").read_text()), tensors


LAYER = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "gate": "ffn_gate_inp", "router": "ffn_gate_inp", "router.layer": "ffn_gate_inp", "gate_proj": "ffn_gate", "up_proj": "ffn_up",
         "down_proj": "ffn_down", "w1": "ffn_gate", "w3": "ffn_up", "w2": "ffn_down", "shared_expert_gate": "ffn_gate_inp_shexp",
         "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
         "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
         "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "self_attn.out_proj": "attn_output", "self_attn.q_layernorm": "attn_q_norm",
         "self_attn.k_layernorm": "attn_k_norm", "conv.conv": "shortconv.conv", "conv.in_proj": "shortconv.in_proj",
         "conv.out_proj": "shortconv.out_proj"}
TOP = {"model.embed_tokens": "token_embd", "model.embedding_norm": "token_embd_norm", "model.norm": "output_norm", "lm_head": "output"}


def pairs(t, heads):
    """Rows 2 i + j of a head come from its rows j d / 2 + i."""
    half = t.shape[0] // heads // 2
    return t.picked([h * 2 * half + j * half + i for h in range(heads) for i in range(half) for j in range(2)])


def converted(folder, arch, after_norm="ffn_norm"):
    """(keys, tensors) of the GGUF file that the converter makes of a golden folder."""
    c, tensors = read_folder(folder)
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    rope = c["rope_parameters"]
    head_dim = c.get("head_dim") or c["hidden_size"] // heads
    experts = c.get("num_experts") or c.get("num_local_experts") or c.get("n_routed_experts") or 0
    layers = c["num_hidden_layers"]
    keys = {"general.architecture": (TEXT, arch), "general.name": (TEXT, folder), "general.file_type": (U32, 32)}

    def put(name, kind, value):
        if value is not None:
            keys[f"{arch}.{name}"] = (kind, value)

    put("block_count", U32, layers)
    put("context_length", U32, c["max_position_embeddings"])
    put("embedding_length", U32, c["hidden_size"])
    put("feed_forward_length", U32, c["intermediate_size"])
    put("attention.head_count", U32, heads)
    put("attention.head_count_kv", U32, kv)
    put("attention.layer_norm_rms_epsilon", REAL, c.get("rms_norm_eps") or c["norm_eps"])
    put("attention.key_length", U32, head_dim)
    put("attention.value_length", U32, head_dim)
    put("rope.freq_base", REAL, rope["rope_theta"])
    put("rope.dimension_count", U32, int(head_dim * rope.get("partial_rotary_factor", 1)))
    put("vocab_size", U32, c["vocab_size"])
    if arch == "lfm2moe":
        put("attention.head_count_kv", ARRAY, (INT32, [kv if kind == "full_attention" else 0 for kind in c["layer_types"]]))
        put("shortconv.l_cache", U32, c["conv_L_cache"])
    if arch == "deepseek2":  # attention of one head of keys, the latents
        latent, rotated = c["kv_lora_rank"], c["qk_rope_head_dim"]
        put("attention.head_count_kv", U32, 1)
        put("attention.key_length", U32, latent + rotated)
        put("attention.value_length", U32, latent)
        put("attention.key_length_mla", U32, c["qk_nope_head_dim"] + rotated)
        put("attention.value_length_mla", U32, c["v_head_dim"])
        put("attention.kv_lora_rank", U32, latent)
        put("attention.q_lora_rank", U32, c["q_lora_rank"])
        put("rope.dimension_count", U32, rotated)
        put("rope.scaling.yarn_log_multiplier", REAL, 0.1 * rope["mscale_all_dim"])
    if rope["rope_type"] == "yarn":
        put("rope.scaling.type", TEXT, "yarn")
        put("rope.scaling.factor", REAL, rope["factor"])
        put("rope.scaling.original_context_length", U32, rope["original_max_position_embeddings"])
        put("rope.scaling.yarn_beta_fast", REAL, rope["beta_fast"])
        put("rope.scaling.yarn_beta_slow", REAL, rope["beta_slow"])
    if experts:
        put("expert_count", U32, experts)
        put("expert_used_count", U32, c["num_experts_per_tok"])
        put("expert_feed_forward_length", U32, c.get("moe_intermediate_size"))
        put("expert_shared_feed_forward_length", U32, c.get("shared_expert_intermediate_size"))
        put("expert_shared_count", U32, c.get("n_shared_experts"))
        put("leading_dense_block_count", U32, c.get("first_k_dense_replace", c.get("num_dense_layers")))
        put("expert_weights_scale", REAL, c.get("routed_scaling_factor"))
        put("expert_group_count", U32, c.get("n_group"))
        put("expert_group_used_count", U32, c.get("topk_group"))
        if c.get("norm_topk_prob"):
            put("expert_weights_norm", BOOL, 1)
        if arch in ("glm4moe", "minimax-m2", "deepseek2", "lfm2moe"):
            put("expert_gating_func", U32, 1 if folder.startswith("deepseekv2") else 2)
    put("attention.sliding_window", U32, c.get("sliding_window") or None)
    put("attention.scale", REAL, c.get("attention_multiplier"))
    put("embedding_scale", REAL, c.get("embedding_multiplier"))
    put("residual_scale", REAL, c.get("residual_multiplier"))
    put("logit_scale", REAL, c.get("logits_scaling"))

    out, stacks = {}, {}
    for name in sorted(tensors):
        t = tensors[name]
        stem, _, end = name.rpartition(".")
        if stem in TOP:
            out[f"{TOP[stem]}.{end}"] = t
            continue
        layer, rest = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name).groups()
        if int(layer) >= layers:
            continue
        blk = f"blk.{layer}."
        rest = re.sub(r"^(mlp|block_sparse_moe|feed_forward)\.", "", rest)
        one = re.fullmatch(r"experts\.(\d+)\.(\w+)\.(\w+)", rest)
        if one:
            stacks.setdefault(f"{blk}{LAYER[one[2]]}_exps.{one[3]}", {})[int(one[1])] = t
        elif rest == "input_linear.weight":  # gate rows, then up rows
            half = t.shape[1] // 2
            for i, part in enumerate(("gate", "up")):
                out[f"{blk}ffn_{part}_exps.weight"] = stacked(
                    [t.expert(e).picked(range(i * half, (i + 1) * half)) for e in range(experts)])
        elif rest == "output_linear.weight":
            out[f"{blk}ffn_down_exps.weight"] = t
        elif rest.startswith("experts.gate_up_proj"):  # GPT-OSS: gate and up alternate; matrices are turned
            end = "bias" if rest.endswith("_bias") else "weight"
            for i, part in enumerate(("gate", "up")):
                each = [t.expert(e) if end == "bias" else t.expert(e).turned() for e in range(experts)]
                out[f"{blk}ffn_{part}_exps.{end}"] = stacked([m.picked(range(i, m.shape[0], 2)) for m in each])
        elif rest == "experts.down_proj":
            out[f"{blk}ffn_down_exps.weight"] = stacked([t.expert(e).turned() for e in range(experts)])
        elif rest == "experts.down_proj_bias":
            out[f"{blk}ffn_down_exps.bias"] = t
        elif rest.endswith("e_score_correction_bias") or rest == "expert_bias":
            out[f"{blk}exp_probs_b.bias"] = t
        elif rest == "self_attn.kv_b_proj.weight":  # cut by heads; the part of the keys is turned
            own, each = c["qk_nope_head_dim"], t.shape[0] // heads
            out[f"{blk}attn_k_b.weight"] = stacked([t.picked(range(h * each, h * each + own)).turned() for h in range(heads)])
            out[f"{blk}attn_v_b.weight"] = stacked([t.picked(range(h * each + own, (h + 1) * each)) for h in range(heads)])
        elif rest == "self_attn.sinks":
            out[f"{blk}attn_sinks.weight"] = t
        else:
            stem, _, end = rest.rpartition(".")
            shared = re.fullmatch(r"shared_experts?\.(\w+)", stem)
            if shared:
                out[f"{blk}{LAYER[shared[1]]}_shexp.{end}"] = t
                continue
            if arch in ("llama", "granitemoe") and stem in ("self_attn.q_proj", "self_attn.k_proj"):
                t = pairs(t, heads if stem.endswith("q_proj") else kv)
            out[f"{blk}{after_norm if stem == 'post_attention_layernorm' else LAYER[stem]}.{end}"] = t
    for name, experts_of in stacks.items():
        out[name] = stacked([experts_of[e] for e in range(experts)])
    # Vectors, routers and other small tensors are F32 in every file.
    for name, t in out.items():
        if name.endswith("shortconv.conv.weight"):
            t = Tensor(t.kind, [t.shape[0], t.shape[2]], t.data)
        small = len(t.shape) == 1 or name.endswith(".bias") or "ffn_gate_inp" in name or "shortconv.conv" in name
        out[name] = t.as_f32() if small else t
    return keys, out


def write(name, content):
    path = OUT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


GOOD = [("qwen3moe", "qwen3moe"), ("mixtral", "llama"), ("mistral", "llama"), ("llama", "llama"), ("qwen3", "qwen3"), ("qwen2moe", "qwen2moe"),
        ("olmoe", "olmoe"), ("granitemoe", "granitemoe"), ("minimaxm2", "minimax-m2"), ("glm4moe", "glm4moe"), ("gptoss", "gpt-oss"),
        ("deepseekv2", "deepseek2"), ("deepseekv3", "deepseek2"), ("lfm2moe", "lfm2moe")]


def make_good():
    made = {}
    for family, arch in GOOD:
        after = "post_attention_norm" if arch in ("glm4moe", "gpt-oss") else "ffn_norm"
        keys, tensors = converted(f"{family}-dense", arch, after)
        if family == "llama":  # Llama-3's scaling as factors, in f32 as the converter computes them
            rope = json.loads((DATA / "golden/llama-dense/config.json").read_text())["rope_parameters"]
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            old, factors = rope["original_max_position_embeddings"], []
            for i in range(8):
                length = 2 * 3.141592653589793 * rope["rope_theta"] ** (2 * i / 16)
                smooth = (old / length - low) / (high - low)
                factors.append(1.0 if length < old / high else rope["factor"] if length > old / low else
                               1 / ((1 - smooth) / rope["factor"] + smooth))
            tensors["rope_freqs.weight"] = floats(factors)
        made[family] = keys, tensors
        write(f"good/{family}.gguf", gguf(keys, tensors))
    return made


def merged(keys, tensors):
    """The same model with q, k and v in one tensor, gate and up in another, and keys of other types of integer."""
    keys, tensors = dict(keys), dict(tensors)
    for name in [n for n in tensors if n.endswith("attn_q.weight")]:
        blk = name[:-len("attn_q.weight")]
        parts = [tensors.pop(f"{blk}attn_{x}.weight") for x in "qkv"]
        tensors[f"{blk}attn_qkv.weight"] = Tensor(parts[0].kind, [sum(p.shape[0] for p in parts), parts[0].shape[1]], b"".join(p.data for p in parts))
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


def main():
    made = make_good()
    write("good/qwen3moe.merged.gguf", gguf(*merged(*made["qwen3moe"])))
    keys, tensors = made["mixtral"]
    write("good/mixtral.merged.gguf", gguf(*merged(keys, tensors)))
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
    (OUT / "bad.json").write_text(json.dumps(bad, indent=1))


main()
