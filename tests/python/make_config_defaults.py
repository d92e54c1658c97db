# SPDX-License-Identifier: Apache-2.0
"""src/checkpoint/config_defaults.inc: what a field means that config.json leaves out, by model type.

    env/bin/python tests/python/make_config_defaults.py > src/checkpoint/config_defaults.inc

The values are those of transformers' configuration classes (plain fields: what a class derives from other fields is code of
model/arch). Fields that no file of src/checkpoint or src/model/arch reads are left out.
"""
import json
import re
import sys
from pathlib import Path

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

ROOT = Path(__file__).parents[2] / "src"
PARTS = ("text_config", "thinker_config")
# Sizes that must be given, and fields whose absence has a meaning of its own here: older forms of a config have others in
# their place, or the tensors decide.
NOT_THESE = {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "n_heads", "n_layers", "num_layers", "d_model",
             "model_type", "dtype", "tie_word_embeddings", "num_nextn_predict_layers", "partial_rotary_factor", "rotary_dim",
             "eos_token_id", "bos_token_id", "pad_token_id", "attention_bias", "qkv_bias", "mlp_bias", "use_qk_norm",
             "intermediate_size", "moe_intermediate_size", "expert_ffn_hidden_size", "ffn_hidden_size", "intermediate_size_mlp",
             "shared_expert_intermediate_size", "gating", "block_size", "seed"}
# The rotations of these are made of older fields by their architecture files.
OWN_ROTATION = {"deepseek_v4", "mimo_v2_flash", "step3p5"}


def words():
    found = set()
    for folder in ("checkpoint", "model/arch"):
        for f in [*(ROOT / folder).rglob("*.cpp"), ROOT / "checkpoint/families.inc"]:
            found |= set(re.findall(r'"([a-z][a-zA-Z0-9_]+)"', f.read_text()))
    return found


def model_types():
    """Of the registry: those that transformers knows."""
    text = "".join((ROOT / "checkpoint" / f).read_text() for f in ("families.cpp", "families.inc"))
    named = {w for s in re.findall(r'"([^"]*)"', text) for w in s.split()}
    return sorted(named & set(CONFIG_MAPPING_NAMES))


def text_class(cls):
    for part in PARTS:
        inner = (getattr(cls, "sub_configs", None) or {}).get(part)
        if isinstance(inner, type) and inner.__name__ != "AutoConfig":
            return text_class(inner)
    return cls


def rotation(cls):
    """What a config without rope_parameters rotates: a base, a share, or a whole object where that does not say it."""
    rope = getattr(cls(), "rope_parameters", None)
    if cls.model_type in OWN_ROTATION or not isinstance(rope, dict):
        return {}
    if rope.get("rope_type") == "default":
        share = {} if "kv_lora_rank" in cls.__dataclass_fields__ else {"partial_rotary_factor": 1.0}
        return {k: rope[k] for k, usual in ({"rope_theta": 10000} | share).items() if rope.get(k, usual) != usual}
    base = getattr(cls, "default_theta", 10000)
    return ({"rope_theta": base} if base != 10000 else {}) | {"rope_parameters": rope}


def first_dense(cls):
    """Of a config without mlp_layer_types: the number of dense layers before the others, where the class makes such a list."""
    types = getattr(cls(), "mlp_layer_types", None) or []
    count = next((i for i, t in enumerate(types) if t != "dense"), 0)
    return {"first_k_dense_replace": count} if count > 0 and "dense" not in types[count:] else {}


def defaults(cls, known):
    fields = getattr(cls, "__dataclass_fields__", {})
    out = {}
    for name, field in sorted(fields.items()):
        value = field.default
        if name in known and name not in NOT_THESE and isinstance(value, (bool, int, float, str)):
            out[name] = value
    if "kv_lora_rank" in fields:        # a key for each head, whatever it says
        out.pop("num_key_value_heads", None)
    if "mlp_layer_types" in fields and "first_k_dense_replace" not in fields:
        out |= first_dense(cls)
    if out.get("hidden_act") == "silu":
        del out["hidden_act"]
    out.pop("rope_theta", None)
    return out | rotation(cls)


def main():
    known, rows = words(), {}
    for kind in model_types():
        cls = text_class(CONFIG_MAPPING[kind])
        found = defaults(cls, known)
        names, _ = rows.setdefault(cls.model_type, ({cls.model_type}, found))
        names.add(kind)
    print("// SPDX-License-Identifier: Apache-2.0")
    print(f"// Written by tests/python/make_config_defaults.py with transformers {transformers.__version__}.")
    for names, found in sorted((sorted(n), f) for n, f in rows.values() if f):
        lines = [f'{{"{" ".join(names)}", R"(']
        for part in re.sub(r',(?=["}])', ",\n", json.dumps(found, separators=(",", ":"))).split("\n"):
            if len(lines[-1]) + len(part) > 96:
                lines.append("")
            lines[-1] += part
        print("\n".join(lines) + ')"},')


if __name__ == "__main__":
    sys.exit(main())
