// SPDX-License-Identifier: Apache-2.0
// Reads matrices of GGUF, whose rows are blocks: one row of the table below for each type of block.
// The row's function turns a block into a code for each number, and a scale and an offset for each
// group:
//
//   w = number(code) * scale                          without offsets
//   w = (code + 2^(bits - 1)) * scale + offset        with offsets
//
// K and IQ types have scales in two levels: an f16 per block, and a byte per group. Products are
// exact, and sums are rounded once. Codes of types with a codebook (IQ) are indices into a table of
// the codebook's numbers.
#include "checkpoint/formats/gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/numeric.h"
#include "checkpoint/formats/gguf_grids.h"
#include "checkpoint/formats/loading.h"
#include "checkpoint/formats/proofs.h"
#include "checkpoint/formats/readers.h"

namespace moebius {
namespace {

constexpr size_t kMostNumbers = 256, kMostGroups = 16;

// The numbers of one block.
struct Block {
  int8_t codes[kMostNumbers];
  float scale = 0.0f, offset = 0.0f;
  // Groups: factors of `scale` and `offset`, or E8M0 or E4M3 bits.
  uint8_t scales[kMostGroups], offsets[kMostGroups];
};

struct BlockType {
  uint32_t id;
  CodeType code;
  int bits;
  int64_t group;
  ScaleType scale;
  bool offsets;
  void (*decode)(const uint8_t* block, Block& out);
  Lut lut = Lut::kNone;
};

float half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return f16_to_f32(bits);
}

// Returns field i of `bits` bits. Bytes come in runs of `run`; the lowest bits of a run are its
// first `run` fields, the next higher bits the next `run` fields, and so on.
constexpr unsigned field(const uint8_t* p, unsigned run, unsigned bits, unsigned i) {
  const unsigned of_run = 8 / bits * run, k = i % of_run;
  return p[i / of_run * run + k % run] >> (k / run * bits) & ((1u << bits) - 1);
}

// Adds the first n such fields, shifted left, to the codes.
template <unsigned kRun, unsigned kBits, unsigned kShift = 0>
void add_fields(const uint8_t* p, unsigned n, int8_t* codes) {
  for (; n != 0; p += kRun)
    for (unsigned shift = 0; shift < 8 && n != 0; shift += kBits, n -= kRun)
      for (unsigned k = 0; k < kRun; ++k, ++codes)
        *codes = static_cast<int8_t>(*codes | (p[k] >> shift & ((1u << kBits) - 1)) << kShift);
}

void add_to_all(int8_t* codes, unsigned n, int add) {
  for (unsigned i = 0; i < n; ++i) codes[i] = static_cast<int8_t>(codes[i] + add);
}

// --- blocks of 32 to 128 numbers: a scale, an offset, bits that lie apart, and the codes ---

template <bool kOffset>
void decode_q4(const uint8_t* b, Block& out) {
  out.scale = half_at(b);
  if (kOffset) out.offset = half_at(b + 2);
  add_fields<16, 4>(b + (kOffset ? 4 : 2), 32, out.codes);
  add_to_all(out.codes, 32, -8);
}

template <bool kOffset>
void decode_q5(const uint8_t* b, Block& out) {
  out.scale = half_at(b);
  if (kOffset) out.offset = half_at(b + 2);
  b += kOffset ? 4 : 2;
  add_fields<16, 4>(b + 4, 32, out.codes);
  add_fields<1, 1, 4>(b, 32, out.codes);
  add_to_all(out.codes, 32, -16);
}

void decode_q8_0(const uint8_t* b, Block& out) {
  out.scale = half_at(b);
  std::memcpy(out.codes, b + 2, 32);
}

void decode_q1_0(const uint8_t* b, Block& out) {
  out.scale = half_at(b);
  add_fields<1, 1, 1>(b + 2, 128, out.codes);
  add_to_all(out.codes, 128, -1);
}

void decode_q2_0(const uint8_t* b, Block& out) {
  out.scale = half_at(b);
  add_fields<1, 2>(b + 2, 64, out.codes);
  add_to_all(out.codes, 64, -1);
}

void decode_mxfp4(const uint8_t* b, Block& out) {
  out.scales[0] = b[0];
  add_fields<16, 4>(b + 1, 32, out.codes);
}

void decode_nvfp4(const uint8_t* b, Block& out) {
  for (size_t g = 0; g < 4; ++g) out.scales[g] = b[g] == 0x7f ? 0 : b[g];
  add_fields<8, 4>(b + 4, 64, out.codes);
}

// --- K types: blocks of 256, whose groups have scales of few bits ---

void decode_q2_k(const uint8_t* b, Block& out) {
  out.scale = half_at(b + 80);
  out.offset = -half_at(b + 82);
  for (size_t g = 0; g < 16; ++g) {
    out.scales[g] = b[g] & 15;
    out.offsets[g] = b[g] >> 4;
  }
  add_fields<32, 2>(b + 16, 256, out.codes);
  add_to_all(out.codes, 256, -2);
}

void decode_q3_k(const uint8_t* b, Block& out) {
  out.scale = half_at(b + 108);
  for (unsigned g = 0; g < 16; ++g)
    out.scales[g] =
        static_cast<uint8_t>((field(b + 96, 8, 4, g) | field(b + 104, 4, 2, g) << 4) - 32);
  add_fields<32, 2>(b + 32, 256, out.codes);
  add_fields<32, 1, 2>(b, 256, out.codes);
  add_to_all(out.codes, 256, -4);
}

// Scales and offsets of six bits each: bytes a[4] m[4] h[4].
void decode_six_bits(const uint8_t* b, Block& out) {
  out.scale = half_at(b);
  out.offset = -half_at(b + 2);
  const uint8_t *a = b + 4, *m = b + 8, *h = b + 12;
  for (size_t j = 0; j < 4; ++j) {
    out.scales[j] = a[j] & 63;
    out.offsets[j] = m[j] & 63;
    out.scales[4 + j] = static_cast<uint8_t>((h[j] & 15) | a[j] >> 6 << 4);
    out.offsets[4 + j] = static_cast<uint8_t>(h[j] >> 4 | m[j] >> 6 << 4);
  }
}

void decode_q4_k(const uint8_t* b, Block& out) {
  decode_six_bits(b, out);
  add_fields<32, 4>(b + 16, 256, out.codes);
  add_to_all(out.codes, 256, -8);
}

void decode_q5_k(const uint8_t* b, Block& out) {
  decode_six_bits(b, out);
  add_fields<32, 4>(b + 48, 256, out.codes);
  add_fields<32, 1, 4>(b + 16, 256, out.codes);
  add_to_all(out.codes, 256, -16);
}

void decode_q6_k(const uint8_t* b, Block& out) {
  out.scale = half_at(b + 208);
  std::memcpy(out.scales, b + 192, 16);
  add_fields<64, 4>(b, 256, out.codes);
  add_fields<32, 2, 4>(b + 128, 256, out.codes);
  add_to_all(out.codes, 256, -32);
}

void decode_tq1_0(const uint8_t* b, Block& out) {
  out.scale = half_at(b + 52);
  int8_t* codes = out.codes;
  // `count` bytes of five digits of base 3 each, or of four.
  const auto add = [&](const uint8_t* p, unsigned count, unsigned digits) {
    for (unsigned place = 0, power = 1; place < digits; ++place, power *= 3)
      for (unsigned k = 0; k < count; ++k)
        *codes++ = static_cast<int8_t>(static_cast<int>((p[k] * power & 255u) * 3 >> 8) - 1);
  };
  add(b, 32, 5);
  add(b + 32, 16, 5);
  add(b + 48, 4, 4);
}

void decode_tq2_0(const uint8_t* b, Block& out) {
  out.scale = half_at(b + 64);
  add_fields<32, 2>(b, 256, out.codes);
  add_to_all(out.codes, 256, -1);
}

// --- IQ types: numbers of a codebook; scales are odd multiples of a part of the block's ---

void decode_iq4_nl(const uint8_t* b, Block& out) {
  out.scale = half_at(b);
  add_fields<16, 4>(b + 2, 32, out.codes);
}

unsigned word_at(const uint8_t* p, unsigned i) { return p[2 * i] | p[2 * i + 1] << 8; }

void decode_iq4_xs(const uint8_t* b, Block& out) {
  out.scale = half_at(b);
  for (unsigned j = 0; j < 8; ++j)
    out.scales[j] =
        static_cast<uint8_t>((field(b + 4, 1, 4, j) | (word_at(b + 2, 0) >> 2 * j & 3) << 4) - 32);
  add_fields<16, 4>(b + 8, 256, out.codes);
}

uint8_t odd(unsigned i) { return static_cast<uint8_t>(2 * i + 1); }

// Writes the scales of n groups from nibbles, the low one first.
void put_odd_scales(const uint8_t* nibbles, unsigned n, Block& out) {
  for (unsigned g = 0; g < n; ++g) out.scales[g] = odd(field(nibbles, 1, 4, g));
}

// Writes a codebook's vector of `n` digits, those with a minus whose bit of `minus` is set.
void put(const uint8_t* vector, unsigned n, unsigned minus, int8_t* codes) {
  for (unsigned k = 0; k < n; ++k)
    codes[k] = static_cast<int8_t>(vector[k] | (minus >> k & 1) << 3);
}

// Returns eight signs from seven bits: the number of minuses is even.
unsigned eight_signs(unsigned bits) {
  return bits | (static_cast<unsigned>(__builtin_popcount(bits)) & 1) << 7;
}

// IQ2_XXS and IQ3_XXS: a word per 32 numbers has four times seven signs, and the scale on top.
template <unsigned kVector>
void decode_xxs(const uint8_t* indices, const uint8_t* words, size_t step, const GgufGrid& grid,
                Block& out) {
  for (unsigned j = 0; j < 8; ++j, indices += 8, words += step) {
    uint32_t word;
    std::memcpy(&word, words, sizeof word);
    out.scales[j] = odd(word >> 28);
    for (unsigned k = 0; k < 32 / kVector; ++k) {
      const unsigned number = k * kVector;  // the first number of the vector within the 32
      const unsigned signs = eight_signs(word >> 7 * (number / 8) & 127);
      put(grid.vector(indices[k]), kVector, signs >> number % 8, out.codes + j * 32 + number);
    }
  }
}

void decode_iq2_xxs(const uint8_t* b, Block& out) {
  out.scale = half_at(b) / 8;
  decode_xxs<8>(b + 2, b + 6, 8, gguf_grid(GgufGridName::kIq2Xxs), out);
}

void decode_iq3_xxs(const uint8_t* b, Block& out) {
  out.scale = half_at(b) / 4;
  decode_xxs<4>(b + 2, b + 66, 4, gguf_grid(GgufGridName::kIq3Xxs), out);
}

void decode_iq2_xs(const uint8_t* b, Block& out) {
  const GgufGrid& grid = gguf_grid(GgufGridName::kIq2Xs);
  out.scale = half_at(b) / 8;
  put_odd_scales(b + 66, 16, out);
  for (unsigned i = 0; i < 32; ++i) {
    const unsigned q = word_at(b + 2, i);
    put(grid.vector(q & 511), 8, eight_signs(q >> 9), out.codes + 8 * i);
  }
}

void decode_iq2_s(const uint8_t* b, Block& out) {
  const GgufGrid& grid = gguf_grid(GgufGridName::kIq2S);
  out.scale = half_at(b) / 8;
  put_odd_scales(b + 74, 16, out);
  for (unsigned i = 0; i < 32; ++i)
    put(grid.vector(b[2 + i] | field(b + 66, 1, 2, i) << 8), 8, b[34 + i], out.codes + 8 * i);
}

void decode_iq3_s(const uint8_t* b, Block& out) {
  const GgufGrid& grid = gguf_grid(GgufGridName::kIq3S);
  out.scale = half_at(b);
  put_odd_scales(b + 106, 8, out);
  for (unsigned i = 0; i < 64; ++i)
    put(grid.vector(b[2 + i] | field(b + 66, 1, 1, i) << 8), 4, b[74 + i / 2] >> 4 * (i % 2),
        out.codes + 4 * i);
}

// IQ1: eight times the codebook's -1, 0 and 1, and one more or one less; an eighth of the scale.
void put_iq1(unsigned index, bool less, int8_t* codes) {
  const uint8_t* vector = gguf_grid(GgufGridName::kIq1).vector(index);
  for (unsigned k = 0; k < 8; ++k) codes[k] = static_cast<int8_t>(2 * vector[k] + (less ? 0 : 1));
}

void decode_iq1_s(const uint8_t* b, Block& out) {
  out.scale = half_at(b) / 8;
  for (unsigned g = 0; g < 8; ++g) {
    const unsigned h = word_at(b + 34, g);
    out.scales[g] = odd(h >> 12 & 7);
    for (unsigned j = 0; j < 4; ++j)
      put_iq1(b[2 + 4 * g + j] | (h >> 3 * j & 7) << 8, (h & 0x8000) != 0,
              out.codes + 32 * g + 8 * j);
  }
}

void decode_iq1_m(const uint8_t* b, Block& out) {
  unsigned bits = 0;  // of the scale, a nibble on top of each word
  for (unsigned k = 0; k < 4; ++k) bits |= word_at(b + 48, k) >> 12 << 4 * k;
  out.scale = f16_to_f32(static_cast<uint16_t>(bits)) / 8;
  for (unsigned g = 0; g < 16; ++g) out.scales[g] = odd(word_at(b + 48, g / 4) >> 3 * (g % 4) & 7);
  for (unsigned i = 0; i < 32; ++i) {
    const unsigned high = field(b + 32, 1, 4, i);
    put_iq1(b[i] | (high & 7) << 8, (high & 8) != 0, out.codes + 8 * i);
  }
}

constexpr bool kOffsets = true;
constexpr BlockType kBlocks[] = {
    {2, CodeType::kInt4Offset, 4, 32, ScaleType::kF16, !kOffsets, decode_q4<false>},
    {3, CodeType::kInt4Offset, 4, 32, ScaleType::kF16, kOffsets, decode_q4<true>},
    {6, CodeType::kInt8, 5, 32, ScaleType::kF16, !kOffsets, decode_q5<false>},
    {7, CodeType::kInt8, 5, 32, ScaleType::kF16, kOffsets, decode_q5<true>},
    {8, CodeType::kInt8, 8, 32, ScaleType::kF16, !kOffsets, decode_q8_0},
    {10, CodeType::kInt8, 2, 16, ScaleType::kTwoLevel, kOffsets, decode_q2_k},
    {11, CodeType::kInt8, 3, 16, ScaleType::kTwoLevel, !kOffsets, decode_q3_k},
    {12, CodeType::kInt4Offset, 4, 32, ScaleType::kTwoLevel, kOffsets, decode_q4_k},
    {13, CodeType::kInt8, 5, 32, ScaleType::kTwoLevel, kOffsets, decode_q5_k},
    {14, CodeType::kInt8, 6, 16, ScaleType::kTwoLevel, !kOffsets, decode_q6_k},
    {16, CodeType::kLut4, 4, 32, ScaleType::kTwoLevel, !kOffsets, decode_iq2_xxs, Lut::kIq2},
    {17, CodeType::kLut4, 4, 16, ScaleType::kTwoLevel, !kOffsets, decode_iq2_xs, Lut::kIq2},
    {18, CodeType::kLut4, 4, 32, ScaleType::kTwoLevel, !kOffsets, decode_iq3_xxs, Lut::kIq3},
    {19, CodeType::kLut4, 4, 32, ScaleType::kTwoLevel, !kOffsets, decode_iq1_s, Lut::kIq1},
    {20, CodeType::kLut4, 4, 32, ScaleType::kF16, !kOffsets, decode_iq4_nl, Lut::kIq4},
    {21, CodeType::kLut4, 4, 32, ScaleType::kTwoLevel, !kOffsets, decode_iq3_s, Lut::kIq3S},
    {22, CodeType::kLut4, 4, 16, ScaleType::kTwoLevel, !kOffsets, decode_iq2_s, Lut::kIq2},
    {23, CodeType::kLut4, 4, 32, ScaleType::kTwoLevel, !kOffsets, decode_iq4_xs, Lut::kIq4},
    {29, CodeType::kLut4, 4, 16, ScaleType::kTwoLevel, !kOffsets, decode_iq1_m, Lut::kIq1},
    {34, CodeType::kInt8, 2, 256, ScaleType::kF16, !kOffsets, decode_tq1_0},
    {35, CodeType::kInt8, 3, 256, ScaleType::kF16, !kOffsets, decode_tq2_0},
    {39, CodeType::kFp4, 4, 32, ScaleType::kE8m0, !kOffsets, decode_mxfp4},
    {40, CodeType::kFp4, 4, 16, ScaleType::kFp8, !kOffsets, decode_nvfp4},
    {41, CodeType::kInt8, 2, 128, ScaleType::kF16, !kOffsets, decode_q1_0},
    {42, CodeType::kInt8, 3, 64, ScaleType::kF16, !kOffsets, decode_q2_0},
};

const BlockType* find_block(uint32_t id) {
  const auto* found = std::find_if(std::begin(kBlocks), std::end(kBlocks),
                                   [&](const BlockType& t) { return t.id == id; });
  return found != std::end(kBlocks) ? found : nullptr;
}

// Writes codes and scales of one matrix row by row.
class RowWriter {
 public:
  RowWriter(const Loader& l, const TensorInfo& tensor, const BlockType& type, QuantMatrix& w)
      : l_(l), tensor_(tensor), type_(type), w_(w), two_level_(type.scale == ScaleType::kTwoLevel) {
    const auto table = [&](uint8_t*& out, size_t rows_of) {
      return out = l.buffer.allocate(w.N * rows_of);
    };
    nibbles_ = w.code != CodeType::kInt8;
    w.row_bytes = nibbles_ ? w.K / 2 : w.K;
    w.codes = table(codes_, w.row_bytes);
    const size_t scales = w.groups * (type.scale == ScaleType::kF16 ? 2 : 1);
    const size_t supers = w.groups / w.super_groups * sizeof(float);
    w.scales = table(scales_, scales);
    if (two_level_) w.super_scales = table(super_scales_, supers);
    if (!type.offsets) return;
    w.offsets = table(offsets_, scales);
    if (two_level_) w.super_offsets = table(super_offsets_, supers);
  }

