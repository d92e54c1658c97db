#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks in network namespaces of this machine, as if on machines of their own (needs root and iproute2).

    bench/rank_network.py MPI bytes            text and logits of 2 to 4 ranks over limited, slow and lossy networks: equal to one process
    bench/rank_network.py MPI stages [--rate 10gbit]   D5: --pp 2 over a network of that rate, beside one rank
    bench/rank_network.py MPI forecast [--rate 10gbit] D11: the planner's step time beside the measured one, --pp, --tp and --ep on 2 ranks

MPI: openmpi or mpich. Namespaces are joined by a bridge, their rates limited by tbf; delay and loss come from a relay between TAP
devices (not every kernel has netem). Whatever was made is taken down again.
"""
import argparse
import atexit
import heapq
import json
import os
import random
import selectors
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from fcntl import ioctl
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/checks"))
sys.path.insert(0, str(ROOT / "bench"))
import rank_forecast  # noqa: E402
from check_mpi import compare_logits, write_model  # noqa: E402

PREFIX = f"mb{os.getpid() % 10000}"
# A rank on a core of its own, as if it had a machine.
PINS = ["sh", "-c", 'exec taskset -c $(( ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} % $(nproc --all) )) "$@"', "sh"]
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


def sh(*command):
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


class Relay(threading.Thread):
    """Frames from one TAP device go to all others, later, or not at all."""

    def __init__(self, devices, delay, loss):
        super().__init__(daemon=True)
        self.devices, self.delay, self.loss = devices, delay, loss
        self.stopping, self.draw = False, random.Random(1)

    def run(self):
        select = selectors.DefaultSelector()
        for fd in self.devices:
            os.set_blocking(fd, False)
            select.register(fd, selectors.EVENT_READ)
        line, number = [], 0
        while not self.stopping:
            wait = max(0.0, line[0][0] - time.monotonic()) if line else 0.1
            for key, _ in select.select(wait):
                for _ in range(64):
                    try:
                        frame = os.read(key.fd, 65536)
                    except BlockingIOError:
                        break
                    if self.draw.random() >= self.loss:
                        number += 1
                        heapq.heappush(line, (time.monotonic() + self.delay, number, key.fd, frame))
            while line and line[0][0] <= time.monotonic():
                _, _, source, frame = heapq.heappop(line)
                for fd in self.devices:
                    if fd != source:
                        try:
                            os.write(fd, frame)
                        except OSError:
                            pass


class Network:
    """n namespaces with the addresses 10.77.0.1 and up, and a way for launchers to start programs there."""

    def __init__(self, n, rate=None, delay=0.0, loss=0.0):
        self.names = [f"{PREFIX}n{i}" for i in range(n)]
        self.addresses = [f"10.77.0.{i + 1}" for i in range(n)]
        self.relay, self.bridge, self.links = None, None, []
        atexit.register(self.close)
        for name in self.names:
            sh("ip", "netns", "add", name)
            sh("ip", "-n", name, "link", "set", "lo", "up")
        if delay or loss:
            self.join_by_relay(delay, loss)
        else:
            self.join_by_bridge(rate)
        self.folder = tempfile.TemporaryDirectory()
        self.agent = Path(self.folder.name) / "agent"
        # Launchers call it as they would call ssh: options, host, words of a command.
        places = "\n".join(f"  {a}) ns={name} ;;" for a, name in zip(self.addresses, self.names))
        self.agent.write_text(f"""#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
case $host in
{places}
  *) echo "no namespace for $host" >&2; exit 1 ;;
