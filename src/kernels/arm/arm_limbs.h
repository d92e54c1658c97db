// SPDX-License-Identifier: Apache-2.0
// Weight-only integers and FP4 on Arm, multiplied with integer dot products: facts and layouts of
// the units arm_limbs_*. A row of bf16 or f16 numbers is block fixed point: in a block of at most
// 128 inputs
//   x[k] = (256 hi[k] + lo[k]) * 2^e,   hi and lo balanced digits of 8 bits ("limbs"),
// and weights are small integers (E2M1: twice the value), so the dot of a block is an exact integer
// whatever the instruction and the order. What two limbs of an input cannot hold is stored
// separately:
//   near   its next two limbs, kept for half a step of inputs at a time:  += (256 t[k] + u[k]) * 2^(e-16)
//   far    the number itself, where four limbs do not hold it (1 in 10^6 of Gaussian inputs)
// The sum of an output, the same operations in the same order whatever the tile or the batch:
//   f = fma(float(dot) * 2^e, c, f)              block by block, c the scale of the weights
//   f = fma(float(sum of x) * 2^e, b, f)         after each, where weights q c + b have an offset b (q from 0 on)
//   h = fma(float(dot of near) * 2^(e-16), c, h) block by block, those that have such limbs
//   f = f + h, then f = fma(x[k] * w[k], c, f)   far inputs, ascending
// docs/numerics.md derives the bound.
//
// On CPUs that also have BFMMLA, bf16 rows and 4-bit weights use it for many rows ("tops"). It adds
// floats, and gives the same bytes because the sums of a block are integers below 2^24 in it: s is
// as large as the sum of the block's magnitudes allows,
//   x[k] = ((256 hi[k] + lo[k]) 2^s + p[k]) * 2^(e-s) + q[k] * 2^(e-s-8),     p of s bits, q of 8,
// the dot of a block is that of the number in front, which is a bf16 number (a top), and near limbs
// are p and q. p is part of the dot, q makes h. Else s is 8, and both make h. Internal linkage, as
// all headers of kernel units.
//
// Packed weights: panels of 8 outputs at multiples of 64 bytes, group after group: scales (8 x bf16
// where the stored type fits, else 8 x f32; 8 x int8 of scales in two levels), with zero points 8 x int8 padded to 16 bytes, offsets
// stored as scales are, codes.
// Scales stand first: those of long groups are needed before the end, and a read far ahead of the
// others breaks their stream (8 bit, one row: 82 to 57 % of the memory's speed). The inputs of a
// step of 16 are taken in two halves, even ones, then odd ones: bytes of the file.
//   8 bit  64 bytes a half, as the instruction takes them (kLayoutOf... say which output and input is where)
//   4 bit  32 bytes a half: byte i = code of output o (value + 8, or E2M1) | code of output o + 4 of
//          the same input (two's complement, or E2M1) << 4
// As int8 such a byte of integers is 16 b + a: the sum of bytes minus the sum of their low halves
// is 16 times that of b, so one AND serves 32 weights.
//
// A prepared row: digits, 16 bytes a half (8 x hi, 8 x lo), then extras: Counts; a Block each; a
// Block of near limbs for every block that has such; a Near for every half that has; far inputs.
// Then tops, a half at a time, as bf16 integers. With act-order: the numbers, since only a panel
// knows their order. A panel of few rows: such rows. Of many: digits by tiles of rows, then the
// extras of every row.
#pragma once
#include "kernels/arm/arm_layout.h"
#include "kernels/arm/arm_shapes.h"
#include "kernels/isa_family.h"
#include "kernels/kernel.h"
#include "kernels/prepared_rows.h"
#include "kernels/unpack.h"

#define MOEBIUS_UNROLL _Pragma("GCC unroll 16")

