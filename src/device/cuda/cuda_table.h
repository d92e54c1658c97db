// SPDX-License-Identifier: Apache-2.0
// The interface of the CUDA plugin (plugins/cuda): one table of functions, returned by the C
// function named kCudaSymbol. Program and plugin include this header, tiles.h and the arithmetic of
// device_*.h.
// Only plain data is passed: no exception, no type of the standard library. The table begins with
// the sizes of the structures, so that a plugin of another build is refused without a call.
//
// After a failure of a function that returns CudaStatus, message() returns a text. Layers may be
// run from any thread; work goes to the stream that is given (null: the default stream) in order.
// Nothing waits for the device but download(), synchronize() and a call with more rows than its
// stream has seen. Calls may be captured in graphs: what a graph needs between its kernels is its
// own.
#pragma once
#include <cstddef>
#include <cstdint>

#include "nn/candidates.h"
#include "quant/activation.h"
#include "quant/moe_spec.h"
#include "quant/quant_matrix.h"

namespace moebius {

inline constexpr uint32_t kCudaAbi = 9;
inline constexpr const char* kCudaSymbol = "moebius_device";
// Least compute capability; older devices are refused by name.
inline constexpr int kCudaLeastMajor = 8, kCudaLeastMinor = 0;

enum class CudaStatus : int32_t {
  kOk,
  kNoDriver,
  kNoDevice,
  kTooOld,  // the compute capability is too low
  kOutOfMemory,
  kRefused,  // an argument is invalid; nothing was run
  kLost,     // the device failed: nothing will run in this process any more
};

struct CudaFacts {
  char name[128];
  int32_t major, minor, multiprocessors, driver, runtime;  // versions are 1000 * major + 10 * minor
  uint64_t memory_bytes, free_bytes, cache_bytes;
};

// Views rows in GPU memory: element (r, c) is at data + r * stride + c, counted in elements of
// `type`.
struct CudaRows {
  void* data;
  XType type;
  size_t rows, stride;
};

// One matrix with everything that belongs to its product. In host memory, read during the call
// only.
struct CudaMatrix {
  QuantMatrix w;
  ActSpec act;
  ActParams input;
  XType x_type;        // type of rows that are not quantized
  const float* bias;   // [N] added to outputs, or null
  float output_scale;  // scale of output fake quantization; 0: none
  size_t padded_n;     // number of outputs including those after N, which are 0; 0: N
};

// Selects the kernels that run a layer; cuda_choice.h decides.
enum class CudaPath : uint8_t { kPlain, kMma, kHopper, kHopperFp8 };

struct CudaActivation {  // ActivationSpec as plain data
  uint8_t kind;          // value of ActivationKind
  bool has_limit, has_lb;
  float limit, alpha, beta, b, lb;
};

struct CudaMoe {
  size_t hidden, intermediate;  // intermediate: intermediate size of the routed experts
  size_t shared_intermediate;   // intermediate size of the shared expert; 0: there is none
  // Number of experts of this rank; 0 for a layer with a map whose experts are all elsewhere.
  size_t experts;
  const int32_t* expert_map;  // [mapped] global id to local, -1: elsewhere; null: ids are local
  size_t mapped;
  bool gated, weight_on_input;
  CudaActivation activation, shared_activation;
  CudaPath path, shared_path;  // kernels of routed experts; of shared experts
  // GPU memory for the weights of routed experts, which the caller fills before each run (streamed
  // layers); null: the layer allocates. Plain kernels do not support given memory.
  void* memory;
  size_t memory_bytes;
};

// Bytes [begin, end) of CudaMoe::memory.
struct CudaRange {
  size_t begin, end;
};
inline constexpr size_t kCudaRanges = 16;  // most ranges of one expert

// Parameters of the choice of experts (nn/router.h), and the matrix that computes logits. In host
// memory.
struct CudaRouter {
  RouterSpec spec;
  const float* bias;          // [experts + zero_experts], if the spec has a bias
  const float* expert_scale;  // [experts], if the spec has a scale
  const CudaMatrix* matrix;   // matrix that computes logits; null: callers pass logits
  CudaPath path;              // kernels of the matrix
};

struct CudaExpert {
  const CudaMatrix* gate;  // gate matrix; null if the activation is not gated
  const CudaMatrix* up;
  const CudaMatrix* down;
};

struct CudaRouting {          // the experts of each row; all memory is GPU memory
  const int32_t* ids;         // [rows, slots] global ids of the chosen experts; -1: none
  const float* weights;       // [rows, slots] their weights
  const float* zero_weights;  // [rows] weights of identity experts, or null
  size_t slots;
};

// Receives a router's choice, in GPU memory; null: not wanted.
struct CudaChosen {
  int32_t* ids;      // [rows, slots] receives ids
  float* weights;    // [rows, slots] receives weights
  uint32_t* counts;  // [experts] to which the number of times each was chosen is added
};

// Result rows of the experts of a divided layer. All memory is GPU memory.
struct CudaItems {
  float* rows;  // [.., hidden] results of experts before they are weighted
  // [rows of x, slots] index of the slot's row among `rows`; -1: its expert is not on this device.
  int32_t* at;
};
struct CudaDivided {
  CudaItems own, others;
  float *shared, *shared_gate;  // [rows of x, hidden] and [rows of x]; null if the layer has none
};

// Launch options of a layer of experts. Results do not depend on them.
// Selects kernels that start before the preceding kernel ends.
enum class CudaEarly : uint8_t { kRule, kNever, kAlways, kNotDown };
struct CudaLaunch {
  uint32_t tile;  // rows of x per tile: 8, 16, 32, 64 or 128; 0: chosen by a rule
  CudaEarly early;
  // Slabs of 64 outputs per warpgroup: 1, 2 (tiles of 128 rows), 0: chosen by a rule.
  uint8_t slabs;
};

// --- rows of a model (device/rows.h) ---

// Selects columns of an operand's rows, head by head (RowView in device/rows.h); width 0: all.
struct CudaView {
  uint32_t operand, at, width, heads, step;
};

// One operation (RowOp in device/rows.h). Numbers that depend on positions come with the step: row
// t of its tables, from column `table` on: `half` cosines and `half` sines for a rotation, one
// factor for others.
struct CudaRowOp {
  uint8_t kind, norm;  // a RowOpKind; a NormKind
  bool interleaved;
  CudaView y, x;
  float factor, epsilon;
  uint32_t table, half;
  const float *weight, *bias, *values;  // parameters in GPU memory, or null
};

inline constexpr size_t kCudaOperands = 7;
struct CudaRowProgram {
  const CudaRowOp* ops;  // list of operations in host memory, read during the call
  size_t count, rows;
  // Rows of each operand; data null: the operand is missing, and operations on it are skipped.
  CudaRows operands[kCudaOperands];
  uint32_t cols[kCudaOperands];
  XType type;           // results are rounded to this type
  const float* tables;  // [rows, table_cols] numbers of the step that depend on positions
  size_t table_cols;
  // Number of heads of each operand that is changed head by head (cuda_parts.h); all 0: the row is
  // processed as a whole.
  uint32_t part_heads[kCudaOperands];
};
// Most programs, and operations of all programs together, per call.
inline constexpr size_t kCudaPrograms = 4, kCudaRowOps = 16;

// --- attention over blocks of 128 tokens (device_attention.h) ---

struct CudaAttention {
  uint32_t heads, kv_heads, key_dim, value_dim;
  float scale;
  uint64_t window, chunk;  // limits of what a query sees (AttentionSpec); 0: no limit
  const float* sinks;      // [heads] on the device, or null
  uint8_t storage;         // value of KvType
  float key_scale, value_scale;
  XType type;  // type of q, of probabilities and of the result
};
// The rows of one sequence in a step; first_block: index of its first block's address in the table.
struct CudaSequence {
  uint64_t position;
  uint32_t tokens, first_row, first_block, unused;
};
// A tile: tokens [first, first + count) of a sequence, which are processed together.
struct CudaTokens {
  uint32_t sequence, first, count, unused;
};
struct CudaAttend {
  CudaAttention layer;
  const CudaSequence* sequences;  // [sequence_count] on the device
  // In GPU memory: addresses of the layer's kind of blocks, sequence by sequence.
  uint8_t* const* blocks;
  size_t offset;            // bytes from a block's begin to the layer's part
  const CudaTokens* tiles;  // tiles in GPU memory, of at most cuda_tile_tokens() tokens each
  // segments: number of segments of 1024 keys of the longest sequence.
  size_t tile_count, sequence_count, segments;
  CudaRows q, k, v, out;  // k without data: keys are in the blocks already
};

// Arguments of a search for candidates in rows of logits (device_candidates.h). All memory is GPU
// memory.
struct CudaFound;
struct CudaCandidates {
  CudaRows x;                  // rows of logits, in f32
  size_t cols;                 // number of logits per row that any need reads
  const CandidateNeed* needs;  // [rows] what each draw needs
  bool weighs;                 // true: some needs read the weights of tokens
  uint32_t most;               // room for candidates of a row in ids and logits
  CudaFound* found;            // [rows] receives results; not written for rows that need nothing
  int32_t* ids;                // [rows, most] receives tokens
  float* logits;               // [rows, most] receives their logits
  void* work;                  // scratch of candidate_work_bytes()
};

struct CudaRoofs {
  double read_tbs, copy_tbs;          // speeds in TB/s
  double launch_us, early_launch_us;  // microseconds to launch an empty kernel in a graph
};

struct CudaApi {
  // Version and size of the table; these are the first members in all versions.
  uint32_t abi, bytes;
  uint32_t matrix_bytes, moe_bytes, router_bytes, program_bytes, op_bytes, attend_bytes;
  const char* (*message)();  // returns the text of the calling thread's last failure

