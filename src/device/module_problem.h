// SPDX-License-Identifier: Apache-2.0
// Turns modules into kernels' problems, from file headers alone, for every device.
#pragma once
#include <string>

#include "checkpoint/checkpoint.h"
#include "kernels/oracle.h"
#include "quant/act_request.h"

namespace moebius {

// Returns how the input of a module is quantized. An input whose static scale is uncalibrated is
// not quantized. A request for int8 rows is granted only if every architecture has fast kernels for
// the resulting problem, so that a folder gives the same results on all of them.
ActSpec act_spec_of(const Module& module, const ActRequest& request);
// Returns, as a sentence for the user, that a request for int8 rows is granted, or why the module
// stays as declared; "" if there was no request or it does not concern the module.
std::string request_answer(const Module& module, const ActRequest& request);
// Returns true if a module's product departs from what the checkpoint declares.
bool departs(const Module& module, const Problem& problem);
// Returns the numerics class of the module's product: the kernel's, or approximate if a request was
// granted.
Numerics numerics_of(const Module& module, const Problem& problem, const Kernel& kernel);
// Throws Error if the policy (exact arithmetic) forbids the request.
void check_request(const Policy& policy, const ActRequest& request);
// Returns the facts of a module's matrix as devices store it: as the checkpoint declares, or an
// output projection rounded to int8 on request (nn/int8_rows.h). Codes and scales are null.
QuantMatrix stored_facts(const Module& module, const ActRequest& request);
// Returns the kernel's problem for a module, from file headers alone.
Problem problem_of(const Module& module, const ActRequest& request, XType x_type);
// Returns a matrix view without payload that has zero points and offsets wherever the plan has
// them, so that kernels can be chosen before anything is read.
QuantMatrix with_zero_points(QuantMatrix facts, const MatrixPlan& plan);

}  // namespace moebius
