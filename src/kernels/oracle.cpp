// SPDX-License-Identifier: Apache-2.0
// Selects kernels from the list (oracle.h).
#include "kernels/oracle.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/list.h"
#include "kernels/unpack.h"

namespace moebius {
namespace {

// Returns whether a request means this kernel: "arm_i8mm" means any of its codecs, "arm_i8mm/int4"
// only one.
bool is_called(const Kernel& kernel, const std::string& name) {
  return name == kernel.name || name == title_of(kernel);
}

bool accepts(Accept accept, Numerics numerics) {
  switch (accept) {
    case Accept::kDeclared:
      return numerics != Numerics::kApproximate;
    case Accept::kExact:
      return numerics == Numerics::kExact;
    case Accept::kApproximate:
      return true;
  }
  return false;
}

std::string numerics_reason(Accept accept, Numerics numerics) {
  if (accept == Accept::kExact)
    return fmt::format("{} here, and the policy asks for exact", name_of(numerics));
  return "approximate here: it would not do the arithmetic that the checkpoint declares";
}

std::string facts(const Kernel& kernel, const Problem& problem, const Candidate& c) {
  const double ratio = static_cast<double>(c.packed_bytes) /
                       static_cast<double>(std::max<size_t>(1, stored_bytes(problem)));
  return fmt::format("weights as {}, {}, {:.2f}x bytes", kernel.codec, name_of(c.numerics), ratio);
}

// Returns the verdict on a single kernel; kFallback means that it could run.
Candidate judge(const Kernel& kernel, const Problem& problem, const Cpu& cpu, Accept accept) {
  Candidate c;
  c.kernel = &kernel;
  c.reason = missing_features(cpu, kernel.arch, kernel.needs);
  if (!c.reason.empty()) return c;
  if (cpu.here && kernel.gemm == nullptr) {
    c.reason = "left out of this build (CMake option MOEBIUS_KERNELS)";
    return c;
  }
  if (const char* reason = kernel.supports(problem)) {
    c.reason = reason;
    return c;
  }
  c.numerics = kernel.numerics(problem);
  c.packed_bytes = kernel.packed_bytes(problem);
  if (!accepts(accept, c.numerics)) {
    c.verdict = Verdict::kSkipped;
    c.reason = numerics_reason(accept, c.numerics);
    return c;
  }
  c.verdict = Verdict::kFallback;
  c.reason = facts(kernel, problem, c);
  return c;
}

[[noreturn]] void fail_request(const std::string& wanted,
                               const std::vector<Candidate>& candidates) {
  std::string why, others;
  for (const Candidate& c : candidates) {
    if (is_called(*c.kernel, wanted)) {
      if (!why.empty()) why += "; ";
      why += fmt::format("{}: {}", title_of(*c.kernel), c.reason);
    } else if (c.verdict == Verdict::kFallback) {
      if (!others.empty()) others += ", ";
      others += title_of(*c.kernel);
    }
  }
  fail("kernel {} was requested but cannot be used ({}); these would work: {}", wanted, why,
       others.empty() ? "none under this policy" : others);
}

}  // namespace

Choice choose_kernel(const Problem& problem, const Cpu& cpu, const Policy& policy) {
  const std::string wanted = normalize_kernel_name(policy.kernel);
  Choice choice;
  for (const Kernel* kernel : kernel_list())
    choice.candidates.push_back(judge(*kernel, problem, cpu, policy.accept));
  for (Candidate& c : choice.candidates) {
    if (c.verdict != Verdict::kFallback || (!wanted.empty() && !is_called(*c.kernel, wanted)))
      continue;
    c.verdict = Verdict::kChosen;
    choice.chosen = c.kernel;
    choice.numerics = c.numerics;
    break;
  }
  if (choice.chosen == nullptr && !wanted.empty()) fail_request(wanted, choice.candidates);
  if (choice.chosen == nullptr)
    fail("no kernel can run this; the last one said: {}", choice.candidates.back().reason);
  if (!wanted.empty())
    for (Candidate& c : choice.candidates)
      if (c.verdict == Verdict::kFallback && !is_called(*c.kernel, wanted)) {
        c.verdict = Verdict::kSkipped;
        c.reason = fmt::format("{} was requested", wanted);
      }
  return choice;
}

Policy request_for(const Problem& problem, const Policy& policy) {
  Policy p = policy;
  p.kernel = normalize_kernel_name(p.kernel);
  const bool dense = problem.scale_type == ScaleType::kNone;
  if (p.kernel.empty() || !(dense || p.where_it_can)) return p;
  const auto& all = kernel_list();
  const bool fits = std::any_of(all.begin(), all.end(), [&](const Kernel* k) {
    return is_called(*k, p.kernel) && k->supports(problem) == nullptr &&
           (dense || accepts(p.accept, k->numerics(problem)));
  });
  if (!fits) p.kernel.clear();
  return p;
}

const char* portable_reason(const Problem& problem) {
  // A kernel that runs such weights and rows in their plainest form explains best what is wrong.
  Problem plain = problem;
  plain.groups = 1;
  plain.block_k = plain.K;
  if (plain.scale_type == ScaleType::kTwoLevel) plain.scale_type = ScaleType::kF32;
  plain.zero_points = plain.offsets = plain.act_order = plain.ragged = false;
  for (const Arch arch : {Arch::kAarch64, Arch::kX86_64}) {
    const char* reason = "no kernel of its own";
    bool runs = false;
    for (const Kernel* k : kernel_list()) {
      if (k->arch != arch) continue;
      const char* why = k->supports(problem);
      runs = runs || why == nullptr;
      if (why != nullptr && k->supports(plain) == nullptr) reason = why;
    }
    if (!runs) return reason;
  }
  return nullptr;
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const Kernel* kernel : kernel_list())
    if (std::find(names.begin(), names.end(), kernel->name) == names.end())
      names.emplace_back(kernel->name);
  return names;
}

