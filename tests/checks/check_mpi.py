#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes of an MPI on this machine: every exchange, the tool's bytes, faults.

    check_mpi.py MPI BUILD        MPI: openmpi or mpich; BUILD: the folder with the tool, its plugin and moebius_rank_program
    check_mpi.py MPI BUILD CASE   one case

Exit status 77: skipped, with the reason (no launcher, or no plugin for it in this build).
"""
import concurrent.futures
import http.client
import json
import math
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import serve_acceptance  # noqa: E402

FULL = bool(os.environ.get("MOEBIUS_FULL"))
GOLDEN = Path(__file__).resolve().parents[2] / "build/data/golden"
GONE_SECONDS = 60  # a generous end for what takes one to five seconds on a quiet machine


class Job:
    """A started job; its standard streams as text once it is over."""

    def __init__(self, mpi, ranks, command, env=None):
        self.process = subprocess.Popen(launcher(mpi) + ["-n", str(ranks)] + command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})

    def finish(self, seconds=GONE_SECONDS):
        try:
            self.out, self.err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.out, self.err = self.process.communicate()
            raise AssertionError(f"the job was not over after {seconds} s; stderr:\n{self.err}")
        self.status = self.process.returncode
        return self

    def pids(self):
        return [int(p) for p in re.findall(r"^pid (\d+)$", self.err, re.M)]


def launcher(mpi):
    command = [shutil.which(f"mpirun.{mpi}") or shutil.which("mpirun")]
    if mpi == "openmpi":
        # More ranks than cores, and containers whose only user is root.
        command += ["--oversubscribe", "--mca", "btl", "self,vader,tcp", "--mca", "btl_vader_single_copy_mechanism", "none"]
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
    return command


def expect(condition, job, what):
    if not condition:
        raise AssertionError(f"{what}; status {job.status}\nstdout:\n{job.out}\nstderr:\n{job.err}")


def bytes_of(size):
    """Bytes of "4.72 MB"."""
    number, unit = size.split()
    return float(number) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]


def alive(pid):
    """Whether the process runs: a zombie that nobody has waited for does not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False


def expect_gone(pids, job):
    deadline = time.monotonic() + GONE_SECONDS
    while any(alive(p) for p in pids):
        expect(time.monotonic() < deadline, job, f"of {pids} some still run")
        time.sleep(0.05)


def children_of(pid):
    """All processes below one."""
    below, found = [pid], []
    while below:
        parent = below.pop()
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            for child in task.read_text(encoding="utf-8").split():
                below.append(int(child))
                found.append(int(child))
    return found


def wait_ready(address):
    for _ in range(600):
        try:
            with urllib.request.urlopen(address + "/health", timeout=60):
                return
        except (urllib.error.HTTPError, urllib.error.URLError):  # it loads
            time.sleep(0.1)


LAYERS, EXPERTS, HIDDEN, GROUP, VOCABULARY = 8, 32, 1024, 128, 256
EXPERT_BYTES = 3 * HIDDEN * HIDDEN // 2 + 3 * HIDDEN * HIDDEN // GROUP * 2
MODEL_ENDS = 2 * 2 * VOCABULARY * HIDDEN + (1 << 20)


