# SPDX-License-Identifier: Apache-2.0
"""The table of golden checkpoints: name, dense model, how it is made, with which schemes.

Input: nothing. Output: CASES, read by make_checkpoints.py and make_checkpoints_expected.py.
`env` names the library version: main (compressed-tensors 0.19.0), 018 (0.18.0), 0171 (0.17.1). Schemes are functions, so
that this file can be listed without importing torch.
"""
from dataclasses import dataclass, field
from typing import Any, Callable, List

IGNORE = ["lm_head", r"re:.*mlp\.gate$", r"re:.*block_sparse_moe\.gate$", r"re:.*shared_expert_gate$", "re:.*router.*"]
ATTENTION = [r"re:.*self_attn\..*_proj$"]
EXPERTS = [r"re:.*mlp\.experts\..*_proj$"]


@dataclass
class Case:
    name: str
    model: str
    stage: str                                   # dense, oneshot, free, compose
    schemes: Callable[[], List[Any]] = lambda: []
    env: str = "main"
    calibrate: bool = False
    gptq: bool = False
    preset: str = ""                             # model_free_ptq by preset name
    compose: str = ""                            # function of make_checkpoints_compose
    shard: str = ""                              # max_shard_size
    kv_cache: Any = None
    options: dict = field(default_factory=dict)  # for compose
    ignore: List[str] = field(default_factory=lambda: list(IGNORE))


def args(**k):
    from compressed_tensors.quantization import QuantizationArgs
    return QuantizationArgs(**k)


def w(bits, group=None, sym=True, **k):
    how = {"strategy": "channel"} if group is None else {"strategy": "group", "group_size": group}
    return args(num_bits=bits, type="int", symmetric=sym, dynamic=False, **how, **k)


def a8():
    return args(num_bits=8, type="int", strategy="token", symmetric=True, dynamic=True)


def static8(sym=True):
    return args(num_bits=8, type="int", strategy="tensor", symmetric=sym, dynamic=False)


def fp8_token():
    return args(num_bits=8, type="float", strategy="token", symmetric=True, dynamic=True)


def scheme(weights, inputs=None, fmt=None, outputs=None, targets=("Linear",)):
    from compressed_tensors.quantization import QuantizationScheme
    return QuantizationScheme(targets=list(targets), weights=weights, input_activations=inputs, output_activations=outputs,
                              **({"format": fmt} if fmt else {}))


def preset(name, targets=("Linear",)):
    from compressed_tensors.quantization import preset_name_to_scheme
    return preset_name_to_scheme(name, list(targets))


def one(weights, *a, **k):
    """A case with a single scheme; `weights` is a function."""
    return lambda: [scheme(weights(), *[x() if callable(x) else x for x in a],
                           **{n: (v() if callable(v) else v) for n, v in k.items()})]


def pre(name):
    return lambda: [preset(name)]


def q(name, schemes, model="qwen3moe", **k):
    return Case(name, model, k.pop("stage", "oneshot"), schemes, **k)


PACK, INT = "pack-quantized", "int-quantized"
WIDE, ONE, TWO, ODD = "qwen3moe-wide", "qwen3moe-one", "qwen3moe-two", "qwen3moe-odd"

CASES = [
    # --- Qwen3-MoE: W4A8 in both formats
    q("qwen3moe-w4a8-g128-pack", one(lambda: w(4, 128), a8, PACK), WIDE),
    q("qwen3moe-w4a8-g128-int", one(lambda: w(4, 128), a8, INT), WIDE),
    q("qwen3moe-w4a8-channel-pack", one(lambda: w(4), a8, PACK)),
    q("qwen3moe-w4a8-channel-int", one(lambda: w(4), a8, INT)),
    q("qwen3moe-w4a8-g32-pack", one(lambda: w(4, 32), a8, PACK)),
    q("qwen3moe-w4a8-g32-int", one(lambda: w(4, 32), a8, INT)),
    q("qwen3moe-w4a8-asym-g32-pack", one(lambda: w(4, 32, False), a8, PACK), ONE),
    q("qwen3moe-w4a8-asym-g32-int", one(lambda: w(4, 32, False), a8, INT), ONE),
    # --- W4A16
    q("qwen3moe-w4a16-channel", one(lambda: w(4))),
    q("qwen3moe-w4a16-g128", one(lambda: w(4, 128)), WIDE),
    q("qwen3moe-w4a16-g32", one(lambda: w(4, 32))),
    q("qwen3moe-w4a16-asym-channel", one(lambda: w(4, None, False))),
    q("qwen3moe-w4a16-asym-g128", one(lambda: w(4, 128, False)), WIDE),
    q("qwen3moe-w4a16-asym-g32", one(lambda: w(4, 32, False))),
    q("qwen3moe-w4a16-actorder-weight", one(lambda: w(4, 32, actorder="weight")), gptq=True, calibrate=True),
    q("qwen3moe-w4a16-actorder-group", one(lambda: w(4, 32, actorder="group")), gptq=True, calibrate=True, env="018"),
    # --- 8-bit integers
    q("qwen3moe-w8a8-dynamic", pre("W8A8")),
    q("qwen3moe-w8a8-static", one(w8 := (lambda: w(8)), static8), calibrate=True),
    q("qwen3moe-w8a8-static-asym", one(w8, lambda: static8(False)), ONE, calibrate=True),
    q("qwen3moe-w8a16-channel", one(w8), ONE),
    q("qwen3moe-w8a16-g32", one(lambda: w(8, 32)), ONE),
    # --- FP8
    q("qwen3moe-fp8-dynamic", pre("FP8_DYNAMIC")),
    q("qwen3moe-fp8-static", pre("FP8"), calibrate=True),
    q("qwen3moe-fp8-block", pre("FP8_BLOCK"), WIDE),
    q("qwen3moe-fp8-block-ragged", pre("FP8_BLOCK"), ODD),
    # --- FP4 and MX
    q("qwen3moe-nvfp4", pre("NVFP4"), calibrate=True),
    q("qwen3moe-nvfp4a16", pre("NVFP4A16"), ONE),
    q("qwen3moe-mxfp4", pre("MXFP4")),
    q("qwen3moe-mxfp4a16", pre("MXFP4A16"), ONE),
    q("qwen3moe-mxfp8", pre("MXFP8")),
    q("qwen3moe-mxfp8a16", pre("MXFP8A16"), ONE),
]
