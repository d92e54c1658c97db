// SPDX-License-Identifier: Apache-2.0
// Computes the figures that compare a folder with its base (evaluate.h).
#include "quantize/evaluate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folder_write.h"
#include "runtime/parallel.h"

namespace moebius {
namespace {

constexpr size_t kKept = 2048;  // most tokens per position in a file
// Tokens of a position that are sorted; more are not compared in order.
constexpr size_t kRanked = 256;
constexpr uint64_t kMaxCache = uint64_t{1} << 40;
constexpr uint64_t kMagic = 0x316c6176656f6d;  // "moeval1"

// Returns the logarithm of the sum of exp(logit). Throws Error unless all logits are finite.
double norm_of(std::span<const float> logits, size_t position) {
  const double norm = log_of_sum(logits);
  if (!std::isfinite(norm)) check_finite(logits, logits.size(), position);
  return norm;
}

// Returns the best k tokens; the first `sorted` of them are sorted, best first, ties to the lower
// id.
std::vector<uint32_t> best_tokens(std::span<const float> logits, size_t k, size_t sorted) {
  std::vector<uint32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0u);
  const auto at = [&](size_t n) { return ids.begin() + static_cast<std::ptrdiff_t>(n); };
  const auto better = [&](uint32_t a, uint32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  if (k < ids.size()) {
    std::nth_element(ids.begin(), at(k), ids.end(), better);
    ids.resize(k);
  }
  std::partial_sort(ids.begin(), at(std::min(sorted, ids.size())), ids.end(), better);
  return ids;
}

// Holds the base model's probabilities at a position.
struct BaseRow {
  std::vector<uint32_t> ids;  // the first ones are sorted, best first
  std::vector<double> log_p;
  float log_rest = -INFINITY;  // of all other tokens together
  float log_target = 0;
};
BaseRow base_row(std::span<const float> logits, const Windows& windows, size_t position,
                 size_t keep, size_t sorted) {
  const double norm = norm_of(logits, position);
  BaseRow row;
  row.ids = best_tokens(logits, keep, sorted);
  double seen = 0;
  for (const uint32_t id : row.ids) {
    row.log_p.push_back(logits[id] - norm);
    seen += std::exp(row.log_p.back());
  }
  if (row.ids.size() < logits.size())
    row.log_rest = static_cast<float>(std::log(std::max(1 - seen, 1e-12)));
  row.log_target = static_cast<float>(logits[static_cast<size_t>(windows.target(position))] - norm);
  return row;
}

struct PositionScore {
  double loss = 0, base_loss = 0, kl = 0, overlap = 0, delta_p = 0;
  bool same_best = false;
};

PositionScore score_position(const BaseRow& base, std::span<const float> logits,
                             const Windows& windows, size_t position, size_t top) {
  const double norm = norm_of(logits, position);
  PositionScore s;
  s.loss = norm - logits[static_cast<size_t>(windows.target(position))];
  s.base_loss = -static_cast<double>(base.log_target);
  double others = 1;  // our probability of all tokens that the base does not list
  for (size_t i = 0; i < base.ids.size(); ++i) {
    const double log_p = base.log_p[i], log_q = logits[base.ids[i]] - norm;
    s.kl += std::exp(log_p) * (log_p - log_q);
    others -= std::exp(log_q);
  }
  if (base.ids.size() < logits.size())
    s.kl += std::exp(static_cast<double>(base.log_rest)) *
            (static_cast<double>(base.log_rest) - std::log(std::max(others, 1e-12)));
  s.kl = std::max(s.kl, 0.0);
  const std::vector<uint32_t> ours = best_tokens(logits, top, 1);
  const size_t k = std::min(top, base.ids.size());
  s.same_best = ours.front() == base.ids.front();
  size_t common = 0;
  for (size_t i = 0; i < k; ++i)
    common += std::find(ours.begin(), ours.end(), base.ids[i]) != ours.end() ? 1 : 0;
  s.overlap = static_cast<double>(common) / static_cast<double>(k);
  s.delta_p = std::exp(-s.loss) - std::exp(-s.base_loss);
  return s;
}

// Counts rows whose experts are the same in two models, per layer.
struct RoutingCount {
  std::string block;
  size_t rows = 0, same = 0;
};
void count_routing(const std::vector<RoutingTap::Layer>& a, const std::vector<RoutingTap::Layer>& b,
                   std::vector<RoutingCount>& counts) {
  if (a.size() != b.size())
    fail("the base has {} layers with experts and the folder {}", b.size(), a.size());
  counts.resize(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].slots != b[i].slots || a[i].ids.size() != b[i].ids.size())
      fail("{}: the base has {} experts per token there, and the folder {}", a[i].block, b[i].slots,
           a[i].slots);
    counts[i].block = a[i].block;
    for (size_t r = 0; r < a[i].ids.size(); r += a[i].slots) {
      ++counts[i].rows;
      const auto at = [r](const RoutingTap::Layer& l) {
        return l.ids.begin() + static_cast<std::ptrdiff_t>(r);
      };
      counts[i].same +=
          std::equal(at(a[i]), at(a[i]) + static_cast<std::ptrdiff_t>(a[i].slots), at(b[i])) ? 1
                                                                                             : 0;
    }
  }
}

