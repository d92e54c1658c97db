// SPDX-License-Identifier: Apache-2.0
// Helpers declared in test_util.h. The build passes its paths to this file alone
// (MOEBIUS_TEST_ROOT, MOEBIUS_TEST_TOOL, MOEBIUS_TEST_EMULATOR, MOEBIUS_TEST_FULL_DISK); a bundle of the tests that is
// run elsewhere (scripts/make_test_bundle.sh) gives the first three in environment variables of these names.
#include "unit/test_util.h"

#include <time.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>

#include "cli/pty_util.h"

#if defined(__has_feature)
#define MOEBIUS_TEST_HAS(feature) __has_feature(feature)
#else
#define MOEBIUS_TEST_HAS(feature) 0
#endif

namespace moebius::test {

namespace fs = std::filesystem;

namespace {

std::string place(const char* variable, const char* built) {
  const char* given = std::getenv(variable);
  return given != nullptr ? given : built;
}

}  // namespace

fs::path source_dir() { return place("MOEBIUS_TEST_ROOT", MOEBIUS_TEST_ROOT); }

fs::path test_data_dir() { return source_dir() / "build/data"; }

bool full_run() { return std::getenv("MOEBIUS_FULL") != nullptr; }

fs::path full_disk_library() { return MOEBIUS_TEST_FULL_DISK; }

fs::path bundled_model_dir() { return source_dir() / "models" / "moebius-tiny-w4a8"; }

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open " + path.string());
  std::ostringstream out;
  out << in.rdbuf();
  return std::move(out).str();
}

void write_file(const fs::path& path, std::string_view bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.flush();
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

TempDir::TempDir() {
  std::string name = (fs::temp_directory_path() / "moebius-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot create " + name);
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string shell_quote(std::string_view word) {
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

bool plain_build() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    MOEBIUS_TEST_HAS(address_sanitizer) || MOEBIUS_TEST_HAS(thread_sanitizer)
  return false;
#else
  return std::string_view(MOEBIUS_TEST_EMULATOR).empty();
#endif
}

namespace {

// Where these tests run on a smaller CPU (MOEBIUS_CPU), every command says so first; what else it says is what tests look at.
std::string without_note_on_cpu(std::string err) {
  constexpr std::string_view kNote = "moebius: MOEBIUS_CPU narrows the CPU to ";
  const size_t at = err.find(kNote);
  return at == std::string::npos ? err : err.erase(at, err.find('\n', at) + 1 - at);
}

bool first_in_this_test(const std::string& args) {
  static std::set<std::string> seen;
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = test == nullptr ? "" : test->name();
  return seen.insert(name + " " + args.substr(0, args.find(' '))).second;
}

}  // namespace

std::string tool_command() {
  return place("MOEBIUS_TEST_EMULATOR", MOEBIUS_TEST_EMULATOR) + " " +
         shell_quote(place("MOEBIUS_TEST_TOOL", MOEBIUS_TEST_TOOL));
}

CommandResult run_tool(const std::string& args, const std::string& environment) {
  const TempDir dir;
  const std::string leaks =
      first_in_this_test(args) ? "" : "ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 ";
  const std::string command = "{ " + leaks + environment + " " + tool_command() + " " + args +
                              "\n} >" + shell_quote((dir / "out").string()) + " 2>" +
                              shell_quote((dir / "err").string()) + " </dev/null";
  const int raw = std::system(command.c_str());
  CommandResult result;
  result.status = (raw & 0x7f) == 0 ? (raw >> 8) & 0xff : 128 + (raw & 0x7f);
  result.out = read_file(dir / "out");
  result.err = read_file(dir / "err");
  if (std::getenv("MOEBIUS_CPU") != nullptr &&
      environment.find("MOEBIUS_CPU=") == std::string::npos)
    result.err = without_note_on_cpu(result.err);
  return result;
}

double thread_cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace moebius::test