  // Selects the device that runs layers, by its number, and returns its facts. Call it once, before
  // all other functions.
  CudaStatus (*open)(int32_t device, CudaFacts* facts);
  // --- memory and order ---
  CudaStatus (*allocate)(size_t bytes, void** p);
  void (*release)(void* p);
  // Allocates host memory from which copies are asynchronous: `from` of upload() must stay
  // unchanged until they are done.
  CudaStatus (*allocate_host)(size_t bytes, void** p);
  void (*release_host)(void* p);
  CudaStatus (*upload)(void* to, const void* from, size_t bytes, void* stream);
  // Waits for the copy.
  CudaStatus (*download)(void* to, const void* from, size_t bytes, void* stream);
  // Queues a copy to `to`, host memory of allocate_host(), and does not wait: the bytes are there
  // after the next call that waits.
  CudaStatus (*fetch)(void* to, const void* from, size_t bytes, void* stream);
  CudaStatus (*synchronize)(void* stream);
  CudaStatus (*free_bytes)(uint64_t* bytes);
  CudaStatus (*make_stream)(void** stream);
  void (*free_stream)(void* stream);
  // Makes work that is queued on `stream` from now on wait for what is queued on `before` so far.
  // Not allowed while a graph captures either of them.
  CudaStatus (*run_behind)(void* stream, void* before);
  // Copies within GPU memory.
  CudaStatus (*copy)(void* to, const void* from, size_t bytes, void* stream);
  CudaStatus (*clear)(void* p, size_t bytes, void* stream);  // sets to zero
  // Capture the work that is queued between both calls as a graph, instead of running it.
  CudaStatus (*begin_capture)(void* stream);
  CudaStatus (*end_capture)(void* stream, void** graph);
  CudaStatus (*launch_graph)(void* graph, void* stream);
  void (*free_graph)(void* graph);  // call it when all its launches are done

