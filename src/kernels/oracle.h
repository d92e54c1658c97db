// SPDX-License-Identifier: Apache-2.0
// The oracle chooses the kernel for a problem and gives a verdict, in words, on every kernel of the
// list. It is a pure function of problem, CPU and policy; the CPU is an argument, so any machine
// can ask for any machine.
//
// Order of the tests, first failure wins: architecture, CPU features, what the kernel supports,
// numerics against the policy, whether the kernel runs only if requested by name.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernel.h"

namespace moebius {

enum class Accept : uint8_t {
  kDeclared,     // the arithmetic that the checkpoint declares: Numerics kExact and kReordered
  kExact,        // only kernels of Numerics::kExact
  kApproximate,  // all kernels, also those of Numerics::kApproximate
};

struct Policy {
  Accept accept = Accept::kDeclared;
  // Name of a kernel ("arm_i8mm", "arm_i8mm/int4"); empty, "auto" or "cpu": the oracle chooses.
  std::string kernel;
  // true: for problems that the named kernel cannot run the oracle chooses; false: they are errors
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
  // Numerics for the problem; set for kernels that support it.
  Numerics numerics = Numerics::kExact;
  size_t packed_bytes = 0;  // bytes of the packed matrix; set for kernels that support the problem
};

struct Choice {
  const Kernel* chosen = nullptr;  // the chosen kernel; never null
  Numerics numerics = Numerics::kExact;
  std::vector<Candidate> candidates;  // verdicts on all kernels, in the order of the list
};

// Chooses the kernel. Throws Error if the requested kernel is unknown (naming all) or cannot run
// the problem (saying why, and which could).
Choice choose_kernel(const Problem& problem, const Cpu& cpu, const Policy& policy);

// Returns the policy to apply to this problem. A kernel requested by name is meant for quantized
// modules; dense modules (router, gate, attention) that it cannot run are left to the oracle, as is
// every other problem if the policy says so.
Policy request_for(const Problem& problem, const Policy& policy);

// Returns why some architecture has only a portable kernel for the problem; null: every
// architecture has a special one.
const char* portable_reason(const Problem& problem);

// Returns a kernel's name as the user may write it in one form: lower case, '_' for '-'; "auto" and
// "cpu" become empty. Throws Error that lists the names if no kernel has this one.
std::string normalize_kernel_name(std::string_view name);
// Returns all names without codecs, in the order of the list.
std::vector<std::string> kernel_names();
// Returns names of kernels that `cpu` could run, but that were left out of this build
// (MOEBIUS_KERNELS).
std::vector<std::string> left_out_kernels(const Cpu& cpu);

// Accepts declared, exact, approximate; throws Error.
Accept accept_from_name(std::string_view name);
std::string_view name_of(Accept accept);
std::string_view name_of(Verdict verdict);    // returns a word such as "chosen"
std::string_view name_of(Numerics numerics);  // returns a word such as "exact"
std::string title_of(const Kernel& kernel);   // returns name and codec: "arm_i8mm/int4"

}  // namespace moebius
