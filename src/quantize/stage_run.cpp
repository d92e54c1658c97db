// SPDX-License-Identifier: Apache-2.0
// See stage_run.h.
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
      stages_(checkpoint, decoder_spec(checkpoint.config()),
              [&] {
                for (const std::vector<int32_t>& w : windows)
                  options.context = std::max(options.context, w.size());
                return options;
              }()),
      hidden_(stages_.width(), options.type, scratch) {
  hidden_.reserve(tokens_of(windows));
}

void StageRun::advance() {
  if (done_ >= stages_.count()) fail("all {} stages were run", stages_.count());
  stages_.load(done_);
  std::vector<float> rows;
  size_t first = 0;
  for (const std::vector<int32_t>& w : windows_) {
    rows.resize(w.size() * stages_.width());
    if (done_ > 0) hidden_.read(first, w.size(), rows.data());
    stages_.run(w, rows);
    if (done_ == 0)
      hidden_.append(rows.data(), w.size(), stages_.width());
    else
      hidden_.write(first, rows.data(), w.size());
    first += w.size();
  }
  stages_.unload();
  ++done_;
}

}  // namespace moebius
