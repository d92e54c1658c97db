// SPDX-License-Identifier: Apache-2.0
// What the CUDA plugin (plugins/cuda) gives to the program: one table of functions, returned by the C
// function named kCudaSymbol. Both sides see this header, tiles.h and the arithmetic of device_*.h.
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

#include "nn/candidates.h"
#include "quant/activation.h"
#include "quant/moe_spec.h"
#include "quant/quant_matrix.h"

namespace moebius {

inline constexpr uint32_t kCudaAbi = 8;
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
  size_t experts;               // of this rank; 0 of a layer with a map: all are elsewhere
  const int32_t* expert_map;    // [mapped] global id to local, -1 elsewhere; null: the same
  size_t mapped;
  bool gated, weight_on_input;
  CudaActivation activation, shared_activation;
  CudaPath path, shared_path;  // of the routed experts, of the shared one
  // Of the device, for the weights of routed experts, which the caller brings before each run (streamed
  // layers); null: the layer has memory of its own. Plain kernels are refused there.
  void* memory;
  size_t memory_bytes;
};

// Bytes [begin, end) of such memory.
struct CudaRange {
  size_t begin, end;
};
inline constexpr size_t kCudaRanges = 16;  // of one expert, at most

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

// What a router chose; each null: not wanted.
struct CudaChosen {
  int32_t* ids;      // [rows, slots]
  float* weights;    // [rows, slots]
  uint32_t* counts;  // [experts]: how often each was chosen is added
};

// Rows of a divided layer, some of whose experts are elsewhere. All memory is the device's.
struct CudaItems {
  float* rows;  // [.., hidden], what experts gave, before it is weighed
  int32_t* at;  // [rows of x, slots] which of these is that of an item; -1: its expert is not there
};
struct CudaDivided {
  CudaItems own, others;
  float *shared, *shared_gate;  // [rows of x, hidden], [rows of x], where the layer has these
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

// --- rows of a model (device/rows.h) ---

// Some columns of an operand's rows, head by head (RowView); width 0: all.
struct CudaView {
  uint32_t operand, at, width, heads, step;
};

// One operation (RowOp). Numbers that depend on a position come with the step: row t of its tables, from
// column `table` on; a rotation has `half` cosines and as many sines, the others one factor.
struct CudaRowOp {
  uint8_t kind, norm;  // RowOpKind, NormKind
  bool interleaved;
  CudaView y, x;
  float factor, epsilon;
  uint32_t table, half;
  const float *weight, *bias, *values;  // of the device, or null
};

inline constexpr size_t kCudaOperands = 7;
struct CudaRowProgram {
  const CudaRowOp* ops;  // of the host, read during the call
  size_t count, rows;
  CudaRows operands[kCudaOperands];  // data null: it is not there, nor what would be done to it
  uint32_t cols[kCudaOperands];
  XType type;           // results are rounded to its numbers
  const float* tables;  // of the step, [rows, table_cols]
  size_t table_cols;
  // Heads of the operands that are changed, where each is changed for itself (cuda_parts.h); all 0: the row is one.
  uint32_t part_heads[kCudaOperands];
};
inline constexpr size_t kCudaPrograms = 4,
                        kCudaRowOps = 16;  // of one call: programs, and operations of all of them

// --- attention over blocks of 128 tokens (device_attention.h) ---

struct CudaAttention {
  uint32_t heads, kv_heads, key_dim, value_dim;
  float scale;
  uint64_t window, chunk;  // 0: none
  const float* sinks;      // [heads] of the device, or null
  uint8_t storage;         // KvType
  float key_scale, value_scale;
  XType type;  // of q, of probabilities and of the result
};
// Rows of a sequence in a step, and where addresses of its blocks begin in the table.
struct CudaSequence {
  uint64_t position;
  uint32_t tokens, first_row, first_block, unused;
};
// Tokens [first, first + count) of a sequence, which go together.
struct CudaTokens {
  uint32_t sequence, first, count, unused;
};
struct CudaAttend {
  CudaAttention layer;
  const CudaSequence* sequences;  // [..] of the device
  uint8_t* const* blocks;         // of the device: the layer's kind of blocks, sequence by sequence
  size_t offset;                  // of the layer in each
  const CudaTokens* tiles;        // of the device, of cuda_tile_tokens() tokens at most
  size_t tile_count, sequence_count, segments;  // segments: of 1024 keys, at most
  CudaRows q, k, v, out;                        // k without data: keys are there already
};

// Candidates of rows of logits (device_candidates.h). All memory is the device's.
struct CudaFound;
struct CudaCandidates {
  CudaRows x;                  // f32
  size_t cols;                 // no row's vocab is larger
  const CandidateNeed* needs;  // [rows]
  bool weighs;                 // some of these do
  uint32_t most;               // room for the candidates of a row
  CudaFound* found;            // [rows], of rows that ask for something
  int32_t* ids;                // [rows, most]
  float* logits;               // [rows, most]
  void* work;                  // candidate_work_bytes()
};

struct CudaRoofs {
  double read_tbs, copy_tbs;          // TB/s
  double launch_us, early_launch_us;  // an empty kernel in a graph
};

struct CudaApi {
  uint32_t abi, bytes;  // first, for ever
  uint32_t matrix_bytes, moe_bytes, router_bytes, program_bytes, op_bytes, attend_bytes;
  const char* (*message)();  // of the calling thread's last failure

