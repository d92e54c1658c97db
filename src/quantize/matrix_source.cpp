// SPDX-License-Identifier: Apache-2.0
// Reads rows of source matrices, and decodes native FP8 (matrix_source.h).
#include "quantize/matrix_source.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/numeric.h"
#include "kernels/row_functions.h"
#include "quant/quant_access.h"

namespace moebius {

XType source_type(const Module& m) {
  switch (m.plan.code) {
    case CodeType::kF16:
      return XType::kF16;
    case CodeType::kF32:
      return XType::kF32;
    default:
      return XType::kBf16;  // native FP8, too
  }
}

DType stored_type(XType type) {
  return type == XType::kBf16 ? DType::kBf16 : type == XType::kF16 ? DType::kF16 : DType::kF32;
}

XType type_of_numbers(DType type) {
  return type == DType::kBf16 ? XType::kBf16 : type == DType::kF16 ? XType::kF16 : XType::kF32;
}

MatrixSource::MatrixSource(const Module& module, const TensorStore& store, LoadBuffer& buffer,
                           std::optional<XType> as)
    : module_(module),
      store_(store),
      view_(reader_for(module.plan.scheme.format).load(module.plan, store, buffer)),
      type_(as.value_or(source_type(module))),
      stored_(is_dense_code(view_.code) && type_ == source_type(module)) {}

MatrixSource::Row MatrixSource::row(size_t r, float* scratch) const {
  if (stored_) return {view_.codes + r * view_.row_bytes, type_};
  std::vector<float> numbers(view_.K);
  read_row(r, numbers.data());
  row_functions().store(type_, numbers.data(), scratch, view_.K);
  return {scratch, type_};
}

bool MatrixSource::contiguous() const {
  return stored_ && view_.row_bytes == view_.K * bits_of(stored_type(type_)) / 8;
}

void MatrixSource::read_row(size_t r, float* out) const {
  const uint8_t* row = view_.codes + r * view_.row_bytes;
  if (is_dense_code(view_.code))
    row_functions().load(source_type(module_), row, out, view_.K);
  else
    for (size_t c = 0; c < view_.K; ++c) out[c] = weight_at(view_, r, c);
  if (stored_) return;
  for (size_t c = 0; c < view_.K; ++c) out[c] = round_to(type_, out[c]);
}

void MatrixSource::fail_not_finite(size_t r) const {
  std::vector<float> row(view_.K);
  read_row(r, row.data());
  size_t c = 0;
  while (c + 1 < view_.K && std::isfinite(row[c])) ++c;
  fail("{}: element [{},{}] of {} is {}; expected finite weights", where(), r, c,
       printable(module_.name), std::isnan(row[c]) ? "NaN" : "infinite");
}

std::string MatrixSource::where() const {
  return store_.where(*module_.plan.tensors[Role::kWeight].info);
}

}  // namespace moebius
