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
  SamplingParams params;
};
std::vector<SamplerCase> sampler_cases() {
  std::vector<SamplerCase> cases(6);
  cases[0].name = "greedy";
  cases[1].name = "temperature 0.7, top-k 20, top-p 0.8";
  cases[1].params.temperature = 0.7f;
  cases[1].params.top_k = 20;
  cases[1].params.top_p = 0.8f;
  cases[2].name = "temperature 1";
  cases[2].params.temperature = 1;
  cases[3].name = "temperature 1, top-p 0.9";
  cases[3].params.temperature = 1;
  cases[3].params.top_p = 0.9f;
  cases[4].name = "temperature 1, min-p 0.05";
  cases[4].params.temperature = 1;
  cases[4].params.min_p = 0.05f;
  cases[5].name = "greedy, 20 log-probabilities";
  cases[5].params.logprobs = 20;
  return cases;
}

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
      for (const SamplerCase& c : sampler_cases()) {
        std::vector<Sampler> samplers(batch, Sampler(c.params));
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
        line.set("vocab", static_cast<uint64_t>(options.vocab));
        line.set("batch", static_cast<uint64_t>(batch));
        line.set("threads", static_cast<uint64_t>(threads));
        line.set("us_per_token", rounded(us, 5)), line.set("ms", rounded(time.median * 1e3, 5));
        line.set("spread_percent", rounded(time.spread * 100, 3));
        line.set("repetitions", static_cast<uint64_t>(time.repetitions));
        add_machine(line);
        out << line.dump() << std::endl;
      }
  }
  return 0;
}

}  // namespace moebius
