#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Our dense W4A8 linear beside torch's own int4 linear (_dyn_quant_matmul_4bit), alternately, in one run.

    bench/compare_torch.py PEER_FOLDER [--shapes 4096x2048,2048x4096] [--groups -1,128,64,32] [--tokens 1,32,512] [--threads 1,2]

ratio = torch's time / our time, the median over the rounds; spread = its smallest and largest value. Both sides take and give f32
rows (what torch's operator takes for every group size) and use many matrices in turn, so that none stays in a cache.
"""
from compare import HEAD, Peer, numbers, ours, parser_for, print_machine, ready_peer, run_rounds


def main():
    parser = parser_for(__doc__)
    parser.add_argument("--shapes", default="4096x2048,2048x4096", help="outputs x inputs")
    parser.add_argument("--groups", type=numbers, default=[-1, 128, 64, 32], help="write --groups=-1,... when the first is negative")
    parser.add_argument("--tokens", type=numbers, default=[1, 32, 512])
    a = parser.parse_args()
    peer = Peer(ready_peer(a.peer), "peer_operators.py")
    print(f"{'n':>6}{'k':>6}{'group':>6}{'tokens':>7}{'thr':>4}{HEAD}")
    for shape in a.shapes.split(","):
        n, k = (int(v) for v in shape.split("x"))
        for group in a.groups:
            for tokens in a.tokens:
                for threads in a.threads:
                    request = {"operator": "torch_linear", "n": n, "k": k, "group": group, "tokens": tokens, "threads": threads, "seconds": a.seconds}
                    arguments = ["linear", "--scheme", "w4a8", f"--group={group}", "--n", n, "--k", k, "--tokens", tokens, "--threads", threads,
                                 "--seconds", a.seconds, "--dtype", "f32"]
                    case = run_rounds(a.rounds, lambda: ours(a.tool, arguments)[0], lambda: {**request, **peer.measure(request)}, a.out)
                    print(f"{n:>6}{k:>6}{group:>6}{tokens:>7}{threads:>4}{case.row()}", flush=True)
    print_machine(case.ours[0])


if __name__ == "__main__":
    main()
