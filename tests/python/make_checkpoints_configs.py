#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""config.json files in the style of published checkpoints: build/data/golden/configs/*.json and expected.json.

    PYTHONPATH=<compressed-tensors 0.18 overlay> make_checkpoints_configs.py [--out build/data/golden/configs]

Reconstructed from publicly known facts (sizes, scheme, what is left dense, the writer's version), not downloaded: the
point is the variety of spellings a reader meets. expected.json says, for some module names of each file, which scheme
compressed-tensors' own matching assigns (0.18, because 0.19 refuses actorder "group").
"""
import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def qargs(era, **k):
    """QuantizationArgs as the writers of that time spelled them."""
    a = dict(actorder=None, block_structure=None, dynamic=False, group_size=None, num_bits=8, observer="minmax",
             observer_kwargs={}, strategy="channel", symmetric=True, type="int")
    a |= {"scale_dtype": None, "zp_dtype": None} if era >= 13 else {}
    return a | k


def w4(era, **k):
    return qargs(era, num_bits=4, strategy="group", group_size=128, **k) if "strategy" not in k else qargs(era, num_bits=4, **k)


def dyn(era, **k):
    return qargs(era, strategy="token", dynamic=True, observer=None, **k)


def fp(era, **k):
    return qargs(era, type="float", **k)


def group(era, weights, inputs=None, targets=("Linear",), fmt=None):
    g = {"input_activations": inputs, "output_activations": None, "targets": list(targets), "weights": weights}
    return g | ({"format": fmt} if era >= 11 and fmt else {})


def quant(era, version, fmt, groups, ignore, status="compressed", **k):
    q = {"config_groups": groups, "format": fmt, "global_compression_ratio": None, "ignore": ignore, "kv_cache_scheme": None,
         "quant_method": "compressed-tensors", "quantization_status": status}
    if era >= 9:
        q |= {"sparsity_config": {}}
    if era >= 11:
        q |= {"transform_config": {}}
    return q | {"version": version} | k


def simple(era, version, fmt, weights, inputs, ignore, **k):
    return quant(era, version, fmt, {"group_0": group(era, weights, inputs, fmt=fmt)}, ignore, **k)


def layers(n, leaf, first=0):
    return [f"model.layers.{i}.{leaf}" for i in range(first, n)]


def qwen3_30b():
    return dict(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", hidden_size=2048, num_hidden_layers=48,
                num_attention_heads=32, num_key_value_heads=4, head_dim=128, moe_intermediate_size=768, intermediate_size=6144,
                num_experts=128, num_experts_per_tok=8, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[],
                vocab_size=151936, rope_theta=1000000.0, rms_norm_eps=1e-6, tie_word_embeddings=False, torch_dtype="bfloat16")


def mixtral():
    return dict(architectures=["MixtralForCausalLM"], model_type="mixtral", hidden_size=4096, intermediate_size=14336,
                num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, num_local_experts=8,
                num_experts_per_tok=2, vocab_size=32000, rope_theta=1000000.0, rms_norm_eps=1e-5, sliding_window=None,
                tie_word_embeddings=False, torch_dtype="bfloat16")


def deepseek_v2_lite():
    return dict(architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", hidden_size=2048, num_hidden_layers=27,
                num_attention_heads=16, num_key_value_heads=16, q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128,
                qk_rope_head_dim=64, v_head_dim=128, moe_intermediate_size=1408, intermediate_size=10944,
                n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6, first_k_dense_replace=1,
                norm_topk_prob=False, routed_scaling_factor=1.0, topk_method="greedy", scoring_func="softmax",
                vocab_size=102400, rope_theta=10000, rms_norm_eps=1e-6, tie_word_embeddings=False, torch_dtype="bfloat16",
                rope_scaling=dict(type="yarn", factor=40, original_max_position_embeddings=4096, beta_fast=32, beta_slow=1,
                                  mscale=0.707, mscale_all_dim=0.707))


def kimi():
    return dict(architectures=["DeepseekV3ForCausalLM"], model_type="kimi_k2", hidden_size=7168, num_hidden_layers=61,
                num_attention_heads=64, num_key_value_heads=64, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128,
                qk_rope_head_dim=64, v_head_dim=128, moe_intermediate_size=2048, intermediate_size=18432,
                n_routed_experts=384, n_shared_experts=1, num_experts_per_tok=8, n_group=1, topk_group=1,
                first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.827, scoring_func="sigmoid",
                topk_method="noaux_tc", vocab_size=163840, rope_theta=50000.0, rms_norm_eps=1e-5, torch_dtype="bfloat16",
                tie_word_embeddings=False, num_nextn_predict_layers=0,
                rope_scaling=dict(type="yarn", factor=64.0, original_max_position_embeddings=4096, beta_fast=32.0,
                                  beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0))


def minimax():
    return dict(architectures=["MiniMaxM2ForCausalLM"], model_type="minimax_m2", hidden_size=3072, num_hidden_layers=62,
                num_attention_heads=48, num_key_value_heads=8, head_dim=128, rotary_dim=64, intermediate_size=1536,
                num_local_experts=256, num_experts_per_tok=8, scoring_func="sigmoid", use_routing_bias=True,
                use_qk_norm=True, qk_norm_type="per_layer", vocab_size=200064, rope_theta=5000000, rms_norm_eps=1e-6,
                num_mtp_modules=3, use_mtp=True, shared_intermediate_size=0, tie_word_embeddings=False, torch_dtype="bfloat16")


def scout():
    text = dict(model_type="llama4_text", hidden_size=5120, num_hidden_layers=48, num_attention_heads=40,
                num_key_value_heads=8, head_dim=128, intermediate_size=8192, intermediate_size_mlp=16384,
                num_local_experts=16, num_experts_per_tok=1, interleave_moe_layer_step=1, attention_chunk_size=8192,
                use_qk_norm=True, vocab_size=202048, rope_theta=500000.0, rms_norm_eps=1e-5, torch_dtype="bfloat16",
                rope_scaling=dict(rope_type="llama3", factor=16.0, low_freq_factor=1.0, high_freq_factor=1.0,
                                  original_max_position_embeddings=8192))
    return dict(architectures=["Llama4ForConditionalGeneration"], model_type="llama4", text_config=text,
                torch_dtype="bfloat16", tie_word_embeddings=False)


def glm_air():
    return dict(architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe", hidden_size=4096, num_hidden_layers=46,
                num_attention_heads=96, num_key_value_heads=8, head_dim=128, moe_intermediate_size=1408,
                intermediate_size=10944, n_routed_experts=128, n_shared_experts=1, num_experts_per_tok=8,
                first_k_dense_replace=1, n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.0,
                attention_bias=True, use_qk_norm=False, partial_rotary_factor=0.5, rope_theta=1000000, rms_norm_eps=1e-5,
                vocab_size=151552, num_nextn_predict_layers=1, tie_word_embeddings=False, torch_dtype="bfloat16")


def gpt_oss():
    return dict(architectures=["GptOssForCausalLM"], model_type="gpt_oss", hidden_size=2880, intermediate_size=2880,
                num_hidden_layers=24, num_attention_heads=64, num_key_value_heads=8, head_dim=64, num_local_experts=32,
                num_experts_per_tok=4, vocab_size=201088, sliding_window=128, attention_bias=True, swiglu_limit=7.0,
                layer_types=["sliding_attention", "full_attention"] * 12, rope_theta=150000, rms_norm_eps=1e-5,
                rope_scaling=dict(rope_type="yarn", factor=32.0, original_max_position_embeddings=4096, beta_fast=32.0,
                                  beta_slow=1.0, truncate=False), tie_word_embeddings=False, torch_dtype="bfloat16")


QWEN_GATES = layers(48, "mlp.gate") + ["lm_head"]
NVFP4_W = dict(num_bits=4, strategy="tensor_group", group_size=16)
VISION = ["re:.*lm_head", "re:.*self_attn", "re:.*router", "re:.*vision_model.*", "re:.*multi_modal_projector.*"]
KIMI_IGNORE = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]


def files():
    """name -> (config, probed modules)"""
    q3 = ["model.layers.0.self_attn.q_proj", "model.layers.47.mlp.experts.127.down_proj", "model.layers.3.mlp.gate", "lm_head"]
    mx = ["model.layers.0.self_attn.o_proj", "model.layers.31.block_sparse_moe.experts.7.w2",
          "model.layers.5.block_sparse_moe.gate", "lm_head"]
    mx_gates = layers(32, "block_sparse_moe.gate") + ["lm_head"]
    out = {}

    def add(name, config, q, probes, key="quantization_config"):
        out[name] = (dict(config, **{key: q}), probes)
    add("olmoe-1b-7b-fp8-static",
        dict(architectures=["OlmoeForCausalLM"], model_type="olmoe", hidden_size=2048, num_hidden_layers=16,
             num_attention_heads=16, num_key_value_heads=16, intermediate_size=1024, num_experts=64, num_experts_per_tok=8,
             norm_topk_prob=False, clip_qkv=None, vocab_size=50304, rope_theta=10000.0, rms_norm_eps=1e-5,
             tie_word_embeddings=False, torch_dtype="bfloat16"),
        simple(7, "0.8.0", "float-quantized", fp(7, strategy="tensor"), fp(7, strategy="tensor"),
               layers(16, "mlp.gate") + ["lm_head"]), ["model.layers.0.self_attn.q_proj",
               "model.layers.15.mlp.experts.63.down_proj", "model.layers.15.mlp.gate", "lm_head"])
    add("qwen1.5-moe-a2.7b-w4a16",
        dict(architectures=["Qwen2MoeForCausalLM"], model_type="qwen2_moe", hidden_size=2048, num_hidden_layers=24,
             num_attention_heads=16, num_key_value_heads=16, moe_intermediate_size=1408, intermediate_size=5632,
             shared_expert_intermediate_size=5632, num_experts=60, num_experts_per_tok=4, norm_topk_prob=False,
             decoder_sparse_step=1, vocab_size=151936, rope_theta=1000000.0, rms_norm_eps=1e-6, tie_word_embeddings=False,
             torch_dtype="bfloat16"),
        simple(9, "0.9.1", "pack-quantized", w4(9), None,
               layers(24, "mlp.gate") + layers(24, "mlp.shared_expert_gate") + ["lm_head"]),
        ["model.layers.0.mlp.shared_expert.up_proj", "model.layers.23.mlp.experts.59.gate_proj",
         "model.layers.1.mlp.shared_expert_gate", "lm_head"])
    add("qwen3-30b-a3b-w4a16-g128", qwen3_30b(), simple(9, "0.9.5", "pack-quantized", w4(9, actorder="weight"), None, QWEN_GATES), q3)
    add("qwen3-coder-30b-a3b-awq-g32-asym", qwen3_30b(), simple(
        11, "0.11.0", "pack-quantized", qargs(11, num_bits=4, strategy="group", group_size=32, symmetric=False), None, QWEN_GATES), q3)
    add("qwen3-30b-a3b-w8a8", qwen3_30b(), simple(11, "0.10.2", "int-quantized", qargs(11), dyn(11), QWEN_GATES), q3)
    add("qwen3-30b-a3b-fp8-dynamic", qwen3_30b(), simple(
        9, "0.9.4", "float-quantized", fp(9), dyn(9, type="float"), QWEN_GATES, status="frozen"), q3)
    add("qwen3-30b-a3b-fp8-block", qwen3_30b(), simple(
        11, "0.12.2", "float-quantized", fp(11, strategy="block", block_structure=[128, 128]),
        fp(11, strategy="group", group_size=128, dynamic=True, observer=None), ["lm_head", "re:.*mlp.gate$"]), q3)
    add("qwen3-30b-a3b-nvfp4", qwen3_30b(), simple(
        11, "0.10.3", "nvfp4-pack-quantized", fp(11, **NVFP4_W), fp(11, **NVFP4_W, dynamic="local"), QWEN_GATES), q3)
    add("qwen3-30b-a3b-mxfp4a16", qwen3_30b(), simple(
        14, "0.14.0", "mxfp4-pack-quantized", fp(14, num_bits=4, strategy="group", group_size=32) | {"scale_dtype": "torch.uint8"},
        None, ["lm_head", r"re:.*mlp\.gate$"]), q3)
    add("qwen3-30b-a3b-mxfp4a16-0.13", qwen3_30b(), simple(
        13, "0.13.0", "mxfp4-pack-quantized", fp(13, num_bits=4, strategy="group", group_size=32) | {"scale_dtype": "torch.uint8"},
        None, ["lm_head", r"re:.*mlp\.gate$"]), q3)
    add("mixtral-8x7b-w4a16-g128", mixtral(), simple(7, "0.7.1", "pack-quantized", w4(7), None, mx_gates, status="frozen"), mx)
    add("mixtral-8x7b-w4a16-channel", mixtral(), simple(7, "0.7.1", "pack-quantized", w4(7, strategy="channel"), None, mx_gates), mx)
    add("mixtral-8x7b-w8a16", mixtral(), simple(7, "0.7.1", "pack-quantized", qargs(7), None, mx_gates), mx)
    add("mixtral-8x7b-w4a16-actorder-group", mixtral(), simple(9, "0.8.1", "pack-quantized", w4(9, actorder="group"), None, mx_gates), mx)
    old = simple(5, "0.5.0", "float-quantized", fp(5, strategy="tensor"), fp(5, strategy="tensor"), mx_gates, status="frozen")
    add("mixtral-8x7b-fp8-compression-config", mixtral(), {k: v for k, v in old.items() if k != "version"}, mx, "compression_config")
    add("deepseek-coder-v2-lite-w8a8", deepseek_v2_lite(), simple(
        7, "0.7.0", "int-quantized", qargs(7), dyn(7), layers(27, "mlp.gate", 1) + ["lm_head"]),
        ["model.layers.0.mlp.down_proj", "model.layers.1.self_attn.kv_a_proj_with_mqa",
         "model.layers.26.mlp.shared_experts.gate_proj", "model.layers.26.mlp.experts.63.up_proj", "model.layers.26.mlp.gate"])
    add("deepseek-coder-v2-lite-fp8-not-ct", deepseek_v2_lite(), {
        "quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, [])
    add("deepseek-v3-nvfp4a16", dict(
        kimi(), model_type="deepseek_v3", num_attention_heads=128, num_key_value_heads=128, n_routed_experts=256, n_group=8,
        topk_group=4, first_k_dense_replace=3, routed_scaling_factor=2.5, vocab_size=129280, num_nextn_predict_layers=1),
        simple(11, "0.12.2", "nvfp4-pack-quantized", fp(11, **NVFP4_W), None, ["lm_head", r"re:.*mlp\.gate$", r"re:.*kv_b_proj$"]),
        ["model.layers.0.mlp.up_proj", "model.layers.3.self_attn.kv_b_proj", "model.layers.60.mlp.experts.255.up_proj"])
    probes = ["model.layers.0.mlp.down_proj", "model.layers.1.self_attn.o_proj", "model.layers.60.mlp.experts.383.down_proj",
              "model.layers.1.mlp.shared_experts.down_proj", "lm_head"]
    kq = quant(11, "0.11.0", "pack-quantized", {"group_0": group(11, qargs(11, num_bits=4, strategy="group", group_size=32))},
               KIMI_IGNORE)
    add("kimi-k2-thinking", kimi(), kq, probes)
    out["kimi-k2.5"] = (dict(architectures=["KimiK25ForConditionalGeneration"], model_type="kimi_k25", torch_dtype="bfloat16",
                             text_config=dict(kimi(), quantization_config=kq)), ["language_model." + p for p in probes])
    mm = ["model.layers.0.self_attn.q_proj", "model.layers.61.block_sparse_moe.experts.255.w2",
          "model.layers.61.block_sparse_moe.gate", "lm_head"]
    add("minimax-m2.5-w4a16", minimax(), simple(11, "0.13.0", "pack-quantized", w4(11), None, ["lm_head", r"re:.*block_sparse_moe\.gate$"]), mm)
    add("minimax-m2.1-fp8-int4-mixed", minimax(), quant(11, "0.12.2", "mixed-precision", {
        "group_0": group(11, fp(11, strategy="block", block_structure=[128, 128]),
                         fp(11, strategy="group", group_size=128, dynamic=True), [r"re:.*self_attn\.(q|k|v|o)_proj$"], "float-quantized"),
        "group_1": group(11, qargs(11, num_bits=4, strategy="group", group_size=32), None,
                         [r"re:.*block_sparse_moe\.experts\.\d+\.w[1-3]$"], "pack-quantized")},
        ["lm_head", "model.embed_tokens", r"re:.*block_sparse_moe\.gate$"]), mm)
    sc = ["language_model.model.layers.0.self_attn.q_proj", "language_model.model.layers.47.feed_forward.experts.15.down_proj",
          "language_model.model.layers.47.feed_forward.shared_expert.up_proj", "language_model.model.layers.0.feed_forward.router"]
    add("llama-4-scout-w4a16", scout(), simple(9, "0.9.4", "pack-quantized", w4(9), None, VISION), sc)
    add("llama-4-scout-fp8-dynamic", scout(), simple(9, "0.9.3", "float-quantized", fp(9), dyn(9, type="float"), VISION, status="frozen"), sc)
    add("llama-4-scout-nvfp4", scout(), simple(
        11, "0.10.3", "nvfp4-pack-quantized", fp(11, **NVFP4_W), fp(11, **NVFP4_W, dynamic="local"), VISION), sc)
    gl = ["model.layers.0.mlp.gate_proj", "model.layers.45.mlp.experts.127.gate_proj", "model.layers.45.mlp.shared_experts.down_proj",
          "model.layers.45.mlp.gate", "model.layers.46.mlp.experts.0.up_proj", "lm_head"]
    add("glm-4.5-air-nvfp4", glm_air(), simple(
        11, "0.11.0", "nvfp4-pack-quantized", fp(11, **NVFP4_W), fp(11, **NVFP4_W, dynamic="local"),
        layers(46, "mlp.gate", 1) + ["lm_head"]), gl)
    add("glm-4.5-air-w4a16-g32", glm_air(), simple(
        11, "0.12.0", "pack-quantized", qargs(11, num_bits=4, strategy="group", group_size=32), None, ["lm_head", "re:.*mlp.gate$"]), gl)
    go = ["model.layers.0.self_attn.q_proj", "model.layers.23.mlp.experts.31.down_proj", "model.layers.0.mlp.router", "lm_head"]
    add("gpt-oss-20b-w8a8", gpt_oss(), simple(15, "0.15.0", "int-quantized", qargs(15), dyn(15), layers(24, "mlp.router") + ["lm_head"]), go)
    add("gpt-oss-20b-native-mxfp4", gpt_oss(), {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}, [])
    add("preset-shorthand", qwen3_30b(), quant(18, "0.18.0", "float-quantized", {"FP8_DYNAMIC": ["Linear"]}, ["lm_head", "re:.*mlp.gate$"]), q3)
    return out


def expected(config, probes):
    import torch
    from make_checkpoints_expected import describe, schemes_of
    q = config.get("quantization_config") or config.get("text_config", {}).get("quantization_config") or config.get("compression_config")
    if q["quant_method"] != "compressed-tensors":
        return {"quant_method": q["quant_method"]}
    found, fmt = schemes_of(q, {m: {"weight": torch.empty(256, 256, device="meta")} for m in probes})
    return {"modules": {m: s and describe(s, str(getattr(s.format or fmt, "value", s.format or fmt))) for m, s in found.items()}}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", default=str(HERE.parent / "golden" / "configs"))
    out = Path(ap.parse_args().out)
    out.mkdir(parents=True, exist_ok=True)
    said = {}
    for name, (config, probes) in files().items():
        (out / f"{name}.json").write_text(json.dumps(config, indent=1) + "\n")
        said[name] = expected(config, probes)
    lines = ",\n".join(f' "{n}": {json.dumps(e)}' for n, e in said.items())
    (out / "expected.json").write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
