# SPDX-License-Identifier: Apache-2.0
"""What rotations, windows, caps and tied heads mean in each family: build/data/golden/variants.json.

    env/bin/python tests/python/make_variants.py [--keep]

--keep: what variants.json has of a folder and its changes stays as it is.
Every entry is a dense golden folder with some fields of its config.json changed or taken out (null in `changes` takes out,
"null" writes a null), a sequence, and the last row of logits that transformers computes for it in f32 (eager, no cache). What
a field means where it is absent is thereby what the real configuration classes say. The lengths lie on both sides of the
original context of 32 that the folders with scaled rotations have.
"""
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import transformers

from make_checkpoints_models import register

GOLDEN = Path(__file__).resolve().parents[2] / "build/data/golden"
ABSENT, NULL = None, "null"
HALF = 8                # rotated pairs of the folders' heads
SHORT, LONG = [1.0 + 0.05 * i for i in range(HALF)], [1.0 + 0.5 * i for i in range(HALF)]


def rope(**more):
    return {"rope_parameters": {"rope_theta": 10000.0, **more}}


DYNAMIC = dict(rope(rope_type="dynamic", factor=4.0), max_position_embeddings=24)
LONGROPE = dict(rope(rope_type="longrope", original_max_position_embeddings=32, short_factor=SHORT, long_factor=LONG))
VARIANTS = [
    # windows: absent switches, absent widths, layers by each family's own rule
    *[(f, {"use_sliding_window": u, "sliding_window": w, "max_window_layers": m, "layer_types": ABSENT})
      for f in ("qwen3-dense", "qwen2moe-dense")
      for u, w, m in ((ABSENT, 8, 1), (False, 8, 0), (True, 8, 1), (True, 8, 2), (True, 8, 0), (True, ABSENT, 1), (True, NULL, 1))],
    *[("qwen3moe-dense", {"use_sliding_window": u, "sliding_window": w, "max_window_layers": 1})
      for u, w in ((ABSENT, 8), (True, 8), (True, ABSENT), (False, 8))],
    *[("mistral-dense", {"sliding_window": w}) for w in (8, ABSENT, NULL)],
    *[("mixtral-dense", {"sliding_window": w}) for w in (8, ABSENT, NULL)],
    *[("gptoss-dense", {"sliding_window": 4, "layer_types": t}) for t in (ABSENT, ["full_attention", "sliding_attention"])],
    *[("dots1-dense", {"sliding_window": 4, "max_window_layers": m, "layer_types": ABSENT}) for m in (0, 1, 2)],
    ("exaonemoe-dense", {"sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"]}),
    ("phimoe-dense", {"sliding_window": 4}),
    # rotations
    *[(f, DYNAMIC | {"head_dim": 16}) for f in ("llama-dense", "qwen3-dense", "qwen3moe-dense", "mixtral-dense")],
    *[(f, LONGROPE | {"head_dim": 16}) for f in ("llama-dense", "qwen3-dense", "mixtral-dense")],
    ("llama-dense", rope(rope_type="longrope", original_max_position_embeddings=32, short_factor=SHORT, long_factor=LONG, factor=4.0)),
    ("llama-dense", rope(rope_type="longrope", original_max_position_embeddings=32, short_factor=SHORT, long_factor=LONG,
                         attention_factor=1.25)),
    ("llama-dense", rope(rope_type="linear", factor=4.0)),
    ("llama-dense", rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)),
    ("mistral-dense", rope(rope_type="llama3", factor=8.0, original_max_position_embeddings=32, low_freq_factor=1.0,
                           high_freq_factor=4.0)),
    # MiMo's published spelling: the window without the token itself, layers by the class or by a list that says the same
    ("mimov2flash-dense", {"layer_types": ABSENT, "mlp_layer_types": ABSENT, "sliding_window": ABSENT, "sliding_window_size": 6,
                           "hybrid_layer_pattern": [0, 1], "routed_scaling_factor": NULL}),
    # router logits held between -cap and cap
    *[("laguna-dense", {"moe_router_logit_softcapping": cap}) for cap in (0.25, 2.0)],
    # a stored lm_head counts before tie_word_embeddings
    *[(f, {"tie_word_embeddings": True}) for f in ("qwen3moe-dense", "deepseekv3-dense", "jamba-dense", "mixtral-dense")],
    # and a layer's own fields before those of its type
    ("step3p7-dense", {"text_config": {"num_sliding_attention_heads": 2}}),
]

