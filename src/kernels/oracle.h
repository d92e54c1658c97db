// SPDX-License-Identifier: Apache-2.0
// The oracle chooses the kernel for a problem and gives a reason for every kernel of the list. A
// pure function of problem, CPU and policy; the CPU is an argument, so it answers for any machine
// on any machine.
//
// Order of the tests, first failure wins: architecture, CPU features, what the kernel supports,
// numerics against the policy, whether the kernel waits to be requested.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernel.h"

namespace moebius {

enum class Accept : uint8_t {
  kDeclared,     // arithmetic that the checkpoint declares: classes exact and reordered
  kExact,        // class exact only
  kApproximate,  // all classes
};

struct Policy {
  Accept accept = Accept::kDeclared;
  // Name of a kernel ("arm_i8mm", "arm_i8mm/int4"); empty, "auto" or "cpu": the oracle chooses.
  std::string kernel;
  // true: problems that the named kernel cannot run are left to the oracle
  bool where_it_can = false;
};

enum class Verdict : uint8_t {
  kChosen,
  kFallback,  // could run it, but comes after the chosen one
  kSkipped,   // could run it, but the policy excludes it
  kRejected,  // cannot run it
};

struct Candidate {
  const Kernel* kernel = nullptr;
  Verdict verdict = Verdict::kRejected;
  std::string reason;
  Numerics numerics = Numerics::kExact;  // set for kernels that support the problem
  size_t packed_bytes = 0;               // set for kernels that support the problem
};

struct Choice {
  const Kernel* chosen = nullptr;  // never null
  Numerics numerics = Numerics::kExact;
  std::vector<Candidate> candidates;  // in list order
};

// Returns the choice. Throws Error if the requested kernel is unknown (naming all) or cannot run
// the problem (saying why, and which could).
Choice choose_kernel(const Problem& problem, const Cpu& cpu, const Policy& policy);

// Returns the policy to apply to this problem. A kernel requested by name is meant for quantized
// modules; dense modules (router, gate, attention) that it cannot run are left to the oracle, as is
// every other problem if the policy says so.
Policy request_for(const Problem& problem, const Policy& policy);

// Returns why some architecture has only a portable kernel for the problem; null: every
// architecture has a special one.
const char* portable_reason(const Problem& problem);

// Returns the name in lower case with '-' replaced by '_'; "auto" and "cpu" become empty. Throws
// Error that lists the names if no kernel has this one.
std::string normalize_kernel_name(std::string_view name);
std::vector<std::string> kernel_names();  // without codecs, in list order
// Returns names of kernels that `cpu` could run, but that were left out of this build
// (MOEBIUS_KERNELS).
std::vector<std::string> left_out_kernels(const Cpu& cpu);

Accept accept_from_name(std::string_view name);  // declared, exact, approximate; throws Error
std::string_view name_of(Accept accept);
std::string_view name_of(Verdict verdict);    // "chosen", ...
std::string_view name_of(Numerics numerics);  // "exact", ...
std::string title_of(const Kernel& kernel);   // "arm_i8mm/int4"

}  // namespace moebius
