// SPDX-License-Identifier: Apache-2.0
#include "model/load/layer_set_loader.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "checkpoint/families.h"
#include "checkpoint/token_table.h"
#include "model/arch/arch.h"
#include "model/graph/gathered_ops.h"
#include "model/load/row_lists.h"
#include "model/ranks.h"
#include "nn/residual_convolution.h"

namespace moebius {
namespace {

// Describes a dense MLP as a mixture with one expert; without a gate if the family has none.
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
  block.spec.router.experts = 1;
  block.spec.router.top_k = 1;
  block.spec.activation = config.dense_activation(block.layer);
  return block;
}

// Moves a shared expert that the file stores on the layer into the block, because both read the
// same rows.
MoeBlock take_layer_shared(const MoeBlock& stored) {
  MoeBlock block = stored;
  if (stored.layer_shared[2] == nullptr) return block;
  block.shared = stored.layer_shared;
  block.spec.shared = SharedKind::kPlain;
  block.spec.shared_intermediate = static_cast<size_t>(block.shared[2]->plan.K);
  return block;
}

const Module& embedding_of(const Checkpoint& checkpoint) {
  const Module* found = token_table(checkpoint);
  if (found == nullptr) fail("{}: has no token embedding", checkpoint.folder());
  return *found;
}

const Module& output_of(const Checkpoint& checkpoint) {
  const Module* output = checkpoint.output_module();
  if (output == nullptr) fail("{}: has no output projection (lm_head)", checkpoint.folder());
  return *output;
}

// Returns whether the part has all layers and no output projection: its result is the rows after
// the final norm.
bool gives_rows(const ModelPart& part) {
  return !part.projects && part.ranks == nullptr && part.first_stage() &&
         part.own.end == part.whole.layers.size();
}

void check_ends(const Checkpoint& checkpoint, size_t vocab, size_t hidden, bool projects) {
  const Module& embedding = embedding_of(checkpoint);
  if (embedding.plan.N < vocab || embedding.plan.K != hidden)
    fail("{} is [{}, {}]; expected at least {} tokens of {}", embedding.name, embedding.plan.N,
         embedding.plan.K, vocab, hidden);
  if (!projects) return;
  const Module& output = output_of(checkpoint);
  if (output.plan.N < vocab)
    fail("{} has {} outputs; expected at least {}", output.name, output.plan.N, vocab);
}

}  // namespace

LayerSetLoader::LayerSetLoader(const Checkpoint& checkpoint, const ModelPart& part,
                               const KvPlan& kv, const KvChoice& kv_options, LoadOptions options,
                               ExpertsOf experts_of)
    : checkpoint_(checkpoint),
      part_(part),
      spec_(part.spec),
      kv_(kv),
      kv_options_(kv_options),
      options_(std::move(options)),
      experts_of_(std::move(experts_of)) {
  options_.progress = [this, tell = std::move(options_.progress)](uint64_t bytes) {
    read_ += bytes;
    if (tell) tell(bytes);
  };
}

void LayerSetLoader::begin(LayerSet& to) {
  to_ = &to;
  const ModelConfig& config = checkpoint_.config();
  to.hidden = static_cast<size_t>(config.hidden);
  to.vocab = static_cast<size_t>(config.vocab);
  to.type = options_.x_type;
  to.own = part_.own;
  to.streams = spec_.streams.count;
  to.gates = to.streams > 1 ? spec_.streams.gates() : 0;
}

void LayerSetLoader::load(LayerSet& to) {
  begin(to);
  check_ends(checkpoint_, to.vocab, to.hidden, !gives_rows(part_));
  std::vector<RopeSpec> ropes = {spec_.rope};
  ropes.insert(ropes.end(), spec_.other_ropes.begin(), spec_.other_ropes.end());
  if (spec_.rope_factors != nullptr)
    for (RopeSpec& rope : ropes)
      for (const float log : model_values(spec_.rope_factors, rope.dims / 2))
        rope.factors.push_back(std::exp(static_cast<double>(log)));
  for (Device* d : to.devices.all()) d->set_ropes(ropes);
  to.layers.resize(spec_.layers.size());
  for (size_t i = part_.own.begin; i < part_.own.end; ++i) {
    to.layers[i] = std::make_unique<GraphLayer>();
    load_layer(i, *to.layers[i]);
  }
  load_ends();
  to.file_bytes += read_;
}

Linear LayerSetLoader::linear(GraphLayer& layer, const std::vector<ModuleOutputs>& modules) {
  Linear op = layer.device->linear(checkpoint_, modules, options_);
  layer.dense_bytes += op->packed_bytes();
  return op;
}

