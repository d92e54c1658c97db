// SPDX-License-Identifier: Apache-2.0
// Everything inspect shows, gathered once; the two writers (text and JSON) only lay it out.
#pragma once
#include <string>
#include <vector>

#include "apps/inspect.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/parallel.h"
#include "checkpoint/summary.h"

namespace moebius {

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

struct InspectFacts {
  const Checkpoint& checkpoint;
  const InspectOptions& options;
  Summary summary;
  std::vector<ModuleGroup> modules;   // grouped, or one by one for --layer
  std::vector<TensorUse> tensors;     // --tensors
  std::vector<RankSize> ranks;        // --tp, --ep
  std::vector<std::string> problems;  // --deep
  std::string routing;                // one line
  RunFacts run;
};

InspectFacts gather_facts(const Checkpoint& checkpoint, const InspectOptions& options);
std::string describe_routing(const MoeSpec& spec);
RunFacts run_facts(const Checkpoint& checkpoint, uint64_t context);  // inspect_run.cpp

std::string inspect_text(const InspectFacts& facts);
Json inspect_json(const InspectFacts& facts);

}  // namespace moebius
