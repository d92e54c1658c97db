// SPDX-License-Identifier: Apache-2.0
// From a source matrix to the tensors of a quantized module, in the names, types and layouts of
// compressed-tensors. Sizes are known before anything is read.
#pragma once
#include <string_view>
#include <vector>

#include "quantize/matrix_source.h"

namespace moebius {

struct ModuleTensor {
  Role role = Role::kWeight;
  DType dtype = DType::kU8;
  std::vector<uint64_t> shape;
  uint64_t bytes = 0;
};
// What a module [N,K] of a scheme stores, besides its bias.
std::vector<ModuleTensor> tensors_of_module(const Scheme& scheme, uint64_t N, uint64_t K,
                                            XType type);

// Scales of a matrix: [rows of blocks, groups].
struct ScaleTable {
  size_t block_n = 1, block_k = 1;  // rows and columns that share one
  size_t rows = 0, groups = 0;
  std::vector<GranuleScale> scales;
  float input_scale = 0;  // where the scheme stores one
};

// Round-to-nearest scales. `rules.global` must be set where the scheme has one. Throws Error for
// weights that are not finite.
ScaleTable rtn_scales(const MatrixSource& source, const QuantArgs& weights,
                      const EncodeRules& rules);
// The largest magnitude of a matrix.
float largest_of(const MatrixSource& source);

// The bytes of tensors_of_module(), in its order. `codes` [N,K], one byte each.
std::vector<std::vector<uint8_t>> pack_module(const Scheme& scheme, uint64_t N, uint64_t K,
                                              const EncodeRules& rules, const ScaleTable& table,
                                              const std::vector<uint8_t>& codes);
// Round-to-nearest, row by row: scales, codes and bytes at once.
std::vector<std::vector<uint8_t>> encode_module_rtn(const MatrixSource& source,
                                                    const Scheme& scheme, const EncodeRules& rules,
                                                    float input_scale);
// The stored scale of inputs whose largest magnitude is amax, in the arithmetic of the type.
float stored_input_scale(const QuantArgs& input, XType type, float amax);

}  // namespace moebius
