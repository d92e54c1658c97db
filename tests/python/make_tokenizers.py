# SPDX-License-Identifier: Apache-2.0
"""Trains small tokenizers of every published style with the tokenizers library and stores what it gives for mixed text.

  python tests/python/make_tokenizers.py [STYLE ...]      writes build/data/golden-text/tokenizers/

Checked with tokenizers 0.23.3. Per style: STYLE.json (the tokenizer), STYLE.golden.json (a CRC-32 of all ids per block of 1000
lines, of all decoded text, of decoded random ids; full ids of some lines).
"""
import json, os, pathlib, sys, zlib
from array import array

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import text_pools  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "build/data/golden-text/tokenizers"
LINES, BLOCK, SEED, TRAIN_SEED = 100_000, 1000, 1, 77
SHORT_LINES = 5_000  # of styles that no published family uses
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
QWEN2 = SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
QWEN35 = SHORT + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + TAIL
GLM = SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
O200K = (r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + SHORT + r"?|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*" + SHORT +
         r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + TAIL)
HAN_UPPER, HAN_LOWER = UPPER[:-1] + r"&&[^\p{Han}]]", LOWER[:-1] + r"&&[^\p{Han}]]"
KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?" + HAN_UPPER + "*" + HAN_LOWER + "+" + SHORT + r"?|[^\r\n\p{L}\p{N}]?" + HAN_UPPER + "+" + HAN_LOWER + "*" +
        SHORT + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL)
# Tekken, as Nemotron-H has it: capitals begin a word, every digit by itself.
TEKKEN = (r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + r"+|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + r"*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + TAIL)
DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|""" + TAIL)
CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def byte_level(*splits, use_regex=False, prefix=False):
    last = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=use_regex)
    return pre_tokenizers.Sequence([*splits, last]) if splits else last


def special(text, **kw):
    return AddedToken(text, special=True, normalized=kw.pop("normalized", False), **kw)


def plain(text, **kw):
    return AddedToken(text, special=False, **kw)


CHAT = [special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>"), plain("<think>", normalized=False), plain("</think>", normalized=False),
        plain("<tool_call>", normalized=False)]
HARMONY = [special("<|start|>"), special("<|end|>"), special("<|message|>"), special("<|channel|>"), special("<|endoftext|>")]


def train_byte(corpus, pre, normalizer, added, vocab=2000, **model):
    t = Tokenizer(models.BPE(**model))
    t.normalizer = normalizer
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    t.train_from_iterator(corpus, trainer)
    t.add_tokens(added)
    return json.loads(t.to_str())


def train_sentencepiece(corpus, vocab=2000, unk="<unk>", fallback=True, specials=("<unk>", "<s>", "</s>"), limit_alphabet=400, gemma=False):
    """Vocabulary in SentencePiece order: specials, bytes, then tokens; no pre-tokenizer."""
    t = Tokenizer(models.BPE(unk_token=unk))
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split(Regex("▁+[^▁]*|[^▁]+"), "isolated")
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=vocab, limit_alphabet=limit_alphabet, special_tokens=[unk], show_progress=False))
    d = json.loads(t.to_str())
    tokens = [k for k, _ in sorted(d["model"]["vocab"].items(), key=lambda kv: kv[1]) if k != unk]
    names = list(specials) + ([f"<0x{b:02X}>" for b in range(256)] if fallback else []) + [k for k in tokens if k not in specials]
    d["model"]["vocab"] = {k: i for i, k in enumerate(dict.fromkeys(names))}
    d["model"].update(byte_fallback=fallback, fuse_unk=True, unk_token=unk)
    d["pre_tokenizer"] = None
    d["added_tokens"] = [{"id": d["model"]["vocab"][s], "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for s in specials]
    prepend = [{"type": "Prepend", "prepend": "▁"}] if not gemma else []
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    d["normalizer"] = {"type": "Sequence", "normalizers": prepend + [replace]} if prepend else replace
    back = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if not gemma:
        back.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    d["decoder"] = {"type": "Sequence", "decoders": back}
    bos = specials[1] if not gemma else "<bos>"
    d["post_processor"] = template(bos, d["model"]["vocab"][bos])
    return d


def template(bos, ident):
    return {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {bos: {"id": bos, "ids": [ident], "tokens": [bos]}}}


def old_merges(d):
    d["model"]["merges"] = [" ".join(m) for m in d["model"]["merges"]]
    return d


def odd_words(corpus):
    """Everything published models do not use: other pre-tokenizers, other normalizers, unknown tokens that fuse."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(Regex("[0-9]{2}"), "##"), normalizers.Strip()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation("merged_with_previous"), pre_tokenizers.Digits(individual_digits=False)])
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=900, limit_alphabet=200, special_tokens=["<unk>"], show_progress=False))
    t.add_tokens([plain("WORD", single_word=True), plain("naïve", normalized=True), special("<mask>", lstrip=True), special("<pad>", rstrip=True), plain("strip me", lstrip=True, rstrip=True)])
    return json.loads(t.to_str())  # no decoder: tokens joined with spaces


