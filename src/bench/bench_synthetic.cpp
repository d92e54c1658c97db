// SPDX-License-Identifier: Apache-2.0
// Makes synthetic schemes. The table of schemes states what `checkpoint` would make of a folder of
// that scheme: same codes, same scale types, same treatment of the input (through act_spec_of).
#include "bench/bench_synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "apps/cli/command.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/numeric.h"
#include "bench/bench_timing.h"
#include "checkpoint/quant_args_parse.h"
#include "quant/quant_access.h"
#include "quant/reference.h"

namespace moebius {
namespace {

enum class Groups : uint8_t {
  // kAny: --group is used; kChannel: used, but by default one group per channel; kFixed: the scheme
  // fixes the group.
  kAny,
  kChannel,
  kFixed
};

struct Row {
  std::string_view name, preset;  // preset: name in compressed-tensors of what a folder declares
  CodeType code;
  uint8_t bits;
  ScaleType scale;
  Groups groups;
  size_t block_n, block_k;  // for kFixed; block_n 0: all rows, block_k 0: all columns
  bool offsets = false;
  Lut lut = Lut::kNone;
};
constexpr bool kOffsets = true;
constexpr size_t kSuperBlock = 256;  // columns of a super-block of GGUF

constexpr Row kSyntheticRows[] = {
    {"w4a8", "W4A8", CodeType::kInt4Offset, 4, ScaleType::kBf16, Groups::kAny, 1, 0},
    {"w8a8", "W8A8", CodeType::kInt8, 8, ScaleType::kBf16, Groups::kChannel, 1, 0},
    {"w4a16", "W4A16", CodeType::kInt4Offset, 4, ScaleType::kBf16, Groups::kAny, 1, 0},
    {"w8a16", "W8A16", CodeType::kInt8Offset, 8, ScaleType::kBf16, Groups::kChannel, 1, 0},
    {"w2a16", "W2A16", CodeType::kInt8, 2, ScaleType::kBf16, Groups::kAny, 1, 0},
    {"w3a16", "W3A16", CodeType::kInt8, 3, ScaleType::kBf16, Groups::kAny, 1, 0},
    {"fp8", "FP8_DYNAMIC", CodeType::kFp8, 8, ScaleType::kBf16, Groups::kFixed, 1, 0},
    {"fp8_block", "FP8_BLOCK", CodeType::kFp8, 8, ScaleType::kBf16, Groups::kFixed, 128, 128},
    {"fp8_normal", "FP8_DYNAMIC", CodeType::kFp8, 8, ScaleType::kBf16, Groups::kFixed, 1, 0},
    {"fp8_static", "FP8", CodeType::kFp8, 8, ScaleType::kBf16, Groups::kFixed, 0, 0},
    {"nvfp4", "NVFP4", CodeType::kFp4, 4, ScaleType::kFp8, Groups::kFixed, 1, 16},
    {"nvfp4a16", "NVFP4A16", CodeType::kFp4, 4, ScaleType::kFp8, Groups::kFixed, 1, 16},
    {"mxfp4", "MXFP4", CodeType::kFp4, 4, ScaleType::kE8m0, Groups::kFixed, 1, 32},
    {"mxfp4a16", "MXFP4A16", CodeType::kFp4, 4, ScaleType::kE8m0, Groups::kFixed, 1, 32},
    {"mxfp8", "MXFP8", CodeType::kFp8, 8, ScaleType::kE8m0, Groups::kFixed, 1, 32},
    {"w4afp8", "W4AFP8", CodeType::kInt4Offset, 4, ScaleType::kBf16, Groups::kAny, 1, 0},
    {"q4_0", "W4A16", CodeType::kInt4Offset, 4, ScaleType::kF16, Groups::kFixed, 1, 32},
    {"q8_0", "W8A16", CodeType::kInt8, 8, ScaleType::kF16, Groups::kFixed, 1, 32},
    {"q4_k", "W4A16", CodeType::kInt4Offset, 4, ScaleType::kTwoLevel, Groups::kFixed, 1, 32,
     kOffsets},
    {"q5_k", "W8A16", CodeType::kInt8, 5, ScaleType::kTwoLevel, Groups::kFixed, 1, 32, kOffsets},
    {"q6_k", "W8A16", CodeType::kInt8, 6, ScaleType::kTwoLevel, Groups::kFixed, 1, 16},
    {"iq4_xs", "W4A16", CodeType::kLut4, 4, ScaleType::kTwoLevel, Groups::kFixed, 1, 32, !kOffsets,
     Lut::kIq4},
    {"bf16", "UNQUANTIZED", CodeType::kBf16, 16, ScaleType::kNone, Groups::kFixed, 1, 0},
    {"f16", "UNQUANTIZED", CodeType::kF16, 16, ScaleType::kNone, Groups::kFixed, 1, 0},
    {"f32", "UNQUANTIZED", CodeType::kF32, 32, ScaleType::kNone, Groups::kFixed, 1, 0},
};

constexpr uint64_t bytes8(uint64_t byte) { return byte * 0x0101010101010101ull; }
constexpr uint64_t words4(uint64_t word) { return word * 0x0001000100010001ull; }

// Turns eight random bytes into eight bytes of codes.
uint64_t to_codes(CodeType code, uint8_t bits, uint64_t r) {
  if (code == CodeType::kFp8) {
    // Keeps every finite code: a byte x1111111 is NaN and loses its last bit.
    const uint64_t nan = ((r & bytes8(0x7F)) + bytes8(0x01)) & bytes8(0x80);
    return r & ~(nan >> 7);
  }
  // Numbers in two octaves from 2^-7 on.
  if (code == CodeType::kBf16) return (r & words4(0x817F)) | words4(0x3C00);
  // Numbers in two octaves from 2^-7 on.
  if (code == CodeType::kF16) return (r & words4(0x8BFF)) | words4(0x2000);
  // Numbers in two octaves from 2^-7 on.
  if (code == CodeType::kF32) return (r & 0x817FFFFF817FFFFFull) | 0x3C0000003C000000ull;
  if (code == CodeType::kInt8 && bits < 8) {
    const uint64_t half = uint64_t{1}
                          << (bits - 1);  // v - half in each byte, without borrows between bytes
    return (((r & bytes8((1u << bits) - 1)) | bytes8(0x80)) - bytes8(half)) ^ bytes8(0x80);
  }
  return r;
}

// Makes codes of e4m3 that are normally distributed like trained weights (as the sum of the eight
// bytes of a random number is); 448 is four standard deviations.
uint64_t to_normal_codes(BenchRandom& random) {
  uint64_t codes = 0;
  for (int i = 0; i < 8; ++i) {
    uint64_t r = random.next(), sum = 0;
    for (; r != 0; r >>= 8) sum += r & 255;
    constexpr float kDeviation = 209.0f;  // standard deviation of that sum, whose mean is 1020
    const float w = 112.0f / kDeviation *
                    (static_cast<float>(sum) - 1020.5f + static_cast<float>(random.uniform()));
    codes = codes << 8 | f32_to_e4m3(std::clamp(w, -448.0f, 448.0f));
  }
  return codes;
}

// Makes eight bytes of scales. The exponent follows from the spread of the codes, so that 2048
// products sum to about 1.
uint64_t to_scales(const SyntheticScheme& s, uint64_t r) {
  // Scales from 0.5 to 1.9.
  if (s.scale == ScaleType::kFp8) return (r & bytes8(0x0F)) | bytes8(0x30);
  if (s.scale == ScaleType::kTwoLevel) return r;
  if (s.scale == ScaleType::kF16) return (r & words4(0x03FF)) | words4(0x1800);
  if (s.scale == ScaleType::kE8m0)
    return (r & bytes8(0x01)) | bytes8(s.code == CodeType::kFp8 ? 115 : 118);
  const uint64_t base = s.code == CodeType::kFp8 ? 0x3980
                        : s.bits == 8            ? 0x3980
                        : s.bits < 4             ? 0x3C00
                                                 : 0x3B80;
  return (r & words4(0x007F)) | words4(base);
}

constexpr float kGlobalScale = 256.0f;

size_t times(size_t a, size_t b) {
  const std::optional<uint64_t> n = checked_mul(a, b);
  if (!n || *n > SIZE_MAX / 64) fail("{} x {} is too much", a, b);
  return *n;
}

}  // namespace

std::span<const std::string_view> synthetic_scheme_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> v;
    for (const Row& row : kSyntheticRows) v.push_back(row.name);
    return v;
  }();
  return names;
}

