// SPDX-License-Identifier: Apache-2.0
// WAIST 3 (ARCHITECTURE.md): the interface of a device, which runs the layers of a model. Above it
// a model is a graph of operations on named rows (model/graph). Below it a device allocates memory
// for rows and KV blocks, chooses kernels, packs weights, and runs operations in the order of a
// queue. The CPU is a device, each GPU is another; a model may have its attention on one device and
// its experts on another.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/row_table.h"
#include "device/load_options.h"
#include "device/module_use.h"
#include "device/ops.h"
#include "device/step.h"
#include "nn/attention.h"
#include "nn/candidates.h"
#include "nn/compressor.h"
#include "nn/indexer.h"
#include "nn/moe_exchange.h"
#include "nn/ngram_hash.h"
#include "nn/recurrent.h"
#include "nn/rope.h"

namespace moebius {

// Rows of activations in host memory, in f32: the form in which ranks exchange them.
struct HostRows {
  std::span<float> data;  // [rows, cols], contiguous
};

// Gives a device the weights of a HeadLinear (nn/head_linear.h): one dense matrix per attention
// head.
struct HeadMatrices {
  size_t heads, outputs, inputs;
  CodeType code;                   // the narrowest type that holds every weight exactly
  size_t input_step, output_step;  // columns between the inputs (outputs) of neighbouring heads
  FunctionRef<float(size_t h, size_t n, size_t k)> weight;
  // Name under which a cache of packed weights keeps the matrices; must be unique in the model. "":
  // not kept.
  std::string name = {};
};

// Describes one attention layer, and where the layer keeps its keys and values.
struct AttentionRequest {
  AttentionSpec spec;
  KvStorage storage;
  KvOffset place;
  // true: a row attends only to the keys that an indexer selected; if the layer has compressed
  // keys, it selects among these
  bool sparse = false;
  // Index of this rank's first KV head among those of all ranks: an indexer may select differently
  // per head.
  size_t first_kv_head = 0;
  // Multi-head latent attention: the cache holds one latent row per token, and `up` computes keys
  // and values of all heads from it at each use. Null: the cache holds keys and values themselves.
  struct Latents {
    size_t width = 0;  // columns of a latent row that are not rotated by position
    size_t nope = 0, rope = 0;
    std::unique_ptr<LinearOp> up;
  };
  std::unique_ptr<Latents> latents = nullptr;
  // Place of compressed keys and values; unused if spec.ratio is 0 (the layer compresses nothing).
  KvOffset entries = {};
};

// Describes the operation that compresses keys of several tokens into one (nn/compressor.h).
struct CompressorRequest {
  CompressorSpec spec;
  std::vector<float> bias;
  Norm norm;
  // Rotation that is applied to columns [rotated_at, rotated_at + rotated) of a compressed key:
  // index into those given to set_ropes().
  size_t rope = 0;
  size_t rotated_at = 0, rotated = 0;
  KvType storage = KvType::kF32;
  // true: stored as packed keys, which an indexer multiplies; false: as rows, which attention reads
  bool packed = false;
  KvOffset keys, sources;
};

// Describes a lookup of table rows by a hash of a sequence's last tokens. `place` keeps the tokens
// that the hash of the sequence's next token needs.
struct NGramRequest {
  NGramHash hash;
  int64_t eos = 0;
  std::unique_ptr<const RowTable> table;
  KvOffset place;
};

// Describes one mixture of experts, or a dense MLP, for Device::moe.
struct MoeRequest {
  const MoeBlock* block;
  MoePart part = MoePart::kBlock;
  // Null, or what exchanges rows with the other ranks that run the layer together.
  MoeExchange* exchange = nullptr;
  // Set for a layer whose experts are divided over two devices: `other` runs those that this device
  // does not. expert_of[p] is the expert in place p; the first `here` places are on this device.
  // Empty: all experts are here.
  Device* other = nullptr;
  std::vector<uint32_t> expert_of = {};
  size_t here = 0;
};
// The operations that Device::moe makes: the router's matrix, and everything after it.
struct MoeOps {
  std::unique_ptr<ExpertsOp> experts;
  std::unique_ptr<LinearOp> router;  // matrix that computes logits; null for a dense MLP
};

// Parts of layers that not every device can run. The plan puts a layer's part on the CPU if its
// device lacks it (Device::lacks).
enum class Need : uint8_t {
  kStreams,          // hidden streams: several rows of a token side by side
  kConvolutions,     // convolutions of the results of attention and block
  kRecurrent,        // a layer with a state in place of keys and values
  kCompressedKeys,   // attention to keys that each stand for several tokens
  kIndexer,          // attention to the keys that an indexer selects
  kDistanceLogits,   // logits that depend on the distance of two tokens
  kExpandedLatents,  // latent attention that computes keys and values from latents at each use
  kTokenTable,       // experts that a table of token ids selects
};
std::string_view name_of(Need need);  // returns a name such as "compressed keys"

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;  // name of the device: "cpu", "cuda:0", ...

