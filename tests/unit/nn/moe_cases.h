// SPDX-License-Identifier: Apache-2.0
// Random mixture-of-experts layers with any scheme, the layer built from them, and the
// straightforward scalar definition that the layer is held to: one row at a time, built on
// quant/reference.h alone.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "kernels/kernel_cases.h"
#include "nn/moe.h"

namespace moebius::test {

struct ExpertCase {
  std::optional<MatrixCase> gate;
  MatrixCase up, down;
  std::vector<float> gate_bias, up_bias, down_bias;
};

struct MoeCase {
  MoeSpec spec;
  SchemeCase up_scheme, down_scheme;
  XType x_type = XType::kF32;
  std::vector<ExpertCase> experts;
  std::optional<ExpertCase> shared;
  std::optional<MatrixCase> shared_gate;
  SchemeCase gate_scheme;  // of shared_gate
};

struct MoeShape {
  size_t hidden = 32, intermediate = 48, experts = 4, top_k = 2;
  bool bias = false, shared = false, shared_gate = false;
};

MoeCase make_moe(const SchemeCase& up, const SchemeCase& down, const MoeShape& shape,
                 const ActivationSpec& activation, XType x_type, Rng& rng);

ExpertWeights weights_of(const ExpertCase& e);
MoePlan plan_of(const MoeCase& c, const Kernel& kernel);
std::unique_ptr<MoeLayer> build(const MoeCase& c, const Kernel& kernel, ThreadPool* pool = nullptr);
bool is_exact(const MoeCase& c, const Kernel& kernel);  // all products of the layer

// T rows of activations in the type of the case, and their exact f32 values.
struct Activations {
  std::vector<float> values;
  std::vector<uint16_t> halves;
  ConstRows view;
};
Activations make_x(const MoeCase& c, size_t T, bool ugly, Rng& rng);

// What an expert makes of one row, before the router weight (down bias included).
std::vector<float> expert_output(const MoeCase& c, const ExpertCase& e,
                                 const std::vector<float>& x);

// y [T, hidden] before the rounding to the output type.
std::vector<float> reference_moe(const MoeCase& c, const std::vector<float>& x,
                                 const std::vector<int32_t>& ids,
                                 const std::vector<float>& weights);

// Equal bits, any NaN equal to any NaN. Returns the first index that differs, or -1.
long first_difference(const std::vector<float>& a, const std::vector<float>& b);
// |a - b| / |b| over all finite elements; infinity when they disagree about which are finite.
double distance(const std::vector<float>& a, const std::vector<float>& b);

// All rows of checked input, one after the other.
void route_rows(const Router& router, const RouterInput& in, const RouterOutput& out);

// The layer's answer in f32.
std::vector<float> run_ids(const MoeLayer& layer, const Activations& x,
                           const std::vector<int32_t>& ids, const std::vector<float>& weights,
                           ThreadPool& pool, const MoeOptions& options = {});

}  // namespace moebius::test
