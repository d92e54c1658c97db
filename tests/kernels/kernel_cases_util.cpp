// SPDX-License-Identifier: Apache-2.0
// Cases for the kernel test tier (kernel_cases.h).
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <utility>

#include "base/numeric.h"
#include "kernels/kernel_cases.h"

#include "quant/quant_access.h"
#include "unit/test_util.h"

namespace moebius::test {

uint64_t test_seed() {
  const char* text = std::getenv("MOEBIUS_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 20261115;
}

// ---- guarded memory ----

namespace {
constexpr uint8_t kPattern = 0xA5;
}

namespace {

// The emulator of x86-64 (qemu 7.2) reads 16 bytes where an FMA of one number reads 4. It gives its name
// where hypervisors do.
size_t slack_behind() {
#if defined(__x86_64__)
  uint32_t most = 0, name[3] = {};
  __cpuid(0x40000000, most, name[0], name[1], name[2]);
  return std::memcmp(name, "TCGTCGTCGTCG", sizeof(name)) == 0 ? 16 : 0;
#else
  return 0;
#endif
}

}  // namespace

GuardedBytes::GuardedBytes(size_t size, size_t alignment) : size_(size) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t slack = slack_behind();
  usable_ = (size + slack + alignment + page - 1) / page * page;
  mapped_ = usable_ + 2 * page;
  void* map = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) throw std::bad_alloc();
  map_ = static_cast<uint8_t*>(map);
  uint8_t* begin = map_ + page;
  if (mprotect(begin, usable_, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  std::memset(begin, kPattern, usable_);
  data_ = begin + (usable_ - slack - size) / alignment * alignment;
}

GuardedBytes::GuardedBytes(GuardedBytes&& other) noexcept { *this = std::move(other); }

GuardedBytes& GuardedBytes::operator=(GuardedBytes&& other) noexcept {
  std::swap(map_, other.map_);
  std::swap(mapped_, other.mapped_);
  std::swap(usable_, other.usable_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

GuardedBytes::~GuardedBytes() {
  if (map_ != nullptr) munmap(map_, mapped_);
}

bool GuardedBytes::damaged() const {
  const uint8_t* begin = map_ + (mapped_ - usable_) / 2;
  const auto bad = [](uint8_t b) { return b != kPattern; };
  return std::any_of(begin, static_cast<const uint8_t*>(data_), bad) ||
         std::any_of(static_cast<const uint8_t*>(data_) + size_, begin + usable_, bad);
}

// ---- the schemes ----

namespace {

ActSpec int_rows(uint8_t bits = 8, bool symmetric = true, Int8Mode mode = Int8Mode::kDeclared) {
  ActSpec a;
  a.code = ActCode::kInt;
  a.bits = bits;
  a.symmetric = symmetric;
  a.mode = mode;
  return a;
}

ActSpec with_groups(ActSpec a, uint32_t group, ActScale scale = ActScale::kF32) {
  a.granule = ActGranule::kGroup;
  a.group = group;
  a.scale = scale;
  return a;
}

ActSpec fixed(ActSpec a) {
  a.granule = ActGranule::kStatic;
  return a;
}

ActSpec of(ActCode code) {
  ActSpec a;
  a.code = code;
  return a;
}

using Cases = std::vector<SchemeCase>;

std::vector<size_t> sizes(std::initializer_list<size_t> list) { return list; }

SchemeCase weights(std::string name, CodeType code, uint8_t bits, size_t block_k, ActSpec act) {
  SchemeCase c;
  c.name = std::move(name);
  c.code = code;
  c.bits = bits;
  c.block_k = block_k;
  c.act = act;
  return c;
}

void add_int8_activations(Cases& out) {
  for (const size_t g : sizes({0, 16, 32, 64, 96, 128, 30}))
    out.push_back(weights("w4a8 g" + std::to_string(g), CodeType::kInt4Offset, 4, g, int_rows()));
  for (const size_t g : sizes({0, 32, 64})) {
    SchemeCase c =
        weights("w4a8 asym g" + std::to_string(g), CodeType::kInt4Offset, 4, g, int_rows());
    c.zero_points = true;
    out.push_back(c);
    c.act = int_rows(8, false);
    c.name = "w4a8 asym weights and rows g" + std::to_string(g);
    out.push_back(c);
    c.zero_points = false;
    c.name = "w4a8 asym rows g" + std::to_string(g);
    out.push_back(c);
  }
  for (const Columns columns : {Columns::kShuffled, Columns::kPartial, Columns::kPhase}) {
    SchemeCase c = weights("w4a8 g32 columns " + std::to_string(static_cast<int>(columns)),
                           CodeType::kInt4Offset, 4, 32, int_rows());
    c.columns = columns;
    out.push_back(c);
    c.zero_points = true;
    c.name += " asym";
    out.push_back(c);
  }
  for (const uint8_t bits : std::initializer_list<uint8_t>{2, 3, 4, 5, 6, 7, 8})
    for (const size_t g : sizes({0, 32, 128})) {
      SchemeCase c = weights("w" + std::to_string(bits) + "a8 bytes g" + std::to_string(g),
                             CodeType::kInt8, bits, g, int_rows());
      c.zero_points = g == 128;
      c.scale = ScaleType::kF32;
      out.push_back(c);
    }
  for (const uint8_t bits : std::initializer_list<uint8_t>{2, 4, 5, 8})
    for (const size_t g : sizes({16, 32, 64})) {
      SchemeCase c =
          weights("offsets " + std::to_string(bits) + " bits int8 rows g" + std::to_string(g),
                  bits == 4   ? CodeType::kInt4Offset
                  : bits == 8 ? CodeType::kInt8Offset
                              : CodeType::kInt8,
                  bits, g, int_rows());
      c.offsets = true;
      c.scale = g == 64 ? ScaleType::kBf16 : g == 16 ? ScaleType::kF32 : ScaleType::kF16;
      out.push_back(c);
    }
  SchemeCase c = weights("w8a8 tensor", CodeType::kInt8, 8, 0, int_rows());
  c.block_n = 0;
  c.scale = ScaleType::kF16;
  out.push_back(c);
  out.push_back(weights("w8a8 packed", CodeType::kInt8Offset, 8, 0, int_rows()));
  c = weights("w8a8 packed asym g64", CodeType::kInt8Offset, 8, 64, int_rows(8, false));
  c.zero_points = true;
  out.push_back(c);
  out.push_back(weights("w8a8 static", CodeType::kInt8, 8, 0, fixed(int_rows())));
  out.push_back(weights("w8a8 static asym", CodeType::kInt8, 8, 0, fixed(int_rows(8, false))));
  out.push_back(weights("w4a8 static g32", CodeType::kInt4Offset, 4, 32, fixed(int_rows())));
  out.push_back(weights("w2a8 static (wna8o8)", CodeType::kInt8, 2, 0, fixed(int_rows())));
  out.push_back(
      weights("w4a8 rows g64", CodeType::kInt4Offset, 4, 32, with_groups(int_rows(), 64)));
  out.push_back(
      weights("w8a8 rows g32 asym", CodeType::kInt8, 8, 0, with_groups(int_rows(8, false), 32)));
  out.push_back(weights("w4a4 g128", CodeType::kInt4Offset, 4, 128, int_rows(4)));
  out.push_back(
      weights("w4a4 g64 rows g64", CodeType::kInt4Offset, 4, 64, with_groups(int_rows(4), 64)));
  out.push_back(weights("w4a8 ct g32", CodeType::kInt4Offset, 4, 32,
                        int_rows(8, true, Int8Mode::kCompressedTensors)));
  for (const size_t g : sizes({0, 32, 128}))
    for (const XType x : {XType::kF32, XType::kBf16}) {
      c = weights("w4a8 vllm g" + std::to_string(g) + (x == XType::kF32 ? " f32" : " bf16"),
                  CodeType::kInt4Offset, 4, g, int_rows(8, false, Int8Mode::kVllm));
      c.scale = g == 0 ? ScaleType::kF32 : ScaleType::kF16;
      c.x_type = x;
      out.push_back(c);
    }
}

void add_fp8(Cases& out) {
  const ActSpec rows = of(ActCode::kFp8);
  SchemeCase c = weights("fp8 tensor static", CodeType::kFp8, 8, 0, fixed(rows));
  c.block_n = 0;
  out.push_back(c);
  c = weights("fp8 channel token", CodeType::kFp8, 8, 0, rows);
  c.scale = ScaleType::kF32;
  out.push_back(c);
  c.act.bound = 1.5f;  // below many an input
  c.name = "fp8 channel token bounded";
  out.push_back(c);
  for (const auto& [bn, bk] : {std::pair<size_t, size_t>{128, 128}, {16, 48}, {7, 64}}) {
    c = weights("fp8 block " + std::to_string(bn) + "x" + std::to_string(bk), CodeType::kFp8, 8, bk,
                with_groups(rows, 128));
    c.block_n = bn;
    out.push_back(c);
    c.columns = Columns::kPhase;
    c.act = with_groups(rows, static_cast<uint32_t>(bk));
    c.name += " sliced";
    out.push_back(c);
  }
  c = weights("fp8 block 128x128 ue8m0", CodeType::kFp8, 8, 128,
              with_groups(rows, 128, ActScale::kE8m0Up));
  c.block_n = 128;
  c.scale = ScaleType::kF32;
  out.push_back(c);
  for (const size_t g : sizes({0, 128})) {
    c = weights("fp8 a16 g" + std::to_string(g), CodeType::kFp8, 8, g, ActSpec{});
    c.x_type = XType::kBf16;
    out.push_back(c);
  }
  out.push_back(weights("w4afp8 g128", CodeType::kInt4Offset, 4, 128, rows));
  c = weights("w4afp8 g32 asym", CodeType::kInt4Offset, 4, 32, rows);
  c.zero_points = true;
  out.push_back(c);
}

void add_fp4(Cases& out) {
  SchemeCase c =
      weights("nvfp4", CodeType::kFp4, 4, 16, with_groups(of(ActCode::kFp4), 16, ActScale::kFp8));
  c.scale = ScaleType::kFp8;
  c.global_scale = true;
  out.push_back(c);
  c.global_multiplies = true;
  c.name = "nvfp4 factors";
  out.push_back(c);
  c.act = ActSpec{};
  c.x_type = XType::kBf16;
  c.name = "nvfp4a16 factors";
  out.push_back(c);
  c.global_multiplies = false;
  c.act = int_rows();
  c.name = "nvfp4 int8 rows";
  out.push_back(c);
  for (const XType x : {XType::kF32, XType::kBf16, XType::kF16}) {
    c.act = ActSpec{};
    c.x_type = x;
    c.name = "nvfp4a16 x" + std::to_string(static_cast<int>(x));
    out.push_back(c);
  }
  c = weights("mxfp4", CodeType::kFp4, 4, 32, with_groups(of(ActCode::kFp4), 32, ActScale::kE8m0));
  c.scale = ScaleType::kE8m0;
  out.push_back(c);
  c.act = ActSpec{};
  c.x_type = XType::kBf16;
  c.name = "mxfp4a16";
  out.push_back(c);
  c.act = int_rows();
  c.name = "mxfp4 int8 rows";
  out.push_back(c);
  c.act = of(ActCode::kFp8);
  c.name = "w4a8-mxfp4 token";
  out.push_back(c);
  c.act = with_groups(of(ActCode::kFp8), 32, ActScale::kE8m0);
  c.name = "w4a8-mxfp4 mx rows";
  out.push_back(c);
  c.act = fixed(of(ActCode::kFp8));
  c.name = "w4a8-mxfp4 static";
  out.push_back(c);
  c = weights("mxfp8", CodeType::kFp8, 8, 32, with_groups(of(ActCode::kFp8), 32, ActScale::kE8m0));
  c.scale = ScaleType::kE8m0;
  out.push_back(c);
  c.act = ActSpec{};
  c.x_type = XType::kBf16;
  c.name = "mxfp8a16";
  out.push_back(c);
}

// Blocks of GGUF: scales in two levels, offsets, tables.
void add_gguf(Cases& out) {
  const auto add = [&](SchemeCase c) {
    c.x_type = XType::kBf16;
    out.push_back(c);
    SchemeCase rows = c;
    rows.act = int_rows();
    rows.name += " int8 rows";
    out.push_back(rows);
    c.columns = Columns::kPhase;
    c.name += " sliced";
    out.push_back(c);
  };
  for (const uint8_t bits : std::initializer_list<uint8_t>{2, 4, 5, 6})
    for (const size_t g : sizes({16, 32})) {
      SchemeCase c = weights("two levels " + std::to_string(bits) + " bits g" + std::to_string(g),
                             bits == 4 ? CodeType::kInt4Offset : CodeType::kInt8, bits, g, {});
      c.scale = ScaleType::kTwoLevel;
      c.super_groups = g == 16 ? 16 : 8;
      add(c);
      c.name += " offsets";
      c.offsets = true;
      add(c);
    }
  SchemeCase c = weights("offsets f16", CodeType::kInt4Offset, 4, 32, {});
  c.scale = ScaleType::kF16;
  c.offsets = true;
  add(c);
  c.scale = ScaleType::kF32;  // products are not exact
  c.name = "offsets f32";
  add(c);
  for (const Lut lut : {Lut::kIq4, Lut::kIq3, Lut::kIq3S, Lut::kIq2, Lut::kIq1}) {
    c = weights("table " + std::to_string(static_cast<int>(lut)), CodeType::kLut4, 4, 32, {});
    c.lut = lut;
    c.scale = ScaleType::kF16;
    add(c);
    c.name += " two levels";
    c.scale = ScaleType::kTwoLevel;
    c.super_groups = 8;
    add(c);
    c.name += " g16";
    c.block_k = c.super_groups = 16;
    add(c);
  }
}

void add_weight_only(Cases& out) {
  for (const XType x : {XType::kF32, XType::kBf16, XType::kF16}) {
    const std::string suffix = " x" + std::to_string(static_cast<int>(x));
    for (const size_t g : sizes({0, 32, 128, 30})) {
      SchemeCase c =
          weights("w4a16 g" + std::to_string(g) + suffix, CodeType::kInt4Offset, 4, g, ActSpec{});
      c.x_type = x;
      out.push_back(c);
      c.zero_points = true;
      c.name += " asym";
      out.push_back(c);
    }
    for (const uint8_t bits : {uint8_t{3}, uint8_t{4}, uint8_t{8}}) {
      SchemeCase c = weights("offsets " + std::to_string(bits) + " bits" + suffix,
                             bits == 4   ? CodeType::kInt4Offset
                             : bits == 8 ? CodeType::kInt8Offset
                                         : CodeType::kInt8,
                             bits, 32, ActSpec{});
      c.offsets = true;
      c.x_type = x;
      out.push_back(c);
      c.columns = Columns::kPhase;
      c.name += " sliced";
      out.push_back(c);
    }
    for (const size_t g : sizes({0, 32, 128})) {
      SchemeCase c =
          weights("w8a16 g" + std::to_string(g) + suffix, CodeType::kInt8Offset, 8, g, ActSpec{});
      c.x_type = x;
      out.push_back(c);
    }
    SchemeCase keys = weights("8-bit keys" + suffix, CodeType::kInt8, 8, 0, ActSpec{});
    keys.scale = ScaleType::kF32;
    keys.x_type = x;
    out.push_back(keys);
    for (const auto& [name, code] : {std::pair<const char*, CodeType>{"bf16", CodeType::kBf16},
                                     {"f16", CodeType::kF16},
                                     {"f32", CodeType::kF32}}) {
      SchemeCase c = weights(std::string("dense ") + name + suffix, code,
                             code == CodeType::kF32 ? 32 : 16, 0, ActSpec{});
      c.scale = ScaleType::kNone;
      c.x_type = x;
      out.push_back(c);
    }
  }
  add_gguf(out);
  for (const uint8_t bits : std::initializer_list<uint8_t>{2, 3, 5, 6, 8}) {
    SchemeCase c =
        weights("w" + std::to_string(bits) + "a16 g32",
                bits == 8 ? CodeType::kInt8Offset : CodeType::kInt8, bits, 32, ActSpec{});
    c.zero_points = bits == 3 || bits == 8;
    c.x_type = XType::kBf16;
    out.push_back(c);
  }
  for (const Columns columns : {Columns::kShuffled, Columns::kPartial, Columns::kPhase}) {
    SchemeCase c = weights("w4a16 g32 columns " + std::to_string(static_cast<int>(columns)),
                           CodeType::kInt4Offset, 4, 32, ActSpec{});
    c.columns = columns;
    c.x_type = XType::kBf16;
    out.push_back(c);
    c.zero_points = true;
    c.code = CodeType::kInt8Offset;
    c.bits = 8;
    c.name += " 8 bit asym";
    out.push_back(c);
  }
  for (const CodeType code : {CodeType::kInt8, CodeType::kInt8Offset})
    for (const size_t g : sizes({0, 32})) {
      SchemeCase c = weights("w8a16 code " + std::to_string(static_cast<int>(code)) + " g" +
                                 std::to_string(g) + " symmetric",
                             code, 8, g, ActSpec{});
      c.x_type = g == 0 ? XType::kF32 : XType::kBf16;
      out.push_back(c);
    }
}

}  // namespace

std::vector<SchemeCase> scheme_cases() {
  Cases out;
  add_int8_activations(out);
  add_fp8(out);
  add_fp4(out);
  add_weight_only(out);
  return out;
}

// ---- matrices ----

namespace {

float uniform(Rng& rng, float low, float high) {
  return low + (high - low) * static_cast<float>(rng() >> 40) * 0x1p-24f;
}
float normal(Rng& rng) {  // sum of uniforms: close enough, and the same everywhere
  float sum = 0.0f;
  for (int i = 0; i < 6; ++i) sum += uniform(rng, -1.0f, 1.0f);
  return sum * 0.70710678f;
}

void put_u16(uint8_t* p, uint16_t v) { std::memcpy(p, &v, 2); }

// Never NaN; of every 24 rows 8 have any codes, 8 few that are subnormal, 8 none: kernels may treat them
// apart.
uint8_t fp8_code(size_t row, Rng& rng) {
  const auto c = static_cast<uint8_t>(rng());
  const bool subnormal = (c & 0x7F) - 1u < 7, keep = row / 8 % 3 == 0;
  if (subnormal && !keep && (row / 8 % 3 == 2 || rng() % 16 != 0)) return c | 0x40;
  return (c & 0x7F) == 0x7F ? static_cast<uint8_t>(c ^ 1) : c;
}

void fill_codes(const SchemeCase& s, size_t N, size_t K, MatrixCase& m, Rng& rng) {
  const size_t extra = rng() % 3;  // rows may be longer than K needs
  m.w.row_bytes = (K * code_bits(s.code) + 7) / 8 + extra;
  m.codes = GuardedBytes(N * m.w.row_bytes - extra, 1);
  const int low = s.bits <= 8 ? -(1 << (s.bits - 1)) : 0, span = s.bits <= 8 ? 1 << s.bits : 1;
  for (size_t r = 0; r < N; ++r) {
    uint8_t* row = m.codes.data() + r * m.w.row_bytes;
    for (size_t c = 0; c < K; ++c) {
      const int value = low + static_cast<int>(rng() % static_cast<uint64_t>(span));
      switch (s.code) {
        case CodeType::kInt8:
          row[c] = static_cast<uint8_t>(value);
          break;
        case CodeType::kInt8Offset:
          row[c] = static_cast<uint8_t>(value + 128);
          break;
        case CodeType::kInt4Offset:
        case CodeType::kLut4:
        case CodeType::kFp4: {  // the neighbour's nibble, and padding, are random too
          const auto nibble = static_cast<unsigned>(rng() & 15u);
          row[c / 2] = static_cast<uint8_t>(c % 2 == 0 ? (rng() & 0xF0u) | nibble
                                                       : (row[c / 2] & 15u) | (nibble << 4));
          break;
        }
        case CodeType::kFp8:
          row[c] = fp8_code(r, rng);
          break;
        case CodeType::kBf16:
          put_u16(row + 2 * c, f32_to_bf16(normal(rng)));
          break;
        case CodeType::kF16:
          put_u16(row + 2 * c, f32_to_f16(normal(rng)));
          break;
        case CodeType::kF32: {
          const float v = normal(rng);
          std::memcpy(row + 4 * c, &v, 4);
          break;
        }
      }
    }
  }
}

void put_scale(const SchemeCase& s, uint8_t* p, Rng& rng) {
  const float v = uniform(rng, 0.5f, 1.5f) * (s.code == CodeType::kFp8 ? 0.001f : 0.02f);
  switch (s.scale) {
    case ScaleType::kNone:
      break;
    case ScaleType::kF32:
      std::memcpy(p, &v, 4);
      break;
    case ScaleType::kBf16:
      put_u16(p, f32_to_bf16(v));
      break;
    case ScaleType::kF16:
      put_u16(p, f32_to_f16(v));
      break;
    case ScaleType::kFp8:
      *p = rng() % 16 == 0 ? 0 : static_cast<uint8_t>(0x38 + rng() % 0x46);
      break;
    case ScaleType::kE8m0:
      *p = static_cast<uint8_t>((rng() % 512 == 0 ? 20 : 110) + rng() % 20);  // a few far below
      break;
    case ScaleType::kTwoLevel:
      *p = static_cast<uint8_t>(rng());
      break;
  }
}

void fill_scales(const SchemeCase& s, MatrixCase& m, size_t rows, Rng& rng) {
  const size_t size = scale_bytes(s.scale), super = s.super_groups;
  m.w.super_groups = super;
  if (s.columns == Columns::kPhase) m.w.super_phase = rng() % super;
  m.w.scale_stride = (m.w.super_phase + m.w.groups + super - 1) / super * super;
  const size_t count = (rows - 1) * m.w.scale_stride + m.w.groups;
  const size_t supers = (count - 1 + m.w.super_phase) / super + 1;
  const auto fill = [&](GuardedBytes& table, GuardedBytes& above, const uint8_t*& first,
                        const uint8_t*& first_above) {
    table = GuardedBytes(count * size, 1);
    for (size_t i = 0; i < count; ++i) put_scale(s, table.data() + i * size, rng);
    first = size == 0 ? nullptr : table.data();
    if (s.scale != ScaleType::kTwoLevel) return;
    above = GuardedBytes(supers * sizeof(float), 4);
    for (size_t i = 0; i < supers; ++i)  // f16, as in files
      above.as<float>()[i] = f16_to_f32(f32_to_f16(uniform(rng, -1.0f, 1.0f) * 0.001f));
    first_above = above.data();
  };
  fill(m.scales, m.super_scales, m.w.scales, m.w.super_scales);
  if (s.offsets) fill(m.offsets, m.super_offsets, m.w.offsets, m.w.super_offsets);
  if (!s.zero_points) return;
  m.zero_points = GuardedBytes(rows * m.w.groups, 1);
  const int low = s.bits <= 8 ? -(1 << (s.bits - 1)) : 0, span = s.bits <= 8 ? 1 << s.bits : 1;
  for (size_t i = 0; i < rows * m.w.groups; ++i)
    m.zero_points.data()[i] =
        static_cast<uint8_t>(low + static_cast<int>(rng() % static_cast<uint64_t>(span)));
  m.w.zero_points = m.zero_points.as<const int8_t>();
}

void fill_g_idx(const SchemeCase& s, size_t K, MatrixCase& m, Rng& rng) {
  if (s.columns != Columns::kShuffled && s.columns != Columns::kPartial) return;
  m.g_idx = GuardedBytes(K * sizeof(int32_t), 4);
  auto* g = m.g_idx.as<int32_t>();
  if (s.columns == Columns::kPartial)
    m.w.groups *= 2;  // this slice has about half of each group's columns
  for (size_t c = 0; c < K; ++c)
    g[c] =
        static_cast<int32_t>(s.columns == Columns::kShuffled ? c / s.block_k : rng() % m.w.groups);
  for (size_t i = K; i > 1; --i)
    std::swap(g[i - 1], g[rng() % i]);  // std::shuffle differs by library
  m.w.g_idx = g;
}

}  // namespace

MatrixCase make_matrix(const SchemeCase& s, size_t N, size_t K, Rng& rng) {
  MatrixCase m{{},
               {},
               GuardedBytes(0),
               GuardedBytes(0),
               GuardedBytes(0),
               GuardedBytes(0),
               GuardedBytes(0),
               GuardedBytes(0),
               GuardedBytes(0)};
  m.w.N = N;
  m.w.K = K;
  m.w.code = s.code;
  m.w.bits = s.bits;
  m.w.lut = s.lut;
  fill_codes(s, N, K, m, rng);
  m.w.codes = m.codes.data();
  m.w.scale_type = s.scale;
  m.w.block_n = s.block_n == 0 ? N + rng() % 3 : s.block_n;
  m.w.block_k = s.block_k == 0 ? K + rng() % 3 : s.block_k;
  if (s.columns == Columns::kPhase) {
    m.w.k_phase = rng() % m.w.block_k;
    m.w.n_phase = rng() % m.w.block_n;
  }
  m.w.groups = (K + m.w.k_phase + m.w.block_k - 1) / m.w.block_k;
  const size_t rows = (N + m.w.n_phase + m.w.block_n - 1) / m.w.block_n;
  fill_g_idx(s, K, m, rng);
  fill_scales(s, m, rows, rng);
  if (s.global_scale) {
    m.w.global_scale = {uniform(rng, 100.0f, 4000.0f)};
    m.params.global_scale = {uniform(rng, 50.0f, 1000.0f)};
    if (s.global_multiplies) {
      m.w.global_scale = {1.0f / m.w.global_scale.value, true};
      m.params.global_scale = {1.0f / m.params.global_scale.value, true};
    }
  }
  if (s.act.granule == ActGranule::kStatic) {
    m.params.scale = s.act.code == ActCode::kFp8 ? 0.01f : 0.03f;
    m.params.zero_point = s.act.symmetric ? 0 : static_cast<int32_t>(rng() % 256) - 128;
  }
  return m;
}

// ---- rows ----

namespace {

void make_ugly(float* x, size_t K, uint64_t kind, Rng& rng) {
  const size_t at = rng() % K;
  switch (kind) {
    case 0:
      std::fill(x, x + K, 0.0f);
      break;
    case 1:
      x[at] = std::numeric_limits<float>::quiet_NaN();
      break;
    case 2:
      x[at] = -std::numeric_limits<float>::infinity();
      break;
    case 3:
      std::for_each(x, x + K, [](float& v) { v *= 1e30f; });
      break;
    case 4:
      std::for_each(x, x + K, [](float& v) { v *= 1e-40f; });
      break;
    case 5:
      std::for_each(x, x + K, [](float& v) { v = std::fabs(v); });
      break;
    case 6:
      std::for_each(x, x + K, [](float& v) { v = -std::fabs(v); });
      break;
    case 7:
      std::for_each(x, x + K, [](float& v) { v = std::nearbyint(v * 8.0f) * 0.5f; });
      break;
    case 8:
      std::fill(x, x + K, -0.0f);
      break;
    case 9:
      x[at] = 3e38f;
      break;
    case 10:
      std::fill(x, x + K, 0.0f), x[at] = -3.0f;
      break;
    case 11:
      x[at] = 3e38f;
      x[rng() % K] = -3e38f;
      break;
    case 12:  // the scale is a few steps of the smallest number: codes leave their range
      std::for_each(x, x + K, [](float& v) { v *= 2e-43f; });
      break;
    default:
      break;
  }
}

}  // namespace

GuardedBytes make_rows(const SchemeCase& s, size_t M, size_t K, size_t ldx, bool ugly, Rng& rng) {
  GuardedBytes memory(((M - 1) * ldx + K) * sizeof(float), 4);
  auto* x = memory.as<float>();
  for (size_t m = 0; m < M; ++m) {
    float* row = x + m * ldx;
    for (size_t k = 0; k < K; ++k) row[k] = normal(rng) * (k % 61 == 7 ? 8.0f : 1.0f);
    if (ugly && (M == 1 || m % 2 == 1)) make_ugly(row, K, rng() % 13, rng);
    for (size_t k = 0; k < K; ++k) {
      if (s.x_type == XType::kBf16) row[k] = bf16_to_f32(f32_to_bf16(row[k]));
      if (s.x_type == XType::kF16) row[k] = f16_to_f32(f32_to_f16(row[k]));
    }
  }
  return memory;
}

}  // namespace moebius::test
