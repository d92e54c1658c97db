// SPDX-License-Identifier: Apache-2.0
// The int8 family on x86-64: products of many rows in vector registers (layouts: x86_int8.h). Codes
// of four panels and a chunk of K are decoded once to unsigned operands in scratch, which all tiles
// of rows use. Sums are in registers; results are, too, if groups are short, and in memory
// otherwise. Templates over an engine E; x86_int8_few.h finishes groups and results. Internal
// linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include "kernels/x86/x86_int8_few.h"

namespace moebius {
namespace {
namespace x86_many {

using namespace x86_int8;
using x86_few::Finish;
using x86_few::Kind;

// Prefetches lines of the panels that are decoded next, while rows are computed.
struct Ahead {
  const uint8_t* next = nullptr;  // address in the first of the panels
  size_t apart = 0, panels = 0;   // bytes from panel to panel; panels left
  size_t lines = 0, left = 0;     // lines of a panel; those left of this one
  size_t part = 0;                // lines to prefetch at a time
  [[gnu::always_inline]] void fetch() {
    if (panels == 0) return;
    for (size_t i = 0; i < part; ++i)
      _mm_prefetch(reinterpret_cast<const char*>(next + 64 * i), _MM_HINT_T1);
    next += 64 * part;
    if (left > part) {
      left -= part;
    } else {
      next += apart - 64 * (lines - left + part);
      left = lines;
      --panels;
    }
  }
};

template <class E, Codes kCodes>
class ManyRows {
 public:
  ManyRows(const GemmArgs& args, const Shape& s, const RowTiles& t)
      : a_(args),
        s_(s),
        t_(t),
        b_(expanded_blocking(s, t)),
        finish_(args, s, t),
        quarters_(kCodes == Codes::kFp4 && finish_.kind() == Kind::kScaled && s.group_scales &&
                  s.scale_type == Scales::kBf16 && s.padded <= 16384),
        codes_(args.scratch),
        sums_(reinterpret_cast<int32_t*>(args.scratch + b_.sums)),
        f_(reinterpret_cast<float*>(args.scratch + b_.acc)) {}

  void run() {
    for (size_t n = a_.n0; n < a_.n1; n += kWidth) {
      const size_t left = (a_.n1 - n + kOutputs - 1) / kOutputs;
      panels_ = left < kExpanded ? left : kExpanded;
      first_ = panel(n);
      for (size_t i = 0; i < a_.M * kWidth; i += E::kLanes) E::store(f_ + i, E::zero_f32());
      for (size_t k = 0; k < s_.K_padded;) k = chunk(n, k);
      put(n);
    }
  }

 private:
  // Number of vectors per panel.
  static constexpr int kParts = static_cast<int>(kOutputs / E::kLanes);
  static constexpr size_t kWidth = kExpanded * kOutputs;  // number of outputs computed together
  static constexpr size_t kInputBytes = kCodes == Codes::kBytes ? kOutputs : kOutputs / 2;
  static constexpr size_t kOperands = E::template kOperands<kCodes>;  // for 16 inputs
  // Bytes of 16 inputs of a panel's operands; of one row.
  static constexpr size_t kPanelBytes = 64 * kOperands, kRowBytes = 4 * kOperands;
  static constexpr int32_t kBias = E::bias(kCodes);
  // Sums of doubled codes start at the bits of a number whose last place is 1/4. The final bits are
  // that number plus a quarter of the sum: exact below 2^22.
  static constexpr int32_t kQuarters = 0x4A400000;
  static constexpr float kQuartersNumber = 0x1.8p21f;
  // Most inputs of a group whose results stay in registers.
  static constexpr size_t kShortGroup = 64;
  enum class Fold : uint8_t { kPlain, kOffsets, kScaled, kQuarters, kAny };
  using V = typename E::V;
  using F = typename E::F;
  struct Chunk {
    // The chunk's inputs [k0, k1); its first group, and the number of groups of which it has a
    // part.
    size_t k0, k1, group, groups;
    // true: the chunk contains the begin of its first group; the end of its last.
    bool begins, ends;
  };

  const uint8_t* panel(size_t n) const { return a_.w->data + n / kOutputs * s_.stride; }

