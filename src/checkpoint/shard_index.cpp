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
  explicit IndexHandler(const std::string& where) : where_(where) {}
  ShardIndex index;
  bool map_seen = false;

  void key(std::string& name) override {
    if (depth_ == 1) {
      if (name == "weight_map" && map_seen) fail("{}: weight_map appears twice", where_);
      at_map_ = name == "weight_map";
      map_seen = map_seen || at_map_;
    } else if (in_map()) {
      tensor_ = std::move(name);
    }
  }
  void begin(bool array) override {
    if (array || in_map()) check(array ? Json::Kind::kArray : Json::Kind::kObject);
    ++depth_;
  }
  void end() override { --depth_; }
  void value(Json v) override {
    if (in_map() && v.is_string()) return add(v.as_string());
    check(v.kind());
  }

 private:
  bool in_map() const { return at_map_ && depth_ == 2; }
  // Refuses anything but a string inside weight_map, and anything but an object where one belongs.
  void check(Json::Kind found) const {
    if (depth_ == 0) fail("{}: index is {}; expected a JSON object", where_, kind_name(found));
    if (in_map())
      fail("{}: weight_map['{}'] is {}; expected a file name", where_, printable(tensor_),
           kind_name(found));
    if (depth_ == 1 && at_map_)
      fail("{}: weight_map is {}; expected an object", where_, kind_name(found));
  }
  void add(const std::string& file) {
    if (tensor_.size() > kMaxTensorName)
      fail("{}: weight_map has a tensor name of {} bytes; at most {} are accepted", where_,
           tensor_.size(), kMaxTensorName);
    if (!is_plain_file_name(file))
      fail("{}: weight_map['{}'] is '{}'; expected a plain file name without a folder", where_,
           printable(tensor_), printable(file));
    if (index.file_of.size() == kMaxIndexTensors)
      fail("{}: weight_map has more than {} tensors", where_, kMaxIndexTensors);
    const auto [it, fresh] = numbers_.try_emplace(file, static_cast<uint32_t>(index.files.size()));
    if (fresh) index.files.push_back(file);
    if (index.files.size() > kMaxShards)
      fail("{}: weight_map names more than {} files", where_, kMaxShards);
    if (!index.file_of.try_emplace(std::move(tensor_), it->second).second)
      fail("{}: weight_map names a tensor twice (the second time in '{}')", where_,
           printable(file));
  }

  const std::string& where_;
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
  const std::string where = printable(path);
  IndexHandler handler(where);
  parse_json_events(text, handler, where);
  if (!handler.map_seen) fail("{}: member 'weight_map' is missing", where);
  ShardIndex index = std::move(handler.index);
  if (index.files.empty()) fail("{}: weight_map is empty", where);
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
