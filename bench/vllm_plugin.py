#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Folders inside vLLM, scheme by scheme, with vLLM's own layers and with the plugin.

    bench/vllm_plugin.py [--env FOLDER] [--library libmoebius.so] [--compile] [--tp N [--ep]] [NAME...]
    bench/vllm_plugin.py --serve     the README's command, and the same with a WNA16 folder

Makes the environment of bench/peer_env.sh where it is missing, runs folders of build/data/golden (all of FOLDERS, or those named; heads joined in
pairs, since vLLM's attention wants 32 elements at least) in vLLM's `LLM`, and compares with `moebius.LLM` on the same folder: greedy tokens, and log-probabilities of the prompt. The table
says what vLLM does alone, what it does with the plugin, how far the numbers are apart (rms; norms and attention are vLLM's,
so single activation codes may flip), and how many of the layers' outputs inside vLLM have the bytes that the folder's own layers give on the
same inputs. Ends with 1 when a folder does not run with the plugin, or a layer's bytes differ.
"""
import argparse
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from compare import ROOT, ready_peer, with_package

FOLDERS = ["qwen3moe-w4a8-g32-int", "qwen3moe-w4a8-channel-int", "qwen3moe-w4a8-g32-pack", "qwen3moe-w4a16-g32", "qwen3moe-w4a16-asym-g32",
           "qwen3moe-w3a16-g32", "qwen3moe-w8a16-g32", "qwen3moe-w4a16-actorder-group", "qwen3moe-mixed-down8-gateup4",
           "qwen3moe-fp8-dynamic", "qwen3moe-fp8-static", "qwen3moe-fp8-block", "qwen3moe-nvfp4", "qwen3moe-nvfp4a16", "qwen3moe-mxfp4",
           "qwen3moe-mxfp4a16", "qwen3moe-mxfp8", "qwen3moe-w8a8-dynamic", "qwen3moe-w8a8-static", "mixtral-w4a16-g32", "qwen2moe-w4a16-g32",
           "granitemoe-w4a16-g32", "glm4moe-nvfp4", "gptoss-mxfp4-native", "qwen3moe-gptqmodel-real-asym-actorder", "qwen3moe-gptq-v2-dynamic",
           "qwen3moe-modelopt-real-nvfp4", "qwen3moe-modelopt-real-fp8", "qwen3moe-autoround-real-gptq", "qwen3moe-quark-mxfp4"]
NEW = 8
HEAD = 32  # the smallest that vLLM's attention knows on CPUs; the golden folders have heads of 16


def tensors_of(data):
    """name -> (header entry, bytes)"""
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {n: (t, data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]) for n, t in header.items()}


def with_larger_heads(name, to):
    """A golden folder whose heads are joined in pairs: another model with the same matrices. Files of expected values are left out."""
    source = ROOT / "build/data/golden" / name
    config = json.loads((source / "config.json").read_text())
    old = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    times = HEAD // old
    for key in ("num_attention_heads", "num_key_value_heads"):
        config[key] //= times
    config["head_dim"] = HEAD
    (to / "config.json").write_text(json.dumps(config))
    for file in ("hf_quant_config.json", "quantize_config.json"):
        if (source / file).exists():
            (to / file).write_bytes((source / file).read_bytes())
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for key, (entry, data) in tensors_of((source / "model.safetensors").read_bytes()).items():
        if key.endswith(("q_norm.weight", "k_norm.weight")) and entry["shape"] == [old]:
            entry["shape"], data = [HEAD], data * times
        if key.endswith(".sinks"):
            entry["shape"], data = [entry["shape"][0] // times], data[:len(data) // times]
        header[key] = {"dtype": entry["dtype"], "shape": entry["shape"], "data_offsets": [at, at + len(data)]}
        blobs.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (to / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    return str(to)


def prompt_for(folder):
    vocab = json.loads((Path(folder) / "config.json").read_text())["vocab_size"]
    return [(i * 37 + i // 7) % vocab for i in range(32)]


PARTS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def record_layers():
    """Inputs and outputs of our layers inside vLLM, as they come."""
    import torch
    from moebius.layers import Moe
    from moebius.torch import _layer
    from moebius.vllm.linear import MoebiusLinearMethod
    from moebius.vllm.moe import MoebiusMoeMethod

    seen, moe, routed, linear = [], MoebiusMoeMethod.apply, MoebiusMoeMethod.apply_monolithic, MoebiusLinearMethod.apply

    def apply_routed(self, layer, x, router_logits, **named):
        y = routed(self, layer, x, router_logits, **named)
        if self.plain:  # what it chose: that of torch's softmax and topk
            _, ids, weights = _layer(layer.moebius_layer, Moe).run_logits(x, router_logits, routing=True)
            ids, weights = torch.tensor(ids.tolist(), dtype=torch.int32), torch.tensor(weights.tolist())
            best, _ = torch.topk(torch.softmax(router_logits.float(), -1), ids.shape[1])
            best = best / best.sum(-1, keepdim=True) if layer.renormalize else best
            assert torch.allclose(weights.sort(-1, descending=True)[0], best, rtol=1e-4, atol=1e-6), f"{layer.layer_name}: another routing"
            seen.append((layer.layer_name, x.clone(), weights, ids, y.clone()))
        return y

    def apply_moe(self, layer, x, topk_weights, topk_ids, **named):
        y = moe(self, layer, x, topk_weights, topk_ids, **named)
        seen.append((layer.layer_name, x.clone(), topk_weights.clone(), topk_ids.clone(), y.clone()))
        return y

    def apply_linear(self, layer, x, bias=None):
        y = linear(self, layer, x, bias)
        seen.append((getattr(layer, "prefix", ""), x.clone(), None, None, y.clone()))
        return y

    MoebiusMoeMethod.apply, MoebiusMoeMethod.apply_monolithic, MoebiusLinearMethod.apply = apply_moe, apply_routed, apply_linear
    return seen


def equal_layers(folder, seen):
    """(equal, compared): bytes of the recorded outputs beside those of the folder's own layers."""
    import moebius
    import torch

    source = moebius.Folder(folder)
    modules, made, equal, compared = {m.name for m in source.modules}, {}, 0, 0

    def layer(name, load):
        return made.get(name) or made.setdefault(name, load(name))

    for name, x, weights, ids, y in seen:
        block = name.removesuffix(".experts")
        if block in source.moe_blocks:
            want = layer(block, lambda n: source.moe(n, scope="experts", dtype="f32")).run_ids(x, ids, weights)
        else:
            parent, _, last = name.rpartition(".")
            names = [f"{parent}.{part}" for part in PARTS.get(last, (last,))]
            if not modules.issuperset(names):
                continue
            want = torch.cat([layer(n, lambda n: source.linear(n, dtype="f32"))(x) for n in names], dim=-1)
        compared += 1
        equal += torch.equal(want, y)
    return equal, compared


def worker(folder, compiled, ranks, experts):
    """In the environment of vLLM: one folder, the result as a line of JSON."""
    from vllm import LLM, SamplingParams

    looked = os.environ.get("MOEBIUS_VLLM") != "off" and not compiled and ranks == 1
    seen = record_layers() if looked else []
    prompt = prompt_for(folder)
    llm = LLM(model=folder, skip_tokenizer_init=True, dtype="float32", enforce_eager=not compiled, max_model_len=128, max_num_seqs=4,
              enable_prefix_caching=False, tensor_parallel_size=ranks,
              enable_expert_parallel=experts)
    params = SamplingParams(max_tokens=NEW, temperature=0, ignore_eos=True, prompt_logprobs=0, detokenize=False)
    output = llm.generate([{"prompt_token_ids": prompt}], params)[0]
    logprobs = [None if p is None else p[t].logprob for p, t in zip(output.prompt_logprobs, prompt)]
    print("RESULT " + json.dumps({"tokens": list(output.outputs[0].token_ids), "logprobs": logprobs[1:],
                                  "layers": equal_layers(folder, seen) if looked else None}), flush=True)


def reference(folder):
    """The same by moebius.LLM."""
    import math

    import moebius

    prompt = prompt_for(folder)
    with moebius.LLM(folder, dtype="f32") as llm:
        logits = llm.logits(prompt)
        rows = []
        for i, token in enumerate(prompt[1:]):
            row = [logits[i, j] for j in range(logits.shape[1])]
            top = max(row)
            rows.append(row[token] - top - math.log(sum(math.exp(v - top) for v in row)))
        out = llm.generate({"prompt_token_ids": prompt}, moebius.SamplingParams(max_tokens=NEW, temperature=0, ignore_eos=True))
        return {"tokens": list(out[0].outputs[0].token_ids), "logprobs": rows}


def run(runner, folder, plugin, compiled, ranks, experts):
    """(result or None, the sentence that says why not)"""
    variables = dict(os.environ, VLLM_LOGGING_LEVEL="INFO", VLLM_CPU_KVCACHE_SPACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0",
                     HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", MOEBIUS_VLLM="" if plugin else "off")
    if ranks > 1:
        variables.update(VLLM_ENABLE_V1_MULTIPROCESSING="1", VLLM_CPU_SIM_MULTI_NUMA="1")
    command = [str(runner), str(Path(__file__).resolve()), "--worker", folder, "--tp", str(ranks)] + \
        (["--compile"] if compiled else []) + (["--ep"] if experts else [])
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    text = done.stdout + done.stderr
    for line in text.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line[7:]), [l for l in text.splitlines() if "moebius:" in l]
    errors = [l.strip() for l in text.splitlines() if "Error" in l and not l.lstrip().startswith(("File", "raise"))]
    return None, errors[-1] if errors else f"ended with {done.returncode}"


def wna16_folder(to):
    """The bundled model without its quantized activations: a WNA16 folder with a tokenizer."""
    to.mkdir()
    for path in (ROOT / "models/moebius-tiny-w4a8").iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    config = json.loads((to / "config.json").read_text())
    for group in config["quantization_config"]["config_groups"].values():
        group["input_activations"] = None
    (to / "config.json").write_text(json.dumps(config))
    return str(to)


def ask(port, model, text, count):
    body = json.dumps({"model": model, "prompt": text, "max_tokens": count, "temperature": 0}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["text"]


def readme_command():
    """The folder and options of the README's `vllm serve`."""
    line = next(l for l in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if "/vllm serve " in l)
    words = line.split()
    return words[words.index("serve") + 1], words[words.index("serve") + 2:]


def serve(env, place, folder, options):
    """`vllm serve` with the plugin, on a free port; its answer beside moebius.LLM's."""
    import moebius

    text, count = "It was a dark", 16
    if "bf16" not in moebius.cpu().features:
        options = [*options, "--dtype", "float32"]  # vLLM's own bf16 code needs such a core
    with moebius.LLM(folder) as llm:
        want = llm.generate(text, moebius.SamplingParams(max_tokens=count, temperature=0))[0].outputs[0].text
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = dict(os.environ, VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", MOEBIUS_VLLM="")
    with open(place / "log", "w+", encoding="utf-8") as log:
        server = subprocess.Popen([str(env / "vllm"), "serve", folder, *options, "--host", "127.0.0.1", "--port", str(port)], env=variables,
                                  cwd=ROOT, stdout=log, stderr=log)
        try:
            for _ in range(600):
                time.sleep(1)
                if server.poll() is not None:
                    break
                try:
                    got = ask(port, folder, text, count)
                except OSError:
                    continue
                print(f"vllm serve: {got!r}\nmoebius:    {want!r}")
                return 0 if got == want else 1
        finally:
            server.terminate()
            server.wait()
        log.seek(0)
        print(log.read()[-3000:])
    return 1


def rms(a, b):
    return (sum((x - y) ** 2 for x, y in zip(a, b)) / len(a)) ** 0.5


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default=str(ROOT / "build/peer"))
    parser.add_argument("--library", default=str(ROOT / "build/release/libmoebius.so"))
    parser.add_argument("--compile", action="store_true", help="inductor, as vLLM does by default")
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks, on simulated NUMA nodes")
    parser.add_argument("--ep", action="store_true", help="experts shared out over the ranks instead of cut")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--only-plugin", action="store_true", help="do not run vLLM's own layers")
    parser.add_argument("--serve", action="store_true", help="ask `vllm serve` as the README writes it, and with a WNA16 folder, instead")
    parser.add_argument("folders", nargs="*", default=FOLDERS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments.worker, arguments.compile, arguments.tp, arguments.ep)
    runner = ready_peer(Path(arguments.env))
    if arguments.serve:
        with tempfile.TemporaryDirectory() as place:
            os.environ.update(with_package(Path(place) / "site", arguments.library))
            sys.path.insert(0, str(ROOT / "python"))
            folder, options = readme_command()
            os.chdir(ROOT)
            return max(serve(Path(arguments.env).resolve(), Path(place), f, options) for f in (folder, wna16_folder(Path(place) / "wna16")))
    failed = []
    print(f"{'folder':34} {'vLLM alone':12} {'with plugin':12} {'tokens':8} {'rms':>8} {'layers':>9}  alone rms", flush=True)
    with tempfile.TemporaryDirectory() as place:
        os.environ.update(with_package(Path(place) / "site", arguments.library))
        sys.path.insert(0, str(ROOT / "python"))
        for name in arguments.folders:
            to = Path(place) / name
            to.mkdir()
            folder = with_larger_heads(name, to)
            want = reference(folder)
            alone, why = (None, "") if arguments.only_plugin else run(runner, folder, False, arguments.compile, arguments.tp, arguments.ep)
            ours, said = run(runner, folder, True, arguments.compile, arguments.tp, arguments.ep)
            if ours is None:
                failed.append(f"{name}: {said}")
            layers = None if ours is None else ours["layers"]
            if layers is not None and (layers[0] != layers[1] or layers[1] == 0):
                failed.append(f"{name}: {layers[0]} of {layers[1]} outputs of layers have the bytes of the folder's own")
            equal = "-" if ours is None else f"{sum(x == y for x, y in zip(ours['tokens'], want['tokens']))}/{NEW}"
            print(f"{name:34} {'runs' if alone else '-' if arguments.only_plugin else 'fails':12} {'runs' if ours else 'FAILS':12} {equal:8} "
                  f"{'-' if ours is None else format(rms(ours['logprobs'], want['logprobs']), '8.5f'):>8} {'-' if layers is None else f'{layers[0]}/{layers[1]}':>9}  "
                  f"{'' if alone is None else format(rms(alone['logprobs'], want['logprobs']), '8.5f')}", flush=True)
            if arguments.verbose:
                print("   alone:", why, "\n   plugin:", said, flush=True)
    for line in failed:
        print(line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
