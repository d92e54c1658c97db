// SPDX-License-Identifier: Apache-2.0
// Runs a list of row operations (device/rows.h) on one row with several lanes: the operations of
// device/cpu/row_program.cpp with the same roundings, so that results have the same bytes. Rows
// hold numbers of their own type; every operation ends with one rounding to the type of
// activations. Programs that can run head by head are divided into independent parts of one head
// each (cuda_parts).
#pragma once
#include "device/cuda/cuda_table.h"
#include "device/cuda/device_lanes.h"
#include "device/row_arithmetic.h"

namespace moebius {

// Returns false for operations on streams (nn/streams.h), which run on the CPU.
constexpr bool runs_on_device(RowOpKind kind) {
  return kind != RowOpKind::kStreamGates && kind != RowOpKind::kStreamsIn &&
         kind != RowOpKind::kStreamsOut && kind != RowOpKind::kStreamsKeyed;
}

// Names one head of an operand; only operations that change this operand run.
struct RowPart {
  uint32_t operand = UINT32_MAX, head = 0, heads = 1;  // operand UINT32_MAX: the whole row
};
// Returns part i of a program; there are as many as the sum of its part_heads.
MOEBIUS_ALWAYS_INLINE RowPart part_of(const CudaRowProgram& p, uint32_t i) {
  for (uint32_t operand = 0; operand < kCudaOperands; ++operand) {
    if (i < p.part_heads[operand]) return {operand, i, p.part_heads[operand]};
    i -= p.part_heads[operand];
  }
  return {};
}
MOEBIUS_ALWAYS_INLINE uint32_t part_count(const CudaRowProgram& p) {
  uint32_t n = 0;
  for (const uint32_t heads : p.part_heads) n += heads;
  return n;
}

template <class Lanes>
class DeviceRow {
 public:
  MOEBIUS_ALWAYS_INLINE DeviceRow(const CudaRowProgram& p, const Lanes& lanes, size_t row,
                                  const RowPart& part = {})
      : p_(p), lanes_(lanes), row_(row), part_(part) {}

  MOEBIUS_ALWAYS_INLINE void run() const { run(p_.ops); }
  // `ops`: the program's operations, or a copy of them in faster memory.
  MOEBIUS_ALWAYS_INLINE void run(const CudaRowOp* ops) const {
    for (size_t i = 0; i < p_.count; ++i) {
      const CudaRowOp& op = ops[i];
      if (p_.operands[op.y.operand].data == nullptr) continue;
      if (part_.operand != UINT32_MAX && part_.operand != op.y.operand) continue;
      apply(op);
      lanes_.sync();
    }
  }

