// SPDX-License-Identifier: Apache-2.0
// Computes sizes, and chooses a split (rank_plan.h).
#include "model/plan/rank_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "base/checked.h"
#include "base/error.h"
#include "base/human.h"
#include "model/arch/arch.h"
#include "model/plan/forecast.h"
#include "model/plan/model_part.h"

namespace moebius {
namespace {

// --- what a module becomes on a rank ---

enum class Share : uint8_t { kWhole, kCut, kExpert, kFirst };

Share share_of(const Module& m, const DecoderSpec& spec, const RankSplit& split,
               const Module* output) {
  if (m.kind == ModuleKind::kEmbedding && &m != output) return Share::kFirst;
  if (m.expert >= 0 || m.shared_expert) return Share::kExpert;
  const bool recurrent = m.layer >= 0 && static_cast<size_t>(m.layer) < spec.layers.size() &&
                         spec.layers[static_cast<size_t>(m.layer)].state() != nullptr;
  if (recurrent && m.projection == Projection::kNone) return Share::kWhole;
  if ((split.repeat_attention || shares_keys(spec)) && m.layer >= 0 &&
      m.projection == Projection::kNone)
    return Share::kWhole;
  return cut_of(m, Cut::kOutputs) == Cut::kWhole ? Share::kWhole : Share::kCut;
}

uint64_t cut_bytes(const Module& m, uint64_t bytes, size_t ranks, size_t rank) {
  if (ranks == 1 || m.plan.N < ranks) return bytes;
  return static_cast<uint64_t>(
      static_cast<double>(bytes) *
      static_cast<double>(output_range(m.plan.N, ranks, rank, m.name).size()) /
      static_cast<double>(m.plan.N));
}

// Returns the bytes that a rank holds of a module of so many bytes.
uint64_t bytes_on(const Module& m, uint64_t bytes, Share share, const RankSplit& split,
                  size_t member, size_t experts) {
  const size_t members = split.members();
  if (members == 1) return bytes;
  switch (share) {
    case Share::kFirst:
      return member == 0 ? bytes : 0;
    case Share::kExpert: {
      // Every rank of ep has it.
      if (m.shared_expert) return cut_bytes(m, bytes, split.tp, member % split.tp);
      if (split.spare > 0 && experts > 0)  // a mean: which experts have copies is not known yet
        return cut_bytes(m, bytes, split.tp, member % split.tp) *
               ceil_div(experts + split.spare, split.ep) / experts;
      const auto e = static_cast<size_t>(m.expert);
      const std::vector<int32_t> map =
          expert_map(experts, split.ep, member / split.tp, Placement::kLinear);
      const bool here = e < map.size() && map[e] >= 0;
      return here ? cut_bytes(m, bytes, split.tp, member % split.tp) : 0;
    }
    case Share::kCut:
      return cut_bytes(m, bytes, members, member);
    default:
      return bytes;
  }
}

// Returns the number at the start of a text, and the rest.
std::pair<double, std::string> number_and_rest(const std::string& text, const std::string& whole,
                                               const char* what) {
  double v = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (error != std::errc() || !(v > 0) || !(v < 1e15))
    fail("'{}' is no {}", printable(whole), what);
  return {v, std::string(end, text.data() + text.size())};
}

double unit_of(const std::string& unit, std::initializer_list<std::pair<const char*, double>> units,
               const std::string& whole, const char* what) {
  for (const auto& [name, factor] : units)
    if (unit == name) return factor;
  fail("'{}' is no {}", printable(whole), what);
}

}  // namespace

NodeFacts parse_node(const std::string& whole) {
  constexpr const char* kWhat =
      "node; expected cores and memory, as 64x256G, or with rates, as 1x8G@24G,70G";
  const size_t at = whole.find('@');
  const std::string text = whole.substr(0, at);
  double rates[2] = {0, 0};
  if (at != std::string::npos) {
    const size_t comma = whole.find(',', at);
    if (comma == std::string::npos) fail("'{}' is no {}", printable(whole), kWhat);
    const std::string words[2] = {whole.substr(at + 1, comma - at - 1), whole.substr(comma + 1)};
    for (size_t i = 0; i < 2; ++i) {
      const auto [rate, unit] = number_and_rest(words[i], whole, kWhat);
      rates[i] = rate * unit_of(unit, {{"G", 1e9}, {"M", 1e6}}, whole, kWhat);
    }
  }
  const auto [cores, rest] = number_and_rest(text, text, kWhat);
  if (rest.empty() || rest[0] != 'x') fail("'{}' is no {}", printable(text), kWhat);
  const auto [memory, unit] = number_and_rest(rest.substr(1), text, kWhat);
  const double factor =
      unit_of(unit, {{"G", 0x1p30}, {"GiB", 0x1p30}, {"T", 0x1p40}, {"M", 0x1p20}}, text, kWhat);
  return {cores, static_cast<uint64_t>(memory * factor), rates[0], rates[1]};
}

LinkFacts parse_link(const std::string& text) {
  constexpr const char* kWhat = "link; expected bits a second and latency, as 10G,30us";
  const auto [rate, rest] = number_and_rest(text, text, kWhat);
  const size_t comma = rest.find(',');
  if (comma == std::string::npos) fail("'{}' is no {}", printable(text), kWhat);
  const auto [latency, unit] = number_and_rest(rest.substr(comma + 1), text, kWhat);
  return {latency * unit_of(unit, {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}}, text, kWhat),
          rate * unit_of(rest.substr(0, comma), {{"G", 1e9}, {"M", 1e6}}, text, kWhat) / 8};
}