namespace moebius {
namespace {
namespace limbs {

using namespace arm_shapes;

constexpr size_t kNr = 8;          // outputs per panel
constexpr size_t kKr = 16;         // inputs per step
constexpr size_t kHalf = 8;        // inputs per half of a step
constexpr size_t kLongest = 128;   // inputs per block, so that every dot fits int32
constexpr size_t kMostK = 65535;   // far inputs are numbered with 16 bits
constexpr size_t kTilePanels = 2;  // most panels that many rows are multiplied with together
constexpr size_t kFew = 7;         // most rows for which codes are decoded again for each row

enum class Form : uint8_t { kInt4, kFp4, kInt8 };  // kFp4: numbers of any table of 16
inline Form form_of(const Problem& p) {
  if (p.code == CodeType::kFp4 || p.code == CodeType::kLut4) return Form::kFp4;
  return p.bits > 4 ? Form::kInt8 : Form::kInt4;
}

struct Shape {
  size_t groups, group_k, K_padded;
  size_t blocks, block_k;  // number of blocks of all inputs; a group has whole blocks
  // Bytes: of half a step; of a group.
  size_t half_bytes, code_bytes, scale_bytes, zero_bytes, offset_bytes;
  Form form;
  bool bf16;          // true: scales are stored as bf16
  bool tops;          // true: rows are stored as bf16, too, for BFMMLA (arm_limbs_exact.h)
  int most_weight;    // for products of tops: largest magnitude of an integer weight
  size_t head_bytes;  // bytes of scales, zero points and offsets
  int lift;           // what is added to codes so that they count from 0; 0 without offsets
  size_t group_bytes() const { return head_bytes + code_bytes; }
  size_t group_blocks() const { return group_k / block_k; }
  arm_layout::Supers supers;
  size_t stride() const { return up(supers.at != 0 ? supers.end() : groups * group_bytes(), 64); }
  arm_layout::PanelSizes sizes() const {
    return {groups,        group_k,  group_k, scale_bytes,         zero_bytes,   head_bytes,
            group_bytes(), stride(), bf16,    form != Form::kInt8, offset_bytes, supers};
  }
};

// Layouts for instructions that take 8 inputs of 2 outputs (arm_limbs_i8mm), and 4 inputs of 4
// outputs (arm_limbs_dotprod).
constexpr arm_layout::Layout layout_of(const char* nibbles, const char* bytes) {
  return {.nibbles = arm_layout::Order(nibbles),
          .bytes = arm_layout::Order(bytes),
          .halves = {},
          .integers = arm_layout::Signed::kUpper,
          .scales_first = true,
          .scales_in_pairs = false,
          .repeats_end = false,
          .repeats_f32_end = false};
}
constexpr arm_layout::Layout kLayoutOfPairs =
    layout_of("o2 k1 k2 k3 o0 o1 k0", "k1 k2 k3 o0 o1 o2 k0");
constexpr arm_layout::Layout kLayoutOfFours =
    layout_of("o2 k1 k2 o0 o1 k3 k0", "k1 k2 o0 o1 o2 k3 k0");

template <bool kTops = false>
inline Shape shape_of(const Problem& p) {
  Shape s{};
  s.form = form_of(p);
  s.tops = kTops && s.form != Form::kInt8 && p.x_type == XType::kBf16;
  s.most_weight = p.code == CodeType::kLut4    ? 127
                  : s.form == Form::kFp4       ? 12
                  : p.zero_points || p.offsets ? 16
                                               : 8;
  s.lift = p.offsets ? 1 << (p.bits - 1) : 0;
  s.group_k = p.block_k >= p.K ? p.K : p.block_k;
  s.groups = (p.K + s.group_k - 1) / s.group_k;
  size_t in_group = (s.group_k + kLongest - 1) / kLongest;
  if (s.groups == 1) {
    s.block_k = up((s.group_k + in_group - 1) / in_group, kKr);
    s.group_k = in_group * s.block_k;
  } else {
    while (in_group * kKr < s.group_k && s.group_k % (in_group * kKr) != 0) ++in_group;
    s.block_k = s.group_k / in_group;
  }
  s.blocks = s.groups * in_group;
  s.K_padded = s.groups * s.group_k;
  s.bf16 = bf16_scales(p);
  s.half_bytes = s.form == Form::kInt8 ? 64 : 32;
  s.code_bytes = s.group_k / kHalf * s.half_bytes;
  s.scale_bytes = scale_bytes_of(p);
  s.zero_bytes = p.zero_points ? 16 : 0;
  s.offset_bytes = p.offsets ? s.scale_bytes : 0;
  s.head_bytes = up(s.scale_bytes + s.zero_bytes + s.offset_bytes,
                    s.groups == 1                          ? 64
                    : p.scale_type == ScaleType::kTwoLevel ? 8
                                                           : 16);
  s.supers = supers_of(p, s.groups * s.group_bytes());
  return s;
}

inline const char* supports(const Problem& p) {
  if (!of_integers(p) && p.code != CodeType::kFp4 && p.code != CodeType::kLut4)
    return "the weights are neither integers nor fp4";
  if (p.scale_type == ScaleType::kNone) return "the weights have no scales";
  if (p.act.code != ActCode::kAsIs) return "the checkpoint quantizes activations";
  if (p.x_type == XType::kF32) return "the activations are not rounded to 16 bits";
  if (!of_integers(p) && (p.zero_points || p.offsets))
    return "numbers of a table have neither zero points nor offsets";
  if (p.scale_type == ScaleType::kTwoLevel && p.zero_points)
    return "scales in two levels and zero points do not go together";
  if (p.K > kMostK) return "K is beyond 65535";
  if (p.block_k < p.K && p.block_k % kKr != 0) return "the group size is not a multiple of 16";
  // Probabilities span so many powers of two that most of them would be far inputs.
  if (p.code == CodeType::kInt8 && p.bits == 8 && p.scale_type == ScaleType::kF32 &&
      p.block_k >= p.K && !p.zero_points)
    return "8-bit keys and values are kept like this, and probabilities are not for limbs";
  return nullptr;
}
template <Form kForm>
inline const char* supports_only(const Problem& p) {
  const char* reason = supports(p);
  return reason != nullptr     ? reason
         : form_of(p) == kForm ? nullptr
                               : "another codec holds these weights";
}
inline Numerics numerics(const Problem&) { return Numerics::kReordered; }
// Returns the offset of the codes of a half step in a panel.
inline size_t half_at(const Shape& s, size_t half) {
  const size_t in_group = s.group_k / kHalf;
  return half / in_group * s.group_bytes() + s.head_bytes + half % in_group * s.half_bytes;
}
inline size_t packed_bytes(const Problem& p) { return up(p.N, kNr) / kNr * shape_of(p).stride(); }

// --- rows ---

struct Counts {
  uint32_t near, near_blocks, far, unused;
};
struct Block {
  int32_t start[4];  // 0, 0, -8 sum, -8 sum: start values of sums of codes + 8
  float factor;      // 2^e; NaN: the block held a NaN or an infinity, and its digits are 0
  int32_t sum;       // sum of 256 hi + lo
  uint32_t scales;   // offset in a panel of its group's scales
  uint8_t near;      // number of half steps of the block that have near limbs
  // For tops: s of a block with near limbs; in the Block of near limbs: 1 if any q is not 0.
  uint8_t shift;
  uint16_t super;  // number of the super-block, of scales in two levels
};
struct Near {
  int8_t digits[16];
  uint32_t codes, unused[3];  // offset in a panel of the codes of its half
};
// Offsets of the arrays of extras.
struct ExtrasLayout {
  size_t blocks, near_blocks, near, far, bytes;
};
inline ExtrasLayout extras_layout(const Shape& s) {
  ExtrasLayout l{};
  l.blocks = sizeof(Counts);
  l.near_blocks = l.blocks + s.blocks * sizeof(Block);
  l.near = l.near_blocks + s.blocks * sizeof(Block);
  l.far = l.near + s.K_padded / kHalf * sizeof(Near);  // entries: k and the 16 bits of x[k]
  l.bytes = up(l.far + 4 * s.K_padded, 64);
  return l;
}
inline size_t digit_bytes(const Shape& s) { return 2 * s.K_padded; }
inline size_t tops_at(const Shape& s) { return digit_bytes(s) + extras_layout(s).bytes; }
// Returns the bytes of a row without tops.
inline size_t few_row_bytes(const Shape& s) { return up(tops_at(s), 64); }
inline size_t digits_row_bytes(const Shape& s) {
  return up(tops_at(s) + (s.tops ? 2 * s.K_padded : 0), 64);
}
template <bool kTops>
inline size_t row_bytes(const Problem& p) {
  return p.act_order ? up(4 * p.K, 64) : digits_row_bytes(shape_of<kTops>(p));
}
// Returns the bytes of a row's part of a tile: digits, and for each block 16 bytes of factors and
// 16 of sums.
inline size_t tile_row_bytes(const Shape& s) { return up(digit_bytes(s) + 32 * s.blocks, 64); }
// Returns the bytes of the tiles in a panel of many rows, which has tiles, then extras. (A panel of
// few rows has rows with their extras.) With act-order there is room for one more row, in which
// rows are made.
inline size_t tiles_bytes(const Shape& s, size_t M) { return up(M, 2) * tile_row_bytes(s); }
template <bool kTops>
inline size_t row_panel_bytes(const Problem& p, size_t M) {
  const Shape s = shape_of<kTops>(p);
  const size_t rows =
      M <= kFew ? M * few_row_bytes(s) : tiles_bytes(s, M) + M * extras_layout(s).bytes;
  return rows + (p.act_order ? digits_row_bytes(s) : 0);
}

// Returns the bytes of a group's scales (and zero points or offsets), spread as sums are arranged,
// for many rows.
inline size_t spread_bytes(const Problem& p) { return p.zero_points || p.offsets ? 128 : 64; }
// Lays out scratch for tops: operands of several blocks of a panel and their scales, then sums of
// rows.
struct Chunk {
  size_t blocks, operands, spread, bytes;  // most blocks; bytes of each part, and of both
};
inline Chunk chunk_of(const Problem& p, const Shape& s) {
  constexpr size_t kInputs = 1024;  // operands are 16 KiB, a quarter of a first-level cache
  Chunk c{};
  c.blocks = s.block_k < kInputs ? kInputs / s.block_k : 1;
  if (c.blocks > s.blocks) c.blocks = s.blocks;
  c.operands = c.blocks * s.block_k * kNr * 2;
  c.spread = spread_bytes(p);
  c.bytes = up(c.operands + c.blocks * c.spread, 64);
  return c;
}
template <bool kTops>
inline size_t scratch_bytes(const Problem& p, size_t M) {
  const Shape s = shape_of<kTops>(p);
  if (M <= kFew) return 64;
  if (s.tops) return chunk_of(p, s).bytes + up(M, 2) * kNr * 4;
  return kTilePanels * (kNr * s.K_padded + s.groups * spread_bytes(p));
}

// Holds the table of a unit's kernels.
struct Kernels {
  Kernel list[3];
};
template <bool kTops>
constexpr Kernel kernel(const char* name, const char* codec, uint32_t needs,
                        const char* (*fits)(const Problem&), const Bodies& b, size_t rows) {
  const FamilyFacts facts{kNr,
                          numerics,
                          packed_bytes,
                          row_bytes<kTops>,
                          row_panel_bytes<kTops>,
                          scratch_bytes<kTops>,
                          kNr * kTilePanels,
                          rows,
                          nullptr,
                          kOffsets | kTwoLevel | kLut};
  return kernel_of(Arch::kAarch64, name, codec, needs, fits, facts, b);
}
template <bool kTops>
constexpr Kernels kernels(const char* name, uint32_t needs, const Bodies& b, size_t rows) {
  return {{kernel<kTops>(name, "int4", needs, supports_only<Form::kInt4>, b, rows),
           kernel<kTops>(name, "fp4", needs, supports_only<Form::kFp4>, b, rows),
           kernel<kTops>(name, "int8", needs, supports_only<Form::kInt8>, b, rows)}};
}

}  // namespace limbs
}  // namespace
}  // namespace moebius
