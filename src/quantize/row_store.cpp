// SPDX-License-Identifier: Apache-2.0
// Keeps rows in memory or in a file without a name (row_store.h).
#include "quantize/row_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "kernels/row_functions.h"

namespace moebius {
namespace {

size_t bytes_of_number(XType type) { return type == XType::kF32 ? 4 : 2; }

// Opens a file without a name; "": none.
int open_nameless(const std::string& folder) {
  if (folder.empty()) return -1;
  std::string path = join_path(folder, "moebius-rows.XXXXXX");
  const int fd = ::mkstemp(path.data());
  if (fd < 0) fail("{}: cannot make a scratch file: {}", folder, errno_text(errno));
  ::unlink(path.c_str());
  return fd;
}

}  // namespace

RowStore::RowStore(size_t cols, XType type, const std::string& scratch)
    : cols_(cols),
      row_bytes_(cols * bytes_of_number(type)),
      type_(type),
      scratch_(scratch),
      file_(open_nameless(scratch)) {}

uint64_t RowStore::bytes_of(uint64_t rows, uint64_t cols, XType type) {
  return rows * cols * bytes_of_number(type);
}

void RowStore::reserve(size_t rows) {
  if (!file_.open()) memory_.reserve(rows * row_bytes_);
}

void RowStore::put(uint64_t offset, const std::vector<uint8_t>& bytes) {
  if (!file_.open()) {
    if (memory_.size() < offset + bytes.size()) memory_.resize(offset + bytes.size());
    std::memcpy(memory_.data() + offset, bytes.data(), bytes.size());
    return;
  }
  if (const int code = write_all_at(file_.get(), offset, bytes); code != 0)
    fail("{}: cannot write rows: {}", scratch_, errno_text(code == kEndOfFile ? ENOSPC : code));
}

void RowStore::append(const float* x, size_t rows, size_t stride) {
  std::vector<uint8_t> bytes(rows * row_bytes_);
  for (size_t r = 0; r < rows; ++r)
    row_functions().store(type_, x + r * stride, bytes.data() + r * row_bytes_, cols_);
  put(rows_ * row_bytes_, bytes);
  rows_ += rows;
}

void RowStore::write(size_t first, const float* x, size_t rows) {
  std::vector<uint8_t> bytes(rows * row_bytes_);
  row_functions().store(type_, x, bytes.data(), rows * cols_);
  put(first * row_bytes_, bytes);
}

void RowStore::read(size_t first, size_t rows, float* out) const {
  if (!file_.open()) {
    row_functions().load(type_, memory_.data() + first * row_bytes_, out, rows * cols_);
    return;
  }
  std::vector<uint8_t> bytes(rows * row_bytes_);
  uint64_t at = first * row_bytes_;
  if (const int code = read_all_at(file_.get(), at, bytes); code != 0)
    fail("{}: cannot read rows: {}", scratch_, errno_text(code == kEndOfFile ? EIO : code));
  row_functions().load(type_, bytes.data(), out, rows * cols_);
}

}  // namespace moebius
