// SPDX-License-Identifier: Apache-2.0
// An engine on a fake backend with a clock that only steps move, and what a request must answer.
#pragma once
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "model/engine/engine.h"
#include "unit/fake_backend.h"

namespace moebius::test {

using AnswerKey = std::pair<uint64_t, size_t>;  // id, index

struct FakeAnswer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<TokenChoice> prompt;
  Finish finish = Finish::kNo;
  std::string error;
  size_t cached = 0;
};

struct FakeEngine {
  explicit FakeEngine(std::vector<KvKind> kinds, EngineOptions options = {})
      : backend(std::move(kinds)) {
    options.clock = [this] { return backend.now; };
    options.freed = [this](size_t k, BlockId id) { backend.freed(k, id); };
    engine = std::make_unique<Engine>(backend, options);
  }

  StepReport step() {
    StepReport r = engine->step();
    for (StepResult& s : r.results) take(s);
    return r;
  }
  void take(const StepResult& s) {
    FakeAnswer& a = answers[{s.id, s.index}];
    if (a.finish != Finish::kNo) ++results_after_the_end;
    if (s.choice) {
      a.tokens.push_back(s.choice->token);
      a.logprobs.push_back(s.choice->logprob);
    }
    a.prompt.insert(a.prompt.end(), s.prompt_choices.begin(), s.prompt_choices.end());
    a.finish = s.finish;
    a.error = s.error;
    a.cached = s.cached_tokens;
  }
  void run() {
    for (size_t steps = 0; !engine->idle() && steps < 1000000; ++steps) {
      const StepReport r = step();
      if (!r.failure.empty()) throw Error("a step failed: " + r.failure);
    }
  }
  const FakeAnswer& of(uint64_t id, size_t index = 0) { return answers[{id, index}]; }

  // What choice `index` of the request answers, computed without blocks, batches and caches.
  FakeAnswer alone(const Request& r, size_t index = 0) const {
    FakeAnswer out;
    SamplingParams p = r.sampling;
    p.seed = seed_of_choice(p.seed, index);
    Sampler sampler(p);
    sampler.see_prompt(r.prompt);
    std::vector<int32_t> tokens = r.prompt;
    const size_t most = std::min(r.max_new, engine->longest() - r.prompt.size());
    while (out.tokens.size() < most) {
      TokenChoice c = sampler.next(backend.row(tokens), backend.vocab());
      out.tokens.push_back(c.token);
      out.logprobs.push_back(c.logprob);
      tokens.push_back(c.token);
      if (std::find(r.stop_tokens.begin(), r.stop_tokens.end(), c.token) != r.stop_tokens.end() &&
          !r.ignore_stop) {
        out.finish = Finish::kStopToken;
        return out;
      }
    }
    out.finish = most < r.max_new ? Finish::kContext : Finish::kLength;
    return out;
  }

  // Everything is as at the start once the cache is forgotten.
  bool clean() {
    engine->clear_cache();
    return engine->kv().blocks().used_bytes() == 0 && engine->kv().tree().nodes() == 0 &&
           backend.violations.empty() && results_after_the_end == 0;
  }

  FakeBackend backend;
  std::unique_ptr<Engine> engine;
  std::map<AnswerKey, FakeAnswer> answers;
  size_t results_after_the_end = 0;
};

inline Request fake_request(size_t length, uint64_t seed, size_t max_new, size_t vocab = 60) {
  Request r;
  SplitMix64 random(seed);
  for (size_t i = 0; i < length; ++i) r.prompt.push_back(static_cast<int32_t>(random.below(vocab)));
  r.max_new = max_new;
  r.sampling.temperature = 0.8f;
  r.sampling.seed = seed;
  return r;
}

}  // namespace moebius::test
