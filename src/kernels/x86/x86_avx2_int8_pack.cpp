// SPDX-License-Identifier: Apache-2.0
// Packs weights for every kernel of the int8 family on x86-64, through one external function
// (layouts: x86_int8.h). Rows of the file in the packed form's order are transposed by words of 4
// bytes in place; all others are first copied in that order to a small buffer.
#include "kernels/x86/x86_byte_scales.h"
#include "kernels/x86/x86_int8.h"
#include "kernels/x86/x86_packing.h"

#ifdef MOEBIUS_KERNEL_BODIES
#include <immintrin.h>

#include "base/numeric.h"

#define MOEBIUS_UNROLL _Pragma("GCC unroll 8")

namespace moebius {
namespace {
namespace x86_packing {

using namespace x86_int8;

constexpr size_t kWord = 4;  // consecutive bytes of one output

// Transposes 8 rows of 8 words each, `stride` bytes apart: word j of row i becomes word i of row j.
[[gnu::always_inline]] inline void transpose(const __m256i (&r)[8], uint8_t* out, size_t stride) {
  __m256i a[8], b[8];
  MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    a[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  MOEBIUS_UNROLL for (int i = 0; i < 2; ++i) {
    b[4 * i] = _mm256_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm256_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm256_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm256_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
  MOEBIUS_UNROLL for (size_t j = 0; j < 4; ++j) {
    auto* low = reinterpret_cast<__m256i*>(out + j * stride);
    auto* high = reinterpret_cast<__m256i*>(out + (j + 4) * stride);
    _mm256_storeu_si256(low, _mm256_permute2x128_si256(b[j], b[j + 4], 0x20));
    _mm256_storeu_si256(high, _mm256_permute2x128_si256(b[j], b[j + 4], 0x31));
  }
}

constexpr size_t kStepWords = 8;  // words at a time
inline size_t inputs_of_word(const Shape& s) { return s.codes == Codes::kBytes ? 4 : 8; }

// Transposes `words` words of 16 rows to 64 bytes per word, with `flip` XORed to each byte.
inline void turn(const uint8_t* const (&rows)[kOutputs], size_t words, uint8_t flip, Ahead& ahead,
                 uint8_t* out) {
  const __m256i sign = _mm256_set1_epi8(static_cast<char>(flip));
  size_t i = 0;
  for (; i + kStepWords <= words; i += kStepWords, out += kStepWords * 64) {
    ahead.ask();
    for (size_t half = 0; half < 2; ++half) {
      __m256i r[8];
      MOEBIUS_UNROLL for (size_t o = 0; o < 8; ++o) {
        const uint8_t* from = rows[8 * half + o] + i * kWord;
        ahead.ask_in(from);
        r[o] = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)), sign);
      }
      transpose(r, out + 32 * half, 64);
    }
  }
  const uint32_t flips = 0x01010101u * flip;
  for (; i < words; ++i, out += 64)
    for (size_t o = 0; o < kOutputs; ++o) {
      uint32_t v;
      __builtin_memcpy(&v, rows[o] + i * kWord, kWord);
      v ^= flips;
      __builtin_memcpy(out + o * kWord, &v, kWord);
    }
}

// Packs a panel of 16 outputs from row n of w on; rows past N repeat the last scales and have
// weight 0.
class PanelPacker {
 public:
  PanelPacker(const PackArgs& a, const Shape& s, size_t n, uint8_t* out, const Ahead& ahead)
      : a_(a), p_(*a.problem), w_(*a.w), s_(s), n_(n), out_(out), ahead_(ahead) {
    for (size_t o = 0; o < kOutputs; ++o) {
      const size_t r = n + o < w_.N ? n + o : w_.N - 1;
      rows_[o] = w_.codes + r * w_.row_bytes;
      scale_rows_[o] =
          (w_.block_n == 1 ? r + w_.n_phase : (r + w_.n_phase) / w_.block_n) * w_.scale_stride;
    }
  }

  void pack() {
    put_codes();
    put_scales(w_.scales, w_.super_scales, s_.scales);
    if (s_.offsets) put_scales(w_.offsets, w_.super_offsets, s_.offsets_at);
    if (p_.zero_points) put_zeros();
    if (s_.row_zeros) put_sums();
    if (s_.vllm) put_row_sums();
  }

 private:
  size_t words(size_t inputs) const { return inputs / inputs_of_word(s_); }

