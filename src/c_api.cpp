// SPDX-License-Identifier: Apache-2.0
// The C interface over the C++ one. Exceptions end here: they become the thread's last error.
#include <cstring>
#include <exception>
#include <new>

#include "moebius/moebius.h"
#include "moebius/moebius.hpp"

namespace {

using moebius::ElementType;

thread_local std::string last_error;

// Runs fn; on an exception keeps its words and returns `failed`.
template <class R, class F>
R guarded(R failed, F&& fn) noexcept {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    last_error = "out of memory";
  } catch (const std::exception& e) {
    last_error = e.what();
  }
  return failed;
}

void require(const void* pointer, const char* what) {
  if (pointer == nullptr) throw moebius::Error(std::string(what) + " is NULL");
}

// A C caller can store any number in an enum; in C++ merely loading such a value as the enum is
// undefined.
template <typename Enum>
int number_of(const Enum& e) {
  int number = 0;
  static_assert(sizeof number == sizeof e);
  std::memcpy(&number, &e, sizeof number);
  return number;
}

ElementType element_type(const moebius_type& t) {
  switch (number_of(t)) {
    case MOEBIUS_F32:
      return ElementType::kF32;
    case MOEBIUS_BF16:
      return ElementType::kBf16;
    case MOEBIUS_F16:
      return ElementType::kF16;
  }
  throw moebius::Error("unknown element type " + std::to_string(number_of(t)) +
                       "; expected MOEBIUS_F32, MOEBIUS_BF16 or MOEBIUS_F16");
}

moebius::Arithmetic arithmetic_of(const moebius_arithmetic& a) {
  switch (number_of(a)) {
    case MOEBIUS_DECLARED:
      return moebius::Arithmetic::kDeclared;
    case MOEBIUS_EXACT:
      return moebius::Arithmetic::kExact;
    case MOEBIUS_APPROXIMATE:
      return moebius::Arithmetic::kApproximate;
  }
  throw moebius::Error("unknown arithmetic " + std::to_string(number_of(a)) +
                       "; expected MOEBIUS_DECLARED, MOEBIUS_EXACT or MOEBIUS_APPROXIMATE");
}

moebius::InputMatrix input(const moebius_input* m, const char* what) {
  require(m, what);
  if (m->rows != 0) require(m->data, what);
  return {m->data, element_type(m->type), m->rows, m->cols, m->stride};
}
moebius::OutputMatrix output(const moebius_output* m, const char* what) {
  require(m, what);
  if (m->rows != 0) require(m->data, what);
  return {m->data, element_type(m->type), m->rows, m->cols, m->stride};
}

}  // namespace

struct moebius_runtime {
  std::shared_ptr<moebius::Runtime> runtime;
};

namespace {

// Members beyond options->size keep their default.
moebius::Options options_of(const moebius_options* given) {
  moebius_options o{sizeof(moebius_options), 0, nullptr, MOEBIUS_DECLARED, MOEBIUS_BF16, nullptr};
  if (given != nullptr) {
    if (given->size < sizeof(size_t)) throw moebius::Error("moebius_options.size is not set");
    std::memcpy(&o, given, given->size < sizeof o ? given->size : sizeof o);
  }
  moebius::Options out;
  out.threads = o.threads;
  out.kernel = o.kernel == nullptr ? "" : o.kernel;
  out.arithmetic = arithmetic_of(o.arithmetic);
  out.activations = element_type(o.activations);
  if (o.runtime != nullptr) out.runtime = o.runtime->runtime;
  return out;
}

}  // namespace

struct moebius_folder {
  moebius::Folder folder;
  std::vector<moebius::ModuleInfo> modules;
};
struct moebius_linear {
  moebius::Linear layer;
};
struct moebius_moe {
  moebius::Moe layer;
};

namespace {

const moebius::ModuleInfo& module_at(const moebius_folder* folder, size_t i) {
  require(folder, "folder");
  if (i >= folder->modules.size())
    throw moebius::Error("module " + std::to_string(i) + " of a folder that has " +
                         std::to_string(folder->modules.size()));
  return folder->modules[i];
}

// What a layer says of itself; 0 when there is no layer.
template <class Layer, class F>
size_t fact_of(const Layer* layer, F&& fact) noexcept {
  return guarded<size_t>(0, [&] { return require(layer, "layer"), fact(layer->layer); });
}

}  // namespace

const char* moebius_version(void) {
  static const std::string kVersion = moebius::version();
  return kVersion.c_str();
}
const char* moebius_last_error(void) { return last_error.c_str(); }

