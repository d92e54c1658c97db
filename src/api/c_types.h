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

// A folder, with all data that C callers get pointers into.
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
  llm::Engine engine;
  std::mutex mutex;  // guards the results of the last step below
  std::vector<llm::Event> events;
  std::vector<std::vector<moebius_alternative>> tops;
  std::vector<moebius_event> list;
};

// A stream with a mutex: Stream is not thread-safe, the C interface is.
struct CStream {
  llm::Stream stream;
  std::mutex mutex;
};

// A scheme, with all data that C callers get pointers into.
struct CScheme {
  build::Scheme scheme;
  std::vector<build::TensorNeed> tensors;
};

// For each handle type its kind, and (only declared) the type of its object.
constexpr HandleKind kind_of(const moebius_runtime*) { return HandleKind::kRuntime; }
Runtime* behind(const moebius_runtime*);
constexpr HandleKind kind_of(const moebius_folder*) { return HandleKind::kFolder; }
CFolder* behind(const moebius_folder*);
constexpr HandleKind kind_of(const moebius_linear*) { return HandleKind::kLinear; }
Linear* behind(const moebius_linear*);
constexpr HandleKind kind_of(const moebius_moe*) { return HandleKind::kMoe; }
Moe* behind(const moebius_moe*);
constexpr HandleKind kind_of(const moebius_tokenizer*) { return HandleKind::kTokenizer; }
llm::Tokenizer* behind(const moebius_tokenizer*);
constexpr HandleKind kind_of(const moebius_stream*) { return HandleKind::kStream; }
CStream* behind(const moebius_stream*);
constexpr HandleKind kind_of(const moebius_model*) { return HandleKind::kModel; }
llm::Model* behind(const moebius_model*);
constexpr HandleKind kind_of(const moebius_engine*) { return HandleKind::kEngine; }
CEngine* behind(const moebius_engine*);
constexpr HandleKind kind_of(const moebius_scheme*) { return HandleKind::kScheme; }
CScheme* behind(const moebius_scheme*);
constexpr HandleKind kind_of(const moebius_moe_builder*) { return HandleKind::kMoeBuilder; }
build::MoeBuilder* behind(const moebius_moe_builder*);

template <class Handle>
using ObjectOf = std::remove_pointer_t<decltype(behind(static_cast<const Handle*>(nullptr)))>;

template <class Handle>
Handle* new_handle(std::shared_ptr<ObjectOf<Handle>> object) {
  constexpr const Handle* kNone = nullptr;
  return static_cast<Handle*>(add_handle(kind_of(kNone), std::move(object)));
}
template <class Handle>
std::shared_ptr<ObjectOf<Handle>> get(const Handle* handle, const char* what) {
  return std::static_pointer_cast<ObjectOf<Handle>>(find_handle(kind_of(handle), handle, what));
}
template <class Handle>
void free_handle(Handle* handle) {
  guarded_status([&] { remove_handle(kind_of(handle), handle); });
}

Options options_of(const moebius_options* given);
inline std::string text_of(const char* text) { return text == nullptr ? "" : text; }
inline Progress progress_of(moebius_progress tell, void* user) {
  if (tell == nullptr) return nullptr;
  return [=](uint64_t done, uint64_t total) { return tell(user, done, total) == 0; };
}
inline std::shared_ptr<Runtime> runtime_named(const moebius_runtime* runtime) {
  return runtime == nullptr ? nullptr : get(runtime, "runtime");
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
