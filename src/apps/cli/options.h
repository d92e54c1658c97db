// SPDX-License-Identifier: Apache-2.0
// Options that several commands share: how they are declared, and the values they stand for.
#pragma once
#include <optional>
#include <string>

#include "apps/cli/command.h"
#include "device/cuda/cuda_choice.h"
#include "device/cuda/cuda_module.h"
#include "device/placement.h"
#include "kernels/oracle.h"
#include "nn/kv_layout.h"
#include "quant/act_request.h"

namespace moebius {

class Checkpoint;
struct ModelOptions;

struct RunOptions {
  std::string device = "cpu";                 // what runs layers
  std::string place;                          // parts of a model elsewhere; "": all on the device
  std::string experts;                        // of a model on a GPU: "" (there), cpu, auto
  std::string stream;                         // of experts on the CPU: "" (auto), off, rows
  double gpu_memory = 0;                      // GiB of a GPU that a model may use; 0: what is free
  int threads = 0;                            // 0: all cores
  std::string kernel;                         // "": the oracle's choice
  std::string policy = "declared";            // declared | exact | approximate
  std::string activations = "declared";       // declared | int8
  std::string int8_activations = "declared";  // declared | ct | vllm
};

// How many ranks share a model (docs/distributed.md).
struct RankOptions {
  int ranks = 0;  // 0: as many as the others make; else they may be left to the planner
  int pp = 1, tp = 1, ep = 1;
  std::string attention = "cut";  // with --ep: cut | repeat
  int spare = 0;                  // with --ep: places per layer for copies of busy experts
  std::string loads;              // file of rows per expert, from run to run; "": none
  // Ranks that a launcher started.
  double timeout = 30;  // seconds of silence after which a rank is given up
  std::string check = "headers";
  std::vector<std::string> folder_map;  // HOST=DIR
  bool keep_binding = false, common_cpu = false;
};

void add_device_option(Command& command, std::string& device);
void add_gpu_memory_option(Command& c, RunOptions& run);
void add_place_options(Command& command, RunOptions& run);
void add_arithmetic_options(Command& command, RunOptions& run);  // all but --threads
void add_run_options(Command& command, RunOptions& run);
void add_dtype_option(Command& command, std::string& dtype);
void add_kv_dtype_option(Command& command, std::string& kv_dtype);
void add_rank_options(Command& command, RankOptions& ranks);
void add_json_flag(Command& command, bool& json);

// Throw Error for devices that are not there; the second also where the command has the CPU alone.
DevicePlacement placement_of(const RunOptions& options);
void require_cpu(const std::string& device);
// --device cuda, for commands that run single layers; throws Error for other names than cpu and cuda.
bool on_cuda(const std::string& device);
// Its plugin; throws Error in words where no layer can run there.
const CudaModule& cuda_of_tool(int device = 0);
// What a model is told of --device, --place, --experts, --gpu-memory, --kernel and --policy.
void take_devices(ModelOptions& model, const RunOptions& options);
// What --kernel and --policy mean there.
Policy cuda_policy_of(const RunOptions& options);
// The device to answer for without running: this machine's, else an H200.
CudaTarget cuda_target_of_tool();
size_t thread_count(const RunOptions& options);
Policy policy_of(const RunOptions& options);  // throws Error
// The same for all modules of a folder: --kernel is for those that it can run.
Policy folder_policy_of(const RunOptions& options);
// Says on stderr how many modules --kernel does not run; throws Error where it runs none.
void note_kernel(const Checkpoint& checkpoint, const Policy& policy, const ActRequest& act,
                 XType x_type);
// What --activations and --int8-activations ask for; throws Error where --policy forbids it.
ActRequest act_request_of(const RunOptions& options);
// Says on stderr what a request for int8 rows comes to in a folder; nothing if there is none.
void note_request(const Checkpoint& checkpoint, const ActRequest& request);
std::optional<KvType> kv_type_from(const std::string& kv_dtype);  // none: auto

}  // namespace moebius
