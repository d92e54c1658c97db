// SPDX-License-Identifier: Apache-2.0
// Gate and up rows of one matrix, as references to either half.
#pragma once
#include "checkpoint/formats/format.h"
#include "checkpoint/tensor_name.h"

namespace moebius {

// GPTQ's and AWQ's tensors, which hold outputs as columns (AWQ's gemv: as rows of words).
bool is_turned(const ModuleTensors& tensors);
// Outputs of a matrix by its tensors; 0: they do not tell. expected: 0 where that is not known.
uint64_t outputs_of(const ModuleTensors& tensors, uint64_t expected);

// Leaves of the tensors of a matrix of `rows` outputs those of gate or up; step 2: the rows
// alternate, gate first.
void take_half(ModuleTensors& tensors, uint64_t rows, Projection projection, uint64_t step);
// The name of the matrix of which these tensors are a half; "": of none.
std::string whole_of(const ModuleTensors& tensors);

}  // namespace moebius