  // --- planning, before anything is allocated: what the device cannot run, and which kernels and
  // bytes layers would take ---
  virtual bool lacks(Need) const { return false; }
  // Returns what the device would make of a matrix or a table; throws Error if no kernel accepts it.
  virtual ModuleUse plan(const ModuleQuestion& question) const = 0;
  // Return the bytes of one KV block (kBlockTokens tokens) of an attention layer, and of an
  // indexer.
  virtual size_t kv_bytes(const AttentionSpec& spec, const KvStorage& storage) const = 0;
  virtual size_t index_bytes(const IndexerSpec& spec, KvType storage) const = 0;

  // --- making layers: each call throws Error that names the module ---
  virtual std::unique_ptr<LinearOp> linear(const Checkpoint& checkpoint,
                                           const std::vector<ModuleOutputs>& modules,
                                           const LayerLoadOptions& options) = 0;
  virtual std::unique_ptr<LinearOp> head_linear(const HeadMatrices& matrices) = 0;
  virtual MoeOps moe(const Checkpoint& checkpoint, const MoeRequest& request,
                     const LayerLoadOptions& options) = 0;
  virtual std::unique_ptr<AttentionOp> attention(AttentionRequest request) = 0;
  virtual std::unique_ptr<IndexerOp> indexer(const IndexerSpec& spec, KvType storage,
                                             KvOffset place) = 0;
  virtual std::unique_ptr<CompressorOp> compressor(CompressorRequest request) = 0;
  virtual std::unique_ptr<RowStoreOp> row_store(size_t width, KvOffset place) = 0;
  virtual std::unique_ptr<NGramOp> ngrams(NGramRequest request) = 0;
  virtual std::unique_ptr<RecurrentOp> recurrent(std::unique_ptr<Recurrent> net,
                                                 KvOffset place) = 0;
  // Makes the lookup of token embeddings, times `multiplier`. `output`: the projection to logits,
  // if it has the same weights as the table and holds all of them: embeddings are then read back
  // from its packed form. Null: the table is loaded.
  virtual std::unique_ptr<EmbeddingOp> embedding(const Checkpoint& checkpoint, const Module& table,
                                                 float multiplier, const LinearOp* output) = 0;
  virtual std::unique_ptr<RowProgram> rows(std::vector<RowOp> ops) = 0;
  // Sets the rotations that operations name by index. Call it once, before any layer is made.
  virtual void set_ropes(std::span<const RopeSpec> ropes) = 0;

  // --- memory ---
  // Makes the memory of KV blocks. block_bytes: [kinds] bytes of a block; memory is allocated in
  // portions of about slab_bytes.
  virtual std::unique_ptr<DeviceBlocks> blocks(std::span<const size_t> block_bytes,
                                               size_t slab_bytes) = 0;
  // Returns buffer `slot` with one row for each row of the step; RowName (graph.h) numbers buffers.
  RowSet rows(Step& step, uint32_t slot, size_t cols, XType numbers) {
    return rows(step, slot, step.rows, cols, numbers);
  }
  virtual RowSet rows(Step& step, uint32_t slot, size_t rows, size_t cols, XType numbers) = 0;

  // --- operations of a step, queued in the order of the calls ---
  // Starts a step; call it first, once per device.
  virtual void begin(Step& step) = 0;
  // Copies rows `which` of x to y, in this order. On a CPU, y may be the first rows of x if `which`
  // ascends.
  virtual void take_rows(Step& step, const RowSet& x, std::vector<uint32_t> which,
                         const RowSet& y) = 0;
  // Calls fn on the host with the numbers of x; what fn writes into its y becomes the rows of y. x
  // or y may have no rows. If x has rows, waits for all earlier operations of the queue.
  virtual void on_host(Step& step, const RowSet& x, const RowSet& y,
                       FunctionRef<void(HostRows x, HostRows y)> fn) = 0;
  // Finds on the device the tokens of each row of logits x that sampling may draw: out[i] for
  // needs[i]. out[i] stays empty if needs[i] asks for nothing or the row has too many candidates.
  // Waits for the result. Returns false if this device cannot; the caller then reads whole rows.
  virtual bool candidates(Step& step, const RowSet& x, std::span<const CandidateNeed> needs,
                          std::span<std::optional<Candidates>> out) {
    (void)step, (void)x, (void)needs, (void)out;
    return false;
  }
  // Waits until all queued operations of the step are done. Throws what the first failed operation
  // threw; no operation after it has run.
  virtual void wait(Step& step) = 0;
  // Returns true after a failure of the device itself: every later step would fail, too.
  virtual bool lost() const { return false; }
  // Lets idle worker threads spin longer before they sleep, until the result is destroyed: for many
  // short operations.
  virtual std::shared_ptr<void> stay() { return nullptr; }

  // Copies rows from the device of `from` to the device of `to`, through host memory.
  static void copy(Step& step, const RowSet& from, const RowSet& to);
};

}  // namespace moebius
