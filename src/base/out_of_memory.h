// SPDX-License-Identifier: Apache-2.0
// Handles failed allocations: builds messages without allocating, and repeats work whose result
// must not be lost.
#pragma once
#include <chrono>
#include <new>
#include <string>
#include <thread>

#include "moebius/error.h"

namespace moebius {

inline bool is_out_of_memory(const std::exception& e) noexcept {
  if (dynamic_cast<const std::bad_alloc*>(&e) != nullptr) return true;
  const auto* error = dynamic_cast<const Error*>(&e);
  return error != nullptr && error->place().kind == "memory";
}

// Returns e.what(), or "out of memory" if there is no memory for a copy of it.
inline std::string words_of(const std::exception& e) noexcept {
  try {
    if (dynamic_cast<const std::bad_alloc*>(&e) == nullptr) return e.what();
  } catch (...) {
  }
  return "out of memory";
}

// Runs `work` and returns its result; repeats it while it throws std::bad_alloc, because other
// threads will release memory.
template <class Work>
auto patiently(Work&& work) {
  for (;;) {
    try {
      return work();
    } catch (const std::bad_alloc&) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace moebius
