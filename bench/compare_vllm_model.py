#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole models: ours beside vLLM on the same synthetic folders, in one run, and the time per layer.

    bench/compare_vllm_model.py PEER_FOLDER WORK_FOLDER [--threads 2] [--layers 6,2] [--group 32] [--rounds 1] [--plugin]

Two folders of Qwen3-30B-A3B's geometry are made in WORK_FOLDER (8 GB), one with 6 layers and one with 2. The difference of their
times, divided by 4, is the time of a layer without embedding and output projection, which weigh much in so short a model.
Without PEER_FOLDER's environment ("-"), ours is run alone. --plugin: vLLM once more with our layers in it. --turns N: only vLLM with its own layers and
with ours, both loaded at once on the first number of --layers, N short measurements of each case in turn: what disturbs one disturbs the other.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from compare import ROOT, Peer, numbers, ours, parser_for, print_machine, ready_peer, record, with_package


def run_peer(runner, folder, a, plugin=None):
    """plugin: variables with which vLLM finds ours."""
    command = [str(runner), str(ROOT / "bench/peer_vllm_model.py"), str(folder), "--threads", str(a.threads[0]), "--prompts", a.prompts, "--batches", a.batches]
    variables = {**os.environ, "MOEBIUS_VLLM": "off"} if plugin is None else {**os.environ, **plugin}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=variables)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise SystemExit(f"the peer ended with status {done.returncode}")
    return json.loads(lines[-1])


def medians(lines):
    """One line of many: the median of every number."""
    return {key: statistics.median(line[key] for line in lines) for key in lines[0] if isinstance(lines[0][key], (int, float)) and not isinstance(lines[0][key], bool)}


def table(results, keys, layers):
    """results: side -> {layers: medians}"""
    print(f"{'ms':<28}" + "".join(f"{key.removesuffix('_ms'):>12}" for key in keys))
    for n in layers:
        for side, of in results.items():
            print(f"{f'{side}, {n} layers':<28}" + "".join(f"{of[n][key]:>12.3f}" for key in keys))
    if len(layers) < 2:
        return
    many, few = layers[0], layers[1]
    per_layer = {side: {key: (of[many][key] - of[few][key]) / (many - few) for key in keys} for side, of in results.items()}
    for side, of in per_layer.items():
        print(f"{f'{side}, per layer':<28}" + "".join(f"{of[key]:>12.3f}" for key in keys))
    for side in ("ours", "plugin"):
        if "vllm" not in results or side not in results:
            continue
        print(f"{f'vllm / {side}, per layer':<28}" + "".join(f"{per_layer['vllm'][key] / per_layer[side][key]:>12.2f}" for key in keys))
        print(f"{f'vllm / {side}, {many} layers':<28}" + "".join(f"{results['vllm'][many][key] / results[side][many][key]:>12.2f}" for key in keys))


def in_turns(runner, folder, a, plugin):
    """Both sides stay loaded; medians and quartiles of their ratio."""
    arguments = [folder, "--threads", a.threads[0], "--stay"]
    sides = {"vllm": Peer(runner, "peer_vllm_model.py", arguments, {**os.environ, "MOEBIUS_VLLM": "off"}),
             "plugin": Peer(runner, "peer_vllm_model.py", arguments, {**os.environ, **plugin})}
    loaded = {name: side.answer() for name, side in sides.items()}
    for name, line in loaded.items():
        print(f"{name}: load {line['load_s']:.1f} s, peak {line['load_peak_gib']:.2f} GiB", flush=True)
    cases = [{"prefill": int(n)} for n in a.prompts.split(",")] + [{"decode": int(b)} for b in a.batches.split(",")]
    for case in cases:
        times = {name: [] for name in sides}
        for _ in range(a.turns):
            for name, side in sides.items():
                times[name].append(side.measure(case)["ms"])
        middle = {name: statistics.median(values) for name, values in times.items()}
        ratios = sorted(x / y for x, y in zip(times["vllm"], times["plugin"]))
        print(f"{next(iter(case))} {next(iter(case.values()))}: vllm {middle['vllm']:.2f} ms, plugin {middle['plugin']:.2f} ms, "
              f"{middle['vllm'] / middle['plugin']:.2f} times; turns {ratios[0]:.2f} to {ratios[-1]:.2f}", flush=True)


def main():
    parser = parser_for(__doc__)
    parser.add_argument("work", type=Path, help="where the two model folders are made")
    parser.add_argument("--layers", type=numbers, default=[6, 2])
    parser.add_argument("--group", type=int, default=32)
    parser.add_argument("--prompts", default="512,2048")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--plugin", action="store_true")
    parser.add_argument("--turns", type=int, default=0)
    parser.add_argument("--shape", default="", help="further options of make_synthetic_moe.py")
    parser.set_defaults(threads=[2], rounds=1)
    a = parser.parse_args()
    alone = str(a.peer) == "-"
    runner = None if alone else ready_peer(a.peer)
    python = sys.executable if alone else str(a.peer / "bin/python")  # one that has numpy
    lines = {"ours": {}} if alone else {"ours": {}, "vllm": {}}
    place, plugin = tempfile.TemporaryDirectory(), None
    if a.turns:
        folder = a.work.resolve() / f"synthetic-{a.layers[0]}-g{a.group}"
        subprocess.run([python, str(ROOT / "bench/make_synthetic_moe.py"), str(folder), "--layers", str(a.layers[0]), f"--group={a.group}", *a.shape.split()],
                       check=True, stdout=sys.stderr)
        return in_turns(runner, folder, a, with_package(place.name, a.tool.parent / "libmoebius.so"))
    if a.plugin and not alone:
        lines["plugin"], plugin = {}, with_package(place.name, a.tool.parent / "libmoebius.so")
    for _ in range(a.rounds):
        for n in a.layers:
            folder = a.work.resolve() / f"synthetic-{n}-g{a.group}"
            subprocess.run([python, str(ROOT / "bench/make_synthetic_moe.py"), str(folder), "--layers", str(n), f"--group={a.group}", *a.shape.split()], check=True, stdout=sys.stderr)
            arguments = ["model", folder, "--threads", a.threads[0], "--prompts", a.prompts, "--batches", a.batches, "--seconds", a.seconds]
            for side in lines:
                line = ours(a.tool, arguments)[0] if side == "ours" else run_peer(runner, folder, a, plugin if side == "plugin" else None)
                record(a.out, side, {**line, "layers": n})
                lines[side].setdefault(n, []).append(line)
    results = {side: {n: medians(of) for n, of in by_layers.items()} for side, by_layers in lines.items()}
    keys = [f"pp{n}_ms" for n in a.prompts.split(",")] + [f"tg_b{b}_ms" for b in a.batches.split(",")]
    table(results, keys, a.layers)
    for side, of in results.items():
        line = of[a.layers[0]]
        print(f"{side}: load {line['load_s']:.1f} s, peak {line['load_peak_gib']:.2f} GiB" + (f", packed {line['packed_gib']:.2f} GiB" if "packed_gib" in line else ""))
    print_machine(lines["ours"][a.layers[0]][0])


if __name__ == "__main__":
    main()
