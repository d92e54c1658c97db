// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/layout.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace moebius {
namespace {

constexpr size_t kLeastWidth = 60, kUsualWidth = 80, kNoteIndent = 4;
// Least width of a wrapped column: a narrower one is worse than a wide table.
constexpr size_t kLeastWrapped = 15;

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Returns the bytes of the first `count` characters.
size_t bytes_of_characters(std::string_view text, size_t count) {
  size_t at = 0;
  for (; at < text.size(); ++at)
    if (!continues(text[at]) && count-- == 0) break;
  return at;
}

// Returns where to cut a word of more than `width` characters: after a dot in its second half, else
// after other punctuation.
size_t cut_of_word(std::string_view word, size_t width) {
  const size_t most = bytes_of_characters(word, width);
  for (const std::string_view marks : {"./", ",_|:;=-+"})
    for (size_t at = most; at > most / 2; --at)
      if (marks.find(word[at - 1]) != std::string_view::npos) return at;
  return most;
}

std::string padded(std::string_view text, size_t width, bool right) {
  const size_t have = display_width(text);
  const std::string pad(width > have ? width - have : 0, ' ');
  return right ? pad + std::string(text) : std::string(text) + pad;
}

size_t total_width(const std::vector<size_t>& columns) {
  size_t total = 2 * (columns.empty() ? 0 : columns.size() - 1);
  for (const size_t w : columns) total += w;
  return total;
}

void trim_end(std::string& line) { line.erase(line.find_last_not_of(' ') + 1); }

}  // namespace

size_t display_width(std::string_view utf8) {
  return static_cast<size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return !continues(c); }));
}

