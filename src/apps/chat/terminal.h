// SPDX-License-Identifier: Apache-2.0
// Writes to the terminal: colours only on a terminal, and one progress bar on stderr (plain lines
// if stderr is no terminal).
#pragma once
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>

#include "base/human.h"

namespace moebius {

bool colour_wanted(int descriptor);  // returns true for a terminal, unless NO_COLOR is set

enum class Ink : uint8_t { kPlain, kBold, kDim, kRed, kGreen, kYellow, kCyan };
std::string paint(std::string_view text, Ink ink, bool colour);

double seconds_since(std::chrono::steady_clock::time_point start);

// Shows progress; draws at most ten times a second. advance() is thread-safe. Print results only
// after finish(): until then the bar owns the line.
class Progress {
 public:
  // Selects what happens to the bar at the end. kErase: it is removed from a terminal; such a bar
  // is drawn from the start.
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
  void finish();  // draws the last line; later calls do nothing

 private:
  void draw(bool last);
  std::mutex mutex_;
  std::string what_, note_;
  uint64_t total_, done_ = 0;
  bool bytes_, terminal_, finished_ = false;
  Last last_;
  int exceptions_;  // number of exceptions that were in flight when the bar was made
  std::chrono::steady_clock::time_point start_, next_;
  size_t width_ = 0;
};

}  // namespace moebius
