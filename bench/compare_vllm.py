#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Our MoE layer beside vLLM's operator dynamic_4bit_int_moe (W4A8), alternately, in one run.

    bench/compare_vllm.py PEER_FOLDER [--groups -1,128,64,32] [--tokens 1,32,128,512,2048] [--threads 1,2] [--rounds 3]

ratio = vLLM's time / our time, the median over the rounds; spread = its smallest and largest value. Both sides: bf16 in and out,
uniform random routing, new tokens and ids in every repetition, weights larger than any cache.
"""
from compare import HEAD, Peer, numbers, ours, parser_for, print_machine, ready_peer, run_rounds


def main():
    parser = parser_for(__doc__)
    parser.add_argument("--shape", type=numbers, default=[128, 8, 2048, 768], help="experts, top-k, hidden, intermediate")
    parser.add_argument("--groups", type=numbers, default=[-1, 128, 64, 32], help="write --groups=-1,... when the first is negative")
    parser.add_argument("--tokens", type=numbers, default=[1, 32, 128, 512, 2048])
    parser.add_argument("--int8-activations", default="declared", choices=["declared", "ct", "vllm"], help="our arithmetic")
    a = parser.parse_args()
    experts, top_k, hidden, intermediate = a.shape
    peer = Peer(ready_peer(a.peer), "peer_operators.py")
    print(f"w4a8, {experts} experts, top-{top_k}, hidden {hidden}, intermediate {intermediate}")
    print(f"{'group':>6}{'tokens':>7}{'thr':>4}{HEAD}")
    for group in a.groups:
        for tokens in a.tokens:
            for threads in a.threads:
                request = {"operator": "vllm_moe", "experts": experts, "top_k": top_k, "hidden": hidden, "intermediate": intermediate,
                           "group": group, "tokens": tokens, "threads": threads, "seconds": a.seconds}
                arguments = ["moe", "--scheme", "w4a8", f"--group={group}", "--experts", experts, "--top-k", top_k, "--hidden", hidden,
                             "--intermediate", intermediate, "--tokens", tokens, "--threads", threads, "--seconds", a.seconds,
                             "--int8-activations", a.int8_activations]
                case = run_rounds(a.rounds, lambda: ours(a.tool, arguments)[0], lambda: {**request, **peer.measure(request)}, a.out)
                print(f"{group:>6}{tokens:>7}{threads:>4}{case.row()}", flush=True)
    print_machine(case.ours[0])


if __name__ == "__main__":
    main()