  // --- layers ---
  CudaStatus (*make_linear)(const CudaMatrix* parts, size_t count, CudaPath path, void** layer);
  CudaStatus (*run_linear)(void* layer, const CudaRows* x, const CudaRows* y, void* stream);
  CudaStatus (*make_moe)(const CudaMoe* moe, void** layer);
  // Packs an expert: call it once per expert, in any order; local == experts is the shared one. A
  // further call for a routed expert replaces it, when no call runs the layer; after a failure the
  // layer must not be run again.
  CudaStatus (*set_expert)(void* layer, size_t local, const CudaExpert* expert);
  CudaStatus (*set_shared_gate)(void* layer, const CudaMatrix* gate);
  CudaStatus (*set_router)(void* layer, const CudaRouter* router);
  CudaStatus (*run_moe)(void* layer, const CudaRows* x, const CudaRouting* routing,
                        const CudaRows* y, const CudaLaunch* launch, void* stream);
  // Runs the experts that the layer's router chooses. logits: [rows, experts + zero_experts] of the
  // caller; null: computed by the router's matrix. chosen: receives the choice; null: not wanted.
  CudaStatus (*run_routed)(void* layer, const CudaRows* x, const CudaRows* logits,
                           const CudaRows* y, const CudaChosen* chosen, void* stream);
  // Run a layer whose experts are divided between devices, in three parts: the router's choice
  // (zero_weights: [rows] weights of identity experts, or null); rows of the experts on this device
  // and of the shared one; the sum of these and of the others' rows, which the caller provides.
  CudaStatus (*choose_experts)(void* layer, const CudaRows* logits, const CudaChosen* chosen,
                               float* zero_weights, void* stream);
  CudaStatus (*run_items)(void* layer, const CudaRows* x, const CudaRouting* routing,
                          const CudaDivided* divided, void* stream);
  CudaStatus (*add_items)(void* layer, const CudaRows* x, const CudaRouting* routing,
                          const CudaDivided* divided, const CudaRows* y, void* stream);
  // Replaces expert_map, when no call runs the layer; the number of experts must not change.
  CudaStatus (*map_experts)(void* layer, const int32_t* expert_map);
  // Finds the bytes of the expert of a place within CudaMoe::memory: writes *count of
  // ranges[kCudaRanges].
  CudaStatus (*expert_ranges)(const void* layer, size_t local, CudaRange* ranges, size_t* count);
  uint64_t (*layer_bytes)(const void* layer);
  void (*free_layer)(void* layer);

