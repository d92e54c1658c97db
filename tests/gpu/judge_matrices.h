// SPDX-License-Identifier: Apache-2.0
// Random matrices of every number system with what surrounds their products, for the judge of the CUDA kernels.
#pragma once
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/numeric.h"
#include "device/cuda/cuda_table.h"
#include "quant/quant_access.h"

namespace moebius::judge {

using Random = std::mt19937;

// What a matrix is made of.
struct MatrixKind {
  std::string name;
  CodeType code = CodeType::kF32;
  uint8_t bits = 32;
  ScaleType scale = ScaleType::kNone;
  size_t block_n = 1, block_k = 0;  // block_k 0: all of K
  bool zero_points = false, offsets = false, act_order = false;
  Lut lut = Lut::kNone;
  size_t super_groups = 1;
  GlobalScale global = {};
  ActSpec act;
  ActParams input;
  XType x_type = XType::kBf16;
  bool bias = false;
  float output_scale = 0.0f;
};

inline void put_scale(ScaleType type, float v, uint32_t random, std::vector<uint8_t>& out) {
  const auto put = [&](const auto& value) {
    const auto* p = reinterpret_cast<const uint8_t*>(&value);
    out.insert(out.end(), p, p + sizeof value);
  };
  switch (type) {
    case ScaleType::kNone:
      break;
    case ScaleType::kF32:
      return put(v);
    case ScaleType::kBf16:
      return put(f32_to_bf16(v));
    case ScaleType::kF16:
      return put(f32_to_f16(v));
    case ScaleType::kFp8:  // zeros and subnormal ones too
      return put(static_cast<uint8_t>(random % 50 == 0 ? 0 : 1 + random % 0x7e));
    case ScaleType::kE8m0:
      return put(static_cast<uint8_t>(118 + random % 6));
    case ScaleType::kTwoLevel:
      return put(static_cast<uint8_t>(random));
  }
}

// A matrix with its memory.
struct OwnedMatrix {
  std::vector<uint8_t> codes, scales, offsets;
  std::vector<int8_t> zero_points;
  std::vector<int32_t> g_idx;
  std::vector<float> bias, super_scales, super_offsets;
  CudaMatrix m{};

  OwnedMatrix(const MatrixKind& kind, size_t N, size_t K, Random& random) {
    QuantMatrix& w = m.w;
    w.N = N, w.K = K, w.code = kind.code, w.bits = kind.bits, w.scale_type = kind.scale,
    w.global_scale = kind.global, w.lut = kind.lut, w.super_groups = kind.super_groups;
    w.block_n = kind.block_n == 0 ? N : kind.block_n,
    w.block_k = kind.block_k == 0 ? K : kind.block_k;
    w.groups = (K + w.block_k - 1) / w.block_k;
    w.scale_stride = (w.groups + w.super_groups - 1) / w.super_groups * w.super_groups;
    w.row_bytes = (K * code_bits(kind.code) + 7) / 8;
    codes.resize(N * w.row_bytes);
    fill_codes(kind, random);
    if (kind.scale != ScaleType::kNone) {
      const size_t rows = (N + w.block_n - 1) / w.block_n;
      std::uniform_real_distribution<float> u(0.5f, 1.5f);
      for (size_t i = 0; i < rows * w.scale_stride; ++i) {
        put_scale(kind.scale, u(random) * 0.01f, static_cast<uint32_t>(random()), scales);
        if (kind.zero_points)
          zero_points.push_back(static_cast<int8_t>(static_cast<int>(random() % 7) - 3));
        if (kind.offsets)
          put_scale(kind.scale, (u(random) - 1.0f) * 0.02f, static_cast<uint32_t>(random()),
                    offsets);
        if (kind.scale != ScaleType::kTwoLevel || i % w.super_groups != 0) continue;
        super_scales.push_back(u(random) * 1e-4f);
        if (kind.offsets) super_offsets.push_back((u(random) - 1.0f) * 1e-3f);
      }
    }
    if (kind.act_order)  // 11 divides no K of the judge
      for (size_t k = 0; k < K; ++k) g_idx.push_back(static_cast<int32_t>(k * 11 % K / w.block_k));
    if (kind.bias)
      for (size_t n = 0; n < N; ++n)
        bias.push_back(static_cast<float>(random() % 1000) * 1e-3f - 0.5f);
    w.codes = codes.data(), w.scales = scales.empty() ? nullptr : scales.data();
    w.zero_points = zero_points.empty() ? nullptr : zero_points.data();
    w.offsets = offsets.empty() ? nullptr : offsets.data();
    w.super_scales = reinterpret_cast<const uint8_t*>(super_scales.data());
    w.super_offsets = reinterpret_cast<const uint8_t*>(super_offsets.data());
    w.g_idx = g_idx.empty() ? nullptr : g_idx.data();
    m.act = kind.act, m.input = kind.input, m.x_type = kind.x_type;
    m.bias = bias.empty() ? nullptr : bias.data(), m.output_scale = kind.output_scale;
  }
  OwnedMatrix(OwnedMatrix&&) = default;  // vectors keep their memory
  OwnedMatrix(const OwnedMatrix&) = delete;

