#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make every golden checkpoint of build/data/golden with the real libraries.

    make_checkpoints.py [--out build/data/golden] [--work DIR] [--overlay-018 DIR] [--overlay-0171 DIR] [name ...]
    make_checkpoints.py --list

No name: all of them. The table is make_checkpoints_table.py. Needs make_checkpoints_requirements.txt. Every folder is a
function of the table alone (fixed seeds); each kind of work runs in its own process, because llmcompressor's load_context
changes the process for good and because three library versions are involved.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", CUDA_VISIBLE_DEVICES="")
HERE = Path(__file__).resolve().parent
KEEP = ("config.json", "generation_config.json", "model.safetensors.index.json")
SAMPLES, LENGTH = 24, 64


def tidy(folder):
    """Leave only what a loader reads."""
    for f in sorted(Path(folder).iterdir()):
        if f.name not in KEEP and not f.name.endswith(".safetensors"):
            f.unlink()


def make_dense(case, dense, out):
    shutil.copytree(dense, out)


def dummy_tokenizer():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    words = {f"t{i}": i for i in range(64)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="t0")), unk_token="t0",
                                   pad_token="t0")


def make_oneshot(case, dense, out):
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.utils import load_context
    from transformers import AutoModelForCausalLM
    torch.manual_seed(7)
    with load_context():             # one Linear per expert matrix, so that they can be quantized
        model = AutoModelForCausalLM.from_pretrained(dense, dtype=torch.bfloat16)
    groups = {f"group_{i}": s for i, s in enumerate(case.schemes())}
    kind, extra = (GPTQModifier, {}) if case.gptq else (QuantizationModifier, {})
    if case.kv_cache:
        extra["kv_cache_scheme"] = case.kv_cache()
    recipe = kind(config_groups=groups, ignore=case.ignore, **extra)
    if case.calibrate:
        g = torch.Generator().manual_seed(11)
        ids = torch.randint(3, model.config.get_text_config().vocab_size, (SAMPLES, LENGTH), generator=g).tolist()
        data = Dataset.from_list([{"input_ids": r, "attention_mask": [1] * LENGTH} for r in ids])
        oneshot(model=model, tokenizer=dummy_tokenizer(), dataset=data, recipe=recipe, num_calibration_samples=SAMPLES,
                max_seq_length=LENGTH)
    else:
        oneshot(model=model, tokenizer=dummy_tokenizer(), recipe=recipe)
    model.save_pretrained(out, save_compressed=True, **({"max_shard_size": case.shard} if case.shard else {}))


def make_free(case, dense, out):
    from llmcompressor import model_free_ptq
    how = {"scheme": case.preset} if case.preset else {"scheme": case.schemes()[0]}
    model_free_ptq(model_stub=str(dense), save_directory=str(out), ignore=case.ignore, device="cpu", **how)


def make_composed(case, dense, out):
    import make_checkpoints_compose
    getattr(make_checkpoints_compose, case.compose)(case, Path(dense), Path(out))


MAKERS = {"dense": make_dense, "oneshot": make_oneshot, "free": make_free, "compose": make_composed}


def worker(stage, cases, out, work):
    """Runs in a child process: all cases of one stage and one library version."""
    bad = []
    import make_checkpoints_models
    if any((case if stage == "base" else case.model) in make_checkpoints_models.REGISTERED for case in cases):
        make_checkpoints_models.register()
    for case in cases:
        try:
            if stage == "base":
                make_checkpoints_models.make_dense(case, work / case)
            elif stage == "expected":
                import make_checkpoints_expected
                (work / "decoded").mkdir(exist_ok=True)
                make_checkpoints_expected.write(out / case.name, case, work / "decoded" / f"{case.name}.safetensors")
            elif stage == "logits":
                import make_checkpoints_logits
                decoded = work / "decoded" / f"{case.name}.safetensors"
                if decoded.exists() and case.model != "llama4":      # load_context cannot load it
                    make_checkpoints_logits.write(out / case.name, work / case.model, decoded)
            else:
                shutil.rmtree(out / case.name, ignore_errors=True)
                MAKERS[stage](case, work / case.model, out / case.name)
                tidy(out / case.name)
            for f in ([] if stage == "base" else (out / case.name).iterdir()):
                f.chmod(0o644)
            print(f"OK   {stage:9} {case if stage == 'base' else case.name}", flush=True)
        except Exception as e:
            traceback.print_exc()
            print(f"FAIL {stage:9} {case if stage == 'base' else case.name}: {type(e).__name__}: {str(e)[:300]}", flush=True)
            bad.append(case)
    return 1 if bad else 0


def child(args, stage, env, names):
    if not names:
        return 0
    e = dict(os.environ)
    overlay = {"018": args.overlay_018, "0171": args.overlay_0171}.get(env)
    if env != "main":
        if not overlay:
            print(f"SKIP {stage:9} {' '.join(names)}: needs --overlay-{env}")
            return 0
        e["PYTHONPATH"] = overlay
    cmd = [sys.executable, "-B", str(HERE / "make_checkpoints.py"), "--out", args.out, "--work", args.work, "--stage", stage]
    return subprocess.run(cmd + list(names), env=e).returncode


def main():
    from make_checkpoints_table import CASES
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", default=str(HERE.parent / "golden"))
    ap.add_argument("--work", default=None, help="where the dense models go (default: a temporary folder)")
    ap.add_argument("--overlay-018", default="")
    ap.add_argument("--overlay-0171", default="")
    ap.add_argument("--stage", default="", help=argparse.SUPPRESS)
    ap.add_argument("--list", action="store_true")
    ap.add_argument("names", nargs="*")
    args = ap.parse_args()
    by_name = {c.name: c for c in CASES}
    if args.stage:
        todo = args.names if args.stage == "base" else [by_name[n] for n in args.names]
        return worker(args.stage, todo, Path(args.out), Path(args.work))
    if args.list:
        for c in CASES:
            print(f"{c.name:40} {c.stage:8} {c.env:5} {c.model}")
        return 0
    args.work = args.work or tempfile.mkdtemp(prefix="make_checkpoints_")
    chosen = [by_name[n] for n in args.names] if args.names else CASES
    missing = sorted({c.model for c in chosen if not (Path(args.work) / c.model / "config.json").exists()})
    rc = child(args, "base", "main", missing)
    for stage in MAKERS:
        for env in ("main", "018", "0171"):
            rc |= child(args, stage, env, [c.name for c in chosen if c.stage == stage and c.env == env])
    for env in ("main", "018", "0171"):
        rc |= child(args, "expected", env, [c.name for c in chosen if c.env == env])
    return rc | child(args, "logits", "main", [c.name for c in chosen])


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.exit(main())
