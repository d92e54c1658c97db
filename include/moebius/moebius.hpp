// SPDX-License-Identifier: Apache-2.0
// The C++ interface: open a compressed-tensors folder, look at its modules, build a linear or
// mixture-of-experts layer, run it.
//
//   moebius::Folder folder = moebius::Folder::open("path/to/checkpoint");
//   moebius::Moe block = folder.moe("model.layers.0.mlp");
//   block.run({x, moebius::ElementType::kBf16, T, block.hidden()}, {y, moebius::ElementType::kBf16, T, block.hidden()});
//
// Every function may throw moebius::Error (moebius/error.h) and throws nothing else of its own; no
// third-party type appears here. Objects are movable handles; every call on one that was moved from
// throws. Layers may be run from several threads at once; calls that share a Runtime take turns.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "moebius/error.h"

namespace moebius {

enum class ElementType { kF32, kBf16, kF16 };

// A matrix in memory of the caller: rows x cols elements, row r starts `stride` elements after row
// r - 1 (0: cols).
struct InputMatrix {
  const void* data = nullptr;
  ElementType type = ElementType::kF32;
  size_t rows = 0, cols = 0, stride = 0;
};
struct OutputMatrix {
  void* data = nullptr;
  ElementType type = ElementType::kF32;
  size_t rows = 0, cols = 0, stride = 0;
};

enum class Arithmetic {
  kDeclared,     // the types that the checkpoint declares, summed in any fixed order
  kExact,        // results are byte for byte those of the reference kernel
  kApproximate,  // faster types than declared are allowed
};
enum class Int8Rows {
  kDeclared,
  kCompressedTensors,
  // Selects the formulas for dynamic int8 activations, which differ in rounding: kDeclared takes
  // what the checkpoint's format prescribes, the others imitate compressed-tensors or vLLM's CPU
  // kernels (docs/numerics.md).
  kVllm
};
enum class ActivationRows {
  kDeclared,
  // Weights in integers whose checkpoint declares no quantization of activations are multiplied
  // with dynamic int8 rows: faster, approximate.
  kInt8,
};

// The threads that layers compute with. Layers whose options name no runtime share one per number
// of threads, which is destroyed together with the last of these layers.
class Runtime;
// Returns a new runtime that nothing else shares. threads 0: all cores.
std::shared_ptr<Runtime> make_runtime(int threads = 0);
size_t threads_of(const Runtime& runtime);

struct RuntimeOptions {
  int threads = 0;  // number of threads; 0: one per entry of `cpus`, or all cores
  // One CPU per thread, the calling thread's first; empty: chosen by the library.
  std::vector<int> cpus;
  // true: computes on the OpenMP team that the process already has (torch's) instead of on threads
  // of the library.
  bool openmp = false;
};
std::shared_ptr<Runtime> make_runtime(const RuntimeOptions& options);

// Receives the bytes that are loaded so far. Returning false cancels loading, which then throws
// Error of kind "state". Called by one thread at a time, from any thread, at most ten times a
// second and once at the end.
using Progress = std::function<bool(uint64_t done, uint64_t total)>;

struct Options {
  int threads = 0;     // number of threads; 0: all cores, or as many as `runtime` has
  std::string kernel;  // a kernel's name as `moebius explain` prints it; "": the best for this CPU
  Arithmetic arithmetic = Arithmetic::kDeclared;
  Int8Rows int8 = Int8Rows::kDeclared;
  ElementType activations = ElementType::kBf16;  // type of the rows x of the later calls
  // Threads to compute with; null: a runtime shared by all layers with the same number of threads.
  std::shared_ptr<Runtime> runtime;
  // Names the part of the layer to load when several processes (ranks) run it together: matrices
  // are split over tp ranks (tensor parallelism), experts over ep ranks (expert parallelism). The
  // caller concatenates or adds the ranks' outputs. If a matrix is split by inputs, dynamic
  // activation scales are computed from this rank's inputs.
  size_t tp = 1, tp_rank = 0, ep = 1, ep_rank = 0;
  // true: expert e is on rank e % ep; false: each rank has a range of consecutive experts
  bool round_robin = false;
  ActivationRows rows = ActivationRows::kDeclared;
  Progress progress;  // ignored by build::MoeBuilder, whose caller knows the progress
  // Device of the layer. "" or "cpu"; "cuda": layers of a folder run on a GPU (docs/gpu.md), where
  // `kernel` names a kernel of the GPU and `threads` has no effect.
  std::string device;
};

struct ModuleInfo {
  std::string name;
  std::string kind;    // role in the model: "linear", "expert", "router", ...
  std::string scheme;  // describes the scheme in one line
  std::string rule;    // the rule of the config that gave the module this scheme
  size_t outputs = 0, inputs = 0;
  uint64_t bytes = 0;
  bool supported = true;
  std::string reason;  // why the module is not supported; "" if it is
};

class Linear {
 public:
  ~Linear();
  Linear(Linear&&) noexcept;
  Linear& operator=(Linear&&) noexcept;
  size_t inputs() const;
  size_t outputs() const;
  std::string kernel() const;
  uint64_t packed_bytes() const;
  std::string device() const;  // where the layer runs: "cpu" or "cuda"
  void run(const InputMatrix& x, const OutputMatrix& y) const;  // x [T, inputs], y [T, outputs]
  // Runs a layer that is on a GPU: data of x and y are device addresses, the work is queued on
  // `stream` (a cudaStream_t; null: the default stream), and the call does not wait for it. A CUDA
  // graph may capture the call.
  void launch(const InputMatrix& x, const OutputMatrix& y, void* stream) const;

