// SPDX-License-Identifier: Apache-2.0
#include "unit/serve/fake_generator_util.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace moebius::test {

FakeGenerator::FakeGenerator(const Tokenizer& tokenizer, size_t slots, Script script)
    : tokenizer_(tokenizer), slots_(slots), script_(std::move(script)) {}

FakeGenerator::~FakeGenerator() { halt(); }

void FakeGenerator::halt() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void FakeGenerator::start(Sink sink) {
  sink_ = std::move(sink);
  thread_ = std::thread([this] { run(); });
}

uint64_t FakeGenerator::submit(Request request) {
  if (throws) throw std::runtime_error("submit");
  const std::lock_guard lock(mutex_);
  auto job = std::make_unique<Job>(Job{next_++, std::move(request), {}});
  for (size_t i = 0; i < job->request.n; ++i) {
    std::vector<int32_t> tokens;
    if (script_) {
      tokens = script_(job->request, i);
    } else {
      for (size_t k = 0; k < job->request.max_new; ++k)
        tokens.push_back(job->request.prompt[k % job->request.prompt.size()]);
    }
    TextRules rules = job->request.text;
    rules.min_new = static_cast<size_t>(job->request.sampling.min_tokens);
    job->choices.push_back({i, std::move(tokens), {tokenizer_, rules}});
  }
  jobs_.push_back(std::move(job));
  wake_.notify_all();
  return jobs_.back()->id;
}

void FakeGenerator::cancel(uint64_t id) {
  std::this_thread::sleep_for(std::chrono::milliseconds(cancel_ms));
  const std::lock_guard lock(mutex_);
  cancelled += std::erase_if(jobs_, [&](const auto& job) { return job->id == id; });
}

bool FakeGenerator::waiting(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  size_t before = 0;
  for (const auto& job : jobs_) {
    if (job->id == id) return before >= slots_ && job->choices[0].produced == 0;
    before += job->choices.size();
  }
  return false;
}

GeneratorState FakeGenerator::state() const {
  if (throws) throw std::runtime_error("stats");
  const std::lock_guard lock(mutex_);
  GeneratorState s;
  s.slots = slots_;
  size_t sequences = 0;
  for (const auto& job : jobs_) sequences += job->choices.size();
  EngineSnapshot& e = s.engine;
  e.running = std::min(sequences, slots_);
  e.waiting = sequences - e.running;
  e.new_tokens = tokens_made;
  e.kv.blocks_used = e.running;
  s.experts = 2;
  e.expert_rows = {1, 2, 3, busy_rows};
  s.heartbeat_seconds = heartbeat;
  if (heartbeat > 0) s.stage = "pass";
  s.generates = true;
  e.sampling_nanoseconds = 250'000'000;
  s.idle_seconds = 7;
  return s;
}

void FakeGenerator::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait_for(lock, std::chrono::milliseconds(5),
                   [&] { return ending_ || (!jobs_.empty() && !held); });
    if (ending_) return;
    if (held || jobs_.empty()) continue;
    TextStep out;
    step(out.events);
    out.figures.decode_rows = out.figures.batch = out.events.size();
    out.figures.nanoseconds = 1'000'000;
    out.figures.predicted_nanoseconds = 1'000'000;
    out.figures.backend.expert_rows = {1, 0};
    out.last = dead_;
    lock.unlock();
    sink_(std::move(out));
    if (pace_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(pace_us));
    lock.lock();
  }
}

void FakeGenerator::step(std::vector<StepResult>& events) {
  if (dies) {
    dead_ = true;
    jobs_.clear();
    return;
  }
  size_t running = 0;
  for (const auto& job : jobs_)
    for (Choice& c : job->choices)
      if (!c.ended && running < slots_) {
        ++running;
        events.push_back(advance(*job, c));
      }
  most_running = std::max<size_t>(most_running, running);
  std::erase_if(jobs_, [](const auto& job) {
    return std::all_of(job->choices.begin(), job->choices.end(),
                       [](const Choice& c) { return c.ended; });
  });
}

StepResult FakeGenerator::advance(const Job& job, Choice& c) {
  const Request& r = job.request;
  StepResult e;
  e.id = job.id;
  e.index = c.index;
  e.cached_tokens = r.prompt.size() / 2;
  const auto made = [&](int32_t token, int alternatives) {
    TokenChoice t{token, -0.25f, {}, 1};
    for (int k = 0; k < alternatives; ++k)
      t.alternatives.emplace_back(k == 0 ? token : token + k, -0.25f - static_cast<float>(k));
    return t;
  };
  if (r.prompt_logprobs >= 0 && c.index == 0 && c.produced == 0)
    for (size_t i = 1; i < r.prompt.size(); ++i)
      e.prompt_choices.push_back(made(r.prompt[i], r.prompt_logprobs));
  const auto end = [&](Finish reason) {
    c.ended = true;
    e.finish = reason;
    e.text += c.text.finish(reason != Finish::kStop);
    e.parts = c.text.take_events();
    e.reasoning_tokens = c.text.reasoning_tokens();
    return e;
  };
  if (fail_at > 0 && c.produced + 1 == fail_at) {
    e.error = failure;
    return end(Finish::kError);
  }
  if (c.produced >= std::min(r.max_new, c.tokens.size())) return end(Finish::kLength);
  const int32_t token = c.tokens[c.produced++];
  ++tokens_made;
  e.choice = made(token, r.sampling.logprobs);
  const bool stop =
      std::find(r.stop_tokens.begin(), r.stop_tokens.end(), token) != r.stop_tokens.end();
  e.stop_token = stop;
  if (stop) return end(Finish::kStop);
  e.text = c.text.push(token);
  if (c.text.stopped()) {
    e.stop_text = c.text.stop();
    return end(Finish::kStop);
  }
  if (c.produced >= r.max_new) return end(Finish::kLength);
  e.parts = c.text.take_events();
  e.reasoning_tokens = c.text.reasoning_tokens();
  return e;
}

}  // namespace moebius::test
