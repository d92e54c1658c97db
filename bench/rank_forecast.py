#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""D11: the planner's step times beside measured ones, --pp, --tp and --ep on two ranks of one thread.

    bench/rank_forecast.py MPI [--model FOLDER] [--build build/release]

The planner gets what it would be told of a machine: the rates that one rank reaches (fitted to its steps of 1 row and its prompt of 128)
and the link between two (moebius_rank_program ping). Demanded: forecasts within 25 % of what is measured, and the best form or one
within 10 % of it chosen. Means something on a quiet machine only.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/checks"))
from check_mpi import launcher, write_model  # noqa: E402

FORMS = {"pp": {"pp": 2, "tp": 1, "ep": 1}, "tp": {"pp": 1, "tp": 2, "ep": 1}, "ep": {"pp": 1, "tp": 1, "ep": 2}}


def output_of(command):
    job = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if job.returncode != 0:
        raise AssertionError(f"{command}: status {job.returncode}\n{job.stderr}")
    return job.stdout


def forecasts(tool, model, ranks, read, multiply, link, batch):
    text = output_of([tool, "explain", str(model), "--ranks", str(ranks), "--link", link, "--node", f"1x1024G@{read:.6f}G,{multiply:.6f}G",
                      "--batch", str(batch), "--prompt", "128", "--json"])
    return json.loads(text)["splits"]


def fit(tool, model, one):
    """Rates with which the model says what one rank measured."""
    read, multiply = 20.0, 50.0
    for _ in range(8):
        f = forecasts(tool, model, 1, read, multiply, "100G,1us", 1)[0]
        read *= f["step_ms"] / one["tg_b1_ms"]
        f = forecasts(tool, model, 1, read, multiply, "100G,1us", 1)[0]
        multiply *= f["prompt_ms"] / one["pp128_ms"]
    return read, multiply


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("mpi", choices=["openmpi", "mpich"])
    p.add_argument("--build", type=Path, default=ROOT / "build/release")
    p.add_argument("--model", type=Path, help="a folder; without it one of 430 MB is made")
    a = p.parse_args()
    tool, good = str(a.build / "moebius"), True
    with tempfile.TemporaryDirectory(dir=a.build) as folder:
        model = a.model or Path(folder) / "model"
        if not a.model:
            write_model(model)
        bench = [tool, "bench", "model", str(model), "--threads", "1", "--seconds", "0.3", "--prompts", "128", "--batches", "1,8", "--json", "--quiet"]
        ranks = launcher(a.mpi) + ["-n", "2"]
        one = json.loads(output_of(bench))
        read, multiply = fit(tool, model, one)
        link = output_of(ranks + [str(a.build / "moebius_rank_program"), "ping"]).split("link ")[1].strip()
        print(f"one rank: {read:.1f} GB/s, {multiply:.1f} G multiply-adds/s; link {link}")
        measured = {form: json.loads(output_of(ranks + bench + [f"--{form}", "2"])) for form in FORMS}
        for batch in (1, 8):
            said = {form: next(f for f in forecasts(tool, model, 2, read, multiply, link, batch) if all(f[k] == v for k, v in split.items()))["step_ms"]
                    for form, split in FORMS.items()}
            took = {form: m[f"tg_b{batch}_ms"] for form, m in measured.items()}
            for form in FORMS:
                print(f"batch {batch}, {form}: forecast {said[form]:.2f} ms, measured {took[form]:.2f} ms: {said[form] / took[form]:.2f}")
                good = good and 0.75 <= said[form] / took[form] <= 1.25
            chosen, best = min(said, key=said.get), min(took, key=took.get)
            print(f"batch {batch}: chosen {chosen}, best {best}: {took[chosen] / took[best]:.2f} times its time")
            good = good and took[chosen] <= 1.1 * took[best]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
