// SPDX-License-Identifier: Apache-2.0
// Modules that differ only in layer and expert are shown once, with their count.
#include "apps/explain.h"

#include <fmt/core.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <ostream>

#include "apps/commands.h"
#include "apps/folder.h"
#include "apps/glob.h"
#include "apps/terminal.h"
#include "base/error.h"
#include "checkpoint/summary.h"
#include "model/layer_loader.h"

namespace moebius {
namespace {

struct Explained {
  ModuleGroup group;
  Choice choice;
  uint64_t packed = 0;
};

Json to_json(const Explained& e) {
  const Module& m = *e.group.sample;
  Json j = Json::object();
  j.set("name", e.group.name);
  j.set("scheme", describe(m.plan.scheme));
  Json shape = Json::array();
  shape.push(m.plan.N), shape.push(m.plan.K);
  j.set("shape", std::move(shape));
  j.set("count", e.group.count);
  j.set("chosen", title_of(*e.choice.chosen));
  j.set("numerics", name_of(e.choice.numerics));
  j.set("packed_bytes", e.packed);
  j.set("file_bytes", m.plan.code_bytes + m.plan.scale_bytes);
  Json candidates = Json::array();
  for (const Candidate& c : e.choice.candidates)
    candidates.push(Json::object(
        {{"kernel", title_of(*c.kernel)}, {"verdict", name_of(c.verdict)}, {"reason", c.reason}}));
  j.set("candidates", std::move(candidates));
  return j;
}

Ink ink_of(Verdict v) {
  return v == Verdict::kChosen ? Ink::kGreen : v == Verdict::kFallback ? Ink::kCyan : Ink::kDim;
}

void print_text(const Explained& e, bool colour, std::ostream& out) {
  const Module& m = *e.group.sample;
  const double ratio =
      static_cast<double>(e.packed) /
      static_cast<double>(std::max<uint64_t>(1, m.plan.code_bytes + m.plan.scale_bytes));
  out << paint(e.group.name, Ink::kBold, colour)
      << fmt::format("  {}  N={} K={}", describe(m.plan.scheme), m.plan.N, m.plan.K);
  if (e.group.count > 1) out << fmt::format("  x{}", e.group.count);
  out << '\n';
  for (const Candidate& c : e.choice.candidates) {
    std::string words = c.reason;
    if (c.verdict == Verdict::kChosen)
      words = fmt::format("{}, {:.2f}x the file's bytes{}{}", name_of(e.choice.numerics), ratio,
                          c.reason.empty() ? "" : ", ", c.reason);
    out << "  " << paint(fmt::format("{:<9}", name_of(c.verdict)), ink_of(c.verdict), colour)
        << fmt::format("{:<22} {}\n", title_of(*c.kernel), words);
  }
}

}  // namespace

XType activation_type(const std::string& option, const std::string& config_dtype) {
  const std::string& name = option.empty() || option == "auto" ? config_dtype : option;
  if (name == "bf16" || name == "bfloat16") return XType::kBf16;
  if (name == "f16" || name == "float16") return XType::kF16;
  if (name == "f32" || name == "float32" || name.empty()) return XType::kF32;
  fail("activation type '{}' is not known; expected auto, bf16, f16 or f32", printable(name));
}

int run_explain(const ExplainOptions& options, std::ostream& out) {
  const Checkpoint checkpoint = open_checkpoint(options.folder);
  const Cpu cpu = options.cpu.empty() ? host_cpu() : parse_cpu(options.cpu);
  const Policy policy = policy_of(options.run);
  const XType x_type = activation_type(options.dtype, checkpoint.config().dtype);
  const Int8Mode mode = int8_mode_of(options.run);
  Json modules = Json::array();
  if (!options.json) out << "for " << describe(cpu) << "\n\n";
  for (ModuleGroup& group : group_modules(checkpoint)) {
    const Module& m = *group.sample;
    if (!has_product(m)) continue;
    if (!m.supported) {
      if (options.json)
        modules.push(Json::object({{"name", group.name},
                                   {"scheme", describe(m.plan.scheme)},
                                   {"chosen", Json()},
                                   {"reason", m.reason}}));
      else
        out << paint(group.name, Ink::kBold, options.colour) << "  "
            << paint("unsupported: " + m.reason, Ink::kRed, options.colour) << '\n';
      continue;
    }
    const Problem problem = problem_of(m, mode, x_type);
    Explained e{std::move(group), choose_kernel(problem, cpu, request_for(problem, policy)), 0};
    e.packed = e.choice.chosen->packed_bytes(problem);
    if (options.json)
      modules.push(to_json(e));
    else
      print_text(e, options.colour, out);
  }
  if (options.json)
    out << Json::object({{"cpu", describe(cpu)}, {"modules", std::move(modules)}}).dump(1) << '\n';
  return 0;
}

Command explain_command() {
  auto o = std::make_shared<ExplainOptions>();
  Command c("explain", "says which kernel will run each module, and why not the others");
  c.folder(o->folder);
  c.option("--cpu", "LIST", &o->cpu,
           "answer for a CPU with these features, e.g. neon,dotprod or avx2,fma,f16c")
      .by_default("this machine");
  add_dtype_option(c, o->dtype);
  add_json_flag(c, o->json);
  add_run_options(c, o->run);
  c.examples = {"moebius explain DIR", "moebius explain DIR --cpu neon,dotprod --json"};
  c.action = [o](const Command&) {
    o->colour = colour_wanted(STDOUT_FILENO);
    return run_explain(*o, std::cout);
  };
  return c;
}

}  // namespace moebius
