// SPDX-License-Identifier: Apache-2.0
// Lays out views for people: output width, wrapped lines, tables, and names folded by pattern.
// Widths count characters, not bytes.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/chat/terminal.h"

namespace moebius {

size_t display_width(std::string_view utf8);
// Returns COLUMNS if it is set, else the terminal's width, else 80; at least 60.
size_t output_width();

// Wraps text into lines of at most `width` characters: at spaces, and within longer words after
// punctuation.
std::vector<std::string> wrapped(std::string_view text, size_t width);
// Returns "label text": the text after a label of `indent` characters, wrapped below itself.
std::string labelled(std::string_view label, std::string_view text, size_t indent, size_t width,
                     Ink ink = Ink::kPlain, bool colour = false);

// Joins names with equal ends and a common stem: {"a.b.q_proj", "a.b.k_proj", "c"} becomes
// {"a.b.{q,k}_proj", "c"}, in order of first appearance.
std::vector<std::string> fold_names(const std::vector<std::string>& names);

// Formats rows of cells; columns are as wide as their widest cell. One letter per column: 'l' left,
// 'r' right, 'w' left and wrapped if the table is too wide (at most one such column). A table that
// still does not fit and has a header is written row by row: "cell header cell, header cell".
class Table {
 public:
  Table(std::string columns, size_t width, bool colour = false)
      : columns_(std::move(columns)), width_(width), colour_(colour) {}
  void header(std::vector<std::string> cells) { header_ = std::move(cells); }
  // Adds a row. first: colour of its first cell.
  void add(std::vector<std::string> cells, Ink first = Ink::kPlain);
  void note(std::string text);  // adds an indented line below the last row, over the whole width
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
  std::vector<std::string> header_;  // cells of the header; empty: no header
  std::vector<Row> rows_;
};

}  // namespace moebius
