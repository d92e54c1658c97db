// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/line_reader.h"

#include <unistd.h>

#include <iostream>
#include <string_view>

#include "apps/cli/manners.h"

namespace moebius {
namespace {

constexpr std::string_view kFence = "\"\"\"";
constexpr const char* kPrompt = "> ";
constexpr const char* kMore = ". ";

class PlainLines final : public LineReader {
 public:
  std::optional<std::string> line(const char* prompt) override {
    if (isatty(STDIN_FILENO) != 0) put_on_stderr(prompt);
    std::string text;
    if (!std::getline(std::cin, text)) return std::nullopt;
    if (text.ends_with('\r')) text.pop_back();
    return text;
  }
};

// Reads the text after the opening fence, up to the closing one or the end of input.
std::string fenced(LineReader& reader, std::string text) {
  while (!text.ends_with(kFence)) {
    const std::optional<std::string> more = reader.line(kMore);
    if (!more) return text;
    if (!text.empty()) text += '\n';
    text += *more;
  }
  text.resize(text.size() - kFence.size());
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace

std::unique_ptr<LineReader> make_line_reader() {
  if (isatty(STDIN_FILENO) != 0 && isatty(STDERR_FILENO) != 0) return make_line_editor();
  return std::make_unique<PlainLines>();
}

std::optional<std::string> read_message(LineReader& reader) {
  std::optional<std::string> text = reader.line(kPrompt);
  if (!text) return text;
  if (text->starts_with(kFence)) return fenced(reader, text->substr(kFence.size()));
  while (text->ends_with('\\')) {
    const std::optional<std::string> more = reader.line(kMore);
    text->back() = '\n';
    if (!more) break;
    *text += *more;
  }
  return text;
}

}  // namespace moebius
