// SPDX-License-Identifier: Apache-2.0
// Rooflines: a case stands at (operations per byte it must read, operations per second). Below the
// slanted part memory is the bound, below the flat part the multipliers are. Both axes are
// logarithmic.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "apps/bench/bench_report.h"
#include "apps/cli/layout.h"

namespace moebius {
namespace {

struct Point {
  double intensity, gops;
  std::string label, series;
};

struct Roof {
  std::string name;
  double gops, gbs;
};

struct Picture {
  std::vector<Point> points;
  std::vector<Roof> roofs;
  std::vector<std::string> series;
  double x0, x1, y0, y1;  // log10 of the corners
};

Picture picture_of(const std::vector<BenchResult>& results) {
  Picture p;
  std::set<std::string> seen;
  double x0 = 1e300, x1 = 0, y0 = 1e300, y1 = 0;
  for (const BenchResult& r : results) {
    if (r.read_bytes <= 0 || r.operations <= 0) continue;
    Point q{r.operations / r.read_bytes, r.gops(), std::to_string(r.tokens), r.scheme};
    if (r.group > 0) q.series += fmt::format(" g{}", r.group);
    if (!r.note.empty()) q.series += " " + r.note;
    q.series += fmt::format(", {} thread{}", r.threads, r.threads == 1 ? "" : "s");
    if (seen.insert("s" + q.series).second) p.series.push_back(q.series);
    const std::string roof =
        fmt::format("{}, {} thread{}", r.roof, r.threads, r.threads == 1 ? "" : "s");
    if (r.roof_gops > 0 && seen.insert("r" + roof).second)
      p.roofs.push_back({roof, r.roof_gops, r.roof_gbs});
    x0 = std::min(x0, q.intensity), x1 = std::max(x1, q.intensity);
    y0 = std::min(y0, q.gops), y1 = std::max({y1, q.gops, r.roof_gops});
    if (r.roof_gbs > 0) x1 = std::max(x1, 2 * r.roof_gops / r.roof_gbs);
    p.points.push_back(std::move(q));
  }
  if (p.points.empty()) return p;
  p.x0 = std::floor(std::log10(x0)), p.x1 = std::max(p.x0 + 1, std::ceil(std::log10(x1)));
  p.y0 = std::floor(std::log10(y0)), p.y1 = std::max(p.y0 + 1, std::ceil(std::log10(y1)));
  return p;
}

double roof_at(const Roof& roof, double intensity) {
  return roof.gbs > 0 ? std::min(roof.gops, roof.gbs * intensity) : roof.gops;
}

constexpr const char* kColours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e",
                                    "#8c564b", "#e377c2", "#17becf", "#bcbd22", "#7f7f7f"};

size_t series_index(const Picture& p, const Point& q) {
  return static_cast<size_t>(std::find(p.series.begin(), p.series.end(), q.series) -
                             p.series.begin());
}

}  // namespace

std::string xml_escaped(const std::string& text) {
  std::string s;
  for (const char c : text)
    s += c == '<' ? "&lt;" : c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  return s;
}

