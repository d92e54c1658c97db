#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes build/data/golden-embed: tiny random folders that sentence-transformers wrote, and what it answers.

    python -m venv E && E/bin/pip install sentence-transformers==6.2.0 transformers==5.22.2
    E/bin/python tests/python/make_embeddings.py build/data/golden-embed

Folders: `last` (Qwen3, last token, normalized, prompts), `mean` (Qwen3-MoE, mean, no norm, truncation), `dense` (Qwen3, two
modules Dense with a norm between), `head` (Qwen3 with a classification head of one label) and `tokens` (Qwen3 and the logits of two tokens, with a chat
template for pairs). expected.json holds texts and answers; vectors of every way of pooling are of `mean`'s weights.
"""
import json
import pathlib
import shutil
import sys

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification, Qwen3Model,
                          Qwen3MoeConfig, Qwen3MoeModel)

TEXTS = ["It was a dark night.", "the rain fell in torrents", "a", "Ships and shoes and sealing wax; of cabbages and kings.",
         "naïve café 北京 \U0001F680", "one two three four five six seven eight nine ten " * 30]
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
QUERY = "what is the weather like?"
TEMPLATE = ("{%- for m in messages if m.role == 'system' %}<|sys|>{{ m.content }}{% endfor -%}"
            "<|q|>{{ (messages | selectattr('role', 'eq', 'query') | first).content }}"
            "<|d|>{{ (messages | selectattr('role', 'eq', 'document') | first).content }}<|a|>")
SIZES = dict(vocab_size=512, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             head_dim=8, max_position_embeddings=512, rms_norm_eps=1e-6)


def tokenizer():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    special = ["<|end|>", "<|sys|>", "<|q|>", "<|d|>", "<|a|>"]
    t.train_from_iterator(TEXTS + [QUERY], trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False,
                                                               initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<|end|>", pad_token="<|end|>", model_max_length=512)


def save(model, folder):
    """The plain model, with weights that tell rows apart."""
    torch.manual_seed(7)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * (0.2 if p.dim() > 1 else 0.1) + (1.0 if "norm" in name else 0.0))
    model.float().save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def vectors(model, **options):
    return [[float(x) for x in v] for v in model.encode(TEXTS, batch_size=1, convert_to_numpy=True, **options)]


def main():
    out = pathlib.Path(sys.argv[1])
    plain = out / "plain"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    expected = {"texts": TEXTS, "query": QUERY}
    ids = tokenizer()

    save(Qwen3Model(Qwen3Config(**SIZES)), plain)
    t = Transformer(str(plain), max_seq_length=512)
    m = SentenceTransformer(modules=[t, Pooling(32, "lasttoken"), Normalize()], device="cpu",
                            prompts={"query": "Instruct: find it\nQuery: ", "document": ""}, default_prompt_name="document")
    m.save(str(out / "last"))
    expected["last"] = {"plain": vectors(m), "query": vectors(m, prompt_name="query")}
    torch.manual_seed(8)
    m = SentenceTransformer(modules=[t, Pooling(32, "mean"), Dense(32, 48, activation_function=torch.nn.GELU()), Normalize(),
                                     Dense(48, 20, bias=False, activation_function=torch.nn.Tanh(), use_residual=True)], device="cpu")
    m.save(str(out / "dense"))
    expected["dense"] = vectors(m)
    shutil.rmtree(plain)

    save(Qwen3MoeModel(Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, decoder_sparse_step=1,
                                      norm_topk_prob=True)), plain)
    t = Transformer(str(plain), max_seq_length=512)
    expected["pooled"] = {mode: vectors(SentenceTransformer(modules=[t, Pooling(32, mode)], device="cpu")) for mode in MODES}
    expected["pooled"]["cls mean"] = vectors(SentenceTransformer(modules=[t, Pooling(32, ("cls", "mean"))], device="cpu"))
    skipping = SentenceTransformer(modules=[t, Pooling(32, "mean", include_prompt=False)], device="cpu", prompts={"query": "Query: "})
    expected["pooled"]["mean without its prompt"] = vectors(skipping, prompt_name="query")
    m = SentenceTransformer(modules=[t, Pooling(32, "mean")], device="cpu")
    m.save(str(out / "mean"))
    config = json.loads((out / "mean" / "config.json").read_text())
    config["matryoshka_dimensions"] = [8, 16, 32]
    (out / "mean" / "config.json").write_text(json.dumps(config, indent=1))
    expected["truncated 8"] = vectors(m, truncate_dim=8)
    shutil.rmtree(plain)

    pairs = [(QUERY, text) for text in TEXTS]
    save(Qwen3ForSequenceClassification(Qwen3Config(**SIZES, num_labels=1, pad_token_id=ids.pad_token_id)), plain)
    m = CrossEncoder(str(plain), device="cpu", max_length=512)
    expected["head"] = [float(s) for s in m.predict(pairs, batch_size=1)]
    m.save(str(out / "head"))
    shutil.rmtree(plain)

    save(Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=True)), plain)
    named = PreTrainedTokenizerFast.from_pretrained(plain)
    named.chat_template = TEMPLATE
    named.save_pretrained(plain)
    yes, no = 100, 200
    t = Transformer(str(plain), transformer_task="text-generation", max_seq_length=512)
    m = CrossEncoder(modules=[t, LogitScore(yes, no)], device="cpu", prompts={"web": "judge"}, default_prompt_name="web")
    expected["tokens"] = [float(s) for s in m.predict(pairs, batch_size=1)]
    m.save(str(out / "tokens"))
    shutil.rmtree(plain)
    for junk in list(out.rglob("README.md")) + list(out.rglob("training_args.bin")):
        junk.unlink()
    (out / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
