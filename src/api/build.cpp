// SPDX-License-Identifier: Apache-2.0
// Implements the public C++ interface of layers from memory, over the builders of
// device/cpu/layer_build.h.
#include "moebius/build.hpp"

#include <cmath>
#include <cstring>
#include <list>

#include "api/api.h"
#include "base/checked.h"
#include "device/cpu/layer_build.h"

namespace moebius::build {

struct Scheme::Impl {
  StoredScheme stored;
};
struct SchemeAccess {
  static const StoredScheme& of(const Scheme& s) { return s.impl_->stored; }
};

namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBf16, DType::kF16,    DType::kI8, DType::kU8,
                            DType::kI32, DType::kI64,  DType::kF8E4M3, DType::kU32};

// Gives the caller's tensors the contiguous form that readers expect; owns the copies of those that
// do not have it.
class Contiguous {
 public:
  TensorData of(const Tensor& t) {
    const DType dtype = kTypes[static_cast<size_t>(t.type)];
    const uint64_t element = bits_of(dtype) / 8;
    if (t.shape.size() > 4)
      bad(t, "has " + std::to_string(t.shape.size()) + " dimensions; expected at most 4");
    if (!t.strides.empty() && t.strides.size() != t.shape.size())
      bad(t, "has " + std::to_string(t.strides.size()) + " strides; expected one per dimension");
    uint64_t bytes = element;
    for (const uint64_t d : t.shape) {
      const std::optional<uint64_t> product = checked_mul(bytes, d);
      if (!product || *product > (uint64_t{1} << 48)) bad(t, "is too large");
      bytes = *product;
    }
    if (t.data == nullptr && bytes != 0) bad(t, "has no data");
    const auto* data = static_cast<const uint8_t*>(t.data);
    if (bytes != 0 && !is_contiguous(t)) data = copy(t, element, bytes);
    return {t.name, dtype, t.shape, {data, bytes}};
  }

 private:
  [[noreturn]] static void bad(const Tensor& t, const std::string& what) {
    fail_at({"argument", "", t.name, "", t.name}, "tensor '{}' {}", printable(t.name), what);
  }
  static bool is_contiguous(const Tensor& t) {
    int64_t step = 1;
    for (size_t i = t.strides.size(); i-- > 0; step *= static_cast<int64_t>(t.shape[i]))
      if (t.shape[i] > 1 && t.strides[i] != step) return false;
    return true;
  }
  const uint8_t* copy(const Tensor& t, uint64_t element, uint64_t bytes) {
    std::vector<uint8_t>& to = copies_.emplace_back(bytes);
    std::vector<uint64_t> at(t.shape.size(), 0);
    const auto* from = static_cast<const uint8_t*>(t.data);
    for (uint64_t done = 0; done < bytes; done += element) {
      int64_t offset = 0;
      for (size_t i = 0; i < at.size(); ++i) offset += static_cast<int64_t>(at[i]) * t.strides[i];
      std::memcpy(to.data() + done, from + offset * static_cast<int64_t>(element), element);
      for (size_t i = at.size(); i-- > 0;) {
        if (++at[i] < t.shape[i]) break;
        at[i] = 0;
      }
    }
    return to.data();
  }
  std::list<std::vector<uint8_t>> copies_;
};

std::vector<TensorData> all_of(const std::vector<Tensor>& tensors, Contiguous& memory) {
  std::vector<TensorData> out;
  out.reserve(tensors.size());
  for (const Tensor& t : tensors) out.push_back(memory.of(t));
  return out;
}

void only_on_cpu(const Options& options) {
  if (on_cuda(options))
    fail_at({"unsupported", "", "", "", "device"},
            "layers from memory run on the CPU; those of a folder can be loaded with device cuda");
}

Cut cut_of(Split split) {
  return split == Split::kOutputs  ? Cut::kOutputs
         : split == Split::kInputs ? Cut::kInputs
                                   : Cut::kWhole;
}

Scoring scoring_of(const std::string& name) {
  if (name.empty() || name == "softmax") return Scoring::kSoftmax;
  if (name == "sigmoid") return Scoring::kSigmoid;
  fail_argument("scoring", "scoring is '{}'; expected softmax or sigmoid", printable(name));
}

