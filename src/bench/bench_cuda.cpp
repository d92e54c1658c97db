// SPDX-License-Identifier: Apache-2.0
// Implements bench linear, moe and roof on a CUDA device: layers with random weights, so many in
// turn that none stays in a cache, with a new routing for each, in one CUDA graph. Reports
// microseconds per layer beside the least time that memory and arithmetic allow.
#include <fmt/format.h>
#include <fmt/ostream.h>

#include <algorithm>
#include <memory>
#include <ostream>

#include "apps/chat/terminal.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/options.h"
#include "base/error.h"
#include "bench/bench_report.h"
#include "bench/bench_synthetic.h"
#include "device/cuda/cuda_layers.h"
#include "kernels/packed_matrix.h"

namespace moebius {
namespace {

// Rates of an H200, with which every figure is compared: bytes per second of memory, and operations
// per second of its tensor cores with 8-bit and with 16-bit operands.
constexpr double kFloorBytes = 4.3e12, kFloorBytesOps = 1580e12, kFloorHalfOps = 790e12;
constexpr size_t kLeastBytes = size_t{1} << 30, kMostCopies = 8, kRepeats = 9;

struct CudaResult {
  std::string bench, scheme, kernel, numerics;
  int64_t group = -1;
  std::vector<std::pair<std::string, uint64_t>> shape;
  size_t tokens = 0;
  double microseconds = 0, bytes = 0, operations = 0, rate = kFloorHalfOps;
  double floor() const { return std::max(bytes / kFloorBytes, operations / rate) * 1e6; }
};

void write_result(const CudaResult& r, const CudaModule& cuda, bool json, std::ostream& out) {
  const double share = 100 * r.floor() / r.microseconds, tbs = r.bytes / r.microseconds * 1e-6,
               tflops = r.operations / r.microseconds * 1e-6;
  if (!json) {
    fmt::print(out,
               "{:<12} T={:<6} {:>10.2f} us  {:>5.1f} % of the floor  {:>5.2f} TB/s  {:>6.0f} "
               "TFLOP/s  {} ({})\n",
               r.group > 0 ? fmt::format("{} g{}", r.scheme, r.group) : r.scheme, r.tokens,
               r.microseconds, share, tbs, tflops, r.kernel, r.numerics);
    out.flush();
    return;
  }
  Json j = Json::object({{"bench", r.bench}, {"device", cuda.facts.name}, {"scheme", r.scheme}});
  j.set("group", r.group);
  for (const auto& [name, value] : r.shape) j.set(name, value);
  j.set("tokens", r.tokens), j.set("kernel", r.kernel), j.set("numerics", r.numerics);
  j.set("us", rounded(r.microseconds, 5)), j.set("floor_us", rounded(r.floor(), 5));
  j.set("percent_of_floor", rounded(share, 4)), j.set("tbs", rounded(tbs, 4)),
      j.set("tflops", rounded(tflops, 4));
  print_json(j, out);
}

// Times a graph of `count` calls; throws Error.
double time_calls(const CudaModule& cuda, size_t count,
                  const std::function<CudaStatus(size_t, void*)>& call) {
  double us = 0;
  const auto run = [](void* context, size_t i, void* stream) {
    return (*static_cast<const std::function<CudaStatus(size_t, void*)>*>(context))(i, stream);
  };
  auto copy = call;
  check_cuda(*cuda.api, cuda.api->time_graph(run, &copy, count, kRepeats, &us), "timing");
  return us;
}

size_t layers_for(uint64_t bytes) {
  return std::clamp<size_t>(kLeastBytes / std::max<uint64_t>(bytes, 1) + 1, 2, kMostCopies);
}
size_t calls_for(size_t tokens, size_t layers) {
  return std::max<size_t>(layers, tokens >= 512 ? 4 : 16);
}

CudaMatrix cuda_matrix_of(const SyntheticMatrix& m, const SyntheticScheme& s, XType x_type) {
  return cuda_matrix(m.view(), s.act, m.act_params(), x_type);
}

struct CudaSubject {
  std::vector<CudaLayer> layers;
  Choice choice;
  double expert_bytes = 0;
};

CudaSubject cuda_experts(const BenchOptions& o, const SyntheticScheme& scheme,
                         const CudaModule& cuda) {
  const XType x_type = x_type_from(o.dtype);
  SyntheticExpert maker(scheme, o.hidden, o.intermediate);
  MoeSpec spec;
  spec.hidden = o.hidden;
  spec.intermediate = o.intermediate;
  spec.experts = o.experts;
  const char* plain = plain_experts_reason(spec);
  const GpuTarget target = cuda_target(cuda.facts);
  const Problem up = make_problem(maker.up.view(), scheme.act, x_type),
                down = make_problem(maker.down.view(), scheme.act, x_type);
  CudaSubject s;
  s.choice = choose_cuda(up, target, gpu_policy_of(o.run), plain);
  if (path_of(*choose_cuda(down, target, gpu_policy_of(o.run), plain).chosen) == CudaPath::kPlain)
    s.choice = choose_cuda(up, target, gpu_policy_of(o.run), "down has plain kernels");
  for (const auto& [p, count] : {std::pair{&up, 2.0}, std::pair{&down, 1.0}})
    s.expert_bytes += count * static_cast<double>(code_bytes(*p) + scale_bytes_of(*p));
  CudaMoe moe{};
  moe.hidden = o.hidden;
  moe.intermediate = o.intermediate;
  moe.experts = o.experts;
  moe.gated = true;
  moe.activation = cuda_activation(spec.activation);
  moe.path = path_of(*s.choice.chosen);
  const size_t copies = layers_for(static_cast<uint64_t>(s.expert_bytes) * o.experts);
  Progress progress("making " + scheme.name + " experts", copies * o.experts, /*bytes=*/false);
  BenchRandom random(1);
  maker.refill(random);
  for (size_t c = 0; c < copies && !interrupt_seen(); ++c) {
    void* made = nullptr;
    check_cuda(*cuda.api, cuda.api->make_moe(&moe, &made), "experts");
    s.layers.emplace_back(*cuda.api, made);
    for (size_t e = 0; e < o.experts; ++e) {
      // Neighbouring experts may be equal; only the memory that is read matters.
      if (e % 8 == 0) maker.refill(random);
      const CudaMatrix gate = cuda_matrix_of(maker.gate, scheme, x_type),
                       up_matrix = cuda_matrix_of(maker.up, scheme, x_type),
                       down_matrix = cuda_matrix_of(maker.down, scheme, x_type);
      const CudaExpert expert{&gate, &up_matrix, &down_matrix};
      check_cuda(*cuda.api, cuda.api->set_expert(made, e, &expert), "experts");
      progress.advance(1);
    }
  }
  return s;
}

// Holds tokens and one routing per call on the device.
struct MoeCalls {
  CudaMemory x, y;
  std::vector<CudaMemory> memory;
  std::vector<CudaRouting> routing;
  double used = 0;
  MoeCalls(const BenchOptions& o, const CudaApi& api, size_t tokens, size_t calls)
      : x(api, tokens * o.hidden * 4), y(api, tokens * o.hidden * 4) {
    SyntheticRows rows(x_type_from(o.dtype), tokens, o.hidden);
    SyntheticRouting made(tokens, o.experts, o.top_k, o.skew);
    BenchRandom random(tokens);
    rows.refill(random);
    x.upload(rows.view().data, tokens * o.hidden * bits_of(rows.view().dtype) / 8);
    for (size_t i = 0; i < calls; ++i) {
      made.refill(random);
      used += static_cast<double>(made.used()) / static_cast<double>(calls);
      memory.emplace_back(api, made.ids().size_bytes());
      memory.back().upload(made.ids().data(), made.ids().size_bytes());
      memory.emplace_back(api, made.weights().size_bytes());
      memory.back().upload(made.weights().data(), made.weights().size_bytes());
      routing.push_back({static_cast<const int32_t*>(memory[2 * i].data()),
                         static_cast<const float*>(memory[2 * i + 1].data()), nullptr, o.top_k});
    }
  }
};

void finish_result(CudaResult& r, const Choice& choice, const SyntheticScheme& scheme) {
  r.scheme = scheme.name;
  r.group = scheme.group;
  r.kernel = title_of(*choice.chosen);
  r.numerics = name_of(scheme.departs ? Numerics::kApproximate : choice.numerics);
  const bool bytes =
      scheme.act.code == ActCode::kInt || path_of(*choice.chosen) == CudaPath::kHopperFp8;
  r.rate = bytes ? kFloorBytesOps : kFloorHalfOps;
}

}  // namespace

int run_bench_moe_cuda(const BenchOptions& o, std::ostream& out) {
  interrupt_is_noted();
  if (!o.folder.empty())
    fail("--device cuda: bench moe has random weights there; leave the folder out");
  const CudaModule& cuda = gpu_of_tool();
  if (!o.json) out << describe(cuda_target(cuda.facts)) << '\n';
  for (const SyntheticScheme& scheme : synthetic_schemes(o)) {
    const CudaSubject s = cuda_experts(o, scheme, cuda);
    for (const size_t T : o.tokens) {
      if (interrupt_seen()) return 130;
      const size_t calls = calls_for(T, s.layers.size());
      const MoeCalls c(o, *cuda.api, T, calls);
      const XType type = x_type_from(o.dtype);
      const CudaRows x{c.x.data(), type, T, o.hidden}, y{c.y.data(), type, T, o.hidden};
      CudaResult r;
      r.bench = "moe";
      r.tokens = T;
      r.shape = {{"experts", o.experts},
                 {"top_k", o.top_k},
                 {"hidden", o.hidden},
                 {"intermediate", o.intermediate}};
      r.microseconds = time_calls(cuda, calls, [&](size_t i, void* stream) {
        return cuda.api->run_moe(s.layers[i % s.layers.size()].get(), &x, &c.routing[i], &y,
                                 nullptr, stream);
      });
      finish_result(r, s.choice, scheme);
      r.bytes = c.used * s.expert_bytes + 4.0 * static_cast<double>(T * o.hidden);
      r.operations =
          6.0 * static_cast<double>(T * o.top_k) * static_cast<double>(o.hidden * o.intermediate);
      write_result(r, cuda, o.json, out);
    }
  }
  return 0;
}

int run_bench_linear_cuda(const BenchOptions& o, std::ostream& out) {
  interrupt_is_noted();
  if (!o.folder.empty())
    fail("--device cuda: bench linear has random weights there; leave the folder out");
  const CudaModule& cuda = gpu_of_tool();
  const XType type = x_type_from(o.dtype);
  if (!o.json) out << describe(cuda_target(cuda.facts)) << '\n';
  for (const SyntheticScheme& scheme : synthetic_schemes(o)) {
    SyntheticMatrix matrix(scheme, o.n, o.k);
    const Problem problem = make_problem(matrix.view(), scheme.act, type);
    const Choice choice = choose_cuda(problem, cuda_target(cuda.facts), gpu_policy_of(o.run));
    const auto bytes = static_cast<double>(code_bytes(problem) + scale_bytes_of(problem));
    std::vector<CudaLinear> layers;
    const size_t copies = std::clamp<size_t>(kLeastBytes / static_cast<size_t>(bytes) + 1, 2, 64);
    for (size_t c = 0; c < copies && !interrupt_seen(); ++c) {
      BenchRandom random(c + 1);
      matrix.refill(random);
      layers.emplace_back(cuda, cuda_matrix_of(matrix, scheme, type), *choice.chosen);
    }
    for (const size_t T : o.tokens) {
      if (interrupt_seen()) return 130;
      const CudaMemory xm(*cuda.api, T * o.k * 4), ym(*cuda.api, T * o.n * 4);
      SyntheticRows rows(type, T, o.k);
      BenchRandom random(T);
      rows.refill(random);
      xm.upload(rows.view().data, T * o.k * bits_of(rows.view().dtype) / 8);
      const CudaRows x{xm.data(), type, T, o.k}, y{ym.data(), type, T, o.n};
      CudaResult r;
      r.bench = "linear", r.tokens = T, r.shape = {{"n", o.n}, {"k", o.k}};
      r.microseconds =
          time_calls(cuda, std::max<size_t>(layers.size(), 16), [&](size_t i, void* stream) {
            return cuda.api->run_linear(layers[i % layers.size()].layer().get(), &x, &y, stream);
          });
      finish_result(r, choice, scheme);
      r.bytes = bytes + 2.0 * static_cast<double>(T * (o.k + o.n));
      r.operations = 2.0 * static_cast<double>(T) * static_cast<double>(o.n * o.k);
      write_result(r, cuda, o.json, out);
    }
  }
  return 0;
}

int run_bench_roof_cuda(const BenchOptions& o, std::ostream& out) {
  const CudaModule& cuda = gpu_of_tool();
  CudaRoofs roofs{};
  check_cuda(*cuda.api, cuda.api->roofs(&roofs), "roofs");
  if (!o.json) {
    fmt::print(out,
               "{}\nread {:.2f} TB/s, copy {:.2f} TB/s (bytes read and written), an empty kernel "
               "in a graph {:.2f} us, started early {:.2f} us\n",
               describe(cuda_target(cuda.facts)), roofs.read_tbs, roofs.copy_tbs, roofs.launch_us,
               roofs.early_launch_us);
    return 0;
  }
  Json j = Json::object({{"bench", "roof"}, {"device", cuda.facts.name}});
  j.set("read_tbs", rounded(roofs.read_tbs, 4)), j.set("copy_tbs", rounded(roofs.copy_tbs, 4));
  j.set("launch_us", rounded(roofs.launch_us, 4)),
      j.set("early_launch_us", rounded(roofs.early_launch_us, 4));
  print_json(j, out);
  return 0;
}

}  // namespace moebius
