// SPDX-License-Identifier: Apache-2.0
// What a folder says of vectors and scores: any files are a plan whose sizes fit each other, and by which
// rows become a vector of its width, or an Error. Input: files, each behind a line "=== NAME" with one of
// the names below.
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "fuzz/target.h"
#include "model/run/pooling.h"

namespace moebius::fuzz_pooling {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNames[] = {"config.json",
                                  "modules.json",
                                  "config_sentence_transformers.json",
                                  "sentence_bert_config.json",
                                  "score.safetensors",
                                  "1_Pooling/config.json",
                                  "3_Normalize/config.json",
                                  "4_LogitScore/config.json"};
constexpr size_t kHidden = 4;
constexpr int64_t kVocab = 100;

struct Folder {
  Folder() {
    const char* parent = std::getenv("TMPDIR");
    path = fs::path(parent != nullptr ? parent : "/tmp") /
           ("fuzz_pooling." + std::to_string(getpid()));
    for (const char* name : kNames) fs::create_directories((path / name).parent_path());
  }
  ~Folder() {
    std::error_code none;
    fs::remove_all(path, none);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  fs::path path;
};

void write_files(const fs::path& folder, std::string_view input) {
  for (const char* name : kNames) fs::remove(folder / name);
  constexpr std::string_view kMark = "=== ";
  while (input.starts_with(kMark)) {
    const size_t line = std::min(input.find('\n'), input.size());
    const std::string_view name = input.substr(kMark.size(), line - kMark.size());
    input.remove_prefix(std::min(line + 1, input.size()));
    const size_t end = input.starts_with(kMark) ? 0 : std::min(input.find("\n=== "), input.size());
    for (const char* known : kNames)
      if (name == known) {
        std::ofstream out(folder / known, std::ios::binary);
        out.write(input.data(), static_cast<std::streamsize>(end));
      }
    input.remove_prefix(std::min(end + (end > 0 ? 1 : 0), input.size()));
  }
}

}  // namespace

FUZZ_TARGET(pooling) {
  static const Folder folder;
  write_files(folder.path, {reinterpret_cast<const char*>(data), size});
  try {
    Json config = Json::object();
    if (fs::exists(folder.path / "config.json"))
      config = parse_json(
          [&] {
            std::ifstream in(folder.path / "config.json", std::ios::binary);
            return std::string(std::istreambuf_iterator<char>(in), {});
          }(),
          "config.json");
    TensorStore store;
    if (fs::exists(folder.path / "score.safetensors"))
      store = TensorStore::open_file((folder.path / "score.safetensors").string());
    const auto plan =
        read_pooling(PoolingFolder{folder.path.string(), config, kHidden, kVocab, store});
    if (!plan) return 0;
    const size_t row = plan->needs_logits() ? kVocab : kHidden;
    Pooler pooler(*plan, row, 1);
    for (size_t i = 0; i < 3; ++i)
      pooler.add(std::vector<float>(row, 0.25f * static_cast<float>(i)));
    if (pooler.finish().size() != (plan->scores ? 1 : kHidden)) std::abort();
    for (const size_t n : plan->dimensions)
      if (n == 0 || n > kHidden) std::abort();
  } catch (const Error&) {
  }
  return 0;
}

}  // namespace moebius::fuzz_pooling