 private:
  // Views the selected columns of a row.
  struct View {
    void* data;
    XType type;
    size_t at;
    uint32_t step, heads, width;
    MOEBIUS_ALWAYS_INLINE float get(size_t i) const { return number_at(data, type, at + i); }
    MOEBIUS_ALWAYS_INLINE void put(size_t i, float v) const { put_number(data, type, at + i, v); }
    // Returns true if columns can be read and written eight at a time.
    MOEBIUS_ALWAYS_INLINE bool by_eight() const {
      return at % 8 == 0 && width % 8 == 0 && step % 8 == 0 &&
             reinterpret_cast<uintptr_t>(data) % 16 == 0;
    }
    MOEBIUS_ALWAYS_INLINE void get_eight(size_t i, float (&v)[8]) const {
      eight_at(data, type, at + i, v);
    }
    MOEBIUS_ALWAYS_INLINE void put_eight(size_t i, const float (&v)[8]) const {
      put_eight_at(data, type, at + i, v);
    }
  };
  MOEBIUS_ALWAYS_INLINE View view(const CudaView& v) const {
    const CudaRows& r = p_.operands[v.operand];
    View to{r.data, r.type,  row_ * r.stride + v.at,
            v.step, v.heads, v.width != 0 ? v.width : p_.cols[v.operand]};
    if (part_.operand == UINT32_MAX) return to;
    if (to.heads > 1) {
      to.at += part_.head * to.step;
      to.heads = 1;
    } else {
      to.width /= part_.heads;
      to.at += part_.head * to.width;
    }
    return to;
  }
  MOEBIUS_ALWAYS_INLINE float rounded(float v) const { return to_numbers(p_.type, v); }
  template <class F>
  MOEBIUS_ALWAYS_INLINE void each(uint32_t n, F f) const {
    for (auto i = static_cast<uint32_t>(lanes_.lane()); i < n;
         i += static_cast<uint32_t>(lanes_.lanes()))
      f(i);
  }
  // Computes y = f(y) for every number, head by head.
  template <class F>
  MOEBIUS_ALWAYS_INLINE void map(const View& y, F f) const {
    combine(y, y, [&](float v, float) { return f(v); });
  }
  // Computes y = f(y, x) for every number.
  template <class F>
  MOEBIUS_ALWAYS_INLINE void combine(const View& y, const View& x, F f) const {
    if (!y.by_eight() || !x.by_eight())
      return each(y.width, [&](uint32_t i) { y.put(i, f(y.get(i), x.get(i))); });
    each(y.width / 8, [&](uint32_t i) {
      float a[8], b[8];
      y.get_eight(i * 8, a), x.get_eight(i * 8, b);
      for (int j = 0; j < 8; ++j) a[j] = f(a[j], b[j]);
      y.put_eight(i * 8, a);
    });
  }
  MOEBIUS_ALWAYS_INLINE void copy(const View& y, const View& x) const {
    if (y.by_eight() && x.by_eight()) {
      const uint32_t pieces = y.width / 8;
      return each(y.heads * pieces, [&](uint32_t i) {
        const uint32_t h = y.heads == 1 ? 0 : i / pieces, c = (i - h * pieces) * 8;
        float v[8];
        x.get_eight(h * x.step + c, v);
        y.put_eight(h * y.step + c, v);
      });
    }
    each(y.heads * y.width, [&](uint32_t i) {
      const uint32_t h = i / y.width, c = i % y.width;
      y.put(h * y.step + c, x.get(h * x.step + c));
    });
  }
  MOEBIUS_ALWAYS_INLINE const float* tables() const { return p_.tables + row_ * p_.table_cols; }

  MOEBIUS_ALWAYS_INLINE void apply(const CudaRowOp& op) const {
    const View y = view(op.y), x = view(op.x);
    switch (static_cast<RowOpKind>(op.kind)) {
      case RowOpKind::kCopy:
        return copy(y, x);
      case RowOpKind::kNorm:
        return normalize(op, x, y);
      case RowOpKind::kAdd:
        return combine(y, x, [&](float a, float b) { return rounded(a + b); });
      case RowOpKind::kScale:
        return map(y, [&](float v) { return rounded(v * op.factor); });
      case RowOpKind::kClip:
        return map(y, [&](float v) {
          return v < -op.factor ? -op.factor : op.factor < v ? op.factor : v;
        });
      case RowOpKind::kRotate:
        return rotate(op, y, 1.0f);
      case RowOpKind::kRotateBack:
        return rotate(op, y, -1.0f);
      case RowOpKind::kTemperature:
      case RowOpKind::kLogGrowth:
      case RowOpKind::kPower:
        return map(y, [&](float v) { return rounded(v * tables()[op.table]); });
      case RowOpKind::kHeadBias:
        return each(y.heads * y.width, [&](uint32_t i) {
          const uint32_t h = i / y.width, at = h * y.step + i % y.width;
          y.put(at, rounded(y.get(at) + op.values[h]));
        });
      case RowOpKind::kHeadScale:
        return each(y.heads * y.width, [&](uint32_t i) {
          const uint32_t h = i / y.width, at = h * y.step + i % y.width;
          const float factor = op.values[h] * tables()[op.table] + op.values[y.heads + h];
          y.put(at, rounded(y.get(at) * factor));
        });
      case RowOpKind::kGateSigmoid:
      case RowOpKind::kGateSoftplus: {
        const bool sigmoid = static_cast<RowOpKind>(op.kind) == RowOpKind::kGateSigmoid;
        each(x.width, [&](uint32_t i) {
          const float v = x.get(i);
          x.put(i, rounded(sigmoid ? sigmoid_f32(v) : softplus_f32(v)));
        });
        lanes_.sync();
        const uint32_t each_gate = y.width / x.width;
        return each(y.width,
                    [&](uint32_t i) { y.put(i, rounded(y.get(i) * x.get(i / each_gate))); });
      }
      case RowOpKind::kSilu:
        return map(y, [&](float v) { return rounded(silu_f32(v)); });
      case RowOpKind::kSigmoid:
        return map(y, [&](float v) { return rounded(sigmoid_f32(v) * op.factor); });
      case RowOpKind::kDivide:
        return map(y, [&](float v) { return v / op.factor; });
      case RowOpKind::kCap:
        return map(y, [&](float v) { return cap_f32(v, op.factor); });
      case RowOpKind::kStreamGates:
      case RowOpKind::kStreamsIn:
      case RowOpKind::kStreamsOut:
      case RowOpKind::kStreamsKeyed:
        return;
    }
  }

