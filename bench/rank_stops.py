#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes a rank away from jobs in every phase, and looks at how they end.

    bench/rank_stops.py [MPI ...] [--build build/release] [--timeout 3] [--within 5] [--seed 1] [--at-once 4] [--only TEXT]

MPI: openmpi, mpich (both). `run` and `serve` of the bundled model on 2 or 3 ranks, one of which stops (SIGSTOP), exits (at the start by itself with
status 0, later by SIGKILL) or sleeps (longer than --rank-timeout, then goes on) in one of these phases:
    start    before it is the tool       join     while ranks meet         load     while it reads the folder
    prefill  while a prompt is computed  decode   while text comes         drain    while the job is told to end
Demanded of each job: within --timeout, which is its --rank-timeout, and --within seconds (more on a machine that does other work) all is over, the
status is not 0, the first sentence names the rank and its host, and no process is left. (A server that is told to end does so within a second: whom it
names is not judged.) Exit status 1: one of them is not as demanded.
"""
import argparse
import concurrent.futures
import http.client
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/checks"))
from check_mpi import alive, launcher  # noqa: E402
from rank_faults import ranks_below, text_of  # noqa: E402

KINDS, PHASES, COMMANDS = ["stop", "exit", "sleep"], ["start", "join", "load", "prefill", "decode", "drain"], ["run", "serve"]
STARTS = 120  # seconds that a job may take until its phase comes
MARK = "MOEBIUS_RANK_STOPS"
AT_START = {"stop": "kill -STOP $$", "exit": "exit 0", "sleep": "sleep 600"}
SENTENCE = re.compile(r"rank (\d+) \([^)]+\) (?:was silent for|is gone|did not start|ended before)")
LONG = "It was a dark night. " * 4000


def marked(mark):
    """All processes of a job, whoever is their parent now."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes() and alive(int(entry.name)):
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def reads_weights(pid):
    try:
        return any(os.readlink(f).endswith(".safetensors") for f in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


class Job:
    def __init__(self, mpi, build, command, kind, phase, timeout, draw):  # does not start it
        self.mpi, self.command, self.kind, self.phase, self.timeout = mpi, command, kind, phase, timeout
        self.size = draw.choice([2, 3])
        # Ends are told to rank 0.
        self.victim = draw.randrange(1 if phase == "drain" else 0, self.size)
        self.mark = f"{MARK}={uuid.uuid4()}"
        variable = "OMPI_COMM_WORLD_RANK" if mpi == "openmpi" else "PMI_RANK"
        words = [str(build / "moebius"), command, "--threads", "1", "--ctx", "300000", "--rank-timeout", str(timeout), draw.choice(["--pp", "--tp"]), str(self.size)]
        self.folder = tempfile.TemporaryDirectory()
        if command == "run":
            prompt = Path(self.folder.name) / "prompt"
            prompt.write_text(LONG if phase == "prefill" else "It was", encoding="utf-8")
            words += ["--file", str(prompt), "-n", "-1", "--ignore-eos", "--temp", "0"]
        else:
            words += ["--port", "0"]
        before = f"if [ ${variable} = {self.victim} ]; then {AT_START[kind]}; fi; " if phase == "start" else ""
        script = before + 'exec "$@"'
        self.out, self.err = Path(self.folder.name) / "out", Path(self.folder.name) / "err"
        self.words = launcher(mpi) + ["-n", str(self.size), "sh", "-c", script, "sh"] + words

    def start(self):
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(self.words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=dict(os.environ, **dict([self.mark.split("=")])))

    def __str__(self):
        return f"{self.mpi} {self.command} {self.kind} in {self.phase}, rank {self.victim} of {self.size}"

    def until(self, what, true):
        deadline = time.monotonic() + STARTS
        while not (found := true()):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise AssertionError(f"{what} did not come:\n{text_of(self.err)}")
            time.sleep(0.003)
        return found

    def ranks(self, witnesses=True):
        """Rank -> process, as soon as all are there."""
        def look():
            ranks, seen = ranks_below(self.process.pid, self.mpi)
            return len(ranks) == self.size and (not witnesses or len(seen) == self.size) and ranks
        return self.until("the ranks", look)

    def loaded(self):
        self.until("the model", lambda: text_of(self.err).count(" of weights, ") == self.size)

    def ask(self, prompt):
        """A long stream; gives when it began, or at once where the phase comes before."""
        host = text_of(self.out).split("//")[1].strip()

        def talk():
            try:
                client = http.client.HTTPConnection(host, timeout=STARTS)
                while True:
                    client.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": 80000, "ignore_eos": True, "stream": True}),
                                   {"Content-Type": "application/json"})
                    reply = client.getresponse()
                    if reply.status == 200:
                        break
                    reply.read(), time.sleep(0.05)  # it loads
                while reply.read1(1 << 16):
                    began.set()
            except (OSError, http.client.HTTPException):
                pass
        began = threading.Event()
        threading.Thread(target=talk, daemon=True).start()
        if self.phase != "prefill":
            self.until("an answer", began.is_set)

    def come_to_phase(self):
        if self.phase == "start":
            return time.sleep(0.5)
        ranks = self.ranks()
        if self.phase == "load":
            self.until("weights", lambda: reads_weights(ranks[self.victim]))
        if self.phase in ("prefill", "decode", "drain"):
            self.loaded()
            if self.command == "serve":
                self.ask(LONG if self.phase == "prefill" else "It was")
            elif self.phase != "prefill":
                self.until("text", lambda: self.out.stat().st_size > 0)
            if self.phase == "prefill":
                time.sleep(0.3)
        return ranks

    def strike(self, ranks):
        victim = ranks[self.victim]
        os.kill(victim, signal.SIGKILL if self.kind == "exit" else signal.SIGSTOP)
        if self.phase == "drain":
            os.kill(ranks[0], signal.SIGTERM if self.command == "serve" else signal.SIGINT)
        if self.kind == "sleep":
            threading.Timer(self.timeout + 2, self.wake, [victim]).start()

    @staticmethod
    def wake(pid):
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass

    def judge(self, within):
        """Seconds until all was over, and what is wrong."""
        bad = []
        self.start()
        try:
            ranks = self.come_to_phase()
            begin = time.monotonic()
            if self.phase != "start":
                self.strike(ranks)
            limit = begin + self.timeout + within
            while (left := self.process.poll() is None or marked(self.mark.encode())) and time.monotonic() < limit + 20:
                time.sleep(0.05)
            seconds = time.monotonic() - begin
            if left:
                bad.append("processes are left: " + ", ".join(f"{p} {text_of(f'/proc/{p}/comm').strip()}" for p in marked(self.mark.encode())))
            elif seconds > self.timeout + within:
                bad.append(f"took {seconds:.1f} s")
            if self.process.poll() == 0:
                bad.append("status 0")
        except AssertionError as e:
            seconds = 0
            bad.append(str(e))
        finally:
            for pid in marked(self.mark.encode()):
                os.kill(pid, signal.SIGKILL)
            self.process.wait()
        words = text_of(self.err)
        # A server that is told to end does so before anybody has waited long for a rank.
        nobody = self.command == "serve" and self.phase == "drain" and self.kind != "exit"
        named = SENTENCE.findall(words)
        if named[:1] != [str(self.victim)] and not nobody:
            bad.append(f"named: {', '.join(named) or 'nobody'}")
        self.folder.cleanup()
        return seconds, bad, words, len(set(named)) > 1


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("mpi", nargs="*", default=["openmpi", "mpich"])
    p.add_argument("--build", type=Path, default=ROOT / "build/release")
    p.add_argument("--timeout", type=float, default=3)
    p.add_argument("--within", type=float, default=5)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--at-once", type=int, default=4)
    p.add_argument("--only", default="", help="cases whose words contain all of these")
    p.add_argument("--verbose", action="store_true")
    a = p.parse_args()
    failed = total = 0
    for mpi in a.mpi:
        if not shutil.which(f"mpirun.{mpi}") or not (a.build / f"libmoebius_comm_{mpi}.so").exists():
            p.error(f"{mpi} is not installed, or {a.build} has no plugin for it")
        for command in COMMANDS:
            cases = [c for c in itertools.product(KINDS, PHASES) if set(a.only.split()) <= {mpi, command, *c}]

            def one(case, mpi=mpi, command=command):
                job = Job(mpi, a.build, command, *case, a.timeout, random.Random(f"{a.seed} {mpi} {command} {case}"))
                return job, *job.judge(a.within)
            with concurrent.futures.ThreadPoolExecutor(a.at_once) as pool:
                results = list(pool.map(one, cases))
            for job, seconds, bad, words, _ in results:
                if bad or a.verbose:
                    print(f"{job}: {'; '.join(bad) or 'as demanded'} ({seconds:.1f} s)\n{words}", flush=True)
            wrong, times = sum(bool(r[2]) for r in results), sorted(r[1] for r in results)
            if results:
                print(f"{mpi} {command}: {len(results) - wrong} of {len(results)} jobs ({' '.join(KINDS)} x {' '.join(PHASES)}) end as demanded, after "
                      f"{times[len(times) // 2]:.1f} s (median), {times[-1]:.1f} s (longest); other ranks are named too in {sum(r[4] for r in results)}", flush=True)
            failed, total = failed + wrong, total + len(results)
    print(f"{failed} of {total} jobs not as demanded")
    return 1 if failed or total == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
