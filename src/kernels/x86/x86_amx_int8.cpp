// SPDX-License-Identifier: Apache-2.0
// Implements the int8 family on CPUs with AMX: TDPBSSD adds the products of 16 rows and 16 outputs
// over 64 inputs. Few rows leave tiles empty and go by vectors, from the same packed weights.
// Layouts: x86_int8.h.
#include "kernels/x86/x86_amx_tiles.h"
#include "kernels/x86/x86_int8.h"
#include "kernels/x86/x86_int8_few.h"
#include "kernels/x86/x86_int8_rows.h"

namespace moebius {
namespace {

#ifdef MOEBIUS_KERNEL_BODIES
using namespace x86_int8;
using x86_few::Kind;

// Expands the nibbles of one panel to signed operands, `numbers`.
inline void expand(const int8_t* numbers, const uint8_t* from, size_t inputs, uint8_t* to) {
  const __m512i low = _mm512_set1_epi8(15);
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers)));
  for (size_t i = 0; i < inputs; i += 8, from += 64, to += 128) {
    const __m512i v = _mm512_load_si512(from);
    const __m512i even = _mm512_and_si512(v, low),
                  odd = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
    _mm512_store_si512(to, _mm512_shuffle_epi8(table, even));
    _mm512_store_si512(to + 64, _mm512_shuffle_epi8(table, odd));
  }
}

[[gnu::always_inline]] inline void ask(const uint8_t* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
}
// Prefetches the lines of two panels in equal parts.
struct Ahead {
  const uint8_t* next[2] = {};
  size_t lines = 0, part = 0;  // lines left of each panel; lines of a part
  void fetch() {
    for (size_t i = 0; i < part && lines > 0; ++i, --lines)
      for (const uint8_t*& at : next) {
        ask(at);
        at += 64;
      }
  }
};
// Multiplies many rows. Sums of a group leave the tiles late and in pieces, so that multiplying
// never waits for them: the first products of a group store the sums of the group before, tile by
// tile, and the sums of the one before that, by then long in memory, are added to the results a few
// rows after each step.
class ManyRows {
 public:
  explicit ManyRows(const GemmArgs& args)
      : a_(args),
        s_(shape_of(*args.w->problem)),
        t_(row_tiles(s_, Engine::kAmx, args.M)),
        b_(blocking_of(s_, t_)),
        steps_(s_.padded / s_.step),
        finish_(args, s_, t_),
        codes_(args.scratch),
        sums_(args.scratch + b_.sums),
        acc_(reinterpret_cast<float*>(args.scratch + b_.acc)) {}

  void run() {
    const amx::TileConfig config(t_.rows, s_.step);
    _tile_loadconfig(&config);
    switch (finish_.kind()) {
      case Kind::kPlain:
        all_panels<Kind::kPlain>();
        break;
      case Kind::kOffsets:
        all_panels<Kind::kOffsets>();
        break;
      case Kind::kScaled:
        all_panels<Kind::kScaled>();
        break;
      case Kind::kAny:
        all_panels<Kind::kAny>();
        break;
    }
    _tile_release();
  }

 private:
  static constexpr size_t kShortGroup = 64;           // inputs of a group that counts as short
  static constexpr size_t kTile = 16 * kOutputs * 4;  // bytes of a tile's sums
  struct Chunk {
    // First and last input, group length; number of groups that the chunk touches.
    size_t k0, k1, group, groups;
    // Set if the chunk begins and ends its only group, for a chunk with a part of one.
    bool begins, ends;
    // Set for the call's first panels, and if panels follow.
    bool first, more;
  };
  // Locates sums of tiles of rows from row m on over a group, or of one tile of rows over two
  // groups.
  struct Sums {
    uint8_t* at;
    size_t group, m, tiles;  // tiles == 0: there are no sums
    bool two_groups;
  };
  // Points at the operands of a step: two tiles of rows, and two panels.
  struct Operands {
    const uint8_t *x0, *x1, *w0, *w1;
  };

