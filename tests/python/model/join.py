#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build the Hugging Face folder from what train.py wrote, and check it against transformers.

    join.py --parts out --data data --hf hf          (needs numpy, torch, transformers, tokenizers, safetensors)

Writes hf/: config.json, generation_config.json, model.safetensors (bf16, one tensor per expert matrix), tokenizer files.
Then: logits of transformers' Qwen3MoeForCausalLM against train.py's model in fp32; perplexity over val.bin; samples.
"""
import argparse, json, math, os, shutil, sys, time
from pathlib import Path
import numpy as np
import torch
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import train as T


def load_parts(folder):
    m = json.load(open(folder / "ckpt.json"))
    data = b"".join((folder / p).read_bytes() for p in m["parts"])
    assert len(data) == m["bytes"], (len(data), m["bytes"])
    flat = torch.from_numpy(np.frombuffer(data, dtype=np.int16).copy()).view(torch.bfloat16)
    out = {}
    for k, t in m["tensors"].items():
        n = math.prod(t["shape"])
        out[k] = flat[t["offset"] // 2: t["offset"] // 2 + n].reshape(t["shape"]).clone()
    return out, m["config"], m["info"]


def config(c, ids):
    return {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "dtype": "bfloat16", "torch_dtype": "bfloat16",
        "vocab_size": c["vocab"], "hidden_size": c["hidden"], "intermediate_size": c["inter"] * c["topk"],
        "num_hidden_layers": c["layers"], "num_attention_heads": c["heads"], "num_key_value_heads": c["kv"], "head_dim": c["head_dim"],
        "hidden_act": "silu", "max_position_embeddings": 2048, "initializer_range": 0.02, "rms_norm_eps": 1e-6, "use_cache": True,
        "tie_word_embeddings": c["tie"], "rope_theta": c["theta"], "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": c["theta"]},
        "attention_bias": False, "attention_dropout": 0.0, "use_sliding_window": False, "sliding_window": None,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": c["inter"], "num_experts": c["experts"],
        "num_experts_per_tok": c["topk"], "norm_topk_prob": True, "output_router_logits": False, "router_aux_loss_coef": 0.001,
        "bos_token_id": None, "eos_token_id": ids["<|endoftext|>"], "pad_token_id": ids["<|pad|>"], "transformers_version": "4.57.0"}


@torch.no_grad()
def perplexity(f, ids, ctx, per=8, limit=0):
    x, y = T.windows(ids, ctx)
    if limit:
        x, y = x[:limit], y[:limit]
    tot = 0.0
    for i in range(0, len(x), per):
        tot += torch.nn.functional.cross_entropy(f(x[i: i + per]).float().flatten(0, 1), y[i: i + per].flatten(), reduction="sum").item()
    return tot / y.numel(), y.numel()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--parts", default="out"); ap.add_argument("--data", default="data"); ap.add_argument("--hf", default="hf")
    ap.add_argument("--ctx", type=int, default=512); ap.add_argument("--windows", type=int, default=0, help="perplexity over the first N windows only; 0: all")
    ap.add_argument("--new", type=int, default=120); ap.add_argument("--samples", type=int, default=4)
    a = ap.parse_args()
    hf, parts, data = Path(a.hf), Path(a.parts), Path(a.data)
    hf.mkdir(parents=True, exist_ok=True)
    from safetensors.torch import save_file
    state, c, info = load_parts(parts)
    ids = json.load(open(data / "meta.json"))["special"]
    save_file(state, str(hf / "model.safetensors"), metadata={"format": "pt"})
    json.dump(config(c, ids), open(hf / "config.json", "w"), indent=1)
    json.dump({"do_sample": True, "temperature": 0.8, "top_p": 0.95, "eos_token_id": [ids["<|endoftext|>"], ids["<|im_end|>"]], "pad_token_id": ids["<|pad|>"],
               "transformers_version": "4.57.0"}, open(hf / "generation_config.json", "w"), indent=1)
    for f in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(data / f, hf / f)
    size = sum(f.stat().st_size for f in hf.iterdir())
    print(f"{hf}: {len(state)} tensors, {sum(v.numel() for v in state.values()) / 1e6:.2f} M values, {size / 2**20:.1f} MiB")
    print(f"training says: val {info['val_fp32_of_bf16_weights']:.4f} ppl {info['ppl']:.3f} ({info['best_at']}, {info['steps']} steps, {info['seconds']} s)")

    from transformers import AutoTokenizer, AutoModelForCausalLM
    tok = AutoTokenizer.from_pretrained(hf)
    lm, left = AutoModelForCausalLM.from_pretrained(hf, dtype=torch.float32, output_loading_info=True)
    bad = {k: v for k, v in left.items() if v}
    assert not bad, bad
    lm.eval()
    assert type(lm).__name__ == "Qwen3MoeForCausalLM", type(lm)
    mine = T.Model(c).from_hf(state).eval()
    val = T.read(data / "val.bin")
    for n in (a.ctx, 2048):
        x = val[: 2 * n].view(2, n)
        with torch.no_grad():
            p, q = mine(x)[0], lm(input_ids=x).logits
        d = (p - q).abs().max().item()
        print(f"logits of {tuple(x.shape)}: max abs difference {d:.2e}, largest logit {q.abs().max():.2f}, same argmax {(p.argmax(-1) == q.argmax(-1)).float().mean():.5f}")
        assert d < 2e-3 * max(1.0, q.abs().max().item()), d
    s = "It is a truth universally acknowledged,\n\n\"that's 1813\"--said he."
    from tokenizers import Tokenizer
    assert tok(s)["input_ids"] == Tokenizer.from_file(str(data / "tokenizer.json")).encode(s).ids
    assert tok.decode(tok(s)["input_ids"]) == s
    print("chat template:", repr(tok.apply_chat_template([{"role": "user", "content": "Write like Jane Austen."}], tokenize=False, add_generation_prompt=True)))

    t = time.time()
    l, n = perplexity(lambda x: lm(input_ids=x).logits, val, a.ctx, limit=a.windows)
    print(f"transformers fp32: val loss {l:.5f}, perplexity {math.exp(l):.4f} over {n} tokens in windows of {a.ctx}, "
          f"{l / math.log(2) * len(val) / json.load(open(data / 'meta.json'))['bytes']['val']:.4f} bits per byte ({time.time() - t:.0f} s)")
    torch.manual_seed(1)
    prompts = ["The whale", "Emma was", "It was a dark night, and", "\"My dear,\" said", "HAMLET"][: a.samples]
    texts = prompts + ([tok.apply_chat_template([{"role": "user", "content": u}], tokenize=False, add_generation_prompt=True)
                        for u in ("Write like Jane Austen.", "Tell me a story.")] if a.samples else [])
    for s in texts:
        e = tok(s, return_tensors="pt", return_token_type_ids=False)
        o = lm.generate(**e, max_new_tokens=a.new, do_sample=True, temperature=0.8, top_p=0.95)
        print("---", repr(s)); print(tok.decode(o[0], skip_special_tokens=False))


if __name__ == "__main__":
    main()
