// SPDX-License-Identifier: Apache-2.0
// A file of routing: which experts every token of a run chose in every layer. It is recorded by
// `run --route-trace` and replayed by `bench experts`. All numbers are little-endian: 16 bytes
// "moebius routing\n"; u32 layers that have experts, experts of a layer, choices of a token in a
// layer, and zero; u64 tokens; then u16 [tokens, layers, choices] experts, 65535 for none.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "device/tap.h"

namespace moebius {

class Checkpoint;

struct RouteTrace {
  static constexpr uint16_t kNoExpert = UINT16_MAX;
  size_t layers = 0, experts = 0, top_k = 0;
  std::vector<uint16_t> choices;  // [tokens, layers, top_k]
  size_t tokens() const { return choices.size() / (layers * top_k); }
};
// Returns the sizes of a trace of the checkpoint, without choices. Throws Error for a model without
// experts, or with more than a trace can name.
RouteTrace route_sizes(const Checkpoint& checkpoint);
// Reads a trace. Throws Error if it is damaged or is of another model than `sizes`.
RouteTrace read_route_trace(const std::string& path, const RouteTrace& sizes);

// Records the steps of a model that runs in one process, on the thread that runs them.
class RouteRecorder final : public ModuleTap {
 public:
  RouteRecorder(std::string path, const Checkpoint& checkpoint);  // throws Error for a folder
  void linear(std::span<const Module* const>, const TappedRows&) override {}
  void block(const MoeBlock& block, const TappedRows& x, std::span<const int32_t> ids,
             size_t slots) override;
  void finish() const;  // writes the file; throws Error

 private:
  std::string path_;
  RouteTrace trace_;
  std::vector<int> layers_;  // layers of the model that have experts, ascending
  size_t first_ = 0;         // index in trace_.choices where the step begins
  size_t next_ = 0;          // layer that continues the step; 0: a step begins
};

}  // namespace moebius
