#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults and figures of a server (docs/serve.md has the results), on Python's standard library.

    serve_acceptance.py MOEBIUS [PART...] [--model FOLDER] [--requests N] [--seconds S] [--streams N] [--launch 'mpirun -n 4' --ranks '--pp 4']

MODEL: the bundled model unless a folder is named (bench/make_synthetic_moe.py writes one; it needs the tokenizer of some model beside it).
Parts: speed      A1, A2  output tokens/s through HTTP beside the same requests in `bench engine`, alternating; CPU outside the engine
       crowd      A2      1000 connections at once, /health beside them
       fair       A3      gaps of running streams while a 4096-token prompt arrives
       pass       A4      a short prompt behind one of 32k tokens
       bytes      A5      mixed requests alone, among others, with the cache full, preempted, cut otherwise, streamed: equal bytes
       overload   A6      ten times the slots and the queue: every answer is whole or 429
       leave      A7      clients that leave at random moments: slots, blocks, descriptors, threads as before; a stream beside them unchanged
       memory     A8      many requests after a warm-up: anonymous memory stays
       soak       A8      20 minutes of mixed requests, the bare step loop beside them every minute: speed and memory stay (by name only)
       idle       A2      tokens/s with and without 1000 idle connections, alternating
       halfopen   A10     peers that vanish without a word, in a stream, in the queue and idle: found within 60 s and some
       peer       A16     `vllm serve` of the environment --peer and this server on --model, one after the other (by name only)
       faults     A10     what is no request, slow clients: expected status, nobody else notices
       attacks            schemas that cost much to who expands them (schemas.py): 400 within 150 ms each, nobody else notices
       drain      A11     SIGTERM under load: started answers are whole, status 0; after kill -9 the port is free at once
       prefix     A12     the second of two equal prompts; the next turn of a chat
       restart            --kv-dir: the first token of a 4000-token prompt, and of the turn behind it, after a restart beside a warm server
       disk               --kv-dir: mixed requests with little memory, after restarts and kill -9: equal bytes
       together           mixed requests with prompts on disk, a packed file, its mapping under memory pressure, several models of which one sleeps, and
                          drafts (lookup, right and wrong predictions, the layer of --mtp FOLDER): equal to a server with none of it
