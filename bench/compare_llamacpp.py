#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole models beside llama.cpp and ik_llama.cpp, in turn, in one run: milliseconds of a layer and of a step, and bytes of a token.

    bench/compare_llamacpp.py LLAMA IK WORK [--types Q4_0,Q4_K_M] [--ours w4a8,w4a16,file,file-int8] [--cases pp512,pp2048,tg1,tg8,tg32,tg1@8192]
    bench/compare_llamacpp.py --table FILE      the table of what --out FILE has recorded, from any number of runs

LLAMA and IK are folders with llama-bench of the two programs (and llama-batched-bench of the first), built where they are measured; "-" leaves one
out. Models of Qwen3-30B-A3B's geometry with random weights, 6 layers and 2, are made in WORK (3 to 5 GB each): GGUF files of --types by make_gguf.py,
which the peers read, and ours read as `file`, with int8 activations as `file-int8`; folders by make_qwen3_30b.py for the names of --ours that are schemes.
The time of a layer is the difference of both models' times, divided by 4; `whole` is the step of the larger one, with embedding and output matrix.

    ppN, tgN, tgN@D    a prompt of N tokens; a decode step of N sequences, behind D tokens each

One sequence is llama-bench's; several are llama-batched-bench's, and prompts of N tokens in ik_llama.cpp, whose own program gives all sequences one
token and so one set of experts (in its favour: one row of the output matrix, and no depth). Caches behind D tokens are invented by ours, computed by
the peers. Peers run with flash attention and one batch of up to 2,048 tokens, ik_llama.cpp with -rtr 1 and fused experts.
Ratios are peer / ours of one round; medians over the rounds, with the smallest and the largest. MOEBIUS_CPU narrows ours to a class of CPUs.
"""
import argparse
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import make_gguf
from compare import ROOT, numbers, ours, record
from make_qwen3_30b import SCHEMES

FILES = {"file": [], "file-int8": ["--activations", "int8"]}
PEERS = {"llama": "llama.cpp", "ik": "ik_llama.cpp"}
STEPS = 32  # of decode
FIRST = 64  # a prompt that warms the peers and counts for nothing


def words(text):
    return text.split(",")


def parse_case(name):
    """(kind, rows, depth) of a name such as tg8@8192."""
    found = re.fullmatch(r"(pp|tg)([1-9]\d*)(?:@([1-9]\d*))?", name)
    if not found or (found[1] == "pp" and found[3]):
        raise argparse.ArgumentTypeError(f"{name!r} is no case; there are ppN, tgN and tgN@D")
    return found[1], int(found[2]), int(found[3] or 0)


def cases(text):
    return {name: parse_case(name) for name in words(text)}


def model(a, side, kind, layers):
    """Path of a model, which is made when missing."""
    gguf = side not in SCHEMES
    path = a.work.resolve() / (f"{kind}-{layers}.gguf" if gguf else f"{side}-g{a.group}-{layers}")
    options = ["--type", kind] if gguf else ["--scheme", side, "--group", str(a.group)]
    script = ROOT / "bench" / ("make_gguf.py" if gguf else "make_qwen3_30b.py")
    subprocess.run([sys.executable, str(script), str(path), *options, "--layers", str(layers), *a.shape.split()], check=True, stdout=sys.stderr)
    return path


def run_ours(a, side, path, threads):
    """(case -> ms, facts)"""
    times, facts, by_depth = {}, {}, {}
    for name, (kind, rows, depth) in a.cases.items():
        by_depth.setdefault(depth, []).append((name, kind, rows))
    for depth, of in by_depth.items():
        lists = {k: sorted({rows for _, kind, rows in of if kind == k}) or [1] for k in ("pp", "tg")}
        depths = ["--depths", depth, "--invented"] if depth else []
        (line,) = ours(a.tool, ["model", path, "--threads", threads, "--seconds", a.seconds, "--prompts", ",".join(map(str, lists["pp"])), "--batches",
                                ",".join(map(str, lists["tg"])), *depths, *FILES.get(side, [])])
        times |= {name: line[f"pp{rows}_ms" if kind == "pp" else f"tg_b{rows}{f'_d{depth}' if depth else ''}_ms"] for name, kind, rows in of}
        facts = {key: line[key] for key in ("commit", "cpu", "features", "bytes_per_token")}
    return times, facts


def program(folder, name, arguments):
    done = subprocess.run([str(folder / name), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{folder / name} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def bench(folder, common, arguments):
    """llama-bench's answers: (commit, (prompt, generated) -> median ms of a repetition)"""
    lines = json.loads(program(folder, "llama-bench", [*common, *arguments, "-o", "json"]))
    return lines[0]["build_commit"], {(line["n_prompt"], line["n_gen"]): statistics.median(line["samples_ns"]) / 1e6 for line in lines}


