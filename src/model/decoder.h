// SPDX-License-Identifier: Apache-2.0
// A whole model: embedding, layers of attention and MLP or mixture of experts, output projection.
// Runs rows of any number of sequences in one step; a row's result does not depend on the others,
// on threads, or on how a prompt was cut into steps.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "model/backend.h"
#include "model/decoder_spec.h"
#include "model/layer_loader.h"
#include "nn/attention.h"

namespace moebius {

struct ModelOptions {
  ThreadPool* pool = nullptr;
  Policy policy;
  Int8Mode int8 = Int8Mode::kDeclared;
  XType type = XType::kBf16;  // of activations between layers and of the KV cache
  size_t context = 0;         // longest sequence that will be run; 0: what the config allows
  std::function<void(uint64_t bytes)> progress;  // file bytes read
};

// What one sequence has seen: keys and values of every layer.
class SequenceState {
 public:
  size_t length() const { return layers_.empty() ? 0 : layers_[0].length(); }
  size_t kv_bytes() const;

 private:
  friend class DecoderModel;
  std::vector<KvCache> layers_;
};

struct StepItem {
  SequenceState* state = nullptr;
  std::span<const int32_t> tokens;  // at least one
  bool all_logits = false;          // logits of every token, else of the last one
};

std::string_view name_of(Phase phase);

// Bytes of KV cache per token as they are allocated: whole blocks, packed for `cpu`.
uint64_t kv_bytes_per_token(const DecoderSpec& spec, XType type, const Cpu& cpu,
                            const Policy& policy = {});

class DecoderModel {
 public:
  // Throws Error: unsupported architecture or module (before anything is read), broken payload.
  static std::unique_ptr<DecoderModel> load(const Checkpoint& checkpoint,
                                            const ModelOptions& options);
  ~DecoderModel();

  size_t vocab() const { return vocab_; }
  size_t layers() const { return layers_.size(); }
  XType type() const { return options_.type; }
  uint64_t packed_bytes() const;  // weights in memory
  uint64_t embedding_bytes() const { return embedding_.N * embedding_.row_bytes; }  // of these
  uint64_t kv_bytes_per_token() const;
  uint64_t weight_bytes_per_token()
      const;  // packed weights that one token reads (k experts per layer)
  SequenceState new_sequence() const;

  // One step: all items' tokens run through the model. logits: [rows, vocab], items in order, one
  // row each (or one per token). Throws Error for a token id out of range, naming it. Calls from
  // several threads take turns.
  void forward(std::span<const StepItem> items, std::vector<float>& logits);
  const Profile& profile() const { return profile_; }
  void clear_profile() { profile_ = {}; }

 private:
  struct Layer;
  struct Buffers;
  class Timer;
  DecoderModel();
  void load_layer(const Checkpoint& checkpoint, size_t index, Layer& layer);
  void load_attention(const Checkpoint& checkpoint, size_t index, Layer& layer);
  void embed(std::span<const StepItem> items, size_t T);
  void embed_token(size_t token, float* to);
  void attend(size_t layer, std::span<const StepItem> items, size_t T);
  void project_qkv(const Layer& layer, size_t T);
  void project_latent(const Layer& layer, size_t T);
  void rotate_row(const Layer& layer, const LayerSpec& spec, size_t row, size_t position) const;
  void mix(const Layer& layer, size_t T);
  void add_and_normalize(const Norm& norm, const std::vector<float>* branch, size_t T);
  void run_linear(const LinearLayer& layer, const float* x, float* y, size_t T, bool round = true);
  void for_rows(size_t T, FunctionRef<void(size_t)> fn);

  DecoderSpec spec_;
  ModelOptions options_;
  LayerOptions layer_options_;
  size_t hidden_ = 0, vocab_ = 0;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::unique_ptr<Rope> rope_;
  // The token table in memory; or, when the output projection holds the same weights packed, its
  // plan: rows are then read from the file as tokens need them, so that the weights are not in
  // memory twice.
  LoadBuffer embedding_memory_;
  QuantMatrix embedding_;
  std::shared_ptr<const TensorStore> embedding_store_;
  MatrixPlan embedding_plan_;
  Norm final_norm_;
  std::unique_ptr<LinearLayer> output_;
  std::unique_ptr<Buffers> buffers_;
  std::mutex mutex_;
  Profile profile_{};
};

}  // namespace moebius
