#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes of an MPI on this machine: every exchange, the tool's bytes, faults.

    check_mpi.py MPI BUILD        MPI: openmpi or mpich; BUILD: the folder with the tool, its plugin and moebius_rank_program
    check_mpi.py MPI BUILD CASE   one case

Exit status 77: skipped, with the reason (no launcher, or no plugin for it in this build).
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import time
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

    def no_mpi_in_the_tool(self):
        job = subprocess.run(["ldd"] + self.tool, capture_output=True, text=True, check=False)
        if job.returncode == 0 and re.search(r"libmpi|libmpich|open-rte|open-pal", job.stdout):
            raise AssertionError(f"the tool is linked with an MPI:\n{job.stdout}")


CASES = ["exchanges", "killed", "stopped", "launcher_killed", "wrong_plugin", "no_mpi_in_the_tool"]


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
