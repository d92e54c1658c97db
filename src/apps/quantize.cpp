// SPDX-License-Identifier: Apache-2.0
// Implements the command `quantize`: turns a folder of plain weights into a compressed-tensors
// folder.
#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <iostream>
#include <map>

#include "apps/chat/terminal.h"
#include "apps/cli/folder.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/layout.h"
#include "apps/cli/manners.h"
#include "apps/cli/options.h"
#include "apps/cli/suggest.h"
#include "apps/commands.h"
#include "base/error.h"
#include "device/load_options.h"
#include "quantize/quantize_json.h"
#include "quantize/schemes.h"
#include "runtime/runtime.h"

namespace moebius {
namespace {

struct QuantizeCommand {
  QuantizeOptions options;
  std::string match = "llmcompressor", shard_size = "5G", memory, method, order = "static",
              experts = "routed", dtype = "auto";
  std::optional<float> damp, min_rows;
  int64_t seed = 0;
  int64_t group = 0;
  bool sym = false, asym = false, dry_run = false, json = false;
  int threads = 0;
};

// Parses bytes such as "5G", "512M" or "1000000", with decimal units.
uint64_t bytes_of_size(const std::string& text, std::string_view option) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  std::string_view unit(rest, static_cast<size_t>(end - rest));
  if (unit.ends_with('B') || unit.ends_with('b')) unit.remove_suffix(1);
  double factor = unit.empty() ? 1 : 0;
  for (const auto& [letter, power] : {std::pair('K', 1e3), {'M', 1e6}, {'G', 1e9}, {'T', 1e12}})
    if (unit.size() == 1 && (unit[0] == letter || unit[0] == letter - 'A' + 'a')) factor = power;
  if (error != std::errc() || factor == 0 || !(value * factor >= 1) || value * factor > 1e18)
    throw UsageError(
        fmt::format("{} is '{}'; expected a size such as 512M or 5G", option, printable(text, 40)));
  return static_cast<uint64_t>(value * factor);
}

void check_scheme_name(const std::string& typed) {
  std::vector<std::string> names;
  std::string upper;
  for (const char c : typed) upper += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  for (const SchemeName& s : scheme_names()) names.emplace_back(s.name);
  if (std::find(names.begin(), names.end(), upper) != names.end()) return;
  // Names of llama.cpp, such as q4_k_m and IQ3_XS, begin with the bits.
  std::string near;
  const size_t bits = upper.find_first_not_of("IQ");
  if (bits != std::string::npos && bits > 0) near = fmt::format("W{}A16", upper[bits]);
  if (upper == "AWQ" || upper == "GPTQ" || upper == "INT4") near = "W4A16";
  if (std::find(names.begin(), names.end(), near) == names.end()) near = nearest(upper, names);
  throw UsageError(fmt::format("there is no scheme '{}'; {}there are {}", printable(typed, 40),
                               near.empty() ? "" : fmt::format("did you mean {}? ", near),
                               fmt::join(names, ", ")));
}

void take_method(QuantizeCommand& c) {
  QuantizeOptions& o = c.options;
  o.method = c.method == "gptq"     ? QuantizeMethod::kGptq
             : c.method == "search" ? QuantizeMethod::kSearch
             : c.method == "rtn"    ? QuantizeMethod::kRtn
                                    : usual_method(o);
  o.by_size = c.order == "static";
  if (c.damp) o.damp = *c.damp;
  if (c.min_rows) o.min_rows = static_cast<double>(*c.min_rows);
  o.calibration.seed = static_cast<uint64_t>(c.seed);
  o.calibration.all_experts = c.experts == "all";
}

void print_forecast(const QuantizeJob& job) {
  const QuantizeForecast& f = job.forecast();
  for (const auto& [what, n] : modules_by_rule(job.selection()))
    note("{}: {}", counted(n, "module"), what);
  std::map<std::string, size_t> left;
  for (const LeftModule& m : job.selection().left) ++left[m.reason];
  for (const auto& [why, n] : left)
    note("{} left as {}: {}", counted(n, "module"), n == 1 ? "it is" : "they are", why);
  const auto bytes = [](uint64_t n) { return human_bytes(n); };
  note("{} read, {} written in {}, {:.2f} bits per quantized weight", bytes(f.bytes_in),
       bytes(f.bytes_out), counted(job.plan().shards.size(), "file"), f.bits_per_weight);
  note("memory {} on {}; disk {} of {} free{}", bytes(f.memory), counted(f.threads, "thread"),
       bytes(f.disk_needed), bytes(f.disk_free),
       f.seconds > 0 ? fmt::format("; about {}", human_seconds(f.seconds)) : "");
  if (f.tokens > 0)
    note("calibration: {}{}{}", counted(f.tokens, "token"),
         f.expert_rows > 0 ? fmt::format(", {} rows per expert on the mean", f.expert_rows) : "",
         f.scratch > 0 ? fmt::format(", {} of rows in files", bytes(f.scratch)) : "");
  if (job.source().quant().method() == "fp8")
    note("the source is native FP8: its matrices are decoded to bf16 first");
}

int run_quantize(QuantizeCommand& c) {
  QuantizeOptions& o = c.options;
  if (!o.scheme.empty()) check_scheme_name(o.scheme);
  if (!o.groups_file.empty() &&
      (c.group != 0 || c.sym || c.asym || !o.format.empty() || !o.targets.empty()))
    throw UsageError(
        "--config-groups says all about the groups: no --group, --sym, --asym, --format, "
        "--targets");
  if (c.group != 0) o.group = c.group;
  if (c.sym || c.asym) o.symmetric = c.sym;
  o.shard_bytes = bytes_of_size(c.shard_size, "--shard-size");
  if (!c.memory.empty()) o.memory = bytes_of_size(c.memory, "--memory");
  if (c.dtype != "auto") o.dtype = activation_type(c.dtype, "");
  o.match = c.match == "f32" ? RtnMatch::kF32 : RtnMatch::kLlmcompressor;
  take_method(c);
  o.links = manners().no_follow ? Links::kInside : Links::kAnywhere;
  const std::shared_ptr<Runtime> runtime = Runtime::shared(static_cast<size_t>(c.threads));
  QuantizeJob job(o, runtime->threads());
  for (const std::string& w : job.source().warnings()) warning("{}", w);
  for (const std::string& w : job.selection().warnings) warning("{}", w);
  job.probe();
  print_forecast(job);
  double seconds = 0;
  if (!c.dry_run) {
    static std::string interrupted;  // the signal handler reads it
    interrupted = fmt::format("interrupted; {}.partial is unfinished: continue with --resume",
                              printable(job.options().target));
    interrupt_ends(interrupted.c_str());
    const auto start = std::chrono::steady_clock::now();
    Progress progress("quantize", job.plan().source_bytes, /*bytes=*/true);
    std::atomic<uint64_t> before{0};
    const auto layers = job.source().config().layers;
    job.run(runtime->pool(), [&](const QuantizeProgress& p) {
      if (!p.note.empty())
        return progress.advance(0, fmt::format("{} layer {}", p.note, p.layer + 1));
      const uint64_t last = before.exchange(p.done);
      if (p.done > last)
        progress.advance(p.done - last,
                         p.layer >= 0 ? fmt::format("layer {}/{}", p.layer + 1, layers) : "");
    });
    progress.finish();
    interrupt_ends("interrupted");
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    size_t others = 0;
    const ModuleReport* first = nullptr;
    for (const ModuleReport& r : job.reports())
      if (!r.reason.empty() && others++ == 0) first = &r;
    if (others > 0)
      note("{} by searched scales instead of GPTQ; the first, {}: {}", counted(others, "module"),
           first->name, first->reason);
    note("{}: whole, {} in {}", job.options().target, human_bytes(job.plan().output_bytes),
         human_seconds(seconds));
  }
  if (c.json) std::cout << quantize_answer(job, seconds, !c.dry_run).dump() << '\n';
  return kExitDone;
}

std::string scheme_help() {
  std::string names;
  for (const SchemeName& s : scheme_names())
    names += fmt::format("{}{}", names.empty() ? "" : " ", s.name);
  return "what to make: " + names;
}

}  // namespace

