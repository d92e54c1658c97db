// SPDX-License-Identifier: Apache-2.0
#include "model/ranks/ranked_model.h"

#include <fmt/core.h>

#include "base/error.h"
#include "base/human.h"
#include "model/ranks/cuda_memory.h"
#include "model/ranks/rank_memory.h"
#include "model/ranks/rank_plan.h"
#include "runtime/host_name.h"
#include "runtime/memory.h"

namespace moebius {
namespace {

ModelOptions with_ranks(const ModelOptions& options, Ranks& ranks, ThreadPool* pool) {
  ModelOptions o = options;
  o.ranks = &ranks;
  o.pool = pool;
  return o;
}

}  // namespace

std::unique_ptr<DecoderModel> load_rank(const Checkpoint& checkpoint, const ModelOptions& options,
                                        const RankSays& say) {
  Ranks& ranks = *options.ranks;
  std::unique_ptr<DecoderModel> model;
  try {
    model = DecoderModel::load(checkpoint, options);
  } catch (const std::exception& e) {
    ranks.abort(e.what());
    throw;
  }
  if (say)
    say(fmt::format("{} loaded {} of weights, {} in memory, {} at most", ranks.label(),
                    human_bytes(static_cast<double>(model->loaded_bytes())),
                    human_bytes(static_cast<double>(model->packed_bytes())),
                    human_bytes(static_cast<double>(peak_resident_bytes()))));
  ranks.meet();
  if (ranks.leader()) model->start_beats();
  return model;
}

uint64_t check_memory(const Checkpoint& checkpoint, const ModelOptions& options,
                      const RankSplit& split) {
  if (!options.placement.cuda().empty())
    return split.ranks() == 1 ? check_cuda_memory(checkpoint, options)
                              : check_cuda_ranks(checkpoint, options, split);
  std::vector<RankMemory> ranks;
  for (const uint64_t bytes : packed_bytes_of_ranks(checkpoint, split, options))
    ranks.push_back({host_name(), bytes, memory_limits()});
  if (!options.pack_dir.empty()) let_weights_go(ranks);
  if (const std::string refusal = memory_refusal(ranks); !refusal.empty())
    fail_at({"memory", checkpoint.folder(), "", "", ""}, "{}: {}", checkpoint.folder(), refusal);
  return memory_left(ranks);
}

std::shared_ptr<Runtime> rank_runtime(size_t rank, size_t ranks, size_t threads) {
  Topology part = usable_topology();
  const size_t cores = part.cores();
  if (cores >= ranks && part.threads.size() >= cores) {
    const auto at = [&](size_t r) {
      return part.threads.begin() + static_cast<std::ptrdiff_t>(cores * r / ranks);
    };
    part.threads = {at(rank), at(rank + 1)};
    part.quota /= static_cast<double>(ranks);
  }
  return std::make_shared<Runtime>(part, threads, nullptr);
}

std::unique_ptr<RankThreads> start_followers(const Checkpoint& checkpoint,
                                             const ModelOptions& options, const RankSplit& split,
                                             size_t threads, const RankSays& say) {
  rank_parts(checkpoint, split);  // throws for an impossible split before any thread starts
  return std::make_unique<RankThreads>(split, [&checkpoint, options, threads, say](Ranks& ranks) {
    const std::shared_ptr<Runtime> runtime =
        rank_runtime(ranks.rank(), ranks.split().ranks(), threads);
    load_rank(checkpoint, with_ranks(options, ranks, &runtime->pool()), say)->follow();
  });
}

ThreadRankedModel::ThreadRankedModel(const Checkpoint& checkpoint, const ModelOptions& options,
                                     const RankSplit& split, const RankSays& say)
    : followers_(start_followers(checkpoint, options, split, options.pool->size(), say)) {
  model_ = load_rank(checkpoint, with_ranks(options, followers_->leader(), options.pool), say);
}

}  // namespace moebius
