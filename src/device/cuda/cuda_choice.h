// SPDX-License-Identifier: Apache-2.0
// Which CUDA kernels run a problem, and why not the others: the oracle of the device (kernels/oracle.h
// is the CPU's). A pure function of problem, device description and policy, so it answers for any
// device from any machine.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "device/cuda/cuda_table.h"
#include "device/cuda/hopper_scheme.h"
#include "kernels/oracle.h"
#include "quant/moe_spec.h"

namespace moebius {

// What a choice looks at, and what people are told.
struct CudaTarget {
  std::string name;
  int major = 9, minor = 0, multiprocessors = 132;
  uint64_t memory_bytes = 0, cache_bytes = 0;
  bool assumed = false;  // this machine has no such device
  bool hopper() const { return major == 9 && minor == 0; }
};
CudaTarget cuda_target(const CudaFacts& facts);
// "H100", "H200", "H20", "A100"; throws Error naming these.
CudaTarget named_cuda_target(std::string_view name);
std::string describe(const CudaTarget& target);

// The kernels as records of facts: name, codec, supports, numerics, packed_bytes. What runs them is
// the plugin, so they have no bodies. Best first; "cuda_plain" runs everything and is last.
std::span<const Kernel> cuda_kernels();
const Kernel& plain_cuda_kernel();
CudaPath path_of(const Kernel& kernel);
HopperQuestion hopper_question(const Problem& problem);

// As choose_kernel. policy.kernel: "cuda_plain", "cuda_hopper", "cuda_hopper/fp8_products", or empty.
// plain: not null where tensor-core kernels are out of the question, and why.
Choice choose_cuda(const Problem& problem, const CudaTarget& target, const Policy& policy,
                   const char* plain = nullptr);
// Lower case, '-' as '_'. Throws Error listing the names.
std::string normalize_cuda_kernel(std::string_view name);

// Why a whole layer of experts stays with the plain kernels although each of its matrices need not;
// null: nothing.
const char* plain_experts_reason(const MoeSpec& spec);

CudaActivation cuda_activation(const ActivationSpec& spec);

}  // namespace moebius