  template <Kind kKind>
  void all_panels() {
    for (size_t n = a_.n0; n < a_.n1; n += 2 * kOutputs) {
      const bool two = n + kOutputs < a_.n1;
      panels_[0] = a_.w->data + n / kOutputs * s_.stride;
      panels_[1] = two ? panels_[0] + s_.stride : panels_[0];
      __builtin_memset(acc_, 0, t_.padded() * 2 * kOutputs * sizeof(float));
      for (size_t k = 0; k < s_.K_padded;) k = chunk<kKind>(n, k);
      empty_tiles<kKind>();
      fold<kKind>(waiting_, 0, t_.rows);
      waiting_.tiles = 0;
      for (size_t m = 0; m < a_.M; ++m)
        for (size_t u = 0; u < (two ? 2 : 1); ++u) {
          const size_t to = n + u * kOutputs;
          const __m512 f = _mm512_load_ps(acc_ + (2 * m + u) * kOutputs);
          const __m512 y = x86_few::last_factors<Zmm>(finish_, panels_[u], 0, m, f);
          x86_few::store<Zmm>(a_.y + m * a_.ldy + (to - a_.n0), y, to, a_.n1);
        }
    }
  }

  // Multiplies all rows with a chunk; returns the input where it ends.
  template <Kind kKind>
  size_t chunk(size_t n, size_t k0) {
    Chunk p{};
    p.first = n == a_.n0;
    p.more = n + 2 * kOutputs < a_.n1;
    p.k0 = k0;
    p.k1 = k0 + b_.chunk < s_.K_padded ? k0 + b_.chunk : s_.K_padded;
    p.group = k0 / s_.padded;
    p.groups = s_.padded <= b_.chunk ? (p.k1 - k0) / s_.padded : 1;
    if (s_.padded > b_.chunk) {
      const size_t end = (p.group + 1) * s_.padded;
      p.k1 = k0 + b_.chunk < end ? k0 + b_.chunk : end;
    }
    p.begins = k0 % s_.padded == 0;
    p.ends = p.k1 % s_.padded == 0;
    for (size_t u = 0; u < 2; ++u) {
      const uint8_t* from = panels_[u] + k0 * 8;
      uint8_t* to = codes_ + u * kOutputs * b_.chunk;
      if (s_.numbers != nullptr) expand(s_.numbers, from, p.k1 - k0, to);
    }
    amx::written();
    ask_for_next(p);
    if (s_.padded <= kShortGroup && p.groups % 2 == 0) {
      for (size_t t = 0; t < t_.tiles; ++t) two_groups<kKind>(p, t);
    } else {
      for (size_t t = 0; t < t_.tiles; t += 2)
        t + 1 < t_.tiles ? tiles<2, kKind>(p, t) : tiles<1, kKind>(p, t);
    }
    return p.k1;
  }

  // Prepares to prefetch the same chunk of the next two panels; the first two panels, which nobody
  // prefetched, prefetch their own.
  void ask_for_next(const Chunk& p) {
    const size_t per_input = s_.codes == Codes::kBytes ? kOutputs : kOutputs / 2;
    ahead_.lines = p.more || p.first ? (p.k1 - p.k0) * per_input / 64 : 0;
    if (p.more && p.k0 == 0)
      for (size_t i = s_.scales; i < s_.stride; i += 64)
        for (size_t u = 0; u < 2; ++u) ask(panels_[u] + 2 * s_.stride + i);
    if (p.first && p.k1 < s_.K_padded)
      for (size_t i = 0; i < ahead_.lines; ++i)
        for (size_t u = 0; u < 2; ++u) ask(panels_[u] + p.k1 * per_input + 64 * i);
    if (!p.more) ahead_.lines = 0;
    for (size_t u = 0; u < 2; ++u) ahead_.next[u] = panels_[u] + 2 * s_.stride + p.k0 * per_input;
    const size_t parts = (t_.tiles + 1) / 2 * ((p.k1 - p.k0) / s_.step);
    ahead_.part = (ahead_.lines + parts - 1) / parts;
  }

