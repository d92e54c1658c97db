// SPDX-License-Identifier: Apache-2.0
#include "gguf/model_files.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <map>
#include <mutex>

#include "base/error.h"
#include "gguf/config.h"
#include "gguf/tokenizer.h"

namespace moebius {
namespace {

namespace fs = std::filesystem;

// Returns how the name of a GGUF file ends: "-00002-of-00003.gguf" for a part of a split set.
std::string_view end_of(std::string_view name) {
  const size_t end = gguf_part_of(name) ? kGgufPartEnd.size() : name.ends_with(".gguf") ? 5 : 0;
  return name.substr(name.size() - end);
}

// Returns whether a file holds a model: not an image encoder, adapter or calibration data.
bool is_model(const Gguf& gguf) {
  const std::string_view type = gguf.metadata().text("general.type").value_or("model"),
                         name = gguf.metadata().text("general.architecture").value_or("");
  return type == "model" && name != "clip" && name != "imatrix" && name != "controlvector";
}

// Returns the type that most bytes of a model have, for lists.
std::string_view main_type(const Gguf& gguf) {
  std::map<std::string_view, uint64_t> bytes;
  std::string_view most;
  for (const GgufTensor& t : gguf.tensors())
    if ((bytes[t.type->name] += t.bytes) >= bytes[most]) most = t.type->name;
  return most;
}

// The text that a GGUF file has in place of a Hugging Face file.
std::optional<std::string> text_of(const Gguf& gguf, std::string_view name) {
  std::vector<std::string> unsaid;
  const GgufMetadata& metadata = gguf.metadata();
  if (name == "config.json") return gguf_config(gguf, unsaid).dump(1);
  if (name == "generation_config.json") {
    const GgufTensor* table = gguf.find("token_embd.weight");
    return gguf_generation_config_json(metadata, table == nullptr ? 0 : table->shape.front());
  }
  if (metadata.find("tokenizer.ggml.model") == nullptr) return std::nullopt;
  const GgufValue* tokens = metadata.find("tokenizer.ggml.tokens");
  const GgufTensor* table = gguf.find("token_embd.weight");
  if (tokens != nullptr && table != nullptr && tokens->count > table->shape.front())
    metadata.refuse("tokenizer.ggml.tokens",
                    fmt::format("at most {}, the rows of token_embd.weight", table->shape.front()));
  if (name == "tokenizer.json") return gguf_tokenizer_json(metadata);
  if (name == "tokenizer_config.json") return gguf_tokenizer_config_json(metadata);
  return std::nullopt;
}

}  // namespace

std::vector<std::string> list_folder(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(folder.c_str()), ::closedir);
  if (dir == nullptr) fail("{}: cannot open: {}", printable(folder), errno_text(errno));
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(dir.get())) names.emplace_back(entry->d_name);
  std::sort(names.begin(), names.end());
  return names;
}

bool is_gguf_file(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  if (path.ends_with(".gguf")) return true;
  const ReadFile file(path);
  std::array<uint8_t, 4> magic{};
  if (file.size() < magic.size()) return false;
  file.read_at(0, magic);
  return std::string_view(reinterpret_cast<const char*>(magic.data()), magic.size()) == "GGUF";
}

std::optional<std::string> gguf_file_of(const std::string& model) {
  std::error_code error;
  if (!fs::is_directory(model, error))
    return is_gguf_file(model) ? std::optional(model) : std::nullopt;
  if (::access(model.c_str(), R_OK) != 0) return std::nullopt;
  std::map<std::string, std::string> sets;  // the first part of each
  for (const std::string& name : list_folder(model)) {
    if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"))
      return std::nullopt;
    if (!name.ends_with(".gguf") || !fs::is_regular_file(join_path(model, name), error)) continue;
    const std::string_view end = end_of(name);
    const std::string_view total = end.substr(std::min<size_t>(end.size(), 6));
    std::string& first = sets[name.substr(0, name.size() - end.size()) + std::string(total)];
    if (first.empty() || name < first) first = name;
  }
  if (sets.size() > 1)
    std::erase_if(
        sets, [&](const auto& set) { return !is_model(*open_gguf(join_path(model, set.second))); });
  if (sets.empty()) return std::nullopt;
  if (sets.size() == 1) return join_path(model, sets.begin()->second);
  std::string list;
  for (const auto& [set, first] : sets) {
    const auto gguf = open_gguf(join_path(model, first));
    uint64_t bytes = 0;
    for (const auto& file : gguf->files()) bytes += file->size();
    list += fmt::format("{}{} ({:.1f} GB, {})", list.empty() ? "" : ", ", printable(first),
                        static_cast<double>(bytes) * 1e-9, main_type(*gguf));
  }
  fail("{}: holds {} GGUF models: {}; name one", printable(model), sets.size(), list);
}

std::string model_name(std::string model) {
  while (model.size() > 1 && model.ends_with('/')) model.pop_back();
  const std::string_view name = base_name(model);
  std::error_code error;
  const size_t end = fs::is_directory(model, error) ? 0 : end_of(name).size();
  return std::string(name.substr(0, name.size() - end));
}

std::shared_ptr<const Gguf> open_gguf(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<const Gguf>> open;
  const std::lock_guard lock(mutex);
  std::erase_if(open, [](const auto& entry) { return entry.second.expired(); });
  if (const auto it = open.find(path); it != open.end())
    if (auto found = it->second.lock()) try {
        for (const auto& file : found->files()) file->check_unchanged();
        return found;
      } catch (const Error&) {  // another file has this name now
        open.erase(it);
      }
  auto made = std::make_shared<const Gguf>(Gguf::open(path));
  open[path] = made;
  return made;
}

std::optional<ModelText> read_model_text(const std::string& model, std::string_view name,
                                         uint64_t most) {
  if (const auto file = gguf_file_of(model)) {
    auto text = text_of(*open_gguf(*file), name);
    if (!text) return std::nullopt;
    return ModelText{std::move(*text), *file};
  }
  const std::string path = join_path(model, name);
  if (!path_exists(path)) return std::nullopt;
  return ModelText{read_text_file(path, most), path};
}

std::vector<std::string> model_text_notes(const std::string& model) {
  const auto file = gguf_file_of(model);
  return file ? gguf_tokenizer_notes(open_gguf(*file)->metadata()) : std::vector<std::string>();
}

std::vector<std::string> model_file_notes(const std::string& model) {
  std::vector<std::string> notes;
  const auto file = gguf_file_of(model);
  std::error_code error;
  const bool whole = fs::is_directory(model, error);
  const std::string folder = whole ? model : fs::path(model).parent_path().string();
  for (const char* name : {"config.json", "tokenizer.json"})
    if (file && path_exists(join_path(folder.empty() ? "." : folder, name)))
      notes.push_back(fmt::format("{} beside the GGUF file is not read", name));
  if (!whole || ::access(model.c_str(), R_OK) != 0) return notes;
  for (const std::string& name : list_folder(folder))
    if (name.ends_with(".gguf") && (!file || model_name(name) != model_name(*file)))
      notes.push_back(fmt::format("{} is not read: {}", printable(name, 80),
                                  file ? "it holds no model" : "the safetensors files are"));
  return notes;
}

bool has_model_text(const std::string& model, std::string_view name) {
  const auto file = gguf_file_of(model);
  if (!file) return path_exists(join_path(model, name));
  if (name == "tokenizer.json" || name == "tokenizer_config.json")
    return open_gguf(*file)->metadata().find("tokenizer.ggml.model") != nullptr;
  return name == "config.json" || name == "generation_config.json";
}

}  // namespace moebius
