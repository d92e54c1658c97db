// SPDX-License-Identifier: Apache-2.0
// Inside of DecoderModel: one layer and the rows of a step. Included by decoder*.cpp only.
#pragma once
#include <chrono>

#include "model/decoder.h"

namespace moebius {

struct DecoderModel::Layer {
  Norm input_norm, post_norm, q_norm, k_norm;
  std::unique_ptr<LinearLayer> qkv, output;
  // latent attention: x -> [q latent | kv latent, k_rope]; then q and [k_nope | v] from their
  // latents
  std::unique_ptr<LinearLayer> latent, q_up, kv_up;
  Norm q_latent_norm, kv_latent_norm;
  std::unique_ptr<AttentionPlan> attention;
  MoeBlockLayer moe;  // router null: a dense MLP as one expert that every row takes
  bool routed = false;
  uint64_t moe_bytes_per_token = 0;
};

// Rows of one step, f32 values exact in the activation type.
struct DecoderModel::Buffers {
  std::vector<float> h, a, branch;  // [T, hidden]
  std::vector<float> q, k, v, qkv, attended, latent, q_latent, kv_latent, kv;
  std::vector<float> router, gathered;
  std::vector<int32_t> positions, ones_ids;
  std::vector<float> ones;
  std::vector<AttentionScratch> scratch;  // per thread
};

class DecoderModel::Timer {
 public:
  Timer(Profile& profile, Phase phase)
      : total_(profile[static_cast<size_t>(phase)]), start_(std::chrono::steady_clock::now()) {}
  ~Timer() {
    total_ += static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now() - start_)
                                        .count());
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  uint64_t& total_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace moebius
