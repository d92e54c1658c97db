#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call of the torch operators costs beside the kernel: microseconds per call without rows, best of seven.

    PEER_FOLDER/bin/python bench/torch_operators.py [libmoebius.so]

Needs torch (bench/peer_env.sh makes an environment that has it).
"""
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def microseconds(call, count=2000):
    best = float("inf")
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, time.perf_counter() - start)
    return 1e6 * best / count


def main():
    os.environ.setdefault("MOEBIUS_LIBRARY", sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build/release/libmoebius.so"))
    sys.path.insert(0, str(ROOT / "python"))
    import torch

    import moebius
    from moebius.torch import layer_tensor

    folder = moebius.Folder(ROOT / "models/moebius-tiny-w4a8")
    linear = folder.linear("model.layers.0.self_attn.q_proj", threads=1)
    moe = folder.moe("model.layers.0.mlp", scope="experts", threads=1)
    x, logits = torch.empty(0, moe.hidden, dtype=torch.bfloat16), torch.empty(0, moe.experts)
    ids, weights = torch.empty(0, moe.slots, dtype=torch.int32), torch.empty(0, moe.slots)
    a, b, ops, outputs = layer_tensor(linear), layer_tensor(moe), torch.ops.moebius, linear.outputs
    print(moebius.cpu().description)
    for name, call in (("torch: x + x", lambda: x + x), ("moebius::linear", lambda: ops.linear(x, a, outputs)),
                       ("moebius::moe", lambda: ops.moe(x, ids, weights, b)), ("moebius::moe_logits", lambda: ops.moe_logits(x, logits, b))):
        print(f"{name:22} {microseconds(call):6.1f} us")


if __name__ == "__main__":
    main()
