// SPDX-License-Identifier: Apache-2.0
// Runs requests that arrive as the trace says; a recorder between engine and model keeps every
// batch, and the bare step loop then runs the same batches in the same blocks: what the engine
// costs is the difference.
#include "bench/bench_engine.h"

#include <fmt/core.h>
#include <fmt/ostream.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <deque>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "apps/cli/interrupt.h"
#include "apps/cli/layout.h"
#include "base/error.h"
#include "base/file.h"
#include "bench/bench_report.h"
#include "engine/draft.h"
#include "engine/text_engine.h"
#include "text/grammar/masks.h"
#include "text/tokenizer.h"

namespace moebius {
namespace {

constexpr uint64_t kMaxTraceBytes = uint64_t{64} << 20;
// A schema that no answer of the benchmark completes.
constexpr const char* kLongForm =
    R"({"type":"array","minItems":1024,"items":{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"},"mail":{"type":"string","format":"email"}},"required":["name","age","mail"],"additionalProperties":false}})";

// Passes every call on and keeps the batches.
class Recorder : public Backend {
 public:
  explicit Recorder(Backend& to) : to_(to) {}
  bool keys_depend_on_length() const override { return to_.keys_depend_on_length(); }
  size_t keys_change_beyond() const override { return to_.keys_change_beyond(); }
  uint64_t memory_left() const override { return to_.memory_left(); }
  bool drafts() const override { return to_.drafts(); }
  size_t batches_in_flight() const override { return to_.batches_in_flight(); }
  size_t vocab() const override { return to_.vocab(); }
  std::span<const KvKind> kv_kinds() const override { return to_.kv_kinds(); }
  Ticket submit(std::span<const BatchItem> items) override {
    if (recording) {
      std::vector<Kept> batch(items.size());
      for (size_t i = 0; i < items.size(); ++i)
        batch[i] = {*items[i].tables, {items[i].tokens.begin(), items[i].tokens.end()}, items[i]};
      batches_.push_back(std::move(batch));
    }
    return to_.submit(items);
  }
  void collect(Ticket t, StepOutput& out) override { to_.collect(t, out); }
  void copy_block(size_t k, BlockId from, BlockId to, size_t n) override {
    to_.copy_block(k, from, to, n);
  }
  void cut_block(size_t k, BlockId id, size_t n) override { to_.cut_block(k, id, n); }
  size_t stored_bytes(size_t k) const override { return to_.stored_bytes(k); }
  void read_block(size_t k, BlockId id, size_t n, std::span<uint8_t> out) override {
    to_.read_block(k, id, n, out);
  }
  bool write_block(size_t k, BlockId id, size_t n, Fill fill) override {
    return to_.write_block(k, id, n, fill);
  }
  void commit_blocks(size_t k, size_t n) override { to_.commit_blocks(k, n); }
  void trim_blocks(size_t k, size_t n) override { to_.trim_blocks(k, n); }

  // Runs the same batches again, as many in flight as the model wants; returns the seconds.
  double replay() {
    StepOutput out;
    std::vector<BatchItem> items;
    std::deque<Ticket> under_way;
    const auto collect_until = [&](size_t left) {
      for (; under_way.size() > left; under_way.pop_front()) to_.collect(under_way.front(), out);
    };
    const double start = now_seconds();
    for (std::vector<Kept>& batch : batches_) {
      items.clear();
      for (Kept& k : batch) {
        BatchItem item = k.item;
        item.tables = &k.tables;
        item.tokens = k.tokens;
        items.push_back(item);
      }
      collect_until(to_.batches_in_flight() - 1);
      under_way.push_back(to_.submit(items));
    }
    collect_until(0);
    return now_seconds() - start;
  }
  void clear() { batches_.clear(); }
  bool recording = false;

 private:
  struct Kept {
    BlockTables tables;
    std::vector<int32_t> tokens;
    BatchItem item;
  };
  Backend& to_;
  std::deque<std::vector<Kept>> batches_;
};

// Holds the measurements of one run of the trace.
struct TraceRun {
  // Seconds in total; in steps; of the replay; in the model.
  double seconds = 0, busy = 0, bare = 0, pass = 0;
  std::vector<double> first_token, gaps;  // seconds
  size_t prompt_tokens = 0, new_tokens = 0, steps = 0, rows = 0;
  uint64_t kv_peak = 0;
  std::vector<double> predicted;  // measured time over predicted time of each step
  bool interrupted = false;

