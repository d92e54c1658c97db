// SPDX-License-Identifier: Apache-2.0
// A row for each architecture, and the sentences for files that hold no model that can be run.
#include <algorithm>

#include "base/error.h"
#include "gguf/names.h"

namespace moebius {
namespace {

#define MOEBIUS_NORMS_BEHIND \
  "blk.post_attention_norm=post_attention_layernorm blk.post_ffw_norm=post_feedforward_layernorm "
#define MOEBIUS_GEMMA_NORMS MOEBIUS_NORMS_BEHIND "blk.ffn_norm=pre_feedforward_layernorm "
#define MOEBIUS_SHARED_LAYER                                                     \
  "blk.ffn_gate_shexp=shared_mlp.gate_proj blk.ffn_up_shexp=shared_mlp.up_proj " \
  "blk.ffn_down_shexp=shared_mlp.output_linear "
constexpr std::string_view kAfterAttention = "blk.post_attention_norm=post_attention_layernorm ";
#define MOEBIUS_DELTA_NET                                                         \
  "blk.post_attention_norm=post_attention_layernorm ssm.attn_qkv=@.in_proj_qkv "  \
  "ssm.attn_gate=@.in_proj_z blk.ssm_beta=@.in_proj_b blk.ssm_alpha=@.in_proj_a " \
  "blk.ssm_ba=@.in_proj_b|@.in_proj_a "
#define MOEBIUS_KEY_DECAY                                                                \
  "blk.ssm_conv1d_q=@.q_conv1d blk.ssm_conv1d_k=@.k_conv1d blk.ssm_conv1d_v=@.v_conv1d " \
  "blk.ssm_f_b=@.f_b_proj blk.ssm_g_b=@.g_b_proj blk.ssm_beta=@.b_proj blk.ssm_norm=@.o_norm "

#define MOEBIUS_FEED_FORWARD                                                  \
  "blk.ffn_gate=feed_forward.gate_proj blk.ffn_up=feed_forward.up_proj "      \
  "blk.ffn_down=feed_forward.down_proj blk.ffn_gate_inp=feed_forward.router " \
  "blk.ffn_gate_exps=feed_forward.experts.*.gate_proj "                       \
  "blk.ffn_up_exps=feed_forward.experts.*.up_proj "                           \
  "blk.ffn_down_exps=feed_forward.experts.*.down_proj "

using enum GgufGate;

// Makes a row: what all have, then by name what differs from most.
constexpr GgufArchitecture row(std::string_view name, std::string_view model_type,
                               std::string_view architecture, GgufArchitecture rest = {}) {
  rest.name = name;
  rest.model_type = model_type;
  rest.architecture = architecture;
  return rest;
}

// Makes a row of Qwen3-Next and its successors, whose first three of four layers are recurrent.
constexpr GgufArchitecture delta_net(std::string_view name, GgufArchitecture rest) {
  rest.names = MOEBIUS_DELTA_NET;
  rest.shared = "shared_expert";
  rest.state = "linear_attn";
  rest.headless = "linear_attention";
  rest.plus_one = true;
  return row(name, "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", rest);
}

constexpr GgufArchitecture kArchitectures[] = {
    row("qwen3moe qwen3vlmoe", "qwen3_moe", "Qwen3MoeForCausalLM",
        {.config = R"({"decoder_sparse_step": 1, "mlp_only_layers": []})", .normalized = true}),
    row("llama", "llama", "LlamaForCausalLM", {.experts = false, .pairs = true}),
    row("llama", "mixtral", "MixtralForCausalLM", {.normalized = true, .pairs = true}),
    row("mistral3", "llama", "LlamaForCausalLM",
        {.experts = false, .pairs = true, .computed = "attention.temperature_scale"}),
    row("qwen3 qwen3vl", "qwen3", "Qwen3ForCausalLM", {.experts = false}),
    row("qwen2moe", "qwen2_moe", "Qwen2MoeForCausalLM",
        {.shared = "shared_expert",
         .config = R"({"decoder_sparse_step": 1, "mlp_only_layers": []})"}),
    row("qwen2", "qwen2", "Qwen2ForCausalLM", {.experts = false}),
    delta_net("qwen3next", {.normalized = true}),
    delta_net("qwen35moe", {.normalized = true, .tiled = true}),
    delta_net("qwen35", {.config = R"({"num_experts": 0})", .experts = false, .tiled = true}),
    row("deepseek2", "deepseek_v2", "DeepseekV2ForCausalLM"),
    row("deepseek2", "deepseek_v3", "DeepseekV3ForCausalLM",
        {.config = R"({"rope_interleave": true, "scoring_func": "sigmoid"})", .gate = kSigmoid}),
    row("deepseek32", "deepseek_v32", "DeepseekV32ForCausalLM", {.gate = kSigmoid}),
    row("glm-dsa", "glm_moe_dsa", "GlmMoeDsaForCausalLM", {.gate = kSigmoid}),
    row("mistral4", "mistral4", "Mistral4ForCausalLM", {.computed = "attention.temperature_scale"}),
    row("glm4moe", "glm4_moe", "Glm4MoeForCausalLM", {.names = kAfterAttention, .gate = kSigmoid}),
    row("gpt-oss", "gpt_oss", "GptOssForCausalLM",
        {.names = "blk.post_attention_norm=post_attention_layernorm blk.ffn_gate_inp=mlp.router ",
         .gate = kSoftmaxOfSelected,
         .window_pattern = 2,
         .yarn_truncates = false}),
    row("granitemoe", "granitemoe", "GraniteMoeForCausalLM",
        {.gate = kSoftmaxOfSelected, .pairs = true}),
    row("granitemoe", "granitemoeshared", "GraniteMoeSharedForCausalLM",
        {.names = MOEBIUS_SHARED_LAYER, .gate = kSoftmaxOfSelected, .pairs = true}),
    row("granite", "granite", "GraniteForCausalLM", {.experts = false, .pairs = true}),
    row("granitehybrid", "granitemoehybrid", "GraniteMoeHybridForCausalLM",
        {.names = MOEBIUS_SHARED_LAYER,
         .dense_too = true,
         .gate = kSoftmaxOfSelected,
         .headless = "mamba",
         .pairs = true}),
    row("granite_swa", "granitemoe_swa", "GraniteMoeSWAForCausalLM",
        {.names = "blk.ffn_up_shexp=shared_mlp.input_linear "
                  "blk.ffn_down_shexp=shared_mlp.output_linear ",
         .dense_too = true,
         .gate = kSoftmaxOfSelected,
         .window_pattern = -4,
         .pairs = true}),
    row("olmoe", "olmoe", "OlmoeForCausalLM"),
    row("dots1", "dots1", "Dots1ForCausalLM", {.gate = kSigmoid}),
    row("ernie4_5-moe", "ernie4_5_moe", "Ernie4_5_MoeForCausalLM",
        {.names = "blk.exp_probs_b=mlp.moe_statics.e_score_correction_bias! ", .normalized = true}),
    row("hunyuan-moe", "hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM",
        {.names =
             "blk.attn_q_norm=self_attn.query_layernorm blk.attn_k_norm=self_attn.key_layernorm "
             "blk.ffn_gate_inp=mlp.gate.wg ",
         .shared = "shared_mlp",
         .normalized = true}),
    row("hy_v3", "hy_v3", "HYV3ForCausalLM",
        {.names = "blk.exp_probs_b=mlp.expert_bias! blk.ffn_gate_inp=mlp.router.gate ",
         .shared = "shared_mlp",
         .gate = kSigmoid}),
    row("minimax-m2", "minimax_m2", "MiniMaxM2ForCausalLM", {.gate = kSigmoid, .normalized = true}),
    row("afmoe", "afmoe", "AfmoeForCausalLM",
        {.names = "blk.post_attention_norm=post_attention_layernorm blk.ffn_norm=pre_mlp_layernorm "
                  "blk.post_ffw_norm=post_mlp_layernorm blk.attn_gate=self_attn.gate_proj "
                  "blk.exp_probs_b=mlp.expert_bias! blk.ffn_gate_inp=mlp.router.gate ",
         .config = R"({"mup_enabled": true})",
         .gate = kSigmoid,
         .normalized = true,
         .window_pattern = 4}),
    row("exaone-moe", "exaone_moe", "ExaoneMoeForCausalLM",
        {.names = "blk.exp_probs_b=mlp.e_score_correction_bias! ",
         .gate = kSigmoid,
         .window_pattern = 4}),
    row("laguna", "laguna", "LagunaForCausalLM",
        {.names = "blk.attn_gate=self_attn.g_proj "
                  "blk.exp_probs_b=mlp.experts.e_score_correction_bias! ",
         .shared = "shared_expert",
         .gate = kSigmoid,
         .window_pattern = -4,
         .own_heads = "list",
         .typed_ropes = true}),
    row("mellum", "mellum", "MellumForCausalLM",
        {.normalized = true, .window_pattern = 4, .typed_ropes = true}),
    row("mimo2", "mimo_v2_flash", "MiMoV2FlashForCausalLM",
        {.names = "blk.attn_sinks=self_attn.attention_sink_bias! ",
         .gate = kSigmoid,
         .normalized = true,
         .window_pattern = 6,
         .own_heads = "double",
         .typed_ropes = true}),
    row("step35", "step3p5", "Step3p7ForConditionalGeneration",
        {.names = "blk.attn_gate=self_attn.g_proj blk.ffn_gate_exps=moe.experts.*.gate_proj "
                  "blk.ffn_up_exps=moe.experts.*.up_proj blk.ffn_down_exps=moe.experts.*.down_proj "
                  "blk.ffn_gate_inp=moe.gate blk.exp_probs_b=moe.router_bias! "
                  "blk.ffn_gate_shexp=share_expert.gate_proj blk.ffn_up_shexp=share_expert.up_proj "
                  "blk.ffn_down_shexp=share_expert.down_proj ",
         .gate = kSigmoid,
         .normalized = true,
         .window_pattern = -4,
         .own_heads = "fields",
         .typed_ropes = true,
         .rotated_divisor = 2,
         .plus_one = true}),
    row("cohere2moe", "cohere2_moe", "Cohere2MoeForCausalLM", {.window_pattern = -4}),
    row("cohere2moe", "cohere2_moe", "Cohere2MoeForCausalLM",
        {.config = R"({"expert_selection_fn": "sigmoid"})",
         .gate = kSigmoid,
         .window_pattern = -4}),
    row("dbrx", "dbrx", "DbrxForCausalLM",
        {.names = "token_embd=transformer.wte output_norm=transformer.norm_f "
                  "blk.attn_norm=norm_attn_norm.norm_1 blk.attn_output_norm=norm_attn_norm.norm_2 "
                  "blk.attn_qkv=norm_attn_norm.attn.Wqkv "
                  "blk.attn_output=norm_attn_norm.attn.out_proj blk.ffn_gate_inp=ffn.router.layer "
                  "blk.ffn_gate_exps=ffn.experts.*.gate_proj blk.ffn_up_exps=ffn.experts.*.up_proj "
                  "blk.ffn_down_exps=ffn.experts.*.down_proj ",
         .normalized = true}),
    row("jamba", "jamba", "JambaForCausalLM",
        {.names = MOEBIUS_FEED_FORWARD
         "output_norm=model.final_layernorm blk.ffn_norm=pre_ff_layernorm blk.ssm_x=@.x_proj "
         "blk.ssm_dt=@.dt_proj blk.ssm_dt_norm=@.dt_layernorm blk.ssm_b_norm=@.b_layernorm "
         "blk.ssm_c_norm=@.c_layernorm ",
         .dense_too = true,
         .headless = "mamba"}),
    row("llama4", "llama4_text", "Llama4ForCausalLM",
        {.names = MOEBIUS_FEED_FORWARD
         "blk.ffn_gate_shexp=feed_forward.$.gate_proj blk.ffn_up_shexp=feed_forward.$.up_proj "
         "blk.ffn_down_shexp=feed_forward.$.down_proj ",
         .shared = "shared_expert",
         .gate = kSigmoid,
         .window_pattern = 4,
         .windowed = "chunked_attention"}),
    row("phimoe", "phimoe", "PhimoeForCausalLM"),
    row("nemotron_h nemotron_h_moe", "nemotron_h", "NemotronHForCausalLM",
        {.names =
             "token_embd=backbone.embeddings output_norm=backbone.norm_f blk.attn_norm=norm "
             "blk.attn_q=@.q_proj blk.attn_k=@.k_proj blk.attn_v=@.v_proj blk.attn_output=@.o_proj "
             "blk.ffn_up=@.up_proj blk.ffn_down=@.down_proj blk.ffn_gate_inp=@.gate "
             "blk.exp_probs_b=@.gate.e_score_correction_bias! "
             "blk.ffn_up_exps=@.experts.*.up_proj blk.ffn_down_exps=@.experts.*.down_proj "
             "blk.ffn_up_shexp=@.$.up_proj blk.ffn_down_shexp=@.$.down_proj ",
         .state = "mixer",
         .config = R"({"hidden_act": "relu2"})",
         .dense_too = true,
         .gate = kSigmoid,
         .headless = "mamba",
         .pairs = true}),
    row("kimi-linear", "kimi_linear", "KimiLinearForCausalLM",
        {.names = MOEBIUS_KEY_DECAY "blk.ssm_f_a=@.f_a_proj blk.ssm_g_a=@.g_a_proj ",
         .state = "self_attn",
         .gate = kSigmoid,
         .normalized = true,
         .headless = "linear_attention"}),
    row("bailingmoe3", "bailing_hybrid", "BailingHybridForCausalLM",
        {.names = MOEBIUS_KEY_DECAY
         "token_embd=model.word_embeddings blk.ssm_f_a=@.f_proj blk.ssm_g_a=@.g_proj "
         "blk.attn_q=@.q_proj blk.attn_k=@.k_proj blk.attn_v=@.v_proj blk.attn_output=@.dense "
         "blk.attn_gate=@.g_proj blk.attn_q_a=@.q_a_proj blk.attn_q_a_norm=@.q_a_layernorm "
         "blk.attn_q_b=@.q_b_proj blk.attn_kv_a_mqa=@.kv_a_proj_with_mqa "
         "blk.attn_kv_a_norm=@.kv_a_layernorm blk.attn_kv_b=@.kv_b_proj "
         "blk.attn_k_b=@.kv_b_proj/k.* blk.attn_v_b=@.kv_b_proj/v.* "
         "blk.exp_probs_b=mlp.gate.expert_bias! ",
         .state = "attention",
         .config = R"({"kda_safe_gate": true})",
         .gate = kSigmoid,
         .headless = "linear_attention"}),
    row("minimax-01", "minimax", "MiniMaxForCausalLM",
        {.names = "ssm.attn_qkv=self_attn.qkv_proj ssm.attn_output=self_attn.out_proj "
                  "blk.attn_norm_2=self_attn.norm blk.attn_gate=self_attn.output_gate ",
         .normalized = true,
         .headless = "linear_attention"}),
    row("minimax-m3", "minimax_m3_vl_text", "MiniMaxM3VLForCausalLM",
        {.names =
             "blk.indexer.q_proj=self_attn.index_q_proj blk.indexer.k_proj=self_attn.index_k_proj "
             "blk.indexer.q_norm=self_attn.index_q_norm blk.indexer.k_norm=self_attn.index_k_norm ",
         .gate = kSigmoid,
         .normalized = true,
         .plus_one = true}),
    row("gemma3", "gemma3_text", "Gemma3ForCausalLM",
        {.names = MOEBIUS_GEMMA_NORMS,
         .config = R"({"hidden_act": "gelu_pytorch_tanh"})",
         .experts = false,
         .window_pattern = 6,
         .typed_ropes = true,
         .window_base = 10000,
         .plus_one = true,
         .computed = "final_logit_softcapping"}),
    row("gemma2", "gemma2", "Gemma2ForCausalLM",
        {.names = MOEBIUS_GEMMA_NORMS,
         .config = R"({"hidden_act": "gelu_pytorch_tanh"})",
         .experts = false,
         .window_pattern = 2,
         .plus_one = true,
         .computed = "attn_logit_softcapping final_logit_softcapping"}),
    row("gemma4", "gemma4_text", "Gemma4ForCausalLM",
        {.names = MOEBIUS_GEMMA_NORMS
         "blk.pre_ffw_norm_2=pre_feedforward_layernorm_2 "
         "blk.post_ffw_norm_1=post_feedforward_layernorm_1 "
         "blk.post_ffw_norm_2=post_feedforward_layernorm_2 blk.layer_output_scale=layer_scalar! "
         "blk.ffn_gate_inp=router.proj blk.ffn_gate_inp.scale=router.scale! "
         "blk.ffn_down_exps.scale=router.per_expert_scale! "
         "blk.ffn_gate_exps=experts.*.gate_proj blk.ffn_up_exps=experts.*.up_proj "
         "blk.ffn_down_exps=experts.*.down_proj "
         "blk.ffn_gate_up_exps=experts.*.gate_proj|experts.*.up_proj ",
         .config = R"({"hidden_act": "gelu_pytorch_tanh"})",
         .dense_too = true,
         .normalized = true,
         .window_pattern = 6,
         .own_heads = "fields",
         .window_heads = true,
         .typed_ropes = true,
         .computed = "final_logit_softcapping"}),
    row("lfm2moe", "lfm2_moe", "Lfm2MoeForCausalLM",
        {.names = "token_embd_norm=model.embedding_norm blk.attn_norm=operator_norm "
                  "blk.ffn_norm=ffn_norm blk.attn_output=self_attn.out_proj "
                  "blk.attn_q_norm=self_attn.q_layernorm blk.attn_k_norm=self_attn.k_layernorm "
                  "blk.shortconv.conv=conv.conv blk.shortconv.in_proj=conv.in_proj "
                  "blk.shortconv.out_proj=conv.out_proj blk.ffn_gate_inp=feed_forward.gate "
                  "blk.exp_probs_b=feed_forward.expert_bias! blk.ffn_gate=feed_forward.w1 "
                  "blk.ffn_up=feed_forward.w3 blk.ffn_down=feed_forward.w2 "
                  "blk.ffn_gate_exps=feed_forward.experts.*.w1 "
                  "blk.ffn_up_exps=feed_forward.experts.*.w3 "
                  "blk.ffn_down_exps=feed_forward.experts.*.w2 ",
         .gate = kSigmoid,
         .normalized = true,
         .headless = "conv"}),
};

// Names files that hold no model, which a value of their metadata tells.
struct Refusal {
  std::string_view key, values, what;
};
constexpr std::string_view kDraft = "a draft model for speculation, not a model";
constexpr std::string_view kEncoder = "a model that does not generate text token by token";
constexpr Refusal kRefusals[] = {
    {"general.type", "mmproj clip-vision",
     "an image encoder (mmproj) that belongs to a model; name the model's file"},
    {"general.type", "adapter", "a LoRA adapter, not a model; merge it with llama-export-lora"},
    {"general.type", "imatrix", "calibration data (imatrix), not a model"},
    {"general.architecture", "clip",
     "an image encoder (mmproj) that belongs to a model; name the model's file"},
    {"general.architecture", "controlvector", "a control vector, not a model"},
    {"general.architecture", "eagle3 dflash gemma4-assistant", kDraft},
    {"general.architecture",
     "dream llada llada-moe t5 t5encoder bert modern-bert nomic-bert nomic-bert-moe jina-bert-v2 "
     "neo-bert",
     kEncoder},
    {"general.architecture", "gptoss",
     "ollama's own gpt-oss file; take a GGUF of gpt-oss from Hugging Face"},
};

// Tensors that only layers with a recurrent net have.
constexpr std::string_view kStates[] = {"ssm_a", "shortconv.conv.weight", "attn_norm_2.weight"};

bool in_words(std::string_view list, std::string_view word) {
  for (size_t at = list.find(word); at != std::string_view::npos && !word.empty();
       at = list.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || list[at - 1] == ' ') && (end == list.size() || list[end] == ' ')) return true;
  }
  return false;
}

}  // namespace

