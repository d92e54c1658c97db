// SPDX-License-Identifier: Apache-2.0
// What people see: colours only on a terminal, one progress bar on stderr (plain lines when stderr
// is not a terminal).
#pragma once
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>

#include "base/human.h"

namespace moebius {

bool colour_wanted(int descriptor);  // a terminal, and NO_COLOR is not set

enum class Ink : uint8_t { kPlain, kBold, kDim, kRed, kGreen, kYellow, kCyan };
std::string paint(std::string_view text, Ink ink, bool colour);

double seconds_since(std::chrono::steady_clock::time_point start);

// Counts work; draws at most ten times a second. advance() may be called from any thread. Results
// are printed after finish(): until then the bar owns the line.
class Progress {
 public:
  // kErase: nothing of the bar stays on a terminal. Such a bar is drawn from the start.
  enum class Last : uint8_t { kKeep, kErase };
  Progress(std::string what, uint64_t total, bool bytes, Last last = Last::kKeep);
  ~Progress() {
    try {
      finish();
    } catch (const std::exception&) {  // no memory for the last line
    }
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void advance(uint64_t amount, std::string_view note = {});
  void finish();  // the last line, once; nothing is drawn afterwards

 private:
  void draw(bool last);
  std::mutex mutex_;
  std::string what_, note_;
  uint64_t total_, done_ = 0;
  bool bytes_, terminal_, finished_ = false;
  Last last_;
  int exceptions_;  // that were under way when the bar was made
  std::chrono::steady_clock::time_point start_, next_;
  size_t width_ = 0;
};

}  // namespace moebius
