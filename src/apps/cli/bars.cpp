// SPDX-License-Identifier: Apache-2.0
// Draws bars. Each group has its own scale: prompts and decode steps of a model differ by orders of
// magnitude.
#include "apps/cli/bars.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>

#include "apps/cli/commit.h"
#include "apps/cli/layout.h"
#include "base/file.h"
#include "runtime/cpu.h"

namespace moebius {
namespace {

double largest_of_group(const std::vector<Bar>& bars, const std::string& group) {
  double most = 0;
  for (const Bar& b : bars)
    if (b.group == group) most = std::max(most, b.value + b.spread);
  return most;
}

std::string xml_escaped(const std::string& text) {
  std::string s;
  for (const char c : text)
    s += c == '<' ? "&lt;" : c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  return s;
}

// Returns the groups in order of first appearance.
std::vector<std::string> groups_of(const std::vector<Bar>& bars) {
  std::vector<std::string> groups;
  for (const Bar& b : bars)
    if (std::find(groups.begin(), groups.end(), b.group) == groups.end()) groups.push_back(b.group);
  return groups;
}

}  // namespace

std::string with_spread(double value, double spread) {
  const int decimals = value >= 1000 ? 0 : value >= 100 ? 1 : value >= 10 ? 2 : 3;
  return fmt::format("{:.{}f} ± {:.{}f}", value, decimals, spread, decimals);
}

std::string bars_text(const std::vector<Bar>& bars, size_t width) {
  size_t label = 0, value = 0;
  for (const Bar& b : bars) {
    label = std::max(label, display_width(b.label));
    value = std::max(value, display_width(with_spread(b.value, b.spread)));
  }
  const size_t room = std::max<size_t>(8, width - std::min(width, label + value + 4));
  std::string out;
  for (const std::string& group : groups_of(bars)) {
    out += "\n" + group + "\n";
    const double most = largest_of_group(bars, group);
    for (const Bar& b : bars) {
      if (b.group != group || most <= 0) continue;
      const auto filled = static_cast<size_t>(b.value / most * static_cast<double>(room) + 0.5);
      out += fmt::format("{:<{}} |{:<{}}| {}\n", b.label, label,
                         std::string(std::min(filled, room), '#'), room,
                         with_spread(b.value, b.spread));
    }
  }
  return out;
}

std::string bars_svg(const std::string& title, const std::vector<Bar>& bars) {
  constexpr double kLeft = 170, kWidth = 560, kStep = 24, kHead = 48;
  const std::vector<std::string> groups = groups_of(bars);
  const double height =
      kHead + kStep * (static_cast<double>(bars.size()) + 1.5 * static_cast<double>(groups.size()));
  std::string s;
  const auto out = std::back_inserter(s);
  fmt::format_to(out,
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 900 {:.0f}\" "
                 "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" "
                 "height=\"100%\" fill=\"white\"/>\n<text x=\"20\" y=\"26\" "
                 "font-size=\"15\">{}, {} {}</text>\n",
                 height, xml_escaped(title), xml_escaped(cpu_model_name()), kBuildCommit);
  double y = kHead;
  for (const std::string& group : groups) {
    y += kStep / 2;
    fmt::format_to(out, "<text x=\"20\" y=\"{}\" font-weight=\"bold\">{}</text>\n", y + 12,
                   xml_escaped(group));
    y += kStep;
    const double most = largest_of_group(bars, group);
    for (const Bar& b : bars) {
      if (b.group != group || most <= 0) continue;
      fmt::format_to(out,
                     "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><rect x=\"{}\" "
                     "y=\"{}\" width=\"{:.1f}\" height=\"16\" fill=\"#1f77b4\"/><text "
                     "x=\"{:.1f}\" y=\"{}\">{}</text>\n",
                     kLeft - 8, y + 12, xml_escaped(b.label), kLeft, y, kWidth * b.value / most,
                     kLeft + kWidth * b.value / most + 6, y + 12, with_spread(b.value, b.spread));
      y += kStep;
    }
  }
  return s + "</svg>\n";
}

void write_picture(const std::string& path, const std::string& text) {
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  write_output(path, {&bytes, 1});
}

}  // namespace moebius
