#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes build/data/golden-vllm/operator.safetensors: what vLLM 0.32.0's real W4A8 operator dynamic_4bit_int_moe answers.

    FOLDER/run tests/python/make_vllm_goldens.py OUT.safetensors       (FOLDER: bench/peer_env.sh makes it; aarch64)

One set of int4 codes, scales for each group size, inputs in f32 and bf16, and the outputs of every combination of group size,
input type, router weights on output or input, and activation kind. Hidden and intermediate size are 256: a group as long as a
row would take another path inside the operator.

  w13.codes U8 [E, 2I, H/2], w2.codes U8 [E, H, I/2]   two codes per byte, low nibble first, value + 8; gate rows before up rows
  g<G>.w13.scales, g<G>.w2.scales BF16 [E, N, K/G]     G = channel, 128, 64, 32
  x F32 [T,H] (bf16 input: the same, rounded), ids I32 [T,k], weights F32 [T,k]
  y.g<G>.<f32|bf16>.<output|input>.kind<0|1|2>         type of the input, [T,H]
"""
import sys

import torch
import vllm._C  # noqa: F401  registers the operator
from safetensors.torch import save_file
from vllm.model_executor.layers.fused_moe.oracle.w4a8_int8 import pack_int4_weights_for_kleidi

E, K, H, I, T = 3, 2, 256, 256, 4


def nibbles(codes):
    low, high = codes[..., 0::2] + 8, codes[..., 1::2] + 8
    return (low | (high << 4)).to(torch.uint8)


def inputs():
    x = torch.randn(T, H)
    x[1, ::32] *= 20  # outlier channels
    x[2] = x[2].abs()  # one sign: the zero point sits at the edge
    ids = torch.tensor([[0, 1], [2, 0], [1, 2], [2, 1]], dtype=torch.int32)
    weights = torch.softmax(torch.randn(T, K), dim=1)
    return x, ids, weights


def main():
    torch.manual_seed(20)
    w13 = torch.randint(-8, 8, (E, 2 * I, H), dtype=torch.int8)
    w2 = torch.randint(-8, 8, (E, H, I), dtype=torch.int8)
    x, ids, weights = inputs()
    out = {"w13.codes": nibbles(w13), "w2.codes": nibbles(w2), "x": x, "ids": ids, "weights": weights}
    for group in (-1, 128, 64, 32):
        name = "channel" if group == -1 else str(group)
        columns = lambda k: 1 if group == -1 else k // group
        # The size makes gate and up reach past 7, where the kinds of activation differ.
        s13 = ((0.5 + torch.rand(E, 2 * I, columns(H))) * 0.03).bfloat16()
        s2 = ((0.5 + torch.rand(E, H, columns(I))) * 0.01).bfloat16()
        out[f"g{name}.w13.scales"], out[f"g{name}.w2.scales"] = s13, s2
        p13 = torch.stack([pack_int4_weights_for_kleidi(w13[e], s13[e].float(), None, H, 2 * I, group) for e in range(E)])
        p2 = torch.stack([pack_int4_weights_for_kleidi(w2[e], s2[e].float(), None, I, H, group) for e in range(E)])
        for dtype, label in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
            for on_input in (False, True):
                for kind in (0, 1, 2):
                    y = torch.ops._C.dynamic_4bit_int_moe(x.to(dtype), ids.long(), weights, p13, p2, H, I, group, on_input, kind)
                    out[f"y.g{name}.{label}.{'input' if on_input else 'output'}.kind{kind}"] = y
    save_file({k: v.contiguous() for k, v in out.items()}, sys.argv[1], metadata={"vllm": "0.32.0", "torch": torch.__version__})


if __name__ == "__main__":
    main()
