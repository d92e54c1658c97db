// SPDX-License-Identifier: Apache-2.0
// Everything inspect shows, gathered once, from headers and a few small tensors (with `deep`, from all
// payloads); the writers (JSON here, text of the tool) only lay it out.
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
#include "model/ranks/rank_plan.h"

namespace moebius {

struct InspectQuestion {
  bool tensors = false;  // list every tensor and what uses it
  bool deep = false;     // load every module and check scales, zero points and code ranges
  std::optional<int> layer;
  uint64_t context = 0;  // memory for sequences of so many tokens; 0: of usual lengths
  unsigned pp = 1, tp = 1, ep = 1;
  std::optional<CudaTarget> cuda;  // bytes on this device too
};

struct TensorUse {
  const TensorInfo* tensor = nullptr;
  std::string module, role;  // empty module: not used
  std::string reason;        // why not
};

// What `run` would do with the folder on this CPU.
struct RunFacts {
  bool works = false;
  std::string reason;               // why not
  std::string tokenizer;            // "tokenizer.json, 4096 tokens"; empty: none can be used
  std::string chat_template;        // where it stands; empty: none can be used
  std::vector<std::string> notes;   // why text or chat will not work, what memory is short
  uint64_t context = 0;             // tokens the model was made for; 0: not said
  uint64_t packed_bytes = 0;        // of all weights
  uint64_t kv_bytes_per_token = 0;  // as allocated; 0 when the model cannot run
  struct Need {
    uint64_t context, bytes;  // weights and KV cache of one sequence
  };
  std::vector<Need> memory;
};

// Tokens per second of one sequence whose experts do not all fit into memory: those that are not there
// are read from the disk, at `rate` bytes per second. Every expert is as likely as any other.
struct DiskForecast {
  uint64_t bytes_per_token = 0;
  double tokens_per_second = 0;
};
DiskForecast forecast_from_disk(uint64_t dense, uint64_t experts, uint64_t experts_per_token,
                                uint64_t memory, double rate);

// The layer for multi-token prediction, which --speculate mtp loads.
struct PredictorFacts {
  std::shared_ptr<const Checkpoint> checkpoint;  // null: there is none, or `reason` says why not
  std::string reason;
  std::vector<ModuleGroup> modules;
  uint64_t packed_bytes = 0, kv_bytes_per_token = 0;  // beside the model's
};

struct InspectFacts {
  const Checkpoint& checkpoint;
  const InspectQuestion& question;
  Summary summary;
  std::vector<ModuleGroup> modules;   // grouped, or one by one for --layer
  std::vector<TensorUse> tensors;     // --tensors
  std::vector<RankSize> ranks;        // --tp, --ep
  std::vector<RankPart> parts;        // --pp: as `run` would cut it
  std::vector<std::string> problems;  // --deep
  std::string routing;                // one line
  RunFacts run;
  uint64_t device_bytes = 0;  // of all weights as the device of the question holds them
  PredictorFacts predictor;
};

// Both arguments must outlive the facts.
InspectFacts gather_facts(const Checkpoint& checkpoint, const InspectQuestion& question);
std::string describe_routing(const MoeSpec& spec);
RunFacts run_facts(const Checkpoint& checkpoint, uint64_t context);  // inspect_run.cpp
PredictorFacts predictor_facts(const Checkpoint& checkpoint, const RunFacts& run);

Json inspect_json(const InspectFacts& facts);  // one object, keys in docs/json.md

}  // namespace moebius
