// SPDX-License-Identifier: Apache-2.0
#include "model/load/layer_loader.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "checkpoint/families.h"
#include "model/graph/gathered_ops.h"
#include "model/ranks.h"
#include "nn/convolution_layer.h"

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
  const bool gated = layout_of(family).gated;
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

}  // namespace

Linear LayerScope::linear(const std::vector<ModuleOutputs>& modules) const {
  Linear op = layer.device->linear(c.checkpoint, modules, c.options);
  layer.dense_bytes += op->packed_bytes();
  return op;
}

// Makes the program {h, other, later, gates}: the layer's rows, a branch's input or result, the
// result of earlier experts, and the weights of streams.
Program LayerLoader::branch_program(const LayerOps& list, LayerRows other) const {
  const size_t n = c.to->hidden;
  return program(list, std::array{heads_at(LayerRows::kHidden, 0, 1, n * c.to->streams),
                                  heads_at(other, 1, 1, n), heads_at(LayerRows::kLater, 2, 1, n),
                                  heads_at(LayerRows::kMix, 3, 1, c.to->gates)});
}

void LayerLoader::load() {
  layer.device = &attention_device(c.to->devices, c.spec, index);
  layer.experts_device = &c.to->devices.experts(index);
  layer.place = places().mixer;
  if (spec.ngrams) layer.ngrams = load_ngrams();
  layer.attention_mixer = load_stream_mixer(spec.mixing.stream_mixer);
  layer.block_mixer = load_stream_mixer(spec.block.stream_mixer);
  if (spec.mixer.index() != 0) {
    layer.attention_in = branch_program(spec.mixing.enter, LayerRows::kInput);
    layer.attention_join = branch_program(spec.mixing.join, LayerRows::kBranch);
    layer.attention_gate = load_row_gate(spec.mixing.row_gate);
    layer.mixer = load_mixer(*this);
    if (spec.convolutions)
      layer.attention_convolution = load_convolution(spec.convolutions->mixing, 1);
  }
  if (!spec.has_block) return;
  layer.block_reads_attention_input =
      spec.block.enter.empty() && spec.block.stream_mixer == nullptr;
  layer.joins_later = joins_later(spec);
  layer.block_in = branch_program(spec.block.enter, LayerRows::kInput);
  layer.block_join = branch_program(spec.block.join, LayerRows::kBranch);
  layer.block_gate = load_row_gate(spec.block.row_gate);
  load_block();
  if (spec.convolutions) layer.block_convolution = load_convolution(spec.convolutions->block, 2);
}

// Loads the convolution of a branch's result; its state is number `place` of the layer's
// convolutions.
std::unique_ptr<RecurrentOp> LayerLoader::load_convolution(const char* tensor, size_t place) const {
  const size_t n = c.to->hidden, width = spec.convolutions->width;
  return layer.device->recurrent(
      std::make_unique<ConvolutionLayer>(
          ConvolutionLayerSpec{ConvolutionUse::kAdded, n, 0, n, width},
          parts.values(tensor, n * width), std::vector<float>(), c.to->type),
      convolution_place(c.kv, c.spec, index, place, n));
}

// Loads the two projections under their published names or transformers'.
std::unique_ptr<RowGate> LayerLoader::load_row_gate(const char* stem) const {
  if (stem == nullptr) return nullptr;
  const auto find = [&](const char* published, const char* other) {
    const Module* module = parts.find(fmt::format("{}.{}", stem, published));
    return module != nullptr ? module : &parts.require(fmt::format("{}.{}", stem, other));
  };
  const Module &down = *find("W_down", "mlp.fc1"), &up = *find("W_up", "mlp.fc2");
  if (up.plan.K != down.plan.N || up.plan.N != c.to->hidden)
    fail("{} is [{}, {}]; expected [{}, {}]", up.name, up.plan.N, up.plan.K, c.to->hidden,
         down.plan.N);
  auto gate = std::make_unique<RowGate>();
  gate->down = linear({{&down}}), gate->up = linear({{&up}});
  gate->between = layer.device->rows({{RowOpKind::kSilu, {0}}});
  gate->gate = layer.device->rows({{RowOpKind::kGateSigmoid, {1}, {0}}});
  return gate;
}

