// SPDX-License-Identifier: Apache-2.0
// Loading a whole model: everything is checked from the headers first, then layers are read and
// packed one after the other.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/error.h"
#include "checkpoint/families.h"
#include "model/arch/arch.h"
#include "model/decoder_layer.h"
#include "model/ranks.h"
#include "model/recurrent_loader.h"
#include "nn/ops.h"
#include "quant/quant_access.h"
#include "quant/slice.h"

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
  const size_t head = spec_.nope_dim + spec_.value_dim;
  const Range rows = heads_of(layer, head);
  const bool cut = rows.size() > 0, read_rows = cut && can_cut_rows(kv_b.plan);
  QuantMatrix w = reader_for(kv_b.plan.scheme.format)
                      .load(read_rows ? rows_of(kv_b.plan, rows.begin, rows.end) : kv_b.plan,
                            checkpoint.store(), memory);
  if (cut && !read_rows) w = slice_rows(w, rows.begin, rows.end);
  const bool as_stored = w.code == CodeType::kBf16 || w.code == CodeType::kF16;
  const CodeType code = as_stored ? w.code : CodeType::kF32;
  const LayerOptions& lo = layer_options_;
  layer.query_up = std::make_unique<HeadLinear>(
      spec_.heads, spec_.kv_lora, spec_.nope_dim, code,
      [&](size_t h, size_t n, size_t k) { return weight_at(w, h * head + k, n); }, options_.type,
      lo.cpu, lo.policy);
  layer.value_up = std::make_unique<HeadLinear>(
      spec_.heads, spec_.value_dim, spec_.kv_lora, code,
      [&](size_t h, size_t n, size_t k) { return weight_at(w, h * head + spec_.nope_dim + n, k); },
      options_.type, lo.cpu, lo.policy);
  if (lo.progress) lo.progress(cut ? kv_b.bytes / kv_b.plan.N * rows.size() : kv_b.bytes);
}

void DecoderModel::load_latent(const Checkpoint& checkpoint, size_t index, Layer& layer) {
  const LayerParts parts(checkpoint, index);
  const DecoderSpec& s = spec_;
  const auto linear = [&](std::vector<const Module*> modules) {
    return load_linear(checkpoint, modules, layer_options_);
  };
  const auto heads = [&](const Module* module, size_t each) {
    return load_outputs(checkpoint, {{module, heads_of(layer, each)}}, layer_options_);
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
    layer.q_up = heads(&parts.require("self_attn.q_b_proj"), layer.key_dim);
  } else {
    layer.latent = linear({&kv_a});
    layer.q_up = heads(&parts.require("self_attn.q_proj"), layer.key_dim);
  }
  const Module& kv_b = parts.require(kKvUp);
  expect_width(kv_b, whole_.heads * (s.nope_dim + s.value_dim),
               "heads, qk_nope_head_dim and v_head_dim");
  if (absorbs(checkpoint, index, options_)) {
    absorb(checkpoint, kv_b, layer);
  } else {
    layer.kv_up = heads(&kv_b, s.nope_dim + s.value_dim);
    layer.latents = {s.kv_lora + s.rope_dim, storage_of(checkpoint, s, index, options_).type};
  }
}