  // The device that runs layers, by its number; once, before the rest.
  CudaStatus (*open)(int32_t device, CudaFacts* facts);
  // --- memory and order ---
  CudaStatus (*allocate)(size_t bytes, void** p);
  void (*release)(void* p);
  // Memory of the host that copies do not wait for: `from` of upload() stays as it is until they are done.
  CudaStatus (*allocate_host)(size_t bytes, void** p);
  void (*release_host)(void* p);
  CudaStatus (*upload)(void* to, const void* from, size_t bytes, void* stream);
  CudaStatus (*download)(void* to, const void* from, size_t bytes, void* stream);  // waits
  // Does not wait: `to` of allocate_host() is there behind the next that does.
  CudaStatus (*fetch)(void* to, const void* from, size_t bytes, void* stream);
  CudaStatus (*synchronize)(void* stream);
  CudaStatus (*free_bytes)(uint64_t* bytes);
  CudaStatus (*make_stream)(void** stream);
  void (*free_stream)(void* stream);
  // What `stream` is given from now on runs behind what `before` was given so far. Not while either is captured.
  CudaStatus (*run_behind)(void* stream, void* before);
  CudaStatus (*copy)(void* to, const void* from, size_t bytes, void* stream);  // both of the device
  CudaStatus (*clear)(void* p, size_t bytes, void* stream);                    // to zeros
  // What is given to the stream in between becomes a graph and does not run; end_capture must follow.
  CudaStatus (*begin_capture)(void* stream);
  CudaStatus (*end_capture)(void* stream, void** graph);
  CudaStatus (*launch_graph)(void* graph, void* stream);
  void (*free_graph)(void* graph);  // behind its launches

  // --- layers ---
  CudaStatus (*make_linear)(const CudaMatrix* parts, size_t count, CudaPath path, void** layer);
  CudaStatus (*run_linear)(void* layer, const CudaRows* x, const CudaRows* y, void* stream);
  CudaStatus (*make_moe)(const CudaMoe* moe, void** layer);
  // One call per expert, in any order; local == experts: the shared one. Once more for a routed expert: another
  // one takes its place, behind all calls; after a failure the layer is not to be run any more.
  CudaStatus (*set_expert)(void* layer, size_t local, const CudaExpert* expert);
  CudaStatus (*set_shared_gate)(void* layer, const CudaMatrix* gate);
  CudaStatus (*set_router)(void* layer, const CudaRouter* router);
  CudaStatus (*run_moe)(void* layer, const CudaRows* x, const CudaRouting* routing,
                        const CudaRows* y, const CudaLaunch* launch, void* stream);
  // Experts by the layer's router. logits [rows, experts + zero_experts] of the caller; null: those of
  // the router's matrix. chosen: null: not wanted.
  CudaStatus (*run_routed)(void* layer, const CudaRows* x, const CudaRows* logits,
                           const CudaRows* y, const CudaChosen* chosen, void* stream);
  // A divided layer in three parts: the router's choice (zero_weights [rows] of identity experts, or null); rows
  // of the experts that are here, and of the shared one; the sum of these and of the others, which the
  // caller has brought meanwhile.
  CudaStatus (*choose_experts)(void* layer, const CudaRows* logits, const CudaChosen* chosen,
                               float* zero_weights, void* stream);
  CudaStatus (*run_items)(void* layer, const CudaRows* x, const CudaRouting* routing,
                          const CudaDivided* divided, void* stream);
  CudaStatus (*add_items)(void* layer, const CudaRows* x, const CudaRouting* routing,
                          const CudaDivided* divided, const CudaRows* y, void* stream);
  // Behind all calls: what expert_map is from now on, of as many experts.
  CudaStatus (*map_experts)(void* layer, const int32_t* expert_map);
  // Where the expert of a place lies in CudaMoe::memory: ranges[kCudaRanges], of which count are written.
  CudaStatus (*expert_ranges)(const void* layer, size_t local, CudaRange* ranges, size_t* count);
  uint64_t (*layer_bytes)(const void* layer);
  void (*free_layer)(void* layer);

  // --- rows of a model ---
  // Programs one behind the other, with the same number of rows: at most kCudaPrograms, and kCudaRowOps unless it is one.
  // Rows do not see each other.
  CudaStatus (*run_rows)(const CudaRowProgram* programs, size_t count, void* stream);
  // Row i of `to` is row which[i] of `from`, of the same type; which of the device.
  CudaStatus (*take_rows)(const CudaRows* from, const int32_t* which, const CudaRows* to,
                          size_t cols, void* stream);
  CudaStatus (*attend)(const CudaAttend* attend, void* stream);
  CudaStatus (*find_candidates)(const CudaCandidates* candidates, void* stream);
  size_t (*candidate_work_bytes)(size_t rows, size_t cols);

  // --- measuring ---
  // Marks of time between what is given to a stream, inside a graph too (then those of its last launch); behind
  // synchronize(), milliseconds from one to the next.
  CudaStatus (*make_clock)(size_t marks, void** clock);
  CudaStatus (*mark)(void* clock, size_t i, void* stream);
  CudaStatus (*read_clock)(void* clock, size_t count, float* milliseconds);  // [count - 1]
  void (*free_clock)(void* clock);
  // Captures `count` calls of run(context, i, stream) in one graph and replays it; microseconds per
  // call, median of `repeats`.
  CudaStatus (*time_graph)(CudaStatus (*run)(void* context, size_t i, void* stream), void* context,
                           size_t count, size_t repeats, double* microseconds);
  CudaStatus (*roofs)(CudaRoofs* roofs);
};

}  // namespace moebius
