#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bundled model with the vocabulary of a large one: what masks and sampling cost there.

    bench/wide_vocabulary.py FOLDER [--tokens 151936]
    build/release/moebius bench mask FOLDER
    build/release/moebius bench engine FOLDER --constrained --requests 8 --rate 1000 --prompt-tokens 16 --new-tokens 96 --rounds 7 \
        --parallel 1 --threads 1

New tokens are what the splitting rule of GPT-4's and Qwen's tokenizers leaves together: letters with a space or one mark before them, runs of
marks with a space before and line feeds behind them, runs of spaces; words are made of syllables. Their rows of the token table are those of
tokens there are, a little changed. They have no merges, so no text is encoded with them; grammars see them as they see all others. Needs
nothing beside Python.
"""
import argparse
import json
import random
import struct
from pathlib import Path

BUNDLED = Path(__file__).resolve().parent.parent / "models/moebius-tiny-w4a8"
TABLE = "model.embed_tokens.weight"
SYLLABLES = [c + v + e for c in "bcdfghjklmnprstvwz" for v in "aeiou" for e in ("", "n", "r", "s", "l", "t")]
MARKS = list("{}[]\":,.;=<>()/_-#*'|\\")


def byte_names():
    """The letters that byte-level tokenizers write bytes as."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {b: chr(b) for b in plain}
    for i, b in enumerate(b for b in range(256) if b not in names):
        names[b] = chr(256 + i)
    return names


def words(rng):
    while True:
        kind = rng.random()
        if kind < 0.04:
            yield rng.choice(["", " "]) + "".join(rng.choice(MARKS) for _ in range(rng.randint(2, 4))) + rng.choice(["", "", "\n"])
        elif kind < 0.05:
            yield rng.choice([" ", "\t", "\n"]) * rng.randint(2, 60) + rng.choice(["", "\n"])
        elif kind < 0.18:
            yield "".join(chr(rng.randint(0x4E00, 0x9FA5)) for _ in range(rng.randint(1, 3)))
        else:
            word = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 4)))
            word = rng.choice([word, word, word.capitalize(), word.upper()])
            yield (rng.choice(MARKS) if rng.random() < 0.1 else rng.choice(["", " "])) + word


def widen_tokenizer(folder, tokens):
    tokenizer = json.loads((BUNDLED / "tokenizer.json").read_text())
    vocab, names, rng = tokenizer["model"]["vocab"], byte_names(), random.Random(1)
    taken = set(vocab) | {t["content"] for t in tokenizer["added_tokens"]}
    at = max(max(vocab.values()), max(t["id"] for t in tokenizer["added_tokens"])) + 1
    for word in words(rng):
        if at == tokens:
            break
        token = "".join(names[b] for b in word.encode())
        if token not in taken:
            taken.add(token)
            vocab[token] = at
            at += 1
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def widen_table(folder, tokens):
    source = (BUNDLED / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", source[:8])[0]
    header, data = json.loads(source[8:8 + size]), source[8 + size:]
    rows, width = header[TABLE]["shape"]
    begin, end = header[TABLE]["data_offsets"]
    table, rng = data[begin:end], random.Random(2)
    wide = bytearray(table)
    for _ in range(tokens - rows):
        at = 2 * width * rng.randrange(rows)
        row = bytearray(table[at:at + 2 * width])
        for i in rng.sample(range(width), 16):  # other signs
            row[2 * i + 1] ^= 0x80
        wide += row
    out, offset, parts = {"__metadata__": {"format": "pt"}}, 0, []
    for name, t in sorted(header.items(), key=lambda item: item[1].get("data_offsets", [0])[0]):
        if name == "__metadata__":
            continue
        own = bytes(wide) if name == TABLE else data[t["data_offsets"][0]:t["data_offsets"][1]]
        out[name] = {"dtype": t["dtype"], "shape": [tokens, width] if name == TABLE else t["shape"], "data_offsets": [offset, offset + len(own)]}
        offset += len(own)
        parts.append(own)
    text = json.dumps(out).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=151936)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in ("generation_config.json", "tokenizer_config.json"):
        (options.folder / name).write_bytes((BUNDLED / name).read_bytes())
    config = json.loads((BUNDLED / "config.json").read_text())
    config["vocab_size"] = options.tokens
    (options.folder / "config.json").write_text(json.dumps(config, indent=1))
    widen_tokenizer(options.folder, options.tokens)
    widen_table(options.folder, options.tokens)


if __name__ == "__main__":
    main()
