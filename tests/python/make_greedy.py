# SPDX-License-Identifier: Apache-2.0
"""Greedy continuations of the dense golden folders by transformers (f32, eager, no cache): build/data/golden/greedy.json.

    env/bin/python tests/python/make_greedy.py [--seeds N] [folder ...]

For every folder a prompt of PROMPT random tokens is searched whose 64 next tokens are decided clearly: at every step the best
logit leads by MARGIN of the largest one, and noise of one part in 100,000 on the embeddings (a routing tie would show it)
moves no logit by a tenth of the smallest lead. Among SEEDS prompts the one with the most different tokens wins, so that a
model which only repeats itself is the last choice. PROMPT is longer than the shortest original context, so that folders with
two sets of rotary factors use one of them throughout.
"""
import argparse
import json
from pathlib import Path

import torch

from make_checkpoints_models import register

PROMPT, NEW, SEEDS, MARGIN, NOISE = 40, 64, 48, 2e-3, 1e-5
GOLDEN = Path(__file__).resolve().parents[2] / "build/data/golden"


def logits_of(model, tokens):
    return model(torch.tensor([tokens]), use_cache=False).logits[0]


def continue_greedily(model, prompt):
    """(tokens, smallest lead over the second best), or None when a step is not clear."""
    tokens, lead = list(prompt), float("inf")
    for _ in range(NEW):
        last = logits_of(model, tokens)[-1]
        best = last.topk(2)
        step = (best.values[0] - best.values[1]).item()
        if step < MARGIN * last.abs().max().item():
            return None
        lead = min(lead, step)
        tokens.append(best.indices[0].item())
    return tokens, lead


def moved_by_noise(model, tokens):
    g = torch.Generator().manual_seed(1)
    plain = logits_of(model, tokens)
    hook = model.get_input_embeddings().register_forward_hook(
        lambda _, x, y: y * (1 + NOISE * torch.randn(y.shape, generator=g)))
    moved = max((logits_of(model, tokens) - plain)[PROMPT - 1:].abs().max().item() for _ in range(3))
    hook.remove()
    return moved


@torch.no_grad()
def search(folder, seeds):
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    if model.config.model_type == "phimoe":
        # transformers 5.17 takes the long scale but, not telling the length, always the short factors; the model's own code takes both
        rotary = model.model.rotary_emb
        long_or_short = rotary.rope_init_fn
        rotary.rope_init_fn = lambda config, *rest: long_or_short(config, *rest, seq_len=PROMPT)
    found = None
    for seed in range(seeds):
        g = torch.Generator().manual_seed(1000 + seed)
        prompt = torch.randint(3, model.config.get_text_config().vocab_size, (PROMPT,), generator=g).tolist()
        run = continue_greedily(model, prompt)
        if run is None or moved_by_noise(model, run[0]) > run[1] / 10:
            continue
        kinds = len(set(run[0][PROMPT:]))
        if found is None or kinds > found[0]:
            found = (kinds, seed, *run)
    if found is None:
        raise SystemExit(f"{folder.name}: none of {seeds} prompts is decided clearly")
    kinds, seed, tokens, lead = found
    print(f"{folder.name}: seed {seed}, {kinds} different tokens, smallest lead {lead:.2e}", flush=True)
    return {"prompt": tokens[:PROMPT], "tokens": tokens[PROMPT:]}


def main():
    out = GOLDEN / "greedy.json"
    said = json.loads(out.read_text()) if out.exists() else {}
    p = argparse.ArgumentParser()
    p.add_argument("--seeds", type=int, default=SEEDS)
    p.add_argument("folders", nargs="*")
    a = p.parse_args()
    register()
    for folder in sorted(GOLDEN.glob("*-dense")):
        if not a.folders or folder.name in a.folders:
            said[folder.name] = search(folder, a.seeds)
    out.write_text("{\n" + ",\n".join(f'"{k}": {json.dumps(v, separators=(",", ":"))}' for k, v in sorted(said.items())) + "\n}\n")


main()
