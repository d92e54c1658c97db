// SPDX-License-Identifier: Apache-2.0
// Edits lines through libedit; this is the only unit that knows it. The prompt and the echo go to
// stderr: stdout holds answers only. The history lives as long as the program.
#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <csignal>
#include <cwchar>
#include <string_view>

#include "apps/cli/interrupt.h"
#include "apps/cli/line_reader.h"
#include "base/error.h"

namespace moebius {
namespace {

constexpr int kHistory = 1000;  // lines

// Waits for standard input; returns false after Ctrl-C. The signal is blocked until the wait has
// begun, so that one that comes between the prompt and the wait is not lost.
bool wait_for_input() {
  sigset_t interrupt, before;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  pthread_sigmask(SIG_BLOCK, &interrupt, &before);
  pollfd input{STDIN_FILENO, POLLIN, 0};
  while (!interrupt_seen() && ppoll(&input, 1, nullptr, &before) < 0 && errno == EINTR) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return !interrupt_seen();
}

// Reads a character from standard input. libedit's own reader continues after a signal, but Ctrl-C
// at the prompt must end the conversation.
int read_character(EditLine*, wchar_t* out) {
  std::mbstate_t state{};
  while (true) {
    char byte = 0;
    if (!wait_for_input()) return -1;
    const ssize_t n = read(STDIN_FILENO, &byte, 1);
    if (n < 0 && errno == EINTR && !interrupt_seen()) continue;  // the window changed its size
    if (n <= 0) return static_cast<int>(n);
    const size_t used = std::mbrtowc(out, &byte, 1, &state);
    if (used == static_cast<size_t>(-2)) continue;  // the character has more bytes
    if (used == static_cast<size_t>(-1)) {
      *out = L'\xfffd';
      return 1;
    }
    return 1;
  }
}

class LineEditor final : public LineReader {
 public:
  LineEditor() {
    // Libedit edits characters of the locale; text is UTF-8 whatever the locale says.
    std::setlocale(LC_CTYPE, "");
    if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
    edit_ = el_init("moebius", stdin, stderr, stderr);
    history_ = history_init();
    if (edit_ == nullptr || history_ == nullptr) fail("the line editor could not be started");
    HistEvent event;
    history(history_, &event, H_SETSIZE, kHistory);
    history(history_, &event, H_SETUNIQUE, 1);
    el_set(edit_, EL_CLIENTDATA, this);
    el_set(edit_, EL_PROMPT, prompt_of);
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_HIST, history, history_);
    el_set(edit_, EL_GETCFN, read_character);
    el_source(edit_, nullptr);  // reads ~/.editrc
  }
  ~LineEditor() override {
    if (history_ != nullptr) history_end(history_);
    if (edit_ != nullptr) el_end(edit_);
  }

  std::optional<std::string> line(const char* prompt) override {
    prompt_ = prompt;
    el_resize(edit_);
    int length = 0;
    const char* text = el_gets(edit_, &length);
    if (text == nullptr || length <= 0 || interrupt_seen()) {
      std::fputs("\n", stderr);
      return std::nullopt;
    }
    std::string out(text, static_cast<size_t>(length));
    while (out.ends_with('\n') || out.ends_with('\r')) out.pop_back();
    HistEvent event;
    if (!out.empty()) history(history_, &event, H_ENTER, out.c_str());
    return out;
  }

 private:
  static char* prompt_of(EditLine* edit) {
    LineEditor* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    return const_cast<char*>(self->prompt_);  // the library declares it mutable but only reads
  }
  EditLine* edit_ = nullptr;
  History* history_ = nullptr;
  const char* prompt_ = "";
};

}  // namespace

std::unique_ptr<LineReader> make_line_editor() { return std::make_unique<LineEditor>(); }

}  // namespace moebius
