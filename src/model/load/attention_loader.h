// SPDX-License-Identifier: Apache-2.0
// Turns an architecture's description of attention into operations: the parts of its projections,
// their norms and rotation become one list of row operations per layer.
#pragma once
#include "model/load/layer_loader.h"

namespace moebius {

class AttentionLoader : LayerScope {
 public:
  explicit AttentionLoader(const LayerScope& scope, const KeyMixer& mixer)
      : LayerScope(scope), m_(mixer), n_(mixer.sizes), all_(c.part.whole.keys(index).sizes) {}
  HeadAttention load_heads();
  LatentAttention load_latents();
  SharedKeyAttention load_shared_keys();

 private:
  void add_fused(std::vector<ModuleOutputs>& modules) const;
  std::vector<RowOp> head_input(bool all_heads, size_t qkv_width) const;
  std::unique_ptr<RecurrentOp> load_key_convolution(size_t at, size_t in) const;
  Program gate_program(size_t gates, size_t attended) const;
  void absorb(const Module& kv_b, LatentAttention& m) const;
  std::unique_ptr<AttentionIndex> load_index() const;
  std::unique_ptr<AttentionIndex> load_pooled_index() const;
  std::unique_ptr<CompressorOp> load_compressor(const char* stems, const CompressorSpec& c,
                                                bool packed, const KvOffset& keys,
                                                const KvOffset& sources) const;
  AttentionRequest request(bool absorbed) const;
  Linear output() const;
  const Module& require(std::string_view member) const { return parts.require(m_.name(member)); }
  bool gate_in_query() const { return m_.gates && m_.gates->projection == nullptr; }

  const KeyMixer& m_;
  HeadSizes n_, all_;  // heads of this process, and of all ranks
};

}  // namespace moebius
