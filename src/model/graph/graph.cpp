// SPDX-License-Identifier: Apache-2.0
// Runs one step through the layers. Rows hold numbers that are exact in the activation type.
#include "model/graph/graph.h"

namespace moebius {

RowSet Graph::hidden(Step& step, Device& device) const {
  return rows(step, device, kHidden, l_.hidden * l_.streams);
}

RowSet Graph::gates(Step& step, Device& device) const {
  return l_.gates == 0 ? RowSet() : device.rows(step, kStreamMix, l_.gates, XType::kF32);
}

void Graph::embed(Step& step) const {
  step.phase = Phase::kEmbedding;
  Device& ends = l_.devices.ends();
  const RowSet h = hidden(step, ends);
  l_.embedding->forward(step, h.columns(0, l_.hidden));
  if (l_.embedded != nullptr) l_.embedded->run(step, {h});
  if (l_.predictor != nullptr) {
    const RowSet both = rows(step, ends, kJoined, 2 * l_.hidden);
    step.phase = Phase::kNorm;
    l_.predictor->norms->run(step, {h, before(step), both});
    step.phase = Phase::kLinear;
    l_.predictor->join->forward(step, both, h);
  }
  if (&ends != &first_device()) Device::copy(step, h, hidden(step, first_device()));
}

RowSet Graph::before(Step& step) const { return rows(step, l_.devices.ends(), kBefore, l_.hidden); }

void Graph::keep_keys(Step& step) const {
  const GraphLayer& layer = *l_.layers[l_.own.begin];
  const RowSet a = rows(step, *layer.device, kInput, l_.hidden);
  enter(step, layer, /*attention=*/true, hidden(step, *layer.device), a);
  attend(step, layer, a, {});
}

void Graph::enter(Step& step, const GraphLayer& layer, bool attention, const RowSet& h,
                  const RowSet& a) const {
  Device& device = *layer.device;
  step.phase = Phase::kNorm;
  const auto& mixer = attention ? layer.attention_mixer : layer.block_mixer;
  if (mixer != nullptr) return mix_streams(step, device, *mixer, h, a);
  if (attention || !layer.block_reads_attention_input)
    (attention ? layer.attention_in : layer.block_in)->run(step, {h, a, {}, gates(step, device)});
  gate_rows(step, device, (attention ? layer.attention_gate : layer.block_gate).get(), a);
}

void Graph::mix_streams(Step& step, Device& device, const StreamMixer& mixer, const RowSet& h,
                        const RowSet& a) const {
  const RowSet z = rows(step, device, kNormalized, h.cols),
               low = rows(step, device, kGateLatents, mixer.down->out_features()),
               by = rows(step, device, kRowGates, h.cols);
  mixer.norms->run(step, {h, z});
  step.phase = Phase::kLinear;
  mixer.down->forward(step, z, low);
  mixer.between->run(step, {low, gates(step, device)});
  mixer.up->forward(step, low.columns(0, mixer.up->in_features()), by);
  step.phase = Phase::kNorm;
  mixer.mix->run(step, {by, z, a});
}

void Graph::join_ngrams(Step& step, const GraphLayer& layer, const RowSet& h) const {
  const NGramInput& n = *layer.ngrams;
  Device& d = *layer.device;
  const RowSet e = rows(step, d, kNGrams, n.features),
               kv = rows(step, d, kKeysValue, n.keys_value->out_features()),
               q = rows(step, d, kStreamQueries, h.cols), v = rows(step, d, kStreamValues, h.cols),
               normalized = rows(step, d, kNormalized, h.cols);
  step.phase = Phase::kEmbedding;
  n.table->forward(step, e);
  step.phase = Phase::kLinear;
  n.keys_value->forward(step, e, kv);
  step.phase = Phase::kNorm;
  n.gated->run(step, {h, kv, q, v, normalized});
  n.join->run(step, {h, v, convolved(step, n.convolution.get(), normalized)});
}

bool Graph::cuts_last_block() const {
  const GraphLayer& layer = *l_.layers[l_.own.end - 1];
  const auto* beside = layer.block ? layer.block->beside.get() : nullptr;
  return layer.block && layer.experts_device == layer.device &&
         layer.block_convolution == nullptr && (beside == nullptr || beside->inputs == nullptr);
}

void Graph::cut_last_block(Step& step, const GraphLayer& layer, const std::vector<uint32_t>& asked,
                           std::span<uint32_t> counts) const {
  Device& d = *layer.device;
  const RowSet a = rows(step, d, kInput, l_.hidden);
  step.phase = Phase::kMoe;
  if (layer.block->router != nullptr) experts(step, *layer.block, a, a, {}, counts);
  const auto move = [&](RowSet all) {
    RowSet front = all;
    front.rows = asked.size();
    if (all.rows > 0) d.take_rows(step, all, asked, front);
  };
  move(hidden(step, d)), move(a), move(gates(step, d));
  if (layer.joins_later) move(rows(step, d, kLater, l_.hidden));
}

void Graph::run(Step& step, std::span<uint32_t> counts, const std::function<void()>& between,
                Step* last, const std::vector<uint32_t>& asked) const {
  RowSet h = hidden(step, first_device());
  step.phase = Phase::kEmbedding;
  for (size_t i = l_.own.begin; i < l_.own.end; ++i)
    if (l_.layers[i]->ngrams != nullptr) l_.layers[i]->ngrams->table->prefetch(step);
  for (size_t i = l_.own.begin; i < l_.own.end; ++i) {
    const GraphLayer& layer = *l_.layers[i];
    if (h.device != layer.device) {
      const RowSet there = hidden(step, *layer.device);
      Device::copy(step, h, there);
      if (layer.joins_later)
        Device::copy(step, rows(step, *h.device, kLater, l_.hidden),
                     rows(step, *layer.device, kLater, l_.hidden));
      h = there;
    }
    const RowSet a = rows(step, *layer.device, kInput, l_.hidden);
    if (layer.ngrams != nullptr) join_ngrams(step, layer, h);
    if (layer.mixer.index() != 0) {
      enter(step, layer, /*attention=*/true, h, a);
      const RowSet branch = rows(step, *layer.device, kBranch, l_.hidden);
      attend(step, layer, a, branch);
      step.phase = Phase::kNorm;
      layer.attention_join->run(step, {h,
                                       convolved(step, layer.attention_convolution.get(), branch),
                                       {},
                                       gates(step, *layer.device)});
    }
    if (layer.block) {
      enter(step, layer, false, h, a);
      const std::span<uint32_t> own = counts.first(layer.experts());
      if (last != nullptr && i + 1 == l_.own.end) {
        cut_last_block(step, layer, asked, own);
        run_block(*last, layer, {});
      } else {
        run_block(step, layer, own);
      }
      counts = counts.subspan(layer.experts());
    }
    if (between) between();
  }
}

void Graph::run_block(Step& step, const GraphLayer& layer, std::span<uint32_t> counts) const {
  Device& d = *layer.device;
  const RowSet h = hidden(step, d), branch = rows(step, d, kBranch, l_.hidden);
  mix(step, layer, h, rows(step, d, kInput, l_.hidden), branch, counts);
  step.phase = Phase::kNorm;
  layer.block_join->run(
      step, {h, convolved(step, layer.block_convolution.get(), branch),
             layer.joins_later ? rows(step, d, kLater, l_.hidden) : RowSet(), gates(step, d)});
}

RowSet Graph::convolved(Step& step, const RecurrentOp* convolution, const RowSet& x) const {
  if (convolution == nullptr) return x;
  const RowSet y = rows(step, *x.device, kConvolved, convolution->out_features());
  step.phase = Phase::kAttention;
  convolution->forward(step, x, y);
  return y;
}

void Graph::attend(Step& step, const GraphLayer& layer, const RowSet& a, const RowSet& out) const {
  std::visit(
      [&](const auto& mixer) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(mixer)>, std::monostate>)
          forward(step, layer, mixer, a, out);
      },
      layer.mixer);
}

