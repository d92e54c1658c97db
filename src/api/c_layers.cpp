// SPDX-License-Identifier: Apache-2.0
// Implements the C interface of folders and layers over the C++ one.
#include "api/c_types.h"
#include "moebius/moebius.h"

namespace moebius {
namespace {

ElementType element_type(const moebius_type& t) {
  return enum_of<ElementType>(t, 3, "element type");
}

// Converts a matrix of C, whose members have no defaults: all must be set.
template <class To, class From>
To matrix_of(const From* m, const char* what) {
  require(m, what);
  if (m->size < sizeof(From)) bad_argument(std::string(what) + ".size is not set", what);
  if (m->rows != 0) require(m->data, what);
  return {m->data, element_type(m->type), m->rows, m->cols, m->stride};
}
InputMatrix input(const moebius_input* m, const char* what) {
  return matrix_of<InputMatrix>(m, what);
}
OutputMatrix output(const moebius_output* m, const char* what) {
  return matrix_of<OutputMatrix>(m, what);
}

// Returns text i of a list that lives as long as its folder.
const char* listed(const std::vector<std::string>& list, size_t i, const char* what) {
  if (i >= list.size())
    bad_argument(std::string(what) + " " + std::to_string(i) + " of a folder that has " +
                     std::to_string(list.size()),
                 what);
  return list[i].c_str();
}

const ModuleInfo& module_at(const moebius_folder* handle, size_t i) {
  const auto folder = get(handle, "folder");
  if (i >= folder->modules.size())
    bad_argument("module " + std::to_string(i) + " of a folder that has " +
                     std::to_string(folder->modules.size()),
                 "module");
  return folder->modules[i];  // valid as long as the folder
}

const char* device_text(const std::string& name) { return name == "cuda" ? "cuda" : "cpu"; }

// Returns a fact about a layer; 0 without a layer.
template <class Handle, class F>
auto fact_of(const Handle* layer, F&& fact) noexcept {
  using R = decltype(fact(*get(layer, "layer")));
  return guarded<R>(R{}, [&] { return fact(*get(layer, "layer")); });
}

}  // namespace

Options options_of(const moebius_options* given) {
  moebius_options o{};
  o.activations = MOEBIUS_BF16;
  take_struct(given, o, "moebius_options");
  Options out;
  out.threads = o.threads;
  out.kernel = text_of(o.kernel);
  out.arithmetic = enum_of<Arithmetic>(o.arithmetic, 3, "arithmetic");
  out.int8 = enum_of<Int8Rows>(o.int8_rows, 3, "int8_rows");
  out.rows = enum_of<ActivationRows>(o.rows, 2, "rows");
  out.activations = element_type(o.activations);
  out.runtime = runtime_named(o.runtime);
  const auto size = [](size_t n) { return n == 0 ? 1 : n; };
  out.tp = size(o.tp);
  out.tp_rank = o.tp_rank;
  out.ep = size(o.ep);
  out.ep_rank = o.ep_rank;
  out.round_robin = o.round_robin != 0;
  out.progress = progress_of(o.progress, o.user);
  out.device = text_of(o.device);
  return out;
}

}  // namespace moebius

using namespace moebius;  // NOLINT: no header, though bundles include it

const char* moebius_version(void) {
  static const std::string kVersion = version();
  return kVersion.c_str();
}
uint32_t moebius_abi_version(void) { return MOEBIUS_ABI; }
const char* moebius_cpu(void) {
  return guarded<const char*>(nullptr, [] {
    static const std::string kCpu = cpu_name();
    return kCpu.c_str();
  });
}
const char* moebius_cpu_model(void) {
  return guarded<const char*>(nullptr, [] {
    static const std::string kModel = cpu_model();
    return kModel.c_str();
  });
}
int moebius_narrow_cpu(const char* features) {
  return guarded_status([&] { narrow_cpu(text_of(features)); });
}
size_t moebius_kernel_count(void) {
  return guarded<size_t>(0, [] { return kernel_titles().size(); });
}
const char* moebius_kernel_name(size_t i) {
  return guarded<const char*>(nullptr, [&] {
    static const std::vector<std::string> kNames = kernel_titles();
    if (i >= kNames.size())
      bad_argument("kernel " + std::to_string(i) + " of " + std::to_string(kNames.size()), "i");
    return kNames[i].c_str();
  });
}

