#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How the default number of threads fares beside other programs.

    bench/busy_machine.py [--tool build/release/moebius] [--model DIR] [--rounds 5] [--busy N] [--seconds S]

One server with the default number of threads and one for each of -t 1 to N, N being the CPUs of this process. In each round N processes (--busy) of equal
priority do nothing but count, and the servers answer one after the other for S seconds each (3, or what fits into a minute), the default one between
the others. Then the counting ends, and the default server's speed from two seconds later on is compared with that of another two seconds later. Held to, as
medians of the rounds: the default gives at least 0.9 of the best, and is back at 0.9 of its full speed. Exit status 1: it is not. The machine must be
idle otherwise.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BAR, BACK = 0.9, 2.0  # the share demanded, and the seconds after which full speed is


class Server:
    def __init__(self, tool, model, threads):
        words = [str(tool), "serve"] + ([str(model)] if model else []) + ["--port", "0", "--quiet", "--parallel", "1", "--ctx", "512"]
        self.process = subprocess.Popen(words + (["-t", str(threads)] if threads else []), stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().strip()
        self.name = f"-t {threads}" if threads else "default"
        while True:
            try:
                self.answer()
                return
            except urllib.error.HTTPError as e:  # it loads
                if e.code != 503:
                    raise
                time.sleep(0.1)

    def answer(self, tokens=400):  # long: whoever asks needs a core as well
        body = json.dumps({"prompt": [1, 2, 3, 4], "max_tokens": tokens, "temperature": 0, "ignore_eos": True}).encode()
        with urllib.request.urlopen(urllib.request.Request(self.address + "/v1/completions", body, {"Content-Type": "application/json"}), timeout=600) as reply:
            return json.load(reply)["usage"]["completion_tokens"]

    def speed(self, seconds):
        """Tokens a second over at least so long."""
        tokens, begin = 0, time.monotonic()
        while (passed := time.monotonic() - begin) < seconds:
            tokens += self.answer()
        return tokens / passed

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def one_round(servers, busy, seconds):
    counting = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        time.sleep(1)
        default, fixed = [], {}
        for s in servers[1:]:
            default.append(servers[0].speed(seconds / (len(servers) - 1)))
            fixed[s.name] = s.speed(seconds)
    finally:
        for c in counting:
            c.kill()
            c.wait()
    servers[0].speed(BACK)
    back = servers[0].speed(1)
    servers[0].speed(BACK)
    full = servers[0].speed(1)
    best = max(fixed, key=fixed.get)
    share = statistics.mean(default) / fixed[best]
    print(f"default {statistics.mean(default):.0f} tokens/s, " + ", ".join(f"{n} {v:.0f}" for n, v in fixed.items()) +
          f": {share:.2f} of the best ({best}); {BACK:g} s after: {back:.0f}, {BACK + 3:g} s after: {full:.0f}: {back / full:.2f}", flush=True)
    return share, back / full


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tool", type=Path, default=ROOT / "build/release/moebius")
    p.add_argument("--model", type=Path)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--busy", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--seconds", type=float)
    a = p.parse_args()
    cpus = len(os.sched_getaffinity(0))
    seconds = a.seconds or min(3, 50 / (cpus + 1))
    servers = []
    try:
        for threads in range(cpus + 1):
            servers.append(Server(a.tool, a.model, threads))
        rounds = [one_round(servers, a.busy, seconds) for _ in range(a.rounds)]
    finally:
        for s in servers:
            s.stop()
    share, back = (statistics.median(r[i] for r in rounds) for i in (0, 1))
    print(f"medians of {a.rounds} rounds: {share:.2f} of the best of -t 1 to {cpus}, {back:.2f} of full speed {BACK:g} s after (bars {BAR})")
    return 0 if min(share, back) >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
