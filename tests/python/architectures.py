# SPDX-License-Identifier: Apache-2.0
"""What Moebius does with every mixture-of-experts architecture of the installed transformers: docs/architectures.md.

    env/bin/python tests/python/architectures.py build/release/moebius [--only NAME ...] [--rows FILE] [--keep DIR] [--json FILE] [--markdown FILE]

Of each architecture (architectures_models.py finds and shrinks them) a random checkpoint is saved in f32 and given to
`moebius inspect --json`, `apply` (a block's experts with given ids; the whole block) and `logits`; transformers' own numbers
(eager, f32) judge: parameters, experts and top-k must be equal, outputs agree within 1e-5 of the largest value.
With --rows the architectures that --only does not name have the rows of an earlier run's --json.
"""
import argparse
import json
import re
import shutil
import subprocess
import tempfile
import textwrap
import traceback
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
import torch
from safetensors.torch import load_file, save_file

import architectures_models as models

BOUND, NOISE, DRAWS = 1e-5, 1e-6, 8


def draw(k):
    return [3 + ((7 + 2 * k) * i * i + (11 + 4 * k) * i + 5 * k) % 90 for i in range(24)]


def moebius(tool, *args):
    done = subprocess.run([tool, *map(str, args)], capture_output=True, text=True)
    said = [line for line in done.stderr.strip().splitlines() if line.strip()]
    error = next((line for line in said if "error" in line), said[-1] if said else "")
    return done, re.sub(r"^moebius: |error: ", "", error)


def error_of(y, ref):
    if y.shape != ref.shape:
        return f"shape {list(y.shape)}, expected {list(ref.shape)}"
    return ((y - ref).abs().max() / ref.abs().max()).item()


def good(e):
    return isinstance(e, float) and e <= BOUND


def is_experts(module):
    return type(module).__name__.endswith("Experts") or type(module).__name__.endswith("ParallelExperts")


class Recorder:
    """Inputs and outputs of blocks (what holds the experts) and of their experts, by layer."""

    def __init__(self, model):
        self.blocks, self.experts, self.hooks = {}, {}, []
        for name, module in model.named_modules():
            layer = re.search(r"(?:layers|blocks|block|layer)\.(\d+)\.", name + ".")
            if layer is None or re.search(r"vision|visual|audio|talker|encoder", name):
                continue
            if is_experts(module):
                self.watch(module, int(layer[1]), self.experts)
            elif any(n == "text_moe" for n, _ in module.named_children()) or (        # ERNIE-4.5-VL: shared experts lie around it
                    any(is_experts(c) for c in module.children()) and not name.endswith(("text_moe", "vision_moe"))):
                self.watch(module, int(layer[1]), self.blocks)

    def watch(self, module, layer, store):
        def record(_, args, kwargs, out):
            value = out[0] if isinstance(out, (tuple, list)) else out
            store.setdefault(layer, ([*args, *kwargs.values()], value))
        self.hooks.append(module.register_forward_hook(record, with_kwargs=True))


def run(model, tokens):
    args = {"input_ids": torch.tensor([tokens])}
    if model.config.is_encoder_decoder:
        args["decoder_input_ids"] = args["input_ids"]
    if type(model).__name__.startswith("Qwen3OmniMoeForConditional"):
        model = model.thinker
    with torch.no_grad():
        out = model(**args, use_cache=False)
    return out.logits[0].float() if hasattr(out, "logits") and out.logits.dim() == 3 else None


def moved_by_noise(model, tokens):
    """How far noise on the embeddings moves the logits: what any other order of f32 sums may move, too."""
    plain, g = run(model, tokens), torch.Generator().manual_seed(1)
    if plain is None:
        return 0.0
    text = model.thinker if type(model).__name__.startswith("Qwen3OmniMoeForConditional") else model
    hook = text.get_input_embeddings().register_forward_hook(lambda _, x, y: y * (1 + NOISE * torch.randn(y.shape, generator=g)))
    moved = error_of(run(model, tokens), plain)
    hook.remove()
    return moved


