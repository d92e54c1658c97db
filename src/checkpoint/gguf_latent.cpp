// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf_latent.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/numeric.h"
#include "checkpoint/formats/format.h"
#include "checkpoint/formats/gguf.h"
#include "quant/reference.h"

namespace moebius {
namespace {

struct Head {
  const TensorInfo *k = nullptr, *v = nullptr;
};

class LatentRows final : public TensorSource {
 public:
  LatentRows(std::shared_ptr<const TensorStore> store, std::vector<Head> heads)
      : store_(std::move(store)), heads_(std::move(heads)) {
    for (const Head& h : heads_) {
      const MatrixPlan k = plan_of(h.k), v = plan_of(h.v);
      if (own_ == 0) own_ = k.K, latent_ = k.N, values_ = v.N;
      if (k.K != own_ || k.N != latent_ || v.N != values_ || v.K != latent_)
        fail("{} is {}; expected a matrix of [{}, {}] beside {}", store_->where(*h.v),
             describe(*h.v), values_, latent_, h.k->name);
    }
    const TensorInfo &k = *heads_[0].k, &v = *heads_[0].v;
    if (k.gguf == nullptr && k.dtype == v.dtype) type_ = k.dtype;
  }

  TensorInfo info(std::string name) const {
    TensorInfo t{std::move(name), type_, {heads_.size() * head_rows(), latent_}, 0, 0, 0};
    t.bytes = t.shape[0] * row_bytes();
    return t;
  }

  void read(uint64_t offset, std::span<uint8_t> out) const override {
    const uint64_t head_bytes = head_rows() * row_bytes(), end = offset + out.size();
    for (uint64_t h = offset / head_bytes; h * head_bytes < end; ++h) {
      const std::vector<uint8_t> bytes = head(heads_[h]);
      const uint64_t from = std::max(offset, h * head_bytes),
                     to = std::min(end, (h + 1) * head_bytes);
      std::memcpy(out.data() + (from - offset), bytes.data() + (from - h * head_bytes), to - from);
    }
  }

 private:
  uint64_t head_rows() const { return own_ + values_; }
  uint64_t row_bytes() const { return latent_ * bits_of(type_) / 8; }

  MatrixPlan plan_of(const TensorInfo* t) const {
    if (t == nullptr) fail("{}: a head lacks one of k_b and v_b", store_->files()[0].path());
    ModuleTensors tensors;
    tensors.name = t->name;
    tensors[Role::kWeight].info = t;
    Scheme scheme;
    if (t->gguf != nullptr) scheme = scheme_of_gguf(*t->gguf).value_or(Scheme{});
    return reader_for(scheme.format).plan(tensors, scheme, *store_, 0, 0, "");
  }

  std::vector<float> numbers(const TensorInfo* t) const {
    const MatrixPlan plan = plan_of(t);
    LoadBuffer buffer;
    std::vector<float> out(plan.N * plan.K);
    dequantize(reader_for(plan.scheme.format).load(plan, *store_, buffer), out.data());
    return out;
  }

  std::vector<uint8_t> head(const Head& h) const {
    const std::vector<float> k = numbers(h.k), v = numbers(h.v);
    std::vector<float> rows(head_rows() * latent_);
    for (uint64_t n = 0; n < own_; ++n)
      for (uint64_t l = 0; l < latent_; ++l) rows[n * latent_ + l] = k[l * own_ + n];
    std::copy(v.begin(), v.end(), rows.begin() + static_cast<ptrdiff_t>(own_ * latent_));
    std::vector<uint8_t> out(head_rows() * row_bytes());
    for (size_t i = 0; i < rows.size(); ++i) {
      const uint16_t half = type_ == DType::kBf16 ? f32_to_bf16(rows[i]) : f32_to_f16(rows[i]);
      if (type_ == DType::kF32)
        std::memcpy(out.data() + i * sizeof(float), &rows[i], sizeof(float));
      else
        std::memcpy(out.data() + i * sizeof half, &half, sizeof half);
    }
    return out;
  }

  std::shared_ptr<const TensorStore> store_;
  std::vector<Head> heads_;
  uint64_t own_ = 0, latent_ = 0, values_ = 0;
  DType type_ = DType::kF32;
};

}  // namespace

std::vector<TensorInfo> join_latent_halves(TensorStore halves) {
  const auto store = std::make_shared<const TensorStore>(std::move(halves));
  std::map<std::string, std::vector<Head>> layers;
  for (const TensorInfo& t : store->tensors()) {
    const size_t cut = t.name.find(kLatentHalf);
    std::vector<Head>& heads = layers[t.name.substr(0, cut)];
    const size_t number = std::stoul(t.name.substr(cut + 3));
    if (heads.size() <= number) heads.resize(number + 1);
    (t.name[cut + 1] == 'k' ? heads[number].k : heads[number].v) = &t;
  }
  std::vector<TensorInfo> out;
  for (auto& [name, heads] : layers) {
    const auto rows = std::make_shared<const LatentRows>(store, std::move(heads));
    out.push_back(rows->info(name + ".weight"));
    out.back().source = rows;
  }
  return out;
}

}  // namespace moebius
