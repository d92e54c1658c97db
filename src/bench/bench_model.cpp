// SPDX-License-Identifier: Apache-2.0
// Measures a whole model: loading, prefill of prompts, decode steps at several batch sizes. Tokens
// are random everywhere: a model that follows its own greedy choice would visit few experts. Decode
// is timed step by step, after some tokens per sequence (its depth).
#include <fmt/format.h>
#include <fmt/ostream.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <ostream>
#include <span>

#include "apps/cli/folder.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/layout.h"
#include "apps/cli/manners.h"
#include "apps/model_commands.h"
#include "base/error.h"
#include "bench/bench_context.h"
#include "bench/bench_folder.h"
#include "bench/bench_report.h"
#include "bench/bench_synthetic.h"
#include "checkpoint/summary.h"
#include "device/trace.h"

namespace moebius {
namespace {

constexpr size_t kDepth = 32;       // depth of a test that is named by its batch alone
constexpr size_t kFillChunk = 512;  // tokens of a sequence per step while its context is filled
constexpr size_t kTraced = 6;       // additional steps with timed operations on a CUDA device

class ModelBench {
 public:
  ModelBench(const BenchOptions& options, const Checkpoint& checkpoint, ThreadPool& pool)
      : options_(options), checkpoint_(checkpoint), random_(1) {
    ModelOptions mo = model_options_of({.folder = options.folder,
                                        .dtype = options.dtype,
                                        .kv_dtype = options.kv_dtype,
                                        .run = options.run,
                                        .ranks = options.ranks,
                                        .pack_dir = options.pack_dir,
                                        .chat_template = {}},
                                       checkpoint);
    const RankSplit split = split_ = split_of(options.ranks, pool.size(), checkpoint, mo);
    const bool on_gpus = !placement_of(options.run).gpu().empty();
    if (split.ranks() > 1) {
      if (!on_gpus) question_ = measured_question(split.ranks(), pool.size(), checkpoint, mo);
      runtime_ = runtime_of(split, pool.size());
    }
    mo.pool = runtime_ != nullptr ? &runtime_->pool() : &pool;
    traces_ = on_gpus && split.ranks() == 1;  // marks of several ranks would mix
    note_request(checkpoint, mo.act);
    note_kernel(checkpoint, mo.policy, mo.act, mo.type);
    Progress progress("loading", bytes_to_load(checkpoint, mo.predictor), /*bytes=*/true);
    mo.progress = [&](uint64_t bytes) { progress.advance(bytes); };
    const double start = now_seconds();
    model_ = load_model(checkpoint, mo, split, followers_);
    load_seconds = now_seconds() - start;
    load_peak = static_cast<double>(peak_resident_bytes());
  }

  // Measures the milliseconds of one step over a prompt of n tokens.
  Timing prefill(size_t n) {
    std::vector<int32_t> tokens(n);
    std::unique_ptr<SequenceState> state;
    const auto prepare = [&] {
      fill(tokens);
      state = std::make_unique<SequenceState>(model_->new_sequence());
      model_->clear_profile();
    };
    const auto step = [&] {
      const StepItem item{state.get(), tokens, false};
      model_->forward({&item, 1}, logits_);
    };
    const Timing time = summarize(repeat(options_.seconds, prepare, step));
    profiled_ = 1;
    traced(1, [&] { prepare(), step(); });
    return time;
  }

  // Holds the time of a step with `batch` sequences of one token each, and the bytes that it reads.
  struct Decode {
    Timing time;
    double weight_bytes = 0, kv_bytes = 0;
    double slowest = 0;  // seconds
    size_t slow = 0;     // number of steps that took more than twice the median
  };
  Decode decode(size_t batch, size_t depth) {
    const size_t steps = options_.steps > 0 ? options_.steps : std::max<size_t>(48, 128 / batch);
    std::vector<SequenceState> states;
    std::vector<std::vector<int32_t>> tokens(batch);
    std::vector<StepItem> items(batch);
    std::optional<InventedContext> invented;
    StepOutput made;
    if (options_.invented)
      invented.emplace(*model_, batch, depth, steps + 2 + kTraced + 2);
    else
      compute_context(states, tokens, depth);
    const auto step = [&] {
      for (size_t b = 0; b < batch; ++b) tokens[b].resize(1), fill(tokens[b]);
      const double start = now_seconds();
      if (invented) {
        invented->step(tokens, made);
      } else {
        for (size_t b = 0; b < batch; ++b) items[b] = {&states[b], tokens[b], false};
        model_->forward(items, logits_);
      }
      return now_seconds() - start;
    };
    std::vector<double> times;
    Decode d;
    for (size_t i = 0; i < steps + 2 && !interrupt_seen(); ++i) {
      if (i == 2) model_->clear_profile();
      const double seconds = step();
      if (i < 2) continue;  // the first steps find buffers of another size
      times.push_back(seconds);
      const StepStats& did = invented ? made.stats : model_->last_step();
      d.weight_bytes += static_cast<double>(did.weight_bytes);
      d.kv_bytes += static_cast<double>(did.kv_bytes);
    }
    const auto count = static_cast<double>(std::max<size_t>(1, times.size()));
    d.weight_bytes /= count;
    d.kv_bytes /= count;
    if (interrupt_seen()) times.clear();
    for (const double t : times) d.slowest = std::max(d.slowest, t);
    d.time = summarize(times);
    for (const double t : times) d.slow += t > 2 * d.time.median ? 1 : 0;
    profiled_ = times.size();
    traced(kTraced, [&] { step(); });
    return d;
  }