  void put_row(uint64_t row, const uint8_t* blocks) {
    const size_t numbers = tensor_.gguf->numbers, bytes = tensor_.gguf->bytes;
    const size_t count = w_.K / numbers;
    for (size_t b = 0; b < count; ++b) {
      std::memset(block_.codes, 0, numbers);
      type_.decode(blocks + b * bytes, block_);
      const size_t groups = w_.groups / count, run = tensor_.columns ? numbers / groups : numbers;
      for (size_t at = 0; at < numbers; at += run)
        put_codes(codes_ + row * w_.row_bytes, tensor_.columns.stored(b * numbers + at),
                  block_.codes + at, run);
      check(row, b);
      put_scales(row, b, groups);
    }
  }

 private:
  void put_codes(uint8_t* to, size_t at, const int8_t* codes, size_t numbers) {
    if (!nibbles_) {
      std::memcpy(to + at, codes, numbers);
      return;
    }
    const int add = w_.code == CodeType::kInt4Offset ? 8 : 0;
    for (size_t i = 0; i < numbers / 2; ++i)
      to[at / 2 + i] = static_cast<uint8_t>((codes[2 * i] + add) | (codes[2 * i + 1] + add) << 4);
  }

  // Writes the scales of block b of a row where the columns of each group go.
  void put_scales(uint64_t row, size_t b, size_t groups) {
    const auto width = static_cast<size_t>(type_.group);
    for (size_t g = 0; g < groups; ++g) {
      const size_t at = row * w_.groups + tensor_.columns.stored((b * groups + g) * width) / width;
      put_scale(at, block_.scale, block_.scales[g], scales_, super_scales_);
      if (type_.offsets) put_scale(at, block_.offset, block_.offsets[g], offsets_, super_offsets_);
    }
  }
  void put_scale(size_t at, float number, uint8_t byte, uint8_t* table, uint8_t* supers) const {
    if (type_.scale == ScaleType::kF16) {
      const uint16_t half = f32_to_f16(number);
      std::memcpy(table + 2 * at, &half, sizeof half);
      return;
    }
    table[at] = byte;
    if (two_level_ && at % w_.super_groups == 0)
      std::memcpy(supers + at / w_.super_groups * sizeof number, &number, sizeof number);
  }

