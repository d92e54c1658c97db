// SPDX-License-Identifier: Apache-2.0
// Functions for failed allocations: they tell them from other failures, find words without memory,
// and try again where a result must not be lost.
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

// Returns e.what(), or short words where memory does not suffice for it.
inline std::string words_of(const std::exception& e) noexcept {
  try {
    if (dynamic_cast<const std::bad_alloc*>(&e) == nullptr) return e.what();
  } catch (...) {
  }
  return "out of memory";
}

// Runs `work`, again and again where it throws std::bad_alloc: other threads give memory back.
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