Times mean something on a quiet machine only; figures are ratios within one run.
"""
import argparse
import concurrent.futures
import ctypes
import http.client
import json
import math
import os
import random
import re
import selectors
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

import schemas
from memory_group import Group


DROP = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # a packet filter of one instruction: keep 0 bytes


def first_rank(launcher):
    """The process below a launcher that is rank 0."""
    below = [launcher]
    for parent in below:
        for task in os.listdir(f"/proc/{parent}/task"):
            with open(f"/proc/{parent}/task/{task}/children") as f:
                below += [int(p) for p in f.read().split()]
        with open(f"/proc/{parent}/environ", "rb") as f, open(f"/proc/{parent}/comm") as name:
            words = f.read().split(b"\0")
            if name.read().strip() == "moebius" and (b"OMPI_COMM_WORLD_RANK=0" in words or b"PMI_RANK=0" in words):
                return parent
    raise RuntimeError("there is no rank 0")


class Server:
    model = []  # the folder, or nothing for the bundled model
    launch = []  # words before the tool: a launcher of ranks
    ranks = []  # options of ranks

    def __init__(self, tool, *options, port=0, alone=False, group=None, model=None):
        launch = [] if alone else Server.launch + [tool, "serve"] + Server.ranks
        self.process = subprocess.Popen([*(launch or [tool, "serve"]), *(Server.model if model is None else model), "--port", str(port), "--quiet", *options],
                                        stdout=subprocess.PIPE, text=True, preexec_fn=group.enter if group else None)
        self.pid = self.process.pid
        self.port = int(self.process.stdout.readline().strip().rsplit(":", 1)[1])
        while self.get("/health")[0] != 200:
            time.sleep(0.05)
        if Server.launch and not alone:
            self.pid = first_rank(self.process.pid)

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

    def threads(self):
        """CPU seconds of each thread, by name."""
        out = {}
        for task in os.listdir(f"/proc/{self.pid}/task"):
            with open(f"/proc/{self.pid}/task/{task}/stat") as f:
                name, rest = f.read().split("(", 1)[1].rsplit(")", 1)
            out[name, task] = sum(map(int, rest.split()[11:13])) / os.sysconf("SC_CLK_TCK")
        return out

    def metric(self, name):
        """A figure by its name and those of its labels that matter: 'kv_blocks{state="used"}'."""
        name, _, labels = name.rstrip("}").partition("{")
        for line in self.get("/metrics")[1].splitlines():
            found = re.fullmatch(rf"moebius_{name}(?:{{(.*)}})? (\S+)", line)
            if found and (not labels or labels in (found[1] or "")):
                return float(found[2])
        raise KeyError(name)


def post_bytes(path, body):
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


class Streams:
    """Streams read by one thread, without looking at more than their ends: when which bytes came."""

    def __init__(self, port):
        self.port, self.selector, self.open, self.begin = port, selectors.DefaultSelector(), 0, time.monotonic()
        self.times, self.tails, self.began = {}, {}, {}

    def add(self, name, body):
        s = socket.create_connection(("127.0.0.1", self.port))
        s.sendall(post_bytes("/v1/completions", dict(body, stream=True)))
        s.setblocking(False)
        self.selector.register(s, selectors.EVENT_READ, name)
        self.times[name], self.tails[name], self.began[name] = [], b"", time.monotonic()
        self.open += 1

    def turn(self, seconds=1.0):
        for key, _ in self.selector.select(seconds):
            piece = key.fileobj.recv(1 << 16)
            self.tails[key.data] = (self.tails[key.data] + piece)[-64:]
            self.times[key.data] += [time.monotonic()] * piece.count(b"data: {")
            if not piece or b"data: [DONE]" in self.tails[key.data]:
                self.selector.unregister(key.fileobj)
                key.fileobj.close()
                self.open -= 1

    def finish(self):
        while self.open:
            self.turn()

    def gaps(self, names, after=0.0, before=float("inf")):
        return sorted(b - a for n in names for a, b in zip(self.times[n], self.times[n][1:]) if after <= a and b <= before)


def tokens(count, seed):
    draw = random.Random(seed)
    return [draw.randrange(2, 4000) for _ in range(count)]


def at(sorted_values, share):
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def mixed(count, seed, vocabulary=4000, longest=300):
    """Requests of every kind; each has a seed, so its answer is defined."""
    draw = random.Random(seed)
    out = []
    for i in range(count):
        length = min(longest, draw.choice([1, 3, 20, 110, 130, 240, 300]))
        start = draw.randrange(50) if draw.random() < 0.5 else draw.randrange(3000)
        body = {"prompt": [(start + k) % vocabulary for k in range(length)], "max_tokens": draw.choice([1, 4, 16, 40, 300 if i % 3 == 0 else 40]), "seed": i,
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


def part_speed(tool, o):
    """One round is the streams, then the same requests as one that is answered at its end: there the process does little else than
    steps, and the seconds it spent in them are what a bare loop would have taken. Both in one process and seconds apart, because two
    processes one after the other differ by more than what is looked for (--bare adds them); the median of the ratios counts. Prompts
    are cut into full pieces, so that both have the same steps whatever the engine foretells."""
    prompt, new, ok, cut = o.prompt, o.new, True, ("--stretch", "1000", "--max-step", "1000")
    for count in o.streams:
        ratios, others, client, bares = [], [], [], []
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as trace, Server(tool, "--parallel", "32", "--ctx", "4096" if Server.model else "0", "--sse-ping", "0", *cut) as server:
            def body(seed):
                return {"prompt": [tokens(prompt, seed + i) for i in range(count)], "max_tokens": new, "ignore_eos": True, "temperature": 0}
            essence(server.complete(body(10**6)))
            for round in range(o.rounds):
                if o.idle:
                    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(o.idle)]
                before, used, asked = server.threads(), time.process_time(), body(2000 * round)
                streams = Streams(server.port)
                trace.seek(0)
                trace.truncate()
                for i in range(count):
                    streams.add(i, dict(asked, prompt=asked["prompt"][i]))
                    trace.write(f"{time.monotonic() - streams.begin:.6f},{prompt},{new}\n")
                trace.flush()
                streams.finish()
                seconds = time.monotonic() - streams.begin
                client.append((time.process_time() - used) / seconds)
                after = server.threads()
                spent = {k: after[k] - before.get(k, 0) for k in after}
                others.append(sum(v for (name, _), v in spent.items() if name in ("moebius-events", "moebius-text")) / seconds)
                if o.idle:
                    for s in held:
                        s.close()
                begin = server.metric("step_seconds_sum")
                essence(server.complete(body(2000 * round + 1000)))
                steps = server.metric("step_seconds_sum") - begin
                ratios.append(steps / seconds)
                print(f"  {count} streams: {count * new / seconds:.1f} tokens/s, in steps alone {count * new / steps:.1f}: {100 * ratios[-1]:.1f} %", flush=True)
                if o.bare:
                    bare = json.loads(subprocess.run([tool, "bench", "engine", *Server.model, "--trace", trace.name, "--parallel", "32", *cut, "--json", "--quiet"],
                                                     capture_output=True, text=True, check=True).stdout)
                    bares.append(count * new / seconds / bare["tokens_per_s"])
                    print(f"  a loop in a process of its own {bare['tokens_per_s']:.1f}: {100 * bares[-1]:.1f} %", flush=True)
        ratio, bar = statistics.median(ratios), 0.97 if Server.model else 0.85
        print(f"speed: {count} streams, {100 * ratio:.1f} % of the steps alone (bar {100 * bar:.0f}; {100 * min(ratios):.0f} to {100 * max(ratios):.0f}); CPU of event and text threads "
              f"{100 * statistics.median(others):.2f} % of the time, of the client {100 * statistics.median(client):.1f} %{f', {o.idle} idle connections' if o.idle else ''}", flush=True)
        ok = ok and (ratio >= bar or o.idle > 0)
    return ok


def part_crowd(tool, o):
    with Server(tool, "--parallel", "4") as server:
        def health(n):
            out = []
            for _ in range(n):
                begin = time.monotonic()
                assert server.get("/health")[0] == 200
                out.append(time.monotonic() - begin)
            return sorted(out)
        idle = statistics.median(health(300))
        begin = time.monotonic()
        held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(1000)]
        for s in held:
            s.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answers = [s.recv(4096)[9:12] for s in held]
        opened = time.monotonic() - begin
        beside = health(300)
        for s in held:
            s.close()
    good, away = answers.count(b"200"), answers.count(b"503")
    p99 = at(beside, 0.99)
    print(f"crowd: 1000 connections in {opened:.2f} s: {good} answered, {away} told 503; /health median {1e3 * idle:.2f} ms idle, p99 {1e3 * p99:.2f} ms beside them ({p99 / idle:.1f} times)")
    return good + away == 1000 and p99 <= 20 * idle


def part_idle(tool, o):
    count, new, ratios = 8, o.new, []
    with Server(tool, "--parallel", "8", "--ctx", "4096" if Server.model else "0", "--sse-ping", "0", "--connections", "1100") as server:
        def rate(seed):
            streams = Streams(server.port)
            for i in range(count):
                streams.add(i, {"prompt": tokens(16, 100 * seed + i), "max_tokens": new, "ignore_eos": True, "temperature": 0})
            streams.finish()
            return count * new / (time.monotonic() - streams.begin)
        rate(0)
        for round in range(1, o.rounds + 1):
            alone = rate(2 * round)
            held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(1000)]
            for s in held:
                s.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                s.recv(4096)
            beside = rate(2 * round + 1)
            for s in held:
                s.close()
            ratios.append(beside / alone)
    print(f"idle: 8 streams beside 1000 idle connections have {100 * statistics.median(ratios):.1f} % of their tokens/s without them ({', '.join(f'{100 * r:.1f}' for r in ratios)}; bar 99)")
    return statistics.median(ratios) >= 0.99


def vanish(s):
    """From now on the kernel drops what comes for this socket before TCP sees it: nothing is acknowledged, nothing refused."""
    s.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HxxxxxxP", 1, ctypes.addressof(DROP)))  # SO_ATTACH_FILTER


def part_halfopen(tool, o):
    body = {"prompt": [1], "max_tokens": 1900, "n": 2, "ignore_eos": True, "stream": True, "logprobs": 5}
    with Server(tool, "--parallel", "2", "--queue", "8") as server:
        before, sockets = server.metric("process_open_fds"), []
        def open_one():
            sockets.append(socket.create_connection(("127.0.0.1", server.port)))
            return sockets[-1]
        stream, waiting, idle = open_one(), open_one(), open_one()
        stream.sendall(post_bytes("/v1/completions", body))
        stream.recv(100)
        waiting.sendall(post_bytes("/v1/completions", dict(body, stream=False, max_tokens=1000)))
        time.sleep(0.1)
        begin = time.monotonic()
        for s in sockets:
            vanish(s)
        while server.metric("process_open_fds") > before and time.monotonic() < begin + 150:
            time.sleep(1)
        seconds = time.monotonic() - begin
        left = [server.metric("process_open_fds") - before, server.metric("num_requests_running"), server.metric("num_requests_waiting")]
        ok = server.complete({"prompt": "a", "max_tokens": 2})[0] == 200
        for s in sockets:
            s.close()
    print(f"halfopen: a stream, a request that waits and an idle connection vanished; after {seconds:.0f} s descriptors, running, waiting {left}; the next request {'answered' if ok else 'LOST'}")
    return left == [0, 0, 0] and ok and seconds < 120


def part_fair(tool, o):
    ok = True
    with Server(tool, "--parallel", "16", "--ctx", "16384", "--sse-ping", "0") as server:
        for count, bars in ((8, (3.5, 3.2)), (1, (6, None))):
            long = tokens(4096, 77 + count)
            alone = Streams(server.port)
            alone.add("long", {"prompt": tokens(4096, 99 + count), "max_tokens": 2, "ignore_eos": True})
            alone.finish()
            idle = alone.times["long"][0] - alone.began["long"]
            streams, names = Streams(server.port), range(count)
            for i in names:
                streams.add(i, {"prompt": tokens(64, i), "max_tokens": 2000 if count == 1 else 1200, "ignore_eos": True, "temperature": 0})
            until = time.monotonic() + 6
            while time.monotonic() < until:
                streams.turn(0.1)
            arrived = time.monotonic()
            streams.add("long", {"prompt": long, "max_tokens": 2, "ignore_eos": True})
            while not streams.times["long"] and streams.open:
                streams.turn(0.1)
            first = streams.times["long"][0]
            quiet, busy = streams.gaps(names, until - 4, arrived), streams.gaps(names, arrived, first)
            for key in list(streams.selector.get_map().values()):
                streams.selector.unregister(key.fileobj)
                key.fileobj.close()
            p50, p99, own = at(busy, 0.5) / at(quiet, 0.5), at(busy, 0.99) / at(quiet, 0.99), (first - arrived) / idle
            print(f"fair: {count} streams, gaps during a 4096-token prompt: p50 {p50:.2f}, p99 {p99:.2f} times those without ({1e3 * at(quiet, 0.5):.1f} ms); "
                  f"its own first token {own:.2f} times that on an idle server ({idle:.2f} s)")
            ok = ok and p99 <= bars[0] and (bars[1] is None or p50 <= bars[1]) and own <= 2.5
            while server.metric("num_requests_running"):
                time.sleep(0.05)
    return ok


def part_pass(tool, o):
    with Server(tool, "--parallel", "4", "--ctx", "36000", "--sse-ping", "0") as server:
        def first(seed):
            s = Streams(server.port)
            s.add(0, {"prompt": tokens(64, seed), "max_tokens": 2, "ignore_eos": True})
            s.finish()
            return s.times[0][0] - s.began[0]
        idle = statistics.median(first(i) for i in range(5))
        behind = Streams(server.port)
        behind.add("long", {"prompt": tokens(32768, 5), "max_tokens": 1, "ignore_eos": True})
        time.sleep(1)
        measured = max(first(10 + i) for i in range(3))
        still = server.metric("num_requests_running")
    print(f"pass: first token of 64 tokens {1e3 * idle:.0f} ms idle, at most {1e3 * measured:.0f} ms behind 32,768 tokens (still running: {still:.0f}); bar idle + 2000 ms")
    return measured <= idle + 2 and still == 1


def part_bytes(tool, o):
    requests, count = mixed(o.requests, 1), o.requests
    with Server(tool, "--parallel", "2", alone=True) as server:
        alone = [essence(server.complete(r)) for r in requests]
    differences, most = 0, 0
    share = math.prod(int(n) for n in re.findall(r"--[pte]p (\d+)", " ".join(Server.ranks)))  # every rank has its part of keys and values
    forms = [["--parallel", "32"], ["--parallel", "32", "--stretch", "1.5", "--threads", "1"],
             ["--parallel", "8", "--stretch", "8", "--kv-gib", str(0.02 / share)], ["--parallel", "16", "--kv-gib", str(0.008 / share)]]
    # Where the sequences still fit (two batches in flight have half of them each): with less and less.
    less = [["--parallel", "16", "--kv-gib", str(gib / share)] for gib in (0.005, 0.003)]
    for options in forms + less:
        if options in less and most > 0:
            break
        with Server(tool, *options, "--queue", "1000") as server, concurrent.futures.ThreadPoolExecutor(32) as pool:
            for expected, got in zip(alone, pool.map(server.complete, requests)):
                differences += essence(got) != expected
            preempted = server.metric("num_preemptions_total")
            most = max(most, preempted)
            if options[1] == "32":
                for expected, got in zip(alone, pool.map(lambda r: streamed(server, r), requests)):
                    differences += [[c["text"], c["token_ids"]] for c in expected] != got
        print(f"bytes: {count} requests, {' '.join(options)}: {differences} differences so far, {preempted:.0f} preemptions", flush=True)
    return differences == 0 and most > 0


class Hammer:
    """Connections that ask again and again, read by one thread; an answer has to repeat its mark."""

    def __init__(self, server, connections):
        self.server, self.counts, self.tokens, self.drawn = server, {"whole": 0, "away": 0, "wrong": 0}, 0, 0
        self.selector, self.sockets, self.later = selectors.DefaultSelector(), [], []
        for _ in range(connections):
            s = socket.create_connection(("127.0.0.1", server.port))
            self.selector.register(s, selectors.EVENT_READ, {"buffer": b"", "mark": 0})
            self.sockets.append(s)

    def ask(self, s, state):
        self.drawn += 1
        state["mark"], state["buffer"] = 2 + self.drawn % 3900, b""
        s.sendall(post_bytes("/v1/completions", {"prompt": [state["mark"]], "max_tokens": 32, "ignore_eos": True, "echo": True, "return_token_ids": True, "seed": self.drawn}))

    def judge(self, state, head, body):
        status = int(head[9:12])
        fields = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:])
        if status == 429:
            return "away" if 1 <= int(fields["retry-after"]) <= 60 else "wrong"
        choice = json.loads(body)["choices"][0] if status == 200 else {}
        self.tokens += len(choice.get("token_ids", []))
        return "whole" if choice.get("prompt_token_ids") == [state["mark"]] and choice.get("finish_reason") == "length" else "wrong"

    def run(self, seconds):
        end = time.monotonic() + seconds
        for key in list(self.selector.get_map().values()):
            self.ask(key.fileobj, key.data)
        pending = len(self.sockets)
        while pending:
            now = time.monotonic()
            while self.later and self.later[0][0] <= now:
                _, s, state = self.later.pop(0)
                if now < end:
                    self.ask(s, state)
                else:
                    pending -= 1
            for key, _ in self.selector.select(0.05):
                piece, state = key.fileobj.recv(1 << 16), key.data
                if not piece:
                    self.counts["wrong"] += 1
                    pending -= 1
                    self.selector.unregister(key.fileobj)
                    continue
                state["buffer"] += piece
                head, found, body = state["buffer"].partition(b"\r\n\r\n")
                if not found or len(body) < int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]):
                    continue
                result = self.judge(state, head, body)
                self.counts[result] += 1
                if result == "away":  # a client that was told to wait waits, if less long than it was told
                    self.later.append((time.monotonic() + 0.25, key.fileobj, state))
                elif time.monotonic() < end:
                    self.ask(key.fileobj, state)
                else:
                    pending -= 1
        for s in self.sockets:
            s.close()


def part_overload(tool, o):
    with Server(tool, "--parallel", "4", "--queue", "8", *(["--threads", str(o.threads)] if o.threads else [])) as server:
        rates = {}
        for connections, seconds in ((4, o.seconds / 6), (120, o.seconds)):
            before, begin, hammer, spent, used = server.metric("generation_tokens_total"), time.monotonic(), Hammer(server, connections), server.threads(), time.process_time()
            hammer.run(seconds)
            passed, now = time.monotonic() - begin, server.threads()
            rates[connections] = (server.metric("generation_tokens_total") - before) / passed
            events = sum(now[k] - spent.get(k, 0) for k in now if k[0] in ("moebius-events", "moebius-text"))
            print(f"overload: {connections} connections for {seconds:.0f} s: {hammer.counts}, {rates[connections]:.0f} tokens/s; of a core: client {100 * (time.process_time() - used) / passed:.1f} %, "
                  f"event and text thread {100 * events / passed:.1f} %")
            if hammer.counts["wrong"] or not hammer.counts["whole"]:
                return False
    print(f"overload: tokens/s of the crowd {100 * rates[120] / rates[4]:.1f} % of those of as many as there are slots")
    return True


def part_leave(tool, o):
    with Server(tool, "--parallel", "8", "--queue", "64") as server:
        beside = {"prompt": "It was", "max_tokens": 1500, "ignore_eos": True, "seed": 5, "return_token_ids": True}
        expected = streamed(server, beside)
        before, threads = server.metric("process_open_fds"), len(server.threads())
        pool = concurrent.futures.ThreadPoolExecutor(1)
        other = pool.submit(lambda: [streamed(server, beside) for _ in range(3)])
        body = json.dumps({"prompt": list(range(300)), "max_tokens": 400, "ignore_eos": True, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        draw = random.Random(2)
        for i in range(1000):
            with socket.create_connection(("127.0.0.1", server.port)) as s:
                s.sendall(head + body[:draw.randrange(len(body))] if i % 5 == 0 else head + body)
                time.sleep(draw.random() * 0.01)
        same = all(answer == expected for answer in other.result())
        pool.shutdown()
        for _ in range(200):
            left = [server.metric("num_requests_running"), server.metric("num_requests_waiting"), server.metric('kv_blocks{state="used"}')]
            if left == [0, 0, 0]:
                break
            time.sleep(0.05)
        after = server.metric("process_open_fds")
        ok = server.complete({"prompt": "a", "max_tokens": 2})[0] == 200 and len(server.threads()) == threads
    print(f"leave: 1000 clients left; running, waiting, blocks {left}; descriptors {before:.0f} before, {after:.0f} after, {threads} threads; streams beside them {'unchanged' if same else 'CHANGED'}")
    return left == [0, 0, 0] and after <= before and ok and same


def part_memory(tool, o):
    count = o.requests
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


def part_soak(tool, o):
    """Every minute: mixed requests, then the same requests through HTTP and in the bare step loop, then memory."""
    count, new, prompt = 8, 64, 128
    begin, ratios, memory = time.monotonic(), [], []
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as trace, Server(tool, "--parallel", "8", "--queue", "1000") as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
        trace.write(f"0.0,{prompt},{new}\n" * count)
        trace.flush()
        for minute in range(o.minutes):
            seed, until = 100 * minute, begin + 60 * minute + 25
            while time.monotonic() < until:
                for answer in pool.map(server.complete, mixed(64, seed)):
                    essence(answer)
                seed += 1
            done, spent, bare = 0, 0.0, []
            while time.monotonic() < begin + 60 * (minute + 1) - 8 or not bare:
                streams = Streams(server.port)
                for i in range(count):
                    streams.add(i, {"prompt": tokens(prompt, 1000 * seed + i), "max_tokens": new, "ignore_eos": True, "temperature": 0})
                streams.finish()
                done, spent, seed = done + count * new, spent + time.monotonic() - streams.begin, seed + 1
                bare.append(json.loads(subprocess.run([tool, "bench", "engine", *Server.model, "--trace", trace.name, "--parallel", "8", "--json", "--quiet"],
                                                      capture_output=True, text=True, check=True).stdout)["tokens_per_s"])
            time.sleep(max(0.0, begin + 60 * (minute + 1) - 2 - time.monotonic()))
            ratios.append(done / spent / statistics.mean(bare))
            memory.append(server.metric("process_anonymous_bytes"))
            print(f"  minute {minute + 1}: {done / spent:.0f} tokens/s, {100 * ratios[-1]:.1f} % of the bare loop, {memory[-1] / 2**20:.2f} MiB anonymous", flush=True)
        requests, fds = server.metric('request_success_total{finished_reason="length"}'), server.metric("process_open_fds")
    few = max(1, min(5, len(ratios) // 2))
    held, grown = statistics.median(ratios[-few:]) / statistics.median(ratios[:few]), memory[-1] - memory[min(1, len(memory) - 1)]
    print(f"soak: {o.minutes} minutes, {requests:.0f} answers of full length, {fds:.0f} descriptors; tokens/s beside the bare loop at the end {100 * held:.1f} % of those at the begin; "
          f"anonymous memory since minute 2 {grown / 2**20:+.2f} MiB of {memory[-1] / 2**20:.0f}")
    return held >= 0.98 and grown <= 4 * 2**20


def part_drain(tool, o):
    with Server(tool, "--parallel", "4", "--drain", "30") as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(server.complete, {"prompt": [i + 1], "max_tokens": 100, "ignore_eos": True, "stream": True}) for i in range(8)]
        while server.metric("num_requests_running") < 4:
            time.sleep(0.01)
        begin = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        whole = sum(a.result()[1].rstrip().endswith("[DONE]") and '"finish_reason":"length"' in a.result()[1] for a in answers)
        status = server.process.wait(40)
        seconds = time.monotonic() - begin
    with Server(tool) as server:
        busy = socket.create_connection(("127.0.0.1", server.port))
        busy.sendall(post_bytes("/v1/completions", {"prompt": [1], "max_tokens": 1000, "ignore_eos": True, "stream": True}))
        busy.recv(100)
        server.process.kill()
        server.process.wait()
        with Server(tool, port=server.port) as again:
            same = again.port == server.port and again.complete({"prompt": "a", "max_tokens": 1})[0] == 200
    print(f"drain: {whole} of 8 answers whole, status {status}, {seconds:.1f} s; after kill -9 with a stream open the same port answers: {same}")
    return whole == 8 and status == 0 and same


def part_prefix(tool, o):
    length = 4096 if Server.model else 1900
    with Server(tool, "--parallel", "2", "--ctx", "8192" if Server.model else "0") as server:
        body = {"prompt": tokens(length, 3), "max_tokens": 1}
        times, cached = [], []
        for _ in range(3):
            begin = time.monotonic()
            usage = json.loads(server.complete(body)[1])["usage"]
            times.append(time.monotonic() - begin)
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        hits, queries = server.metric("prefix_cache_hits_total"), server.metric("prefix_cache_queries_total")
        # The next turn of a chat: what was said and answered is there, up to the last token that was drawn.
        first = json.loads(server.complete({"prompt": tokens(300, 4), "max_tokens": 50, "ignore_eos": True, "temperature": 0, "return_token_ids": True})[1])
        turn = tokens(300, 4) + first["choices"][0]["token_ids"] + tokens(20, 5)
        again = json.loads(server.complete({"prompt": turn, "max_tokens": 1})[1])["usage"]
        computed = again["prompt_tokens"] - again["prompt_tokens_details"]["cached_tokens"]
    share = times[1] / times[0]
    print(f"prefix: {length} tokens: first {1000 * times[0]:.0f} ms, second {1000 * times[1]:.1f} ms ({100 * share:.1f} %), cached {cached}, {hits:.0f} hits of {queries:.0f}; "
          f"the next turn of 20 tokens after 300 and 50 computes {computed}")
    return cached == [0, length - 1, length - 1] and hits == sum(cached) and queries == 3 * (length - 1) and share <= 0.05 and computed <= 21


def end_of(server):
    server.process.send_signal(signal.SIGTERM)
    return server.process.wait(120)


def part_restart(tool, o):
    length, new = 4000 if Server.model else 1900, 32
    prompt = tokens(length, 3)
    options = ["--parallel", "2", "--ctx", "8192" if Server.model else "0"] + (["--pack-dir", o.pack_dir] if o.pack_dir else [])
    seconds, answers, right, status = {}, {}, True, 0

    def ask(server, kind, turn):
        body = {"prompt": prompt + (tokens(new, 100 + turn) if kind.startswith("turn") else []), "max_tokens": 1, "temperature": 0}
        begin = time.monotonic()
        answer = json.loads(server.complete(body)[1])
        seconds.setdefault(kind, []).append(time.monotonic() - begin)
        answers.setdefault(json.dumps(body), []).append(answer["choices"])
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    with tempfile.TemporaryDirectory() as folder:
        for turn in range(2 * o.rounds + 1):
            kind = "turn" if turn % 2 else "same"
            with Server(tool, *options, "--kv-dir", os.path.join(folder, "kv")) as server:
                server.complete({"prompt": tokens(40, 9 + turn), "max_tokens": 2})  # the process is awake
                cached = ask(server, "cold" if turn == 0 else kind + " after a restart", turn)
                right &= cached == 0 if turn == 0 else cached >= length - 1
                for again in range(3):
                    right &= ask(server, kind, 10 * turn + again + 10) >= length - 1
                status |= end_of(server)
    with Server(tool, *options) as server:
        for body in answers:
            answers[body].append(json.loads(server.complete(json.loads(body))[1])["choices"])
    equal = all(a == all_of[0] for all_of in answers.values() for a in all_of)
    middle = {kind: 1000 * statistics.median(values) for kind, values in seconds.items()}
    same, turned = (middle[k + " after a restart"] / middle[k] for k in ("same", "turn"))
    print(f"restart: {length} tokens, first token computed {middle['cold']:.0f} ms; the same prompt from memory {middle['same']:.1f} ms, after a restart {same:.2f} times; "
          f"with {new} new tokens {middle['turn']:.1f} ms, after a restart {turned:.2f} times; equal: {equal}, status {status}")
    return right and equal and status == 0 and turned <= 1.2


def part_disk(tool, o):
    requests = mixed(o.requests, 1)
    with Server(tool, "--parallel", "2") as server:
        alone = [essence(server.complete(r)) for r in requests]
    differences, read, damaged = 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for turn, options in enumerate((["--kv-gib", "0.02"], ["--kv-gib", "0.02"], [], ["--kv-gib", "0.02", "--kv-dir-gib", "0.01"], [])):
            with Server(tool, "--parallel", "16", "--queue", "1000", "--kv-dir", os.path.join(folder, "kv"), *options) as server, \
                    concurrent.futures.ThreadPoolExecutor(16) as pool:
                for expected, got in zip(alone, pool.map(server.complete, requests)):
                    differences += essence(got) != expected
                read += server.metric("kv_disk_hits_total")
                damaged += server.metric("kv_disk_damaged_blocks_total")
                if turn % 2 == 0:
                    end_of(server)  # the others are killed
            print(f"disk: {len(requests)} requests, {' '.join(options)}: {differences} differences so far, {read:.0f} tokens read", flush=True)
    return differences == 0 and read > 0 and damaged == 0


def predicting(requests, answers):
    """The same requests with a prediction each: the answer, the answer up to somewhere, or something else."""
    draw, out = random.Random(5), []
    for request, choices in zip(requests, answers):
        text = choices[0]["text"]
        cut = draw.randrange(len(text) + 1)
        content = draw.choice([text, text[:cut] + " of the sea" + text[cut:], " once upon a time" * 8]) or "a"
        out.append(dict(request, prediction={"type": "content", "content": content}))
    return out


def small_tokenizer(folder, words=32):
    """Letters and digits as tokens, for a folder of the tests that has none."""
    names = "abcdefghijklmnopqrstuvwxyz0123456789"[:words]
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated",
                   "invert": False}, "post_processor": None, "decoder": None, "model": {"type": "WordLevel", "vocab": {n: i for i, n in enumerate(names)},
                   "unk_token": "a"}}, f)


def part_together(tool, o):
    requests = mixed(o.requests, 7)
    differences, count = 0, len(requests)
    with tempfile.TemporaryDirectory() as folder:
        kept = ["--kv-dir", os.path.join(folder, "kv"), "--pack-dir", os.path.join(folder, "packed")]

        def compare(what, expected, asked, *options, group=None, model=None, names=(None,)):
            nonlocal differences
            with Server(tool, "--queue", "2000", *options, group=group, model=model) as server, concurrent.futures.ThreadPoolExecutor(16) as pool:
                bodies = [dict(r, model=names[i % len(names)]) if names[0] else r for i, r in enumerate(asked)]
                for choices, got in zip(expected, pool.map(server.complete, bodies)):
                    differences += essence(got) != choices
                figures = server.get("/metrics")[1]
                right, tried = (sum(float(x) for x in re.findall(rf"(?m)^moebius_spec_decode_num_{kind}_tokens_total\S* (\S+)", figures)) for kind in ("accepted", "draft"))
                read = sum(float(x) for x in re.findall(r"(?m)^moebius_kv_disk_hits_total\S* (\S+)", figures))
                anonymous = server.metric("process_anonymous_bytes")
                end_of(server)
            print(f"together: {len(asked)} requests, {what}: {differences} differences so far, {right:.0f} of {tried:.0f} drafted tokens right, {read:.0f} tokens from disk", flush=True)
            return right, tried, read, anonymous

        def alone(asked, model=None):
            with Server(tool, "--parallel", "2", "--speculate", "off", model=model) as server:
                return [essence(server.complete(r)) for r in asked]

        plain = alone(requests)
        *_, anonymous = compare("packed, prompts on disk, little memory", plain, requests, "--parallel", "16", "--kv-gib", "0.02", *kept)
        smallest = ["--expert-gib", "0.001"]
        compare("experts on disk, least memory", plain, requests, "--parallel", "16", "--kv-gib", "0.02", "--no-pack", *smallest)
        compare("experts on disk, packed", plain, requests, "--parallel", "16", *smallest, *kept)
        right, _, read, _ = compare("again, with predictions", plain, predicting(requests, plain), "--parallel", "16", *kept)
        packed = max(os.path.getsize(os.path.join(folder, "packed", f)) for f in os.listdir(os.path.join(folder, "packed")))
        pressure = Group(int(1.2 * anonymous + packed / 2))
        if pressure.path:
            compare(f"mapped weights in {(1.2 * anonymous + packed / 2) / 1e6:.0f} MB", plain, requests, "--parallel", "8", "--kv-gib", "0.02", *kept, group=pressure)
            pressure.close()
        else:
            print("together: no control group can be made here: memory pressure was left out")
        two = [w for name in ("a", "b") for w in ("--model", f"{name}={(Server.model or [o.bundled])[0]}")]
        compare("two models that sleep after 0.2 s", plain, requests, "--parallel", "8", "--sleep-after", "0.2", *kept, model=two, names=("a", "b"))
        drafted = 1
        if o.mtp:
            copied = os.path.join(folder, "mtp")
            shutil.copytree(o.mtp, copied)
            if not os.path.exists(os.path.join(copied, "tokenizer.json")):
                small_tokenizer(copied)
            asked = mixed(o.requests, 8, o.mtp_vocabulary, 200)
            _, drafted, _, _ = compare("mtp", alone(asked, [copied]), asked, "--parallel", "16", "--speculate", "mtp", *kept, model=[copied])
    print(f"together: {count} requests each, {differences} differences")
    return differences == 0 and right > 0 and read > 0 and drafted > 0


def part_faults(tool, o):
    good = '{"prompt":"a","max_tokens":1}'
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    def sized(body):
        return (head + f"Content-Length: {len(body)}\r\n\r\n").encode() + body
    cases = [("slow headers", b"GET / HTTP/1.1\r\nHost: lo", 408), ("slow body", (head + "Content-Length: 100\r\n\r\n{").encode(), 408),
             ("a body of 10 MB", sized(b"x" * 10_000_000), 413), ("a header of 1 MB", f"GET / HTTP/1.1\r\nX: {'a' * 2**20}\r\n\r\n".encode(), 431),
             ("10,000 headers", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10000 + b"\r\n", 431),
             ("chunk -2", (head + "Transfer-Encoding: chunked\r\n\r\n-2\r\nab\r\n").encode(), 400), ("60,000 brackets", sized(b"[" * 60000), 400),
             ("invalid UTF-8", sized(b'{"prompt":"\xff"}'), 400), ("n 10^6", sized(b'{"prompt":"a","n":1000000}'), 400),
             ("kwargs messages", sized(b'{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"messages":[]}}').replace(b"/v1/completions", b"/v1/chat/completions"), 400)]
    with Server(tool, "--parallel", "4") as server:
        beside = {"prompt": "It was", "max_tokens": 1500, "ignore_eos": True, "seed": 5, "return_token_ids": True}
        expected = streamed(server, beside)
        for _ in range(20):
            server.complete(json.loads(good))
        results, same, memory = {}, [], []
        def one(name, data):
            with socket.create_connection(("127.0.0.1", server.port), timeout=90) as s:
                try:
                    s.sendall(data)
                except OSError:
                    pass  # it was refused meanwhile
                try:
                    results[name] = int(s.recv(100)[9:12] or 0)
                except OSError as e:
                    results[name] = str(e)
        # Twice: what the first time left in the allocator is there for the second. With a seed, so that the second time the reader's answers find
        # their blocks in the prefix cache, which keeps 6 MiB of others otherwise, until it is full.
        for cancels in (4, 8):
            reader = socket.create_connection(("127.0.0.1", server.port))  # never reads
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.sendall(post_bytes("/v1/completions", {"prompt": "a", "max_tokens": 1900, "n": 4, "logprobs": 20, "ignore_eos": True, "stream": True, "seed": 9}))
            workers = [threading.Thread(target=one, args=(name, data)) for name, data, _ in cases]
            for w in workers:
                w.start()
            while any(w.is_alive() for w in workers):
                same.append(streamed(server, beside) == expected)
            for _ in range(900):
                cancelled = server.metric('request_success_total{finished_reason="cancelled"}')
                if cancelled == cancels:
                    break
                time.sleep(0.1)
            reader.close()
            time.sleep(3)
            memory.append(server.metric("process_anonymous_bytes"))
        grown = memory[1] - memory[0]
    wrong = {name: results.get(name) for name, _, status in cases if results.get(name) != status}
    print(f"faults: {len(cases)} kinds, unexpected: {wrong or 'none'}; the slow readers' {cancelled:.0f} of 8 answers were cancelled; {sum(same)} of {len(same)} answers beside them unchanged; "
          f"memory of the second round {grown / 2**20:+.1f} MiB")
    return not wrong and all(same) and cancelled == 8 and grown <= 4 * 2**20


class Peer(Server):
    """`vllm serve` in the environment of bench/peer_env.sh, as a server of the same kind."""

    def __init__(self, environment, folder, threads):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        with open(os.path.join(environment, "run")) as run:
            preload = run.read().split('LD_PRELOAD="')[1].split('"')[0]
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen(
            [os.path.join(environment, "bin", "vllm"), "serve", folder, "--port", str(self.port), "--dtype", "bfloat16", "--max-model-len", "8192", "--max-num-seqs", "32",
             "--no-enable-prefix-caching", "--enforce-eager", "--served-model-name", "model"], stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True,
            env=dict(os.environ, LD_PRELOAD=preload, HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="4", VLLM_CPU_OMP_THREADS_BIND=f"0-{threads - 1}", OMP_NUM_THREADS=str(threads),
                     VLLM_LOGGING_LEVEL="WARNING"))
        while True:
            if self.process.poll() is not None:
                self.log.seek(0)
                raise SystemExit(f"vllm serve ended with status {self.process.returncode}:\n{self.log.read()[-3000:]}")
            try:
                if self.get("/health")[0] == 200:
                    return
            except OSError:
                time.sleep(1)

    def __exit__(self, kind, *_):
        if kind is not None:
            self.log.seek(0)
            print(f"vllm serve's last words:\n{self.log.read()[-3000:]}", file=sys.stderr)
        os.killpg(self.process.pid, signal.SIGKILL)  # its engine is a process of its own
        self.process.wait()


def part_attacks(tool, o):
    """Times are those of a quiet machine: the whole request, on a connection of its own, the least of some tries."""
    bodies = {name: json.dumps({"prompt": "a", "guided_json": schema}) for name, schema in schemas.attacks().items()}
    bodies["5,000 levels"] = '{"prompt":"a","guided_json":' + '{"items":' * 5000 + "{}" + "}" * 5000 + "}"
    beside = {"prompt": "It was", "max_tokens": 400, "ignore_eos": True, "seed": 5, "return_token_ids": True}
    right, slowest = True, 0
    with Server(tool, "--parallel", "4") as server:
        expected = streamed(server, beside)
        for name, body in bodies.items():
            took, status, answer = [], 0, ""
            for _ in range(3):
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
                begin = time.monotonic()
                connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                reply = connection.getresponse()
                status, answer = reply.status, reply.read().decode()
                took.append(1000 * (time.monotonic() - begin))
                connection.close()
            slowest = max(slowest, min(took))
            error = json.loads(answer).get("error", {})
            right &= status == 400
            print(f"attacks: {name}: {status} {error.get('code')}, {min(took):.1f} ms: {error.get('message')}", flush=True)
        same = streamed(server, beside) == expected
        stop = threading.Event()

        def attack():
            while not stop.is_set():
                for body in bodies.values():
                    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
                    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                    connection.getresponse().read()
                    connection.close()
        worker = threading.Thread(target=attack)
        worker.start()
        same &= all(streamed(server, beside) == expected for _ in range(3))
        stop.set()
        worker.join()
    print(f"attacks: {len(bodies)} kinds, all 400: {right}; the slowest {slowest:.0f} ms (bar 150); a stream beside them unchanged: {same}")
    return right and same and slowest <= 150


def part_peer(tool, o):
    """A16: the same folder, one server after the other; 128 tokens in and out, and a 4096-token prompt beside 8 streams."""
    threads, figures = o.threads or len(os.sched_getaffinity(0)), {}
    for name, start in (("vllm", lambda: Peer(o.peer, o.model, threads)),
                        ("moebius", lambda: Server(tool, "--parallel", "32", "--ctx", "8192", "--sse-ping", "0", "--threads", str(threads)))):
        with start() as server:
            body = {"ignore_eos": True, "temperature": 0, **({"model": "model"} if name == "vllm" else {})}
            def run(count, seed):
                streams = Streams(server.port)
                for i in range(count):
                    streams.add(i, dict(body, prompt=tokens(128, 100 * seed + i), max_tokens=128))
                streams.finish()
                return count * 128 / (time.monotonic() - streams.begin)
            run(1, 0)
            for count in o.streams:
                figures[name, count] = statistics.median(run(count, 10 * count + r) for r in range(o.rounds))
                print(f"  {name}: {count} streams, {figures[name, count]:.1f} tokens/s", flush=True)
            streams = Streams(server.port)
            for i in range(8):
                streams.add(i, dict(body, prompt=tokens(64, i), max_tokens=400))
            while min(len(streams.times[i]) for i in range(8)) < 20:
                streams.turn(0.1)
            arrived = time.monotonic()
            streams.add("long", dict(body, prompt=tokens(4096, 7), max_tokens=2))
            while not streams.times["long"] and streams.open > 1:
                streams.turn(0.1)
            figures[name, "gap"] = at(streams.gaps(range(8), arrived - 1), 0.99)
            print(f"  {name}: gap p99 of 8 streams beside a 4096-token prompt {1e3 * figures[name, 'gap']:.0f} ms", flush=True)
    ratios = {count: figures["moebius", count] / figures["vllm", count] for count in o.streams}
    gap = figures["moebius", "gap"] / figures["vllm", "gap"]
    print(f"peer: {threads} threads; tokens/s over vllm serve's: {', '.join(f'{c} streams {r:.2f}' for c, r in ratios.items())} (bar 1.5); gap p99 {gap:.2f} times its (bar 0.5)")
    return all(r >= 1.5 for r in ratios.values()) and gap <= 0.5


def main():
    parts = {name[5:]: f for name, f in globals().items() if name.startswith("part_")}
    on_folder = {"fair", "pass"}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("parts", nargs="*", default=[])
    parser.add_argument("--model", help="folder; fair and pass need one whose context is long")
    parser.add_argument("--launch", default="", help="words that start ranks: 'mpirun -n 4'; bytes are compared with one process")
    parser.add_argument("--ranks", default="", help="--pp, --tp and --ep: '--pp 2 --tp 2'; without --launch ranks are threads")
    parser.add_argument("--pack-dir", default="", help="packed weights, so that the servers of the part restart start sooner")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--streams", type=int, nargs="*", default=[32, 8, 1])
    parser.add_argument("--peer", help="environment of bench/peer_env.sh for the part peer")
    parser.add_argument("--threads", type=int, default=0, help="of the engine in the parts overload and peer")
    parser.add_argument("--minutes", type=int, default=20, help="of the part soak")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new", type=int, default=64, help="tokens per answer of the part speed")
    parser.add_argument("--prompt", type=int, default=128, help="tokens per prompt of the part speed")
    parser.add_argument("--bare", action="store_true", help="part speed: `bench engine` in a process of its own as well")
    parser.add_argument("--idle", type=int, default=0, help="connections without a request beside the part speed")
    parser.add_argument("--mtp", help="part together: a folder with a layer for multi-token prediction")
    parser.add_argument("--mtp-vocabulary", type=int, default=32, help="token ids of it that prompts may have")
    parser.add_argument("--bundled", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "moebius-tiny-w4a8"))
    options = parser.parse_args()
    if options.model:
        Server.model = [options.model]
    Server.launch, Server.ranks = options.launch.split(), options.ranks.split()
    chosen = options.parts or [p for p in parts if p not in ("soak", "peer") and (options.model or p not in on_folder)]
    failed = [p for p in chosen if not parts[p](options.tool, options)]
    print("failed:" if failed else "all passed", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
