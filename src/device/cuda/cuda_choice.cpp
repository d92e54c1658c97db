// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cuda_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/human.h"
#include "device/cuda/gpu_models.h"
#include "kernels/unpack.h"

namespace moebius {
namespace {

constexpr const char* kHopperName = "cuda_hopper";
constexpr const char* kMmaName = "cuda_mma";
constexpr const char* kPlainName = "cuda_plain";

template <HopperScheme S>
const char* hopper_supports(const Problem& p) {
  const HopperAnswer a = hopper_answer(hopper_question(p), S == HopperScheme::kFp8Bytes);
  if (a.reason != nullptr) return a.reason;
  return a.scheme == S ? nullptr : "for another number system or other rows";
}

template <HopperScheme S>
Numerics hopper_numerics(const Problem&) {
  return S == HopperScheme::kFp8Bytes    ? Numerics::kApproximate
         : hopper_tile(S).row_bytes == 1 ? Numerics::kExact
                                         : Numerics::kReordered;
}

template <HopperScheme S>
size_t hopper_bytes(const Problem& p) {
  const size_t outputs = (p.N + 127) / 128 * 128;
  return outputs / kTileOutputs * (hopper_inputs(p.K) / kTileInputs) * hopper_tile_bytes(S) +
         (has_channel_scales(S) ? outputs * sizeof(float) : 0);
}

const char* plain_supports(const Problem&) { return nullptr; }
Numerics plain_numerics(const Problem&) { return Numerics::kExact; }

template <HopperScheme S>
constexpr Kernel tensor_kernel(const char* name) {
  Kernel k{};
  k.name = name;
  k.codec = name_of(S);
  k.arch = Arch::kOther;
  k.n_step = kTileOutputs;
  k.facts = kOffsets | kRagged;
  k.limits = hopper_supports<S>;
  k.numerics = hopper_numerics<S>;
  k.packed_bytes = hopper_bytes<S>;
  return k;
}

constexpr Kernel plain_kernel() {
  Kernel k{};
  k.name = kPlainName;
  k.codec = "stored";
  k.arch = Arch::kOther;
  k.n_step = 1;
  k.facts = kOffsets | kRagged;
  k.limits = plain_supports;
  k.numerics = plain_numerics;
  k.packed_bytes = stored_bytes;
  return k;
}

// Returns the kernels of 9.0, those for every card, then the plain one.
template <size_t... I>
constexpr auto all_kernels(std::index_sequence<I...>) {
  std::array<Kernel, 2 * kHopperSchemes> all{
      tensor_kernel<static_cast<HopperScheme>(I)>(kHopperName)...};
  size_t n = kHopperSchemes;
  ((has_mma(static_cast<HopperScheme>(I))
        ? void(all[n++] = tensor_kernel<static_cast<HopperScheme>(I)>(kMmaName))
        : void()),
   ...);
  all[n] = plain_kernel();
  return all;
}
constexpr std::array<Kernel, 2 * kHopperSchemes> kCudaKernels =
    all_kernels(std::make_index_sequence<kHopperSchemes>());

bool is_called_so(const Kernel& kernel, const std::string& name) {
  return name == kernel.name || name == title_of(kernel);
}

Candidate judge_cuda(const Kernel& kernel, const Problem& problem, const GpuTarget& target,
                     const Policy& policy, const std::string& wanted) {
  Candidate c;
  c.kernel = &kernel;
  if (kernel.name == kHopperName && !target.hopper()) {
    c.reason = fmt::format("needs compute capability 9.0; {} has {}.{}", target.name, target.major,
                           target.minor);
    return c;
  }
  if (const char* reason = kernel.supports(problem)) {
    c.reason = reason;
    return c;
  }
  c.numerics = kernel.numerics(problem);
  c.packed_bytes = kernel.packed_bytes(problem);
  // Products of e4m3 differ from the declared arithmetic: such a kernel runs only when it is named.
  if (c.numerics == Numerics::kApproximate && wanted != title_of(kernel)) {
    c.verdict = Verdict::kSkipped;
    c.reason =
        fmt::format("approximate: tensor cores add e4m3 products with too few bits; --kernel {}",
                    title_of(kernel));
    return c;
  }
  if (policy.accept == Accept::kExact && c.numerics != Numerics::kExact) {
    c.verdict = Verdict::kSkipped;
    c.reason = fmt::format("{} here, and the policy asks for exact", name_of(c.numerics));
    return c;
  }
  c.verdict = Verdict::kFallback;
  c.reason = fmt::format("weights as {}, {}", kernel.codec, name_of(c.numerics));
  return c;
}

}  // namespace

GpuTarget cuda_target(const CudaFacts& f) {
  return {f.name, f.major, f.minor, f.multiprocessors, f.memory_bytes, f.cache_bytes};
}

GpuTarget named_gpu_target(std::string_view name) {
  constexpr uint64_t kGB = 1'000'000'000, kMiB = uint64_t{1} << 20;
  if (const GpuModel* m = gpu_model(name))
    return {m->title,           m->major,           m->minor,
            m->multiprocessors, m->memory_gb * kGB, m->cache_mib * kMiB,
            /*assumed=*/true,
            /*asked=*/false,    m->read_gbs * 1e9};
  std::string all;
  for (const GpuModel& m : kGpuModels) all += fmt::format("{}{}", all.empty() ? "" : ", ", m.name);
  fail("'{}' is no GPU that is known here; there are: {}", printable(name), all);
}

std::string describe(const GpuTarget& t) {
  const bool measured = t.name == "NVIDIA H200";
  return fmt::format("{}{}: compute capability {}.{}, {} multiprocessors, {}", t.name,
                     !t.assumed ? ""
                     : !t.asked ? " (assumed: this machine has no CUDA device)"
                     : measured ? " (asked for)"
                                : " (asked for; not measured on this card)",
                     t.major, t.minor, t.multiprocessors, human_bytes(t.memory_bytes));
}

std::span<const Kernel> cuda_kernels() { return kCudaKernels; }
const Kernel& plain_cuda_kernel() { return kCudaKernels.back(); }

CudaPath path_of(const Kernel& k) {
  if (k.name == kPlainName) return CudaPath::kPlain;
  if (k.name == kMmaName) return CudaPath::kMma;
  return k.codec == name_of(HopperScheme::kFp8Bytes) ? CudaPath::kHopperFp8 : CudaPath::kHopper;
}

HopperQuestion hopper_question(const Problem& p) {
  HopperQuestion q;
  q.N = p.N;
  q.K = p.K;
  q.code = p.code;
  q.bits = p.bits;
  q.scale_type = p.scale_type;
  q.groups = p.groups;
  q.block_n = p.block_n;
  q.block_k = p.block_k;
  q.zero_points = p.zero_points;
  q.act_order = p.act_order;
  q.other =
      p.offsets || p.ragged || p.scale_type == ScaleType::kTwoLevel || p.code == CodeType::kLut4;
  q.act = p.act;
  q.x_type = p.x_type;
  return q;
}

Choice choose_cuda(const Problem& problem, const GpuTarget& target, const Policy& policy,
                   const char* plain) {
  const std::string wanted = normalize_cuda_kernel(policy.kernel);
  Choice choice;
  for (const Kernel& k : kCudaKernels)
    choice.candidates.push_back(judge_cuda(k, problem, target, policy, wanted));
  for (Candidate& c : choice.candidates)
    if (plain != nullptr && c.kernel->name != kPlainName) {
      c.verdict = Verdict::kRejected;
      c.reason = plain;
    }
  const auto take = [&](bool asked) {
    for (Candidate& c : choice.candidates) {
      if (c.verdict != Verdict::kFallback || (asked && !is_called_so(*c.kernel, wanted))) continue;
      c.verdict = Verdict::kChosen;
      choice.chosen = c.kernel;
      choice.numerics = c.numerics;
      return;
    }
  };
  if (!wanted.empty()) take(true);
  // A layer that the requested kernel cannot run gets the best other kernel, if the policy allows
  // it.
  if (choice.chosen == nullptr && (wanted.empty() || policy.where_it_can)) take(false);
  if (choice.chosen != nullptr) return choice;
  std::string why;
  for (const Candidate& c : choice.candidates)
    if (is_called_so(*c.kernel, wanted))
      why += fmt::format("{}{}: {}", why.empty() ? "" : "; ", title_of(*c.kernel), c.reason);
  fail("kernel {} was requested but cannot be used ({}); {} runs everything", wanted, why,
       kPlainName);
}

std::string normalize_cuda_kernel(std::string_view name) {
  std::string out(name);
  for (char& c : out)
    c = c == '-' ? '_' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (out.empty() || out == "auto") return "";
  if (std::any_of(kCudaKernels.begin(), kCudaKernels.end(),
                  [&](const Kernel& k) { return is_called_so(k, out); }))
    return out;
  std::string all;
  for (const Kernel& k : kCudaKernels)
    all += fmt::format("{}{}", all.empty() ? "" : ", ", title_of(k));
  fail("there is no CUDA kernel named '{}'; there are: {}", printable(name), all);
}

const char* plain_experts_reason(const MoeSpec& spec) {
  if (!hopper_fills(spec.hidden) || !hopper_fills(spec.intermediate))
    return "hidden or intermediate size fills less than four fifths of a multiple of 256";
  return nullptr;
}

CudaActivation cuda_activation(const ActivationSpec& s) {
  CudaActivation a{};
  a.kind = static_cast<uint8_t>(s.kind);
  a.has_limit = s.limit.has_value();
  a.limit = s.limit.value_or(0.0f);
  a.alpha = s.alpha;
  a.beta = s.beta;
  a.b = s.situ_b;
  a.has_lb = s.situ_lb.has_value();
  a.lb = s.situ_lb.value_or(0.0f);
  return a;
}

}  // namespace moebius
