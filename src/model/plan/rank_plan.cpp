// SPDX-License-Identifier: Apache-2.0
// Computes sizes and times, and chooses a split (rank_plan.h).
#include "model/plan/rank_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/checked.h"
#include "base/error.h"
#include "base/human.h"
#include "checkpoint/summary.h"
#include "model/arch/arch.h"
#include "model/plan/model_part.h"

namespace moebius {
namespace {

constexpr double kNorm = 2.3;  // exponent that combines memory time and compute time
constexpr uint64_t kNumberBytes = 2;
// Rows times slots in a sample; with more, shares are even enough.
constexpr size_t kMostDraws = 4096;

double together(double memory, double compute) {
  return std::pow(std::pow(memory, kNorm) + std::pow(compute, kNorm), 1 / kNorm);
}

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

// --- times ---

struct LayerCost {
  // Without routed experts.
  double cut_bytes = 0, whole_bytes = 0, cut_macs = 0, whole_macs = 0;
  // Bytes and multiply-adds of one expert.
  double expert_bytes = 0, expert_macs = 0;
};

// Draws how many rows each expert gets when `rows` rows choose k of E each, in `samples` draws;
// equal for every call.
std::vector<std::vector<uint32_t>> draw_rows(size_t E, size_t k, size_t rows, size_t samples) {
  uint64_t state = 88172645463325252ull;
  const auto draw = [&] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<size_t>(state % E);
  };
  std::vector<std::vector<uint32_t>> all(samples, std::vector<uint32_t>(E, 0));
  std::vector<size_t> mine(k);
  for (std::vector<uint32_t>& taken : all)
    for (size_t r = 0; r < rows; ++r)
      for (size_t i = 0; i < k; ++i) {  // the experts of a row are distinct
        const auto end = mine.begin() + static_cast<std::ptrdiff_t>(i);
        do mine[i] = draw();
        while (std::find(mine.begin(), end, mine[i]) != end);
        ++taken[mine[i]];
      }
  return all;
}

class Forecaster {
 public:
  Forecaster(const Checkpoint& c, const RankQuestion& q)
      : q_(q), spec_(decoder_spec(c.config())), output_(c.output_module()) {
    const ModelConfig& config = c.config();
    H_ = static_cast<double>(config.hidden);
    layers_.resize(spec_.layers.size());
    for (const MoeBlock& b : c.moe_blocks()) {
      E_ = std::max(E_, b.experts.size());
      k_ = std::max(k_, b.spec.router.top_k);
      I_ = std::max(I_, static_cast<double>(b.spec.intermediate));
    }
    for (const LayerSpec& layer : spec_.layers)
      if (const KeyMixer* m = layer.keys())
        A_ = std::max(A_, static_cast<double>(m->sizes.heads * m->sizes.value_dim));
  }

  RankForecast forecast(const Checkpoint& c, const RankSplit& split) {
    RankForecast f;
    f.split = split;
    try {
      for (const RankPart& p : rank_parts(c, split)) f.bytes = std::max(f.bytes, p.bytes);
    } catch (const Error& e) {
      f.refusal = f.reason = e.what();
      return f;
    }
    if (q_.node.memory != 0 && f.bytes > q_.node.memory) f.missing = f.bytes - q_.node.memory;
    measure(c, split);
    const Times decode = step(split, q_.batch, q_.batch), prompt = step(split, q_.prompt, 1);
    f.step = decode.compute + decode.exchange;
    f.exchange = decode.exchange;
    f.prompt = prompt.compute + prompt.exchange;
    f.reason = f.missing != 0
                   ? fmt::format("{} of memory are missing", human_bytes(double(f.missing)))
                   : fmt::format("{:.0f} % of a step are exchanges", 100 * f.exchange / f.step);
    return f;
  }

 private:
  struct Times {
    double compute = 0, exchange = 0;
  };

  // Sums bytes and multiply-adds of every layer: matrices that ranks repeat, and matrices that they
  // divide.
  void measure(const Checkpoint& c, const RankSplit& split) {
    std::fill(layers_.begin(), layers_.end(), LayerCost());
    head_bytes_ = head_macs_ = 0;
    for (const Module& m : c.modules()) {
      if (!m.loaded()) continue;
      const double bytes = static_cast<double>(m.bytes),
                   macs = static_cast<double>(module_params(m));
      if (&m == output_) {
        head_bytes_ += bytes;
        head_macs_ += macs;
      }
      if (m.layer < 0 || static_cast<size_t>(m.layer) >= layers_.size()) continue;
      LayerCost& l = layers_[static_cast<size_t>(m.layer)];
      if (m.expert >= 0) {
        l.expert_bytes += bytes / static_cast<double>(E_);
        l.expert_macs += macs / static_cast<double>(E_);
        continue;
      }
      const bool whole =
          share_of(m, spec_, split, output_) == Share::kWhole || (m.shared_expert && split.ep > 1);
      (whole ? l.whole_bytes : l.cut_bytes) += bytes;
      (whole ? l.whole_macs : l.cut_macs) += macs;
    }
  }

  // Returns the seconds of matrices of so many bytes and weights with `rows` rows.
  double cost(const CostCurve& curve, double bytes, double macs, double rows) const {
    if (curve.known()) return curve.seconds(macs, rows);
    return together(bytes / q_.node.read_rate(), rows * macs / q_.node.multiply_rate());
  }

