# SPDX-License-Identifier: Apache-2.0
"""A tiny random model of every mixture-of-experts architecture that the installed transformers knows.

Input: nothing but the library. The architectures are found (a model type whose modeling file speaks of experts and which has a
head that makes logits), their configurations are shrunk by the names of their fields, and only where that is not enough a
line in SPECIAL helps. A new release therefore shows its new architectures by itself.
"""
import re
import zlib
from pathlib import Path

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES, model_type_to_module_name

# Heads that make logits, the whole model of a wrapper before its text part.
HEADS = ["IMAGE_TEXT_TO_TEXT", "TEXT_TO_WAVEFORM", "MULTIMODAL_LM", "CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "TOKEN_CLASSIFICATION",
         "POSE_ESTIMATION"]

EXPERTS, TOP_K, LAYERS, HIDDEN, VOCAB = 8, 2, 4, 64, 96

# Field of a configuration -> its value in a tiny model; the first pattern that matches the whole name counts. Fields that a
# configuration does not have, or has as None, stay away.
RULES = [
    (r"vocab_size|text_vocab_size|audio_vocab_size|codec_vocab_size|mm_vocab_size", VOCAB),
    (r"(num_|n_)?hidden_layers|num_layers|n_layers?|depth|encoder_layers|decoder_layers|num_encoder_layers|num_decoder_layers|"
     r"num_sparse_(en|de)coder_layers", LAYERS),
    (r"hidden_size|d_model|n_embd|embed_dim|width|out_hidden_size|output_dim|text_hidden_size|backbone_hidden_size", HIDDEN),
    (r"hidden_size_per_layer_input", 0),
    (r"moe_intermediate_size|expert_intermediate_size|moe_ffn_hidden_size|expert_ffn_hidden_size|expert_ffn_dim", 32),
    (r"shared_expert_intermediate_size|moe_shared_expert_intermediate_size|share_expert_dim|shared_intermediate_size", 48),
    (r"(dense_|prefix_dense_|block_|mlp_)?intermediate_size|intermediate_size_mlp|ffn_hidden_size|d_ff|encoder_ffn_dim|decoder_ffn_dim|mlp_hidden_size|dense_ffn_dim|"
     r"swa_intermediate_size", 96),
    (r"(swa_|linear_|decoder_|encoder_|global_)?(num_attention_heads|num_heads|n_heads?|attention_heads|num_query_heads)", 4),
    (r"(swa_|linear_|global_)?(num_key_value_heads|num_kv_heads|kv_n_heads|num_global_key_value_heads)|num_attention_groups", 2),
    (r"(swa_|linear_|global_)?head_dim|attention_head_dim|d_kv|kv_channels|linear_(key|value)_head_dim|attn_head_dim|index_head_dim|swa_v_head_dim", 16),
    (r"linear_num_key_heads", 2), (r"linear_num_value_heads", 4),
    (r"num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_routed_experts|ffn_num_experts|n_experts|num_moe_experts", EXPERTS),
    (r"num_experts_per_tok|num_experts_per_token|experts_per_token|moe_topk|moe_top_k|top_k_experts|moe_k|num_selected_experts|ffn_top_k|num_experts_per_layer", TOP_K),
    (r"zero_expert_num", 2),
    (r"n_group|num_expert_group|expert_group", 2), (r"topk_group", 1),
    (r"first_k_dense_replace|num_dense_layers|moe_layer_start_index|dense_first_layers|num_first_dense_layers", 1),
    (r"q_lora_rank|kv_lora_rank|o_lora_rank|output_lora_rank", 32), (r"qk_nope_head_dim|qk_rope_head_dim|v_head_dim|rotary_dim", 16),
    (r"qk_head_dim", 32),
    (r"index_n_heads", 16), (r"index_topk", 8),
    (r"max_position_embeddings|max_sequence_length|n_positions|max_target_positions|max_source_positions|max_seq_len|seq_length", 256),
    (r"sliding_window|sliding_window_size|attention_chunk_size|window_size|attn_window", 8),
    (r"mamba_n_heads|mamba_num_heads|mamba_n_mamba_heads", 8), (r"mamba_d_head|mamba_head_dim", 16), (r"mamba_d_state|ssm_state_size|mamba_state_dim", 16),
    (r"mamba_n_groups|n_groups", 2), (r"mamba_dt_rank", 4), (r"mamba_chunk_size|chunk_size", 16),
    (r"image_size|img_size", 32), (r"patch_size", 8), (r"num_position_embeddings", 16),
    (r"pad_token_id", 0), (r"bos_token_id", 1), (r"eos_token_id", 2), (r"decoder_start_token_id", 1),
    (r"num_mel_bins", 16), (r"router_aux_loss_coef", 0.0),
]
EXPERT_FIELDS = ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts"]
FIXED_TOP_K = {"nllb-moe": 2, "switch_transformers": 1}     # no field says it
TOP_K_FIELDS = ["num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k_experts", "moe_k", "num_selected_experts"]
# What names alone do not tell: {model type: {field: value}}, dots go into sub-configurations.
FULL = "full_attention"
DENSE_FIRST = ["dense"] + ["sparse"] * (LAYERS - 1)
QWEN4 = {"indexer_n_heads": 16, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 8, "indexer_compress_ratio": 4,
         "hc_lowrank": 16, "eos_token_id": 2, "ple_layer_ids": [1, 3], "ngram_vocab_size_base": 30, "split_ngram_parts": 3}
