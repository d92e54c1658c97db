// SPDX-License-Identifier: Apache-2.0
// Gathers everything that inspect shows, once, from headers and a few small tensors (with `deep`,
// from all payloads); the writers (JSON here, text in the tool) only format it.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/parallel.h"
#include "checkpoint/summary.h"
#include "device/cuda/cuda_choice.h"
#include "model/plan/rank_plan.h"

namespace moebius {

struct InspectQuestion {
  bool tensors = false;  // list every tensor and its use
  bool deep = false;     // load every module and check scales, zero points and code ranges
  std::optional<int> layer;
  uint64_t context = 0;  // predict memory for sequences of so many tokens; 0: of usual lengths
  unsigned pp = 1, tp = 1, ep = 1;
  std::optional<CudaTarget> cuda;  // also predict bytes on this device
};

struct TensorUse {
  const TensorInfo* tensor = nullptr;
  std::string module, role;  // empty module: the tensor is not used
  std::string reason;        // why it is not used
};

// Holds what `run` would do with the folder on this CPU.
struct RunFacts {
  bool works = false;
  std::string reason;  // why it does not work
  // Such as "tokenizer.json, 4096 tokens"; empty: there is no usable one.
  std::string tokenizer;
  std::string chat_template;        // file that holds it; empty: there is no usable one
  std::vector<std::string> notes;   // why text or chat will not work, and which memory is short
  uint64_t context = 0;             // tokens for which the model was made; 0: not stated
  uint64_t packed_bytes = 0;        // bytes of all packed weights
  uint64_t kv_bytes_per_token = 0;  // as allocated; 0 if the model cannot run
  struct Need {
    uint64_t context, bytes;  // bytes of weights and of one sequence's KV cache
  };
  std::vector<Need> memory;
};

// Forecasts tokens per second of one sequence whose experts do not all fit into memory: missing
// ones are read from disk at `rate` bytes per second. All experts count as equally likely.
struct DiskForecast {
  uint64_t bytes_per_token = 0;
  double tokens_per_second = 0;
};
DiskForecast forecast_from_disk(uint64_t dense, uint64_t experts, uint64_t experts_per_token,
                                uint64_t memory, double rate);

// Describes the layer for multi-token prediction, which --speculate mtp loads.
struct PredictorFacts {
  // null: there is none, or `reason` says why it cannot be used.
  std::shared_ptr<const Checkpoint> checkpoint;
  std::string reason;
  std::vector<ModuleGroup> modules;
  uint64_t packed_bytes = 0, kv_bytes_per_token = 0;  // bytes in addition to the model's
};

struct InspectFacts {
  const Checkpoint& checkpoint;
  const InspectQuestion& question;
  Summary summary;
  std::vector<ModuleGroup> modules;   // groups, or with --layer single modules
  std::vector<TensorUse> tensors;     // set with --tensors
  std::vector<RankSize> ranks;        // set with --tp or --ep
  std::vector<RankPart> parts;        // set with --pp: the parts as `run` would cut them
  std::vector<std::string> problems;  // set with --deep
  std::string routing;                // description in one line
  RunFacts run;
  uint64_t device_bytes = 0;  // bytes of all weights as the question's device holds them
  PredictorFacts predictor;
};

// Gathers the facts. Checkpoint and question must outlive them.
InspectFacts gather_facts(const Checkpoint& checkpoint, const InspectQuestion& question);
std::string describe_routing(const MoeSpec& spec);
// Defined in inspect_run.cpp.
RunFacts run_facts(const Checkpoint& checkpoint, uint64_t context);
PredictorFacts predictor_facts(const Checkpoint& checkpoint, const RunFacts& run);

Json inspect_json(const InspectFacts& facts);  // returns one object; docs/json.md lists the keys

}  // namespace moebius
