// SPDX-License-Identifier: Apache-2.0
// Encodes a source matrix into the tensors of a quantized module, with the names, types and layouts
// of compressed-tensors. Their sizes are known before anything is read.
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
// Returns the tensors that a module [N,K] of a scheme stores, without its bias.
std::vector<ModuleTensor> tensors_of_module(const Scheme& scheme, uint64_t N, uint64_t K,
                                            XType type);

// Holds the scales of a matrix, [rows of blocks, groups].
struct ScaleTable {
  size_t block_n = 1, block_k = 1;  // rows and columns that share a scale
  size_t rows = 0, groups = 0;
  std::vector<GranuleScale> scales;
  float input_scale = 0;  // static scale of the inputs, if the scheme stores one
};

// Computes round-to-nearest scales. rules.global must be set if the scheme has a global scale.
// Throws Error for weights that are not finite.
ScaleTable rtn_scales(const MatrixSource& source, const QuantArgs& weights,
                      const EncodeRules& rules);
// Returns the largest magnitude of a matrix.
float largest_of(const MatrixSource& source);

// Returns the bytes of tensors_of_module(), in the same order. `codes`: [N,K], one byte each.
std::vector<std::vector<uint8_t>> pack_module(const Scheme& scheme, uint64_t N, uint64_t K,
                                              const EncodeRules& rules, const ScaleTable& table,
                                              const std::vector<uint8_t>& codes);
// Encodes by round-to-nearest, row by row: scales, codes and bytes in one pass.
std::vector<std::vector<uint8_t>> encode_module_rtn(const MatrixSource& source,
                                                    const Scheme& scheme, const EncodeRules& rules,
                                                    float input_scale);
// Returns the stored scale for inputs whose largest magnitude is amax, computed in the arithmetic
// of the type.
float stored_input_scale(const QuantArgs& input, XType type, float amax);

}  // namespace moebius
