#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GGUF files of at most 1 MB that a stranger made to cost much: `inspect` and `tokenize` take at most 64 MB of memory and 2 s of CPU.

    check_hostile_gguf.py MOEBIUS [FOLDER]

Each file goes to the limit of another part of the reader: long tokens, many tokens, merges that are cuts, values of JSON, templates, experts,
keys, tensors. Commands end with exit status 0, or with 1 and a sentence. FOLDER keeps the files.
"""
import math
import os
import random
import resource
import struct
import sys
import tempfile
from pathlib import Path

MEMORY_KB, CPU_SECONDS, FILE_BYTES = 64 * 1024, 2, 1 << 20
U32, F32, TEXT, ARRAY, I32 = 4, 6, 8, 9, 5
BLOCKS = {0: (1, 4), 2: (32, 18), 8: (32, 34)}  # numbers and bytes of a block, by type


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def array(kind, values):
    content = b"".join(map(text, values)) if kind == TEXT else struct.pack(f"<{len(values)}{'f' if kind == F32 else 'i'}", *values)
    return struct.pack("<IIQ", ARRAY, kind, len(values)) + content


def u32(value):
    return struct.pack("<II", U32, value)


def string(value):
    return struct.pack("<I", TEXT) + text(value)


def shapes(rows, experts=0):
    """Tensors of a model of one layer with 32 inputs everywhere."""
    out = {"token_embd": [rows, 32], "output_norm": [32]}
    names = {"attn_norm": [32], "ffn_norm": [32], "attn_q_norm": [32], "attn_k_norm": [32], **{f"attn_{x}": [32, 32] for x in ("q", "k", "v", "output")}}
    names |= {f"ffn_{x}_exps": [experts, 1, 32] for x in ("gate", "up", "down")} | {"ffn_gate_inp": [experts, 32]} if experts else \
        {f"ffn_{x}": [32, 32] for x in ("gate", "up", "down")}
    return out | {f"blk.0.{name}": shape for name, shape in names.items()}


def gguf(more=None, rows=1, experts=0, tensors=None, kind=8):
    family = "qwen3moe" if experts else "qwen3"
    keys = {"general.architecture": string(family)}
    sizes = {"block_count": 1, "context_length": 64, "embedding_length": 32, "feed_forward_length": 32, "attention.head_count": 1, "attention.head_count_kv": 1,
             "attention.key_length": 32, "attention.value_length": 32, "expert_count": experts, "expert_used_count": min(1, experts)}
    keys |= {f"{family}.{name}": u32(value) for name, value in sizes.items()} | {f"{family}.attention.layer_norm_rms_epsilon": struct.pack("<If", F32, 1e-6)}
    keys |= more or {}
    head, offset = b"".join(text(name) + value for name, value in keys.items()), 0
    tensors = {**shapes(rows, experts), **(tensors or {})}
    for name, shape in tensors.items():
        of = 0 if len(shape) == 1 else kind
        numbers, size = BLOCKS[of]
        head += text(name + ".weight") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), of, offset)
        offset += (math.prod(shape) // numbers * size + 31) // 32 * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + head
    return head + bytes(-len(head) % 32) + bytes(offset)


def words(tokens, types=None, model="gpt2", **more):
    keys = {"model": string(model), "pre": string("qwen2"), "tokens": array(TEXT, tokens), "merges": array(TEXT, [])}
    if model == "llama":
        keys["scores"] = array(F32, [0.0] * len(tokens))
    if types:
        keys["token_type"] = array(I32, types)
    return {f"tokenizer.ggml.{name}": value for name, value in {**keys, **more}.items()}


def files():
    """Name and bytes of each."""
    rng = random.Random(0)
    letters = lambda n, of="abcdefghij": "".join(rng.choice(of) for _ in range(n))

    def vocabulary(tokens, kind, **more):
        tokens = list(dict.fromkeys(tokens))
        return gguf(words(tokens, [kind] * len(tokens), **more), rows=len(tokens))

    ends = [t for _ in range(10) for b in [letters(256)] for n in range(1, 257) for t in (b[:n], b[-n:])]
    periods = [(p * 256)[:n] for n in range(1, 257) for p in ("a", "b", "ab", "ba", "aab", "aba", "baa", "abb", "bab", "bba", "c", "ac", "ca")]
    near = ["a" * n for n in range(1, 257)] + ["a" * n + letters(1) + "a" * (255 - n) for n in range(256) for _ in range(7)]
    for name, tokens in (("cuts_ends", ends), ("cuts_periods", periods), ("cuts_near", near)):
        yield name, vocabulary(tokens, 1, model="llama")
    for kind in (1, 3, 4):
        yield f"long_{kind}", vocabulary([letters(60000) for _ in range(15)], kind)
        yield f"long_bytes_{kind}", vocabulary([bytes(rng.choice(b"\xfd\xfe\xff") for _ in range(10000)) for _ in range(90)], kind, model="llama")
        yield f"controls_{kind}", vocabulary([letters(10000, "\1\2\3") for _ in range(90)], kind)
        yield f"many_{kind}", vocabulary([f"{i:x}" for i in range(18000)], kind)
        yield f"many_rows_missing_{kind}", gguf(words([f"{i:x}" for i in range(50000)], [kind] * 50000))
    yield "empty_tokens", gguf(words([""] * 100000))
    yield "merges", gguf(words(["a", "b", "ab"], merges=array(TEXT, ["a b"] * 85000)), rows=3)
    whole = {"nested": "[" * 900000, "lists": '{"model": {"x": [' + ",".join(["[]"] * 300000) + "]}}", "numbers": '{"model": {"x": [' + "0," * 450000 + "0]}}",
             "objects": '{"model": {"x": [' + ",".join(['{"a":1}'] * 110000) + "]}}",
             "added": '{"added_tokens": [' + ",".join(f'{{"id":{i},"content":"{i:x}"}}' for i in range(30000)) + '], "model": {"type": "BPE", "vocab": {}, "merges": []}}',
             "vocabulary": '{"model": {"type": "BPE", "merges": [], "vocab": {' + ",".join(f'"{i:x}":{i}' for i in range(65000)) + "}}}",
             "replaces": '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "normalizer": {"type": "Sequence", "normalizers": ['
                         + ",".join(['{"type":"Replace","pattern":{"Regex":"(a|b)*c"},"content":""}'] * 13000) + "]}}"}
    for name, content in whole.items():
        yield "json_" + name, gguf({"tokenizer.ggml.model": string("gpt2"), "tokenizer.huggingface.json": string(content)})
    templates = {"loop": "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}", "parts": "{{ 1 }}" * 130000, "depth": "{% if 1 %}" * 90000,
                 "brackets": "{{ " + "(" * 900000, "text": "{% set n = namespace(x='a') %}{% for i in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}",
                 "list": "{% set n = namespace(x=[1]) %}{% for i in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}"}
    for name, content in templates.items():
        yield "template_" + name, gguf({**words(["a"]), "tokenizer.chat_template": string(content)})
    yield "keys", gguf({f"{i:x}": struct.pack("<IB", 0, 1) for i in range(55000)})
    yield "arch_keys", gguf({f"qwen3.{i:x}": struct.pack("<IB", 0, 1) for i in range(40000)})
    yield "idle_tensors", gguf(tensors={f"v.{i:x}": [1] for i in range(12000)})
    yield "unknown_tensors", gguf(tensors={f"{i:x}": [1] for i in range(12000)})
    yield "experts", gguf(experts=8000, kind=2)
    yield "factors", gguf({"qwen3.attention.key_length": u32(1 << 18), "qwen3.attention.value_length": u32(1 << 18)}, tensors={"rope_freqs": [1 << 17]})


def run(command):
    """Exit status, KiB of memory, seconds of CPU and what it said; ends what takes much more."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (5 * CPU_SECONDS, 5 * CPU_SECONDS))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(write, 1)
        os.dup2(write, 2)
        os.execv(command[0], command)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        said = stream.read().decode(errors="replace")
    _, status, used = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), used.ru_maxrss, used.ru_utime + used.ru_stime, said


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    wrong = count = most = longest = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[2] if len(sys.argv) == 3 else temporary)
        for name, content in files():
            assert len(content) <= FILE_BYTES, (name, len(content))
            path = folder / f"{name}.gguf"
            path.write_bytes(content)
            for command in (["inspect", str(path)], ["tokenize", str(path), "-p", "hello"]):
                code, memory, seconds, said = run([sys.argv[1], *command])
                count, most, longest = count + 1, max(most, memory), max(longest, seconds)
                if code not in (0, 1) or memory > MEMORY_KB or seconds > CPU_SECONDS or code == 1 and not said.startswith(("moebius: ", "model")):
                    wrong += 1
                    print(f"{command[0]} {name}: exit status {code}, {memory / 1024:.0f} MB, {seconds:.2f} s of CPU: {said[:200]}")
    print(f"{count} commands, {wrong} beyond the limits; at most {most / 1024:.0f} MB and {longest:.2f} s of CPU")
    sys.exit(1 if wrong else 0)


main()
