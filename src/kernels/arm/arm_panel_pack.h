// SPDX-License-Identifier: Apache-2.0
// The packer of all Arm families with panels of 8 outputs: one loop, which a Layout describes
// (arm_layout.h). Internal linkage, plain NEON.
//
// Codes of inputs in the order of the file are read from it, the rest (the end of K, outputs past N,
// a column order, e4m3 groups with NaN) from a buffer that unpack_*() fill with the same bytes.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include "kernels/arm/arm_packing.h"

namespace moebius {
namespace {
namespace arm_packing {

using arm_layout::Layout;
using arm_layout::Order;
using arm_layout::PanelSizes;
using arm_layout::Signed;

constexpr size_t kStepInputs = 16;

// --- readers --- A reader gives kVectors vectors of a row for kSteps steps of 16 inputs, of which
// the file has kStored bytes per step, in the order kOrder: nibbles are value + 8, or E2M1.

struct ReadNibbles {
  static constexpr size_t kBits = 4, kSteps = 2, kVectors = 1, kStored = 8;
  static constexpr Order kOrder{"k0 k1 k2 k3 k4 o0 o1 o2"};
  [[gnu::always_inline]] static uint8x16_t vector(const uint8_t* p) { return vld1q_u8(p); }
};
// For integers of at most 4 bits that the file stores in a byte each.
struct ReadSmall : ReadNibbles {
  static constexpr size_t kStored = 16;
  [[gnu::always_inline]] static uint8x16_t vector(const uint8_t* p) {
    const uint8x16_t lo = vld1q_u8(p), hi = vld1q_u8(p + 16), eight = vdupq_n_u8(8);
    return vsliq_n_u8(vaddq_u8(vuzp1q_u8(lo, hi), eight), vaddq_u8(vuzp2q_u8(lo, hi), eight), 4);
  }
};
template <uint8_t kFlip>  // bits to invert
struct ReadBytes {
  static constexpr size_t kBits = 8, kSteps = 1, kVectors = 1, kStored = 16;
  static constexpr Order kOrder{"k0 k1 k2 k3 o0 o1 o2"};
  [[gnu::always_inline]] static uint8x16_t vector(const uint8_t* p) {
    if constexpr (kFlip == 0) return vld1q_u8(p);
    return veorq_u8(vld1q_u8(p), vdupq_n_u8(kFlip));
  }
};
struct ReadHalves {
  static constexpr size_t kBits = 16, kSteps = 1, kVectors = 2, kStored = 32;
  static constexpr Order kOrder{"b0 k0 k1 k2 k3 o0 o1 o2"};
  [[gnu::always_inline]] static uint8x16_t vector(const uint8_t* p) { return vld1q_u8(p); }
};

// Returns the order that vectors of kBits-bit codes get in the panel; for nibbles that of two
// steps.
template <Layout kLayout, size_t kBits>
constexpr Order packed_order() {
  return kBits == 4   ? kLayout.nibbles.with(Order::kInput + 4)
         : kBits == 8 ? kLayout.bytes
                      : kLayout.halves;
}

// Tells where a packer is: the address of the next codes, the number of the group, how many of its
// steps are left, and whether its codes are read from the file.
struct Cursor {
  uint8_t* out;
  size_t group, left;
  bool file;
};

// Packs nothing but scales and zero points beside the codes. Other classes in its place define a
// Watch, to which all codes of a group are shown; put(), which writes what stands behind the codes
// of a group and begins the watch anew; and kWholeGroups: true if the codes of a group must not be
// read partly from the file.
struct NothingElse {
  static constexpr bool kWholeGroups = false;
  struct Watch {
    template <size_t kBits>
    [[gnu::always_inline]] void add(size_t, uint8x16_t) {}
    [[gnu::always_inline]] void step() {}
  };
  template <class Packer>
  [[gnu::always_inline]] static void put(Packer& p, const Cursor& c, Watch&) {
    p.put_extras(c.group, c.out);
  }
};

// Packs the panel of the 8 outputs from n on, group after group.
template <Layout kLayout, class Else>
class PanelPacker {
 public:
  using Watch = typename Else::Watch;