  Operands operands(const Chunk& p, size_t tile) const {
    const uint8_t* x = a_.panel + tile * t_.rows * s_.K_padded + p.k0 * t_.rows;
    const bool bytes = s_.codes == Codes::kBytes;
    return {x, x + t_.rows * s_.K_padded, bytes ? panels_[0] + p.k0 * kOutputs : codes_,
            bytes ? panels_[1] + p.k0 * kOutputs : codes_ + kOutputs * b_.chunk};
  }

  // Runs one step of T tiles of rows with both panels. kStore: the tiles begin anew, and their old
  // sums go to memory. Rows come from the second-level cache and are needed again only with other
  // panels: where they are many, a hint keeps them from driving out codes, sums and results.
  template <int T, bool kStore>
  [[gnu::always_inline]] void step(Operands& o, [[maybe_unused]] uint8_t* to) const {
    if constexpr (T == 2) {
      _tile_stream_loadd(4, o.x0, s_.step);
    } else {
      _tile_loadd(4, o.x0, s_.step);
    }
    _tile_loadd(6, o.w0, 64);
    if constexpr (kStore) {
      _tile_stored(0, to, 64);
      _tile_zero(0);
    }
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, o.w1, 64);
    if constexpr (kStore) {
      _tile_stored(1, to + kTile, 64);
      _tile_zero(1);
    }
    _tile_dpbssd(1, 4, 7);
    if constexpr (T == 2) {
      _tile_stream_loadd(5, o.x1, s_.step);
      if constexpr (kStore) {
        _tile_stored(2, to + 2 * kTile, 64);
        _tile_zero(2);
      }
      _tile_dpbssd(2, 5, 6);
      if constexpr (kStore) {
        _tile_stored(3, to + 3 * kTile, 64);
        _tile_zero(3);
      }
      _tile_dpbssd(3, 5, 7);
    }
    next(o);
  }
  // Runs one step of one tile of rows into tiles 2 and 3, for the second of two groups.
  template <bool kStore>
  [[gnu::always_inline]] void second_step(Operands& o, [[maybe_unused]] uint8_t* to) const {
    _tile_loadd(5, o.x0, s_.step);
    _tile_loadd(6, o.w0, 64);
    if constexpr (kStore) {
      _tile_stored(2, to + 2 * kTile, 64);
      _tile_zero(2);
    }
    _tile_dpbssd(2, 5, 6);
    _tile_loadd(7, o.w1, 64);
    if constexpr (kStore) {
      _tile_stored(3, to + 3 * kTile, 64);
      _tile_zero(3);
    }
    _tile_dpbssd(3, 5, 7);
    next(o);
  }
  [[gnu::always_inline]] void next(Operands& o) const {
    o.x0 += t_.rows * s_.step;
    o.x1 += t_.rows * s_.step;
    o.w0 += kOutputs * s_.step;
    o.w1 += kOutputs * s_.step;
  }

  // Multiplies T tiles of rows with both panels.
  template <int T, Kind kKind>
  [[gnu::noinline]] void tiles(const Chunk& p, size_t tile) {
    if (s_.padded > b_.chunk) return part_of_group<T, kKind>(p, tile);
    Operands o = operands(p, tile);
    const size_t steps = steps_, part = (t_.rows + steps - 1) / steps;
    Sums now = in_tiles_, waiting = waiting_;  // copies in registers: nothing waits for a store
    for (size_t g = 0; g < p.groups; ++g) {
      uint8_t* const to = other(waiting.at);
      step<T, true>(o, to);
      // These tiles hold sums that are no longer needed.
      if (T == 1 && (now.tiles == 2 || now.two_groups)) {
        _tile_stored(2, to + 2 * kTile, 64);
        _tile_stored(3, to + 3 * kTile, 64);
      }
      fold<kKind>(waiting, 0, part);
      ahead_.fetch();
      for (size_t i = 1; i < steps; ++i) {
        step<T, false>(o, to);
        fold<kKind>(waiting, i * part, (i + 1) * part);
        ahead_.fetch();
      }
      waiting = now;
      waiting.at = to;
      now = {nullptr, p.group + g, tile * t_.rows, T, false};
    }
    in_tiles_ = now;
    waiting_ = waiting;
  }

  // Multiplies a tile of rows with both panels over two short groups at once: short groups spend
  // their time on results, which are then read and written once for both.
  template <Kind kKind>
  [[gnu::noinline]] void two_groups(const Chunk& p, size_t tile) {
    Operands o = operands(p, tile);
    const size_t steps = steps_, half = (t_.rows + 1) / 2;
    Sums now = in_tiles_, waiting = waiting_;
    for (size_t g = 0; g < p.groups; g += 2) {
      uint8_t* const to = other(waiting.at);
      step<1, true>(o, to);
      for (size_t i = 1; i < steps; ++i) step<1, false>(o, to);
      fold<kKind>(waiting, 0, half);
      second_step<true>(o, to);
      for (size_t i = 1; i < steps; ++i) second_step<false>(o, to);
      fold<kKind>(waiting, half, t_.rows);
      ahead_.fetch();
      waiting = now;
      waiting.at = to;
      now = {nullptr, p.group + g, tile * t_.rows, 1, true};
    }
    in_tiles_ = now;
    waiting_ = waiting;
  }

  // Multiplies a chunk of a group that is longer than a chunk: its sums stay in the tiles from
  // chunk to chunk if there are no other rows, else in memory.
  template <int T, Kind kKind>
  void part_of_group(const Chunk& p, size_t tile) {
    uint8_t* const sums = sums_ + tile * 2 * kTile;
    const bool stay = t_.tiles <= 2;
    if (p.begins) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    } else if (!stay) {
      _tile_loadd(0, sums, 64);
      _tile_loadd(1, sums + kTile, 64);
      if constexpr (T == 2) {
        _tile_loadd(2, sums + 2 * kTile, 64);
        _tile_loadd(3, sums + 3 * kTile, 64);
      }
    }
    Operands o = operands(p, tile);
    for (size_t k = p.k0; k < p.k1; k += s_.step) {
      step<T, false>(o, nullptr);
      ahead_.fetch();
    }
    fold<kKind>(waiting_, 0, t_.rows);
    waiting_.tiles = 0;
    if (stay && !p.ends) return;
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + kTile, 64);
    if constexpr (T == 2) {
      _tile_stored(2, sums + 2 * kTile, 64);
      _tile_stored(3, sums + 3 * kTile, 64);
    }
    amx::written();
    if (p.ends) waiting_ = {sums, p.group, tile * t_.rows, T, false};
  }

  uint8_t* other(const uint8_t* sums) const { return sums == sums_ ? sums_ + 4 * kTile : sums_; }
  template <Kind kKind>
  [[gnu::noinline]] void empty_tiles() {
    if (in_tiles_.tiles == 0) return;
    fold<kKind>(waiting_, 0, t_.rows);
    uint8_t* const to = other(waiting_.at);
    _tile_stored(0, to, 64);
    _tile_stored(1, to + kTile, 64);
    _tile_stored(2, to + 2 * kTile, 64);
    _tile_stored(3, to + 3 * kTile, 64);
    amx::written();
    waiting_ = in_tiles_;
    waiting_.at = to;
    in_tiles_ = {};
  }

  // Adds rows [from, to) of each tile of the sums to the results, between compiler barriers, so
  // that the additions stay where the call is.
  template <Kind kKind>
  [[gnu::always_inline]] void fold(const Sums& w, size_t from, size_t to) {
    amx::written();
    if (to > t_.rows) to = t_.rows;
    if (w.two_groups && w.tiles != 0) {
      fold_rows<2, kKind>(w.at, w.group, w.m, from, to);
    } else {
      for (size_t i = 0; i < w.tiles; ++i)
        fold_rows<1, kKind>(w.at + i * 2 * kTile, w.group, w.m + i * t_.rows, from, to);
    }
    amx::written();
  }
  template <size_t kGroups, Kind kKind>
  [[gnu::always_inline]] void fold_rows(const uint8_t* sums, size_t group, size_t m0, size_t from,
                                        size_t to) {
    __m512 c[2 * kGroups], b[2 * kGroups];
    MOEBIUS_UNROLL for (size_t j = 0; j < 2 * kGroups; ++j) {
      b[j] = c[j] =
          x86_few::scales_at<Zmm>(s_, s_.scale_type, panels_[j % 2] + s_.scales, group + j / 2, 0);
      if constexpr (kKind == Kind::kOffsets)
        b[j] = x86_few::scales_at<Zmm>(s_, s_.scale_type, panels_[j % 2] + s_.offsets_at,
                                       group + j / 2, 0);
    }
    sums += from * 64;
    float* f = acc_ + 2 * (m0 + from) * kOutputs;
    for (size_t m = m0 + from; m < m0 + to; ++m, f += 2 * kOutputs, sums += 64)
      MOEBIUS_UNROLL for (size_t u = 0; u < 2; ++u) {
        __m512 v = _mm512_load_ps(f + u * kOutputs);
        MOEBIUS_UNROLL for (size_t j = 0; j < kGroups; ++j) {
          __m512i sum = _mm512_load_si512(sums + (2 * j + u) * kTile);
          if constexpr (kKind == Kind::kOffsets)  // codes were not counted from 0
            sum = Zmm::add(sum, Zmm::set1(finish_.sums[(group + j) * finish_.rows + m]));
          v = x86_few::fold<Zmm, kKind>(finish_, panels_[u], group + j, 0, m, 0, sum, c[2 * j + u],
                                        b[2 * j + u], v);
        }
        _mm512_store_ps(f + u * kOutputs, v);
      }
  }

  const GemmArgs& a_;
  const Shape s_;
  const RowTiles t_;
  const Blocking b_;
  const size_t steps_;  // steps of a group
  const x86_few::Finish finish_;
  const uint8_t* panels_[2] = {};
  uint8_t* const codes_;
  uint8_t* const sums_;
  float* const acc_;
  Sums in_tiles_{}, waiting_{};
  Ahead ahead_;
};

