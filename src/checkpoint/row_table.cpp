// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/row_table.h"

#include <algorithm>
#include <cmath>

#include "base/dtype.h"
#include "checkpoint/formats/piece.h"

namespace moebius {
namespace {

// Reads the scale of a table: one positive number.
float table_scale(const TensorStore& store, const TensorInfo& t) {
  const std::vector<float> v = read_floats(store, t);
  if (v.size() != 1 || !(v[0] > 0) || !std::isfinite(v[0]))
    fail("{} is {}; expected one positive number", store.where(t), describe(t));
  return v[0];
}

}  // namespace

RowTable::RowTable(const TensorStore& store, const std::string& stem, size_t width)
    : width_(width) {
  const TensorInfo *whole = store.find(stem + ".weight"),
                   *common = store.find(stem + ".weight_scale");
  const float scale = common != nullptr ? table_scale(store, *common) : 1;
  const auto add = [&](const TensorInfo& t, const TensorInfo* own) {
    const bool fp8 = t.dtype == DType::kF8E4M3;
    if (t.shape.size() != 2 || t.shape[1] != width || t.shape[0] == 0 ||
        (!fp8 && t.dtype != DType::kBf16 && t.dtype != DType::kF16 && t.dtype != DType::kF32))
      fail("{} is {}; expected rows of {} as F8_E4M3, BF16, F16 or F32", store.where(t),
           describe(t), width);
    std::shared_ptr<const ReadFile> file = store.file_of(t).file();
    if (file == nullptr)
      fail("{}: a table that is read by rows must lie in a file", store.where(t));
    auto at = std::find(files_.begin(), files_.end(), file);
    if (at == files_.end()) at = files_.insert(at, std::move(file));
    const float factor = own != nullptr ? table_scale(store, *own) : scale;
    shards_.push_back(
        {rows_, t.offset, static_cast<size_t>(at - files_.begin()), t.dtype, fp8 ? factor : 1});
    rows_ += t.shape[0];  // bounded by the size of a file
  };
  if (whole != nullptr) {
    add(*whole, nullptr);
    return;
  }
  for (size_t i = 0;; ++i) {
    const std::string shard = fmt::format("{}.shard_{}", stem, i);
    const TensorInfo* t = store.find(shard + ".weight");
    if (t == nullptr) break;
    add(*t, store.find(shard + ".weight_scale"));
  }
  if (shards_.empty()) store.require(stem + ".shard_0.weight");
}

const RowTable::Shard& RowTable::shard_of(uint64_t row) const {
  return *std::prev(std::upper_bound(shards_.begin(), shards_.end(), row,
                                     [](uint64_t r, const Shard& s) { return r < s.first; }));
}

size_t RowTable::row_bytes(const Shard& s) const { return width_ * bits_of(s.type) / 8; }

void RowTable::will_need(uint64_t row) const {
  const Shard& s = shard_of(row);
  files_[s.file]->will_need(s.offset + (row - s.first) * row_bytes(s), row_bytes(s));
}

void RowTable::read(uint64_t row, float* out) const {
  const Shard& s = shard_of(row);
  thread_local std::vector<uint8_t> bytes;
  bytes.resize(row_bytes(s));
  files_[s.file]->read_at(s.offset + (row - s.first) * bytes.size(), bytes);
  const size_t each = bytes.size() / width_;
  for (size_t i = 0; i < width_; ++i) out[i] = float_of(s.type, bytes.data() + i * each) * s.scale;
}

void RowTable::check(std::span<const int64_t> rows) const {
  std::vector<bool> used(files_.size(), false);
  for (const int64_t row : rows) used[shard_of(static_cast<uint64_t>(row)).file] = true;
  for (size_t i = 0; i < files_.size(); ++i)
    if (used[i]) files_[i]->check_unchanged();
}

}  // namespace moebius
