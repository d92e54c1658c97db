#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""D6: what idle ranks cost, how fast they wake, and ranks that outnumber cores.

    bench/rank_idle.py MPI [idle] [crowd] [--model FOLDER] [--build build/release]

MPI: openmpi or mpich. idle: `serve` on two ranks of one thread: CPU of the second while nothing is asked (at most 5 % of a core), and
how much later the first token comes after 2 s of idleness than right after another answer, beside one process (at most 2 ms).
crowd: `bench model` on a model of 400 MB, `--tp 4` on two cores beside `--tp 2` (at most 1.3 times its time). Means something on a
quiet machine only.
"""
import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/checks"))
sys.path.insert(0, str(ROOT / "bench"))
from check_mpi import launcher, wait_ready, write_model  # noqa: E402
from rank_faults import ranks_below  # noqa: E402


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Served:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True)
        self.address = self.process.stdout.readline().strip()
        wait_ready(self.address)
        self.connection = http.client.HTTPConnection(self.address.removeprefix("http://"), timeout=60)
        self.asked = 0

    def first_token(self):
        """Milliseconds of an answer of one token to a prompt that nobody has asked before."""
        self.asked += 1
        body = json.dumps({"prompt": f"{self.asked} times it was", "max_tokens": 1, "temperature": 0})
        start = time.perf_counter()
        self.connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        self.connection.getresponse().read()
        return 1e3 * (time.perf_counter() - start)

    def wake(self, rounds):
        """How much later an answer comes after idleness, the median of differences."""
        late = []
        for _ in range(rounds):
            self.first_token()
            warm = min(self.first_token() for _ in range(3))
            time.sleep(2)
            late.append(self.first_token() - warm)
        return statistics.median(late)

    def close(self):
        self.process.terminate()
        self.process.wait()


def idle(mpi, tool):
    options = ["serve", "--port", "0", "--threads", "1", "--ctx", "256", "--quiet"]
    alone = Served([tool] + options)
    single = alone.wake(5)
    alone.close()
    served = Served(launcher(mpi) + ["-n", "2", tool] + options + ["--pp", "2"])
    ranks, _ = ranks_below(served.process.pid, mpi)
    served.first_token()
    time.sleep(0.5)
    before = cpu_seconds(ranks[1])
    time.sleep(6)
    share = (cpu_seconds(ranks[1]) - before) / 6
    late = served.wake(5)
    served.close()
    print(f"{mpi}: an idle follower takes {100 * share:.1f} % of a core; after 2 s of idleness the first token comes {late:.2f} ms later "
          f"(one process: {single:.2f} ms)", flush=True)
    return share <= 0.05 and late - max(0.0, single) <= 2


def crowd(mpi, tool, model):
    with tempfile.TemporaryDirectory(dir=Path(tool).parent) as folder:
        if model is None:
            model = Path(folder) / "model"
            write_model(model)
        bench = [tool, "bench", "model", str(model), "--threads", "1", "--seconds", "0.5", "--prompts", "64", "--batches", "1,8", "--json", "--quiet"]
        runs = {2: [], 4: []}
        for ranks in (2, 4, 2, 4):
            job = subprocess.run(launcher(mpi) + ["-n", str(ranks)] + bench + ["--tp", str(ranks)], stdin=subprocess.DEVNULL, capture_output=True,
                                 text=True, check=False)
            if job.returncode != 0:
                raise AssertionError(job.stderr)
            runs[ranks].append(json.loads(job.stdout))
    good = True
    for test in ("tg_b1_ms", "tg_b8_ms", "pp64_ms"):
        two, four = (min(r[test] for r in runs[n]) for n in (2, 4))
        print(f"{mpi}: {test}: {four:.2f} ms on 4 ranks, {two:.2f} ms on 2: {four / two:.2f} times", flush=True)
        good = good and four <= 1.3 * two
    return good


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("mpi", choices=["openmpi", "mpich"])
    p.add_argument("parts", nargs="*", choices=["idle", "crowd"], default=["idle"])
    p.add_argument("--build", type=Path, default=ROOT / "build/release")
    p.add_argument("--model", type=Path, help="of crowd; without it one of 400 MB is made")
    a = p.parse_args()
    tool = str(a.build / "moebius")
    good = True
    if "idle" in a.parts:
        good = idle(a.mpi, tool) and good
    if "crowd" in a.parts:
        good = crowd(a.mpi, tool, a.model) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
