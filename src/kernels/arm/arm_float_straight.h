// SPDX-License-Identifier: Apache-2.0
// Float weights on Arm at their stored width: packs the 32 rows of a whole panel with inputs in the
// order of the file (layouts: arm_float.h). arm_float_pack.h packs the rest (tails, act-order,
// NaN). Internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include "kernels/arm/arm_float.h"
#include "kernels/arm/arm_packing.h"

namespace moebius {
namespace {
namespace float_family {

using namespace arm_packing;
using arm_layout::Order;

// --- codes --- A codec defines the bytes of a code, their arrangement, the conversion of 16
// bytes, and of one byte if codes are bytes. kNothing: byte for positions past N or K.

// Records the largest of 2 * code, which is 254 for NaN; two accumulators, because one would wait
// for itself.
struct Seen {
  uint8x16_t most[2] = {};
  bool nan() const { return vmaxvq_u8(vmaxq_u8(most[0], most[1])) == 254; }
};
template <CodeType kCode>
struct AsStored {
  static constexpr Order kOrder = order_of(kCode);
  static constexpr size_t kSize = kCode == CodeType::kFp8 || kCode == CodeType::kInt8 ? 1
                                  : kCode == CodeType::kF32                           ? 4
                                                                                      : 2;
  static constexpr int kNothing = 0;
  static uint8_t one(uint8_t c) { return c; }
  static uint8x16_t all(uint8x16_t c, uint8x16_t&) { return c; }
};
template <uint8_t kFlip>  // codes are stored as code + 128
struct OffsetBytes : AsStored<CodeType::kInt8> {
  static constexpr int kNothing = 0x80;
  static uint8_t one(uint8_t c) { return c ^ kFlip; }
  static uint8x16_t all(uint8x16_t c, uint8x16_t&) { return veorq_u8(c, vdupq_n_u8(kFlip)); }
};
template <bool kSwapped>
struct E4m3 : AsStored<CodeType::kFp8> {  // NaN codes are kept: the group's scale is NaN
  static uint8_t one(uint8_t c) {
    if ((c & 0x7f) == 0x7f) return 0;
    return kSwapped ? static_cast<uint8_t>(c << 4 | c >> 4) : c;
  }
  static uint8x16_t all(uint8x16_t c, uint8x16_t& most) {
    most = vmaxq_u8(most, vaddq_u8(c, c));
    return kSwapped ? vsliq_n_u8(vshrq_n_u8(c, 4), c, 4) : c;
  }
};

// Returns the order in which vectors are read: 8 bytes each of two rows, which differ in the bit of
// the output that is last in the lanes of the panel; then the other bits of the output.
template <Order kTo>
constexpr Order read_order() {
  Order from;
  for (const uint8_t bit : kTo.bits)
    if (bit >= Order::kByte && from.count < 2) from = from.with(bit);
  for (uint8_t k = 0; from.count < 3; ++k) from = from.with(k);
  from = from.with(kTo.bits[3]);
  for (uint8_t o = Order::kOutput; o < Order::kOutput + 5; ++o)
    if (o != kTo.bits[3]) from = from.with(o);
  return from;
}

// Reads the 32 rows of a panel, 8 bytes of each at a time (a block). 64 bytes of each row are read
// at once into lines of scratch: rows are often a power of two apart, and the first-level cache has
// no room for 32 lines at such addresses. Whole lines are written to the panel, because between
// other stores the core would read these lines before writing them. Codes that are read next are
// prefetched in the order of memory.
class PanelRows {
 public:
  static constexpr size_t kBlock = 8, kBlocks = 8;  // bytes of a row; blocks read at once
  static constexpr size_t kPut = kBlock * kNr;      // bytes of a block in the panel
  // `blocks`: blocks per row, at least kBlocks. lines: aligned to 64; kBlocks * kPut bytes.
  PanelRows(const uint8_t* rows, size_t stride, size_t blocks, uint8_t* lines)
      : rows_(rows),
        next_(rows + (kNr * stride < kAsked ? kAsked : kNr * stride)),
        stride_(stride),
        blocks_(blocks),
        lines_(lines) {}

