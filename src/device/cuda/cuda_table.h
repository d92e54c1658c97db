// SPDX-License-Identifier: Apache-2.0
// What the CUDA plugin (plugins/cuda) gives to the program: one table of functions, returned by the C
// function named kCudaSymbol. The only header of this folder, besides tiles.h, that both sides see.
// Plain data crosses: no exception, no standard type. Sizes of the structures stand first, so that a
// plugin of another build is refused and not called.
//
// Functions that return CudaStatus leave words for people behind failures: message(). Layers may be
// run from any thread; work goes to the stream that is given (null: the default stream) in order.
// Nothing waits for the device but download(), synchronize() and a call with more rows than its stream
// has seen. Calls may be captured in graphs: what a graph needs between its kernels is its own.
#pragma once
#include <cstddef>
#include <cstdint>

#include "quant/activation.h"
#include "quant/moe_spec.h"
#include "quant/quant_matrix.h"

namespace moebius {

inline constexpr uint32_t kCudaAbi = 2;
inline constexpr const char* kCudaSymbol = "moebius_device";
// Least compute capability; below it a device is refused by name.
inline constexpr int kCudaLeastMajor = 8, kCudaLeastMinor = 0;

enum class CudaStatus : int32_t {
  kOk,
  kNoDriver,
  kNoDevice,
  kTooOld,  // compute capability
  kOutOfMemory,
  kRefused,  // an argument; nothing has run
  kLost,     // an error of the device: nothing will run in this process any more
};

struct CudaFacts {
  char name[128];
  int32_t major, minor, multiprocessors, driver, runtime;  // versions as 1000 * major + 10 * minor
  uint64_t memory_bytes, free_bytes, cache_bytes;
};

// Rows on the device: element (r, c) at data + r * stride + c, in elements of `type`.
struct CudaRows {
  void* data;
  XType type;
  size_t rows, stride;
};

// One matrix and what surrounds its product. Host memory, read during the call alone.
struct CudaMatrix {
  QuantMatrix w;
  ActSpec act;
  ActParams input;
  XType x_type;        // of rows that are not quantized
  const float* bias;   // [N] or null
  float output_scale;  // 0: no output fake quantization
  size_t padded_n;     // outputs with those behind N, which are 0; 0: N
};

// Which kernels run a layer: cuda_choice.h decides.
enum class CudaPath : uint8_t { kPlain, kHopper, kHopperFp8 };

struct CudaActivation {  // ActivationSpec without its optionals
  uint8_t kind;          // ActivationKind
  bool has_limit, has_lb;
  float limit, alpha, beta, b, lb;
};

struct CudaMoe {
  size_t hidden, intermediate;  // intermediate: of the routed experts
  size_t shared_intermediate;   // 0: no shared expert
  size_t experts;               // of this rank
  const int32_t* expert_map;    // [mapped] global id to local, -1 elsewhere; null: the same
  size_t mapped;
  bool gated, weight_on_input;
  CudaActivation activation, shared_activation;
  CudaPath path, shared_path;  // of the routed experts, of the shared one
};

// How logits become experts (nn/router.h), and the matrix that makes the logits. Host memory.
struct CudaRouter {
  RouterSpec spec;
  const float* bias;          // [experts + zero_experts] where the spec has it
  const float* expert_scale;  // [experts] where the spec has it
  const CudaMatrix* matrix;   // null: logits are the caller's
  CudaPath path;              // of the matrix
};

struct CudaExpert {
  const CudaMatrix* gate;  // null when the activation is not gated
  const CudaMatrix* up;
  const CudaMatrix* down;
};

struct CudaRouting {          // on the device
  const int32_t* ids;         // [rows, slots] global; -1: none
  const float* weights;       // [rows, slots]
  const float* zero_weights;  // [rows] of identity experts, or null
  size_t slots;
};

// How a layer of experts is launched. Bytes do not depend on it.
enum class CudaEarly : uint8_t {
  kRule,
  kNever,
  kAlways,
  kNotDown
};  // kernels that start before the one before them ends
struct CudaLaunch {
  uint32_t tile;  // rows of x that meet one expert at a time: 8, 16, 32, 64 or 128; 0: by a rule
  CudaEarly early;
  uint8_t
      slabs;  // of 64 outputs that a group of threads has: 1, 2 (tiles of 128 rows), 0: by a rule
};

struct CudaRoofs {
  double read_tbs, copy_tbs;          // TB/s
  double launch_us, early_launch_us;  // an empty kernel in a graph
};

struct CudaApi {
  uint32_t abi, bytes;  // first, for ever
  uint32_t matrix_bytes, moe_bytes, router_bytes;
  const char* (*message)();  // of the calling thread's last failure

  CudaStatus (*open)(CudaFacts* facts);  // the device that runs layers; once, before the rest
  // --- memory and order ---
  CudaStatus (*allocate)(size_t bytes, void** p);
  void (*release)(void* p);
  CudaStatus (*upload)(void* to, const void* from, size_t bytes, void* stream);
  CudaStatus (*download)(void* to, const void* from, size_t bytes, void* stream);  // waits
  CudaStatus (*synchronize)(void* stream);

  // --- layers ---
  CudaStatus (*make_linear)(const CudaMatrix* parts, size_t count, CudaPath path, void** layer);
  CudaStatus (*run_linear)(void* layer, const CudaRows* x, const CudaRows* y, void* stream);
  CudaStatus (*make_moe)(const CudaMoe* moe, void** layer);
  // One call per expert, in any order; local == experts: the shared one.
  CudaStatus (*set_expert)(void* layer, size_t local, const CudaExpert* expert);
  CudaStatus (*set_shared_gate)(void* layer, const CudaMatrix* gate);
  CudaStatus (*set_router)(void* layer, const CudaRouter* router);
  CudaStatus (*run_moe)(void* layer, const CudaRows* x, const CudaRouting* routing,
                        const CudaRows* y, const CudaLaunch* launch, void* stream);
  // Experts by the layer's router. logits [rows, experts + zero_experts] of the caller; null: those of
  // the router's matrix. ids and weights [rows, slots] are what it chose; null: not wanted.
  CudaStatus (*run_routed)(void* layer, const CudaRows* x, const CudaRows* logits,
                           const CudaRows* y, int32_t* ids, float* weights, void* stream);
  uint64_t (*layer_bytes)(const void* layer);
  void (*free_layer)(void* layer);

  // --- measuring ---
  // Captures `count` calls of run(context, i, stream) in one graph and replays it; microseconds per
  // call, median of `repeats`.
  CudaStatus (*time_graph)(CudaStatus (*run)(void* context, size_t i, void* stream), void* context,
                           size_t count, size_t repeats, double* microseconds);
  CudaStatus (*roofs)(CudaRoofs* roofs);
};

}  // namespace moebius
