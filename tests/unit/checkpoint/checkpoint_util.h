// SPDX-License-Identifier: Apache-2.0
// For tests of configs, module maps and folders: tiny models described as lists of tensors, written
// to a folder when needed. Sizes everywhere: hidden 64, vocabulary 32, 4 heads of 16 with 2
// key-value heads, expert width 32, dense width 48.
#pragma once
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "unit/test_util.h"

namespace moebius::test {

// A tensor with its bytes; empty bytes are written as zeros (scales as ones).
struct TinyTensor {
  std::string name;
  DType dtype = DType::kBf16;
  std::vector<uint64_t> shape;
  std::vector<uint8_t> bytes;
};

class TinyModel {
 public:
  // `config` holds the members of config.json without the braces; common sizes are added.
  explicit TinyModel(std::string config, std::string prefix = "model.", int layers = 1)
      : config_(std::move(config)), prefix_(std::move(prefix)), layers_(layers) {}

  TinyModel& add(const std::string& name, std::vector<uint64_t> shape, DType dtype = DType::kBf16,
                 std::vector<uint8_t> bytes = {});
  TinyModel& remove(const std::string& name);
  // Embedding, norms, lm_head and grouped-query attention of all layers.
  TinyModel& skeleton(bool lm_head = true);
  TinyModel& dense_mlp(const std::string& block, uint64_t width = 48);
  // Per-expert dense weights under `block`, with projection names gate, up, down.
  TinyModel& experts(const std::string& block, uint64_t count, std::vector<std::string> names);
  // int4 pack-quantized linear: weight_packed, weight_scale, weight_shape. group 0: per channel.
  TinyModel& packed(const std::string& module, uint64_t N, uint64_t K, uint64_t group = 32);

  std::string config_text() const;
  ModelConfig config(std::vector<std::string>* warnings = nullptr) const;
  std::vector<TensorInfo> infos() const;
  ModuleMap map() const;                        // map_modules over infos()
  std::string write(const TempDir& dir) const;  // folder path
  const std::string& prefix() const { return prefix_; }
  std::vector<TinyTensor>& tensors() { return tensors_; }

 private:
  std::string config_, prefix_;
  int layers_;
  std::vector<TinyTensor> tensors_;
  mutable std::vector<TensorInfo> kept_;  // map() refers to them
};

const MappedModule* find(const ModuleMap& map, const std::string& name);
// The message of the Error that f throws; "" when it throws none.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}
bool contains(const std::string& text, const std::string& part);

}  // namespace moebius::test
