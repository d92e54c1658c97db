// SPDX-License-Identifier: Apache-2.0
// The float family with panels of 32 outputs: layouts and facts that x86_amx, x86_avx512, x86_avx2
// and arm_neon/f32 share. Internal linkage, as all headers of kernel units.
//
// A packed panel has 32 outputs. Codes stay as the file has them, 32 bits of a row at a time (8
// codes of 4 bits, 4 of 8, 2 of 16, 1 of 32: a unit), and the units of the 32 outputs lie side by
// side: packing is a transposition of 32-bit words, and a vector of units gives one input of many
// outputs by a shift.
//   codes    [inputs / unit][32 outputs] x 32 bit; integers are offset (value + 8, value + 128)
//   scales   [group][32] as bf16 (stored as bf16, e4m3 or e8m0), f16, f32 or (two levels) int8; an
//            output with a NaN e4m3 code in a group has a NaN scale there; none for dense
//   zeros    [group][32] x int8, only with zero points; or offsets, in the type of scales
//   supers   [super-block][32] x f32 of scales, then of offsets, only of two levels
// Inputs go by steps of Shape::step. A group has all the steps that it touches, with zero weights
// for the inputs of its neighbours, so that rows need not know where groups begin.
#pragma once
#include "kernels/isa_panels_ahead.h"
#include "kernels/kernel.h"
#include "kernels/prepared_rows.h"
#include "kernels/unpack.h"

#define MOEBIUS_UNROLL _Pragma("GCC unroll 16")