WindowReader reader_of(EvalModel m) {
  return {*m.model, m.tap == nullptr ? std::function<void()>() : [tap = m.tap] { tap->clear(); }};
}

void run(const Windows& windows, std::span<WindowReader* const> readers,
         const EvalSettings& settings,
         FunctionRef<void(const std::vector<size_t>& positions)> use) {
  run_windows(windows, readers, use, [&](size_t n) {
    if (settings.advance) settings.advance(n);
  });
}

EvalFigures figures_of(const std::vector<PositionScore>& scores,
                       const std::vector<RoutingCount>& routing) {
  EvalFigures f;
  f.positions = scores.size();
  std::vector<double> loss, base, kl;
  double squares = 0;
  for (const PositionScore& s : scores) {
    loss.push_back(s.loss), base.push_back(s.base_loss), kl.push_back(s.kl);
    f.top1 += s.same_best ? 1 : 0;
    f.top_overlap += s.overlap;
    squares += s.delta_p * s.delta_p;
  }
  const auto n = static_cast<double>(std::max<size_t>(1, scores.size()));
  f.top1 /= n;
  f.top_overlap /= n;
  f.rms_delta_p = std::sqrt(squares / n);
  f.loss = mean_and_error(loss);
  f.base_loss = mean_and_error(base);
  const MeanAndError mean = mean_and_error(kl);
  f.kl.mean = mean.mean;
  f.kl.error = mean.error;
  std::sort(kl.begin(), kl.end());
  const auto at = [&](double share) {
    return kl.empty() ? 0 : kl[std::min(kl.size() - 1, static_cast<size_t>(share * n))];
  };
  f.kl.p50 = at(0.5);
  f.kl.p90 = at(0.9);
  f.kl.p99 = at(0.99);
  f.kl.p999 = at(0.999);
  f.kl.max = at(1);
  f.routing = routing.empty() ? 1 : 0;
  for (const RoutingCount& c : routing) {
    const double share =
        static_cast<double>(c.same) / static_cast<double>(std::max<size_t>(1, c.rows));
    f.layers.push_back({c.block, share});
    f.routing += share / static_cast<double>(routing.size());
  }
  return f;
}

void check_vocab(const DecoderModel& model, size_t vocab) {
  if (model.vocab() != vocab)
    fail("the base has {} tokens and the folder {}: expected the same tokenizer", vocab,
         model.vocab());
}

// ---- the file of a base ----

template <class T>
void append(std::vector<uint8_t>& out, const T* values, size_t n) {
  const auto* p = reinterpret_cast<const uint8_t*>(values);
  out.insert(out.end(), p, p + n * sizeof(T));
}
class CacheReader {
 public:
  explicit CacheReader(const std::string& path) : path_(path), file_(path) {}
  template <class T>
  void read(T* values, size_t n) {
    if (n > kMaxCache / sizeof(T)) fail("{}: broken: a list of {} numbers", path_, n);
    file_.read_at(at_, {reinterpret_cast<uint8_t*>(values), n * sizeof(T)});
    at_ += n * sizeof(T);
  }
  uint64_t number() {
    uint64_t v = 0;
    read(&v, 1);
    return v;
  }
  uint64_t left() const { return file_.size() - at_; }

 private:
  std::string path_;
  ReadFile file_;
  uint64_t at_ = 0;
};

uint64_t hash_of(const Windows& windows) {
  uint64_t h = windows.inputs();
  for (size_t w = 0; w < windows.count(); ++w)
    for (const int32_t t : windows.tokens(w, 0, windows.length(w)))
      h = (h ^ static_cast<uint64_t>(static_cast<uint32_t>(t))) * 0x9e3779b97f4a7c15u + (h >> 29);
  return (h ^ windows.count()) * 0xbf58476d1ce4e5b9u;
}

}  // namespace

void RoutingTap::block(const MoeBlock& block, const TappedRows&, std::span<const int32_t> ids,
                       size_t slots) {
  if (slots == 0) return;
  Layer& layer = layers_.emplace_back();
  layer.block = block.name;
  layer.slots = slots;
  layer.ids.assign(ids.begin(), ids.end());
  for (size_t r = 0; r < ids.size(); r += slots)
    std::sort(layer.ids.begin() + static_cast<std::ptrdiff_t>(r),
              layer.ids.begin() + static_cast<std::ptrdiff_t>(r + slots));
}