def odd_splits(corpus, behavior, invert):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False))
    t.normalizer = normalizers.NFD()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"[\p{P}\s]|(?=[A-Z])"), behavior, invert), pre_tokenizers.Split("e", "merged_with_next")])
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=600, limit_alphabet=150, special_tokens=["<unk>"], show_progress=False))
    t.add_tokens([plain("  ", normalized=True), plain("    ", normalized=True), special("<unk>")])
    t.decoder = decoders.Fuse()
    return json.loads(t.to_str())


def metaspace(corpus, scheme, do_split):
    d = train_sentencepiece(corpus, vocab=1200, fallback=False)
    d["normalizer"] = {"type": "NFKC"}
    d["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": do_split}
    d["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": do_split}
    return d


def word_level(corpus, pre, decoder, limit=700):
    t = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    t.pre_tokenizer = pre
    t.decoder = decoder
    t.train_from_iterator(corpus, trainers.WordLevelTrainer(vocab_size=limit, special_tokens=["[UNK]", "<s>"], show_progress=False))
    return json.loads(t.to_str())


def unigram(corpus, pre, fallback=False):
    """Trained with words cut at spaces; without `pre` the model then sees whole lines. Other scripts than Latin and Greek stay unknown."""
    corpus = ["".join(c for c in line if 32 <= ord(c) < 0x400) for line in corpus]
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" ", "▁")])
    t.pre_tokenizer = pre_tokenizers.Split(Regex("▁+[^▁]*|[^▁]+"), "isolated")
    t.train_from_iterator(corpus, trainers.UnigramTrainer(vocab_size=900, unk_token="<unk>", special_tokens=["<unk>", "<s>"], max_piece_length=12, show_progress=False))
    d = json.loads(t.to_str())
    # The library's reader of JSON is off by one ulp for some long numbers, which decides between cuts of equal score: multiples of 1/1024 are read
    # exactly, and so are their sums.
    vocab = [[token, round(score * 1024) / 1024] for token, score in d["model"]["vocab"]]
    if fallback:  # bytes are less likely than any token
        lowest = min(s for _, s in vocab)
        vocab += [[f"<0x{b:02X}>", lowest - 1] for b in range(256)]
    d["model"].update(vocab=vocab, byte_fallback=fallback)
    if pre is None:
        d["pre_tokenizer"] = None
        d["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    else:
        d["normalizer"] = {"type": "NFKC"}
        d["pre_tokenizer"] = d["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": pre, "split": True}
    return d


def precompiled(corpus):
    """A map made by SentencePiece from rules of our own (pip install sentencepiece protobuf)."""
    import base64, io, tempfile
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    rules = {"\u00a0": " ", "\u3000": " ", "\t": " ", "\u200b": "", "\ufb01": "fi", "\ufb02": "fl", "\u00bd": "1/2", "\u2026": "...", "\u2122": "TM", "\u00b2": "2",
             "\u212b": "\u00c5", "e\u0301": "\u00e9", "a\u0308": "\u00e4", "n\u0303": "\u00f1", "\u1100\u1161": "\uac00", "\u0915\u093c": "\u0958", "\u2764\ufe0f": "heart"}
    rules.update({chr(0xff01 + i): chr(0x21 + i) for i in range(94)})
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as f:
        f.writelines(" ".join(f"{ord(c):X}" for c in k) + "\t" + " ".join(f"{ord(c):X}" for c in v) + "\n" for k, v in rules.items())
        f.flush()
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(f"the quick brown fox jumps over the lazy dog {i}" for i in range(200)), model_writer=model,
                                                 vocab_size=60, normalization_rule_tsv=f.name, minloglevel=2)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    d = unigram(corpus, "always")
    charsmap = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()
    collapse = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    d["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": charsmap}, collapse]}
    return d