  // Computes a chunk of inputs from k0 on and returns its end.
  size_t chunk(size_t n, size_t k0) {
    Chunk c{};
    c.k0 = k0;
    c.k1 = k0 + b_.chunk < s_.K_padded ? k0 + b_.chunk : s_.K_padded;
    c.group = k0 / s_.padded;
    const size_t end = (c.group + 1) * s_.padded;
    if (s_.padded > b_.chunk && end < c.k1) c.k1 = end;
    c.groups = s_.padded > b_.chunk ? 1 : (c.k1 - k0) / s_.padded;
    c.begins = k0 % s_.padded == 0;
    c.ends = c.k1 % s_.padded == 0;
    expand(c);
    ask_for_next(c, n);
    for (size_t m = 0; m < a_.M; m += t_.rows) any_rows(m, a_.M - m, c);
    return c.k1;
  }

  // Returns the bytes of a chunk of a panel's operands.
  size_t panel_bytes() const { return b_.chunk / 16 * kPanelBytes; }
  void expand(const Chunk& c) const {
    const __m128i numbers = E::table(s_, kBias);
    for (size_t p = 0; p < panels_; ++p) {
      const uint8_t* from = first_ + p * s_.stride + c.k0 * kInputBytes;
      uint8_t* to = codes_ + p * panel_bytes();
      for (size_t k = c.k0; k < c.k1; k += 16, from += 16 * kInputBytes, to += kPanelBytes)
        MOEBIUS_UNROLL for (int part = 0; part < kParts; ++part) {
          V b[kOperands];
          E::template operands<kCodes>(from + 64 / kParts * part, numbers, b);
          MOEBIUS_UNROLL for (size_t i = 0; i < kOperands; ++i)
              E::store(to + 64 * i + 64 / kParts * part, b[i]);
        }
    }
  }

  // Prefetches what is decoded next: the next chunk, of the next panels, or of the next matrix.
  void ask_for_next(const Chunk& c, size_t n) {
    const uint8_t* next = first_;
    size_t k = c.k1, panels = panels_;
    if (c.k1 == s_.K_padded) {
      const size_t left = n + kWidth < a_.n1 ? (a_.n1 - n - kWidth + kOutputs - 1) / kOutputs : 0;
      k = 0;
      if (left > 0) {
        next = panel(n + kWidth);
        panels = left < kExpanded ? left : kExpanded;
      } else if (a_.next != nullptr) {
        next = a_.next->data + a_.n0 / kOutputs * s_.stride;
      } else {
        panels = 0;
      }
      for (size_t p = 0; p < panels; ++p)
        for (size_t i = s_.scales; i < s_.stride; i += 64)
          _mm_prefetch(reinterpret_cast<const char*>(next + p * s_.stride + i), _MM_HINT_T1);
    }
    const size_t end = k + b_.chunk < s_.K_padded ? k + b_.chunk : s_.K_padded;
    const size_t lines = (end - k) * kInputBytes / 64;
    // Spread over half of the steps, because memory is slow.
    const size_t steps = (c.k1 - c.k0 + E::kInputs - 1) / E::kInputs * ((t_.tiles + 1) / 2) *
                         ((panels_ + E::kManyPanels - 1) / E::kManyPanels);
    ahead_ = {next + k * kInputBytes,
              s_.stride,
              panels,
              lines,
              lines,
              (panels * lines + steps - 1) / steps};
  }

  void any_rows(size_t m, size_t left, const Chunk& c) {
    switch (left < t_.rows ? left : t_.rows) {
      case 1:
        return rows<1>(m, c);
      case 2:
        return rows<2>(m, c);
      case 3:
        return rows<3>(m, c);
      case 4:
        return rows<4>(m, c);
      case 5:
        if constexpr (expanded_rows(E::kEngine) >= 5) return rows<5>(m, c);
        break;
      default:
        if constexpr (expanded_rows(E::kEngine) >= 6) return rows<6>(m, c);
    }
  }
  template <int R>
  void rows(size_t m, const Chunk& c) {
    constexpr size_t kTogether = E::kManyPanels;
    size_t p = 0;
    if constexpr (kTogether > 2) {
      if (s_.padded < kShortGroup)
        for (; p + 2 <= panels_; p += 2) tile<R, 2, true>(m, p, c);
    }
    for (; p + kTogether <= panels_; p += kTogether) tile<R, kTogether, false>(m, p, c);
    if constexpr (kTogether > 2)
      for (; p + 2 <= panels_; p += 2) tile<R, 2, false>(m, p, c);
    if constexpr (kTogether > 1)
      for (; p < panels_; ++p) tile<R, 1, false>(m, p, c);
  }

