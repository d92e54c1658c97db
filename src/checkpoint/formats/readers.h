// SPDX-License-Identifier: Apache-2.0
// Declares the two functions of each format reader, for the list in list.cpp only; FormatReader
// (format.h) says what they do.
#pragma once
#include "checkpoint/formats/format.h"

namespace moebius {

void prove_dense(const Planner& p);
void fill_dense(const Loader& l, QuantMatrix& w);

void prove_plain_quantized(const Planner& p);
void fill_plain_quantized(const Loader& l, QuantMatrix& w);

void prove_pack_quantized(const Planner& p);
void fill_pack_quantized(const Loader& l, QuantMatrix& w);

void prove_nvfp4_pack(const Planner& p);
void fill_nvfp4_pack(const Loader& l, QuantMatrix& w);

void prove_mxfp4_pack(const Planner& p);
void fill_mxfp4_pack(const Loader& l, QuantMatrix& w);

void prove_mxfp8(const Planner& p);
void fill_mxfp8(const Loader& l, QuantMatrix& w);

void prove_gpt_oss_mxfp4(const Planner& p);
void fill_gpt_oss_mxfp4(const Loader& l, QuantMatrix& w);

void prove_native_fp8(const Planner& p);
void fill_native_fp8(const Loader& l, QuantMatrix& w);

void prove_modelopt_nvfp4(const Planner& p);
void fill_modelopt_nvfp4(const Loader& l, QuantMatrix& w);

void prove_gptq(const Planner& p);
void fill_gptq(const Loader& l, QuantMatrix& w);

void prove_mlx(const Planner& p);
void fill_mlx(const Loader& l, QuantMatrix& w);

void prove_awq(const Planner& p);
void fill_awq(const Loader& l, QuantMatrix& w);

}  // namespace moebius
