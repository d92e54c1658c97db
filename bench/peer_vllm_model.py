#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM's CPU engine on a folder: one JSON object with the keys of `moebius bench model --json`.

    PEER_FOLDER/run bench/peer_vllm_model.py MODEL_FOLDER [--threads 2] [--prompts 512,2048] [--batches 1,8,32] [--compile]

Decode continues with random tokens, at the cost of the sampler's argmax: a random model that follows its own choice would visit
few experts. The engine gives no time per step, so a short generation is subtracted from a longer one. --stay: loads, then answers cases that come as
lines of JSON, {"decode": BATCH} or {"prefill": LENGTH}, with {"ms": ...}.
"""
import argparse
import json
import os
import random
import statistics
import sys
import time


def peak_gib():
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 2**20


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts", default="512,2048")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--stay", action="store_true", help="answer cases on stdin")
    parser.add_argument("--compile", action="store_true", help="torch.compile instead of eager mode")
    return parser.parse_args()


class Engine:
    def __init__(self, a):
        import torch
        from vllm import LLM, SamplingParams
        from vllm.v1.sample.sampler import Sampler
        with open(os.path.join(a.folder, "config.json"), encoding="utf-8") as file:
            self.vocab = json.load(file)["vocab_size"]
        argmax = Sampler.greedy_sample
        Sampler.greedy_sample = staticmethod(lambda logits: (argmax(logits) + torch.randint(0, self.vocab, (logits.shape[0],))) % self.vocab)
        self.sampling, self.random = SamplingParams, random.Random(1)
        self.llm = LLM(model=a.folder, dtype="bfloat16", enforce_eager=not a.compile, max_model_len=4096, max_num_seqs=32,
                       max_num_batched_tokens=4096, skip_tokenizer_init=True, seed=0, enable_prefix_caching=False)

    def prompts(self, count, length):
        return [{"prompt_token_ids": [self.random.randrange(self.vocab) for _ in range(length)]} for _ in range(count)]

    def seconds(self, prompts, tokens):
        start = time.perf_counter()
        self.llm.generate(prompts, self.sampling(max_tokens=tokens, min_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False), use_tqdm=False)
        return time.perf_counter() - start

    def prefill(self, length):
        self.seconds(self.prompts(1, length), 1)
        return statistics.median(self.seconds(self.prompts(1, length), 1) for _ in range(3))

    def once(self, case):
        """One short turn: seconds of a prompt, or per token of a batch."""
        if "prefill" in case:
            return self.seconds(self.prompts(1, case["prefill"]), 1)
        prompts, steps = self.prompts(case["decode"], 32), 24
        short = self.seconds(prompts, 4)
        return (self.seconds(prompts, 4 + steps) - short) / steps

    def decode(self, batch):
        steps, times = max(48, 128 // batch), []
        self.seconds(self.prompts(batch, 32), 8)
        for _ in range(3):
            prompts = self.prompts(batch, 32)
            times.append((self.seconds(prompts, 8 + steps) - self.seconds(prompts, 8)) / steps)
        return statistics.median(times)


def main():
    a = arguments()
    cores = f"0-{a.threads - 1}" if a.threads > 1 else "0"
    os.environ.update(VLLM_CPU_KVCACHE_SPACE="2", HF_HUB_OFFLINE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1",
                      OMP_NUM_THREADS=str(a.threads), VLLM_CPU_OMP_THREADS_BIND=cores)
    start = time.time()
    engine = Engine(a)
    result = {"peer": "vllm", "threads": a.threads, "compiled": a.compile, "load_s": round(time.time() - start, 1), "load_peak_gib": round(peak_gib(), 2)}
    engine.seconds(engine.prompts(1, 64), 4)
    if a.stay:
        print(json.dumps(result), flush=True)
        for line in sys.stdin:
            print(json.dumps({"ms": 1e3 * engine.once(json.loads(line))}), flush=True)
        return
    for n in map(int, a.prompts.split(",")):
        result[f"pp{n}_ms"] = round(1e3 * engine.prefill(n), 1)
    for b in map(int, a.batches.split(",")):
        result[f"tg_b{b}_ms"] = round(1e3 * engine.decode(b), 2)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
