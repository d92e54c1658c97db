// SPDX-License-Identifier: Apache-2.0
// Selects experts: logits [T, E] to ids and weights [T, slots], all in f32. One routine with
// parameters covers all published methods; docs/numerics.md has the formulas. Rules for all
// methods:
//   non-finite scores count as 0; ties go to the lower index; a row depends on nothing but its own
//   logits; slots are in descending weight before renormalization (ties: lower id), fused shared
//   slots behind them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "quant/moe_spec.h"

namespace moebius {

struct RouterInput {
  const float* logits = nullptr;  // [T, experts + zero_experts] logits
  size_t T = 0;
  const float* bias = nullptr;          // [experts + zero_experts], required if the spec has_bias
  const float* expert_scale = nullptr;  // [experts], required if per_expert_scale
  const int32_t* table = nullptr;       // [table_rows, top_k], required for kTable
  size_t table_rows = 0;
  const int64_t* token_ids = nullptr;  // [T], required for kTable
};

struct RouterOutput {
  int32_t* ids = nullptr;    // [T, slots] receives expert ids
  float* weights = nullptr;  // [T, slots] receives their weights
  // [T] receives the sum of the weights of each token's identity experts; null: not wanted
  float* zero_weights = nullptr;
  // Id that is written for a slot with an identity expert, whose weight becomes 0.
  int32_t zero_id = 0;
};

class Router {
 public:
  Router() = default;
  explicit Router(const RouterSpec& spec);  // throws Error if the spec contradicts itself

  const RouterSpec& spec() const { return spec_; }
  size_t width() const { return spec_.experts + spec_.zero_experts; }  // logits per row
  size_t slots() const { return spec_.top_k + spec_.shared_slots; }    // ids per row

  // Throws Error if an input is missing that the spec needs, or if a token or table id is out of
  // range.
  void check(const RouterInput& in) const;

  // Chooses the experts of row t; `in` must have passed check(). scratch: scratch_floats() floats.
  // Thread-safe for different rows.
  void route_row(const RouterInput& in, size_t t, const RouterOutput& out,
                 float* scratch) const noexcept;
  size_t scratch_floats() const {
    return (spec_.logit_cap > 0 ? 3 : 2) * width() + 2 * spec_.groups;
  }

 private:
  void select(const float* logits, const RouterInput& in, int32_t* ids, float* weights,
              float* scratch) const noexcept;
  void finish(const RouterInput& in, size_t t, const RouterOutput& out) const noexcept;
  RouterSpec spec_;
  bool grouped_ = false;
};

}  // namespace moebius
