#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills and stops ranks of a running job at random moments, and looks at how the job ends.

    bench/rank_faults.py MPI [--kills 100] [--stops 20] [--seed 1] [--latest 2.5] [--within 5] [--build build/release]

MPI: openmpi or mpich. Every job runs the bundled model on 2 to 4 ranks in a random form. Kills come from the start of the program on,
stops once text comes (bench/rank_stops.py stops ranks in every phase). Demanded of each: all processes are gone within 5 s (--within: more on
a machine that does other work; a stop: so long behind --rank-timeout, 5 s here), the status is not 0, a sentence names the rank and its phase (no other rank is named where one was killed; where one
stops, those that wait for one that waits are named too), and no process is left.
"""
import argparse
import os
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/checks"))
from check_mpi import alive, children_of, launcher  # noqa: E402

SILENCE = 5  # --rank-timeout of jobs with a stop
PATIENCE = 600  # of the others: there no rank is to be found by its silence
SPLITS = {2: ["--pp 2", "--tp 2", "--ep 2"], 3: ["--pp 3", "--tp 3"], 4: ["--pp 2 --tp 2", "--tp 4", "--pp 2 --ep 2"]}


def text_of(path):
    try:
        return Path(path).read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def ranks_below(pid, mpi):
    """Rank -> process of the tool, and all witnesses."""
    variable = "OMPI_COMM_WORLD_RANK" if mpi == "openmpi" else "PMI_RANK"
    ranks, witnesses = {}, []
    for child in children_of(pid):
        name = text_of(f"/proc/{child}/comm").strip()
        if name.startswith("moebius-witness"[:15]):
            witnesses.append(child)
        elif name == "moebius":
            found = re.search(rf"(?:^|\0){variable}=(\d+)", text_of(f"/proc/{child}/environ"))
            if found:
                ranks[int(found.group(1))] = child
    return ranks, witnesses


def one(mpi, build, draw, stop, latest, within):
    n = draw.choice([2, 3, 4])
    split = draw.choice(SPLITS[n])
    command = launcher(mpi) + ["-n", str(n), str(build / "moebius"), "run", "-p", "It was", "-n", "-1", "--ignore-eos", "--temp", "0", "--threads", "1",
                               "--ctx", "1000000", "--rank-timeout", str(SILENCE if stop else PATIENCE)] + split.split()
    with tempfile.TemporaryFile() as err:
        job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err)
        deadline = time.monotonic() + 60
        while True:
            ranks, witnesses = ranks_below(job.pid, mpi)
            if len(ranks) == n and len(witnesses) == n:
                break
            if time.monotonic() > deadline or job.poll() is not None:
                job.kill()
                raise AssertionError(f"{n} ranks did not start")
            time.sleep(0.01)
        if stop:
            select.select([job.stdout], [], [], 60)
        until = time.monotonic() + draw.uniform(0, latest)
        while time.monotonic() < until:  # text must not fill the pipe
            if select.select([job.stdout], [], [], 0.01)[0]:
                os.read(job.stdout.fileno(), 65536)
        everything = children_of(job.pid) + [job.pid]
        victim = draw.choice(sorted(ranks))
        os.kill(ranks[victim], signal.SIGSTOP if stop else signal.SIGKILL)
        start = last = time.monotonic()
        limit = within + (SILENCE if stop else 0)
        while last - start < limit + 20:
            now = time.monotonic()
            if now - last > 1:  # this process was stopped, and the job with it
                start += now - last
            last = now
            if select.select([job.stdout], [], [], 0)[0]:
                os.read(job.stdout.fileno(), 65536)
            status = job.poll()
            if status is not None and not any(alive(p) for p in everything):
                break
            time.sleep(0.005)
        seconds = time.monotonic() - start
        left = [p for p in everything if alive(p)]
        for p in left:
            os.kill(p, signal.SIGKILL)
        job.wait()
        job.stdout.close()
        err.seek(0)
        words = err.read().decode("utf-8", "replace")
    said = re.findall(r"rank (\d+) \([^)]*\) is gone, killed or crashed: step \d+, [A-Za-z]", words) + \
        re.findall(r"rank (\d+) \([^)]*\) was silent for [\d.e+]+ s: step \d+, [A-Za-z]", words)
    bad = []
    if left:
        bad.append(f"processes left: {left}")
    if seconds > limit:
        bad.append(f"took {seconds:.1f} s")
    if job.returncode == 0:
        bad.append("status 0")
    if str(victim) not in said or (not stop and set(said) != {str(victim)}):
        bad.append(f"named {said}")
    return dict(n=n, split=split, victim=victim, seconds=seconds, status=job.returncode, sentences=len(said), bad=bad, words=words)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("mpi", choices=["openmpi", "mpich"])
    p.add_argument("--kills", type=int, default=100)
    p.add_argument("--stops", type=int, default=20)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--latest", type=float, default=2.5, help="seconds behind the start of all ranks; 0.3 looks at starting ones")
    p.add_argument("--within", type=float, default=5, help="seconds after which all processes must be gone")
    p.add_argument("--build", type=Path, default=ROOT / "build/release")
    p.add_argument("--verbose", action="store_true")
    a = p.parse_args()
    draw = random.Random(a.seed)
    failed = 0
    for stop, count in ((False, a.kills), (True, a.stops)):
        times, sentences, statuses = [], [], set()
        for i in range(count):
            r = one(a.mpi, a.build, draw, stop, a.latest, a.within)
            times.append(r["seconds"])
            sentences.append(r["sentences"])
            statuses.add(r["status"])
            if r["bad"] or a.verbose:
                print(f"{'stop' if stop else 'kill'} {i}: {r['n']} ranks {r['split']}, rank {r['victim']}: {'; '.join(r['bad']) or 'as demanded'}"
                      f" ({r['seconds']:.2f} s)\n" + (r["words"] if r["bad"] else ""), flush=True)
            failed += bool(r["bad"])
        if count:
            times.sort()
            print(f"{a.mpi}: {count} {'stops' if stop else 'kills'}: gone after {times[len(times) // 2]:.2f} s (median), {times[-1]:.2f} s (longest); "
                  f"sentences per job {min(sentences)} to {max(sentences)}; statuses {sorted(statuses)}", flush=True)
    print(f"{failed} of {a.kills + a.stops} not as demanded")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