using E = Vnni<Zmm, Engine::kAmx>;
void gemm(const GemmArgs& args) {
  const Shape s = shape_of(*args.w->problem);
  const RowTiles t = row_tiles(s, Engine::kAmx, args.M);
  if (t.many) return ManyRows(args).run();
  x86_few::gemm<E>(args, s, t);
}
#define MOEBIUS_BODY(f) f
#else
#define MOEBIUS_BODY(f) nullptr
#endif

constexpr x86_int8::Unit kUnit = {
    "x86_amx",
    kAvx2 | kFma | kF16c | kAvx512f | kAvx512bw | kAvx512vnni | kAmxInt8,
    MOEBIUS_BODY(x86_rows::make_row_panel<E>),
    MOEBIUS_BODY(gemm),
    2 * x86_int8::kOutputs,
    32};

constexpr auto kEngine = x86_int8::Engine::kAmx;
constexpr Kernel kKernels[] = {
    x86_int8_kernel<kEngine>(kUnit, "int4", x86_int8::supports_int4),
    x86_int8_kernel<kEngine>(kUnit, "int8", x86_int8::supports_int8),
    x86_int8_kernel<kEngine>(kUnit, "fp4", x86_int8::supports_fp4_tiles)};
// Sums leave the tiles after every group, which costs more than tiles save with 16 inputs: kernels
// with vectors come first.
constexpr Kernel kShortGroups[] = {
    x86_int8_kernel<kEngine>(kUnit, "fp4_16", x86_int8::supports_fp4_short_groups)};

}  // namespace

extern const KernelTable kX86AmxInt8Kernels;
const KernelTable kX86AmxInt8Kernels = {kKernels, sizeof kKernels / sizeof kKernels[0]};
extern const KernelTable kX86AmxShortGroupKernels;
const KernelTable kX86AmxShortGroupKernels = {kShortGroups, 1};

}  // namespace moebius
