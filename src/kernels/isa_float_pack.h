// SPDX-License-Identifier: Apache-2.0
// The float family with panels of 32 outputs: packs weights (layouts: isa_float.h). Internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include "base/numeric.h"
#include "kernels/isa_float.h"
#include "kernels/isa_packing.h"
#include "kernels/isa_scale_tables.h"

namespace moebius {
namespace {
namespace float_panels {

// Reads 8 units (32 bits) of a row as they are stored, with some bits flipped. kBytes: bytes in the
// file.
template <class Words>
struct AsStored {
  static constexpr size_t kBytes = 32;
  typename Words::V flip;
  [[gnu::always_inline]] typename Words::V operator()(const uint8_t* row) const {
    return Words::flip(Words::load(row), flip);
  }
};
template <class Words>
struct BytesToNibbles {  // signed bytes of at most 4 bits become nibbles
  static constexpr size_t kBytes = 64;
  [[gnu::always_inline]] typename Words::V operator()(const uint8_t* row) const {
    return Words::nibbles(row);
  }
};

// Packs one panel. Words: 8 words of 32 bits of an architecture (V), with load, store, store_some,
// transpose (8 x 8 words), same (a byte in all places), flip, nibbles (of 64 signed bytes), nans and
// any (the e4m3 bytes that are NaN); Bytes of PermutedRows; put_scales, which converts scales of
// kScaleRows outputs.
template <class Words>
class PanelPacker {
 public:
  PanelPacker(const PackArgs& a, const Shape& s, size_t n, uint8_t* out,
              const isa_packing::Ahead& ahead)
      : a_(a),
        s_(s),
        w_(*a.w),
        n_(n),
        rows_(w_.N - n < kNr ? w_.N - n : kNr),
        out_(out),
        bits_(w_.code == CodeType::kInt4Offset || w_.code == CodeType::kFp4 ||
                      w_.code == CodeType::kLut4
                  ? 4
              : w_.code == CodeType::kF32                               ? 32
              : w_.code == CodeType::kBf16 || w_.code == CodeType::kF16 ? 16
                                                                        : 8),
        ahead_(ahead) {}

  void pack() {
    const Groups groups{*a_.problem, s_, a_.group_ends};
    Group g = groups.first();
    bool nan = false;
    if (!a_.problem->ragged && s_.K_padded == s_.K_rows) {  // groups are adjacent, as in a row
      nan = pack_codes({0, 0, w_.K, 0, 0, s_.K_rows});
    } else {
      for (; g.index < s_.groups; g = groups.next(g)) nan |= pack_codes(g);
      __builtin_memset(out_ + s_.code_at(g.at), 0, s_.code_bytes - s_.code_at(g.at));
    }
    if (!a_.problem->ragged && !nan) {
      pack_regular_extras();
    } else {
      for (g = groups.first(); g.index < s_.groups; g = groups.next(g)) pack_extras(g, nan);
    }
    if (s_.scales == Scales::kTwoLevel) pack_supers();
    const size_t end = s_.supers_at() + s_.supers_bytes;
    __builtin_memset(out_ + end, 0, s_.stride() - end);
  }

 private:
  const uint8_t* row(size_t i) const { return w_.codes + (n_ + i) * w_.row_bytes; }
  uint8_t* unit_at(const Group& g, size_t k) const { return out_ + s_.code_at(g.at + k - g.from); }

  // Packs the codes of one group; returns true if one of them is NaN (e4m3 only).
  bool pack_codes(const Group& g) {
    size_t k = g.from;
    bool nan = false;
    const auto any = [&](size_t end) {
      for (; k < end; k += s_.unit) nan |= any_unit(g, k);
    };
    if (a_.columns == nullptr && rows_ == kNr) {
      any(up(g.begin, s_.unit));
      const size_t blocks = g.end > k ? (g.end - k) / (8 * s_.unit) : 0;
      const AsStored<Words> stored{
          Words::same(w_.code == CodeType::kInt8 && s_.form == Form::kInt8 ? 0x80 : 0)};
      if (w_.code == CodeType::kInt8 && s_.form == Form::kInt4) {
        straight(BytesToNibbles<Words>{}, g, k, blocks);
      } else if (s_.form == Form::kFp8) {
        nan |= straight<true>(stored, g, k, blocks);
      } else {
        straight(stored, g, k, blocks);
      }
      k += blocks * 8 * s_.unit;
    }
    any(g.from + g.padded);
    return nan;
  }

  // Packs blocks of 8 units of 32 rows.
  template <bool kNan = false, class Load>
  bool straight(const Load& load, const Group& g, size_t k, size_t blocks) {
    const uint8_t* from = row(0) + k * bits_ / 8;
    uint8_t* to = unit_at(g, k);
    typename Words::V found = Words::same(0);
    for (size_t b = 0; b < blocks; ++b, from += Load::kBytes, to += 8 * kNr * 4) {
      ahead_.ask();
      for (size_t i = 0; i < kNr; i += 8) {
        const uint8_t* first = from + i * w_.row_bytes;
        typename Words::V v[8];
        MOEBIUS_UNROLL for (size_t r = 0; r < 8; ++r) {
          v[r] = load(first + r * w_.row_bytes);
          ahead_.ask_in(first + r * w_.row_bytes);
          if constexpr (kNan) found = Words::nans(found, v[r]);
        }
        Words::transpose(v);
        MOEBIUS_UNROLL for (size_t u = 0; u < 8; ++u) Words::store(to + u * kNr * 4 + 4 * i, v[u]);
      }
    }
    return kNan && Words::any(found);
  }