bool is_recurrent(const Gguf& gguf, uint64_t layer) {
  return std::any_of(std::begin(kStates), std::end(kStates), [&](std::string_view tensor) {
    return gguf.find(fmt::format("blk.{}.{}", layer, tensor)) != nullptr;
  });
}

const GgufArchitecture& architecture_of(const Gguf& gguf) {
  const GgufMetadata& m = gguf.metadata();
  const auto refuse = [&](std::string_view what) {
    fail_at({"unsupported", gguf.path(), "", "", ""}, "{}: {}", printable(gguf.path()), what);
  };
  for (const Refusal& r : kRefusals)
    if (const auto value = m.text(r.key); value && in_words(r.values, *value)) refuse(r.what);
  if (m.find("adapter.type") != nullptr)
    refuse("a LoRA adapter, not a model; merge it with llama-export-lora");
  const auto name = m.text("general.architecture");
  if (!name) m.refuse("general.architecture", "the architecture of a model");
  if (gguf.tensors().empty()) refuse("a tokenizer without weights, not a model");
  if (m.flag(fmt::format("{}.attention.causal", *name)) == false) refuse(kEncoder);
  if (gguf.find("token_embd.weight") != nullptr && gguf.find("blk.0.attn_norm.weight") == nullptr &&
      std::any_of(gguf.tensors().begin(), gguf.tensors().end(),
                  [](const GgufTensor& t) { return t.name.find(".nextn.") != std::string::npos; }))
    refuse("a draft head, not a model");
  const bool experts = m.count(fmt::format("{}.expert_count", *name), 65536).value_or(0) > 0;
  const bool sigmoid =
      m.count(fmt::format("{}.expert_gating_func", *name), 255).value_or(0) == 2 ||
      std::any_of(gguf.tensors().begin(), gguf.tensors().end(), [](const GgufTensor& t) {
        return t.name.find(".exp_probs_b") != std::string::npos;
      });
  const bool shared =
      std::any_of(gguf.tensors().begin(), gguf.tensors().end(),
                  [](const GgufTensor& t) { return t.name.find("_shexp") != std::string::npos; });
  const GgufArchitecture* found = nullptr;
  for (const GgufArchitecture& row : kArchitectures)
    if (in_words(row.name, *name) &&
        (found == nullptr || (row.experts == experts && (row.gate == kSigmoid) == sigmoid &&
                              (shared || row.names.find("_shexp") == row.names.npos))))
      found = &row;
  if (found == nullptr)
    refuse(fmt::format("architecture '{}' of this GGUF cannot be run; `moebius help architectures`",
                       printable(*name, 60)));
  return *found;
}

}  // namespace moebius
