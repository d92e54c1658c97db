// SPDX-License-Identifier: Apache-2.0
// An engine on a fake backend with a clock that only steps move, and what a request must answer.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "unit/engine/fake_backend.h"

namespace moebius::test {

using AnswerKey = std::pair<uint64_t, size_t>;  // id, index

struct FakeAnswer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<TokenChoice> prompt;
  Finish finish = Finish::kNone;
  std::string error;
  size_t cached = 0;

  void take(const StepResult& s) {
    if (s.choice) {
      tokens.push_back(s.choice->token);
      logprobs.push_back(s.choice->logprob);
    }
    prompt.insert(prompt.end(), s.prompt_choices.begin(), s.prompt_choices.end());
    finish = s.finish;
    error = s.error;
    cached = s.cached_tokens;
  }
};

using UnderWay = std::map<uint64_t, size_t>;  // id: place in the list of requests

// The answers of all requests by their places in the list, with so many at once in the engine.
// `between` is called after each step.
inline std::map<AnswerKey, FakeAnswer> answers_of(
    Engine& engine, const std::vector<Request>& requests, size_t at_once = SIZE_MAX,
    const std::function<void(const UnderWay&)>& between = nullptr) {
  std::map<AnswerKey, FakeAnswer> out;
  UnderWay index;
  for (size_t added = 0; added < requests.size() || !engine.idle();) {
    for (; added < requests.size() && index.size() < at_once; ++added)
      index[engine.add(requests[added])] = added;
    const StepReport report = engine.step();
    if (!report.failure.empty()) throw Error("a step failed: " + report.failure);
    for (const StepResult& r : report.results) out[{index.at(r.id), r.index}].take(r);
    if (between) between(index);
    std::erase_if(index, [&](const auto& entry) {
      for (size_t i = 0; i < requests[entry.second].n; ++i)
        if (out[{entry.second, i}].finish == Finish::kNone) return false;
      return true;
    });
  }
  return out;
}

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
    if (a.finish != Finish::kNone) ++results_after_the_end;
    a.take(s);
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
        out.finish = Finish::kStop;
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
