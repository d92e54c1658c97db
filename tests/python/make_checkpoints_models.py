# SPDX-License-Identifier: Apache-2.0
"""Tiny dense models, one per family, that the golden checkpoints are quantized from.

Input: nothing but a seed derived from the model's key. Output: a Hugging Face folder (config.json,
generation_config.json, model.safetensors in bf16) written by transformers' own save_pretrained.
Invariants: every folder is a function of its key alone; weights have row-wise different magnitudes and
means, so that a decoder mixing up rows, groups or zero points cannot pass; routers are wide enough
that the top-k choice is far from a tie.
"""
import re
import zlib

import torch

COMMON = dict(vocab_size=64, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0,
              tie_word_embeddings=False)
SMALL = dict(COMMON, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
HEADS = dict(SMALL, head_dim=16)
FAMILY = dict(SMALL, vocab_size=32)
FHEADS = dict(HEADS, vocab_size=32)
QWEN3 = dict(HEADS, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True, decoder_sparse_step=1)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=32, beta_fast=32.0,
            beta_slow=1.0)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=32,
              low_freq_factor=1.0, high_freq_factor=4.0)
LONGROPE = dict(rope_type="longrope", rope_theta=10000.0, original_max_position_embeddings=32, factor=8.0,
                short_factor=[1.0 + 0.05 * i for i in range(8)], long_factor=[1.0 + 0.5 * i for i in range(8)],
                short_mscale=1.25, long_mscale=1.5)
MLA = dict(COMMON, vocab_size=32, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=32,
           qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16, intermediate_size=64, moe_intermediate_size=32,
           n_routed_experts=4, n_shared_experts=2, num_experts_per_tok=2, first_k_dense_replace=1)

QWEN_LINEAR = dict(FHEADS, intermediate_size=32, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True,
                   shared_expert_intermediate_size=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
                   linear_value_head_dim=16, linear_conv_kernel_dim=4,
                   rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))
# The youngest families, as small as they can be: 2 layers, 4 experts of width 16, one of them shared.
TINY = dict(COMMON, vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            intermediate_size=32)
THEADS = dict(TINY, head_dim=16, moe_intermediate_size=16, num_experts_per_tok=2)
ROUTED = dict(THEADS, n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5)

TINY_MLA = dict(MLA, hidden_size=32, num_attention_heads=2, num_key_value_heads=2, kv_lora_rank=32, q_lora_rank=32, intermediate_size=32,
                moe_intermediate_size=32, n_shared_experts=1, n_group=2, topk_group=1, routed_scaling_factor=1.8, norm_topk_prob=True)
# 6 keys of what comes before are seen: tests look at sequences on both sides of it. Enough heads that no score is 0: ties are left to torch
SPARSE = dict(TINY_MLA, index_n_heads=16, index_head_dim=16, index_topk=6)

WINDOW_FIRST, WINDOW_LAST = ["sliding_attention", "full_attention"], ["full_attention", "sliding_attention"]
TWO_ROPES = dict(full_attention=dict(rope_type="default", rope_theta=50000.0, partial_rotary_factor=0.5),
                 sliding_attention=dict(rope_type="default", rope_theta=1000.0, partial_rotary_factor=0.75))
MIXED = ["linear_attention", "full_attention"]

WRAPPED = dict(THEADS, num_experts=4, norm_topk_prob=True, moe_intermediate_size=32, decoder_sparse_step=1,
               rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[4, 2, 2], mrope_interleaved=True))

# key: (config class, arguments)
QWEN4 = dict(COMMON, vocab_size=32, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
             linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16, moe_intermediate_size=32,
             shared_expert_intermediate_size=32, num_experts=4, num_experts_per_tok=2, hc_lowrank=32, indexer_n_heads=16, indexer_kv_heads=1,
             indexer_head_dim=16, indexer_budget=8, indexer_compress_ratio=4, ple_layer_ids=[1, 3], ple_embed_dim=32, heads_per_ngram=4,
             ngram_vocab_size_base=20, make_ngram_vocab_size_divisible_by=16, split_ngram_parts=3, eos_token_id=5,
             layer_types=["linear_attention", "indexed_attention", "linear_attention"],
             rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5, mrope_section=[2, 1, 1]))
