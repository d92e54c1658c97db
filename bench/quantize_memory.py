#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory of `moebius quantize` on a large source: the peak against the forecast, in a control group of the forecast plus 10 %.

    bench/make_synthetic_moe.py FOLDER --bf16 --layers 80 --experts 16 --hidden 512 --intermediate 256 --heads 4 --vocab 1024
    quantize_memory.py --tool build/release/moebius FOLDER [--threads 1] [--method gptq]

Runs rtn, search and gptq (4,096 random tokens, rows in files) with --memory of an eighth of the source, or of the least that the
tool asks for. As root with a writable memory controller each run is put into a group of its own, where more than the forecast plus
10 % ends it. Prints one JSON object per run; exit status 1 where one is beyond, or ends otherwise.
"""
import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from memory_group import Group


def run(args, words, limit=None):
    group = Group(limit) if limit else None
    done = subprocess.run([args.tool, "quantize", args.folder, *map(str, words), "-q", "--json", "--threads", str(args.threads)],
                          capture_output=True, text=True, preexec_fn=group.enter if group else None)
    if group:
        group.close()
    return done, bool(group and group.path)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tool", required=True)
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--method", choices=["rtn", "search", "gptq"], help="only this one")
    ap.add_argument("folder")
    args = ap.parse_args()
    vocab = json.loads((Path(args.folder) / "config.json").read_text())["vocab_size"]
    source = sum(f.stat().st_size for f in Path(args.folder).glob("*.safetensors"))
    work = Path(tempfile.mkdtemp(prefix="quantize_memory_", dir=Path(args.folder).parent))
    draw = random.Random(1)
    (work / "t.jsonl").write_text("".join(json.dumps({"input_ids": [draw.randrange(vocab) for _ in range(512)]}) + "\n" for _ in range(8)))
    calib = ["--calib", work / "t.jsonl", "--calib-ctx", 512, "--scratch", work]
    failed = 0
    for scheme, words in (("W4A16", ["--method", "rtn"]), ("W4A16", ["--method", "search", *calib]), ("W4A16", ["--method", "gptq", *calib])):
        if args.method not in (None, words[1]):
            continue
        out = work / "out"
        base = [out, "--scheme", scheme, *words]
        plan, _ = run(args, [*base, "--memory", source // 8, "--dry-run"])
        if plan.returncode:
            print(json.dumps({"method": words[1], "refused": plan.stderr.strip()[-200:]}))
            failed += 1
            continue
        forecast = json.loads(plan.stdout)["memory"]
        done, held = run(args, [*base, "--memory", source // 8], forecast * 11 // 10)
        peak = json.loads(done.stdout)["memory_peak"] if done.returncode == 0 else None
        ok = peak is not None and peak <= 1.1 * forecast
        failed += not ok
        print(json.dumps({"method": words[1], "source": source, "forecast": forecast, "peak": peak, "group": held, "ok": ok,
                          "error": done.stderr.strip()[-200:] if done.returncode else ""}), flush=True)
        shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(work)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
