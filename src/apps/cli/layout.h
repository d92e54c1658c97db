// SPDX-License-Identifier: Apache-2.0
// How every view for people is laid out: how wide the output is, lines wrapped at it, tables, and
// names folded by pattern. Widths count characters, not bytes.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/chat/terminal.h"

namespace moebius {

size_t display_width(std::string_view utf8);
// COLUMNS when it is set, else the terminal's width, else 80; at least 60.
size_t output_width();

// At most `width` characters a line: cut at spaces, a longer word behind punctuation.
std::vector<std::string> wrapped(std::string_view text, size_t width);
// "label     text": the text beside a label of `indent` characters, wrapped below itself.
std::string labelled(std::string_view label, std::string_view text, size_t indent, size_t width,
                     Ink ink = Ink::kPlain, bool colour = false);

// Names with equal ends of a common stem in one: {"a.b.q_proj", "a.b.k_proj", "c"} ->
// {"a.b.{q,k}_proj", "c"}, in order of first appearance.
std::vector<std::string> fold_names(const std::vector<std::string>& names);

// Rows of cells, columns as wide as their widest cell. One letter per column: 'l' left, 'r' right,
// 'w' left and wrapped if the table is wider than allowed (one such column at most). A table that
// still does not fit and has a header is written row by row: "cell  header cell, header cell".
class Table {
 public:
  Table(std::string columns, size_t width, bool colour = false)
      : columns_(std::move(columns)), width_(width), colour_(colour) {}
  void header(std::vector<std::string> cells) { header_ = std::move(cells); }
  void add(std::vector<std::string> cells, Ink first = Ink::kPlain);  // ink of the first cell
  void note(std::string text);  // below the row before it, indented, over the whole width
  std::string text() const;

 private:
  struct Row {
    std::vector<std::string> cells;
    Ink ink = Ink::kPlain;
    std::string note;
  };
  std::vector<size_t> widths() const;
  void write_row(const Row& row, const std::vector<size_t>& width, std::string& out) const;
  void write_note(const Row& row, std::string& out) const;
  std::string row_by_row(size_t indent) const;
  std::string columns_;
  size_t width_;
  bool colour_;
  std::vector<std::string> header_;  // empty: none
  std::vector<Row> rows_;
};

}  // namespace moebius