  // next: address of the codes that are prefetched meanwhile; null means the rows after those of
  // the panel.
  PanelPacker(const PackArgs& a, const PanelSizes& s, size_t n, uint8_t* out,
              const uint8_t* next = nullptr)
      : a_(a),
        s_(s),
        w_(*a.w),
        n_(n),
        steps_(s.inputs / kStepInputs),
        numbered_(w_.code == CodeType::kFp4 || w_.code == CodeType::kLut4),
        out_(out),
        next_(next),
        offsets_as_scales_(offsets_as_scales(w_)),
        extras_(w_, n, s.inputs, s.scale_inputs),
        offsets_(offsets_as_scales_, n, s.inputs, s.scale_inputs) {}

  void pack() {
    const bool straight = n_ + kOutputs <= w_.N && a_.columns == nullptr;
    if (straight) extras_.ask();
    Cursor c{out_, 0, steps_, true};
    Watch watch;
    begin(c);
    size_t done = straight ? w_.K / kStepInputs : 0;
    if (Else::kWholeGroups) done = done / steps_ * steps_;
    done = from_file(done, c, watch);
    c.file = false;
    from_buffer(done, s_.groups * steps_, c, watch);
    __builtin_memset(c.out, 0, s_.stride - s_.groups * s_.group);
    if (s_.supers.at != 0) extras_.put_supers(s_.supers, out_ + s_.supers.at);
  }
  // Packs the codes of group g again, with 0 for NaN, and writes what stands behind these codes.
  void repack(size_t g) {
    Cursor c{out_ + g * s_.group + s_.head, g, steps_, false};
    Watch watch;
    from_buffer(g * steps_, (g + 1) * steps_, c, watch);
  }

  // Writes scales, zero points and offsets of group g to `out`; callers ask for groups in ascending
  // order.
  [[gnu::always_inline]] void put_extras(size_t g, uint8_t* out) {
    if (s_.scales == 0) return;
    if (s_.supers.at != 0) {
      if (g % kChunk == 0) make_extras(g);
      vst1_u8(out, scale_bytes_[0][g % kChunk]);
      if (s_.offsets != 0) vst1_u8(out + s_.scales, scale_bytes_[1][g % kChunk]);
      return;
    }
    put_scales(scales(g), out);
    if (s_.zeros != 0)
      store_in_order<1>(out + s_.scales, {vcombine_u8(zeros_[g % kChunk], vdup_n_u8(0))});
    if (s_.offsets != 0) put_scales(offset_values_[g % kChunk], out + s_.scales + s_.zeros);
    if (n_ + kOutputs > w_.N) clear_end(out);
  }
  const Scales& scales(size_t g) {
    if (g % kChunk == 0) make_extras(g);
    return scales_[g % kChunk];
  }
  uint8x8_t zeros(size_t g) const { return zeros_[g % kChunk]; }

  const PackArgs& args() const { return a_; }
  const PanelSizes& sizes() const { return s_; }
  size_t first_output() const { return n_; }
  const PanelScales& extras() const { return extras_; }

 private:
  static constexpr size_t kChunk = PanelScales::kChunk, kBufferRow = 32;

  static QuantMatrix offsets_as_scales(QuantMatrix w) {
    w.scales = w.offsets;
    return w;
  }
  [[gnu::always_inline]] void put_scales(const Scales& v, uint8_t* out) const {
    if (!s_.bf16) {
      store_in_order(out, v.v);
    } else if (kLayout.scales_in_pairs) {
      store_in_order<1>(out, {vreinterpretq_u8_u16(in_pairs(vreinterpretq_u16_u8(v.v[0])))});
    } else {
      store_in_order<1>(out, {v.v[0]});
    }
  }
  [[gnu::noinline]] void make_extras(size_t g) {
    const size_t end = g + kChunk < s_.groups ? g + kChunk : s_.groups;
    if (s_.supers.at != 0) {
      extras_.make_bytes(w_.scales, g, end, scale_bytes_[0]);
      if (s_.offsets != 0) extras_.make_bytes(w_.offsets, g, end, scale_bytes_[1]);
      return;
    }
    extras_.make_scales(g, end, scales_);
    if (s_.offsets != 0) offsets_.make_scales(g, end, offset_values_);
    if (s_.zeros != 0) extras_.make_bytes(w_.zero_points, g, end, zeros_);
  }
  static uint16x8_t in_pairs(uint16x8_t v) { return vzip1q_u16(v, vextq_u16(v, v, 4)); }
  void clear_end(uint8_t* out) const {
    const size_t count = w_.N - n_, size = s_.scales / kOutputs;
    if (!(s_.bf16 ? kLayout.repeats_end : kLayout.repeats_f32_end))
      __builtin_memset(out + count * size, 0, (kOutputs - count) * size);
    if (s_.zeros != 0 && !kLayout.repeats_end)
      __builtin_memset(out + s_.scales + count, 0, kOutputs - count);
  }