Command quantize_command() {
  auto o = std::make_shared<QuantizeCommand>();
  QuantizeOptions& q = o->options;
  Command c("quantize",
            "makes a quantized folder from one with bf16, f16, f32 or block FP8 weights");
  c.argument("SRC", q.source, "checkpoint folder", {.kind = ValueKind::kFolder, .required = true});
  c.argument("DST", q.target, "folder to make; it has this name only when it is whole",
             {.required = true});
  c.section("What to make, one of");
  c.option("--scheme", "NAME", &q.scheme, scheme_help());
  c.option("--config-groups", "FILE", &q.groups_file,
           "JSON: config_groups of compressed-tensors, or a whole quantization_config",
           {.kind = ValueKind::kFile});
  c.exactly_one({"--scheme", "--config-groups"});
  c.section("Options");
  c.option("--group", "N", &o->group, "group size of integer weights; -1: per channel",
           {.limits = {{-1, 1 << 24}}, .default_text = "the scheme's"});
  c.flag("--sym", o->sym, "symmetric integer weights");
  c.flag("--asym", o->asym, "integer weights with zero points");
  c.at_most_one({"--sym", "--asym"});
  c.option("--targets", "LIST", &q.targets,
           "modules to quantize: names, re: and a regular expression, or Linear",
           {.default_text = "Linear"});
  c.option("--ignore", "LIST", &q.ignore,
           "modules not to quantize, besides routers, lm_head and embeddings",
           {.default_text = "none"});
  c.flag("--ignore-only", q.ignore_only, "quantize every module that --ignore does not name",
         {.rare = true});
  c.option("--format", "NAME", &q.format, "how codes are stored: pack-quantized, int-quantized",
           {.default_text = "the scheme's", .rare = true});
  std::vector<std::string> names;
  for (const std::string_view r : readers()) names.emplace_back(r);
  c.option("--for", "READER", &q.reader, "refuse what this program cannot load",
           {.choices = names});
  c.option("--match", "NAME", &o->match,
           "arithmetic of rounding: llmcompressor's bytes, or quotients in f32",
           {.choices = {"llmcompressor", "f32"}, .rare = true});
  c.section("Methods");
  c.option("--method", "NAME", &o->method,
           "rtn: round to nearest; search: scales that lose least; gptq",
           {.choices = {"rtn", "search", "gptq"},
            .default_text = "rtn; with --calib gptq for integers of up to 4 bits, else search"});
  c.option("--calib", "FILE", &q.calibration.files,
           "calibration text: .txt, .jsonl with text, messages or input_ids, .bin with u16 tokens",
           {.default_text = "none", .kind = ValueKind::kFile});
  c.option("--calib-tokens", "N", &q.calibration.tokens, "tokens of it to use",
           {.limits = {{1, 1 << 30}}});
  c.option("--calib-ctx", "N", &q.calibration.context, "tokens per window",
           {.limits = {{1, 1 << 24}}, .rare = true});
  c.option("--calib-experts", "NAME", &o->experts,
           "calibrate each expert with the rows routed to it, or with all rows",
           {.choices = {"routed", "all"}, .rare = true});
  c.option("--seed", "N", &o->seed, "of the choice of windows",
           {.limits = {{0, 1e15}}, .rare = true});
  c.option("--damp", "X", &o->damp,
           "GPTQ: damping: this share of the Hessian's mean diagonal is added to its diagonal",
           {.default_text = "0.01", .rare = true});
  c.option("--order", "NAME", &o->order, "GPTQ: columns of large inputs first, or as they stand",
           {.choices = {"static", "none"}, .rare = true});
  c.option("--min-rows", "X", &o->min_rows,
           "GPTQ: experts with fewer rows per input get searched scales",
           {.default_text = "1", .rare = true});
  c.option("--dtype", "NAME", &o->dtype, "type of scales and of what is not quantized",
           {.choices = {"auto", "bf16", "f16", "f32"}, .rare = true});
  c.section("Run");
  c.option("--shard-size", "SIZE", &o->shard_size, "largest file", {.rare = true});
  c.option("--memory", "SIZE", &o->memory, "memory to use",
           {.default_text = "80 % of what is free"});
  c.option("--scratch", "FOLDER", &q.scratch,
           "where rows of the calibration are kept; without it in memory, or beside DST",
           {.default_text = "none", .kind = ValueKind::kFolder, .rare = true});
  c.option("--threads,-t", "N", &o->threads, "threads; 0: all cores", {.limits = {{0, 4096}}});
  c.flag("--resume", q.resume, "go on with the unfinished run DST.partial");
  c.flag("--overwrite", q.overwrite,
         "replace an unfinished run, or a folder that this command made");
  c.at_most_one({"--resume", "--overwrite"});
  c.flag("--dry-run", o->dry_run, "only say what would be done");
  add_json_flag(c, o->json);
  c.examples = {"moebius quantize DIR OUT --scheme W4A16",
                "moebius quantize DIR OUT --scheme W4A8 --group 32",
                "moebius quantize DIR OUT --config-groups mixed.json --dry-run"};
  c.action = [o](const Command&) { return run_quantize(*o); };
  return c;
}

}  // namespace moebius