  // Returns where the time of the last test's steps went, in milliseconds per step.
  Json profile() const {
    Json j = Json::object();
    for (size_t i = 0; i < static_cast<size_t>(Phase::kCount); ++i)
      j.set(std::string(name_of(static_cast<Phase>(i))),
            rounded(static_cast<double>(model_->profile()[i]) * 1e-6 /
                        static_cast<double>(std::max<size_t>(1, profiled_)),
                    4));
    return j;
  }
  // Returns the milliseconds per step of operations on a CUDA device.
  Json operations() const {
    Json j = Json::object();
    if (!traces_) return j;
    for (const auto& [what, ms] : device_trace().milliseconds)
      j.set(what, rounded(ms / static_cast<double>(std::max<size_t>(1, profiled_)), 4));
    return j;
  }

  const DecoderModel& model() const { return *model_; }
  std::vector<RankFigures> ranks() { return model_->rank_figures(true); }
  const RankSplit& split() const { return split_; }
  // Returns the planner's forecast for every split into as many ranks; none with one rank, or with
  // GPUs.
  std::vector<RankForecast> forecasts(size_t batch, size_t prompt) const {
    if (!question_) return {};
    RankQuestion q = *question_;
    q.batch = batch;
    q.prompt = prompt;
    return plan_ranks(checkpoint_, q);
  }
  double load_seconds = 0, load_peak = 0;

