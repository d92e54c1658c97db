// SPDX-License-Identifier: Apache-2.0
// From modules of a checkpoint to layers that run: scheme -> problem -> kernel (the oracle),
// payload -> packed weights. Experts are read, checked and packed one by one by all threads;
// besides the packed weights a load holds one expert per thread.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/parallel.h"
#include "kernels/oracle.h"
#include "nn/linear.h"
#include "nn/moe.h"

namespace moebius {

// One rank of a parallel run; the default is the whole model.
struct Rank {
  uint64_t tp = 1, tp_rank = 0, ep = 1, ep_rank = 0;
  Placement placement = Placement::kLinear;
};

struct LayerOptions {
  ThreadPool* pool = nullptr;
  Cpu cpu = host_cpu();
  Policy policy;
  Int8Mode int8 = Int8Mode::kDeclared;
  XType x_type = XType::kBf16;
  Rank rank;
  // A larger linear matrix is read and packed in pieces of about this size: an lm_head can outweigh
  // many experts.
  uint64_t piece_bytes = uint64_t{4} << 20;
  std::function<void(uint64_t bytes)> progress;  // file bytes done; called from any thread
};

// How the input of a module is quantized (nothing when its static scale is uncalibrated).
ActSpec act_spec_of(const Module& module, Int8Mode mode);
// What a kernel would be asked, from the headers alone.
Problem problem_of(const Module& module, Int8Mode mode, XType x_type);
// A kernel requested by name is for the quantized modules; a dense companion (router, norm-like
// gate) that it cannot run gets the oracle's choice.
Policy request_for(const Problem& problem, const Policy& policy);
// The kernel for a problem; throws Error naming the module.
const Kernel& kernel_for(const Problem& problem, const LayerOptions& options,
                         std::string_view module);

// Several modules give one layer with their outputs side by side.
std::unique_ptr<LinearLayer> load_linear(const Checkpoint& checkpoint,
                                         const std::vector<const Module*>& modules,
                                         const LayerOptions& options);

// A MoE block: the experts, and the linear that makes router logits (f32).
struct MoeBlockLayer {
  std::unique_ptr<MoeLayer> experts;
  std::unique_ptr<LinearLayer> router;
};
// kExperts: the routed experts alone, as a caller with its own router and shared experts wants
// them.
enum class MoePart : uint8_t { kBlock, kExperts };
MoeBlockLayer load_moe(const Checkpoint& checkpoint, const MoeBlock& block,
                       const LayerOptions& options, MoePart part = MoePart::kBlock);

// File bytes that loading reads, for a progress bar.
uint64_t file_bytes(const MoeBlock& block, const Rank& rank = {});

}  // namespace moebius
