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

struct InspectFacts {
  const Checkpoint& checkpoint;
  const InspectOptions& options;
  Summary summary;
  std::vector<ModuleGroup> modules;   // grouped, or one by one for --layer
  std::vector<TensorUse> tensors;     // --tensors
  std::vector<RankSize> ranks;        // --tp, --ep
  std::vector<std::string> problems;  // --deep
  std::string routing;                // one line
};

InspectFacts gather_facts(const Checkpoint& checkpoint, const InspectOptions& options);
std::string describe_routing(const MoeSpec& spec);

std::string inspect_text(const InspectFacts& facts);
Json inspect_json(const InspectFacts& facts);

}  // namespace moebius
