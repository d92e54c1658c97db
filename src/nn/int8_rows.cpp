// SPDX-License-Identifier: Apache-2.0
#include "nn/int8_rows.h"

#include <cstring>

#include "kernels/packed_matrix.h"
#include "kernels/prepared_rows.h"
#include "kernels/unpack.h"

namespace moebius {

QuantMatrix int8_facts(const QuantMatrix& dense) {
  QuantMatrix w;
  w.N = dense.N;
  w.K = w.row_bytes = w.block_k = dense.K;
  w.code = CodeType::kInt8;
  w.bits = 8;
  w.scale_type = ScaleType::kF32;
  w.scale_stride = 1;
  return w;
}

Int8Rows::Int8Rows(const QuantMatrix& dense)
    : codes(dense.N * dense.K), scales(dense.N), w(int8_facts(dense)) {
  ActSpec int8;
  int8.code = ActCode::kInt;
  const Problem p = make_problem(dense, int8, XType::kF32);
  const PreparedLayout layout = prepared_layout(p);
  const AlignedBytes rounded = aligned_bytes(layout.row_bytes);
  std::vector<float> row(dense.K);
  const ActParams none;
  for (size_t n = 0; n < dense.N; ++n) {
    unpack_f32(dense, n, 0, dense.K, nullptr, row.data());
    prepare_rows_canonical({&p, &none, row.data(), dense.K, 1, rounded.get()});
    std::memcpy(&scales[n], rounded.get(), sizeof(float));
    std::memcpy(codes.data() + n * dense.K, rounded.get() + layout.codes, dense.K);
  }
  w.codes = reinterpret_cast<const uint8_t*>(codes.data());
  w.scales = reinterpret_cast<const uint8_t*>(scales.data());
}

}  // namespace moebius