void DecoderModel::load_qkv(const Checkpoint& checkpoint, size_t index, Layer& layer) {
  const LayerParts parts(checkpoint, index);
  const DecoderSpec& s = spec_;
  const HeadSizes& n = layer.all;
  layer.norm_before_cut = cuts_heads_ && s.qk_norm == QkNorm::kWhole;
  if (layer.norm_before_cut && (s.output_gate || !layer.values))
    fail("layer {}: q_norm and k_norm over all heads with {} cannot be cut for ranks; use --pp",
         index, s.output_gate ? "gates inside q_proj" : "values that are keys");
  const auto find = [&](const char* member) {
    return &parts.require(fmt::format("{}.{}", s.names.attention, member));
  };
  const size_t nq = n.heads * n.head_dim, nk = n.kv_heads * n.head_dim;
  std::vector<ModuleOutputs> modules;
  const auto add = [&](const Module* module, size_t heads, size_t each, Range own,
                       const char* what) {
    expect_width(*module, heads * each, what);
    modules.push_back({module, own});
  };
  const auto add_heads = [&](const Module* module, size_t each, bool all = false) {
    add(module, n.heads, each, all ? Range{} : heads_of(layer, each), "heads and head_dim");
  };
  const auto add_kv_heads = [&](const Module* module, size_t each, bool all = false) {
    add(module, n.kv_heads, each, all ? Range{} : kv_heads_of(layer, each),
        "key-value heads and head_dim");
  };
  add_heads(find("q_proj"), n.head_dim * (s.output_gate ? 2 : 1), layer.norm_before_cut);
  if (layer.keys) add_kv_heads(find("k_proj"), n.head_dim, layer.norm_before_cut);
  if (layer.keys && layer.values) add_kv_heads(find("v_proj"), n.value_dim);
  if (s.gate_proj != nullptr)
    add_heads(&parts.require(s.gate_proj), s.gate_per_head ? 1 : n.value_dim);
  layer.qkv = load_outputs(checkpoint, modules, layer_options_);
  const bool whole = s.qk_norm == QkNorm::kWhole;
  if (!whole && s.qk_norm != QkNorm::kHead && s.qk_norm != QkNorm::kHeadAfter) return;
  layer.q_norm = parts.norm(s.q_norm, s.norm, s.norm_epsilon, whole ? nq : n.head_dim);
  if (layer.keys)
    layer.k_norm = parts.norm(s.k_norm, s.norm, s.norm_epsilon, whole ? nk : n.head_dim);
}