moebius_runtime* moebius_runtime_new(int32_t threads) {
  return guarded<moebius_runtime*>(
      nullptr, [&] { return new_handle<moebius_runtime>(make_runtime(threads)); });
}
moebius_runtime* moebius_runtime_new_with(const moebius_runtime_options* given) {
  return guarded<moebius_runtime*>(nullptr, [&] {
    moebius_runtime_options o{};
    take_struct(given, o, "moebius_runtime_options");
    if (o.cpu_count != 0) require(o.cpus, "cpus");
    if (o.cpu_count > 65536) bad_argument("cpu_count is too large", "cpus");
    RuntimeOptions options;
    options.threads = o.threads;
    options.cpus.assign(o.cpus, o.cpus + o.cpu_count);
    options.openmp = enum_of<moebius_thread_kind>(o.kind, 2, "kind") == MOEBIUS_THREADS_OPENMP;
    return new_handle<moebius_runtime>(make_runtime(options));
  });
}
void moebius_runtime_free(moebius_runtime* runtime) { free_handle(runtime); }
size_t moebius_runtime_threads(const moebius_runtime* runtime) {
  return guarded<size_t>(0, [&] { return threads_of(*get(runtime, "runtime")); });
}

moebius_folder* moebius_folder_open(const char* path) {
  return guarded<moebius_folder*>(nullptr, [&] {
    require(path, "path");
    return new_handle<moebius_folder>(std::make_shared<CFolder>(path));
  });
}
void moebius_folder_free(moebius_folder* folder) { free_handle(folder); }
const char* moebius_folder_architecture(const moebius_folder* f) {
  return guarded<const char*>(nullptr, [&] { return get(f, "folder")->architecture.c_str(); });
}
size_t moebius_folder_module_count(const moebius_folder* f) {
  return guarded<size_t>(0, [&] { return get(f, "folder")->modules.size(); });
}
int moebius_folder_module(const moebius_folder* f, size_t i, moebius_module* to) {
  return guarded_status([&] {
    const ModuleInfo& m = module_at(f, i);
    give_struct({0, m.name.c_str(), m.kind.c_str(), m.scheme.c_str(), m.rule.c_str(),
                 m.supported ? nullptr : m.reason.c_str(), m.outputs, m.inputs, m.bytes},
                to, "to");
  });
}
const char* moebius_folder_module_name(const moebius_folder* f, size_t i) {
  return guarded<const char*>(nullptr, [&] { return module_at(f, i).name.c_str(); });
}
const char* moebius_folder_module_scheme(const moebius_folder* f, size_t i) {
  return guarded<const char*>(nullptr, [&] { return module_at(f, i).scheme.c_str(); });
}
const char* moebius_folder_module_problem(const moebius_folder* f, size_t i) {
  return guarded<const char*>(nullptr, [&] {
    const ModuleInfo& m = module_at(f, i);
    return m.supported ? nullptr : m.reason.c_str();
  });
}
size_t moebius_folder_block_count(const moebius_folder* f) {
  return guarded<size_t>(0, [&] { return get(f, "folder")->blocks.size(); });
}
const char* moebius_folder_block_name(const moebius_folder* f, size_t i) {
  return guarded<const char*>(nullptr,
                              [&] { return listed(get(f, "folder")->blocks, i, "block"); });
}
size_t moebius_folder_warning_count(const moebius_folder* f) {
  return guarded<size_t>(0, [&] { return get(f, "folder")->warnings.size(); });
}
const char* moebius_folder_warning(const moebius_folder* f, size_t i) {
  return guarded<const char*>(nullptr,
                              [&] { return listed(get(f, "folder")->warnings, i, "warning"); });
}
char* moebius_folder_inspect_json(const moebius_folder* f, int deep) {
  return guarded<char*>(
      nullptr, [&] { return new_string(get(f, "folder")->folder.inspect_json(deep != 0)); });
}
char* moebius_folder_explain_json(const moebius_folder* f, const char* cpu) {
  return guarded<char*>(
      nullptr, [&] { return new_string(get(f, "folder")->folder.explain_json(text_of(cpu))); });
}

