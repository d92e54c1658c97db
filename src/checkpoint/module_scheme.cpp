// SPDX-License-Identifier: Apache-2.0
// Decides each module's scheme (module_scheme.h), in this order: the config's own rules; for a
// module that stores quantized tensors although they call it dense, vLLM's order and the other
// spellings of its name; for one that stores a plain weight although they call it quantized, dense.
#include "checkpoint/module_scheme.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/formats/gguf.h"
#include "checkpoint/methods/method.h"

namespace moebius {
namespace {

bool is_plain_float(DType t) {
  return t == DType::kBf16 || t == DType::kF16 || t == DType::kF32 || t == DType::kF64;
}

std::string_view class_name(ModuleKind kind) {
  return kind == ModuleKind::kEmbedding ? "Embedding" : "Linear";
}

std::string prefixed(std::string_view prefix, const std::string& text) {
  return std::string(prefix) + text;
}

// Returns other names that exporters use for the same module: wrapper prefixes, spellings of block
// and projection, the fused tensor's name.
std::vector<std::string> spellings(const MappedModule& m) {
  std::vector<std::string> out;
  if (!m.stored_name.empty()) out.push_back(m.stored_name);
  const std::string& name = m.module.name;
  const size_t layers = name.find("layers.");
  std::string tail =
      layers == std::string::npos
          ? name.substr(name.rfind('.') == std::string::npos ? 0 : name.rfind('.') + 1)
          : name.substr(layers);
  std::vector<std::string> tails = {tail};
  if (m.module.expert >= 0) {
    constexpr std::string_view kHf[] = {"", "gate_proj", "up_proj", "down_proj"};
    constexpr std::string_view kMixtral[] = {"", "w1", "w3", "w2"};
    for (const std::string_view block : {"mlp", "block_sparse_moe", "feed_forward"})
      for (const auto& names : {kHf, kMixtral})
        tails.push_back(fmt::format("layers.{}.{}.experts.{}.{}", m.module.layer, block,
                                    m.module.expert,
                                    names[static_cast<size_t>(m.module.projection)]));
  }
  for (const std::string_view prefix :
       {"model.", "", "model.language_model.", "language_model.model.", "language_model."})
    for (const std::string& t : tails)
      if (std::string other = prefixed(prefix, t); other != name) out.push_back(std::move(other));
  return out;
}

SchemeDecision decide_quantized(const MappedModule& m, const QuantConfig& quant,
                                RepeatedWarnings& warnings) {
  const Module& module = m.module;
  const std::string_view type = class_name(module.kind);
  SchemeDecision d = quant.decide(module.name, type);
  if (!d.scheme.is_dense()) return d;
  SchemeDecision other = quant.decide_like_vllm(module.name, type);
  if (other.scheme.is_dense() && !d.ignored) {
    for (const std::string& name : spellings(m)) {
      other = quant.decide(name, type);
      if (!other.scheme.is_dense()) break;
    }
  }
  if (!other.scheme.is_dense()) {
    warnings.add(module.name,
                 fmt::format("stored quantized although the rules say dense ({}); taken as {} ({})",
                             collapse_indices(d.rule), describe(other.scheme),
                             collapse_indices(other.rule)));
    return other;
  }
  return d;
}

// Decides for methods that are known by their tensors; a contradiction of the configuration becomes
// a warning. Most writers leave routers, embeddings and lm_head as they are, listed or not.
SchemeDecision decide_by_tensors(MappedModule& mapped, const MethodRules& rules,
                                 const TensorStore& store, RepeatedWarnings& warnings) {
  Module& m = mapped.module;
  ModuleTensors& tensors = m.plan.tensors;
  const std::string_view stored = mapped.stored_name.empty() ? m.name : mapped.stored_name;
  std::string dense = rules.dense_by(m.name);
  if (dense.empty() && stored != m.name) dense = rules.dense_by(stored);
  if (!stores_quantized(tensors)) {
    SchemeDecision d;
    d.ignored = !dense.empty();
    d.rule = d.ignored ? dense : "stored as a plain weight";
    const bool usual = m.kind == ModuleKind::kRouter || m.kind == ModuleKind::kEmbedding ||
                       m.kind == ModuleKind::kLmHead || m.tower || m.shared_expert;
    if (!d.ignored && !usual && rules.lists_dense())
      warnings.add(m.name,
                   "stored as a plain weight although the configuration does not exclude "
                   "it; used as it is");
    return d;
  }
  const bool routed = m.kind == ModuleKind::kExpert && !m.shared_expert;
  const bool embedding = m.kind == ModuleKind::kEmbedding;
  SchemeDecision d = rules.decide({m.name, stored, routed, tensors, store, embedding});
  if (embedding) d.scheme.input.reset();  // rows of embeddings are looked up, not multiplied
  if (!dense.empty())
    warnings.add(m.name, fmt::format("stored quantized although {} excludes it; its tensors count",
                                     collapse_indices(dense)));
  return d;
}

// Returns whether tensors are GPT-OSS's native MXFP4: 4-D blocks with E8M0 scales.
bool is_gpt_oss_blocks(const ModuleTensors& t) {
  return t[Role::kWeightPacked] && t[Role::kWeightPacked].info->shape.size() == 4;
}

SchemeDecision gpt_oss_decision() {
  QuantArgs args;
  args.kind = NumberKind::kFloat;
  args.bits = 4;
  args.strategy = Strategy::kGroup;
  args.group_size = 32;
  args.scale_dtype = "uint8";
  SchemeDecision d;
  d.scheme.weights = args;
  d.scheme.format = Format::kGptOssMxfp4;
  d.rule = "tensors named _blocks and _scales";
  d.matched = true;
  return d;
}

SchemeDecision gguf_decision(const GgufType& type) {
  SchemeDecision d;
  d.scheme = scheme_of_gguf(type).value_or(Scheme{});
  d.rule = fmt::format("stored as {}", type.name);
  d.matched = true;
  return d;
}

// Removes scales for the KV cache, which older exporters stored with k_proj and v_proj.
void drop_cache_scales(ModuleTensors& tensors, const SchemeDecision& d,
                       std::vector<UnusedTensor>& unused) {
  const bool key_value = tensors.name.ends_with(".k_proj") || tensors.name.ends_with(".v_proj");
  if (!key_value || d.scheme.output) return;
  for (const Role role : {Role::kOutputScale, Role::kOutputZeroPoint}) {
    TensorRef& ref = tensors[role];
    if (!ref) continue;
    unused.push_back(
        {ref.info->name, "scale of an older exporter for a quantized KV cache; no cache reads it"});
    ref = {};
  }
}

// Returns why an embedding cannot be read row by row; it can if only weights are quantized, as
// integers with scales per row or group, as MLX or GGUF stores them, or as native FP8.
std::optional<std::string> embedding_reason(const Scheme& s) {
  const QuantArgs& w = *s.weights;
  const bool any =
      s.format == Format::kMlx || s.format == Format::kNativeFp8 || s.format == Format::kGguf;
  const bool int_rows = w.kind == NumberKind::kInt &&
                        (w.strategy == Strategy::kGroup || w.strategy == Strategy::kChannel);
  if ((any || int_rows) && !s.input && !s.output) return std::nullopt;
  return fmt::format(
      "an embedding can hold int weights per group or channel, MLX's or native FP8, without "
      "activation quantization; found {} weights ({})",
      w.kind == NumberKind::kInt ? "int" : "float", describe(s));
}

// Throws the error again with the file's name; readers know only the module.
[[noreturn]] void rethrow_with_file(const Error& e, const ModuleTensors& tensors,
                                    const TensorStore& store) {
  const std::string_view text = e.what();
  for (const TensorRef& ref : tensors.by_role) {
    if (!ref || !text.starts_with(tensors.name)) continue;
    const std::string& path = store.file_of(*ref.info).path();
    fail("{}: {}", path.substr(path.rfind('/') + 1), text);
  }
  throw e;
}

}  // namespace

void RepeatedWarnings::add(const std::string& module, const std::string& text) {
  Entry& e = entries_[{collapse_indices(module), text}];
  if (e.count++ == 0) e.first = module;
}

void RepeatedWarnings::append_to(std::vector<std::string>& warnings) const {
  for (const auto& [key, e] : entries_)
    warnings.push_back(e.count == 1
                           ? fmt::format("{}: {}", e.first, key.second)
                           : fmt::format("{} ({} modules): {}", key.first, e.count, key.second));
}

bool stores_quantized(const ModuleTensors& t) {
  for (const Role role : {Role::kWeightPacked, Role::kWeightScale, Role::kWeightZeroPoint,
                          Role::kWeightOffset, Role::kWeightGIdx, Role::kWeightGlobalScale,
                          Role::kInputGlobalScale, Role::kInputScale, Role::kWeightShape})
    if (t[role]) return true;
  return t[Role::kWeight] && !is_plain_float(t[Role::kWeight].info->dtype);
}

void decide_and_plan(MappedModule& mapped, const QuantConfig& quant, const TensorStore& store,
                     std::vector<UnusedTensor>& unused, RepeatedWarnings& warnings) {
  Module& m = mapped.module;
  ModuleTensors& tensors = m.plan.tensors;
  if (quant.rules() != nullptr) {
    try {
      m.decision = decide_by_tensors(mapped, *quant.rules(), store, warnings);
    } catch (const Error& e) {
      rethrow_with_file(e, tensors, store);
    }
  } else if (tensors[Role::kWeight] && tensors[Role::kWeight].info->gguf != nullptr) {
    m.decision = gguf_decision(*tensors[Role::kWeight].info->gguf);
  } else if (is_gpt_oss_blocks(tensors)) {
    m.decision = gpt_oss_decision();
  } else if (stores_quantized(tensors)) {
    m.decision = decide_quantized(mapped, quant, warnings);
    if (m.decision.scheme.is_dense()) {
      const TensorInfo* proof = nullptr;
      for (const TensorRef& r : tensors.by_role)
        if (r && (proof == nullptr || r.info->name.size() > proof->name.size())) proof = r.info;
      fail(
          "{} ({}) makes {} a quantized module, but no rule of quantization_config gives it a "
          "scheme ({}); expected a target "
          "that matches, or a plain weight",
          store.where(*proof), describe(*proof), printable(m.name), m.decision.rule);
    }
  } else {
    m.decision = quant.decide(m.name, class_name(m.kind));
    if (!m.decision.scheme.is_dense()) {
      if (m.kind != ModuleKind::kRouter && m.kind != ModuleKind::kEmbedding)
        warnings.add(m.name,
                     fmt::format("stored as a plain weight although {} asks for {}; used as it is",
                                 collapse_indices(m.decision.rule), family_of(m.decision.scheme)));
      m.decision.scheme = Scheme();
      m.decision.rule = prefixed("stored as a plain weight; ", m.decision.rule);
    }
  }
  drop_cache_scales(tensors, m.decision, unused);
  for (const TensorRef& ref : tensors.by_role)
    if (ref) m.bytes += bytes_of(ref);
  if (!m.decision.warning.empty()) warnings.add(m.name, m.decision.warning);
  const bool routed_expert = m.kind == ModuleKind::kExpert && !m.shared_expert;
  auto reason = unsupported_reason(m.decision.scheme, routed_expert);
  if (!reason && m.kind == ModuleKind::kEmbedding && !m.decision.scheme.is_dense())
    reason = embedding_reason(m.decision.scheme);
  if (reason) {
    m.supported = false;
    m.reason = *reason;
  }
  try {
    m.plan = reader_for(m.decision.scheme.format)
                 .plan(tensors, m.decision.scheme, store, mapped.N, mapped.K, quant.version());
    if (!m.plan.warning.empty()) warnings.add(m.name, m.plan.warning);
  } catch (const Error& e) {
    // An unsupported scheme is reported as such, whatever is wrong with its tensors.
    if (m.supported) rethrow_with_file(e, tensors, store);
    m.plan.scheme = m.decision.scheme;
    m.plan.N = mapped.N;
    m.plan.K = mapped.K;
  }
}

void plan_vector(Module& m) {
  m.decision.rule = "not a matrix";
  for (const TensorRef& ref : m.plan.tensors.by_role)
    if (ref) m.bytes += bytes_of(ref);
  const TensorRef& ref =
      m.plan.tensors[Role::kWeight] ? m.plan.tensors[Role::kWeight] : m.plan.tensors[Role::kBias];
  m.plan.K = 1;
  m.plan.N = 1;
  for (const uint64_t d : ref.info->shape) m.plan.N *= d;
}

std::string collapse_indices(std::string_view name) {
  std::string out;
  out.reserve(name.size());
  for (size_t i = 0; i < name.size();) {
    const bool digit = name[i] >= '0' && name[i] <= '9';
    if (!digit || (i > 0 && name[i - 1] != '.')) {
      out += name[i++];
      continue;
    }
    size_t end = i;
    while (end < name.size() && name[end] >= '0' && name[end] <= '9') ++end;
    const bool whole = i > 0 && (end == name.size() || name[end] == '.');
    if (whole)
      out += '*';
    else
      out += name.substr(i, end - i);
    i = end;
  }
  return out;
}

uint64_t bytes_of(const TensorRef& ref) {
  uint64_t bytes = ref.info->bytes;
  const std::vector<uint64_t>& s = ref.info->shape;
  size_t row_dim = 0;
  if (ref.index >= 0 && !s.empty() && s[0] > 0) {
    bytes /= s[0];
    row_dim = 1;
  }
  if (ref.transposed) ++row_dim;
  if (ref.row_count > 0 && row_dim < s.size() && s[row_dim] > 0)
    bytes = static_cast<uint64_t>(static_cast<double>(bytes) / static_cast<double>(s[row_dim]) *
                                  static_cast<double>(std::min(ref.row_count, s[row_dim])));
  return bytes;
}

}  // namespace moebius
