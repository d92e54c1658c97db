# SPDX-License-Identifier: Apache-2.0
"""Folders with a layer for multi-token prediction, and what it gives: ../golden-mtp.

Input: a dense folder of ../golden. Output: the same folder with the tensors of such a layer (random, by a seed
of its name) in the names that published folders have, and expected.safetensors: `tokens` I64 [T], `logits` F32
[T, vocab], of row t: the token after t, from token t and the model's last hidden state (behind the final norm) of
token t - 1; row 0 has none and is zero. `chains` I64 [C, 4]: after tokens 0 to chains[c, 0] the three tokens that
are drafted, each from the one before and what the layer itself made of it; `chain_logits` F32 [C, 3, vocab].

The layer is transformers' own decoder layer of the model, behind x = proj([norm(embedding), norm(hidden)]), before
a norm and the model's head (transformers.modeling_layers.MtpLayer; plain here, where a class has no MTP form).
Everything in f32 and eager. A second run gives the same bytes.

    python tests/python/make_predictors.py [name ...]
"""
import copy
import json
import shutil
import sys
import zlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

GOLDEN = Path(__file__).resolve().parents[2] / "build/data/golden"
OUT = GOLDEN.parent / "golden-mtp"
ROWS, CHAINS = 300, (5, 126, 127, 298)
LAYER = dict(join="eh_proj", embedding="enorm", hidden="hnorm", last="shared_head.norm")
MTP = dict(join="fc", embedding="pre_fc_norm_embedding", hidden="pre_fc_norm_hidden", last="norm")

# name: (dense folder, names, where the layer hangs, fields of config.json, own output, experts in one tensor)
FOLDERS = {
    "deepseekv3": ("deepseekv3-dense", LAYER, "model.layers.{L}.", dict(num_nextn_predict_layers=1), True, False),
    "deepseekv32": ("deepseekv32-dense", LAYER, "model.layers.{L}.", dict(num_nextn_predict_layers=1), False, False),
    "glm4moe": ("glm4moe-dense", LAYER, "model.layers.{L}.", dict(num_nextn_predict_layers=1), True, False),
    "qwen3next": ("qwen3next-dense", MTP, "mtp.", {}, False, False),
    "qwen35moe": ("qwen35moe-dense", MTP, "mtp.", dict(mtp_num_hidden_layers=1), False, True),
}


def bf16(t):
    return t.to(torch.bfloat16).to(torch.float32)


def layer_of(model):
    """A decoder layer of the model that attends to everything and has experts where the model has."""
    config = copy.deepcopy(model.config.get_text_config())
    config.num_hidden_layers = 1
    for field, word in (("layer_types", "full_attention"), ("mlp_layer_types", "sparse"), ("indexer_types", "full")):
        if getattr(config, field, None) is not None:
            setattr(config, field, [word])
    if hasattr(config, "first_k_dense_replace"):
        config.first_k_dense_replace = 0
    config._attn_implementation = "eager"
    layers = model.get_decoder().layers
    return type(layers[-1])(config, 0)


class Head(torch.nn.Module):
    def __init__(self, model, seed):
        super().__init__()
        torch.manual_seed(seed)
        decoder = model.get_decoder()
        n = model.config.get_text_config().hidden_size
        self.join = torch.nn.Linear(2 * n, n, bias=False)
        self.layer = layer_of(model)
        self.embedding, self.hidden, self.last = (copy.deepcopy(decoder.norm) for _ in range(3))
        self.float().eval()
        for name, p in list(self.named_parameters()) + list(self.named_buffers()):
            wide = p.dim() > 1
            draw = torch.randn(p.shape)
            if "correction_bias" in name:
                draw = 0.2 * draw
            elif wide:
                draw = draw * (4 if name.endswith("gate.weight") else 1) / p.shape[-1] ** 0.5
            else:
                draw = (p.mean() if p.numel() else 0) + 0.1 * draw
            p.data = bf16(draw)

    def forward(self, model, tokens, hidden, positions):
        decoder = model.get_decoder()
        x = self.join(torch.cat([self.embedding(decoder.embed_tokens(tokens)), self.hidden(hidden)], dim=-1))[None]
        n = x.shape[1]
        mask = torch.full((1, 1, n, n), torch.finfo(torch.float32).min).triu(1)
        rope = decoder.rotary_emb(x, positions[None])
        y = self.layer(x, position_embeddings=rope, attention_mask=mask, position_ids=positions[None],
                       past_key_values=None)
        y = y[0] if isinstance(y, tuple) else y
        return self.last(y)[0]


