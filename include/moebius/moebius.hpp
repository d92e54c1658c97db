// SPDX-License-Identifier: Apache-2.0
// The C++ interface: open a compressed-tensors folder, look at its modules, build a linear or mixture-of-experts layer, run it.
//
//   moebius::Folder folder = moebius::Folder::open("path/to/checkpoint");
//   moebius::Moe block = folder.moe("model.layers.0.mlp");
//   block.run({x, moebius::ElementType::kBf16, T, block.hidden()}, {y, moebius::ElementType::kBf16, T, block.hidden()});
//
// Everything throws moebius::Error (moebius/error.h) and nothing else of its own; no third-party type appears here. Objects are
// movable handles; one that was moved from throws whatever is asked of it. Layers may be run from several threads at once; calls that share a Runtime take turns.
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

// rows x cols elements; row r starts `stride` elements after row r - 1 (0: cols).
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
  kDeclared,     // what the checkpoint declares, any fixed order of summation
  kExact,        // bytes equal to the reference
  kApproximate,  // faster substitutes allowed
};
enum class Int8Rows {
  kDeclared,
  kCompressedTensors,
  kVllm
};  // how dynamic int8 activations are scaled
enum class ActivationRows {
  kDeclared,
  kInt8,  // integer weights without a scheme for activations meet dynamic int8 rows: faster, approximate
};

// The threads that layers compute with. Every layer of a process that names none shares one, per number of threads, for as long
// as one of them lives.
class Runtime;
std::shared_ptr<Runtime> make_runtime(int threads = 0);  // of its own; 0: all cores
size_t threads_of(const Runtime& runtime);

struct RuntimeOptions {
  int threads = 0;        // 0: as many as `cpus`, else all cores
  std::vector<int> cpus;  // one per thread, the caller's first; empty: chosen
  // Run on the OpenMP team that the process already has (torch's), not on threads of the library's own.
  bool openmp = false;
};
std::shared_ptr<Runtime> make_runtime(const RuntimeOptions& options);

// Bytes that are done; false stops loading, which then throws (kind "state"). One call at a time, from any thread, at most ten a
// second and one at the end.
using Progress = std::function<bool(uint64_t done, uint64_t total)>;

struct Options {
  int threads = 0;     // 0: all cores, or those of `runtime`
  std::string kernel;  // "": the best for this CPU; else a name that `moebius explain` prints
  Arithmetic arithmetic = Arithmetic::kDeclared;
  Int8Rows int8 = Int8Rows::kDeclared;
  ElementType activations = ElementType::kBf16;  // type of the rows the layer will be given
  std::shared_ptr<Runtime> runtime;              // null: the one that layers of so many threads share
  // One rank of a run over several: matrices are cut tp ways, experts shared out ep ways. The caller puts outputs side by side or
  // adds them up; where a matrix is cut by inputs, dynamic rows are scaled by the rank's own.
  size_t tp = 1, tp_rank = 0, ep = 1, ep_rank = 0;
  bool round_robin = false;  // experts in turn, not in ranges
  ActivationRows rows = ActivationRows::kDeclared;
  Progress progress;  // not for build::MoeBuilder, whose caller knows how far it is
  // "" or "cpu"; "cuda": layers of a folder on a GPU (docs/gpu.md), where threads do not matter and the
  // kernels are those of the device.
  std::string device;
};

struct ModuleInfo {
  std::string name;
  std::string kind;    // "linear", "expert", "router", ...
  std::string scheme;  // one line for people
  std::string rule;    // which rule of the config decided it
  size_t outputs = 0, inputs = 0;
  uint64_t bytes = 0;
  bool supported = true;
  std::string reason;  // why not
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
  std::string device() const;                                   // "cpu" or "cuda"
  void run(const InputMatrix& x, const OutputMatrix& y) const;  // x [T, inputs], y [T, outputs]
  // Of a layer on a GPU: x and y are its memory, the work is queued on `stream` (a cudaStream_t; null: the default stream), and
  // nothing waits for it. A CUDA graph may capture the call.
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
  size_t slots() const;  // expert slots per token
  std::string kernel() const;
  uint64_t packed_bytes() const;  // of the experts, shared ones included
  std::string device() const;     // "cpu" or "cuda"

  // The whole block: router, experts, shared experts. ids and weights [T, slots] may be null.
  void run(const InputMatrix& x, const OutputMatrix& y, int32_t* ids = nullptr,
           float* weights = nullptr) const;
  // Router logits of the caller [T, experts].
  void run_logits(const InputMatrix& x, const InputMatrix& logits, const OutputMatrix& y,
                  int32_t* ids = nullptr, float* weights = nullptr) const;
  // Experts of the caller: ids and weights [T, k]; -1 skips a slot.
  void run_ids(const InputMatrix& x, const int32_t* ids, const float* weights, size_t k,
               const OutputMatrix& y) const;

  // The same for a layer on a GPU with its memory, as Linear::launch. Ids outside the layer count as -1.
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
  kBlock,    // router and shared experts included
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
  std::vector<std::string> moe_blocks() const;  // their names
  std::vector<std::string> warnings() const;
  // What `moebius inspect --json` and `moebius explain --json` print, word for word. `deep` reads every payload; `cpu`: a list
  // of features, empty: this machine.
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
std::string cpu_name();                   // of this machine: features that count, in words
std::string cpu_model();                  // its name
// From now on only these features count ("neon,dotprod"); before anything else is asked of the
// library.
void narrow_cpu(const std::string& features);
std::vector<std::string> kernel_titles(); // in the order of preference

}  // namespace moebius