SPECIAL = {
    "bailing_hybrid": {"layer_types": ["linear_attention", FULL] * 2},
    "dbrx": {"attn_config.rope_theta": 10000.0, "attn_config.clip_qkv": 8.0},
    "doge": {"is_moe": True, "num_experts": 16},
    "deepseek_v4": {"num_key_value_heads": 1, "o_groups": 2, "index_topk": 3, "partial_rotary_factor": 0.5,
                    "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention", "compressed_sparse_attention"],
                    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
                    "mlp_layer_types": ["hash_moe", "moe", "hash_moe", "moe"],
                    "rope_parameters": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "beta_fast": 32.0, "beta_slow": 1.0}},
    "deepseek_v2": {"num_experts_per_tok": TOP_K},
    "deepseek_ocr2": {"text_config.num_experts_per_tok": TOP_K, "text_config.mlp_layer_types": DENSE_FIRST, "text_config.num_key_value_heads": 4},
    "dots1": {"n_routed_experts": EXPERTS, "n_shared_experts": 1, "num_experts_per_tok": TOP_K},
    "ernie4_5_vl_moe": {"text_config.moe_intermediate_size": [32, 16],
                        "text_config.rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2]}},
    "gemma4": {"text_config.enable_moe_block": True, "text_config.num_experts": EXPERTS, "text_config.top_k_experts": TOP_K,
               "text_config.moe_intermediate_size": 32, "text_config.num_global_key_value_heads": 1, "text_config.global_head_dim": 32},
    "gemma4_text": {"enable_moe_block": True, "num_experts": EXPERTS, "top_k_experts": TOP_K, "moe_intermediate_size": 32,
                    "num_global_key_value_heads": 1, "global_head_dim": 32},
    "diffusion_gemma": {"text_config.global_head_dim": 32, "text_config.num_experts": EXPERTS, "text_config.top_k_experts": TOP_K,
                        "text_config.moe_intermediate_size": 32, "text_config.num_global_key_value_heads": 1},
    "glm4v_moe": {"text_config.rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
                                                  "mrope_section": [2, 1, 1]}},
    "glm5_next": {"text_config.num_key_value_heads": 4, "text_config.index_topk": 8, "text_config.index_kpool": 4,
                  "text_config.qk_rope_head_dim": 0, "text_config.swiglu_limit": 0.5},
    "granitemoe": {"attention_multiplier": 0.125},
    "granitemoe_swa": {"attention_multiplier": 0.125},
    "granitemoeshared": {"attention_multiplier": 0.125},
    "granitemoehybrid": {"layer_types": ["mamba", FULL] * 2},
    "hunyuan_v1_moe": {"head_dim": 16},
    "inkling_text": {"layer_types": ["hybrid_sliding", "hybrid"] * 2, "mlp_layer_types": DENSE_FIRST, "rel_extent": 12, "log_scaling_n_floor": 6},
    "inkling_mm_model": {"text_config.layer_types": ["hybrid_sliding", "hybrid"] * 2, "text_config.mlp_layer_types": DENSE_FIRST,
                         "text_config.rel_extent": 12, "text_config.log_scaling_n_floor": 6},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {"layer_types": ["linear_attention", FULL] * 2},
    "lfm2_moe": {"layer_types": ["conv", FULL] * 2},
    "llama4": {"vision_config.vision_output_dim": HIDDEN, "vision_config.projector_input_dim": HIDDEN,
               "vision_config.projector_output_dim": HIDDEN},
    # as published; without them post-norms amplify the order of f32 sums twentyfold
    "minimax": {f"{part}_alpha_factor": 3.5565588200778455 for part in ("full_attn", "linear_attn", "mlp")},
    "mistral4": {"head_dim": 32},
    "mimo_v2_flash": {"rope_parameters": {t: {"rope_type": "default", "rope_theta": b, "partial_rotary_factor": 0.5}
                                          for t, b in ((FULL, 50000.0), ("sliding_attention", 10000.0))}},   # a third of 16 is odd
    "muse_spark": {"text_config.moe_hidden_size": 48, "audio_config.conv_ffn_dim": 96, "vision_adapter_dim": 64},
    "qwen4_exp": {f"text_config.{k}": v for k, v in QWEN4.items()},
    "qwen4_exp_text": QWEN4,
    "qwen3_omni_moe": {"talker_config.text_config.shared_expert_intermediate_size": 48,
                       "talker_config.spatial_merge_size": 2},
    "minimax_m3_vl": {"text_config.layer_types": [FULL, "minimax_m3_sparse"] * 2, "text_config.index_n_heads": 2,
                      "text_config.index_block_size": 4, "text_config.index_topk_blocks": 3},
    "step3p7": {"text_config.sliding_window": 8, "text_config.layer_types": [FULL, "sliding_attention"] * 2,
                "text_config.num_sliding_attention_heads": 8, "text_config.swiglu_limits": [0.0, 0.25, 0.0, 0.5],
                "text_config.swiglu_limits_shared": [0.5, 0.0, 0.25, 0.0], "text_config.mlp_layer_types": DENSE_FIRST},
    "unlimited_ocr": {"text_config.num_key_value_heads": 4},
    "zaya": {"num_experts_per_tok": 1},
}