esac
exec ip netns exec $ns unshare -u sh -c "hostname $ns; exec sh -c \\"\\$0\\"" "$*"
""", encoding="utf-8")
        self.agent.chmod(0o755)

    def set_up(self, i, device):
        sh("ip", "-n", self.names[i], "addr", "add", f"{self.addresses[i]}/24", "dev", device)
        sh("ip", "-n", self.names[i], "link", "set", device, "up")

    def join_by_bridge(self, rate):
        self.bridge = f"{PREFIX}br"
        sh("ip", "link", "add", self.bridge, "type", "bridge")
        sh("ip", "link", "set", self.bridge, "up")
        for i, name in enumerate(self.names):
            outer = f"{PREFIX}v{i}"
            self.links.append(outer)
            sh("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", name)
            sh("ip", "link", "set", outer, "master", self.bridge, "up")
            self.set_up(i, "eth0")
            if rate:
                sh("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")

    def join_by_relay(self, delay, loss):
        devices = []
        for i, name in enumerate(self.names):
            tap = f"{PREFIX}t{i}"
            fd = os.open("/dev/net/tun", os.O_RDWR)
            ioctl(fd, TUNSETIFF, struct.pack("16sH", tap.encode(), IFF_TAP | IFF_NO_PI))
            sh("ip", "link", "set", tap, "netns", name)
            self.set_up(i, tap)
            devices.append(fd)
        self.relay = Relay(devices, delay, loss)
        self.relay.start()

    def close(self):
        if self.relay:
            self.relay.stopping = True
            self.relay.join()
            for fd in self.relay.devices:
                os.close(fd)
            self.relay = None
        for link in self.links:  # those of a namespace go later than it
            subprocess.run(["ip", "link", "del", link], check=False)
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)
        self.names, self.links = [], []
        if self.bridge:
            subprocess.run(["ip", "link", "del", self.bridge], check=False)
            self.bridge = None

    def launch(self, mpi, command, seconds=300):
        """One rank in every namespace, the launcher in the first."""
        hosts = ",".join(f"{a}:1" for a in self.addresses)
        inside = ["ip", "netns", "exec", self.names[0], "unshare", "-u", "sh", "-c", f'hostname {self.names[0]}; exec "$@"', "sh"]
        if mpi == "openmpi":
            net = "10.77.0.0/24"
            words = [shutil.which("mpirun.openmpi"), "--allow-run-as-root", "--host", hosts, "-n", str(len(self.names)), "--bind-to", "none",
                     "--mca", "plm_rsh_agent", str(self.agent), "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", net,
                     "--mca", "oob_tcp_if_include", net]
        else:
            # Its UCX finds the memory that namespaces share. By TCP alone (UCX_TLS=tcp,self) bytes are the same, but MPI_Finalize of 4.0 may not come back.
            words = [shutil.which("mpirun.mpich"), "-hosts", ",".join(self.addresses), "-n", str(len(self.names)), "-ppn", "1", "-launcher", "ssh",
                     "-launcher-exec", str(self.agent), "-localhost", self.addresses[0]]
        return subprocess.run(inside + words + command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False)


def check(job, what):
    if job.returncode != 0:
        raise AssertionError(f"{what}: status {job.returncode}\n{job.stdout}\n{job.stderr}")
    return job


def equal_bytes(mpi, tool):
    """D1 over networks that are slow, late and lossy: 64 tokens, the likeliest and drawn ones, and the logits of a golden folder."""
    texts = {}
    for sampling in ("--temp 0", "--temp 0.8 --seed 7"):
        command = [tool, "run", "-p", "It was a dark", "-n", "64", "--ignore-eos", "--threads", "1"] + sampling.split()
        texts[sampling] = command, subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout
    for what, n, splits, options in (
            ("100 Mbit/s", 4, ["--pp 2 --tp 2", "--tp 4"], dict(rate="100mbit")),
            ("10 Gbit/s", 2, ["--pp 2", "--tp 2", "--ep 2"], dict(rate="10gbit")),
            ("1 ms one way", 2, ["--pp 2", "--tp 2", "--ep 2"], dict(delay=0.001)),
            ("1 of 200 frames lost, 0.2 ms", 2, ["--pp 2", "--tp 2", "--ep 2"], dict(delay=0.0002, loss=0.005))):
        net = Network(n, **options)
        more = ["--keep-binding", "--rank-timeout", "60"]
        for split in splits:
            start = time.monotonic()
            for command, alone in texts.values():
                job = check(net.launch(mpi, command + more + split.split()), f"{what}, {split}")
                if job.stdout != alone:
                    raise AssertionError(f"{what}, {split}: other bytes\n{job.stdout}\n{alone}\n{job.stderr}")

            def launch(command):
                job = net.launch(mpi, command + more)
                job.status, job.out, job.err = job.returncode, job.stdout, job.stderr
                return job

            compare_logits([tool], "qwen3moe-w4a8-g32-pack", split, launch)
            print(f"{mpi}, {what}, {split}: bytes of one process, {time.monotonic() - start:.1f} s", flush=True)
        net.close()


def bench(tool, folder, what, *options):
    return [tool, "bench", what, str(folder), "--threads", "1", "--json", "--quiet", *options]


def json_of(job, what):
    return json.loads(check(job, what).stdout.strip().splitlines()[-1])


def stages(mpi, tool, folder, rate):
    """D5: a step of one sequence beside one rank's and beside what the stages compute, and two groups of 8 beside 16 on one rank."""
    one_step = bench(tool, folder, "model", "--prompts", "64", "--batches", "1", "--seconds", "0.2")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as trace:
        trace.write("0,16,64\n" * 16)
        trace.flush()
        groups = bench(tool, folder, "engine", "--trace", trace.name, "--parallel", "16", "--rounds", "1")
        local = ["taskset", "-c", "0"]
        net = Network(2, rate=rate)
        ranks = ["--pp", "2", "--keep-binding"]
        single, double, over_stages, alone, both = [], [], [], [], []
        for _ in range(2):
            single.append(json_of(subprocess.run(local + one_step, capture_output=True, text=True, check=False), "one rank")["tg_b1_ms"])
            two = json_of(net.launch(mpi, PINS + one_step + ranks), "two ranks")
            double.append(two["tg_b1_ms"])
            figures = two["ranks"]["tg_b1"]
            over_stages.append(figures[0]["step_s"] / sum(f["compute_s"] for f in figures))
            alone.append(json_of(subprocess.run(local + groups, capture_output=True, text=True, check=False), "one rank")["tokens_per_s"])
            both.append(json_of(net.launch(mpi, PINS + groups + ranks), "two ranks")["tokens_per_s"])
        net.close()
    print(f"{mpi}, {rate}: a step of one sequence takes {min(double):.3f} ms on two stages, {min(single):.3f} ms on one rank: "
          f"{min(double) / min(single):.3f} times, {min(over_stages):.3f} times what its stages compute; "
          f"16 sequences: {max(both):.1f} tokens/s, on one rank {max(alone):.1f}: {max(both) / max(alone):.2f} times",
          flush=True)