  void check(uint64_t row, size_t b) const {
    const auto refuse = [&](const std::string& found, std::string_view expected) {
      fail("{}, row {}, block {}: a scale is {}; expected {}", l_.store.where(tensor_), row, b,
           found, expected);
    };
    for (const float number : {block_.scale, block_.offset})
      if (!std::isfinite(number)) refuse(fmt::format("{}", number), "a finite number");
    if (type_.scale == ScaleType::kE8m0 && block_.scales[0] == 255)
      refuse("255 (NaN)", "an exponent from 0 to 254");
    for (size_t g = 0; type_.scale == ScaleType::kFp8 && g < 4; ++g)
      if (block_.scales[g] > 0x7f)
        refuse(fmt::format("0x{:02X}", block_.scales[g]), "a number without sign");
  }

  const Loader& l_;
  const TensorInfo& tensor_;
  const BlockType& type_;
  QuantMatrix& w_;
  Block block_{};
  const bool two_level_;
  bool nibbles_ = false;
  uint8_t *codes_ = nullptr, *scales_ = nullptr, *offsets_ = nullptr;
  uint8_t *super_scales_ = nullptr, *super_offsets_ = nullptr;
};

}  // namespace

std::optional<Scheme> scheme_of_gguf(const GgufType& type) {
  constexpr std::string_view kDense[] = {"F32", "F16", "BF16"};
  Scheme scheme;
  if (std::find(std::begin(kDense), std::end(kDense), type.name) != std::end(kDense)) return scheme;
  const BlockType* block = find_block(type.id);
  if (block == nullptr) return std::nullopt;
  const bool fp4 = block->code == CodeType::kFp4, nv = block->scale == ScaleType::kFp8;
  QuantArgs& w = scheme.weights.emplace();
  scheme.format = Format::kGguf;
  w.kind = fp4 ? NumberKind::kFloat : NumberKind::kInt;
  w.bits = block->bits;
  w.strategy = nv ? Strategy::kTensorGroup : Strategy::kGroup;
  w.group_size = block->group;
  w.offsets = block->offsets;
  w.lut = block->lut;
  w.symmetric = !block->offsets;
  if (fp4) w.scale_dtype = nv ? "float8_e4m3fn" : "uint8";
  return scheme;
}

