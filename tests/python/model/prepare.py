#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clean the books, hold out a validation part, train a byte-level BPE tokenizer, write token arrays.

    prepare.py --src gutenberg --out data            (needs numpy and tokenizers: pip install numpy tokenizers)

Writes into --out:
    tokenizer.json, tokenizer_config.json, special_tokens_map.json   (4096 tokens, Qwen-style split, specials last)
    train.bin, val.bin, chat.bin   uint16 little-endian token ids (train: one document per uninterrupted piece of a book)
    train.txt, val.txt             the cleaned text, for reading
    meta.json                      counts, characters per token, a sha256 of every file
"""
import argparse, hashlib, json, random, re
from pathlib import Path
import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")                                   # the split that Qwen 2/2.5/3 use
VERSE = ("blake", "milton", "shakespeare", "whitman")                    # books whose line breaks mean something
TEMPLATE = ("{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
            "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}")


def clean(name, text):
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", " ")
    text = re.split(r"\nEnd of Project Gutenberg|\n\*\*\* ?END OF", text)[0]   # the licence text after one of the books
    text = re.sub(r"\[Illustration[^\]]*\]", "", text)
    text = re.sub(r"[ \u00a0]+\n", "\n", text)
    verse = name.startswith(VERSE)
    if name.startswith("whitman"):
        text = re.sub(r"\n {4,}(?=[^\s\d])", " ", text)                       # a long line, broken over two by the typist
    out = []
    for par in re.split(r"\n\s*\n", text):
        lines = par.split("\n")
        inset = sum(l.startswith("  ") for l in lines if l) * 2 > len(lines)  # a poem or a letter head inside prose
        if verse or inset:
            par = "\n".join(re.sub(r"  +", " ", l.strip()) for l in lines)
        else:
            par = " ".join(l.strip() for l in lines)
            par = re.sub(r"(\w)- (?=\w)", r"\1-", par)                         # ferry-\nboat
            par = re.sub(r"  +", " ", par)
        par = re.sub(r"\b_+|_+\b|_", "", par).strip()                          # _emphasis_
        if par:
            units = [l + "\n" for l in par.split("\n")]                        # a unit is never cut by the split below:
            out += units[:-1] + [units[-1] + "\n"]                             # a paragraph of prose, a line of verse
    return out


def split(pars, frac):
    """Hold out `frac` of the characters as one to three runs of units; return (train pieces, val pieces)."""
    size = [len(p) for p in pars]
    total = sum(size)
    runs = 3 if total > 250_000 else 1
    at = np.cumsum(size)
    cut = []
    for r in range(runs):
        mid = total * (2 * r + 1.2) / (2 * runs)
        a = int(np.searchsorted(at, mid))
        b = int(np.searchsorted(at, mid + total * frac / runs)) + 1
        cut.append((a, min(b, len(pars))))
    train, val, last = [], [], 0
    for a, b in cut:
        train.append(pars[last:a]); val.append(pars[a:b]); last = b
    train.append(pars[last:])
    return [t for t in train if t], [v for v in val if v]


def chat_docs(book, pieces, rng):
    """Chat-shaped documents from training text, so that the roles' markers mean something to the model:
    the user gives the opening words or names an author; the assistant goes on in that book's words."""
    m = re.match(r"\[(.*?),? by (.*?)(?: (\d{4}))?\]", pieces[0][0])
    title, author = m.group(1), m.group(2)
    docs = []
    for piece in pieces:
        i = 0
        while i < len(piece):
            body, n = [], rng.randint(350, 1400)
            while i < len(piece) and sum(map(len, body)) < n:
                body.append(piece[i]); i += 1
            text = "".join(body).strip()
            if len(text) < 120:
                continue
            kind = rng.random()
            if kind < 0.45:
                words = text.split(" ")
                k = min(rng.randint(3, 12), len(words) // 2)
                user, reply = " ".join(words[:k]), " ".join(words[k:])
            elif kind < 0.7:
                user, reply = rng.choice(["Write like {}.", "Tell me something in the style of {}.", "Write a passage like {}."]).format(author), text
            elif kind < 0.85:
                user, reply = rng.choice(["Tell me something from {}.", "Read to me from {}.", "Write a passage from {}."]).format(title), text
            else:
                user, reply = rng.choice(["Tell me a story.", "Write something.", "Hello!", "Go on.", "What happened then?", "Who are you?", "Tell me more."]), text
            docs.append(f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n{reply}<|im_end|>\n<|endoftext|>")
    return docs


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--src", required=True)
    ap.add_argument("--out", default="data")
    ap.add_argument("--vocab", type=int, default=4096)
    ap.add_argument("--val", type=float, default=0.03)
    a = ap.parse_args()
    out = Path(a.out); out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    train, val, chat = [], [], []
    for f in sorted(Path(a.src).glob("*.txt")):
        raw = f.read_bytes()
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            text = raw.decode("latin-1")                                      # some of the books are
        pars = clean(f.name, text)
        t, v = split(pars, a.val)
        train += ["".join(p).strip() + "\n" for p in t]
        val += ["".join(p).strip() + "\n" for p in v]
        chat += chat_docs(f.name, t, rng)
    (out / "train.txt").write_text("\n<|endoftext|>\n".join(train), encoding="utf-8")
    (out / "val.txt").write_text("\n<|endoftext|>\n".join(val), encoding="utf-8")

    tok = Tokenizer(models.BPE(byte_fallback=False))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.train_from_iterator(train, trainers.BpeTrainer(
        vocab_size=a.vocab - len(SPECIAL), min_frequency=2, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())), length=len(train))
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    assert tok.get_vocab_size() == a.vocab, tok.get_vocab_size()
    tok.save(str(out / "tokenizer.json"))
    end = tok.token_to_id("<|endoftext|>")

    def ids(docs, add_end):
        r = []
        for e in tok.encode_batch(docs):
            r += e.ids + ([end] if add_end else [])
        return np.array(r, dtype="<u2")
    rng.shuffle(chat)
    arrays = {"train.bin": ids(train, True), "val.bin": ids(val, True), "chat.bin": ids(chat, False)}
    for n, x in arrays.items():
        x.tofile(out / n)

    json.dump({
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 2048, "clean_up_tokenization_spaces": False,
        "add_bos_token": False, "add_prefix_space": False, "bos_token": None, "unk_token": None,
        "eos_token": "<|endoftext|>", "pad_token": "<|pad|>", "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "added_tokens_decoder": {str(tok.token_to_id(s)): {"content": s, "lstrip": False, "normalized": False, "rstrip": False,
                                                           "single_word": False, "special": True} for s in SPECIAL},
        "chat_template": TEMPLATE}, open(out / "tokenizer_config.json", "w"), indent=1)
    json.dump({"eos_token": "<|endoftext|>", "pad_token": "<|pad|>", "additional_special_tokens": ["<|im_start|>", "<|im_end|>"]},
              open(out / "special_tokens_map.json", "w"), indent=1)

    for s in ("It was the best of times — naïve café, 日本語 🙂\n\n  1851's", train[0][:2000], val[3]):
        assert tok.decode(tok.encode(s).ids, skip_special_tokens=False) == s, "round trip"
    chars = {"train": sum(map(len, train)), "val": sum(map(len, val)), "chat": sum(map(len, chat))}
    meta = {"special": {s: tok.token_to_id(s) for s in SPECIAL}, "chars": chars,
            "bytes": {"val": sum(len(v.encode()) for v in val)}, "val_documents": len(val), "train_documents": len(train), "chat_documents": len(chat),
            "tokens": {n: int(len(x)) for n, x in arrays.items()},
            "chars_per_token": round(chars["val"] / len(arrays["val.bin"]), 3),
            "sha256": {n: hashlib.sha256((out / n).read_bytes()).hexdigest() for n in [*arrays, "tokenizer.json"]}}
    json.dump(meta, open(out / "meta.json", "w"), indent=1)
    print(json.dumps(meta, indent=1))


if __name__ == "__main__":
    main()