def reference(model):
    """(tokens, what the blocks saw, logits): the first tokens that noise does not move, else those that it moves least."""
    best = None
    for k in range(DRAWS):
        moved = moved_by_noise(model, draw(k))
        if best is None or moved < best[0]:
            best = (moved, draw(k))
        if moved <= BOUND / 4:
            break
    recorder = Recorder(model)
    return best[1], recorder, run(model, best[1])


def first_field(config, names):
    for part in [config, *[getattr(config, n, None) for n in ("text_config", "thinker_config", "ffn_config", "decoder")]]:
        part = getattr(part, "text_config", part)
        for name in names:
            if isinstance(vars(part).get(name) if part is not None else None, int):
                return vars(part)[name]
    return None


def apply(tool, folder, module, inputs, scratch):
    save_file({k: v.contiguous() for k, v in inputs.items()}, scratch / "x")
    (scratch / "y").unlink(missing_ok=True)
    done, error = moebius(tool, "apply", folder, module, "--in", scratch / "x", "--out", scratch / "y", "--out-dtype", "f32")
    return load_file(scratch / "y")["y"] if done.returncode == 0 else error


def block_names(facts):
    """[pattern of a block's name with * for the layer] as Moebius names them."""
    found = {re.sub(r"\.experts\.\*\..*$", "", m["name"]) for m in facts["modules"] if m["kind"] == "expert"}
    return sorted(f for f in found if "*" in f or re.search(r"\.\d+\.", f + "."))


def judge_blocks(tool, folder, facts, recorder, scratch):
    names, out = block_names(facts), {}
    for what, store in (("experts", recorder.experts), ("block", recorder.blocks)):
        for layer, (args, ref) in sorted(store.items())[-1:]:
            candidates = [n.replace("*", str(layer), 1) for n in names if "*" in n or f".{layer}." in n + "."]
            if not candidates:
                out[what] = "no block found"
                continue
            x = args[0].reshape(-1, args[0].shape[-1]).float()
            inputs = {"x": x}
            if what == "experts":
                if len(args) < 3 or not torch.is_tensor(args[1]) or args[1].is_floating_point():
                    continue
                inputs |= {"topk_ids": args[1].reshape(len(x), -1).to(torch.int64),
                           "topk_weights": args[2].reshape(len(x), -1).float()}
                if inputs["topk_weights"].shape != inputs["topk_ids"].shape:
                    continue                                # another interface
            y = apply(tool, folder, candidates[0] + (".experts" if what == "experts" else ""), inputs, scratch)
            out[what] = error_of(y, ref.reshape(len(x), -1).float()) if torch.is_tensor(y) else y
    return out


