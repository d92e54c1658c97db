// SPDX-License-Identifier: Apache-2.0
// Finds stop strings by one Knuth-Morris-Pratt automaton each. The longest text that an automaton
// has matched so far must be held back.
#include "text/stop.h"

#include <algorithm>

#include "base/error.h"

namespace moebius {

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& s : stops) {
    if (s.empty() || std::find(stops_.begin(), stops_.end(), s) != stops_.end()) continue;
    if (s.size() > (1u << 16))
      fail("a stop string has {} bytes; at most {} are allowed", s.size(), 1u << 16);
    std::vector<size_t> border(s.size() + 1, 0);
    for (size_t i = 1, k = 0; i < s.size(); ++i) {
      while (k > 0 && s[i] != s[k]) k = border[k];
      if (s[i] == s[k]) ++k;
      border[i + 1] = k;
    }
    border_.push_back(std::move(border));
    stops_.push_back(std::move(s));
  }
  state_.assign(stops_.size(), 0);
}

std::string StopMatcher::push(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  if (stops_.empty()) return std::exchange(held_, {});
  size_t best_begin = held_.size(), best_stop = stops_.size();
  // The automata have read all of held_ but the new text.
  for (size_t i = held_.size() - text.size(); i < held_.size() && best_stop == stops_.size(); ++i) {
    for (size_t s = 0; s < stops_.size(); ++s) {
      const std::string& stop = stops_[s];
      size_t& k = state_[s];
      if (k == stop.size()) k = border_[s][k];
      while (k > 0 && held_[i] != stop[k]) k = border_[s][k];
      if (held_[i] == stop[k]) ++k;
      // If several stop strings end here, the one that begins first wins.
      if (k == stop.size() && i + 1 - k < best_begin) {
        best_begin = i + 1 - k;
        best_stop = s;
      }
    }
  }
  if (best_stop < stops_.size()) {
    stopped_ = true;
    found_ = stops_[best_stop];
    held_.resize(best_begin);
    return std::exchange(held_, {});
  }
  size_t wait = 0;
  for (const size_t k : state_) wait = std::max(wait, k);
  std::string out = held_.substr(0, held_.size() - wait);
  held_.erase(0, held_.size() - wait);
  return out;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace moebius
