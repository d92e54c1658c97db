// SPDX-License-Identifier: Apache-2.0
// Handles of the C interface: a handle is a number in a table, so that one which was freed, has
// another kind, or is from before a fork() is detected; and wrappers that stop exceptions at the
// interface.
#pragma once
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "moebius/error.h"

namespace moebius {

enum class HandleKind {
  kRuntime,
  kFolder,
  kLinear,
  kMoe,
  kTokenizer,
  kStream,
  kModel,
  kEngine,
  kScheme,
  kMoeBuilder,
};

// Adds an object and returns its handle, whose number is never used again. An object lives as long
// as a call uses it, even if another thread frees the handle meanwhile. Thread-safe.
void* add_handle(HandleKind kind, std::shared_ptr<void> object);
// Returns the object of a handle. Throws Error with the name that handles of this kind have as
// arguments if the handle is not valid.
std::shared_ptr<void> find_handle(HandleKind kind, const void* handle);
void remove_handle(HandleKind kind, void* handle);

// Stores the current exception as this thread's last error; call it in a handler.
void keep_last_error() noexcept;

// Returns fn(); if it throws, stores the error and returns `failed`.
template <class R, class F>
R guarded(R failed, F&& fn) noexcept {
  try {
    return fn();
  } catch (...) {
    keep_last_error();
  }
  return failed;
}
// Runs fn and returns 0; if it throws, stores the error and returns 1.
template <class F>
int guarded_status(F&& fn) noexcept {
  return guarded(1, [&] { return fn(), 0; });
}

[[noreturn]] void bad_argument(const std::string& what, const char* field);
void require(const void* pointer, const char* what);
// Returns item i of a list. Throws Error that names what it is an item of.
template <class List>
const auto& item_of(const List& list, size_t i, const char* what, const char* owner,
                    const char* field) {
  if (i >= list.size())
    bad_argument(
        std::string(what) + " " + std::to_string(i) + " of " + owner + std::to_string(list.size()),
        field);
  return list[i];
}
char* new_string(const std::string& text, size_t* bytes = nullptr);

// Returns an enum of a C caller as a number. A C caller can store any number there, and in C++
// reading it as the enum would be undefined.
template <typename Enum>
int number_of(const Enum& e) {
  int number = 0;
  static_assert(sizeof number == sizeof e);
  std::memcpy(&number, &e, sizeof number);
  return number;
}
// Returns the enum's value. Throws Error unless it is below `count`.
template <typename To, typename Enum>
To enum_of(const Enum& e, int count, const char* what) {
  const int number = number_of(e);
  if (number < 0 || number >= count)
    bad_argument("unknown " + std::string(what) + " " + std::to_string(number) +
                     "; expected 0 to " + std::to_string(count - 1),
                 what);
  return static_cast<To>(number);
}

// Copies the caller's struct over `to`, which holds the defaults; members beyond the caller's size
// keep them.
template <class Struct>
void take_struct(const Struct* given, Struct& to, const char* what) {
  if (given == nullptr) return;
  if (given->size < sizeof(size_t) || given->size > 65536)
    bad_argument(std::string(what) + ".size is not set", "size");
  std::memcpy(static_cast<void*>(&to), given, given->size < sizeof to ? given->size : sizeof to);
}

}  // namespace moebius
