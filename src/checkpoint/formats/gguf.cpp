// SPDX-License-Identifier: Apache-2.0
// Reads matrices of GGUF, whose rows are blocks: one row of the table below for each type of block.
// The row's function turns a block into a code for each number, and a scale and an offset for each
// group:
//
//   w = code * scale                                  without offsets
//   w = (code + 2^(bits - 1)) * scale + offset        with offsets
//
// Products are exact, and sums are rounded once. Types with a codebook (IQ) become codes of the
// codebook's numbers.
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
  float scales[kMostGroups];
  float offsets[kMostGroups];
  uint8_t stored[kMostGroups];  // scales of a byte: E8M0 or E4M3 bits
};

struct BlockType {
  uint32_t id;
  CodeType code;
  int bits;
  int64_t group;
  ScaleType scale;
  bool offsets;
  void (*decode)(const uint8_t* block, Block& out);
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
  out.scales[0] = half_at(b);
  if (kOffset) out.offsets[0] = half_at(b + 2);
  add_fields<16, 4>(b + (kOffset ? 4 : 2), 32, out.codes);
  add_to_all(out.codes, 32, -8);
}

template <bool kOffset>
void decode_q5(const uint8_t* b, Block& out) {
  out.scales[0] = half_at(b);
  if (kOffset) out.offsets[0] = half_at(b + 2);
  b += kOffset ? 4 : 2;
  add_fields<16, 4>(b + 4, 32, out.codes);
  add_fields<1, 1, 4>(b, 32, out.codes);
  add_to_all(out.codes, 32, -16);
}

void decode_q8_0(const uint8_t* b, Block& out) {
  out.scales[0] = half_at(b);
  std::memcpy(out.codes, b + 2, 32);
}

void decode_q1_0(const uint8_t* b, Block& out) {
  out.scales[0] = half_at(b);
  add_fields<1, 1, 1>(b + 2, 128, out.codes);
  add_to_all(out.codes, 128, -1);
}

void decode_q2_0(const uint8_t* b, Block& out) {
  out.scales[0] = half_at(b);
  add_fields<1, 2>(b + 2, 64, out.codes);
  add_to_all(out.codes, 64, -1);
}

void decode_mxfp4(const uint8_t* b, Block& out) {
  out.stored[0] = b[0];
  add_fields<16, 4>(b + 1, 32, out.codes);
}

void decode_nvfp4(const uint8_t* b, Block& out) {
  for (size_t g = 0; g < 4; ++g) out.stored[g] = b[g] == 0x7f ? 0 : b[g];
  add_fields<8, 4>(b + 4, 64, out.codes);
}

// --- K types: blocks of 256, whose groups have scales of few bits ---

void decode_q2_k(const uint8_t* b, Block& out) {
  const float d = half_at(b + 80), least = half_at(b + 82);
  for (size_t g = 0; g < 16; ++g) {
    out.scales[g] = d * static_cast<float>(b[g] & 15);
    out.offsets[g] = -(least * static_cast<float>(b[g] >> 4));
  }
  add_fields<32, 2>(b + 16, 256, out.codes);
  add_to_all(out.codes, 256, -2);
}

void decode_q3_k(const uint8_t* b, Block& out) {
  const float d = half_at(b + 108);
  for (unsigned g = 0; g < 16; ++g) {
    const unsigned scale = field(b + 96, 8, 4, g) | field(b + 104, 4, 2, g) << 4;
    out.scales[g] = d * static_cast<float>(static_cast<int>(scale) - 32);
  }
  add_fields<32, 2>(b + 32, 256, out.codes);
  add_fields<32, 1, 2>(b, 256, out.codes);
  add_to_all(out.codes, 256, -4);
}

