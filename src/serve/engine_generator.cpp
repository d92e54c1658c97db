// SPDX-License-Identifier: Apache-2.0
#include "serve/engine_generator.h"

#include <fmt/core.h>
#include <pthread.h>

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "model/decoder.h"

namespace moebius {

struct EngineGenerator::Job {
  struct Choice {
    ChoiceText text;
    std::string ready;  // of the step that runs
  };
  std::vector<Choice> choices;
  std::vector<int32_t> stop_tokens;
  size_t open = 0;
  const std::chrono::steady_clock::time_point submitted = std::chrono::steady_clock::now();
  std::atomic<double> queue_seconds{-1};  // below 0: still waiting

  // On some thread of the engine's pool; one choice at a time.
  bool watch(size_t index, int32_t token) {
    Choice& c = choices[index];
    if (std::find(stop_tokens.begin(), stop_tokens.end(), token) != stop_tokens.end()) return true;
    c.ready += c.text.push(token);
    return !c.text.stopped();
  }
};

namespace {

GeneratedToken generated(const TokenChoice& c) {
  return {c.token, c.logprob, c.alternatives, c.rank};
}

EndReason end_reason(Finish finish) {
  switch (finish) {
    case Finish::kNo:
      return EndReason::kNone;
    case Finish::kStopToken:
    case Finish::kStopText:
      return EndReason::kStop;
    case Finish::kLength:
    case Finish::kContext:
      return EndReason::kLength;
    case Finish::kCancelled:
      return EndReason::kCancelled;
    case Finish::kError:
      break;
  }
  return EndReason::kError;
}

SamplingParams sampling_of(const GenerationRequest& r) {
  SamplingParams p;
  p.temperature = r.temperature;
  p.top_k = r.top_k;
  p.top_p = r.top_p;
  p.min_p = r.min_p;
  p.repetition_penalty = r.repetition_penalty;
  p.presence_penalty = r.presence_penalty;
  p.frequency_penalty = r.frequency_penalty;
  p.seed = r.seed;
  p.logprobs = r.logprobs;
  p.min_tokens = static_cast<int>(std::min<size_t>(r.min_new, INT32_MAX));
  for (const auto& [token, bias] : r.logit_bias) p.logit_bias.push_back({token, bias});
  p.allowed_tokens = r.allowed_tokens;
  p.bad_words = r.bad_words;
  return p;
}

StepSummary summary_of(const StepFigures& f, size_t experts) {
  StepSummary s;
  s.prompt_rows = f.prompt_rows;
  s.decode_rows = f.decode_rows;
  s.batch = f.batch;
  s.seconds =
      static_cast<double>(f.nanoseconds + f.sampling_nanoseconds + f.other_nanoseconds) * 1e-9;
  s.predicted_seconds = f.predicted_nanoseconds * 1e-9;
  const auto& rows = f.backend.expert_rows;
  if (experts > 0 && !rows.empty())
    s.experts_active = static_cast<double>(std::count_if(rows.begin(), rows.end(),
                                                         [](uint32_t n) { return n > 0; })) /
                       static_cast<double>(rows.size());
  return s;
}

}  // namespace

EngineGenerator::EngineGenerator(Engine& engine, const Tokenizer& tokenizer,
                                 EngineGeneratorOptions options)
    : engine_(engine), tokenizer_(tokenizer), options_(std::move(options)) {}

EngineGenerator::~EngineGenerator() {
  ending_ = true;
  engine_.wake();
  if (thread_.joinable()) thread_.join();
}

void EngineGenerator::start(Sink sink) {
  sink_ = std::move(sink);
  thread_ = std::thread([this] { run(); });
}

bool EngineGenerator::stop(std::chrono::milliseconds most) {
  ending_ = true;
  engine_.wake();
  const auto until = Clock::now() + most;
  while (!ended_ && thread_.joinable() && Clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return ended_ || !thread_.joinable();
}

uint64_t EngineGenerator::submit(GenerationRequest request) {
  const auto job = std::make_shared<Job>();
  for (size_t i = 0; i < request.choices; ++i)
    job->choices.push_back({choice_text(tokenizer_, request), {}});
  job->open = request.choices;
  job->stop_tokens = request.stop_tokens;
  Request r;
  r.sampling = sampling_of(request);
  r.prompt = std::move(request.prompt);
  r.max_new = request.max_new;
  r.stop_tokens = std::move(request.stop_tokens);
  r.n = request.choices;
  r.prompt_logprobs = request.prompt_logprobs;
  r.priority = request.priority;
  r.client = std::move(request.client);
  r.salt = std::move(request.salt);
  r.admitted = [job] {
    job->queue_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - job->submitted).count();
  };
  r.watch = [job](size_t index, const TokenChoice& c) { return job->watch(index, c.token); };
  const std::lock_guard lock(mutex_);  // a step may bring tokens before add returns
  const uint64_t id = engine_.add(std::move(r));
  jobs_[id] = job;
  return id;
}

void EngineGenerator::cancel(uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.erase(id);
  }
  engine_.cancel(id);
}

bool EngineGenerator::waiting(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto it = jobs_.find(id);
  return it != jobs_.end() && it->second->queue_seconds < 0;
}

