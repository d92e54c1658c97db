// SPDX-License-Identifier: Apache-2.0
// Reads the weight matrix of a module as rows of numbers, whatever the source stores: unquantized
// floats in any layout, or native block FP8, which is decoded to bf16.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "quant/encode.h"

namespace moebius {

XType source_type(const Module& module);  // type of the module's weights
XType type_of_numbers(DType type);        // type of an unquantized float tensor
DType stored_type(XType type);            // type in which scales are stored

class MatrixSource {
 public:
  // Reads the payload into `buffer`, which must outlive the object. `as`: rounds numbers to this
  // type. Throws Error.
  MatrixSource(const Module& module, const TensorStore& store, LoadBuffer& buffer,
               std::optional<XType> as = std::nullopt);
  size_t rows() const { return view_.N; }
  size_t columns() const { return view_.K; }
  XType type() const { return type_; }
  // Writes row r as f32 [K]; every number is exact in type().
  void read_row(size_t r, float* out) const;
  // Views a row as it is stored, or decoded into `scratch` [K] if it must be.
  struct Row {
    const void* data;
    XType type;  // type of data
  };
  Row row(size_t r, float* scratch) const;
  // Returns true if rows follow each other without a gap.
  bool contiguous() const;
  // Throws Error that names the first element of the row which is not finite.
  [[noreturn]] void fail_not_finite(size_t r) const;
  // Returns the module's file and name for messages: "model.safetensors: name".
  std::string where() const;

 private:
  const Module& module_;
  const TensorStore& store_;
  QuantMatrix view_;
  XType type_;
  bool stored_;  // true: stored rows need no decoding
};

}  // namespace moebius
