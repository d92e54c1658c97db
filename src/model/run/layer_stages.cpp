// SPDX-License-Identifier: Apache-2.0
// Loads and runs the layers of a model stage by stage (layer_stages.h).
#include "model/run/layer_stages.h"

#include <algorithm>

#include "base/error.h"
#include "model/run/step_runner.h"

namespace moebius {

LayerStages::LayerStages(const Checkpoint& checkpoint, DecoderSpec spec, ModelOptions options)
    : checkpoint_(checkpoint),
      options_(std::move(options)),
      spec_(std::move(spec)),
      width_(static_cast<size_t>(checkpoint.config().hidden) * spec_.streams.count) {
  const std::vector<bool> begins = stage_begins(spec_);
  for (size_t i = 0; i < begins.size(); ++i) {
    if (begins[i]) stages_.push_back({i, i});
    stages_.back().end = i + 1;
  }
}

LayerStages::~LayerStages() = default;

size_t LayerStages::vocab() const { return static_cast<size_t>(checkpoint_.config().vocab); }

size_t LayerStages::stage_of(size_t layer) const {
  size_t s = 0;
  while (s + 1 < stages_.size() && stages_[s].end <= layer) ++s;
  return s;
}

uint64_t LayerStages::file_bytes(size_t stage) const {
  uint64_t bytes = 0;
  for (const Module& m : checkpoint_.modules()) {
    if (!m.loaded()) continue;
    const bool here = m.layer >= 0 && static_cast<size_t>(m.layer) >= stages_[stage].begin &&
                      static_cast<size_t>(m.layer) < stages_[stage].end;
    if (here || (stage == 0 && m.kind == ModuleKind::kEmbedding)) bytes += m.bytes;
  }
  return bytes;
}

void LayerStages::unload() { runner_.reset(); }

void LayerStages::load(size_t stage) {
  unload();
  runner_ = std::make_unique<StepRunner>(checkpoint_, options_, ModelPart(spec_, stages_[stage]),
                                         nullptr);
}

void LayerStages::run(std::span<const int32_t> tokens, std::span<float> rows) {
  if (runner_ == nullptr) fail("no stage is loaded");
  StepRunner& runner = *runner_;
  SequenceState state = runner.new_sequence();
  const StepItem item{&state, tokens, false};
  std::vector<float> nobodys;
  runner.forward_by(
      {&item, 1}, nobodys,
      [&](std::span<const StepRunner::Work> work, std::vector<float>&, StepStats& s) {
        s = {};
        const std::unique_ptr<StepRunner::Pass> pass = runner.begin({work.begin(), work.end()});
        try {
          const Graph& graph = runner.graph();
          Step& step = pass->step;
          RowSet h = graph.hidden(step, graph.first_device());
          if (runner.part().first_stage())
            graph.embed(step);
          else
            h.device->on_host(step, {}, h, [&](HostRows, HostRows to) {
              std::copy(rows.begin(), rows.end(), to.data.begin());
            });
          graph.run(step, pass->counts, nullptr);
          h = graph.hidden(step, graph.last_device());
          h.device->on_host(step, h, {}, [&](HostRows from, HostRows) {
            std::copy(from.data.begin(), from.data.end(), rows.begin());
          });
          runner.end(*pass, s);
        } catch (...) {
          runner.abandon(*pass);
          throw;
        }
      });
}

}  // namespace moebius