// Makes the program {h, other, later, gates}: the layer's rows, a branch's input or result, the
// result of earlier experts, and the weights of streams.
Program LayerSetLoader::branch_program(const LayerOps& list, LayerRows other,
                                       const LayerParts& parts, Device& device) const {
  const size_t n = to_->hidden;
  const std::array places = {heads_at(LayerRows::kHidden, 0, 1, n * to_->streams),
                             heads_at(other, 1, 1, n), heads_at(LayerRows::kLater, 2, 1, n),
                             heads_at(LayerRows::kMix, 3, 1, to_->gates)};
  return device.rows(row_ops(list, places, parts, spec_));
}

void LayerSetLoader::load_layer(size_t index, GraphLayer& layer) {
  const LayerParts parts(checkpoint_, index);
  const LayerSpec& spec = spec_.layers[index];
  layer.device = &attention_device(to_->devices, spec_, index);
  layer.experts_device = &to_->devices.experts(index);
  layer.place = kv_.layers[index];
  const auto program = [&](const LayerOps& list, LayerRows other) {
    return branch_program(list, other, parts, *layer.device);
  };
  if (spec.ngrams) layer.ngrams = load_ngrams(parts, layer);
  layer.attention_mixer = load_branch_mixer(parts, spec.attention_mixer, layer);
  layer.block_mixer = load_branch_mixer(parts, spec.block_mixer, layer);
  if (spec.attends) {
    layer.attention_in = program(spec.enter_attention, LayerRows::kInput);
    layer.attention_join = program(spec.join_attention, LayerRows::kBranch);
    layer.attention_gate = load_row_gate(parts, spec.attention_row_gate, layer);
    layer.mixer = load_mixer(parts, layer);
    if (spec_.convolutions)
      layer.attention_convolution =
          load_convolution(parts, spec_.convolutions->attention, 1, layer);
  }
  if (!spec.mixes) return;
  layer.block_reads_attention_input = spec.enter_block.empty() && spec.block_mixer == nullptr;
  layer.joins_later = joins_later(spec);
  layer.block_in = program(spec.enter_block, LayerRows::kInput);
  layer.block_join = program(spec.join_block, LayerRows::kBranch);
  layer.block_gate = load_row_gate(parts, spec.block_row_gate, layer);
  load_block(parts, layer);
  if (spec_.convolutions)
    layer.block_convolution = load_convolution(parts, spec_.convolutions->block, 2, layer);
}

// Loads the convolution of a branch's result; its state is number `place` of the layer's
// convolutions.
std::unique_ptr<RecurrentOp> LayerSetLoader::load_convolution(const LayerParts& parts,
                                                              const char* tensor, size_t place,
                                                              GraphLayer& layer) const {
  const size_t n = to_->hidden, width = spec_.convolutions->width;
  return layer.device->recurrent(std::make_unique<ResidualConvolution>(
                                     n, 0, n, width, parts.values(tensor, n * width), to_->type),
                                 convolution_place(kv_, spec_, parts.index(), place, n));
}

// Loads the two projections under their published names or transformers'.
std::unique_ptr<RowGate> LayerSetLoader::load_row_gate(const LayerParts& parts, const char* stem,
                                                       GraphLayer& layer) {
  if (stem == nullptr) return nullptr;
  const auto find = [&](const char* published, const char* other) {
    const Module* module = parts.find(fmt::format("{}.{}", stem, published));
    return module != nullptr ? module : &parts.require(fmt::format("{}.{}", stem, other));
  };
  const Module &down = *find("W_down", "mlp.fc1"), &up = *find("W_up", "mlp.fc2");
  if (up.plan.K != down.plan.N || up.plan.N != to_->hidden)
    fail("{} is [{}, {}]; expected [{}, {}]", up.name, up.plan.N, up.plan.K, to_->hidden,
         down.plan.N);
  auto gate = std::make_unique<RowGate>();
  gate->down = linear(layer, {{&down}}), gate->up = linear(layer, {{&up}});
  gate->between = layer.device->rows({{RowOpKind::kSilu, {0}}});
  gate->gate = layer.device->rows({{RowOpKind::kGateSigmoid, {1}, {0}}});
  return gate;
}

LoadOptions LayerSetLoader::expert_options(MoePart part, size_t layer) const {
  LoadOptions o = options_;
  if (part_.columns.empty() && !(part_.repeats && part == MoePart::kBlock)) return o;
  const Ranks& ranks = *part_.ranks;
  o.rank.second = Cut::kOutputs;
  if (part == MoePart::kBlock) {
    o.rank.tp = ranks.split().tp;
    o.rank.tp_rank = ranks.tp_rank();
    o.rank.ep = ranks.split().ep;
    o.rank.ep_rank = ranks.ep_rank();
    if (experts_of_) o.rank.expert_of = experts_of_(layer);
  } else {  // dense layers, too
    o.rank.tp = ranks.members(), o.rank.tp_rank = ranks.member();
  }
  return o;
}

