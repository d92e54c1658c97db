// SPDX-License-Identifier: Apache-2.0
// Computes slices of tensors and places of experts for ranks (parallel.h).
#include "checkpoint/parallel.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "checkpoint/module_scheme.h"
#include "checkpoint/summary.h"

namespace moebius {
namespace {

void check_rank(uint64_t size, uint64_t rank, std::string_view what) {
  if (size == 0 || rank >= size)
    fail("{} rank {} of {}; expected a rank below the size", what, rank, size);
}

uint64_t divide(uint64_t size, uint64_t tp, const std::string& module, std::string_view what) {
  if (size % tp != 0) fail("{}: {} {} cannot be cut into {} equal parts", module, size, what, tp);
  return size / tp;
}

// Returns the blocks of size `block` that [begin, begin + count) touches.
TensorSlice cover(int dim, uint64_t begin, uint64_t count, uint64_t block) {
  const uint64_t first = begin / block, last = ceil_div(begin + count, block);
  return {dim, first, last - first};
}

// Converts elements of K to stored units of the code tensor.
TensorSlice code_columns(const MatrixPlan& plan, uint64_t begin, uint64_t count) {
  const bool words = plan.scheme.format == Format::kMlx;
  const TensorRef& packed = plan.tensors[words ? Role::kWeight : Role::kWeightPacked];
  if (!packed) return {1, begin, count};
  const uint64_t bits = static_cast<uint64_t>(plan.scheme.weights ? plan.scheme.weights->bits : 4);
  const uint64_t unit = bits_of(packed.info->dtype);  // bits per unit: 32 for words, 8 for bytes
  if (begin * bits % unit != 0 || count * bits % unit != 0)
    fail("{}: {} inputs of {} bits per rank do not fill whole {}-bit words", plan.tensors.name,
         count, bits, unit);
  return {1, begin * bits / unit, count * bits / unit};
}

TensorSlice zero_point_rows(const MatrixPlan& plan, uint64_t begin, uint64_t count) {
  if (plan.tensors[Role::kWeightZeroPoint].info->dtype != DType::kI32)
    return cover(0, begin, count, std::max<uint64_t>(plan.block_n, 1));
  const uint64_t bits = static_cast<uint64_t>(plan.scheme.weights->bits);
  if (begin * bits % 32 != 0 || count * bits % 32 != 0)
    fail("{}: zero points of {} outputs of {} bits per rank do not fill whole 32-bit words",
         plan.tensors.name, count, bits);
  return {0, begin * bits / 32, count * bits / 32};
}

// Returns the words of [begin, begin + count), for codes packed into words along dimension `dim`.
TensorSlice code_words(const MatrixPlan& plan, int dim, uint64_t begin, uint64_t count) {
  const uint64_t bits = static_cast<uint64_t>(plan.scheme.weights->bits);
  const uint64_t unit = 32 % bits == 0 ? 32 / bits : 32;  // codes that fill whole words
  if (begin % unit != 0 || count % unit != 0)
    fail("{}: {} codes of {} bits per rank do not fill whole 32-bit words", plan.tensors.name,
         count, bits);
  return {dim, begin * bits / 32, count * bits / 32};
}

// Slices a tensor of GPTQ or AWQ: outputs are columns; AWQ's gemv stores them as rows, with eight
// groups in a word.
TensorSlice turned_slice(const MatrixPlan& plan, Role role, bool outputs, uint64_t begin,
                         uint64_t n) {
  const bool gemv = plan.scheme.format == Format::kAwqGemv;
  const bool gemm = plan.scheme.format == Format::kAwq || plan.scheme.format == Format::kQuarkInt4;
  if (role == Role::kWeightPacked) {
    if (gemv) return outputs ? TensorSlice{0, begin, n} : code_words(plan, 1, begin, n);
    if (gemm) return outputs ? code_words(plan, 1, begin, n) : TensorSlice{0, begin, n};
    return outputs ? TensorSlice{1, begin, n} : code_words(plan, 0, begin, n);
  }
  if (outputs && gemv) return {0, begin, n};
  if (outputs)
    return role == Role::kWeightScale ? TensorSlice{1, begin, n} : code_words(plan, 1, begin, n);
  if (plan.groups == 1 || plan.act_order) return {};  // as for every format
  const TensorSlice groups = cover(gemv ? 1 : 0, begin, n, plan.block_k);
  if (!gemv) return groups;
  if (groups.begin % 8 != 0 || groups.count % 8 != 0)
    fail("{}: {} groups per rank do not fill whole words of eight", plan.tensors.name,
         groups.count);
  return role == Role::kWeightScale ? groups : code_words(plan, 1, groups.begin, groups.count);
}

}  // namespace

Cut cut_of(const Module& m, Cut second) {
  if (m.kind == ModuleKind::kEmbedding || m.kind == ModuleKind::kLmHead) return Cut::kOutputs;
  if (m.projection == Projection::kGate || m.projection == Projection::kUp) return Cut::kOutputs;
  if (m.projection == Projection::kDown) return second;
  if (m.kind != ModuleKind::kLinear) return Cut::kWhole;
  const size_t dot = m.name.rfind('.');
  const std::string_view last =
      std::string_view(m.name).substr(dot == std::string::npos ? 0 : dot + 1);
  if (last == "q_proj" || last == "k_proj" || last == "v_proj" || last == "q_b_proj" ||
      last == "kv_b_proj")
    return Cut::kOutputs;
  if (last == "o_proj") return second;
  // Every rank has low-rank projections, gates of shared experts and state-space parameters.
  return Cut::kWhole;
}

HeadCut head_cut(uint64_t heads, uint64_t kv_heads, uint64_t ranks, uint64_t rank) {
  check_rank(ranks, rank, "tensor-parallel");
  if (kv_heads == 0 || heads % kv_heads != 0)
    fail("{} heads for {} key-value heads; expected a multiple", heads, kv_heads);
  const uint64_t each = heads / kv_heads;
  if (kv_heads >= ranks) {
    const Range kv{kv_heads * rank / ranks, kv_heads * (rank + 1) / ranks};
    const Range own{kv.begin * each, kv.end * each};
    return {own, kv, own};
  }
  const uint64_t group = rank * kv_heads / ranks, first = ceil_div(group * ranks, kv_heads),
                 sharers = ceil_div((group + 1) * ranks, kv_heads) - first, i = rank - first;
  const Range given{group * each + each * i / sharers, group * each + each * (i + 1) / sharers};
  // A rank without a head of its own computes one whose result nobody uses.
  const Range own = given.size() > 0 ? given : Range{group * each, group * each + 1};
  return {own, {group, group + 1}, given};
}

std::vector<size_t> stage_layers(std::span<const uint64_t> bytes, uint64_t first_bytes,
                                 const std::vector<bool>& may_begin, uint64_t stages) {
  const size_t n = bytes.size();
  std::vector<uint64_t> before(n + 1, 0);  // bytes of all layers before
  for (size_t i = 0; i < n; ++i) before[i + 1] = before[i] + bytes[i];
  size_t most = 0;
  for (size_t i = 0; i < n; ++i) most += i == 0 || may_begin[i] ? 1 : 0;
  if (stages == 0 || stages > most)
    fail("num_hidden_layers is {}: they make at most {} stages{}; {} were asked for", n, most,
         most < n ? ", since layers that read another's keys stay with it" : "", stages);
  // best[s][i]: bytes of the largest stage when the first i layers form s stages, and the first
  // layer of the last stage.
  constexpr uint64_t kNever = UINT64_MAX;
  std::vector<std::vector<uint64_t>> best(stages + 1, std::vector<uint64_t>(n + 1, kNever));
  std::vector<std::vector<size_t>> last(stages + 1, std::vector<size_t>(n + 1, 0));
  for (size_t i = 1; i <= n; ++i) best[1][i] = before[i] + first_bytes;
  for (uint64_t s = 2; s <= stages; ++s)
    for (size_t i = 1; i <= n; ++i)
      for (size_t from = 1; from < i; ++from) {
        if (!may_begin[from] || best[s - 1][from] == kNever) continue;
        const uint64_t largest = std::max(best[s - 1][from], before[i] - before[from]);
        if (largest < best[s][i]) {
          best[s][i] = largest;
          last[s][i] = from;
        }
      }
  std::vector<size_t> out(stages + 1, 0);
  out[stages] = n;
  for (uint64_t s = stages; s > 1; --s) out[s - 1] = last[s][out[s]];
  return out;
}

TensorSlice tp_slice(const MatrixPlan& plan, Role role, Cut cut, uint64_t tp, uint64_t rank) {
  check_rank(tp, rank, "tensor-parallel");
  if (cut == Cut::kWhole || tp == 1 || role == Role::kWeightShape) return {};
  const std::string& name = plan.tensors.name;
  const bool outputs = cut == Cut::kOutputs;
  const uint64_t n = divide(outputs ? plan.N : plan.K, tp, name, outputs ? "outputs" : "inputs");
  const uint64_t begin = rank * n;
  const bool per_tensor = plan.scheme.weights && plan.scheme.weights->strategy == Strategy::kTensor;
  const bool table = role == Role::kWeightScale || role == Role::kWeightZeroPoint;
  if (is_turned(plan.scheme.format) && (table || role == Role::kWeightPacked))
    return turned_slice(plan, role, outputs, begin, n);
  switch (role) {
    case Role::kWeight:
    case Role::kWeightPacked:
      return outputs ? TensorSlice{0, begin, n} : code_columns(plan, begin, n);
    case Role::kWeightScale:
    case Role::kWeightZeroPoint:
    case Role::kWeightOffset:
      if (per_tensor) return {};
      if (outputs)
        return role == Role::kWeightZeroPoint ? zero_point_rows(plan, begin, n)
                                              : cover(0, begin, n, plan.block_n);
      // One scale per channel, or every slice needs columns of all groups.
      if (plan.groups == 1 || plan.act_order) return {};
      return cover(1, begin, n, plan.block_k);
    case Role::kWeightGIdx:
      return outputs ? TensorSlice{} : TensorSlice{0, begin, n};
    case Role::kBias:
      return outputs ? TensorSlice{0, begin, n} : TensorSlice{};
    default:
      return {};  // every rank has global, input and output scales
  }
}

uint64_t expert_count(uint64_t E, uint64_t ep, uint64_t rank) {
  check_rank(ep, rank, "expert-parallel");
  return E / ep + (rank < E % ep ? 1 : 0);
}

std::vector<int32_t> expert_map(uint64_t E, uint64_t ep, uint64_t rank, Placement placement) {
  const uint64_t count = expert_count(E, ep, rank);
  std::vector<int32_t> map(E, -1);
  const uint64_t first = E / ep * rank + std::min(rank, E % ep);
  for (uint64_t i = 0; i < count; ++i)
    map[placement == Placement::kLinear ? first + i : rank + i * ep] = static_cast<int32_t>(i);
  return map;
}

namespace {

uint64_t sliced_bytes(const Module& m, uint64_t tp, uint64_t rank) {
  const Cut cut = cut_of(m);
  if (cut == Cut::kWhole || tp == 1) return m.bytes;
  const bool vocabulary = m.kind == ModuleKind::kEmbedding || m.kind == ModuleKind::kLmHead;
  if (vocabulary && m.plan.N % tp != 0)  // the vocabulary is padded to equal parts
    return m.bytes / m.plan.N * ceil_div(m.plan.N, tp);
  uint64_t bytes = 0;
  for (const Role role : kRoles) {
    const TensorRef& ref = m.plan.tensors[role];
    if (!ref) continue;
    const TensorSlice slice = tp_slice(m.plan, role, cut, tp, rank);
    const uint64_t whole = bytes_of(ref);
    if (slice.dim < 0) {
      bytes += whole;
      continue;
    }
    // The slice is the same share of its dimension's stored units; the last rank's slice ends at
    // their number.
    const TensorSlice last = tp_slice(m.plan, role, cut, tp, tp - 1);
    const uint64_t units = last.begin + last.count;
    bytes += units == 0 ? whole
                        : static_cast<uint64_t>(static_cast<double>(whole) *
                                                static_cast<double>(slice.count) /
                                                static_cast<double>(units));
  }
  return bytes;
}

uint64_t sliced_params(const Module& m, uint64_t tp) {
  const uint64_t params = module_params(m);
  return cut_of(m) == Cut::kWhole ? params : params / tp;
}

uint64_t kv_per_rank(const Checkpoint& c, uint64_t tp) {
  const ModelConfig& config = c.config();
  const uint64_t whole = kv_bytes(config, 1000);
  if (config.kv_lora_rank > 0 || config.kv_heads <= 0) return whole;  // all heads share the latent
  const auto heads = static_cast<uint64_t>(config.kv_heads);
  return whole / heads * std::max<uint64_t>(heads / tp, 1);
}

void check_heads(const ModelConfig& config, uint64_t tp) {
  const auto heads = static_cast<uint64_t>(config.heads),
             kv = static_cast<uint64_t>(config.kv_heads);
  if (heads != 0 && heads % tp != 0)
    fail("{} attention heads cannot be cut into {} equal parts", heads, tp);
  if (kv != 0 && config.kv_lora_rank == 0 && kv % tp != 0 && tp % kv != 0)
    fail("{} key-value heads can neither be cut into {} equal parts nor repeated evenly", kv, tp);
}

// Returns whether a module is repeated on ranks and not cut: key and value projections with fewer
// heads than ranks.
bool repeats(const Module& m, const ModelConfig& config, uint64_t tp) {
  const bool kv = m.name.ends_with(".k_proj") || m.name.ends_with(".v_proj");
  return kv && static_cast<uint64_t>(config.kv_heads) < tp;
}

}  // namespace

std::vector<RankSize> rank_sizes(const Checkpoint& c, uint64_t tp, uint64_t ep,
                                 Placement placement) {
  if (tp == 0 || ep == 0 || tp > 65536 || ep > 65536)
    fail("tensor parallel {} and expert parallel {}; expected 1 to 65536", tp, ep);
  const ModelConfig& config = c.config();
  check_heads(config, tp);
  const uint64_t E = static_cast<uint64_t>(config.experts);
  if (ep > 1 && E == 0) fail("expert parallel {} for a model without experts", ep);
  if (ep > E && E > 0)
    fail("expert parallel {} for {} experts; expected at most one rank per expert", ep, E);
  std::vector<RankSize> out;
  for (uint64_t e = 0; e < ep; ++e) {
    const std::vector<int32_t> held = expert_map(E, ep, e, placement);
    for (uint64_t t = 0; t < tp; ++t)
      out.push_back({t, e, E == 0 ? 0 : expert_count(E, ep, e), 0, 0, kv_per_rank(c, tp)});
    for (const Module& m : c.modules()) {
      if (m.expert >= 0 && held[static_cast<size_t>(m.expert)] < 0) continue;
      for (uint64_t t = 0; t < tp; ++t) {
        RankSize& r = out[e * tp + t];
        const uint64_t ways = repeats(m, config, tp) ? static_cast<uint64_t>(config.kv_heads) : tp;
        r.bytes += sliced_bytes(m, ways, t % ways);
        r.params += sliced_params(m, ways);
      }
    }
  }
  return out;
}

}  // namespace moebius
