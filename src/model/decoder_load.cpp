// SPDX-License-Identifier: Apache-2.0
// Loading a whole model: everything is checked from the headers first, then layers are read and
// packed one after the other.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "checkpoint/families.h"
#include "model/arch/arch.h"
#include "model/decoder_layer.h"
#include "model/recurrent_loader.h"
#include "nn/ops.h"
#include "quant/quant_access.h"

namespace moebius {
namespace {

constexpr std::string_view kKvUp = "self_attn.kv_b_proj";

// A dense MLP runs as a mixture with one expert; without a gate where the family has none.
MoeBlock dense_block(const Checkpoint& checkpoint, size_t index) {
  std::array<const Module*, 3> mlp{};
  for (const Module& m : checkpoint.modules())
    if (m.layer == static_cast<int>(index) && m.projection != Projection::kNone && m.expert < 0 &&
        !m.tower)
      mlp[static_cast<size_t>(m.projection) - 1] = &m;
  const ModelConfig& config = checkpoint.config();
  const Family* family = family_by_key(config.family);
  const bool gated = family == nullptr || family->gated;
  if (mlp[1] == nullptr || mlp[2] == nullptr || (gated && mlp[0] == nullptr))
    fail(
        "layer {}: has neither a mixture of experts nor an MLP with gate_proj, up_proj and "
        "down_proj",
        index);
  MoeBlock block;
  block.experts.push_back(mlp);
  block.name = mlp[1]->name.substr(0, mlp[1]->name.rfind('.'));
  block.layer = static_cast<int>(index);
  block.spec.hidden = static_cast<size_t>(config.hidden);
  block.spec.intermediate = mlp[1]->plan.N;
  block.spec.experts = 1;
  block.spec.router.experts = 1, block.spec.router.top_k = 1;
  block.spec.activation.kind =
      activation_from_name(fields_of(config)
                               .string({"hidden_act", "hidden_activation", "mlp_hidden_act"})
                               .value_or("silu") +
                           (gated ? "" : "_no_mul"));
  return block;
}

// A shared expert that hangs on the layer reads what the block reads: both are one layer here.
MoeBlock take_layer_shared(const MoeBlock& stored) {
  MoeBlock block = stored;
  if (stored.layer_shared[2] == nullptr) return block;
  block.shared = stored.layer_shared;
  block.spec.shared = SharedKind::kPlain;
  block.spec.shared_intermediate = static_cast<size_t>(block.shared[2]->plan.K);
  return block;
}

// An engine's blocks come so many bytes at a time.
constexpr size_t kEngineSlab = size_t{32} << 20;

uint64_t expert_packed(const MoeLayer& layer, size_t experts) {
  return experts == 0 ? 0 : layer.packed_bytes() / experts;
}

}  // namespace

DecoderModel::DecoderModel() = default;
DecoderModel::~DecoderModel() = default;

AttentionSpec attention_spec(const DecoderSpec& s, size_t index, bool absorbed) {
  AttentionSpec a;
  const HeadSizes sizes = s.sizes(index);
  a.heads = sizes.heads, a.kv_heads = sizes.kv_heads, a.key_dim = s.key_dim(index),
  a.value_dim = sizes.value_dim;
  if (s.latent() && absorbed)
    a.kv_heads = 1, a.key_dim = s.kv_lora + s.rope_dim, a.value_dim = s.kv_lora;
  a.scale = s.attention_scale != 0
                ? s.attention_scale
                : static_cast<float>(1 / std::sqrt(static_cast<double>(s.key_dim(index))));
  a.window = s.layers[index].window, a.chunk = s.layers[index].chunk;
  return a;
}

bool absorbs(const Checkpoint& checkpoint, size_t layer, const ModelOptions& options) {
  const MatrixPlan& kv_b = LayerParts(checkpoint, layer).require(kKvUp).plan;
  return options.policy.accept != Accept::kExact && !kv_b.scheme.input && !kv_b.scheme.output &&
         !kv_b.has_output_scale && load_bias(kv_b, checkpoint.store()).empty();
}

KvStorage storage_of(const Checkpoint& checkpoint, const DecoderSpec& spec, size_t layer,
                     const ModelOptions& options) {
  const std::optional<QuantArgs>& declared = checkpoint.quant().kv_cache();
  const bool eight = declared && declared->bits == 8 && declared->symmetric;
  if (!options.kv_type && declared && !eight)
    fail(
        "{}: quantization_config.kv_cache_scheme is {}; only symmetric 8-bit keys and values run "
        "(--kv-dtype states another type)",
        checkpoint.folder(), describe(*declared));
  const KvType own = !declared                              ? kv_type_of(options.type)
                     : declared->kind == NumberKind::kFloat ? KvType::kFp8
                                                            : KvType::kInt8;
  KvStorage storage{options.kv_type.value_or(own)};
  // Stored scales are those of the declared type. Latents are neither of the keys and values that
  // they were measured on.
  if (!declared || storage.type != own || declared->dynamic != Dynamic::kStatic || spec.latent())
    return storage;
  const LayerParts parts(checkpoint, layer);
  for (const auto& [member, to] :
       {std::pair{"k_scale", &storage.key_scale}, std::pair{"v_scale", &storage.value_scale}}) {
    const std::string name = fmt::format("{}.{}", spec.names.attention, member);
    if (!parts.has(name)) continue;  // not calibrated: a scale per token
    *to = parts.values(name, 1)[0];
    if (!(*to >= 0) || !std::isfinite(*to))
      fail("{}: {} of layer {} is {}; expected a scale", checkpoint.folder(), name, layer, *to);
  }
  return storage;
}

// Absorbed: scores of a head are q k = q (W_k c) = (W_k^T q) c, and its result W_v (sum p c), with c
// the latent of a token. So keys and values of all heads are the latents.
void DecoderModel::absorb(const Checkpoint& checkpoint, const Module& kv_b, Layer& layer) const {
  LoadBuffer memory;
  const QuantMatrix w =
      reader_for(kv_b.plan.scheme.format).load(kv_b.plan, checkpoint.store(), memory);
  const bool as_stored = w.code == CodeType::kBf16 || w.code == CodeType::kF16;
  const CodeType code = as_stored ? w.code : CodeType::kF32;
  const size_t head = spec_.nope_dim + spec_.value_dim;
  const LayerOptions& lo = layer_options_;
  layer.query_up = std::make_unique<HeadLinear>(
      spec_.heads, spec_.kv_lora, spec_.nope_dim, code,
      [&](size_t h, size_t n, size_t k) { return weight_at(w, h * head + k, n); }, options_.type,
      lo.cpu, lo.policy);
  layer.value_up = std::make_unique<HeadLinear>(
      spec_.heads, spec_.value_dim, spec_.kv_lora, code,
      [&](size_t h, size_t n, size_t k) { return weight_at(w, h * head + spec_.nope_dim + n, k); },
      options_.type, lo.cpu, lo.policy);
  if (lo.progress) lo.progress(kv_b.bytes);
}

void DecoderModel::load_latent(const Checkpoint& checkpoint, size_t index, Layer& layer) {
  const LayerParts parts(checkpoint, index);
  const DecoderSpec& s = spec_;
  const auto linear = [&](std::vector<const Module*> modules) {
    return load_linear(checkpoint, modules, layer_options_);
  };
  const Module& kv_a = parts.require("self_attn.kv_a_proj_with_mqa");
  expect_width(kv_a, s.kv_lora + s.rope_dim, "kv_lora_rank and qk_rope_head_dim");
  layer.kv_latent_norm =
      parts.norm("self_attn.kv_a_layernorm", s.norm, s.latent_norm_epsilon, s.kv_lora);
  if (s.q_lora > 0) {
    const Module& q_a = parts.require("self_attn.q_a_proj");
    expect_width(q_a, s.q_lora, "q_lora_rank");
    layer.latent = linear({&q_a, &kv_a});
    layer.q_latent_norm =
        parts.norm("self_attn.q_a_layernorm", s.norm, s.latent_norm_epsilon, s.q_lora);
    layer.q_up = linear({&parts.require("self_attn.q_b_proj")});
  } else {
    layer.latent = linear({&kv_a});
    layer.q_up = linear({&parts.require("self_attn.q_proj")});
  }
  const Module& kv_b = parts.require(kKvUp);
  expect_width(kv_b, s.heads * (s.nope_dim + s.value_dim),
               "heads, qk_nope_head_dim and v_head_dim");
  if (absorbs(checkpoint, index, options_)) {
    absorb(checkpoint, kv_b, layer);
  } else {
    layer.kv_up = linear({&kv_b});
    layer.latents = {s.kv_lora + s.rope_dim, storage_of(checkpoint, s, index, options_).type};
  }
}

void DecoderModel::load_qkv(const Checkpoint& checkpoint, size_t index, Layer& layer) {
  const LayerParts parts(checkpoint, index);
  const DecoderSpec& s = spec_;
  const HeadSizes& n = layer.sizes;
  const auto find = [&](const char* member) {
    return &parts.require(fmt::format("{}.{}", s.names.attention, member));
  };
  const size_t nq = n.heads * n.head_dim, nk = n.kv_heads * n.head_dim;
  std::vector<const Module*> modules = {find("q_proj")};
  expect_width(*modules.back(), nq * (s.output_gate ? 2 : 1), "heads and head_dim");
  if (layer.keys) {
    modules.push_back(find("k_proj"));
    expect_width(*modules.back(), nk, "key-value heads and head_dim");
  }
  if (layer.keys && layer.values) {
    modules.push_back(find("v_proj"));
    expect_width(*modules.back(), n.kv_heads * n.value_dim, "key-value heads and head_dim");
  }
  if (s.gate_proj != nullptr) {
    modules.push_back(&parts.require(s.gate_proj));
    expect_width(*modules.back(), n.heads * (s.gate_per_head ? 1 : n.value_dim),
                 "heads and head_dim");
  }
  layer.qkv = load_linear(checkpoint, modules, layer_options_);
  const bool whole = s.qk_norm == QkNorm::kWhole;
  if (!whole && s.qk_norm != QkNorm::kHead && s.qk_norm != QkNorm::kHeadAfter) return;
  layer.q_norm = parts.norm(s.q_norm, s.norm, s.norm_epsilon, whole ? nq : n.head_dim);
  if (layer.keys)
    layer.k_norm = parts.norm(s.k_norm, s.norm, s.norm_epsilon, whole ? nk : n.head_dim);
}

void DecoderModel::load_attention(const Checkpoint& checkpoint, size_t index, Layer& layer) {
  const LayerParts parts(checkpoint, index);
  const auto linear = [&](std::vector<const Module*> modules) {
    return load_linear(checkpoint, modules, layer_options_);
  };
  const DecoderSpec& s = spec_;
  if (s.layers[index].recurrent) {
    LoadedRecurrent loaded = load_recurrent(parts, s, options_.type);
    layer.recurrent = std::move(loaded.net);
    layer.output = linear({loaded.out});
    std::vector<const Module*> first;
    for (const RecurrentInput& in : loaded.in) {
      first.push_back(in.first);
      layer.recurrent_parts.push_back(
          {in.first->plan.N, in.second != nullptr ? linear({in.second}) : nullptr});
    }
    layer.recurrent_in = linear(first);
    return;
  }
  const auto name = [&](std::string_view member) {
    return fmt::format("{}.{}", s.names.attention, member);
  };
  if (s.latent()) {
    load_latent(checkpoint, index, layer);
  } else {
    load_qkv(checkpoint, index, layer);
  }
  if (s.layers[index].indexes) load_indexer(checkpoint, index, layer);
  layer.output = linear({&parts.require(name(s.names.output))});
  AttentionSpec a = attention_spec(s, index, layer.kv_up == nullptr);
  if (s.layers[index].sinks) a.sinks = parts.values(s.sinks, layer.sizes.heads);
  // What is made of latents at each use is of the activations' type, whatever latents are kept in.
  const KvStorage stored = layer.kv_up != nullptr ? KvStorage{kv_type_of(options_.type)}
                                                  : storage_of(checkpoint, s, index, options_);
  layer.attention = std::make_unique<AttentionPlan>(plan_attention(
      std::move(a), options_.type, stored, layer_options_.cpu, layer_options_.policy));
  layer.index_at =
      layer.kv_up != nullptr ? layer.latents.block_bytes() : layer.attention->kv.block_bytes();
}

// A dense MLP beside the experts. The router reads x / rms(x) * scale / sqrt(hidden).
void DecoderModel::load_beside(const Checkpoint& checkpoint, size_t index, Layer& layer) {
  const LayerParts parts(checkpoint, index);
  const auto norm = [&](const char* name) {
    return parts.norm(name, spec_.norm, spec_.norm_epsilon, hidden_);
  };
  layer.beside =
      load_moe(checkpoint, dense_block(checkpoint, index), layer_options_, MoePart::kExperts)
          .experts;
  layer.beside_out = norm("post_feedforward_layernorm_1");
  layer.experts_in = norm("pre_feedforward_layernorm_2");
  layer.experts_out = norm("post_feedforward_layernorm_2");
  layer.router_in = {
      NormKind::kRmsFused, spec_.norm_epsilon, parts.values("router.scale", hidden_), {}};
  const float root = 1.0f / std::sqrt(static_cast<float>(hidden_));
  for (float& v : layer.router_in.weight) v *= root;
}

void DecoderModel::load_layer(const Checkpoint& checkpoint, size_t index, Layer& layer) {
  const LayerParts parts(checkpoint, index);
  const DecoderSpec& s = spec_;
  layer.sizes = s.sizes(index), layer.key_dim = s.key_dim(index);
  layer.keys = s.layers[index].kv_from == 0, layer.values = !s.layers[index].values_are_keys;
  for (const auto& [name, norm] :
       {std::pair{s.attention_in, &layer.attention_in},
        std::pair{s.attention_out, &layer.attention_out}, std::pair{s.block_in, &layer.block_in},
        std::pair{s.block_out, &layer.block_out}})
    if (name != nullptr) *norm = parts.norm(name, s.norm, s.norm_epsilon, hidden_);
  if (s.layer_scalar != nullptr) layer.scalar = parts.values(s.layer_scalar, 1)[0];
  if (s.layers[index].attends) load_attention(checkpoint, index, layer);
  if (!s.layers[index].mixes) return;
  if (s.dense_beside) load_beside(checkpoint, index, layer);
  const auto& blocks = checkpoint.moe_blocks();
  const auto stored = std::find_if(blocks.begin(), blocks.end(), [&](const MoeBlock& b) {
    return b.layer == static_cast<int>(index);
  });
  layer.routed = stored != blocks.end();
  if (layer.routed) {
    MoeBlock with_shared = take_layer_shared(*stored), *block = &with_shared;
    if (layer.beside != nullptr) block->routing_reason.clear();  // its tensors are known here
    layer.moe = load_moe(checkpoint, *block, layer_options_);
    const size_t shared = block->shared[2] != nullptr ? 1 : 0;
    layer.expert_bytes = expert_packed(*layer.moe.experts, block->experts.size() + shared);
    layer.top_k = block->spec.router.top_k;
    layer.moe_bytes_per_token = layer.expert_bytes * (block->spec.router.top_k + shared);
  } else {
    layer.moe =
        load_moe(checkpoint, dense_block(checkpoint, index), layer_options_, MoePart::kExperts);
    layer.moe_bytes_per_token = layer.moe.experts->packed_bytes();
  }
}

std::unique_ptr<DecoderModel> DecoderModel::load(const Checkpoint& checkpoint,
                                                 const ModelOptions& options) {
  const ModelConfig& config = checkpoint.config();
  std::unique_ptr<DecoderModel> model(new DecoderModel());
  model->spec_ = decoder_spec(config);
  checkpoint.require_supported();
  model->options_ = options;
  if (model->spec_.round_embedding_multiplier)
    round_to(options.type, &model->spec_.embedding_multiplier, 1);
  model->hidden_ = static_cast<size_t>(config.hidden),
  model->vocab_ = static_cast<size_t>(config.vocab);
  LayerOptions& lo = model->layer_options_;
  lo.pool = options.pool, lo.policy = options.policy, lo.act = options.act,
  lo.x_type = options.type, lo.progress = options.progress;
  const auto& modules = checkpoint.modules();
  const auto embedding = std::find_if(modules.begin(), modules.end(), [](const Module& m) {
    return m.kind == ModuleKind::kEmbedding;
  });
  if (embedding == modules.end()) fail("{}: has no token embedding", checkpoint.folder());
  if (embedding->plan.N < model->vocab_ || embedding->plan.K != model->hidden_)
    fail("{} is [{}, {}]; expected at least {} tokens of {}", embedding->name, embedding->plan.N,
         embedding->plan.K, model->vocab_, model->hidden_);
  const Module* output = checkpoint.output_module();
  if (output == nullptr) fail("{}: has no output projection (lm_head)", checkpoint.folder());
  if (output->plan.N < model->vocab_)
    fail("{} has {} outputs; expected at least {}", output->name, output->plan.N, model->vocab_);
  for (size_t i = 0; i < model->spec_.layers.size(); ++i) {
    model->layers_.push_back(std::make_unique<Layer>());
    model->load_layer(checkpoint, i, *model->layers_[i]);
  }
  if (output == &*embedding && can_cut_rows(embedding->plan)) {
    model->embedding_store_ = checkpoint.shared_store();
    model->embedding_plan_ = embedding->plan;
  } else {
    model->embedding_ = reader_for(embedding->plan.scheme.format)
                            .load(embedding->plan, checkpoint.store(), model->embedding_memory_);
  }
  const auto norm = std::find_if(modules.begin(), modules.end(), [](const Module& m) {
    return m.kind == ModuleKind::kNorm && m.layer < 0;
  });
  if (norm == modules.end()) fail("{}: has no final norm", checkpoint.folder());
  model->final_norm_ =
      Norm{model->spec_.norm,
           model->spec_.norm_epsilon,
           read_floats(checkpoint.store(), checkpoint.store().require(norm->name + ".weight")),
           {}};
  if (const TensorInfo* bias = checkpoint.store().find(norm->name + ".bias"))
    model->final_norm_->bias = read_floats(checkpoint.store(), *bias);
  model->output_ = load_linear(checkpoint, {output}, lo);
  model->ropes_.push_back(std::make_unique<Rope>(model->spec_.rope));
  for (const RopeSpec& r : model->spec_.other_ropes)
    model->ropes_.push_back(std::make_unique<Rope>(r));
  model->kv_plan_ = plan_kv(checkpoint, model->spec_, options, lo.cpu);
  model->kv_memory_ = std::make_unique<KvMemory>(model->kv_plan_.kinds, kEngineSlab);
  model->buffers_ = std::make_unique<Buffers>();
  model->buffers_->scratch.resize(options.pool->size());
  model->buffers_->index_scratch.resize(options.pool->size());
  return model;
}

uint64_t DecoderModel::packed_bytes() const {
  uint64_t bytes = embedding_bytes() + output_->packed_bytes();
  for (const auto& l : layers_) {
    if (const MoeLayer* moe = l->moe.experts.get())
      bytes += moe->packed_bytes() + moe->gate_bytes();
    bytes += l->dense_bytes();
    if (l->beside != nullptr) bytes += l->beside->packed_bytes();
  }
  return bytes;
}

uint64_t DecoderModel::weight_bytes_per_token() const {
  uint64_t bytes = output_->packed_bytes();
  for (const auto& l : layers_) {
    bytes += l->moe_bytes_per_token;
    bytes += l->dense_bytes();
    if (l->beside != nullptr) bytes += l->beside->packed_bytes();
  }
  return bytes;
}

}  // namespace moebius
