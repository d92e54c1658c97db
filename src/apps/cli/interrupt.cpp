// SPDX-License-Identifier: Apache-2.0
// Handles Ctrl-C. The handler does only what a signal handler may: it reads and writes lock-free
// atomics, and calls write and _exit.
#include "apps/cli/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>

namespace moebius {
namespace {

std::atomic<const char*> word_of_signal{nullptr};  // null: only note the signal
std::atomic<bool> noted{false};
static_assert(std::atomic<const char*>::is_always_lock_free &&
              std::atomic<bool>::is_always_lock_free);

void say(const char* text) {
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, text, std::strlen(text));
}

void note_or_end(int) {
  const char* word = word_of_signal;
  if (word == nullptr && !noted.exchange(true)) return;
  if (isatty(STDERR_FILENO) != 0) say("\n");  // a bar or an answer is on the line
  say("moebius: ");
  say(word != nullptr ? word : "interrupted");
  say("\n");
  _exit(130);
}

void install() {
  struct sigaction action {};
  action.sa_handler = note_or_end;  // without SA_RESTART, so that a waiting read ends
  sigaction(SIGINT, &action, nullptr);
}

}  // namespace

void interrupt_ends(const char* word) {
  word_of_signal = word;
  install();
}

void interrupt_is_noted() {
  word_of_signal = nullptr;
  install();
}

bool interrupt_seen() { return noted; }
void clear_interrupt() { noted = false; }

}  // namespace moebius
