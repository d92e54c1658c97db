// SPDX-License-Identifier: Apache-2.0
// For every distinct module the kernel that will run it, its numerics, its size, and why not the
// others. Modules that differ only in layer and expert are one group.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/summary.h"
#include "device/cpu/layer_plan.h"
#include "device/cuda/cuda_choice.h"
#include "kernels/measured.h"
#include "runtime/runtime.h"

namespace moebius {

struct ExplainQuestion {
  std::optional<Cpu> cpu;  // none: this machine
  Policy policy;
  ActRequest act;
  XType x_type = XType::kBf16;
  size_t threads = 0;              // 0: as many as help
  std::optional<CudaTarget> cuda;  // for this device instead of a CPU
  bool predictor = false;          // of its layer for multi-token prediction, too
};

struct Explained {
  ModuleGroup group;
  std::optional<Choice> choice;          // none: the module cannot run; its reason says why
  Numerics numerics = Numerics::kExact;  // of the choice; approximate where a request departs
  std::string request;                   // what became of requested int8 rows; "": does not concern
  uint64_t packed = 0;
  std::optional<ExpectedShare> share;  // of the speed of memory, at one row; none: not measured
};

// What this process may use of the machine, and how many threads that makes.
struct Machine {
  Topology topology = usable_topology();
  ThreadChoice choice;
  explicit Machine(size_t threads) : choice(choose_threads(topology, threads)) {}
};

struct Explanation {
  Cpu cpu;
  std::optional<Machine> machine;   // none: another CPU has another machine around it
  std::optional<CudaTarget> cuda;   // the question's
  std::vector<std::string> on_cpu;  // parts of a model that the device leaves to the CPU, and why
  std::vector<Explained> modules;   // that multiply
  std::shared_ptr<const Checkpoint> predictor;  // whose are the last ones
};
// The checkpoint must outlive the explanation.
Explanation explain(const Checkpoint& checkpoint, const ExplainQuestion& question);
Json to_json(const Explanation& explanation);

}  // namespace moebius