  // begin() writes what stands before the codes of a group and moves the cursor to them; end()
  // writes what stands behind them and begins the next group.
  [[gnu::always_inline]] void begin(Cursor& c) {
    if (kLayout.scales_first) {
      put_extras(c.group, c.out);
      for (size_t at = s_.scales + s_.zeros + s_.offsets; at < s_.head; at += 16)
        store_in_order<1>(c.out + at, {vdupq_n_u8(0)});
    }
    c.out += s_.head;
  }
  [[gnu::always_inline]] void end(Cursor& c, Watch& watch) {
    if (!kLayout.scales_first) Else::put(*this, c, watch);
    c.out = out_ + ++c.group * s_.group;
    c.left = steps_;
    if (c.group < s_.groups) begin(c);
  }

  // Packs `count` steps of rows that are read side by side. This is the loop of the packer.
  template <class Reader, Signed kSigned>
  [[gnu::noinline]] void steps(Rows r, size_t count, Cursor& cursor, Watch& watch) {
    constexpr size_t kSteps = Reader::kSteps, kCount = kOutputs * Reader::kVectors,
                     kOne = kCount / kSteps;  // vectors of a step
    using Net = Network<Reader::kOrder, packed_order<kLayout, Reader::kBits>(), Reader::kBits == 4>;
    const bool whole = steps_ % kSteps == 0;  // no read crosses the end of a group
    Cursor c = cursor;
    Watch all = watch;
    while (count != 0) {
      uint8x16_t v[kCount];
      MOEBIUS_UNROLL for (size_t i = 0; i < kCount; ++i) {
        constexpr size_t kEach = Reader::kVectors;
        v[i] = Reader::vector(r.row(static_cast<int>(i / kEach)) + i % kEach * 16);
        all.template add<Reader::kBits>(i, v[i]);
        if (kSigned == Signed::kAll || (kSigned == Signed::kUpper && i >= kOutputs / 2))
          v[i] = veorq_u8(v[i], vdupq_n_u8(0x88));
      }
      all.step();
      Net::arrange(v);
      r.template advance<kSteps * Reader::kStored>();
      if (whole && count >= kSteps) {
        store_in_order(c.out, v);
        c.out += 16 * kCount;
        count -= kSteps;
        c.left -= kSteps;
        if (c.left == 0) end(c, all);
        continue;
      }
      MOEBIUS_UNROLL for (size_t step = 0; step < kSteps; ++step) {
        if (count == 0) break;
        uint8x16_t one[kOne];
        MOEBIUS_UNROLL for (size_t i = 0; i < kOne; ++i) one[i] = v[step * kOne + i];
        store_in_order(c.out, one);
        c.out += 16 * kOne;
        --count;
        if (--c.left == 0) end(c, all);
      }
    }
    cursor = c;
    watch = all;
  }
  template <class Reader>
  void any_steps(const Rows& r, size_t count, Cursor& c, Watch& watch) {
    if constexpr (Reader::kBits == 4 && kLayout.integers != Signed::kNone) {
      if (!numbered_) return steps<Reader, kLayout.integers>(r, count, c, watch);
    }
    steps<Reader, Signed::kNone>(r, count, c, watch);
  }

