// SPDX-License-Identifier: Apache-2.0
#include "serve/engine_generator.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>

#include "base/out_of_memory.h"
#include "model/run/decoder.h"

namespace moebius {

namespace {

GeneratedToken generated(const TokenChoice& c) {
  return {c.token, c.logprob, c.alternatives, c.rank};
}

constexpr EndReason kEnds[] = {EndReason::kNone,   EndReason::kStop,   EndReason::kStop,
                               EndReason::kLength, EndReason::kLength, EndReason::kCancelled,
                               EndReason::kError};  // in the order of Finish

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

EngineGenerator::EngineGenerator(TextEngine& engine, EngineGeneratorOptions options)
    : engine_(engine), options_(std::move(options)) {}

EngineGenerator::~EngineGenerator() {
  ending_ = true;
  engine_.engine().wake();
  if (thread_.joinable()) thread_.join();
}

void EngineGenerator::start(Sink sink) {
  sink_ = std::move(sink);
  thread_ = std::thread([this] { run(); });
}

bool EngineGenerator::stop(std::chrono::milliseconds most) {
  ending_ = true;
  engine_.engine().wake();
  const auto until = Clock::now() + most;
  while (!ended_ && thread_.joinable() && Clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return ended_ || !thread_.joinable();
}

uint64_t EngineGenerator::submit(GenerationRequest request) {
  Request r;
  r.sampling = sampling_of(request);
  r.prompt = std::move(request.prompt);
  r.max_new = request.max_new;
  r.stop_tokens = std::move(request.stop_tokens);
  r.n = request.choices;
  r.prompt_logprobs = request.prompt_logprobs;
  r.priority = request.priority;
  r.drafts = request.drafts;
  r.prediction = std::move(request.prediction);
  r.client = std::move(request.client);
  r.salt = std::move(request.salt);
  TextRules rules;
  rules.stops = std::move(request.stops);
  rules.include_stop = request.include_stop;
  rules.skip_special = request.skip_special;
  rules.answer = std::move(request.answer);
  rules.grammar = std::move(request.grammar);
  rules.thinking_budget = request.thinking_budget;
  rules.end_tokens = options_.eos;
  return engine_.add(std::move(r), std::move(rules));
}

void EngineGenerator::run() {
  pthread_setname_np(pthread_self(), "moebius-engine");
  while (!ending_ && !dead()) {
    if (!wait()) continue;
    const StepTurns::Turn turn(options_.turns.get());
    const auto begin = Clock::now();
    step_began_ = begin.time_since_epoch().count();
    try {
      const TextStep step = engine_.step();
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      step_seconds_ = step_seconds_ == 0 ? seconds : 0.9 * step_seconds_ + 0.1 * seconds;
      if (!step.failure.empty()) say(step.failure.c_str());
      report(step);
    } catch (const std::bad_alloc& e) {  // nothing was reported; the next step tries again
      say(e.what());
    } catch (const std::exception& e) {
      say(e.what());
      dead_ = true;
      StepSummary last;
      last.last = true;
      sink_({}, last);
    }
    step_began_ = 0;
  }
  ended_ = true;
}

// Writes to stderr as well, because no client may be there to read it.
void EngineGenerator::say(const char* failure) const noexcept {
  std::fprintf(stderr, "moebius: a step failed: %s%s\n", failure,
               engine_.dead() ? "; the engine gives up" : "");
}

bool EngineGenerator::wait() {
  {
    const std::lock_guard lock(mutex_);
    idle_since_ = Clock::now();
  }
  const bool work = engine_.engine().wait(std::chrono::hours(1));
  const std::lock_guard lock(mutex_);
  idle_ += Clock::now() - *idle_since_;
  idle_since_.reset();
  return work;
}

void EngineGenerator::report(const TextStep& step) {
  std::vector<GenerationEvent> events = patiently([&] {
    std::vector<GenerationEvent> all;
    all.reserve(step.events.size());
    for (const TextEvent& e : step.events) all.push_back(event_of(e));
    return all;
  });
  StepSummary summary = summary_of(step.figures, options_.experts);
  summary.last = dead_ = engine_.dead();
  sink_(std::move(events), summary);
}

GenerationEvent EngineGenerator::event_of(const TextEvent& t) const {
  GenerationEvent e;
  e.id = t.id;
  e.choice = t.index;
  e.cached_tokens = t.cached_tokens;
  e.queue_seconds = t.queue_seconds;
  e.drafts_right = t.drafts_right;
  e.drafts_wrong = t.drafts_wrong;
  e.error = t.error;
  e.end = kEnds[static_cast<size_t>(t.finish)];
  e.text = t.text;
  e.parts = t.parts;
  e.reasoning_tokens = t.reasoning_tokens;
  if (t.choice) e.tokens.push_back(generated(*t.choice));
  for (const TokenChoice& c : t.prompt_choices) e.prompt.push_back(generated(c));
  if (t.finish == Finish::kStopText && !t.stop_text.empty()) e.stop_string = t.stop_text;
  if (t.finish == Finish::kStopToken && t.choice &&
      std::find(options_.eos.begin(), options_.eos.end(), t.choice->token) == options_.eos.end())
    e.stop_token = t.choice->token;
  return e;
}

GeneratorStats EngineGenerator::stats() const {
  const EngineSnapshot s = engine_.engine().snapshot();
  GeneratorStats out;
  const int64_t began = step_began_;
  if (began != 0)
    out.heartbeat_seconds =
        std::chrono::duration<double>(Clock::now().time_since_epoch() - Clock::duration(began))
            .count();
  out.step_seconds = step_seconds_;
  out.phase = engine_.engine().stage();
  out.running = s.running;
  out.waiting = s.waiting;
  out.slots = options_.slots;
  out.prompt_tokens = s.prompt_tokens;
  out.cached_tokens = s.cached_tokens;
  out.new_tokens = s.new_tokens;
  out.prefix_queries = s.prefix_queries;
  out.prefix_hits = s.prefix_hits;
  out.preemptions = s.preemptions;
  out.drafts = s.drafts;
  out.drafted_tokens = s.drafted_tokens;
  out.drafts_right.assign(s.drafts_right.begin(), s.drafts_right.end());
  out.kv_blocks_used = s.kv.blocks_used;
  out.kv_blocks_cached = s.kv.blocks_cached;
  out.kv_blocks_free = s.kv.blocks_free;
  out.kv_budget = s.kv.budget;
  out.disk = {options_.disk,     s.disk.files,      s.disk.bytes,         s.disk_tokens,
              s.disk.read_files, s.disk.read_bytes, s.disk.written_bytes, s.disk.dropped,
              s.disk.evicted,    s.disk.damaged};
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
