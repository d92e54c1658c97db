// SPDX-License-Identifier: Apache-2.0
// What is asked of `quantize` and `eval` as JSON, for callers that are no command line, and what both
// answer: the objects that the tool prints with --json.
#pragma once
#include <string_view>

#include "quantize/evaluate.h"
#include "quantize/layer_errors.h"
#include "quantize/quantize.h"

namespace moebius {

// Members by the names of the tool's options; throws Error naming one that is unknown or of the wrong
// kind.
struct QuantizeRequest {
  QuantizeOptions options;
  size_t threads = 0;  // 0: all cores
  bool dry_run = false;
};
QuantizeRequest quantize_request(std::string_view json);
Json quantize_answer(const QuantizeJob& job, double seconds, bool done);

struct EvalRequest {
  std::string folder, base;
  std::string text, file, chat;  // one of them, or
  std::vector<int32_t> tokens;
  size_t context = 512, windows = 0, top = 10, threads = 0;
  std::string dtype = "auto";
  bool layers = false;
};
EvalRequest eval_request(std::string_view json);
Json eval_answer(const EvalFigures& figures, const LayerErrors& errors, size_t top);

inline constexpr size_t kWorstModules = 20;  // that are named

}  // namespace moebius
