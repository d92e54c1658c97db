# SPDX-License-Identifier: Apache-2.0
"""The table of golden checkpoints: name, dense model, how it is made, with which schemes.

Input: nothing. Output: CASES, read by make_checkpoints.py and make_checkpoints_expected.py.
`env` names the library version: main (compressed-tensors 0.19.0), 018 (0.18.0), 0171 (0.17.1). Schemes are functions, so
that this file can be listed without importing torch.
"""
from dataclasses import dataclass, field
from typing import Any, Callable, List

TOWERS = ["re:.*visual.*", "re:.*vision.*", "re:.*audio_tower.*", "re:.*resampler.*", "re:.*projector.*"]
VISION_EXPERTS = [r"re:.*experts\.[4-7]\..*"]
IGNORE = ["lm_head", r"re:.*mlp\.gate$", r"re:.*block_sparse_moe\.gate$", r"re:.*shared_expert_gate$", "re:.*router.*"]
ATTENTION = [r"re:.*self_attn\..*_proj$"]
FREE = ["lm_head", "model.embed_tokens", r"re:.*\.gate$", r"re:.*norm.*"]
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
    budget: int = 12_000                         # bytes of decoded weights kept (beyond one module per scheme)
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


def fp8_weights(strategy):
    return args(num_bits=8, type="float", strategy=strategy, symmetric=True, dynamic=False)


def fp8_tensor(dynamic):
    return args(num_bits=8, type="float", strategy="tensor", symmetric=True, dynamic=dynamic)


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
    k.setdefault("budget", 40_000)
    return Case(name, model, k.pop("stage", "oneshot"), schemes, **k)


def x(name, schemes, model="qwen3moe", **k):
    return q(name, schemes, model, budget=k.pop("budget", 12_000), **k)


def o8(name, weights, fmt, model="qwen3", **k):
    return x(name, one(weights, static8, fmt, static8), model, stage="compose", compose="static_io", **k)