def run_peer(a, side, path, threads):
    folder, ik, times = getattr(a, side), side == "ik", {}
    common = ["-m", path, "-t", threads, "-fa", 1, "-b", 2048, "-ub", 2048, *(["-w", 0, "-rtr", 1, "-fmoe", 1] if ik else ["--no-warmup"])]
    single = lambda wanted: {name: case for name, case in a.cases.items() if wanted(*case)}
    prompts = single(lambda kind, rows, depth: kind == "pp")
    steps = single(lambda kind, rows, depth: kind == "tg" and rows == 1)
    several = single(lambda kind, rows, depth: kind == "tg" and rows > 1)
    lists = ",".join(map(str, [FIRST, *(rows for _, rows, _ in prompts.values())]))
    commit, found = bench(folder, common, ["-p", lists, "-n", STEPS if any(not depth for *_, depth in steps.values()) else 0, "-r", 1])
    times |= {name: found[rows, 0] for name, (_, rows, _) in prompts.items()}
    for name, (_, _, depth) in steps.items():
        if depth:
            behind = ["-p", 0, "-n", 0, "-gp", f"{depth},{STEPS}"] if ik else ["-p", 0, "-n", STEPS, "-d", depth]
            found = bench(folder, common, [*behind, "-r", 1])[1]
            found = {(0, STEPS): next(ms for (_, generated), ms in found.items() if generated == STEPS)}
        times[name] = found[0, STEPS] / STEPS
    if ik:
        rows = sorted({rows for _, rows, depth in several.values() if not depth})
        if rows:
            found = bench(folder, common, ["-p", ",".join(map(str, rows)), "-n", 0, "-r", 5])[1]
            times |= {name: found[rows, 0] for name, (_, rows, depth) in several.items() if not depth}
        return times, {"commit": commit}
    for depth in sorted({depth for *_, depth in several.values()}):
        rows = sorted({rows for _, rows, d in several.values() if d == depth})
        before = max(depth, 32)
        output = program(folder, "llama-batched-bench", ["-m", path, "-t", threads, "-fa", "on", "-b", 2048, "-ub", 2048, "-c", max(rows) * (before + STEPS) + 256,
                                                        "-npp", before, "-ntg", STEPS, "-npl", ",".join(map(str, rows)), "-pps", "--output-format", "jsonl"])
        found = {line["pl"]: 1e3 * line["t_tg"] / STEPS for line in map(json.loads, re.findall(r"^\{.*\}$", output, re.M))}
        times |= {name: found[rows] for name, (_, rows, d) in several.items() if d == depth}
    return times, {"commit": commit}


def file_bytes(a, kind):
    """Bytes of matrices that a token reads, of a GGUF file with all of its experts' choice."""
    _, shape, types = make_gguf.arguments(["-", "--type", kind, "--layers", str(a.layers[0]), *a.shape.split()])
    total = 0
    for name, kind, dims, _ in make_gguf.tensors(shape, types):
        _, values, width, *_ = make_gguf.TYPES[kind]
        count = 1
        for n in dims:
            count *= n
        share = shape.top_k / shape.experts if name.endswith("_exps.weight") else 0 if name.startswith("token_embd") else 1
        total += count // values * width * share
    return round(total)


def measure(a):
    peers = [side for side in PEERS if getattr(a, side) is not None]
    for kind in a.types:
        for i in range(a.rounds):
            for threads in a.threads:
                for side in [*a.ours, *peers] if i % 2 == 0 else [*peers, *a.ours]:
                    for layers in a.layers:
                        path = model(a, side, kind, layers)
                        times, facts = (run_peer if side in peers else run_ours)(a, side, path, threads)
                        if side in peers:
                            facts["bytes_per_token"] = file_bytes(a, kind)
                        yield {"name": side, "type": kind, "threads": threads, "layers": layers, "times": times, **facts}
        if not a.keep:
            for path in a.work.glob(f"{kind}-*.gguf"):
                path.unlink()


def per_layer(rounds, name):
    """Milliseconds of a layer in each round; `rounds` has the lines of each number of layers."""
    many, few = max(rounds), min(rounds)
    pairs = zip(rounds[many], rounds[few])
    return [(x["times"][name] - y["times"][name]) / (many - few) for x, y in pairs if name in x["times"] and name in y["times"]]