  // Packs the unit at input k of every row, whatever its alignment; returns true if a code of it is
  // NaN.
  bool any_unit(const Group& g, size_t k) const {
    uint8_t* to = unit_at(g, k);
    bool nan = false;
    for (size_t i = 0; i < kNr; ++i) {
      const uint32_t v = i < rows_ ? unit_of(i, g, k) : 0;
      for (unsigned j = 0; s_.form == Form::kFp8 && j < 4; ++j)
        nan |= ((v >> (8 * j)) & 0x7f) == 0x7f;
      __builtin_memcpy(to + 4 * i, &v, 4);
    }
    return nan;
  }
  uint32_t unit_of(size_t i, const Group& g, size_t k) const {
    const uint32_t zero = zero_code(i, g);
    const size_t width = 32 / s_.unit;
    uint32_t v = 0;
    for (size_t j = 0; j < s_.unit; ++j, ++k)
      v |= (g.begin <= k && k < g.end ? code(i, k) : zero) << (width * j);
    return v;
  }
  // Returns the code that represents 0.
  uint32_t zero_code(size_t i, const Group& g) const {
    if (s_.form != Form::kInt4 && s_.form != Form::kInt8) return 0;
    const int zero =
        w_.zero_points != nullptr && g.begin < g.end ? w_.zero_points[extras_at(i, g)] : 0;
    return static_cast<uint32_t>(zero + (s_.form == Form::kInt4 ? 8 : 128)) &
           (s_.form == Form::kInt4 ? 15u : 255u);
  }
  uint32_t code(size_t i, size_t k) const {
    const size_t c = a_.columns != nullptr ? static_cast<size_t>(a_.columns[k]) : k;
    const uint8_t* from = row(i);
    uint32_t v = 0;
    switch (bits_) {
      case 4:
        return (from[c / 2] >> (4 * (c % 2))) & 15u;
      case 8:
        if (w_.code != CodeType::kInt8) return from[c];
        return s_.form == Form::kInt4 ? (from[c] + 8u) & 15u : from[c] ^ 0x80u;
      case 16:
        __builtin_memcpy(&v, from + 2 * c, 2);
        return v;
      default:
        __builtin_memcpy(&v, from + 4 * c, 4);
        return v;
    }
  }