size_t output_width() {
  if (const char* columns = std::getenv("COLUMNS"); columns != nullptr && *columns != '\0') {
    char* end = nullptr;
    const long n = std::strtol(columns, &end, 10);
    if (*end == '\0' && n > 0) return std::clamp<size_t>(static_cast<size_t>(n), kLeastWidth, 1000);
  }
  winsize size{};
  if (isatty(STDOUT_FILENO) != 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    return std::max<size_t>(size.ws_col, kLeastWidth);
  return kUsualWidth;
}

std::vector<std::string> wrapped(std::string_view text, size_t width) {
  std::vector<std::string> lines{""};
  size_t used = 0;
  while (!text.empty()) {
    const size_t space = text.find(' ');
    std::string_view word = text.substr(0, space);
    text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
    if (used > 0 && used + 1 + display_width(word) > width) {
      lines.emplace_back();
      used = 0;
    }
    while (display_width(word) > width) {
      const size_t cut = cut_of_word(word, width);
      lines.back() += word.substr(0, cut), lines.emplace_back();
      word.remove_prefix(cut);
    }
    if (used > 0) lines.back() += ' ', ++used;
    lines.back() += word, used += display_width(word);
  }
  for (std::string& line : lines) trim_end(line);
  return lines;
}

std::string labelled(std::string_view label, std::string_view text, size_t indent, size_t width,
                     Ink ink, bool colour) {
  std::string out = paint(padded(label, indent, /*right=*/false), ink, colour);
  const std::vector<std::string> lines = wrapped(text, width - std::min(indent, width / 2));
  for (size_t i = 0; i < lines.size(); ++i)
    out += (i == 0 ? "" : std::string(indent, ' ')) + lines[i] + '\n';
  return out;
}

std::vector<std::string> fold_names(const std::vector<std::string>& names) {
  struct Fold {
    std::string stem;
    std::vector<std::string> ends;
  };
  std::vector<Fold> folds;
  for (const std::string& name : names) {
    const size_t dot = name.rfind('.');
    const std::string stem = dot == std::string::npos ? "" : name.substr(0, dot + 1);
    auto it = std::find_if(folds.begin(), folds.end(),
                           [&](const Fold& f) { return !stem.empty() && f.stem == stem; });
    if (it == folds.end()) it = folds.insert(folds.end(), {stem, {}});
    it->ends.push_back(name.substr(stem.size()));
  }
  std::vector<std::string> out;
  for (const Fold& f : folds) {
    if (f.ends.size() == 1) {
      out.push_back(f.stem + f.ends[0]);
      continue;
    }
    const size_t bar = f.ends[0].rfind('_');  // "q_proj" and "k_proj" share the end "_proj"
    const std::string tail = bar == std::string::npos ? "" : f.ends[0].substr(bar);
    const bool shared =
        !tail.empty() && std::all_of(f.ends.begin(), f.ends.end(), [&](const std::string& e) {
          return e.size() > tail.size() && e.ends_with(tail);
        });
    std::string list;
    for (const std::string& e : f.ends)
      list += (list.empty() ? "" : ",") + e.substr(0, e.size() - (shared ? tail.size() : 0));
    out.push_back(fmt::format("{}{{{}}}{}", f.stem, list, shared ? tail : ""));
  }
  return out;
}

void Table::add(std::vector<std::string> cells, Ink first) {
  rows_.push_back({std::move(cells), first, {}});
}

void Table::note(std::string text) {
  if (!rows_.empty()) rows_.back().note = std::move(text);
}

std::vector<size_t> Table::widths() const {
  std::vector<size_t> width(columns_.size(), 0);
  const auto widen = [&](const std::vector<std::string>& cells) {
    for (size_t i = 0; i < std::min(cells.size(), width.size()); ++i)
      width[i] = std::max(width[i], display_width(cells[i]));
  };
  widen(header_);
  for (const Row& row : rows_) widen(row.cells);
  const size_t total = total_width(width);
  const size_t flexible = columns_.find('w');
  if (total > width_ && flexible != std::string::npos) {
    const size_t over = std::min(total - width_, width[flexible]);
    width[flexible] = std::max(width[flexible] - over, std::min(kLeastWrapped, width[flexible]));
  }
  return width;
}

void Table::write_row(const Row& row, const std::vector<size_t>& width, std::string& out) const {
  std::vector<std::vector<std::string>> cells;
  size_t lines = 1;
  for (size_t i = 0; i < row.cells.size(); ++i) {
    cells.push_back(columns_[i] == 'w' ? wrapped(row.cells[i], width[i])
                                       : std::vector<std::string>{row.cells[i]});
    lines = std::max(lines, cells.back().size());
  }
  for (size_t l = 0; l < lines; ++l) {
    std::string line;
    for (size_t i = 0; i < cells.size(); ++i) {
      std::string cell =
          padded(l < cells[i].size() ? cells[i][l] : "", width[i], columns_[i] == 'r');
      if (i + 1 == cells.size()) trim_end(cell);
      line += (i == 0 ? "" : "  ") + paint(cell, i == 0 ? row.ink : Ink::kPlain, colour_);
    }
    trim_end(line);
    out += line + '\n';
  }
  write_note(row, out);
}

void Table::write_note(const Row& row, std::string& out) const {
  if (row.note.empty()) return;
  for (const std::string& line : wrapped(row.note, width_ - kNoteIndent))
    out += std::string(kNoteIndent, ' ') + line + '\n';
}

std::string Table::row_by_row(size_t indent) const {
  std::string out;
  for (const Row& row : rows_) {
    std::string text;
    for (size_t i = 1; i < row.cells.size(); ++i)
      if (!row.cells[i].empty())
        text += fmt::format("{}{} {}", text.empty() ? "" : ", ", header_[i], row.cells[i]);
    const bool beside = indent <= width_ / 2;
    if (!beside) out += labelled("", paint(row.cells[0], row.ink, colour_), 0, width_);
    out += labelled(beside ? row.cells[0] : "", text, beside ? indent : kNoteIndent, width_,
                    row.ink, colour_);
    write_note(row, out);
  }
  return out;
}

std::string Table::text() const {
  const std::vector<size_t> width = widths();
  if (!header_.empty() && total_width(width) > width_) return row_by_row(width[0] + 2);
  std::string out;
  if (!header_.empty()) write_row({header_, Ink::kBold, {}}, width, out);
  for (const Row& row : rows_) write_row(row, width, out);
  return out;
}

}  // namespace moebius