 private:
  friend class Folder;
  friend struct LayerAccess;
  struct Impl;
  explicit Linear(std::unique_ptr<Impl> impl);
  Impl& held() const;
  std::unique_ptr<Impl> impl_;
};

class Moe {
 public:
  ~Moe();
  Moe(Moe&&) noexcept;
  Moe& operator=(Moe&&) noexcept;
  size_t hidden() const;
  size_t experts() const;
  size_t slots() const;  // number of experts per token
  std::string kernel() const;
  uint64_t packed_bytes() const;  // bytes of the packed experts, shared experts included
  std::string device() const;     // where the layer runs: "cpu" or "cuda"

  // Runs router, experts and shared experts on x [T, hidden]. ids and weights [T, slots] receive
  // the experts that the router chose and their weights; null: not wanted. x and y stay the
  // caller's.
  void run(const InputMatrix& x, const OutputMatrix& y, int32_t* ids = nullptr,
           float* weights = nullptr) const;
  // Runs the block, but chooses experts by the caller's `logits` [T, experts] instead of by its
  // router matrix.
  void run_logits(const InputMatrix& x, const InputMatrix& logits, const OutputMatrix& y,
                  int32_t* ids = nullptr, float* weights = nullptr) const;
  // Runs experts that the caller chose: ids and weights [T, k]; an id of -1 skips the slot.
  void run_ids(const InputMatrix& x, const int32_t* ids, const float* weights, size_t k,
               const OutputMatrix& y) const;

  // Run a layer that is on a GPU, as run(), run_logits() and run_ids() do on the CPU: all addresses
  // are device addresses, as for Linear::launch. An id outside the layer counts as -1.
  void launch(const InputMatrix& x, const OutputMatrix& y, int32_t* ids, float* weights,
              void* stream) const;
  void launch_logits(const InputMatrix& x, const InputMatrix& logits, const OutputMatrix& y,
                     int32_t* ids, float* weights, void* stream) const;
  void launch_ids(const InputMatrix& x, const int32_t* ids, const float* weights, size_t k,
                  const OutputMatrix& y, void* stream) const;

 private:
  friend class Folder;
  friend struct LayerAccess;
  struct Impl;
  explicit Moe(std::unique_ptr<Impl> impl);
  Impl& held() const;
  std::unique_ptr<Impl> impl_;
};

enum class MoeScope {
  kBlock,    // router, experts and shared experts
  kExperts,  // the routed experts alone
};

class Folder {
 public:
  static Folder open(const std::string& path);
  ~Folder();
  Folder(Folder&&) noexcept;
  Folder& operator=(Folder&&) noexcept;
  std::string architecture() const;
  std::vector<ModuleInfo> modules() const;
  std::vector<std::string> moe_blocks() const;  // names that moe() accepts
  std::vector<std::string> warnings() const;
  // Return exactly what `moebius inspect --json` and `moebius explain --json` print. `deep` reads
  // the bytes of every tensor. `cpu` lists the CPU features to plan for ("neon,dotprod"); "": this
  // machine.
  std::string inspect_json(bool deep = false) const;
  std::string explain_json(const std::string& cpu = "") const;
  Linear linear(const std::string& module, const Options& options = {}) const;
  Moe moe(const std::string& block, const Options& options = {},
          MoeScope scope = MoeScope::kBlock) const;

 private:
  struct Impl;
  explicit Folder(std::unique_ptr<Impl> impl);
  Impl& held() const;
  std::unique_ptr<Impl> impl_;
};

std::string version();
std::string cpu_name();   // architecture and CPU features that the library uses
std::string cpu_model();  // name of the CPU's model
// Makes the library use only these CPU features ("neon,dotprod"). Must be the first call of the
// library in the process.
void narrow_cpu(const std::string& features);
std::vector<std::string> kernel_titles();  // names and descriptions of all kernels, fastest first

}  // namespace moebius