EvalFigures evaluate(const Windows& windows, EvalModel model, EvalModel base,
                     const EvalSettings& settings) {
  check_vocab(*model.model, base.model->vocab());
  WindowReader ours = reader_of(model), theirs = reader_of(base);
  std::vector<PositionScore> scores(windows.inputs());
  std::vector<RoutingCount> routing;
  WindowReader* const both[] = {&ours, &theirs};
  run(windows, both, settings, [&](const std::vector<size_t>& positions) {
    parallel_for(settings.pool, positions.size(), [&](size_t r) {
      const size_t at = positions[r];
      const BaseRow row = base_row(theirs.row(r), windows, at, theirs.row(r).size(), settings.top);
      scores[at] = score_position(row, ours.row(r), windows, at, settings.top);
    });
    if (model.tap != nullptr && base.tap != nullptr)
      count_routing(model.tap->layers(), base.tap->layers(), routing);
  });
  return figures_of(scores, routing);
}

void write_eval_cache(const std::string& path, const Windows& windows, EvalModel base,
                      const EvalSettings& settings) {
  WindowReader theirs = reader_of(base);
  const size_t vocab = base.model->vocab(), keep = std::min(kKept, vocab);
  const std::string target = output_target(path);
  OutputFile file(target + ".tmp", 0);
  uint64_t at = 0;
  const auto write = [&](const std::vector<uint8_t>& bytes) {
    file.write_at(at, bytes);
    at += bytes.size();
  };
  std::vector<uint8_t> head;
  const uint64_t numbers[] = {kMagic, vocab, keep, windows.inputs(), hash_of(windows)};
  append(head, numbers, std::size(numbers));
  write(head);
  WindowReader* const one[] = {&theirs};
  run(windows, one, settings, [&](const std::vector<size_t>& positions) {
    std::vector<BaseRow> rows(positions.size());
    parallel_for(settings.pool, positions.size(), [&](size_t r) {
      rows[r] = base_row(theirs.row(r), windows, positions[r], keep, kRanked);
    });
    std::vector<uint8_t> out;
    const uint64_t count = rows.size();
    append(out, &count, 1);
    for (const BaseRow& row : rows) {
      append(out, row.ids.data(), keep);
      append(out, std::vector<float>(row.log_p.begin(), row.log_p.end()).data(), keep);
      append(out, &row.log_rest, 1);
      append(out, &row.log_target, 1);
    }
    const uint64_t layers = base.tap != nullptr ? base.tap->layers().size() : 0;
    append(out, &layers, 1);
    for (size_t i = 0; i < layers; ++i) {
      const RoutingTap::Layer& l = base.tap->layers()[i];
      const uint64_t sizes[] = {l.slots, l.ids.size()};
      append(out, sizes, 2);
      append(out, l.ids.data(), l.ids.size());
    }
    write(out);
  });
  file.finish(target);
}

EvalFigures evaluate_cached(const std::string& path, const Windows& windows, EvalModel model,
                            const EvalSettings& settings) {
  CacheReader file(path);
  if (file.left() < 40 || file.number() != kMagic)
    fail("{}: not a file of `eval --kl-cache`", path);
  const uint64_t vocab = file.number(), keep = file.number(), inputs = file.number(),
                 hash = file.number();
  check_vocab(*model.model, vocab);
  if (keep == 0 || keep > vocab || inputs != windows.inputs() || hash != hash_of(windows))
    fail("{}: of other tokens or windows; expected those of this call", path);
  WindowReader ours = reader_of(model);
  std::vector<PositionScore> scores(windows.inputs());
  std::vector<RoutingCount> routing;
  WindowReader* const one[] = {&ours};
  run(windows, one, settings, [&](const std::vector<size_t>& positions) {
    if (file.number() != positions.size()) fail("{}: broken: steps of other sizes", path);
    std::vector<BaseRow> rows(positions.size());
    std::vector<float> log_p(keep);
    for (BaseRow& row : rows) {
      row.ids.resize(keep);
      file.read(row.ids.data(), keep);
      file.read(log_p.data(), keep);
      row.log_p.assign(log_p.begin(), log_p.end());
      file.read(&row.log_rest, 1);
      file.read(&row.log_target, 1);
      for (const uint32_t id : row.ids)
        if (id >= vocab) fail("{}: broken: token {} of {}", path, id, vocab);
    }
    std::vector<RoutingTap::Layer> layers(file.number() & 0xffff);
    for (RoutingTap::Layer& l : layers) {
      l.slots = file.number();
      const uint64_t n = file.number();
      if (l.slots == 0 || n > positions.size() * 1024 || n % l.slots != 0)
        fail("{}: broken: a list of {} experts", path, n);
      l.ids.resize(n);
      file.read(l.ids.data(), n);
    }
    parallel_for(settings.pool, positions.size(), [&](size_t r) {
      scores[positions[r]] =
          score_position(rows[r], ours.row(r), windows, positions[r], settings.top);
    });
    if (model.tap != nullptr) count_routing(model.tap->layers(), layers, routing);
  });
  return figures_of(scores, routing);
}

}  // namespace moebius
