#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tool, its server and the Python package under a malloc that fails at random.

    check_malloc.py BUILD [--seeds 500] [--first 0] [--faces serve,limit,run,quantize,python]

BUILD holds the tool, libmoebius and tests/libfailing_malloc.so. Demanded for every seed: nothing ends by a signal; `run` and `quantize` end with
status 0 and the bytes of a quiet run, or with status 1 and one sentence; the server gives each of 8 requests the quiet answer, or 500 or 503
with words, and afterwards /health says 200, no block is in use and the same request has the same answer; Python raises an exception, and
the same object works afterwards. Every fifth seed of the server starts it, and every fifth ends it, while malloc fails. Prints the counts.
"""
import argparse
import collections
import concurrent.futures
import ctypes
import json
import mmap
import os
import re
import resource
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/moebius-tiny-w4a8"
SOURCE = ROOT / "build/data/golden/qwen3moe-dense"
RATES = (40, 200, 1000, 4000, 20000)  # one allocation in so many fails: in the server
ROUNDS = 4  # seeds that a server serves before it ends
PATIENCE = 120


class Malloc:
    """The page that libfailing_malloc.so shares."""

    def __init__(self, folder, only_ours=0):
        self.path = Path(folder) / "failing_malloc"
        self.path.write_bytes(struct.pack("5Q", 0, 0, 0, 0, only_ours))
        with open(self.path, "r+b") as file:
            self.page = mmap.mmap(file.fileno(), 40)

    def arm(self, seed, rate):
        self.page[8:16] = struct.pack("Q", seed * 1000003)
        self.page[0:8] = struct.pack("Q", rate)

    def calm(self):
        self.page[0:8] = struct.pack("Q", 0)

    def failed(self):
        return struct.unpack("Q", self.page[24:32])[0]


LONG_RATES = (500, 4000, 15000, 40000, 80000)  # what starts and ends allocates more


def rate_of(seed, rates=RATES):
    return rates[seed % len(rates)]


class Problems:
    def __init__(self):
        self.found = []

    def add(self, face, seed, text):
        self.found.append(f"{face}, seed {seed}: {text}")
        print(f"FAILED {self.found[-1]}", flush=True)


def environment(build, malloc):
    return {**os.environ, "LD_PRELOAD": str(build / "tests/libfailing_malloc.so"), "FAILING_MALLOC": str(malloc.path)}


def bad_end(status, err):
    """What is wrong with the end of a process; None: nothing."""
    if status < 0 or "terminate called" in err:
        return f"ended by signal {-status}: {err[-400:]}"
    if status not in (0, 1):
        return f"status {status}: {err[-400:]}"
    if status == 1 and not re.search(r"^moebius: \S.*$", err, re.M):
        return f"status 1 without a sentence: {err[-400:]!r}"
    return None


# --- the tool ---

def tool_face(face, build, seeds, problems, command, same):
    """`command(work)`: arguments; `same(work, out)`: what a quiet run leaves."""
    counts = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        malloc = Malloc(folder)
        quiet = None
        for seed in [None] + list(seeds):
            work = Path(folder) / "work"
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            if seed is not None:
                malloc.arm(seed, rate_of(seed, LONG_RATES))
            try:
                run = subprocess.run([build / "moebius"] + command(work), env=environment(build, malloc), stdin=subprocess.DEVNULL,
                                     capture_output=True, timeout=PATIENCE, check=False)
            except subprocess.TimeoutExpired:
                problems.add(face, seed, "does not end")
                continue
            finally:
                malloc.calm()
            err = run.stderr.decode("utf-8", "replace")
            if seed is None:
                assert run.returncode == 0, err
                quiet = same(work, run.stdout)
                continue
            counts["seeds"] += 1
            counts[f"exit {run.returncode}"] += 1
            counts["terminate"] += run.returncode < 0
            wrong = bad_end(run.returncode, err)
            if wrong is None and run.returncode == 0 and same(work, run.stdout) != quiet:
                wrong = "status 0, and other bytes than those of a quiet run"
            if wrong is not None:
                problems.add(face, seed, wrong)
        counts["failed allocations"] = malloc.failed()
    return counts


def run_face(build, seeds, problems):
    return tool_face("run", build, seeds, problems,
                     lambda work: ["run", MODEL, "-p", "It was a dark", "-n", "8", "--temp", "0", "--threads", "2"], lambda work, out: out)


def tree_of(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def quantize_face(build, seeds, problems):
    return tool_face("quantize", build, seeds, problems,
                     lambda work: ["quantize", SOURCE, work / "out", "--scheme", "w4a16", "--group", "32", "--threads", "2"],
                     lambda work, out: tree_of(work / "out"))


# --- the server ---

def completion(prompt, **fields):
    return "/v1/completions", {"prompt": prompt, "max_tokens": 12, "temperature": 0, **fields}


REQUESTS = [
    completion("It was a dark"),
    completion("Once upon a time", stream=True),
    completion("The old man", n=2, logprobs=2),
    completion("In the morning", stream=True, stop=["."]),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 12, "temperature": 0}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Who was she?"}], "max_tokens": 12, "temperature": 0, "stream": True}),
    completion("A list of things: " + "apples and pears, " * 30),
    ("/tokenize", {"prompt": "It was a dark and stormy night"}),
]


def ask(port, path, fields=None):
    """Status and body; status 0: the connection ended without an answer."""
    body = json.dumps(fields).encode() if fields is not None else b""
    head = f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" \
           f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    data = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as s:
            try:
                s.sendall(head.encode() + body)
            except OSError:
                pass  # it may have answered already
            while piece := s.recv(65536):
                data += piece
    except socket.timeout:
        return -1, b""
    except OSError:
        pass  # what came before counts
    match = re.match(rb"HTTP/1\.1 (\d+) ", data)
    if not match:
        return 0, data
    head, _, body = data.partition(b"\r\n\r\n")
    if b"chunked" in head.lower():
        whole, body = body, b""
        while whole:
            size, _, whole = whole.partition(b"\r\n")
            n = int(size or b"0", 16)
            if n == 0:
                break
            body, whole = body + whole[:n], whole[n + 2:]
    return int(match.group(1)), body


def changing(text):
    """An answer without what differs from one to the next."""
    text = re.sub(rb'"(id|system_fingerprint)":"[^"]*"', b'"id":""', text)
    text = re.sub(rb'"cached_tokens":\d+', b"", text)
    return re.sub(rb'"created":\d+', b"", text)


def words_of_failure(body):
    for line in body.replace(b"data: ", b"").splitlines():
        try:
            error = json.loads(line).get("error")
            if error and error.get("message"):
                return error["message"]
        except (ValueError, AttributeError):
            pass
    return None


class Server:
    def __init__(self, build, folder, malloc, limit=resource.RLIM_INFINITY):
        self.err = open(Path(folder) / "log", "w+b")
        self.process = subprocess.Popen([build / "moebius", "serve", MODEL, "--port", "0", "--threads", "2", "--parallel", "4", "--ctx", "512", "--drain", "10"],
                                        env=environment(build, malloc), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.err,
                                        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))  # pylint: disable=subprocess-popen-preexec-fn
        line = self.process.stdout.readline().decode()
        self.port = int(line.rsplit(":", 1)[1]) if line.startswith("http") else 0

    def log(self):
        self.err.seek(0)
        return self.err.read().decode("utf-8", "replace")

    def ready(self):
        """Whether it serves; False: it ended."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.port and self.process.poll() is None:
            if ask(self.port, "/health")[0] == 200:
                return True
            time.sleep(0.02)
        return False

    def leaves(self):
        try:
            self.process.wait(PATIENCE if self.port == 0 else 10)
            return True
        except subprocess.TimeoutExpired:
            return False

    def end(self, kill=False):
        (self.process.kill if kill else self.process.terminate)()
        try:
            status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            status = None
        self.process.stdout.close()
        log = self.log()
        self.err.close()
        return status, log


