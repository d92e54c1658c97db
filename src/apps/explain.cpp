// SPDX-License-Identifier: Apache-2.0
// Implements explain. Modules that differ only in layer and expert form a group; by default groups
// with the same scheme and kernel share a line, the slowest kernel first.
#include "apps/explain.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <ostream>

#include "apps/cli/folder.h"
#include "apps/cli/layout.h"
#include "apps/commands.h"
#include "base/error.h"
#include "device/gpu.h"
#include "model/plan/forecast.h"
#include "model/plan/rank_memory.h"
#include "model/plan/rank_plan.h"
#include "report/explain.h"
#include "runtime/memory.h"
#include "runtime/roofs.h"

namespace moebius {
namespace {

std::string machine_text(const MachineThreads& m) {
  const Topology& t = m.topology;
  return fmt::format("{} thread{}, {}: {} core{}, {} node{}, CPUs {} in the mask, {}",
                     m.choice.threads, m.choice.threads == 1 ? "" : "s", m.choice.why, t.cores(),
                     t.cores() == 1 ? "" : "s", t.nodes(), t.nodes() == 1 ? "" : "s",
                     usable_cpus(t),
                     t.quota > 0 ? fmt::format("a quota of {:.3g} CPUs", t.quota) : "no quota");
}

Ink ink_of(Verdict v) {
  return v == Verdict::kChosen ? Ink::kGreen : v == Verdict::kFallback ? Ink::kCyan : Ink::kDim;
}

double packed_ratio(uint64_t packed, uint64_t file) {
  return static_cast<double>(packed) / static_cast<double>(std::max<uint64_t>(1, file));
}

// Writes --why: every group with the verdict on every kernel of the CPU's architecture.
std::string choice_detail(const Explained& e, Arch arch, size_t width, bool colour) {
  const Module& m = *e.group.sample;
  std::string title = fmt::format("{}  N={} K={}", describe(m.plan.scheme), m.plan.N, m.plan.K);
  if (e.group.count > 1) title += fmt::format("  x{}", e.group.count);
  std::string out = labelled("", printable(e.group.name), 0, width, Ink::kBold, colour) +
                    labelled("", title, 2, width);
  if (!e.request.empty()) out += labelled("", e.request, 2, width);
  if (e.shortlist > 0)
    out += labelled("",
                    fmt::format("{} more for an int8 copy that finds the best tokens (same bytes), "
                                "where memory allows",
                                human_bytes(static_cast<double>(e.shortlist))),
                    2, width);
  Table table("llw", width, colour);
  for (const Candidate& c : e.use->choice->candidates) {
    if (c.kernel->arch != arch && c.kernel->arch != Arch::kOther) continue;
    std::string words = c.reason;
    if (c.verdict == Verdict::kChosen)
      words = fmt::format("weights as {}, {}, {:.2f}x the file's bytes{}", c.kernel->codec,
                          name_of(e.use->numerics),
                          packed_ratio(e.packed, m.plan.code_bytes + m.plan.scale_bytes),
                          e.share ? fmt::format(", expect {:.0f} % of the memory bandwidth when "
                                                "decoding one sequence ({})",
                                                e.share->percent, e.share->from)
                                  : "");
    table.add({fmt::format("  {}", name_of(c.verdict)), title_of(*c.kernel), words},
              ink_of(c.verdict));
  }
  return out + table.text();
}

// Holds modules of one scheme that one kernel runs.
struct FoldedChoice {
  std::string scheme, kernel, numerics, request;
  size_t rank = 0;  // the kernel's index in the list; a later one is slower
  uint64_t count = 0, packed = 0, file = 0;
  double share = 0;  // share of memory speed, averaged by bytes
  std::string_view measured;
  std::vector<std::string> names;
};

std::vector<FoldedChoice> folded_choices(const std::vector<const Explained*>& all) {
  std::vector<FoldedChoice> folds;
  for (const Explained* one_of_all : all) {
    const Explained& e = *one_of_all;
    const Module& m = *e.group.sample;
    FoldedChoice one;
    one.scheme = describe(m.plan.scheme);
    one.kernel = title_of(*e.use->choice->chosen);
    one.numerics = name_of(e.use->numerics);
    one.request = e.request;
    auto it = std::find_if(folds.begin(), folds.end(), [&](const FoldedChoice& f) {
      return f.scheme == one.scheme && f.kernel == one.kernel && f.numerics == one.numerics &&
             f.request == one.request;
    });
    if (it == folds.end()) {
      const auto& list = e.use->choice->candidates;
      one.rank = static_cast<size_t>(
          std::find_if(list.begin(), list.end(),
                       [](const Candidate& c) { return c.verdict == Verdict::kChosen; }) -
          list.begin());
      it = folds.insert(folds.end(), std::move(one));
    }
    it->count += e.group.count;
    it->packed += e.packed * e.group.count;
    if (e.share) {
      it->share += e.share->percent * static_cast<double>(e.packed * e.group.count);
      it->measured = e.share->from;
    }
    it->file += (m.plan.code_bytes + m.plan.scale_bytes) * e.group.count;
    if (std::find(it->names.begin(), it->names.end(), e.group.name) == it->names.end())
      it->names.push_back(e.group.name);
  }
  std::stable_sort(folds.begin(), folds.end(), [](const FoldedChoice& a, const FoldedChoice& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.packed > b.packed;
  });
  return folds;
}

std::string choices_text(const std::vector<const Explained*>& all, size_t width, bool colour) {
  const std::vector<FoldedChoice> folds = folded_choices(all);
  std::string_view where;  // CPU of the last column; empty: no measurement of these kernels exists
  for (const FoldedChoice& f : folds)
    if (!f.measured.empty()) where = f.measured;
  Table table(where.empty() ? "llrrrw" : "llrrrrw", width, colour);
  std::vector<std::string> header = {"kernel", "numerics", "count", "packed",
                                     "x file", "mem",      "scheme"};
  if (where.empty()) header.erase(header.end() - 2);
  table.header(std::move(header));
  for (const FoldedChoice& f : folds) {
    std::vector<std::string> cells = {f.kernel, f.numerics, std::to_string(f.count),
                                      human_bytes(f.packed),
                                      fmt::format("{:.2f}", packed_ratio(f.packed, f.file))};
    if (!where.empty())
      cells.push_back(f.measured.empty()
                          ? ""
                          : fmt::format("{:.0f}%", f.share / static_cast<double>(f.packed)));
    cells.push_back(f.scheme);
    table.add(std::move(cells), Ink::kGreen);
    std::string names = fmt::format("{}", fmt::join(fold_names(f.names), ", "));
    if (!f.request.empty()) names += ": " + f.request;
    table.note(printable(names, 4000));
  }
  std::string notes;
  if (!where.empty())
    notes = labelled("",
                     fmt::format("mem: expected share of the memory bandwidth when decoding one "
                                 "sequence, as measured on {} (bench/speed_table.py).",
                                 where),
                     0, width);
  return table.text() + "\n" + notes + "Slowest kernel first; --why says why each was chosen.\n";
}

RankQuestion rank_question(const ExplainOptions& o) {
  RankQuestion q;
  q.ranks = static_cast<size_t>(o.ranks);
  q.batch = o.batch;
  q.prompt = o.prompt;
  q.link = parse_link(o.link);
  if (!o.node.empty()) {
    q.node = parse_node(o.node);
  } else {
    q.node = {static_cast<double>(default_thread_count()), available_memory_bytes()};
  }
  return q;
}

Json forecast_json(const RankForecast& f) {
  Json j = Json::object({{"pp", f.split.pp},
                         {"tp", f.split.tp},
                         {"ep", f.split.ep},
                         {"fits", f.fits()},
                         {"bytes", f.bytes},
                         {"missing", f.missing}});
  j.set("step_ms", f.step * 1e3), j.set("exchange_ms", f.exchange * 1e3);
  j.set("prompt_ms", f.prompt * 1e3), j.set("reason", f.reason);
  return j;
}

// Implements --ranks: how ranks could share a model.
void explain_ranks(const Checkpoint& checkpoint, const ExplainOptions& o, std::ostream& out) {
  const RankQuestion q = rank_question(o);
  const std::vector<RankForecast> all = plan_ranks(checkpoint, q);
  if (o.json) {
    Json splits = Json::array();
    for (const RankForecast& f : all) splits.push(forecast_json(f));
    Json j = Json::object({{"ranks", q.ranks}});
    j.set("splits", std::move(splits));
    out << j.dump(1) << '\n';
    return;
  }
  const size_t width = output_width();
  out << labelled("for",
                  fmt::format("{} nodes of {:.3g} cores and {}, {:.3g} Gbit/s and {:.3g} us "
                              "between them",
                              q.ranks, q.node.cores, human_bytes(q.node.memory), q.link.rate * 8e-9,
                              q.link.latency * 1e6),
                  4, width)
      << '\n';
  Table table("lrrrw", width, o.colour);
  table.header({"split", "largest rank", fmt::format("step b{}", q.batch),
                fmt::format("prompt {}", q.prompt), ""});
  for (const RankForecast& f : all) {
    const auto ms = [&](double s) {
      return f.refusal.empty() ? fmt::format("{:.3g} ms", s * 1e3) : "";
    };
    table.add({describe(f.split), f.refusal.empty() ? human_bytes(f.bytes) : "", ms(f.step),
               ms(f.prompt), f.reason},
              f.fits() ? Ink::kGreen : Ink::kDim);
  }
  out << table.text() << '\n'
      << labelled("", "Best first. Times are computed, not measured (docs/distributed.md).", 0,
                  width);
}

// Holds the forecast of decoding on a GPU, alone or with the CPU.
struct DeviceForecast {
  Rates rates;
  bool gpu_measured = false, ranked = false;
  uint64_t allowed = 0;
  std::vector<GpuWay> all;
};

DeviceForecast device_forecast(const Checkpoint& checkpoint, const ExplainOptions& o,
                               const ExplainQuestion& q) {
  DeviceForecast f;
  f.allowed = q.gpu->memory_bytes;
  if (!q.gpu->assumed) {
    const GpuModule& gpu = gpu_of_tool(gpu_number(o.run.device));
    const GpuRates measured = measured_rates(gpu);
    f.gpu_measured = measured.read > 0;
    if (measured.read > 0) f.rates.gpu_read = measured.read;
    if (measured.link > 0) f.rates.link = measured.link;
    f.allowed = free_gpu_bytes(gpu);
  }
  constexpr double kReadShare = 0.9;  // that copies reach, as on an H200
  if (q.gpu->asked) f.rates.gpu_read = kReadShare * q.gpu->read_rate;
  f.allowed -= std::min(f.allowed, kReservedBytes);
  f.rates.cpu_read =
      1e9 * brief_read_roof(Runtime::shared(static_cast<size_t>(o.run.threads))->pool());
  f.rates.between = parse_link(o.link);
  f.rates.sequences = {1, 8, 32};
  Wish wish = q.wish;
  wish.loads_file = o.loads;
  wish.gpu.stream = "auto";
  if (o.run.gpu_memory != 0)
    f.allowed = std::min(f.allowed, static_cast<uint64_t>(o.run.gpu_memory * 1073741824.0));
  f.ranked = o.ranks > 0;
  f.all = f.ranked ? gpu_rank_ways(checkpoint, wish, *q.gpu, f.rates, static_cast<size_t>(o.ranks))
                   : gpu_ways(checkpoint, wish, *q.gpu, f.rates, f.allowed);
  return f;
}

std::string forecast_text(const DeviceForecast& f, size_t width, bool colour) {
  if (f.all.empty()) return "";
  Table table("lrrrrw", width, colour);
  std::vector<std::string> header = {"tokens/s of sequences"};
  for (const size_t n : f.rates.sequences) header.push_back(std::to_string(n));
  header.insert(header.end(), {f.ranked ? "on the fullest GPU" : "on the GPU", ""});
  table.header(std::move(header));
  for (const GpuWay& c : f.all) {
    std::vector<std::string> cells = {c.words};
    for (const Forecast::Step& d : c.forecast.decode)
      cells.push_back(fmt::format("{:.0f}", d.tokens_per_second()));
    cells.push_back(human_bytes(c.bytes));
    cells.push_back(c.bytes > f.allowed         ? "does not fit"
                    : c.words.ends_with("auto") ? describe(c.placed)
                                                : "");
    table.add(std::move(cells), c.bytes > f.allowed ? Ink::kDim : Ink::kGreen);
  }
  return table.text() +
         labelled(
             "",
             fmt::format("Computed, not measured (`moebius bench model` measures): the GPU reads "
                         "{:.3g} TB/s ({}) and has {} for it, memory is read at {:.3g} GB/s, and "
                         "{:.3g} GB/s cross; keys and values are not looked at (docs/gpu.md).",
                         f.rates.gpu_read * 1e-12, f.gpu_measured ? "measured" : "assumed",
                         human_bytes(f.allowed), f.rates.cpu_read * 1e-9, f.rates.link * 1e-9),
             0, width) +
         "\n";
}

Json forecast_json(const DeviceForecast& f) {
  Json all = Json::array();
  for (const GpuWay& c : f.all) {
    Json decode = Json::array();
    for (const Forecast::Step& d : c.forecast.decode) {
      Json step = Json::object({{"sequences", d.sequences}});
      step.set("tokens_per_second", d.tokens_per_second()), step.set("gpu_ms", d.gpu * 1e3);
      step.set("cpu_ms", d.cpu * 1e3), step.set("crossing_ms", d.crossing * 1e3);
      decode.push(std::move(step));
    }
    Json one =
        Json::object({{"options", c.words}, {"bytes", c.bytes}, {"fits", c.bytes <= f.allowed}});
    one.set("layers_of_experts", c.placed.layers);
    one.set("divided_layers", c.placed.divided);
    one.set("experts", c.placed.experts);
    one.set("share_of_rows", c.placed.load);
    one.set("decode", std::move(decode));
    all.push(std::move(one));
  }
  return all;
}

}  // namespace

int run_explain(const ExplainOptions& options, std::ostream& out) {
  const Checkpoint checkpoint = open_checkpoint(options.folder);
  if (options.ranks > 0 && !on_gpu(options.run.device)) {
    explain_ranks(checkpoint, options, out);
    return 0;
  }
  ExplainQuestion question;
  Wish& wish = question.wish;
  if (!options.cpu.empty()) question.cpu = parse_cpu(options.cpu);
  if (on_gpu(options.run.device)) {
    const Policy policy = gpu_policy_of(options.run);
    question.gpu = options.gpu.empty() ? gpu_target_of_tool() : named_gpu_target(options.gpu);
    question.gpu->asked = !options.gpu.empty();
    wish.gpu.kernel = policy.kernel;
    wish.policy.accept = policy.accept;
  } else {
    if (!options.gpu.empty()) fail("--gpu is for models on a GPU: --device cuda");
    wish.policy = folder_policy_of(options.run);
  }
  wish.type = activation_type(options.dtype, checkpoint.config().dtype);
  wish.act = act_request_of(options.run);
  wish.shortlist = shortlist_of(options.run);
  note_request(checkpoint, wish.act);
  question.threads = static_cast<size_t>(options.run.threads);
  question.predictor = true;
  const Explanation e = explain(checkpoint, question);
  std::optional<DeviceForecast> forecast;
  if (question.gpu) forecast = device_forecast(checkpoint, options, question);
  if (options.json) {
    Json j = to_json(e);
    if (forecast) j.set("forecast", forecast_json(*forecast));
    out << j.dump(1) << '\n';
    return 0;
  }
  const size_t width = output_width();
  out << labelled("for", e.gpu ? describe(*e.gpu) : describe(e.cpu), 4, width);
  if (e.machine) out << labelled("on", machine_text(*e.machine), 4, width);
  for (const std::string& words : e.on_cpu) out << labelled("", words, 4, width);
  out << '\n';
  if (forecast) out << forecast_text(*forecast, width, options.colour);
  for (const Explained& m : e.modules)
    if (m.use == nullptr)
      out << labelled("unsupported",
                      fmt::format("{}: {}", printable(m.group.name), m.group.sample->reason), 13,
                      width, Ink::kRed, options.colour);
  std::vector<const Explained*> run;
  for (const Explained& m : e.modules)
    if (m.use != nullptr) run.push_back(&m);
  if (options.why)
    for (const Explained* m : run) out << choice_detail(*m, e.cpu.arch, width, options.colour);
  else if (!run.empty())
    out << choices_text(run, width, options.colour);
  return 0;
}

Command explain_command() {
  auto o = std::make_shared<ExplainOptions>();
  Command c("explain", "shows which kernel will run each module, and why");
  c.folder(o->folder);
  c.option("--cpu", "LIST", &o->cpu,
           "answer for a CPU with these features, e.g. neon,dotprod or avx2,fma,f16c",
           {.default_text = "this machine"});
  add_dtype_option(c, o->dtype);
  c.flag("--why", o->why,
         "for every module: each kernel of the CPU's architecture, and why it was chosen or not");
  add_json_flag(c, o->json);
  c.section("Ranks");
  c.option("--ranks", "N", &o->ranks, "instead: ways to split the model over N ranks, best first",
           {.limits = {{1, 1024}}, .default_text = "none"});
  c.option("--link", "RATE,TIME", &o->link, "bandwidth in bits/s and latency between ranks");
  c.option("--node", "CxM", &o->node, "cores and memory of each rank, e.g. 64x256G",
           {.default_text = "this machine's"});
  c.option("--batch", "N", &o->batch, "sequences per decode step", {.limits = {{1, 65536}}});
  c.option("--prompt-tokens,--prompt", "N", &o->prompt, "length of the prompt",
           {.limits = {{1, 1 << 20}}});
  add_run_options(c, o->run);
  add_gpu_memory_option(c, o->run);
  c.option("--gpu", "NAME", &o->gpu,
           "with --device cuda: answer for this card, e.g. rtx3090; nothing runs on it",
           {.default_text = "this machine's, or an H200", .rare = true});
  c.option("--expert-loads", "FILE", &o->loads,
           "with --device cuda: file of loads by which experts would be placed",
           {.default_text = "none", .kind = ValueKind::kFile, .rare = true});
  c.examples = {"moebius explain DIR",
                "moebius explain DIR --ranks 4 --link 10G,30us --node 64x256G",
                "moebius explain DIR --cpu neon,dotprod --json"};
  c.action = [o](const Command&) {
    o->colour = colour_wanted(STDOUT_FILENO);
    return run_explain(*o, std::cout);
  };
  return c;
}

}  // namespace moebius
