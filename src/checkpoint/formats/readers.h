// SPDX-License-Identifier: Apache-2.0
// The two functions of every reader, for the list alone. What they promise is said at FormatReader
// (format.h).
#pragma once
#include "checkpoint/formats/format.h"

namespace moebius {

MatrixPlan plan_dense(const ModuleTensors& tensors, const Scheme& scheme, const TensorStore& store,
                      uint64_t expected_N, uint64_t expected_K, std::string_view version);
QuantMatrix load_dense(const MatrixPlan& plan, const TensorStore& store, LoadBuffer& buffer);

MatrixPlan plan_plain_quantized(const ModuleTensors& tensors, const Scheme& scheme,
                                const TensorStore& store, uint64_t expected_N, uint64_t expected_K,
                                std::string_view version);
QuantMatrix load_plain_quantized(const MatrixPlan& plan, const TensorStore& store,
                                 LoadBuffer& buffer);

MatrixPlan plan_pack_quantized(const ModuleTensors& tensors, const Scheme& scheme,
                               const TensorStore& store, uint64_t expected_N, uint64_t expected_K,
                               std::string_view version);
QuantMatrix load_pack_quantized(const MatrixPlan& plan, const TensorStore& store,
                                LoadBuffer& buffer);

MatrixPlan plan_nvfp4_pack(const ModuleTensors& tensors, const Scheme& scheme,
                           const TensorStore& store, uint64_t expected_N, uint64_t expected_K,
                           std::string_view version);
QuantMatrix load_nvfp4_pack(const MatrixPlan& plan, const TensorStore& store, LoadBuffer& buffer);

MatrixPlan plan_mxfp4_pack(const ModuleTensors& tensors, const Scheme& scheme,
                           const TensorStore& store, uint64_t expected_N, uint64_t expected_K,
                           std::string_view version);
QuantMatrix load_mxfp4_pack(const MatrixPlan& plan, const TensorStore& store, LoadBuffer& buffer);

MatrixPlan plan_mxfp8(const ModuleTensors& tensors, const Scheme& scheme, const TensorStore& store,
                      uint64_t expected_N, uint64_t expected_K, std::string_view version);
QuantMatrix load_mxfp8(const MatrixPlan& plan, const TensorStore& store, LoadBuffer& buffer);

MatrixPlan plan_gpt_oss_mxfp4(const ModuleTensors& tensors, const Scheme& scheme,
                              const TensorStore& store, uint64_t expected_N, uint64_t expected_K,
                              std::string_view version);
QuantMatrix load_gpt_oss_mxfp4(const MatrixPlan& plan, const TensorStore& store,
                               LoadBuffer& buffer);

}  // namespace moebius
