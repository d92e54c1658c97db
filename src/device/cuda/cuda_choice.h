// SPDX-License-Identifier: Apache-2.0
// Chooses the CUDA kernel that runs a problem and says why not the others, as kernels/oracle.h does
// for the CPU. A pure function of problem, device description and policy: any machine can ask for
// any device.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "device/cuda/cuda_table.h"
#include "device/cuda/mma_form.h"
#include "device/gpu.h"
#include "kernels/oracle.h"
#include "quant/moe_spec.h"

namespace moebius {

GpuTarget cuda_target(const CudaFacts& facts);

// Returns the CUDA kernels as records of facts: name, codec, supports, numerics, packed_bytes. They
// have no functions to run, because the plugin runs them. Best first; the last, "cuda_plain",
// supports every problem.
std::span<const Kernel> cuda_kernels();
const Kernel& plain_cuda_kernel();
CudaPath path_of(const Kernel& kernel);
HopperQuestion hopper_question(const Problem& problem);

// Chooses as choose_kernel does. policy.kernel: "cuda_plain", "cuda_mma", "cuda_hopper",
// "cuda_hopper/fp8_products", or empty. `plain`: null, or why tensor-core kernels must not be used.
Choice choose_cuda(const Problem& problem, const GpuTarget& target, const Policy& policy,
                   const char* plain = nullptr);
// Returns a CUDA kernel's name as the user may write it in one form: lower case, '_' for '-'.
// Throws Error that lists the names.
std::string normalize_cuda_kernel(std::string_view name);

// Returns why a layer of experts needs the plain kernels although tensor-core kernels support each
// of its matrices; null if it does not need them.
const char* plain_experts_reason(const MoeSpec& spec);

CudaActivation cuda_activation(const ActivationSpec& spec);

}  // namespace moebius
