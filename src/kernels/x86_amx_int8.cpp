// SPDX-License-Identifier: Apache-2.0
// The int8 family on CPUs with AMX: TDPBSSD adds the products of 16 rows and 16 outputs over 64
// inputs. Few rows leave tiles empty and go by vectors, from the same packed weights. Layouts:
// x86_int8.h.
#include "kernels/x86_avx512_vectors.h"
#include "kernels/x86_int8.h"
#include "kernels/x86_int8_rows.h"

namespace moebius {
namespace {

#ifdef __x86_64__
using namespace x86_int8;
using x86_few::Kind;

// Tiles 0 to 3 hold sums of 2 tiles of rows by 2 panels, 4 and 5 rows, 6 and 7 weights.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
  TileConfig(size_t x_rows, size_t step) {
    for (size_t i = 0; i < 8; ++i) {
      rows[i] = static_cast<uint8_t>(i < 6 ? x_rows : step / 4);
      row_bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? step : 64);
    }
  }
};

// Tile instructions touch memory that the compiler does not know of.
[[gnu::always_inline]] inline void memory_barrier() { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

// Codes of one panel as signed operands.
template <Codes kCodes>
inline void expand(const uint8_t* from, size_t inputs, uint8_t* to) {
  const __m512i low = _mm512_set1_epi8(15), eight = _mm512_set1_epi8(8);
  const __m512i twice = _mm512_broadcast_i32x4(
      _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
  for (size_t i = 0; i < inputs; i += 8, from += 64, to += 128) {
    const __m512i v = _mm512_load_si512(from);
    const __m512i even = _mm512_and_si512(v, low),
                  odd = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
    if constexpr (kCodes == Codes::kFp4) {
      _mm512_store_si512(to, _mm512_shuffle_epi8(twice, even));
      _mm512_store_si512(to + 64, _mm512_shuffle_epi8(twice, odd));
    } else {
      _mm512_store_si512(to, _mm512_sub_epi8(even, eight));
      _mm512_store_si512(to + 64, _mm512_sub_epi8(odd, eight));
    }
  }
}

[[gnu::always_inline]] inline void ask(const uint8_t* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
}
// Lines of two panels, asked for in equal parts.
struct Ahead {
  const uint8_t* next[2] = {};
  size_t lines = 0, part = 0;  // left, of each panel; of a part
  void fetch() {
    for (size_t i = 0; i < part && lines > 0; ++i, --lines)
      for (const uint8_t*& at : next) {
        ask(at);
        at += 64;
      }
  }
};
class ManyRows {
 public:
  explicit ManyRows(const GemmArgs& args)
      : a_(args),
        s_(shape_of(*args.w->problem)),
        t_(row_tiles(Engine::kAmx, args.M)),
        b_(blocking_of(s_, t_)),
        finish_(args, s_, t_),
        codes_(args.scratch),
        scales_(reinterpret_cast<float*>(args.scratch + b_.scales)),
        sums_(args.scratch + b_.sums),
        acc_(reinterpret_cast<float*>(args.scratch + b_.acc)) {}

  void run() {
    const TileConfig config(t_.rows, s_.step);
    _tile_loadconfig(&config);
    for (size_t n = a_.n0; n < a_.n1; n += 2 * kOutputs) {
      const bool two = n + kOutputs < a_.n1;
      const uint8_t* left = a_.w->data + n / kOutputs * s_.stride;
      const uint8_t* const panels[2] = {left, two ? left + s_.stride : left};
      __builtin_memset(acc_, 0, t_.padded() * 2 * kOutputs * sizeof(float));
      for (size_t k = 0; k < s_.K_padded;) k = piece(panels, n, k);
      for (size_t m = 0; m < a_.M; ++m)
        for (size_t u = 0; u < (two ? 2 : 1); ++u) {
          const size_t to = n + u * kOutputs;
          const __m512 f = _mm512_load_ps(acc_ + (2 * m + u) * kOutputs);
          const __m512 y = x86_few::last_factors<Zmm>(finish_, panels[u], 0, m, f);
          x86_few::store<Zmm>(a_.y + m * a_.ldy + (to - a_.n0), y, to, a_.n1);
        }
    }
    _tile_release();
  }

 private:
  static constexpr size_t kShortGroup = 64;  // inputs
  struct Piece {
    const uint8_t* const* panels;
    size_t k0, k1, group, groups;  // inputs; groups of which it has a part
    bool begins, ends;             // of its (only) group, where it has a part of one
    bool first, more;              // panels of the call, panels after these
  };

  // Returns where it ends.
  size_t piece(const uint8_t* const (&panels)[2], size_t n, size_t k0) {
    Piece p{};
    p.panels = panels;
    p.first = n == a_.n0, p.more = n + 2 * kOutputs < a_.n1;
    p.k0 = k0, p.k1 = k0 + b_.piece < s_.K_padded ? k0 + b_.piece : s_.K_padded;
    p.group = k0 / s_.padded;
    p.groups = s_.padded <= b_.piece ? (p.k1 - k0) / s_.padded : 1;
    if (s_.padded > b_.piece) {
      const size_t end = (p.group + 1) * s_.padded;
      p.k1 = k0 + b_.piece < end ? k0 + b_.piece : end;
    }
    p.begins = k0 % s_.padded == 0, p.ends = p.k1 % s_.padded == 0;
    for (size_t u = 0; u < 2; ++u) {
      const uint8_t* from = panels[u] + k0 * 8;
      uint8_t* to = codes_ + u * kOutputs * b_.piece;
      if (s_.codes == Codes::kNibbles) expand<Codes::kNibbles>(from, p.k1 - k0, to);
      if (s_.codes == Codes::kFp4) expand<Codes::kFp4>(from, p.k1 - k0, to);
      for (size_t g = 0; g < p.groups; ++g)
        _mm512_store_ps(
            scales_ + (2 * g + u) * kOutputs,
            x86_few::scales_at<Zmm>(
                s_.scale_type, panels[u] + s_.scales + (p.group + g) * s_.group_scale_bytes, 0));
    }
    memory_barrier();
    ask_for_next(p);
    switch (finish_.kind()) {
      case Kind::kPlain:
        all_tiles<Kind::kPlain>(p);
        break;
      case Kind::kScaled:
        all_tiles<Kind::kScaled>(p);
        break;
      case Kind::kAny:
        all_tiles<Kind::kAny>(p);
        break;
    }
    return p.k1;
  }

  // The same piece of the next two panels; nobody asks for the first two, so those ask for their own.
  void ask_for_next(const Piece& p) {
    const size_t per_input = s_.codes == Codes::kBytes ? kOutputs : kOutputs / 2;
    ahead_.lines = p.more || p.first ? (p.k1 - p.k0) * per_input / 64 : 0;
    if (p.more && p.k0 == 0)
      for (size_t i = s_.scales; i < s_.stride; i += 64)
        for (size_t u = 0; u < 2; ++u) ask(p.panels[u] + 2 * s_.stride + i);
    if (p.first && p.k1 < s_.K_padded)
      for (size_t i = 0; i < ahead_.lines; ++i)
        for (size_t u = 0; u < 2; ++u) ask(p.panels[u] + p.k1 * per_input + 64 * i);
    if (!p.more) ahead_.lines = 0;
    for (size_t u = 0; u < 2; ++u) ahead_.next[u] = p.panels[u] + 2 * s_.stride + p.k0 * per_input;
    const size_t parts = (t_.tiles + 1) / 2 * p.groups;
    ahead_.part = (ahead_.lines + parts - 1) / parts;
  }

  template <Kind kKind>
  void all_tiles(const Piece& p) {
    if (s_.padded <= kShortGroup && p.groups % 2 == 0) {
      for (size_t t = 0; t < t_.tiles; ++t) two_groups<kKind>(p, t);
    } else {
      for (size_t t = 0; t < t_.tiles; t += 2)
        t + 1 < t_.tiles ? tiles<2, kKind>(p, t) : tiles<1, kKind>(p, t);
    }
    fold<kKind>(p);
  }

  // T tiles of rows against both panels. While the tiles of a group are multiplied, the sums of the
  // one before, which wait in memory, are added to the results.
  template <int T, Kind kKind>
  [[gnu::noinline]] void tiles(const Piece& p, size_t tile) {
    const size_t step = s_.step, x_step = t_.rows * step, w_step = kOutputs * step;
    const uint8_t* x0 = a_.panel + tile * t_.rows * s_.K_padded + p.k0 * t_.rows;
    const uint8_t* x1 = x0 + t_.rows * s_.K_padded;
    const bool bytes = s_.codes == Codes::kBytes;
    const uint8_t* w0 = bytes ? p.panels[0] + p.k0 * kOutputs : codes_;
    const uint8_t* w1 = bytes ? p.panels[1] + p.k0 * kOutputs : codes_ + kOutputs * b_.piece;
    const size_t steps = (p.k1 - p.k0) / p.groups / step;
    constexpr size_t kTile = 16 * kOutputs * 4;
    uint8_t* sums = s_.padded <= b_.piece ? sums_ : sums_ + tile * 2 * kTile;
    for (size_t g = 0; g < p.groups; ++g) {
      if (p.begins) {
        _tile_zero(0);
        _tile_zero(1);
        if constexpr (T == 2) {
          _tile_zero(2);
          _tile_zero(3);
        }
      } else {
        _tile_loadd(0, sums, 64);
        _tile_loadd(1, sums + kTile, 64);
        if constexpr (T == 2) {
          _tile_loadd(2, sums + 2 * kTile, 64);
          _tile_loadd(3, sums + 3 * kTile, 64);
        }
      }
      for (size_t i = 0; i < steps; ++i) {
        _tile_loadd(4, x0, step);
        _tile_loadd(6, w0, 64);
        _tile_dpbssd(0, 4, 6);
        _tile_loadd(7, w1, 64);
        _tile_dpbssd(1, 4, 7);
        if constexpr (T == 2) {
          _tile_loadd(5, x1, step);
          _tile_dpbssd(2, 5, 6);
          _tile_dpbssd(3, 5, 7);
          x1 += x_step;
        }
        x0 += x_step, w0 += w_step, w1 += w_step;
      }
      ahead_.fetch();
      fold<kKind>(p);
      if (s_.padded <= b_.piece) sums = sums == sums_ ? sums_ + 4 * kTile : sums_;
      _tile_stored(0, sums, 64);
      _tile_stored(1, sums + kTile, 64);
      if constexpr (T == 2) {
        _tile_stored(2, sums + 2 * kTile, 64);
        _tile_stored(3, sums + 3 * kTile, 64);
      }
      memory_barrier();
      if (p.ends) waiting_ = {sums, g, tile * t_.rows, T, false};
    }
  }

  // Short groups spend their time on results: a tile of rows against both panels over two groups, so
  // that results are read and written once for both.
  template <Kind kKind>
  [[gnu::noinline]] void two_groups(const Piece& p, size_t tile) {
    const size_t step = s_.step, x_step = t_.rows * step, w_step = kOutputs * step;
    const uint8_t* x = a_.panel + tile * t_.rows * s_.K_padded + p.k0 * t_.rows;
    const bool bytes = s_.codes == Codes::kBytes;
    const uint8_t* w0 = bytes ? p.panels[0] + p.k0 * kOutputs : codes_;
    const uint8_t* w1 = bytes ? p.panels[1] + p.k0 * kOutputs : codes_ + kOutputs * b_.piece;
    const size_t steps = s_.padded / step;
    constexpr size_t kTile = 16 * kOutputs * 4;
    uint8_t* sums = sums_;
    for (size_t g = 0; g < p.groups; g += 2) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (size_t i = 0; i < steps; ++i, x += x_step, w0 += w_step, w1 += w_step) {
        _tile_loadd(4, x, step);
        _tile_loadd(6, w0, 64);
        _tile_dpbssd(0, 4, 6);
        _tile_loadd(7, w1, 64);
        _tile_dpbssd(1, 4, 7);
      }
      for (size_t i = 0; i < steps; ++i, x += x_step, w0 += w_step, w1 += w_step) {
        _tile_loadd(5, x, step);
        _tile_loadd(6, w0, 64);
        _tile_dpbssd(2, 5, 6);
        _tile_loadd(7, w1, 64);
        _tile_dpbssd(3, 5, 7);
      }
      ahead_.fetch();
      fold<kKind>(p);
      sums = sums == sums_ ? sums_ + 4 * kTile : sums_;
      _tile_stored(0, sums, 64);
      _tile_stored(1, sums + kTile, 64);
      _tile_stored(2, sums + 2 * kTile, 64);
      _tile_stored(3, sums + 3 * kTile, 64);
      memory_barrier();
      waiting_ = {sums, g, tile * t_.rows, 1, true};
    }
  }

  // Sums of tiles of rows from row m on over group g of a piece that are not yet part of the results.
  struct Waiting {
    const uint8_t* sums;
    size_t g, m, tiles;
    bool two_groups;  // of one tile, instead of one group of the tiles
  };
  template <Kind kKind>
  [[gnu::noinline]] void fold(const Piece& p) {
    if (waiting_.tiles != 0 && waiting_.two_groups) {
      fold_two<kKind>(p, waiting_.g, waiting_.m, waiting_.sums);
      waiting_.tiles = 0;
    }
    for (size_t i = 0; i < waiting_.tiles; ++i)
      fold<kKind>(p, waiting_.g, waiting_.m + i * t_.rows,
                  waiting_.sums + i * 2 * 16 * kOutputs * 4);
    waiting_.tiles = 0;
  }
  template <Kind kKind>
  [[gnu::always_inline]] void fold_two(const Piece& p, size_t g, size_t m, const uint8_t* sums) {
    constexpr size_t kTile = 16 * kOutputs * 4;
    float* f = acc_ + 2 * m * kOutputs;
    const size_t rows = a_.M - m < t_.rows ? a_.M - m : t_.rows;
    __m512 c[4];
    MOEBIUS_UNROLL for (size_t j = 0; j < 4; ++j) c[j] =
        _mm512_load_ps(scales_ + (2 * g + j) * kOutputs);
    for (size_t i = 0; i < rows; ++i, f += 2 * kOutputs, sums += 64)
      MOEBIUS_UNROLL for (size_t u = 0; u < 2; ++u) {
        __m512 v = _mm512_load_ps(f + u * kOutputs);
        MOEBIUS_UNROLL for (size_t j = 0; j < 2; ++j) {
          const __m512i s = _mm512_load_si512(sums + (2 * j + u) * kTile);
          if constexpr (kKind == Kind::kPlain) {
            v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), c[2 * j + u], v);
          } else {
            v = x86_few::fold<Zmm, kKind>(finish_, p.panels[u], p.group + g + j, 0, m + i, 0, s,
                                          c[2 * j + u], v);
          }
        }
        _mm512_store_ps(f + u * kOutputs, v);
      }
  }
  template <Kind kKind>
  [[gnu::always_inline]] void fold(const Piece& p, size_t g, size_t m, const uint8_t* sums) {
    const __m512 c0 = _mm512_load_ps(scales_ + 2 * g * kOutputs),
                 c1 = _mm512_load_ps(scales_ + (2 * g + 1) * kOutputs);
    float* f = acc_ + 2 * m * kOutputs;
    const size_t rows = a_.M - m < t_.rows ? a_.M - m : t_.rows;
    for (size_t i = 0; i < rows; ++i, f += 2 * kOutputs, sums += 64) {
      const __m512i s0 = _mm512_load_si512(sums), s1 = _mm512_load_si512(sums + 16 * kOutputs * 4);
      const __m512 f0 = _mm512_load_ps(f), f1 = _mm512_load_ps(f + kOutputs);
      if constexpr (kKind == Kind::kPlain) {
        _mm512_store_ps(f, _mm512_fmadd_ps(_mm512_cvtepi32_ps(s0), c0, f0));
        _mm512_store_ps(f + kOutputs, _mm512_fmadd_ps(_mm512_cvtepi32_ps(s1), c1, f1));
      } else {
        const size_t group = p.group + g;
        _mm512_store_ps(
            f, x86_few::fold<Zmm, kKind>(finish_, p.panels[0], group, 0, m + i, 0, s0, c0, f0));
        _mm512_store_ps(f + kOutputs, x86_few::fold<Zmm, kKind>(finish_, p.panels[1], group, 0,
                                                                m + i, 0, s1, c1, f1));
      }
    }
  }

  const GemmArgs& a_;
  const Shape s_;
  const RowTiles t_;
  const Blocking b_;
  const x86_few::Finish finish_;
  uint8_t* const codes_;
  float* const scales_;
  uint8_t* const sums_;
  float* const acc_;
  Waiting waiting_{};
  Ahead ahead_;
};

