// SPDX-License-Identifier: Apache-2.0
// Modules that differ only in layer and expert are one group; by default groups of one scheme that
// one kernel runs are one line, the slowest kernel first.
#include "apps/explain.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <ostream>

#include "apps/commands.h"
#include "apps/folder.h"
#include "apps/layout.h"
#include "apps/modules.h"
#include "base/error.h"
#include "checkpoint/summary.h"
#include "model/layer_loader.h"
#include "runtime/runtime.h"

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

// What this process may use of the machine, and how many threads that makes.
struct Machine {
  Topology topology = usable_topology();
  ThreadChoice choice;
  explicit Machine(int threads) : choice(choose_threads(topology, static_cast<size_t>(threads))) {}
};

std::string machine_text(const Machine& m) {
  const Topology& t = m.topology;
  return fmt::format("{} thread{}, {}: {} core{}, {} node{}, CPUs {} in the mask, {}",
                     m.choice.threads, m.choice.threads == 1 ? "" : "s", m.choice.why, t.cores(),
                     t.cores() == 1 ? "" : "s", t.nodes(), t.nodes() == 1 ? "" : "s",
                     usable_cpus(t),
                     t.quota > 0 ? fmt::format("a quota of {:.3g} CPUs", t.quota) : "no quota");
}

Json to_json(const Machine& m) {
  const Topology& t = m.topology;
  Json j = Json::object();
  j.set("threads", static_cast<uint64_t>(m.choice.threads)), j.set("why", m.choice.why);
  j.set("cores", static_cast<uint64_t>(t.cores())),
      j.set("nodes", static_cast<uint64_t>(t.nodes()));
  j.set("cpus", usable_cpus(t)), j.set("quota", t.quota > 0 ? Json(t.quota) : Json());
  return j;
}

Ink ink_of(Verdict v) {
  return v == Verdict::kChosen ? Ink::kGreen : v == Verdict::kFallback ? Ink::kCyan : Ink::kDim;
}

double packed_ratio(uint64_t packed, uint64_t file) {
  return static_cast<double>(packed) / static_cast<double>(std::max<uint64_t>(1, file));
}

// --why: every group with the verdict on every kernel.
std::string choice_detail(const Explained& e, size_t width, bool colour) {
  const Module& m = *e.group.sample;
  std::string title = fmt::format("{}  N={} K={}", describe(m.plan.scheme), m.plan.N, m.plan.K);
  if (e.group.count > 1) title += fmt::format("  x{}", e.group.count);
  std::string out = labelled("", printable(e.group.name), 0, width, Ink::kBold, colour) +
                    labelled("", title, 2, width);
  for (const Candidate& c : e.choice.candidates) {
    std::string words = c.reason;
    if (c.verdict == Verdict::kChosen)
      words = fmt::format("{}, {:.2f}x the file's bytes{}{}", name_of(e.choice.numerics),
                          packed_ratio(e.packed, m.plan.code_bytes + m.plan.scale_bytes),
                          c.reason.empty() ? "" : ", ", c.reason);
    out += "  " + paint(fmt::format("{:<9}", name_of(c.verdict)), ink_of(c.verdict), colour) +
           labelled(title_of(*c.kernel), words, 22, width - 11);
  }
  return out;
}

// Modules of one scheme that one kernel runs.
struct FoldedChoice {
  std::string scheme, kernel, numerics;
  size_t rank = 0;  // place of the kernel in the list; later is slower
  uint64_t count = 0, packed = 0, file = 0;
  std::vector<std::string> names;
};

std::vector<FoldedChoice> folded_choices(const std::vector<Explained>& all) {
  std::vector<FoldedChoice> folds;
  for (const Explained& e : all) {
    const Module& m = *e.group.sample;
    FoldedChoice one;
    one.scheme = describe(m.plan.scheme), one.kernel = title_of(*e.choice.chosen),
    one.numerics = name_of(e.choice.numerics);
    auto it = std::find_if(folds.begin(), folds.end(), [&](const FoldedChoice& f) {
      return f.scheme == one.scheme && f.kernel == one.kernel && f.numerics == one.numerics;
    });
    if (it == folds.end()) {
      const auto& list = e.choice.candidates;
      one.rank = static_cast<size_t>(
          std::find_if(list.begin(), list.end(),
                       [](const Candidate& c) { return c.verdict == Verdict::kChosen; }) -
          list.begin());
      it = folds.insert(folds.end(), std::move(one));
    }
    it->count += e.group.count, it->packed += e.packed * e.group.count;
    it->file += (m.plan.code_bytes + m.plan.scale_bytes) * e.group.count;
    if (std::find(it->names.begin(), it->names.end(), e.group.name) == it->names.end())
      it->names.push_back(e.group.name);
  }
  std::stable_sort(folds.begin(), folds.end(), [](const FoldedChoice& a, const FoldedChoice& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.packed > b.packed;
  });
  return folds;
}

std::string choices_text(const std::vector<Explained>& all, size_t width, bool colour) {
  Table table("llrrrw", width, colour);
  table.add({"kernel", "numerics", "modules", "packed", "x file", "scheme"}, Ink::kBold);
  for (const FoldedChoice& f : folded_choices(all)) {
    table.add(
        {f.kernel, f.numerics, std::to_string(f.count), human_bytes(static_cast<double>(f.packed)),
         fmt::format("{:.2f}", packed_ratio(f.packed, f.file)), f.scheme},
        Ink::kGreen);
    table.note(printable(fmt::format("{}", fmt::join(fold_names(f.names), ", ")), 4000));
  }
  return table.text() + "\nslowest first; --why has the verdict on every kernel\n";
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
  const size_t width = output_width();
  Json modules = Json::array();
  std::vector<Explained> all;
  std::string refused;
  std::vector<ModuleGroup> groups = group_modules(checkpoint);
  // A table that is also the output projection is named with the outputs: last.
  std::stable_partition(groups.begin(), groups.end(), [](const ModuleGroup& g) {
    return g.sample->kind != ModuleKind::kEmbedding;
  });
  for (ModuleGroup& group : groups) {
    const Module& m = *group.sample;
    if (!has_product(checkpoint, m)) continue;
    if (!m.supported) {
      modules.push(Json::object({{"name", group.name},
                                 {"scheme", describe(m.plan.scheme)},
                                 {"chosen", Json()},
                                 {"reason", m.reason}}));
      refused += labelled("unsupported", fmt::format("{}: {}", printable(group.name), m.reason), 13,
                          width, Ink::kRed, options.colour);
      continue;
    }
    const Problem problem = problem_of(m, mode, x_type);
    Explained e{std::move(group), choose_kernel(problem, cpu, request_for(problem, policy)), 0};
    e.packed = e.choice.chosen->packed_bytes(problem);
    modules.push(to_json(e));
    all.push_back(std::move(e));
  }
  const bool here = options.cpu.empty();  // another CPU has another machine around it
  const Machine machine(options.run.threads);
  if (options.json) {
    Json all_of_it = Json::object({{"cpu", describe(cpu)}});
    if (here) all_of_it.set("machine", to_json(machine));
    all_of_it.set("modules", std::move(modules));
    out << all_of_it.dump(1) << '\n';
    return 0;
  }
  out << labelled("for", describe(cpu), 4, width);
  if (here) out << labelled("on", machine_text(machine), 4, width);
  out << '\n' << refused;
  if (options.why)
    for (const Explained& e : all) out << choice_detail(e, width, options.colour);
  else if (!all.empty())
    out << choices_text(all, width, options.colour);
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
  c.flag("--why", o->why, "every module with the verdict on every kernel");
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
