// SPDX-License-Identifier: Apache-2.0
// See allocations_util.h. Replaces operator new and aligned_alloc of the whole test program; they fail only while `left` counts down.
#include "unit/allocations_util.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

namespace {
constexpr long kNever = std::numeric_limits<long>::max();
std::atomic<long> left{kNever};     // allocations until one fails
std::atomic<bool> counting{false};  // otherwise they cost one load
thread_local size_t allocated = 0;  // by this thread

[[maybe_unused]] bool fails_now() {  // sanitizers bring their own operator new
  return counting.load(std::memory_order_relaxed) &&
         left.fetch_sub(1, std::memory_order_relaxed) == 0;
}
}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define MOEBIUS_TEST_OWN_NEW 0
#endif
#endif
#ifndef MOEBIUS_TEST_OWN_NEW
#define MOEBIUS_TEST_OWN_NEW 1
#endif
#else
#define MOEBIUS_TEST_OWN_NEW 0
#endif

#if MOEBIUS_TEST_OWN_NEW
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocated;
  void* p = fails_now() ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
[[gnu::noinline]] void* operator new[](size_t size) { return ::operator new(size); }
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, size_t) noexcept { std::free(p); }
extern "C" void* aligned_alloc(size_t alignment, size_t size) {
  return fails_now() ? nullptr : memalign(alignment, size);
}
#endif

size_t moebius::test::allocations() { return allocated; }
bool moebius::test::allocations_can_fail() { return MOEBIUS_TEST_OWN_NEW != 0; }
moebius::test::FailAllocation::FailAllocation(long n) { left = n, counting = true; }
moebius::test::FailAllocation::~FailAllocation() { counting = false, left = kNever; }
long moebius::test::allocations_left() { return left; }
void moebius::test::allocations_succeed() { counting = false; }
moebius::test::NoAllocationFails::NoAllocationFails() : before_(counting.exchange(false)) {}
moebius::test::NoAllocationFails::~NoAllocationFails() { counting = before_; }