MODELS = {
    # Qwen3-MoE in six sizes: small (layer 0 dense), wide (K = 128 and 256), odd, both layers MoE, one layer (twice)
    "qwen3moe": ("Qwen3MoeConfig", dict(QWEN3, intermediate_size=96, moe_intermediate_size=96, mlp_only_layers=[0])),
    "qwen3moe-wide": ("Qwen3MoeConfig", dict(QWEN3, vocab_size=16, hidden_size=128, intermediate_size=256,
                                             moe_intermediate_size=256, num_attention_heads=8, num_hidden_layers=1,
                                             num_experts=2)),
    "qwen3moe-odd": ("Qwen3MoeConfig", dict(QWEN3, hidden_size=192, intermediate_size=200, moe_intermediate_size=200,
                                            num_hidden_layers=1, num_experts=2, head_dim=48, num_key_value_heads=1)),
    "qwen3moe-two": ("Qwen3MoeConfig", dict(QWEN3, vocab_size=32, intermediate_size=96, moe_intermediate_size=32)),
    "qwen3moe-one": ("Qwen3MoeConfig", dict(QWEN3, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=1,
                                            num_experts=2)),
    "qwen3moe-mini": ("Qwen3MoeConfig", dict(QWEN3, vocab_size=16, intermediate_size=96, moe_intermediate_size=32,
                                             num_hidden_layers=1, num_experts=2)),
    "olmoe": ("OlmoeConfig", dict(FAMILY, intermediate_size=32, num_experts=4, num_experts_per_tok=2, norm_topk_prob=False,
                                  num_key_value_heads=4)),
    "mixtral": ("MixtralConfig", dict(FAMILY, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2)),
    "qwen2moe": ("Qwen2MoeConfig", dict(FAMILY, intermediate_size=64, moe_intermediate_size=32, num_experts=4,
                                        shared_expert_intermediate_size=64, num_experts_per_tok=2, norm_topk_prob=False)),
    "deepseekv2": ("DeepseekV2Config", dict(MLA, q_lora_rank=None, topk_method="greedy", norm_topk_prob=False,
                                            rope_parameters=dict(YARN, mscale=0.707, mscale_all_dim=0.707),
                                            routed_scaling_factor=1.0)),
    "deepseekv3": ("DeepseekV3Config", dict(MLA, n_routed_experts=8, n_shared_experts=1, q_lora_rank=32, n_group=4,
                                            topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5,
                                            rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0))),
    "glm4moe": ("Glm4MoeConfig", dict(FHEADS, intermediate_size=64, moe_intermediate_size=32, n_routed_experts=4,
                                      n_shared_experts=1, num_experts_per_tok=2, first_k_dense_replace=1, n_group=1,
                                      topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5, attention_bias=True,
                                      use_qk_norm=True, partial_rotary_factor=0.5)),
    "gptoss": ("GptOssConfig", dict(FHEADS, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2,
                                    sliding_window=8, rope_parameters=dict(YARN, truncate=False))),
    "granitemoe": ("GraniteMoeConfig", dict(FAMILY, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2,
                                            embedding_multiplier=1.5, attention_multiplier=0.125,
                                            residual_multiplier=0.5, logits_scaling=2.0)),
    "minimaxm2": ("MiniMaxM2Config", dict(FHEADS, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2,
                                          rotary_dim=8)),
    "llama4": ("Llama4TextConfig", dict(FHEADS, intermediate_size=32, intermediate_size_mlp=64, num_hidden_layers=2,
                                        num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2,
                                        no_rope_layers=[1, 0], attention_chunk_size=8, use_qk_norm=True,
                                        attn_temperature_tuning=True, floor_scale=8, attn_scale=0.1,
                                        rope_parameters=LLAMA3)),
    "phimoe": ("PhimoeConfig", dict(FAMILY, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2,
                                    attention_bias=True, lm_head_bias=True, router_jitter_noise=0.01,
                                    rope_parameters=LONGROPE)),
    "glm4moelite": ("Glm4MoeLiteConfig", dict(MLA, hidden_size=32, num_attention_heads=2, num_key_value_heads=2, kv_lora_rank=16,
                                              q_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8, intermediate_size=32,
                                              moe_intermediate_size=16, n_shared_experts=1, n_group=1, topk_group=1,
                                              routed_scaling_factor=1.8, norm_topk_prob=True)),
    "solaropen": ("SolarOpenConfig", ROUTED),
    "dots1": ("Dots1Config", dict(ROUTED, first_k_dense_replace=1, sliding_window=8, max_window_layers=1)),
    "ernie45moe": ("Ernie4_5_MoeConfig", dict(TINY, moe_intermediate_size=16, moe_num_experts=4, moe_num_shared_experts=1, moe_k=2,
                                              moe_layer_start_index=1, use_bias=True)),
    # as published: without biases, which llm-compressor leaves unset in experts that it takes apart
    "ernie45moe-plain": ("Ernie4_5_MoeConfig", dict(TINY, moe_intermediate_size=32, moe_num_experts=4, moe_num_shared_experts=1, moe_k=2,
                                                    moe_layer_start_index=1, use_bias=False)),
    "exaonemoe": ("ExaoneMoeConfig", dict(THEADS, num_experts=4, num_shared_experts=1, first_k_dense_replace=0, sliding_window=8,
                                          sliding_window_pattern=2, n_group=1, topk_group=1, routed_scaling_factor=2.5,
                                          norm_topk_prob=True)),
    "hunyuanmoe": ("HunYuanMoEV1Config", dict(TINY, intermediate_size=16, head_dim=16, num_experts=4, moe_topk=2,
                                              rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, alpha=100.0, factor=1.0))),
    "hyv3": ("HYV3Config", dict(THEADS, num_experts=4, num_shared_experts=1, router_scaling_factor=1.5)),
    "granitemoeshared": ("GraniteMoeSharedConfig", dict(TINY, intermediate_size=16, num_local_experts=4, num_experts_per_tok=2,
                                                        shared_intermediate_size=24, embedding_multiplier=1.5,
                                                        attention_multiplier=0.125, residual_multiplier=0.5, logits_scaling=2.0)),
    "ariatext": ("AriaTextConfig", dict(TINY, intermediate_size=16, moe_num_experts=4, moe_topk=2, moe_num_shared_experts=1)),
    # windows, full attention with other heads whose values are keys; the last two layers take keys and values of the first two
    "gemma4": ("Gemma4TextConfig", dict(TINY, num_hidden_layers=4, num_key_value_heads=2, head_dim=16, global_head_dim=32,
                                        num_global_key_value_heads=1, attention_k_eq_v=True, num_kv_shared_layers=2, sliding_window=8,
                                        layer_types=["sliding_attention", "full_attention"] * 2, hidden_size_per_layer_input=0,
                                        enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=32,
                                        final_logit_softcapping=0.5, tie_word_embeddings=True)),
    # the dense MLPs of the layers that take keys and values are twice as wide
    "gemma4wide": ("Gemma4TextConfig", dict(TINY, vocab_size=16, num_key_value_heads=1, head_dim=16, global_head_dim=16, num_kv_shared_layers=1,
                                            use_double_wide_mlp=True, sliding_window=8, layer_types=["full_attention"] * 2,
                                            hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=4, top_k_experts=2,
                                            moe_intermediate_size=16, tie_word_embeddings=True)),
    "mistral4": ("Mistral4Config", dict(TINY_MLA, rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1,
                                                                       original_max_position_embeddings=4))),
    "deepseekv32": ("DeepseekV32Config", SPARSE),
    "glmmoedsa": ("GlmMoeDsaConfig", dict(SPARSE, n_group=1, indexer_types=["full", "shared"])),
    "mimov2flash": ("MiMoV2FlashConfig", dict(TINY, num_attention_heads=4, head_dim=16, v_head_dim=8, moe_intermediate_size=32, n_routed_experts=4,
                                              num_experts_per_tok=2, sliding_window=8, layer_types=WINDOW_LAST, rope_parameters=TWO_ROPES)),
    "flexolmo": ("FlexOlmoConfig", dict(TINY, num_experts=4, num_experts_per_tok=2, norm_topk_prob=False)),
    "afmoe": ("AfmoeConfig", dict(THEADS, moe_intermediate_size=32, num_experts=4, num_shared_experts=1, route_scale=1.5, mup_enabled=True,
                                  sliding_window=8, layer_types=WINDOW_FIRST)),
    "cohere2moe": ("Cohere2MoeConfig", dict(TINY, head_dim=16, num_experts=4, num_experts_per_tok=2, logit_scale=0.25, sliding_window=8,
                                            prefix_dense_intermediate_size=32, num_hidden_layers=3, first_k_dense_replace=1,
                                            sliding_window_pattern=2)),
    "laguna": ("LagunaConfig", dict(THEADS, moe_intermediate_size=32, shared_expert_intermediate_size=32, num_experts=4, sliding_window=8,
                                    layer_types=WINDOW_FIRST, num_attention_heads_per_layer=[2, 4], moe_routed_scaling_factor=1.5,
                                    rope_parameters=TWO_ROPES)),
    # 2026: windows and layers without rotation, sinks, sandwich norms, gates, limits behind the activation, layers that are two
    "flint": ("FlintConfig", dict(THEADS, moe_intermediate_size=32, shared_expert_intermediate_size=32, num_experts=4, sliding_window=8,
                                  layer_types=["full_attention", "sliding_attention", "full_attention"], num_hidden_layers=3,
                                  mlp_only_layers=[0])),
    "kolibri1": ("Kolibri1Config", dict(COMMON, vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                                        head_dim=16, moe_intermediate_size=32, shared_expert_intermediate_size=32, num_experts=4,
                                        num_experts_per_tok=2, sliding_window=8, layer_types=WINDOW_FIRST)),
    "axk1": ("AXK1Config", dict(TINY_MLA)),
    "step3p7": ("Step3p7Config", dict(text_config=dict(THEADS, moe_intermediate_size=32, share_expert_dim=32, n_routed_experts=4, num_hidden_layers=3,
                                                       layer_types=["full_attention", "sliding_attention", "full_attention"], sliding_window=8,
                                                       num_sliding_attention_heads=4, moe_router_scaling_factor=1.5, rope_parameters=TWO_ROPES,
                                                       mlp_layer_types=["dense", "sparse", "sparse"], swiglu_limits=[0.0, 0.25, 0.0],
                                                       swiglu_limits_shared=[0.5, 0.0, 0.125]),
                                      vision_config=dict(num_hidden_layers=1, hidden_size=16, intermediate_size=16, num_attention_heads=2, patch_size=2,
                                                         image_size=4), tie_word_embeddings=False)),
    "ernie45vlmoe": ("Ernie4_5_VLMoeConfig", dict(text_config=dict(TINY, head_dim=16, moe_intermediate_size=[32, 16], moe_num_experts=4,
                                                                   moe_num_shared_experts=1, moe_k=2,
                                                                   rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[3, 3, 2])),
                                                  vision_config=dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=2,
                                                                     spatial_merge_size=2, temporal_merge_size=2), tie_word_embeddings=False)),
    "beam": ("BeamConfig", dict(THEADS, moe_intermediate_size=32, num_experts=4, n_group=2, topk_group=1, sliding_window=8, layer_types=WINDOW_FIRST,
                                mlp_layer_types=["dense", "sparse"])),
    "longcatflash": ("LongcatFlashConfig", dict(COMMON, vocab_size=32, hidden_size=32, num_layers=2, num_attention_heads=2, ffn_hidden_size=32,
                                                kv_lora_rank=32, q_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, head_dim=16,
                                                v_head_dim=16, expert_ffn_hidden_size=32, n_routed_experts=4, zero_expert_num=2, moe_topk=3,
                                                routed_scaling_factor=2.0)),
    "bailinghybrid": ("BailingHybridConfig", dict(COMMON, vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                                                  num_key_value_heads=2, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16,
                                                  head_dim=16, intermediate_size=32, moe_intermediate_size=32, num_local_experts=4,
                                                  n_shared_experts=1, num_experts_per_tok=2, n_group=2, topk_group=1, first_k_dense_replace=1,
                                                  routed_scaling_factor=1.5, layer_types=MIXED)),
    # four streams of rows; 6 keys are seen; limits that only routed experts have
    "hyv4": ("HYV4Config", dict(COMMON, vocab_size=32, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, kv_lora_rank=32, q_lora_rank=32,
                                qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, intermediate_size=32, moe_intermediate_size=32,
                                n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, routed_scaling_factor=1.5, index_n_heads=16,
                                index_head_dim=16, index_topk=6, indexer_types=["full", "full", "shared"], swiglu_limit=0.25, hc_magnitude=1.5)),
    # windows of 8, compressed keys of 4 tokens of which 5 are chosen, and of 16; the first layer chooses experts by token id
    "deepseekv4": ("DeepseekV4Config", dict(COMMON, vocab_size=32, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1,
                                            head_dim=16, partial_rotary_factor=0.5, q_lora_rank=32, o_groups=2, o_lora_rank=32, moe_intermediate_size=32,
                                            n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, index_n_heads=16, index_head_dim=16,
                                            index_topk=5, sliding_window=8, swiglu_limit=0.25, hc_sinkhorn_iters=3,
                                            layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
                                            mlp_layer_types=["hash_moe", "moe", "moe"], rope_parameters=YARN,
                                            compress_rates=dict(compressed_sparse_attention=4, heavily_compressed_attention=16))),
    # keys of 4 tokens of which 2 are chosen, taken by the next layer too; streams that are mixed, and their mean
    "glm5next": ("Glm5NextConfig", dict(text_config=dict(COMMON, vocab_size=32, hidden_size=32, num_hidden_layers=3, num_attention_heads=2,
                                                         num_key_value_heads=2, kv_lora_rank=32, q_lora_rank=32, qk_nope_head_dim=16, v_head_dim=16,
                                                         intermediate_size=32, moe_intermediate_size=32, n_routed_experts=4, n_shared_experts=1,
                                                         num_experts_per_tok=2, routed_scaling_factor=1.5, index_n_heads=16, index_head_dim=16,
                                                         index_kpool=4, index_topk=8, linear_num_heads=2, linear_head_dim=32, swiglu_limit=0.25,
                                                         hc_sinkhorn_iters=3, layer_types=["linear_attention", "indexed_attention", "indexed_attention"],
                                                         indexer_types=["full", "full", "shared"], mlp_layer_types=["dense", "sparse", "sparse"]),
                                        vision_config=dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=2, image_size=4,
                                                           temporal_patch_size=1, spatial_merge_size=1, out_hidden_size=16,
                                                           projection_intermediate_size=16), tie_word_embeddings=False)),
    # streams that gates mix, averages of 4 keys of which 2 are chosen, tables by n-grams in three parts; text ends at token 5
    "qwen4exp": ("Qwen4ExpConfig", dict(text_config=QWEN4, tie_word_embeddings=False,
                                        vision_config=dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=2,
                                                           temporal_patch_size=1, spatial_merge_size=1, out_hidden_size=32,
                                                           num_position_embeddings=4))),
    "qwen4exptext": ("Qwen4ExpTextConfig", dict(QWEN4, output_gate_type="sigmoid", ple_layer_ids=[1], ngram_size=2)),
    # blocks of 4 keys, two of them chosen by every kv head, and the own one
    "minimaxm3": ("MiniMaxM3VLConfig", dict(text_config=dict(COMMON, vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                                             num_key_value_heads=2, head_dim=16, intermediate_size=32, dense_intermediate_size=32,
                                                             shared_intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, rotary_dim=8,
                                                             index_n_heads=2, index_head_dim=16, index_block_size=4, index_topk_blocks=3,
                                                             index_local_blocks=1, layer_types=["full_attention", "minimax_m3_sparse"],
                                                             mlp_layer_types=["dense", "sparse"],
                                                             rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)),
                                            vision_config=dict(num_hidden_layers=1, hidden_size=16, intermediate_size=16, num_attention_heads=2,
                                                               patch_size=2, image_size=4, temporal_patch_size=1, spatial_merge_size=1),
                                            projector_hidden_size=16, tie_word_embeddings=False)),
    # rows that gate themselves; queries of a latent with and without its norm, and gates beside them
    "axk2": ("AXK2Config", dict(SPARSE, gated_norm_rank=32)),
    # Mamba-1, and attention without rotation
    "jamba": ("JambaConfig", dict(TINY, num_experts=4, num_experts_per_tok=2, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
                                  expert_layer_offset=0, mamba_d_state=8, mamba_dt_rank=32)),
    # learned rotations and none, latents of other layers, one of which has an indexer of its own
    "mistrallarge4": ("MistralLarge4Config", dict(text_config=dict(COMMON, vocab_size=32, hidden_size=32, num_hidden_layers=4, num_attention_heads=2,
                                                                   num_key_value_heads=2, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16,
                                                                   v_head_dim=16, intermediate_size=32, moe_intermediate_size=32,
                                                                   n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
                                                                   routed_scaling_factor=1.5, index_n_heads=16, index_head_dim=16, index_topk=6,
                                                                   no_rope_layers=[1, 0, 1, 0], kv_source_layers=[0, 1, 0, 1],
                                                                   indexer_types=["full", "full", "shared", "full"],
                                                                   mlp_layer_types=["dense", "sparse", "dense", "sparse"],
                                                                   final_logit_softcapping=4.0, rope_parameters=dict(YARN, attention_factor=1.0)),
                                                  vision_config=dict(model_type="pixtral", num_hidden_layers=1, hidden_size=16, intermediate_size=16,
                                                                     num_attention_heads=2, patch_size=2, image_size=4),
                                                  tie_word_embeddings=False)),
    # logits by distance, in windows and beyond their reach; convolutions; shared experts that the router weighs
    "inkling": ("InklingConfig", dict(text_config=dict(COMMON, vocab_size=32, hidden_size=32, num_hidden_layers=3, num_attention_heads=2,
                                                       num_key_value_heads=1, head_dim=16, swa_num_attention_heads=4, swa_num_key_value_heads=2,
                                                       swa_head_dim=16, sliding_window_size=8, d_rel=16, rel_extent=20, log_scaling_n_floor=16,
                                                       layer_types=["hybrid_sliding", "hybrid", "hybrid_sliding"],
                                                       mlp_layer_types=["dense", "sparse", "sparse"], intermediate_size=32,
                                                       moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=2,
                                                       route_scale=2.0, logits_mup_width_multiplier=4.0),
                                      audio_config=dict(n_mel_bins=2, mel_vocab_size=4, text_hidden_size=32),
                                      vision_config=dict(text_hidden_size=32, patch_size=4, hidden_size=16, n_layers=1, num_attention_heads=2),
                                      tie_word_embeddings=False)),
    # the text alone has names of its own
    "inklingtext": ("InklingTextConfig", dict(TINY, head_dim=16, swa_num_attention_heads=2, swa_num_key_value_heads=2, swa_head_dim=16,
                                              sliding_window_size=8, d_rel=4, rel_extent=20, layer_types=["hybrid_sliding", "hybrid"],
                                              mlp_layer_types=["dense", "sparse"], moe_intermediate_size=16, n_routed_experts=4,
                                              num_experts_per_tok=2, n_shared_experts=1, route_scale=2.0, logits_mup_width_multiplier=4.0)),
    "dbrx": ("DbrxConfig", dict(vocab_size=32, d_model=32, n_heads=2, n_layers=2, max_seq_len=256, bos_token_id=1, eos_token_id=2, pad_token_id=0,
                                attn_config=dict(kv_n_heads=1, clip_qkv=0.5, rope_theta=10000.0),
                                ffn_config=dict(ffn_hidden_size=32, moe_num_experts=4, moe_top_k=2))),
    "mellum": ("MellumConfig", dict(THEADS, moe_intermediate_size=32, num_experts=4, sliding_window=8, layer_types=WINDOW_FIRST,
                                    rope_parameters={t: dict(r, partial_rotary_factor=1.0) for t, r in TWO_ROPES.items()})),
    "granitemoeswa": ("GraniteMoeSWAConfig", dict(TINY, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=32,
                                                  embedding_multiplier=1.5, attention_multiplier=0.125, residual_multiplier=0.5,
                                                  logits_scaling=2.0, sliding_window=8, layer_types=WINDOW_LAST,
                                                  layer_rope_theta=[0, 5000.0])),
    "gemma3": ("Gemma3TextConfig", dict(TINY, head_dim=16, sliding_window=8, layer_types=WINDOW_FIRST, query_pre_attn_scalar=16,
                                        final_logit_softcapping=2.0, tie_word_embeddings=True,
                                        rope_parameters=dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=50000.0),
                                                             sliding_attention=dict(rope_type="default", rope_theta=1000.0)))),
    "qwen3": ("Qwen3Config", dict(FHEADS, intermediate_size=64)),
    "llama": ("LlamaConfig", dict(FAMILY, intermediate_size=64, rope_parameters=LLAMA3)),
    "mistral": ("MistralConfig", dict(FHEADS, intermediate_size=64, sliding_window=8)),
    # linear attention in the first layer, gated attention in the second; projections interleaved, and apart
    "qwen3next": ("Qwen3NextConfig", dict(QWEN_LINEAR, layer_types=MIXED)),
    # other recurrent layers: Mamba-2 (every layer one thing; beside attention), a gated convolution, a decay per key feature
    "nemotronh": ("NemotronHConfig", dict(FHEADS, intermediate_size=32, moe_intermediate_size=32, moe_shared_expert_intermediate_size=32,
                                          n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, routed_scaling_factor=2.5,
                                          mamba_num_heads=4, mamba_head_dim=16, ssm_state_size=8, n_groups=2, chunk_size=16,
                                          layers_block_type=["linear_attention", "moe", "full_attention", "mlp"])),
    "granitehybrid": ("GraniteMoeHybridConfig", dict(FAMILY, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2,
                                                     shared_intermediate_size=32, mamba_n_heads=4, mamba_d_head=32, mamba_d_state=8,
                                                     mamba_n_groups=1, mamba_chunk_size=16, embedding_multiplier=1.5,
                                                     attention_multiplier=0.125, residual_multiplier=0.5, logits_scaling=2.0,
                                                     layer_types=MIXED)),
    "minimax": ("MiniMaxConfig", dict(FHEADS, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, block_size=8,
                                      layer_types=MIXED, linear_attn_alpha_factor=1.5, linear_attn_beta_factor=0.5,
                                      full_attn_alpha_factor=1.25, full_attn_beta_factor=0.75, mlp_alpha_factor=2.0,
                                      mlp_beta_factor=1.5)),
    "lfm2moe": ("Lfm2MoeConfig", dict(FAMILY, intermediate_size=64, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2,
                                      num_dense_layers=1, layer_types=["conv", "full_attention"])),
    "kimilinear": ("KimiLinearConfig", dict(MLA, num_local_experts=4, n_shared_experts=1, q_lora_rank=None, n_group=1, topk_group=1,
                                            linear_head_dim=32, linear_num_heads=2, layer_types=MIXED,
                                            mlp_layer_types=["dense", "sparse"])),
    "qwen35moe": ("Qwen3_5MoeTextConfig", dict(QWEN_LINEAR, layer_types=MIXED)),
    # wrappers whose other parts are as small as they can be
    "qwen3vlmoe": ("Qwen3VLMoeConfig", dict(text_config=WRAPPED, tie_word_embeddings=False,
                                            vision_config=dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=2,
                                                               temporal_patch_size=1, out_hidden_size=32, num_position_embeddings=4,
                                                               deepstack_visual_indexes=[0]))),
    "qwen3omnimoe": ("Qwen3OmniMoeThinkerConfig", dict(text_config=WRAPPED, tie_word_embeddings=False,
                                                       vision_config=dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=2,
                                                                          temporal_patch_size=1, out_hidden_size=32, num_position_embeddings=4,
                                                                          deepstack_visual_indexes=[0]),
                                                       audio_config=dict(num_mel_bins=8, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=16,
                                                                         d_model=16, downsample_hidden_size=8, output_dim=32, n_window=4,
                                                                         max_source_positions=16))),
}


