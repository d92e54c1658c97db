// SPDX-License-Identifier: Apache-2.0
// Loads and checks tensors for all formats. A scan answers "is anything wrong in this block" with a
// few operations per word; only a block with a bad element is walked again to name it.
#include "checkpoint/formats/loading.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/numeric.h"
#include "checkpoint/formats/proofs.h"
#include "checkpoint/formats/unpack.h"
#include "quant/quant_access.h"

namespace moebius {
namespace {

constexpr uint64_t kLow7 = 0x7f7f7f7f7f7f7f7fu, kOnes = 0x0101010101010101u,
                   kTops = 0x8080808080808080u;

// Each of these returns a nonzero word if one of eight bytes is bad; the byte 0 is always good.
struct BadFp8 {  // bad: NaN, 0x7f and 0xff
  uint64_t operator()(uint64_t x) const { return ((x & kLow7) + kOnes) & kTops; }
};
struct BadFp8Scale {  // bad: NaN, or a sign
  uint64_t operator()(uint64_t x) const { return (((x & kLow7) + kOnes) | x) & kTops; }
};
struct BadE8m0 {  // bad: 255
  uint64_t operator()(uint64_t x) const { return ((x & kLow7) + kOnes) & x & kTops; }
};
struct BadInt {  // bad: bits above the sign bit of the declared width that do not repeat it
  uint64_t mask;
  explicit BadInt(unsigned bits) : mask(((0x7fu >> (bits - 1)) << (bits - 1)) * kOnes) {}
  uint64_t operator()(uint64_t x) const { return (x ^ (x >> 1)) & mask; }
};

uint64_t load_some(const uint8_t* p, size_t n) {
  uint64_t v = 0;
  std::memcpy(&v, p, n);
  return v;
}

// Returns the index of the first bad byte, or n.
template <class Bad>
size_t first_bad(const uint8_t* p, size_t n, const Bad& bad) {
  constexpr size_t kBlock = 1024;
  for (size_t at = 0; at < n; at += kBlock) {
    const size_t len = std::min(kBlock, n - at);
    uint64_t any = 0;
    size_t i = 0;
    for (; i + 32 <= len; i += 32)
      for (size_t j = 0; j < 32; j += 8) any |= bad(load_some(p + at + i + j, 8));
    for (; i < len; i += 8) any |= bad(load_some(p + at + i, std::min<size_t>(8, len - i)));
    if (any == 0) continue;
    for (size_t k = 0; k < len; ++k)
      if (bad(p[at + k]) != 0) return at + k;
  }
  return n;
}

// Calls `fail_at(row, column)` for the first bad byte of the wanted rows.
template <class Bad, class Fail>
void scan_rows(const Piece& piece, const StoredRows& rows, const Bad& bad, const Fail& fail_at) {
  const size_t bytes = piece.row_bytes();
  if (rows.stride == bytes) {
    const size_t at = first_bad(rows.data, bytes * piece.count, bad);
    if (at != bytes * piece.count) fail_at(at / bytes, at % bytes);
    return;
  }
  for (uint64_t r = 0; r < piece.count; ++r) {
    const size_t at = first_bad(rows.data + r * rows.stride, bytes, bad);
    if (at != bytes) fail_at(r, at);
  }
}

// Returns the index of the first scale, from `at` on, that is not a finite number above 0; n if
// there is none. Positive finite numbers are one interval of bit patterns, so one subtraction and
// one comparison decide.
template <class Word>
size_t next_odd_scale(const uint8_t* p, size_t at, size_t n, Word first_infinite) {
  const Word limit = static_cast<Word>(first_infinite - 1u);
  constexpr size_t kBlock = 256;
  for (; at < n; at += kBlock) {
    const size_t len = std::min(kBlock, n - at);
    unsigned any = 0;
    for (size_t i = 0; i < len; ++i) {
      Word v;
      std::memcpy(&v, p + (at + i) * sizeof v, sizeof v);
      any |= static_cast<Word>(v - 1u) >= limit ? 1u : 0u;
    }
    if (any == 0) continue;
    for (size_t i = 0; i < len; ++i) {
      Word v;
      std::memcpy(&v, p + (at + i) * sizeof v, sizeof v);
      if (static_cast<Word>(v - 1u) >= limit) return at + i;
    }
  }
  return n;
}

size_t next_odd_scale(ScaleType type, const uint8_t* p, size_t at, size_t n) {
  switch (type) {
    case ScaleType::kF32:
      return next_odd_scale<uint32_t>(p, at, n, 0x7f800000u);
    case ScaleType::kBf16:
      return next_odd_scale<uint16_t>(p, at, n, 0x7f80u);
    default:
      return next_odd_scale<uint16_t>(p, at, n, 0x7c00u);
  }
}

// Throws Error for a scale that is negative or not finite. Returns true if one is zero.
bool check_float_scales(const Loader& l, const Piece& piece, const StoredRows& rows,
                        const QuantMatrix& w) {
  bool zero = false;
  const bool joined = rows.stride == piece.row_bytes();
  const uint64_t lines = joined ? 1 : piece.count;
  const size_t n = joined ? piece.count * piece.cols : piece.cols;
  for (uint64_t r = 0; r < lines; ++r) {
    const uint8_t* line = rows.data + r * rows.stride;
    for (size_t at = next_odd_scale(w.scale_type, line, 0, n); at != n;
         at = next_odd_scale(w.scale_type, line, at + 1, n)) {
      QuantMatrix one = w;
      one.scales = line;
      const float value = scale_at(one, at);
      if (value == 0.0f && !std::signbit(value)) {
        zero = true;
        continue;
      }
      const uint64_t row = joined ? at / piece.cols : r;
      fail("{}{} is {}; expected a finite scale above 0", l.store.where(*piece.info),
           element_name(piece, row, at % piece.cols), value);
    }
  }
  return zero;
}

}  // namespace

QuantMatrix begin_view(const MatrixPlan& plan) {
  QuantMatrix w;
  w.N = plan.N;
  w.K = plan.K;
  w.code = plan.code;
  w.bits = static_cast<uint8_t>(is_dense_code(plan.code) || !plan.scheme.weights
                                    ? code_bits(plan.code)
                                    : static_cast<size_t>(plan.scheme.weights->bits));
  w.lut = plan.lut;
  w.scale_type = plan.scale_type;
  w.scale_stride = w.groups = plan.groups;
  w.block_n = plan.block_n;
  w.block_k = plan.block_k;
  w.n_phase = plan.n_phase;
  w.super_groups = plan.super_groups;
  w.global_scale = plan.global_scale;
  return w;
}

void load_codes(const Loader& l, const Piece& piece, QuantMatrix& w) {
  const StoredRows rows = read_rows(l.store, piece, l.buffer);
  w.codes = rows.data;
  w.row_bytes = rows.stride;
  const auto name = [&](uint64_t r, uint64_t c) {
    return l.store.where(*piece.info) + element_name(piece, r, c);
  };
  if (w.code == CodeType::kFp8)
    scan_rows(piece, rows, BadFp8{}, [&](uint64_t r, uint64_t c) {
      fail("{} is NaN (0x{:02X}); expected an FP8 number", name(r, c),
           rows.data[r * rows.stride + c]);
    });
  if (w.code == CodeType::kInt8 && w.bits < 8)
    scan_rows(piece, rows, BadInt(w.bits), [&](uint64_t r, uint64_t c) {
      const int half = 1 << (w.bits - 1);
      fail("{} is {}; expected a {}-bit code in [{}, {}]", name(r, c),
           static_cast<int>(static_cast<int8_t>(rows.data[r * rows.stride + c])), w.bits, -half,
           half - 1);
    });
}

void load_packed_codes(const Loader& l, const Piece& piece, bool padded, QuantMatrix& w) {
  if (w.code != CodeType::kInt8) return load_codes(l, piece, w);
  uint8_t* codes = l.buffer.allocate(w.N * w.K);
  stream_rows(l.store, piece, l.buffer, [&](uint64_t r, const uint8_t* words) {
    unpack_row(words, w.K, w.bits, padded, reinterpret_cast<int8_t*>(codes + r * w.K));
  });
  w.codes = codes;
  w.row_bytes = w.K;
}

bool load_scales(const Loader& l, QuantMatrix& w) {
  const Piece piece = table_piece(l.store, l.plan, l.plan.tensors[Role::kWeightScale]);
  const StoredRows rows = read_rows(l.store, piece, l.buffer);
  w.scales = rows.data;
  w.scale_stride = rows.stride / piece.element_bytes;
  if (w.scale_type != ScaleType::kFp8) return check_float_scales(l, piece, rows, w);
  scan_rows(piece, rows, BadFp8Scale{}, [&](uint64_t r, uint64_t c) {
    fail("{}{} is {}; expected a block scale without sign", l.store.where(*piece.info),
         element_name(piece, r, c), e4m3_to_f32(rows.data[r * rows.stride + c]));
  });
  return false;  // a block of NVFP4 may have the scale 0: it decodes to zeros
}

void load_exponents(const Loader& l, QuantMatrix& w, unsigned add) {
  const Piece piece = table_piece(l.store, l.plan, l.plan.tensors[Role::kWeightScale]);
  const StoredRows rows = read_rows(l.store, piece, l.buffer);
  w.scales = rows.data;
  w.scale_stride = rows.stride;
  scan_rows(piece, rows, BadE8m0{}, [&](uint64_t r, uint64_t c) {
    fail("{}{} is 255 (NaN); expected an exponent byte in [0, 254]", l.store.where(*piece.info),
         element_name(piece, r, c));
  });
  if (add == 0) return;
  for (uint64_t r = 0; r < piece.count; ++r)
    for (uint64_t g = 0; g < piece.cols; ++g) {
      uint8_t& e = rows.data[r * rows.stride + g];
      if (e + add > 254)
        fail("{}{} is {}; expected at most {} before the correction of {}",
             l.store.where(*piece.info), element_name(piece, r, g), e, 254 - add, add);
      e = static_cast<uint8_t>(e + add);
    }
}

void check_zero_scales(const Loader& l, const QuantMatrix& w) {
  for (size_t r = 0; r < w.N; ++r)
    for (size_t c = 0; c < w.K; ++c) {
      const size_t i = scale_index(w, r, c);
      if (scale_at(w, i) != 0.0f) continue;
      const float zero = w.zero_points != nullptr ? static_cast<float>(w.zero_points[i]) : 0.0f;
      if (code_value(w, r, c) == zero) continue;
      const TensorRef& ref = l.plan.tensors[Role::kWeightScale];
      fail("{} is 0 for row {}, group {}, whose codes are not all 0; expected a scale above 0",
           l.store.where(*ref.info), ref.row_begin + r * ref.row_step, group_of(w, c));
    }
}

void attach_zero_points(const Loader& l, const int8_t* values, QuantMatrix& w) {
  w.zero_points = values;
  if (w.scale_stride == w.groups) return;
  // Copies the scales of interleaved rows to the row distance of the zero points.
  const size_t rows = (w.N + w.n_phase - 1) / w.block_n + 1;
  const size_t bytes = scale_bytes(w.scale_type);
  uint8_t* packed = l.buffer.allocate(rows * w.groups * bytes);
  for (size_t r = 0; r < rows; ++r)
    std::memcpy(packed + r * w.groups * bytes, w.scales + r * w.scale_stride * bytes,
                w.groups * bytes);
  w.scales = packed;
  w.scale_stride = w.groups;
}

void load_plain_zero_points(const Loader& l, QuantMatrix& w) {
  const TensorRef& ref = l.plan.tensors[Role::kWeightZeroPoint];
  if (!ref) return;
  if (!l.plan.zero_points) {  // symmetric: all stored bytes must be 0
    uint8_t chunk[4096];
    for (uint64_t at = 0; at < ref.info->bytes; at += sizeof chunk) {
      const uint64_t n = std::min<uint64_t>(sizeof chunk, ref.info->bytes - at);
      l.store.read(*ref.info, at, {chunk, n});
      if (std::any_of(chunk, chunk + n, [](uint8_t b) { return b != 0; }))
        fail("{} is not all 0, but the configuration declares symmetric weights",
             l.store.where(*ref.info));
    }
    return;
  }
  const Piece piece = table_piece(l.store, l.plan, ref);
  const StoredRows rows = read_rows(l.store, piece, l.buffer);
  if (w.bits < 8)
    scan_rows(piece, rows, BadInt(w.bits), [&](uint64_t r, uint64_t c) {
      const int half = 1 << (w.bits - 1);
      fail("{}{} is {}; expected a {}-bit zero point in [{}, {}]", l.store.where(*piece.info),
           element_name(piece, r, c),
           static_cast<int>(static_cast<int8_t>(rows.data[r * rows.stride + c])), w.bits, -half,
           half - 1);
    });
  for (uint64_t r = 1; rows.stride != piece.cols && r < piece.count; ++r)
    std::memmove(rows.data + r * piece.cols, rows.data + r * rows.stride, piece.cols);
  attach_zero_points(l, reinterpret_cast<const int8_t*>(rows.data), w);
}

void load_g_idx(const Loader& l, QuantMatrix& w) {
  if (!l.plan.act_order) return;
  const std::vector<int32_t> values = read_g_idx(l.store, l.plan);
  auto* out = reinterpret_cast<int32_t*>(l.buffer.allocate(values.size() * sizeof(int32_t)));
  const bool inside = std::all_of(values.begin(), values.end(), [&](int32_t g) {
    return g >= 0 && static_cast<uint64_t>(g) < l.plan.groups;
  });
  if (values.empty() || !inside)  // plan() checked this: the file was changed since
    fail("{} changed while it was being read",
         l.store.where(*l.plan.tensors[Role::kWeightGIdx].info));
  std::copy(values.begin(), values.end(), out);
  w.g_idx = out;
}

}  // namespace moebius
