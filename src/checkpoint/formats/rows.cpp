// SPDX-License-Identifier: Apache-2.0
// Plans some rows of a matrix: the references of codes and scales get the rows, and the granularity
// follows. Used where a matrix is too large to be in memory twice, as read and as packed.
#include "checkpoint/formats/piece.h"

namespace moebius {
namespace {

constexpr Role kByRow[] = {Role::kWeight, Role::kWeightPacked, Role::kWeightScale,
                           Role::kWeightOffset};

}  // namespace

bool can_cut_rows(const MatrixPlan& plan) {
  if (has_columns(plan.scheme.format)) return false;
  for (const Role role : kByRow) {
    const TensorRef& ref = plan.tensors[role];
    if (ref && (!is_whole(ref) || ref.transposed)) return false;
  }
  return !plan.act_order && !plan.tensors[Role::kWeightZeroPoint];
}

MatrixPlan rows_of(const MatrixPlan& plan, uint64_t begin, uint64_t end) {
  if (!can_cut_rows(plan)) fail("{} cannot be read in pieces of rows", plan.tensors.name);
  if (begin >= end || end > plan.N)
    fail("{}: rows [{}, {}) of a matrix with {} rows", plan.tensors.name, begin, end, plan.N);
  MatrixPlan p = plan;
  p.N = end - begin;
  for (const Role role : kByRow)
    if (TensorRef& ref = p.tensors[role]) {
      ref.row_begin = begin;
      ref.row_count = p.N;
    }
  const bool blocks = plan.scheme.weights && plan.scheme.weights->strategy == Strategy::kBlock;
  if (blocks)
    p.n_phase = begin % plan.block_n;
  else if (plan.block_n != 1)
    p.block_n = p.N;  // one scale for all rows, or none
  return p;
}

}  // namespace moebius