  double tokens_per_second() const { return static_cast<double>(new_tokens) / seconds; }
  double rows_per_step() const {
    return static_cast<double>(rows) / static_cast<double>(std::max<size_t>(1, steps));
  }
  double percent_of_busy(double part) const { return 100 * part / std::max(busy, 1e-9); }
};

class TraceBench {
 public:
  TraceBench(const BenchEngineOptions& options, std::span<const TraceEntry> trace)
      : options_(options),
        trace_(trace),
        checkpoint_(open_to_run(options.model.folder)),
        open_(checkpoint_, model_options_of(options.model, checkpoint_, longest(trace)),
              options.model.ranks, thread_count(options.model.run)),
        recorder_(*open_.model),
        engine_(recorder_, options_of(options, longest(trace), open_)) {
    if (options.constrained) {
      grammar_ = grammar_from_schema(parse_json(kLongForm, "form"));
      masks_ = std::make_shared<TokenMasks>(Tokenizer::from_folder(options.model.folder));
    }
    engine_.calibrate();
  }

  // Runs the trace. drafts: with predictions, which are the answers of the run before, or have
  // every token wrong. constrained: all answers must match a grammar.
  TraceRun run(bool drafts = false, bool constrained = false) {
    constrained_ = constrained;
    TraceRun r;
    drafts_ = drafts;
    recorder_.clear();
    recorder_.recording = options_.predictions == "none";
    const double start = now_seconds();
    size_t added = 0;
    while ((added < trace_.size() || !engine_.idle()) && !r.interrupted) {
      const double now = now_seconds() - start;
      while (added < trace_.size() && trace_[added].arrival <= now) add(added++);
      if (engine_.idle())
        std::this_thread::sleep_for(std::chrono::duration<double>(trace_[added].arrival - now));
      else
        step(r, start);
      r.interrupted = interrupt_seen();
    }
    r.seconds = now_seconds() - start;
    recorder_.recording = false;
    engine_.clear_cache();  // so that the next run finds an empty cache
    if (!r.interrupted && options_.predictions == "none") r.bare = recorder_.replay();
    return r;
  }

  const Engine& engine() const { return engine_; }
  size_t threads() const { return open_.pool.size(); }

 private:
  static size_t longest(std::span<const TraceEntry> trace) {
    size_t n = 1;
    for (const TraceEntry& e : trace) n = std::max(n, e.prompt + e.new_tokens);
    return n + 1;
  }
  static EngineOptions options_of(const BenchEngineOptions& o, size_t context, OpenModel& open) {
    EngineOptions e = engine_options(o.engine, open, context);
    e.parallel = o.parallel;
    e.stretch = o.stretch;
    if (o.predictions != "none") e.drafts = kMostDrafts;
    return e;
  }

  void add(size_t index) {
    SplitMix64 random(options_.seed * 1000003 + index);
    Request r;
    r.prompt.resize(trace_[index].prompt);
    for (int32_t& t : r.prompt) t = static_cast<int32_t>(random.below(recorder_.vocab()));
    r.max_new = trace_[index].new_tokens;
    r.sampling.temperature = 1;  // greedy answers would use few experts
    r.sampling.seed = random.next();
    answers_.resize(trace_.size());
    if (drafts_) {
      if (options_.predictions != "own") r.prediction = answers_[index];
      if (options_.predictions == "wrong")
        for (int32_t& t : r.prediction)
          t = static_cast<int32_t>((static_cast<size_t>(t) + 1) % recorder_.vocab());
    } else if (options_.predictions != "none") {
      r.drafts = 0;
    }
    if (!drafts_) answers_[index].clear();
    if (constrained_)
      r.constraint = [this] { return make_grammar_constraint(masks_, grammar_, {}); };
    open_requests_[engine_.add(std::move(r))] = {index, 0};
  }