LayerLoadOptions LayerLoader::expert_options(MoePart part) const {
  LayerLoadOptions o = c.options;
  if (c.part.columns.empty() && !(c.part.repeats && part == MoePart::kBlock)) return o;
  const Ranks& ranks = *c.part.ranks;
  o.rank.second = Cut::kOutputs;
  if (part == MoePart::kBlock) {
    o.rank.tp = ranks.split().tp;
    o.rank.tp_rank = ranks.tp_rank();
    o.rank.ep = ranks.split().ep;
    o.rank.ep_rank = ranks.ep_rank();
    if (c.experts_of) o.rank.expert_of = c.experts_of(index);
  } else {  // dense layers, too
    o.rank.tp = ranks.members(), o.rank.tp_rank = ranks.member();
  }
  return o;
}

std::unique_ptr<ExpertsOp> LayerLoader::load_mlp() const {
  const MoeBlock block = dense_block(c.checkpoint, index);
  MoeRequest request{&block, MoePart::kExperts};
  if (!c.part.columns.empty()) request.exchange = &c.part.ranks->for_dense();
  std::unique_ptr<ExpertsOp> mlp =
      layer.experts_device->moe(c.checkpoint, request, expert_options(MoePart::kExperts)).experts;
  if (c.part.columns.empty()) return mlp;
  return gather_experts(std::move(mlp), *c.part.ranks, c.part.columns, c.to->type, index,
                        "output of the MLP");
}

std::unique_ptr<ExpertBlock::Beside> LayerLoader::load_beside() const {
  using enum LayerRows;
  const size_t n = c.to->hidden;
  const std::array inputs = {heads_at(kHidden, 0, 1, n), heads_at(kRouterInput, 1, 1, n),
                             heads_at(kExpertsInput, 2, 1, n)};
  const std::array join = {heads_at(kBranch, 0, 1, n), heads_at(kDense, 1, 1, n)};
  auto beside = std::make_unique<ExpertBlock::Beside>();
  beside->mlp = load_mlp();
  if (!spec.beside->inputs.empty()) beside->inputs = program(spec.beside->inputs, inputs);
  if (!spec.beside->join.empty())
    beside->join = layer.experts_device->rows(row_ops(spec.beside->join, join, parts, c.spec));
  return beside;
}

void LayerLoader::load_block() {
  layer.block.emplace();
  if (spec.beside) layer.block->beside = load_beside();
  const auto& blocks = c.checkpoint.moe_blocks();
  const auto stored = std::find_if(blocks.begin(), blocks.end(), [&](const MoeBlock& b) {
    return b.layer == static_cast<int>(index);
  });
  if (stored == blocks.end()) {
    layer.block->experts = load_mlp();
    return;
  }
  MoeBlock block = take_layer_shared(*stored);
  // The reason why it could not run without the lists.
  if (c.spec.whole_blocks) block.routing_reason.clear();
  MoeRequest request{&block};
  const bool ranked = !c.part.columns.empty() || c.part.repeats;
  if (ranked) request.exchange = &c.part.ranks->for_experts();
  const auto& divided = c.to->devices.placement().divided;
  if (const auto some = divided.find(index); some != divided.end()) {
    request.other = &c.to->devices.cpu();
    request.expert_of = divided_places(some->second, block.experts.size());
    request.here = some->second.size();
  }
  MoeOps ops = layer.experts_device->moe(c.checkpoint, request, expert_options(MoePart::kBlock));
  layer.block->router = std::move(ops.router);
  layer.dense_bytes += layer.block->router->packed_bytes();
  layer.block->experts = std::move(ops.experts);
  // The rank has only some columns.
  if (ranked && layer.block->experts->facts().outputs != c.to->hidden)
    layer.block->experts =
        gather_experts(std::move(layer.block->experts), *c.part.ranks, c.part.expert_columns,
                       c.to->type, index, "output of experts");
}

}  // namespace moebius