 private:
  // Runs `depth` tokens of every sequence.
  void compute_context(std::vector<SequenceState>& states,
                       std::vector<std::vector<int32_t>>& tokens, size_t depth) {
    std::optional<Progress> bar;  // with JSON, another bar counts the tests
    if (!options_.json)
      bar.emplace("context", tokens.size() * depth, false, Progress::Last::kErase);
    for (std::vector<int32_t>& own : tokens) {
      SequenceState& state = states.emplace_back(model_->new_sequence());
      for (size_t done = 0; done < depth && !interrupt_seen(); done += own.size()) {
        own.resize(std::min(kFillChunk, depth - done)), fill(own);
        const StepItem item{&state, own, false};
        model_->forward({&item, 1}, logits_);
        if (bar) bar->advance(own.size());
      }
    }
  }
  // Runs steps with time marks around every operation on a CUDA device; the profile then comes from
  // them. Graphs wait at marks, so these steps are slower than the others.
  void traced(size_t steps, FunctionRef<void()> step) {
    if (!traces_ || interrupt_seen()) return;
    device_trace().on = true;
    for (size_t i = 0; i < steps + 2; ++i) {
      if (i == 2) model_->clear_profile(), device_trace().milliseconds.clear();
      step();
    }
    device_trace().on = false;
    profiled_ = steps;
  }
  void fill(std::vector<int32_t>& tokens) {
    for (int32_t& t : tokens) t = static_cast<int32_t>(random_.below(model_->vocab()));
  }
  const BenchOptions& options_;
  const Checkpoint& checkpoint_;
  BenchRandom random_;
  RankSplit split_;
  // Set for several ranks: the planner's question with measured costs.
  std::optional<RankQuestion> question_;
  std::shared_ptr<Runtime> runtime_;  // with several ranks: rank 0's runtime
  std::unique_ptr<RankThreads> followers_;
  std::unique_ptr<DecoderModel> model_;
  std::vector<float> logits_;
  bool traces_ = false;  // true with one CUDA device
  size_t profiled_ = 1;  // number of steps that the profile covers
};

// Holds one measured test: a prompt, or decode steps of a batch.
struct ModelRow {
  std::string test, key;  // such as "tg b8" and "tg_b8"
  size_t threads = 1, tokens = 1;
  Timing time;
  double speedup = 0;  // speed over that with the first number of threads; 0: this is the first
  Json profile;
  double weight_bytes = 0, kv_bytes = 0;  // bytes that a decode step reads
  double slowest = 0;                     // slowest decode step in seconds
  size_t slow = 0;                        // number of steps that took more than twice the median
  std::vector<RankFigures> ranks = {};    // with several ranks: what each did during the test
  // Seconds that the planner forecast: for this split, and for all splits by name.
  double forecast = 0;
  std::vector<std::pair<std::string, double>> forecasts = {};
  Json operations = Json::object();  // ms per step of operations on a CUDA device
  double rate() const { return static_cast<double>(tokens) / time.median; }
};

// Returns "123.4 ± 5.6", with equal decimals.
std::string with_spread(double value, double spread) {
  const int decimals = value >= 1000 ? 0 : value >= 100 ? 1 : value >= 10 ? 2 : 3;
  return fmt::format("{:.{}f} ± {:.{}f}", value, decimals, spread, decimals);
}

// Prints rows as they are measured, so column widths are fixed; a wide terminal shows more of the
// name.
class ModelTable {
 public:
  // Prepares a table. longest_test: length of the longest test name; a long one takes room from the
  // rates.
  ModelTable(const Checkpoint& checkpoint, bool speedup, size_t longest_test, std::ostream& out)
      : speedup_(speedup), test_(std::max(kTest, longest_test)), out_(out) {
    const Summary summary = summarize(checkpoint);
    size_ = human_bytes(summary.bytes_used);
    params_ = human_count(static_cast<double>(summary.params_total));
    name_ = std::filesystem::weakly_canonical(checkpoint.folder()).filename().string();
    name_ = printable(name_, output_width() - 80 + kName);
    line("model", "size", "params", "threads", "test", "t/s", "speedup");
  }
  void add(const ModelRow& r) {
    line(name_, size_, params_, std::to_string(r.threads), r.test,
         with_spread(r.rate(), r.rate() * r.time.spread),
         r.speedup > 0 ? fmt::format("{:.2f}", r.speedup) : "");
  }