def neox(corpus):
    spaces = [plain(" " * n, normalized=True) for n in range(2, 9)]
    d = train_byte(corpus, byte_level(use_regex=True), normalizers.NFC(), [special("<|endoftext|>"), *spaces])
    return old_merges(d)


def deepseek(corpus):
    bos = "<｜begin▁of▁sentence｜>"
    d = train_byte(corpus, byte_level(split(r"\p{N}{1,3}"), split(CJK), split(DEEPSEEK)), None, [special(bos), special("<|endoftext|>"), *CHAT[3:]])
    ident = next(t["id"] for t in d["added_tokens"] if t["content"] == bos)
    d["post_processor"] = template(bos, ident)
    return d


def begun(d, bos):
    """Every text begins with a token."""
    d["post_processor"] = template(bos, next(t["id"] for t in d["added_tokens"] if t["content"] == bos))
    return d


def gemma(corpus):
    return train_sentencepiece(corpus, specials=("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"), gemma=True)


def ignoring(d):
    d["model"]["ignore_merges"] = True
    words = ["Moebius", "Ġcheckpoint", "antidisestablishmentarianism", "ĠHello", "Ġ123"]
    top = max(d["model"]["vocab"].values())
    # Tokens no merge reaches: only a look at the whole piece finds them. They get ids after everything else.
    top = max([top] + [t["id"] for t in d["added_tokens"]])
    for w in words:
        if w not in d["model"]["vocab"]:
            top += 1
            d["model"]["vocab"][w] = top
    return d


STYLES = {
    "qwen2": lambda c: train_byte(c, byte_level(split(QWEN2)), normalizers.NFC(), CHAT),
    "qwen35": lambda c: train_byte(c, byte_level(split(QWEN35)), normalizers.NFC(), CHAT),
    "olmoe": neox,
    "mixtral": lambda c: train_sentencepiece(c),
    "gptoss": lambda c: train_byte(c, byte_level(split(O200K)), None, HARMONY),
    "glm": lambda c: train_byte(c, byte_level(split(GLM)), None, CHAT),
    "glm_ignore_merges": lambda c: ignoring(train_byte(c, byte_level(split(GLM)), None, [])),
    "deepseek": deepseek,
    "granite": lambda c: train_byte(c, byte_level(pre_tokenizers.Digits(individual_digits=True), use_regex=True), None, CHAT),
    "kimi": lambda c: train_byte(c, byte_level(split(KIMI)), None, CHAT),
    "gemma": gemma,
    "nemotron": lambda c: begun(train_byte(c, byte_level(split(TEKKEN)), None, [special("<s>"), *(special(f"<SPECIAL_{i}>") for i in range(10, 13)), *CHAT[3:]]), "<s>"),
    "lfm2": lambda c: begun(train_byte(c, byte_level(split(GLM)), None, [special("<|startoftext|>"), special("<|tool_list_start|>"), *CHAT]), "<|startoftext|>"),
}
ODD_STYLES = {
    "prefix_space": lambda c: train_byte(c, byte_level(use_regex=True, prefix=True), None, [special("<mask>", lstrip=True), special("<s>", normalized=True)], vocab=600),
    "odd_words": odd_words,
    "odd_isolated": lambda c: odd_splits(c, "isolated", False),
    "odd_removed": lambda c: odd_splits(c, "removed", False),
    "odd_removed_inverted": lambda c: odd_splits(c, "removed", True),
    "odd_contiguous": lambda c: odd_splits(c, "contiguous", False),
    "odd_previous": lambda c: odd_splits(c, "merged_with_previous", False),
    "odd_next": lambda c: odd_splits(c, "merged_with_next", True),
    "metaspace_first": lambda c: metaspace(c, "first", True),
    "metaspace_always": lambda c: metaspace(c, "always", False),
    "metaspace_never": lambda c: metaspace(c, "never", True),
    "word_level": lambda c: word_level(c, pre_tokenizers.Whitespace(), None),
    "word_level_bytes": lambda c: word_level(c, byte_level(use_regex=True), decoders.ByteLevel()),
    "unigram_always": lambda c: unigram(c, "always"),
    "unigram_first_fallback": lambda c: unigram(c, "first", True),
    "unigram_precompiled": precompiled,
    "unigram_whole": lambda c: unigram(c, None),
    "unigram_whole_fallback": lambda c: unigram(c, None, True),
}


