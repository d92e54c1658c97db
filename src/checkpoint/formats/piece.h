// SPDX-License-Identifier: Apache-2.0
// Turns a TensorRef into bytes: selects a matrix inside a tensor (an expert of a fused tensor,
// transposed or not) and rows of it, and reads them. Every piece is checked to lie inside its
// tensor before a byte is allocated or read.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/formats/format.h"

namespace moebius {

// Throws Error "file: tensor is I32[4,5]; expected <rest>".
template <class... Args>
[[noreturn]] void wrong_tensor(const TensorStore& store, const TensorInfo& tensor,
                               fmt::format_string<Args...> expected, Args&&... args) {
  fail_at({"file", store.file_of(tensor).path(), tensor.name, "", ""}, "{} is {}; expected {}",
          store.where(tensor), describe(tensor),
          fmt::format(expected, std::forward<Args>(args)...));
}

// Views a stored matrix as [rows, cols], with rows = outputs, and selects some of its rows.
struct Piece {
  const TensorInfo* info = nullptr;
  int64_t index = -1;           // number of the expert, for messages
  uint64_t offset = 0;          // bytes before the matrix within the tensor
  uint64_t rows = 0, cols = 0;  // shape; stored as [cols, rows] if transposed
  uint64_t element_bytes = 1;
  uint64_t first = 0, count = 0, step = 1;  // selected rows: first, first + step, ...
  bool transposed = false;
  uint64_t row_bytes() const { return cols * element_bytes; }
};

// Returns true if the format stores outputs as columns, whatever the reference says.
bool has_columns(Format format);
bool is_whole(const TensorRef& ref);  // returns true if the reference selects no rows

// Returns the dimensions of the referenced slice, without the expert dimension if ref.index is set.
// Throws Error if the index is out of range.
std::vector<uint64_t> slice_dims(const TensorStore& store, const TensorRef& ref);

// Returns the piece for a reference whose slice has rows x cols elements. Throws Error if the slice
// has another size or the row selection does not fit.
Piece make_piece(const TensorStore& store, const TensorRef& ref, uint64_t rows, uint64_t cols);
// Returns the piece for a two-dimensional slice of any size above 0.
Piece matrix_piece(const TensorStore& store, const TensorRef& ref);

// Returns the position (in elements) of the only element that a reference means: the tensor has one
// element, or one per expert. Throws Error otherwise.
uint64_t scalar_position(const TensorStore& store, const TensorRef& ref);
// Reads an F32, BF16 or F16 tensor of one number.
float read_scalar(const TensorStore& store, const TensorRef& ref);
// Returns a stored number of type F8_E4M3, BF16, F16 or F32.
float float_of(DType type, const uint8_t* p);

// Returns "[3,17,4]": the position in the file of the element in the i-th selected row.
std::string element_name(const Piece& piece, uint64_t i, uint64_t column);

// Views rows that were read: row i is at data + i * stride.
struct StoredRows {
  uint8_t* data = nullptr;
  size_t stride = 0;
};
// Reads the selected rows into `buffer`. Rows that are not transposed are read in one run, with the
// unselected rows in between; transposed ones are transposed in memory.
StoredRows read_rows(const TensorStore& store, const Piece& piece, LoadBuffer& buffer);
// Calls `use` for each selected row in order, reading a limited number of bytes at a time. Not for
// transposed pieces.
void stream_rows(const TensorStore& store, const Piece& piece, LoadBuffer& buffer,
                 const std::function<void(uint64_t row, const uint8_t* data)>& use);

}  // namespace moebius
