// SPDX-License-Identifier: Apache-2.0
// Gate and up rows of one matrix, as references to either half.
#pragma once
#include "checkpoint/formats/format.h"
#include "checkpoint/tensor_name.h"

namespace moebius {

// Leaves of the tensors of a matrix of `rows` rows those of gate or up; step 2: the rows alternate,
// gate first.
void take_half(ModuleTensors& tensors, uint64_t rows, Projection projection, uint64_t step);

}  // namespace moebius
