// SPDX-License-Identifier: Apache-2.0
// Writes safetensors files. Order and padding are those of the format's own writer (widest types
// first, then by name; the header padded with spaces to 8 bytes), so equal tensors give equal
// files, and every tensor is aligned.
#include <algorithm>
#include <array>
#include <set>

#include "base/checked.h"
#include "base/error.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"

namespace moebius {
namespace {

// Order of types in the reference writer.
constexpr std::array kOrder = {
    DType::kU64,    DType::kI64,        DType::kF64,        DType::kC64,    DType::kF32,
    DType::kU32,    DType::kI32,        DType::kBf16,       DType::kF16,    DType::kU16,
    DType::kI16,    DType::kF8E5M2Fnuz, DType::kF8E4M3Fnuz, DType::kF8E8M0, DType::kF8E4M3,
    DType::kF8E5M2, DType::kI8,         DType::kU8,         DType::kF6E3M2, DType::kF6E2M3,
    DType::kF4,     DType::kBool,
};

size_t order_of(DType t) {
  return static_cast<size_t>(std::find(kOrder.begin(), kOrder.end(), t) - kOrder.begin());
}

void check(const TensorData& t, const std::string& path, std::set<std::string_view>& names) {
  if (t.name == "__metadata__" || !names.insert(t.name).second)
    fail("{}: cannot write tensor '{}': the name is taken", printable(path), printable(t.name));
  std::optional<uint64_t> bits = bits_of(t.dtype);
  for (const uint64_t d : t.shape) bits = bits ? checked_mul(*bits, d) : bits;
  if (!bits || *bits % 8 != 0 || *bits / 8 != t.data.size())
    fail("{}: cannot write tensor '{}': {} does not hold {} bytes", printable(path),
         printable(t.name), describe(TensorInfo{t.name, t.dtype, t.shape, 0, 0, 0}), t.data.size());
}

}  // namespace

std::string safetensors_header(std::span<const TensorInfo> tensors, std::string_view metadata) {
  std::string header(8, '\0');
  header += '{';
  if (!metadata.empty()) header += fmt::format("\"__metadata__\":{{{}}}", metadata);
  uint64_t offset = 0;
  for (const TensorInfo& t : tensors) {
    header += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[", header.size() > 9 ? "," : "",
                          Json(t.name).dump(), name_of(t.dtype));
    for (size_t i = 0; i < t.shape.size(); ++i)
      header += fmt::format("{}{}", i > 0 ? "," : "", t.shape[i]);
    header += fmt::format("],\"data_offsets\":[{},{}]}}", offset, offset + t.bytes);
    offset += t.bytes;
  }
  header += '}';
  header.append(round_up(header.size(), 8) - header.size(), ' ');
  const uint64_t length = header.size() - 8;
  for (size_t i = 0; i < 8; ++i) header[i] = static_cast<char>(length >> (8 * i));
  return header;
}

void write_safetensors(const std::string& path, std::span<const TensorData> tensors) {
  std::set<std::string_view> names;
  std::vector<const TensorData*> sorted;
  for (const TensorData& t : tensors) {
    check(t, path, names);
    sorted.push_back(&t);
  }
  std::sort(sorted.begin(), sorted.end(), [](const TensorData* a, const TensorData* b) {
    const size_t ra = order_of(a->dtype), rb = order_of(b->dtype);
    return ra != rb ? ra < rb : a->name < b->name;
  });
  std::vector<TensorInfo> infos;
  for (const TensorData* t : sorted)
    infos.push_back({t->name, t->dtype, t->shape, 0, t->data.size(), 0});
  const std::string header = safetensors_header(infos);
  std::vector<std::span<const uint8_t>> parts = {
      {reinterpret_cast<const uint8_t*>(header.data()), header.size()}};
  for (const TensorData* t : sorted) parts.push_back(t->data);
  write_output(path, parts);
}

}  // namespace moebius
