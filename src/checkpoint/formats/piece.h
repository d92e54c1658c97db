// SPDX-License-Identifier: Apache-2.0
// From a TensorRef to bytes: which matrix inside a tensor is meant (expert of a fused tensor,
// transposed or not), which of its rows, and reading them. Everything here has been proven to lie
// inside the tensor before a byte is allocated or read.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/formats/format.h"

namespace moebius {

// Throws "file: tensor is I32[4,5]; expected <rest>".
template <class... Args>
[[noreturn]] void wrong_tensor(const TensorStore& store, const TensorInfo& tensor,
                               fmt::format_string<Args...> expected, Args&&... args) {
  fail_at({"file", store.file_of(tensor).path(), tensor.name, "", ""}, "{} is {}; expected {}",
          store.where(tensor), describe(tensor),
          fmt::format(expected, std::forward<Args>(args)...));
}

std::string describe_shape(std::span<const uint64_t> dims);  // "[4096,512]"

// A stored matrix, seen as [rows, cols] with rows = outputs, and the rows wanted of it.
struct Piece {
  const TensorInfo* info = nullptr;
  int64_t index = -1;           // expert, for messages
  uint64_t offset = 0;          // bytes before the matrix inside the tensor
  uint64_t rows = 0, cols = 0;  // stored as [cols, rows] when transposed
  uint64_t element_bytes = 1;
  uint64_t first = 0, count = 0, step = 1;  // rows first, first + step, ...
  bool transposed = false;
  uint64_t row_bytes() const { return cols * element_bytes; }
};

bool has_columns(Format format);      // stores outputs as columns whatever the reference says
bool is_whole(const TensorRef& ref);  // no row selection

// Dimensions of the referenced slice: without the expert dimension when ref.index is set (then it
// is proven in range).
std::vector<uint64_t> slice_dims(const TensorStore& store, const TensorRef& ref);

// The matrix of a reference whose slice has rows x cols elements, with the reference's row
// selection proven.
Piece make_piece(const TensorStore& store, const TensorRef& ref, uint64_t rows, uint64_t cols);
// Same for a two-dimensional slice of unknown size; throws unless the slice has two dimensions,
// both above 0.
Piece matrix_piece(const TensorStore& store, const TensorRef& ref);

// Position (in elements) of the only element that a reference means: the tensor has one element, or
// one per expert.
uint64_t scalar_position(const TensorStore& store, const TensorRef& ref);
float read_scalar(const TensorStore& store, const TensorRef& ref);  // F32, BF16 or F16

// "[3,17,4]": where element (i-th wanted row, column) stands in the file.
std::string element_name(const Piece& piece, uint64_t i, uint64_t column);

// The wanted rows, row i at data + i * stride.
struct StoredRows {
  uint8_t* data = nullptr;
  size_t stride = 0;
};
// Untransposed rows are read in one stretch (interleaved rows keep their neighbours in between);
// transposed ones are turned.
StoredRows read_rows(const TensorStore& store, const Piece& piece, LoadBuffer& buffer);
// Hands the wanted rows one by one, reading a bounded stretch at a time. Not for transposed pieces.
void stream_rows(const TensorStore& store, const Piece& piece, LoadBuffer& buffer,
                 const std::function<void(uint64_t row, const uint8_t* data)>& use);

}  // namespace moebius
