// SPDX-License-Identifier: Apache-2.0
// Declares options that several commands share, and converts their values.
#pragma once
#include <optional>
#include <string>

#include "apps/cli/command.h"
#include "device/gpu.h"
#include "device/placement.h"
#include "kernels/oracle.h"
#include "nn/kv_layout.h"
#include "quant/act_request.h"

namespace moebius {

class Checkpoint;
struct ModelOptions;

struct RunOptions {
  std::string device = "cpu";  // device that runs layers
  // Places parts of a model on other devices (parse_placement); "": all on the device.
  std::string place;
  // Place of the experts of a model on a GPU: "" (on the GPU), cpu, auto.
  std::string experts;
  // Selects whether experts on the CPU are copied to the GPU for steps with many rows: "" (auto),
  // off, or a number of rows.
  std::string stream;
  double gpu_memory = 0;                      // GiB of a GPU that a model may use; 0: what is free
  int threads = 0;                            // number of threads; 0: all cores
  std::string kernel;                         // name of a kernel; "": the best for each module
  std::string policy = "declared";            // declared, exact or approximate
  std::string activations = "declared";       // declared or int8
  std::string int8_activations = "declared";  // declared, ct or vllm
  std::string head_dtype = "auto";            // auto, declared, copy or int8
};

// Holds how ranks share a model (docs/distributed.md).
struct RankOptions {
  // Number of ranks; 0: as many as the sizes below give. If it is given, the planner chooses sizes
  // that are not.
  int ranks = 0;
  int pp = 1, tp = 1, ep = 1;
  // Ranks' part of attention with --ep: cut (each has some heads) or repeat (each has all).
  std::string attention = "cut";
  int spare = 0;      // with --ep: places per layer for copies of busy experts
  std::string loads;  // file of rows per expert, kept between runs; "": none
  // --- for ranks that a launcher started ---
  double timeout = 30;  // seconds of silence after which a rank is given up
  std::string check = "headers";
  std::vector<std::string> folder_map;  // folder of the model on other hosts: entries HOST=DIR
  bool keep_binding = false, common_cpu = false;
};

void add_device_option(Command& command, std::string& device);
void add_gpu_memory_option(Command& c, RunOptions& run);
void add_place_options(Command& command, RunOptions& run);
void add_arithmetic_options(Command& command, RunOptions& run);  // declares all but --threads
void add_run_options(Command& command, RunOptions& run);
void add_dtype_option(Command& command, std::string& dtype);
void add_kv_dtype_option(Command& command, std::string& kv_dtype);
void add_rank_options(Command& command, RankOptions& ranks);
void add_json_flag(Command& command, bool& json);

// Throw Error for devices that do not exist; require_cpu() throws for any other device than the
// CPU, too.
DevicePlacement placement_of(const RunOptions& options);
void require_cpu(const std::string& device);
// Returns true for --device cuda, in commands that run single layers; throws Error for names other
// than cpu and cuda.
bool on_gpu(const std::string& device);
// Returns the CUDA plugin; throws Error if no layer can run on the device.
const GpuModule& gpu_of_tool(int device = 0);
// Copies --device, --place, --experts, --gpu-memory, --kernel and --policy to a model's options.
void take_devices(ModelOptions& model, const RunOptions& options);
// Returns the policy that --kernel and --policy mean on a CUDA device.
Policy gpu_policy_of(const RunOptions& options);
// Returns the device that commands assume without running anything: this machine's, else an H200.
GpuTarget gpu_target_of_tool();
size_t thread_count(const RunOptions& options);
// Returns the policy that --kernel and --policy mean; throws Error.
Policy policy_of(const RunOptions& options);
// Returns the policy for all modules of a folder: --kernel applies to those that it can run.
Policy folder_policy_of(const RunOptions& options);
// Writes to stderr how many modules the requested kernel cannot run; throws Error if it can run
// none.
void note_kernel(const Checkpoint& checkpoint, const Policy& policy, const ActRequest& act,
                 XType x_type);
// Returns the input types that --activations and --int8-activations ask for; throws Error if
// --policy forbids them.
ActRequest act_request_of(const RunOptions& options);
// Returns Wish::shortlist.
std::optional<bool> shortlist_of(const RunOptions& options);
// Writes to stderr what a request for int8 rows changes in a folder; nothing without a request.
void note_request(const Checkpoint& checkpoint, const ActRequest& request);
// Returns the type of stored keys and values; nothing for auto.
std::optional<KvType> kv_type_from(const std::string& kv_dtype);

}  // namespace moebius