def judge(tool, kind, head, folder, scratch):
    said = {"architecture": kind, "class": head}
    model = models.make(kind, head)
    tokens, recorder, logits = reference(model)
    model.save_pretrained(folder)
    done, error = moebius(tool, "inspect", folder, "--json")
    if done.returncode != 0:
        return said | {"status": "refused", "reason": error}
    facts = json.loads(done.stdout)
    expected = {"params_total": sum(p.numel() for p in model.parameters()),
                "experts": first_field(model.config, models.EXPERT_FIELDS), "top_k": models.FIXED_TOP_K.get(kind) or first_field(model.config, models.TOP_K_FIELDS)}
    said["facts"] = {k: (facts[k], v) for k, v in expected.items() if facts[k] != v}
    said["unused"] = sorted({u["reason"] for u in facts["unused"]})
    said |= judge_blocks(tool, folder, facts, recorder, scratch)
    if logits is not None:
        done, error = moebius(tool, "logits", folder, "--tokens", ",".join(map(str, tokens)), "--out", scratch / "l", "--dtype", "f32")
        said["logits"] = error if done.returncode != 0 else error_of(load_file(scratch / "l")["logits"], logits)
    wrong = [f"{k} is {a}, transformers: {b}" for k, (a, b) in said["facts"].items()]
    wrong += [f"{k} off by {said[k]:.1e}" for k in ("experts", "block", "logits") if isinstance(said.get(k), float) and not good(said[k])]
    level = ("runs" if good(said.get("logits")) else "block" if good(said.get("block")) else "experts" if good(said.get("experts"))
             else "inspect")
    why = {"experts": ("block",), "inspect": ("experts", "block")}.get(level, ())
    reason = next((re.sub(r"^\S+: ", "", said[k]) for k in why if isinstance(said.get(k), str)), "")
    needs = re.search(r": it (needs [^;]*);", said["logits"]) if isinstance(said.get("logits"), str) else None
    if needs and level != "runs":
        reason = needs[1] + (f"; {reason}" if reason else "")
    return said | {"status": level, "reason": "; ".join(wrong) or reason}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("tool")
    p.add_argument("--only", nargs="*", default=[])
    p.add_argument("--rows", type=Path)
    p.add_argument("--keep", type=Path)
    p.add_argument("--json", type=Path)
    p.add_argument("--markdown", type=Path)
    a = p.parse_args()
    torch.set_num_threads(2)
    earlier = {r["architecture"]: r for r in json.loads(a.rows.read_text())} if a.rows else {}
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for kind, head in models.model_types():
            if a.only and kind not in a.only:
                results += [earlier[kind]] if kind in earlier else []
                continue
            folder = (a.keep or Path(scratch)) / kind
            shutil.rmtree(folder, ignore_errors=True)
            try:
                r = judge(a.tool, kind, head, folder, Path(scratch))
            except Exception as e:      # the library itself refuses: said, not hidden
                at = traceback.extract_tb(e.__traceback__)[-1]
                r = {"architecture": kind, "class": head, "status": "not made",
                     "reason": f"{type(e).__name__}: {str(e)[:160]} ({Path(at.filename).name}:{at.lineno})"}
            results.append(r)
            print(f"{kind:24} {r['status']:9} {r['reason'][:230]}", flush=True)
            if not a.keep:
                shutil.rmtree(folder, ignore_errors=True)
    count = {s: sum(r["status"] == s for r in results) for s in ("runs", "block", "experts", "inspect", "refused", "not made")}
    print(f"transformers {models.transformers.__version__}: {len(results)} architectures: "
          + ", ".join(f"{n} {s}" for s, n in count.items()))
    if a.json:
        a.json.write_text(json.dumps(results, indent=1))
    if a.markdown:
        a.markdown.write_text(table(results))


def table(results):
    words = {"block": "blocks", "experts": "experts", "inspect": "inspected", "refused": "refused", "not made": "not made"}
    whole = [f"`{r['architecture']}`" for r in results if r["status"] == "runs"]
    rows = [f"| `{r['architecture']}` | {words[r['status']]} | {r['reason'].replace('|', '/')[:200]} |" for r in results if r["status"] != "runs"]
    head = f"""# Architectures

For someone with a mixture-of-experts model who asks whether it runs: every such architecture of transformers
{models.transformers.__version__}, by the `model_type` of its config.json. `moebius inspect DIR` answers for a folder. Of each one a tiny random
checkpoint was compared with transformers: parameters, experts and top-k are equal, outputs agree within 1e-5 of the
largest value. `tests/python/architectures.py` writes this page.

**Whole models run** ({len(whole)}; text only of multimodal ones):

"""
    tail = """
**The others.** *Blocks*: mixture-of-experts blocks with their routers are right (`apply`). *Experts*: right with given
expert ids and weights. *Inspected*: every module is listed.

| architecture | what works | what does not |
|---|---|---|
"""
    drafts = """
Layers for multi-token prediction run with `--speculate mtp` where they have one of two forms of names:
`model.layers.L.{eh_proj,enorm,hnorm,shared_head}` behind the last layer (DeepSeek-V3 and V3.2, GLM-4.5 and later, and
families like these), and `mtp.{fc,pre_fc_norm_embedding,pre_fc_norm_hidden,layers,norm}` (Qwen3-Next, Qwen3.5). Others
are accounted for and not read: `inspect` says so.
"""
    return head + textwrap.fill(", ".join(whole), 118, break_on_hyphens=False) + "\n" + tail + "\n".join(rows) + "\n" + drafts


if __name__ == "__main__":
    main()
