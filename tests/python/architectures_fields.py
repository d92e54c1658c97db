# SPDX-License-Identifier: Apache-2.0
"""Fields of config.json that are left out, or have another value: does Moebius read them as transformers does?

    env/bin/python tests/python/architectures_fields.py build/release/moebius [--only NAME ...] [--field NAME] [--null] [--change | --tied]

Of every field of a text model (architectures_models.py makes a tiny random one) a folder is made whose config.json lacks it, and
transformers' from_pretrained and Moebius compute logits of it; with --null another where it is null, with --change further ones
where it has another value, and other tensors if it needs them. With --tied only tie_word_embeddings has its values, at the top and in the text part, over folders that
store an output projection of its own, the table again, and none. Where transformers itself does not accept that, or fills
tensors with random values, nothing is compared. A difference is printed, and is the exit status; a refusal is printed, too: it
is right where it names a field that cannot be run.
"""
import argparse
import copy
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
import torch
import transformers
from safetensors.torch import load_file, save_file

import architectures
import architectures_models as models

transformers.logging.set_verbosity(logging.CRITICAL)
transformers.utils.logging.disable_progress_bar()

TEXT = ("text_config", "thinker_config", "rope_parameters", "ffn_config", "attn_config", "full_attention", "sliding_attention",
        "main", "compress")
ABSENT = object()
# Not arithmetic of a forward pass over given tokens.
SKIP = {"architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "initializer_range", "use_cache", "bos_token_id",
        "pad_token_id", "output_attentions", "output_hidden_states", "return_dict", "problem_type", "chunk_size_feed_forward",
        "router_aux_loss_coef", "output_router_logits", "attention_dropout", "id2label", "label2id", "is_encoder_decoder",
        "auto_map", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "image_token_index",
        "hidden_dropout", "resid_pdrop", "emb_pdrop", "name_or_path", "_name_or_path", "tf_legacy_loss", "pretraining_tp"}


def places(config, at=()):
    """Paths of the fields of the text model."""
    for name, value in config.items():
        if name in SKIP or name.endswith(("_token_id", "_token", "_token_index")) and name != "eos_token_id":
            continue
        if isinstance(value, dict):
            if name in TEXT:
                yield from places(value, (*at, name))
                if at or name not in ("text_config", "thinker_config"):
                    yield (*at, name)
            elif name.endswith("_config") and not at and name not in ("linear_attn_config", "sparse_attention_config"):
                continue
            else:
                yield (*at, name)
        else:
            yield (*at, name)


def holder(config, path):
    for name in path[:-1]:
        config = config[name]
    return config


