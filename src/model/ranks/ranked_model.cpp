// SPDX-License-Identifier: Apache-2.0
#include "model/ranks/ranked_model.h"

#include <fmt/core.h>

#include "base/error.h"
#include "base/human.h"
#include "model/plan/model_part.h"
#include "model/ranks/ranked_backend.h"
#include "model/run/step_runner.h"
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

std::unique_ptr<DecoderModel> DecoderModel::load(const Checkpoint& checkpoint,
                                                 const ModelPlan& plan,
                                                 const ModelOptions& options) {
  const RankPlan& mine = plan.ranks.at(options.ranks != nullptr ? options.ranks->rank() : 0);
  ModelOptions o = options;
  static_cast<Wish&>(o) = plan.wish;
  o.placement = mine.placement;
  o.gpu.streamed = mine.streamed;
  o.memory_left = mine.left;
  if (o.gpu.note == nullptr) o.gpu.note = options.note;
  ModelPart part(checkpoint, plan.spec, o.ranks, !o.placement.gpu().empty());
  if (o.ranks != nullptr) return std::make_unique<RankedBackend>(checkpoint, o, std::move(part));
  return std::make_unique<StepRunner>(checkpoint, o, std::move(part), nullptr);
}

std::unique_ptr<DecoderModel> DecoderModel::load(const Checkpoint& checkpoint,
                                                 const ModelOptions& options) {
  Wish wish = options;
  if (options.ranks != nullptr) wish.split = options.ranks->split();
  return load(checkpoint, plan_model(checkpoint, wish, {}), options);
}

std::unique_ptr<DecoderModel> load_rank(const Checkpoint& checkpoint, const ModelPlan& plan,
                                        const ModelOptions& options, const RankSays& say) {
  Ranks& ranks = *options.ranks;
  std::unique_ptr<DecoderModel> model;
  try {
    model = DecoderModel::load(checkpoint, plan, options);
  } catch (const std::exception& e) {
    ranks.abort(e.what());
    throw;
  }
  if (say)
    say(fmt::format("{} loaded {} of weights, {} in memory, {} at most", ranks.label(),
                    human_bytes(model->loaded_bytes()), human_bytes(model->packed_bytes()),
                    human_bytes(peak_resident_bytes())));
  ranks.meet();
  if (ranks.leader()) model->start_beats();
  return model;
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

std::unique_ptr<RankThreads> start_followers(const Checkpoint& checkpoint, const ModelPlan& plan,
                                             const ModelOptions& options, size_t threads,
                                             const RankSays& say) {
  return std::make_unique<RankThreads>(
      plan.wish.split, [&checkpoint, plan, options, threads, say](Ranks& ranks) {
        const std::shared_ptr<Runtime> runtime =
            rank_runtime(ranks.rank(), ranks.split().ranks(), threads);
        load_rank(checkpoint, plan, with_ranks(options, ranks, &runtime->pool()), say)->follow();
      });
}

ThreadRankedModel::ThreadRankedModel(const Checkpoint& checkpoint, const ModelOptions& options,
                                     const RankSplit& split, const RankSays& say) {
  Wish wish = options;
  wish.split = split;
  const ModelPlan plan = plan_model(checkpoint, wish, {});
  followers_ = start_followers(checkpoint, plan, options, options.pool->size(), say);
  model_ =
      load_rank(checkpoint, plan, with_ranks(options, followers_->leader(), options.pool), say);
}

}  // namespace moebius
