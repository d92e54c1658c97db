// SPDX-License-Identifier: Apache-2.0
// States the facts of the int8 family on x86-64 (x86_int8.h). It is not named as an instruction-set
// file because it is compiled for the baseline: facts are asked on any CPU.
#include "kernels/x86/x86_int8.h"

#include "quant/reference.h"

namespace moebius::x86_int8 {
namespace {

constexpr size_t kTileGroup = 32;

size_t up(size_t a, size_t b) { return (a + b - 1) / b * b; }
size_t least(size_t a, size_t b) { return a < b ? a : b; }

constexpr int8_t kOfInt4[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
constexpr int8_t kTwiceE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

bool is_fp4_pair(const Problem& p) {
  return p.code == CodeType::kFp4 && p.act.code == ActCode::kFp4;
}
bool rows_have_groups(const Problem& p) { return p.act.granule == ActGranule::kGroup; }

// Returns the number of inputs over which both scales are constant.
size_t group_length(const Problem& p) {
  const size_t w = p.block_k < p.K ? p.block_k : p.K;
  return rows_have_groups(p) ? least(w, p.act.group) : w;
}

const char* supports(const Problem& p) {
  if (p.scale_type == ScaleType::kTwoLevel &&
      (rows_have_groups(p) || p.act.mode == Int8Mode::kVllm || p.block_n != 1 ||
       (p.super_groups & (p.super_groups - 1)) != 0))
    return "scales in two levels need rows with one scale and super-blocks of 2, 4, 8 ... groups";
  if (rows_have_groups(p)) {
    if (p.act_order)
      return "act-order weights with activations scaled per group: their groups cross";
    const size_t l = group_length(p);
    const bool nested =
        (p.block_k >= p.K || p.block_k % l == 0) && (p.act.group >= p.K || p.act.group % l == 0);
    if (!nested) return "groups of weights and of activations cross";
  }
  return nullptr;
}

const char* supports_integers(const Problem& p, bool bytes) {
  if (!is_integer_problem(p) || p.code == CodeType::kLut4)
    return "integer weights and activations only";
  if ((p.bits > 4) != bytes)
    return bytes ? "4 bits and less have their own codec" : "the weights have more than 4 bits";
  if (!fits_int32(p)) return "sums over K may leave int32";
  if (p.offsets && (p.act.granule != ActGranule::kRow || !p.act.symmetric))
    return "offsets need symmetric rows with one scale";
  return supports(p);
}

// Inputs of a chunk: whole groups, or a part of one.
constexpr size_t kChunk = 256;
size_t chunk_of(const Shape& s, size_t most = kChunk) {
  return s.padded <= most ? least(most / s.padded, s.groups) * s.padded : most;
}

}  // namespace

const char* supports_int4(const Problem& p) { return supports_integers(p, false); }
const char* supports_int8(const Problem& p) { return supports_integers(p, true); }
const char* supports_fp4(const Problem& p) {
  if (!is_fp4_pair(p) && !is_table_problem(p))
    return "fp4 weights and activations, or tables and int8 activations only";
  if (group_length(p) > 65536) return "a group is longer than the exact sum of fp4 products allows";
  return supports(p);
}
const char* supports_fp4_tiles(const Problem& p) {
  if (const char* why = supports_fp4(p)) return why;
  return group_length(p) < kTileGroup ? "groups of less than 32 have their own codec, fp4_16"
                                      : nullptr;
}
const char* supports_fp4_short_groups(const Problem& p) {
  if (const char* why = supports_fp4(p)) return why;
  return group_length(p) < kTileGroup ? nullptr : "groups of 32 and more have their own codec, fp4";
}
Numerics numerics(const Problem&) { return Numerics::kExact; }

Shape shape_of(const Problem& p) {
  Shape s{};
  s.codes = is_fp4_pair(p)        ? Codes::kFp4
            : is_table_problem(p) ? Codes::kTable
            : p.bits > 4          ? Codes::kBytes
                                  : Codes::kNibbles;
  s.numbers = s.codes == Codes::kBytes     ? nullptr
              : s.codes == Codes::kNibbles ? kOfInt4
              : p.code == CodeType::kLut4  ? lut_numbers(p.lut).of
                                           : kTwiceE2m1;
  s.vllm = p.act.mode == Int8Mode::kVllm && p.act.code == ActCode::kInt;
  const bool rounded = s.vllm && p.groups > 1;  // mode vllm stores scales of groups as bf16
  s.halved = s.codes == Codes::kTable && p.code == CodeType::kFp4;
  s.scale_type = p.scale_type == ScaleType::kF16 && !rounded   ? Scales::kF16
                 : p.scale_type == ScaleType::kTwoLevel        ? Scales::kTwoLevel
                 : p.scale_type == ScaleType::kF32 && !rounded ? Scales::kF32
                                                               : Scales::kBf16;
  s.group_scales = p.act.granule != ActGranule::kRow;
  s.row_zeros = s.codes != Codes::kFp4 && !rounded &&
                (act_has_zero_points(p.act) || p.act.granule == ActGranule::kStatic);
  s.offsets = p.offsets;
  s.offset_bias = p.offsets ? 1 << (p.bits - 1) : 0;
  s.length = group_length(p);
  s.groups = s.length >= p.K ? 1 : (p.K + s.length - 1) / s.length;
  s.padded = up(s.length, s.groups == 1 ? 64 : s.length < 64 ? 16 : 32);
  s.K_padded = s.groups * s.padded;
  s.per_scale = p.block_k >= p.K ? s.groups : p.block_k / s.length;
  s.step = s.padded % 64 == 0 ? 64 : s.padded % 32 == 0 ? 32 : 16;
  s.group_codes = kOutputs * s.padded / (s.codes == Codes::kBytes ? 1 : 2);
  const bool two_level = s.scale_type == Scales::kTwoLevel;
  s.group_scale_bytes = kOutputs * (s.scale_type == Scales::kF32 ? 4 : two_level ? 1 : 2);
  s.super_phase = p.super_phase;
  while (two_level && (size_t{1} << s.super_shift) < p.super_groups) ++s.super_shift;
  s.supers = up(s.groups * s.group_scale_bytes, 64);
  const size_t scales = s.supers + (two_level ? super_blocks(p) * kOutputs * 4 : 0);
  s.scales = s.groups * s.group_codes;
  s.zeros = s.scales + scales;
  s.offsets_at = s.zeros + (p.zero_points ? up(s.groups * kOutputs, 64) : 0);
  s.sums = s.offsets_at + (s.offsets ? scales : 0);
  s.row_sums = s.sums + (s.row_zeros ? s.groups * kOutputs * 4 : 0);
  s.stride = s.row_sums + (s.vllm ? kOutputs * 4 : 0);
  return s;
}

size_t packed_bytes(const Problem& p) { return up(p.N, kOutputs) / kOutputs * shape_of(p).stride; }

RowTiles row_tiles(const Shape& s, Engine engine, size_t M) {
  // Rows whose sums and results fit the registers; below kMany rows tiles are too empty.
  constexpr size_t kZmmRows = 6, kYmmRows = 4, kTileRows = 16, kMany = 5;
  const bool madd = engine == Engine::kMadd256 || engine == Engine::kMadd512;
  const bool narrow = engine == Engine::kMadd256 || engine == Engine::kVnni256;
  RowTiles t{};
  t.many = engine == Engine::kAmx && M >= kMany;
  const size_t few = narrow ? kYmmRows : kZmmRows;
  // Up to this many rows, expanding codes does not pay.
  const size_t direct = s.codes == Codes::kBytes ? 8 : few;
  t.expanded = engine != Engine::kAmx && M > direct;
  const bool wide = s.codes == Codes::kBytes || s.codes == Codes::kTable;
  t.code_bytes = madd && t.expanded && wide ? 2 : 1;
  const size_t most = t.many ? kTileRows : t.expanded ? expanded_rows(engine) : few;
  t.tiles = (M + most - 1) / most;
  t.rows = t.tiles == 0 ? 0 : (M + t.tiles - 1) / t.tiles;
  return t;
}

PanelLayout panel_layout(const Shape& s, const RowTiles& t) {
  const size_t rows = t.padded();
  PanelLayout l{};
  l.sums = up(rows * s.K_padded * t.code_bytes, 64);
  l.group_scales = l.sums + s.groups * rows * 4;
  l.scales = l.group_scales + (s.group_scales ? s.groups * rows * 4 : 0);
  l.zeros = l.scales + rows * 4;
  l.offset_sums = l.zeros + (s.row_zeros ? s.groups : 1) * rows * 4;
  l.bytes = up(l.offset_sums + (s.offsets ? s.groups * rows * 4 : 0), 64);
  return l;
}
template <Engine kEngine>
size_t panel_bytes(const Problem& p, size_t M) {
  const Shape s = shape_of(p);
  return panel_layout(s, row_tiles(s, kEngine, M)).bytes;
}

Blocking blocking_of(const Shape& s, const RowTiles& t) {
  Blocking b{};
  b.chunk = chunk_of(s);  // 2 panels of a chunk are 8 KiB, and so are 2 tiles of rows
  b.sums = s.codes == Codes::kBytes ? 0 : 2 * kOutputs * b.chunk;
  // Bytes of sums of two tiles of rows and two panels.
  constexpr size_t kTwoTiles = 2 * 2 * 16 * kOutputs * 4;
  b.acc = b.sums + kTwoTiles * (s.padded <= kChunk ? 2 : (t.tiles + 1) / 2);
  b.bytes = b.acc + t.padded() * 2 * kOutputs * 4;
  return b;
}
Blocking expanded_blocking(const Shape& s, const RowTiles& t) {
  Blocking b{};
  b.chunk = chunk_of(s, kChunk / t.code_bytes);  // 4 panels of a chunk are 16 KiB
  b.sums = kExpanded * kOutputs * b.chunk * t.code_bytes;
  const size_t results = t.padded() * kExpanded * kOutputs * 4;
  b.acc = b.sums + (s.padded > b.chunk ? results : 0);
  b.bytes = b.acc + results;
  return b;
}
template <Engine kEngine>
size_t scratch_bytes(const Problem& p, size_t M) {
  const Shape s = shape_of(p);
  const RowTiles t = row_tiles(s, kEngine, M);
  return t.many ? blocking_of(s, t).bytes : t.expanded ? expanded_blocking(s, t).bytes : 0;
}
#define MOEBIUS_ENGINE_BYTES(engine)                                   \
  template size_t panel_bytes<Engine::engine>(const Problem&, size_t); \
  template size_t scratch_bytes<Engine::engine>(const Problem&, size_t);
MOEBIUS_ENGINE_BYTES(kMadd256)
MOEBIUS_ENGINE_BYTES(kMadd512)
MOEBIUS_ENGINE_BYTES(kVnni256)
MOEBIUS_ENGINE_BYTES(kVnni512)
MOEBIUS_ENGINE_BYTES(kAmx)
#undef MOEBIUS_ENGINE_BYTES

}  // namespace moebius::x86_int8