def forecast(mpi, tool, folder, rate):
    """D11 over a network."""
    net = Network(2, rate=rate)
    command = PINS + bench(tool, folder, "model", "--prompts", "128", "--batches", "1,8", "--seconds", "0.2") + ["--keep-binding"]
    jobs = {form: json_of(net.launch(mpi, command + [f"--{form}", "2"]), form) for form in rank_forecast.FORMS}
    net.close()
    return rank_forecast.judge(jobs)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("mpi", choices=["openmpi", "mpich"])
    p.add_argument("part", choices=["bytes", "stages", "forecast"])
    p.add_argument("--rate", default="10gbit")
    p.add_argument("--build", type=Path, default=ROOT / "build/release")
    p.add_argument("--model", type=Path, help="a folder; without it one of 400 MB is made")
    a = p.parse_args()
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which(f"mpirun.{a.mpi}"):
        print("skipped: needs root, iproute2 and the MPI")
        return 77
    tool = str(a.build / "moebius")
    if a.part == "bytes":
        equal_bytes(a.mpi, tool)
        return 0
    with tempfile.TemporaryDirectory(dir=a.build) as folder:
        model = a.model or Path(folder) / "model"
        if not a.model:
            write_model(model)
        if a.part == "forecast":
            return 0 if forecast(a.mpi, tool, model, a.rate) else 1
        stages(a.mpi, tool, model, a.rate)
    return 0


if __name__ == "__main__":
    sys.exit(main())
