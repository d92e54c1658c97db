// SPDX-License-Identifier: Apache-2.0
// Updates the states of recurrent layers, for units of any instruction set (internal linkage), as
// in isa_rows.h. Columns of a state are independent, and sums over rows have one order, so a block
// of columns is advanced over many tokens while its part of the state is in registers or in the
// first-level cache: the bytes are those of token by token.
//
// A unit's `Isa` may hide
//   fused(a, b, c)     a * b + c of a vector, rounded once
//   kManyTokens        vectors of a block of columns that kTokens tokens go through together
//   kDelta             the same by the delta rule, where token goes after token
#pragma once
#include "kernels/isa_rows.h"

namespace moebius {
namespace {

template <class Isa, size_t kWidth>
struct ScanLoops {
  using ScanV = typename Vectors<kWidth>::Floats;
  static constexpr size_t kDelta = 8, kManyTokens = 4, kTokens = 4;
  // Number of columns that are processed together when tokens go one by one.
  static constexpr size_t kChunk = 512;

  MOEBIUS_ALWAYS_INLINE static ScanV fused(ScanV a, ScanV b, ScanV c) {
    for (size_t i = 0; i < kWidth; ++i) c[i] = fma_f32(a[i], b[i], c[i]);
    return c;
  }

  // ---- one vector, or one number ----

  template <class W>
  static constexpr size_t lanes = sizeof(W) / sizeof(float);
  template <class W>
  MOEBIUS_ALWAYS_INLINE static W add_product(W a, W b, W c) {
    if constexpr (lanes<W> == 1) {
      return fma_f32(a, b, c);
    } else {
      return Isa::fused(a, b, c);
    }
  }
  // Returns a vector whose lanes are all s. Subtracts zero, which keeps the sign of -0, unlike
  // adding it.
  template <class W>
  MOEBIUS_ALWAYS_INLINE static W all(float s) {
    return s - W{};
  }
  template <class W>
  MOEBIUS_ALWAYS_INLINE static void put(float* p, W v) {
    __builtin_memcpy(p, &v, sizeof v);
  }

  // Calls f(a vector or number that gives the type, column) for n columns in ascending order.
  template <class F>
  MOEBIUS_ALWAYS_INLINE static void each_vector(size_t n, F f) {
    size_t c = 0;
    for (; c + 4 * kWidth <= n; c += 4 * kWidth)
      for (size_t j = 0; j < 4; ++j) f(ScanV{}, c + kWidth * j);
    for (; c + kWidth <= n; c += kWidth) f(ScanV{}, c);
    for (; c < n; ++c) f(0.0f, c);
  }

  // ---- plain: S = S * decay + key value ----