std::unique_ptr<ExpertsOp> LayerSetLoader::load_mlp(GraphLayer& layer, size_t index) {
  const MoeBlock block = dense_block(checkpoint_, index);
  MoeRequest request{&block, MoePart::kExperts};
  if (!part_.columns.empty()) request.exchange = &part_.ranks->for_dense();
  std::unique_ptr<ExpertsOp> mlp =
      layer.experts_device->moe(checkpoint_, request, expert_options(MoePart::kExperts, index))
          .experts;
  if (part_.columns.empty()) return mlp;
  return gather_experts(std::move(mlp), *part_.ranks, part_.columns, to_->type, index,
                        "output of the MLP");
}

std::unique_ptr<ExpertBlock::Beside> LayerSetLoader::load_beside(const LayerParts& parts,
                                                                 GraphLayer& layer) {
  using enum LayerRows;
  const size_t n = to_->hidden;
  const std::array inputs = {heads_at(kHidden, 0, 1, n), heads_at(kRouterInput, 1, 1, n),
                             heads_at(kExpertsInput, 2, 1, n)};
  const std::array join = {heads_at(kBranch, 0, 1, n), heads_at(kDense, 1, 1, n)};
  auto beside = std::make_unique<ExpertBlock::Beside>();
  beside->mlp = load_mlp(layer, parts.index());
  const BesideSpec& spec = *spec_.layers[parts.index()].beside;
  if (!spec.inputs.empty())
    beside->inputs = layer.device->rows(row_ops(spec.inputs, inputs, parts, spec_));
  if (!spec.join.empty())
    beside->join = layer.experts_device->rows(row_ops(spec.join, join, parts, spec_));
  return beside;
}

void LayerSetLoader::load_block(const LayerParts& parts, GraphLayer& layer) {
  const size_t index = parts.index();
  layer.block.emplace();
  if (spec_.layers[index].beside) layer.block->beside = load_beside(parts, layer);
  const auto& blocks = checkpoint_.moe_blocks();
  const auto stored = std::find_if(blocks.begin(), blocks.end(), [&](const MoeBlock& b) {
    return b.layer == static_cast<int>(index);
  });
  if (stored == blocks.end()) {
    layer.block->experts = load_mlp(layer, index);
    return;
  }
  MoeBlock block = take_layer_shared(*stored);
  // The reason why it could not run without the lists.
  if (spec_.whole_blocks) block.routing_reason.clear();
  MoeRequest request{&block};
  const bool ranked = !part_.columns.empty() || part_.repeats;
  if (ranked) request.exchange = &part_.ranks->for_experts();
  const auto& divided = to_->devices.placement().divided;
  if (const auto some = divided.find(index); some != divided.end()) {
    request.other = &to_->devices.cpu();
    request.expert_of = divided_places(some->second, block.experts.size());
    request.here = some->second.size();
  }
  MoeOps ops =
      layer.experts_device->moe(checkpoint_, request, expert_options(MoePart::kBlock, index));
  layer.block->router = std::move(ops.router);
  layer.dense_bytes += layer.block->router->packed_bytes();
  layer.block->experts = std::move(ops.experts);
  // The rank has only some columns.
  if (ranked && layer.block->experts->facts().outputs != to_->hidden)
    layer.block->experts =
        gather_experts(std::move(layer.block->experts), *part_.ranks, part_.expert_columns,
                       to_->type, index, "output of experts");
}

// Reads a tensor of the whole model by the end of its name: the shortest name, because prediction
// heads may have one of their own.
std::vector<float> LayerSetLoader::model_values(std::string_view ends, size_t count) const {
  const TensorStore& store = checkpoint_.store();
  const TensorInfo* found = nullptr;
  for_each_word(ends, [&](std::string_view end, bool) {
    for (const TensorInfo& t : store.tensors())
      if (t.name.ends_with(end) && (found == nullptr || t.name.size() < found->name.size()))
        found = &t;
  });
  if (found == nullptr) fail("{}: no tensor ends in one of {}", checkpoint_.folder(), ends);
  std::vector<float> v = read_floats(store, *found);
  if (v.size() != count)
    fail("{} is {}; expected {} values", store.where(*found), describe(*found), count);
  return v;
}