// Scales and offsets of six bits each: bytes a[4] m[4] h[4].
void decode_six_bits(const uint8_t* b, Block& out) {
  const float d = half_at(b), least = half_at(b + 2);
  const uint8_t *a = b + 4, *m = b + 8, *h = b + 12;
  for (size_t j = 0; j < 4; ++j) {
    out.scales[j] = d * static_cast<float>(a[j] & 63);
    out.offsets[j] = -(least * static_cast<float>(m[j] & 63));
    out.scales[4 + j] = d * static_cast<float>((h[j] & 15) | a[j] >> 6 << 4);
    out.offsets[4 + j] = -(least * static_cast<float>(h[j] >> 4 | m[j] >> 6 << 4));
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
  const float d = half_at(b + 208);
  for (size_t g = 0; g < 16; ++g)
    out.scales[g] = d * static_cast<float>(static_cast<int8_t>(b[192 + g]));
  add_fields<64, 4>(b, 256, out.codes);
  add_fields<32, 2, 4>(b + 128, 256, out.codes);
  add_to_all(out.codes, 256, -32);
}

void decode_tq1_0(const uint8_t* b, Block& out) {
  out.scales[0] = half_at(b + 52);
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
  out.scales[0] = half_at(b + 64);
  add_fields<32, 2>(b, 256, out.codes);
  add_to_all(out.codes, 256, -1);
}

// --- IQ types: numbers of a codebook ---

constexpr int8_t kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                             1,    13,   25,  38,  53,  69,  89,  113};

void look_up_iq4(int8_t* codes, unsigned n) {
  for (unsigned i = 0; i < n; ++i) codes[i] = kIq4[codes[i]];
}

void decode_iq4_nl(const uint8_t* b, Block& out) {
  out.scales[0] = half_at(b);
  add_fields<16, 4>(b + 2, 32, out.codes);
  look_up_iq4(out.codes, 32);
}

unsigned word_at(const uint8_t* p, unsigned i) { return p[2 * i] | p[2 * i + 1] << 8; }

void decode_iq4_xs(const uint8_t* b, Block& out) {
  const float d = half_at(b);
  for (unsigned j = 0; j < 8; ++j) {
    const unsigned scale = field(b + 4, 1, 4, j) | (word_at(b + 2, 0) >> 2 * j & 3) << 4;
    out.scales[j] = d * static_cast<float>(static_cast<int>(scale) - 32);
  }
  add_fields<16, 4>(b + 8, 256, out.codes);
  look_up_iq4(out.codes, 256);
}

// Writes a codebook's vector of `n` numbers, those negative whose bit of `minus` is set.
void put(const int8_t* vector, unsigned n, unsigned minus, int8_t* codes) {
  for (unsigned k = 0; k < n; ++k)
    codes[k] = static_cast<int8_t>((minus >> k & 1) != 0 ? -vector[k] : vector[k]);
}

// Returns eight signs from seven bits: the number of minuses is even.
unsigned eight_signs(unsigned bits) {
  return bits | (static_cast<unsigned>(__builtin_popcount(bits)) & 1) << 7;
}

// IQ2_XXS and IQ3_XXS: a word per 32 numbers has four times seven signs, and the scale on top.
template <unsigned kVector>
void decode_xxs(const uint8_t* indices, const uint8_t* words, size_t step, const GgufGrid& grid,
                float d, Block& out) {
  for (unsigned j = 0; j < 8; ++j, indices += 8, words += step) {
    uint32_t word;
    std::memcpy(&word, words, sizeof word);
    out.scales[j] = d * (0.5f + static_cast<float>(word >> 28));
    for (unsigned k = 0; k < 32 / kVector; ++k) {
      const unsigned number = k * kVector;  // the first number of the vector within the 32
      const unsigned signs = eight_signs(word >> 7 * (number / 8) & 127);
      put(grid.vector(indices[k]), kVector, signs >> number % 8, out.codes + j * 32 + number);
    }
  }
}

void decode_iq2_xxs(const uint8_t* b, Block& out) {
  decode_xxs<8>(b + 2, b + 6, 8, gguf_grid(GgufGridName::kIq2Xxs), half_at(b) / 4, out);
}

void decode_iq3_xxs(const uint8_t* b, Block& out) {
  decode_xxs<4>(b + 2, b + 66, 4, gguf_grid(GgufGridName::kIq3Xxs), half_at(b) / 2, out);
}

