// SPDX-License-Identifier: Apache-2.0
#include "model/plan/gpu_stream_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "base/checked.h"
#include "base/error.h"
#include "base/human.h"
#include "model/arch/arch.h"
#include "model/plan/placement_plan.h"

namespace moebius {
namespace {

constexpr size_t kBuffers = 2;  // one is filled while the other is used

std::string size_text(uint64_t bytes) { return human_bytes(bytes); }

// Calls f(what a device makes of a matrix, which of gate, up and down) for all experts.
template <class F>
void each_use(const MoeBlock& block, ModulePlanner& planner, F f) {
  for (const auto& expert : block.experts)
    for (size_t i = 0; i < expert.size(); ++i)
      if (expert[i] != nullptr) f(*planner.use(*expert[i], &block), i, expert[i]->plan.N);
}

}  // namespace

size_t parse_stream_rows(const std::string& text) {
  if (text == "off") return SIZE_MAX;
  if (text == "auto") return 0;
  size_t rows = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rows);
  if (error != std::errc() || end != text.data() + text.size() || rows == 0 || rows > 1'000'000)
    fail_at({"argument", "", "", "", "--stream-experts"},
            "--stream-experts is '{}'; expected auto, off, or rows of a step from 1 to 1000000",
            printable(text));
  return rows;
}

StreamPlanner::StreamPlanner(const Checkpoint& checkpoint, const Wish& wish,
                             const GpuTarget& target)
    : stream_(wish.gpu.stream),
      gpu_(make_device("cuda", nullptr, host_cpu(), planning_options(wish, &target))),
      cpu_(make_device("cpu", nullptr, host_cpu(), planning_options(wish))),
      on_gpu_(checkpoint, *gpu_, wish.act, wish.type),
      on_cpu_(checkpoint, *cpu_, wish.act, wish.type) {}

// Outputs of gate and up are padded to multiples of 256.
uint64_t StreamPlanner::bytes(const MoeBlock& block, size_t here) {
  constexpr uint64_t kOutputs = 256, kBeside = 4096;
  uint64_t most = 0, each[3] = {};
  each_use(block, on_gpu_, [&](const ModuleUse& use, size_t i, uint64_t N) {
    const uint64_t padded = use.packed / N * round_up(N, kOutputs) + kBeside + use.packed % N;
    each[i] = std::max(each[i], padded);
  });
  for (const uint64_t e : each) most += e;
  return most * (block.experts.size() - std::min(here, block.experts.size()));
}

std::string StreamPlanner::refusal(const MoeBlock& block) {
  if (!can_divide(block)) return "they are chosen by a table, or with slots for shared experts";
  for (const auto& expert : block.experts)
    for (const Module* m : expert)
      if (m != nullptr && !m->supported) return m->reason;
  bool exact = true, fast = true;
  const auto look = [&](const ModuleUse& use, size_t, uint64_t) {
    exact = exact && use.choice->numerics == Numerics::kExact && use.numerics == Numerics::kExact;
    fast = fast && use.fast;
  };
  each_use(block, on_gpu_, look);
  each_use(block, on_cpu_, look);
  if (!exact)
    return "both sides agree within the bound, not in every bit, and what a row gives must not "
           "depend on the rows beside it";
  // Kernels that are no faster than a CPU's stream only if the user asks for a number of rows.
  return fast || parse_stream_rows(stream_) != 0 ? ""
                                                 : "the GPU has no tensor-core kernel for them";
}

uint64_t kept_for_streams(const Checkpoint& checkpoint, const Wish& options,
                          const GpuTarget& target, uint64_t room) {
  const size_t rows = parse_stream_rows(options.gpu.stream);
  if (rows == SIZE_MAX) return 0;
  const uint64_t share = rows == 0 ? 8 : 2;
  StreamPlanner planner(checkpoint, options, target);
  uint64_t most = 0;
  for (const MoeBlock& b : checkpoint.moe_blocks())
    if (planner.refusal(b).empty()) most = std::max(most, planner.bytes(b, 0));
  for (uint64_t buffers = kBuffers; buffers > 0; --buffers)
    if (buffers * most <= room / share) return buffers * most;
  return 0;
}