void Graph::gate_rows(Step& step, Device& device, const RowGate* gate, const RowSet& x) const {
  if (gate == nullptr) return;
  const RowSet latent = rows(step, device, kGateLatents, gate->down->out_features()),
               by = rows(step, device, kRowGates, gate->up->out_features());
  step.phase = Phase::kLinear;
  gate->down->forward(step, x, latent);
  gate->between->run(step, {latent});
  gate->up->forward(step, latent, by);
  gate->gate->run(step, {by, x});
}

// Returns rows on a device, copied if they are on another one.
RowSet Graph::brought(Step& step, Device& device, RowName name, const RowSet& x) const {
  if (x.device == &device) return x;
  const RowSet there = rows(step, device, name, x.cols);
  Device::copy(step, x, there);
  return there;
}

void Graph::mix(Step& step, const GraphLayer& layer, const RowSet& h, const RowSet& a,
                const RowSet& out, std::span<uint32_t> counts) const {
  Device& there = *layer.experts_device;
  const ExpertBlock& block = *layer.block;
  step.phase = Phase::kMoe;
  const RowSet x = brought(step, there, kMoved, a),
               y = &there == layer.device ? out : rows(step, there, kReturned, out.cols);
  if (block.beside == nullptr) {
    experts(step, block, x, x, y, counts);
  } else if (block.beside->inputs == nullptr) {
    const RowSet later = rows(step, there, kLater, l_.hidden);
    block.beside->mlp->forward(step, x, {}, y, {});
    experts(step, block, x, x, later, counts);
    if (&there != h.device) Device::copy(step, later, rows(step, *h.device, kLater, l_.hidden));
  } else {
    const RowSet dense = rows(step, there, kDense, l_.hidden),
                 router_x = rows(step, *h.device, kRouterInput, l_.hidden),
                 experts_x = rows(step, *h.device, kExpertsInput, l_.hidden);
    block.beside->mlp->forward(step, x, {}, dense, {});
    block.beside->inputs->run(step, {h, router_x, experts_x});
    experts(step, block, brought(step, there, kRouterInput, router_x),
            brought(step, there, kExpertsInput, experts_x), y, counts);
    block.beside->join->run(step, {y, dense});
  }
  if (y.device != out.device) Device::copy(step, y, out);
}