void decode_iq2_xs(const uint8_t* b, Block& out) {
  const GgufGrid& grid = gguf_grid(GgufGridName::kIq2Xs);
  const float d = half_at(b) / 4;
  for (unsigned g = 0; g < 16; ++g)
    out.scales[g] = d * (0.5f + static_cast<float>(field(b + 66, 1, 4, g)));
  for (unsigned i = 0; i < 32; ++i) {
    const unsigned q = word_at(b + 2, i);
    put(grid.vector(q & 511), 8, eight_signs(q >> 9), out.codes + 8 * i);
  }
}

void decode_iq2_s(const uint8_t* b, Block& out) {
  const GgufGrid& grid = gguf_grid(GgufGridName::kIq2S);
  const float d = half_at(b) / 4;
  for (unsigned g = 0; g < 16; ++g)
    out.scales[g] = d * (0.5f + static_cast<float>(field(b + 74, 1, 4, g)));
  for (unsigned i = 0; i < 32; ++i)
    put(grid.vector(b[2 + i] | field(b + 66, 1, 2, i) << 8), 8, b[34 + i], out.codes + 8 * i);
}

void decode_iq3_s(const uint8_t* b, Block& out) {
  const GgufGrid& grid = gguf_grid(GgufGridName::kIq3S);
  const float d = half_at(b);
  for (unsigned g = 0; g < 8; ++g)
    out.scales[g] = d * static_cast<float>(1 + 2 * field(b + 106, 1, 4, g));
  for (unsigned i = 0; i < 64; ++i)
    put(grid.vector(b[2 + i] | field(b + 66, 1, 1, i) << 8), 4, b[74 + i / 2] >> 4 * (i % 2),
        out.codes + 4 * i);
}

// IQ1: eight times the codebook's -1, 0 and 1, and one more or one less; an eighth of the scale.
void put_iq1(unsigned index, bool less, int8_t* codes) {
  const int8_t* vector = gguf_grid(GgufGridName::kIq1).vector(index);
  for (unsigned k = 0; k < 8; ++k) codes[k] = static_cast<int8_t>(8 * vector[k] + (less ? -1 : 1));
}

void decode_iq1_s(const uint8_t* b, Block& out) {
  const float d = half_at(b) / 8;
  for (unsigned g = 0; g < 8; ++g) {
    const unsigned h = word_at(b + 34, g);
    out.scales[g] = d * static_cast<float>(1 + 2 * (h >> 12 & 7));
    for (unsigned j = 0; j < 4; ++j)
      put_iq1(b[2 + 4 * g + j] | (h >> 3 * j & 7) << 8, (h & 0x8000) != 0,
              out.codes + 32 * g + 8 * j);
  }
}