  void step(TraceRun& r, double start) {
    const double before = now_seconds();
    const StepReport report = engine_.step();
    const double now = now_seconds();
    if (!report.failure.empty()) fail("a step failed: {}", report.failure);
    r.busy += now - before;
    r.pass += static_cast<double>(report.figures.nanoseconds) * 1e-9;
    r.steps += report.figures.batch > 0 ? 1 : 0;
    r.rows += report.figures.prompt_rows + report.figures.decode_rows;
    r.kv_peak = std::max(r.kv_peak, engine_.kv().blocks().used_bytes());
    if (report.figures.predicted_nanoseconds > 0)
      r.predicted.push_back(static_cast<double>(report.figures.nanoseconds) /
                            report.figures.predicted_nanoseconds);
    for (const StepResult& s : report.results) {
      if (s.finish == Finish::kError) fail("a request failed: {}", s.error);
      auto& [index, last] = open_requests_.at(s.id);
      if (s.choice) {
        if (!drafts_) answers_[index].push_back(s.choice->token);
        ++r.new_tokens;
        if (last == 0) {
          r.first_token.push_back(now - start - trace_[index].arrival);
          r.prompt_tokens += trace_[index].prompt;
        } else {
          r.gaps.push_back(now - last);
        }
        last = now;
      }
      if (s.finish != Finish::kNone) open_requests_.erase(s.id);
    }
  }

  const BenchEngineOptions& options_;
  std::span<const TraceEntry> trace_;
  const Checkpoint checkpoint_;
  OpenModel open_;
  Recorder recorder_;
  Engine engine_;
  bool constrained_ = false;
  GrammarPtr grammar_;
  std::shared_ptr<TokenMasks> masks_;
  // Requests under way by id: entry of the trace, and time of the last token.
  std::map<uint64_t, std::pair<size_t, double>> open_requests_;
  bool drafts_ = false;
  std::vector<std::vector<int32_t>> answers_;  // answers without drafts
};

// Returns the round with the median share of the bare loop.
TraceRun median_of(std::vector<TraceRun> runs) {
  std::sort(runs.begin(), runs.end(),
            [](const TraceRun& a, const TraceRun& b) { return a.bare * b.busy < b.bare * a.busy; });
  return runs[runs.size() / 2];
}

// Holds the gaps between tokens with a grammar and without: medians over rounds.
struct FormGaps {
  // Seconds; ratios are with over without.
  double p50 = 0, p50_ratio = 0, p99_ratio = 0, mean_ratio = 0;
};

FormGaps form_gaps(const std::vector<TraceRun>& plain, const std::vector<TraceRun>& formed) {
  const auto median = [](const std::vector<TraceRun>& runs, const auto& figure) {
    std::vector<double> values;
    for (const TraceRun& r : runs) values.push_back(figure(r));
    return at_share(std::move(values), 0.5);
  };
  const auto p50 = [](const TraceRun& r) { return at_share(r.gaps, 0.5); };
  const auto p99 = [](const TraceRun& r) { return at_share(r.gaps, 0.99); };
  const auto mean = [](const TraceRun& r) { return mean_of(r.gaps); };
  return {median(formed, p50), median(formed, p50) / median(plain, p50),
          median(formed, p99) / median(plain, p99), median(formed, mean) / median(plain, mean)};
}

// Adds the facts about a run that both kinds of report have.
void add_run(Json& j, const BenchEngineOptions& o, const TraceBench& bench, size_t requests) {
  j.set("requests", requests);
  j.set("parallel", o.parallel);
  j.set("threads", bench.threads());
}