  // Writes `count` blocks to the panel. Works on a copy in registers, because stores of members
  // would come between those of lines.
  template <class Codec>
  [[gnu::noinline]] void put(size_t count, uint8_t* out, Seen& seen) {
    PanelRows r = *this;
    Seen all = seen;
    while (count != 0) {
      if (r.at_ == r.end_) r.read<Codec>();
      const size_t some = count < r.end_ - r.at_ ? count : r.end_ - r.at_;
      for (size_t i = 0; i < some; ++i, out += kPut, r.next_ += kPut) {
        MOEBIUS_UNROLL for (size_t line = 0; line < kPut; line += 64)
            __builtin_prefetch(r.next_ + line, 0, 2);
        put_block<Codec>(r.lines_ + 32 * (r.at_ + i), out, all);
      }
      r.at_ += some;
      count -= some;
    }
    *this = r;
    seen = all;
  }

 private:
  template <class Codec>
  using Net = Network<read_order<Codec::kOrder>(), Codec::kOrder, false>;
  // Outputs of the vectors of a block, two of each.
  struct Outputs {
    uint8_t of[2 * 16] = {};
  };
  template <class Codec>
  static constexpr Outputs outputs_read() {
    constexpr Order kFrom = read_order<Codec::kOrder>();
    Outputs all;
    for (unsigned i = 0; i < 2 * 16; ++i)
      for (unsigned b = 0; b < 5; ++b)
        all.of[i] =
            static_cast<uint8_t>(all.of[i] | (i >> b & 1) << (kFrom.bits[3 + b] - Order::kOutput));
    return all;
  }
  // Returns the address of half `which` of vector i of a block.
  template <class Codec>
  [[gnu::always_inline]] const uint8_t* row(size_t i, size_t which) const {
    static constexpr Outputs kOutputsRead = outputs_read<Codec>();
    return rows_ + kOutputsRead.of[2 * i + which] * stride_;
  }
  // Reads the next blocks. The last blocks of a row are read together with some that were read
  // before; all others but the first are one cache line.
  template <class Codec>
  [[gnu::always_inline]] void read() {
    const size_t first = read_ + kBlocks <= blocks_ ? read_ : blocks_ - kBlocks;
    const size_t within = reinterpret_cast<uintptr_t>(rows_ + kBlock * first) % 64 / kBlock;
    end_ = first + kBlocks < blocks_ ? kBlocks - within : kBlocks;
    at_ = read_ - first;
    read_ = first + end_;
    for (size_t i = 0; i < 16; i += 2) {  // lines [two vectors][block]
      uint8x16_t v[16];
      MOEBIUS_UNROLL for (size_t j = 0; j < 8; ++j) {
        const size_t byte = kBlock * first + j / 2 * 16, to = j / 2 * 4 + j % 2;
        v[to] = vld1q_u8(row<Codec>(i + j % 2, 0) + byte);
        v[to + 2] = vld1q_u8(row<Codec>(i + j % 2, 1) + byte);
      }
      MOEBIUS_UNROLL for (size_t j = 0; j < 16; ++j) {
        if (j % 4 >= 2) continue;
        const uint8x16_t x = v[j], y = v[j + 2];
        v[j] = low_halves(x, y);
        v[j + 2] = high_halves(x, y);
      }
      store_in_order(lines_ + 128 * i, v);
    }
  }
  template <class Codec>
  [[gnu::always_inline]] static void put_block(const uint8_t* from, uint8_t* out, Seen& seen) {
    uint8x16_t v[16];
    MOEBIUS_UNROLL for (size_t i = 0; i < 16; ++i) v[i] =
        Codec::all(vld1q_u8(from + i / 2 * 256 + i % 2 * 16), seen.most[i % 2]);
    Net<Codec>::arrange(v);
    store_in_order(out, v);
  }

  const uint8_t *rows_, *next_;
  size_t stride_, blocks_;
  size_t read_ = 0;          // number of blocks of a row that were read
  size_t at_ = 0, end_ = 0;  // blocks in lines_: the next one, and their end
  uint8_t* lines_;
};

}  // namespace float_family
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
