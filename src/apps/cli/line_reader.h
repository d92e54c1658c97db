// SPDX-License-Identifier: Apache-2.0
// Reads lines of a conversation, with editing and history on a terminal, and messages of several
// lines.
#pragma once
#include <memory>
#include <optional>
#include <string>

namespace moebius {

class LineReader {
 public:
  virtual ~LineReader() = default;
  // Returns the next line without its end; nothing at the end of input and after Ctrl-C
  // (interrupt.h).
  virtual std::optional<std::string> line(const char* prompt) = 0;
};

// Returns a reader with editing and history if standard input and standard error are terminals;
// else a plain reader of standard input.
std::unique_ptr<LineReader> make_line_reader();
// Returns a reader with editing; defined in line_editor.cpp.
std::unique_ptr<LineReader> make_line_editor();

// Reads a message: one line, several if each but the last ends with a backslash, or the text
// between """ and """.
std::optional<std::string> read_message(LineReader& reader);

}  // namespace moebius
