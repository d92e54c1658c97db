// SPDX-License-Identifier: Apache-2.0
// Parses the index. Only weight_map matters; metadata is informational and may be absent or wrong.
#include "checkpoint/shard_index.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"

namespace moebius {
namespace {

constexpr size_t kMaxShards = 10'000;
constexpr size_t kMaxIndexTensors = 8'000'000;

class IndexHandler final : public JsonHandler {
 public:
  ShardIndex index;
  bool map_seen = false;

  bool on_null() override { return value("null"); }
  bool on_bool(bool) override { return value("a boolean"); }
  bool on_int(int64_t) override { return value("an integer"); }
  bool on_uint(uint64_t) override { return value("an integer"); }
  bool on_double(double) override { return value("a number"); }
  bool on_string(std::string& text) override { return in_map() ? add(text) : value("a string"); }
  bool on_key(std::string& key) override {
    if (depth_ == 1) {
      if (key == "weight_map" && map_seen) return stop("weight_map appears twice");
      at_map_ = key == "weight_map";
      map_seen = map_seen || at_map_;
    } else if (in_map()) {
      tensor_ = std::move(key);
    }
    return true;
  }
  bool on_object_begin() override {
    if (in_map()) return value("an object");
    ++depth_;
    return true;
  }
  bool on_object_end() override {
    --depth_;
    return true;
  }
  bool on_array_begin() override {
    if (depth_ == 0 || in_map() || (depth_ == 1 && at_map_)) return value("an array");
    ++depth_;
    return true;
  }
  bool on_array_end() override { return on_object_end(); }

 private:
  bool in_map() const { return at_map_ && depth_ == 2; }
  bool stop(std::string text) {
    error = std::move(text);
    return false;
  }
  // Refuses anything but a string inside weight_map, and anything but an object where one belongs.
  bool value(std::string_view found) {
    if (depth_ == 0) return stop(fmt::format("index is {}; expected a JSON object", found));
    if (in_map())
      return stop(
          fmt::format("weight_map['{}'] is {}; expected a file name", printable(tensor_), found));
    if (depth_ == 1 && at_map_)
      return stop(fmt::format("weight_map is {}; expected an object", found));
    return true;
  }
  bool add(const std::string& file) {
    if (tensor_.size() > kMaxTensorName)
      return stop(fmt::format("weight_map has a tensor name of {} bytes; at most {} are accepted",
                              tensor_.size(), kMaxTensorName));
    if (!is_plain_file_name(file))
      return stop(
          fmt::format("weight_map['{}'] is '{}'; expected a plain file name without a folder",
                      printable(tensor_), printable(file)));
    if (index.file_of.size() == kMaxIndexTensors)
      return stop(fmt::format("weight_map has more than {} tensors", kMaxIndexTensors));
    const auto [it, fresh] = numbers_.try_emplace(file, static_cast<uint32_t>(index.files.size()));
    if (fresh) index.files.push_back(file);
    if (index.files.size() > kMaxShards)
      return stop(fmt::format("weight_map names more than {} files", kMaxShards));
    if (!index.file_of.try_emplace(std::move(tensor_), it->second).second)
      return stop(fmt::format("weight_map names a tensor twice (the second time in '{}')",
                              printable(file)));
    return true;
  }

  size_t depth_ = 0;
  bool at_map_ = false;
  std::string tensor_;
  std::map<std::string, uint32_t> numbers_;
};

}  // namespace

bool is_plain_file_name(std::string_view name) {
  if (name.empty() || name == "." || name == ".." || name.size() > 255) return false;
  return std::none_of(name.begin(), name.end(), [](char c) {
    return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
}

ShardIndex parse_shard_index(std::string_view text, const std::string& path) {
  IndexHandler handler;
  parse_json_events(text, handler, printable(path));
  if (!handler.map_seen) fail("{}: member 'weight_map' is missing", printable(path));
  ShardIndex index = std::move(handler.index);
  if (index.files.empty()) fail("{}: weight_map is empty", printable(path));
  std::vector<std::string> sorted = index.files;
  std::sort(sorted.begin(), sorted.end());
  std::vector<uint32_t> renumber(sorted.size());
  for (size_t i = 0; i < index.files.size(); ++i)
    renumber[i] = static_cast<uint32_t>(
        std::lower_bound(sorted.begin(), sorted.end(), index.files[i]) - sorted.begin());
  for (auto& [name, file] : index.file_of) file = renumber[file];
  index.files = std::move(sorted);
  return index;
}

}  // namespace moebius
