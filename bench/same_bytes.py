#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what two builds of the tool say: did a change alter any byte?

    bench/same_bytes.py BEFORE AFTER [FOLDER...] [--parts logits,run,pack,serve] [--jobs 2]

BEFORE and AFTER are two `moebius` programs. FOLDER: checkpoints; without any, every checkpoint of the tests' data and the bundled model. Parts:

    logits    the file that `logits` writes for a prompt of 40 tokens
    run       what `run --temp 0` prints
    pack      names and contents of the files that `pack` writes
    serve     status and body of every answer of a server: greedy and sampled, streamed, embeddings, and with a tokenizer of its own also chats,
              messages, responses and answers in a schema. Names of answers, times and the fingerprint of the build are masked

Status and last line of stderr are compared where a command refuses. Prints a line for each difference; the status is 1 if there is any, or nothing
that both accepted.
"""
import argparse
import concurrent.futures
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "build/data"
BUNDLED = ROOT / "models/moebius-tiny-w4a8"
TOKENS = [(7 * i + 3) % 16 for i in range(40)]
IDS = ",".join(map(str, TOKENS))
# What no two answers have in common.
MASKS = [(re.compile(rb'\b((?:chatcmpl|cmpl|resp|msg|call|fc|rs|toolu|item|batch)[-_])[0-9a-f]{8,}'), rb"\1X"),
         (re.compile(rb'("(?:created|created_at|completed_at)": ?)[0-9.]+'), rb"\g<1>0"),
         (re.compile(rb'("(?:system_fingerprint|request_id|id)": ?)"[^"]*"'), rb'\1"X"')]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"],
          "additionalProperties": False}
CHAT = {"messages": [{"role": "user", "content": "Tell me of the sea."}], "temperature": 0}
REQUESTS = [  # of every folder
    ("greedy", "/v1/completions", {"prompt": TOKENS, "max_tokens": 12, "temperature": 0, "logprobs": 3}),
    ("sampled", "/v1/completions", {"prompt": TOKENS[:9], "max_tokens": 12, "temperature": 0.9, "seed": 11, "top_k": 9, "n": 2}),
    ("streamed", "/v1/completions", {"prompt": TOKENS[:5], "max_tokens": 4, "temperature": 0, "stream": True}),
    ("embeddings", "/v1/embeddings", {"input": [TOKENS[:7]]}),
]
TEXT_REQUESTS = [  # of folders with a tokenizer
    ("chat", "/v1/chat/completions", CHAT | {"max_tokens": 24, "logprobs": True, "top_logprobs": 2}),
    ("chat in a schema", "/v1/chat/completions",
     CHAT | {"max_tokens": 60, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}}),
    ("chat with a tool", "/v1/chat/completions",
     CHAT | {"max_tokens": 60, "tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]}),
    ("messages", "/v1/messages", {"model": "moebius-tiny-w4a8", "messages": CHAT["messages"], "max_tokens": 24, "temperature": 0}),
    ("responses", "/v1/responses", {"input": "Tell me of the sea.", "max_output_tokens": 24, "temperature": 0}),
    ("tokenize", "/tokenize", {"prompt": "the sea, the sea"}),
    ("a refusal", "/v1/chat/completions", {"messages": [], "temperature": -1}),
]


def masked(body):
    for pattern, to in MASKS:
        body = pattern.sub(to, body)
    return body


def command(tool, words, place):
    """(accepted, output) of a command; output of one that refuses is its status and its last sentence."""
    run = subprocess.run([tool, *map(str, words), "--threads", "1"], stdin=subprocess.DEVNULL, capture_output=True, cwd=place, check=False)
    if run.returncode == 0:
        return True, run.stdout
    last = run.stderr.strip().rsplit(b"\n", 1)[-1]
    return False, f"status {run.returncode}: ".encode() + last.replace(os.fsencode(place), b"X")


def files_of(place):
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file() and path.suffix != ".lock"}


def logits(tool, folder, place):
    accepted, said = command(tool, ["logits", folder, "--tokens", IDS, "--out", "logits.safetensors", "--quiet"], place)
    yield "logits", accepted, (place / "logits.safetensors").read_bytes() if accepted else said


def run(tool, folder, place):
    yield "run", *command(tool, ["run", folder, "--tokens", IDS, "-n", "12", "--temp", "0", "--quiet"], place)


def pack(tool, folder, place):
    accepted, said = command(tool, ["pack", folder, "packed", "--quiet"], place)
    if not accepted:
        yield "pack", False, said
        return
    for name, content in files_of(place / "packed").items():
        yield f"pack, {name}", True, content


def with_tokenizer(folder, place):
    """A folder whose text is one letter for each token, made of one without tokenizer; the folder itself where it has one."""
    if (folder / "tokenizer.json").exists() or (folder / "tiktoken.model").exists():
        return folder
    config = json.loads((folder / "config.json").read_text())
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size") or 16
    made = place / folder.name
    made.mkdir()
    for path in folder.iterdir():
        (made / path.name).symlink_to(path)
    vocabulary = {chr(0x4e00 + i): i for i in range(size)}
    (made / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}))
    return made


def ask(address, path, body):
    """Status and body of one answer."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=600)
    try:
        connection.request("POST" if body is not None else "GET", path, json.dumps(body) if body is not None else None,
                           {"Content-Type": "application/json"})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def healthy(address):
    try:
        return ask(address, "/health", None)[0] == 200
    except ConnectionError:  # it refuses the model, and ends
        return False


