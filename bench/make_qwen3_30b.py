#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a folder with a random model of Qwen3-30B-A3B's full geometry: 48 layers, 18 GB, in about a minute.

    bench/make_qwen3_30b.py FOLDER [--layers 48] [--group 32] [--scheme w4a8] ...

For measurements of a whole model. Weights are pack-quantized (compressed-tensors, eight 4-bit codes in an int32), the
embedding and the output matrix bf16 and not tied, as in Qwen3-30B-A3B. The scheme is W4A8 with groups of 32 unless another
is asked for: 4-bit weights with int8 activations are what llama.cpp's q4_0 computes with too, and 18 GB is the larger
case; --scheme w4a16 has 16-bit activations, --group 128 takes 16.7 GB.

Payloads are stretches of a few random blocks, each from another place, so that the disk is the bound, not the generator.
A row of the router has mean zero, so that random tokens spread over all experts. The tokenizer knows every byte, and has
words of random letters for the other ids: `run`, `serve` and `bench` work, one token a byte of the prompt.
A folder that already holds the same model is left alone. Needs nothing but Python 3.9.
"""
import argparse
import json
import math
import random
import statistics
import struct
from itertools import chain, count, product
from pathlib import Path

SHAPE = {"layers": 48, "group": 32, "hidden": 2048, "experts": 128, "top_k": 8, "intermediate": 768, "heads": 32, "kv_heads": 4,
         "head_dim": 128, "vocab": 151936}
SCHEMES = ("w4a8", "w4a16")
TEMPLATE = ("{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
            "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}")


def bf16(value):
    """A float to the two bytes of bf16, rounded to nearest even."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).to_bytes(2, "little")


