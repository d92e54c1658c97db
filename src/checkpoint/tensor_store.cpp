// SPDX-License-Identifier: Apache-2.0
// Opens the files of a model folder and merges their tensors. A single model.safetensors wins over
// an index; in a sharded folder the index decides where a tensor that occurs twice is read, and
// every tensor it names must exist.
#include "checkpoint/tensor_store.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <memory>
#include <optional>

#include "base/error.h"
#include "checkpoint/gguf_latent.h"
#include "checkpoint/shard_index.h"
#include "gguf/model_files.h"
#include "gguf/names.h"

namespace moebius {
namespace {

constexpr std::string_view kSingleName = "model.safetensors";

std::string real_path(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> real(::realpath(path.c_str(), nullptr), ::free);
  if (real == nullptr) fail("{}: {}", printable(path), open_failure(path, errno));
  return real.get();
}

// Returns whether a link is snapshots/<revision>/name -> ../../blobs/<hash>, as the hub's cache
// keeps its files.
bool is_hub_cache_link(const std::string& real_folder, const std::string& link,
                       const std::string& target) {
  std::string text(PATH_MAX, '\0');
  const ssize_t n = ::readlink(link.c_str(), text.data(), text.size());
  if (n <= 0) return false;
  text.resize(static_cast<size_t>(n));
  constexpr std::string_view kBlobs = "../../blobs/";
  if (!text.starts_with(kBlobs) ||
      !is_plain_file_name(std::string_view(text).substr(kBlobs.size())))
    return false;
  const size_t revision = real_folder.rfind('/');
  if (revision == std::string::npos || base_name(real_folder.substr(0, revision)) != "snapshots")
    return false;
  const std::string repository = real_folder.substr(0, real_folder.rfind('/', revision - 1));
  return target == join_path(repository, text.substr(6));
}

// Returns the only other safetensors file of a folder with neither a single file nor an index;
// several files need an index.
std::string other_single_file(const std::string& folder, std::vector<std::string>& warnings) {
  std::vector<std::string> candidates;
  std::string hint;
  for (const std::string& name : list_folder(folder)) {
    const bool skipped = name.starts_with("consolidated") || name.starts_with("adapter") ||
                         name.starts_with("optimizer");
    if (name.ends_with(".safetensors") && !skipped) candidates.push_back(name);
    if (name.ends_with(".safetensors") && skipped)
      hint = fmt::format("; '{}' is not read as a model", printable(name));
    if (name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth"))
      hint = fmt::format("; found '{}', but only safetensors files are read", printable(name));
  }
  if (candidates.empty())
    fail("{}: holds neither {} nor {}{}", printable(folder), kSingleName, kIndexName, hint);
  if (candidates.size() > 1)
    fail(
        "{}: holds {} safetensors files ('{}', '{}' ...) but no {} that says which tensor lies "
        "where",
        printable(folder), candidates.size(), printable(candidates[0]), printable(candidates[1]),
        kIndexName);
  warnings.push_back(fmt::format("{}: holds neither {} nor an index; '{}' is read instead",
                                 printable(folder), kSingleName, printable(candidates[0])));
  return candidates[0];
}

// Warns when an index beside the single file, which is used, contradicts it.
void compare_with_index(const std::string& folder, std::span<const TensorInfo> tensors,
                        std::vector<std::string>& warnings, Links links) {
  const std::string path = join_path(folder, kIndexName);
  if (!path_exists(path)) return;
  try {
    const ShardIndex index = parse_shard_index(
        read_text_file(file_in_folder(folder, kIndexName, links), kMaxIndexBytes), path);
    const bool same = index.file_of.size() == tensors.size() &&
                      std::all_of(tensors.begin(), tensors.end(), [&](const TensorInfo& t) {
                        return index.file_of.contains(t.name);
                      });
    if (!same)
      warnings.push_back(fmt::format(
          "{}: both {} ({} tensors) and {} ({} tensors) exist and differ; the former is used",
          printable(folder), kSingleName, tensors.size(), kIndexName, index.file_of.size()));
  } catch (const Error& e) {
    warnings.push_back(fmt::format("{} is not used because {} exists, and cannot be read: {}",
                                   kIndexName, kSingleName, e.what()));
  }
}

// Keeps the tensors of a shard that the index places there or does not know; warns with the number
// of the others.
std::vector<TensorInfo> select_tensors(std::vector<TensorInfo> tensors, const ShardIndex& index,
                                       uint32_t shard, const std::string& path,
                                       std::vector<std::string>& warnings) {
  size_t elsewhere = 0, unknown = 0;
  std::string first_elsewhere, first_unknown;
  std::vector<TensorInfo> kept;
  for (TensorInfo& t : tensors) {
    const auto it = index.file_of.find(t.name);
    if (it != index.file_of.end() && it->second != shard) {
      if (elsewhere++ == 0) first_elsewhere = t.name;
      continue;
    }
    if (it == index.file_of.end() && unknown++ == 0) first_unknown = t.name;
    kept.push_back(std::move(t));
  }
  if (unknown > 0)
    warnings.push_back(fmt::format(
        "{}: {} tensor(s) are not named by {}, the first is '{}'; they are read all the same",
        printable(base_name(path)), unknown, kIndexName, printable(first_unknown)));
  if (elsewhere > 0)
    warnings.push_back(fmt::format(
        "{}: {} tensor(s) are read from another file because {} says so, the first is '{}'",
        printable(base_name(path)), elsewhere, kIndexName, printable(first_elsewhere)));
  return kept;
}

}  // namespace

void check_weight_files(const std::string& folder) {
  std::vector<std::string> unsaid;
  if (!path_exists(join_path(folder, kSingleName)) && !path_exists(join_path(folder, kIndexName)))
    (void)other_single_file(folder, unsaid);
}

std::string file_in_folder(const std::string& folder, std::string_view name, Links links) {
  if (!is_plain_file_name(name))
    fail("{}: '{}' is not a plain file name", printable(folder), printable(name));
  const std::string path = join_path(folder, name);
  struct stat st {};
  if (::lstat(path.c_str(), &st) != 0)
    fail("{}: cannot open: {}", printable(path), errno_text(errno));
  if (!S_ISLNK(st.st_mode) || links == Links::kAnywhere) return path;
  const std::string inside = real_path(folder), target = real_path(path);
  if (target.starts_with(join_path(inside, "")) || is_hub_cache_link(inside, path, target))
    return path;
  fail(
      "{}: is a symbolic link to '{}', outside the folder; expected a file of the folder itself "
      "(or a link into the hub cache's blobs)",
      printable(path), printable(target));
}

void TensorStore::add_file(SafetensorsFile file) {
  const uint32_t number = static_cast<uint32_t>(files_.size());
  for (TensorInfo& t : file.take_tensors()) {
    t.file = number;
    total_bytes_ += t.bytes;
    tensors_.push_back(std::move(t));
  }
  files_.push_back(std::move(file));
}

void TensorStore::finish() {
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.name != b.name ? a.name < b.name : a.file < b.file;
  });
  tensors_.shrink_to_fit();
  const auto twice =
      std::adjacent_find(tensors_.begin(), tensors_.end(),
                         [](const TensorInfo& a, const TensorInfo& b) { return a.name == b.name; });
  if (twice != tensors_.end())
    fail("tensor '{}' is in '{}' and in '{}', and {} names neither", printable(twice->name),
         printable(file_of(*twice).path()), printable(file_of(twice[1]).path()), kIndexName);
}