  void put_codes() {
    const bool as_stored = s_.codes == Codes::kBytes
                               ? w_.code == CodeType::kInt8 || w_.code == CodeType::kInt8Offset
                               : w_.code == CodeType::kInt4Offset || w_.code == CodeType::kFp4 ||
                                     w_.code == CodeType::kLut4;
    const bool side_by_side = s_.padded == s_.length || s_.groups == 1;
    size_t done = 0;  // inputs that are packed
    if (as_stored && side_by_side && a_.columns == nullptr && n_ + kOutputs <= w_.N) {
      const size_t count = words(p_.K);
      turn(rows_, count, w_.code == CodeType::kInt8Offset ? 0x80 : 0, ahead_, out_);
      done = count * inputs_of_word(s_);
    }
    for (size_t k = done; k < s_.K_padded; k = put_any(k)) {
    }
  }

  // Packs inputs from k on, as many as the buffer holds of this group; returns the input after
  // them.
  size_t put_any(size_t k) {
    constexpr size_t kInputs = 256;
    const size_t g = k / s_.padded, begin = g * s_.padded;
    const size_t end = begin + s_.padded < k + kInputs ? begin + s_.padded : k + kInputs;
    // Inputs of the matrix that belong to this group.
    const size_t from = g * s_.length + (k - begin);
    size_t to = g * s_.length + s_.length < p_.K ? g * s_.length + s_.length : p_.K;
    if (to > from + (end - k)) to = from + (end - k);
    alignas(32) uint8_t buffer[kOutputs][kInputs];
    const uint8_t* rows[kOutputs];
    for (size_t o = 0; o < kOutputs; ++o) {
      __builtin_memset(buffer[o], s_.codes == Codes::kNibbles ? 0x88 : 0, kInputs);
      rows[o] = buffer[o];
      if (n_ + o >= w_.N || from >= to) continue;
      if (s_.codes == Codes::kBytes) {
        unpack_int8(w_, n_ + o, from, to, a_.columns, reinterpret_cast<int8_t*>(buffer[o]));
      } else {
        unpack_nibbles(w_, n_ + o, from, to, a_.columns, buffer[o]);
      }
    }
    turn(rows, words(end - k), 0, ahead_, out_ + words(k) * 64);
    return end;
  }

  float scale(const uint8_t* stored, size_t o, size_t group) const {
    float v;
    const uint8_t* at = stored + (scale_rows_[o] + group) * scale_size(w_.scale_type);
    decode_scales(w_.scale_type, at, 1, &v);
    return v;
  }
  // Writes the scales as T from `at` of the panel on: calls f(group of scales) for every group from
  // `first` on and every output.
  template <class T, class F>
  [[gnu::always_inline]] void put_scales_as(size_t at, const F& f, size_t first = 0) const {
    uint8_t* out = out_ + at + first * s_.group_scale_bytes;
    for (size_t g = first; g < s_.groups; ++g) {
      const size_t group = s_.per_scale == 1 ? g : g / s_.per_scale;
      for (size_t o = 0; o < kOutputs; ++o, out += sizeof(T)) {
        const T v = f(o, group);
        __builtin_memcpy(out, &v, sizeof(T));
      }
    }
  }
  // Writes stored scales, or offsets, to `to` of the panel; above: those of super-blocks.
  void put_scales(const uint8_t* stored, const uint8_t* above, size_t to) const {
    const bool byte = w_.scale_type == ScaleType::kFp8 || w_.scale_type == ScaleType::kE8m0;
    const bool as_stored = (s_.scale_type == Scales::kBf16 && w_.scale_type == ScaleType::kBf16) ||
                           s_.scale_type == Scales::kF16;
    if (as_stored) {
      put_scales_as<uint16_t>(to, [&](size_t o, size_t g) {
        uint16_t v;
        __builtin_memcpy(&v, stored + 2 * (scale_rows_[o] + g), 2);
        return v;
      });
    } else if (s_.scale_type == Scales::kTwoLevel) {
      put_scales_as<uint8_t>(to, [&](size_t o, size_t g) { return stored[scale_rows_[o] + g]; });
      for (size_t i = 0; i < super_blocks(p_) * kOutputs; ++i) {
        const size_t first = (scale_rows_[i % kOutputs] + w_.super_phase) / w_.super_groups;
        __builtin_memcpy(out_ + to + s_.supers + 4 * i, above + 4 * (first + i / kOutputs), 4);
      }
    } else if (byte) {
      const bool e4m3 = w_.scale_type == ScaleType::kFp8;
      const uint8_t* rows[kOutputs];
      for (size_t o = 0; o < kOutputs; ++o) rows[o] = stored + scale_rows_[o];
      const size_t done =
          s_.per_scale != 1 || s_.halved
              ? 0
              : byte_scales::put(rows, s_.groups, e4m3, out_ + to, s_.group_scale_bytes);
      const byte_scales::Table& table = e4m3 ? byte_scales::kE4m3 : byte_scales::kE8m0;
      const float half = s_.halved ? 0.5f : 1.0f;
      put_scales_as<uint16_t>(
          to,
          [&](size_t o, size_t g) {
            return f32_to_bf16(bf16_to_f32(table.bf16[rows[o][g]]) * half);
          },
          done);
    } else if (s_.scale_type == Scales::kBf16) {  // mode vllm rounds to bf16
      put_scales_as<uint16_t>(to,
                              [&](size_t o, size_t g) { return f32_to_bf16(scale(stored, o, g)); });
    } else {
      put_scales_as<float>(to, [&](size_t o, size_t g) { return scale(stored, o, g); });
    }
  }

