// SPDX-License-Identifier: Apache-2.0
// Tables of rows that stay in their files: any safetensors file is a table of which every row can be read,
// or an Error. Input: the width of a row less one (a byte), then the file.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "checkpoint/row_table.h"
#include "fuzz/target.h"

namespace moebius::fuzz_row_table {

FUZZ_TARGET(row_table) {
  namespace fs = std::filesystem;
  if (size < 1) return 0;
  static const struct File {
    fs::path path = fs::path(std::getenv("TMPDIR") != nullptr ? std::getenv("TMPDIR") : "/tmp") /
                    ("fuzz_row_table." + std::to_string(getpid()) + ".safetensors");
    ~File() {
      std::error_code none;
      fs::remove(path, none);
    }
  } file;
  {
    std::ofstream out(file.path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(data + 1), static_cast<std::streamsize>(size - 1));
  }
  try {
    const TensorStore store = TensorStore::open_file(file.path.string());
    const RowTable table(store, "t", size_t{data[0]} + 1);
    std::vector<float> row(table.width());
    std::vector<int64_t> read;
    for (const uint64_t r : {uint64_t{0}, table.rows() / 2, table.rows() - 1})
      if (r < table.rows()) {
        table.will_need(r);
        table.read(r, row.data());
        read.push_back(static_cast<int64_t>(r));
      }
    table.check(read);
  } catch (const Error&) {
  }
  return 0;
}

}  // namespace moebius::fuzz_row_table