def stored(head, names, stem, fused):
    out = {}
    inner = "layers.0." if names is MTP else ""
    for name, p in head.state_dict().items():
        p = p.to(torch.bfloat16) if "correction_bias" not in name else p
        part, _, rest = name.partition(".")
        if part != "layer":
            out[stem + names[part] + "." + rest] = p
        elif ".experts." in rest and not fused:
            block, _, kind = rest.rpartition(".")
            for e in range(p.shape[0]):
                halves = p[e].chunk(2) if kind == "gate_up_proj" else (p[e],)
                for half, word in zip(halves, ("gate_proj", "up_proj") if len(halves) == 2 else ("down_proj",)):
                    out[f"{stem}{inner}{block}.{e}.{word}.weight"] = half.clone().contiguous()
        else:
            out[stem + inner + rest] = p
    return {k: v.contiguous() for k, v in out.items()}


@torch.no_grad()
def make(name):
    base, names, stem, fields, own_output, fused = FOLDERS[name]
    source, to = GOLDEN / base, OUT / name
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager").eval()
    seed = zlib.crc32(name.encode())
    head = Head(model, seed)
    vocab = model.config.get_text_config().vocab_size
    output = model.lm_head
    if own_output:
        output = copy.deepcopy(output)
        output.weight.data = bf16(output.weight.data + 0.1 * torch.randn(output.weight.shape))
    tokens = torch.randint(3, vocab, (ROWS,))
    hidden = model.get_decoder()(input_ids=tokens[None], use_cache=False).last_hidden_state[0]
    made = head(model, tokens[1:], hidden[:-1], torch.arange(1, ROWS))
    logits = torch.cat([torch.zeros(1, vocab), output(made)])
    chains, chain_logits = [], []
    for last in CHAINS:
        drafted, rows, h = tokens[1:last + 1], [], hidden[:last]
        for _ in range(3):
            y = head(model, drafted, h, torch.arange(1, 1 + len(drafted)))
            rows.append(output(y[-1]))
            drafted = torch.cat([drafted, rows[-1].argmax()[None]])
            h = torch.cat([h, y[-1:]])
        assert torch.allclose(rows[0], logits[last], atol=1e-5)
        chains.append([last] + drafted[-3:].tolist())
        chain_logits.append(torch.stack(rows))
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    config = json.loads((source / "config.json").read_text())
    (config.get("text_config") or config).update(fields)
    (to / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = load_file(source / "model.safetensors")
    prefix = stem.format(L=model.config.get_text_config().num_hidden_layers)
    tensors.update(stored(head, names, prefix, fused))
    if own_output:
        tensors[prefix + "shared_head.head.weight"] = output.weight.to(torch.bfloat16)
        tensors[prefix + "embed_tokens.weight"] = model.get_input_embeddings().weight.to(torch.bfloat16)
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    save_file({"tokens": tokens, "logits": logits, "chains": torch.tensor(chains),
               "chain_logits": torch.stack(chain_logits)}, to / "expected.safetensors")
    print(name, sorted(k for k in tensors if k.startswith(prefix))[:6], chains)


if __name__ == "__main__":
    for each in sys.argv[1:] or FOLDERS:
        make(each)
