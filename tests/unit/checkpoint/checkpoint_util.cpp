// SPDX-License-Identifier: Apache-2.0
// See checkpoint_util.h.
#include "unit/checkpoint/checkpoint_util.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace moebius::test {
namespace {

uint64_t byte_count(const TinyTensor& t) {
  uint64_t bits = bits_of(t.dtype);
  for (const uint64_t d : t.shape) bits *= d;
  return bits / 8;
}

std::vector<uint8_t> payload(const TinyTensor& t) {
  if (!t.bytes.empty()) return t.bytes;
  std::vector<uint8_t> out(byte_count(t), 0);
  if (t.name.find("scale") == std::string::npos) return out;
  for (size_t i = 0; i < out.size(); ++i) {  // 1.0 in the tensor's type
    if (t.dtype == DType::kBf16) out[i] = i % 2 == 0 ? 0x80 : 0x3f;
    if (t.dtype == DType::kF32) out[i] = i % 4 == 2 ? 0x80 : i % 4 == 3 ? 0x3f : 0;
    if (t.dtype == DType::kF8E4M3) out[i] = 0x38;
    if (t.dtype == DType::kU8) out[i] = 127;
  }
  return out;
}

}  // namespace

TinyModel& TinyModel::add(const std::string& name, std::vector<uint64_t> shape, DType dtype,
                          std::vector<uint8_t> bytes) {
  tensors_.push_back({name, dtype, std::move(shape), std::move(bytes)});
  return *this;
}

TinyModel& TinyModel::remove(const std::string& name) {
  std::erase_if(tensors_, [&](const TinyTensor& t) { return t.name == name; });
  return *this;
}

TinyModel& TinyModel::skeleton(bool lm_head) {
  add(prefix_ + "embed_tokens.weight", {32, 64}).add(prefix_ + "norm.weight", {64});
  if (lm_head) add("lm_head.weight", {32, 64});
  for (int i = 0; i < layers_; ++i) {
    const std::string layer = fmt::format("{}layers.{}.", prefix_, i);
    add(layer + "input_layernorm.weight", {64})
        .add(layer + "post_attention_layernorm.weight", {64});
    add(layer + "self_attn.q_proj.weight", {64, 64})
        .add(layer + "self_attn.k_proj.weight", {32, 64});
    add(layer + "self_attn.v_proj.weight", {32, 64})
        .add(layer + "self_attn.o_proj.weight", {64, 64});
  }
  return *this;
}

TinyModel& TinyModel::dense_mlp(const std::string& block, uint64_t width) {
  return add(block + ".gate_proj.weight", {width, 64})
      .add(block + ".up_proj.weight", {width, 64})
      .add(block + ".down_proj.weight", {64, width});
}

TinyModel& TinyModel::experts(const std::string& block, uint64_t count,
                              std::vector<std::string> names) {
  for (uint64_t e = 0; e < count; ++e)
    for (size_t p = 0; p < 3; ++p)
      add(fmt::format("{}.experts.{}.{}.weight", block, e, names[p]),
          p == 2 ? std::vector<uint64_t>{64, 32} : std::vector<uint64_t>{32, 64});
  return *this;
}

TinyModel& TinyModel::packed(const std::string& module, uint64_t N, uint64_t K, uint64_t group) {
  const int64_t shape[2] = {static_cast<int64_t>(N), static_cast<int64_t>(K)};
  std::vector<uint8_t> bytes(sizeof shape);
  std::memcpy(bytes.data(), shape, sizeof shape);
  add(module + ".weight_packed", {N, K / 8}, DType::kI32);
  add(module + ".weight_scale", {N, group == 0 ? 1 : K / group});
  return add(module + ".weight_shape", {2}, DType::kI64, std::move(bytes));
}

std::string TinyModel::config_text() const {
  return fmt::format(
      R"({{"num_hidden_layers": {}, "hidden_size": 64, "vocab_size": 32, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 16, "dtype": "bfloat16", {}}})",
      layers_, config_);
}

ModelConfig TinyModel::config(std::vector<std::string>* warnings) const {
  std::vector<std::string> own;
  return ModelConfig::parse(parse_json(config_text(), "config.json"), "config.json",
                            warnings != nullptr ? *warnings : own);
}

std::vector<TensorInfo> TinyModel::infos() const {
  std::vector<TensorInfo> out;
  for (const TinyTensor& t : tensors_) {
    TensorInfo info;
    info.name = t.name;
    info.dtype = t.dtype;
    info.shape = t.shape;
    info.bytes = byte_count(t);
    out.push_back(std::move(info));
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return out;
}

ModuleMap TinyModel::map() const {
  kept_ = infos();
  return map_modules(kept_, config(), "folder",
                     [](const TensorInfo& t) { return "model.safetensors: " + t.name; });
}

std::string TinyModel::write(const TempDir& dir) const {
  write_file(dir / "config.json", config_text());
  std::vector<std::vector<uint8_t>> bytes;
  std::vector<TensorData> data;
  bytes.reserve(tensors_.size());
  for (const TinyTensor& t : tensors_) {
    bytes.push_back(payload(t));
    data.push_back({t.name, t.dtype, t.shape, bytes.back()});
  }
  write_safetensors((dir / "model.safetensors").string(), data);
  return dir.path().string();
}

const MappedModule* find(const ModuleMap& map, const std::string& name) {
  for (const MappedModule& m : map.modules)
    if (m.module.name == name) return &m;
  return nullptr;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace moebius::test
