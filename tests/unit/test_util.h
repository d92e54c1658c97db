// SPDX-License-Identifier: Apache-2.0
// Small helpers every test may use: where test data lies, files, a temporary folder that removes
// itself, running the built tool. Include as "unit/test_util.h".
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace moebius::test {

// The tests/ folder of the source tree; data lies below it.
std::filesystem::path test_data_dir();

// The repository root, for models/ and docs/.
std::filesystem::path source_dir();

// The bundled model folder.
std::filesystem::path bundled_model_dir();

// A file's whole content, byte for byte.
std::string read_file(const std::filesystem::path& path);

// Writes (or replaces) a file, creating its folder.
void write_file(const std::filesystem::path& path, std::string_view bytes);

// A fresh folder under the system's temporary folder, removed with all its content at scope end.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// What a command did: exit status (128 + signal when killed), standard output, standard error.
struct CommandResult {
  int status = -1;
  std::string out;
  std::string err;
};

// Quotes one shell word.
std::string shell_quote(std::string_view word);

// ./test --full ($MOEBIUS_FULL): all of what a test takes a part of elsewhere.
bool full_run();

// Neither a sanitizer nor an emulator: no memory of their own, and no ten to fifty times the time.
bool plain_build();

// 1 in plain builds, 10 elsewhere. Tests that go through very many cases divide their number by it:
// every kind of case is left, fewer of each.
inline unsigned thinning() { return plain_build() ? 1 : 10; }

// Runs the built tool with `args` (a shell fragment: redirections and pipes work; quote paths with
// shell_quote). `environment` is put in front, e.g. "MOEBIUS_CPU=neon". Under cross-compilation the
// emulator runs it. Standard input is empty. Under AddressSanitizer only the first run of each
// command in a test looks for leaks at its end, because that takes four seconds on aarch64 (the
// test program itself always looks).
CommandResult run_tool(const std::string& args, const std::string& environment = "");

// The library that makes the FULL_DISK_AT-th write of a program that loads it first find no room; empty where
// none was built.
std::filesystem::path full_disk_library();

// Seconds of CPU that this thread took so far: other work on the machine does not count.
double thread_cpu_seconds();

}  // namespace moebius::test

namespace moebius {
using test::test_data_dir;  // so that tests in namespace moebius can say test_data_dir()
}  // namespace moebius
