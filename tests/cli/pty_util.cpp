// SPDX-License-Identifier: Apache-2.0
#include "cli/pty_util.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "unit/test_util.h"

namespace moebius::test {

Terminal::Terminal(const std::string& args) {
  const std::string command = "exec " + tool_command() + " " + args;
  const winsize size{24, 80, 0, 0};
  process_ = forkpty(&descriptor_, nullptr, nullptr, &size);
  if (process_ == 0) {
    setenv("TERM", "xterm", 1);
    unsetenv("COLUMNS");
    execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  EXPECT_GT(process_, 0);
}

Terminal::~Terminal() {
  if (process_ > 0) {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  close(descriptor_);
}

void Terminal::type(std::string_view keys) {
  EXPECT_EQ(write(descriptor_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
}

bool Terminal::read_more() {
  pollfd poll_on{descriptor_, POLLIN, 0};
  if (poll(&poll_on, 1, 60'000) <= 0) return false;
  char buffer[4096];
  const ssize_t n = read(descriptor_, buffer, sizeof(buffer));
  if (n <= 0) return false;  // the other side is gone
  transcript_.append(buffer, static_cast<size_t>(n));
  return true;
}

bool Terminal::see(std::string_view text) {
  while (true) {
    const size_t at = transcript_.find(text, seen_);
    if (at != std::string::npos) {
      seen_ = at + text.size();
      return true;
    }
    if (!read_more()) return false;
  }
}

bool Terminal::see_prompt(std::string_view text) {
  if (!see(text)) return false;
  for (int tries = 0; tries < 3000; ++tries) {
    termios mode{};
    if (tcgetattr(descriptor_, &mode) != 0) return false;
    if ((mode.c_lflag & ICANON) == 0) return true;
    usleep(5'000);
  }
  return false;
}

int Terminal::finish() {
  while (read_more()) {
  }
  int raw = 0;
  for (int tries = 0; waitpid(process_, &raw, WNOHANG) == 0; ++tries) {
    if (tries == 100) kill(process_, SIGKILL);  // it still waits for somebody
    usleep(50'000);
  }
  process_ = -1;
  return WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
}

std::vector<std::string> Terminal::screen() const {
  std::vector<std::string> lines(1);
  size_t column = 0;
  for (const char c : transcript_) {
    if (c == '\n') {
      lines.emplace_back();
      column = 0;
    } else if (c == '\r') {
      column = 0;
    } else {
      std::string& line = lines.back();
      if (line.size() <= column) line.resize(column + 1, ' ');
      line[column++] = c;
    }
  }
  for (std::string& line : lines) line.erase(line.find_last_not_of(' ') + 1);
  return lines;
}

}  // namespace moebius::test
