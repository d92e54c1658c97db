#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the speed of two builds of the tool: did a change make anything slower?

    bench/two_builds.py BEFORE AFTER [--threads 2] [--rounds 7] [--bar 0.97] [--parts layers,model,engine,server]
    bench/two_builds.py BEFORE AFTER --schemes w4a8,fp8,bf16 --experts 64 [--moe-tokens 1,512]    layers of these schemes alone

BEFORE and AFTER are two `moebius` programs. They run in turn, part by part: MoE layers of Qwen3-30B-A3B's geometry, prefill and
decode of the bundled model, a trace of requests through the engine, 500 requests to a server. A ratio is the speed of AFTER divided
by that of BEFORE in the same round; the table has the median and the spread of the rounds, and in how many AFTER was behind.

AFTER is slower in a case if it was behind in all rounds but one and the median of the ratios lies below the bar; then the status is 1.
"""
import argparse
import concurrent.futures
import http.client
import json
import signal
import statistics
import subprocess
import sys
import time

from compare import ROOT, ours

MODEL = ["model", "--prompts", "512", "--batches", "1,8,32", "--steps", "300", "--seconds", "1"]
ENGINE = ["engine", "--requests", "32", "--rate", "1000", "--rounds", "3"]
SERVER = ["serve", str(ROOT / "models/moebius-tiny-w4a8"), "--port", "0", "--quiet", "--parallel", "16", "--queue", "500"]
REQUESTS, CLIENTS, WARM = 500, 16, 50


def layers(tool, threads, arguments):
    """Case -> speed (larger is better) of layers, one round of one program."""
    lines = ours(tool, ["moe", *arguments, "--threads", threads])
    return {f"moe {line['scheme']}, {line['tokens']} tokens": 1 / line["ms"] for line in lines}


def whole(tool, threads):
    """Case -> speed of prompts and of decoding, with the bundled model."""
    result = {}
    (line,) = ours(tool, [*MODEL, "--threads", threads])
    for key, name in (("pp512", "model, prompt of 512"), ("tg_b1", "model, decode, 1 row"), ("tg_b8", "model, decode, 8 rows"),
                      ("tg_b32", "model, decode, 32 rows")):
        result[name] = line[f"{key}_tokens_per_s"]
    return result


def engine(tool, threads):
    (line,) = ours(tool, [*ENGINE, "--threads", threads])
    return {"engine, tokens/s while busy": (line["prompt_tokens"] + line["new_tokens"]) / line["busy_seconds"]}


def answer(address, number):
    """Request `number`: between 8 and 103 tokens of prompt, between 4 and 31 of answer."""
    connection = http.client.HTTPConnection(address, timeout=600)
    prompt = [(number * 31 + 7 * i) % 4000 for i in range(8 + number * 37 % 96)]
    body = {"prompt": prompt, "max_tokens": 4 + number * 11 % 28, "temperature": 0, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    text = reply.read()
    connection.close()
    if reply.status != 200:
        sys.exit(f"the server refused request {number}: {text.decode()}")


def served(tool, threads):
    """Requests per second of a server with 16 clients, behind a few that warm it."""
    process = subprocess.Popen([tool, *SERVER, "--threads", str(threads)], stdout=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().strip().removeprefix("http://")
        if not address:
            sys.exit(f"{tool}: the server does not start")
        while True:
            health = http.client.HTTPConnection(address)
            health.request("GET", "/health")
            if health.getresponse().status == 200:
                break
            time.sleep(0.05)
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(lambda i: answer(address, i), range(REQUESTS, REQUESTS + WARM)))
            begin = time.monotonic()
            list(clients.map(lambda i: answer(address, i), range(REQUESTS)))
            return {f"server, {REQUESTS} requests": REQUESTS / (time.monotonic() - begin)}
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def behind(ratios):
    return sum(ratio < 1 for ratio in ratios)


def slower(ratios, bar):
    return behind(ratios) >= max(len(ratios) - 1, 1) and statistics.median(ratios) < bar


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--moe-tokens", default="1,8,32,512")
    parser.add_argument("--schemes", help="layers of these schemes, and nothing else")
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--bar", type=float, default=0.97)
    parser.add_argument("--parts", default="layers,model,engine,server")
    options = parser.parse_args(words)
    moe = ["--tokens", options.moe_tokens, "--experts", options.experts]
    if options.schemes:
        moe += ["--scheme", options.schemes]

    every = {"layers": lambda tool, threads: layers(tool, threads, moe), "model": whole, "engine": engine, "server": served}
    parts = ["layers"] if options.schemes else options.parts.split(",")
    if unknown := [part for part in parts if part not in every]:
        parser.error(f"unknown part {unknown[0]}; there are {', '.join(every)}")

    rounds = []
    for i in range(options.rounds):
        order = ("before", "after") if i % 2 == 0 else ("after", "before")
        ratios = {}
        for part in parts:
            measured = {side: every[part](getattr(options, side), options.threads) for side in order}
            ratios |= {case: measured["after"][case] / speed for case, speed in measured["before"].items()}
        rounds.append(ratios)
        print(f"round {i + 1} of {options.rounds}", file=sys.stderr)
    print(f"{'case':<32}{'after / before':>15}  {'spread':<12} behind")
    found = 0
    for case in rounds[0]:
        ratios = [r[case] for r in rounds]
        found += slower(ratios, options.bar)
        verdict = "  SLOWER" if slower(ratios, options.bar) else ""
        print(f"{case:<32}{statistics.median(ratios):>15.3f}  {min(ratios):.3f}-{max(ratios):.3f}  {behind(ratios)} of {len(ratios)}{verdict}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