namespace moebius {
namespace {
namespace float_panels {

constexpr size_t kNr = 32;  // outputs per panel

// Rounds a up to a multiple of b, a power of two: shapes are computed in every call, and a division
// takes longer than computing a row.
inline size_t up(size_t a, size_t b) { return (a + b - 1) & ~(b - 1); }

// kFp4: indices into a table of 16 numbers, of e2m1 or another.
enum class Form : uint8_t { kInt4, kFp4, kInt8, kFp8, kBf16, kF16, kF32 };
enum class Scales : uint8_t { kNone, kBf16, kF16, kF32, kTwoLevel };

inline Form form_of(const Problem& p) {
  switch (p.code) {
    case CodeType::kFp4:
    case CodeType::kLut4:
      return Form::kFp4;
    case CodeType::kFp8:
      return Form::kFp8;
    case CodeType::kBf16:
      return Form::kBf16;
    case CodeType::kF16:
      return Form::kF16;
    case CodeType::kF32:
      return Form::kF32;
    default:
      return p.bits > 4 ? Form::kInt8 : Form::kInt4;
  }
}

struct Shape {
  Form form;
  Scales scales;
  size_t step;  // inputs per step; groups consist of whole steps; a power of two, like unit
  size_t unit, unit_bits;  // number of codes in 32 bits, and its logarithm
  // Number of groups: runs of inputs on which the scales of weights and of rows are constant.
  size_t groups;
  // Inputs of a group; most_k: rounded up to whole steps (not for ragged groups).
  size_t group_k, most_k;
  size_t K_padded;         // most packed inputs: the steps of all groups
  size_t K_rows;           // inputs of a row, rounded up to whole steps
  size_t weight_k, row_k;  // inputs per scale of weights and of rows
  // Bytes of the codes of a panel; of the scales and of the zeros or offsets of one group.
  size_t code_bytes, scale_bytes, zero_bytes;
  // Two levels: logarithm of the groups of a super-block, the groups of the first one that precede
  // group 0, and the bytes of all numbers of super-blocks for scales, and for both.
  size_t super_bits, super_phase, super_bytes, supers_bytes;
  bool row_groups;  // true: rows have a scale per group
  size_t zeros_at() const { return code_bytes + groups * scale_bytes; }
  size_t supers_at() const { return zeros_at() + groups * zero_bytes; }
  size_t stride() const { return up(supers_at() + supers_bytes, 64); }
  // Returns the bytes of all scales, zeros and offsets for each group, as far as they are whole.
  size_t extra_bytes() const {
    const size_t supers = scales == Scales::kTwoLevel ? kNr * 4 >> super_bits : 0;
    return scale_bytes + zero_bytes + (supers_bytes > super_bytes ? 2 * supers : supers);
  }
  // Returns the offset of the codes of padded input k.
  size_t code_at(size_t k) const { return (k >> unit_bits) * kNr * 4; }
};

// Returns the offset of a code for weights with one group: units of the 32 outputs are side by
// side.
inline size_t place_of(const Shape& s, size_t n, size_t k) {
  return n / kNr * s.stride() + n % kNr * 4 + s.code_at(k) + k % s.unit * (4 / s.unit);
}

inline Shape shape_of(const Problem& p, size_t step) {
  Shape s{};
  s.form = form_of(p);
  s.unit = s.form == Form::kInt4 || s.form == Form::kFp4   ? 8
           : s.form == Form::kInt8 || s.form == Form::kFp8 ? 4
           : s.form == Form::kF32                          ? 1
                                                           : 2;
  while (size_t{1} << s.unit_bits < s.unit) ++s.unit_bits;
  s.row_groups = p.act.code != ActCode::kAsIs && p.act.granule == ActGranule::kGroup;
  s.weight_k = p.scale_type == ScaleType::kNone || p.block_k >= p.K ? p.K : p.block_k;
  s.row_k = s.row_groups && p.act.group < p.K ? p.act.group : p.K;
  const size_t least = s.weight_k < s.row_k ? s.weight_k : s.row_k;
  s.groups = p.ragged ? p.groups : least == p.K ? 1 : (p.K + least - 1) / least;
  s.group_k = least;
  s.step = step;
  const bool aligned = !p.ragged && (s.groups == 1 || least % step == 0);
  s.most_k = up(least, step) + (aligned ? 0 : step);
  s.K_rows = up(p.K, step);
  s.K_padded = aligned ? s.K_rows : up(p.K + 2 * (step - 1) * s.groups, step);
  const bool halves = p.scale_type == ScaleType::kBf16 || p.scale_type == ScaleType::kFp8 ||
                      p.scale_type == ScaleType::kE8m0;
  s.scales = p.scale_type == ScaleType::kNone && s.form != Form::kFp8 ? Scales::kNone
             : halves                                                 ? Scales::kBf16
             : p.scale_type == ScaleType::kF16                        ? Scales::kF16
             : p.scale_type == ScaleType::kTwoLevel                   ? Scales::kTwoLevel
                                                                      : Scales::kF32;
  s.code_bytes = s.code_at(s.K_padded);
  constexpr size_t kScaleBytes[] = {0, 2, 2, 4, 1};
  s.scale_bytes = kNr * kScaleBytes[static_cast<size_t>(s.scales)];
  s.zero_bytes = p.offsets ? s.scale_bytes : p.zero_points ? kNr : 0;
  if (s.scales == Scales::kTwoLevel) {
    while (size_t{1} << s.super_bits < p.super_groups) ++s.super_bits;
    s.super_phase = p.super_phase;
    s.super_bytes = kNr * 4 * (((s.super_phase + s.groups - 1) >> s.super_bits) + 1);
    s.supers_bytes = s.super_bytes * (p.offsets ? 2 : 1);
  }
  return s;
}

// One group: inputs [begin, end), whose steps begin at input `from` of a row and at `at` of the
// packed inputs. Groups iterates over them in order.
struct Group {
  size_t index, begin, end, from, at, padded;
};
struct Groups {
  const Problem& p;
  const Shape& s;
  const int32_t* ends;  // ends of groups of any length; null: groups are regular
  Group first() const { return made(0, 0, 0); }
  Group next(const Group& g) const { return made(g.index + 1, g.end, g.at + g.padded); }
  Group made(size_t g, size_t begin, size_t at) const {
    size_t end = begin + s.group_k < p.K ? begin + s.group_k : p.K;
    if (ends != nullptr) end = g < s.groups ? static_cast<size_t>(ends[g]) : p.K;
    const size_t inside = s.step - 1, from = begin & ~inside;
    return {g, begin, end, from, at, begin < end ? ((end + inside) & ~inside) - from : 0};
  }
};

// Returns why no kernel of the family can run the problem, or null.
inline const char* family_supports(const Problem& p) {
  if (p.act.code == ActCode::kInt) return "the checkpoint declares int8 activations";
  const bool row_groups = p.act.code != ActCode::kAsIs && p.act.granule == ActGranule::kGroup;
  if (row_groups && p.act_order) return "act-order and activation groups do not go together";
  if (row_groups && p.ragged)
    return "groups of unequal length and activation groups do not go together";
  if (p.scale_type == ScaleType::kTwoLevel && row_groups)
    return "scales in two levels and activation groups do not go together";
  if ((p.super_groups & (p.super_groups - 1)) != 0)
    return "the number of groups of a super-block is no power of two";
  if (p.K > 0x7FFFFFFFu) return "K does not fit 31 bits";
  const Shape s = shape_of(p, 1);
  if (s.groups > 1 && !p.ragged &&
      ((s.weight_k < p.K && s.weight_k % s.group_k != 0) ||
       (s.row_k < p.K && s.row_k % s.group_k != 0)))
    return "groups of weights and of activations do not fit each other";
  return nullptr;
}

template <Form kForm>
const char* only(const Problem& p, const char* reason) {
  return reason != nullptr     ? reason
         : form_of(p) == kForm ? nullptr
                               : "another codec holds these weights";
}

// Returns the addresses to prefetch for several panels from output n on; the panels after them are
// of this matrix or of the next one.
inline PanelsAhead ahead_of(const GemmArgs& a, const Shape& s, size_t n, size_t panels,
                            std::ptrdiff_t bytes) {
  const uint8_t *from = a.w->data + n / kNr * s.stride(), *then = from;
  if (n + panels * kNr < a.n1)
    then += panels * s.stride();
  else if (a.next != nullptr)
    then = a.next->data + a.n0 / kNr * s.stride();
  return {from, then, s.code_bytes, bytes};
}
// Returns how far to prefetch: panels of 16-bit numbers are long, and changing to the next panel
// costs more than it gains (measured).
template <size_t kUnit>
std::ptrdiff_t soon(const PanelsAhead& ahead, const uint8_t* codes) {
  return kUnit <= 2 ? ahead.near : ahead.at(codes);
}

inline size_t packed_bytes(const Problem& p, const Shape& s) {
  return up(p.N, kNr) / kNr * s.stride();
}

// Returns the stored scale of rows, by which all sums are multiplied; 1 if there is none.
inline float static_factor(const PackedMatrix& w) {
  const ActSpec& act = w.problem->act;
  return act.code != ActCode::kAsIs && act.granule == ActGranule::kStatic ? w.act.scale : 1.0f;
}

// Returns a row's final factor: its scale, or NaN if quantization with a stored scale met NaN or
// infinity. `header`: scales of the prepared row.
inline float row_factor(const Problem& p, const uint8_t* header) {
  if (p.act.code == ActCode::kAsIs || p.act.granule == ActGranule::kGroup) return 1.0f;
  float v;
  __builtin_memcpy(&v, header, 4);
  return p.act.granule == ActGranule::kRow || v != v ? v : 1.0f;
}

}  // namespace float_panels
}  // namespace
}  // namespace moebius
