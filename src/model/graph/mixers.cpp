// SPDX-License-Identifier: Apache-2.0
// Runs the operations that mix the rows of a sequence in a layer: attention with heads, with
// latents, with one shared key head, and recurrent layers. graph.cpp has the order of a layer. If
// `out` has no rows, attention only stores keys and values.
#include "model/graph/graph.h"

namespace moebius {

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
               attended = out.rows > 0 ? rows(step, d, kAttended, m.out_width) : RowSet();
  step.phase = Phase::kLinear;
  m.qkv->forward(step, a, qkv);
  if (m.index != nullptr) choose(step, d, *m.index, a, a);
  step.phase = Phase::kAttention;
  m.input->run(step, {qkv, q, k, v, gate, relative, convolved(step, m.convolution.get(), qkv)});
  m.attention->forward(step, q, k, v, relative, attended);
  if (out.rows == 0) return;
  if (m.gate != nullptr) m.gate->run(step, {gate, attended});
  step.phase = Phase::kLinear;
  m.output->forward(step, attended, out);
}

// Chooses the keys that rows of sparse attention see.
void Graph::choose(Step& step, Device& d, const AttentionIndex& index, const RowSet& a,
                   const RowSet& query_from) const {
  const size_t width = index.key_weights->out_features(),
               gates = index.pools && index.pools->gates != nullptr
                           ? index.pools->gates->out_features()
                           : 0;
  const RowSet kw = rows(step, d, kIndexKeys, width + gates),
               q = rows(step, d, kIndexQueries, index.query->out_features());
  RowSet from = query_from;
  if (index.query_input != nullptr) {
    from = rows(step, d, kIndexInput, l_.hidden);
    index.query_input->run(step, {query_from, from});
  }
  step.phase = Phase::kLinear;
  index.key_weights->forward(step, a, kw.columns(0, width));
  if (gates > 0) index.pools->gates->forward(step, a, kw.columns(width, gates));
  index.query->forward(step, from, q);
  step.phase = Phase::kAttention;
  index.rows->run(step, {kw, q});
  if (!index.pools) return index.indexer->select(step, q, kw);
  const size_t weights = index.pools->weights;
  index.pools->keys->forward(step, kw.columns(weights, kw.cols - weights));
  index.indexer->select(step, q, kw.columns(0, weights));
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
  if (out.rows == 0) return m.attention->forward(step, q, k, v, {}, out);
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

// Computes the rows of a recurrent layer whose parameters are projections of its convolution.
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

}  // namespace moebius
