#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decode the golden folders a second time, from the description of the formats alone, and compare with expected.json.

    make_checkpoints_check.py [folder ...]        (default: all of build/data/golden)

Needs numpy, torch (for bf16 and FP8 conversion) and safetensors, no quantization library. Every quantized module must give
the crc32 in expected.json, every stored matrix must be equal. Exit code 1 and one line per difference otherwise.
"""
import json
import sys
import zlib
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def unpack(words, bits, count):
    """[R, P] words -> [R, count] signed values; rows are little-endian bit streams, or padded to whole values per word."""
    u = words.view(np.uint32).astype(np.uint64)
    dense = u.shape[1] == -(-count * bits // 32)
    assert dense or u.shape[1] == -(-count // (32 // bits)), (u.shape, bits, count)
    out = np.empty((u.shape[0], count), np.int32)
    for i in range(count):
        j, at = divmod(i * bits, 32) if dense else (i // (32 // bits), i % (32 // bits) * bits)
        v = u[:, j] >> np.uint64(at)
        if at + bits > 32:
            v = v | (u[:, j + 1] << np.uint64(32 - at))
        out[:, i] = (v & np.uint64((1 << bits) - 1)).astype(np.int32) - (1 << (bits - 1))
    return out


def codes(t, fmt, bits, k):
    if fmt == "pack-quantized":
        return unpack(t["weight_packed"].numpy(), bits, k).astype(np.float32)
    if "fp4" in fmt:
        b = t["weight_packed"].numpy()
        return E2M1[np.stack([b & 15, b >> 4], -1).reshape(len(b), k)]
    return t["weight"].float().numpy()


def spread(a, n, k, w, t):
    """A scale or zero point per element, [N, K]."""
    rows, cols = np.arange(n)[:, None], np.arange(k)[None]
    if w["strategy"] == "tensor":
        return np.broadcast_to(a.reshape(1, 1), (n, k))
    if w["strategy"] == "channel":
        return np.broadcast_to(a.reshape(n, 1), (n, k))
    if w["strategy"] == "block":
        return a[rows // w["block_structure"][0], cols // w["block_structure"][1]]
    return a[:, t["weight_g_idx"].numpy() if "weight_g_idx" in t else np.arange(k) // w["group_size"]]


def decode(t, scheme, n, k):
    w = scheme["weights"]
    q = codes(t, scheme["format"], w["num_bits"], k)
    s = t["weight_scale"]
    s = np.exp2(s.numpy().astype(np.float32) - 127) if s.dtype == torch.uint8 else s.float().numpy()
    if "weight_global_scale" in t:
        s = s / t["weight_global_scale"].float().numpy()
    if not w["symmetric"]:
        z = t["weight_zero_point"].numpy()
        z = unpack(np.ascontiguousarray(z.T), w["num_bits"], n).T if z.dtype == np.int32 else z
        q = q - spread(z.astype(np.float32), n, k, w, t)
    return q * spread(s, n, k, w, t) + np.float32(0)


def check(folder):
    said, tensors, bad = json.loads((folder / "expected.json").read_text()), {}, []
    for f in folder.glob("model*.safetensors"):
        tensors |= load_file(f)
    stored = load_file(folder / "expected.safetensors")
    for name, e in said["modules"].items():
        if e["quantized"]:
            own = {k.rpartition(".")[2]: v for k, v in tensors.items() if k.rpartition(".")[0] == name}
            v = np.ascontiguousarray(decode(own, said["schemes"][e["scheme"]], e["N"], e["K"]))
            if zlib.crc32(v.tobytes()) != e["crc32"] or (name in stored and not np.array_equal(stored[name].numpy(), v)):
                bad.append(f"{folder.name}: {name} differs")
    return bad


def main():
    root = Path(__file__).resolve().parents[2] / "build/data/golden"
    folders = [Path(a) for a in sys.argv[1:]] or sorted(p.parent for p in root.glob("*/expected.json") if p.parent.name != "configs")
    bad = [line for f in folders for line in check(f)]
    print("\n".join(bad) or f"{len(folders)} folders agree")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