SyntheticScheme synthetic_scheme(std::string_view name, std::optional<int64_t> group,
                                 const ActRequest& request) {
  const Row* row = std::find_if(std::begin(kSyntheticRows), std::end(kSyntheticRows),
                                [&](const Row& r) { return r.name == name; });
  if (row == std::end(kSyntheticRows))
    fail("no scheme '{}'; expected one of {}", printable(name),
         fmt::join(synthetic_scheme_names(), ", "));
  if (group && (*group < -1 || *group == 0))
    throw UsageError(fmt::format(
        "--group is {}; expected a number of columns, or -1 for one scale per output", *group));
  SyntheticScheme s;
  s.name = name;
  s.code = row->code;
  s.bits = row->bits;
  s.scale = row->scale;
  s.block_n = row->block_n;
  s.block_k = row->block_k;
  s.offsets = row->offsets;
  s.lut = row->lut;
  s.global_scale = row->scale == ScaleType::kFp8;
  if (row->groups != Groups::kFixed) {
    const int64_t wanted = group.value_or(row->groups == Groups::kAny ? 128 : -1);
    s.block_k = wanted < 0 ? 0 : static_cast<size_t>(wanted);
  }
  s.group = s.block_k == 0 ? -1 : static_cast<int64_t>(s.block_k);
  Scheme scheme = *scheme_of_preset(row->preset, "");
  if (scheme.weights) {
    scheme.weights->bits = row->bits;
    scheme.weights->offsets = row->offsets;
    scheme.weights->symmetric &= !row->offsets;
    scheme.weights->lut = row->lut;
  }
  s.act = act_spec_of(scheme, request);
  s.departs = departs(scheme, s.act);
  return s;
}