 private:
  void fill_codes(const MatrixKind& kind, Random& random) {
    const size_t bytes = m.w.row_bytes, per = m.w.K;
    for (size_t n = 0; n < m.w.N; ++n) {
      uint8_t* row = codes.data() + n * bytes;
      for (size_t k = 0; k < per; ++k) {
        const auto r = static_cast<uint32_t>(random());
        const float v = (static_cast<float>(r % 2001) - 1000.0f) * 1e-3f;
        switch (kind.code) {
          case CodeType::kInt8: {
            const int half = 1 << (kind.bits - 1);
            row[k] = static_cast<uint8_t>(
                static_cast<int8_t>(static_cast<int>(r % static_cast<uint32_t>(2 * half)) - half));
            break;
          }
          case CodeType::kInt8Offset:
            row[k] = static_cast<uint8_t>(r);
            break;
          case CodeType::kInt4Offset:
          case CodeType::kLut4:
          case CodeType::kFp4:
            if (k % 2 == 0) row[k / 2] = static_cast<uint8_t>(r);
            break;
          case CodeType::kFp8:
            row[k] = static_cast<uint8_t>((r & 0x80u) | (r >> 8) % 0x70u);
            break;
          case CodeType::kBf16:
          case CodeType::kF16: {
            const uint16_t h = kind.code == CodeType::kBf16 ? f32_to_bf16(v) : f32_to_f16(v);
            std::memcpy(row + 2 * k, &h, 2);
            break;
          }
          case CodeType::kF32:
            std::memcpy(row + 4 * k, &v, 4);
            break;
        }
      }
    }
  }
};

inline ActSpec act_none() { return {}; }
inline ActSpec act_int8(bool symmetric = true, ActGranule granule = ActGranule::kRow,
                        uint32_t group = 0) {
  ActSpec a;
  a.code = ActCode::kInt, a.symmetric = symmetric, a.granule = granule, a.group = group;
  return a;
}
inline ActSpec act_float(ActCode code, ActGranule granule, uint32_t group, ActScale scale) {
  ActSpec a;
  a.code = code, a.granule = granule, a.group = group, a.scale = scale,
  a.bits = code == ActCode::kFp4 ? 4 : 8;
  return a;
}

// Every scheme that the CPU runs, in the forms files have.
inline std::vector<MatrixKind> all_kinds() {
  std::vector<MatrixKind> k;
  const auto add = [&](std::string name, CodeType code, int bits, ScaleType scale, size_t block_k,
                       ActSpec act) -> MatrixKind& {
    MatrixKind m;
    m.name = std::move(name), m.code = code, m.bits = static_cast<uint8_t>(bits), m.scale = scale,
    m.block_k = block_k, m.act = act;
    k.push_back(m);
    return k.back();
  };
  const ActSpec fp8_row = act_float(ActCode::kFp8, ActGranule::kRow, 0, ActScale::kF32);
  add("w4a8_g128", CodeType::kInt4Offset, 4, ScaleType::kBf16, 128, act_int8());
  add("w4a8_g32", CodeType::kInt4Offset, 4, ScaleType::kF16, 32, act_int8());
  add("w4a8_g64", CodeType::kInt4Offset, 4, ScaleType::kBf16, 64, act_int8());
  add("w4a8", CodeType::kInt4Offset, 4, ScaleType::kF32, 0, act_int8());
  add("w4a8_int_quantized", CodeType::kInt8, 4, ScaleType::kBf16, 0, act_int8());
  add("w4a8_ct", CodeType::kInt4Offset, 4, ScaleType::kF32, 0, act_int8()).act.mode =
      Int8Mode::kCompressedTensors;
  MatrixKind& v1 = add("w4a8_vllm", CodeType::kInt4Offset, 4, ScaleType::kF32, 0, act_int8(false));
  v1.act.mode = Int8Mode::kVllm;
  MatrixKind& v2 =
      add("w4a8_vllm_g32", CodeType::kInt4Offset, 4, ScaleType::kF32, 32, act_int8(false));
  v2.act.mode = Int8Mode::kVllm;
  add("w8a8", CodeType::kInt8, 8, ScaleType::kBf16, 0, act_int8());
  add("w8a8_tensor", CodeType::kInt8, 8, ScaleType::kF32, 0, act_int8()).block_n = 0;
  add("w8a8_asymmetric", CodeType::kInt8, 8, ScaleType::kF32, 0, act_int8(false));
  MatrixKind& s = add("w8a8_static", CodeType::kInt8, 8, ScaleType::kF32, 0,
                      act_int8(false, ActGranule::kStatic));
  s.input.scale = 0.02f, s.input.zero_point = -7;
  add("w8a8_static_symmetric", CodeType::kInt8, 8, ScaleType::kF32, 0,
      act_int8(true, ActGranule::kStatic))
      .input.scale = 0.02f;
  add("w8a8_groups", CodeType::kInt8, 8, ScaleType::kF32, 64,
      act_int8(true, ActGranule::kGroup, 128));
  MatrixKind& o = add("w4a8o8", CodeType::kInt4Offset, 4, ScaleType::kF32, 0,
                      act_int8(true, ActGranule::kStatic));
  o.input.scale = 0.03f, o.output_scale = 0.05f, o.bias = true;
  add("w4a16_g128", CodeType::kInt4Offset, 4, ScaleType::kBf16, 128, act_none()).bias = true;
  add("w4a16_g32_zero", CodeType::kInt4Offset, 4, ScaleType::kF16, 32, act_none()).zero_points =
      true;
  add("w4a16_g64", CodeType::kInt4Offset, 4, ScaleType::kBf16, 64, act_none());
  add("w4a16_channel", CodeType::kInt4Offset, 4, ScaleType::kBf16, 0, act_none());
  MatrixKind& awq =
      add("w4a16_g128_zero_f16", CodeType::kInt4Offset, 4, ScaleType::kF16, 128, act_none());
  awq.zero_points = true, awq.x_type = XType::kF16;
  MatrixKind& f32 = add("w4a16_g32_f16", CodeType::kInt4Offset, 4, ScaleType::kF16, 32, act_none());
  f32.x_type = XType::kF16;
  MatrixKind& ao =
      add("w4a16_act_order", CodeType::kInt4Offset, 4, ScaleType::kF16, 64, act_none());
  ao.act_order = true, ao.x_type = XType::kF16;
  add("w8a16", CodeType::kInt8Offset, 8, ScaleType::kBf16, 128, act_none()).x_type = XType::kF32;
  for (int bits : {2, 3, 5, 6, 7})
    add("w" + std::to_string(bits) + "a16_g32", CodeType::kInt8, bits, ScaleType::kBf16, 32,
        act_none());
  add("mlx_w4", CodeType::kInt4Offset, 4, ScaleType::kBf16, 64, act_none()).offsets = true;
  const auto add_two_levels = [&](std::string name, CodeType code, int bits, size_t group, Lut lut,
                                  ActSpec act = {}) -> MatrixKind& {
    MatrixKind& m = add(std::move(name), code, bits, ScaleType::kTwoLevel, group, act);
    m.super_groups = 256 / group, m.lut = lut;
    return m;
  };
  add_two_levels("q4_k", CodeType::kInt4Offset, 4, 32, Lut::kNone).offsets = true;
  add_two_levels("q2_k", CodeType::kInt8, 2, 16, Lut::kNone).offsets = true;
  add_two_levels("q5_k_int8", CodeType::kInt8, 5, 32, Lut::kNone, act_int8()).offsets = true;
  add_two_levels("q6_k", CodeType::kInt8, 6, 16, Lut::kNone).x_type = XType::kF32;
  add_two_levels("iq4_xs", CodeType::kLut4, 4, 32, Lut::kIq4);
  add_two_levels("iq2_xs_int8", CodeType::kLut4, 4, 16, Lut::kIq2, act_int8());
  add("iq4_nl", CodeType::kLut4, 4, ScaleType::kF16, 32, act_none()).lut = Lut::kIq4;
  add("w4afp8", CodeType::kInt4Offset, 4, ScaleType::kBf16, 128, fp8_row);
  add("fp8", CodeType::kFp8, 8, ScaleType::kF32, 0, fp8_row);
  add("fp8_tensor", CodeType::kFp8, 8, ScaleType::kF32, 0, fp8_row).block_n = 0;
  add("fp8_bound", CodeType::kFp8, 8, ScaleType::kF32, 0, fp8_row).act.bound = 1.5f;
  MatrixKind& fs = add("fp8_static", CodeType::kFp8, 8, ScaleType::kF32, 0,
                       act_float(ActCode::kFp8, ActGranule::kStatic, 0, ActScale::kF32));
  fs.input.scale = 0.01f;
  add("fp8_block", CodeType::kFp8, 8, ScaleType::kF32, 128,
      act_float(ActCode::kFp8, ActGranule::kGroup, 128, ActScale::kF32))
      .block_n = 128;
  add("fp8_block_ue8m0", CodeType::kFp8, 8, ScaleType::kE8m0, 128,
      act_float(ActCode::kFp8, ActGranule::kGroup, 128, ActScale::kE8m0Up))
      .block_n = 128;
  add("fp8a16", CodeType::kFp8, 8, ScaleType::kBf16, 0, act_none());
  MatrixKind& nv = add("nvfp4", CodeType::kFp4, 4, ScaleType::kFp8, 16,
                       act_float(ActCode::kFp4, ActGranule::kGroup, 16, ActScale::kFp8));
  nv.global = {720.0f, false}, nv.input.global_scale = {300.0f, false};
  MatrixKind& nm = add("nvfp4_modelopt", CodeType::kFp4, 4, ScaleType::kFp8, 16,
                       act_float(ActCode::kFp4, ActGranule::kGroup, 16, ActScale::kFp8));
  nm.global = {0.0013f, true}, nm.input.global_scale = {0.004f, true};
  add("nvfp4a16", CodeType::kFp4, 4, ScaleType::kFp8, 16, act_none()).global = {720.0f, false};
  add("nvfp4a16_modelopt", CodeType::kFp4, 4, ScaleType::kFp8, 16, act_none()).global = {0.0013f,
                                                                                         true};
  add("mxfp4", CodeType::kFp4, 4, ScaleType::kE8m0, 32,
      act_float(ActCode::kFp4, ActGranule::kGroup, 32, ActScale::kE8m0));
  add("mxfp4a16", CodeType::kFp4, 4, ScaleType::kE8m0, 32, act_none()).bias = true;
  add("mxfp4a8", CodeType::kFp4, 4, ScaleType::kE8m0, 32,
      act_float(ActCode::kFp8, ActGranule::kGroup, 32, ActScale::kE8m0));
  add("mxfp8", CodeType::kFp8, 8, ScaleType::kE8m0, 32,
      act_float(ActCode::kFp8, ActGranule::kGroup, 32, ActScale::kE8m0));
  add("mxfp8a16", CodeType::kFp8, 8, ScaleType::kE8m0, 32, act_none());
  add("bf16", CodeType::kBf16, 16, ScaleType::kNone, 0, act_none());
  add("f16", CodeType::kF16, 16, ScaleType::kNone, 0, act_none()).x_type = XType::kF16;
  add("f32", CodeType::kF32, 32, ScaleType::kNone, 0, act_none()).x_type = XType::kF32;
  return k;
}

// Rows as layers see them: normal numbers, outliers, zeros, tiny, large, one with NaN and one with infinity.
inline std::vector<float> judge_rows(size_t M, size_t K, XType type, Random& random, bool broken) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(M * K);
  for (size_t m = 0; m < M; ++m) {
    const float size = m % 16 == 3 ? 0.0f : m % 16 == 5 ? 1e-6f : m % 16 == 7 ? 300.0f : 1.0f;
    for (size_t k = 0; k < K; ++k)
      x[m * K + k] = normal(random) * size * (k % 97 == 13 ? 20.0f : 1.0f);
    if (broken && m % 16 == 9) x[m * K + K / 2] = f32_from_bits(0x7FC00000u);
    if (broken && m % 16 == 11) x[m * K + 1] = f32_from_bits(0x7F800000u);
  }
  for (float& v : x)
    v = type == XType::kBf16  ? bf16_to_f32(f32_to_bf16(v))
        : type == XType::kF16 ? f16_to_f32(f32_to_f16(v))
                              : v;
  return x;
}

}  // namespace moebius::judge
