#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Our tokenizer beside Hugging Face's tokenizers, alternately, in one run, one thread each.

    bench/compare_tokenizers.py [--tokenizers FILE_OR_FOLDER ...] [--texts FILE ...] [--rounds 3]

Needs a Python with the tokenizers package, and MOEBIUS_LIBRARY (the built libmoebius.so). Without arguments: the bundled model's tokenizer and the trained styles of
build/data/golden-text, on the held-out English text and on mixed text (code, many scripts, emoji). Both sides encode the text as
one document and line by line, with their caches warm. ratio = their time / our time, best of each side's repetitions.
"""
import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
ROOT = Path(__file__).resolve().parent.parent
STYLES = ("qwen2", "qwen35", "olmoe", "mixtral", "gptoss", "glm", "deepseek", "granite", "kimi", "gemma")


def mixed_text(folder):
    sys.path.insert(0, str(ROOT / "tests/python"))
    import text_pools
    pools = text_pools.pools()
    lines = (text_pools.mixed_line(pools, 6, i).decode(errors="replace").replace("\n", " ") for i in range(12000))
    path = folder / "mixed.txt"
    path.write_text("\n".join(lines))
    return path


def fastest(encode):
    """Seconds of the fastest of three calls, and what the last one returned."""
    best, tokens = None, 0
    for _ in range(3):
        start = time.perf_counter()
        tokens = encode()
        took = time.perf_counter() - start
        best = took if best is None else min(best, took)
    return best, tokens


def theirs(tokenizer, parts):
    return fastest(lambda: len(tokenizer.encode(parts[0]).ids) if len(parts) == 1 else sum(len(e.ids) for e in tokenizer.encode_batch(parts)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizers", type=Path, nargs="*")
    parser.add_argument("--texts", type=Path, nargs="*")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT / "python"))
    import moebius
    from tokenizers import Tokenizer, __version__
    print(f"tokenizers {__version__}, one thread each; MB/s of UTF-8, best of {3 * args.rounds}")
    print(f"{'tokenizer':<20}{'text':<12}{'as':<10}{'ours':>9}{'theirs':>9}{'ratio':>8}")
    worst = None
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        texts = args.texts or [ROOT / "models/eval/val.txt", mixed_text(work)]
        sources = args.tokenizers or [ROOT / "models/moebius-tiny-w4a8"] + [ROOT / f"build/data/golden-text/tokenizers/{s}.json" for s in STYLES]
        for source in sources:
            file = source / "tokenizer.json" if source.is_dir() else source
            folder = work / f"{file.parent.name}-{file.stem}"
            folder.mkdir()
            shutil.copy(file, folder / "tokenizer.json")
            tokenizer = Tokenizer.from_file(str(file))
            ours = moebius.Tokenizer(folder)
            for text in texts:
                content = text.read_bytes().decode()
                for kind in ("document", "lines"):
                    parts = [content] if kind == "document" else content.removesuffix("\n").split("\n")
                    mine, other = [], []
                    for _ in range(args.rounds):
                        took, found = fastest(lambda: sum(len(ours.encode(p)) for p in parts))
                        mine.append(took)
                        best, tokens = theirs(tokenizer, parts)
                        other.append(best)
                        if tokens != found:
                            sys.exit(f"{source}, {text}: {found} tokens, theirs {tokens}")
                    size = len(content.encode()) / 1e6
                    ratio = min(other) / min(mine)
                    worst = ratio if worst is None else min(worst, ratio)
                    name = source.name if source.is_dir() else source.stem
                    print(f"{name:<20}{text.stem:<12}{kind:<10}{size / min(mine):>9.1f}{size / min(other):>9.1f}{ratio:>8.2f}", flush=True)
    print(f"smallest ratio {worst:.2f}")


if __name__ == "__main__":
    main()
