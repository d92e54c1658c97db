// SPDX-License-Identifier: Apache-2.0
// Carries rows of windows through the layers of a model (stage_run.h).
#include "quantize/stage_run.h"

#include <algorithm>

#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {

size_t tokens_of(const TokenWindows& windows) {
  size_t n = 0;
  for (const std::vector<int32_t>& w : windows) n += w.size();
  return n;
}

StageRun::StageRun(const Checkpoint& checkpoint, const TokenWindows& windows, ModelOptions options,
                   const std::string& scratch)
    : windows_(windows),
      options_([&] {
        for (const std::vector<int32_t>& w : windows)
          options.context = std::max(options.context, w.size());
        return std::move(options);
      }()),
      stages_(checkpoint, decoder_spec(checkpoint.config()), options_),
      hidden_(stages_.width(), options_.type, scratch) {
  hidden_.reserve(tokens_of(windows));
}

void StageRun::advance(const Checkpoint* with) {
  if (with == nullptr) {
    run(stages_, true);
  } else {
    ModelOptions options = options_;
    options.tap = nullptr;
    LayerStages other(*with, stages_.spec(), std::move(options));
    run(other, true);
  }
  ++done_;
}

void StageRun::look() { run(stages_, false); }

void StageRun::run(LayerStages& stages, bool keep) {
  if (done_ >= stages.count()) fail("all {} stages were run", stages.count());
  stages.load(done_);
  std::vector<float> rows;
  size_t first = 0;
  for (const std::vector<int32_t>& w : windows_) {
    rows.resize(w.size() * stages.width());
    if (done_ > 0) hidden_.read(first, w.size(), rows.data());
    stages.run(w, rows);
    if (keep && done_ == 0)
      hidden_.append(rows.data(), w.size(), stages.width());
    else if (keep)
      hidden_.write(first, rows.data(), w.size());
    first += w.size();
  }
  stages.unload();
}

}  // namespace moebius
