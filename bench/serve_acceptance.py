#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults and figures of a server of the bundled model (docs/serve.md has the results), on Python's standard library.

    serve_acceptance.py MOEBIUS [PART...] [--requests N]

Parts: bytes      mixed requests alone, among others, with the cache full, in pieces of another size, streamed: equal bytes
       overload   ten times the slots and the queue: every answer is whole or 429
       leave      clients that leave at random moments: slots, blocks, descriptors as before
       memory     many requests after a warm-up: anonymous memory stays
       drain      SIGTERM under load: started answers are whole, status 0
       prefix     the second of two equal prompts: cached tokens, time to the first token
       health     /health beside a long prompt and many idle connections
"""
import argparse
import concurrent.futures
import http.client
import json
import random
import signal
import socket
import statistics
import subprocess
import sys
import time


class Server:
    def __init__(self, tool, *options):
        self.process = subprocess.Popen([tool, "serve", "--port", "0", "--quiet", *options], stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().strip().rsplit(":", 1)[1])
        while self.get("/health")[0] != 200:
            time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers
        finally:
            connection.close()

    def get(self, path):
        return self.ask("GET", path)

    def complete(self, body):
        return self.ask("POST", "/v1/completions", body)

    def metric(self, name):
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(f"moebius_{name} "):
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(name)


def mixed(count, seed):
    """Requests of every kind; each has a seed, so its answer is defined."""
    draw = random.Random(seed)
    out = []
    for i in range(count):
        length = draw.choice([1, 3, 20, 130, 300])
        start = draw.randrange(50) if draw.random() < 0.5 else draw.randrange(3000)
        body = {"prompt": [(start + k) % 4000 for k in range(length)], "max_tokens": draw.choice([1, 4, 16, 40]), "seed": i,
                "temperature": draw.choice([0, 0.7, 1.3]), "top_p": draw.choice([1, 0.9]), "top_k": draw.choice([0, 20]),
                "ignore_eos": draw.random() < 0.5, "return_token_ids": True}
        if draw.random() < 0.3:
            body["logprobs"] = draw.choice([0, 3])
            body["echo"] = draw.random() < 0.5
        if draw.random() < 0.2:
            body["n"] = 2
        if draw.random() < 0.2:
            body["stop"] = [" the", "."]
        out.append(body)
    return out


def essence(answer):
    status, text, _ = answer
    assert status == 200, (status, text)
    return json.loads(text)["choices"]


def streamed(server, body):
    status, text, _ = server.complete(dict(body, stream=True))
    assert status == 200, (status, text)
    parts = {}
    for event in text.split("\n\n"):
        if event.startswith("data: {"):
            for choice in json.loads(event[6:])["choices"]:
                kept = parts.setdefault(choice["index"], ["", []])
                kept[0] += choice["text"]
                kept[1] += choice.get("token_ids", [])
    return [parts[i] for i in sorted(parts)]


def part_bytes(tool, count):
    requests = mixed(count, 1)
    with Server(tool, "--parallel", "2") as server:
        alone = [essence(server.complete(r)) for r in requests]
    differences = 0
    for options in (["--parallel", "32"], ["--parallel", "32", "--stretch", "1.5", "--threads", "1"], ["--parallel", "8", "--stretch", "8", "--kv-gib", "0.02"]):
        with Server(tool, *options, "--queue", "1000") as server, concurrent.futures.ThreadPoolExecutor(32) as pool:
            for expected, got in zip(alone, pool.map(server.complete, requests)):
                differences += essence(got) != expected
            preempted = server.metric("num_preemptions_total")
            if options[1] == "32":
                for expected, got in zip(alone, pool.map(lambda r: streamed(server, r), requests)):
                    differences += [[c["text"], c["token_ids"]] for c in expected] != got
        print(f"bytes: {count} requests, {' '.join(options)}: {differences} differences so far, {preempted:.0f} preemptions")
    return differences == 0


def part_overload(tool, _):
    with Server(tool, "--parallel", "4", "--queue", "8") as server, concurrent.futures.ThreadPoolExecutor(120) as pool:
        def one(i):
            mark = 100 + i % 3000
            status, text, headers = server.complete({"prompt": [mark], "max_tokens": 8, "echo": True, "return_token_ids": True, "seed": i})
            if status == 429:
                return "away" if 1 <= int(headers["Retry-After"]) <= 60 else "wrong"
            choice = json.loads(text)["choices"][0]
            return "whole" if status == 200 and choice["prompt_token_ids"] == [mark] else "wrong"
        results = list(pool.map(one, range(1200)))
    counts = {k: results.count(k) for k in ("whole", "away", "wrong")}
    print("overload:", counts)
    return counts["wrong"] == 0 and counts["whole"] > 0


def part_leave(tool, _):
    with Server(tool, "--parallel", "8", "--queue", "64") as server:
        server.complete({"prompt": "a", "max_tokens": 2})
        before = server.metric("process_open_fds")
        body = json.dumps({"prompt": list(range(300)), "max_tokens": 400, "ignore_eos": True, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        draw = random.Random(2)
        for i in range(1000):
            with socket.create_connection(("127.0.0.1", server.port)) as s:
                s.sendall(head + body[:draw.randrange(len(body))] if i % 5 == 0 else head + body)
                time.sleep(draw.random() * 0.01)
        for _ in range(200):
            left = [server.metric("num_requests_running"), server.metric("num_requests_waiting"), server.metric('kv_blocks{state="used"}')]
            if left == [0, 0, 0]:
                break
            time.sleep(0.05)
        after = server.metric("process_open_fds")
        ok = server.complete({"prompt": "a", "max_tokens": 2})[0] == 200
    print(f"leave: 1000 clients left; running, waiting, blocks {left}; descriptors {before:.0f} before, {after:.0f} after")
    return left == [0, 0, 0] and after <= before and ok


def part_memory(tool, count):
    with Server(tool, "--parallel", "8", "--queue", "1000") as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
        def run(requests):
            for status, _, _ in pool.map(server.complete, requests):
                assert status == 200
        small = [dict(r, prompt=r["prompt"][:40], max_tokens=min(4, r["max_tokens"])) for r in mixed(count, 3)]
        run(small[:count // 5])
        before = server.metric("process_anonymous_bytes")
        run(small)
        after = server.metric("process_anonymous_bytes")
    print(f"memory: {count} requests after {count // 5}: {(after - before) / 2**20:+.2f} MiB of {before / 2**20:.0f}")
    return after - before <= 4 * 2**20


def part_drain(tool, _):
    with Server(tool, "--parallel", "4", "--drain", "30") as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(server.complete, {"prompt": [i + 1], "max_tokens": 100, "ignore_eos": True, "stream": True}) for i in range(8)]
        while server.metric("num_requests_running") < 4:
            time.sleep(0.01)
        begin = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        whole = sum(a.result()[1].rstrip().endswith("[DONE]") and '"finish_reason":"length"' in a.result()[1] for a in answers)
        status = server.process.wait(40)
    print(f"drain: {whole} of 8 answers whole, status {status}, {time.monotonic() - begin:.1f} s")
    return whole == 8 and status == 0


def part_prefix(tool, _):
    with Server(tool, "--parallel", "2") as server:
        body = {"prompt": [7 * k % 4000 for k in range(1900)], "max_tokens": 1}
        times, cached = [], []
        for _ in range(3):
            begin = time.monotonic()
            usage = json.loads(server.complete(body)[1])["usage"]
            times.append(time.monotonic() - begin)
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        hits, queries = server.metric("prefix_cache_hits_total"), server.metric("prefix_cache_queries_total")
    print(f"prefix: first {1000 * times[0]:.0f} ms, second {1000 * times[1]:.1f} ms ({100 * times[1] / times[0]:.1f} %), cached {cached}, {hits:.0f} hits of {queries:.0f}")
    return cached == [0, 1899, 1899] and hits == sum(cached) and queries == 3 * 1899


def part_health(tool, _):
    with Server(tool, "--parallel", "4") as server:
        def times(n):
            out = []
            for _ in range(n):
                begin = time.monotonic()
                assert server.get("/health")[0] == 200
                out.append(time.monotonic() - begin)
            return sorted(out)
        idle = statistics.median(times(200))
        held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(900)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            busy = [pool.submit(server.complete, {"prompt": [k % 4000 for k in range(1900)], "max_tokens": 100, "ignore_eos": True, "cache_salt": str(i)}) for i in range(4)]
            loaded = times(200)
            for b in busy:
                assert b.result()[0] == 200
        for s in held:
            s.close()
    p99 = loaded[int(0.99 * len(loaded))]
    print(f"health: median idle {1000 * idle:.2f} ms; p99 beside 900 idle connections and 4 long prompts {1000 * p99:.2f} ms ({p99 / idle:.1f} times)")
    return True


def main():
    parts = {name[5:]: f for name, f in globals().items() if name.startswith("part_")}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("parts", nargs="*", default=list(parts))
    parser.add_argument("--requests", type=int, default=500)
    options = parser.parse_args()
    failed = [p for p in options.parts if not parts[p](options.tool, options.requests)]
    print("failed:" if failed else "all passed", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
