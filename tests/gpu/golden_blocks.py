#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden folders on a CUDA device, judged by the CPU engine of the same build.

    golden_blocks.py TOOL FOLDER [JOBS]      one line per folder that is wrong, or that the device leaves to the CPU in words, then a
                                             summary; exit status 1 if one is wrong

Of every golden model: `verify --device cuda` (every scheme's products against the reference), and its first MoE block as a whole by `apply`
on the device and on the CPU with its reference kernel. Small layers have plain CUDA kernels, which add in the order of the reference: y and
the routing must be equal, byte by byte. Where tensor cores take a layer, its plain kernels must be, and y of the tensor cores close to it.
"""
import json
import math
import random
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOKENS = 17


def read_header(path):
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        return json.loads(f.read(size)), 8 + size


def write_tensors(path, tensors):
    """tensors: name -> (dtype, shape, bytes); how many bytes they have"""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            f.write(data)
    return at


def read_tensors(path):
    header, start = read_header(path)
    data = Path(path).read_bytes()
    return {name: (t["dtype"], t["shape"], data[start + t["data_offsets"][0]:start + t["data_offsets"][1]])
            for name, t in header.items() if name != "__metadata__"}


def bf16_rows(rows, columns, seed):
    """Normal numbers rounded towards zero to bf16."""
    source = random.Random(seed)
    numbers = [source.gauss(0, 1) for _ in range(rows * columns)]
    packed = struct.pack(f"<{len(numbers)}f", *numbers)
    return b"".join(packed[4 * i + 2:4 * i + 4] for i in range(len(numbers)))


def run(tool, *arguments):
    return subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True, errors="replace")


def last_words(result):
    return (result.stderr.strip() or result.stdout.strip()).splitlines()[-1:] or ["no words"]


def moe_block(folder):
    """(name of the first block, experts, hidden size), or None"""
    names = []
    for file in sorted(folder.glob("*.safetensors")):
        if file.name.startswith("model"):
            names += read_header(file)[0]
    blocks = sorted({n.split(".experts.")[0] for n in names if ".experts." in n and ".shared" not in n.split(".experts.")[0]})
    config = json.loads((folder / "config.json").read_text())
    config = config.get("text_config") or config
    experts = next((config[k] for k in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts") if config.get(k)), 0)
    hidden = config.get("hidden_size", 0)
    return (blocks[0], experts, hidden) if blocks and hidden else None


class Refused(str):
    """What the device leaves to the CPU, in its words."""


def apply_both(tool, folder, module, tensors, work):
    """"" if the device and the CPU agree, else what is wrong, or a Refused; None where the CPU cannot run it."""
    write_tensors(work / "in.safetensors", tensors)
    common = ("apply", folder, module, "--in", work / "in.safetensors", "--out-dtype", "f32")
    cpu = run(tool, *common, "--out", work / "cpu.safetensors", "--kernel", "reference", "--threads", 2)
    if cpu.returncode != 0:
        return None
    expected, words = read_tensors(work / "cpu.safetensors"), ""
    for kernel in ((), ("--kernel", "cuda_plain")):
        cuda = run(tool, *common, "--out", work / "cuda.safetensors", "--device", "cuda", *kernel)
        if cuda.returncode != 0:
            words = f"{module}: {last_words(cuda)[0]}"
            return Refused(words) if cuda.returncode == 1 and "on the CPU" in words else words
        got = read_tensors(work / "cuda.safetensors")
        words = next((f"{module}: numbers of {name} differ" for name, (_, _, data) in expected.items() if got[name][2] != data), "")
        if not words:
            return ""
        if not kernel and distance(got["y"][2], expected["y"][2]) > 4e-3:
            return f"{module}: y is {distance(got['y'][2], expected['y'][2]):.1e} from the CPU's"
    return words


def distance(got, expected):
    """Of f32 numbers: the norm of the difference, by the norm."""
    a, b = (struct.unpack(f"<{len(x) // 4}f", x) for x in (got, expected))
    return math.sqrt(sum((p - q) ** 2 for p, q in zip(a, b)) / max(sum(q * q for q in b), 1e-30))


def judge(tool, folder):
    """(folder, products verified, whether a block was compared, list of what is wrong or refused)"""
    wrong, products, compared = [], 0, False
    result = run(tool, "verify", folder, "--device", "cuda", "--json", "--threads", 2)
    try:
        report = json.loads(result.stdout)
        products = report["modules_run"]
        wrong += [f"verify {m['name']}: {m.get('problem') or m['worst']}" for m in report["modules"] if not m["ok"]]
    except ValueError:
        wrong.append(f"verify: {last_words(result)[0]}")
    block = moe_block(folder)
    if block:
        name, experts, hidden = block
        with tempfile.TemporaryDirectory() as work:
            x = {"x": ("BF16", [TOKENS, hidden], bf16_rows(TOKENS, hidden, folder.name))}
            verdict = apply_both(tool, folder, name, x, Path(work))
            if verdict is None and experts >= 2:  # its experts, with ids of ours
                ids = [i % experts for t in range(TOKENS) for i in (t, t + 1)]
                x["topk_ids"] = ("I32", [TOKENS, 2], struct.pack(f"<{len(ids)}i", *ids))
                x["topk_weights"] = ("F32", [TOKENS, 2], struct.pack(f"<{len(ids)}f", *(0.25 + 0.01 * i for i in range(len(ids)))))
                verdict = apply_both(tool, folder, name + ".experts", x, Path(work))
            compared = verdict is not None and not isinstance(verdict, Refused)
            wrong += [verdict] if verdict else []
    return folder.name, products, compared, wrong


def main():
    tool, golden = sys.argv[1], Path(sys.argv[2])
    folders = sorted(p.parent for p in golden.glob("*/config.json"))
    if not folders:
        print(f"{golden}: no golden folders")
        return 1
    with ThreadPoolExecutor(int(sys.argv[3]) if len(sys.argv) > 3 else 8) as pool:
        results = list(pool.map(lambda f: judge(tool, f), folders))
    for name, _, _, wrong in results:
        for words in wrong[:4]:
            print(f"{'refused' if isinstance(words, Refused) else 'WRONG'} {name}: {words}")
    bad = sum(any(not isinstance(w, Refused) for w in wrong) for *_, wrong in results)
    refused = sum(any(isinstance(w, Refused) for w in wrong) for *_, wrong in results)
    print(f"golden: {len(results)} folders, {sum(p for _, p, _, _ in results)} products verified, "
          f"{sum(c for _, _, c, _ in results)} MoE blocks equal to the CPU's reference unless named, {refused} refused in words, {bad} folders wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