  MOEBIUS_ALWAYS_INLINE void rotate(const CudaRowOp& op, const View& y, float sign) const {
    const float *cosines = tables() + op.table, *sines = cosines + op.half;
    each(y.heads * op.half, [&](uint32_t i) {
      const uint32_t h = y.heads == 1 ? 0 : i / op.half, j = i - h * op.half;
      const uint32_t first = h * y.step + (op.interleaved ? 2 * j : j),
                     second = h * y.step + (op.interleaved ? 2 * j + 1 : j + op.half);
      float a = y.get(first), b = sign * y.get(second);
      turn_pair(a, b, cosines[j], sines[j], [&](float v) { return rounded(v); });
      y.put(first, a);
      y.put(second, sign * b);
    });
  }

  // Numbers that a norm computes from a row before it changes the row.
  struct Scaling {
    float mean, factor;
  };
  // Returns the Scaling of a row. sum(f) must return the sum of f(x_i) over the row, to all lanes
  // that call it.
  template <class Sum>
  MOEBIUS_ALWAYS_INLINE Scaling scaling(const CudaRowOp& op, float count, Sum sum) const {
    float mean = 0.0f, square;
    if (static_cast<NormKind>(op.norm) == NormKind::kLayer) {
      mean = sum([](float v) { return v; }) / count;
      square = sum([&](float v) { return (v - mean) * (v - mean); });
    } else {
      square = sum([](float v) { return v * v; });
    }
    return {mean, norm_factor(square, count, op.epsilon)};
  }
  MOEBIUS_ALWAYS_INLINE float normalized(const CudaRowOp& op, const Scaling& s, float v,
                                         size_t i) const {
    return normalized(op, s, v, op.weight != nullptr ? op.weight[i] : 0.0f, i);
  }
  MOEBIUS_ALWAYS_INLINE float normalized(const CudaRowOp& op, const Scaling& s, float v,
                                         float weight, size_t i) const {
    if (static_cast<NormKind>(op.norm) == NormKind::kLayer)
      return rounded(
          fma_f32((v - s.mean) * s.factor, weight, op.bias == nullptr ? 0.0f : op.bias[i]));
    return normed_number(static_cast<NormKind>(op.norm), s.factor, weight, v,
                         [&](float x) { return rounded(x); });
  }
  // Normalizes a row of which every lane holds eight numbers in registers.
  MOEBIUS_ALWAYS_INLINE void normalize_at_once(const CudaRowOp& op, const View& x,
                                               const View& y) const {
    const uint32_t n = y.width, at = static_cast<uint32_t>(lanes_.lane()) * 8;
    float v[8] = {}, w[8] = {};
    if (at < n) {
      x.get_eight(at, v);
      if (op.weight != nullptr)
        for (uint32_t j = 0; j < 8; ++j) w[j] = op.weight[at + j];
    }
    const Scaling s = scaling(op, static_cast<float>(n), [&](auto f) {
      return lanes_.sum_of_all(
          n, 8, 4, [](size_t) { return 0.0f; },
          [&](size_t, float(&to)[8]) {
            for (int j = 0; j < 8; ++j) to[j] = f(v[j]);
          },
          /*by_eight=*/true);
    });
    if (at >= n) return;
    for (uint32_t j = 0; j < 8; ++j) v[j] = normalized(op, s, v[j], w[j], at + j);
    y.put_eight(at, v);
  }
  // Normalizes a head with sixteen lanes, each holding every sixteenth number in registers.
  static constexpr uint32_t kHeld = 16;
  MOEBIUS_ALWAYS_INLINE void normalize_by_group(const CudaRowOp& op, const View& x,
                                                const View& y) const {
    const auto lane = static_cast<uint32_t>(lanes_.lane());
    const uint32_t n = y.width;
    float v[kHeld] = {}, w[kHeld] = {};
    MOEBIUS_UNROLL
    for (uint32_t k = 0; k < kHeld; ++k)
      if (const uint32_t i = k * kDeviceSumLanes + lane; i < n) {
        v[k] = x.get(i);
        if (op.weight != nullptr) w[k] = op.weight[i];
      }
    const Scaling s = scaling(op, static_cast<float>(n), [&](auto f) {
      float sum = 0.0f;
      MOEBIUS_UNROLL
      for (uint32_t k = 0; k < kHeld; ++k)
        if (k * kDeviceSumLanes + lane < n) sum += f(v[k]);
      return lanes_.joined(sum, 8, 4);
    });
    MOEBIUS_UNROLL
    for (uint32_t k = 0; k < kHeld; ++k)
      if (const uint32_t i = k * kDeviceSumLanes + lane; i < n)
        y.put(i, normalized(op, s, v[k], w[k], i));
  }
  // Normalizes one head with all lanes, or several with a group of lanes each.
  MOEBIUS_ALWAYS_INLINE void normalize(const CudaRowOp& op, const View& x, const View& y) const {
    const uint32_t n = y.width;
    const auto count = static_cast<float>(n);
    if (y.heads == 1) {
      const bool eight = y.by_eight() && x.by_eight();
      if (eight && n <= 8 * lanes_.lanes() && lanes_.lanes() > kDeviceSumLanes)
        return normalize_at_once(op, x, y);
      if constexpr (requires { lanes_.joined(0.0f, 8, 4); })
        if (lanes_.lanes() == kDeviceSumLanes && n <= kDeviceSumLanes * kHeld)
          return normalize_by_group(op, x, y);
      const Scaling s = scaling(op, count, [&](auto f) {
        return lanes_.sum_of_all(
            n, 8, 4, [&](size_t i) { return f(x.get(i)); },
            [&](size_t i, float(&v)[8]) {
              x.get_eight(i, v);
              for (int j = 0; j < 8; ++j) v[j] = f(v[j]);
            },
            eight);
      });
      if (!eight) return each(n, [&](uint32_t i) { y.put(i, normalized(op, s, x.get(i), i)); });
      return each(n / 8, [&](uint32_t i) {
        float v[8];
        x.get_eight(i * 8, v);
        for (uint32_t j = 0; j < 8; ++j) v[j] = normalized(op, s, v[j], i * 8 + j);
        y.put_eight(i * 8, v);
      });
    }
    for (size_t h = lanes_.group(); h < y.heads; h += lanes_.groups()) {
      const Scaling s = scaling(op, count, [&](auto f) {
        return lanes_.sum(n, 8, 4, [&](size_t i) { return f(x.get(h * x.step + i)); });
      });
      for (size_t i = lanes_.in_group(); i < n; i += lanes_.group_lanes())
        y.put(h * y.step + i, normalized(op, s, x.get(h * x.step + i), i));
    }
  }

  const CudaRowProgram& p_;
  const Lanes& lanes_;
  size_t row_;
  RowPart part_;
};

}  // namespace moebius
