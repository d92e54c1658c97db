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

// Returns item i of a list that lives as long as its folder.
template <class List>
const auto& listed(const moebius_folder* folder, List CFolder::*list, size_t i, const char* what) {
  return item_of((*get(folder)).*list, i, what, "a folder that has ", what);
}
const ModuleInfo& module_at(const moebius_folder* folder, size_t i) {
  return listed(folder, &CFolder::modules, i, "module");
}

const char* device_text(const std::string& name) { return name == "cuda" ? "cuda" : "cpu"; }

// Returns how many items a list of a folder has.
template <class List>
size_t count(const moebius_folder* folder, List CFolder::*list) noexcept {
  return answer([&] { return ((*get(folder)).*list).size(); });
}

}  // namespace

Options options_of(const moebius_options* given) {
  moebius_options o{};
  o.activations = MOEBIUS_BF16;
  take_struct(given, o, "moebius_options");
  Options out;
  take_shared(o, out);
  out.activations = element_type(o.activations);
  const auto size = [](size_t n) { return n == 0 ? 1 : n; };
  out.tp = size(o.tp);
  out.tp_rank = o.tp_rank;
  out.ep = size(o.ep);
  out.ep_rank = o.ep_rank;
  out.round_robin = o.round_robin != 0;
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
  return answer([] {
    static const std::string kCpu = cpu_name();
    return kCpu.c_str();
  });
}
const char* moebius_cpu_model(void) {
  return answer([] {
    static const std::string kModel = cpu_model();
    return kModel.c_str();
  });
}
int moebius_narrow_cpu(const char* features) {
  return answer([&] { narrow_cpu(text_of(features)); });
}
size_t moebius_kernel_count(void) {
  return answer([] { return kernel_titles().size(); });
}
const char* moebius_kernel_name(size_t i) {
  return answer([&] {
    static const std::vector<std::string> kNames = kernel_titles();
    return item_of(kNames, i, "kernel", "", "i").c_str();
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
  return answer([&] { return threads_of(*get(runtime)); });
}

moebius_folder* moebius_folder_open(const char* path) {
  return made<moebius_folder>([&] {
    require(path, "path");
    return std::string(path);
  });
}
void moebius_folder_free(moebius_folder* folder) { free_handle(folder); }
const char* moebius_folder_architecture(const moebius_folder* f) {
  return answer([&] { return get(f)->architecture.c_str(); });
}
size_t moebius_folder_module_count(const moebius_folder* f) { return count(f, &CFolder::modules); }
int moebius_folder_module(const moebius_folder* f, size_t i, moebius_module* to) {
  return answer([&] {
    const ModuleInfo& m = module_at(f, i);
    give_struct({0, m.name.c_str(), m.kind.c_str(), m.scheme.c_str(), m.rule.c_str(),
                 m.supported ? nullptr : m.reason.c_str(), m.outputs, m.inputs, m.bytes},
                to, "to");
  });
}
const char* moebius_folder_module_name(const moebius_folder* f, size_t i) {
  return answer([&] { return module_at(f, i).name.c_str(); });
}
const char* moebius_folder_module_scheme(const moebius_folder* f, size_t i) {
  return answer([&] { return module_at(f, i).scheme.c_str(); });
}
const char* moebius_folder_module_problem(const moebius_folder* f, size_t i) {
  return answer([&] {
    const ModuleInfo& m = module_at(f, i);
    return m.supported ? nullptr : m.reason.c_str();
  });
}
size_t moebius_folder_block_count(const moebius_folder* f) { return count(f, &CFolder::blocks); }
const char* moebius_folder_block_name(const moebius_folder* f, size_t i) {
  return answer([&] { return listed(f, &CFolder::blocks, i, "block").c_str(); });
}
size_t moebius_folder_warning_count(const moebius_folder* f) {
  return count(f, &CFolder::warnings);
}
const char* moebius_folder_warning(const moebius_folder* f, size_t i) {
  return answer([&] { return listed(f, &CFolder::warnings, i, "warning").c_str(); });
}
char* moebius_folder_inspect_json(const moebius_folder* f, int deep) {
  return answer([&] { return get(f)->folder.inspect_json(deep != 0); });
}
char* moebius_folder_explain_json(const moebius_folder* f, const char* cpu) {
  return answer([&] { return get(f)->folder.explain_json(text_of(cpu)); });
}

moebius_linear* moebius_linear_load(const moebius_folder* folder, const char* module,
                                    const moebius_options* options) {
  return made<moebius_linear>([&] {
    const auto f = get(folder);
    require(module, "module");
    return f->folder.linear(module, options_of(options));
  });
}
void moebius_linear_free(moebius_linear* layer) { free_handle(layer); }
size_t moebius_linear_inputs(const moebius_linear* l) { return fact(l, &Linear::inputs); }
size_t moebius_linear_outputs(const moebius_linear* l) { return fact(l, &Linear::outputs); }
char* moebius_linear_kernel(const moebius_linear* l) { return fact(l, &Linear::kernel); }
uint64_t moebius_linear_packed_bytes(const moebius_linear* l) {
  return fact(l, &Linear::packed_bytes);
}
const char* moebius_linear_device(const moebius_linear* l) {
  return answer([&] { return device_text(get(l)->device()); });
}
int moebius_linear_launch(const moebius_linear* layer, const moebius_input* x,
                          const moebius_output* y, void* stream) {
  return answer([&] { get(layer)->launch(input(x, "x"), output(y, "y"), stream); });
}
int moebius_linear_run(const moebius_linear* layer, const moebius_input* x,
                       const moebius_output* y) {
  return answer([&] { get(layer)->run(input(x, "x"), output(y, "y")); });
}

moebius_moe* moebius_moe_load(const moebius_folder* folder, const char* block, int experts_only,
                              const moebius_options* options) {
  return made<moebius_moe>([&] {
    const auto f = get(folder);
    require(block, "block");
    return f->folder.moe(block, options_of(options),
                         experts_only != 0 ? MoeScope::kExperts : MoeScope::kBlock);
  });
}
void moebius_moe_free(moebius_moe* layer) { free_handle(layer); }
size_t moebius_moe_hidden(const moebius_moe* l) { return fact(l, &Moe::hidden); }
size_t moebius_moe_experts(const moebius_moe* l) { return fact(l, &Moe::experts); }
size_t moebius_moe_slots(const moebius_moe* l) { return fact(l, &Moe::slots); }
char* moebius_moe_kernel(const moebius_moe* l) { return fact(l, &Moe::kernel); }
uint64_t moebius_moe_packed_bytes(const moebius_moe* l) { return fact(l, &Moe::packed_bytes); }
int moebius_moe_run(const moebius_moe* layer, const moebius_input* x, const moebius_output* y,
                    int32_t* ids, float* weights) {
  return answer([&] { get(layer)->run(input(x, "x"), output(y, "y"), ids, weights); });
}
int moebius_moe_run_logits(const moebius_moe* layer, const moebius_input* x,
                           const moebius_input* logits, const moebius_output* y, int32_t* ids,
                           float* weights) {
  return answer([&] {
    get(layer)->run_logits(input(x, "x"), input(logits, "logits"), output(y, "y"), ids, weights);
  });
}
int moebius_moe_run_ids(const moebius_moe* layer, const moebius_input* x, const int32_t* ids,
                        const float* weights, size_t k, const moebius_output* y) {
  return answer([&] {
    const auto moe = get(layer);
    const InputMatrix in = input(x, "x");
    if (in.rows != 0 && k != 0) require(ids, "ids"), require(weights, "weights");
    moe->run_ids(in, ids, weights, k, output(y, "y"));
  });
}

const char* moebius_moe_device(const moebius_moe* l) {
  return answer([&] { return device_text(get(l)->device()); });
}
int moebius_moe_launch(const moebius_moe* layer, const moebius_input* x, const moebius_output* y,
                       int32_t* ids, float* weights, void* stream) {
  return answer([&] { get(layer)->launch(input(x, "x"), output(y, "y"), ids, weights, stream); });
}
int moebius_moe_launch_logits(const moebius_moe* layer, const moebius_input* x,
                              const moebius_input* logits, const moebius_output* y, int32_t* ids,
                              float* weights, void* stream) {
  return answer([&] {
    get(layer)->launch_logits(input(x, "x"), input(logits, "logits"), output(y, "y"), ids, weights,
                              stream);
  });
}
int moebius_moe_launch_ids(const moebius_moe* layer, const moebius_input* x, const int32_t* ids,
                           const float* weights, size_t k, const moebius_output* y, void* stream) {
  return answer([&] {
    const auto moe = get(layer);
    const InputMatrix in = input(x, "x");
    if (in.rows != 0 && k != 0) require(ids, "ids"), require(weights, "weights");
    moe->launch_ids(in, ids, weights, k, output(y, "y"), stream);
  });
}
