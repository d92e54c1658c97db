// SPDX-License-Identifier: Apache-2.0
// Declares the two functions of each format reader, for the list in list.cpp only; FormatReader
// (format.h) says what they do.
#pragma once
#include "checkpoint/formats/format.h"

namespace moebius {

void prove_stored_codes(const Planner& p);
void fill_stored_codes(const Loader& l, QuantMatrix& w);

void prove_pack_quantized(const Planner& p);
void fill_pack_quantized(const Loader& l, QuantMatrix& w);

void prove_gptq(const Planner& p);
void fill_gptq(const Loader& l, QuantMatrix& w);

void prove_mlx(const Planner& p);
void fill_mlx(const Loader& l, QuantMatrix& w);

void prove_gguf(const Planner& p);
void fill_gguf(const Loader& l, QuantMatrix& w);

void prove_awq(const Planner& p);
void fill_awq(const Loader& l, QuantMatrix& w);

}  // namespace moebius
