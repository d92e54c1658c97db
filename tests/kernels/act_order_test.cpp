// SPDX-License-Identifier: Apache-2.0
// Act-order: packing by a column order equals packing a matrix whose columns were moved one by one
// before, byte for byte, for every kernel that takes integers in such an order: whole and partial
// blocks of rows, rows in pieces, columns that fill no vector, few columns and very many.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kernels/kernel_cases.h"
#include "kernels/list.h"
#include "quant/quant_access.h"

namespace moebius::test::act_order_test {
namespace {

SchemeCase shuffled(CodeType code, uint8_t bits, size_t group, bool zero_points, bool int8_rows) {
  SchemeCase s;
  s.code = code, s.bits = bits, s.block_k = group, s.zero_points = zero_points;
  s.columns = Columns::kShuffled;
  s.x_type = XType::kBf16;
  if (int8_rows) s.act.code = ActCode::kInt;
  return s;
}

// w with column columns[i] at i.
struct Moved {
  std::vector<uint8_t> codes;
  QuantMatrix w;
  Moved(const QuantMatrix& from, const std::vector<int32_t>& columns)
      : codes(from.N * from.row_bytes, 0), w(from) {
    for (size_t r = 0; r < w.N; ++r)
      for (size_t k = 0; k < w.K; ++k) {
        const int code = int_code(from, r, static_cast<size_t>(columns[k]));
        uint8_t* row = codes.data() + r * w.row_bytes;
        if (w.code == CodeType::kInt4Offset) {
          row[k / 2] = static_cast<uint8_t>(row[k / 2] | (code + 8) << (4 * (k % 2)));
        } else {
          row[k] = static_cast<uint8_t>(w.code == CodeType::kInt8Offset ? code + 128 : code);
        }
      }
    w.codes = codes.data(), w.g_idx = nullptr;
  }
};

void expect_equal_bytes(const SchemeCase& s, size_t N, size_t K) {
  Rng rng(test_seed());
  const MatrixCase m = make_matrix(s, N, K, rng);
  const Problem p = make_problem(m.w, s.act, s.x_type);
  const ColumnOrder order = column_order(m.w);
  if (order.columns.empty()) return;  // the shuffle left them as they were
  const Moved moved(m.w, order.columns);
  for (const Kernel* k : kernel_list()) {
    if (k == &reference_kernel()) continue;  // keeps columns as they are stored
    if (k->pack == nullptr || !host_cpu().has(k->needs) || k->supports(p) != nullptr) continue;
    const size_t bytes = k->packed_bytes(p);
    const GuardedBytes one(bytes), other(bytes);
    std::memset(one.data(), 0, bytes), std::memset(other.data(), 0, bytes);
    for (size_t n = 0, end; n < N; n = end) {  // in pieces, as threads would
      end = std::min(N, n + k->n_step * (1 + rng() % 6));
      k->pack({&p, &m.w, n, end, one.data(), order.columns_or_null(), order.ends_or_null()});
    }
    k->pack({&p, &moved.w, 0, N, other.data(), nullptr, order.ends_or_null()});
    EXPECT_EQ(std::memcmp(one.data(), other.data(), bytes), 0)
        << k->name << "/" << k->codec << " " << static_cast<int>(s.bits) << " bits, N=" << N
        << " K=" << K << " seed " << test_seed();
    EXPECT_FALSE(one.damaged());
  }
}

void for_all_codes(size_t N, size_t K, size_t group) {
  for (const bool zeros : {false, true})
    for (const bool int8_rows : {false, true}) {
      expect_equal_bytes(shuffled(CodeType::kInt4Offset, 4, group, zeros, int8_rows), N, K);
      expect_equal_bytes(shuffled(CodeType::kInt8Offset, 8, group, zeros, int8_rows), N, K);
      expect_equal_bytes(shuffled(CodeType::kInt8, 3, group, zeros, int8_rows), N, K);
    }
}

TEST(ActOrder, PackingEqualsThatOfMovedColumns) {
  for_all_codes(96, 256, 32), for_all_codes(33, 288, 32), for_all_codes(71, 160, 32);
  for_all_codes(7, 64, 32), for_all_codes(40, 512, 128);
  // a last group that fills no vector
  for_all_codes(48, 77, 32), for_all_codes(24, 100, 64), for_all_codes(65, 131, 16);
}

TEST(ActOrder, ManyColumns) {
  for (const size_t K : {size_t{16384}, size_t{16416}}) {
    expect_equal_bytes(shuffled(CodeType::kInt4Offset, 4, 128, false, true), 40, K);
    expect_equal_bytes(shuffled(CodeType::kInt8Offset, 8, 128, false, false), 24, K);
  }
}

}  // namespace
}  // namespace moebius::test::act_order_test