StreamPlan plan_streams(const Checkpoint& checkpoint, const Wish& options, const GpuTarget& target,
                        uint64_t allowed, uint64_t host_free) {
  StreamPlan plan;
  plan.placement = options.placement;
  const size_t rows = parse_stream_rows(options.gpu.stream);
  const std::string device = options.placement.gpu();
  if (rows == SIZE_MAX || device.empty()) return plan;
  const size_t layer_count = decoder_spec(checkpoint.config()).layers.size();
  const DevicePlacement& placed = options.placement;
  struct Layer {
    size_t index, here;
    uint64_t bytes;
  };
  std::vector<Layer> layers;
  std::map<std::string, size_t> refused;
  StreamPlanner planner(checkpoint, options, target);
  for (const MoeBlock& b : checkpoint.moe_blocks()) {
    const auto index = static_cast<size_t>(b.layer);
    if (b.layer < 0 || index >= layer_count || b.experts.empty()) continue;
    const auto divided = placed.divided.find(index);
    const bool on_cpu = !is_gpu_name(placed.of(index).experts);
    if (!on_cpu && divided == placed.divided.end()) continue;
    const std::string why = is_gpu_name(placed.of(index).attention)
                                ? planner.refusal(b)
                                : "attention of their layers is on the CPU";
    if (!why.empty()) {
      ++refused[why];
      continue;
    }
    const size_t here = divided == placed.divided.end() ? 0 : divided->second.size();
    layers.push_back({index, here, planner.bytes(b, here)});
  }
  for (const auto& [why, count] : refused)
    plan.words.push_back(fmt::format("experts of {} {} on the CPU are not streamed: {}", count,
                                     count == 1 ? "layer" : "layers", why));
  if (layers.empty()) return plan;

  // Routers and shared experts of these layers move to the device, and rows between the parts need
  // memory there.
  const auto with = [&](std::span<const Layer> some) {
    Wish o = options;
    o.placement.rules.clear();
    for (size_t i = 0; i < layer_count; ++i) {
      DevicePlacement::Rule rule = options.placement.of(i);
      rule.from = i;
      if (std::any_of(some.begin(), some.end(), [&](const Layer& l) { return l.index == i; }))
        rule.experts = device, o.placement.divided.try_emplace(i);
      o.placement.rules.push_back(std::move(rule));
    }
    o.placement = joined_rules(std::move(o.placement));
    o.gpu.streamed = {};
    return o;
  };
  const GpuBytes need = gpu_bytes(checkpoint, with(layers), target);
  const uint64_t used = device_bytes(need);
  StreamedLayers streamed;
  streamed.rows = rows;
  // Uses half of the host's free memory: locked pages are not available to anything else.
  const uint64_t room = (host_free - std::min(host_free, need.host)) / 2;
  const size_t all = layers.size();
  while (!layers.empty()) {
    streamed.host_bytes = 0;
    for (const Layer& l : layers) streamed.host_bytes += l.bytes;
    if (streamed.host_bytes <= room) break;
    layers.pop_back();
  }
  if (layers.size() < all)
    plan.words.push_back(
        fmt::format("experts of {} of {} layers on the CPU are not streamed: a second copy of them "
                    "needs memory of the host, of which {} may be used for that",
                    all - layers.size(), all, size_text(room)));
  if (layers.empty()) return plan;
  for (const Layer& l : layers) {
    streamed.layers.push_back(l.index);
    streamed.buffer_bytes = std::max(streamed.buffer_bytes, l.bytes);
  }
  streamed.buffers = std::min(kBuffers, layers.size());
  while (streamed.buffers > 0 && used + streamed.buffers * streamed.buffer_bytes > allowed)
    --streamed.buffers;
  if (streamed.buffers == 0) {
    plan.words.push_back(
        fmt::format("experts on the CPU are not streamed: a layer's are {} beside {} on the GPU, "
                    "and {} may be used{}",
                    size_text(streamed.buffer_bytes), size_text(used), size_text(allowed),
                    options.gpu.memory != 0 ? " (--gpu-memory)" : ""));
    return plan;
  }
  plan.words.push_back(fmt::format(
      "experts of {} {} on the CPU can be streamed through the GPU: {} {} of {} there, {} of "
      "memory here for their second copy (--stream-experts)",
      layers.size(), layers.size() == 1 ? "layer" : "layers", streamed.buffers,
      streamed.buffers == 1 ? "buffer" : "buffers", size_text(streamed.buffer_bytes),
      size_text(streamed.host_bytes)));
  plan.placement = with(layers).placement;
  plan.streamed = std::move(streamed);
  return plan;
}

}  // namespace moebius