# The youngest families over more than two blocks of 128 keys, and every spelling of their configs. Of eight sequences the one that noise
# moves least: over so many tokens a routing tie is near.
LENGTH, SEEDS = 310, 8
LONGER = {"max_position_embeddings": 512}
LONG_VARIANTS = [
    *[(f, LONGER) for f in ("flint-dense", "kolibri1-dense", "axk1-dense", "beam-dense", "longcatflash-dense")],
    ("bailinghybrid-dense", {"model_max_length": 512}),
    ("hyv4-dense", LONGER | {"index_topk": 40}),
    ("jamba-dense", LONGER),
    ("dbrx-dense", {"max_seq_len": 512}),
    ("inkling-dense", {"text_config": LONGER}),
    ("inkling-dense", {"text_config": LONGER | {"log_scaling_n_floor": NULL, "unpadded_vocab_size": 30}}),
    ("axk2-dense", LONGER | {"index_topk": 40}),
    ("axk2-dense", LONGER | {"n_group": NULL, "topk_group": NULL, "norm_topk_prob": False}),
    ("mistrallarge4-dense", {"text_config": LONGER | {"index_topk": 40}}),
    ("mistrallarge4-dense", {"text_config": LONGER | {"n_group": 1, "topk_group": 1, "final_logit_softcapping": 30.0}}),
    ("hyv4-dense", LONGER | {"index_topk": 40, "indexer_types": ABSENT}),
    ("deepseekv4-dense", LONGER | {"index_topk": 40}),
    # as published: a ratio for each layer, rotations by their bases
    ("deepseekv4-dense", LONGER | {"layer_types": ABSENT, "compress_ratios": [0, 4, 128], "compress_rates": ABSENT, "compress_rate_hca": 16,
                                   "mlp_layer_types": ABSENT, "num_hash_layers": 1, "rope_parameters": ABSENT, "partial_rotary_factor": ABSENT, "qk_rope_head_dim": 8,
                                   "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "beta_fast": 32,
                                                    "beta_slow": 1}}),
    ("glm5next-dense", {"text_config": LONGER | {"index_topk": 40}}),
    ("glm5next-dense", {"text_config": LONGER | {"index_kpool": 4, "index_topk": 64, "linear_lower_bound": NULL, "indexer_types": ["full", "full", "shared"]}}),
    ("qwen4exp-dense", {"text_config": LONGER | {"indexer_budget": 40}}),
    ("qwen4exp-dense", {"text_config": LONGER | {"indexer_budget": 64, "indexer_compress_ratio": 8, "norm_topk_prob": False}}),
    ("qwen4exptext-dense", LONGER | {"indexer_budget": 40}),
    ("bailinghybrid-dense", {"model_max_length": 512, "kda_safe_gate": False, "moe_renormalize": False}),
    *[(f, {"text_config": LONGER}) for f in ("step3p7-dense", "ernie45vlmoe-dense", "minimaxm3-dense")],
    # as published: lists with an entry for each layer, sizes in an object of their own
    ("step3p7-dense", {"text_config": LONGER | {
        "rope_parameters": ABSENT, "rope_theta": [50000.0, 1000.0, 50000.0], "partial_rotary_factors": [0.5, 0.75, 0.5],
        "num_sliding_attention_heads": ABSENT, "per_layer_config": ABSENT,
        "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 4, "num_attention_groups": 1, "head_dim": 16}}}),
    ("minimaxm3-dense", {"text_config": LONGER | {
        "layer_types": ABSENT, "index_n_heads": ABSENT, "index_head_dim": ABSENT, "index_block_size": ABSENT, "index_topk_blocks": ABSENT,
        "index_local_blocks": ABSENT,
        "sparse_attention_config": {"sparse_attention_freq": [0, 1], "sparse_num_index_heads": 2, "sparse_index_dim": 16,
                                    "sparse_block_size": 16, "sparse_topk_blocks": 5, "sparse_local_block": 2}}}),
    ("flint-dense", LONGER | {"layer_types": ABSENT, "sliding_window": 5}),
    ("kolibri1-dense", LONGER | {"layer_types": ABSENT, "norm_topk_prob": ABSENT}),
    ("beam-dense", LONGER | {"layer_types": ABSENT, "rope_parameters": ABSENT, "final_logit_softcapping": NULL}),
    ("longcatflash-dense", LONGER | {"num_hidden_layers": 4}),
]


def change(config, changes):
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(config.get(name), dict) and name == "text_config":
            change(config[name], value)
            continue
        config.pop(name, None)
        if value is not ABSENT:
            config[name] = None if value == NULL else value


def changed(folder, changes, out):
    config = json.loads((GOLDEN / folder / "config.json").read_text())
    change(config, changes)
    (out / "config.json").write_text(json.dumps(config))
    os.symlink(GOLDEN / folder / "model.safetensors", out / "model.safetensors")


def stable(model):
    """(tokens, last row of logits) of the sequence that noise of one part in a million moves least."""
    found, g = None, torch.Generator().manual_seed(1)
    text = model.config.get_text_config()
    vocab = getattr(text, "unpadded_vocab_size", None) or text.vocab_size        # behind it lie no tokens
    for seed in range(SEEDS):
        tokens = torch.randint(3, vocab, (LENGTH,), generator=torch.Generator().manual_seed(seed))
        plain = model(tokens[None], use_cache=False).logits[0, -1]
        hook = model.get_input_embeddings().register_forward_hook(lambda _, x, y: y * (1 + 1e-6 * torch.randn(y.shape, generator=g)))
        moved = (model(tokens[None], use_cache=False).logits[0, -1] - plain).abs().max() / plain.abs().max()
        hook.remove()
        if found is None or moved < found[0]:
            found = (moved, tokens, plain)
    print(f"moved by {found[0]:.1e}")
    return found[1:]


def entry(folder, changes, tokens, last):
    return {"folder": folder, "changes": changes, "tokens": tokens.tolist(), "logits": [float(f"{v:.8g}") for v in last.tolist()]}


@torch.no_grad()
def main():
    from transformers import AutoModelForCausalLM
    register()
    said = json.loads((GOLDEN / "variants.json").read_text()) if "--keep" in sys.argv else []
    kept = [(v["folder"], v["changes"]) for v in said]
    for folder, changes in VARIANTS + LONG_VARIANTS:
        if (folder, changes) in kept:
            continue
        with tempfile.TemporaryDirectory() as out:
            changed(folder, changes, Path(out))
            model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
        if (folder, changes) in LONG_VARIANTS:
            said.append(entry(folder, changes, *stable(model)))
            continue
        for length in (20, 40):
            tokens = torch.randint(3, model.config.get_text_config().vocab_size, (length,), generator=torch.Generator().manual_seed(length))
            if "rope_parameters" in changes and hasattr(model.model, "rotary_emb"):
                # a fresh table per sequence: dynamic tables remember the longest one they have seen
                model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
            if model.config.model_type == "phimoe":     # the library always takes the short factors; the model's own code does not
                rotary, n = model.model.rotary_emb, length
                init = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["longrope"]
                rotary.rope_init_fn = lambda config, *rest, init=init, n=n: init(config, *rest, seq_len=n)
            try:
                last = model(tokens[None], use_cache=False).logits[0, -1]
            except ValueError as e:         # the library refuses the combination itself
                print(f"left out: {folder} {changes}: {e}")
                continue
            said.append(entry(folder, changes, tokens, last))
    (GOLDEN / "variants.json").write_text("[\n" + ",\n".join(json.dumps(v, separators=(",", ":")) for v in said) + "\n]\n")
    print(len(said), "variants,", (GOLDEN / "variants.json").stat().st_size, "bytes")


main()