ExpertsBuilder::Description description_of(const MoeSpec& s) {
  ExpertsBuilder::Description d;
  d.name = s.name;
  moebius::MoeSpec& spec = d.spec;
  spec.hidden = s.hidden;
  spec.intermediate = s.intermediate;
  spec.experts = s.experts;
  placed({"argument", "", "", "", "activation"},
         [&] { spec.activation.kind = activation_from_name(s.activation); });
  for (const auto& [field, value] : {std::pair<const char*, float>{"limit", s.limit},
                                     {"alpha", s.alpha},
                                     {"beta", s.beta},
                                     {"scaling", s.scaling}})
    if (!std::isfinite(value))
      fail_argument(field, "{} is {}; expected a finite number", field, value);
  if (s.limit != 0) spec.activation.limit = s.limit;
  spec.activation.alpha = s.alpha;
  spec.activation.beta = s.beta;
  RouterSpec& router = spec.router;
  router.experts = s.experts;
  router.top_k = s.slots;
  router.scoring = scoring_of(s.scoring);
  router.renormalize = s.renormalize;
  router.renormalize_epsilon = router.scoring == Scoring::kSigmoid ? 1e-20f : 0.0f;
  router.groups = s.groups;
  router.topk_group = s.group_slots;
  router.has_bias = !s.correction_bias.empty();
  router.group_score_top2 = s.groups != 0 && router.has_bias;
  router.scaling = s.scaling;
  d.router.bias = s.correction_bias;
  d.expert_map = s.expert_map;
  d.gate_up_step = s.gate_up_step;
  return d;
}

}  // namespace

Scheme::Scheme() : impl_(std::make_shared<const Impl>()) {}
Scheme Scheme::parse(const std::string& json) {
  Scheme s;
  s.impl_ = std::make_shared<const Impl>(Impl{parse_stored_scheme(json)});
  return s;
}
std::string Scheme::family() const { return family_of(impl_->stored.scheme); }
std::string Scheme::describe() const { return moebius::describe(impl_->stored.scheme); }
std::string Scheme::problem(bool expert) const {
  return unsupported_reason(impl_->stored.scheme, expert).value_or("");
}
std::vector<TensorNeed> Scheme::tensors() const {
  std::vector<TensorNeed> out;
  for (const SuffixNeed& need : suffixes_of(impl_->stored))
    out.push_back({need.suffix, need.required});
  return out;
}

Linear linear(const std::vector<Part>& parts, const Options& options) {
  only_on_cpu(options);
  Contiguous memory;
  std::vector<MatrixPart> all;
  for (const Part& p : parts)
    all.push_back({p.name, SchemeAccess::of(p.scheme), p.outputs, p.inputs, cut_of(p.split), p.tp,
                   p.tp_rank,
                   naming_part(p.name, all.size(), [&] { return all_of(p.tensors, memory); })});
  uint64_t total = 0;
  for (const MatrixPart& p : all)
    for (const TensorData& t : p.tensors) total += t.data.size();
  const std::shared_ptr<Runtime> runtime = runtime_of(options.threads, options.runtime);
  return make_linear(runtime,
                     load_told(layer_options(options, runtime->pool()), options.progress, total,
                               [&](const LayerOptions& told) { return build_linear(all, told); }));
}

struct MoeBuilder::Impl {
  std::shared_ptr<Runtime> runtime;
  ExpertsBuilder builder;
};

MoeBuilder::MoeBuilder(const MoeSpec& spec, const Scheme& gate, const Scheme& up,
                       const Scheme& down, const Options& options) {
  if (options.progress)
    fail_argument("progress",
                  "experts are given one by one, so the caller knows how far they are; expected no "
                  "progress function");
  only_on_cpu(options);
  ExpertsBuilder::Description d = description_of(spec);
  d.schemes = {SchemeAccess::of(gate), SchemeAccess::of(up), SchemeAccess::of(down)};
  const std::shared_ptr<Runtime> runtime = runtime_of(options.threads, options.runtime);
  const LayerOptions lo = layer_options(options, runtime->pool());
  impl_.reset(new Impl{runtime, ExpertsBuilder(std::move(d), lo)});
}
MoeBuilder::~MoeBuilder() = default;
MoeBuilder::MoeBuilder(MoeBuilder&&) noexcept = default;
MoeBuilder& MoeBuilder::operator=(MoeBuilder&&) noexcept = default;
MoeBuilder::Impl& MoeBuilder::held() const { return checked_handle(impl_, "MoeBuilder"); }

void MoeBuilder::set_expert(size_t id, const std::vector<Tensor>& tensors) {
  Contiguous memory;
  Impl& self = held();
  placed({"argument", "", "", "", ""},
         [&] { self.builder.set_expert(id, all_of(tensors, memory)); });
}

Moe MoeBuilder::finish() {
  Impl& self = held();
  MoeBlockLayer layer{self.builder.finish(), nullptr};
  return make_moe(self.runtime, std::move(layer), title_of(*self.builder.kernel()));
}

}  // namespace moebius::build
