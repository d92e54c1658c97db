// SPDX-License-Identifier: Apache-2.0
// A whole model: loading, prefill of prompts, decode steps at several batch sizes. Tokens are
// random everywhere: a model that follows its own greedy choice would visit few experts. Decode is
// timed step by step, after 32 tokens per sequence.
#include <fmt/format.h>
#include <fmt/ostream.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "apps/bench_report.h"
#include "apps/bench_synthetic.h"
#include "apps/explain.h"
#include "apps/folder.h"
#include "apps/terminal.h"
#include "base/error.h"
#include "model/decoder.h"

namespace moebius {
namespace {

constexpr size_t kPrefix = 32;  // tokens per sequence before decode steps

class ModelBench {
 public:
  ModelBench(const BenchOptions& options, const Checkpoint& checkpoint, ThreadPool& pool)
      : options_(options), checkpoint_(checkpoint), random_(1) {
    ModelOptions mo;
    mo.pool = &pool;
    mo.policy = policy_of(options.run), mo.int8 = int8_mode_of(options.run);
    mo.type = activation_type(options.dtype, checkpoint.config().dtype);
    uint64_t total = 0;
    for (const Module& m : checkpoint.modules()) total += m.bytes;
    Progress progress("loading", total, true);
    mo.progress = [&](uint64_t bytes) { progress.advance(bytes); };
    const double start = now_seconds();
    model_ = DecoderModel::load(checkpoint, mo);
    load_seconds = now_seconds() - start;
    load_peak = static_cast<double>(peak_resident_bytes());
  }

  // Milliseconds of one step over a prompt of n tokens.
  Timing prefill(size_t n) {
    std::vector<int32_t> tokens(n);
    std::unique_ptr<SequenceState> state;
    const auto prepare = [&] {
      fill(tokens), state = std::make_unique<SequenceState>(model_->new_sequence()),
                    model_->clear_profile();
    };
    return summarize(repeat(options_.seconds, prepare, [&] {
      const StepItem item{state.get(), tokens, false};
      model_->forward({&item, 1}, logits_);
    }));
  }

  // Of one step of `batch` sequences, each a token further.
  Timing decode(size_t batch) {
    std::vector<SequenceState> states;
    std::vector<std::vector<int32_t>> tokens(batch, std::vector<int32_t>(kPrefix));
    std::vector<StepItem> items(batch);
    for (size_t b = 0; b < batch; ++b) states.push_back(model_->new_sequence());
    for (size_t b = 0; b < batch; ++b) fill(tokens[b]), items[b] = {&states[b], tokens[b], false};
    model_->forward(items, logits_);
    const size_t steps = std::max<size_t>(48, 128 / batch);
    std::vector<double> times;
    for (size_t i = 0; i < steps + 2 && !InterruptGuard::interrupted(); ++i) {
      for (size_t b = 0; b < batch; ++b)
        tokens[b].resize(1), fill(tokens[b]), items[b].tokens = tokens[b];
      if (i == 2) model_->clear_profile();
      const double start = now_seconds();
      model_->forward(items, logits_);
      if (i >= 2)
        times.push_back(now_seconds() - start);  // the first two find buffers of another size
    }
    if (InterruptGuard::interrupted()) times.clear();
    return summarize(std::move(times));
  }

  // Where the time since clear_profile went, in milliseconds per step.
  Json profile(size_t steps) const {
    Json j = Json::object();
    for (size_t i = 0; i < static_cast<size_t>(Phase::kCount); ++i)
      j.set(std::string(name_of(static_cast<Phase>(i))),
            rounded(static_cast<double>(model_->profile()[i]) * 1e-6 /
                        static_cast<double>(std::max<size_t>(1, steps)),
                    4));
    return j;
  }

  // Packed weights that a step of `batch` tokens reads when routing is uniform: k of E experts per
  // token, each once.
  double step_bytes(size_t batch) const {
    const auto one = static_cast<double>(model_->weight_bytes_per_token());
    const MoeBlock* block =
        checkpoint_.moe_blocks().empty() ? nullptr : &checkpoint_.moe_blocks()[0];
    if (block == nullptr) return one;
    const auto E = static_cast<double>(block->spec.experts),
               k = static_cast<double>(block->spec.router.top_k);
    const auto embedding = static_cast<double>(model_->embedding_bytes());
    if (k >= E) return one;
    const double unread = std::max(0.0, static_cast<double>(model_->packed_bytes()) - embedding -
                                            one);  // experts one token leaves out
    const double experts = unread / (1 - k / E);
    return one - experts * k / E + experts * (1 - std::pow(1 - k / E, static_cast<double>(batch)));
  }

