// SPDX-License-Identifier: Apache-2.0
// Gathers everything that inspect shows, once, from headers and a few small tensors (with `deep`,
// from all payloads); the writers (JSON here, text in the tool) only format it.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/parallel.h"
#include "checkpoint/summary.h"
#include "device/gpu.h"
#include "model/plan/rank_plan.h"

namespace moebius {

struct InspectQuestion {
  bool tensors = false;  // true: list every tensor and its use
  bool deep = false;     // true: load every module and check scales, zero points and code ranges
  std::optional<int> layer;
  uint64_t context = 0;  // predict memory for sequences of so many tokens; 0: of usual lengths
  unsigned pp = 1, tp = 1, ep = 1;
  std::optional<GpuTarget> gpu;  // also predict the bytes on this GPU; unset: none
};

struct TensorUse {
  const TensorInfo* tensor = nullptr;
  std::string module, role;  // empty module: the tensor is not used
  std::string reason;        // why the tensor is not used
};

// Holds what `run` would do with the folder on this CPU.
struct RunFacts {
  bool works = false;
  std::string reason;  // why the model does not work; "" if it does
  // Describes the tokenizer: "tokenizer.json, 4096 tokens"; empty: there is no usable one.
  std::string tokenizer;
  std::string chat_template;  // file that holds the chat template; empty: there is no usable one
  std::vector<std::string> notes;  // why text or chat will not work, and which memory is short
  uint64_t context = 0;            // tokens for which the model was made; 0: not stated
  uint64_t packed_bytes = 0;       // bytes of all packed weights
  // Bytes of the KV cache per token, as allocated; 0: the model cannot run.
  uint64_t kv_bytes_per_token = 0;
  struct Need {
    uint64_t context, bytes;  // tokens of a sequence; bytes of weights and of its KV cache
  };
  std::vector<Need> memory;
  std::map<std::string_view, uint64_t> packed_by_type;  // packed bytes by type of a GGUF file
};

// Describes the layer for multi-token prediction, which --speculate mtp loads.
struct PredictorFacts {
  // The predictor's checkpoint; null: there is none, or `reason` says why it cannot be used.
  std::shared_ptr<const Checkpoint> checkpoint;
  std::string reason;
  std::vector<ModuleGroup> modules;
  uint64_t packed_bytes = 0, kv_bytes_per_token = 0;  // bytes in addition to the model's
};

// Holds what a rank of one pipeline stage holds.
struct RankSize {
  uint64_t tp_rank = 0, ep_rank = 0, experts = 0;  // experts: number of experts per MoE layer
  uint64_t bytes = 0, params = 0, kv_per_1k_tokens = 0;
};

struct InspectFacts {
  const Checkpoint& checkpoint;
  const InspectQuestion& question;
  Summary summary;
  std::vector<ModuleGroup> modules;   // modules in groups, or with --layer one by one
  std::vector<TensorUse> tensors;     // every tensor and its use, with --tensors
  std::vector<RankSize> ranks;        // sizes of ranks, with --tp or --ep and without --pp
  std::vector<RankPart> parts;        // set with --pp: the parts as `run` would cut them
  std::vector<std::string> problems;  // what is wrong with payloads, with --deep
  std::string routing;                // describes the routing in one line
  RunFacts run;
  uint64_t device_bytes = 0;  // bytes of all weights as the question's device holds them
  PredictorFacts predictor;
  Json gguf;  // what a GGUF file says of itself, as in docs/json.md; null: the model is a folder
};

// Gathers the facts. Checkpoint and question must outlive them.
InspectFacts gather_facts(const Checkpoint& checkpoint, const InspectQuestion& question);
std::string describe_routing(const MoeSpec& spec);
// Returns what `run` would do with the folder for sequences of `context` tokens. Defined in
// inspect_run.cpp.
RunFacts run_facts(const Checkpoint& checkpoint, uint64_t context);
PredictorFacts predictor_facts(const Checkpoint& checkpoint, const RunFacts& run);
// Returns what the GGUF file of a model says of itself; null for a folder. Defined in
// inspect_gguf.cpp.
Json gguf_facts(const std::string& model, const RunFacts& run);

Json inspect_json(const InspectFacts& facts);  // returns one object; docs/json.md lists the keys

}  // namespace moebius
