// SPDX-License-Identifier: Apache-2.0
// Measures sampling: a row of logits per sequence to tokens, as in a step of the engine, in
// microseconds per token.
#include <fmt/format.h>
#include <fmt/ostream.h>

#include <ostream>

#include "apps/cli/interrupt.h"
#include "apps/cli/layout.h"
#include "base/random.h"
#include "bench/bench_report.h"
#include "nn/sampler.h"

namespace moebius {
namespace {

struct SamplerCase {
  const char* name;
  float temperature = 0;
  int top_k = 0;
  float top_p = 1, min_p = 0;
  int logprobs = -1;

  SamplingParams params() const {
    SamplingParams p;
    p.temperature = temperature;
    p.top_k = top_k;
    p.top_p = top_p;
    p.min_p = min_p;
    p.logprobs = logprobs;
    return p;
  }
};
constexpr SamplerCase kSamplerCases[] = {
    {"greedy"},
    {"temperature 0.7, top-k 20, top-p 0.8", 0.7f, 20, 0.8f},
    {"temperature 1", 1},
    {"temperature 1, top-p 0.9", 1, 0, 0.9f},
    {"temperature 1, min-p 0.05", 1, 0, 1, 0.05f},
    {"greedy, 20 log-probabilities", 0, 0, 1, 0, 20},
};

// Returns sums of twelve uniform numbers, scaled by three: about the spread of a model's logits.
std::vector<float> random_logits(size_t count) {
  SplitMix64 random(1);
  std::vector<float> logits(count);
  for (float& v : logits) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += random.uniform();
    v = static_cast<float>(3 * sum);
  }
  return logits;
}

}  // namespace

int run_bench_sampler(const BenchOptions& options, std::ostream& out) {
  interrupt_is_noted();
  BenchMachine machine(options.seconds);
  for (const size_t batch : options.batches) {
    const std::vector<float> logits = random_logits(batch * options.vocab);
    for (const size_t threads : thread_list(options))
      for (const SamplerCase& c : kSamplerCases) {
        std::vector<Sampler> samplers(batch, Sampler(c.params()));
        const Timing time = summarize(repeat(
            options.seconds, [] {},
            [&] {
              machine.pool(threads).parallel_for(batch, [&](size_t i) {
                samplers[i].next({logits.data() + i * options.vocab, options.vocab}, options.vocab);
              });
            }));
        if (interrupt_seen()) return 130;
        const double us = time.median * 1e6 / static_cast<double>(batch);
        if (!options.json) {
          fmt::print(out, "{:<37}{:>4} rows{:>3} thread{} {:>8.1f} us per token\n", c.name, batch,
                     threads, threads == 1 ? " " : "s", us);
          out.flush();
          continue;
        }
        Json line = Json::object({{"bench", "sampler"}, {"sampling", c.name}});
        line.set("vocab", options.vocab);
        line.set("batch", batch);
        line.set("threads", threads);
        line.set("us_per_token", rounded(us, 5)), line.set("ms", rounded(time.median * 1e3, 5));
        line.set("spread_percent", rounded(time.spread * 100, 3));
        line.set("repetitions", time.repetitions);
        print_json(line, out);
      }
  }
  return 0;
}

}  // namespace moebius
