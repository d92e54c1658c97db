#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""D11: the planner's step times beside measured ones, --pp, --tp and --ep on two ranks of one thread.

    bench/rank_forecast.py MPI [--model FOLDER] [--build build/release]

`bench model` on ranks says both: before it loads, all ranks time a few experts and matrices of the folder and an exchange
(src/model/ranks/rank_costs.h), and from these the planner says what a step of every split would take. Demanded of decode steps: forecasts
within 25 % of what is measured, and the best form or one within 10 % of it chosen. Means something on a quiet machine only.
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

FORMS = ("pp", "tp", "ep")


def json_of(command):
    job = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if job.returncode != 0:
        raise AssertionError(f"{command}: status {job.returncode}\n{job.stderr}")
    return json.loads(job.stdout)


def judge(jobs):
    """Prints forecasts beside times; whether decode steps meet the demand. jobs: what `bench model --json` said, by form."""
    good = True
    for test in jobs["pp"]["forecast_ms"]:
        took = {form: job[test + "_ms"] for form, job in jobs.items()}
        best = min(took, key=took.get)
        for form, job in jobs.items():
            said = job["forecast_ms"][test]
            share, chosen = said[f"{form} 2"] / took[form], min(said, key=said.get)[:2]
            print(f"{test}, {form}: forecast {said[form + ' 2']:.2f} ms, measured {took[form]:.2f} ms: {share:.2f}; chosen {chosen}, "
                  f"best {best}: {took[chosen] / took[best]:.2f} times its time", flush=True)
            if test.startswith("tg"):
                good = good and 0.75 <= share <= 1.25 and took[chosen] <= 1.1 * took[best]
    return good


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("mpi", choices=["openmpi", "mpich"])
    p.add_argument("--build", type=Path, default=ROOT / "build/release")
    p.add_argument("--model", type=Path, help="a folder; without it one of 430 MB is made")
    a = p.parse_args()
    tool = str(a.build / "moebius")
    with tempfile.TemporaryDirectory(dir=a.build) as folder:
        model = a.model or Path(folder) / "model"
        if not a.model:
            write_model(model)
        bench = [tool, "bench", "model", str(model), "--threads", "1", "--seconds", "0.3", "--prompts", "128", "--batches", "1,8,16", "--json",
                 "--quiet"]
        ranks = launcher(a.mpi) + ["-n", "2"]
        good = judge({form: json_of(ranks + bench + [f"--{form}", "2"]) for form in FORMS})
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
