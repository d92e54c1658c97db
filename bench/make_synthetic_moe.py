#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a folder with a random W4A8 mixture-of-experts model that both Moebius and vLLM open.

    bench/make_synthetic_moe.py FOLDER [--layers 6] [--group 32] [--hidden 2048] [--bf16] ...

The defaults are Qwen3-30B-A3B's geometry with 6 layers: 5.2 GB on disk. Weights are `int-quantized` (one int8 per 4-bit
code), embedding and output projection bf16. Rows of the router have mean zero, so that random tokens spread over all experts.
--bf16: plain weights of the same names and no quantization_config, a source for `moebius quantize`.
--mtp: one more layer, for multi-token prediction (`--speculate mtp`); its drafts are as good as chance.
--topics N: the routing has locality, as that of real models and unlike that of random weights, which no cache of experts can serve.
Every expert prefers one of N topics; embeddings change from topic to topic with the token id, and so does the output projection:
`--temp 1` stays in a topic for a while, then drifts to the next. Layers add less to the rows, so that the last ones know the topic too.
A folder that already holds the same model is left alone.
Needs numpy: `apt-get install python3-numpy`, or `python3 -m venv E && E/bin/pip install numpy` and E/bin/python.
"""
import argparse
import json
import struct
from pathlib import Path

try:
    import numpy as np
except ModuleNotFoundError:
    raise SystemExit("bench/make_synthetic_moe.py needs numpy: apt-get install python3-numpy, or pip install numpy in an environment of your own") from None

SHAPE = dict(layers=6, group=32, hidden=2048, experts=128, top_k=8, intermediate=768, heads=32, kv_heads=4, head_dim=128, vocab=151936)
TOPIC_LOGIT = 6  # what a row that is all topic adds to the router's and the output's logits of that topic


def bf16(values):
    """f32 to the bits of bf16, rounded to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(path, tensors):
    """tensors: name -> (dtype name, array); arrays are written one after the other."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)))
        out.write(text)
        for _, array in tensors.values():
            np.ascontiguousarray(array).tofile(out)


def config(a):
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "dynamic": False, "strategy": "group" if a.group > 0 else "channel",
               "group_size": a.group if a.group > 0 else None, "actorder": None, "block_structure": None, "observer": "minmax", "observer_kwargs": {}}
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token", "group_size": None, "actorder": None,
              "block_structure": None, "observer": None, "observer_kwargs": {}}
    quantized = {
        "quant_method": "compressed-tensors", "format": "int-quantized", "quantization_status": "compressed", "version": "0.19.0",
        "kv_cache_scheme": None, "global_compression_ratio": None,
        "ignore": ["lm_head"] + [f"model.layers.{layer}.mlp.gate" for layer in range(a.layers)],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None,
                                      "format": "int-quantized"}}}
    if a.mtp:
        quantized["ignore"] += [f"model.layers.{a.layers}.mlp.gate", f"model.layers.{a.layers}.eh_proj"]
    return {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16", "dtype": "bfloat16",
        "vocab_size": a.vocab, "hidden_size": a.hidden, "intermediate_size": 3 * a.hidden, "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads, "num_key_value_heads": a.kv_heads, "head_dim": a.head_dim, "hidden_act": "silu",
        "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "rope_theta": 1e6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "attention_bias": False, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "moe_intermediate_size": a.intermediate, "num_experts": a.experts, "num_local_experts": a.experts, "num_experts_per_tok": a.top_k,
        "norm_topk_prob": True, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
        **({} if a.bf16 else {"quantization_config": quantized}), **({"num_nextn_predict_layers": 1} if a.mtp else {}),
        **({"synthetic_topics": a.topics} if a.topics else {}),
    }


class Topics:
    """Directions of hidden rows, of mean zero and length sqrt(hidden), which tokens, experts and outputs share."""
    def __init__(self, count, hidden):
        centres = np.random.Generator(np.random.SFC64(1)).standard_normal((count, hidden), dtype=np.float32)
        centres -= centres.mean(axis=1, keepdims=True)
        self.centres = centres / centres.std(axis=1, keepdims=True)

    def of_experts(self, experts):
        return self.centres[np.arange(experts) % len(self.centres)]

    def of_tokens(self, first, count, vocab):
        """Token 0 has topic 0, the last one topic 0 again; between two topics a token has some of both."""
        at = np.arange(first, first + count) * (len(self.centres) / vocab)
        topic, share = at.astype(np.int64), (at % 1).astype(np.float32)[:, None] * np.float32(np.pi / 2)
        return np.cos(share) * self.centres[topic] + np.sin(share) * self.centres[(topic + 1) % len(self.centres)]


class Writer:
    def __init__(self, folder, group, bf16_weights, topics=None, branch=1):
        """branch: factor of what a layer adds to its input."""
        self.folder, self.group, self.bf16, self.index = folder, group, bf16_weights, {}
        self.random = np.random.Generator(np.random.SFC64(0))
        self.topics, self.branch = topics, branch

    def save(self, name, tensors):
        write_safetensors(self.folder / name, tensors)
        self.index.update({tensor: name for tensor in tensors})

    def normal(self, rows, cols, size, topic_size=0.0):
        """topic_size: of the token's topic in the row, with --topics."""
        out = np.empty((rows, cols), np.uint16)
        for i in range(0, rows, 16384):
            n = min(16384, rows - i)
            block = self.random.standard_normal((n, cols), dtype=np.float32) * np.float32(size)
            if self.topics and topic_size:
                block += self.topics.of_tokens(i, n, rows) * np.float32(topic_size)
            out[i:i + n] = bf16(block)
        return "BF16", out

    def linear(self, tensors, name, n, k, factor=1):
        if self.bf16:
            tensors[name + ".weight"] = self.normal(n, k, factor * k**-0.5)
            return
        # Scales such that a row of k products of codes (standard deviation 4.6) comes out near 1.
        groups = k // self.group if self.group > 0 else 1
        scales = (0.75 + 0.5 * self.random.random((n, groups), dtype=np.float32)) * np.float32(factor) / (4.6 * k**0.5)
        tensors[name + ".weight"] = ("I8", self.random.integers(-8, 8, (n, k), dtype=np.int8))
        tensors[name + ".weight_scale"] = ("BF16", bf16(scales))


