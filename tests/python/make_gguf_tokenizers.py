# SPDX-License-Identifier: Apache-2.0
"""Trains a small SentencePiece model, writes its vocabulary as a GGUF file's metadata and stores the ids that the library gives.

  python tests/python/make_gguf_tokenizers.py      writes build/data/golden-text/gguf/

Checked with sentencepiece 0.2.3 and gguf 0.19.0. Byte-level tokenizers need no data of their own: their test makes metadata of
golden-text/tokenizers.
"""
import io, json, pathlib, sys

import gguf
import sentencepiece

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import text_pools  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "build/data/golden-text/gguf"


def clean(line):
    """The line without what SentencePiece changes by itself: zero bytes, and its own sign for spaces."""
    return line.decode(errors="replace").replace("\0", "").replace("▁", "")


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    pools = text_pools.pools()
    corpus = [part for i in range(6000) for part in clean(text_pools.mixed_line(pools, 77, i)).split("\n") if part]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_writer=model, model_type="bpe", vocab_size=1600, byte_fallback=True, character_coverage=0.98,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=True, split_digits=True, num_threads=1,
        minloglevel=2)
    sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    kinds = []
    for i in range(sp.vocab_size()):
        kinds.append(2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 5 if sp.is_unused(i) else 6 if sp.is_byte(i) else 1)
    writer = gguf.GGUFWriter(OUT / "pieces.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([sp.id_to_piece(i) for i in range(sp.vocab_size())])
    writer.add_token_scores([sp.get_score(i) for i in range(sp.vocab_size())])
    writer.add_token_types(kinds)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    lines = [clean(text_pools.mixed_line(pools, 5, i)) for i in range(500)]
    lines = [line for line in lines if line and not any(name in line for name in ("<unk>", "<s>", "</s>"))][:150]
    text = ",\n".join(json.dumps([line, sp.encode(line)], ensure_ascii=False, separators=(",", ":")) for line in lines)
    (OUT / "pieces.json").write_text(f"[{text}]\n")


main()