void DecoderModel::load_attention(const Checkpoint& checkpoint, size_t index, Layer& layer) {
  const LayerParts parts(checkpoint, index);
  const DecoderSpec& s = spec_;
  if (s.layers[index].recurrent) {
    const auto linear = [&](std::vector<const Module*> modules) {
      return load_linear(checkpoint, modules, layer_options_);
    };
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
  layer.output = load_outputs(checkpoint,
                              {{&parts.require(name(s.names.output)),
                                cuts_heads_ ? columns_[options_.ranks->member()] : Range{}}},
                              layer_options_);
  AttentionSpec a = attention_spec(s, index, layer.kv_up == nullptr);
  if (s.layers[index].sinks) {
    a.sinks = parts.values(s.sinks, layer.all.heads);
    if (const Range own = heads_of(layer, 1); own.size() > 0)
      a.sinks = {a.sinks.begin() + static_cast<std::ptrdiff_t>(own.begin),
                 a.sinks.begin() + static_cast<std::ptrdiff_t>(own.end)};
  }
  // What is made of latents at each use is of the activations' type, whatever latents are kept in.
  const KvStorage stored = layer.kv_up != nullptr ? KvStorage{kv_type_of(options_.type)}
                                                  : storage_of(checkpoint, s, index, options_);
  layer.attention = std::make_unique<AttentionPlan>(plan_attention(
      std::move(a), options_.type, stored, layer_options_.cpu, layer_options_.policy));
  layer.index_at =
      layer.kv_up != nullptr ? layer.latents.block_bytes() : layer.attention->kv.block_bytes();
}

// A dense MLP beside the experts. The router reads x / rms(x) * scale / sqrt(hidden).
void DecoderModel::load_parallel(const Checkpoint& checkpoint, size_t index, Layer& layer) {
  const LayerParts parts(checkpoint, index);
  const auto norm = [&](const char* name) {
    return parts.norm(name, spec_.norm, spec_.norm_epsilon, hidden_);
  };
  layer.parallel_mlp = load_moe(checkpoint, dense_block(checkpoint, index),
                                options_of(MoePart::kExperts), MoePart::kExperts)
                           .experts;
  layer.parallel_out = norm("post_feedforward_layernorm_1");
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
  layer.all = whole_.sizes(index);
  if (cuts_heads_) cut_layer(index, layer);
  layer.keys = s.layers[index].kv_from == 0, layer.values = !s.layers[index].values_are_keys;
  for (const auto& [name, norm] :
       {std::pair{s.attention_in, &layer.attention_in},
        std::pair{s.attention_out, &layer.attention_out}, std::pair{s.block_in, &layer.block_in},
        std::pair{s.block_out, &layer.block_out}})
    if (name != nullptr) *norm = parts.norm(name, s.norm, s.norm_epsilon, hidden_);
  if (s.layer_scalar != nullptr) layer.scalar = parts.values(s.layer_scalar, 1)[0];
  if (s.layers[index].attends) load_attention(checkpoint, index, layer);
  if (!s.layers[index].mixes) return;
  if (s.dense_parallel) load_parallel(checkpoint, index, layer);
  const auto& blocks = checkpoint.moe_blocks();
  const auto stored = std::find_if(blocks.begin(), blocks.end(), [&](const MoeBlock& b) {
    return b.layer == static_cast<int>(index);
  });
  layer.routed = stored != blocks.end();
  if (layer.routed) {
    MoeBlock with_shared = take_layer_shared(*stored), *block = &with_shared;
    if (layer.parallel_mlp != nullptr) block->routing_reason.clear();  // its tensors are known here
    layer.moe = load_moe(checkpoint, *block, options_of(MoePart::kBlock, index));
    const size_t shared = block->shared[2] != nullptr ? 1 : 0;
    layer.expert_bytes =
        expert_packed(*layer.moe.experts, layer.moe.experts->local_experts() + shared);
    layer.top_k = block->spec.router.top_k;
    layer.moe_bytes_per_token = layer.expert_bytes * (block->spec.router.top_k + shared);
  } else {
    layer.moe = load_moe(checkpoint, dense_block(checkpoint, index), options_of(MoePart::kExperts),
                         MoePart::kExperts);
    layer.moe_bytes_per_token = layer.moe.experts->packed_bytes();
  }
}

namespace {

const Module& embedding_of(const Checkpoint& checkpoint) {
  const auto& modules = checkpoint.modules();
  const auto found = std::find_if(modules.begin(), modules.end(),
                                  [](const Module& m) { return m.kind == ModuleKind::kEmbedding; });
  if (found == modules.end()) fail("{}: has no token embedding", checkpoint.folder());
  return *found;
}

const Module& output_of(const Checkpoint& checkpoint) {
  const Module* output = checkpoint.output_module();
  if (output == nullptr) fail("{}: has no output projection (lm_head)", checkpoint.folder());
  return *output;
}

void check_ends(const Checkpoint& checkpoint, size_t vocab, size_t hidden) {
  const Module &embedding = embedding_of(checkpoint), &output = output_of(checkpoint);
  if (embedding.plan.N < vocab || embedding.plan.K != hidden)
    fail("{} is [{}, {}]; expected at least {} tokens of {}", embedding.name, embedding.plan.N,
         embedding.plan.K, vocab, hidden);
  if (output.plan.N < vocab)
    fail("{} has {} outputs; expected at least {}", output.name, output.plan.N, vocab);
}

}  // namespace

// What lies before and behind the layers. Of several ranks the first embeds, and those of its stage
// make logits.
void DecoderModel::load_ends(const Checkpoint& checkpoint) {
  const Module &embedding = embedding_of(checkpoint), &output = output_of(checkpoint);
  const Ranks* ranks = options_.ranks;
  if (ranks != nullptr && ranks->stage() != 0) return;
  const auto& modules = checkpoint.modules();
  const auto norm = std::find_if(modules.begin(), modules.end(), [](const Module& m) {
    return m.kind == ModuleKind::kNorm && m.layer < 0;
  });
  if (norm == modules.end()) fail("{}: has no final norm", checkpoint.folder());
  final_norm_ =
      Norm{spec_.norm,
           spec_.norm_epsilon,
           read_floats(checkpoint.store(), checkpoint.store().require(norm->name + ".weight")),
           {}};
  if (const TensorInfo* bias = checkpoint.store().find(norm->name + ".bias"))
    final_norm_->bias = read_floats(checkpoint.store(), *bias);
  output_width_ = output.plan.N;
  const Range rows = columns_.empty() ? Range{}
                                      : output_range(output_width_, ranks->members(),
                                                     ranks->member(), output.name);
  output_ = load_outputs(checkpoint, {{&output, rows}}, layer_options_);
  if (ranks != nullptr && !ranks->leader()) return;
  const PackedSlot& packed = output_->slot();
  if (&output == &embedding && columns_.empty() &&
      PackedRows::possible(packed.kernel(), packed.problem())) {
    tied_rows_.emplace(packed.kernel(), packed.problem());
    return;
  }
  embedding_ = reader_for(embedding.plan.scheme.format)
                   .load(embedding.plan, checkpoint.store(), embedding_memory_);
  loaded_bytes_ += embedding.bytes;
}

std::unique_ptr<DecoderModel> DecoderModel::load(const Checkpoint& checkpoint,
                                                 const ModelOptions& options) {
  const ModelConfig& config = checkpoint.config();
  std::unique_ptr<DecoderModel> model(new DecoderModel());
  DecoderModel& m = *model;
  m.spec_ = decoder_spec(config);
  checkpoint.require_supported();
  m.options_ = options;
  if (m.spec_.round_embedding_multiplier) round_to(options.type, &m.spec_.embedding_multiplier, 1);
  m.hidden_ = static_cast<size_t>(config.hidden), m.vocab_ = static_cast<size_t>(config.vocab);
  std::atomic<uint64_t> loaded{0};
  LayerOptions& lo = m.layer_options_;
  lo.pool = options.pool, lo.policy = options.policy, lo.act = options.act,
  lo.x_type = options.type;
  lo.progress = [&](uint64_t bytes) {
    loaded += bytes;
    if (options.progress) options.progress(bytes);
  };
  check_ends(checkpoint, m.vocab_, m.hidden_);
  m.take_part(checkpoint);
  m.begin_balance(checkpoint);
  m.layers_.resize(m.spec_.layers.size());
  for (size_t i = m.own_.begin; i < m.own_.end; ++i) {
    m.layers_[i] = std::make_unique<Layer>();
    m.load_layer(checkpoint, i, *m.layers_[i]);
  }
  m.load_ends(checkpoint);
  m.loaded_bytes_ += loaded;
  lo.progress = {};
  m.ropes_.push_back(std::make_unique<Rope>(m.spec_.rope));
  for (const RopeSpec& r : m.spec_.other_ropes) m.ropes_.push_back(std::make_unique<Rope>(r));
  m.kv_memory_ = std::make_unique<KvMemory>(m.kv_plan_.kinds, kEngineSlab);
  m.buffers_ = std::make_unique<Buffers>();
  m.buffers_->scratch.resize(options.pool->size());
  m.buffers_->index_scratch.resize(options.pool->size());
  return model;
}

uint64_t DecoderModel::packed_bytes() const {
  uint64_t bytes = embedding_bytes() + (output_ != nullptr ? output_->packed_bytes() : 0);
  for (const auto& l : layers_) {
    if (l == nullptr) continue;
    if (const MoeLayer* moe = l->moe.experts.get())
      bytes += moe->packed_bytes() + moe->gate_bytes();
    bytes += l->dense_bytes();
    if (l->parallel_mlp != nullptr) bytes += l->parallel_mlp->packed_bytes();
  }
  return bytes;
}

uint64_t DecoderModel::weight_bytes_per_token() const {
  uint64_t bytes = output_ != nullptr ? output_->packed_bytes() : 0;
  for (const auto& l : layers_) {
    if (l == nullptr) continue;
    bytes += l->moe_bytes_per_token;
    bytes += l->dense_bytes();
    if (l->parallel_mlp != nullptr) bytes += l->parallel_mlp->packed_bytes();
  }
  return bytes;
}

}  // namespace moebius
