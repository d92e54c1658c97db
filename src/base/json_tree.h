// SPDX-License-Identifier: Apache-2.0
// Builds a Json tree from parser events, for the JsonHandlers that keep a tree.
#pragma once
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace moebius {

// Most values (numbers, strings, lists, ...) of a configuration file; each takes some 150 bytes of
// memory. A tokenizer file may have twice as many besides its vocabulary and merges.
inline constexpr size_t kJsonMaxValues = 1'000'000;

class JsonTree {
 public:
  void open(Json empty) { stack_.push_back({std::move(empty), {}, {}}); }
  void close() {
    Json v = std::move(stack_.back().value);
    stack_.pop_back();
    put(std::move(v));
  }
  // Sets the key of the next value; returns false if the object already has that key.
  bool name(std::string& key) {
    Frame& frame = stack_.back();
    if (!frame.keys.insert(key).second) return false;
    frame.key = std::move(key);
    return true;
  }
  void put(Json v) {
    ++values_;
    if (stack_.empty()) {
      root_ = std::move(v);
    } else if (Frame& frame = stack_.back(); frame.value.is_array()) {
      frame.value.push(std::move(v));
    } else {
      frame.value.set(std::move(frame.key), std::move(v));
    }
  }

  size_t depth() const {
    return stack_.size();
  }  // number of objects and arrays that are still open
  bool object_at(size_t level) const { return stack_[level].value.is_object(); }
  // Returns the key that was set last in the open object at depth `level`.
  const std::string& key_at(size_t level) const { return stack_[level].key; }
  size_t values() const { return values_; }  // number of values added so far
  Json take() { return std::move(root_); }

 private:
  struct Frame {
    Json value;
    std::string key;
    std::set<std::string, std::less<>> keys;
  };
  Json root_;
  size_t values_ = 0;
  std::vector<Frame> stack_;
};

}  // namespace moebius