void make_panel(const PanelArgs& args) {
  x86_rows::PanelMaker(args, Engine::kAmx, x86_few::bias_of<Zmm>(*args.problem)).make();
}
void gemm(const GemmArgs& args) {
  if (row_tiles(Engine::kAmx, args.M).many) return ManyRows(args).run();
  x86_few::gemm<Zmm>(args, Engine::kAmx);
}
#define MOEBIUS_BODY(f) f
#else
#define MOEBIUS_BODY(f) nullptr
#endif

constexpr Kernel kernel(const char* codec, const char* (*fits)(const Problem&)) {
  return {"x86_amx",
          codec,
          Arch::kX86_64,
          kAvx2 | kFma | kF16c | kAvx512f | kAvx512bw | kAvx512vnni | kAmxInt8,
          x86_int8::kOutputs,
          fits,
          x86_int8::numerics,
          x86_int8::packed_bytes,
          MOEBIUS_BODY(pack_x86_int8),
          prepared_row_bytes,
          MOEBIUS_BODY(prepare_rows_canonical),
          x86_int8::panel_bytes_amx,
          MOEBIUS_BODY(make_panel),
          x86_int8::scratch_bytes_amx,
          MOEBIUS_BODY(gemm)};
}
constexpr Kernel kKernels[] = {kernel("int4", x86_int8::supports_int4),
                               kernel("int8", x86_int8::supports_int8),
                               kernel("fp4", x86_int8::supports_fp4)};

}  // namespace

extern const KernelTable kX86AmxInt8Kernels;
const KernelTable kX86AmxInt8Kernels = {kKernels, sizeof kKernels / sizeof kKernels[0]};

}  // namespace moebius
