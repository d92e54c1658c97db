// SPDX-License-Identifier: Apache-2.0
// WAIST 3: what runs the layers of a model. Above it a model is a graph of operations on rows that
// have names (model/graph); below it a device has memory for rows and blocks, chooses kernels, packs
// weights, and runs operations in the order of a queue. The CPU is one; a model may have its
// attention on one device and its experts on another.
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

// Rows as the host sees them: what ranks exchange.
struct HostRows {
  std::span<float> data;  // rows * cols, one behind the other
};

// Some outputs of dense matrices per head (HeadLinear).
struct HeadMatrices {
  size_t heads, outputs, inputs;
  CodeType code;                   // holds all weights exactly
  size_t input_step, output_step;  // columns from head to head
  FunctionRef<float(size_t h, size_t n, size_t k)> weight;
  std::string name =
      {};  // that tells them from all others of the model; "": they are always made anew
};

// Attention of a layer, and where it keeps keys and values.
struct AttentionRequest {
  AttentionSpec spec;
  KvStorage storage;
  KvPlace place;
  bool sparse = false;       // rows see what an indexer chose; of entries, where there are any
  size_t first_kv_head = 0;  // of all ranks'; an indexer may choose for each
  // Latents that are kept as rows, and made into keys and values of all heads at each use by `up`;
  // null: keys and values are kept as they are attended to.
  struct Latents {
    size_t width = 0;  // of the latent proper, without its rotated part
    size_t nope = 0, rope = 0;
    std::unique_ptr<LinearOp> up;
  };
  std::unique_ptr<Latents> latents = nullptr;
  KvPlace entries = {};  // where spec.ratio is not 0
};

// Compressed keys of a layer: what makes them, and where they and their sources are kept.
struct CompressorRequest {
  CompressorSpec spec;
  std::vector<float> bias;
  Norm norm;
  size_t rope = 0;                     // which of the device's rotations ...
  size_t rotated_at = 0, rotated = 0;  // ... turns these features of a key
  KvType storage = KvType::kF32;
  bool packed = false;  // as keys of an indexer; else rows, as entries of attention
  KvPlace keys, sources;
};

// Rows by hashed n-grams; `place` has the tokens before a sequence's next one.
struct NGramRequest {
  NGramHash hash;
  int64_t eos = 0;
  std::unique_ptr<const RowTable> table;
  KvPlace place;
};

struct MoeRequest {
  const MoeBlock* block;
  MoePart part = MoePart::kBlock;
  MoeExchange* exchange = nullptr;  // of ranks that run it together
  // A divided layer: `other` has some of its experts. expert_of: what every place for one holds, the first
  // `here` of them on this device; empty: all are here.
  Device* other = nullptr;
  std::vector<uint32_t> expert_of = {};
  size_t here = 0;
};
struct MoeOps {
  std::unique_ptr<ExpertsOp> experts;
  std::unique_ptr<LinearOp> router;  // null for a dense MLP
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;  // "cpu"

  // --- planning: what layers would take ---
  virtual size_t kv_bytes(const AttentionSpec& spec, const KvStorage& storage) const = 0;
  virtual size_t index_bytes(const IndexerSpec& spec, KvType storage) const = 0;

  // --- layers; throw Error naming the module ---
  virtual std::unique_ptr<LinearOp> linear(const Checkpoint& checkpoint,
                                           const std::vector<ModuleOutputs>& modules,
                                           const LoadOptions& options) = 0;
  virtual std::unique_ptr<LinearOp> head_linear(const HeadMatrices& matrices) = 0;
  virtual MoeOps moe(const Checkpoint& checkpoint, const MoeRequest& request,
                     const LoadOptions& options) = 0;
  virtual std::unique_ptr<AttentionOp> attention(AttentionRequest request) = 0;
  virtual std::unique_ptr<IndexerOp> indexer(const IndexerSpec& spec, KvType storage,
                                             KvPlace place) = 0;
  virtual std::unique_ptr<CompressorOp> compressor(CompressorRequest request) = 0;
  virtual std::unique_ptr<RowStoreOp> row_store(size_t width, KvPlace place) = 0;
  virtual std::unique_ptr<NGramOp> ngrams(NGramRequest request) = 0;
  virtual std::unique_ptr<RecurrentOp> recurrent(std::unique_ptr<Recurrent> net, KvPlace place) = 0;
  // Rows of a token table times `multiplier`. `output`: the projection to logits if it is the same
  // weights and all of them are here, so that rows may be read back from it; else null.
  virtual std::unique_ptr<EmbeddingOp> embedding(const Checkpoint& checkpoint, const Module& table,
                                                 float multiplier, const LinearOp* output) = 0;
  virtual std::unique_ptr<RowProgram> rows(std::vector<RowOp> ops) = 0;
  virtual void set_ropes(std::span<const RopeSpec> ropes) = 0;  // that row operations name

  // --- memory ---
  virtual std::unique_ptr<DeviceBlocks> blocks(std::span<const size_t> block_bytes,
                                               size_t slab_bytes) = 0;
  RowSet rows(Step& step, uint32_t slot, size_t cols, XType numbers) {  // one per row of the step
    return rows(step, slot, step.rows, cols, numbers);
  }
  virtual RowSet rows(Step& step, uint32_t slot, size_t rows, size_t cols, XType numbers) = 0;

  // --- of a step ---
  virtual void begin(Step& step) = 0;
  virtual void take_rows(Step& step, const RowSet& x, std::vector<uint32_t> which,
                         const RowSet& y) = 0;
  // Runs fn here with the numbers of x, and with room for those of y, which become y's. Either may
  // have no rows. Waits for what was given before where it reads.
  virtual void on_host(Step& step, const RowSet& x, const RowSet& y,
                       FunctionRef<void(HostRows x, HostRows y)> fn) = 0;
  // What draws need of rows of logits, where the device finds it; none: the row has too many candidates,
  // or nothing was asked of it. Waits. False: this device does not, and the rows are asked for instead.
  virtual bool candidates(Step& step, const RowSet& x, std::span<const CandidateNeed> needs,
                          std::span<std::optional<Candidates>> out) {
    (void)step, (void)x, (void)needs, (void)out;
    return false;
  }
  // Until all operations of the step's queue are done; throws what the first that failed threw, and
  // none behind it has run.
  virtual void wait(Step& step) = 0;
  virtual bool lost() const { return false; }  // after a failure: nothing will run any more
  // Keeps what makes many short operations cheap for as long as the result lives.
  virtual std::shared_ptr<void> stay() { return nullptr; }

  // Rows of one device become those of another, by the host.
  static void copy(Step& step, const RowSet& from, const RowSet& to);
};

}  // namespace moebius
