// SPDX-License-Identifier: Apache-2.0
// Lists and packs the tensors of quantized modules (module_encoder.h).
#include "quantize/module_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "kernels/row_functions.h"

namespace moebius {
namespace {

uint64_t bytes_of_tensor(DType dtype, const std::vector<uint64_t>& shape) {
  std::optional<uint64_t> n = bits_of(dtype) / 8;
  for (const uint64_t d : shape) n = n ? checked_mul(*n, d) : n;
  if (!n) fail("a matrix is too large to be counted");
  return *n;
}

struct Blocks {
  uint64_t block_n, block_k;
};
Blocks blocks_of(const QuantArgs& w, uint64_t N, uint64_t K) {
  switch (w.strategy) {
    case Strategy::kTensor:
      return {N, K};
    case Strategy::kGroup:
    case Strategy::kTensorGroup:
      return {1, static_cast<uint64_t>(w.group_size)};
    case Strategy::kBlock:
      return {static_cast<uint64_t>(w.block_n), static_cast<uint64_t>(w.block_k)};
    default:
      return {1, K};
  }
}

bool is_packed(Format f) {
  return f == Format::kPackQuantized || f == Format::kNvfp4Pack || f == Format::kMxfp4Pack;
}

template <class T>
void put(std::vector<uint8_t>& out, size_t index, T value) {
  std::memcpy(out.data() + index * sizeof value, &value, sizeof value);
}

// Packs the codes of a row as the file stores them.
void pack_row(Format format, int bits, const uint8_t* codes, size_t K, uint8_t* out) {
  const bool integers = format == Format::kPackQuantized;
  if (integers && (bits != 4 || K % 8 != 0)) {
    std::vector<uint32_t> words(ceil_div(K * static_cast<uint64_t>(bits), 32));
    pack_words(codes, K, 1, bits, words.data());
    std::memcpy(out, words.data(), words.size() * sizeof(uint32_t));
    // A word of eight codes is four bytes; integer codes are offset by 8.
  } else if (is_packed(format)) {
    row_functions().pack_nibbles(codes, integers ? 0x88 : 0, out, K / 2);
  } else {
    std::memcpy(out, codes, K);
  }
}

// Packs rows; rows without a gap between them are packed as one.
void pack_rows(Format format, int bits, const uint8_t* codes, size_t rows, size_t K,
               size_t row_bytes, uint8_t* out) {
  if (format != Format::kPackQuantized || K * static_cast<size_t>(bits) % 32 == 0)
    return pack_row(format, bits, codes, rows * K, out);
  for (size_t r = 0; r < rows; ++r) pack_row(format, bits, codes + r * K, K, out + r * row_bytes);
}

void put_scale(std::vector<uint8_t>& out, size_t index, const EncodeRules& rules, float scale) {
  const uint32_t stored = stored_scale(rules, scale);
  if (rules.scales != EncodeRules::Scales::kPlain)
    put(out, index, static_cast<uint8_t>(stored));
  else if (rules.type == XType::kF32)
    put(out, index, stored);
  else
    put(out, index, static_cast<uint16_t>(stored));
}

// Writes all tensors of a module but the codes.
void fill_companions(const std::vector<ModuleTensor>& tensors, uint64_t N, uint64_t K,
                     const EncodeRules& rules, const ScaleTable& table,
                     std::vector<std::vector<uint8_t>>& out) {
  for (size_t t = 0; t < tensors.size(); ++t) {
    switch (tensors[t].role) {
      case Role::kWeightScale:
        for (size_t i = 0; i < table.scales.size(); ++i)
          put_scale(out[t], i, rules, table.scales[i].scale);
        break;
      case Role::kWeightShape:
        put(out[t], 0, static_cast<int64_t>(N));
        put(out[t], 1, static_cast<int64_t>(K));
        break;
      case Role::kWeightGlobalScale:
        put(out[t], 0, rules.global);
        break;
      case Role::kInputGlobalScale:
        put(out[t], 0, table.input_scale);
        break;
      case Role::kInputScale: {
        EncodeRules plain = rules;
        plain.scales = EncodeRules::Scales::kPlain;
        put_scale(out[t], 0, plain, table.input_scale);
        break;
      }
      case Role::kWeightZeroPoint: {
        std::vector<uint8_t> z(table.scales.size());
        for (size_t i = 0; i < z.size(); ++i)
          z[i] = static_cast<uint8_t>(table.scales[i].zero_point);
        if (tensors[t].dtype == DType::kI8) {
          out[t] = z;
          break;
        }
        // Zero points are packed along the rows: words [ceil(rows * bits / 32), groups].
        std::vector<uint32_t> words(ceil_div(table.rows * static_cast<uint64_t>(rules.bits), 32));
        for (size_t g = 0; g < table.groups; ++g) {
          pack_words(z.data() + g, table.rows, table.groups, rules.bits, words.data());
          for (size_t i = 0; i < words.size(); ++i) put(out[t], i * table.groups + g, words[i]);
        }
        break;
      }
      default:
        break;
    }
  }
}

ScaleTable empty_table(const QuantArgs& weights, uint64_t N, uint64_t K) {
  const Blocks b = blocks_of(weights, N, K);
  ScaleTable t;
  t.block_n = b.block_n;
  t.block_k = b.block_k;
  t.rows = ceil_div(N, b.block_n);
  t.groups = ceil_div(K, b.block_k);
  t.scales.resize(t.rows * t.groups);
  return t;
}

// Computes ranges, scales and codes of rows by the row functions of this machine; several rows at
// once where they follow each other and groups end with them.
class RowCoder {
 public:
  RowCoder(const MatrixSource& source, const EncodeRules& rules, const ScaleTable& table)
      : source_(source),
        rules_(rules),
        K_(source.columns()),
        block_k_(table.block_k),
        groups_(table.groups),
        at_once_(source.contiguous() && K_ % block_k_ == 0 ? std::max<size_t>(1, kNumbers / K_)
                                                           : 1),
        scratch_(K_),
        low_(at_once_ * groups_),
        high_(low_.size()),
        scales_(low_.size()),
        zero_points_(low_.size()),
        codes_(at_once_ * K_) {
    how_.code = rules.kind == NumberKind::kInt ? RowCode::kInt
                : rules.bits == 8              ? RowCode::kFp8
                                               : RowCode::kFp4;
    const bool plain = rules.scales != EncodeRules::Scales::kFp8 && !rules.one_rounding;
    how_.rounding = plain ? rules.type : XType::kF32;
    const CodeLimits limits = code_limits(rules);
    how_.low = limits.low;
    how_.high = limits.high;
    how_.group = block_k_;
  }

