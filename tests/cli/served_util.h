// SPDX-License-Identifier: Apache-2.0
// `moebius serve` as a process, and requests to it.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "cli/pty_util.h"
#include "unit/serve/http_client_util.h"
#include "unit/test_util.h"

namespace moebius::test {

// A server process of its own.
class Served {
 public:
  // `before`: what the shell does first.
  explicit Served(const std::string& args, const std::string& before = "") {
    int out[2];
    if (pipe(out) != 0) return;
    const std::string command = before + "exec " + tool_command() + " serve " +
                                (args.find("--port") == std::string::npos ? "--port 0 " : "") +
                                args;
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out[1], 1);
      const int null = open("/dev/null", O_WRONLY);
      dup2(null, 2);
      close(out[0]);
      execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    close(out[1]);
    std::string line;
    for (char c; read(out[0], &c, 1) == 1 && c != '\n';) line += c;
    close(out[0]);
    const size_t colon = line.rfind(':');
    if (line.starts_with("http://127.0.0.1:"))
      port = static_cast<uint16_t>(std::stoi(line.substr(colon + 1)));
    EXPECT_NE(port, 0) << "it ended without an address: " << command;
    if (port == 0) return;
    EXPECT_TRUE(eventually_long([&] { return ask(get("/health")).status == 200; }));
  }
  ~Served() {
    if (pid_ > 0 && !ended_) {
      kill(pid_, SIGKILL);
      wait_end();
    }
  }
  static bool eventually_long(const std::function<bool()>& condition) {
    for (int i = 0; i < 6; ++i)
      if (eventually(condition)) return true;
    return false;
  }
  Response ask(const std::string& bytes) const {
    Client client(port, 120);
    client.send(bytes);
    return client.read();
  }
  Response completion(const std::string& fields) const {
    return ask(post("/v1/completions", "{" + fields + "}"));
  }
  std::string metric(const std::string& name) const {
    return metric_of(ask(get("/metrics")).body, name);
  }
  void signal(int number) const { kill(pid_, number); }
  int wait_end() {
    int status = -1;
    waitpid(pid_, &status, 0);
    ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  uint16_t port = 0;

 private:
  pid_t pid_ = -1;
  bool ended_ = false;
};

}  // namespace moebius::test
