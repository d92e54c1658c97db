// SPDX-License-Identifier: Apache-2.0
#include "model/run/decoder.h"

#include <algorithm>

namespace moebius {

std::string_view name_of(Phase phase) {
  static constexpr std::string_view kNames[] = {"embedding", "norm",   "linear",  "attention",
                                                "moe",       "output", "exchange"};
  return kNames[static_cast<size_t>(phase)];
}

SequenceState::SequenceState(std::span<const KvKind> kinds, std::span<const DeviceKinds> devices,
                             std::shared_ptr<const uint64_t> id)
    : kinds_(kinds),
      pool_(std::make_unique<KvPool>(devices, 1)),
      tables_(kinds.size()),
      free_(kinds.size()),
      id_(std::move(id)) {}

void SequenceState::reserve(size_t tokens) {
  const size_t blocks = (length_ + tokens + kBlockTokens - 1) / kBlockTokens;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    std::vector<BlockId>& table = tables_[k];
    while (table.size() < blocks) {
      // Drops a state that no step will read.
      if (!kinds_[k].cuttable && table.size() + 1 < blocks) {
        table.push_back(kNoBlock);
        continue;
      }
      BlockId id;
      if (!free_[k].empty()) {
        id = free_[k].back();
        free_[k].pop_back();
      } else {  // every allocated block is in the table or free
        id = static_cast<BlockId>(
            table.size() - static_cast<size_t>(std::count(table.begin(), table.end(), kNoBlock)));
        pool_->commit(k, id + 1);
      }
      table.push_back(id);
    }
    free_[k].reserve(table.size());  // so that commit() cannot fail
  }
}

void SequenceState::commit(size_t tokens) noexcept {
  length_ += tokens;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    const size_t first = first_block_needed(kinds_[k], length_);
    for (size_t i = std::min(first, tables_[k].size()); i-- > 0;) {
      if (tables_[k][i] == kNoBlock) {
        if (kinds_[k].cuttable) break;  // earlier blocks are free, too
        continue;
      }
      free_[k].push_back(tables_[k][i]);
      tables_[k][i] = kNoBlock;
    }
  }
}

}  // namespace moebius
