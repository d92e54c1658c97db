// SPDX-License-Identifier: Apache-2.0
#include "model/graph/layer_set.h"

namespace moebius {

// Compressed keys need no cut: they are never read before they are written again.
void AttentionIndex::cut(const KvPool& pool, BlockId id, size_t tokens) const {
  if (!pools) indexer->cut(pool, id, tokens);
}

uint64_t LayerSet::end_bytes() const {
  uint64_t bytes = output != nullptr ? output->packed_bytes() : 0;
  if (final_mixer != nullptr)
    bytes += final_mixer->down->packed_bytes() + final_mixer->up->packed_bytes();
  return bytes;
}

uint64_t GraphLayer::packed_bytes() const {
  uint64_t bytes = dense_bytes;
  if (block) bytes += block->experts->facts().packed_bytes;
  if (block && block->beside != nullptr) bytes += block->beside->mlp->facts().packed_bytes;
  return bytes;
}

uint64_t GraphLayer::read_bytes(size_t used) const {
  if (!block) return dense_bytes;
  const ExpertsFacts& f = block->experts->facts();
  return packed_bytes() - f.packed_bytes + f.every_token_bytes + used * f.expert_bytes;
}

uint64_t LayerSet::packed_bytes() const {
  uint64_t bytes = end_bytes();
  if (embedding != nullptr) bytes += embedding->table_bytes();
  if (predictor != nullptr) bytes += predictor->join->packed_bytes();
  for (const auto& l : layers) bytes += l != nullptr ? l->packed_bytes() : 0;
  return bytes;
}

uint64_t LayerSet::bytes_per_token() const {
  uint64_t bytes = end_bytes();
  for (const auto& l : layers)
    if (l != nullptr) bytes += l->read_bytes(l->block ? l->block->experts->facts().top_k : 0);
  return bytes;
}

void LayerSet::wait(Step& step) const {
  for (Device* d : devices.all()) d->wait(step);
}

void LayerSet::abandon(Step& step) const noexcept {
  for (Device* d : devices.all()) {
    try {
      d->wait(step);
    } catch (...) {  // the failure was reported already
    }
  }
}

void LayerSet::cut(const KvPool& pool, size_t kind, BlockId id, size_t tokens) const {
  for (const auto& l : layers) {
    if (l == nullptr || l->place.kind != kind) continue;
    const auto cut_keys = [&](const auto& mixer) {
      if constexpr (requires { mixer.keys; })
        if (mixer.keys) mixer.attention->cut(pool, id, tokens);
      if constexpr (requires { mixer.index->cut(pool, id, tokens); })
        if (mixer.index != nullptr) mixer.index->cut(pool, id, tokens);
    };
    std::visit(cut_keys, l->mixer);
  }
}

}  // namespace moebius
