// SPDX-License-Identifier: Apache-2.0
// Finds stop strings in a stream of text: passes on text that cannot be part of a stop string any
// more, holds the rest back, and ends at the first stop string that is complete (of several
// complete at once, the one that begins first). Time is linear in the text.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace moebius {

class StopMatcher {
 public:
  // Prepares the search for these strings; ignores empty ones. Throws Error if one is longer than
  // 64 KiB.
  explicit StopMatcher(std::vector<std::string> stops = {});
  // Returns text that can be passed on; empty after a stop string was found.
  std::string push(std::string_view text);
  // Ends the stream and returns the text that was held back.
  std::string finish();
  bool stopped() const { return stopped_; }
  // Returns the stop string that was found, or "".
  const std::string& found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  // For each stop string: length of the longest border of each prefix.
  std::vector<std::vector<size_t>> border_;
  // For each stop string: number of its characters that the end of the text so far matches.
  std::vector<size_t> state_;
  std::string held_;
  std::string found_;
  bool stopped_ = false;
};

}  // namespace moebius
