// SPDX-License-Identifier: Apache-2.0
// The plugin as the judge uses it: opened, arrays on the device, layers that free themselves.
#pragma once
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/numeric.h"
#include "device/cuda/cuda_table.h"

namespace moebius::judge {

inline const CudaApi* g_api = nullptr;

inline void must(CudaStatus status, const char* what) {
  if (status == CudaStatus::kOk) return;
  std::printf("FAILED %s: status %d: %s\n", what, static_cast<int>(status), g_api->message());
  std::exit(1);
}

inline const CudaApi* open_plugin(const char* file) {
  void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::printf("%s\n", dlerror());
    return nullptr;
  }
  const auto entry = reinterpret_cast<const CudaApi* (*)(uint32_t)>(dlsym(library, kCudaSymbol));
  return entry != nullptr ? entry(kCudaAbi) : nullptr;
}

template <class T>
class Array {
 public:
  explicit Array(size_t n) : n_(n) {
    void* p = nullptr;
    must(g_api->allocate(n * sizeof(T), &p), "allocate");
    data_ = std::shared_ptr<void>(p, [](void* q) { g_api->release(q); });
  }
  explicit Array(const std::vector<T>& v) : Array(v.size()) {
    if (!v.empty()) must(g_api->upload(data(), v.data(), v.size() * sizeof(T), nullptr), "upload");
  }
  T* data() const { return static_cast<T*>(data_.get()); }
  size_t size() const { return n_; }
  std::vector<T> read() const {
    std::vector<T> out(n_);
    if (n_ > 0) must(g_api->download(out.data(), data(), n_ * sizeof(T), nullptr), "download");
    return out;
  }

 private:
  size_t n_;
  std::shared_ptr<void> data_;
};

// Rows of a 16-bit type or f32, from numbers that it holds.
inline std::vector<uint8_t> stored_rows(const std::vector<float>& x, XType type) {
  std::vector<uint8_t> out(x.size() * (type == XType::kF32 ? 4 : 2));
  for (size_t i = 0; i < x.size(); ++i) {
    if (type == XType::kF32) {
      std::memcpy(out.data() + 4 * i, &x[i], 4);
    } else {
      const uint16_t h = type == XType::kBf16 ? f32_to_bf16(x[i]) : f32_to_f16(x[i]);
      std::memcpy(out.data() + 2 * i, &h, 2);
    }
  }
  return out;
}

struct LayerFree {
  void operator()(void* layer) const { g_api->free_layer(layer); }
};
using LayerPtr = std::unique_ptr<void, LayerFree>;

}  // namespace moebius::judge
