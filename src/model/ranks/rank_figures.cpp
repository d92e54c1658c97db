// SPDX-License-Identifier: Apache-2.0
// Writes splits of ranks, and the figures that a rank reports to rank 0, as text (ranks.h).
#include <fmt/core.h>

#include <sstream>
#include <utility>

#include "base/error.h"
#include "model/ranks.h"

namespace moebius {

std::string describe(const RankSplit& s) {
  std::string text;
  for (const auto& [name, n] :
       {std::pair{"pp", s.pp}, std::pair{"tp", s.tp}, std::pair{"ep", s.ep}})
    if (n > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name, n);
  if (s.repeat_attention) text += ", attention repeated";
  if (s.spare > 0) text += fmt::format(", {} spare places", s.spare);
  return text.empty() ? "one rank" : text;
}

void check_split(const RankSplit& s) {
  for (const auto& [name, n] :
       {std::pair{"pp", s.pp}, std::pair{"tp", s.tp}, std::pair{"ep", s.ep}})
    if (n == 0 || n > 1024) fail("--{} {}; expected 1 to 1024", name, n);
  if (s.ranks() > 1024) fail("{} are {} ranks; expected at most 1024", describe(s), s.ranks());
  if (s.repeat_attention && s.ep == 1)
    fail("--attention repeat without --ep: attention would be all that ranks do not share");
  if (s.spare > 0 && s.ep == 1) fail("--spare {} without --ep: copies are of experts", s.spare);
  if (s.spare > 65536) fail("--spare {}; expected at most 65536", s.spare);
}

// Writes lines of a word and numbers; a phase's name comes last.
std::string encode(const RankFigures& f) {
  std::string text = fmt::format("time {} {} {}\nbytes", f.step, f.exchange, f.wait);
  for (const uint64_t n : f.received) text += fmt::format(" {}", n);
  text += "\n";
  for (const auto& [name, seconds] : f.phases)
    if (text.size() + name.size() + 40 < kRankFiguresBytes)
      text += fmt::format("phase {} {}\n", seconds, name);
  return text;
}

RankFigures decode_figures(const std::string& text) {
  RankFigures f;
  std::istringstream lines(text);
  std::string line, word;
  while (std::getline(lines, line)) {
    std::istringstream in(line);
    double seconds = 0;
    uint64_t bytes = 0;
    if (!(in >> word)) continue;
    if (word == "time" && in >> f.step >> f.exchange >> f.wait) continue;
    if (word == "bytes") {
      while (in >> bytes) f.received.push_back(bytes);
      continue;
    }
    if (word != "phase" || !(in >> seconds)) fail("figures of a rank: '{}'", printable(line));
    std::getline(in >> std::ws, line);
    f.phases.emplace_back(line, seconds);
  }
  return f;
}

}  // namespace moebius
