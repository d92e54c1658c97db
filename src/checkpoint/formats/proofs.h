// SPDX-License-Identifier: Apache-2.0
// What the readers' plan() functions share: dtypes, shapes and presence of a module's tensors
// against its scheme, and the few small tensors read at plan time (weight_shape, g_idx, global and
// static scales). All of them throw Error naming the tensor.
#pragma once
#include <initializer_list>

#include "checkpoint/formats/piece.h"

namespace moebius {

// One plan() call.
struct Planner {
  const TensorStore& store;
  MatrixPlan& plan;
  uint64_t expected_N = 0, expected_K = 0;  // 0: unknown
  std::string_view version;

  const TensorRef& ref(Role role) const { return plan.tensors[role]; }
};

// The tensor of a role that the format cannot do without.
const TensorRef& require_role(const Planner& p, Role role);
// Throws for a present role outside `known`.
void reject_other_roles(const Planner& p, std::initializer_list<Role> known);
void require_dtype(const Planner& p, const TensorRef& ref, std::initializer_list<DType> allowed);
void require_untransposed(const Planner& p, const TensorRef& ref);
// Packed tables (zero points) of the very outputs that weight_packed means.
void require_rows_of_codes(const Planner& p, const TensorRef& ref);

// Declared arguments of the weights; throws when the scheme has none.
const QuantArgs& weight_args(const Planner& p);

// Output rows that the module's weight tensor stores (both halves of a fused one).
uint64_t stored_rows(const MatrixPlan& plan);

// Sets N and K from a proven weight piece and compares with the expected dimensions.
void set_dimensions(const Planner& p, const Piece& weight, uint64_t K);

// Granularity (groups, block_n, block_k, n_phase) from strategy, N and K; scale dtype and shape.
void plan_scales(const Planner& p, std::initializer_list<DType> allowed);
ScaleType scale_type_of(DType type);
// Codes of a packed width, as load_packed_codes gives them.
CodeType packed_code(unsigned bits);
// Granularity alone, for formats whose group size is fixed (16 or 32) whatever the strategy's name.
void set_group(const Planner& p, uint64_t group);
// A scale table (or plain zero points, which have the same shape) as rows of blocks x groups.
Piece table_piece(const TensorStore& store, const MatrixPlan& plan, const TensorRef& ref);

// weight_zero_point stored unpacked: required when asymmetric; a symmetric module may carry zeros
// of any dtype.
void plan_plain_zero_points(const Planner& p);
// weight_g_idx: read, proven, and dropped when it is the identity.
void plan_g_idx(const Planner& p);
// The same without asking what the configuration says: whether it reorders columns; nothing where
// it is not initialised (-1).
std::optional<bool> reads_reordered(const Planner& p);
// Global scale of NVFP4: F32, one element, finite and above 0.
float plan_global_scale(const Planner& p, Role role);
// Stored parameters of input and output quantization, and the bias.
void plan_activations(const Planner& p);
void plan_bias(const Planner& p);

}  // namespace moebius
