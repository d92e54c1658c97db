// SPDX-License-Identifier: Apache-2.0
// Implements the portable kernel for every scheme in plain C++ that compilers vectorise, without
// any instruction set. This file holds the code that its two families share; generic_int.cpp is of
// class exact, generic_float.cpp of class reordered.
#include "kernels/generic/generic.h"

#include "quant/reference.h"

namespace moebius::generic {

size_t code_bits_kept(const Problem& p) {
  if (is_integer_code(p.code)) return p.bits <= 4 ? 4 : 8;
  return code_bits(p.code);
}

PackedLayout layout_of(const Problem& p) { return packed_layout(p, code_bits_kept(p)); }
size_t packed_bytes(const Problem& p) { return layout_of(p).total; }

namespace {

template <size_t kBytes>
void gather(const uint8_t* row, const int32_t* columns, size_t K, uint8_t* out) {
  for (size_t i = 0; i < K; ++i)
    std::memcpy(out + i * kBytes, row + static_cast<size_t>(columns[i]) * kBytes, kBytes);
}

void pack_codes(const Problem& p, const QuantMatrix& w, size_t n, const int32_t* columns,
                uint8_t* out) {
  if (code_bits_kept(p) == 4) return unpack_nibbles(w, n, 0, p.K, columns, out);
  if (is_integer_code(p.code))
    return unpack_int8(w, n, 0, p.K, columns, reinterpret_cast<int8_t*>(out));
  const uint8_t* row = w.codes + n * w.row_bytes;
  const size_t bytes = code_bits_kept(p) / 8;
  if (columns == nullptr)
    std::memcpy(out, row, p.K * bytes);
  else if (bytes == 1)
    gather<1>(row, columns, p.K, out);
  else if (bytes == 2)
    gather<2>(row, columns, p.K, out);
  else
    gather<4>(row, columns, p.K, out);
}

// Returns the sum S of mode vllm: S = sum of w * c over a row, 16 elements at a time, c rounded to
// bf16 (quant/reference_gemm.cpp).
float vllm_row_sum(const PackArgs& args, size_t n) {
  const Problem& p = *args.problem;
  const QuantMatrix& w = *args.w;
  float S = 0.0f;
  for (size_t g = 0; g < p.groups; ++g) {
    const size_t begin = group_begin(p, args.group_ends, g), end = group_end(p, args.group_ends, g);
    const size_t index = (n + w.n_phase) / w.block_n * w.scale_stride + g;
    const float c = bf16_to_f32(f32_to_bf16(scale_at(w, index)));
    const int zero = w.zero_points != nullptr ? w.zero_points[index] : 0;
    for (size_t i = begin; i < end; i += 16) {
      int sum = 0;
      for (size_t j = i; j < i + 16 && j < end; ++j)
        sum += int_code(w, n, args.columns != nullptr ? static_cast<size_t>(args.columns[j]) : j) -
               zero;
      S = S + static_cast<float>(sum) * c;
    }
  }
  return S;
}

}  // namespace

void pack(const PackArgs& args) {
  const Problem& p = *args.problem;
  const PackedLayout l = layout_of(p);
  for (size_t n = args.n0; n < args.n1; ++n) {
    const size_t to = args.row0 + n;
    pack_codes(p, *args.w, n, args.columns, args.packed + l.codes + to * l.code_row);
    row_scales_raw(*args.w, n, args.packed + l.scales + to * l.scale_row);
    if (l.zero_row != 0)
      row_zero_points(*args.w, n,
                      reinterpret_cast<int8_t*>(args.packed + l.zeros + to * l.zero_row));
    if (l.offset_row != 0) row_offsets_raw(*args.w, n, args.packed + l.offsets + to * l.offset_row);
    if (p.act.mode == Int8Mode::kVllm) {
      const float S = p.groups > 1 ? vllm_row_sum(args, n) : 0.0f;
      std::memcpy(args.packed + l.sums + to * sizeof S, &S, sizeof S);
    }
  }
}

size_t most_stretches(const Problem& p) { return p.groups + act_groups(p.act, p.K) + 1; }

size_t make_stretches(const Problem& p, const int32_t* group_ends, Stretch* out) {
  const bool grouped = p.act.code != ActCode::kAsIs && p.act.granule == ActGranule::kGroup;
  size_t count = 0;
  for (size_t g = 0; g < p.groups; ++g) {
    const size_t end = group_end(p, group_ends, g);
    for (size_t k = group_begin(p, group_ends, g); k < end;) {
      const size_t granule = grouped ? k / p.act.group : 0;
      const size_t granule_end = grouped ? (granule + 1) * p.act.group : end;
      const size_t next = granule_end < end ? granule_end : end;
      out[count++] = {static_cast<uint32_t>(k), static_cast<uint32_t>(next),
                      static_cast<uint32_t>(g), static_cast<uint32_t>(granule)};
      k = next;
    }
  }
  return count;
}

PanelRow panel_row(const Problem& p, size_t value_bytes) {
  const PreparedLayout prepared = prepared_layout(p);
  PanelRow r{};
  r.zero_points = prepared.groups * 4;
  r.values = prepared.codes;
  r.stride = r.values + (p.K * value_bytes + 63) / 64 * 64;
  return r;
}

Finish finish_of(const PackedMatrix& w) {
  const ActSpec& act = w.problem->act;
  Finish f{};
  f.per_row = act.code != ActCode::kAsIs && act.granule == ActGranule::kRow;
  f.inside = act.code != ActCode::kAsIs && !f.per_row;
  f.global = result_scale(w);
  return f;
}

const char* order_reason(const Problem& p) {
  if (p.act_order && p.act.code != ActCode::kAsIs && p.act.granule == ActGranule::kGroup)
    return "act-order weights with activations scaled per group: their groups cross";
  if (p.K > 0xFFFFFFFFu) return "K does not fit 32 bits";
  return nullptr;
}

}  // namespace moebius::generic