TensorStore TensorStore::open_file(const std::string& path) {
  TensorStore store;
  store.add_file(SafetensorsFile::open(path));
  store.finish();
  return store;
}

TensorStore TensorStore::of_gguf(const Gguf& gguf, const GgufNames& names, Links links) {
  using ByFile = std::vector<std::vector<TensorInfo>>;
  ByFile tensors(gguf.files().size()), halves(gguf.files().size());
  for (const GgufPiece& p : names.pieces) {
    const GgufType& type = *p.tensor->type;
    const std::optional<DType> plain =
        type.numbers == 1 ? dtype_from_name(type.name) : std::nullopt;
    const bool half = p.name.find(kLatentHalf) != std::string::npos;
    TensorInfo& t = (half ? halves : tensors)[p.tensor->part].emplace_back();
    t.name = p.name;
    t.dtype = plain.value_or(DType::kU8);
    t.gguf = plain ? nullptr : &type;
    t.shape = p.shape;
    if (!plain) t.shape.back() = t.shape.back() / type.numbers * type.bytes;
    t.offset = p.tensor->offset + p.offset;
    t.bytes = p.bytes;
    t.order = p.order;
    t.change = p.change;
    if (p.columns && plain) {
      t.order = p.columns;
      t.order.row_bytes = p.columns.width * bits_of(*plain) / 8;
      t.order.width = 1;
    } else {  // from stored columns to those of the matrix
      t.columns = p.columns;
      std::swap(t.columns.outer, t.columns.inner);
    }
  }
  TensorStore cut, store;
  for (size_t i = 0; i < halves.size(); ++i)
    cut.add_file(SafetensorsFile::of_file(gguf.files()[i], std::move(halves[i])));
  cut.finish();
  for (TensorInfo& t : join_latent_halves(std::move(cut))) tensors[0].push_back(std::move(t));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::shared_ptr<const ReadFile>& file = gguf.files()[i];
    const std::string& path = file->path();
    if (links == Links::kInside)
      (void)file_in_folder(path.substr(0, path.size() - base_name(path).size()) + ".",
                           base_name(path), links);
    store.add_file(SafetensorsFile::of_file(file, std::move(tensors[i])));
  }
  store.finish();
  return store;
}

