#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts with and without packed weights on disk, and a model that is larger than its memory.

    bench/make_synthetic_moe.py FOLDER
    bench/pack_start.py --tool build/release/moebius FOLDER [--work DIR] [--limit-gib X] [--rounds 3]

Loads the folder without --pack-dir, with it for the first time, and then from the file (medians of the rounds; all files are in the
page cache). Logits of 64 tokens must be equal bytes. With --limit-gib, as root with a writable memory controller, the model also runs in a
control group of that size, with nothing of the file in memory before: equal bytes again, and tokens per second; and is packed there: an equal
file. Prints one JSON object; exit status 1 where bytes differ.
"""
import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from memory_group import Group


def tool(args, words, group=None):
    done = subprocess.run([args.tool, *map(str, words)], capture_output=True, text=True, preexec_fn=group.enter if group else None)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr[-2000:]}")
    return done


def start(args, pack, tokens=1, group=None):
    words = ["run", args.folder, "--tokens", "1,2,3", "-n", tokens, "--temp", 0, "--json", "--ctx", 256, "--speculate", "off"]
    return json.loads(tool(args, words + (["--pack-dir", pack] if pack else []), group).stdout)


def logits(args, out, pack, group=None):
    words = ["logits", args.folder, "--tokens", ",".join(str(i * 37 % 1000) for i in range(64)), "--out", out]
    tool(args, words + (["--pack-dir", pack] if pack else []), group)
    return Path(out).read_bytes()


def forget(folder):
    """Takes the files of a folder out of the page cache, so that who reads them next is charged for it."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tool", required=True)
    ap.add_argument("--work", help="where packed weights and logits lie; beside the folder unless given")
    ap.add_argument("--limit-gib", type=float, help="memory of the control group")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("folder")
    args = ap.parse_args()
    work = Path(tempfile.mkdtemp(prefix="pack_start_", dir=args.work or Path(args.folder).resolve().parent))
    try:
        pack = work / "packed"
        plain = logits(args, work / "plain", None)  # reads the folder into the page cache
        packing = [start(args, None) for _ in range(args.rounds)]
        first = start(args, pack)
        mapped = [start(args, pack) for _ in range(args.rounds)]
        seconds = [statistics.median(r["load_seconds"] for r in rs) for rs in (packing, mapped)]
        result = {"folder_bytes": sum(f.stat().st_size for f in Path(args.folder).glob("*.safetensors")),
                  "packed_bytes": sum(f.stat().st_size for f in pack.glob("*.packed")),
                  "packing_s": round(seconds[0], 3), "first_s": round(first["load_seconds"], 3), "mapped_s": round(seconds[1], 3),
                  "ratio": round(seconds[0] / seconds[1], 1), "equal": logits(args, work / "mapped", pack) == plain}
        speed = [statistics.median(start(args, p, 64)["decode_tokens_per_s"] for _ in range(args.rounds)) for p in (None, pack)]
        result["decode_tokens_per_s"], result["decode_tokens_per_s_mapped"] = (round(s, 2) for s in speed)
        if args.limit_gib:
            group = Group(int(args.limit_gib * 2**30))
            if group.path is None:
                raise SystemExit("no control group with a limit of memory can be made here")
            try:
                result["limit_gib"] = args.limit_gib
                forget(pack)
                result["limited_equal"] = logits(args, work / "limited", pack, group) == plain
                forget(pack)
                result["limited_tokens_per_s"] = round(start(args, pack, 32, group)["decode_tokens_per_s"], 2)
                other = work / "limited_pack"
                tool(args, ["pack", args.folder, other], group)
                hashes = [hashlib.sha256(f.read_bytes()).hexdigest() for d in (pack, other) for f in d.glob("*.packed")]
                result["limited_file_equal"] = len(hashes) == 2 and hashes[0] == hashes[1]
            finally:
                group.close()
        print(json.dumps(result))
        return 0 if result["equal"] and result.get("limited_equal", True) and result.get("limited_file_equal", True) else 1
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    sys.exit(main())