  size_t at_once() const { return at_once_; }

  // Widens `ranges` by the ranges of row r's groups. Throws Error where one is not finite.
  void widen(size_t r, std::vector<GranuleRange>& ranges) {
    look_at(r, 1);
    for (size_t g = 0; g < ranges.size(); ++g) ranges[g] = joined(ranges[g], {low_[g], high_[g]});
  }

  // Computes the scales of rows that do not share scales.
  void set_scales(size_t r, size_t rows, GranuleScale* scales) {
    look_at(r, rows);
    scales_of(rules_, low_.data(), high_.data(), rows * groups_, scales);
    for (size_t g = 0; g < rows * groups_; ++g)
      if (!std::isfinite(scales[g].scale)) fail_wide(source_, r + g / groups_, {low_[g], high_[g]});
  }

  // Returns the codes of some rows, valid until the next call.
  const uint8_t* codes(size_t r, size_t rows, const GranuleScale* scales) {
    const MatrixSource::Row row = source_.row(r, scratch_.data());
    how_.type = row.type;
    const bool as_stored = rules_.scales != EncodeRules::Scales::kFp8;
    for (size_t g = 0; g < rows * groups_; ++g) {
      scales_[g] = as_stored ? scales[g].scale : effective_scale(rules_, scales[g].scale);
      zero_points_[g] = static_cast<float>(scales[g].zero_point);
    }
    row_functions().encode(how_, row.data, rows * K_, scales_.data(),
                           rules_.symmetric ? nullptr : zero_points_.data(), codes_.data());
    return codes_.data();
  }

