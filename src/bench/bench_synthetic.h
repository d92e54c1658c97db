// SPDX-License-Identifier: Apache-2.0
// Makes random weights, tokens and routings for measurements. Schemes have the names of the command
// line; weights are made as codes and scales, matrix by matrix, with magnitudes that keep outputs
// near the size of the inputs.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "bench/bench.h"
#include "device/cpu/layer_plan.h"
#include "kernels/kernel.h"
#include "nn/moe.h"
#include "nn/ops.h"
#include "quant/act_request.h"
#include "quant/quant_matrix.h"

namespace moebius {

// Random numbers whose streams are unrelated for consecutive seeds.
class BenchRandom : public SplitMix64 {
 public:
  explicit BenchRandom(uint64_t seed) : SplitMix64(seed * 0x9e3779b97f4a7c15u + 1) {}
};

// Says how weights of a scheme are stored and how its input is quantized.
struct SyntheticScheme {
  std::string name;  // name on the command line, such as "w4a8"
  // Columns per scale for reports; -1: one scale per output (or per matrix, or none).
  int64_t group = -1;
  CodeType code = CodeType::kBf16;
  uint8_t bits = 16;
  ScaleType scale = ScaleType::kNone;
  size_t block_n = 1, block_k = 0;  // block_n 0: all rows; block_k 0: all columns
  bool global_scale = false, offsets = false;
  Lut lut = Lut::kNone;
  ActSpec act;
  // true: the arithmetic is not what a folder of the scheme declares (int8 rows on request)
  bool departs = false;
};

std::span<const std::string_view> synthetic_scheme_names();
// Returns a scheme. `group`: the user's choice; schemes with a fixed group size keep it, others
// default to 128 (4 bits and less) or to one scale per output. Throws Error for an unknown name,
// listing all.
SyntheticScheme synthetic_scheme(std::string_view name, std::optional<int64_t> group,
                                 const ActRequest& request);

// Returns how layers are loaded with these options.
LayerOptions layer_options_of(const BenchOptions& options, ThreadPool& pool);

// Returns all of --scheme with all of --group; a scheme with a group size of its own is listed
// once.
std::vector<SyntheticScheme> synthetic_schemes(const BenchOptions& options);

// One random matrix with its memory; refill makes new codes and scales in place.
class SyntheticMatrix {
 public:
  // Throws Error if the group does not divide K.
  SyntheticMatrix(const SyntheticScheme& scheme, size_t N, size_t K);
  void refill(BenchRandom& random);
  const QuantMatrix& view() const { return view_; }
  ActParams act_params() const;

 private:
  SyntheticScheme scheme_;
  std::vector<uint64_t> codes_, scales_, supers_;
  QuantMatrix view_;
};

// Holds the random matrices of one expert.
struct SyntheticExpert {
  SyntheticMatrix gate, up, down;
  SyntheticExpert(const SyntheticScheme& s, size_t hidden, size_t intermediate)
      : gate(s, intermediate, hidden), up(s, intermediate, hidden), down(s, hidden, intermediate) {}
  void refill(BenchRandom& random) {
    for (SyntheticMatrix* m : {&gate, &up, &down}) m->refill(random);
  }
  ExpertWeights weights() const {
    const auto of = [](const SyntheticMatrix& m) {
      return MatrixWeights{&m.view(), m.act_params()};
    };
    return {of(gate), of(up), of(down)};
  }
};

// Return the bytes of codes at their declared width, and of scales as a file stores them.
uint64_t code_bytes(const Problem& problem);
uint64_t scale_bytes_of(const Problem& problem);

// Random rows of an activation type, normally distributed with variance about 1.
class SyntheticRows {
 public:
  SyntheticRows(XType type, size_t rows, size_t cols);
  void refill(BenchRandom& random);
  ConstRows view() const;
  Rows output();  // returns memory for rows of the same size and type, with undefined content

 private:
  XType type_;
  size_t rows_, cols_;
  std::vector<uint32_t> x_, y_;
};

// Random expert ids [T, k], different within a row. Uniform; or skewed: half of the tokens use one
// expert, which changes with every refill.
class SyntheticRouting {
 public:
  SyntheticRouting(size_t tokens, size_t experts, size_t top_k, bool skew);
  void refill(BenchRandom& random);
  std::span<const int32_t> ids() const { return ids_; }
  std::span<const float> weights() const { return weights_; }
  size_t used() const { return used_; }  // number of distinct experts

 private:
  size_t experts_, top_k_;
  bool skew_;
  std::vector<int32_t> ids_, order_;
  std::vector<float> weights_;
  std::vector<uint8_t> seen_;
  size_t used_ = 0;
};

}  // namespace moebius
