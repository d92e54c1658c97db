// SPDX-License-Identifier: Apache-2.0
// Reads pieces of tensors: selects them, proves that they lie inside, and reads them in place or
// transposed, in tiles that fit the cache.
#include "checkpoint/formats/piece.h"

#include <algorithm>
#include <cstring>

#include "base/numeric.h"

namespace moebius {
namespace {

// Bytes that are read at a time when rows are transposed.
constexpr uint64_t kStretch = uint64_t{1} << 20;

// Transposes k_count stored rows into columns k0, k0 + 1, ... of `out`. Tiles pass through a small
// dense square: stored rows are often a power of two apart, where a straight walk down a column
// would evict its own cache lines.
template <class T>
void transpose_stretch(const uint8_t* in, uint64_t k_count, const Piece& piece, uint64_t k0,
                       uint8_t* out) {
  constexpr uint64_t kTile = 64;
  T square[kTile][kTile];
  for (uint64_t kt = 0; kt < k_count; kt += kTile) {
    const uint64_t k_size = std::min(kTile, k_count - kt);
    for (uint64_t nt = 0; nt < piece.count; nt += kTile) {
      const uint64_t n_size = std::min(kTile, piece.count - nt);
      for (uint64_t k = 0; k < k_size; ++k) {
        const uint8_t* src =
            in + ((kt + k) * piece.rows + piece.first + nt * piece.step) * sizeof(T);
        if (piece.step == 1) {
          std::memcpy(square[k], src, n_size * sizeof(T));
        } else {
          for (uint64_t n = 0; n < n_size; ++n)
            std::memcpy(&square[k][n], src + n * piece.step * sizeof(T), sizeof(T));
        }
      }
      for (uint64_t n = 0; n < n_size; ++n) {
        T line[kTile];
        for (uint64_t k = 0; k < k_size; ++k) line[k] = square[k][n];
        std::memcpy(out + ((nt + n) * piece.cols + k0 + kt) * sizeof(T), line, k_size * sizeof(T));
      }
    }
  }
}

StoredRows read_transposed(const TensorStore& store, const Piece& piece, LoadBuffer& buffer) {
  const uint64_t line = piece.rows * piece.element_bytes;  // bytes of one stored row
  const uint64_t lines = std::clamp<uint64_t>(kStretch / line, 1, piece.cols);
  uint8_t* out = buffer.allocate(piece.count * piece.row_bytes());
  uint8_t* scratch = buffer.allocate(lines * line);
  for (uint64_t k = 0; k < piece.cols; k += lines) {
    const uint64_t n = std::min(lines, piece.cols - k);
    store.read(*piece.info, piece.offset + k * line, {scratch, n * line});
    if (piece.element_bytes == 1)
      transpose_stretch<uint8_t>(scratch, n, piece, k, out);
    else if (piece.element_bytes == 2)
      transpose_stretch<uint16_t>(scratch, n, piece, k, out);
    else
      transpose_stretch<uint32_t>(scratch, n, piece, k, out);
  }
  return {out, piece.row_bytes()};
}

}  // namespace

bool has_columns(Format format) { return is_turned(format) && format != Format::kAwqGemv; }

bool is_whole(const TensorRef& ref) {
  return ref.row_begin == 0 && ref.row_count == 0 && ref.row_step == 1;
}

std::vector<uint64_t> slice_dims(const TensorStore& store, const TensorRef& ref) {
  const std::vector<uint64_t>& shape = ref.info->shape;
  if (ref.index < 0) return shape;
  if (shape.empty() || static_cast<uint64_t>(ref.index) >= shape[0])
    wrong_tensor(store, *ref.info, "at least {} experts in dimension 0", ref.index + 1);
  return {shape.begin() + 1, shape.end()};
}

Piece make_piece(const TensorStore& store, const TensorRef& ref, uint64_t rows, uint64_t cols) {
  Piece p;
  p.info = ref.info;
  p.index = ref.index;
  p.rows = rows;
  p.cols = cols;
  p.element_bytes = bits_of(ref.info->dtype) / 8;
  p.transposed = ref.transposed;
  // The slice is part of a tensor that exists, so these products fit.
  if (ref.index > 0) p.offset = static_cast<uint64_t>(ref.index) * rows * cols * p.element_bytes;
  p.first = ref.row_begin;
  p.step = ref.row_step;
  const bool starts_inside = p.step > 0 && p.first < rows;
  if (starts_inside)
    p.count = ref.row_count != 0 ? ref.row_count : (rows - p.first - 1) / p.step + 1;
  if (!starts_inside || (p.count - 1) > (rows - 1 - p.first) / p.step)
    wrong_tensor(store, *ref.info, "at least {} output rows for rows {} + {} i, i < {}",
                 p.first + 1, p.first, p.step, ref.row_count);
  return p;
}

Piece matrix_piece(const TensorStore& store, const TensorRef& ref) {
  const std::vector<uint64_t> dims = slice_dims(store, ref);
  if (dims.size() != 2 || dims[0] == 0 || dims[1] == 0)
    wrong_tensor(store, *ref.info, "{} dimensions, none of them 0", ref.index < 0 ? 2 : 3);
  return ref.transposed ? make_piece(store, ref, dims[1], dims[0])
                        : make_piece(store, ref, dims[0], dims[1]);
}

uint64_t scalar_position(const TensorStore& store, const TensorRef& ref) {
  if (bits_of(ref.info->dtype) % 8 != 0) wrong_tensor(store, *ref.info, "whole bytes per element");
  const uint64_t elements = ref.info->bytes / (bits_of(ref.info->dtype) / 8);
  if (elements == 1) return 0;
  // Gate and up of a fused matrix may have one value each: [2], or [E, 2].
  const bool pair = ref.row_count == 1 && ref.row_begin < 2;
  if (pair && ref.index < 0 && elements == 2) return ref.row_begin;
  if (ref.index >= 0) {
    const std::vector<uint64_t> dims = slice_dims(store, ref);
    if (pair && elements == 2 * ref.info->shape[0])
      return 2 * static_cast<uint64_t>(ref.index) + ref.row_begin;
    if (std::all_of(dims.begin(), dims.end(), [](uint64_t d) { return d == 1; }))
      return static_cast<uint64_t>(ref.index);
    wrong_tensor(store, *ref.info, "one element per expert");
  }
  wrong_tensor(store, *ref.info, "one element");
}

float float_of(DType type, const uint8_t* p) {
  uint16_t half = 0;
  float whole = 0;
  switch (type) {
    case DType::kF8E4M3:
      return e4m3_to_f32(*p);
    case DType::kBf16:
      std::memcpy(&half, p, sizeof half);
      return bf16_to_f32(half);
    case DType::kF16:
      std::memcpy(&half, p, sizeof half);
      return f16_to_f32(half);
    default:
      std::memcpy(&whole, p, sizeof whole);
      return whole;
  }
}

float read_scalar(const TensorStore& store, const TensorRef& ref) {
  const uint64_t position = scalar_position(store, ref), bytes = bits_of(ref.info->dtype) / 8;
  if (!is_activation_type(ref.info->dtype))
    wrong_tensor(store, *ref.info, "dtype F32, BF16 or F16");
  uint8_t raw[4] = {};
  store.read(*ref.info, position * bytes, {raw, bytes});
  return float_of(ref.info->dtype, raw);
}

std::string element_name(const Piece& piece, uint64_t i, uint64_t column) {
  std::vector<uint64_t> at;
  if (piece.index >= 0) at.push_back(static_cast<uint64_t>(piece.index));
  const uint64_t row = piece.first + i * piece.step;
  at.push_back(piece.transposed ? column : row);
  at.push_back(piece.transposed ? row : column);
  // A column vector may be stored as [N].
  while (at.size() > piece.info->shape.size()) at.pop_back();
  return describe_shape(at);
}

StoredRows read_rows(const TensorStore& store, const Piece& piece, LoadBuffer& buffer) {
  if (piece.transposed) return read_transposed(store, piece, buffer);
  const uint64_t bytes = ((piece.count - 1) * piece.step + 1) * piece.row_bytes();
  uint8_t* data = buffer.allocate(bytes);
  store.read(*piece.info, piece.offset + piece.first * piece.row_bytes(), {data, bytes});
  return {data, piece.step * piece.row_bytes()};
}

void stream_rows(const TensorStore& store, const Piece& piece, LoadBuffer& buffer,
                 const std::function<void(uint64_t row, const uint8_t* data)>& use) {
  const uint64_t stride = piece.step * piece.row_bytes();
  const uint64_t at_once = std::clamp<uint64_t>(kStretch / stride, 1, piece.count);
  uint8_t* scratch = buffer.allocate(((at_once - 1) * piece.step + 1) * piece.row_bytes());
  for (uint64_t r = 0; r < piece.count; r += at_once) {
    const uint64_t n = std::min(at_once, piece.count - r);
    const uint64_t bytes = (n - 1) * stride + piece.row_bytes();
    const uint64_t row = piece.first + r * piece.step;
    store.read(*piece.info, piece.offset + row * piece.row_bytes(), {scratch, bytes});
    for (uint64_t i = 0; i < n; ++i) use(r + i, scratch + i * stride);
  }
}

}  // namespace moebius