void Graph::experts(Step& step, const ExpertBlock& block, const RowSet& router_x, const RowSet& x,
                    const RowSet& y, std::span<uint32_t> counts) const {
  if (block.router == nullptr) return block.experts->forward(step, x, {}, y, {});
  const RowSet logits =
      x.device->rows(step, kRouterLogits, block.router->out_features(), XType::kF32);
  block.router->forward(step, router_x, logits);
  block.experts->forward(step, x, logits, y, counts);
}

void Graph::logits(Step& step, RowSet h, std::vector<uint32_t> which,
                   std::span<const CandidateNeed> needs, std::span<const ListTokens* const> few,
                   std::vector<float>& out, std::vector<std::optional<Candidates>>& found) const {
  Device& ends = l_.devices.ends();
  const size_t n = which.size();
  if (h.device != &ends) {
    const RowSet here = hidden(step, ends);
    Device::copy(step, h, here);
    h = here;
  }
  const RowSet a = rows(step, ends, kInput, l_.hidden);
  step.phase = Phase::kNorm;
  if (l_.final_mixer != nullptr)
    mix_streams(step, ends, *l_.final_mixer, h, a);
  else
    l_.final_norm->run(step, {h, a, gates(step, ends)});
  step.phase = Phase::kOutput;
  out.clear(), found.clear();
  if (n == 0) return;
  const RowSet x = ends.rows(step, kOutputRows, n, l_.hidden, l_.type);
  const auto give = [&](HostRows from, HostRows) {
    out.assign(from.data.begin(), from.data.end());
  };
  if (l_.output == nullptr) {  // the caller wants the rows themselves
    ends.take_rows(step, a, std::move(which), x);
    return ends.on_host(step, x, {}, give);
  }
  const RowSet all = ends.rows(step, kLogits, l_.logits_here ? n : 0, l_.output_width, XType::kF32),
               y = all.columns(0, l_.vocab);
  ends.take_rows(step, a, std::move(which), x);
  if (few.empty() || l_.logit_tail != nullptr || !l_.output->forward_few(step, x, all, few))
    l_.output->forward(step, x, all);
  if (!l_.logits_here) return;
  if (l_.logit_tail != nullptr) l_.logit_tail->run(step, {y});
  found.resize(needs.empty() ? 0 : n);
  if (needs.empty() || !ends.candidates(step, y, needs, found)) {
    found.clear();
    return ends.on_host(step, y, {}, give);
  }
  for (size_t r = 0; r < n; ++r) {
    if (found[r]) continue;
    RowSet one = y;
    one.rows = 1;
    one.offset += r * y.stride;
    ends.on_host(step, one, {}, [&](HostRows from, HostRows) {
      out.insert(out.end(), from.data.begin(), from.data.end());
    });
  }
}

size_t Graph::counted_experts() const {
  size_t n = 0;
  for (size_t i = l_.own.begin; i < l_.own.end; ++i) n += l_.layers[i]->experts();
  return n;
}

}  // namespace moebius