// Makes the operations {h, a, gates}: a = norm(h), or a norm of all streams in one.
std::vector<RowOp> LayerSetLoader::final_rows(Norm norm) const {
  RowOp last{RowOpKind::kNorm, {1}, {0}};
  last.norm = std::move(norm);
  if (to_->streams == 1) return {std::move(last)};
  const auto values = [&](const char* member, size_t count) {
    std::string ends;
    for_each_word(spec_.streams.head, [&](std::string_view word, bool) {
      ends.append(ends.empty() ? "" : " ").append(word).append(member);
    });
    return model_values(ends, count);
  };
  const RowView h{0, 0, to_->hidden * to_->streams}, a{1, 0, to_->hidden}, w{2, 0, to_->streams};
  RowOp gates{RowOpKind::kStreamGates, w, h}, in{RowOpKind::kStreamsIn, a, h};
  in.w = w;
  last.x = a;
  if (spec_.streams.head == nullptr) {
    auto mean = std::make_shared<StreamGates>();
    mean->streams = to_->streams;
    in.streams = std::move(mean);
    return {std::move(in), std::move(last)};
  }
  gates.streams = in.streams = load_stream_gates(spec_, to_->hidden, false, values);
  return {std::move(gates), std::move(in), std::move(last)};
}

// Loads the operations before and after the layers. Of several ranks the first embeds, and the
// ranks of its stage compute logits.
void LayerSetLoader::load_ends() {
  if (!part_.first_stage()) return;
  Linear projection = part_.projects || gives_rows(part_) ? load_projection() : nullptr;
  const bool cut = !part_.columns.empty();
  if (part_.embeds) load_embedding(cut ? nullptr : projection.get());
  to_->logits_here = part_.ranks == nullptr || part_.ranks->leader();
  if (cut)
    projection = gather_logits(std::move(projection), *part_.ranks, to_->output_width);
  else if (part_.repeats)
    projection = compare_logits(std::move(projection), *part_.ranks, to_->output_width);
  to_->output = std::move(projection);
}

// Loads the final norm and everything that turns its result into logits; returns the product, or
// null if the rows are wanted.
Linear LayerSetLoader::load_projection() {
  const auto& modules = checkpoint_.modules();
  if (spec_.streams.rank > 0) {
    to_->final_mixer = load_final_mixer();
  } else {
    const auto norm = std::find_if(modules.begin(), modules.end(), [](const Module& m) {
      return m.kind == ModuleKind::kNorm && m.layer < 0 && !m.name.ends_with("embed_norm");
    });
    if (norm == modules.end()) fail("{}: has no final norm", checkpoint_.folder());
    const TensorStore& store = checkpoint_.store();
    Norm last{spec_.norm,
              spec_.norm_epsilon,
              read_floats(store, store.require(norm->name + ".weight")),
              {}};
    if (const TensorInfo* bias = store.find(norm->name + ".bias"))
      last.bias = read_floats(store, *bias);
    to_->final_norm = to_->devices.ends().rows(final_rows(std::move(last)));
  }
  if (!part_.projects) return nullptr;
  const Module& output = output_of(checkpoint_);
  Device& device = to_->devices.ends();
  to_->output_width = output.plan.N;
  std::vector<RowOp> tail;
  if (spec_.logits_divisor != 1.0f)
    tail.push_back({RowOpKind::kDivide, {}, {}, spec_.logits_divisor});
  if (spec_.logits_cap != 0.0f) tail.push_back({RowOpKind::kCap, {}, {}, spec_.logits_cap});
  if (!tail.empty()) to_->logit_tail = device.rows(std::move(tail));
  const Ranks* ranks = part_.ranks;
  if (part_.repeats && !ranks->leader()) return nullptr;
  const Range rows = part_.columns.empty() ? Range{}
                                           : output_range(to_->output_width, ranks->members(),
                                                          ranks->member(), output.name);
  return device.linear(checkpoint_, {{&output, rows}}, options_);
}

// output: the whole projection to logits, whose weights the table may share; null: not in this
// process.
void LayerSetLoader::load_embedding(const LinearOp* output) {
  Device& device = to_->devices.ends();
  const Module& embedding = embedding_of(checkpoint_);
  const RowView row{0, 0, to_->hidden};
  std::vector<RowOp> embedded;
  if (spec_.embedding_norm != nullptr)
    embedded.push_back(norm_op(
        row, row,
        {spec_.norm, spec_.norm_epsilon, model_values(spec_.embedding_norm, to_->hidden), {}}));
  for (size_t i = 1; i < to_->streams; ++i)
    embedded.push_back(copy_op({0, i * to_->hidden, to_->hidden}, row));
  if (!embedded.empty()) to_->embedded = device.rows(std::move(embedded));
  const bool tied = checkpoint_.output_module() == &embedding;
  float multiplier = spec_.embedding_multiplier;
  if (spec_.round_embedding_multiplier) round_to(to_->type, &multiplier, 1);
  to_->embedding = device.embedding(checkpoint_, embedding, multiplier, tied ? output : nullptr);
  if (to_->embedding->table_bytes() > 0) to_->file_bytes += embedding.bytes;
}

}  // namespace moebius
