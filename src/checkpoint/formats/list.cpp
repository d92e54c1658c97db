// SPDX-License-Identifier: Apache-2.0
// Lists the format readers (a new format is one line here and a file, or a row of stored_codes.cpp), and implements the load
// buffer and the reading of small dense tensors.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/numeric.h"
#include "checkpoint/formats/format.h"
#include "checkpoint/formats/loading.h"
#include "checkpoint/formats/piece.h"
#include "checkpoint/formats/proofs.h"
#include "checkpoint/formats/readers.h"

namespace moebius {
namespace {

constexpr FormatReader kReaders[] = {
    {Format::kDense, prove_stored_codes, fill_stored_codes},
    {Format::kIntQuantized, prove_stored_codes, fill_stored_codes},
    {Format::kFloatQuantized, prove_stored_codes, fill_stored_codes},
    {Format::kNaiveQuantized, prove_stored_codes, fill_stored_codes},
    {Format::kPackQuantized, prove_pack_quantized, fill_pack_quantized},
    {Format::kNvfp4Pack, prove_stored_codes, fill_stored_codes},
    {Format::kMxfp4Pack, prove_stored_codes, fill_stored_codes},
    {Format::kMxfp8, prove_stored_codes, fill_stored_codes},
    {Format::kGptOssMxfp4, prove_stored_codes, fill_stored_codes},
    {Format::kNativeFp8, prove_stored_codes, fill_stored_codes},
    {Format::kModeloptNvfp4, prove_stored_codes, fill_stored_codes},
    {Format::kGptq, prove_gptq, fill_gptq},
    {Format::kGptqV2, prove_gptq, fill_gptq},
    {Format::kGptqPlanar, prove_gptq, fill_gptq},
    {Format::kAwq, prove_awq, fill_awq},
    {Format::kQuarkInt4, prove_awq, fill_awq},
    {Format::kAwqGemv, prove_awq, fill_awq},
    {Format::kMlx, prove_mlx, fill_mlx},
    {Format::kGguf, prove_gguf, fill_gguf},
};

constexpr std::string_view kSuffixes[] = {
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_zero_point",
    "weight_offset",
    "weight_g_idx",
    "weight_shape",
    "weight_global_scale",
    "input_global_scale",
    "input_scale",
    "input_zero_point",
    "output_scale",
    "output_zero_point",
    "bias",
};
static_assert(std::size(kSuffixes) == static_cast<size_t>(Role::kCount));

constexpr size_t kAlign = 64;

}  // namespace

std::string_view suffix_of(Role role) { return kSuffixes[static_cast<size_t>(role)]; }

std::span<const FormatReader> format_readers() { return kReaders; }

const FormatReader& reader_for(Format format) {
  for (const FormatReader& r : kReaders)
    if (r.format == format) return r;
  fail("no reader for format {}", name_of(format));
}

MatrixPlan FormatReader::plan(const ModuleTensors& tensors, const Scheme& scheme,
                              const TensorStore& store, uint64_t expected_N, uint64_t expected_K,
                              std::string_view version) const {
  MatrixPlan plan;
  plan.tensors = tensors;
  plan.scheme = scheme;
  prove({store, plan, expected_N, expected_K, version});
  return plan;
}

QuantMatrix FormatReader::load(const MatrixPlan& plan, const TensorStore& store,
                               LoadBuffer& buffer) const {
  QuantMatrix view = begin_view(plan);
  fill({plan, store, buffer}, view);
  return view;
}

uint8_t* LoadBuffer::allocate(size_t bytes) {
  const size_t need = (bytes + kAlign - 1) / kAlign * kAlign;
  if (blocks_.empty() || blocks_.back().size - used_ < need) {
    // The first block after a reset is as large as all blocks of the last round together.
    const size_t size = std::max(need, blocks_.empty() ? round_ : size_t{0});
    blocks_.push_back({std::unique_ptr<uint8_t[]>(new uint8_t[size + kAlign]), size});
    used_ = 0;
    if (blocks_.size() == 1) round_ = 0;
  }
  uint8_t* base = blocks_.back().memory.get();
  base += (kAlign - reinterpret_cast<uintptr_t>(base) % kAlign) % kAlign + used_;
  used_ += need;
  round_ += need;
  return base;
}

void LoadBuffer::reset() {
  if (blocks_.size() > 1) {
    blocks_.clear();  // round_ stays: the next block has that size
  } else {
    round_ = 0;
  }
  used_ = 0;
}

std::vector<float> read_floats(const TensorStore& store, const TensorInfo& tensor) {
  if (!is_activation_type(tensor.dtype)) wrong_tensor(store, tensor, "dtype F32, BF16 or F16");
  std::vector<uint8_t> raw(tensor.bytes);
  store.read(tensor, 0, raw);
  std::vector<float> values(tensor.bytes * 8 / bits_of(tensor.dtype));
  const size_t each = bits_of(tensor.dtype) / 8;
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = float_of(tensor.dtype, raw.data() + i * each);
  return values;
}

std::vector<int64_t> read_integers(const TensorStore& store, const TensorInfo& tensor,
                                   uint64_t first, uint64_t count) {
  const uint64_t each = bits_of(tensor.dtype) / 8;
  std::vector<uint8_t> raw(count * each);
  store.read(tensor, first * each, raw);
  std::vector<int64_t> values(count);
  for (uint64_t i = 0; i < count; ++i) {
    int32_t narrow = 0;
    std::memcpy(&narrow, raw.data() + i * each, sizeof narrow);
    values[i] = narrow;
    if (each == sizeof values[i]) std::memcpy(&values[i], raw.data() + i * each, each);
  }
  return values;
}

std::vector<float> load_bias(const MatrixPlan& plan, const TensorStore& store) {
  const TensorRef& ref = plan.tensors[Role::kBias];
  if (!ref) return {};
  TensorRef column = ref;
  column.transposed = false;
  const Piece piece = make_piece(store, column, is_whole(ref) ? plan.N : stored_rows(plan), 1);
  LoadBuffer buffer;
  const StoredRows rows = read_rows(store, piece, buffer);
  std::vector<float> values(piece.count);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = float_of(ref.info->dtype, rows.data + i * rows.stride);
    if (!std::isfinite(values[i]))
      fail("{}{} is {}; expected a finite bias", store.where(*ref.info), element_name(piece, i, 0),
           values[i]);
  }
  return values;
}

}  // namespace moebius