  const DecoderModel& model() const { return *model_; }
  double load_seconds = 0, load_peak = 0;

 private:
  void fill(std::vector<int32_t>& tokens) {
    for (int32_t& t : tokens) t = static_cast<int32_t>(random_.below(model_->vocab()));
  }
  const BenchOptions& options_;
  const Checkpoint& checkpoint_;
  BenchRandom random_;
  std::unique_ptr<DecoderModel> model_;
  std::vector<float> logits_;
};

void print_people(const Json& j, std::ostream& out) {
  for (const auto& [key, value] : j.members()) {
    if (value.is_object()) {
      fmt::print(out, "{:<24}", key);
      for (const auto& [phase, ms] : value.members())
        fmt::print(out, "{} {:.4g}  ", phase, ms.is_number() ? ms.as_double() : 0.0);
      out << '\n';
    } else {
      fmt::print(out, "{:<24}{}\n", key,
                 value.is_number() ? fmt::format("{:.6g}", value.as_double()) : value.as_string());
    }
  }
}

}  // namespace

int run_bench_model(const BenchOptions& options, std::ostream& out) {
  const InterruptGuard guard;
  BenchMachine machine;
  const size_t threads = options.threads.empty() ? default_thread_count() : thread_list(options)[0];
  if (options.threads.size() > 1)
    fail("bench model takes one number of threads; --threads has {}", options.threads.size());
  for (const size_t n : options.prompts)
    if (n == 0) fail("--prompts holds 0; expected lengths of at least 1");
  for (const size_t b : options.batches)
    if (b == 0) fail("--batches holds 0; expected sizes of at least 1");
  const Checkpoint checkpoint = open_checkpoint(options.folder);
  ThreadPool& pool = machine.pool(threads);
  ModelBench bench(options, checkpoint, pool);
  const double roof = machine.read(threads);
  Json j = Json::object({{"bench", "model"},
                         {"folder", options.folder},
                         {"architecture", checkpoint.config().architecture},
                         {"layers", static_cast<uint64_t>(bench.model().layers())},
                         {"threads", static_cast<uint64_t>(threads)}});
  j.set("load_s", rounded(bench.load_seconds, 4)),
      j.set("load_peak_gib", rounded(bench.load_peak / 0x1p30, 4));
  j.set("packed_gib", rounded(static_cast<double>(bench.model().packed_bytes()) / 0x1p30, 4));
  j.set("roof_gbs", rounded(roof, 4));
  Progress progress("measuring", options.prompts.size() + options.batches.size(), false);
  Json profiles = Json::object();
  for (const size_t n : options.prompts) {
    const Timing t = bench.prefill(n);
    if (t.repetitions == 0) return 130;
    j.set(fmt::format("pp{}_ms", n), rounded(t.median * 1e3, 5)),
        j.set(fmt::format("pp{}_tokens_per_s", n), rounded(static_cast<double>(n) / t.median, 5));
    profiles.set(fmt::format("pp{}", n), bench.profile(1));
    progress.advance(1);
  }
  for (const size_t b : options.batches) {
    const Timing t = bench.decode(b);
    if (t.repetitions == 0) return 130;
    const double bytes = bench.step_bytes(b), gbs = bytes / t.median * 1e-9;
    j.set(fmt::format("tg_b{}_ms", b), rounded(t.median * 1e3, 5)),
        j.set(fmt::format("tg_b{}_tokens_per_s", b), rounded(static_cast<double>(b) / t.median, 5));
    j.set(fmt::format("tg_b{}_bytes_per_step", b), rounded(bytes, 6));
    j.set(fmt::format("tg_b{}_gbs", b), rounded(gbs, 4)),
        j.set(fmt::format("tg_b{}_percent_of_roof", b),
              roof > 0 ? rounded(100 * gbs / roof, 4) : 0.0);
    profiles.set(fmt::format("tg_b{}", b), bench.profile(t.repetitions));
    progress.advance(1);
  }
  j.set("bytes_per_token", bench.model().weight_bytes_per_token());
  if (options.json) {
    j.set("profile_ms", std::move(profiles));
    add_machine(j);
    out << j.dump() << std::endl;
  } else {
    print_people(j, out);
    out << "where the time goes, ms per step\n";
    print_people(profiles, out);
  }
  return 0;
}

}  // namespace moebius
