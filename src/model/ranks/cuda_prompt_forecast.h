// SPDX-License-Identifier: Apache-2.0
// How long a prompt would take with experts on the CPU, and with these streamed through the GPU: computed before a model is loaded,
// from what the machine reads and sends and from a few experts that are timed.
#pragma once
#include <string>
#include <vector>

#include "device/cuda/stream_rule.h"
#include "model/ranks/cuda_forecast.h"
#include "model/ranks/cuda_stream_plan.h"

namespace moebius {

struct CudaPromptForecast {
  size_t tokens = 0;
  double on_cpu = 0, streamed = 0;  // seconds; streamed 0: nothing is
  size_t rows = kNeverStreamed;     // of a step, from which on a layer is
  CudaStreamed plan;
  std::vector<std::string> words;  // why some layers are not
};

// Seconds of one row of one expert on the CPU, with 64 rows for each expert: some of the first layer's are loaded for it. 0: there
// are none that could be streamed.
double measure_expert_row(const Checkpoint& checkpoint, const ModelOptions& options,
                          const CudaTarget& target);

// expert_row: as measured. allowed, host_free: as of plan_streams().
CudaPromptForecast forecast_prompt(const Checkpoint& checkpoint, const ModelOptions& options,
                                   const CudaTarget& target, const CudaRates& rates,
                                   double expert_row, uint64_t allowed, uint64_t host_free,
                                   size_t tokens);

}  // namespace moebius