def write_model(folder, busy=0):
    """A mixture of experts of 400 MB; `busy`: so many of the last experts of every layer are taken by most tokens. Weights have mean zero and differ between experts, so that tokens stay different from layer to
    layer and spread over all experts."""
    folder.mkdir()
    size = HIDDEN * HIDDEN // 2
    flat = bytes(max(b >> 4, 1) << 4 | max(b & 15, 1) for b in range(256))  # codes of -7 to 7
    codes = memoryview(random.Random(1).randbytes(size).translate(flat) * 2)  # an expert's matrix begins anywhere in the first half
    first = random.Random(3)
    scales, ones, small = b"\x00\x3c" * (HIDDEN * HIDDEN // GROUP), b"\x80\x3f" * HIDDEN, random.Random(2).randbytes(VOCABULARY * HIDDEN)
    table = b"".join(bytes([b, 0x3d + (b & 1) * 0x80]) for b in small)  # bf16 of about 0.05, of either sign
    quarter = bytes(b - 1 if b & 0x7f == 0x3d else b for b in range(256))  # of a number, by its high byte
    router, calm = bytearray(table[:2 * EXPERTS * HIDDEN]), 2 * (EXPERTS - busy) * HIDDEN if busy > 0 else 0
    router[1:calm:2] = router[1:calm:2].translate(quarter)
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "dynamic": False, "strategy": "group", "group_size": GROUP, "actorder": None,
               "block_structure": None, "observer": "minmax", "observer_kwargs": {}}
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    names = ["lm_head"] + [f"model.layers.{i}.{m}" for i in range(LAYERS) for m in
                           ("mlp.gate", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")]
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "dtype": "bfloat16", "vocab_size": VOCABULARY,
              "hidden_size": HIDDEN, "intermediate_size": HIDDEN, "moe_intermediate_size": HIDDEN, "num_hidden_layers": LAYERS,
              "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": 512,
              "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "rope_theta": 1e4, "num_experts": EXPERTS, "num_experts_per_tok": 2,
              "norm_topk_prob": True, "attention_bias": False, "decoder_sparse_step": 1, "mlp_only_layers": [],
              "quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
                                      "ignore": names, "config_groups": {"group_0": scheme}}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = {"model.embed_tokens.weight": ("BF16", [VOCABULARY, HIDDEN], table), "lm_head.weight": ("BF16", [VOCABULARY, HIDDEN], table),
               "model.norm.weight": ("BF16", [HIDDEN], ones)}
    shape = struct.pack("<qq", HIDDEN, HIDDEN)
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[layer + norm + ".weight"] = ("BF16", [HIDDEN], ones)
        for norm in ("q_norm", "k_norm"):
            tensors[layer + f"self_attn.{norm}.weight"] = ("BF16", [64], ones[:128])
        for m, (n, k) in {"q_proj": (256, HIDDEN), "k_proj": (256, HIDDEN), "v_proj": (256, HIDDEN), "o_proj": (HIDDEN, 256)}.items():
            tensors[layer + f"self_attn.{m}.weight"] = ("BF16", [n, k], table[:2 * n * k])
        tensors[layer + "mlp.gate.weight"] = ("BF16", [EXPERTS, HIDDEN], bytes(router))
        for e in range(EXPERTS):
            for m in ("gate_proj", "up_proj", "down_proj"):
                name = layer + f"mlp.experts.{e}.{m}."
                tensors[name + "weight_packed"] = ("I32", [HIDDEN, HIDDEN // 8], codes[(at := first.randrange(size)):at + size])
                tensors[name + "weight_scale"] = ("BF16", [HIDDEN, HIDDEN // GROUP], scales)
                tensors[name + "weight_shape"] = ("I64", [2], shape)
    header, offset = {}, 0
    for name, (dtype, dims, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": dims, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            out.write(data)


def leave(port, seconds):
    """A client that asks for a long stream and goes."""
    with socket.create_connection(("127.0.0.1", port)) as s:
        s.sendall(serve_acceptance.post_bytes("/v1/completions", {"prompt": list(range(300)), "max_tokens": 400, "ignore_eos": True, "stream": True}))
        time.sleep(seconds)


def ranks_of(form):
    return math.prod(int(n) for n in re.findall(r"\d+", form))


def compare_logits(tool, name, form, launch, env=None, more=()):
    """Logits of 20 tokens of a golden folder, by one process and by launch(command) on ranks. False: the folder cannot be cut so."""
    command = ["logits", str(GOLDEN / name), "--tokens", ",".join(str((7 * i + i * i) % 16) for i in range(20)), "--threads", "1", "--quiet", *more]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / "one", Path(folder) / "ranks"]
        subprocess.run(tool + command + ["--out", str(files[0])], check=True, stdin=subprocess.DEVNULL, capture_output=True,
                       env={**os.environ, **(env or {})})
        job = launch(tool + command + ["--out", str(files[1])] + form.split())
        if job.status != 0 and re.search(r"stages|experts|heads|rows|outputs", job.err) and FULL and "is gone" not in job.err:
            print(f"{name} {form}: refused", flush=True)
            return False
        expect(job.status == 0, job, f"{name} {form}")
        expect(files[0].read_bytes() == files[1].read_bytes(), job, f"{name} {form}: other logits than one process")
    return True


class Checks:
    def __init__(self, mpi, build):
        self.mpi, self.build = mpi, build
        self.program = [str(build / "moebius_rank_program")]
        self.tool = [str(build / "moebius")]

    def job(self, ranks, command, env=None):
        return Job(self.mpi, ranks, command, env)

    def exchanges(self):
        for ranks in (2, 3, 4):
            job = self.job(ranks, self.program + ["exchange"]).finish(300)
            expect(job.status == 0, job, f"{ranks} ranks")

    def ends_over_tcp(self):
        """Ranks that reach each other by sockets alone, as those of several machines do, end when the work is done."""
        sockets = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "OMPI_MCA_btl": "tcp,self"}
        command = ["run", "-p", "It was a dark", "-n", "4", "--threads", "1", "--tp", "4"]
        for _ in range(4):
            job = self.job(4, self.tool + command, sockets).finish(60)
            expect(job.status == 0, job, "four ranks over TCP")

    def ends_by_agent(self):
        """Ranks that the launcher starts by an agent, as on other machines, end as those it starts itself do: MPICH tells them less."""
        if self.mpi != "mpich":
            return
        with tempfile.TemporaryDirectory() as folder:
            agent = Path(folder) / "agent"  # called as ssh would be: options, host, words of a command
            agent.write_text('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nshift\nexec sh -c "$*"\n', encoding="utf-8")
            agent.chmod(0o755)
            options = ["-launcher", "ssh", "-launcher-exec", str(agent), "-hosts", "127.0.0.1,127.0.0.2", "-localhost", "127.0.0.1", "-ppn", "1"]
            job = self.job(2, options + self.tool + ["run", "-p", "It was a dark", "-n", "4", "--threads", "1", "--pp", "2"]).finish(60)
            expect(job.status == 0, job, "two ranks, one of them by an agent")

    def killed(self):
        job = self.job(3, self.program + ["kill", "1"]).finish()
        expect(job.status != 0, job, "a killed rank must fail the job")
        expect(len(job.pids()) == 3, job, "three ranks must say who they are")
        expect(re.search(r"rank 1 \(.*\) is gone, killed or crashed: step 1?\d\d, layer 5, test of faults", job.err), job, "the killed rank is not named")
        expect(len(re.findall(r"is gone, killed or crashed", job.err)) == 1, job, "more than the killed rank is named")
        expect_gone(job.pids(), job)

    def stopped(self):
        job = self.job(3, self.program + ["stop", "2"]).finish()
        expect(job.status != 0, job, "a stopped rank must fail the job")
        expect(re.search(r"rank 2 \(.*\) was silent for 1 s: step 100, layer 5, test of faults", job.err), job, "the message names nobody")
        expect_gone(job.pids(), job)

    def launcher_killed(self):
        job = self.job(2, self.program + ["loop"])
        time.sleep(2)
        job.process.send_signal(signal.SIGKILL)
        job.finish()
        expect_gone(job.pids(), job)

    def wrong_plugin(self):
        job = self.job(2, self.program + ["exchange"], {"MOEBIUS_COMM": "/nowhere/plugin.so"}).finish()
        expect(job.status != 0 and "install" in job.err, job, "a missing plugin must name a package")
        other = "mpich" if self.mpi == "openmpi" else "openmpi"
        if not (self.build / f"libmoebius_comm_{other}.so").exists():
            return
        job = self.job(2, self.program + ["exchange"], {"MOEBIUS_COMM": other}).finish()
        expect(job.status != 0 and "belongs to another MPI" in job.err, job, "the wrong pair must be named")

    def by_rank(self, command, rank, more="", env=""):
        """The tool's command, on one rank with other words and another environment."""
        variable = "OMPI_COMM_WORLD_RANK" if self.mpi == "openmpi" else "PMI_RANK"
        quoted = " ".join("'" + c + "'" for c in self.tool + command)
        return ["sh", "-c", f"echo pid $$ >&2; if [ ${variable} = {rank} ]; then exec env {env} {quoted} {more}; fi; exec {quoted}"]

    def text(self):
        """Ranks say what one process says, byte for byte: 64 tokens, the likeliest and drawn with a seed. All counts of ranks with MOEBIUS_FULL."""
        splits = [(2, ""), (2, "--pp 2"), (2, "--ep 2"), (4, "--pp 2 --tp 2")]
        if FULL:
            splits += [(n, f"--{form} {n}") for n in (2, 3, 4, 8) for form in ("pp", "tp", "ep") if (form, n) != ("pp", 8)]
            splits += [(4, "--pp 2 --ep 2"), (4, "--tp 2 --ep 2"), (2, "--ep 2 --attention repeat"), (8, "--pp 2 --tp 2 --ep 2")]
        for sampling in (["--temp", "0"], ["--temp", "0.8", "--seed", "7"]):
            command = ["run", "-p", "It was a dark", "-n", "64", "--ignore-eos", "--threads", "1"] + sampling
            alone = subprocess.run(self.tool + command, capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout.decode()
            for ranks, split in splits:
                job = self.job(ranks, self.tool + command + split.split()).finish(300)
                expect(job.status == 0, job, f"{ranks} ranks {split}")
                expect(job.out == alone, job, f"{ranks} ranks {split} say something else than one:\n{alone}")
                for r in range(1, ranks):
                    expect(re.search(rf"^\[rank {r} .*\] loaded [\d.]+ [kMG]?B of weights", job.err, re.M), job, f"rank {r} does not say what it loaded")

    def goldens(self):
        """Logits of golden folders on ranks are the bytes of one process: some folders in one form each; with MOEBIUS_FULL all in all forms."""
        some = {"qwen3moe-w4a8-g32-pack": "--pp 2 --tp 2", "gptoss-mxfp4-native": "--tp 3", "deepseekv3-w4a8-g32": "--ep 2", "kimilinear-w4a16-g32": "--pp 2"}
        forms = ["--pp 2", "--tp 2", "--tp 4", "--ep 2", "--pp 2 --tp 2"]
        names = sorted(f.parent.name for f in GOLDEN.glob("*/config.json")) if FULL else sorted(some)
        ran = 0
        for name in names:
            for form in forms if FULL else [some[name]]:
                found = compare_logits(self.tool, name, form, lambda command, form=form: self.job(ranks_of(form), command).finish(300))
                ran += found
        if ran < len(some):
            raise AssertionError(f"only {ran} of {len(names)} folders ran")

    def refused(self):
        """Ranks that differ part before they load, with a sentence of rank 0 alone."""
        run = ["run", "-p", "It was", "-n", "4", "--temp", "0", "--threads", "1", "--quiet"]

        def refusal(words, **other):
            job = self.job(2, self.by_rank(run, 1, **other)).finish()
            expect(job.status != 0 and job.out == "", job, "different ranks must not run")
            expect(len(re.findall(words, job.err)) == 1, job, f"not said once: {words}")

        refusal(r"moebius: rank 1 \(.*\) was given --dtype f32, rank 0 bf16", more="--dtype f32")
        refusal(r"moebius: rank 1 \(.*\) cannot go on: .*/nowhere/plugin.so", more="--device cuda", env="MOEBIUS_CUDA_MODULE=/nowhere/plugin.so")
        if os.environ.get("MOEBIUS_TEST_CLASS") != "none":  # there all ranks have the reference's CPU
            refusal(r"moebius: rank 1 \(.*\) would multiply .* give --common-cpu", env="MOEBIUS_CPU=reference")
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy"
            shutil.copytree(Path(__file__).resolve().parents[2] / "models/moebius-tiny-w4a8", copy)
            (copy / "generation_config.json").write_text("{}", encoding="utf-8")
            refusal(r"moebius: rank 1 \(.*\) has a generation_config.json of 2 bytes, rank 0 one of", more=f"'{copy}'")
            (copy / "config.json").unlink()
            refusal(r"moebius: rank 1 \(.*\) cannot go on: .*config.json", more=f"'{copy}'")
        job = self.job(2, self.by_rank(run + ["--common-cpu"], 1, env="MOEBIUS_CPU=reference")).finish(300)
        expect(job.status == 0 and job.out != "", job, "--common-cpu must run")

    def gpus(self):
        """Experts that processes spread over CUDA devices (the emulated plugin): the bytes of one process, and words where a device differs or is lost."""
        plugin = self.build / "tests/libmoebius_cuda_emulated.so"
        if not plugin.exists():
            print("gpus: skipped, this build has no emulated plugin", flush=True)
            return
        env, cuda = {"MOEBIUS_CUDA_MODULE": str(plugin)}, ["--device", "cuda"]
        for name, form in (("deepseekv3-w4a8-g32", "--ep 2"), ("deepseekv3-dense", "--ep 3"), ("granitemoeshared-w8a8", "--pp 2 --ep 2")):
            compare_logits(self.tool, name, form, lambda command, form=form: self.job(ranks_of(form), command, env).finish(300), env, cuda)
        run = ["run", "-p", "It was", "-n", "4", "--temp", "0", "--threads", "1", "--quiet", "--ep", "2"] + cuda
        job = self.job(2, self.by_rank(run, 1, more="--experts cpu"), env).finish()
        expect(job.status != 0 and re.search(r"rank 1 \(.*\) was given --place .*experts=cpu, rank 0 cuda", job.err), job, "experts elsewhere must not run")
        job = self.job(2, self.by_rank(run, 1, env="MOEBIUS_EMULATED_LOST=200"), env).finish()
        expect(job.status != 0 and "unspecified launch failure (emulated)" in job.err, job, "a lost device must be said")

    @staticmethod
    def second_rank(job):
        """The process that by_rank() gave --verbose."""
        found = [p for p in children_of(job.process.pid) if "--verbose" in Path(f"/proc/{p}/cmdline").read_text(encoding="utf-8").split("\0")
                 and "witness" not in Path(f"/proc/{p}/comm").read_text(encoding="utf-8")]
        if len(found) != 1:
            raise AssertionError(f"one rank was expected, not {found}")
        return found[0]

    def signalled(self, number):
        """A long answer on two ranks, the second of which gets a signal as soon as text comes."""
        command = ["run", "-p", "It was", "-n", "-1", "--ignore-eos", "--temp", "0", "--threads", "1", "--ctx", "1000000", "--rank-timeout", "2"]
        job = self.job(2, self.by_rank(command, 1, more="--verbose"))
        os.read(job.process.stdout.fileno(), 1)  # the answer has begun
        os.kill(self.second_rank(job), number)
        job.finish()
        expect(job.status != 0, job, "a lost rank must fail the job")
        expect_gone(job.pids(), job)
        return job

    def killed_while_running(self):
        job = self.signalled(signal.SIGKILL)
        expect(re.search(r"rank 1 \(.*\) is gone, killed or crashed: step \d+", job.err), job, "the killed rank is not named")
        expect(len(re.findall(r"is gone, killed or crashed", job.err)) == 1, job, "more than the killed rank is named")

    def stopped_while_running(self):
        job = self.signalled(signal.SIGSTOP)
        expect(re.search(r"rank 1 \(.*\) was silent for [12][.\d]* s: step \d+, .*; it is stopped", job.err), job, "the silent rank is not named")

    def taken_away(self):
        """A rank that is missing, or stopped where others wait inside the MPI: named with its host, and the job is over."""
        import rank_stops  # which needs this file
        cases = [("run", "stop", "start"), ("serve", "exit", "start"), ("run", "sleep", "start"), ("serve", "stop", "join"), ("run", "stop", "load"),
                 ("serve", "stop", "drain")]
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            jobs = [rank_stops.Job(self.mpi, self.build, *case, 3, random.Random(str(case))) for case in cases]
            for job, (_, bad, words, _) in zip(jobs, pool.map(lambda job: job.judge(GONE_SECONDS), jobs)):
                if bad:
                    raise AssertionError(f"{job}: {'; '.join(bad)}\n{words}")

    def served(self):
        """The server on ranks answers as run does, and goes when the launcher is told to."""
        job = self.job(2, self.tool + ["serve", "--port", "0", "--threads", "1", "--ctx", "256", "--parallel", "2"])
        address = job.process.stdout.readline().strip()
        body = json.dumps({"prompt": "It was a dark", "max_tokens": 16, "temperature": 0, "ignore_eos": True}).encode()
        answer = ""
        for _ in range(600):
            request = urllib.request.Request(address + "/v1/completions", body, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=60) as reply:
                    answer = json.load(reply)["choices"][0]["text"]
                break
            except (urllib.error.HTTPError, urllib.error.URLError):  # it loads
                time.sleep(0.1)
        job.process.send_signal(signal.SIGTERM)
        job.finish()
        alone = subprocess.run(self.tool + ["run", "-p", "It was a dark", "-n", "16", "--temp", "0", "--ignore-eos", "--json", "--threads", "1"],
                               capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout
        expect(answer == json.loads(alone)["text"], job, f"served on ranks: {answer!r}, run: {alone!r}")

    def lost_while_serving(self):
        """A rank is killed under an open stream. Open MPI leaves a second: the stream ends with an error event, who asks is told 503; on a machine that gives
        no time within it, at the third try."""
        told = [False]
        while len(told) <= 3 and not told[-1]:
            told.append(self.lose_a_rank())
        if self.mpi == "openmpi" and not told[-1]:
            raise AssertionError("streams do not end with an error event, or who asks is not told 503")

    def lose_a_rank(self):
        job = self.job(2, self.by_rank(["serve", "--port", "0", "--threads", "1", "--ctx", "100000"], 1, more="--verbose"))
        address = job.process.stdout.readline().strip()
        wait_ready(address)
        host = address.removeprefix("http://")
        stream, other = http.client.HTTPConnection(host, timeout=60), http.client.HTTPConnection(host, timeout=60)
        asked = {"prompt": "It was", "max_tokens": 90000, "ignore_eos": True}
        kind = {"Content-Type": "application/json"}
        stream.request("POST", "/v1/completions", json.dumps(dict(asked, stream=True)), kind)
        reply = stream.getresponse()
        text = reply.read(200)
        os.kill(self.second_rank(job), signal.SIGKILL)
        status, answer = None, ""
        try:
            other.request("POST", "/v1/completions", json.dumps(asked), kind)
            answered = other.getresponse()
            status, answer = answered.status, answered.read().decode()
        except (OSError, http.client.HTTPException):  # MPICH's launcher has ended all
            pass
        try:
            while piece := reply.read1(1 << 16):
                text += piece
        except (OSError, http.client.HTTPException):
            pass
        stream.close(), other.close()
        job.finish()
        expect(job.status != 0, job, "a server that lost a rank must fail")
        expect(len(re.findall(r"rank 1 \(.*\) is gone, killed or crashed", job.err)) == 1, job, "the killed rank is not named, or others are")
        events = [e for e in text.decode().strip().split("\n\n") if e != "data: [DONE]"]
        failed = events[-1].startswith("data: {") and events[-1].endswith("}") and "error" in json.loads(events[-1][6:])
        expect(failed or b"[DONE]" not in text, job, "a stream that was cut off looks whole")
        expect_gone(job.pids(), job)
        return failed and status == 503 and json.loads(answer)["error"]["message"] != ""

    def memory(self):
        """A model that one process may not hold runs on four ranks that may hold as little."""
        with tempfile.TemporaryDirectory(dir=self.build) as folder:
            model = Path(folder) / "model"
            write_model(model)
            tokens = ",".join(str(1 + 37 * i % 250) for i in range(24))

            def logits(name):
                return ["logits", str(model), "--tokens", tokens, "--threads", "1", "--out", str(Path(folder) / name)]

            alone = subprocess.Popen(self.tool + logits("alone"))
            _, status, usage = os.wait4(alone.pid, 0)
            if status != 0:
                raise AssertionError(f"one process without a limit: status {status}")
            limit = int(0.35 * usage.ru_maxrss)  # kB
            limited = ["sh", "-c", f'ulimit -d {limit}; exec "$@"', "sh"] + self.tool
            job = subprocess.run(limited + logits("none") + ["--expert-cache", "page"], capture_output=True, text=True, check=False)
            if job.returncode == 0 or "are missing" not in job.stderr or "ulimit -d" not in job.stderr:
                raise AssertionError(f"one process with {limit} kB must be refused in words: {job.stderr}")
            want = (Path(folder) / "alone").read_bytes()
            sizes = [f.stat().st_size for f in model.glob("*.safetensors")]
            for split in (["--pp", "4"], ["--tp", "4"]):
                job = self.job(4, limited + logits("ranks") + split).finish(300)
                expect(job.status == 0, job, f"four ranks with {limit} kB each, {split}")
                expect((Path(folder) / "ranks").read_bytes() == want, job, f"{split}: other bytes than one process")
                size = r"([\d.]+ [kMG]?B)"
                found = re.findall(rf"^\[rank (\d) .*\] loaded {size} of weights, {size} in memory, {size} at most", job.err, re.M)
                expect(len(found) == 4, job, "four ranks must say what they loaded")
                for rank, loaded, packed, peak in found:
                    expect(bytes_of(loaded) <= 1.05 * sum(sizes) / 4 + MODEL_ENDS, job, f"rank {rank} read more than its share of {sizes}")
                    expect(bytes_of(peak) <= bytes_of(packed) + (64 << 20) + EXPERT_BYTES, job, f"rank {rank}: too much memory")
            job = self.job(2, limited + logits("two")).finish(300)
            expect(job.status != 0 and re.search(r"rank \d \(.*\) needs .* are missing", job.err), job, "two ranks must be refused in words")

    def ends_while_experts_move(self):
        """The job ends in peace, whatever is under way beside the steps."""
        with tempfile.TemporaryDirectory(dir=self.build) as folder:
            model = Path(folder) / "model"
            write_model(model, EXPERTS // 4)
            job = self.job(2, self.tool + ["bench", "model", str(model), "--ep", "2", "--spare", "8", "--threads", "1", "--prompts", "1", "--batches",
                                           "4", "--depths", "1", "--seconds", "0", "--steps", "90", "--json", "--quiet"]).finish(300)
            expect(job.status == 0, job, "a job that ends while experts move")

    def mixed(self):
        """Requests of all kinds on four ranks, threads and processes, stages at work together, while clients leave: the answers of one process."""
        requests = [dict(r, max_tokens=min(r["max_tokens"], 24)) for r in serve_acceptance.mixed(24, 1)]
        server_of, four, answers = serve_acceptance.Server, ["--pp", "2", "--tp", "2"], []
        for server_of.launch, server_of.ranks in (([], []), ([], four), (launcher(self.mpi) + ["-n", "4"], four)):
            with server_of(self.tool[0], "--threads", "1", "--parallel", "8", "--queue", "100") as server:
                with concurrent.futures.ThreadPoolExecutor(12) as pool:
                    for i in range(8):
                        pool.submit(leave, server.port, 0.02 * i)
                    answers.append([serve_acceptance.essence(a) for a in pool.map(server.complete, requests)])
                deadline = time.monotonic() + GONE_SECONDS
                while left := [n for n in ("num_requests_running", "num_requests_waiting", 'kv_blocks{state="used"}') if server.metric(n) > 0]:
                    if time.monotonic() > deadline:
                        raise AssertionError(f"clients left, and of {server_of.launch or 'threads'} {left} stay")
                    time.sleep(0.05)
            for one, other in zip(answers[0], answers[-1]):
                if one != other:
                    raise AssertionError(f"one process: {one}\n{server_of.launch} {server_of.ranks}: {other}")

    def beats(self):
        """Idle ranks know of each other: nobody is given up for silence, and one that stops is."""
        job = self.job(2, self.by_rank(["serve", "--port", "0", "--threads", "1", "--ctx", "256", "--rank-timeout", "1"], 1, more="--verbose"))
        address = job.process.stdout.readline().strip()
        wait_ready(address)
        time.sleep(3)
        running = job.process.poll() is None
        os.kill(self.second_rank(job), signal.SIGSTOP)
        job.finish()
        expect(running, job, "idle ranks were given up")
        expect(job.status != 0, job, "a stopped rank must fail an idle job")
        expect(re.search(r"rank 1 \(.*\) was silent for [01][.\d]* s: step \d+, .*; it is stopped", job.err), job, "the silent rank is not named")
        expect_gone(job.pids(), job)

    def no_mpi_in_the_tool(self):
        job = subprocess.run(["ldd"] + self.tool, capture_output=True, text=True, check=False)
        if job.returncode == 0 and re.search(r"libmpi|libmpich|open-rte|open-pal", job.stdout):
            raise AssertionError(f"the tool is linked with an MPI:\n{job.stdout}")


CASES = ["exchanges", "ends_over_tcp", "ends_by_agent", "killed", "stopped", "launcher_killed", "wrong_plugin", "text", "goldens", "gpus", "refused", "killed_while_running", "stopped_while_running", "taken_away",
         "served", "lost_while_serving", "mixed", "beats", "memory", "ends_while_experts_move", "no_mpi_in_the_tool"]


def main():
    mpi, build = sys.argv[1], Path(sys.argv[2])
    if not shutil.which(f"mpirun.{mpi}"):
        print(f"skipped: mpirun.{mpi} is not installed")
        return 77
    if not (build / f"libmoebius_comm_{mpi}.so").exists():
        print(f"skipped: this build has no plugin for {mpi}")
        return 77
    checks = Checks(mpi, build)
    for name in sys.argv[3:] or CASES:
        start = time.monotonic()
        getattr(checks, name)()
        print(f"{mpi} {name}: {time.monotonic() - start:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
