#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes of an MPI on this machine: every exchange, the tool's bytes, faults.

    check_mpi.py MPI BUILD        MPI: openmpi or mpich; BUILD: the folder with the tool, its plugin and moebius_rank_program
    check_mpi.py MPI BUILD CASE   one case

Exit status 77: skipped, with the reason (no launcher, or no plugin for it in this build).
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

GONE_SECONDS = 60  # a generous end for what takes one to five seconds on a quiet machine


class Job:
    """A started job; its standard streams as text once it is over."""

    def __init__(self, mpi, ranks, command, env=None):
        self.process = subprocess.Popen(launcher(mpi) + ["-n", str(ranks)] + command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})

    def finish(self, seconds=GONE_SECONDS):
        try:
            self.out, self.err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.out, self.err = self.process.communicate()
            raise AssertionError(f"the job was not over after {seconds} s; stderr:\n{self.err}")
        self.status = self.process.returncode
        return self

    def pids(self):
        return [int(p) for p in re.findall(r"^pid (\d+)$", self.err, re.M)]


def launcher(mpi):
    command = [shutil.which(f"mpirun.{mpi}") or shutil.which("mpirun")]
    if mpi == "openmpi":
        # More ranks than cores, and containers whose only user is root.
        command += ["--oversubscribe", "--mca", "btl", "self,vader,tcp", "--mca", "btl_vader_single_copy_mechanism", "none"]
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
    return command


def expect(condition, job, what):
    if not condition:
        raise AssertionError(f"{what}; status {job.status}\nstdout:\n{job.out}\nstderr:\n{job.err}")


