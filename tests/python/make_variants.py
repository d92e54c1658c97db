# SPDX-License-Identifier: Apache-2.0
"""What rotations, windows and caps mean in each family: tests/golden/variants.json.

    env/bin/python tests/python/make_variants.py

Every entry is a dense golden folder with some fields of its config.json changed or taken out (null in `changes` takes out,
"null" writes a null), a sequence, and the last row of logits that transformers computes for it in f32 (eager, no cache). What
a field means where it is absent is thereby what the real configuration classes say. The lengths lie on both sides of the
original context of 32 that the folders with scaled rotations have.
"""
import json
import os
import tempfile
from pathlib import Path

import torch
import transformers

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
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
]


def changed(folder, changes, out):
    config = json.loads((GOLDEN / folder / "config.json").read_text())
    for name, value in changes.items():
        config.pop(name, None)
        if value is not ABSENT:
            config[name] = None if value == NULL else value
    (out / "config.json").write_text(json.dumps(config))
    os.symlink(GOLDEN / folder / "model.safetensors", out / "model.safetensors")


@torch.no_grad()
def main():
    from transformers import AutoModelForCausalLM
    said = []
    for folder, changes in VARIANTS:
        with tempfile.TemporaryDirectory() as out:
            changed(folder, changes, Path(out))
            model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
        for length in (20, 40):
            tokens = torch.randint(3, model.config.vocab_size, (length,), generator=torch.Generator().manual_seed(length))
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
            said.append({"folder": folder, "changes": changes, "tokens": tokens.tolist(),
                         "logits": [float(f"{v:.8g}") for v in last.tolist()]})
    (GOLDEN / "variants.json").write_text("[\n" + ",\n".join(json.dumps(v, separators=(",", ":")) for v in said) + "\n]\n")
    print(len(said), "variants,", (GOLDEN / "variants.json").stat().st_size, "bytes")


main()