  // Advances B vectors of columns of the state by T tokens, from token `first` on.
  template <class W, size_t B, size_t T, bool kPerRow>
  MOEBIUS_ALWAYS_INLINE static void plain_tile(const RowScan& s, size_t column, size_t first,
                                               const float* from) {
    W x[T][B], y[T][B];
    const float *decay[T], *key[T], *query[T];
    for (size_t t = 0; t < T; ++t) {
      decay[t] = s.decay.first + (first + t) * s.decay.stride;
      key[t] = s.key.first + (first + t) * s.key.stride;
      query[t] = s.query.first + (first + t) * s.query.stride;
      const float* value = s.value.first + (first + t) * s.value.stride + column;
      const W gain = all<W>(s.gain.first[(first + t) * s.gain.stride]);
      for (size_t j = 0; j < B; ++j) {
        x[t][j] = load_vector<W>(value + lanes<W> * j) * gain;
        y[t][j] = W{};
      }
    }
    float* to = s.to + column;
    from += column;
    for (size_t n = 0; n < s.rows; ++n, from += s.width, to += s.width) {
      W state[B];
      for (size_t j = 0; j < B; ++j) state[j] = load_vector<W>(from + lanes<W> * j);
      for (size_t t = 0; t < T; ++t) {
        const W d = all<W>(decay[t][kPerRow ? n : 0]), k = all<W>(key[t][n]),
                q = all<W>(query[t][n]);
        for (size_t j = 0; j < B; ++j) state[j] = add_product(k, x[t][j], state[j] * d);
        for (size_t j = 0; j < B; ++j) y[t][j] = add_product(q, state[j], y[t][j]);
      }
      for (size_t j = 0; j < B; ++j) put(to + lanes<W> * j, state[j]);
    }
    for (size_t t = 0; t < T; ++t)
      for (size_t j = 0; j < B; ++j)
        put(s.y + (first + t) * s.y_stride + column + lanes<W> * j, y[t][j]);
  }
  template <class W, size_t B, size_t T, bool kPerRow>
  [[gnu::noinline]] static size_t plain_columns(const RowScan& s, size_t column, size_t first,
                                                const float* from) {
    for (; column + B * lanes<W> <= s.width; column += B * lanes<W>)
      plain_tile<W, B, T, kPerRow>(s, column, first, from);
    return column;
  }
  // Advances the whole state by token t, reading and writing it sequentially, which is fastest (14
  // GB/s of state on a Neoverse-V1 core that copies 25; in blocks of columns 8.4).
  template <bool kPerRow>
  [[gnu::noinline]] static void plain_token(const RowScan& s, size_t t, const float* from) {
    const float *decay = s.decay.first + t * s.decay.stride, *key = s.key.first + t * s.key.stride,
                *query = s.query.first + t * s.query.stride,
                *value = s.value.first + t * s.value.stride;
    const float gain = s.gain.first[t * s.gain.stride];
    for (size_t column = 0; column < s.width; column += kChunk) {
      const size_t n = s.width - column < kChunk ? s.width - column : kChunk;
      alignas(64) float x[kChunk], y[kChunk];
      for (size_t c = 0; c < n; ++c) {
        x[c] = value[column + c] * gain;
        y[c] = 0.0f;
      }
      for (size_t row = 0; row < s.rows; ++row) {
        const float *in = from + row * s.width + column, d = decay[kPerRow ? row : 0], k = key[row],
                    q = query[row];
        float* out = s.to + row * s.width + column;
        each_vector(
            n, [ =, &x, &y ]<class W>(W, size_t c) __attribute__((always_inline)) {
              const W state =
                  add_product(all<W>(k), load_vector<W>(x + c), load_vector<W>(in + c) * all<W>(d));
              put(y + c, add_product(all<W>(q), state, load_vector<W>(y + c)));
              put(out + c, state);
            });
      }
      __builtin_memcpy(s.y + t * s.y_stride + column, y, n * sizeof(float));
    }
  }
  template <bool kPerRow>
  static void plain(const RowScan& s) {
    const float* from = s.from;
    size_t t = 0;
    for (; t + kTokens <= s.tokens; t += kTokens, from = s.to) {
      size_t at = plain_columns<ScanV, Isa::kManyTokens, kTokens, kPerRow>(s, 0, t, from);
      at = plain_columns<ScanV, 1, kTokens, kPerRow>(s, at, t, from);
      plain_columns<float, 1, kTokens, kPerRow>(s, at, t, from);
    }
    for (; t < s.tokens; ++t, from = s.to) plain_token<kPerRow>(s, t, from);
  }

  // ---- delta rule ----