def one_round(server, malloc, seed, quiet, counts, rate=None):
    """8 requests at once while malloc fails; what is wrong afterwards, or None."""
    malloc.arm(seed, rate_of(seed) if rate is None else rate)
    with concurrent.futures.ThreadPoolExecutor(len(REQUESTS)) as pool:
        answers = list(pool.map(lambda r: ask(server.port, *r), REQUESTS))
    malloc.calm()
    for (status, body), expected, (path, fields) in zip(answers, quiet, REQUESTS):
        words = words_of_failure(body)
        if status == 200 and words is not None:  # a stream that had begun
            status = 500
        counts[f"answers {status}"] += 1
        if status == 200:
            if changing(body) != expected:
                return f"{path} {str(fields)[:60]}: other bytes than those of a quiet server: {body[-300:]!r}"
        elif status not in (500, 503) or words is None:
            return f"{path} {str(fields)[:60]}: status {status}, {body[:300]!r}"
    return aftermath(server, quiet, short=rate == 0)


def aftermath(server, quiet, short):
    """short: memory is as short as before, and the next request may be told so."""
    end = time.monotonic() + 30
    while True:
        health = ask(server.port, "/health")[0]
        metrics = ask(server.port, "/metrics")[1].decode()
        used = re.search(r'kv_blocks\{[^}]*state="used"[^}]*\} (\d+)', metrics)
        running = re.search(r"^moebius_num_requests_running(?:\{[^}]*\})? (\d+)", metrics, re.M)
        if health == 200 and used and used.group(1) == "0" and running and running.group(1) == "0":
            break
        if time.monotonic() > end or server.process.poll() is not None:
            return f"afterwards: /health {health}, blocks in use {used and used.group(1)}, running {running and running.group(1)}"
        time.sleep(0.05)
    status, body = ask(server.port, *REQUESTS[0])
    if short and status in (500, 503) and words_of_failure(body):
        return None
    if status != 200 or changing(body) != quiet[0]:
        return f"afterwards: status {status}, {body[:300]!r}"
    return None


