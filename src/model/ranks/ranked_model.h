// SPDX-License-Identifier: Apache-2.0
// Makes ranks run a model together: each loads its part and waits for the others; then rank 0 is
// used like any model, and the others follow it.
//
//   auto model = load_rank(checkpoint, plan, options, say);   // on every rank, options.ranks set
//   if (!options.ranks->leader()) model->follow();      // until rank 0's model is gone
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "model/ranks.h"
#include "model/run/decoder.h"
#include "runtime/runtime.h"

namespace moebius {

// Receives a line for the user, such as "[rank 1 host] loaded 1.2 GB of weights".
using RankSays = std::function<void(const std::string& line)>;

// Loads this rank's part of the plan. Throws Error if any rank cannot load: then all ranks end.
std::unique_ptr<DecoderModel> load_rank(const Checkpoint& checkpoint, const ModelPlan& plan,
                                        const ModelOptions& options, const RankSays& say);

// Returns a runtime on part `rank` of `ranks` of this machine's cores, node by node: with one rank
// per NUMA node, its threads and so its memory are there. threads: the rank's threads.
std::shared_ptr<Runtime> rank_runtime(size_t rank, size_t ranks, size_t threads);

// Starts ranks 1 and up as threads of this process, each with `threads` threads of its own; they
// load, follow, and end with the leader's model. `checkpoint` outlives them.
std::unique_ptr<RankThreads> start_followers(const Checkpoint& checkpoint, const ModelPlan& plan,
                                             const ModelOptions& options, size_t threads,
                                             const RankSays& say);

// Loads all ranks in this process: rank 0 runs on options.pool, the others on as many threads each.
class ThreadRankedModel {
 public:
  ThreadRankedModel(const Checkpoint& checkpoint, const ModelOptions& options,
                    const RankSplit& split, const RankSays& say);
  DecoderModel& model() { return *model_; }

 private:
  // Threads of the other ranks; destroyed after the model, which tells them to stop.
  std::unique_ptr<RankThreads> followers_;
  std::unique_ptr<DecoderModel> model_;
};

}  // namespace moebius
