// SPDX-License-Identifier: Apache-2.0
// The objects behind the handles of the C interface.
#pragma once
#include <mutex>
#include <type_traits>
#include <vector>

#include "api/c_handles.h"
#include "moebius/build.hpp"
#include "moebius/model.hpp"
#include "moebius/moebius.h"

namespace moebius {

// Holds a folder, with all data that C callers get pointers into.
struct CFolder {
  explicit CFolder(const std::string& path)
      : folder(Folder::open(path)),
        architecture(folder.architecture()),
        modules(folder.modules()),
        blocks(folder.moe_blocks()),
        warnings(folder.warnings()) {}
  Folder folder;
  std::string architecture;
  std::vector<ModuleInfo> modules;
  std::vector<std::string> blocks, warnings;
};

struct CEngine {
  explicit CEngine(llm::Engine e) : engine(std::move(e)) {}
  llm::Engine engine;
  std::mutex mutex;  // guards the results of the last step below
  std::vector<llm::Event> events;
  std::vector<std::vector<moebius_alternative>> tops;
  std::vector<moebius_event> list;
};

// Holds a stream and a mutex: Stream is not thread-safe, the C interface is.
struct CStream {
  explicit CStream(llm::Stream s) : stream(std::move(s)) {}
  llm::Stream stream;
  std::mutex mutex;
};

// Holds a scheme, with all data that C callers get pointers into.
struct CScheme {
  explicit CScheme(build::Scheme s) : scheme(std::move(s)), tensors(scheme.tensors()) {}
  build::Scheme scheme;
  std::vector<build::TensorNeed> tensors;
};

// Describes a handle type of C: its kind, and the type of its object.
template <class T, HandleKind k>
struct Handled {
  using Object = T;
  static constexpr HandleKind kKind = k;
};
// The table of handle types: declarations whose result types say which object and kind belong to a
// C type.
Handled<Runtime, HandleKind::kRuntime> handled(const moebius_runtime*);
Handled<CFolder, HandleKind::kFolder> handled(const moebius_folder*);
Handled<Linear, HandleKind::kLinear> handled(const moebius_linear*);
Handled<Moe, HandleKind::kMoe> handled(const moebius_moe*);
Handled<llm::Tokenizer, HandleKind::kTokenizer> handled(const moebius_tokenizer*);
Handled<CStream, HandleKind::kStream> handled(const moebius_stream*);
Handled<llm::Model, HandleKind::kModel> handled(const moebius_model*);
Handled<CEngine, HandleKind::kEngine> handled(const moebius_engine*);
Handled<CScheme, HandleKind::kScheme> handled(const moebius_scheme*);
Handled<build::MoeBuilder, HandleKind::kMoeBuilder> handled(const moebius_moe_builder*);

template <class Handle>
using HandledBy = decltype(handled(static_cast<const Handle*>(nullptr)));
template <class Handle>
using ObjectOf = typename HandledBy<Handle>::Object;

template <class Handle>
Handle* new_handle(std::shared_ptr<ObjectOf<Handle>> object) {
  return static_cast<Handle*>(add_handle(HandledBy<Handle>::kKind, std::move(object)));
}
// Returns the object of a handle. Throws Error with the name of the argument if the handle is not
// valid.
template <class Handle>
std::shared_ptr<ObjectOf<Handle>> get(const Handle* handle) {
  constexpr HandleKind kKind = HandledBy<Handle>::kKind;
  return std::static_pointer_cast<ObjectOf<Handle>>(find_handle(kKind, handle));
}
template <class Handle>
void free_handle(Handle* handle) {
  guarded_status([&] { remove_handle(HandledBy<Handle>::kKind, handle); });
}

// Runs fn and returns a handle of the object that is made from its result. If fn throws, stores the
// error and returns NULL.
template <class Handle, class F>
Handle* made(F&& fn) noexcept {
  return guarded<Handle*>(
      nullptr, [&] { return new_handle<Handle>(std::make_shared<ObjectOf<Handle>>(fn())); });
}
// Runs fn and returns its result as C has it: a text as a string of the caller's, a truth value as 0
// or 1, no result as 0. If fn throws, stores the error and returns NULL or 0, or 1 in place of no
// result.
template <class F>
auto answer(F&& fn) noexcept {
  using Result = decltype(fn());
  if constexpr (std::is_void_v<Result>)
    return guarded_status(fn);
  else if constexpr (std::is_same_v<Result, std::string>)
    return guarded<char*>(nullptr, [&] { return new_string(fn()); });
  else if constexpr (std::is_same_v<Result, bool>)
    return guarded(0, [&] { return fn() ? 1 : 0; });
  else
    return guarded(Result{}, fn);
}
// Returns the text as answer() does; its length goes to *bytes unless bytes is null.
template <class F>
char* answer(size_t* bytes, F&& fn) noexcept {
  return guarded<char*>(nullptr, [&] { return new_string(fn(), bytes); });
}
// Calls a member function of the object of a handle without arguments and returns its answer.
template <class Handle, class Member>
auto fact(const Handle* handle, Member member) noexcept {
  return answer([&] { return ((*get(handle)).*member)(); });
}

Options options_of(const moebius_options* given);
inline std::string text_of(const char* text) { return text == nullptr ? "" : text; }
inline Progress progress_of(moebius_progress tell, void* user) {
  if (tell == nullptr) return nullptr;
  return [=](uint64_t done, uint64_t total) { return tell(user, done, total) == 0; };
}
inline std::shared_ptr<Runtime> runtime_named(const moebius_runtime* runtime) {
  return runtime == nullptr ? nullptr : get(runtime);
}

// Copies the options that layers and models share to those of C++.
template <class From, class To>
void take_shared(const From& o, To& out) {
  out.threads = o.threads;
  out.kernel = text_of(o.kernel);
  out.arithmetic = enum_of<Arithmetic>(o.arithmetic, 3, "arithmetic");
  out.int8 = enum_of<Int8Rows>(o.int8_rows, 3, "int8_rows");
  out.rows = enum_of<ActivationRows>(o.rows, 2, "rows");
  out.runtime = runtime_named(o.runtime);
  out.progress = progress_of(o.progress, o.user);
}

// Copies `value` into the caller's struct, as much as that has room for.
template <class Struct>
void give_struct(Struct value, Struct* to, const char* what) {
  require(to, what);
  if (to->size < sizeof(size_t)) bad_argument(std::string(what) + ".size is not set", what);
  value.size = to->size;
  std::memcpy(static_cast<void*>(to), &value, to->size < sizeof value ? to->size : sizeof value);
}

}  // namespace moebius