PACK, INT = "pack-quantized", "int-quantized"
WIDE, ONE, TWO, ODD, MINI = "qwen3moe-wide", "qwen3moe-one", "qwen3moe-two", "qwen3moe-odd", "qwen3moe-mini"

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
    q("qwen3moe-w8a8-static", one(w8 := (lambda: w(8)), static8), ONE, calibrate=True),
    q("qwen3moe-w8a8-static-asym", one(w8, lambda: static8(False)), ONE, calibrate=True),
    q("qwen3moe-w8a16-channel", one(w8), ONE),
    q("qwen3moe-w8a16-g32", one(lambda: w(8, 32)), ONE),
    # --- FP8
    q("qwen3moe-fp8-dynamic", pre("FP8_DYNAMIC")),
    q("qwen3moe-fp8-static", pre("FP8"), ONE, calibrate=True),
    q("qwen3moe-fp8-block", pre("FP8_BLOCK"), WIDE),
    q("qwen3moe-fp8-block-ragged", pre("FP8_BLOCK"), ODD),
    # --- FP4 and MX
    q("qwen3moe-nvfp4", pre("NVFP4"), calibrate=True),
    q("qwen3moe-nvfp4a16", pre("NVFP4A16"), ONE),
    q("qwen3moe-mxfp4", pre("MXFP4")),
    q("qwen3moe-mxfp4a16", pre("MXFP4A16"), ONE),
    q("qwen3moe-mxfp8", pre("MXFP8"), ONE),
    q("qwen3moe-mxfp8a16", pre("MXFP8A16"), ONE),
    # --- Qwen3-MoE: other widths; the padded layout of 3, 5, 6, 7 bits comes from 0.17.1
    *[x(f"qwen3moe-w{b}a16-g32", one(lambda b=b: w(b, 32)), MINI) for b in (2, 3, 5, 6, 7)],
    x("qwen3moe-w3a16-asym-g32", one(lambda: w(3, 32, False)), MINI),
    *[x(f"qwen3moe-w{b}a16-g32-padded", one(lambda b=b: w(b, 32)), MINI, stage="compose", compose="from_schemes", env="0171")
      for b in (3, 5, 6, 7)],
    x("qwen3moe-w3a16-asym-g32-padded", one(lambda: w(3, 32, False)), MINI, stage="compose", compose="from_schemes",
      env="0171"),
    # --- int4 weights with FP8 activations, weight-only FP8, dynamic per-tensor FP8
    x("qwen3moe-w4afp8-g32-pack", one(lambda: w(4, 32), fp8_token, PACK), MINI),
    x("qwen3moe-w4afp8-g32-int", one(lambda: w(4, 32), fp8_token), MINI),
    x("qwen3moe-fp8a16-channel", one(lambda: fp8_weights("channel")), MINI),
    x("qwen3moe-fp8-tensor-dynamic", one(lambda: fp8_weights("tensor"), lambda: fp8_tensor(True)), MINI),
    x("qwen3moe-fp8-static-kv", pre("FP8"), MINI, calibrate=True, kv_cache=lambda: fp8_tensor(False)),
    # --- mixed
    x("qwen3moe-mixed-fp8-attention-w4a16-experts",
      lambda: [preset("FP8_DYNAMIC", ATTENTION), scheme(w(4, 32), targets=EXPERTS)], MINI),
    x("qwen3moe-mixed-down8-gateup4",
      lambda: [scheme(w(4, 32), targets=[r"re:.*(gate|up)_proj$"]), scheme(w(8), targets=[r"re:.*down_proj$"])], MINI),
    x("qwen3moe-mixed-layers",
      lambda: [scheme(w(4, 32), targets=[r"re:model\.layers\.0\..*"]), preset("FP8_DYNAMIC", [r"re:model\.layers\.1\.mlp.*"])],
      TWO),
    x("qwen3moe-w4a16-first-only", one(lambda: w(4, 32)), TWO, ignore=IGNORE + [r"re:model\.layers\.1\..*"]),
    # --- straight from the files (regex ignore lists, an index even for one shard), and shards
    x("qwen3moe-free-fp8-dynamic", None, MINI, stage="free", preset="FP8_DYNAMIC", ignore=FREE),
    x("qwen3moe-free-w4a16-asym-g32", one(lambda: w(4, 32, False)), MINI, stage="free", ignore=FREE),
    x("qwen3moe-free-w8a16-router-head", one(lambda: w(8, 32)), MINI, stage="free", ignore=["model.embed_tokens"]),
    x("qwen3moe-w4a8-g32-sharded", one(lambda: w(4, 32), a8, PACK), TWO, shard="24KB"),
    x("qwen3moe-w8a16-embeddings", one(lambda: w(8, 32), targets=("Linear", "Embedding")), MINI, ignore=IGNORE[1:]),
    # --- K = 192, N = 200
    x("qwen3moe-odd-w4a16-g64",
      lambda: [scheme(w(4), targets=[r"re:.*down_proj$"]), scheme(w(4, 64), targets=["Linear"])], ODD),
    # --- static int8 inputs and outputs
    o8("qwen3-w2a8o8-g32-pack", lambda: w(2, 32), PACK),
    o8("qwen3-w4a8o8-channel-pack", lambda: w(4), PACK, ignore=[]),
    o8("qwen3-w4a8o8-g32-int", lambda: w(4, 32), INT),
    o8("qwen3-w8a8o8-channel-int", lambda: w(8), INT),
    o8("qwen3moe-w8a8o8-channel-pack", lambda: w(8), PACK, model=MINI),
    # --- families, dense
    x("qwen3moe-dense", None, TWO, stage="dense"),
    *[x(f"{m}-dense", None, m, stage="dense") for m in
      ("olmoe", "mixtral", "qwen2moe", "deepseekv2", "deepseekv3", "glm4moe", "gptoss", "granitemoe", "minimaxm2",
       "llama4", "phimoe", "qwen3", "llama", "mistral", "qwen3next", "qwen35moe", "nemotronh", "granitehybrid", "lfm2moe", "kimilinear",
       "minimax",
       "glm4moelite", "solaropen", "dots1", "ernie45moe", "exaonemoe", "hunyuanmoe", "hyv3", "granitemoeshared", "ariatext",
       "gemma4", "gemma4wide", "mistral4", "deepseekv32", "glmmoedsa", "mimov2flash", "flexolmo", "afmoe", "mellum", "granitemoeswa",
       "cohere2moe", "laguna", "flint", "kolibri1", "axk1", "step3p7", "ernie45vlmoe", "beam", "longcatflash", "bailinghybrid", "minimaxm3",
       "hyv4", "deepseekv4", "axk2", "jamba", "mistrallarge4", "dbrx", "inkling", "inklingtext", "glm5next", "qwen4exp", "qwen4exptext", "gemma3")],
    # --- families, quantized
    x("olmoe-fp8-static", pre("FP8"), "olmoe", calibrate=True),
    x("mixtral-w4a16-g32", one(lambda: w(4, 32)), "mixtral"),
    x("mixtral-w4a16-actorder-group", one(lambda: w(4, 32, actorder="group")), "mixtral", gptq=True, calibrate=True, env="018"),
    x("mixtral-free-w8a8", None, "mixtral", stage="free", preset="W8A8", ignore=FREE),
    x("qwen2moe-w4a16-g32", one(lambda: w(4, 32)), "qwen2moe"),
    x("deepseekv2-w8a8", pre("W8A8"), "deepseekv2"),
    x("deepseekv3-w4a8-g32", one(lambda: w(4, 32), a8, PACK), "deepseekv3"),
    x("qwen3next-w4a8-g32", one(lambda: w(4, 32), a8, PACK), "qwen3next"),
    x("qwen35moe-w4a16-g32", one(lambda: w(4, 32)), "qwen35moe"),
    x("qwen35moe-fp8-dynamic", pre("FP8_DYNAMIC"), "qwen35moe"),
    x("qwen3next-w4a16-g32", one(lambda: w(4, 32)), "qwen3next"),
    *[x(f"{m}-w4a16-g32", one(lambda: w(4, 32)), m) for m in ("nemotronh", "granitehybrid", "lfm2moe", "kimilinear", "minimax")],
    *[x(f"{m}-fp8-dynamic", pre("FP8_DYNAMIC"), m) for m in ("nemotronh", "granitehybrid", "lfm2moe", "kimilinear", "minimax")],
    x("kimik2-w4a16-experts", one(lambda: w(4, 32)), "deepseekv3", stage="compose", compose="kimi_k2"),
    x("glm4moe-nvfp4", pre("NVFP4"), "glm4moe", calibrate=True),
    x("gptoss-w8a8", pre("W8A8"), "gptoss"),
    x("gptoss-w4a16-g32", one(lambda: w(4, 32)), "gptoss"),
    x("gptoss-mxfp4-native", pre("MXFP4A16"), "gptoss", stage="compose", compose="gpt_oss_native"),
    x("granitemoe-w4a16-g32", one(lambda: w(4, 32)), "granitemoe"),
    x("minimaxm2-mixed-fp8-int4",
      lambda: [preset("FP8_DYNAMIC", ATTENTION), scheme(w(4, 32), targets=[r"re:.*experts\..*"])], "minimaxm2"),
    x("llama4-fp8-dynamic", pre("FP8_DYNAMIC"), "llama4", stage="compose", compose="llama4"),
    x("phimoe-w4a16-g32", one(lambda: w(4, 32)), "phimoe"),
    x("llama-w8a8", pre("W8A8"), "llama"),
    x("granitemoeshared-w8a8", pre("W8A8"), "granitemoeshared"),  # its widths are no multiples of a group
    *[x(f"{m}-{name}", schemes, m, ignore=IGNORE + TOWERS) for m in ("glm5next", "qwen4exp")
      for name, schemes in (("w4a16-g32", one(lambda: w(4, 32))), ("fp8-dynamic", pre("FP8_DYNAMIC")))],
    *[x(f"{m}-{name}", schemes, m) for m in ("gemma4", "mistral4", "deepseekv32", "glmmoedsa", "mimov2flash", "flexolmo", "afmoe",
                                                   "mellum", "granitemoeswa", "cohere2moe", "laguna", "flint", "kolibri1", "axk1", "beam",
                                                   "longcatflash", "bailinghybrid", "hyv4", "deepseekv4", "axk2", "jamba")
      for name, schemes in (("w4a16-g32", one(lambda: w(4, 32))), ("fp8-dynamic", pre("FP8_DYNAMIC")))],
    *[x(f"{m}-w4a16-g16", one(lambda: w(4, 16)), m) for m in ("glm4moelite", "solaropen", "dots1", "exaonemoe", "hunyuanmoe")],
    *[x(f"{m}-fp8-dynamic", pre("FP8_DYNAMIC"), m) for m in ("glm4moelite", "solaropen", "dots1", "exaonemoe", "hunyuanmoe", "granitemoeshared")],
    # llm-compressor cannot take apart experts of two widths
    x("ernie45vlmoe-w4a16-g32", one(lambda: w(4, 32)), "ernie45vlmoe", stage="free", ignore=FREE + VISION_EXPERTS + TOWERS),
    x("ernie45vlmoe-fp8-dynamic", None, "ernie45vlmoe", stage="free", preset="FP8_DYNAMIC", ignore=FREE + VISION_EXPERTS + TOWERS),
    # transformers takes gate_up_proj apart when it saves MiniMax-M3, but not its scales
    *[x(f"{m}-{name}", schemes, m, ignore=IGNORE + TOWERS + ["re:.*gate_up_proj$"]) for m in ("minimaxm3", "mistrallarge4")
      for name, schemes in (("w4a16-g32", one(lambda: w(4, 32))), ("fp8-dynamic", pre("FP8_DYNAMIC")))],
    # llm-compressor does not find their stacks of experts
    *[x(f"{m}-{name}", schemes, m, stage="compose", compose="split_experts") for m in ("step3p7", "dbrx", "inkling")
      for name, schemes in (("w4a16-g32", one(lambda: w(4, 32))), ("fp8-dynamic", pre("FP8_DYNAMIC")))],
    *[x(f"{m}-{name}", schemes, m, **more) for m in ("qwen3vlmoe", "qwen3omnimoe")
      for name, schemes, more in (("dense", None, dict(stage="dense")), ("w4a16-g32", one(lambda: w(4, 32)), dict(ignore=IGNORE + TOWERS)),
                                  ("fp8-dynamic", pre("FP8_DYNAMIC"), dict(ignore=IGNORE + TOWERS)))],
    *[x(f"{m}-{name}", schemes, f"{m}{variant}") for m, variant in (("ernie45moe", "-plain"), ("hyv3", ""))
      for name, schemes in (("w4a16-g16", one(lambda: w(4, 16))), ("fp8-dynamic", pre("FP8_DYNAMIC")))],
    x("mistral-w4a8-g32", one(lambda: w(4, 32), a8, PACK), "mistral"),
]