  int zero(size_t o, size_t g) const {
    return w_.zero_points != nullptr ? w_.zero_points[scale_rows_[o] + g / s_.per_scale] : 0;
  }
  void put_zeros() const {
    auto* out = reinterpret_cast<int8_t*>(out_ + s_.zeros);
    for (size_t g = 0; g < s_.groups; ++g)
      for (size_t o = 0; o < kOutputs; ++o) out[g * kOutputs + o] = static_cast<int8_t>(zero(o, g));
  }

  // Writes the sums of the packed codes; padding of a group counts as zero.
  void put_sums() const {
    const __m256i ones = _mm256_set1_epi16(1), one = _mm256_set1_epi8(1),
                  low = _mm256_set1_epi8(15);
    const bool bytes = s_.codes == Codes::kBytes;
    for (size_t g = 0; g < s_.groups; ++g) {
      const size_t left = p_.K - g * s_.length, inputs = left < s_.length ? left : s_.length;
      for (size_t half = 0; half < 2; ++half) {
        __m256i sum = _mm256_setzero_si256();
        const uint8_t* at = out_ + g * s_.group_codes + 32 * half;
        for (size_t i = 0; i < s_.group_codes; i += 64) {
          const __m256i v = _mm256_load_si256(reinterpret_cast<const __m256i*>(at + i));
          const __m256i pairs =
              bytes ? _mm256_maddubs_epi16(one, v)
                    : _mm256_maddubs_epi16(
                          _mm256_add_epi8(_mm256_and_si256(v, low),
                                          _mm256_and_si256(_mm256_srli_epi16(v, 4), low)),
                          one);
          sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
        }
        alignas(32) int32_t lanes[8];
        _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sum);
        auto* out = reinterpret_cast<int32_t*>(out_ + s_.sums) + g * kOutputs + 8 * half;
        for (size_t i = 0; i < 8; ++i) {
          const int32_t offset = bytes ? 0 : 8 * static_cast<int32_t>(s_.padded);
          out[i] = lanes[i] - offset - static_cast<int32_t>(inputs) * zero(8 * half + i, g);
        }
      }
    }
  }

  // Writes S = S + float(sum of 16 weights) * c along the groups.
  void put_row_sums() const {
    constexpr size_t kStep = 16;
    auto* out = reinterpret_cast<float*>(out_ + s_.row_sums);
    for (size_t o = 0; o < kOutputs; ++o) {
      float total = 0.0f;
      for (size_t g = 0; g < s_.groups && s_.groups > 1 && n_ + o < w_.N; ++g) {
        const float c = bf16_to_f32(f32_to_bf16(scale(w_.scales, o, g)));
        const size_t begin = g * s_.length,
                     end = begin + s_.length < p_.K ? begin + s_.length : p_.K;
        for (size_t k = begin; k < end; k += kStep) {
          int8_t codes[kStep];
          const size_t to = k + kStep < end ? k + kStep : end;
          unpack_int8(w_, n_ + o, k, to, a_.columns, codes);
          int sum = 0;
          for (size_t i = 0; i < to - k; ++i) sum += codes[i] - zero(o, g);
          total = total + static_cast<float>(sum) * c;
        }
      }
      out[o] = total;
    }
  }

  const PackArgs& a_;
  const Problem& p_;
  const QuantMatrix& w_;
  const Shape& s_;
  const size_t n_;
  uint8_t* const out_;
  Ahead ahead_;
  const uint8_t* rows_[kOutputs];
  size_t scale_rows_[kOutputs];
};

}  // namespace x86_packing
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES

namespace moebius {

// In other builds the kernels of the family have no bodies, and this is never called.
void pack_x86_int8([[maybe_unused]] const PackArgs& args) {
#ifdef MOEBIUS_KERNEL_BODIES
  const x86_int8::Shape s = x86_int8::shape_of(*args.problem);
  x86_packing::pack_panels<x86_packing::PanelPacker>(
      args, s, x86_int8::kOutputs, x86_packing::kStepWords * x86_packing::inputs_of_word(s),
      s.stride);
#endif
}

}  // namespace moebius
