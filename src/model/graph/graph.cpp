// SPDX-License-Identifier: Apache-2.0
// One step through the layers. Rows hold numbers that are exact in the type of activations.
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
  if (&ends != &first_device()) Device::copy(step, h, hidden(step, first_device()));
}

void Graph::run(Step& step, std::span<uint32_t> counts,
                const std::function<void()>& between) const {
  RowSet h = hidden(step, first_device());
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
    const RowSet a = rows(step, *layer.device, kInput, l_.hidden),
                 branch = rows(step, *layer.device, kBranch, l_.hidden),
                 weights = gates(step, *layer.device);
    if (layer.mixer.index() != 0) {
      step.phase = Phase::kNorm;
      layer.attention_in->run(step, {h, a, {}, weights});
      gate_rows(step, *layer.device, layer.attention_gate.get(), a);
      attend(step, layer, a, branch);
      step.phase = Phase::kNorm;
      layer.attention_join->run(
          step, {h, convolved(step, layer.attention_convolution.get(), branch), {}, weights});
    }
    if (layer.block) {
      step.phase = Phase::kNorm;
      if (!layer.block_reads_attention_input) layer.block_in->run(step, {h, a, {}, weights});
      gate_rows(step, *layer.device, layer.block_gate.get(), a);
      const size_t experts = layer.block->experts->facts().experts;
      mix(step, layer, h, a, branch, counts.first(experts));
      counts = counts.subspan(experts);
      step.phase = Phase::kNorm;
      layer.block_join->run(
          step, {h, convolved(step, layer.block_convolution.get(), branch),
                 layer.joins_later ? rows(step, *h.device, kLater, l_.hidden) : RowSet(), weights});
    }
    if (between) between();
  }
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

void Graph::forward(Step& step, const GraphLayer& layer, const HeadAttention& m, const RowSet& a,
                    const RowSet& out) const {
  Device& d = *layer.device;
  const RowSet qkv = rows(step, d, kQkv, m.qkv->out_features()),
               q = rows(step, d, kQueries, m.query_width),
               k = m.keys ? rows(step, d, kKeys, m.key_width) : RowSet(),
               v = m.keys ? rows(step, d, kValues, m.value_width) : RowSet(),
               gate = m.gate != nullptr ? rows(step, d, kGates, m.gate_width) : RowSet(),
               relative =
                   m.relative_width > 0 ? rows(step, d, kRelatives, m.relative_width) : RowSet(),
               attended = rows(step, d, kAttended, m.out_width);
  step.phase = Phase::kLinear;
  m.qkv->forward(step, a, qkv);
  if (m.index != nullptr) choose(step, d, *m.index, a, a);
  step.phase = Phase::kAttention;
  m.input->run(step, {qkv, q, k, v, gate, relative, convolved(step, m.convolution.get(), qkv)});
  m.attention->forward(step, q, k, v, relative, attended);
  if (m.gate != nullptr) m.gate->run(step, {gate, attended});
  step.phase = Phase::kLinear;
  m.output->forward(step, attended, out);
}

// Which keys the rows of sparse attention see.
void Graph::choose(Step& step, Device& d, const AttentionIndex& index, const RowSet& a,
                   const RowSet& query_from) const {
  const RowSet kw = rows(step, d, kIndexKeys, index.key_weights->out_features()),
               q = rows(step, d, kIndexQueries, index.query->out_features());
  RowSet from = query_from;
  if (index.query_input != nullptr) {
    from = rows(step, d, kIndexInput, l_.hidden);
    index.query_input->run(step, {query_from, from});
  }
  step.phase = Phase::kLinear;
  index.key_weights->forward(step, a, kw);
  index.query->forward(step, from, q);
  step.phase = Phase::kAttention;
  index.rows->run(step, {kw, q});
  index.indexer->select(step, q, kw);
}

void Graph::forward(Step& step, const GraphLayer& layer, const LatentAttention& m, const RowSet& a,
                    const RowSet& out) const {
  Device& d = *layer.device;
  const RowSet down =
                   m.down != nullptr ? rows(step, d, kLatents, m.down->out_features()) : RowSet(),
               latent =
                   m.query_latent > 0 ? rows(step, d, kQueryLatents, m.query_latent) : RowSet(),
               q = rows(step, d, kQueries, m.query_width),
               k = m.keys ? rows(step, d, kKeys, m.key_width) : RowSet(),
               v = m.keys ? rows(step, d, kValues, m.value_width) : RowSet(),
               gate = m.gate != nullptr ? rows(step, d, kGates, m.gate_width) : RowSet();
  step.phase = Phase::kLinear;
  if (m.down != nullptr) {
    m.down->forward(step, a, down);
    m.latents->run(step, {down, latent, k, v, gate});
  }
  const RowSet projected =
      m.query_parts != nullptr ? rows(step, d, kQkv, m.query->out_features()) : q;
  m.query->forward(step, m.query_latent > 0 ? latent : a, projected);
  if (m.query_parts != nullptr) m.query_parts->run(step, {projected, q, gate});
  if (m.index != nullptr)
    choose(step, d, *m.index, a,
           m.query_latent > 0 ? latent.columns(0, m.index->query->in_features()) : a);
  step.phase = Phase::kAttention;
  m.rotate->run(step, {q, k});
  RowSet values = rows(step, d, kAttended, m.attended_width);
  if (m.query_up == nullptr) {
    m.attention->forward(step, q, k, v, {}, values);
  } else {
    const RowSet absorbed = rows(step, d, kAbsorbed, m.absorbed_width);
    m.query_up->forward(step, q, absorbed);
    if (m.rotated_part != nullptr) m.rotated_part->run(step, {q, absorbed});
    m.attention->forward(step, absorbed, k, v, {}, values);
    const RowSet up = rows(step, d, kQueries, m.out_width);
    m.value_up->forward(step, values, up);
    values = up;
  }
  if (m.gate != nullptr) m.gate->run(step, {gate, values});
  step.phase = Phase::kLinear;
  m.output->forward(step, values, out);
}