  size_t extras_at(size_t i, const Group& g) const {
    return scale_row(i) + (a_.problem->ragged ? g.index : g.begin / s_.weight_k);
  }
  bool has_nan(size_t i, const Group& g) const {
    bool nan = false;
    for (size_t k = g.begin; k < g.end; ++k) nan |= (code(i, k) & 0x7f) == 0x7f;
    return nan;
  }
  void pack_extras(const Group& g, bool nan) const {
    if (s_.scales == Scales::kNone) return;
    uint8_t* to = out_ + s_.code_bytes + g.index * s_.scale_bytes;
    uint8_t* zeros = out_ + s_.zeros_at() + g.index * s_.zero_bytes;
    __builtin_memset(to, 0, s_.scale_bytes);
    __builtin_memset(zeros, 0, s_.zero_bytes);
    if (g.begin == g.end) return;  // the group has no inputs, so its scale does not matter
    for (size_t i = 0; i < rows_; ++i) {
      const size_t at = extras_at(i, g);
      const size_t bytes = s_.scale_bytes / kNr;
      if (w_.offsets != nullptr) {
        put_number(w_.offsets, at, false, zeros + i * bytes);
      } else if (s_.zero_bytes != 0) {
        zeros[i] = static_cast<uint8_t>(w_.zero_points[at]);
      }
      put_number(w_.scales, at, nan && has_nan(i, g), to + i * bytes);
    }
  }
  // Returns the index of the first scale of output i.
  size_t scale_row(size_t i) const {
    const size_t r = n_ + i + w_.n_phase;
    return (w_.block_n <= 1 ? r : r / w_.block_n) * w_.scale_stride;
  }
  size_t groups_of_scale() const {
    return s_.weight_k < w_.K ? s_.weight_k / s_.group_k : s_.groups;
  }
  // Calls f(group, index of its scale) for all groups of output i.
  template <class F>
  [[gnu::always_inline]] void for_groups(size_t i, const F& f) const {
    const size_t each = groups_of_scale();
    for (size_t g = 0, at = scale_row(i), left = each; g < s_.groups; ++g) {
      f(g, at);
      if (--left == 0) {
        ++at;
        left = each;
      }
    }
  }
  void pack_regular_extras() const {
    uint8_t *scales = out_ + s_.code_bytes, *zeros = out_ + s_.zeros_at();
    if (s_.scales == Scales::kNone) return;
    if (rows_ < kNr) __builtin_memset(scales, 0, s_.groups * (s_.scale_bytes + s_.zero_bytes));
    put_table(w_.scales, scales, put_byte_scales(scales));
    if (w_.offsets != nullptr) return put_table(w_.offsets, zeros, 0);
    for (size_t i = 0; s_.zero_bytes != 0 && i < rows_; ++i)
      for_groups(i, [&](size_t g, size_t at) {
        zeros[g * kNr + i] = static_cast<uint8_t>(w_.zero_points[at]);
      });
  }
  // Packs scales or offsets of all groups; those of bytes from group `done` on.
  void put_table(const uint8_t* from, uint8_t* scales, size_t done) const {
    for (size_t i = 0; i < rows_; ++i) {
      const auto put_bytes = [&](const scale_tables::Table& table) {
        for (size_t g = done; g < s_.groups; ++g) {
          const uint16_t v = table.bf16[from[scale_row(i) + g / groups_of_scale()]];
          __builtin_memcpy(scales + g * s_.scale_bytes + 2 * i, &v, 2);
        }
      };
      const auto put = [&](const auto& half) {
        for_groups(i, [&](size_t g, size_t at) {
          const uint16_t v = half(at);
          __builtin_memcpy(scales + g * s_.scale_bytes + 2 * i, &v, 2);
        });
      };
      if (w_.scale_type == ScaleType::kFp8) {
        put_bytes(scale_tables::kE4m3);
      } else if (w_.scale_type == ScaleType::kE8m0) {
        put_bytes(scale_tables::kE8m0);
      } else if (s_.scales == Scales::kBf16 || s_.scales == Scales::kF16) {
        put([=](size_t at) {
          uint16_t v;
          __builtin_memcpy(&v, from + 2 * at, 2);
          return v;
        });
      } else {
        for_groups(i, [&](size_t g, size_t at) {
          put_number(from, at, false, scales + g * s_.scale_bytes + i * (s_.scale_bytes / kNr));
        });
      }
    }
  }
  // Packs the numbers of super-blocks.
  void pack_supers() const {
    uint8_t* to = out_ + s_.supers_at();
    for (const uint8_t* from : {w_.super_scales, w_.super_offsets}) {
      if (to == out_ + s_.supers_at() + s_.supers_bytes) return;  // no offsets
      if (rows_ < kNr) __builtin_memset(to, 0, s_.super_bytes);
      for (size_t i = 0; i < rows_; ++i) {
        const uint8_t* row = from + scale_row(i) / w_.super_groups * 4;
        for (size_t at = 0; at < s_.super_bytes; at += kNr * 4, row += 4)
          __builtin_memcpy(to + at + 4 * i, row, 4);
      }
      to += s_.super_bytes;
    }
  }
  // Packs scales of one byte in blocks; returns the number of groups done.
  size_t put_byte_scales(uint8_t* to) const {
    const bool e4m3 = w_.scale_type == ScaleType::kFp8;
    if ((!e4m3 && w_.scale_type != ScaleType::kE8m0) || rows_ < kNr || groups_of_scale() != 1)
      return 0;
    size_t done = 0;
    for (size_t i = 0; i < kNr; i += Words::kScaleRows) {
      const uint8_t* rows[Words::kScaleRows];
      for (size_t o = 0; o < Words::kScaleRows; ++o) rows[o] = w_.scales + scale_row(i + o);
      done = Words::put_scales(rows, s_.groups, e4m3, to + 2 * i, s_.scale_bytes);
    }
    return done;
  }
  // Writes entry `at` of scales or offsets.
  void put_number(const uint8_t* from, size_t at, bool nan, uint8_t* to) const {
    uint16_t half = 0;
    float whole = 1.0f;
    switch (w_.scale_type) {
      case ScaleType::kBf16:
      case ScaleType::kF16:
        __builtin_memcpy(&half, from + 2 * at, 2);
        break;
      case ScaleType::kFp8:
        half = scale_tables::kE4m3.bf16[from[at]];
        break;
      case ScaleType::kE8m0:
        half = scale_tables::kE8m0.bf16[from[at]];
        break;
      case ScaleType::kF32:
        __builtin_memcpy(&whole, from + 4 * at, 4);
        break;
      case ScaleType::kTwoLevel:
        *to = from[at];
        return;
      case ScaleType::kNone:
        break;
    }
    if (s_.scales == Scales::kF32) {
      if (nan) whole = __builtin_nanf("");
      __builtin_memcpy(to, &whole, 4);
    } else {
      if (nan) half = 0x7FFF;  // these bits are NaN in bf16 and in f16
      __builtin_memcpy(to, &half, 2);
    }
  }

  const PackArgs& a_;
  const Shape& s_;
  const QuantMatrix& w_;
  const size_t n_, rows_;
  uint8_t* const out_;
  const size_t bits_;  // width of a code in the file, in bits
  isa_packing::Ahead ahead_;
};

template <class Words>
void pack(const PackArgs& a, const Shape& s) {
  isa_packing::pack_panels<PanelPacker<Words>, typename Words::Bytes>(a, s, kNr, 8 * s.unit,
                                                                      s.stride());
}

}  // namespace float_panels
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