void prove_gguf(const Planner& p) {
  MatrixPlan& plan = p.plan;
  const TensorRef& weight = require_role(p, Role::kWeight);
  const GgufType* type = weight.info->gguf;
  const BlockType* block = type != nullptr ? find_block(type->id) : nullptr;
  if (block == nullptr || scheme_of_gguf(*type)->weights != plan.scheme.weights)
    wrong_tensor(p.store, *weight.info, "blocks of {}", describe(weight_args(p)));
  const bool nv = block->scale == ScaleType::kFp8;
  reject_other_roles(p, nv ? RoleSet{Role::kWeight, Role::kWeightGlobalScale, Role::kBias}
                           : RoleSet{Role::kWeight, Role::kBias});
  require_untransposed(p, weight);
  const Piece piece = matrix_piece(p.store, weight);
  if (piece.cols % type->bytes != 0)
    wrong_tensor(p.store, *weight.info, "whole blocks of {} bytes", type->bytes);
  set_dimensions(p, piece, piece.cols / type->bytes * type->numbers);
  set_group(p, static_cast<uint64_t>(block->group));
  if (const RowOrder& c = weight.info->columns; c && c.width % static_cast<uint64_t>(block->group))
    wrong_tensor(p.store, *weight.info, "groups that divide heads of {} columns", c.width);
  plan.code = block->code;
  plan.lut = block->lut;
  plan.scale_type = block->scale;
  if (block->scale == ScaleType::kTwoLevel)
    // Columns that are reordered carry the scale of their super-block with each group.
    plan.super_groups =
        weight.info->columns ? 1 : type->numbers / static_cast<uint64_t>(block->group);
  plan.offsets = block->offsets;
  plan.code_bytes = plan.N * piece.row_bytes();
  if (nv && p.ref(Role::kWeightGlobalScale))
    plan.global_scale = {plan_global_scale(p, Role::kWeightGlobalScale), true};
  plan_bias(p);
}

void fill_gguf(const Loader& l, QuantMatrix& w) {
  const TensorRef& weight = l.plan.tensors[Role::kWeight];
  RowWriter writer(l, *weight.info, *find_block(weight.info->gguf->id), w);
  stream_rows(l.store, matrix_piece(l.store, weight), l.buffer,
              [&](uint64_t row, const uint8_t* blocks) { writer.put_row(row, blocks); });
}

}  // namespace moebius
