// SPDX-License-Identifier: Apache-2.0
// Lines of a conversation: with editing and history on a terminal, plain elsewhere; and messages
// that span several of them.
#pragma once
#include <memory>
#include <optional>
#include <string>

namespace moebius {

class LineReader {
 public:
  virtual ~LineReader() = default;
  // The next line without its end. Nothing at the end of input and after Ctrl-C (interrupt.h).
  virtual std::optional<std::string> line(const char* prompt) = 0;
};

// Editing and history, where standard input and standard error are terminals; else lines of standard
// input.
std::unique_ptr<LineReader> make_line_reader();
std::unique_ptr<LineReader> make_line_editor();  // line_editor.cpp

// A line; or several, where a line ends with a backslash; or what stands between """ and """.
std::optional<std::string> read_message(LineReader& reader);

}  // namespace moebius
