#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a GGUF file with a random Qwen3-MoE model of any size and mixture of types: the geometry is Qwen3-30B-A3B's unless told.

    bench/make_gguf.py FILE --type Q4_K_M [--layers 22] [--set ffn_down_exps=Q6_K] ...

For measurements of a whole model, by Moebius and by llama.cpp. Codes are random, scales are such that a row of products comes
out near 1; a row of the router has mean zero, so that random tokens spread over all experts. Q4_K_M and Q5_K_M are mixtures as
llama-quantize makes them; every other type is that of all matrices. --set NAME=TYPE gives the matrices of one name a type of
their own (attn_q, ffn_gate_exps, token_embd, output, ...). The tokenizer is make_qwen3_30b.py's: one token a byte.
A file that already holds the same model is left alone. Needs nothing but Python 3.9.
"""
import argparse
import math
import struct
from itertools import chain
from pathlib import Path

from make_qwen3_30b import SHAPE, TEMPLATE, Blocks, ends, tokenizer

# Type: number in files, numbers and bytes of a block, and fields: ("f16", offset, factor of d) or ("e8m0" or "e4m3", offset, bytes).
# `size` is the root of the mean square of random numbers where d = 1.
TYPES = {
    "Q4_0": (2, 32, 18, 4.6, [("f16", 0, 1)]), "Q4_1": (3, 32, 20, 4.6, [("f16", 0, 1), ("f16", 2, -7.5)]),
    "Q5_0": (6, 32, 22, 9.2, [("f16", 0, 1)]), "Q5_1": (7, 32, 24, 9.2, [("f16", 0, 1), ("f16", 2, -15.5)]),
    "Q8_0": (8, 32, 34, 74, [("f16", 0, 1)]), "Q2_K": (10, 256, 84, 14, [("f16", 80, 1), ("f16", 82, 1.5)]),
    "Q3_K": (11, 256, 110, 43, [("f16", 108, 1)]), "Q4_K": (12, 256, 144, 258, [("f16", 0, 1), ("f16", 2, 7.5)]),
    "Q5_K": (13, 256, 176, 527, [("f16", 0, 1), ("f16", 2, 15.5)]), "Q6_K": (14, 256, 210, 1370, [("f16", 208, 1)]),
    "IQ2_XXS": (16, 256, 66, 59, [("f16", 0, 1)]), "IQ2_XS": (17, 256, 74, 59, [("f16", 0, 1)]),
    "IQ3_XXS": (18, 256, 98, 160, [("f16", 0, 1)]), "IQ1_S": (19, 256, 50, 7.5, [("f16", 0, 1)]),
    "IQ4_NL": (20, 32, 18, 69, [("f16", 0, 1)]), "IQ3_S": (21, 256, 110, 165, [("f16", 0, 1)]),
    "IQ2_S": (22, 256, 82, 59, [("f16", 0, 1)]), "IQ4_XS": (23, 256, 136, 1280, [("f16", 0, 1)]),
    "TQ2_0": (35, 256, 66, 1.2, [("f16", 64, 1)]), "MXFP4": (39, 32, 17, 2.9, [("e8m0", 0, 1)]),
    "NVFP4": (40, 64, 36, 2.9, [("e4m3", 0, 4)]),
    "F32": (0, 1, 4, 1, []), "F16": (1, 1, 2, 1, []), "BF16": (30, 1, 2, 1, []),
}
MIXTURES = {"Q4_K_M": "Q4_K", "Q5_K_M": "Q5_K"}
POOL = 1 << 24  # bytes of random blocks of a type, of which every tensor gets stretches
U32, F32, STRING, ARRAY, I32 = 4, 6, 8, 9, 5


class Pools:
    """Random blocks, one pool for each type and number of inputs."""

    def __init__(self):
        self.source, self.pools = Blocks(1 << 22), {}

    def levels(self, name, size):
        """Normally distributed numbers of a type without blocks."""
        block = self.source.normal(size)
        if name == "BF16":
            return block
        if name == "F32":
            out = bytearray(2 * len(block))
            out[2::4], out[3::4] = block[::2], block[1::2]
            return memoryview(bytes(out))
        numbers = struct.unpack(f"<{len(block) // 2}I", b"".join(b"\0\0" + block[i:i + 2] for i in range(0, len(block), 2)))
        floats = struct.unpack(f"<{len(numbers)}f", struct.pack(f"<{len(numbers)}I", *numbers))
        return memoryview(struct.pack(f"<{len(floats)}e", *floats))

    def pool(self, name, size):
        """Blocks of numbers whose root mean square is `size`."""
        if (name, size) not in self.pools:
            _, numbers, width, unit, fields = TYPES[name]
            if numbers == 1:
                block = self.levels(name, size)
            else:
                count = POOL // width
                block = bytearray(self.source.random.randbytes(count * width))
                for kind, offset, what in fields:
                    if kind == "f16":  # 16 scales from 3/4 to 5/4 of the usual
                        scales = [struct.pack("<e", what * size / unit * (0.75 + i / 30)) for i in range(16)]
                        pick = self.source.random.choices(range(16), k=count)
                        block[offset::width] = bytes(scales[i][0] for i in pick)
                        block[offset + 1::width] = bytes(scales[i][1] for i in pick)
                    else:
                        value = 127 + round(math.log2(size / unit)) if kind == "e8m0" else max(1, min(8, round(512 * size / unit)))
                        for byte in range(offset, offset + what):
                            block[byte::width] = bytes([value]) * count
                block = memoryview(bytes(block))
            self.pools[name, size] = block
        return self.pools[name, size]

    def stretches(self, name, size, rows, cols):
        """Bytes of a matrix: stretches of a pool from random blocks on."""
        _, numbers, width, _, _ = TYPES[name]
        pool, left = self.pool(name, size), rows * cols // numbers * width
        while left > 0:
            start = width * self.source.random.randrange(len(pool) // width // 2)
            part = pool[start:start + left]
            yield part
            left -= len(part)


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def array(kind, count, content):
    return struct.pack("<IIQ", ARRAY, kind, count) + content


def metadata(a, name):
    """The keys of the file: name -> kind and value as bytes."""
    words, special = tokenizer(a), ends(a)
    tokens = {i: t for t, i in words["model"]["vocab"].items()} | special
    first = min(special)
    u32, f32, s = (lambda v: struct.pack("<II", U32, v)), (lambda v: struct.pack("<If", F32, v)), (lambda v: struct.pack("<I", STRING) + text(v))
    arch = {"block_count": u32(a.layers), "context_length": u32(40960), "embedding_length": u32(a.hidden),
            "feed_forward_length": u32(3 * a.hidden), "attention.head_count": u32(a.heads), "attention.head_count_kv": u32(a.kv_heads),
            "attention.key_length": u32(a.head_dim), "attention.value_length": u32(a.head_dim), "rope.freq_base": f32(1e6),
            "attention.layer_norm_rms_epsilon": f32(1e-6), "expert_count": u32(a.experts), "expert_used_count": u32(a.top_k),
            "expert_feed_forward_length": u32(a.intermediate)}
    keys = {"general.architecture": s("qwen3moe"), "general.type": s("model"), "general.name": s(name)}
    keys |= {f"qwen3moe.{key}": value for key, value in arch.items()}
    keys |= {"general.quantization_version": u32(2), "tokenizer.ggml.model": s("gpt2"), "tokenizer.ggml.pre": s("qwen2"),
             "tokenizer.ggml.tokens": array(STRING, a.vocab, b"".join(text(tokens[i]) for i in range(a.vocab))),
             "tokenizer.ggml.token_type": array(I32, a.vocab, struct.pack(f"<{a.vocab}i", *(3 if i in special else 1 for i in range(a.vocab)))),
             "tokenizer.ggml.merges": array(STRING, 0, b""), "tokenizer.ggml.bos_token_id": u32(first),
             "tokenizer.ggml.eos_token_id": u32(first + 2), "tokenizer.chat_template": s(TEMPLATE)}
    return keys


def more_bits(a, layer):
    """Layers whose values and down projections have six bits in the mixtures _M."""
    n = a.layers
    return layer < n // 8 or layer >= 7 * n // 8 or (layer - n // 8) % 3 == 2


def tensors(a, types):
    """Name, type, shape with the slowest dimension first, and root mean square of each tensor; 0: all ones."""
    q, kv, h, f, e = a.heads * a.head_dim, a.kv_heads * a.head_dim, a.hidden, a.intermediate, a.experts
    mixed = a.type in MIXTURES
    usual = MIXTURES.get(a.type, a.type)

    def matrix(layer, name, shape, size=None):
        better = mixed and (name == "output" or layer is not None and name in ("attn_v", "ffn_down_exps") and more_bits(a, layer))
        kind = types.get(name, "Q6_K" if better else usual)
        return (f"{'' if layer is None else f'blk.{layer}.'}{name}.weight", kind, shape, size or 1 / math.sqrt(shape[-1]))

    yield matrix(None, "token_embd", [a.vocab, h], 1.0)
    for l in range(a.layers):
        for norm, n in (("attn_norm", h), ("ffn_norm", h), ("attn_q_norm", a.head_dim), ("attn_k_norm", a.head_dim)):
            yield (f"blk.{l}.{norm}.weight", "F32", [n], 0)
        for name, shape in (("attn_q", [q, h]), ("attn_k", [kv, h]), ("attn_v", [kv, h]), ("attn_output", [h, q])):
            yield matrix(l, name, shape)
        yield (f"blk.{l}.ffn_gate_inp.weight", "F32", [e, h], 0.045)
        for name, shape in (("ffn_gate_exps", [e, f, h]), ("ffn_up_exps", [e, f, h]), ("ffn_down_exps", [e, h, f])):
            yield matrix(l, name, shape)
    yield ("output_norm.weight", "F32", [h], 0)
    yield matrix(None, "output", [a.vocab, h], 0.02)


def payload(pools, name, kind, shape, size):
    rows = math.prod(shape[:-1])
    if size == 0:
        yield struct.pack("<f", 1.0) * shape[0]
    elif "ffn_gate_inp" in name:  # half of a row, and the same with the other sign
        minus = bytes(range(128, 256)) + bytes(range(128))
        for _ in range(rows):
            half = bytearray(b"".join(pools.stretches(kind, size, 1, shape[-1] // 2)))
            yield bytes(half)
            half[3::4] = half[3::4].translate(minus)
            yield bytes(half)
    else:
        step = 1 if name == "token_embd.weight" else rows  # no two tokens have the same row
        yield from chain.from_iterable(pools.stretches(kind, size, step, shape[-1]) for _ in range(rows // step))


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--type", choices=[*TYPES, *MIXTURES], default="Q4_K_M")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=TYPE")
    for name, value in SHAPE.items():
        if name != "group":
            parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    a = parser.parse_args(words)
    types = dict(entry.partition("=")[::2] for entry in a.set)
    for name, kind in types.items():
        if kind not in TYPES:
            parser.error(f"--set {name}: {kind!r} is none of {', '.join(TYPES)}")
    return parser, a, types


def main():
    parser, a, types = arguments()
    rows = list(tensors(a, types))
    keys = metadata(a, a.file.name.removesuffix(".gguf"))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(rows), len(keys))
    head += b"".join(text(key) + value for key, value in keys.items())
    places, offset = [], 0
    for name, kind, shape, _ in rows:
        number, numbers, width, _, _ = TYPES[kind]
        if shape[-1] % numbers:
            parser.error(f"{name}: rows of {shape[-1]} numbers; blocks of {kind} have {numbers}")
        size = math.prod(shape) // numbers * width
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), number, offset)
        places.append(size)
        offset += (size + 31) // 32 * 32
    head += bytes(-len(head) % 32)
    if a.file.exists() and a.file.stat().st_size == len(head) + offset:
        with open(a.file, "rb") as old:
            if old.read(len(head)) == head:
                return
    pools, part = Pools(), a.file.with_name(a.file.name + ".part")
    with open(part, "wb", buffering=1 << 23) as out:
        out.write(head)
        for (name, kind, shape, size), length in zip(rows, places):
            out.writelines(payload(pools, name, kind, shape, size))
            out.write(bytes(-length % 32))
    part.rename(a.file)  # a file of this name is complete
    print(f"{a.file}: {(len(head) + offset) / 1e9:.2f} GB, {len(rows)} tensors")


if __name__ == "__main__":
    main()