moebius_linear* moebius_linear_load(const moebius_folder* folder, const char* module,
                                    const moebius_options* options) {
  return guarded<moebius_linear*>(nullptr, [&] {
    const auto f = get(folder, "folder");
    require(module, "module");
    return new_handle<moebius_linear>(
        std::make_shared<Linear>(f->folder.linear(module, options_of(options))));
  });
}
void moebius_linear_free(moebius_linear* layer) { free_handle(layer); }
size_t moebius_linear_inputs(const moebius_linear* l) {
  return fact_of(l, [](const Linear& x) { return x.inputs(); });
}
size_t moebius_linear_outputs(const moebius_linear* l) {
  return fact_of(l, [](const Linear& x) { return x.outputs(); });
}
char* moebius_linear_kernel(const moebius_linear* l) {
  return fact_of(l, [](const Linear& x) { return new_string(x.kernel()); });
}
uint64_t moebius_linear_packed_bytes(const moebius_linear* l) {
  return fact_of(l, [](const Linear& x) { return x.packed_bytes(); });
}
const char* moebius_linear_device(const moebius_linear* l) {
  return fact_of(l, [](const Linear& x) { return device_text(x.device()); });
}
int moebius_linear_launch(const moebius_linear* layer, const moebius_input* x,
                          const moebius_output* y, void* stream) {
  return guarded_status(
      [&] { get(layer, "layer")->launch(input(x, "x"), output(y, "y"), stream); });
}
int moebius_linear_run(const moebius_linear* layer, const moebius_input* x,
                       const moebius_output* y) {
  return guarded_status([&] { get(layer, "layer")->run(input(x, "x"), output(y, "y")); });
}

moebius_moe* moebius_moe_load(const moebius_folder* folder, const char* block, int experts_only,
                              const moebius_options* options) {
  return guarded<moebius_moe*>(nullptr, [&] {
    const auto f = get(folder, "folder");
    require(block, "block");
    return new_handle<moebius_moe>(std::make_shared<Moe>(f->folder.moe(
        block, options_of(options), experts_only != 0 ? MoeScope::kExperts : MoeScope::kBlock)));
  });
}
void moebius_moe_free(moebius_moe* layer) { free_handle(layer); }
size_t moebius_moe_hidden(const moebius_moe* l) {
  return fact_of(l, [](const Moe& x) { return x.hidden(); });
}
size_t moebius_moe_experts(const moebius_moe* l) {
  return fact_of(l, [](const Moe& x) { return x.experts(); });
}
size_t moebius_moe_slots(const moebius_moe* l) {
  return fact_of(l, [](const Moe& x) { return x.slots(); });
}
char* moebius_moe_kernel(const moebius_moe* l) {
  return fact_of(l, [](const Moe& x) { return new_string(x.kernel()); });
}
uint64_t moebius_moe_packed_bytes(const moebius_moe* l) {
  return fact_of(l, [](const Moe& x) { return x.packed_bytes(); });
}
int moebius_moe_run(const moebius_moe* layer, const moebius_input* x, const moebius_output* y,
                    int32_t* ids, float* weights) {
  return guarded_status(
      [&] { get(layer, "layer")->run(input(x, "x"), output(y, "y"), ids, weights); });
}
int moebius_moe_run_logits(const moebius_moe* layer, const moebius_input* x,
                           const moebius_input* logits, const moebius_output* y, int32_t* ids,
                           float* weights) {
  return guarded_status([&] {
    get(layer, "layer")
        ->run_logits(input(x, "x"), input(logits, "logits"), output(y, "y"), ids, weights);
  });
}
int moebius_moe_run_ids(const moebius_moe* layer, const moebius_input* x, const int32_t* ids,
                        const float* weights, size_t k, const moebius_output* y) {
  return guarded_status([&] {
    const auto moe = get(layer, "layer");
    const InputMatrix in = input(x, "x");
    if (in.rows != 0 && k != 0) require(ids, "ids"), require(weights, "weights");
    moe->run_ids(in, ids, weights, k, output(y, "y"));
  });
}

const char* moebius_moe_device(const moebius_moe* l) {
  return fact_of(l, [](const Moe& x) { return device_text(x.device()); });
}
int moebius_moe_launch(const moebius_moe* layer, const moebius_input* x, const moebius_output* y,
                       int32_t* ids, float* weights, void* stream) {
  return guarded_status(
      [&] { get(layer, "layer")->launch(input(x, "x"), output(y, "y"), ids, weights, stream); });
}
int moebius_moe_launch_logits(const moebius_moe* layer, const moebius_input* x,
                              const moebius_input* logits, const moebius_output* y, int32_t* ids,
                              float* weights, void* stream) {
  return guarded_status([&] {
    get(layer, "layer")
        ->launch_logits(input(x, "x"), input(logits, "logits"), output(y, "y"), ids, weights,
                        stream);
  });
}
int moebius_moe_launch_ids(const moebius_moe* layer, const moebius_input* x, const int32_t* ids,
                           const float* weights, size_t k, const moebius_output* y, void* stream) {
  return guarded_status([&] {
    const auto moe = get(layer, "layer");
    const InputMatrix in = input(x, "x");
    if (in.rows != 0 && k != 0) require(ids, "ids"), require(weights, "weights");
    moe->launch_ids(in, ids, weights, k, output(y, "y"), stream);
  });
}