  // Computes R rows from m on with C panels from the p-th on; kKeep: results stay in registers.
  template <int R, size_t C, bool kKeep>
  [[gnu::noinline]] void tile(size_t m, size_t p, const Chunk& c) {
    constexpr size_t kVectors = C * kParts;
    const size_t apart = panel_bytes();
    const uint8_t* x = a_.panel + (m * s_.K_padded + c.k0 * R) / 16 * kRowBytes;
    const uint8_t* w = codes_ + p * apart;
    const size_t inputs = c.groups == 1 ? c.k1 - c.k0 : s_.padded;
    uint8_t* const waiting = reinterpret_cast<uint8_t*>(sums_ + m * kWidth + p * kOutputs);
    uint8_t* const results = reinterpret_cast<uint8_t*>(f_ + m * kWidth + p * kOutputs);
    const V quarters = E::set1(quarters_ ? kQuarters : 0);
    V sum[R][kVectors];
    F f[R][kVectors];
    if constexpr (kKeep) load_results(f, results);
    for (size_t g = c.group; g < c.group + c.groups; ++g) {
      const int32_t* start = finish_.sums + g * finish_.rows + m;
      MOEBIUS_UNROLL for (int r = 0; r < R; ++r) {
        const V begin = E::set1(finish_.zeros ? 0 : start[r]);
        const V from = kCodes == Codes::kFp4 ? E::add(begin, quarters) : begin;
        MOEBIUS_UNROLL for (size_t v = 0; v < kVectors; ++v) sum[r][v] =
            c.begins ? from : E::load(waiting + place(r, v));
      }
      if (E::kInputs > 16 && inputs == 16) {  // apart, so that sums of one product need no loop
        multiply<16>(sum, w, apart, x);
      } else {
        size_t k = E::kInputs;
        for (; k <= inputs; k += E::kInputs) multiply<E::kInputs>(sum, w, apart, x);
        if (E::kInputs > 16 && k < inputs + E::kInputs) multiply<16>(sum, w, apart, x);
      }
      if (!c.ends) {
        MOEBIUS_UNROLL for (int r = 0; r < R; ++r)
            MOEBIUS_UNROLL for (size_t v = 0; v < kVectors; ++v)
                E::store(waiting + place(r, v), sum[r][v]);
        return;
      }
      if constexpr (!kKeep) load_results(f, results);
      if constexpr (kCodes == Codes::kFp4) {
        quarters_ ? fold<Fold::kQuarters>(g, m, p, sum, f) : fold<Fold::kAny>(g, m, p, sum, f);
      } else {
        switch (finish_.kind()) {
          case Kind::kPlain:
            fold<Fold::kPlain>(g, m, p, sum, f);
            break;
          case Kind::kOffsets:
            fold<Fold::kOffsets>(g, m, p, sum, f);
            break;
          case Kind::kScaled:
            fold<Fold::kScaled>(g, m, p, sum, f);
            break;
          case Kind::kAny:
            fold<Fold::kAny>(g, m, p, sum, f);
            break;
        }
      }
      if constexpr (!kKeep) store_results(f, results);
    }
    if constexpr (kKeep) store_results(f, results);
  }
  // Multiplies the next kSome inputs.
  template <size_t kSome, int R, size_t N>
  [[gnu::always_inline]] void multiply(V (&sum)[R][N], const uint8_t*& w, size_t apart,
                                       const uint8_t*& x) {
    ahead_.fetch();
    E::template dots<kCodes, kSome, R, N>(sum, w, apart, x);
    w += kSome / 16 * kPanelBytes;
    x += kSome / 16 * kRowBytes * R;
  }
  // Returns the byte offset of the v-th vector of row r among sums and results.
  static constexpr size_t place(int r, size_t v) {
    return 4 * (static_cast<size_t>(r) * kWidth + v * E::kLanes);
  }
  template <int R, size_t N>
  [[gnu::always_inline]] static void load_results(F (&f)[R][N], const uint8_t* from) {
    MOEBIUS_UNROLL for (int r = 0; r < R; ++r) MOEBIUS_UNROLL for (size_t v = 0; v < N; ++v)
        f[r][v] = E::load_f32(from + place(r, v));
  }
  template <int R, size_t N>
  [[gnu::always_inline]] static void store_results(const F (&f)[R][N], uint8_t* to) {
    MOEBIUS_UNROLL for (int r = 0; r < R; ++r) MOEBIUS_UNROLL for (size_t v = 0; v < N; ++v)
        E::store(reinterpret_cast<float*>(to + place(r, v)), f[r][v]);
  }