REGISTERED = {"qwen4exp": ("Qwen4ExpConfig", "Qwen4ExpForConditionalGeneration"),
              "glm5next": ("Glm5NextConfig", "Glm5NextForConditionalGeneration"),
              "inkling": ("InklingConfig", "InklingForConditionalGeneration"),
              "mistrallarge4": ("MistralLarge4Config", "MistralLarge4ForConditionalGeneration"),
              "minimaxm3": ("MiniMaxM3VLConfig", "MiniMaxM3SparseForConditionalGeneration"),
              "step3p7": ("Step3p7Config", "Step3p7ForConditionalGeneration"),
              "ernie45vlmoe": ("Ernie4_5_VLMoeConfig", "Ernie4_5_VLMoeForConditionalGeneration"),
              "mistral4": ("Mistral4Config", "Mistral4ForCausalLM"),
              "qwen3vlmoe": ("Qwen3VLMoeConfig", "Qwen3VLMoeForConditionalGeneration"),
              "qwen3omnimoe": ("Qwen3OmniMoeThinkerConfig", "Qwen3OmniMoeThinkerForConditionalGeneration")}


def register():
    """What AutoModelForCausalLM does not know: text parts that transformers loads only inside of a wrapper, and wrappers read as text."""
    import transformers
    for config, model in REGISTERED.values():
        transformers.AutoModelForCausalLM.register(getattr(transformers, config), getattr(transformers, model), exist_ok=True)