std::vector<std::string> left_out_kernels(const Cpu& cpu) {
  std::vector<std::string> names;
  for (const Kernel* kernel : kernel_list())
    if (kernel->gemm == nullptr && missing_features(cpu, kernel->arch, kernel->needs).empty() &&
        std::find(names.begin(), names.end(), kernel->name) == names.end())
      names.emplace_back(kernel->name);
  return names;
}

std::string normalize_kernel_name(std::string_view name) {
  std::string out;
  for (const char c : name)
    out += c == '-' ? '_' : (c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  if (out.empty() || out == "auto" || out == "cpu") return "";
  for (const Kernel* kernel : kernel_list())
    if (is_called(*kernel, out)) return out;
  std::string names = "auto, cpu";
  for (const std::string& known : kernel_names()) names += ", " + known;
  fail("there is no kernel called \"{}\"; known names: {}", printable(name), names);
}

Accept accept_from_name(std::string_view name) {
  for (const Accept a : {Accept::kDeclared, Accept::kExact, Accept::kApproximate})
    if (name == name_of(a)) return a;
  fail("there is no policy called \"{}\"; known: declared, exact, approximate", printable(name));
}

std::string_view name_of(Accept accept) {
  switch (accept) {
    case Accept::kDeclared:
      return "declared";
    case Accept::kExact:
      return "exact";
    case Accept::kApproximate:
      return "approximate";
  }
  return "";
}

std::string_view name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kChosen:
      return "chosen";
    case Verdict::kFallback:
      return "fallback";
    case Verdict::kSkipped:
      return "skipped";
    case Verdict::kRejected:
      return "rejected";
  }
  return "";
}

std::string_view name_of(Numerics numerics) {
  switch (numerics) {
    case Numerics::kExact:
      return "exact";
    case Numerics::kReordered:
      return "reordered";
    case Numerics::kApproximate:
      return "approximate";
  }
  return "";
}

std::string title_of(const Kernel& kernel) { return std::string(kernel.name) + "/" + kernel.codec; }

}  // namespace moebius
