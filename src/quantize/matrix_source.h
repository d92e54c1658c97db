// SPDX-License-Identifier: Apache-2.0
// The weight matrix of a module as rows of numbers, whatever its source stores: plain floats of any
// layout, or native block FP8, which is decoded to bf16 first.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "quant/encode.h"

namespace moebius {

XType source_type(const Module& module);  // of its numbers
XType type_of_numbers(DType type);        // of a plain float tensor
DType stored_type(XType type);            // of its scales

class MatrixSource {
 public:
  // Reads the payload into `buffer`, which must outlive this. as: numbers are rounded to this type
  // first. Throws Error.
  MatrixSource(const Module& module, const TensorStore& store, LoadBuffer& buffer,
               std::optional<XType> as = std::nullopt);
  size_t rows() const { return view_.N; }
  size_t columns() const { return view_.K; }
  XType type() const { return type_; }
  // Row r as f32 [K]: every number is one of type().
  void read_row(size_t r, float* out) const;
  // The row as it is stored, or where it must be decoded, its numbers in `scratch` [K].
  struct Row {
    const void* data;
    XType type;  // of data
  };
  Row row(size_t r, float* scratch) const;
  // The rows behind a row follow it without a gap.
  bool contiguous() const;
  // Throws Error naming the first element of the row that is not finite.
  [[noreturn]] void fail_not_finite(size_t r) const;
  // "model.safetensors: name" for messages.
  std::string where() const;

 private:
  const Module& module_;
  const TensorStore& store_;
  QuantMatrix view_;
  XType type_;
  bool stored_;  // rows are numbers of the type as they stand
};

}  // namespace moebius