  [[noreturn]] static void fail_wide(const MatrixSource& source, size_t r, GranuleRange range) {
    fail("{}: weights of row {} reach from {} to {}, which no scale of their type holds",
         source.where(), r, range.low, range.high);
  }

 private:
  // So many numbers stay in the nearest caches together with their codes.
  static constexpr size_t kNumbers = 16384;

  void look_at(size_t r, size_t rows) {
    const MatrixSource::Row row = source_.row(r, scratch_.data());
    row_functions().group_ranges(row.type, row.data, rows * K_, block_k_, low_.data(),
                                 high_.data());
    for (size_t g = 0; g < rows * groups_; ++g)
      if (!std::isfinite(low_[g]) || !std::isfinite(high_[g]))
        source_.fail_not_finite(r + g / groups_);
  }

  const MatrixSource& source_;
  const EncodeRules& rules_;
  size_t K_, block_k_, groups_, at_once_;
  RowEncode how_;
  std::vector<float> scratch_, low_, high_, scales_, zero_points_;
  std::vector<uint8_t> codes_;
};

}  // namespace

std::vector<ModuleTensor> tensors_of_module(const Scheme& scheme, uint64_t N, uint64_t K,
                                            XType type) {
  const QuantArgs& w = *scheme.weights;
  const Blocks b = blocks_of(w, N, K);
  const uint64_t rows = ceil_div(N, b.block_n), groups = ceil_div(K, b.block_k);
  const auto bits = static_cast<uint64_t>(w.bits);
  const bool fp8_scales = is_nvfp4(w), exponents = !fp8_scales && has_e8m0_scales(w);
  const DType scale = fp8_scales ? DType::kF8E4M3 : exponents ? DType::kU8 : stored_type(type);
  std::vector<ModuleTensor> out;
  const auto add = [&](Role role, DType dtype, std::vector<uint64_t> shape) {
    const uint64_t bytes = bytes_of_tensor(dtype, shape);
    out.push_back({role, dtype, std::move(shape), bytes});
  };
  if (scheme.format == Format::kPackQuantized)
    add(Role::kWeightPacked, DType::kI32, {N, ceil_div(K * bits, 32)});
  else if (is_packed(scheme.format))
    add(Role::kWeightPacked, DType::kU8, {N, K / 2});
  else
    add(Role::kWeight, w.kind == NumberKind::kInt ? DType::kI8 : DType::kF8E4M3, {N, K});
  if (w.strategy == Strategy::kTensor)
    add(Role::kWeightScale, scale, {1});
  else
    add(Role::kWeightScale, scale, {rows, groups});
  if (scheme.format == Format::kPackQuantized) add(Role::kWeightShape, DType::kI64, {2});
  if (!w.symmetric) {
    const bool packed = scheme.format == Format::kPackQuantized && w.strategy != Strategy::kTensor;
    if (packed)
      add(Role::kWeightZeroPoint, DType::kI32, {ceil_div(rows * bits, 32), groups});
    else if (w.strategy == Strategy::kTensor)
      add(Role::kWeightZeroPoint, DType::kI8, {1});
    else
      add(Role::kWeightZeroPoint, DType::kI8, {rows, groups});
  }
  if (fp8_scales) add(Role::kWeightGlobalScale, DType::kF32, {1});
  if (scheme.input && scheme.input->dynamic == Dynamic::kLocal)
    add(Role::kInputGlobalScale, DType::kF32, {1});
  else if (scheme.input && scheme.input->dynamic == Dynamic::kStatic)
    add(Role::kInputScale, stored_type(type), {1});
  return out;
}

float stored_input_scale(const QuantArgs& input, XType type, float amax) {
  if (input.dynamic == Dynamic::kLocal) return global_scale_of(type, amax);
  return scale_of(encode_rules(input, type), {-amax, amax}).scale;
}

float largest_of(const MatrixSource& source) {
  ScaleTable whole;
  whole.block_k = source.columns();
  whole.groups = 1;
  RowCoder rows(source, EncodeRules{}, whole);
  std::vector<GranuleRange> range(1);
  for (size_t r = 0; r < source.rows(); ++r) rows.widen(r, range);
  return range.front().amax();
}

ScaleTable rtn_scales(const MatrixSource& source, const QuantArgs& weights,
                      const EncodeRules& rules) {
  const size_t N = source.rows();
  ScaleTable t = empty_table(weights, N, source.columns());
  RowCoder rows(source, rules, t);
  if (t.block_n == 1) {
    for (size_t r = 0; r < N; r += rows.at_once())
      rows.set_scales(r, std::min(rows.at_once(), N - r), t.scales.data() + r * t.groups);
    return t;
  }
  std::vector<GranuleRange> ranges(t.groups);
  for (size_t r = 0; r < N; ++r) {
    if (r % t.block_n == 0) std::fill(ranges.begin(), ranges.end(), GranuleRange{});
    rows.widen(r, ranges);
    if (r + 1 != N && (r + 1) % t.block_n != 0) continue;
    for (size_t g = 0; g < t.groups; ++g) {
      GranuleScale& s = t.scales[r / t.block_n * t.groups + g];
      s = scale_of(rules, ranges[g]);
      if (!std::isfinite(s.scale)) RowCoder::fail_wide(source, r, ranges[g]);
    }
  }
  return t;
}

std::vector<std::vector<uint8_t>> pack_module(const Scheme& scheme, uint64_t N, uint64_t K,
                                              const EncodeRules& rules, const ScaleTable& table,
                                              const std::vector<uint8_t>& codes) {
  const std::vector<ModuleTensor> tensors = tensors_of_module(scheme, N, K, rules.type);
  std::vector<std::vector<uint8_t>> out;
  for (const ModuleTensor& t : tensors) out.emplace_back(t.bytes);
  const size_t row_bytes = out[0].size() / N;
  pack_rows(scheme.format, rules.bits, codes.data(), N, K, row_bytes, out[0].data());
  fill_companions(tensors, N, K, rules, table, out);
  return out;
}

std::vector<std::vector<uint8_t>> encode_module_rtn(const MatrixSource& source,
                                                    const Scheme& scheme, const EncodeRules& rules,
                                                    float input_scale) {
  const size_t N = source.rows(), K = source.columns();
  const std::vector<ModuleTensor> tensors = tensors_of_module(scheme, N, K, rules.type);
  std::vector<std::vector<uint8_t>> out;
  for (const ModuleTensor& t : tensors) out.emplace_back(t.bytes);
  const size_t row_bytes = out[0].size() / N;
  ScaleTable table = empty_table(*scheme.weights, N, K);
  const bool by_rows = table.block_n == 1;  // computes scales and codes of a row together
  if (!by_rows) table = rtn_scales(source, *scheme.weights, rules);
  table.input_scale = input_scale;
  RowCoder rows(source, rules, table);
  const size_t at_once = by_rows ? rows.at_once() : 1;
  for (size_t r = 0; r < N; r += at_once) {
    const size_t count = std::min(at_once, N - r);
    GranuleScale* scales = table.scales.data() + r / table.block_n * table.groups;
    if (by_rows) rows.set_scales(r, count, scales);
    pack_rows(scheme.format, rules.bits, rows.codes(r, count, scales), count, K, row_bytes,
              out[0].data() + r * row_bytes);
  }
  fill_companions(tensors, N, K, rules, table, out);
  return out;
}

}  // namespace moebius
