// SPDX-License-Identifier: Apache-2.0
// Says what numbers the blocks of a GGUF type hold, in the words of a scheme. Tensors of such types
// have dtype U8, their blocks' bytes as columns, and TensorInfo::gguf set.
#pragma once
#include "gguf/gguf.h"
#include "quant/scheme.h"

namespace moebius {

// Returns the scheme of a matrix of this type; dense for F32, F16 and BF16. Nothing for types that
// hold no matrix (integers and F64).
std::optional<Scheme> scheme_of_gguf(const GgufType& type);

}  // namespace moebius
