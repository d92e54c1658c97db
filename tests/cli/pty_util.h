// SPDX-License-Identifier: Apache-2.0
// The tool on a pseudo terminal of 80 columns: what a person sees and types.
#pragma once
#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace moebius::test {

// The built tool as a shell command, with the emulator under cross-compilation (unit/test_util.cpp,
// which knows the paths of the build).
std::string tool_command();

class Terminal {
 public:
  // `args` as for run_tool; redirections work.
  explicit Terminal(const std::string& args);
  ~Terminal();  // ends a tool that still runs
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(std::string_view keys);  // "\x03" is Ctrl-C, "\x04" Ctrl-D, "\r" Enter
  // Reads until `text` appears in what came since the last call that found something. False after
  // two minutes and at the end of the tool.
  bool see(std::string_view text);
  // The same for a prompt, and the line editor has taken over: keys that are typed between the two are the system's line discipline's.
  bool see_prompt(std::string_view text);
  int finish();  // reads on to the end; exit status, 128 + signal

  const std::string& transcript() const { return transcript_; }
  // The lines that remain visible: carriage returns write over what stands there.
  std::vector<std::string> screen() const;

 private:
  bool read_more();
  int descriptor_ = -1;
  pid_t process_ = -1;
  std::string transcript_;
  size_t seen_ = 0;
};

inline constexpr const char* kCtrlC = "\x03";
inline constexpr const char* kCtrlD = "\x04";

}  // namespace moebius::test
