// SPDX-License-Identifier: Apache-2.0
#include "apps/route_trace.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"

namespace moebius {
namespace {

constexpr uint64_t kMostRouteBytes = uint64_t{8} << 30;

// Begins the file of a trace, as it lies on the disk.
struct RouteHeader {
  char magic[16] = {'m', 'o', 'e', 'b', 'i', 'u', 's', ' ',
                    'r', 'o', 'u', 't', 'i', 'n', 'g', '\n'};
  uint32_t layers = 0, experts = 0, top_k = 0, zero = 0;
  uint64_t tokens = 0;
};
static_assert(sizeof(RouteHeader) == 40);

// Returns the layers whose router chooses experts, without the predictor's.
std::vector<int> routed_layers(const Checkpoint& checkpoint) {
  std::vector<int> layers;
  for (const MoeBlock& b : checkpoint.moe_blocks())
    if (b.router != nullptr && b.layer < checkpoint.config().layers) layers.push_back(b.layer);
  std::sort(layers.begin(), layers.end());
  return layers;
}

}  // namespace

RouteTrace route_sizes(const Checkpoint& checkpoint) {
  RouteTrace t;
  t.layers = routed_layers(checkpoint).size();
  for (const MoeBlock& b : checkpoint.moe_blocks()) {
    t.experts = std::max(t.experts, b.spec.experts);
    t.top_k = std::max(t.top_k, b.spec.router.top_k);
  }
  if (t.layers == 0 || t.experts >= RouteTrace::kNoExpert)
    fail(
        "{}: has {} layers that choose among up to {} experts; a trace needs layers, of fewer than "
        "{} experts",
        printable(checkpoint.folder()), t.layers, t.experts, RouteTrace::kNoExpert);
  return t;
}

RouteTrace read_route_trace(const std::string& path, const RouteTrace& sizes) {
  const std::string name = printable(path);
  const ReadFile file(path);
  RouteHeader h;
  if (file.size() < sizeof h || file.size() > kMostRouteBytes)
    fail("{}: has {} bytes; expected {} to {} of a trace", name, file.size(), sizeof h,
         kMostRouteBytes);
  file.read_at(0, {reinterpret_cast<uint8_t*>(&h), sizeof h});
  if (std::memcmp(h.magic, RouteHeader().magic, sizeof h.magic) != 0)
    fail("{}: is no trace of --route-trace", name);
  if (h.layers != sizes.layers || h.experts != sizes.experts || h.top_k != sizes.top_k)
    fail("{}: is of a model with {} layers of {} experts, {} a token; expected {} of {}, {}", name,
         h.layers, h.experts, h.top_k, sizes.layers, sizes.experts, sizes.top_k);
  RouteTrace t = sizes;
  const uint64_t token = t.layers * t.top_k * sizeof(uint16_t), bytes = file.size() - sizeof h;
  if (h.tokens == 0 || bytes % token != 0 || bytes / token != h.tokens)
    fail("{}: has {} bytes for {} tokens; expected {} for each", name, bytes, h.tokens, token);
  t.choices.resize(bytes / sizeof(uint16_t));
  file.read_at(sizeof h, {reinterpret_cast<uint8_t*>(t.choices.data()), bytes});
  for (size_t i = 0; i < t.choices.size(); ++i)
    if (t.choices[i] >= t.experts && t.choices[i] != RouteTrace::kNoExpert)
      fail("{}: has expert {} at byte {}; expected one of {}", name, t.choices[i],
           sizeof h + i * sizeof(uint16_t), t.experts);
  return t;
}

RouteRecorder::RouteRecorder(std::string path, const Checkpoint& checkpoint)
    : path_(std::move(path)), trace_(route_sizes(checkpoint)), layers_(routed_layers(checkpoint)) {
  (void)output_target(path_);
}

void RouteRecorder::block(const MoeBlock& block, const TappedRows&, std::span<const int32_t> ids,
                          size_t slots) {
  const auto found = std::lower_bound(layers_.begin(), layers_.end(), block.layer);
  if (slots == 0 || found == layers_.end() || *found != block.layer) return;
  const auto layer = static_cast<size_t>(found - layers_.begin());
  const size_t rows = ids.size() / slots, token = trace_.layers * trace_.top_k;
  if (layer < next_ || next_ == 0) {
    first_ = trace_.choices.size();
    trace_.choices.resize(first_ + rows * token, RouteTrace::kNoExpert);
  }
  next_ = layer + 1;
  for (size_t r = 0; r < rows; ++r) {
    uint16_t* to = &trace_.choices[first_ + r * token + layer * trace_.top_k];
    for (size_t s = 0, written = 0; s < slots && written < trace_.top_k; ++s)
      if (const int32_t id = ids[r * slots + s];
          id >= 0 && static_cast<size_t>(id) < trace_.experts)
        to[written++] = static_cast<uint16_t>(id);
  }
}

void RouteRecorder::finish() const {
  RouteHeader h;
  h.layers = static_cast<uint32_t>(trace_.layers);
  h.experts = static_cast<uint32_t>(trace_.experts);
  h.top_k = static_cast<uint32_t>(trace_.top_k);
  h.tokens = trace_.tokens();
  const std::span<const uint8_t> parts[] = {
      {reinterpret_cast<const uint8_t*>(&h), sizeof h},
      {reinterpret_cast<const uint8_t*>(trace_.choices.data()),
       trace_.choices.size() * sizeof(uint16_t)}};
  write_output(path_, parts);
}

}  // namespace moebius
