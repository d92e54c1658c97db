// SPDX-License-Identifier: Apache-2.0
#include "model/plan/cuda_stream_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "base/checked.h"
#include "base/error.h"
#include "base/human.h"
#include "device/cpu/layer_plan.h"
#include "device/cuda/cuda_device.h"
#include "model/arch/arch.h"
#include "model/plan/placement_plan.h"

namespace moebius {
namespace {

constexpr size_t kBuffers = 2;  // one is filled while the other is used

std::string size_text(uint64_t bytes) { return human_bytes(static_cast<double>(bytes)); }

Policy cuda_policy(const Wish& options) {
  Policy policy;
  policy.accept = options.policy.accept;
  policy.kernel = options.cuda.kernel;
  policy.where_it_can = true;
  return policy;
}

// Calls f(module, problem, which of gate, up and down) for the matrices of experts; once for equal
// problems.
template <class F>
void each_problem(const MoeBlock& block, const Wish& options, F f) {
  std::optional<Problem> last[3];
  for (const auto& expert : block.experts)
    for (size_t i = 0; i < expert.size(); ++i) {
      if (expert[i] == nullptr) continue;
      const Problem problem = problem_of(*expert[i], options.act, options.type);
      if (last[i] && *last[i] == problem) continue;
      f(*expert[i], problem, i);
      last[i] = problem;
    }
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

// Outputs of gate and up are padded to multiples of 256.
uint64_t streamed_bytes(const MoeBlock& block, const Wish& options, const CudaTarget& target,
                        size_t here) {
  constexpr uint64_t kOutputs = 256, kBeside = 4096;
  const Policy policy = cuda_policy(options);
  uint64_t most = 0, each[3] = {};
  each_problem(block, options, [&](const Module&, const Problem& p, size_t i) {
    const uint64_t bytes = choose_cuda(p, target, policy).chosen->packed_bytes(p);
    const uint64_t padded = bytes / p.N * round_up(p.N, kOutputs) + kBeside + bytes % p.N;
    each[i] = std::max(each[i], padded);
  });
  for (const uint64_t e : each) most += e;
  return most * (block.experts.size() - std::min(here, block.experts.size()));
}

std::string stream_refusal(const MoeBlock& block, const Wish& options, const CudaTarget& target) {
  if (!can_divide(block)) return "they are chosen by a table, or with slots for shared experts";
  const char* plain = plain_experts_reason(block.spec);
  const Policy policy = cuda_policy(options);
  LayerOptions on_cpu;
  on_cpu.policy = options.policy;
  on_cpu.act = options.act;
  on_cpu.x_type = options.type;
  // Plain kernels are no faster than a CPU: they stream only if the user asks for a number of rows.
  const bool asked = parse_stream_rows(options.cuda.stream) != 0;
  std::string why;
  each_problem(block, options, [&](const Module& m, const Problem& p, size_t) {
    if (!why.empty()) return;
    if (!m.supported) {
      why = m.reason;
      return;
    }
    const Choice choice = choose_cuda(p, target, policy, plain);
    if (choice.numerics != Numerics::kExact ||
        numerics_of(m, p, kernel_for(p, on_cpu, m.name)) != Numerics::kExact)
      why =
          "both sides agree within the bound, not in every bit, and what a row gives must not "
          "depend on the rows beside it";
    else if (path_of(*choice.chosen) == CudaPath::kPlain && !asked)
      why = "the GPU has no tensor-core kernel for them";
  });
  return why;
}

uint64_t kept_for_streams(const Checkpoint& checkpoint, const Wish& options,
                          const CudaTarget& target, uint64_t room) {
  const size_t rows = parse_stream_rows(options.cuda.stream);
  if (rows == SIZE_MAX) return 0;
  const uint64_t share = rows == 0 ? 8 : 2;
  uint64_t most = 0;
  for (const MoeBlock& b : checkpoint.moe_blocks())
    if (stream_refusal(b, options, target).empty())
      most = std::max(most, streamed_bytes(b, options, target, 0));
  for (uint64_t buffers = kBuffers; buffers > 0; --buffers)
    if (buffers * most <= room / share) return buffers * most;
  return 0;
}

StreamPlan plan_streams(const Checkpoint& checkpoint, const Wish& options, const CudaTarget& target,
                        uint64_t allowed, uint64_t host_free) {
  StreamPlan plan;
  plan.placement = options.placement;
  const size_t rows = parse_stream_rows(options.cuda.stream);
  const std::string device = options.placement.cuda();
  if (rows == SIZE_MAX || device.empty()) return plan;
  const size_t layer_count = decoder_spec(checkpoint.config()).layers.size();
  const DevicePlacement& placed = options.placement;
  struct Layer {
    size_t index, here;
    uint64_t bytes;
  };
  std::vector<Layer> layers;
  std::map<std::string, size_t> refused;
  for (const MoeBlock& b : checkpoint.moe_blocks()) {
    const auto index = static_cast<size_t>(b.layer);
    if (b.layer < 0 || index >= layer_count || b.experts.empty()) continue;
    const auto divided = placed.divided.find(index);
    const bool on_cpu = !is_cuda_name(placed.of(index).experts);
    if (!on_cpu && divided == placed.divided.end()) continue;
    const std::string why = is_cuda_name(placed.of(index).attention)
                                ? stream_refusal(b, options, target)
                                : "attention of their layers is on the CPU";
    if (!why.empty()) {
      ++refused[why];
      continue;
    }
    const size_t here = divided == placed.divided.end() ? 0 : divided->second.size();
    layers.push_back({index, here, streamed_bytes(b, options, target, here)});
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
    o.cuda.streamed = {};
    return o;
  };
  const CudaBytes need = cuda_bytes(checkpoint, with(layers), target);
  const uint64_t used = device_bytes(need);
  CudaStreamed streamed;
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
                    options.cuda.memory != 0 ? " (--gpu-memory)" : ""));
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