def golden(name, t, lines):
    # The library's punctuation table is older than some scripts beyond the first plane.
    bmp = name == "odd_words"
    if bmp:
        lines = [line if not line or max(map(ord, line)) < 0x10000 else "" for line in lines]
    size = max(t.get_vocab(with_added_tokens=True).values()) + 1
    out = {**({"bmp": True} if bmp else {}), "lines": len(lines), "seed": SEED, "block": BLOCK, "ids": [], "text": [], "plain_text": [], "random_text": [], "samples": []}
    for start in range(0, len(lines), BLOCK):
        block = lines[start:start + BLOCK]
        ids = [e.ids for e in t.encode_batch(block, add_special_tokens=True)]
        crc_ids = crc_text = crc_plain = crc_random = 0
        for i in ids:
            crc_ids = zlib.crc32(array("i", i + [-1]).tobytes(), crc_ids)
        for text in t.decode_batch(ids, skip_special_tokens=False):
            crc_text = zlib.crc32(text.encode() + b"\n", crc_text)
        for text in t.decode_batch(ids, skip_special_tokens=True):
            crc_plain = zlib.crc32(text.encode() + b"\n", crc_plain)
        rng = text_pools.Rng(start)
        lists = [[rng.next(size) for _ in range(1 + rng.next(30))] for _ in range(20)]
        for text in t.decode_batch(lists, skip_special_tokens=False):
            crc_random = zlib.crc32(text.encode() + b"\n", crc_random)
        out["ids"].append(crc_ids)
        out["text"].append(crc_text)
        out["plain_text"].append(crc_plain)
        out["random_text"].append(crc_random)
        for k in (0, 501):
            out["samples"].append([start + k, ids[k]])
    (OUT / f"{name}.golden.json").write_text(json.dumps(out, separators=(",", ":")) + "\n")


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    pools = text_pools.pools()
    (OUT / "pools.json").write_text(json.dumps(pools, separators=(",", ":")) + "\n")
    wanted = sys.argv[1:] or [*STYLES, *ODD_STYLES, "bundled"]
    corpus = [text_pools.mixed_line(pools, TRAIN_SEED, i).decode(errors="replace") for i in range(8000)]
    lines = [text_pools.mixed_line(pools, SEED, i).decode(errors="replace") for i in range(LINES)]
    for name in wanted:
        if name == "bundled":
            t = Tokenizer.from_file(str(ROOT / "models/moebius-tiny-w4a8/tokenizer.json"))
        else:
            d = {**STYLES, **ODD_STYLES}[name](corpus)
            text = json.dumps(d, ensure_ascii=False, separators=(",", ":"))
            (OUT / f"{name}.json").write_text(text + "\n")
            t = Tokenizer.from_str(text)
        golden(name, t, lines if name not in ODD_STYLES else lines[:SHORT_LINES])
        print(name, "done", flush=True)


if __name__ == "__main__":
    main()