  template <Fold kFold, int R, size_t N>
  [[gnu::always_inline]] void fold(size_t g, size_t m, size_t p, const V (&sum)[R][N],
                                   F (&f)[R][N]) const {
    MOEBIUS_UNROLL for (size_t v = 0; v < N; ++v) {
      const uint8_t* from = first_ + (p + v / kParts) * s_.stride;
      const F scale =
          x86_few::scales_at<E>(s_, kFold == Fold::kQuarters ? Scales::kBf16 : s_.scale_type,
                                from + s_.scales, g, v % kParts);
      const F offset =
          kFold != Fold::kOffsets
              ? scale
              : x86_few::scales_at<E>(s_, s_.scale_type, from + s_.offsets_at, g, v % kParts);
      MOEBIUS_UNROLL for (int r = 0; r < R; ++r) {
        const size_t row = m + static_cast<size_t>(r);
        if constexpr (kFold == Fold::kQuarters) {
          const F dot = E::sub(E::bits(sum[r][v]), E::set1(kQuartersNumber));
          const F by = E::set1(finish_.group_scales[g * finish_.rows + row]);
          f[r][v] = E::fma(dot, E::mul(scale, by), f[r][v]);
        } else {
          constexpr Kind kKind = kFold == Fold::kPlain     ? Kind::kPlain
                                 : kFold == Fold::kOffsets ? Kind::kOffsets
                                 : kFold == Fold::kScaled  ? Kind::kScaled
                                                           : Kind::kAny;
          f[r][v] = x86_few::fold<E, kKind>(finish_, from, g, v % kParts, row, kBias, sum[r][v],
                                            scale, offset, f[r][v]);
        }
      }
    }
  }

  void put(size_t n) const {
    for (size_t m = 0; m < a_.M; ++m)
      for (size_t v = 0; v < panels_ * kParts; ++v) {
        const size_t to = n + v * E::kLanes;
        if (to >= a_.n1) break;
        const F f = E::load_f32(reinterpret_cast<const uint8_t*>(f_ + m * kWidth + v * E::kLanes));
        const F y =
            x86_few::last_factors<E>(finish_, first_ + v / kParts * s_.stride, v % kParts, m, f);
        x86_few::store<E>(a_.y + m * a_.ldy + (to - a_.n0), y, to, a_.n1);
      }
  }

  const GemmArgs& a_;
  const Shape& s_;
  const RowTiles& t_;
  const Blocking b_;
  const Finish finish_;
  const bool quarters_;
  uint8_t* const codes_;
  int32_t* const sums_;  // [row][outputs being computed] sums of groups longer than a chunk
  float* const f_;       // [row][outputs being computed] results
  const uint8_t* first_ = nullptr;  // address of the first panel being computed
  size_t panels_ = 0;
  Ahead ahead_;
};

template <class E>
inline void gemm(const GemmArgs& a) {
  const Shape s = shape_of(*a.w->problem);
  const RowTiles t = row_tiles(s, E::kEngine, a.M);
  if (!t.expanded) return x86_few::gemm<E>(a, s, t);
  switch (s.codes) {
    case Codes::kNibbles:
      return ManyRows<E, Codes::kNibbles>(a, s, t).run();
    case Codes::kBytes:
      return ManyRows<E, Codes::kBytes>(a, s, t).run();
    case Codes::kFp4:
      return ManyRows<E, Codes::kFp4>(a, s, t).run();
    case Codes::kTable:
      return ManyRows<E, Codes::kTable>(a, s, t).run();
  }
}

}  // namespace x86_many
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