void Graph::forward(Step& step, const GraphLayer& layer, const SharedKeyAttention& m,
                    const RowSet& a, const RowSet& out) const {
  Device& d = *layer.device;
  const RowSet down = rows(step, d, kLatents, m.down->out_features()),
               latent = rows(step, d, kQueryLatents, m.query_latent),
               q = rows(step, d, kQueries, m.query_width), k = rows(step, d, kKeys, m.key_width),
               attended = rows(step, d, kAttended, m.query_width),
               low = rows(step, d, kAbsorbed, m.low_width);
  step.phase = Phase::kLinear;
  m.down->forward(step, a, down);
  m.latents->run(step, {down, latent, k});
  m.query->forward(step, latent, q);
  step.phase = Phase::kAttention;
  m.queries->run(step, {q});
  if (m.compressed)
    m.compressed->keys->forward(step, down.columns(m.compressed->at, m.compressed->width));
  if (m.index) {
    const RowSet iq = rows(step, d, kIndexQueries, m.index->query->out_features());
    m.index->compressed.keys->forward(
        step, down.columns(m.index->compressed.at, m.index->compressed.width));
    step.phase = Phase::kLinear;
    m.index->query->forward(step, latent, iq);
    step.phase = Phase::kAttention;
    m.index->rows->run(step, {iq});
    m.index->indexer->select(step, iq, down.columns(m.index->weights_at, m.index->heads));
  }
  m.attention->forward(step, q, k, k, {}, attended);
  m.attended->run(step, {attended});
  step.phase = Phase::kLinear;
  const size_t n = m.low.size(), each = m.query_width / n, low_each = m.low_width / n;
  for (size_t g = 0; g < n; ++g)
    m.low[g]->forward(step, attended.columns(g * each, each), low.columns(g * low_each, low_each));
  m.output->forward(step, low, out);
}

// What a recurrent layer reads whose parameters are projections of its convolution.
RowSet Graph::inner_rows(Step& step, Device& d, const RecurrentMixer& m, const RowSet& in) const {
  const RecurrentMixer::Inner& p = *m.inner;
  const RowSet convolved = rows(step, d, kKeys, p.convolution->out_features()),
               parameters = rows(step, d, kLatents, p.parameters->out_features()),
               latent = rows(step, d, kQueryLatents, p.steps->in_features()),
               whole = rows(step, d, kRecurrent, m.width);
  step.phase = Phase::kAttention;
  p.convolution->forward(step, in, convolved);
  step.phase = Phase::kLinear;
  p.parameters->forward(step, convolved, parameters);
  p.parts->run(step, {in, convolved, parameters, latent, whole});
  p.steps->forward(step, latent, whole.columns(p.steps_at, p.steps->out_features()));
  return whole;
}

void Graph::forward(Step& step, const GraphLayer& layer, const RecurrentMixer& m, const RowSet& a,
                    const RowSet& out) const {
  Device& d = *layer.device;
  RowSet in = rows(step, d, kQkv, m.in->out_features());
  step.phase = Phase::kLinear;
  m.in->forward(step, a, in);
  if (m.plain != nullptr) {
    const RowSet whole = rows(step, d, kRecurrent, m.width);
    m.plain->run(step, {in, whole});
    for (const RecurrentMixer::Part& p : m.second)
      p.second->forward(step, in.columns(p.from, p.width), whole.columns(p.to, p.to_width));
    in = whole;
  }
  if (m.inner != nullptr) in = inner_rows(step, d, m, in);
  const RowSet y = rows(step, d, kAttended, m.recurrent->out_features());
  step.phase = Phase::kAttention;
  m.recurrent->forward(step, in, y);
  step.phase = Phase::kLinear;
  m.output->forward(step, y, out);
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

// Rows on another device, by a copy where they are not there.
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
                   std::vector<float>& out) const {
  Device& ends = l_.devices.ends();
  const size_t n = which.size();
  if (h.device != &ends) {
    const RowSet here = hidden(step, ends);
    Device::copy(step, h, here);
    h = here;
  }
  const RowSet a = rows(step, ends, kInput, l_.hidden);
  step.phase = Phase::kNorm;
  l_.final_norm->run(step, {h, a, gates(step, ends)});
  step.phase = Phase::kOutput;
  out.clear();
  if (n == 0) return;
  const RowSet x = ends.rows(step, kOutputRows, n, l_.hidden, l_.type),
               all = ends.rows(step, kLogits, n, l_.output_width, XType::kF32),
               y = all.columns(0, l_.vocab);
  ends.take_rows(step, a, std::move(which), x);
  l_.output->forward(step, x, all);
  if (l_.logit_tail != nullptr) l_.logit_tail->run(step, {y});
  ends.on_host(step, y, {},
               [&](HostRows from, HostRows) { out.assign(from.data.begin(), from.data.end()); });
}

size_t Graph::counted_experts() const {
  size_t n = 0;
  for (size_t i = l_.own.begin; i < l_.own.end; ++i)
    if (l_.layers[i]->block) n += l_.layers[i]->block->experts->facts().experts;
  return n;
}

}  // namespace moebius
