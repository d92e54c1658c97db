// SPDX-License-Identifier: Apache-2.0
// Implements the command perplexity: how well a model predicts a text, and how far it is from
// another model.
#pragma once
#include <iosfwd>
#include <string>

#include "apps/model_commands.h"
#include "model/run/scoring.h"

namespace moebius {

struct PerplexityOptions {
  ModelRunOptions model;
  TokenSource tokens;
  size_t context = 512;
  size_t windows = 0;  // number of windows; 0: all
  std::string base;    // folder to compare with; "": none
  bool json = false;
};
int run_perplexity(const PerplexityOptions& options, std::ostream& out);

}  // namespace moebius
