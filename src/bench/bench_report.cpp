// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_report.h"

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <cmath>
#include <ostream>
#include <tuple>

#include "apps/cli/commit.h"
#include "apps/cli/layout.h"
#include "apps/cli/manners.h"
#include "base/error.h"
#include "base/file.h"

namespace moebius {
namespace {

std::string shape_text(const BenchResult& r) {
  std::string s;
  for (const auto& [name, value] : r.shape) s += fmt::format("{}={} ", name, value);
  return s;
}

bool same_but_threads(const BenchResult& a, const BenchResult& b) {
  const auto facts = [](const BenchResult& r) {
    return std::tie(r.bench, r.scheme, r.group, r.shape, r.tokens, r.note, r.kernel);
  };
  return facts(a) == facts(b);
}

double percent(double part, double whole) { return whole > 0 ? rounded(100 * part / whole, 4) : 0; }

// Formats a share of a limit in percent; "?" if the limit is not steady.
std::string share_of(double part, const Roof& roof) {
  return roof.steady() ? fmt::format("{:.1f}", percent(part, roof.rate)) : "?";
}

// Formats a number with `digits` significant digits, but without an exponent if it is large.
std::string figure(double value, int digits) {
  return value >= 1000 ? fmt::format("{:.0f}", value) : fmt::format("{:.{}g}", value, digits);
}

Json result_json(const BenchResult& r, double speedup) {
  Json j = Json::object({{"bench", r.bench}, {"scheme", r.scheme}, {"group", r.group}});
  for (const auto& [name, value] : r.shape) j.set(name, value);
  j.set("tokens", r.tokens), j.set("threads", r.threads);
  if (!r.note.empty()) j.set("note", r.note);
  j.set("kernel", r.kernel), j.set("numerics", r.numerics);
  add_timing(j, r.time);
  j.set("gops", rounded(r.gops(), 5)), j.set("gbs", rounded(r.gbs(), 5)),
      j.set("gbs_read", rounded(r.gbs_read(), 5));
  j.set("gbs_packed", rounded(r.packed_bytes / r.time.median * 1e-9, 5));
  j.set("roof_gops", rounded(r.roof_gops.rate, 5)), j.set("roof_gbs", rounded(r.roof_gbs.rate, 5)),
      j.set("roof", r.roof);
  j.set("roof_gops_spread_percent", rounded(r.roof_gops.spread * 100, 3)),
      j.set("roof_gbs_spread_percent", rounded(r.roof_gbs.spread * 100, 3));
  j.set("percent_gops", percent(r.gops(), r.roof_gops.rate)),
      j.set("percent_gbs", percent(r.gbs(), r.roof_gbs.rate));
  j.set("percent_gbs_read", percent(r.gbs_read(), r.roof_gbs.rate));
  j.set("roof_steady", r.roof_gops.steady() && r.roof_gbs.steady());
  if (speedup > 0) j.set("speedup", rounded(speedup, 4));
  return j;
}

}  // namespace

double rounded(double value, int digits) {
  if (value == 0 || !std::isfinite(value)) return 0;
  const double unit =
      std::pow(10.0, digits - 1 - static_cast<int>(std::floor(std::log10(std::fabs(value)))));
  return std::round(value * unit) / unit;
}

void set_roofs(BenchResult& r, const RoofsBeside& roofs) {
  r.roof = roofs.name();
  r.roof_gops = roofs.gops();
  r.roof_gbs = roofs.gbs();
}

void add_timing(Json& line, const Timing& time) {
  line.set("ms", rounded(time.median * 1e3, 5)), line.set("best_ms", rounded(time.best * 1e3, 5));
  line.set("spread_percent", rounded(time.spread * 100, 3));
  line.set("repetitions", time.repetitions);
}

void add_machine(Json& line) {
  line.set("cpu", cpu_model_name());
  line.set("features", describe(host_cpu()));
  line.set("commit", kBuildCommit);
}

void print_json(Json line, std::ostream& out) {
  add_machine(line);
  out << line.dump() << std::endl;
}

void BenchReport::add(const BenchResult& r) {
  if (r.time.repetitions == 0) return;
  // Speed, divided by that with the first number of threads for this case.
  double speedup = 0;
  for (const BenchResult& earlier : results_)
    if (speedup == 0 && earlier.threads != r.threads && same_but_threads(earlier, r))
      speedup = earlier.time.median / r.time.median;
  results_.push_back(r);
  if (options_.json)
    print_json(result_json(r, speedup), out_);
  else
    print_line(r, speedup);
}

void BenchReport::print_line(const BenchResult& r, double speedup) {
  const std::string title = fmt::format("{} {}", r.bench, shape_text(r));
  if (title != title_) {
    title_ = title;
    out_ << labelled("", title, 0, output_width())
         << labelled("", fmt::format("{}, built from {}", cpu_model_name(), kBuildCommit), 0,
                     output_width());
    fmt::print(out_, "{:>7} {:>3} {:>9} {:>5} {:>8} {:>5} {:>7} {:>5} {:>8}\n", "tokens", "thr",
               "ms", "±", "GOP/s", "%", "GB/s", "%", "speedup");
  }
  std::string subject = r.scheme;
  if (r.group > 0) subject += fmt::format(", groups of {}", r.group);
  subject += fmt::format(": {}, {}", r.kernel, r.numerics);
  if (subject != subject_) out_ << labelled("", subject_ = subject, 0, output_width());
  const std::string faster = speedup > 0 ? fmt::format("{:.2f}", speedup) : "";
  // A number wider than its column moves the others to the right; a space always separates them.
  std::string line =
      fmt::format("{:>7} {:>3} {:>9} {:>4.1f}% {:>8} {:>5} {:>7} {:>5} {:>8} {}", r.tokens,
                  r.threads, figure(r.time.median * 1e3, 4), r.time.spread * 100,
                  figure(r.gops(), 4), share_of(r.gops(), r.roof_gops), figure(r.gbs(), 3),
                  share_of(r.gbs(), r.roof_gbs), faster, r.note);
  line.erase(line.find_last_not_of(' ') + 1);
  out_ << line << std::endl;
}

}  // namespace moebius