std::vector<RankPart> rank_parts(const Checkpoint& checkpoint, const RankSplit& split,
                                 const std::function<uint64_t(const Module&)>& weigh) {
  check_split(split);
  const DecoderSpec spec = decoder_spec(checkpoint.config());
  const std::vector<size_t> first = plan_stages(checkpoint, spec, split.pp);
  const Module* output = checkpoint.output_module();
  size_t experts = 0;
  for (const MoeBlock& b : checkpoint.moe_blocks()) experts = std::max(experts, b.experts.size());
  if (split.ep > std::max<size_t>(experts, 1))
    fail("num_experts is {}: {} experts on {} ranks; expected at least one each", experts, experts,
         split.ep);
  output_ranges(static_cast<size_t>(checkpoint.config().hidden), split.members(), "hidden_size");
  std::vector<RankPart> parts;
  for (size_t r = 0; r < split.ranks(); ++r) {
    const size_t stage = r / split.members();
    parts.push_back({r, stage, r % split.members(), {first[stage], first[stage + 1]}, 0, {}});
  }
  for (const Module& m : checkpoint.modules()) {
    if (!m.loaded()) continue;
    const Share share = share_of(m, spec, split, output);
    const uint64_t bytes = weigh ? weigh(m) : m.bytes;
    for (RankPart& p : parts) {
      const bool here = m.layer < 0 ? p.stage == 0
                                    : static_cast<size_t>(m.layer) >= p.layers.begin &&
                                          static_cast<size_t>(m.layer) < p.layers.end;
      const uint64_t own = here ? bytes_on(m, bytes, share, split, p.member, experts) : 0;
      p.bytes += own;
      const size_t over = share == Share::kCut      ? split.members()
                          : share == Share::kExpert ? split.tp
                                                    : 1;
      if (here && (own > 0 || (bytes == 0 && p.member == 0)))
        p.modules.push_back({&m, over > 1 ? Cut::kOutputs : Cut::kWhole, own});
      // A tied table that is cut: the first rank also holds the rows with which others multiply.
      const bool tied = m.kind == ModuleKind::kEmbedding && &m == output;
      if (!weigh && tied && split.members() > 1 && p.rank == 0) p.bytes += bytes;
    }
  }
  return parts;
}

std::vector<RankForecast> plan_ranks(const Checkpoint& checkpoint, const RankQuestion& question) {
  std::vector<RankForecast> out;
  const auto add = [&](const RankSplit& split) {
    RankForecast& f = out.emplace_back();
    f.split = split;
    Wish wish;
    wish.split = split;
    Cluster cluster{std::vector<Machine>(split.ranks())};
    for (Machine& m : cluster.ranks) m.read_rate = question.node.read_rate();
    Rates rates;
    rates.node = question.node;
    rates.between = question.link;
    rates.sequences = {question.batch};
    rates.prompt = question.prompt;
    Forecast times;
    try {
      for (const RankPart& p : rank_parts(checkpoint, split)) f.bytes = std::max(f.bytes, p.bytes);
      times = forecast(plan_model(checkpoint, wish, cluster), rates);
    } catch (const Error& e) {
      f.bytes = 0;
      f.refusal = f.reason = e.what();
      return;
    }
    const uint64_t memory = question.node.memory;
    if (memory != 0 && f.bytes > memory) f.missing = f.bytes - memory;
    f.step = times.decode[0].seconds();
    f.exchange = times.decode[0].exchange;
    f.prompt = times.prompt.seconds();
    f.reason = f.missing != 0
                   ? fmt::format("{} of memory are missing", human_bytes(double(f.missing)))
                   : fmt::format("{:.0f} % of a step are exchanges", 100 * f.exchange / f.step);
  };
  const size_t n = question.ranks;
  for (size_t pp = 1; pp <= n; ++pp) {
    if (n % pp != 0) continue;
    add({pp, n / pp, 1});
    if (n / pp > 1 && !checkpoint.moe_blocks().empty()) add({pp, 1, n / pp});
  }
  const auto order = [](const RankForecast& f) {
    return std::tuple(!f.refusal.empty(), f.missing, f.step);
  };
  std::stable_sort(out.begin(), out.end(), [&](const RankForecast& a, const RankForecast& b) {
    return order(a) < order(b);
  });
  return out;
}

}  // namespace moebius
