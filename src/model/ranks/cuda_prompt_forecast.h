// SPDX-License-Identifier: Apache-2.0
// Forecasts how long a prompt takes with experts on the CPU, and with these streamed through the
// GPU: before a model is loaded, from rates of memory and link and from a few experts that are
// timed.
#pragma once
#include <string>
#include <vector>

#include "device/cuda/stream_rule.h"
#include "model/ranks/cuda_forecast.h"
#include "model/ranks/cuda_stream_plan.h"

namespace moebius {

struct CudaPromptForecast {
  size_t tokens = 0;
  double on_cpu = 0, streamed = 0;  // seconds; streamed is 0 if nothing is streamed
  size_t rows = kNeverStreamed;     // rows of a step from which on a layer is streamed
  CudaStreamed plan;
  std::vector<std::string> words;  // why some layers are not streamed
};

// Measures the seconds of one row of one expert on the CPU, with 64 rows per expert: loads some
// experts of the first layer. 0: there are none that could be streamed.
double measure_expert_row(const Checkpoint& checkpoint, const ModelOptions& options,
                          const CudaTarget& target);

// Forecasts a prompt. expert_row: the measured seconds. allowed, host_free: as in plan_streams().
CudaPromptForecast forecast_prompt(const Checkpoint& checkpoint, const ModelOptions& options,
                                   const CudaTarget& target, const CudaRates& rates,
                                   double expert_row, uint64_t allowed, uint64_t host_free,
                                   size_t tokens);

}  // namespace moebius
