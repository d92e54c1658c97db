# SPDX-License-Identifier: Apache-2.0
"""What the compare_*.py programs share: running our tool, a peer that stays alive, rounds in turn, the table of ratios.

Ours and the peer are measured alternately, case by case, in one run on one machine: figures of different machines, or of the
same machine an hour later, are not comparable; ratios of neighbours are.
"""
import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def numbers(text):
    return [int(v) for v in text.split(",")]


def parser_for(doc):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", type=Path, help="folder of the environment that bench/peer_env.sh makes (made when missing)")
    parser.add_argument("--tool", type=Path, default=ROOT / "build/release/moebius", help="our program")
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3, help="times that both sides measure each case, in turn")
    parser.add_argument("--seconds", type=float, default=1.5, help="per case, side and round")
    parser.add_argument("--out", type=Path, help="append every measurement as a JSON line")
    return parser


def ready_peer(folder, *options):
    """The environment, made if need be, with options of bench/peer_env.sh; returns its runner."""
    subprocess.run([str(ROOT / "bench/peer_env.sh"), *options, str(folder)], check=True)
    return (folder / "run").resolve()


def with_package(place, library):
    """Variables with which the Python package of this clone is as good as installed, with its entry point for vLLM."""
    info = Path(place) / "moebius_moe-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moebius-moe\nVersion: 0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nmoebius = moebius.vllm:register\n", encoding="utf-8")
    return {"PYTHONPATH": f"{place}:{ROOT / 'python'}", "MOEBIUS_LIBRARY": str(Path(library).resolve())}


class Peer:
    """A peer process that answers one JSON line per case and keeps its weights between cases."""

    def __init__(self, runner, script, arguments=(), variables=None):
        command = [str(runner), str(ROOT / "bench" / script), *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables)

    def measure(self, case):
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self):
        """The next line of JSON; libraries print to stdout too."""
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"the peer ended (status {self.process.wait()})")


def ours(tool, arguments):
    """Our JSON lines for one command."""
    done = subprocess.run([str(tool), "bench", *map(str, arguments), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr or f"{tool} bench ended with status {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def record(path, side, line):
    if path:
        with open(path, "a", encoding="utf-8") as out:
            out.write(json.dumps({"side": side, **line}) + "\n")


class Case:
    """The rounds of one case."""

    def __init__(self):
        self.ours, self.peer = [], []  # result lines of the rounds

    def ratios(self):
        return [p["ms"] / o["ms"] for o, p in zip(self.ours, self.peer)]

    def ms(self, side):
        return statistics.median(line["ms"] for line in side)

    def row(self):
        r = self.ratios()
        o = self.ours[0]
        middle = lambda key: statistics.median(line[key] for line in self.ours)
        return (f"{self.ms(self.ours):10.3f}{self.ms(self.peer):10.3f}{statistics.median(r):8.2f}  {min(r):.2f}-{max(r):.2f}"
                f"{middle('gops'):9.0f}{middle('percent_gops'):6.0f} %{middle('gbs'):8.1f}{middle('percent_gbs'):6.0f} %  {o['kernel']}")


HEAD = f"{'ours ms':>10}{'peer ms':>10}{'ratio':>8}  {'spread':<9}{'GOP/s':>9}{'roof':>8}{'GB/s':>8}{'roof':>8}  kernel"


def run_rounds(rounds, measure_ours, measure_peer, out):
    """Both sides in turn; the side that begins changes, so that neither always follows the other."""
    case = Case()
    for i in range(rounds):
        for side in ("ours", "peer") if i % 2 == 0 else ("peer", "ours"):
            line = measure_ours() if side == "ours" else measure_peer()
            record(out, side, line)
            (case.ours if side == "ours" else case.peer).append(line)
    return case


def print_machine(line):
    print(f"{line['cpu']}, {line['features']}, built from {line['commit']}", file=sys.stderr)
