// SPDX-License-Identifier: Apache-2.0
// Helpers that the files of the public API share: conversions between the API's types and those of
// the layers.
#pragma once
#include <chrono>
#include <mutex>

#include "base/error.h"
#include "device/cpu/layer_loader.h"
#include "device/cuda/cuda_layers.h"
#include "moebius/moebius.hpp"
#include "runtime/runtime.h"

namespace moebius {

DType dtype_of(ElementType type);
Accept accept_of(Arithmetic arithmetic);
ActRequest act_request_of(Int8Rows int8, ActivationRows rows, const Policy& policy);
// Returns the given runtime, or the shared one with so many threads. Throws Error.
std::shared_ptr<Runtime> runtime_of(int threads, const std::shared_ptr<Runtime>& given);
LayerOptions layer_options(const Options& options, ThreadPool& pool);

// Returns true if the options put layers on a CUDA device. Throws Error for names other than cpu
// and cuda.
bool on_cuda(const Options& options);
// Returns the CUDA plugin beside this library. Throws Error if it is missing or the device is not
// there.
const CudaModule& library_cuda_module(int device);
// Returns how to load on the device. Throws Error if there is no device, and for one rank of
// several.
CudaLoad cuda_load(const Options& options);

// Runs fn and returns its result. An Error that leaves fn gets the fields of `place` that it does
// not have yet.
template <class F>
decltype(auto) placed(const ErrorPlace& place, F&& fn) {
  return placing_errors([&] { return place; }, fn);
}

// Throws Error about one argument of a call.
template <class... Args>
[[noreturn]] void fail_argument(const std::string& field, fmt::format_string<Args...> words,
                                Args&&... args) {
  fail_at({"argument", "", "", "", field}, words, std::forward<Args>(args)...);
}

// Counts loaded bytes and reports them to the caller from time to time, one call at a time.
// Thread-safe.
class LoadProgress {
 public:
  LoadProgress(Progress tell, uint64_t total) : tell_(std::move(tell)), total_(total) {}
  void advance(uint64_t bytes);
  void finish() const;

 private:
  void tell(uint64_t done) const;
  Progress tell_;
  std::mutex mutex_;
  uint64_t done_ = 0, total_ = 0;
  std::chrono::steady_clock::time_point next_{};
};
// Runs `load` with these options (LayerOptions or CudaLoad), reporting progress of `total` bytes to
// `tell` (which may be empty).
template <class How, class F>
auto load_told(How how, const Progress& tell, uint64_t total, F&& load) {
  LoadProgress progress(tell, total);
  if (tell) how.progress = [&](uint64_t bytes) { progress.advance(bytes); };
  auto made = load(how);
  progress.finish();
  return made;
}

// Runs `load` for a layer on a CUDA device and reports its progress; errors name `module`.
template <class F>
auto loaded_on_cuda(const Options& options, const std::string& module, uint64_t total, F&& load) {
  return placed({"file", "", "", module, ""},
                [&] { return load_told(cuda_load(options), options.progress, total, load); });
}

// Make the public objects of layers. The runtime outlives its layers.
Linear make_linear(std::shared_ptr<Runtime> runtime, std::unique_ptr<LinearLayer> layer);
Moe make_moe(std::shared_ptr<Runtime> runtime, MoeBlockLayer layer, std::string kernel);

// Runs fn; an Error that leaves it gets the name of part `i` of a layer at the beginning of its
// message.
template <class F>
auto naming_part(const std::string& name, size_t i, F&& fn) {
  try {
    return fn();
  } catch (const Error& e) {
    const std::string label = name.empty() ? fmt::format("part {}", i) : name;
    ErrorPlace place = e.place();
    if (place.module.empty()) place.module = label;
    throw Error(fmt::format("{}: {}", printable(label), e.what()), place);
  }
}

// Returns the object of a handle. Throws Error if the handle was moved from.
template <class Pointer>
auto& checked_handle(const Pointer& impl, const char* what) {
  if (impl == nullptr)
    fail_at({"state", "", "", "", ""}, "this moebius::{} is empty: it was moved from", what);
  return *impl;
}

}  // namespace moebius
