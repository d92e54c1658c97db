#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A folder of random weights in the sizes of Qwen3-30B-A3B, W4A8 in groups of 128, to time whole layers with.

    random_model.py OUT LAYERS [VOCABULARY]

Needs no package beside Python (bench/make_synthetic_moe.py has more choices, and numpy, which machines with a GPU may lack). Writes
config.json (that of the golden folder qwen3moe-w4a8-g128-pack with other sizes) and one safetensors file per layer.
"""
import json
import random
import struct
import sys
from pathlib import Path

from golden_blocks import write_tensors

GOLDEN = Path(__file__).resolve().parents[2] / "build/data/golden/qwen3moe-w4a8-g128-pack/config.json"
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, EXPERTS, TOP_K, WIDTH, GROUP = 2048, 32, 4, 128, 128, 8, 768, 128

source = random.Random(1)
CODES = source.randbytes(1 << 25)
# bf16 numbers around 0.03 of both signs: a random low byte, one of four high bytes.
NUMBERS = bytearray(1 << 25)
NUMBERS[0::2] = CODES[: 1 << 24]
NUMBERS[1::2] = CODES[1 << 24:].translate(bytes(((0x3C, 0xBC, 0x3D, 0xBD)[i % 4] for i in range(256))))


def some(pool, count):
    """count bytes from anywhere in the pool, again and again where it is shorter; at an even place"""
    at = source.randrange(0, len(pool) // 2) // 2 * 2
    out = bytearray()
    while len(out) < count:
        out += pool[at:at + count - len(out)]
        at = 0
    return bytes(out)


def bf16(name, *shape):
    count = 2
    for n in shape:
        count *= n
    return {name + ".weight": ("BF16", list(shape), some(NUMBERS, count))}


def ones(name, n):
    return {name + ".weight": ("BF16", [n], b"\x80\x3f" * n)}


def int4(name, outputs, inputs):
    return {name + ".weight_packed": ("I32", [outputs, inputs // 8], some(CODES, outputs * inputs // 2)),
            name + ".weight_scale": ("BF16", [outputs, inputs // GROUP], b"\x80\x39" * (outputs * inputs // GROUP)),  # 2^-12: rows stay near those of their tokens, which spread over all experts
            name + ".weight_shape": ("I64", [2], struct.pack("<2q", outputs, inputs))}


def write(path, tensors):
    return {name: path.name for name in tensors}, write_tensors(path, tensors)


def layer(i):
    p = f"model.layers.{i}."
    out = {**ones(p + "input_layernorm", HIDDEN), **ones(p + "post_attention_layernorm", HIDDEN),
           **ones(p + "self_attn.q_norm", HEAD_DIM), **ones(p + "self_attn.k_norm", HEAD_DIM),
           **int4(p + "self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN), **int4(p + "self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN),
           **int4(p + "self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN), **int4(p + "self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM),
           **bf16(p + "mlp.gate", EXPERTS, HIDDEN)}
    for e in range(EXPERTS):
        q = f"{p}mlp.experts.{e}."
        out |= {**int4(q + "gate_proj", WIDTH, HIDDEN), **int4(q + "up_proj", WIDTH, HIDDEN), **int4(q + "down_proj", HIDDEN, WIDTH)}
    return out


def main():
    out, layers = Path(sys.argv[1]), int(sys.argv[2])
    vocabulary = int(sys.argv[3]) if len(sys.argv) > 3 else 32768
    out.mkdir(parents=True, exist_ok=True)
    config = json.loads(GOLDEN.read_text())
    config.update(hidden_size=HIDDEN, head_dim=HEAD_DIM, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, intermediate_size=6144,
                  moe_intermediate_size=WIDTH, num_local_experts=EXPERTS, num_experts=EXPERTS, num_experts_per_tok=TOP_K,
                  num_hidden_layers=layers, vocab_size=vocabulary, max_position_embeddings=32768)
    config["quantization_config"]["ignore"] = ["re:.*mlp.gate$", "lm_head"]
    (out / "config.json").write_text(json.dumps(config, indent=1))
    names, size = write(out / "model-ends.safetensors",
                        {**bf16("model.embed_tokens", vocabulary, HIDDEN), **bf16("lm_head", vocabulary, HIDDEN), **ones("model.norm", HIDDEN)})
    for i in range(layers):
        more, bytes_of = write(out / f"model-{i}.safetensors", layer(i))
        names |= more
        size += bytes_of
    (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": names}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