  // Finishes token t and begins token t + 1 in one pass over the rows of the state. A token has two
  // halves, because the change of a row depends on sums over all rows.
  template <class W, size_t B, bool kPerRow, bool kFinish, bool kBegin>
  MOEBIUS_ALWAYS_INLINE static void delta_pass(const RowScan& s, size_t column, size_t t,
                                               const float* from, W (&change)[B]) {
    const size_t next = kFinish ? t + 1 : t;
    const float *key = s.key.first + t * s.key.stride, *query = s.query.first + t * s.query.stride,
                *decay = s.decay.first + next * s.decay.stride,
                *next_key = s.key.first + next * s.key.stride;
    W y[B], memory[B];
    for (size_t j = 0; j < B; ++j) y[j] = memory[j] = W{};
    float* to = s.to + column;
    from += column;
    for (size_t n = 0; n < s.rows; ++n, from += s.width, to += s.width) {
      W state[B];
      for (size_t j = 0; j < B; ++j) state[j] = load_vector<W>(from + lanes<W> * j);
      if constexpr (kFinish) {
        const W k = all<W>(key[n]), q = all<W>(query[n]);
        for (size_t j = 0; j < B; ++j) state[j] = add_product(k, change[j], state[j]);
        for (size_t j = 0; j < B; ++j) y[j] = add_product(q, state[j], y[j]);
      }
      if constexpr (kBegin) {
        const W d = all<W>(decay[kPerRow ? n : 0]), k = all<W>(next_key[n]);
        for (size_t j = 0; j < B; ++j) state[j] = state[j] * d;
        for (size_t j = 0; j < B; ++j) memory[j] = add_product(k, state[j], memory[j]);
      }
      for (size_t j = 0; j < B; ++j) put(to + lanes<W> * j, state[j]);
    }
    if constexpr (kFinish)
      for (size_t j = 0; j < B; ++j) put(s.y + t * s.y_stride + column + lanes<W> * j, y[j]);
    if constexpr (kBegin) {
      const float* value = s.value.first + next * s.value.stride + column;
      const W gain = all<W>(s.gain.first[next * s.gain.stride]);
      for (size_t j = 0; j < B; ++j)
        change[j] = (load_vector<W>(value + lanes<W> * j) - memory[j]) * gain;
    }
  }
  template <class W, size_t B, bool kPerRow>
  [[gnu::noinline]] static size_t delta_columns(const RowScan& s, size_t column) {
    for (; column + B * lanes<W> <= s.width; column += B * lanes<W>) {
      W change[B];
      delta_pass<W, B, kPerRow, false, true>(s, column, 0, s.from, change);
      for (size_t t = 0; t + 1 < s.tokens; ++t)
        delta_pass<W, B, kPerRow, true, true>(s, column, t, s.to, change);
      delta_pass<W, B, kPerRow, true, false>(s, column, s.tokens - 1, s.to, change);
    }
    return column;
  }
  // Advances the whole state by one token, reading it sequentially as plain_token does. Rows are
  // read twice, because the change of a row depends on all rows, and written once.
  template <bool kPerRow>
  [[gnu::noinline]] static void delta_token(const RowScan& s) {
    const float *decay = s.decay.first, *key = s.key.first, *query = s.query.first;
    for (size_t column = 0; column < s.width; column += kChunk) {
      const size_t n = s.width - column < kChunk ? s.width - column : kChunk;
      alignas(64) float change[kChunk], y[kChunk];
      for (size_t c = 0; c < n; ++c) change[c] = y[c] = 0.0f;
      for (size_t row = 0; row < s.rows; ++row) {
        const float *in = s.from + row * s.width + column, d = decay[kPerRow ? row : 0],
                    k = key[row];
        each_vector(
            n, [ =, &change ]<class W>(W, size_t c) __attribute__((always_inline)) {
              put(change + c, add_product(all<W>(k), load_vector<W>(in + c) * all<W>(d),
                                          load_vector<W>(change + c)));
            });
      }
      const float gain = s.gain.first[0];
      for (size_t c = 0; c < n; ++c) change[c] = (s.value.first[column + c] - change[c]) * gain;
      for (size_t row = 0; row < s.rows; ++row) {
        const float *in = s.from + row * s.width + column, d = decay[kPerRow ? row : 0],
                    k = key[row], q = query[row];
        float* out = s.to + row * s.width + column;
        each_vector(
            n, [ =, &change, &y ]<class W>(W, size_t c) __attribute__((always_inline)) {
              const W state = add_product(all<W>(k), load_vector<W>(change + c),
                                          load_vector<W>(in + c) * all<W>(d));
              put(y + c, add_product(all<W>(q), state, load_vector<W>(y + c)));
              put(out + c, state);
            });
      }
      __builtin_memcpy(s.y + column, y, n * sizeof(float));
    }
  }
  template <bool kPerRow>
  static void delta(const RowScan& s) {
    if (s.tokens == 1) return delta_token<kPerRow>(s);
    size_t at = delta_columns<ScanV, Isa::kDelta, kPerRow>(s, 0);
    at = delta_columns<ScanV, 1, kPerRow>(s, at);
    delta_columns<float, 1, kPerRow>(s, at);
  }

  static void scan(const RowScan& what) noexcept {
    if (what.tokens == 0) return;
    RowScan s = what;
    if (s.from == nullptr) {
      __builtin_memset(s.to, 0, s.rows * s.width * sizeof(float));
      s.from = s.to;
    }
    if (s.delta)
      s.decay_per_row ? delta<true>(s) : delta<false>(s);
    else
      s.decay_per_row ? plain<true>(s) : plain<false>(s);
  }

  // ---- convolution ----

  template <class W>
  MOEBIUS_ALWAYS_INLINE static void convolve_at(const RowTaps& t, float* y, size_t n, size_t i) {
    W sum = t.bias == nullptr ? W{} : load_vector<W>(t.bias + i);
    for (size_t j = 0; j < t.count; ++j)
      if (t.x[j] != nullptr)
        sum = sum + load_vector<W>(t.taps + j * n + i) * load_vector<W>(t.x[j] + i);
    put(y + i, sum);
  }
  static void convolve(const RowTaps& t, float* y, size_t n) noexcept {
    size_t i = 0;
    for (; i + kWidth <= n; i += kWidth) convolve_at<ScanV>(t, y, n, i);
    for (; i < n; ++i) convolve_at<float>(t, y, n, i);
  }
};

}  // namespace
}  // namespace moebius
