#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a folder with random weights in DeepSeek-V4's geometry and few layers, for decode at a long context.

    bench/make_deepseek_v4.py FOLDER [--layers 2] [--experts 16] [--vocab 4096] [--context 40960]
    moebius bench model FOLDER --prompts 1 --batches 1 --depths 32768 --invented

Hidden 4096, 64 heads of 512 with one key for all, a window of 128, q_lora 1024, 8 groups of outputs, four streams, top 6 of the
experts. The first layer has compressed keys of 4 tokens of which an indexer of 64 heads chooses 512, the second one of 128
tokens; more layers take turns. Linears are FP8 in blocks of 128 with bf16 scales, as published but for the experts, which are
FP8 too. Fewer experts than the published 256 change the size of the folder, not what a token reads.
Needs numpy, as bench/make_synthetic_moe.py does.
"""
import argparse
import json
from pathlib import Path

from make_synthetic_moe import Writer, np, ones

HIDDEN, HEADS, DIM, Q_LORA, GROUPS, O_LORA, INTER, STREAMS = 4096, 64, 512, 1024, 8, 1024, 2048, 4
INDEX_HEADS, INDEX_DIM, BLOCK = 64, 128, 128


def config(a):
    return {
        "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "dtype": "bfloat16", "vocab_size": a.vocab, "hidden_size": HIDDEN,
        "num_hidden_layers": a.layers, "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": DIM, "qk_rope_head_dim": 64,
        "q_lora_rank": Q_LORA, "o_groups": GROUPS, "o_lora_rank": O_LORA, "moe_intermediate_size": INTER, "n_routed_experts": a.experts,
        "n_shared_experts": 1, "num_experts_per_tok": 6, "norm_topk_prob": True, "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus",
        "swiglu_limit": 10.0, "sliding_window": 128, "compress_ratios": [4 if i % 2 == 0 else 128 for i in range(a.layers)],
        "index_n_heads": INDEX_HEADS, "index_head_dim": INDEX_DIM, "index_topk": 512, "hc_mult": STREAMS, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
        "num_hash_layers": 0, "rope_theta": 10000, "compress_rope_theta": 160000,
        "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1},
        "max_position_embeddings": a.context, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1,
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}}


class Fp8Writer(Writer):
    """Codes of random signs and exponents around 1, and scales by which a row of k products comes out near 1."""

    def linear(self, tensors, name, n, k):
        codes = self.random.integers(0x30, 0x40, (n, k), dtype=np.uint8) | (self.random.integers(0, 2, (n, k), dtype=np.uint8) << 7)
        tensors[name + ".weight"] = ("F8_E4M3", codes)
        scales = (0.75 + 0.5 * self.random.random((-(-n // BLOCK), -(-k // BLOCK)), dtype=np.float32)) / k**0.5
        tensors[name + ".scale"] = ("F32", scales)

    def floats(self, *shape, size=0.02):
        return "F32", self.random.standard_normal(shape, dtype=np.float32) * np.float32(size)


def compressor(w, tensors, stem, width, ratio):
    both = width * (2 if ratio == 4 else 1)
    for name in ("wkv", "wgate"):
        tensors[f"{stem}.{name}.weight"] = w.normal(both, HIDDEN, HIDDEN**-0.5)
    tensors[stem + ".ape"] = w.floats(ratio, both)
    tensors[stem + ".norm.weight"] = ones(width)


def write_layer(w, a, layer):
    p, t, ratio = f"layers.{layer}.", {}, 4 if layer % 2 == 0 else 128
    outputs = (2 + STREAMS) * STREAMS
    for part in ("attn", "ffn"):
        t[p + part + "_norm.weight"] = ones(HIDDEN)
        t[f"{p}hc_{part}_fn"] = w.floats(outputs, STREAMS * HIDDEN, size=(STREAMS * HIDDEN)**-0.5)
        t[f"{p}hc_{part}_base"], t[f"{p}hc_{part}_scale"] = w.floats(outputs), ("F32", np.ones(3, np.float32))
    for name, n, k in (("wq_a", Q_LORA, HIDDEN), ("wq_b", HEADS * DIM, Q_LORA), ("wkv", DIM, HIDDEN),
                       ("wo_a", GROUPS * O_LORA, HEADS * DIM // GROUPS), ("wo_b", HIDDEN, GROUPS * O_LORA)):
        w.linear(t, p + "attn." + name, n, k)
    t[p + "attn.q_norm.weight"], t[p + "attn.kv_norm.weight"], t[p + "attn.attn_sink"] = ones(Q_LORA), ones(DIM), w.floats(HEADS)
    compressor(w, t, p + "attn.compressor", DIM, ratio)
    if ratio == 4:
        compressor(w, t, p + "attn.indexer.compressor", INDEX_DIM, ratio)
        w.linear(t, p + "attn.indexer.wq_b", INDEX_HEADS * INDEX_DIM, Q_LORA)
        t[p + "attn.indexer.weights_proj.weight"] = w.normal(INDEX_HEADS, HIDDEN, HIDDEN**-0.5)
    t[p + "ffn.gate.weight"], t[p + "ffn.gate.bias"] = w.normal(a.experts, HIDDEN, 0.045), w.floats(a.experts, size=0.01)
    for e in [f"experts.{i}" for i in range(a.experts)] + ["shared_experts"]:
        for name, n, k in (("w1", INTER, HIDDEN), ("w3", INTER, HIDDEN), ("w2", HIDDEN, INTER)):
            w.linear(t, f"{p}ffn.{e}.{name}", n, k)
    w.save(f"layer-{layer:03d}.safetensors", t)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name, value in (("layers", 2), ("experts", 16), ("vocab", 4096), ("context", 40960)):
        parser.add_argument("--" + name, type=int, default=value)
    a = parser.parse_args()
    a.folder.mkdir(parents=True, exist_ok=True)
    (a.folder / "config.json").write_text(json.dumps(config(a), indent=1))
    w = Fp8Writer(a.folder, 0, False)
    head = {"embed.weight": w.normal(a.vocab, HIDDEN, 1.0), "head.weight": w.normal(a.vocab, HIDDEN, 0.02), "norm.weight": ones(HIDDEN),
            "hc_head_fn": w.floats(STREAMS, STREAMS * HIDDEN, size=(STREAMS * HIDDEN)**-0.5), "hc_head_base": w.floats(STREAMS),
            "hc_head_scale": ("F32", np.ones(1, np.float32))}
    w.save("ends.safetensors", head)
    for layer in range(a.layers):
        write_layer(w, a, layer)
        print(f"layer {layer + 1} of {a.layers}", flush=True)
    (a.folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": w.index}))


if __name__ == "__main__":
    main()
