#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The other side of bench/compare_vllm.py, compare_x86.py and compare_torch.py; runs inside the environment of bench/peer_env.sh.

    FOLDER/run bench/peer_operators.py        reads one JSON case per line from stdin, answers one JSON line each

A case: {"operator": "vllm_moe", "experts", "top_k", "hidden", "intermediate", "group", "tokens", "threads", "seconds"}
     or {"operator": "vllm_x86_moe", the same and "scheme": "w4a8" or "w8a8"}
     or {"operator": "torch_linear", "n", "k", "group", "tokens", "threads", "seconds"}
     or {"operator": "torch_bf16", "n", "k", "tokens", "threads", "seconds"}.
Answer: {"ms", "best_ms", "repetitions"}. Weights are kept until a case needs others. Every call sees new tokens and new expert
ids, and weights far larger than the caches, as `moebius bench` does.
"""
import json
import statistics
import sys
import time
from pathlib import Path

import torch

CACHE_FREE_BYTES = 256 << 20  # a set of weights at least this large does not live in a cache


def measure(seconds, prepare, run):
    """One run to warm up, then at least 5 and for about so many seconds, at most 400."""
    times = []
    run(*prepare())
    spent = 0.0
    while len(times) < 5 or (spent < seconds and len(times) < 400):
        arguments = prepare()
        start = time.perf_counter()
        run(*arguments)
        times.append(time.perf_counter() - start)
        spent += times[-1]
    return {"ms": statistics.median(times) * 1e3, "best_ms": min(times) * 1e3, "repetitions": len(times)}


class VllmMoe:
    """vLLM's whole W4A8 layer, operator dynamic_4bit_int_moe."""

    def __init__(self):
        import vllm._C  # noqa: F401  registers the operator
        from vllm.model_executor.layers.fused_moe.oracle.w4a8_int8 import pack_int4_weights_for_kleidi
        self.pack, self.key = pack_int4_weights_for_kleidi, None

    def matrix(self, n, k, group):
        codes = torch.randint(-8, 8, (n, k), dtype=torch.int8)
        scales = torch.rand(n, 1 if group == -1 else k // group) * 0.005 + 0.001
        return self.pack(codes, scales, None, k, n, group)

    def run(self, c):
        experts, hidden, inner, group = c["experts"], c["hidden"], c["intermediate"], c["group"]
        if self.key != (experts, hidden, inner, group):
            self.key = (experts, hidden, inner, group)
            self.w13 = self.w2 = None
            self.w13 = torch.stack([self.matrix(2 * inner, hidden, group) for _ in range(experts)])
            self.w2 = torch.stack([self.matrix(hidden, inner, group) for _ in range(experts)])
        tokens, top_k = c["tokens"], c["top_k"]
        weights = torch.full((tokens, top_k), 1.0 / top_k)

        def prepare():
            x = torch.randn(tokens, hidden, dtype=torch.bfloat16)
            return x, torch.rand(tokens, experts).topk(top_k, dim=1).indices

        def call(x, ids):
            torch.ops._C.dynamic_4bit_int_moe(x, ids, weights, self.w13, self.w2, hidden, inner, group, False, 2)

        return measure(c["seconds"], prepare, call)


class VllmX86Moe:
    """vLLM's whole layer on x86-64, operator fused_experts_cpu: 4-bit groups or int8 per channel, uint8 activations per token."""

    INT8, INT4 = 1, 3  # how the operator numbers its weight types

    def __init__(self):
        torch.ops.load_library(str(Path(sys.argv[1] if len(sys.argv) > 1 else sys.prefix) / "vllm_C.so"))
        self.op, self.key = torch.ops._C, None

    def int4(self, experts, n, k, group):
        codes = torch.randint(-(2**31), 2**31 - 1, (experts, k // 8, n), dtype=torch.int32)
        scales = (torch.rand(experts, k // group, n) * 0.02 / k**0.5).bfloat16()
        zeros = torch.full((experts, k // group, n // 8), 0x77777777, dtype=torch.int32)  # 8, stored less one
        return self.op.convert_weight_packed_scale_zp(codes, zeros, scales, 1)

    def int8(self, experts, n, k):
        codes = torch.randint(-127, 128, (experts, n, k), dtype=torch.int8)
        return self.op.convert_weight_packed(codes), None, torch.rand(experts, n) * 1e-3

    def run(self, c):
        experts, hidden, inner, group, scheme = (c[name] for name in ("experts", "hidden", "intermediate", "group", "scheme"))
        if self.key != (experts, hidden, inner, group, scheme):
            self.key = (experts, hidden, inner, group, scheme)
            self.w13 = self.w2 = None
            make = self.int8 if scheme == "w8a8" else lambda e, n, k: self.int4(e, n, k, k if group == -1 else group)
            self.w13, self.w2 = make(experts, 2 * inner, hidden), make(experts, hidden, inner)
        (w13, z13, s13), (w2, z2, s2) = self.w13, self.w2
        kind = self.INT8 if scheme == "w8a8" else self.INT4
        tokens, top_k = c["tokens"], c["top_k"]

        def prepare():
            x = torch.randn(tokens, hidden).bfloat16()
            ids = torch.rand(tokens, experts).topk(top_k, dim=1).indices.int()
            return x, torch.softmax(torch.randn(tokens, top_k), -1), ids

        def call(x, weights, ids):
            self.op.fused_experts_cpu(x, w13, w2, weights, ids, False, kind, s13, s2, z13, z2, None, None, None, None, None, True)

        return measure(c["seconds"], prepare, call)


class TorchBf16:
    """torch's bf16 linear."""

    def __init__(self):
        self.key = None

    def run(self, c):
        n, k = c["n"], c["k"]
        if self.key != (n, k):
            self.key = (n, k)
            copies = min(max(2, CACHE_FREE_BYTES // (n * k * 2) + 1), 512)
            self.weights = [torch.randn(n, k).bfloat16() for _ in range(copies)]
        turn = 0

        def prepare():
            nonlocal turn
            turn += 1
            return torch.randn(c["tokens"], k).bfloat16(), self.weights[turn % len(self.weights)]

        return measure(c["seconds"], prepare, torch.nn.functional.linear)


class TorchLinear:
    """torch's own dynamically quantized 4-bit linear, _dyn_quant_matmul_4bit."""

    def __init__(self):
        self.key = None

    def run(self, c):
        n, k, group = c["n"], c["k"], c["group"]
        block = k if group == -1 else group
        if self.key != (n, k, group):
            self.key, self.weights = (n, k, group), []
            scale_type = torch.float32 if group == -1 else torch.bfloat16
            copies = max(2, CACHE_FREE_BYTES // (n * k // 2) + 1)
            for _ in range(min(copies, 512)):
                codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
                scales = (torch.rand(n, k // block) * 0.005 + 0.001).to(scale_type)
                self.weights.append(torch.ops.aten._dyn_quant_pack_4bit_weight(codes, scales, None, block, k, n))
        turn = 0

        def prepare():
            nonlocal turn
            turn += 1
            return torch.randn(c["tokens"], k), self.weights[turn % len(self.weights)]

        return measure(c["seconds"], prepare, lambda x, w: torch.ops.aten._dyn_quant_matmul_4bit(x, w, block, k, n))


OPERATORS = {"vllm_moe": VllmMoe, "vllm_x86_moe": VllmX86Moe, "torch_linear": TorchLinear, "torch_bf16": TorchBf16}


def main():
    torch.manual_seed(0)
    made = {}
    for line in sys.stdin:
        case = json.loads(line)
        name = case["operator"]
        if name not in made:
            made[name] = OPERATORS[name]()
        torch.set_num_threads(case["threads"])
        print(json.dumps(made[name].run(case)), flush=True)


if __name__ == "__main__":
    main()
