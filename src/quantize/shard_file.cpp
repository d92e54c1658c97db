// SPDX-License-Identifier: Apache-2.0
// Writes units into a file at their places, with checksums (shard_file.h).
#include "quantize/shard_file.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"

namespace moebius {
namespace {

std::span<const uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

uint64_t sum_of(std::span<const uint64_t> sums) {
  return checksum({reinterpret_cast<const uint8_t*>(sums.data()), sums.size_bytes()});
}

// Returns the hash of a shard's header and its first units.
std::string hash_of_units(const OutputPlan::Shard& shard, std::span<const uint64_t> sums) {
  return fmt::format("{:016x}{:016x}", checksum(bytes_of(shard.header)), sum_of(sums));
}

// Locates the bytes that a unit writes of one of its tensors.
struct Stretch {
  uint64_t offset, bytes;
};
Stretch stretch_of(const OutputPlan& plan, const WorkUnit& unit, size_t k) {
  const TensorInfo& t = plan.tensors[unit.outputs[k]].info;
  const bool part = unit.kind == WorkUnit::Kind::kCopy || unit.kind == WorkUnit::Kind::kConvert;
  return {t.offset + unit.begin, part ? unit.count : t.bytes};
}

// Reads the checksums of a file's first units; nothing when it is shorter or has another header.
std::optional<std::vector<uint64_t>> read_sums(const OutputPlan& plan,
                                               const OutputPlan::Shard& shard,
                                               const std::string& path, size_t units) {
  if (!path_exists(path)) return std::nullopt;
  const ReadFile file(path);
  std::vector<uint8_t> bytes(shard.header.size());
  if (file.size() != shard.bytes) return std::nullopt;
  file.read_at(0, bytes);
  if (!std::ranges::equal(bytes, bytes_of(shard.header))) return std::nullopt;
  std::vector<uint64_t> sums;
  for (size_t u = 0; u < units; ++u) {
    std::vector<uint64_t> parts;
    for (size_t k = 0; k < shard.units[u].outputs.size(); ++k) {
      const Stretch s = stretch_of(plan, shard.units[u], k);
      bytes.resize(s.bytes);
      file.read_at(s.offset, bytes);
      parts.push_back(checksum(bytes));
    }
    sums.push_back(sum_of(parts));
  }
  return sums;
}

}  // namespace

ShardFile::ShardFile(const OutputPlan& plan, size_t number, const std::string& folder,
                     const std::optional<BegunShard>& begun)
    : plan_(plan), shard_(plan.shards[number]), path_(join_path(folder, shard_.name)) {
  if (begun && begun->name == shard_.name && begun->units <= shard_.units.size()) {
    const auto found = read_sums(plan, shard_, path_ + ".tmp", begun->units);
    if (found && hash_of_units(shard_, *found) == begun->hash) {
      sums_ = *found;
      done_ = begun->units;
    }
  }
  sums_.resize(shard_.units.size());
  file_.emplace(path_ + ".tmp", shard_.bytes, done_ > 0);
  file_->write_at(0, bytes_of(shard_.header));
}

void ShardFile::put(size_t unit, const std::vector<std::vector<uint8_t>>& tensors) {
  std::vector<uint64_t> parts;
  for (size_t k = 0; k < tensors.size(); ++k) {
    file_->write_at(stretch_of(plan_, shard_.units[unit], k).offset, tensors[k]);
    parts.push_back(checksum(tensors[k]));
  }
  sums_[unit] = sum_of(parts);
}

BegunShard ShardFile::settle(size_t units) {
  file_->sync();
  return {shard_.name, hash_of_units(shard_, std::span(sums_).first(units)), units};
}

FinishedShard ShardFile::finish() {
  file_->finish(path_);
  return {shard_.name, hash_of_units(shard_, sums_), shard_.bytes};
}

bool ShardFile::is_whole(const OutputPlan& plan, size_t number, const std::string& folder,
                         const FinishedShard& finished) {
  const OutputPlan::Shard& shard = plan.shards[number];
  const auto found = read_sums(plan, shard, join_path(folder, shard.name), shard.units.size());
  return found && finished.bytes == shard.bytes && hash_of_units(shard, *found) == finished.hash;
}

}  // namespace moebius