 private:
  static constexpr size_t kName = 18, kTest = 7, kRate = 16;
  void line(const std::string& model, const std::string& size, const std::string& params,
            const std::string& threads, const std::string& test, const std::string& rate,
            const std::string& speedup) {
    std::string text = fmt::format("{:<{}}  {:>7}  {:>6}  {:>7}  {:>{}}  {:>{}}", model,
                                   std::max(kName, display_width(name_)), size, params, threads,
                                   test, test_, rate, kRate - std::min(test_ - kTest, kRate - 11));
    if (speedup_ && !speedup.empty()) text += fmt::format("  {:>7}", speedup);
    out_ << text << std::endl;
  }
  std::string name_, size_, params_;
  bool speedup_;
  size_t test_;
  std::ostream& out_;
};

std::string decode_test(size_t batch, size_t depth) {
  return depth == kDepth ? fmt::format("tg b{}", batch) : fmt::format("tg b{} d{}", batch, depth);
}

// Returns what ranks did between two times.
std::vector<RankFigures> between(const std::vector<RankFigures>& before,
                                 std::vector<RankFigures> after) {
  for (size_t r = 0; r < before.size() && r < after.size(); ++r) {
    after[r].step -= before[r].step;
    after[r].exchange -= before[r].exchange;
    after[r].wait -= before[r].wait;
  }
  return after;
}

// Writes shares of the steps' time, which is equal for all ranks except for the time between steps.
std::string ranks_text(const std::vector<ModelRow>& rows) {
  Table table("lrrrrrr", output_width());
  table.add({"test", "rank", "compute", "exchange", "of it waiting", "ms", "forecast"});
  bool any = false;
  for (const ModelRow& row : rows)
    for (size_t r = 0; r < row.ranks.size(); ++r) {
      const RankFigures& f = row.ranks[r];
      const double all = std::max(f.step, 1e-9);
      const auto percent = [&](double seconds) {
        return fmt::format("{:.0f} %", 100 * std::clamp(seconds / all, 0.0, 1.0));
      };
      const auto ms = [&](double s) {
        return r == 0 && s > 0 ? fmt::format("{:.3g}", s * 1e3) : "";
      };
      table.add({row.test, std::to_string(r), percent(f.step - f.exchange), percent(f.exchange),
                 percent(f.wait), ms(row.time.median), ms(row.forecast)});
      any = true;
    }
  return any ? "\n" + table.text() : "";
}

std::string profile_text(const std::vector<ModelRow>& rows) {
  Table table("lrrrrrrrr", output_width());
  std::vector<std::string> head{"ms per step", "threads"};
  // A single process exchanges nothing, so its table has no column for exchanges.
  size_t phases = static_cast<size_t>(Phase::kExchange);
  for (const ModelRow& r : rows)
    if (const Json* ms = r.profile.find(std::string(name_of(Phase::kExchange)));
        ms != nullptr && ms->is_number() && ms->as_double() > 0)
      phases = static_cast<size_t>(Phase::kCount);
  for (size_t i = 0; i < phases; ++i) head.emplace_back(name_of(static_cast<Phase>(i)));
  const size_t head_size = head.size();
  table.add(std::move(head));
  for (const ModelRow& r : rows) {
    std::vector<std::string> cells{r.test, std::to_string(r.threads)};
    for (const auto& [phase, ms] : r.profile.members())
      if (cells.size() < head_size)
        cells.push_back(fmt::format("{:.3g}", ms.is_number() ? ms.as_double() : 0.0));
    table.add(std::move(cells));
  }
  return "\n" + table.text();
}

// Writes the times of a CUDA device: one line per operation, one column per test.
std::string operations_text(const std::vector<ModelRow>& rows) {
  std::vector<std::string> names;
  std::string columns = "l";
  std::vector<std::string> head{"ms per step on the device"};
  for (const ModelRow& r : rows) {
    for (const auto& [what, ms] : r.operations.members())
      if (std::find(names.begin(), names.end(), what) == names.end()) names.push_back(what);
    head.push_back(r.test);
    columns += 'r';
  }
  if (names.empty()) return "";
  Table table(columns, output_width());
  table.add(std::move(head));
  for (const std::string& name : names) {
    std::vector<std::string> cells{name};
    for (const ModelRow& r : rows) {
      const Json* ms = r.operations.find(name);
      cells.push_back(ms != nullptr && ms->is_number() ? fmt::format("{:.3g}", ms->as_double())
                                                       : "");
    }
    table.add(std::move(cells));
  }
  return "\n" + table.text();
}

// Runs all tests with one number of threads.
class ModelRun {
 public:
  // Prepares the tests of a model. load_peak: peak memory of the first load in this process; 0:
  // this is the first load.
  ModelRun(const BenchOptions& options, const Checkpoint& checkpoint, BenchMachine& machine,
           size_t threads, double load_peak)
      : options_(options),
        checkpoint_(checkpoint),
        bench_(options, checkpoint, machine.pool(threads)),
        threads_(threads),
        load_peak_(load_peak != 0 ? load_peak : bench_.load_peak),
        roof_(machine.read(threads)) {}
  double load_peak() const { return load_peak_; }

  // Calls done(row) after each test; returns false after Ctrl-C.
  bool measure(FunctionRef<void(ModelRow&)> done) {
    for (const size_t n : options_.prompts) {
      const std::vector<RankFigures> before = bench_.ranks();
      ModelRow r{fmt::format("pp{}", n), fmt::format("pp{}", n), threads_, n, bench_.prefill(n), 0,
                 bench_.profile()};
      r.operations = bench_.operations();
      if (r.time.repetitions == 0) return false;
      finish(r, before, 1, n);
      done(r);
    }
    for (const size_t depth : options_.depths)
      for (const size_t b : options_.batches) {
        const std::vector<RankFigures> before = bench_.ranks();
        const ModelBench::Decode d = bench_.decode(b, depth);
        if (d.time.repetitions == 0) return false;
        const std::string test = decode_test(b, depth);
        std::string key = test;
        std::replace(key.begin(), key.end(), ' ', '_');
        ModelRow r{test,           key,        threads_,  b,     d.time, 0, bench_.profile(),
                   d.weight_bytes, d.kv_bytes, d.slowest, d.slow};
        r.operations = bench_.operations();
        finish(r, before, b, 0);
        done(r);
      }
    return true;
  }

