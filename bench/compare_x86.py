#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Our MoE layer beside vLLM's x86-64 operator fused_experts_cpu, and our linears beside torch's bf16 linear, alternately, in one run.

    bench/compare_x86.py PEER_FOLDER [--schemes w4a8,w8a8] [--groups 128,32] [--tokens 1,8,32,128,512,2048] [--threads 1,2] [--rounds 3]
    bench/compare_x86.py PEER_FOLDER --linear w4a16,fp8,nvfp4a16,bf16 [--n 4096 --k 4096]

PEER_FOLDER is made when it is missing (bench/peer_env.sh --operators: torch and vLLM's operator library, about 5 GB). The operator runs on CPUs with AMX.
It takes 4-bit weights in groups that divide K ("-1": one group as long as K, its nearest to per channel) and int8 weights per channel.
ratio = the peer's time / our time, the median over the rounds; spread = its smallest and largest value. Both sides: bf16 in and out,
uniform random routing, new tokens and ids in every repetition, weights larger than the second-level caches.
"""
from compare import HEAD, Peer, numbers, ours, parser_for, print_machine, ready_peer, run_rounds


def compare(a, peer, label, request, arguments):
    request = {**request, "seconds": a.seconds}
    arguments = [*arguments, "--seconds", a.seconds]
    case = run_rounds(a.rounds, lambda: ours(a.tool, arguments)[0], lambda: {**request, **peer.measure(request)}, a.out)
    print(f"{label}{case.row()}", flush=True)
    return case


def compare_layers(a, peer):
    experts, top_k, hidden, intermediate = a.shape
    print(f"MoE layer, {experts} experts, top-{top_k}, hidden {hidden}, intermediate {intermediate}, beside vLLM's fused_experts_cpu")
    print(f"{'scheme':>7}{'group':>6}{'tokens':>7}{'thr':>4}{HEAD}")
    for scheme in a.schemes:
        for group in a.groups if scheme == "w4a8" else [-1]:
            for tokens in a.tokens:
                for threads in a.threads:
                    case = compare(a, peer, f"{scheme:>7}{group:>6}{tokens:>7}{threads:>4}",
                                   {"operator": "vllm_x86_moe", "scheme": scheme, "experts": experts, "top_k": top_k, "hidden": hidden,
                                    "intermediate": intermediate, "group": group, "tokens": tokens, "threads": threads},
                                   ["moe", "--scheme", scheme, f"--group={group}", "--experts", experts, "--top-k", top_k, "--hidden", hidden,
                                    "--intermediate", intermediate, "--tokens", tokens, "--threads", threads])
    return case


def compare_linears(a, peer):
    print(f"linear layer, {a.n} x {a.k}, beside torch's bf16 linear")
    print(f"{'scheme':>9}{'tokens':>7}{'thr':>4}{HEAD}")
    for scheme in a.linear:
        for tokens in a.tokens:
            for threads in a.threads:
                case = compare(a, peer, f"{scheme:>9}{tokens:>7}{threads:>4}",
                               {"operator": "torch_bf16", "n": a.n, "k": a.k, "tokens": tokens, "threads": threads},
                               ["linear", "--scheme", scheme, "--n", a.n, "--k", a.k, "--tokens", tokens, "--threads", threads])
    return case


def main():
    names = lambda text: text.split(",")
    parser = parser_for(__doc__)
    parser.add_argument("--shape", type=numbers, default=[128, 8, 2048, 768], help="experts, top-k, hidden, intermediate")
    parser.add_argument("--schemes", type=names, default=["w4a8"], help="w4a8, w8a8")
    parser.add_argument("--groups", type=numbers, default=[128, 32], help="write --groups=-1,... when the first is negative")
    parser.add_argument("--tokens", type=numbers, default=[1, 8, 32, 128, 512, 2048])
    parser.add_argument("--linear", type=names, help="compare linears of these schemes instead of layers")
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--k", type=int, default=4096)
    a = parser.parse_args()
    peer = Peer(ready_peer(a.peer, "--operators"), "peer_operators.py")
    case = compare_linears(a, peer) if a.linear else compare_layers(a, peer)
    print_machine(case.ours[0])


if __name__ == "__main__":
    main()