  // --- rows of a model ---
  // Runs programs one after the other on the same number of rows: at most kCudaPrograms programs,
  // and kCudaRowOps operations unless there is one program. Rows are independent.
  CudaStatus (*run_rows)(const CudaRowProgram* programs, size_t count, void* stream);
  // Copies row which[i] of `from` to row i of `to`, of the same type; `which` is on the device.
  CudaStatus (*take_rows)(const CudaRows* from, const int32_t* which, const CudaRows* to,
                          size_t cols, void* stream);
  CudaStatus (*attend)(const CudaAttend* attend, void* stream);
  CudaStatus (*find_candidates)(const CudaCandidates* candidates, void* stream);
  size_t (*candidate_work_bytes)(size_t rows, size_t cols);

  // --- measuring ---
  // A clock records timer events between work of a stream, also inside a graph (then of its last
  // launch); after synchronize(), read_clock returns the milliseconds from each event to the next.
  CudaStatus (*make_clock)(size_t marks, void** clock);
  CudaStatus (*mark)(void* clock, size_t i, void* stream);
  CudaStatus (*read_clock)(void* clock, size_t count, float* milliseconds);  // writes [count - 1]
  void (*free_clock)(void* clock);
  // Captures `count` calls of run(context, i, stream) in one graph and replays it; returns
  // microseconds per call, the median of `repeats`.
  CudaStatus (*time_graph)(CudaStatus (*run)(void* context, size_t i, void* stream), void* context,
                           size_t count, size_t repeats, double* microseconds);
  CudaStatus (*roofs)(CudaRoofs* roofs);
};

}  // namespace moebius
