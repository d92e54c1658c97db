// SPDX-License-Identifier: Apache-2.0
// Helpers of the readers' plan() functions: they check dtypes, shapes and presence of a module's
// tensors against its scheme, and read a few small tensors (weight_shape, g_idx, global and static
// scales). All throw Error that names the tensor.
#pragma once
#include <initializer_list>

#include "checkpoint/formats/piece.h"

namespace moebius {

// Arguments of one plan() call (format.h).
struct Planner {
  const TensorStore& store;
  MatrixPlan& plan;
  uint64_t expected_N = 0, expected_K = 0;  // shape that the architecture implies; 0: unknown
  std::string_view version;

  const TensorRef& ref(Role role) const { return plan.tensors[role]; }
};

// Holds a set of roles, one bit each.
struct RoleSet {
  constexpr RoleSet(std::initializer_list<Role> roles) {
    for (const Role r : roles) bits |= 1u << static_cast<unsigned>(r);
  }
  constexpr bool contains(Role r) const { return (bits >> static_cast<unsigned>(r) & 1) != 0; }
  constexpr RoleSet operator|(RoleSet other) const {
    other.bits |= bits;
    return other;
  }
  uint32_t bits = 0;
};

// Returns the tensor of a role; throws if it is missing.
const TensorRef& require_role(const Planner& p, Role role);
// Throws if a tensor has a role outside of `known`.
void reject_other_roles(const Planner& p, RoleSet known);
void require_dtype(const Planner& p, const TensorRef& ref, std::initializer_list<DType> allowed);
void require_untransposed(const Planner& p, const TensorRef& ref);
// Throws unless a packed table (zero points) refers to the same rows as weight_packed does.
void require_rows_of_codes(const Planner& p, const TensorRef& ref);

// Returns the declared arguments of the weights; throws if the scheme has none.
const QuantArgs& weight_args(const Planner& p);

// Returns the number of output rows that the module's weight tensor stores (both halves of a fused
// one).
uint64_t stored_rows(const MatrixPlan& plan);

// Sets N and K from the weight's piece and compares them with the expected dimensions.
void set_dimensions(const Planner& p, const Piece& weight, uint64_t K);

// Sets groups, block_n, block_k and n_phase from strategy, N and K; checks dtype and shape of the
// scales.
void plan_scales(const Planner& p, std::initializer_list<DType> allowed);
ScaleType scale_type_of(DType type);
// Returns the type of codes that load_packed_codes makes of a packed width.
CodeType packed_code(unsigned bits);
// Sets the granularity for formats with a fixed group size (16 or 32), whatever the strategy is
// called.
void set_group(const Planner& p, uint64_t group);
// Returns the piece of a scale table, or of unpacked zero points, as rows of blocks x groups.
Piece table_piece(const TensorStore& store, const MatrixPlan& plan, const TensorRef& ref);

// Checks weight_zero_point stored unpacked: required if asymmetric; a symmetric module may have
// zeros of any dtype.
void plan_plain_zero_points(const Planner& p);
// Reads and checks weight_g_idx, and drops it if it is the identity.
void plan_g_idx(const Planner& p);
// Reads weight_g_idx even if the configuration does not mention it; returns whether it reorders
// columns, or nothing if it is not initialised (-1).
std::optional<bool> reads_reordered(const Planner& p);
// Returns the global scale of NVFP4: F32, one element, finite and above 0.
float plan_global_scale(const Planner& p, Role role);
// Read the stored parameters of input and output quantization; check the bias.
void plan_activations(const Planner& p);
void plan_bias(const Planner& p);

}  // namespace moebius