def alive(pid):
    """Whether the process runs: a zombie that nobody has waited for does not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False


def expect_gone(pids, job):
    deadline = time.monotonic() + GONE_SECONDS
    while any(alive(p) for p in pids):
        expect(time.monotonic() < deadline, job, f"of {pids} some still run")
        time.sleep(0.05)


def children_of(pid):
    """All processes below one."""
    below, found = [pid], []
    while below:
        parent = below.pop()
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            for child in task.read_text(encoding="utf-8").split():
                below.append(int(child))
                found.append(int(child))
    return found


class Checks:
    def __init__(self, mpi, build):
        self.mpi, self.build = mpi, build
        self.program = [str(build / "moebius_rank_program")]
        self.tool = [str(build / "moebius")]

    def job(self, ranks, command, env=None):
        return Job(self.mpi, ranks, command, env)

    def exchanges(self):
        for ranks in (2, 3, 4):
            job = self.job(ranks, self.program + ["exchange"]).finish(300)
            expect(job.status == 0, job, f"{ranks} ranks")

    def killed(self):
        job = self.job(3, self.program + ["kill", "1"]).finish()
        expect(job.status != 0, job, "a killed rank must fail the job")
        expect(len(job.pids()) == 3, job, "three ranks must say who they are")
        expect_gone(job.pids(), job)

    def stopped(self):
        job = self.job(3, self.program + ["stop", "2"]).finish()
        expect(job.status != 0, job, "a stopped rank must fail the job")
        expect(re.search(r"rank 2 \(.*\) was silent for 1 s: step 100, layer 5, test of faults", job.err), job, "the message names nobody")
        expect_gone(job.pids(), job)

    def launcher_killed(self):
        job = self.job(2, self.program + ["loop"])
        time.sleep(2)
        job.process.send_signal(signal.SIGKILL)
        job.finish()
        expect_gone(job.pids(), job)

    def wrong_plugin(self):
        job = self.job(2, self.program + ["exchange"], {"MOEBIUS_COMM": "/nowhere/plugin.so"}).finish()
        expect(job.status != 0 and "install" in job.err, job, "a missing plugin must name a package")
        other = "mpich" if self.mpi == "openmpi" else "openmpi"
        if not (self.build / f"libmoebius_comm_{other}.so").exists():
            return
        job = self.job(2, self.program + ["exchange"], {"MOEBIUS_COMM": other}).finish()
        expect(job.status != 0 and "belongs to another MPI" in job.err, job, "the wrong pair must be named")

    def by_rank(self, command, rank, more="", env=""):
        """The tool's command, on one rank with other words and another environment."""
        variable = "OMPI_COMM_WORLD_RANK" if self.mpi == "openmpi" else "PMI_RANK"
        quoted = " ".join("'" + c + "'" for c in self.tool + command)
        return ["sh", "-c", f"echo pid $$ >&2; if [ ${variable} = {rank} ]; then exec env {env} {quoted} {more}; fi; exec {quoted}"]

    def text(self):
        """Ranks say what one process says, byte for byte."""
        for sampling in (["--temp", "0"], ["--temp", "0.8", "--seed", "7"]):
            command = ["run", "-p", "It was a dark", "-n", "24", "--ignore-eos", "--threads", "1"] + sampling
            alone = subprocess.run(self.tool + command, capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout.decode()
            splits = [(2, [])] if sampling[1] != "0" else [(2, []), (2, ["--pp", "2"]), (2, ["--ep", "2"]), (4, ["--pp", "2", "--tp", "2"])]
            for ranks, split in splits:
                job = self.job(ranks, self.tool + command + split).finish(300)
                expect(job.status == 0, job, f"{ranks} ranks {split}")
                expect(job.out == alone, job, f"{ranks} ranks {split} say something else than one:\n{alone}")
                for r in range(1, ranks):
                    expect(re.search(rf"^\[rank {r} .*\] loaded \d+ bytes", job.err, re.M), job, f"rank {r} does not say what it loaded")

    def refused(self):
        """Ranks that differ part before they load, with a sentence of rank 0 alone."""
        run = ["run", "-p", "It was", "-n", "4", "--temp", "0", "--threads", "1", "--quiet"]

        def refusal(words, **other):
            job = self.job(2, self.by_rank(run, 1, **other)).finish()
            expect(job.status != 0 and job.out == "", job, "different ranks must not run")
            expect(len(re.findall(words, job.err)) == 1, job, f"not said once: {words}")

        refusal(r"moebius: rank 1 \(.*\) was given --dtype f32, rank 0 bf16", more="--dtype f32")
        refusal(r"moebius: rank 1 \(.*\) would multiply .* give --common-cpu", env="MOEBIUS_CPU=reference")
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy"
            shutil.copytree(Path(__file__).resolve().parents[2] / "models/moebius-tiny-w4a8", copy)
            (copy / "generation_config.json").write_text("{}", encoding="utf-8")
            refusal(r"moebius: rank 1 \(.*\) has a generation_config.json of 2 bytes, rank 0 one of", more=f"'{copy}'")
            (copy / "config.json").unlink()
            refusal(r"moebius: rank 1 \(.*\) cannot go on: .*config.json", more=f"'{copy}'")
        job = self.job(2, self.by_rank(run + ["--common-cpu"], 1, env="MOEBIUS_CPU=reference")).finish(300)
        expect(job.status == 0 and job.out != "", job, "--common-cpu must run")

    def signalled(self, number):
        """A long answer on two ranks, the second of which gets a signal as soon as text comes."""
        command = ["run", "-p", "It was", "-n", "-1", "--ignore-eos", "--temp", "0", "--threads", "1", "--ctx", "1000000", "--rank-timeout", "2"]
        job = self.job(2, self.by_rank(command, 1, more="--verbose"))
        os.read(job.process.stdout.fileno(), 1)  # the answer has begun
        victims = [p for p in children_of(job.process.pid) if "--verbose" in Path(f"/proc/{p}/cmdline").read_text(encoding="utf-8").split("\0")]
        for pid in victims:
            os.kill(pid, number)
        job.finish()
        expect(len(victims) == 1, job, f"one rank was expected, not {victims}")
        expect(job.status != 0, job, "a lost rank must fail the job")
        expect_gone(job.pids(), job)
        return job

    def killed_while_running(self):
        job = self.signalled(signal.SIGKILL)
        if self.mpi == "openmpi":
            expect(re.search(r"process rank 1 .* exited on signal 9", job.err), job, "the launcher does not name the rank")

    def stopped_while_running(self):
        job = self.signalled(signal.SIGSTOP)
        expect(re.search(r"rank 1 \(.*\) was silent for 2 s: step \d+", job.err), job, "the silent rank is not named")

    def served(self):
        """The server on ranks answers as run does, and goes when the launcher is told to."""
        job = self.job(2, self.tool + ["serve", "--port", "0", "--threads", "1", "--ctx", "256", "--parallel", "2"])
        address = job.process.stdout.readline().strip()
        body = json.dumps({"prompt": "It was a dark", "max_tokens": 16, "temperature": 0, "ignore_eos": True}).encode()
        answer = ""
        for _ in range(600):
            request = urllib.request.Request(address + "/v1/completions", body, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=60) as reply:
                    answer = json.load(reply)["choices"][0]["text"]
                break
            except (urllib.error.HTTPError, urllib.error.URLError):  # it loads
                time.sleep(0.1)
        job.process.send_signal(signal.SIGTERM)
        job.finish()
        alone = subprocess.run(self.tool + ["run", "-p", "It was a dark", "-n", "16", "--temp", "0", "--ignore-eos", "--json", "--threads", "1"],
                               capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout
        expect(answer == json.loads(alone)["text"], job, f"served on ranks: {answer!r}, run: {alone!r}")

    def no_mpi_in_the_tool(self):
        job = subprocess.run(["ldd"] + self.tool, capture_output=True, text=True, check=False)
        if job.returncode == 0 and re.search(r"libmpi|libmpich|open-rte|open-pal", job.stdout):
            raise AssertionError(f"the tool is linked with an MPI:\n{job.stdout}")


CASES = ["exchanges", "killed", "stopped", "launcher_killed", "wrong_plugin", "text", "refused", "killed_while_running", "stopped_while_running",
         "served", "no_mpi_in_the_tool"]


def main():
    mpi, build = sys.argv[1], Path(sys.argv[2])
    if not shutil.which(f"mpirun.{mpi}"):
        print(f"skipped: mpirun.{mpi} is not installed")
        return 77
    if not (build / f"libmoebius_comm_{mpi}.so").exists():
        print(f"skipped: this build has no plugin for {mpi}")
        return 77
    checks = Checks(mpi, build)
    for name in sys.argv[3:] or CASES:
        start = time.monotonic()
        getattr(checks, name)()
        print(f"{mpi} {name}: {time.monotonic() - start:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
