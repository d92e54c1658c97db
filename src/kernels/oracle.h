// SPDX-License-Identifier: Apache-2.0
// The oracle: which kernel runs a problem, and why. A pure function of problem, CPU and policy over
// the one list of kernels; the CPU is an argument, so it answers for any machine from any machine.
// Every kernel gets a verdict in words.
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
  kDeclared,     // the arithmetic the checkpoint declares: classes exact and reordered
  kExact,        // class exact only
  kApproximate,  // all classes
};

struct Policy {
  Accept accept = Accept::kDeclared;
  // Requested by name ("arm_i8mm", "arm_i8mm/int4"); empty, "auto" or "cpu": the oracle's choice.
  std::string kernel;
  bool where_it_can = false;  // what that kernel cannot run gets the oracle's choice
};

enum class Verdict : uint8_t {
  kChosen,
  kFallback,  // would do, but stands behind the chosen one
  kSkipped,   // could run, but the policy or the request does not want it
  kRejected,  // cannot run this
};

struct Candidate {
  const Kernel* kernel = nullptr;
  Verdict verdict = Verdict::kRejected;
  std::string reason;
  Numerics numerics = Numerics::kExact;  // of kernels that support the problem
  size_t packed_bytes = 0;               // likewise
};

struct Choice {
  const Kernel* chosen = nullptr;  // never null
  Numerics numerics = Numerics::kExact;
  std::vector<Candidate> candidates;  // in list order
};

// Throws Error if the requested kernel is unknown (naming all) or impossible here (saying why and
// what would work).
Choice choose_kernel(const Problem& problem, const Cpu& cpu, const Policy& policy);

// The policy as far as it concerns this problem. A kernel requested by name is for the quantized
// modules; a dense companion (router, norm-like gate, attention) that it cannot run gets the
// oracle's choice, and so does every other problem where the policy says so.
Policy request_for(const Problem& problem, const Policy& policy);

// Why no kernel of its own runs the problem on some architecture, so that it would fall to a portable
// one there; null: every architecture has one.
const char* portable_reason(const Problem& problem);

// Lower case, '-' as '_'; "auto" and "cpu" become empty. Throws Error listing the names if no
// kernel is called so.
std::string normalize_kernel_name(std::string_view name);
std::vector<std::string> kernel_names();  // without codecs, in list order
// Names of kernels that `cpu` could run and that this build has no functions of (MOEBIUS_KERNELS).
std::vector<std::string> left_out_kernels(const Cpu& cpu);

Accept accept_from_name(std::string_view name);  // declared, exact, approximate; throws Error
std::string_view name_of(Accept accept);
std::string_view name_of(Verdict verdict);    // "chosen", ...
std::string_view name_of(Numerics numerics);  // "exact", ...
std::string title_of(const Kernel& kernel);   // "arm_i8mm/int4"

}  // namespace moebius