LayerOptions layer_options_of(const BenchOptions& options, ThreadPool& pool) {
  LayerOptions o;
  o.pool = &pool;
  o.policy = policy_of(options.run);
  o.act = act_request_of(options.run);
  o.x_type = x_type_from(options.dtype);
  return o;
}

std::vector<SyntheticScheme> synthetic_schemes(const BenchOptions& options) {
  std::vector<SyntheticScheme> list;
  const std::vector<int64_t> groups =
      options.groups.empty() ? std::vector<int64_t>{0} : options.groups;
  for (const std::string& name : options.schemes)
    for (const int64_t group : groups) {
      const std::optional<int64_t> wanted =
          options.groups.empty() ? std::nullopt : std::optional<int64_t>(group);
      SyntheticScheme s = synthetic_scheme(name, wanted, act_request_of(options.run));
      if (list.empty() || list.back().name != s.name || list.back().group != s.group)
        list.push_back(std::move(s));
    }
  return list;
}

SyntheticMatrix::SyntheticMatrix(const SyntheticScheme& scheme, size_t N, size_t K)
    : scheme_(scheme) {
  if (N == 0 || K == 0) fail("a matrix of {} x {}; expected at least one row and column", N, K);
  const size_t block_n = scheme.block_n == 0 ? N : scheme.block_n,
               block_k = scheme.block_k == 0 ? K : scheme.block_k;
  if (K % block_k != 0 && block_n == 1)
    fail("scheme {} with groups of {}: {} columns are not a multiple of it", scheme.name, block_k,
         K);
  const size_t bits = code_bits(scheme.code);
  if (times(K, bits) % 8 != 0)
    fail("scheme {}: {} columns do not fill whole bytes", scheme.name, K);
  view_.N = N;
  view_.K = K;
  view_.code = scheme.code;
  view_.bits = scheme.bits;
  view_.lut = scheme.lut;
  view_.row_bytes = K * bits / 8;
  view_.scale_type = scheme.scale;
  view_.block_n = block_n;
  view_.block_k = block_k;
  view_.groups = view_.scale_stride = ceil_div(K, block_k);
  if (scheme.global_scale) view_.global_scale = {kGlobalScale};
  codes_.resize(ceil_div(times(N, view_.row_bytes), 8));
  view_.codes = reinterpret_cast<const uint8_t*>(codes_.data());
  if (scheme.scale == ScaleType::kNone) return;
  scales_.resize(
      ceil_div(times(times(ceil_div(N, block_n), view_.groups), scale_bytes(scheme.scale)), 8));
  view_.scales = reinterpret_cast<const uint8_t*>(scales_.data());
  if (scheme.offsets) view_.offsets = view_.scales;
  if (scheme.scale != ScaleType::kTwoLevel) return;
  if (K % kSuperBlock == 0) view_.super_groups = kSuperBlock / block_k;
  supers_.resize(ceil_div(times(N, view_.groups / view_.super_groups), 2));
  view_.super_scales = reinterpret_cast<const uint8_t*>(supers_.data());
  if (scheme.offsets) view_.super_offsets = view_.super_scales;
}

