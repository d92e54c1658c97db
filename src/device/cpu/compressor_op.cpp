// SPDX-License-Identifier: Apache-2.0
// Implements compressed keys over blocks as an operation of the CPU.
#include "device/cpu/block_addresses.h"
#include "kernels/oracle.h"

namespace moebius {
namespace {

class CpuCompressor final : public CompressorOp {
 public:
  CpuCompressor(CpuDevice& device, CompressorRequest r)
      : device_(device),
        compressor_(r.spec, std::move(r.bias), std::move(r.norm), device.options().type),
        sources_{r.spec.source_width(), kv_type_of(device.options().type)},
        rows_{r.spec.width, r.storage, r.spec.block_keys()},
        packed_(r.packed),
        rope_(r.rope),
        rotated_at_(r.rotated_at),
        rotated_(r.rotated),
        keys_at_(r.keys),
        sources_at_(r.sources) {
    if (packed_)
      layout_ = KvLayout(
          1, r.spec.width, 0, {r.storage}, device.options().type,
          [&](const Problem& p) {
            return choose_kernel(p, device.cpu(), request_for(p, device.options().policy)).chosen;
          },
          r.spec.block_keys());
  }
  void forward(Step& step, const RowSet& sources) const override {
    device_.run(step, [this, &step, sources] { execute(step, sources); });
  }

 private:
  struct Window {
    size_t sequence, number;
  };

  void execute(Step& step, const RowSet& sources) const {
    const size_t m = compressor_.spec().ratio, width = compressor_.spec().width;
    const float* rows = device_.at(step, sources);
    source_blocks_.gather(step, device_, sources_at_);
    key_blocks_.gather(step, device_, keys_at_);
    windows_.clear();
    for (size_t i = 0; i < step.sequences.size(); ++i) {
      const StepSequence& s = step.sequences[i];
      put_rows(sources_, s, source_blocks_.of(i), rows, sources.stride);
      for (size_t w = s.position / m; w < (s.position + s.tokens) / m; ++w)
        windows_.push_back({i, w});
    }
    if (windows_.empty()) return;
    grow(made_, windows_.size() * width);
    device_.for_rows(windows_.size(), compressor_.spec().reach() * sources_.width,
                     [&](size_t i) { make(step, windows_[i], made_.data() + i * width); });
    for (size_t i = 0; i < windows_.size(); ++i) keep(windows_[i], made_.data() + i * width);
    step.kv_bytes += windows_.size() * compressor_.spec().reach() * sources_.row_bytes();
  }

  void make(const Step& step, const Window& w, float* key) const {
    const CompressorSpec& spec = compressor_.spec();
    const size_t reach = spec.reach(), end = (w.number + 1) * spec.ratio;
    thread_local std::vector<float> memory;
    thread_local std::vector<const float*> at;
    grow(memory, reach * sources_.width + compressor_.scratch_floats());
    at.assign(reach, nullptr);
    for (size_t i = reach - std::min(reach, end); i < reach; ++i) {
      const size_t token = end - reach + i;
      float* to = memory.data() + i * sources_.width;
      sources_.get(source_blocks_.of(w.sequence)[token / kBlockTokens], token % kBlockTokens, to);
      at[i] = to;
    }
    compressor_.make(at.data(), key, memory.data() + reach * sources_.width);
    if (rotated_ == 0) return;
    device_.rope(rope_).rotate(key + rotated_at_, w.number * spec.ratio,
                               step.sequences[w.sequence].position, device_.options().type);
  }

  void keep(const Window& w, const float* key) const {
    const size_t each = compressor_.spec().block_keys(), width = compressor_.spec().width;
    uint8_t* block = key_blocks_.of(w.sequence)[w.number / each];
    if (packed_)
      layout_.put(block, /*head=*/0, w.number % each, 1, key, width, /*v=*/nullptr, /*ldv=*/0);
    else
      rows_.put(block, w.number % each, key);
  }

  CpuDevice& device_;
  Compressor compressor_;
  KvRowLayout sources_, rows_;
  KvLayout layout_;
  bool packed_;
  size_t rope_, rotated_at_, rotated_;
  KvOffset keys_at_, sources_at_;
  mutable BlockAddresses source_blocks_, key_blocks_;  // blocks of the current call
  mutable std::vector<Window> windows_;
  mutable std::vector<float> made_;
};

}  // namespace

std::unique_ptr<CompressorOp> CpuDevice::compressor(CompressorRequest request) {
  return std::make_unique<CpuCompressor>(*this, std::move(request));
}

}  // namespace moebius