  // Adds what ranks did since `before`, and the forecast of a decode step (prompt 0) or a prompt.
  void finish(ModelRow& r, const std::vector<RankFigures>& before, size_t batch, size_t prompt) {
    r.ranks = between(before, bench_.ranks());
    for (const RankForecast& f : bench_.forecasts(batch, std::max<size_t>(prompt, 1))) {
      if (!f.refusal.empty()) continue;
      const double seconds = prompt > 0 ? f.prompt : f.step;
      r.forecasts.emplace_back(describe(f.split), seconds);
      if (f.split == bench_.split()) r.forecast = seconds;
    }
  }

  // Returns the share of the memory roof that decoding reaches.
  double roof_share(const ModelRow& r) const {
    return roof_ > 0 ? (r.weight_bytes + r.kv_bytes) / r.time.median * 1e-9 / roof_ : 0;
  }

  Json json(std::span<const ModelRow> rows) const {
    Json j = Json::object({{"bench", "model"},
                           {"folder", options_.folder},
                           {"architecture", checkpoint_.config().architecture},
                           {"layers", bench_.model().layers()},
                           {"threads", threads_}});
    j.set("load_s", rounded(bench_.load_seconds, 4)),
        j.set("load_peak_gib", rounded(load_peak_ / 0x1p30, 4));
    j.set("packed_gib", rounded(static_cast<double>(bench_.model().packed_bytes()) / 0x1p30, 4));
    j.set("roof_gbs", rounded(roof_, 4));
    Json profiles = Json::object(), operations = Json::object();
    for (const ModelRow& r : rows) {
      j.set(r.key + "_ms", rounded(r.time.median * 1e3, 5));
      j.set(r.key + "_tokens_per_s", rounded(r.rate(), 5));
      if (r.speedup > 0) j.set(r.key + "_speedup", rounded(r.speedup, 4));
      profiles.set(r.key, r.profile);
      if (!r.operations.members().empty()) operations.set(r.key, r.operations);
      if (!r.key.starts_with("tg")) continue;
      const double bytes = r.weight_bytes + r.kv_bytes;
      j.set(r.key + "_slowest_ms", rounded(r.slowest * 1e3, 5));
      j.set(r.key + "_slow_steps", r.slow);
      j.set(r.key + "_bytes_per_step", rounded(bytes, 6));
      j.set(r.key + "_kv_bytes_per_step", rounded(r.kv_bytes, 6));
      j.set(r.key + "_gbs", rounded(bytes / r.time.median * 1e-9, 4));
      j.set(r.key + "_percent_of_roof", rounded(100 * roof_share(r), 4));
    }
    Json ranks = Json::object(), forecasts = Json::object();
    for (const ModelRow& r : rows) {
      if (r.ranks.empty()) continue;
      Json list = Json::array();
      for (const RankFigures& f : r.ranks)
        list.push(Json::object({{"step_s", rounded(f.step, 5)},
                                {"compute_s", rounded(f.step - f.exchange, 5)},
                                {"exchange_s", rounded(f.exchange, 5)},
                                {"wait_s", rounded(f.wait, 5)}}));
      ranks.set(r.key, std::move(list));
      Json said = Json::object();
      for (const auto& [split, seconds] : r.forecasts) said.set(split, rounded(seconds * 1e3, 5));
      forecasts.set(r.key, std::move(said));
    }
    if (bench_.split().ranks() > 1)
      j.set("split", describe(bench_.split())), j.set("ranks", std::move(ranks)),
          j.set("forecast_ms", std::move(forecasts));
    if (const StepStats& last = bench_.model().last_step(); last.rank_imbalance > 0)
      j.set("rank_imbalance", rounded(last.rank_imbalance, 4)),
          j.set("layers_moved", last.layers_moved);
    j.set("bytes_per_token", bench_.model().weight_bytes_per_token());
    j.set("profile_ms", std::move(profiles));
    if (!operations.members().empty()) j.set("operations_ms", std::move(operations));
    return j;
  }

  // Returns the estimate for all layers of a --synthetic model. Layers are alike; the embedding and
  // the output projection are measured whole.
  std::string whole_model(std::span<const ModelRow> rows) const {
    const size_t all = synthetic_layers(options_.synthetic), here = bench_.model().layers();
    const double times = static_cast<double>(all) / static_cast<double>(here);
    double ends = 0;  // bytes of modules outside the layers
    for (const Module& m : checkpoint_.modules())
      if (m.layer < 0) ends += static_cast<double>(m.bytes);
    const double bytes = ends + (static_cast<double>(bench_.model().packed_bytes()) - ends) * times;
    std::string text = fmt::format("all {} layers: about {} of weights", all, human_bytes(bytes));
    for (const ModelRow& r : rows) {
      double outside = 0;  // seconds outside the layers
      for (const Phase phase : {Phase::kEmbedding, Phase::kOutput})
        if (const Json* ms = r.profile.find(std::string(name_of(phase))))
          outside += ms->as_double() * 1e-3;
      const double seconds = outside + std::max(0.0, r.time.median - outside) * times;
      text += fmt::format(", {} {:.3g} tokens/s", r.test, r.rate() * r.time.median / seconds);
    }
    return labelled("", text, 0, output_width());
  }