def ones(n):
    return "BF16", np.full(n, 0x3F80, np.uint16)


def write_layer(writer, a, layer):
    p, tensors = f"model.layers.{layer}.", {}
    for norm in ("input_layernorm", "post_attention_layernorm"):
        tensors[p + norm + ".weight"] = ones(a.hidden)
    for norm in ("q_norm", "k_norm"):
        tensors[p + f"self_attn.{norm}.weight"] = ones(a.head_dim)
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    for name, n, k, factor in (("q", q, a.hidden, 1), ("k", kv, a.hidden, 1), ("v", kv, a.hidden, 1), ("o", a.hidden, q, writer.branch)):
        writer.linear(tensors, p + f"self_attn.{name}_proj", n, k, factor)
    router = writer.random.standard_normal((a.experts, a.hidden), dtype=np.float32) * np.float32(0.045)
    if writer.topics:
        router += writer.topics.of_experts(a.experts) * np.float32(TOPIC_LOGIT / a.hidden)
    tensors[p + "mlp.gate.weight"] = ("BF16", bf16(router - router.mean(axis=1, keepdims=True)))
    for expert in range(a.experts):
        e = p + f"mlp.experts.{expert}."
        writer.linear(tensors, e + "gate_proj", a.intermediate, a.hidden)
        writer.linear(tensors, e + "up_proj", a.intermediate, a.hidden)
        writer.linear(tensors, e + "down_proj", a.hidden, a.intermediate, writer.branch)
    if layer == a.layers:
        for norm in ("enorm", "hnorm", "shared_head.norm"):
            tensors[p + norm + ".weight"] = ones(a.hidden)
        tensors[p + "eh_proj.weight"] = writer.normal(a.hidden, 2 * a.hidden, (2 * a.hidden)**-0.5)
    writer.save(f"layer-{layer:03d}.safetensors", tensors)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, value in SHAPE.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    parser.add_argument("--bf16", action="store_true", help="plain bf16 weights")
    parser.add_argument("--mtp", action="store_true", help="with a layer for multi-token prediction")
    parser.add_argument("--topics", type=int, default=0, metavar="N", help="routing with locality: consecutive tokens want the same experts")
    a = parser.parse_args()
    index, text = a.folder / "model.safetensors.index.json", json.dumps(config(a), indent=1)
    if index.exists() and (a.folder / "config.json").read_text() == text:
        return  # the index is written last: the folder is complete
    a.folder.mkdir(parents=True, exist_ok=True)
    (a.folder / "config.json").write_text(text)
    # With topics, all layers together add rows about as long as the topic's.
    writer = Writer(a.folder, a.group, a.bf16, *((Topics(a.topics, a.hidden), (2 * a.layers)**-0.5) if a.topics else ()))
    writer.save("embed.safetensors", {"model.embed_tokens.weight": writer.normal(a.vocab, a.hidden, 1.0, 1.0)})
    head = writer.normal(a.vocab, a.hidden, 0.02, TOPIC_LOGIT / a.hidden)
    writer.save("head.safetensors", {"lm_head.weight": head, "model.norm.weight": ones(a.hidden)})
    for layer in range(a.layers + a.mtp):
        write_layer(writer, a, layer)
        print(f"layer {layer + 1} of {a.layers + a.mtp}", flush=True)
    index.write_text(json.dumps({"metadata": {}, "weight_map": writer.index}))


if __name__ == "__main__":
    main()
