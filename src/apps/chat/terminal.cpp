// SPDX-License-Identifier: Apache-2.0
// Shows progress and colours. The bar redraws one line; without a terminal, a plain line appears
// every five seconds and at the end.
#include "apps/chat/terminal.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

#include "apps/cli/interrupt.h"
#include "apps/cli/manners.h"

namespace moebius {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr auto kPlainLine = std::chrono::seconds(5);

size_t terminal_width() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20) return size.ws_col;
  return 80;
}

}  // namespace

double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

bool colour_wanted(int descriptor) {
  const char* no = std::getenv("NO_COLOR");
  return isatty(descriptor) != 0 && (no == nullptr || *no == '\0');
}

std::string paint(std::string_view text, Ink ink, bool colour) {
  if (!colour || ink == Ink::kPlain) return std::string(text);
  static constexpr int kCodes[] = {0, 1, 2, 31, 32, 33, 36};
  return fmt::format("\x1b[{}m{}\x1b[0m", kCodes[static_cast<size_t>(ink)], text);
}

Progress::Progress(std::string what, uint64_t total, bool bytes, Last last)
    : what_(std::move(what)),
      total_(total),
      bytes_(bytes),
      terminal_(isatty(STDERR_FILENO) != 0),
      last_(last),
      exceptions_(std::uncaught_exceptions()),
      start_(Clock::now()) {
  next_ = start_ + (terminal_ ? Clock::duration(kRedraw) : Clock::duration(kPlainLine));
  if (terminal_ && last_ == Last::kErase && !manners().quiet) draw(false);
}

void Progress::finish() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(finished_, true) || manners().quiet) return;
  // Work that ended by itself is complete, even if its parts were reported rounded, or by another
  // rank.
  if (std::uncaught_exceptions() == exceptions_ && !interrupt_seen()) done_ = total_;
  const bool worth_it = seconds_since(start_) > 1.0;  // short work shows nothing
  if (!terminal_) {
    if (worth_it) draw(true);
  } else if (last_ == Last::kErase) {
    put_on_stderr(fmt::format("\r{}\r", std::string(width_, ' ')));
    std::fflush(stderr);
  } else if (width_ > 0) {
    draw(true);
  }
}

void Progress::advance(uint64_t amount, std::string_view note) {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  done_ += amount;
  if (!note.empty()) note_ = note;
  if (manners().quiet || Clock::now() < next_) return;
  next_ = Clock::now() + (terminal_ ? Clock::duration(kRedraw) : Clock::duration(kPlainLine));
  draw(false);
}

void Progress::draw(bool last) {
  const double elapsed = std::max(seconds_since(start_), 1e-9), done = static_cast<double>(done_);
  const double share = total_ == 0 ? 1.0 : std::min(1.0, done / static_cast<double>(total_));
  std::string tail = bytes_ ? fmt::format("{} of {}, {:.2f} GB/s", human_bytes(done),
                                          human_bytes(total_), done / elapsed * 1e-9)
                            : fmt::format("{} of {}", done_, total_);
  if (last)
    tail += fmt::format(", {}", human_seconds(elapsed));
  else if (share > 0.01)
    tail += fmt::format(", {} left", human_seconds(elapsed * (1 - share) / share));
  if (!note_.empty() && !last) tail += "  " + note_;
  if (!terminal_) {
    put_on_stderr(fmt::format("{}: {:.0f} %, {}\n", what_, 100 * share, tail));
    return;
  }
  constexpr size_t kBar = 24;
  const auto filled = static_cast<size_t>(share * kBar);
  std::string line = fmt::format("{} [{}{}] {}", what_, std::string(filled, '='),
                                 std::string(kBar - filled, ' '), tail);
  const size_t limit = terminal_width() - 1;
  if (line.size() > limit) line.resize(limit);
  const size_t length = line.size();
  if (length < width_) line.append(width_ - length, ' ');
  width_ = length;
  put_on_stderr(fmt::format("\r{}{}", line, last ? "\n" : ""));
  std::fflush(stderr);
}

}  // namespace moebius