Json bench_json(const BenchEngineOptions& o, const TraceBench& bench, const TraceRun& r,
                size_t requests, const std::optional<FormGaps>& form) {
  const EngineSnapshot s = bench.engine().snapshot();
  const auto ms = [](double seconds) { return rounded(seconds * 1e3, 5); };
  Json j = Json::object({{"bench", "engine"}, {"folder", o.model.folder}});
  add_run(j, o, bench, requests);
  j.set("seconds", rounded(r.seconds, 5));
  j.set("busy_seconds", rounded(r.busy, 5));
  j.set("prompt_tokens", r.prompt_tokens);
  j.set("new_tokens", r.new_tokens);
  j.set("tokens_per_s", rounded(r.tokens_per_second(), 5));
  j.set("first_token_p50_ms", ms(at_share(r.first_token, 0.5)));
  j.set("first_token_p99_ms", ms(at_share(r.first_token, 0.99)));
  j.set("gap_p50_ms", ms(at_share(r.gaps, 0.5)));
  j.set("gap_p99_ms", ms(at_share(r.gaps, 0.99)));
  if (form) {
    j.set("form_gap_p50_ms", ms(form->p50));
    j.set("form_gap_p50_ratio", rounded(form->p50_ratio, 4));
    j.set("form_gap_p99_ratio", rounded(form->p99_ratio, 4));
    j.set("form_gap_mean_ratio", rounded(form->mean_ratio, 4));
  }
  j.set("steps", r.steps);
  j.set("rows_per_step", rounded(r.rows_per_step(), 4));
  j.set("predicted_ratio_p50", rounded(at_share(r.predicted, 0.5), 4));
  j.set("bare_seconds", rounded(r.bare, 5));
  j.set("percent_of_bare", rounded(r.percent_of_busy(r.bare), 4));
  j.set("percent_in_model", rounded(r.percent_of_busy(r.pass), 4));
  j.set("kv_budget_bytes", s.kv.budget);
  j.set("kv_peak_bytes", r.kv_peak);
  j.set("cached_tokens", s.cached_tokens);
  j.set("preemptions", s.preemptions);
  j.set("evictions", s.evictions);
  return j;
}

void print_table(const TraceRun& r, const TraceBench& bench, size_t requests,
                 const std::optional<FormGaps>& form, std::ostream& out) {
  const EngineSnapshot s = bench.engine().snapshot();
  Table t("lr", output_width());
  const auto row = [&](const char* what, std::string value) { t.add({what, std::move(value)}); };
  const auto two = [](const std::vector<double>& v) {
    return fmt::format("{:.3g} ms, {:.3g} ms", 1e3 * at_share(v, 0.5), 1e3 * at_share(v, 0.99));
  };
  row("requests", fmt::format("{} in {}", requests, human_seconds(r.seconds)));
  row("new tokens per second", fmt::format("{:.1f}", r.tokens_per_second()));
  row("time to first token, p50, p99", two(r.first_token));
  row("gap between tokens, p50, p99", two(r.gaps));
  if (form)
    row("the same with a form, p50; ratios of p50, mean",
        fmt::format("{:.3g} ms; {:.3f}, {:.3f}", 1e3 * form->p50, form->p50_ratio,
                    form->mean_ratio));
  row("steps, rows per step", fmt::format("{}, {:.1f}", r.steps, r.rows_per_step()));
  row("share of the bare step loop", fmt::format("{:.1f} %", r.percent_of_busy(r.bare)));
  row("time of steps in the model", fmt::format("{:.1f} %", r.percent_of_busy(r.pass)));
  row("keys and values, most of budget",
      fmt::format("{} of {}", human_bytes(r.kv_peak), human_bytes(s.kv.budget)));
  row("preemptions, evictions", fmt::format("{}, {}", s.preemptions, s.evictions));
  out << t.text();
}

}  // namespace

std::vector<TraceEntry> read_trace(const std::string& path) {
  const std::string text = read_input(path, kMaxTraceBytes);
  std::vector<TraceEntry> out;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    line = line.substr(0, line.find('#'));
    line.erase(std::remove_if(line.begin(), line.end(),
                              [](char c) { return c == ' ' || c == '\r' || c == '\t'; }),
               line.end());
    if (line.empty()) continue;
    double v[3] = {-1, -1, -1};
    const char *p = line.data(), *stop = p + line.size();
    bool good = true;
    for (int i = 0; i < 3 && good; ++i) {
      const auto [next, error] = std::from_chars(p, stop, v[i]);
      good = error == std::errc() && (i == 2 ? next == stop : next < stop && *next == ',');
      p = next + 1;
    }
    if (!good || !(v[0] >= 0 && v[0] < 1e9 && v[1] >= 1 && v[1] < 1e9 && v[2] >= 1 && v[2] < 1e9))
      fail("{}: line {} is '{}'; expected arrival seconds, prompt tokens, new tokens", path, number,
           printable(line, 60));
    out.push_back({v[0], static_cast<size_t>(v[1]), static_cast<size_t>(v[2])});
  }
  if (out.empty()) fail("{}: holds no request", path);
  std::stable_sort(out.begin(), out.end(),
                   [](const TraceEntry& a, const TraceEntry& b) { return a.arrival < b.arrival; });
  return out;
}

