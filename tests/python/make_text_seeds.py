# SPDX-License-Identifier: Apache-2.0
"""Writes seeds for the fuzz targets of src/text: tiny tokenizers of every style, template snippets, byte streams.

  python tests/python/make_text_seeds.py      writes build/data/fuzz/corpus/{tokenizer,chat_template,text_stream}/
"""
import json, pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2] / "build/data"
CORPUS = ROOT / "fuzz/corpus"


def shrink(d, keep):
    """The first tokens and the merges among them."""
    if "merges" not in d["model"]:  # words or scores
        if isinstance(d["model"]["vocab"], dict):
            keep = dict(sorted(d["model"]["vocab"].items(), key=lambda kv: kv[1])[:keep])
            d["model"]["vocab"] = keep
        else:
            d["model"]["vocab"] = d["model"]["vocab"][:keep // 2] + d["model"]["vocab"][-keep:]
        return d
    vocab = sorted(d["model"]["vocab"].items(), key=lambda kv: kv[1])
    ids = {name: i for i, (name, _) in enumerate(vocab[:keep])}
    merges = []
    for m in d["model"]["merges"]:
        a, b = m if isinstance(m, list) else m.split(" ")
        if a in ids and b in ids and a + b in ids:
            merges.append(m)
    d["model"]["vocab"], d["model"]["merges"] = ids, merges
    old = {t["id"]: t["content"] for t in d["added_tokens"]}
    for n, t in enumerate(d["added_tokens"]):
        t["id"] = ids.get(t["content"], keep + n)
    new = {t["content"]: t["id"] for t in d["added_tokens"]}
    post = d.get("post_processor") or {}
    for entry in post.get("special_tokens", {}).values():
        entry["ids"] = [new[old[i]] for i in entry["ids"]]
    return d


def main():
    for name in ("tokenizer", "chat_template", "text_stream"):
        (CORPUS / name).mkdir(parents=True, exist_ok=True)
    texts = [b"Hello world's 123 <|im_start|>", "naïve café 世界 e\u0301".encode(), b"\xff\xfe bytes <s> </s>", b"  spaces\n\n\tand\r\n", "<0xE4>▁x <mask> WORD".encode()]
    for i, path in enumerate(sorted((ROOT / "golden-text/tokenizers").glob("*.json"))):
        if path.name.endswith(".golden.json") or path.name == "pools.json":
            continue
        d = json.loads(path.read_text())
        keep = 300 if d["model"].get("byte_fallback") else 90
        text = json.dumps(shrink(d, keep), ensure_ascii=False, separators=(",", ":")).encode()
        (CORPUS / "tokenizer" / (path.stem + ".bin")).write_bytes(text + b"\0" + texts[i % len(texts)])
    for path in sorted((ROOT / "golden-text/templates").glob("*.jinja")):
        (CORPUS / "chat_template" / (path.stem + ".bin")).write_bytes(path.read_bytes())
    cases = json.loads((ROOT / "golden-text/templates/random.json").read_text())["cases"]
    for i in range(0, len(cases), 25):
        (CORPUS / "chat_template" / f"random_{i:04}.bin").write_bytes(cases[i][0].encode())
    streams = {"text": "plain text</s>more".encode(), "emoji": "😀👨‍👩‍👧é世".encode(), "cut": "世界".encode()[:5], "broken": b"\xf0\x9f\x98A\xe4\xbdB\xc3\xff\xed\xa0\x80", "overlong": b"\xc0\x80\xe0\x80\x80\xf4\x90\x80\x80", "stop": b"abab</</s"}
    for name, data in streams.items():
        (CORPUS / "text_stream" / (name + ".bin")).write_bytes(data)


if __name__ == "__main__":
    main()
