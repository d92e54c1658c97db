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

uint64_t LayerSet::packed_bytes() const {
  uint64_t bytes = end_bytes();
  if (embedding != nullptr) bytes += embedding->table_bytes();
  if (predictor != nullptr) bytes += predictor->join->packed_bytes();
  for (const auto& l : layers) {
    if (l == nullptr) continue;
    bytes += l->dense_bytes;
    if (!l->block) continue;
    bytes += l->block->experts->facts().packed_bytes;
    if (l->block->beside != nullptr) bytes += l->block->beside->mlp->facts().packed_bytes;
  }
  return bytes;
}

uint64_t LayerSet::bytes_per_token() const {
  uint64_t bytes = end_bytes();
  for (const auto& l : layers) {
    if (l == nullptr) continue;
    bytes += l->dense_bytes;
    if (!l->block) continue;
    const ExpertsFacts& f = l->block->experts->facts();
    bytes += f.top_k * f.expert_bytes + f.every_token_bytes;
    if (l->block->beside != nullptr) bytes += l->block->beside->mlp->facts().packed_bytes;
  }
  return bytes;
}

void LayerSet::cut(const KvPool& pool, size_t kind, BlockId id, size_t tokens) const {
  for (const auto& l : layers) {
    if (l == nullptr || l->place.kind != kind) continue;
    if (const auto* a = std::get_if<HeadAttention>(&l->mixer); a != nullptr && a->keys) {
      a->attention->cut(pool, id, tokens);
      if (a->index != nullptr) a->index->cut(pool, id, tokens);
    }
    if (const auto* a = std::get_if<SharedKeyAttention>(&l->mixer))
      a->attention->cut(pool, id, tokens);
    if (const auto* a = std::get_if<LatentAttention>(&l->mixer)) {
      if (a->keys) a->attention->cut(pool, id, tokens);
      if (a->index != nullptr) a->index->cut(pool, id, tokens);
    }
  }
}

}  // namespace moebius