void decode_iq1_m(const uint8_t* b, Block& out) {
  unsigned bits = 0;  // of the scale, a nibble on top of each word
  for (unsigned k = 0; k < 4; ++k) bits |= word_at(b + 48, k) >> 12 << 4 * k;
  const float d = f16_to_f32(static_cast<uint16_t>(bits)) / 8;
  for (unsigned g = 0; g < 16; ++g)
    out.scales[g] = d * static_cast<float>(1 + 2 * (word_at(b + 48, g / 4) >> 3 * (g % 4) & 7));
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
    {10, CodeType::kInt8, 2, 16, ScaleType::kF32, kOffsets, decode_q2_k},
    {11, CodeType::kInt8, 3, 16, ScaleType::kF32, !kOffsets, decode_q3_k},
    {12, CodeType::kInt4Offset, 4, 32, ScaleType::kF32, kOffsets, decode_q4_k},
    {13, CodeType::kInt8, 5, 32, ScaleType::kF32, kOffsets, decode_q5_k},
    {14, CodeType::kInt8, 6, 16, ScaleType::kF32, !kOffsets, decode_q6_k},
    {16, CodeType::kInt8, 7, 32, ScaleType::kF32, !kOffsets, decode_iq2_xxs},
    {17, CodeType::kInt8, 7, 16, ScaleType::kF32, !kOffsets, decode_iq2_xs},
    {18, CodeType::kInt8, 7, 32, ScaleType::kF32, !kOffsets, decode_iq3_xxs},
    {19, CodeType::kInt8, 5, 32, ScaleType::kF32, !kOffsets, decode_iq1_s},
    {20, CodeType::kInt8, 8, 32, ScaleType::kF16, !kOffsets, decode_iq4_nl},
    {21, CodeType::kInt8, 5, 32, ScaleType::kF32, !kOffsets, decode_iq3_s},
    {22, CodeType::kInt8, 7, 16, ScaleType::kF32, !kOffsets, decode_iq2_s},
    {23, CodeType::kInt8, 8, 32, ScaleType::kF32, !kOffsets, decode_iq4_xs},
    {29, CodeType::kInt8, 5, 16, ScaleType::kF32, !kOffsets, decode_iq1_m},
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
      : l_(l), tensor_(tensor), type_(type), w_(w) {
    const size_t scales = w.N * w.groups;
    nibbles_ = w.code != CodeType::kInt8;
    w.row_bytes = nibbles_ ? w.K / 2 : w.K;
    codes_ = l.buffer.allocate(w.N * w.row_bytes);
    scale_bytes_ = type.scale == ScaleType::kF32 ? 4 : type.scale == ScaleType::kF16 ? 2 : 1;
    scales_ = l.buffer.allocate(scales * scale_bytes_);
    if (type.offsets) offsets_ = l.buffer.allocate(scales * scale_bytes_);
    w.codes = codes_;
    w.scales = scales_;
    w.offsets = offsets_;
  }

  void put_row(uint64_t row, const uint8_t* blocks) {
    const size_t numbers = tensor_.gguf->numbers, bytes = tensor_.gguf->bytes;
    const size_t groups = numbers / static_cast<size_t>(type_.group);
    for (size_t b = 0; b < w_.K / numbers; ++b) {
      std::memset(block_.codes, 0, numbers);
      type_.decode(blocks + b * bytes, block_);
      put_codes(codes_ + row * w_.row_bytes, b * numbers, numbers);
      put_scales(row, b, groups);
    }
  }

 private:
  void put_codes(uint8_t* to, size_t at, size_t numbers) {
    if (!nibbles_) {
      std::memcpy(to + at, block_.codes, numbers);
      return;
    }
    const int add = w_.code == CodeType::kInt4Offset ? 8 : 0;
    for (size_t i = 0; i < numbers / 2; ++i)
      to[at / 2 + i] =
          static_cast<uint8_t>((block_.codes[2 * i] + add) | (block_.codes[2 * i + 1] + add) << 4);
  }

  void put_scales(uint64_t row, size_t b, size_t groups) {
    const size_t first = row * w_.groups + b * groups;
    for (size_t g = 0; g < groups; ++g) {
      put_number(scales_, first + g, block_.scales[g], block_.stored[g], row, b);
      if (type_.offsets) put_number(offsets_, first + g, block_.offsets[g], 0, row, b);
    }
  }

  void put_number(uint8_t* table, size_t i, float number, uint8_t stored, uint64_t row, size_t b) {
    const auto refuse = [&](const std::string& found, std::string_view expected) {
      fail("{}, row {}, block {}: a scale is {}; expected {}", l_.store.where(tensor_), row, b,
           found, expected);
    };
    uint8_t* to = table + i * scale_bytes_;
    if (scale_bytes_ == 1) {
      if (type_.scale == ScaleType::kE8m0 && stored == 255)
        refuse("255 (NaN)", "an exponent from 0 to 254");
      if (type_.scale == ScaleType::kFp8 && stored > 0x7f)
        refuse(fmt::format("0x{:02X}", stored), "a number without sign");
      *to = stored;
      return;
    }
    if (!std::isfinite(number)) refuse(fmt::format("{}", number), "a finite number");
    const uint16_t half = f32_to_f16(number);
    std::memcpy(to, scale_bytes_ == 2 ? static_cast<const void*>(&half) : &number, scale_bytes_);
  }

  const Loader& l_;
  const TensorInfo& tensor_;
  const BlockType& type_;
  QuantMatrix& w_;
  Block block_{};
  bool nibbles_ = false;
  size_t scale_bytes_ = 0;
  uint8_t *codes_ = nullptr, *scales_ = nullptr, *offsets_ = nullptr;
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
  plan.code = block->code;
  plan.scale_type = block->scale;
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