def serve_face(build, seeds, problems):
    counts = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        malloc = Malloc(folder)
        server = Server(build, folder, malloc)
        assert server.ready(), server.log()
        quiet = [changing(ask(server.port, *r)[1]) for r in REQUESTS]
        assert server.end()[0] == 0
        seeds = collections.deque(seeds)
        while seeds:
            seed = seeds.popleft()
            counts["seeds"] += 1
            malloc.arm(seed, 2 * rate_of(seed, LONG_RATES))
            server = Server(build, folder, malloc)
            there = server.ready()
            malloc.calm()
            if not there:
                hangs = not server.leaves()
                status, log = server.end(kill=hangs)
                counts[f"starts: exit {status}"] += 1
                wrong = "hangs at its start" if hangs else bad_end(status, log) or ("status 0 before it served" if status == 0 else None)
                counts["terminate"] += status is not None and status < 0 and not hangs
                if wrong is not None:
                    problems.add("serve", seed, wrong)
                continue
            counts["servers"] += 1
            wrong = None
            for _ in range(ROUNDS):
                if not seeds or wrong is not None:
                    break
                seed = seeds.popleft()
                counts["seeds"] += 1
                wrong = one_round(server, malloc, seed, quiet, counts)
            malloc.arm(seed, rate_of(seed // 5))
            status, log = server.end()
            malloc.calm()
            counts[f"ends: exit {status}"] += 1
            counts["terminate"] += status is not None and status < 0
            if status != 0:
                wrong = f"{wrong or 'at its end'}: status {status}; {log[-600:]}"
            if wrong is not None:
                problems.add("serve", seed, wrong)
        counts["failed allocations"] = malloc.failed()
    return counts


# --- the server with little address space ---

def limit_face(build, seeds, problems):
    """Servers with 130 to 450 MB; the size takes the place of the seed."""
    counts = collections.Counter()
    steps = min(len(seeds), 33)
    with tempfile.TemporaryDirectory() as folder:
        malloc = Malloc(folder)
        server = Server(build, folder, malloc)
        assert server.ready(), server.log()
        quiet = [changing(ask(server.port, *r)[1]) for r in REQUESTS]
        server.end()
        for megabytes in [130 + 320 * i // max(steps - 1, 1) for i in range(steps)]:
            counts["sizes"] += 1
            server = Server(build, folder, malloc, limit=megabytes << 20)
            if not server.ready():
                hangs = not server.leaves()
                status, log = server.end(kill=hangs)
                counts[f"starts: exit {status}"] += 1
                wrong = "hangs at its start" if hangs else bad_end(status, log)
            else:
                wrong = one_round(server, malloc, 0, quiet, counts, rate=0)
                status, log = server.end()
                counts[f"ends: exit {status}"] += 1
                if status != 0:
                    wrong = f"{wrong or 'at its end'}: status {status}; {log[-600:]}"
            counts["terminate"] += status is not None and status < 0
            if wrong is not None:
                problems.add("limit", f"{megabytes} MB", wrong)
    return counts


# --- Python ---

def python_child(control, seeds):
    """Prints a line of JSON: counts and what is wrong."""
    sys.path.insert(0, str(ROOT / "python"))
    import moebius  # pylint: disable=import-outside-toplevel
    malloc = Malloc.__new__(Malloc)
    with open(control, "r+b") as file:
        malloc.page = mmap.mmap(file.fileno(), 40)
    greedy = moebius.SamplingParams(max_tokens=8, temperature=0)
    llm = moebius.LLM(str(MODEL), threads=2)

    def generate(model):
        return [model.generate(p, greedy)[0].outputs[0].text for p in ("It was a dark", "Once upon a time")]

    def load():
        with moebius.LLM(str(MODEL), threads=2) as other:
            return generate(other)

    works = [lambda: generate(llm), lambda: generate(llm), load, lambda: moebius.Tokenizer(str(MODEL)).encode("It was a dark and stormy night")]
    quiet = [work() for work in works]
    counts, wrong = collections.Counter(), []
    for seed in seeds:
        at = seed % len(works)
        counts["seeds"] += 1
        malloc.arm(seed, rate_of(seed // len(works), LONG_RATES if at == 2 else RATES))
        try:
            found = works[at]()
            malloc.calm()
            counts["answers"] += 1
            if found != quiet[at]:
                wrong.append((seed, f"other answer: {found!r}"))
        except Exception as e:  # pylint: disable=broad-exception-caught
            malloc.calm()
            counts["exceptions"] += 1
            if not str(e) and not isinstance(e, MemoryError):
                wrong.append((seed, f"{type(e).__name__} without words"))
        if works[0]() != quiet[0]:
            wrong.append((seed, "the handle answers differently afterwards"))
    counts["failed allocations"] = malloc.failed()
    print(json.dumps([counts, wrong]))


def python_face(build, seeds, problems):
    counts = collections.Counter()
    seeds = list(seeds)
    with tempfile.TemporaryDirectory() as folder:
        for at in range(0, len(seeds), 50):
            piece = seeds[at:at + 50]
            malloc = Malloc(folder, only_ours=1)
            env = {**environment(build, malloc), "MOEBIUS_LIBRARY": str(build / "libmoebius.so"), "PYTHONDONTWRITEBYTECODE": "1"}
            run = subprocess.run([sys.executable, "-B", __file__, "--python-child", str(malloc.path), str(piece[0]), str(len(piece))], env=env,
                                 capture_output=True, text=True, timeout=20 * PATIENCE, check=False)
            if run.returncode != 0:
                counts["terminate"] += run.returncode < 0
                problems.add("python", f"{piece[0]} to {piece[-1]}", f"status {run.returncode}: {run.stderr[-600:]}")
                continue
            found, wrong = json.loads(run.stdout.splitlines()[-1])
            counts.update(found)
            for seed, text in wrong:
                problems.add("python", seed, text)
    return counts


FACES = {"serve": serve_face, "limit": limit_face, "run": run_face, "quantize": quantize_face, "python": python_face}


def main():
    if sys.argv[1:2] == ["--python-child"]:
        return python_child(sys.argv[2], range(int(sys.argv[3]), int(sys.argv[3]) + int(sys.argv[4])))
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=Path)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--faces", default=",".join(FACES))
    options = parser.parse_args()
    build = options.build.resolve()
    ctypes.CDLL(str(build / "tests/libfailing_malloc.so"))  # a file that cannot be loaded would be passed over
    problems = Problems()
    for face in options.faces.split(","):
        counts = FACES[face](build, range(options.first, options.first + options.seeds), problems)
        counts["terminate"] += 0
        print(f"{face}: " + ", ".join(f"{name} {counts[name]}" for name in sorted(counts)), flush=True)
        if counts["failed allocations"] == 0 and face != "limit":
            problems.add(face, "all", "no allocation failed: nothing was tested")
    return 1 if problems.found else 0


if __name__ == "__main__":
    sys.exit(main())