void EngineGenerator::run() {
  pthread_setname_np(pthread_self(), "moebius-engine");
  while (!ending_ && !dead_) {
    if (!wait()) continue;
    const auto begin = Clock::now();
    step_began_ = begin.time_since_epoch().count();
    try {
      StepReport r = engine_.step();
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      step_seconds_ = step_seconds_ == 0 ? seconds : 0.9 * step_seconds_ + 0.1 * seconds;
      report(r);
    } catch (const std::exception& e) {
      fmt::print(stderr, "moebius: the engine failed: {}\n", e.what());
      dead_ = true;
      sink_({}, {});
    }
    step_began_ = 0;
  }
  ended_ = true;
}

bool EngineGenerator::wait() {
  {
    const std::lock_guard lock(mutex_);
    idle_since_ = Clock::now();
  }
  const bool work = engine_.wait(std::chrono::hours(1));
  const std::lock_guard lock(mutex_);
  idle_ += Clock::now() - *idle_since_;
  idle_since_.reset();
  return work;
}

void EngineGenerator::report(StepReport& r) {
  if (!r.failure.empty()) fail("a step failed: {}", r.failure);
  std::vector<GenerationEvent> events;
  {
    const std::lock_guard lock(mutex_);
    for (StepResult& result : r.results) {
      const auto it = jobs_.find(result.id);
      if (it == jobs_.end()) continue;  // cancelled
      events.push_back(event_of(*it->second, result));
      if (result.finish != Finish::kNo && --it->second->open == 0) jobs_.erase(it);
    }
  }
  sink_(std::move(events), summary_of(r.figures, options_.experts));
}

GenerationEvent EngineGenerator::event_of(Job& job, StepResult& result) const {
  Job::Choice& choice = job.choices[result.index];
  GenerationEvent e;
  e.id = result.id;
  e.choice = result.index;
  e.cached_tokens = result.cached_tokens;
  e.queue_seconds = std::max(0.0, job.queue_seconds.load());
  e.error = std::move(result.error);
  e.end = end_reason(result.finish);
  e.text = std::exchange(choice.ready, {});
  if (result.choice) e.tokens.push_back(generated(*result.choice));
  for (const TokenChoice& c : result.prompt_choices) e.prompt.push_back(generated(c));
  if (e.end == EndReason::kNone) return e;
  e.text += choice.text.finish();
  if (result.finish == Finish::kStopText) e.stop_string = choice.text.stop();
  if (result.finish == Finish::kStopToken && result.choice &&
      std::find(options_.eos.begin(), options_.eos.end(), result.choice->token) ==
          options_.eos.end())
    e.stop_token = result.choice->token;
  return e;
}

GeneratorStats EngineGenerator::stats() const {
  const EngineSnapshot s = engine_.snapshot();
  GeneratorStats out;
  const int64_t began = step_began_;
  if (began != 0)
    out.heartbeat_seconds =
        std::chrono::duration<double>(Clock::now().time_since_epoch() - Clock::duration(began))
            .count();
  out.step_seconds = step_seconds_;
  out.phase = engine_.stage();
  out.running = s.running;
  out.waiting = s.waiting;
  out.slots = options_.slots;
  out.prompt_tokens = s.prompt_tokens;
  out.cached_tokens = s.cached_tokens;
  out.new_tokens = s.new_tokens;
  out.prefix_queries = s.prefix_queries;
  out.prefix_hits = s.prefix_hits;
  out.preemptions = s.preemptions;
  out.kv_blocks_used = s.kv.blocks_used;
  out.kv_blocks_cached = s.kv.blocks_cached;
  out.kv_blocks_free = s.kv.blocks_free;
  out.kv_budget = s.kv.budget;
  out.weight_bytes = s.weight_bytes;
  out.kv_bytes_read = s.kv_bytes_read;
  out.read_roof = options_.read_roof;
  out.steps = s.steps;
  const auto seconds = [](uint64_t ns) { return static_cast<double>(ns) * 1e-9; };
  for (size_t i = 0; i < s.phases.size(); ++i)
    out.phase_seconds.emplace_back(name_of(static_cast<Phase>(i)), seconds(s.phases[i]));
  out.phase_seconds.emplace_back("sampling", seconds(s.sampling_nanoseconds));
  out.phase_seconds.emplace_back("scheduling", seconds(s.other_nanoseconds));
  {
    const std::lock_guard lock(mutex_);
    const auto idle = idle_ + (idle_since_ ? Clock::now() - *idle_since_ : Clock::duration(0));
    out.phase_seconds.emplace_back("idle", std::chrono::duration<double>(idle).count());
  }
  if (options_.ranks)
    for (RankFigures& f : options_.ranks())
      out.ranks.push_back({std::move(f.phases), f.wait, std::move(f.received)});
  if (options_.experts > 0) {
    out.expert_rows = s.expert_rows;
    out.expert_layers = s.expert_rows.size() / options_.experts;
  }
  out.rank_imbalance = s.last.backend.rank_imbalance;
  out.layers_moved = s.last.backend.layers_moved;
  out.moves_given_up = s.last.backend.moves_given_up;
  return out;
}

}  // namespace moebius
