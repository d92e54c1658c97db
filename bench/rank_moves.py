#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""D9: the slowest decode steps while experts move between ranks.

    bench/rank_moves.py MPI [--rounds 2] [--steps 700] [--build build/release]

A model whose last experts are the busy ones runs on two ranks of one thread with a quarter more places (--ep 2 --spare 8); nothing
is known of loads, so that layer after layer moves while steps go on. Beside it, in turns: the same with a file of loads that is
right, so that nothing moves, and one process of two threads, which shows what the machine does by itself. Demanded: no step over
twice the median, and the busiest rank at most 1.1 times the mean in the end. Means something on a quiet machine only.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/checks"))
from check_mpi import EXPERTS, LAYERS, launcher, write_model  # noqa: E402

BUSY = EXPERTS // 4


def write_loads(path):
    rows = [1 if e < EXPERTS - BUSY else 20 for e in range(EXPERTS)]
    path.write_text(json.dumps({"moebius_expert_loads": 1, "layers": {str(i): rows for i in range(LAYERS)}}), encoding="utf-8")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("mpi", choices=["openmpi", "mpich"])
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--steps", type=int, default=700)
    p.add_argument("--model", type=Path, help="such a model that was kept")
    p.add_argument("--build", type=Path, default=ROOT / "build/release")
    a = p.parse_args()
    good = True
    with tempfile.TemporaryDirectory(dir=a.build) as folder:
        model = a.model or Path(folder) / "model"
        if not a.model:
            write_model(model, BUSY)
        bench = [str(a.build / "moebius"), "bench", "model", str(model), "--seconds", "0.1", "--prompts", "2", "--batches", "8", "--json", "--quiet"]
        loads = Path(folder) / "loads.json"
        ranks = launcher(a.mpi) + ["-n", "2"] + bench + ["--ep", "2", "--spare", str(EXPERTS // 4), "--threads", "1", "--expert-loads", str(loads)]
        for _ in range(a.rounds):
            for what, command, known, steps in (("one process", bench + ["--threads", "2"], False, a.steps // 2),
                                               ("nothing moves", ranks, True, a.steps // 2),
                                               ("experts move", ranks, False, a.steps)):
                loads.unlink(missing_ok=True)
                if known:
                    write_loads(loads)
                job = subprocess.run(command + ["--steps", str(steps)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
                if job.returncode != 0:
                    raise AssertionError(job.stderr)
                j = json.loads(job.stdout)
                share = j["tg_b8_slowest_ms"] / j["tg_b8_ms"]
                line = f"{what}: median {j['tg_b8_ms']:.2f} ms, slowest {share:.2f} times, {j['tg_b8_slow_steps']} of {steps} steps over twice"
                if "rank_imbalance" in j:
                    line += f"; busiest over mean {j['rank_imbalance']:.2f}, {j['layers_moved']} layers moved"
                print(line, flush=True)
                if what == "experts move":
                    good = good and share <= 2 and j["rank_imbalance"] <= 1.1
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