def others(name, value):
    """Values other than `value` that a field may have."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [v for v in (value + 1, value - 1, value * 2, 1, 0) if v >= 0 and v != value][:3]
    if isinstance(value, float):
        return [value * 1.7 + (0.3 if value == 0 else 0)]
    if isinstance(value, str):
        return {"silu": ["gelu"], "softmax": ["sigmoid"], "sigmoid": ["softmax"]}.get(value, [])
    if isinstance(value, list) and value and len(set(map(str, value))) > 1:
        return [value[::-1], value[1:] + value[:1]]
    return []


def load(cls, folder):
    """The model that transformers makes of a folder; None where it lacks tensors, or has others."""
    model, found = cls.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True)
    return None if any(found[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")) else model.eval()


def reference(kind, cls, folder, fresh, tokens):
    """(model, logits), or None where transformers does not make such a model. `fresh`: of other tensors, which are saved."""
    try:
        try:
            model = load(cls, folder)
        except RuntimeError:                                # tensors of other shapes
            model = None
        if model is None and fresh:
            config = transformers.AutoConfig.from_pretrained(folder)
            config._attn_implementation = "eager"
            model = cls(config).to(torch.float32).eval()
            models.randomize(model, kind)
            for f in folder.iterdir():
                f.unlink()
            model.save_pretrained(folder)
        return (model, architectures.run(model, tokens)) if model is not None else (None, None)
    except Exception:
        return None, None


def read_names():
    """Fields that some file reads here."""
    root, found = Path(__file__).parents[2] / "src", set()
    for folder in ("checkpoint", "model"):
        for f in (root / folder).rglob("*.cpp"):
            found |= set(re.findall(r'"([a-zA-Z][a-zA-Z0-9_]+)"', f.read_text()))
    return found


class Checker:
    def __init__(self, tool, scratch):
        self.tool, self.scratch = tool, scratch
        self.wrong, self.compared, self.read = 0, 0, read_names()

    def ours(self, folder, tokens):
        done, error = architectures.moebius(self.tool, "logits", folder, "--tokens", ",".join(map(str, tokens)), "--out",
                                            self.scratch / "l", "--dtype", "f32")
        return load_file(self.scratch / "l")["logits"] if done.returncode == 0 else error

    def variant(self, folder, config):
        out = self.scratch / "variant"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        for f in folder.iterdir():
            if f.name != "config.json":
                os.symlink(f.resolve(), out / f.name)
        (out / "config.json").write_text(json.dumps(config))
        return out

    def judge(self, kind, base, folder, config, what, name, fresh, always=False):
        made, tokens = self.variant(folder, config), architectures.draw(0)
        try:
            a, b = (transformers.AutoConfig.from_pretrained(f).to_dict() for f in (made, folder))
        except Exception:
            return
        same = json.dumps(a, sort_keys=True, default=str) == json.dumps(b, sort_keys=True, default=str)
        if same and name not in self.read and not always:
            return
        model, ref = (base.model, base.logits) if same and not always else reference(kind, type(base.model), made, fresh, tokens)
        if ref is None:
            return
        y = self.ours(made, tokens)
        if not torch.is_tensor(y):
            self.say(kind, what, f"refused: {y[:170]}")
            return
        error = architectures.error_of(y, ref)
        for k in range(1, architectures.DRAWS):
            if architectures.good(error) or architectures.moved_by_noise(model, tokens) <= architectures.BOUND / 4:
                break
            tokens = architectures.draw(k)
            error = architectures.error_of(self.ours(made, tokens), architectures.run(model, tokens))
        self.compared += 1
        if not architectures.good(error):
            self.wrong += 1
            self.say(kind, what, f"DIFFERS by {error}")

    def say(self, kind, what, text):
        print(f"{kind:22} {what:58} {text}", flush=True)


class Base:
    """A model, saved in `folder`."""

    def __init__(self, kind, head, folder):
        self.model = models.make(kind, head)
        self.model.save_pretrained(folder)
        self.logits = architectures.run(self.model, architectures.draw(0))


HEADS = ("lm_head", "output", "head", "unembed")
TABLES = ("embed_tokens", "wte", "word_embeddings", "tok_embeddings", "embed", "embeddings")


def tied_folders(folder, scratch):
    """(what is stored, folder) of one whose output projection has values of its own, those of the table, or is not there."""
    weights = load_file(folder / "model.safetensors")
    head, table = ([n for n in weights if n.split(".")[-2:] in [[k, "weight"] for k in kinds] and not re.search("talker|visual|vision", n)]
                   for kinds in (HEADS, TABLES))
    if len(table) != 1 or len(head) > 1:
        raise ValueError(f"table {table}, output projection {head}")
    head = head[0] if head else "lm_head.weight"
    own = torch.randn(weights[table[0]].shape, generator=torch.Generator().manual_seed(3)) * 0.1
    for what, value in (("own", weights.get(head, own)), ("the table's", weights[table[0]].clone()), ("none", None)):
        out = scratch / what.replace("'", "").replace(" ", "")
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        save_file({n: t for n, t in weights.items() if n != head} | ({} if value is None else {head: value}), out / "model.safetensors",
                  metadata={"format": "pt"})
        yield what, out


def tied(checker, kind, base, folder, config):
    text = next((k for k in ("text_config", "thinker_config") if k in config), None)
    for stored, out in tied_folders(folder, checker.scratch):
        (out / "config.json").write_text(json.dumps(config))
        for top in (None, False, True):
            for inner in (None, False, True) if text else (None,):
                changed = copy.deepcopy(config)
                for part, value in ((changed, top), *([(changed[text], inner)] if text else [])):
                    part.pop("tie_word_embeddings", None)
                    if value is not None:
                        part["tie_word_embeddings"] = value
                checker.judge(kind, base, out, changed, f"head {stored}, tie {top}" + (f", in {text} {inner}" if text else ""),
                              "tie_word_embeddings", False, always=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("tool")
    p.add_argument("--only", nargs="*", default=[])
    p.add_argument("--field")
    p.add_argument("--null", action="store_true")
    p.add_argument("--change", action="store_true")
    p.add_argument("--tied", action="store_true")
    a = p.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        checker = Checker(a.tool, Path(scratch))
        for kind, head in models.model_types():
            if a.only and kind not in a.only:
                continue
            folder = Path(scratch) / kind
            base = Base(kind, head, folder)
            config = json.loads((folder / "config.json").read_text())
            if not torch.is_tensor(checker.ours(folder, architectures.draw(0))):
                continue                                    # not run as a whole model
            if a.tied:
                tied(checker, kind, base, folder, config)
            for path in [] if a.tied else sorted(set(places(config))):
                if a.field and path[-1] != a.field:
                    continue
                name, value = ".".join(path), holder(config, path)[path[-1]]
                for new in [ABSENT, *([None] if a.null and value is not None else []), *(others(path[-1], value) if a.change else [])]:
                    changed = copy.deepcopy(config)
                    holder(changed, path)[path[-1]] = new
                    if new is ABSENT:
                        del holder(changed, path)[path[-1]]
                    what = f"without {name}" if new is ABSENT else f"{name} {json.dumps(value)[:30]} -> {json.dumps(new)[:30]}"
                    checker.judge(kind, base, folder, changed, what, path[-1], new is not ABSENT)
            print(f"{kind:22} {checker.compared} compared so far, {checker.wrong} differ", flush=True)
    return 1 if checker.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
