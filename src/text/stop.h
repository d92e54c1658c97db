// SPDX-License-Identifier: Apache-2.0
// Stop strings in a stream of text: passes on what cannot be part of a stop string any more, holds
// the rest back, and ends at the first stop string that is complete (of several complete at once,
// the one that begins first). Time is linear in the text.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace moebius {

class StopMatcher {
 public:
  // Empty strings are ignored. Throws Error if one is longer than 64 KiB.
  explicit StopMatcher(std::vector<std::string> stops = {});
  // Text that may be shown now. After a stop was found, always empty.
  std::string push(std::string_view text);
  // What was held back, when the stream ends without a stop.
  std::string finish();
  bool stopped() const { return stopped_; }
  // The stop string that was found; empty if none was.
  const std::string& found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::vector<std::vector<size_t>>
      border_;                 // of each stop string: length of the longest border of each prefix
  std::vector<size_t> state_;  // of each: characters matched at the end of the text so far
  std::string held_;
  std::string found_;
  bool stopped_ = false;
};

}  // namespace moebius