class Blocks:
    """Random bytes and bf16 values, of which every tensor gets a stretch."""

    def __init__(self, size):
        self.random = random.Random(0)
        self.codes = memoryview(self.random.randbytes(size))
        self.tables = {}

    def stretch(self, block, size):
        """`size` bytes of the block from a random place; whole rounds of it where the block is shorter."""
        while size > 0:
            start = 4 * self.random.randrange(max(1, (len(block) - size) // 4))
            part = block[start:start + size]
            yield part
            size -= len(part)

    def values(self, name, levels):
        """A block of bf16 values, each one of 256 levels."""
        if name not in self.tables:
            pairs = [bf16(level) for level in levels()]
            numbers = self.random.randbytes(1 << 22)
            block = bytearray(2 * len(numbers))
            block[0::2] = numbers.translate(bytes(p[0] for p in pairs))
            block[1::2] = numbers.translate(bytes(p[1] for p in pairs))
            self.tables[name] = memoryview(bytes(block))
        return self.tables[name]

    def normal(self, size):
        """Normally distributed, mean zero; size is the standard deviation."""
        normal = statistics.NormalDist(0, size)
        return self.values(("normal", size), lambda: [normal.inv_cdf((i + 0.5) / 256) for i in range(256)])

    def scales(self, inputs):
        """Such that a row of products of codes (standard deviation 4.6) comes out near 1."""
        return self.values(("scales", inputs), lambda: [(0.75 + 0.5 * i / 255) / (4.6 * math.sqrt(inputs)) for i in range(256)])


class Shard:
    """Tensors of one file: name -> (dtype, shape, parts), parts being functions that give the bytes when they are written."""

    def __init__(self, blocks, group):
        self.blocks, self.group, self.tensors = blocks, group, {}

    def ones(self, name, n):
        self.tensors[name] = ("BF16", [n], lambda: [bf16(1.0) * n])

    def normal(self, name, rows, cols, size):
        block = self.blocks.normal(size)
        # Row by row: no two tokens have the same row.
        self.tensors[name] = ("BF16", [rows, cols], lambda: chain.from_iterable(self.blocks.stretch(block, 2 * cols) for _ in range(rows)))

    def router(self, name, experts, hidden):
        block, minus = self.blocks.normal(0.045), bytes(range(128, 256)) + bytes(range(128))

        def rows():
            for _ in range(experts):
                half = bytearray(b"".join(self.blocks.stretch(block, hidden)))
                yield bytes(half)
                half[1::2] = half[1::2].translate(minus)  # the same values with the other sign
                yield bytes(half)
        self.tensors[name] = ("BF16", [experts, hidden], rows)

    def linear(self, name, n, k):
        scales, groups = self.blocks.scales(k), k // self.group if self.group > 0 else 1
        self.tensors[name + ".weight_packed"] = ("I32", [n, k // 8], lambda: self.blocks.stretch(self.blocks.codes, n * k // 2))
        self.tensors[name + ".weight_scale"] = ("BF16", [n, groups], lambda: self.blocks.stretch(scales, 2 * n * groups))
        self.tensors[name + ".weight_shape"] = ("I64", [2], lambda: [struct.pack("<qq", n, k)])

    def write(self, path):
        header, offset = {"__metadata__": {"format": "pt"}}, 0
        for name, (dtype, shape, _) in self.tensors.items():
            size = math.prod(shape) * {"BF16": 2, "I32": 4, "I64": 8}[dtype]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
            offset += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb", buffering=1 << 23) as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for _, _, parts in self.tensors.values():
                out.writelines(parts())


def layer_shard(blocks, a, layer):
    shard, p = Shard(blocks, a.group), f"model.layers.{layer}."
    for norm in ("input_layernorm", "post_attention_layernorm"):
        shard.ones(p + norm + ".weight", a.hidden)
    for norm in ("q_norm", "k_norm"):
        shard.ones(p + f"self_attn.{norm}.weight", a.head_dim)
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    for name, n, k in (("q", q, a.hidden), ("k", kv, a.hidden), ("v", kv, a.hidden), ("o", a.hidden, q)):
        shard.linear(p + f"self_attn.{name}_proj", n, k)
    shard.router(p + "mlp.gate.weight", a.experts, a.hidden)
    for expert in range(a.experts):
        for name, n, k in (("gate", a.intermediate, a.hidden), ("up", a.intermediate, a.hidden), ("down", a.hidden, a.intermediate)):
            shard.linear(p + f"mlp.experts.{expert}.{name}_proj", n, k)
    return shard


def ends(a):
    """Special tokens: id -> text. With Qwen's vocabulary they have Qwen's ids."""
    first = 151643 if a.vocab == SHAPE["vocab"] else a.vocab - 3
    return {first: "<|endoftext|>", first + 1: "<|im_start|>", first + 2: "<|im_end|>"}


def tokenizer(a):
    # Bytes as the byte-level form writes them: printable ones as themselves, the others from U+0100 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = count(256)
    chars = [chr(b) if b in printable else chr(next(others)) for b in range(256)]
    words = (chars[ord(" ")] + "".join(w) for n in count(2) for w in product("abcdefghijklmnopqrstuvwxyz", repeat=n))
    specials = ends(a)
    texts = chain(chars, words)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": i, "content": text, **flags} for i, text in specials.items()],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": {next(texts): i for i in range(a.vocab) if i not in specials},
                  "merges": []}}


def config(a):
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "dynamic": False, "strategy": "group" if a.group > 0 else "channel",
               "group_size": a.group if a.group > 0 else None, "actorder": None, "block_structure": None, "observer": "minmax",
               "observer_kwargs": {}}
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token", "group_size": None,
              "actorder": None, "block_structure": None, "observer": None, "observer_kwargs": {}}
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": inputs if a.scheme == "w4a8" else None,
              "output_activations": None, "format": "pack-quantized"}
    end = min(ends(a))
    return {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16", "vocab_size": a.vocab,
        "hidden_size": a.hidden, "intermediate_size": 3 * a.hidden, "num_hidden_layers": a.layers, "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads, "head_dim": a.head_dim, "hidden_act": "silu", "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "rope_theta": 1e6, "attention_bias": False, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "moe_intermediate_size": a.intermediate, "num_experts": a.experts, "num_experts_per_tok": a.top_k,
        "norm_topk_prob": True, "bos_token_id": end, "eos_token_id": end + 2,
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed", "version": "0.19.0",
            "kv_cache_scheme": None, "global_compression_ratio": None,
            "ignore": ["lm_head"] + [f"model.layers.{layer}.mlp.gate" for layer in range(a.layers)],
            "config_groups": {"group_0": scheme}},
    }


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scheme", choices=SCHEMES, default=SCHEMES[0])
    for name, value in SHAPE.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    a = parser.parse_args()
    for name in ("hidden", "intermediate"):
        if getattr(a, name) % max(a.group, 8):
            parser.error(f"--{name} must be a multiple of --group and of 8")
    if a.vocab < 259:
        parser.error("--vocab must be at least 259: the bytes and three special tokens")
    return a


def main():
    a = arguments()
    index, text = a.folder / "model.safetensors.index.json", json.dumps(config(a), indent=1)
    if index.exists() and (a.folder / "config.json").read_text() == text:
        return  # the index is written last: the folder is complete
    a.folder.mkdir(parents=True, exist_ok=True)
    (a.folder / "config.json").write_text(text)
    (a.folder / "tokenizer.json").write_text(json.dumps(tokenizer(a), ensure_ascii=False), encoding="utf-8")
    (a.folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, "add_bos_token": False,
         "bos_token": None, "eos_token": "<|im_end|>", "chat_template": TEMPLATE}, indent=1))
    blocks = Blocks(1 << 25)
    embed, head = Shard(blocks, a.group), Shard(blocks, a.group)
    embed.normal("model.embed_tokens.weight", a.vocab, a.hidden, 1.0)
    head.normal("lm_head.weight", a.vocab, a.hidden, 0.02)
    head.ones("model.norm.weight", a.hidden)
    weight_map = {}
    for i in range(a.layers + 2):
        name = f"model-{i + 1:05d}-of-{a.layers + 2:05d}.safetensors"
        shard = embed if i == 0 else head if i == a.layers + 1 else layer_shard(blocks, a, i - 1)
        shard.write(a.folder / name)
        weight_map.update(dict.fromkeys(shard.tensors, name))
        print(f"\rfile {i + 1} of {a.layers + 2}", end="", flush=True)
    print()
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


if __name__ == "__main__":
    main()
