#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what two commits cost whoever builds them.

    bench/build_times.py OLD NEW [--rounds 1] [--tests] [--edit] [--bar 0.55]

OLD and NEW are commits of this repository. Each is cloned into a temporary folder and built cold, in turn, without ccache and without installing
packages. The table has, for both and as a ratio (medians of the rounds):

    first command       CPU seconds and seconds of `./moebius run` until it has answered
    longest unit        seconds of the longest step of that build, from ninja's log
    longest chain       seconds of the longest chain of steps that wait for each other
    second command      --tests: seconds of `./test` behind it; it has to pass
    edit of FOLDER      --edit: seconds from touching one .cpp of nn, serve and apps until `moebius` is linked, bundles off (median of 3)

The status is 1 if a ratio of the first two lies above --bar, or a commit does not build. Times mean something on a quiet machine only.
"""
import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIRST = ["./moebius", "run", "-p", "It was a dark night", "-n", "8"]
EDITED = ["nn/moe_forward.cpp", "serve/server.cpp", "apps/run.cpp"]


def run(place, words):
    """(seconds, CPU seconds) of a command and everything below it; its output is shown where it fails."""
    variables = {k: v for k, v in os.environ.items() if k not in ("CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CXX_COMPILER_LAUNCHER")}
    variables |= {"CCACHE_DISABLE": "1", "MOEBIUS_SKIP_PACKAGES": "1"}
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(words, cwd=place, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    seconds, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)} ended with status {done.returncode}:\n{done.stdout.decode(errors='replace')[-4000:]}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def steps(log):
    """{output: (begin, seconds)} of .ninja_log; the last build of an output counts."""
    found = {}
    for line in log.splitlines():
        if not line.startswith("#"):
            begin, end, _, output, _ = line.split("\t")
            found[output] = (int(begin), (int(end) - int(begin)) / 1000)
    return found


def waits(text):
    """{output: what its step waits for} of a build.ninja."""
    found = {}
    for statement in re.findall(r"^build ((?:[^$\n]|\$[\s\S])*)", text, re.M):
        outputs, _, inputs = statement.replace("$\n", " ").replace("$ ", "\0").replace("$:", "\1").partition(": ")
        names = [[word.replace("\0", " ").replace("\1", ":") for word in part.split() if word not in ("|", "||")] for part in (outputs, inputs)]
        for output in names[0]:
            found[output] = names[1][1:]  # behind the rule's name
    return found


def longest_chain(log, text):
    """Seconds of the longest chain of steps of which each waits for the one before."""
    taken, needs, known = steps(log), waits(text), {}
    for begin in needs:  # depth first, without recursion: chains are long
        stack = [begin]
        while stack:
            output = stack[-1]
            left = [n for n in needs.get(output, []) if n not in known]
            if output in known or not left:
                stack.pop()
                own = taken.get(output, (0, 0))[1]
                known[output] = own + max((known[n] for n in needs.get(output, [])), default=0)
            else:
                stack += left
    return max(known.values(), default=0)


def edit_loop(place, figures):
    """Adds the seconds of an edit in three folders."""
    build = ["cmake", "--build", "build/release", "--target", "moebius_cli"]
    run(place, ["cmake", "--preset", "release", "-DMOEBIUS_BUNDLES=OFF"])
    run(place, build)
    for name in EDITED:
        folder, file = name.split("/")
        source = next((place / "src" / folder).rglob(file), None)
        if source is None:
            sys.exit(f"there is no {file} below src/{folder}")
        rounds = []
        for _ in range(3):
            time.sleep(1.1)  # a file system may count in seconds
            source.touch()
            rounds.append(run(place, build)[0])
        figures[f"edit of {folder}, s"] = statistics.median(rounds)


def clone(commit, folder):
    """The path of a clone of this repository at a commit."""
    place = Path(folder) / commit
    run(ROOT, ["git", "clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(place)])
    run(place, ["git", "checkout", "--quiet", commit])
    return place


def first_command(place, figures):
    """Adds what the first command costs."""
    figures["first command, s"], figures["first command, CPU s"] = run(place, FIRST)
    log, text = ((place / "build/release" / name).read_text() for name in (".ninja_log", "build.ninja"))
    figures["longest unit, s"] = max(seconds for _, seconds in steps(log).values())
    figures["longest chain, s"] = longest_chain(log, text)


def second_command(place, figures):
    """Adds the seconds of the tests behind the first command."""
    figures["second command, s"] = run(place, ["./test"])[0]


def measure(commits, stages):
    """[{figure: number}] of the commits; each stage runs for all of them before the next begins, and its figures are printed at once."""
    with tempfile.TemporaryDirectory(prefix="build_times.") as folder:
        places = [clone(commit, folder) for commit in commits]
        figures = [{} for _ in commits]
        for stage in stages:
            for commit, place, found in zip(commits, places, figures):
                known = set(found)
                stage(place, found)
                for name in found.keys() - known:
                    print(f"{commit[:8]}: {name} {found[name]:.1f}", file=sys.stderr, flush=True)
        return figures


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--tests", action="store_true")
    parser.add_argument("--edit", action="store_true")
    parser.add_argument("--bar", type=float, default=float("inf"))
    options = parser.parse_args(words)
    commits = [subprocess.run(["git", "-C", ROOT, "rev-parse", "--verify", f"{name}^{{commit}}"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
               for name in (options.old, options.new)]
    stages = [first_command] + [second_command] * options.tests + [edit_loop] * options.edit
    rounds = []
    for i in range(options.rounds):
        found = measure(commits[:: 1 if i % 2 == 0 else -1], stages)
        rounds.append(found[:: 1 if i % 2 == 0 else -1])
        print(f"round {i + 1} of {options.rounds}", file=sys.stderr)
    print(f"{'':<22}{commits[0][:8]:>10}{commits[1][:8]:>10}{'new / old':>11}")
    missed = False
    for figure in rounds[0][0]:
        old, new = (statistics.median(r[side][figure] for r in rounds) for side in (0, 1))
        missed |= figure.startswith("first") and new > options.bar * old
        print(f"{figure:<22}{old:>10.1f}{new:>10.1f}{new / max(old, 1e-3):>11.2f}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
