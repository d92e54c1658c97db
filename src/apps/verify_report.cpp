// SPDX-License-Identifier: Apache-2.0
#include "apps/verify_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "apps/cli/layout.h"
#include "base/error.h"
#include "base/human.h"
#include "checkpoint/module_scheme.h"

namespace moebius {
namespace {

// Holds modules that share a line: same kernel, same outcome.
struct FoldedFindings {
  const Finding* worst = nullptr;
  double max_abs = 0, max_rel = 0;
  size_t count = 0;
  std::vector<std::string> patterns;

  void add(const Finding& f) {
    const std::string pattern = collapse_indices(f.name);
    if (std::find(patterns.begin(), patterns.end(), pattern) == patterns.end())
      patterns.push_back(pattern);
    max_abs = std::max(max_abs, f.max_abs);
    max_rel = std::max(max_rel, f.max_rel);
    ++count;
    if (worst == nullptr || f.share > worst->share) worst = &f;
  }
};

// Orders broken payloads first, then failures, then the results nearest to their bound.
bool worse_findings(const FoldedFindings& a, const FoldedFindings& b) {
  const auto rank = [](const Finding& f) { return !f.problem.empty() ? 0 : !f.ok ? 1 : 2; };
  if (rank(*a.worst) != rank(*b.worst)) return rank(*a.worst) < rank(*b.worst);
  if (a.worst->share != b.worst->share) return a.worst->share > b.worst->share;
  return a.count > b.count;
}

std::vector<FoldedFindings> folded_findings(const VerifyReport& report) {
  std::map<std::string, size_t> index;
  std::vector<FoldedFindings> folds;
  for (const Finding& f : report.findings) {
    // A broken payload has a line of its own, because its message names the element.
    const std::string key =
        f.problem.empty() ? fmt::format("{}|{}|{}", f.ok, f.kernel, name_of(f.numerics)) : f.name;
    const auto [it, fresh] = index.try_emplace(key, folds.size());
    if (fresh) folds.emplace_back();
    folds[it->second].add(f);
  }
  std::stable_sort(folds.begin(), folds.end(), worse_findings);
  return folds;
}

// Returns how much of the bound was used; empty for exact kernels, which have none.
std::string share_text(const Finding& f) {
  if (f.numerics == Numerics::kExact) return "";
  return f.ok ? fmt::format("{:.2g}", f.share) : "beyond";
}

std::string findings_text(const VerifyReport& report, size_t width, bool colour) {
  Table table("llrlrrr", width, colour);
  table.header({"", "kernel", "modules", "numerics", "max abs", "max rel", "of bound"});
  for (const FoldedFindings& fold : folded_findings(report)) {
    const Finding& f = *fold.worst;
    const Ink ink = f.ok ? Ink::kGreen : Ink::kRed;
    std::string names = fmt::format("{}", fmt::join(fold_names(fold.patterns), ", "));
    if (!f.problem.empty()) {
      table.add({"FAIL", "not run", std::to_string(fold.count)}, ink);
      table.note(fmt::format("{}: {}", printable(f.name), printable(f.problem, 400)));
      continue;
    }
    if (!f.ok) names += fmt::format("; worst {}, {}", f.name, f.where);
    table.add({f.ok ? "ok" : "FAIL", f.kernel, std::to_string(fold.count),
               std::string(name_of(f.numerics)), fmt::format("{:.2e}", fold.max_abs),
               fmt::format("{:.2e}", fold.max_rel), share_text(f)},
              ink);
    table.note(printable(names, 4000));
  }
  return table.text();
}

Json finding_json(const Finding& f) {
  Json j = Json::object({{"name", f.name},
                         {"kernel", f.kernel},
                         {"numerics", f.kernel.empty() ? "" : name_of(f.numerics)},
                         {"max_abs", f.max_abs},
                         {"max_rel", f.max_rel},
                         {"bound", f.bound},
                         {"ok", f.ok},
                         {"worst", f.where}});
  if (!f.problem.empty()) j.set("problem", f.problem);
  return j;
}

}  // namespace

size_t VerifyReport::run() const {
  return static_cast<size_t>(
      std::count_if(findings.begin(), findings.end(), [](const Finding& f) { return f.run; }));
}

size_t VerifyReport::failed() const {
  return static_cast<size_t>(
      std::count_if(findings.begin(), findings.end(), [](const Finding& f) { return !f.ok; }));
}

Json verify_json(const VerifyReport& report) {
  Json list = Json::array();
  for (const Finding& f : report.findings) list.push(finding_json(f));
  return Json::object({{"ok", report.failed() == 0},
                       {"modules_total", static_cast<uint64_t>(report.products)},
                       {"modules_run", static_cast<uint64_t>(report.run())},
                       {"failed", static_cast<uint64_t>(report.failed())},
                       {"payloads_checked", static_cast<uint64_t>(report.payloads)},
                       {"modules", std::move(list)}});
}

std::string verify_text(const VerifyReport& report, size_t width, bool colour) {
  std::string out = findings_text(report, width, colour);
  out += fmt::format("\n{} read and checked\n", counted(report.payloads, "module"));
  const bool some = report.run() < report.products && report.failed() == 0;
  if (some)
    out += labelled("",
                    "Of experts that differ in their weights alone, the first and the last of each "
                    "layer are run; --all runs every one.",
                    0, width);
  out += fmt::format("{} run{}, {} failed: {}\n", counted(report.run(), "module"),
                     some ? fmt::format(" ({} with --all)", report.products) : "", report.failed(),
                     report.failed() == 0 ? "ok" : "FAIL");
  return out;
}

}  // namespace moebius