  // Calls f<Reader>() with the reader for codes of the file, or for those of a buffer; does nothing
  // for codes that must be unpacked.
  template <class F>
  void with_reader(bool file, const F& f) const {
    if (s_.nibbles) {
      if (!file || w_.code == CodeType::kInt4Offset || numbered_)
        return f.template operator()<ReadNibbles>();
      if (w_.code == CodeType::kInt8) f.template operator()<ReadSmall>();
      return;
    }
    if (file && (w_.code == CodeType::kFp4 || w_.code == CodeType::kLut4))
      return;  // packed as bytes
    if constexpr (kLayout.halves.count != 0)
      if (w_.code == CodeType::kBf16) return f.template operator()<ReadHalves>();
    if (file && w_.code == CodeType::kInt8Offset) return f.template operator()<ReadBytes<0x80>>();
    f.template operator()<ReadBytes<0>>();
  }
  // Packs at most `count` steps from the file's bytes; returns how many it packed.
  size_t from_file(size_t count, Cursor& c, Watch& watch) {
    const size_t panel = kOutputs * w_.row_bytes;
    const uint8_t* codes = w_.codes + n_ * w_.row_bytes;
    const uint8_t* next = next_ != nullptr ? next_ : codes + (panel < kAsked ? kAsked : panel);
    size_t done = 0;
    with_reader(true, [&]<class Reader>() {
      done = count / Reader::kSteps * Reader::kSteps;
      any_steps<Reader>({codes, next, w_.row_bytes}, done, c, watch);
    });
    return done;
  }
  void from_buffer(size_t step, size_t end, Cursor& c, Watch& watch) {
    with_reader(false, [&]<class Reader>() {
      for (; step < end; step += Reader::kSteps) {
        alignas(16) uint8_t codes[kOutputs][kBufferRow];
        const bool integers = s_.nibbles && !numbered_;
        __builtin_memset(codes, integers ? 0x88 : 0, sizeof codes);
        const size_t k = step * kStepInputs, k1 = k + Reader::kSteps * kStepInputs;
        for (size_t i = 0; i < kOutputs && n_ + i < w_.N; ++i)
          if (k < w_.K) unpack(n_ + i, k, k1 < w_.K ? k1 : w_.K, codes[i]);
        const size_t left = end - step, some = left < Reader::kSteps ? left : Reader::kSteps;
        any_steps<Reader>({codes[0], codes[0], kBufferRow}, some, c, watch);
      }
    });
  }
  // Writes the codes of output r in inputs [k, end) as the readers expect them; NaN becomes 0,
  // because the scale carries the NaN.
  void unpack(size_t r, size_t k, size_t end, uint8_t* out) const {
    if (s_.nibbles) return unpack_nibbles(w_, r, k, end, a_.columns, out);
    if (w_.code == CodeType::kBf16)
      return unpack_bf16(w_, r, k, end, a_.columns, reinterpret_cast<uint16_t*>(out));
    if (w_.code != CodeType::kFp8)
      return unpack_int8(w_, r, k, end, a_.columns, reinterpret_cast<int8_t*>(out));
    const uint8_t* row = w_.codes + r * w_.row_bytes;
    for (; k < end; ++k, ++out) {
      *out = row[a_.columns != nullptr ? static_cast<size_t>(a_.columns[k]) : k];
      if ((*out & 0x7f) == 0x7f) *out = 0;
    }
  }

  const PackArgs& a_;
  const PanelSizes& s_;
  const QuantMatrix& w_;
  const size_t n_, steps_;  // steps_: steps of 16 inputs in a group
  const bool numbered_;     // codes of 4 bits are numbers of a table
  uint8_t* const out_;
  const uint8_t* const next_;
  const QuantMatrix offsets_as_scales_;
  const PanelScales extras_, offsets_;
  Scales scales_[kChunk], offset_values_[kChunk];
  uint8x8_t zeros_[kChunk], scale_bytes_[2][kChunk];  // scale_bytes_: of scales, of offsets
};

// Packs the matrix of `a` in panels arranged as kLayout says; Else writes what the panels have
// besides.
template <Layout kLayout, class Else = NothingElse>
inline void pack_by_layout(const PackArgs& a, const PanelSizes& s) {
  pack_panels<PanelPacker<kLayout, Else>>(a, s, s.stride);
}

}  // namespace arm_packing
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
