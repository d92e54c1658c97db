// SPDX-License-Identifier: Apache-2.0
// Splits a matrix that holds gate and up rows into references to either half.
#pragma once
#include "checkpoint/formats/format.h"
#include "checkpoint/tensor_name.h"

namespace moebius {

// Returns true for tensors of GPTQ and AWQ, which store outputs as columns (AWQ's gemv: as rows of
// words).
bool is_turned(const ModuleTensors& tensors);
// Returns the number of outputs that the tensors of a matrix imply, or 0 if they imply none.
// `expected`: 0 if unknown.
uint64_t outputs_of(const ModuleTensors& tensors, uint64_t expected);

// Reduces references to a matrix of `rows` outputs to the rows of gate or up. step 2: gate and up
// rows alternate, gate first.
void take_half(ModuleTensors& tensors, uint64_t rows, Projection projection, uint64_t step);
// Returns the name of the matrix of which these tensors are one half; "" if they are whole.
std::string whole_of(const ModuleTensors& tensors);

}  // namespace moebius
