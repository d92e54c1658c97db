// SPDX-License-Identifier: Apache-2.0
#include "api/c_handles.h"

#include <pthread.h>

#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "moebius/moebius.h"

namespace moebius {
namespace {

// Name of a handle of each kind in messages, and of an argument of this kind.
struct KindNames {
  const char *kind, *argument;
};
constexpr KindNames kKindNames[] = {{"runtime", "runtime"},     {"folder", "folder"},
                                    {"linear", "layer"},        {"moe", "layer"},
                                    {"tokenizer", "tokenizer"}, {"stream", "stream"},
                                    {"model", "model"},         {"engine", "engine"},
                                    {"scheme", "scheme"},       {"moe builder", "builder"}};
const KindNames& names_of(HandleKind kind) { return kKindNames[static_cast<int>(kind)]; }

struct LastError {
  std::string text;
  ErrorPlace place;
};
thread_local LastError last_error;

struct Entry {
  HandleKind kind;
  uint32_t process;  // number of forks that led to this process
  std::shared_ptr<void> object;
};

struct Table {
  std::shared_mutex mutex;
  std::unordered_map<uintptr_t, Entry> entries;
  std::unordered_map<const char*, std::unique_ptr<char[]>> texts;  // texts that callers hold
  uintptr_t next = kFirst;
  uint32_t process = 0;
  static constexpr uintptr_t kFirst = 0x1000, kStep = 16;
};

Table& table() {
  // Never destroyed: handles may outlive static objects. No thread holds the table while the
  // process is copied; the child gets a new lock, because the parent's knows its owner by thread
  // id.
  static auto* all = [] {
    pthread_atfork([] { table().mutex.lock(); }, [] { table().mutex.unlock(); },
                   [] {
                     new (&table().mutex) std::shared_mutex;
                     ++table().process;
                   });
    return new Table;
  }();
  return *all;
}

uintptr_t number(const void* handle) { return reinterpret_cast<uintptr_t>(handle); }

const Entry& entry_of(const Table& t, HandleKind kind, const void* handle, const char* what) {
  const std::string name = what;
  if (handle == nullptr) throw Error(name + " is NULL", ErrorPlace{"argument", "", "", "", name});
  const auto it = t.entries.find(number(handle));
  if (it == t.entries.end()) {
    const bool was = number(handle) >= Table::kFirst && number(handle) < t.next &&
                     number(handle) % Table::kStep == 0;
    throw Error(name + (was ? " was freed" : " is not a handle of this library"),
                ErrorPlace{"state", "", "", "", name});
  }
  const Entry& e = it->second;
  if (e.kind != kind)
    throw Error(name + " is a " + names_of(e.kind).kind + "; expected a " + names_of(kind).kind,
                ErrorPlace{"argument", "", "", "", name});
  if (e.process != t.process)
    throw Error(name +
                    " was made before fork(), and its threads are not in this process; make it "
                    "here, or start workers by spawn",
                ErrorPlace{"state", "", "", "", name});
  return e;
}

}  // namespace

void* add_handle(HandleKind kind, std::shared_ptr<void> object) {
  Table& t = table();
  const std::unique_lock lock(t.mutex);
  const uintptr_t handle = t.next;
  t.entries.emplace(handle, Entry{kind, t.process, std::move(object)});
  t.next += Table::kStep;
  return reinterpret_cast<void*>(handle);
}

std::shared_ptr<void> find_handle(HandleKind kind, const void* handle) {
  Table& t = table();
  const std::shared_lock lock(t.mutex);
  return entry_of(t, kind, handle, names_of(kind).argument).object;
}

void remove_handle(HandleKind kind, void* handle) {
  if (handle == nullptr) return;
  std::shared_ptr<void> object;  // the object is destroyed after the lock is released
  Table& t = table();
  const std::unique_lock lock(t.mutex);
  entry_of(t, kind, handle, names_of(kind).kind);
  const auto it = t.entries.find(number(handle));
  object = std::move(it->second.object);
  t.entries.erase(it);
}

void keep_last_error() noexcept {
  try {
    try {
      throw;
    } catch (const Error& e) {
      last_error = {e.what(), e.place()};
    } catch (const std::bad_alloc&) {
      last_error = {"out of memory", {"memory", "", "", "", ""}};
    } catch (const std::exception& e) {
      last_error = {e.what(), {}};
    } catch (...) {
      last_error = {"an unknown error", {}};
    }
  } catch (...) {  // no memory for the message; "out of memory" needs none
    last_error.text = "out of memory";
    last_error.place = {"memory", "", "", "", ""};
  }
}

void bad_argument(const std::string& what, const char* field) {
  throw Error(what, ErrorPlace{"argument", "", "", "", field});
}

void require(const void* pointer, const char* what) {
  if (pointer == nullptr) bad_argument(std::string(what) + " is NULL", what);
}

char* new_string(const std::string& text, size_t* bytes) {
  auto copy = std::make_unique<char[]>(text.size() + 1);
  std::memcpy(copy.get(), text.c_str(), text.size() + 1);
  char* const given = copy.get();
  Table& t = table();
  const std::unique_lock lock(t.mutex);
  t.texts.emplace(given, std::move(copy));
  if (bytes != nullptr) *bytes = text.size();
  return given;
}

}  // namespace moebius

const char* moebius_last_error(void) { return moebius::last_error.text.c_str(); }

const char* moebius_last_error_field(const char* name) {
  using moebius::ErrorPlace;
  static constexpr std::pair<const char*, std::string ErrorPlace::*> kFields[] = {
      {"kind", &ErrorPlace::kind},
      {"file", &ErrorPlace::file},
      {"tensor", &ErrorPlace::tensor},
      {"module", &ErrorPlace::module},
      {"field", &ErrorPlace::field}};
  if (name == nullptr) return nullptr;
  for (const auto& [text, member] : kFields)
    if (std::strcmp(name, text) == 0) {
      const std::string& value = moebius::last_error.place.*member;
      return value.empty() ? nullptr : value.c_str();
    }
  return nullptr;
}

void moebius_string_free(char* text) {
  moebius::guarded_status([&] {
    if (text == nullptr) return;
    moebius::Table& t = moebius::table();
    const std::unique_lock lock(t.mutex);
    if (t.texts.erase(text) == 0)
      throw moebius::Error("text was freed, or is not a result of this library",
                           moebius::ErrorPlace{"state", "", "", "", "text"});
  });
}
