// SPDX-License-Identifier: Apache-2.0
// Reads options of `quantize` and `eval` as JSON, for callers other than the command line, and
// writes their results: the objects that the tool prints with --json.
#pragma once
#include <string_view>

#include "quantize/evaluate.h"
#include "quantize/layer_errors.h"
#include "quantize/quantize.h"

namespace moebius {

// Options of quantize. The JSON's members have the names of the tool's options. Throws Error that
// names an unknown member or one of the wrong type.
struct QuantizeRequest {
  QuantizeOptions options;
  size_t threads = 0;  // number of threads; 0: all cores
  bool dry_run = false;
};
QuantizeRequest quantize_request(std::string_view json);
Json quantize_answer(const QuantizeJob& job, double seconds, bool done);

struct EvalRequest {
  std::string folder, base;
  std::string text, file, chat;  // where the text comes from: one of these three, or tokens
  std::vector<int32_t> tokens;
  size_t context = 512, windows = 0, top = 10, threads = 0;
  std::string dtype = "auto";
  bool layers = false;
};
EvalRequest eval_request(std::string_view json);
Json eval_answer(const EvalFigures& figures, const LayerErrors& errors, size_t top);

// Number of modules with the largest losses that are listed.
inline constexpr size_t kWorstModules = 20;

}  // namespace moebius