  using RowsOfExperts = std::vector<std::vector<uint32_t>>;
  RowsOfExperts rows_of_experts(size_t rows) const {
    if (E_ == 0) return {};
    const size_t k = std::min(k_, E_), each = rows * k;
    if (each <= kMostDraws)
      return draw_rows(E_, k, rows, std::clamp<size_t>(kMostDraws / each, 4, 128));
    return {std::vector<uint32_t>(E_, static_cast<uint32_t>((each + E_ - 1) / E_))};
  }

  // Returns the seconds of a layer's experts on the busiest of the ranks that share them.
  double experts(const LayerCost& l, const RankSplit& split, const RowsOfExperts& chance) const {
    const auto tp = static_cast<double>(split.tp);
    std::vector<double> by_rows;  // seconds of one expert by rows; negative: not computed yet
    const auto of_rows = [&](uint32_t rows) {
      if (rows == 0) return 0.0;
      if (by_rows.size() <= rows) by_rows.resize(rows + 1, -1);
      double& s = by_rows[rows];
      if (s < 0) s = cost(q_.node.costs.experts, l.expert_bytes / tp, l.expert_macs / tp, rows);
      return s;
    };
    double sum = 0;
    std::vector<double> of_rank(split.ep);
    for (const std::vector<uint32_t>& rows : chance) {
      std::fill(of_rank.begin(), of_rank.end(), 0);
      for (size_t e = 0; e < rows.size(); ++e)
        of_rank[e * split.ep / rows.size()] += of_rows(rows[e]);
      sum += *std::max_element(of_rank.begin(), of_rank.end());
    }
    return sum / static_cast<double>(chance.size());
  }

  double round(double bytes) const { return q_.link.latency + bytes / q_.link.rate; }

  Times step(const RankSplit& split, size_t rows, size_t outputs) const {
    const auto T = static_cast<double>(rows), R = static_cast<double>(split.members()),
               k = static_cast<double>(k_);
    const double others = (R - 1) / R, b = static_cast<double>(kNumberBytes);
    const bool ep = split.ep > 1, alone = split.members() == 1;
    const RowsOfExperts chance = rows_of_experts(rows);
    Times t;
    // Costs of the previous layer, because most layers are alike.
    double last_macs = 0, last_experts = 0;
    for (const LayerCost& l : layers_) {
      const bool routed = l.expert_bytes > 0;
      t.compute += cost(q_.node.costs.dense, l.cut_bytes / R + l.whole_bytes,
                        l.cut_macs / R + l.whole_macs, T) +
                   q_.node.costs.layer.seconds(1, T);
      if (routed && l.expert_macs != last_macs) {
        last_macs = l.expert_macs;
        last_experts = experts(l, split, chance);
      }
      if (routed) t.compute += last_experts;
      if (alone) continue;
      const double slots = routed ? k : 1;
      if (!split.repeat_attention)
        t.exchange += round(others * b * T * A_) + round(others * b * T * H_);
      t.exchange += round(others * b * T * H_);
      const auto tp = static_cast<double>(split.tp), spread = static_cast<double>(split.ep);
      if (!routed || !ep) t.exchange += round(others * 4 * T * slots * I_);
      if (routed && ep) t.exchange += round((spread - 1) / spread * 4 * T * k * H_ / R);
      if (routed && ep && tp > 1) t.exchange += round((tp - 1) / tp * 4 * T * k * I_ / spread);
    }
    const auto heads = static_cast<double>(outputs);
    t.compute += cost(q_.node.costs.output, head_bytes_ / R, head_macs_ / R, heads);
    if (!alone) t.exchange += round(b * T * H_) + round(4 * heads * head_macs_ / H_ * others);
    if (split.pp > 1) t.exchange += static_cast<double>(split.pp) * round(b * T * H_);
    if (split.ranks() > 1) t.exchange += q_.link.latency;  // the message with the plan
    return t;
  }

  const RankQuestion& q_;
  DecoderSpec spec_;
  const Module* output_;
  double H_ = 0, A_ = 0, I_ = 0, head_bytes_ = 0, head_macs_ = 0;
  size_t E_ = 0, k_ = 1;
  std::vector<LayerCost> layers_;
};

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

double NodeFacts::read_rate() const {
  if (measured_read > 0) return measured_read;
  return 1e9 / (1 / (28.3 * cores) + 1 / 276.7);
}
double NodeFacts::multiply_rate() const {
  return measured_multiply > 0 ? measured_multiply : 147e9 * std::pow(cores / 2, 0.951);
}

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
    parts.push_back({r, stage, r % split.members(), {first[stage], first[stage + 1]}});
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
      p.experts += m.expert >= 0 ? own : 0;
      // A tied table that is cut: the first rank also holds the rows with which others multiply.
      const bool tied = m.kind == ModuleKind::kEmbedding && &m == output;
      if (!weigh && tied && split.members() > 1 && p.rank == 0) p.bytes += bytes;
    }
  }
  return parts;
}

std::vector<RankForecast> plan_ranks(const Checkpoint& checkpoint, const RankQuestion& question) {
  Forecaster forecaster(checkpoint, question);
  std::vector<RankForecast> out;
  const size_t n = question.ranks;
  for (size_t pp = 1; pp <= n; ++pp) {
    if (n % pp != 0) continue;
    out.push_back(forecaster.forecast(checkpoint, {pp, n / pp, 1}));
    if (n / pp > 1 && !checkpoint.moe_blocks().empty())
      out.push_back(forecaster.forecast(checkpoint, {pp, 1, n / pp}));
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