std::string roofline_svg(const std::vector<BenchResult>& results) {
  const Picture p = picture_of(results);
  constexpr double kLeft = 70, kTop = 40, kWidth = 640, kHeight = 400;
  const double legend = 18.0 * static_cast<double>(p.series.size() + p.roofs.size());
  std::string s;
  const auto out = std::back_inserter(s);
  fmt::format_to(out,
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1000 {:.0f}\" "
                 "font-family=\"sans-serif\" font-size=\"12\">\n",
                 std::max(kTop + kHeight + 50, kTop + legend + 20));
  s += "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  if (p.points.empty()) return s + "</svg>\n";
  const auto X = [&](double v) { return kLeft + kWidth * (std::log10(v) - p.x0) / (p.x1 - p.x0); };
  const auto Y = [&](double v) {
    return kTop + kHeight * (1 - (std::log10(v) - p.y0) / (p.y1 - p.y0));
  };
  fmt::format_to(out, "<text x=\"{}\" y=\"22\" font-size=\"15\">{}, {} {}</text>\n", kLeft,
                 xml_escaped("moebius bench " + results[0].bench), xml_escaped(cpu_model_name()),
                 kBuildCommit);
  for (double d = p.x0; d <= p.x1; ++d) {
    const double x = X(std::pow(10, d));
    fmt::format_to(
        out,
        "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#ddd\"/><text "
        "x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:g}</text>\n",
        x, kTop, kTop + kHeight, kTop + kHeight + 16, std::pow(10, d));
  }
  for (double d = p.y0; d <= p.y1; ++d) {
    const double y = Y(std::pow(10, d));
    fmt::format_to(
        out,
        "<line x1=\"{1}\" y1=\"{0:.1f}\" x2=\"{2}\" y2=\"{0:.1f}\" stroke=\"#ddd\"/><text "
        "x=\"{3}\" y=\"{0:.1f}\" text-anchor=\"end\">{4:g}</text>\n",
        y, kLeft, kLeft + kWidth, kLeft - 6, std::pow(10, d));
  }
  fmt::format_to(out,
                 "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">operations per byte read</text>\n",
                 kLeft + kWidth / 2, kTop + kHeight + 36);
  fmt::format_to(
      out, "<text transform=\"translate(18 {}) rotate(-90)\" text-anchor=\"middle\">GOP/s</text>\n",
      kTop + kHeight / 2);
  double line = kTop + 10;
  for (const Roof& roof : p.roofs) {
    std::string path;
    const double left = std::pow(10, p.x0), right = std::pow(10, p.x1), bottom = std::pow(10, p.y0);
    const double ridge = roof.gbs > 0 ? std::clamp(roof.gops / roof.gbs, left, right) : left;
    for (const double x : {left, ridge, right})
      fmt::format_to(std::back_inserter(path), "{:.1f},{:.1f} ", X(x),
                     Y(std::max(bottom, roof_at(roof, x))));
    fmt::format_to(out,
                   "<polyline points=\"{}\" fill=\"none\" stroke=\"#333\" stroke-width=\"1.5\"/>\n",
                   path);
    fmt::format_to(out, "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"#333\">{}</text>\n",
                   kLeft + kWidth - 4, Y(roof.gops) - 4, xml_escaped(roof.name));
    fmt::format_to(out, "<text x=\"{}\" y=\"{}\">{}: {:.0f} GOP/s, {:.1f} GB/s</text>\n",
                   kLeft + kWidth + 14, line, xml_escaped(roof.name), roof.gops, roof.gbs);
    line += 18;
  }
  for (size_t i = 0; i < p.series.size(); ++i, line += 18)
    fmt::format_to(
        out, "<circle cx=\"{}\" cy=\"{}\" r=\"4\" fill=\"{}\"/><text x=\"{}\" y=\"{}\">{}</text>\n",
        kLeft + kWidth + 19, line - 4, kColours[i % std::size(kColours)], kLeft + kWidth + 30, line,
        xml_escaped(p.series[i]));
  for (const Point& q : p.points)
    fmt::format_to(out,
                   "<circle cx=\"{0:.1f}\" cy=\"{1:.1f}\" r=\"4\" fill=\"{2}\"><title>{3}, {4} "
                   "tokens: {5:.4g} GOP/s</title></circle><text x=\"{6:.1f}\" y=\"{7:.1f}\" "
                   "font-size=\"10\" fill=\"{2}\">{4}</text>\n",
                   X(q.intensity), Y(q.gops), kColours[series_index(p, q) % std::size(kColours)],
                   xml_escaped(q.series), q.label, q.gops, X(q.intensity) + 6, Y(q.gops) + 4);
  return s + "</svg>\n";
}

std::string roofline_text(const std::vector<BenchResult>& results) {
  const Picture p = picture_of(results);
  if (p.points.empty()) return "";
  constexpr int kColumns = 68, kLines = 20;
  std::vector<std::string> grid(kLines, std::string(kColumns, ' '));
  const auto column = [&](double v) {
    return std::clamp(static_cast<int>((std::log10(v) - p.x0) / (p.x1 - p.x0) * (kColumns - 1)), 0,
                      kColumns - 1);
  };
  const auto row = [&](double v) {
    return std::clamp(
        kLines - 1 - static_cast<int>((std::log10(v) - p.y0) / (p.y1 - p.y0) * (kLines - 1)), 0,
        kLines - 1);
  };
  for (const Roof& roof : p.roofs)
    for (int c = 0; c < kColumns; ++c) {
      const double x = std::pow(10, p.x0 + (p.x1 - p.x0) * c / (kColumns - 1)),
                   y = roof_at(roof, x);
      if (y >= std::pow(10, p.y0))
        grid[static_cast<size_t>(row(y))][static_cast<size_t>(c)] = y < roof.gops ? '/' : '-';
    }
  for (const Point& q : p.points)
    grid[static_cast<size_t>(row(q.gops))][static_cast<size_t>(column(q.intensity))] =
        static_cast<char>('a' + series_index(p, q) % 26);
  std::string s = "\nGOP/s over operations per byte read\n";
  for (int i = 0; i < kLines; ++i) {
    const double y = std::pow(10, p.y0 + (p.y1 - p.y0) * (kLines - 1 - i) / (kLines - 1));
    s += fmt::format("{:>8.3g} |{}\n", y, grid[static_cast<size_t>(i)]);
  }
  s += fmt::format("{:>8} +{}\n{:>10}{:<.3g}{:>{}.3g}\n", "", std::string(kColumns, '-'), "",
                   std::pow(10, p.x0), std::pow(10, p.x1), kColumns - 3);
  for (const Roof& roof : p.roofs)
    s += labelled("  -/",
                  fmt::format("{}: {:.0f} GOP/s, {:.1f} GB/s", roof.name, roof.gops, roof.gbs), 6,
                  output_width());
  for (size_t i = 0; i < p.series.size(); ++i)
    s += labelled(fmt::format("  {}", static_cast<char>('a' + i % 26)), p.series[i], 6,
                  output_width());
  return s;
}

}  // namespace moebius