def text_of(module):
    folder = Path(transformers.__file__).parent / "models" / module
    return "".join(p.read_text() for p in sorted(folder.glob("modeling_*.py")))


def model_types():
    """(model type, name of the class that makes logits) of everything with experts; the wrapper, not its parts."""
    found = {}
    for kind in CONFIG_MAPPING_NAMES:
        module = model_type_to_module_name(kind)
        if not re.search(r"\w+Experts\b|class \w*(Moe|MoE|MOE)\w*\(nn\.Module", text_of(module)):
            continue
        for head in HEADS:
            table = getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES", {})
            if kind in table:
                name = table[kind]
                found[kind] = name[0] if isinstance(name, (tuple, list)) else name
                break
    return sorted(found.items())


def shrink(default, kind, path=""):
    """Arguments that make a tiny configuration like `default`; what is nested is shrunk too."""
    own, nested, args = vars(default), getattr(type(default), "sub_configs", {}) or {}, {}
    for name, value in sorted(own.items()):
        if name in nested and value is not None:
            args[name] = shrink(value, kind, f"{path}{name}.")
            continue
        if value is None or isinstance(value, (dict, str, bool)):
            continue
        small = next((small for pattern, small in RULES if re.fullmatch(pattern, name)), None)
        if small is not None and (not isinstance(value, (list, tuple)) or name.endswith("token_id")):
            args[name] = small
    if "kv_lora_rank" in args and "num_key_value_heads" in args:       # latent attention has one key per head
        args["num_key_value_heads"] = args["num_attention_heads"]
    for name, value in SPECIAL.get(kind, {}).items():
        if name.startswith(path) and "." not in name[len(path):]:
            args[name[len(path):]] = value
    return args


def randomize(model, kind):
    """Values with structure: transformers' own initialization is too small and too even to show a mistake."""
    g = torch.Generator().manual_seed(zlib.crc32(kind.encode()) & 0x7FFFFFFF)
    for name, b in sorted(model.named_buffers()):
        if name.endswith("tid2eid"):     # experts by token id
            b.data = torch.rand(b.shape[0], EXPERTS, generator=g).argsort(1)[:, :b.shape[1]].contiguous()
    for name, p in sorted(list(model.named_parameters()) + [b for b in model.named_buffers() if re.search(r"bias|\balpha$", b[0])]):
        if not p.is_floating_point() or p.is_meta:
            continue
        r = torch.randn(p.shape, generator=g)
        last = name.rsplit(".", 1)[-1]
        if "correction_bias" in name or "sink" in name:
            p.data = 0.3 * r
        elif last in ("A_log", "dt_bias", "A"):
            p.data = 0.5 * torch.rand(p.shape, generator=g)
        elif p.ndim <= 1 and "norm" in name and not p.any():     # weights of 1 + w
            p.data = 0.2 * r
        elif p.ndim <= 1:
            p.data = (1.0 + 0.2 * r) if "bias" not in last else 0.2 * r
        elif ".gate.weight" in name or "router" in name:
            p.data = 0.4 * r
        elif "embed" in name:
            p.data = r
        else:
            rows = torch.rand(p.shape[:-1] + (1,), generator=g)
            p.data = (r + (rows - 0.5)) * (0.05 + 0.2 * rows)


def make(kind, head):
    """The model in f32, eager."""
    module = __import__(f"transformers.models.{model_type_to_module_name(kind)}", fromlist=["x"])
    cls = getattr(transformers, head, None) or getattr(module, head)
    config_class = CONFIG_MAPPING[kind] if cls.config_class is None else cls.config_class
    config = config_class(**shrink(config_class(), kind))
    config._attn_implementation = "eager"
    torch.manual_seed(1)
    model = cls(config).to(torch.float32).eval()
    randomize(model, kind)
    return model
