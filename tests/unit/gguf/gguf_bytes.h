// SPDX-License-Identifier: Apache-2.0
// Writes the bytes of small GGUF files, good and bad.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/gguf.h"

namespace moebius::test {

template <class T>
std::string raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

inline std::string gguf_text(std::string_view text) {
  return raw<uint64_t>(text.size()) + std::string(text);
}

struct GgufBytes {
  uint32_t version = 3;
  uint64_t alignment = 32;
  uint64_t keys = 0, tensors = 0;
  std::string key_bytes, tensor_bytes, data;

  // Adds a key with the bytes of its value.
  GgufBytes& key(std::string_view name, GgufKind kind, const std::string& value) {
    ++keys;
    key_bytes += gguf_text(name) + raw(static_cast<uint32_t>(kind)) + value;
    return *this;
  }
  GgufBytes& text(std::string_view name, std::string_view value) {
    return key(name, GgufKind::kString, gguf_text(value));
  }
  GgufBytes& u32(std::string_view name, uint32_t value) {
    return key(name, GgufKind::kU32, raw(value));
  }
  GgufBytes& f32(std::string_view name, float value) {
    return key(name, GgufKind::kF32, raw(value));
  }
  GgufBytes& flag(std::string_view name, bool value) {
    return key(name, GgufKind::kBool, raw<uint8_t>(value ? 1 : 0));
  }
  // Adds an array with the bytes of its elements.
  GgufBytes& array(std::string_view name, GgufKind kind, uint64_t count, const std::string& value) {
    return key(name, GgufKind::kArray, raw(static_cast<uint32_t>(kind)) + raw(count) + value);
  }
  template <class T>
  GgufBytes& numbers(std::string_view name, GgufKind kind, const std::vector<T>& values) {
    std::string bytes;
    for (const T v : values) bytes += raw(v);
    return array(name, kind, values.size(), bytes);
  }
  GgufBytes& texts(std::string_view name, const std::vector<std::string>& values) {
    std::string bytes;
    for (const std::string& v : values) bytes += gguf_text(v);
    return array(name, GgufKind::kString, values.size(), bytes);
  }
  // Lists a tensor; `ne` has the fastest dimension first, as in the file.
  GgufBytes& entry(std::string_view name, const std::vector<uint64_t>& ne, uint32_t type,
                   uint64_t offset) {
    ++tensors;
    tensor_bytes += gguf_text(name) + raw(static_cast<uint32_t>(ne.size()));
    for (const uint64_t n : ne) tensor_bytes += raw(n);
    tensor_bytes += raw(type) + raw(offset);
    return *this;
  }
  // Lists a tensor and adds its bytes to the data.
  GgufBytes& tensor(std::string_view name, const std::vector<uint64_t>& ne, uint32_t type,
                    const std::string& bytes) {
    data.resize((data.size() + alignment - 1) / alignment * alignment);
    entry(name, ne, type, data.size());
    data += bytes;
    return *this;
  }
  std::string head() const {
    return "GGUF" + raw(version) + raw(tensors) + raw(keys) + key_bytes + tensor_bytes;
  }
  std::string bytes() const {
    std::string all = head();
    all.resize((all.size() + alignment - 1) / alignment * alignment);
    return all + data;
  }
};

}  // namespace moebius::test