TensorStore TensorStore::from_memory(const std::string& name, std::span<const TensorData> tensors) {
  TensorStore store;
  store.add_file(SafetensorsFile::of_memory(name, tensors));
  store.finish();
  return store;
}

TensorStore TensorStore::with_files(std::span<const std::string> paths,
                                    std::vector<TensorInfo>& tensors) const {
  TensorStore store;
  store.files_ = files_;
  store.tensors_ = tensors_;
  store.total_bytes_ = total_bytes_;
  for (const std::string& path : paths) {
    const auto number = static_cast<uint32_t>(store.files_.size());
    SafetensorsFile file = SafetensorsFile::open(path);
    for (TensorInfo& t : file.take_tensors()) {
      t.file = number;
      tensors.push_back(std::move(t));
    }
    store.files_.push_back(std::move(file));
  }
  return store;
}

TensorStore TensorStore::open_folder(const std::string& folder, std::vector<std::string>& warnings,
                                     Links links) {
  struct stat st {};
  if (::stat(folder.c_str(), &st) != 0)
    fail("{}: {}", printable(folder), open_failure(folder, errno));
  if (!S_ISDIR(st.st_mode))
    fail("{}: is not a folder; expected a folder with {} or {}", printable(folder), kSingleName,
         kIndexName);
  if (path_exists(join_path(folder, kSingleName))) {
    TensorStore store = open_file(file_in_folder(folder, kSingleName, links));
    compare_with_index(folder, store.tensors(), warnings, links);
    return store;
  }
  if (!path_exists(join_path(folder, kIndexName)))
    return open_file(file_in_folder(folder, other_single_file(folder, warnings), links));

  const std::string index_path = file_in_folder(folder, kIndexName, links);
  const ShardIndex index =
      parse_shard_index(read_text_file(index_path, kMaxIndexBytes), index_path);
  TensorStore store;
  for (uint32_t shard = 0; shard < index.files.size(); ++shard) {
    const std::string& name = index.files[shard];
    const std::string path = join_path(folder, name);
    if (!path_exists(path))
      fail("{}: names the file '{}', which is missing", printable(index_path), printable(name));
    SafetensorsFile file = SafetensorsFile::open(file_in_folder(folder, name, links));
    file.set_tensors(select_tensors(file.take_tensors(), index, shard, path, warnings));
    store.add_file(std::move(file));
  }
  store.finish();
  store.check_complete(index_path, index);
  return store;
}

void TensorStore::check_complete(const std::string& index_path, const ShardIndex& index) const {
  const std::string* first = nullptr;
  uint32_t shard = 0;
  size_t missing = 0;
  for (const auto& [name, file] : index.file_of) {
    if (find(name) != nullptr) continue;
    ++missing;
    if (first == nullptr || name < *first) {
      first = &name;
      shard = file;
    }
  }
  if (missing > 0)
    fail("{}: says that tensor '{}' is in '{}', where it is not{}", printable(index_path),
         printable(*first), printable(index.files[shard]),
         missing > 1 ? fmt::format(" ({} such tensors in all)", missing) : "");
}

const TensorInfo* TensorStore::find(std::string_view name) const {
  const auto it =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const TensorInfo& t, std::string_view n) { return t.name < n; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

const TensorInfo& TensorStore::require(std::string_view name) const {
  if (const TensorInfo* t = find(name)) return *t;
  const std::string where = files_.empty()       ? "no file"
                            : files_.size() == 1 ? files_[0].path()
                                                 : fmt::format("{} files", files_.size());
  fail("tensor '{}' is missing; searched {} with {} tensors", printable(name), printable(where),
       tensors_.size());
}

std::string TensorStore::where(const TensorInfo& tensor) const {
  return fmt::format("{}: {}", printable(base_name(file_of(tensor).path())),
                     printable(tensor.name));
}

}  // namespace moebius