std::vector<TraceEntry> make_trace(const BenchEngineOptions& o) {
  SplitMix64 random(o.seed);
  std::vector<TraceEntry> out;
  double time = 0;
  const auto around = [&](size_t n) { return 1 + n / 4 + random.below(3 * n / 2); };
  for (size_t i = 0; i < o.requests; ++i) {
    out.push_back({time, around(o.prompt), around(o.new_tokens)});
    time += -std::log1p(-random.uniform()) / o.rate;
  }
  return out;
}

namespace {

// Runs with and without drafts in turn; reports tokens per second of busy time, and their ratio.
int run_predictions(const BenchEngineOptions& options, TraceBench& bench, size_t requests,
                    std::ostream& out) {
  std::vector<double> plain, drafted, ratios;
  bench.run();  // warms up, and records the answers
  for (size_t i = 0; i < options.rounds; ++i) {
    double speed[2] = {0, 0};
    for (const bool drafts : {i % 2 == 0, i % 2 != 0}) {
      const TraceRun r = bench.run(drafts);
      if (r.interrupted) return kExitInterrupted;
      speed[drafts] = static_cast<double>(r.new_tokens) / r.busy;
    }
    plain.push_back(speed[0]), drafted.push_back(speed[1]);
    ratios.push_back(speed[1] / speed[0]);
  }
  std::sort(ratios.begin(), ratios.end());
  const EngineSnapshot s = bench.engine().snapshot();
  uint64_t right = 0;
  for (const uint64_t n : s.drafts_right) right += n;
  Json j = Json::object({{"bench", "engine"},
                         {"folder", options.model.folder},
                         {"predictions", options.predictions}});
  add_run(j, options, bench, requests);
  j.set("plain_tokens_per_s", rounded(at_share(plain, 0.5), 5));
  j.set("drafted_tokens_per_s", rounded(at_share(drafted, 0.5), 5));
  j.set("ratio", rounded(at_share(ratios, 0.5), 4));
  j.set("least_ratio", rounded(ratios.front(), 4));
  j.set("most_ratio", rounded(ratios.back(), 4));
  j.set("drafted_tokens", s.drafted_tokens);
  j.set("drafts_right", right);
  if (options.json) {
    print_json(j, out);
    return 0;
  }
  Table t("lr", output_width());
  t.add({"tokens per second, without drafts", fmt::format("{:.1f}", at_share(plain, 0.5))});
  t.add({"with drafts", fmt::format("{:.1f}", at_share(drafted, 0.5))});
  t.add({"ratio, least, most", fmt::format("{:.3f}, {:.3f}, {:.3f}", at_share(ratios, 0.5),
                                           ratios.front(), ratios.back())});
  t.add({"drafted tokens, right", fmt::format("{}, {}", s.drafted_tokens, right)});
  out << t.text();
  return 0;
}

}  // namespace

int run_bench_engine(const BenchEngineOptions& options, std::ostream& out) {
  const std::vector<TraceEntry> trace =
      options.trace.empty() ? make_trace(options) : read_trace(options.trace);
  interrupt_ends(kInterruptedLoading);
  TraceBench bench(options, trace);
  interrupt_is_noted();
  if (options.predictions != "none") return run_predictions(options, bench, trace.size(), out);
  std::vector<TraceRun> runs, formed;
  for (size_t i = 0; i < options.rounds; ++i) {
    runs.push_back(bench.run());
    if (runs.back().interrupted) return kExitInterrupted;
    if (!options.constrained) continue;
    formed.push_back(bench.run(/*drafts=*/false, /*constrained=*/true));
    if (formed.back().interrupted) return kExitInterrupted;
  }
  std::optional<FormGaps> form;
  if (options.constrained) form = form_gaps(runs, formed);
  const TraceRun r = median_of(std::move(runs));
  if (options.json)
    print_json(bench_json(options, bench, r, trace.size(), form), out);
  else
    print_table(r, bench, trace.size(), form, out);
  return 0;
}

}  // namespace moebius