def whole(rounds, name):
    return [line["times"][name] for line in rounds[max(rounds)] if name in line["times"]]


def ratio(ours_ms, peer_ms):
    r = [p / o for o, p in zip(ours_ms, peer_ms)]
    return f"{statistics.median(r):.2f} ({min(r):.2f}-{max(r):.2f})" if r else "-"


def print_table(lines):
    sides = {}  # (type, threads) -> side -> layers -> lines in the order of the rounds
    for line in lines:
        sides.setdefault((line["type"], line["threads"]), {}).setdefault(line["name"], {}).setdefault(line["layers"], []).append(line)
    programs = {PEERS.get(line["name"], "Moebius"): line["commit"] for line in lines}
    machine = next((f"; {line['cpu']}, {line['features']}" for line in lines if "cpu" in line), "")
    print(", ".join(f"{name} {commit}" for name, commit in programs.items()) + machine)
    for (kind, threads), of in sides.items():
        for what, middle in (("per layer", per_layer), ("whole", whole)):
            if what == "per layer" and any(len(rounds) < 2 for rounds in of.values()):
                continue
            mine = [side for side in of if side not in PEERS]
            peers = [side for side in of if side in PEERS]
            print(f"\n{kind}, threads: {threads}, {what}, median ms and ratios\n")
            print("| case | " + " | ".join([*of, *(f"{p} / {m}" for m in mine for p in peers)]) + " |")
            print("|---" * (1 + len(of) + len(mine) * len(peers)) + "|")
            for name in dict.fromkeys(n for rounds in of.values() for line in rounds[max(rounds)] for n in line["times"]):
                ms = {side: middle(rounds, name) for side, rounds in of.items()}
                cells = [f"{statistics.median(v):.2f}" if v else "-" for v in ms.values()]
                print("| " + " | ".join([name, *cells, *(ratio(ms[m], ms[p]) for m in mine for p in peers)]) + " |")
            if what == "whole":
                size = [f"{rounds[max(rounds)][0]['bytes_per_token'] / 1e6:.1f} MB" for rounds in of.values()]
                print("| bytes of a token | " + " | ".join(size) + " |" + " |" * (len(mine) * len(peers)))


def arguments(text=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folder = lambda text: None if text == "-" else Path(text).resolve()
    parser.add_argument("llama", type=folder, nargs="?")
    parser.add_argument("ik", type=folder, nargs="?")
    parser.add_argument("work", type=Path, nargs="?", help="where the models are made")
    parser.add_argument("--table", type=Path, metavar="FILE")
    parser.add_argument("--tool", type=Path, default=ROOT / "build/release/moebius", help="our program")
    parser.add_argument("--types", type=words, default=["Q4_0", "Q4_K_M"], help="of the GGUF files")
    parser.add_argument("--ours", type=words, default=["w4a8", "w4a16", "file", "file-int8"])
    parser.add_argument("--cases", type=cases, default=cases("pp512,pp2048,tg1,tg8,tg32,tg1@8192,tg8@8192,tg32@8192"))
    parser.add_argument("--layers", type=numbers, default=[6, 2])
    parser.add_argument("--group", type=int, default=128, help="of our schemes")
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="ours, per case")
    parser.add_argument("--shape", default="", help="further options of both makers, such as '--experts 8 --vocab 9496'")
    parser.add_argument("--keep", action="store_true", help="keep the GGUF files")
    parser.add_argument("--out", type=Path, help="append every measurement as a JSON line")
    a = parser.parse_args(text)
    if not a.table and not a.work:
        parser.error("LLAMA, IK and WORK are needed, or --table")
    if unknown := [side for side in a.ours if side not in SCHEMES and side not in FILES]:
        parser.error(f"--ours {unknown[0]}: there are {', '.join([*SCHEMES, *FILES])}")
    return a


def main(text=None):
    a = arguments(text)
    if a.table:
        return print_table([json.loads(line) for line in a.table.read_text(encoding="utf-8").splitlines()])
    a.work.mkdir(parents=True, exist_ok=True)
    lines = []
    for line in measure(a):
        record(a.out, line["name"], line)
        lines.append(line)
        print(json.dumps(line["times"] | {"side": line["name"], "type": line["type"], "layers": line["layers"]}), file=sys.stderr, flush=True)
    print_table(lines)


if __name__ == "__main__":
    main()