moebius_runtime* moebius_runtime_new(int32_t threads) {
  return guarded<moebius_runtime*>(
      nullptr, [&] { return new moebius_runtime{moebius::make_runtime(threads)}; });
}
void moebius_runtime_free(moebius_runtime* runtime) { delete runtime; }
size_t moebius_runtime_threads(const moebius_runtime* runtime) {
  return guarded<size_t>(
      0, [&] { return require(runtime, "runtime"), moebius::threads_of(*runtime->runtime); });
}

moebius_folder* moebius_folder_open(const char* path) {
  return guarded<moebius_folder*>(nullptr, [&] {
    require(path, "path");
    moebius::Folder folder = moebius::Folder::open(path);
    std::vector<moebius::ModuleInfo> modules = folder.modules();
    return new moebius_folder{std::move(folder), std::move(modules)};
  });
}
void moebius_folder_free(moebius_folder* folder) { delete folder; }
size_t moebius_folder_module_count(const moebius_folder* f) {
  return guarded<size_t>(0, [&] { return require(f, "folder"), f->modules.size(); });
}
const char* moebius_folder_module_name(const moebius_folder* f, size_t i) {
  return guarded<const char*>(nullptr, [&] { return module_at(f, i).name.c_str(); });
}
const char* moebius_folder_module_scheme(const moebius_folder* f, size_t i) {
  return guarded<const char*>(nullptr, [&] { return module_at(f, i).scheme.c_str(); });
}
const char* moebius_folder_module_problem(const moebius_folder* f, size_t i) {
  return guarded<const char*>(nullptr, [&] {
    const moebius::ModuleInfo& m = module_at(f, i);
    return m.supported ? nullptr : m.reason.c_str();
  });
}

moebius_linear* moebius_linear_load(const moebius_folder* folder, const char* module,
                                    const moebius_options* options) {
  return guarded<moebius_linear*>(nullptr, [&] {
    require(folder, "folder"), require(module, "module");
    return new moebius_linear{folder->folder.linear(module, options_of(options))};
  });
}
void moebius_linear_free(moebius_linear* layer) { delete layer; }
size_t moebius_linear_inputs(const moebius_linear* l) {
  return fact_of(l, [](const moebius::Linear& x) { return x.inputs(); });
}
size_t moebius_linear_outputs(const moebius_linear* l) {
  return fact_of(l, [](const moebius::Linear& x) { return x.outputs(); });
}
int moebius_linear_run(const moebius_linear* layer, const moebius_input* x,
                       const moebius_output* y) {
  return guarded(1, [&] {
    require(layer, "layer");
    layer->layer.run(input(x, "x"), output(y, "y"));
    return 0;
  });
}

moebius_moe* moebius_moe_load(const moebius_folder* folder, const char* block, int experts_only,
                              const moebius_options* options) {
  return guarded<moebius_moe*>(nullptr, [&] {
    require(folder, "folder"), require(block, "block");
    return new moebius_moe{folder->folder.moe(
        block, options_of(options),
        experts_only != 0 ? moebius::MoeScope::kExperts : moebius::MoeScope::kBlock)};
  });
}
void moebius_moe_free(moebius_moe* layer) { delete layer; }
size_t moebius_moe_hidden(const moebius_moe* l) {
  return fact_of(l, [](const moebius::Moe& x) { return x.hidden(); });
}
size_t moebius_moe_experts(const moebius_moe* l) {
  return fact_of(l, [](const moebius::Moe& x) { return x.experts(); });
}
size_t moebius_moe_slots(const moebius_moe* l) {
  return fact_of(l, [](const moebius::Moe& x) { return x.slots(); });
}
int moebius_moe_run(const moebius_moe* layer, const moebius_input* x, const moebius_output* y) {
  return guarded(1, [&] {
    require(layer, "layer");
    layer->layer.run(input(x, "x"), output(y, "y"));
    return 0;
  });
}
int moebius_moe_run_logits(const moebius_moe* layer, const moebius_input* x,
                           const moebius_input* logits, const moebius_output* y) {
  return guarded(1, [&] {
    require(layer, "layer");
    layer->layer.run_logits(input(x, "x"), input(logits, "logits"), output(y, "y"));
    return 0;
  });
}
int moebius_moe_run_ids(const moebius_moe* layer, const moebius_input* x, const int32_t* ids,
                        const float* weights, size_t k, const moebius_output* y) {
  return guarded(1, [&] {
    require(layer, "layer");
    const moebius::InputMatrix in = input(x, "x");
    if (in.rows != 0) require(ids, "ids"), require(weights, "weights");
    layer->layer.run_ids(in, ids, weights, k, output(y, "y"));
    return 0;
  });
}