void SyntheticMatrix::refill(BenchRandom& random) {
  const bool normal = scheme_.name == "fp8_normal";
  for (uint64_t& c : codes_)
    c = normal ? to_normal_codes(random) : to_codes(scheme_.code, scheme_.bits, random.next());
  for (uint64_t& s : scales_) s = to_scales(scheme_, random.next());
  for (uint64_t& s : supers_)  // numbers from 2^-16 on
    s = (random.next() & 0x007FFFFF007FFFFFull) | 0x3780000037800000ull;
}

ActParams SyntheticMatrix::act_params() const {
  ActParams p;
  if (scheme_.act.granule == ActGranule::kStatic) p.scale = 4.0f / 448.0f;
  if (scheme_.act.code == ActCode::kFp4 && scheme_.act.scale == ActScale::kFp8)
    p.global_scale = {kGlobalScale};
  return p;
}

uint64_t code_bytes(const Problem& p) { return p.N * ((p.K * p.bits + 7) / 8); }

uint64_t scale_bytes_of(const Problem& p) {
  const uint64_t rows = (p.N + p.block_n - 1) / p.block_n;
  const uint64_t supers =
      p.scale_type == ScaleType::kTwoLevel ? p.groups / p.super_groups * sizeof(float) : 0;
  return rows * (p.groups * scale_bytes(p.scale_type) + supers) * (p.offsets ? 2 : 1) +
         (p.zero_points ? p.N * p.groups : 0);
}

SyntheticRows::SyntheticRows(XType type, size_t rows, size_t cols)
    : type_(type), rows_(rows), cols_(cols) {
  const size_t n = times(rows, cols);
  x_.resize(type == XType::kF32 ? n : (n + 1) / 2);
  y_.resize(x_.size());
}

// Makes rows; the sum of four uniform 16-bit numbers is close enough to normal.
void SyntheticRows::refill(BenchRandom& random) {
  const size_t n = rows_ * cols_;
  auto* f32 = reinterpret_cast<float*>(x_.data());
  auto* half = reinterpret_cast<uint16_t*>(x_.data());
  for (size_t i = 0; i < n; ++i) {
    const uint64_t r = random.next();
    const auto sum = static_cast<int32_t>((r & 0xFFFF) + ((r >> 16) & 0xFFFF) +
                                          ((r >> 32) & 0xFFFF) + (r >> 48)) -
                     2 * 0xFFFF;
    const float v = static_cast<float>(sum) * (1.7320508f / 65536.0f);
    if (type_ == XType::kF32)
      f32[i] = v;
    else
      half[i] = type_ == XType::kBf16 ? f32_to_bf16(v) : f32_to_f16(v);
  }
}

ConstRows SyntheticRows::view() const { return {x_.data(), dtype_of(type_), rows_, cols_, cols_}; }
Rows SyntheticRows::output() { return {y_.data(), dtype_of(type_), rows_, cols_, cols_}; }

SyntheticRouting::SyntheticRouting(size_t tokens, size_t experts, size_t top_k, bool skew)
    : experts_(experts), top_k_(top_k), skew_(skew) {
  if (top_k == 0 || top_k > experts)
    fail("top-k is {}; expected 1 to the number of experts, {}", top_k, experts);
  ids_.resize(times(tokens, top_k));
  weights_.assign(ids_.size(), 1.0f / static_cast<float>(top_k));
  order_.resize(experts);
  std::iota(order_.begin(), order_.end(), 0);
  seen_.resize(experts);
}

void SyntheticRouting::refill(BenchRandom& random) {
  std::fill(seen_.begin(), seen_.end(), uint8_t{0});
  const size_t tokens = ids_.size() / top_k_;
  if (skew_) std::swap(order_[0], order_[random.below(experts_)]);
  for (size_t t = 0; t < tokens; ++t) {
    // order_[0] is the busy expert if there is skew: every other token chooses it, and the others
    // choose among the rest.
    const size_t fixed = skew_ && t % 2 == 0 ? 1 : 0,
                 first = skew_ && experts_ > top_k_ ? 1 : fixed;
    int32_t* ids = ids_.data() + t * top_k_;
    if (fixed == 1) ids[0] = order_[0];
    for (size_t s = fixed; s < top_k_; ++s) {
      const size_t at = first + s - fixed;
      std::swap(order_[at], order_[at + random.below(experts_ - at)]);
      ids[s] = order_[at];
    }
    for (size_t s = 0; s < top_k_; ++s) seen_[static_cast<size_t>(ids[s])] = 1;
  }
  used_ = static_cast<size_t>(std::count(seen_.begin(), seen_.end(), uint8_t{1}));
}

}  // namespace moebius
