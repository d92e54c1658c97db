// SPDX-License-Identifier: Apache-2.0
// What the units of the C interface share: handles that are numbers in a table, so that one that was
// freed, is of another kind, or comes from before a fork() is noticed; and the border that no
// exception crosses.
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

// The number of a handle is never used again. Objects live as long as a call uses them, also when
// another thread frees the handle meanwhile.
void* add_handle(HandleKind kind, std::shared_ptr<void> object);
// Throws Error calling the argument `what`.
std::shared_ptr<void> find_handle(HandleKind kind, const void* handle, const char* what);
void remove_handle(HandleKind kind, void* handle);

// Keeps what is being thrown as the thread's last error; call in a handler.
void keep_last_error() noexcept;

// Runs fn; on an exception keeps its words and returns `failed`.
template <class R, class F>
R guarded(R failed, F&& fn) noexcept {
  try {
    return fn();
  } catch (...) {
    keep_last_error();
  }
  return failed;
}
// The same for functions that return 0 or 1.
template <class F>
int guarded_status(F&& fn) noexcept {
  return guarded(1, [&] { return fn(), 0; });
}

[[noreturn]] void bad_argument(const std::string& what, const char* field);
void require(const void* pointer, const char* what);
char* new_string(const std::string& text, size_t* bytes = nullptr);

// A C caller can store any number in an enum; in C++ merely loading such a value as the enum is
// undefined.
template <typename Enum>
int number_of(const Enum& e) {
  int number = 0;
  static_assert(sizeof number == sizeof e);
  std::memcpy(&number, &e, sizeof number);
  return number;
}
// The enum's value; throws unless it is below `count`.
template <typename To, typename Enum>
To enum_of(const Enum& e, int count, const char* what) {
  const int number = number_of(e);
  if (number < 0 || number >= count)
    bad_argument("unknown " + std::string(what) + " " + std::to_string(number) +
                     "; expected 0 to " + std::to_string(count - 1),
                 what);
  return static_cast<To>(number);
}

// Copies a struct of the caller over `to`, which holds the defaults: members beyond its size keep
// them.
template <class Struct>
void take_struct(const Struct* given, Struct& to, const char* what) {
  if (given == nullptr) return;
  if (given->size < sizeof(size_t) || given->size > 65536)
    bad_argument(std::string(what) + ".size is not set", "size");
  std::memcpy(static_cast<void*>(&to), given, given->size < sizeof to ? given->size : sizeof to);
}

}  // namespace moebius
