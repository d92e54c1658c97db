// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/options.h"

#include <utility>

#include "apps/cli/manners.h"
#include "apps/cli/places.h"
#include "base/error.h"
#include "base/human.h"
#include "checkpoint/summary.h"
#include "device/module_problem.h"
#include "model/plan/gpu_stream_plan.h"
#include "model/run/decoder.h"
#include "runtime/program_folder.h"
#include "runtime/thread_pool.h"

namespace moebius {
namespace {

Int8Mode int8_mode_of(const std::string& name) {
  if (name == "declared") return Int8Mode::kDeclared;
  if (name == "ct") return Int8Mode::kCompressedTensors;
  if (name == "vllm") return Int8Mode::kVllm;
  fail("--int8-activations is '{}'; expected declared, ct or vllm", printable(name));
}

}  // namespace

void add_device_option(Command& c, std::string& device) {
  c.option("--device", "NAME", &device,
           "what runs the layers: cpu, or a GPU: cuda, cuda:N (docs/gpu.md)", {.rare = true});
}

void add_gpu_memory_option(Command& c, RunOptions& run) {
  c.option("--gpu-memory", "GIB", &run.gpu_memory, "with --device cuda: memory that may be used",
           {.limits = {{0, 1 << 20}}, .default_text = "free memory less 1 GiB", .rare = true});
}

void add_place_options(Command& c, RunOptions& run) {
  c.option("--experts", "WHERE", &run.experts,
           "with --device cuda: keep experts on the CPU (cpu), or as many on the GPU as fit (auto)",
           {.choices = {"cpu", "auto"}, .default_text = "on --device", .rare = true});
  add_gpu_memory_option(c, run);
  c.option("--stream-experts", "WHEN", &run.stream,
           "copy experts on the CPU to the GPU for steps of at least this many rows; auto: when "
           "that is faster; off: never",
           {.default_text = "auto", .rare = true});
  c.option("--place", "PARTS", &run.place,
           "parts of layers on other devices: attention=NAME,experts=NAME[:N-M]",
           {.default_text = "all on --device", .rare = true});
}

DevicePlacement placement_of(const RunOptions& options) {
  std::string text = options.device;
  if (options.experts == "cpu") text += ",experts=cpu";
  if (!options.place.empty()) text += "," + options.place;
  return parse_placement(text);
}

void take_devices(ModelOptions& model, const RunOptions& options) {
  model.placement = placement_of(options);
  const std::string device = model.placement.gpu();
  if (device.empty()) {
    if (!options.experts.empty() || options.gpu_memory != 0 || !options.stream.empty())
      fail("{} is for models on a GPU: --device cuda", !options.experts.empty() ? "--experts"
                                                       : !options.stream.empty()
                                                           ? "--stream-experts"
                                                           : "--gpu-memory");
    model.policy = folder_policy_of(options);
    return;
  }
  model.gpu.module = &gpu_of_tool(gpu_number(device));
  model.gpu.memory = static_cast<uint64_t>(options.gpu_memory * 1073741824.0);
  model.gpu.fit_experts = options.experts == "auto";
  model.gpu.stream = options.stream.empty() ? "auto" : options.stream;
  static_cast<void>(parse_stream_rows(model.gpu.stream));
  RunOptions on_cpu = options;
  if (options.kernel.starts_with("cuda")) {
    model.gpu.kernel = normalize_gpu_kernel(options.kernel);
    on_cpu.kernel.clear();
  }
  model.policy = folder_policy_of(on_cpu);
}

void require_cpu(const std::string& device) {
  if (parse_placement(device).describe() != "cpu")
    fail("--device {}: this command runs on the CPU only", printable(device));
}

bool on_gpu(const std::string& device) {
  if (device == "cuda") return true;
  require_cpu(device);
  return false;
}

const GpuModule& gpu_of_tool(int device) {
  return open_gpu(plugin_places(program_folder(), kBuildPaths), device);
}

Policy gpu_policy_of(const RunOptions& options) {
  Policy policy;
  policy.accept = accept_from_name(options.policy);
  policy.kernel = normalize_gpu_kernel(options.kernel);
  policy.where_it_can = true;
  return policy;
}

GpuTarget gpu_target_of_tool() {
  return usual_gpu_target(plugin_places(program_folder(), kBuildPaths));
}

void add_arithmetic_options(Command& c, RunOptions& run) {
  c.option("--kernel", "NAME", &run.kernel, "use this kernel for every module that it can run",
           {.default_text = "the best for each module on this CPU",
            .environment = "MOEBIUS_KERNEL",
            .rare = true});
  c.option("--policy", "NAME", &run.policy,
           "numerics to accept: exact alone, what the checkpoint declares, or approximate too",
           {.choices = {"declared", "exact", "approximate"}, .rare = true});
  c.option("--activations", "NAME", &run.activations,
           "int8: quantize the activations of weight-only integer modules; faster, approximate",
           {.choices = {"declared", "int8"}, .rare = true});
  c.option("--head-dtype", "NAME", &run.head_dtype,
           "output projection: int8 (approximate), declared, or declared with an int8 copy that "
           "finds the best tokens; auto: with a copy where it is worth its memory",
           {.choices = {"auto", "declared", "copy", "int8"}, .rare = true});
  c.option("--int8-activations", "NAME", &run.int8_activations,
           "how dynamic int8 activations are scaled",
           {.choices = {"declared", "ct", "vllm"}, .rare = true});
}

void add_run_options(Command& c, RunOptions& run) {
  c.section("Machine");
  c.option("--threads,-t", "N", &run.threads, "CPU threads; 0: one per core",
           {.limits = {{0, 1024}}, .environment = "MOEBIUS_THREADS"});
  add_device_option(c, run.device);
  add_arithmetic_options(c, run);
}

void add_dtype_option(Command& c, std::string& dtype) {
  c.option("--dtype", "TYPE", &dtype, "type of activations; auto: that of config.json",
           {.choices = {"auto", "bf16", "f16", "f32"}, .rare = true});
}

void add_kv_dtype_option(Command& c, std::string& kv_dtype) {
  c.option("--kv-dtype", "TYPE", &kv_dtype,
           "type of the KV cache; auto: that of the checkpoint, else --dtype",
           {.choices = {"auto", "bf16", "f16", "f32", "int8", "fp8"}});
}

void add_rank_options(Command& c, RankOptions& ranks) {
  c.section("Ranks", true);
  c.option("--ranks", "N", &ranks.ranks,
           "run N ranks as threads of this process; the best split is chosen",
           {.limits = {{1, 1024}}, .default_text = "--pp x --tp x --ep"});
  c.option("--pp", "N", &ranks.pp, "pipeline parallel: split the layers over N ranks",
           {.limits = {{1, 1024}}});
  c.option("--tp", "N", &ranks.tp, "tensor parallel: split every matrix over N ranks",
           {.limits = {{1, 1024}}});
  c.option("--ep", "N", &ranks.ep, "expert parallel: split the experts over N ranks",
           {.limits = {{1, 1024}}});
  c.option("--attention", "HOW", &ranks.attention,
           "with --ep: split the attention heads too, or repeat them on every rank",
           {.choices = {"cut", "repeat"}});
  c.option("--spare", "N", &ranks.spare,
           "with --ep: extra copies of the most used experts, per layer", {.limits = {{0, 65536}}});
  c.option("--expert-loads", "FILE", &ranks.loads,
           "with --spare or --experts auto: file that saves how often each expert ran, for the "
           "next start",
           {.default_text = "none", .kind = ValueKind::kFile});
  c.option("--rank-timeout", "S", &ranks.timeout,
           "seconds without a message after which a rank counts as lost", {.limits = {{1, 86400}}});
  c.option("--check", "WHAT", &ranks.check, "how much of the folders is compared between ranks",
           {.choices = {"headers", "sample", "deep"}});
  c.option("--folder-map", "HOST=DIR", &ranks.folder_map, "path of the folder on another host",
           {.default_text = "the same path everywhere"});
  c.flag("--keep-binding", ranks.keep_binding, "keep the CPU binding of the launcher");
  c.flag("--common-cpu", ranks.common_cpu, "use only the CPU features that all ranks have");
}

void add_json_flag(Command& c, bool& json) { c.flag("--json", json, "print one JSON object"); }

size_t thread_count(const RunOptions& options) {
  if (options.threads == 0) return default_thread_count();
  const auto wanted = static_cast<size_t>(options.threads);
  static bool warned = false;
  if (const size_t cpus = available_cpus(); wanted > cpus && !std::exchange(warned, true))
    warning("--threads {}: this process may use {}; more threads than CPUs are slower", wanted,
            counted(cpus, "CPU"));
  return wanted;
}

Policy policy_of(const RunOptions& options) {
  Policy policy;
  policy.accept = accept_from_name(options.policy);
  policy.kernel = normalize_kernel_name(options.kernel);
  return policy;
}

Policy folder_policy_of(const RunOptions& options) {
  Policy policy = policy_of(options);
  policy.where_it_can = true;
  return policy;
}

void note_kernel(const Checkpoint& checkpoint, const Policy& policy, const ActRequest& act,
                 XType x_type) {
  if (policy.kernel.empty()) return;
  size_t with = 0, without = 0;
  for (const Module& m : checkpoint.modules()) {
    if (m.tower || !m.supported || !has_product(checkpoint, m)) continue;
    const Problem problem = problem_of(m, act, x_type);
    const Policy request = request_for(problem, policy);
    if (request.kernel.empty()) ++without;
    // Throws for a kernel of another CPU.
    else if (with++ == 0)
      (void)choose_kernel(problem, host_cpu(), request);
  }
  if (with == 0)
    fail("--kernel {}: it can run no module of {}; `moebius explain --why` says why", policy.kernel,
         printable(checkpoint.folder()));
  if (without > 0)
    note(
        "--kernel {} runs {} of {} modules; the best kernel for this CPU runs the others (`moebius "
        "explain --kernel {}` lists them)",
        policy.kernel, with, with + without, policy.kernel);
}

ActRequest act_request_of(const RunOptions& options) {
  ActRequest request;
  request.mode = int8_mode_of(options.int8_activations);
  request.int8_rows = options.activations == "int8";
  if (!request.int8_rows && options.activations != "declared")
    fail("--activations is '{}'; expected declared or int8", printable(options.activations));
  const bool cuda = options.device.starts_with("cuda") || options.kernel.starts_with("cuda");
  request.int8_head = options.head_dtype == "int8";
  if (request.int8_head && cuda) fail("--head-dtype int8 is for CPUs; on a GPU leave it out");
  check_request(cuda ? gpu_policy_of(options) : policy_of(options), request);
  return request;
}

std::optional<bool> shortlist_of(const RunOptions& options) {
  if (options.head_dtype == "auto") return std::nullopt;
  return options.head_dtype == "copy";
}

void note_request(const Checkpoint& checkpoint, const ActRequest& request) {
  if (!request.int8_rows) return;
  size_t granted = 0, kept = 0;
  for (const Module& m : checkpoint.modules()) {
    if (m.tower || !m.supported || !may_take_int8_rows(m.plan.scheme)) continue;
    ++(departs(m.plan.scheme, act_spec_of(m, request)) ? granted : kept);
  }
  if (granted + kept == 0)
    note(
        "--activations int8 changes nothing: no module is weight-only with weights of integers or "
        "4-bit floats");
  else
    note(
        "--activations int8: {} with dynamic int8 activations (approximate, not what the "
        "checkpoint declares), {} weight-only as declared",
        counted(granted, "module"), kept);
}

std::optional<KvType> kv_type_from(const std::string& kv_dtype) {
  if (kv_dtype == "bf16") return KvType::kBf16;
  if (kv_dtype == "f16") return KvType::kF16;
  if (kv_dtype == "f32") return KvType::kF32;
  if (kv_dtype == "int8") return KvType::kInt8;
  if (kv_dtype == "fp8") return KvType::kFp8;
  if (kv_dtype.empty() || kv_dtype == "auto") return std::nullopt;
  fail("--kv-dtype is '{}'; expected auto, bf16, f16, f32, int8 or fp8", printable(kv_dtype));
}

}  // namespace moebius