def serve(tool, folder, place):
    served = with_tokenizer(folder, place)
    log = place / "log"
    with open(log, "wb") as errors:
        words = [tool, "serve", served, "--port", "0", "--quiet", "--threads", "1", "--parallel", "2", "--tool-format", "hermes"]
        server = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=place)
    try:
        address = server.stdout.readline().strip()
        while address and server.poll() is None and not healthy(address):
            time.sleep(0.02)
        if not address or server.poll() is not None:
            last = log.read_bytes().strip().rsplit(b"\n", 1)[-1]
            yield "serve", False, f"status {server.wait()}: ".encode() + last.replace(os.fsencode(place), b"X")
            return
        for name, path, body in REQUESTS + (TEXT_REQUESTS if served == folder else []):
            status, answer = ask(address, path, body)
            yield f"serve, {name}", status == 200, f"{status} ".encode() + masked(answer)
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
        server.communicate()


PARTS = {"logits": logits, "run": run, "pack": pack, "serve": serve}


def results(tool, folder, parts):
    """{what: (accepted, bytes)} of one program and one folder."""
    found = {}
    for part in parts:
        with tempfile.TemporaryDirectory(prefix="same_bytes.") as place:
            for what, accepted, content in PARTS[part](tool, folder, Path(place)):
                found[what] = (accepted, content)
    return found


def compare(name, before, after):
    """A line for each difference of two results()."""
    lines = []
    for what in sorted(before.keys() | after.keys()):
        if what not in before or what not in after:
            lines.append(f"{name}: {what}: only {'after' if what not in before else 'before'}")
            continue
        (_, a), (_, b) = before[what], after[what]
        if a != b:
            at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            begin = max(at - 20, 0)
            lines.append(f"{name}: {what}: {len(a)} and {len(b)} bytes, first difference at {at}: {a[begin:at + 40]!r} and {b[begin:at + 40]!r}")
    return lines


def folders_of_tests():
    """Checkpoints of the tests' data, and the bundled model."""
    subprocess.run([sys.executable, "-B", ROOT / "tests/data.py", "unpack"], check=True)
    found = [path.parent for path in DATA.glob("golden*/*/config.json") if any(path.parent.glob("*.safetensors"))]
    return sorted(found) + [BUNDLED]


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args(words)
    parts = options.parts.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"unknown part {unknown[0]}; there are {', '.join(PARTS)}")
    tools = [options.before.resolve(), options.after.resolve()]
    folders = [folder.resolve() for folder in options.folders] or folders_of_tests()
    lock, counts = threading.Lock(), {"compared": 0, "accepted": 0, "differ": 0}

    def one(folder):
        before, after = (results(tool, folder, parts) for tool in tools)
        lines = compare(f"{folder.parent.name}/{folder.name}", before, after)
        with lock:
            counts["compared"] += len(before)
            counts["accepted"] += sum(accepted for accepted, _ in before.values())
            counts["differ"] += len(lines)
            if lines:
                print("\n".join(lines), flush=True)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, folders))
    print(f"{len(folders)} folders, {counts['compared']} results of which {counts['accepted']} were accepted, {counts['differ']} differences")
    return 1 if counts["differ"] or not counts["accepted"] else 0


if __name__ == "__main__":
    sys.exit(main())