def seed_of(key):
    return zlib.crc32(key.encode()) & 0x7FFFFFFF


def randomize(model, key):
    """Values with structure: transformers' own initialization is too small and too even to exercise anything."""
    g = torch.Generator().manual_seed(seed_of(key))
    for name, p in sorted(list(model.named_parameters()) + list(model.named_buffers())):
        if name.endswith("tid2eid"):             # every token has experts of its own
            p.data = torch.rand(p.shape[0], model.config.n_routed_experts, generator=g).argsort(1)[:, :p.shape[1]].contiguous()
        if not p.is_floating_point() or re.search("slope_rate|_decay", name) or "inv_freq" in name or "embed_scale" in name:
            continue
        r = torch.randn(p.shape, generator=g)
        if "e_score_correction_bias" in name or name.endswith("sinks"):
            p.data = 0.3 * r
        elif p.ndim == 1:
            p.data = (1.0 + 0.2 * r) if name.endswith(("weight", "scalar", "scale")) else 0.2 * r
        elif ".gate.weight" in name or "router" in name:
            p.data = 0.4 * r
        elif "embed" in name and "norm" not in name:    # a tied head would only repeat a large one
            p.data = 0.05 * r if key.startswith("gemma") else r
        else:
            rows = torch.rand(p.shape[:-1] + (1,), generator=g)
            p.data = (r + (rows - 0.5)) * (0.05 + 0.2 * rows)


def make_dense(key, out):
    import transformers
    cls, args = MODELS[key]
    config = getattr(transformers, cls)(**args)
    model = transformers.AutoModelForCausalLM.from_config(config)
    randomize(model, key)
    keep = {n: b.data.clone() for n, b in model.named_buffers() if re.search("e_score_correction_bias|slope_rate|_decay", n)}
    keep |= {n: p.data.clone() for n, p in model.named_parameters() if "e_score_correction_bias" in n}
    model.to(torch.bfloat16)
    for name, value in keep.items():     # published files keep the correction bias in f32
        owner, leaf = name.rsplit(".", 1)
        getattr(model.get_submodule(owner), leaf).data = value
    model.save_pretrained(out)
