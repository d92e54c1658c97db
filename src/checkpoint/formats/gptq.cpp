// SPDX-License-Identifier: Apache-2.0
// Reads GPTQ: codes of b bits in 32-bit words along the inputs, outputs side by side.
//
//   qweight  I32 [K*b/32, N]    column n is the bit stream of output n: as pack-quantized, but turned
//   qzeros   I32 [G, N*b/32]    zero points of 0 .. 2^b-1 along the outputs
//   scales   F16 [G, N]         any finite number; writers of symmetric codes use both signs
//   g_idx    I32 [K]            group of each input; absent: input / group size
//
//   w(n,k) = scales[g(k),n] * (code - zero point)
//
// gptq stores zero points less 1, gptq_v2 and gptq_p as they are. Symmetric: the zero point is
// 2^(b-1) whatever is stored. gptq_p keeps codes (and zero points) in bit planes of 4, 2 and 1.
#include <algorithm>

#include "base/checked.h"
#include "checkpoint/formats/loading.h"
#include "checkpoint/formats/readers.h"
#include "checkpoint/formats/turned.h"
#include "checkpoint/formats/unpack.h"

namespace moebius {
namespace {

bool is_planar(const Scheme& s) {
  return s.format == Format::kGptqPlanar && 32 % s.weights->bits != 0;
}

// Unpacks the codes of a row to signed bytes.
void unpack_stream(const Scheme& s, const uint8_t* words, size_t n, int8_t* out) {
  const auto bits = static_cast<unsigned>(s.weights->bits);
  if (is_planar(s))
    unpack_planes(words, n, bits, out);
  else
    unpack_row(words, n, bits, /*padded=*/false, out);
}

// Returns the zero point that the writer meant by a stored one; both are in the signed domain.
int8_t zero_point_of(const Scheme& s, int8_t stored) {
  const int half = 1 << (s.weights->bits - 1);
  if (s.format != Format::kGptq) return stored;
  return static_cast<int8_t>(stored + 1 == half ? -half : stored + 1);
}

void warn(const Planner& p, std::string text) {
  std::string& all = p.plan.warning;
  all += all.empty() ? text : "; " + text;
}

// Checks with a module's first zero points whether file and configuration agree, and warns. Only a
// load sees all zero points, and a load cannot warn.
void look_at_zero_points(const Planner& p, uint64_t words, uint64_t columns) {
  constexpr uint64_t kMost = 1024;  // words
  const Scheme& s = p.plan.scheme;
  const TensorRef& ref = p.ref(Role::kWeightZeroPoint);
  const auto bits = static_cast<unsigned>(s.weights->bits);
  // Whole blocks of bit planes.
  const uint64_t taken = words < kMost ? words : kMost / bits * bits;
  const uint64_t count = std::min(columns, taken * 32 / bits);
  const uint64_t slice = static_cast<uint64_t>(std::max<int64_t>(ref.index, 0));
  std::vector<uint8_t> raw(taken * 4);
  p.store.read(*ref.info, slice * p.plan.groups * words * 4, raw);
  std::vector<int8_t> stored(count);
  unpack_stream(s, raw.data(), count, stored.data());
  const int half = 1 << (bits - 1);
  if (!s.weights->symmetric) {
    if (s.format == Format::kGptq && std::count(stored.begin(), stored.end(), half - 1) > 0)
      warn(p, fmt::format("qzeros hold {}, which format gptq stores for the zero point 0 (less 1); "
                          "taken as 0, where other engines may take {}",
                          2 * half - 1, 2 * half));
    return;
  }
  const int expected = s.format == Format::kGptq ? -1 : 0;
  const auto all = [&](int v) {
    return std::all_of(stored.begin(), stored.end(), [&](int8_t z) { return z == v; });
  };
  if (all(expected)) return;
  if (all(-1 - expected))
    warn(p, fmt::format("the configuration says format {}, but qzeros hold {}, as {} has them; the "
                        "weights are symmetric, so the zero point is {} either way",
                        name_of(s.format), half - 1 - expected, expected == -1 ? "gptq_v2" : "gptq",
                        half));
  else
    warn(p, fmt::format("qzeros hold other values than {}, but the configuration says sym; they "
                        "are ignored, and the zero point is {}",
                        half + expected, half));
}

void plan_turned_zero_points(const Planner& p) {
  MatrixPlan& plan = p.plan;
  const bool symmetric = weight_args(p).symmetric;
  const TensorRef& ref = p.ref(Role::kWeightZeroPoint);
  if (symmetric && !ref) return;
  require_role(p, Role::kWeightZeroPoint);
  require_dtype(p, ref, {DType::kI32});
  require_rows_of_codes(p, ref);
  const auto bits = static_cast<unsigned>(weight_args(p).bits);
  const uint64_t rows = is_whole(ref) ? plan.N : stored_rows(plan);
  const std::vector<uint64_t> dims = slice_dims(p.store, ref);
  const uint64_t words =
      is_planar(plan.scheme) ? ceil_div(rows, 32) * bits : dense_words(rows, bits);
  if (dims == std::vector{plan.groups, words}) {
    look_at_zero_points(p, words, rows);
  } else if (!symmetric) {
    wrong_tensor(p.store, *ref.info, "{} for the {}-bit zero points of {} outputs in {} groups",
                 describe_shape(std::vector{plan.groups, words}), bits, rows, plan.groups);
  }
  plan.zero_points = !symmetric;
  plan.scale_bytes += plan.groups * words * 4 / rows * plan.N;
}

void plan_turned_g_idx(const Planner& p) {
  const TensorRef& ref = p.ref(Role::kWeightGIdx);
  const bool declared = weight_args(p).act_order == ActOrder::kGroup;
  if (!ref) {
    if (declared)
      warn(p, "the configuration says desc_act, but no g_idx is stored; groups are taken in order");
    return;
  }
  const std::optional<bool> reordered = reads_reordered(p);
  if (!reordered) fail("{} holds -1; expected the group of each input", p.store.where(*ref.info));
  p.plan.act_order = *reordered;
  if (p.plan.act_order && !declared)
    warn(p,
         "g_idx reorders the inputs although the configuration does not say desc_act; it is "
         "used");
}

void load_turned_zero_points(const Loader& l, QuantMatrix& w) {
  if (!l.plan.zero_points) return;
  const TensorRef& ref = l.plan.tensors[Role::kWeightZeroPoint];
  const std::vector<uint64_t> dims = slice_dims(l.store, ref);
  TensorRef whole = ref;
  whole.row_begin = whole.row_count = 0;
  whole.row_step = 1;
  const StoredRows words =
      read_rows(l.store, make_piece(l.store, whole, dims[0], dims[1]), l.buffer);
  const uint64_t columns = is_whole(ref) ? w.N : stored_rows(l.plan);
  std::vector<int8_t> line(ceil_div(columns, 32) * 32);
  auto* values = reinterpret_cast<int8_t*>(l.buffer.allocate(w.N * w.groups));
  for (size_t g = 0; g < w.groups; ++g) {
    unpack_stream(l.plan.scheme, words.data + g * words.stride, columns, line.data());
    for (size_t r = 0; r < w.N; ++r)
      values[r * w.groups + g] =
          zero_point_of(l.plan.scheme, line[ref.row_begin + r * ref.row_step]);
  }
  attach_zero_points(l, values, w);
}

}  // namespace

void prove_gptq(const Planner& p) {
  MatrixPlan& plan = p.plan;
  reject_other_roles(p, {Role::kWeightPacked, Role::kWeightScale, Role::kWeightZeroPoint,
                         Role::kWeightGIdx, Role::kBias});
  require_as_stored(p);
  const QuantArgs& args = weight_args(p);
  if (args.kind != NumberKind::kInt || args.bits < 2 || args.bits > 8)
    fail("{}: {} means integer weights of 2 to 8 bits, not {}", plan.tensors.name,
         name_of(plan.scheme.format), describe(args));
  const auto bits = static_cast<unsigned>(args.bits);
  const TensorRef& packed = require_role(p, Role::kWeightPacked);
  require_dtype(p, packed, {DType::kI32});
  const Piece piece = matrix_piece(p.store, turned(packed));
  // A block of 32 codes takes as many words as a code has bits; with widths that divide 32 the last
  // block may be shorter.
  if (32 % bits != 0 && piece.cols % bits != 0)
    wrong_tensor(p.store, *packed.info, "a multiple of {} rows of words: 32 {}-bit codes take {}",
                 bits, bits, bits);
  set_dimensions(p, piece, piece.cols * 32 / bits);
  plan.code = packed_code(bits);
  plan.code_bytes = plan.N * piece.row_bytes();
  plan_turned_scales(p);
  plan_turned_zero_points(p);
  plan_turned_g_idx(p);
  plan_bias(p);
}

void fill_gptq(const Loader& l, QuantMatrix& w) {
  const Piece piece = matrix_piece(l.store, turned(l.plan.tensors[Role::kWeightPacked]));
  // Rows that are read transposed are one bit stream per output.
  const StoredRows words = read_rows(l.store, piece, l.buffer);
  w.codes = words.data;
  w.row_bytes = words.stride;
  if (w.code == CodeType::kInt8) {
    uint8_t* codes = l.buffer.allocate(w.N * w.K);
    for (size_t r = 0; r < w.N; ++r)
      unpack_stream(l.plan.scheme, words.data + r * words.stride, w.K,
                    reinterpret_cast<int8_t*>(codes + r * w.K));
    w.codes = codes;
    w.row_bytes = w.K;
  }
  load_turned_scales(l, w);
  load_turned_zero_points(l, w);
  load_g_idx(l, w);
}

}  // namespace moebius
