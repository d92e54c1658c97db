// SPDX-License-Identifier: Apache-2.0
// Explains for every distinct module which kernel will run it, its numerics, its size, and why
// other kernels do not. Modules that differ only in layer and expert are one group.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/summary.h"
#include "device/gpu.h"
#include "device/module_use.h"
#include "kernels/measured.h"
#include "model/plan/wish.h"
#include "runtime/runtime.h"

namespace moebius {

struct ExplainQuestion {
  std::optional<Cpu> cpu;        // unset: this machine's CPU
  Wish wish;                     // kernels, requests and type of activations; of one process
  size_t threads = 0;            // number of threads; 0: as many as are useful
  std::optional<GpuTarget> gpu;  // the GPU to explain kernels for; unset: a CPU
  bool predictor = false;        // true: also explains the layer for multi-token prediction
};

struct Explained {
  ModuleGroup group;
  // What the device makes of one module; null: the module cannot run, and its reason says why.
  std::shared_ptr<const ModuleUse> use;
  // Bytes of an int8 copy by which greedy and top-k decoding find the best tokens; 0: none.
  uint64_t shortlist = 0;
  // Answer to a request for int8 rows or weights, as a sentence; "": none concerns the module.
  std::string request;
  uint64_t packed = 0;
  std::optional<ExpectedShare> share;  // share of memory speed at one row; unset: not measured
};

// Holds what this process may use of the machine, and the number of threads that follows.
struct MachineThreads {
  Topology topology = usable_topology();
  ThreadChoice choice;
  explicit MachineThreads(size_t threads) : choice(choose_threads(topology, threads)) {}
};

struct Explanation {
  Cpu cpu;
  std::optional<MachineThreads> machine;  // unset for another CPU, whose machine is unknown
  std::optional<GpuTarget> gpu;           // GPU of the question
  // Parts of a model that the device leaves to the CPU, each with the reason.
  std::vector<std::string> on_cpu;
  std::vector<Explained> modules;  // modules that are products
  // Predictor to which the last modules belong; may be null.
  std::shared_ptr<const Checkpoint> predictor;
};
// Explains a folder. The checkpoint must outlive the explanation.
Explanation explain(const Checkpoint& checkpoint, const ExplainQuestion& question);
Json to_json(const Explanation& explanation);

}  // namespace moebius