  std::string footer(std::span<const ModelRow> rows) const {
    std::string text =
        fmt::format("{} thread{}: loaded in {}, peak memory {}; memory can be read at {:.3g} GB/s",
                    threads_, threads_ == 1 ? "" : "s", human_seconds(bench_.load_seconds),
                    human_bytes(load_peak_), roof_);
    for (const ModelRow& r : rows)
      if (r.key.starts_with("tg"))
        text += fmt::format(", {} reads at {:.0f} % of it", r.test, 100 * roof_share(r));
    const StepStats& last = bench_.model().last_step();
    if (last.rank_imbalance == 0)
      return labelled("", text, 0, output_width()) +
             (options_.synthetic.empty() ? "" : whole_model(rows));
    text += fmt::format("; busiest rank over the mean {:.2f}, layers whose experts moved: {}",
                        last.rank_imbalance, last.layers_moved);
    for (const ModelRow& r : rows)
      if (r.slowest > 0)
        text += fmt::format(", slowest step of {} {:.2f} times the median", r.test,
                            r.slowest / r.time.median);
    return labelled("", text, 0, output_width());
  }

 private:
  const BenchOptions& options_;
  const Checkpoint& checkpoint_;
  ModelBench bench_;
  size_t threads_;
  double load_peak_, roof_;
};

size_t longest_test(const BenchOptions& options) {
  size_t longest = 0;
  for (const size_t b : options.batches)
    for (const size_t d : options.depths) longest = std::max(longest, decode_test(b, d).size());
  return longest;
}

void check_lists(const BenchOptions& options) {
  for (const size_t n : options.prompts)
    if (n == 0) fail("--prompts holds 0; expected lengths of at least 1");
  for (const size_t b : options.batches)
    if (b == 0) fail("--batches holds 0; expected sizes of at least 1");
}

}  // namespace

int run_bench_model(const BenchOptions& asked, std::ostream& out) {
  check_lists(asked);
  BenchOptions options = asked;
  std::optional<SyntheticFolder> made;
  if (!options.synthetic.empty()) {
    note("writing {} random layers in the sizes of {}", options.layers, options.synthetic);
    interrupt_is_noted();  // so that Ctrl-C does not end the program before the folder is removed
    options.folder = made.emplace(options.synthetic, options.layers).path();
    if (interrupt_seen()) return kExitInterrupted;
  }
  const std::vector<size_t> threads =
      options.threads.empty() ? std::vector<size_t>{default_thread_count()} : thread_list(options);
  const Checkpoint checkpoint = open_checkpoint(options.folder);
  BenchMachine machine(options.seconds);
  std::vector<ModelRow> rows;
  std::optional<ModelTable> table;
  std::string footer;
  double load_peak = 0;
  for (const size_t n : threads) {
    if (!made) interrupt_ends(kInterruptedLoading);
    ModelRun run(options, checkpoint, machine, n, load_peak);
    interrupt_is_noted();
    load_peak = run.load_peak();
    if (!options.json && !table)
      table.emplace(checkpoint, threads.size() > 1, longest_test(options), out);
    // The table's rows show the progress; a bar is drawn only without a table, and removed before
    // the object is written.
    std::optional<Progress> bar;
    if (options.json)
      bar.emplace("measuring",
                  options.prompts.size() + options.batches.size() * options.depths.size(), false);
    const size_t first = rows.size();
    const bool finished = run.measure([&](ModelRow& r) {
      for (size_t i = 0; i < first && r.speedup == 0; ++i)
        if (rows[i].key == r.key) r.speedup = rows[i].time.median / r.time.median;
      rows.push_back(r);
      if (table) table->add(r);
      if (bar) bar->advance(1);
    });
    bar.reset();
    if (!finished) return kExitInterrupted;
    const std::span<const ModelRow> these = std::span(rows).subspan(first);
    if (options.json)
      print_json(run.json(these), out);
    else
      footer += run.footer(these);
  }
  if (table)
    out << profile_text(rows) << operations_text(rows) << ranks_text(rows) << '\n' << footer;
  return 0;
}

}  // namespace moebius
