// SPDX-License-Identifier: Apache-2.0
// Makes sequences of requests, and runs steps: forward, sample, commit. Everything that can fail for
// all sequences comes before the first sampler draws; afterwards only single sequences fail, and
// Scheduler::commit() cannot.
#include "engine/engine.h"

#include <algorithm>
#include <ranges>

#include "base/error.h"
#include "base/out_of_memory.h"
#include "engine/kv_archive.h"
#include "engine/scheduler.h"
#include "runtime/memory.h"
#include "runtime/parallel.h"

namespace moebius {
namespace {

uint64_t steady_nanoseconds() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

EngineOptions with_defaults(Backend& backend, EngineOptions o) {
  if (o.context == 0) o.context = kUsualContext;
  if (o.parallel == 0) fail("an engine that runs 0 sequences at once does nothing; expected 1");
  if (!o.clock) o.clock = steady_nanoseconds;
  const auto kinds = backend.kv_kinds();
  const uint64_t row = kv_bytes_of(kinds, 1);
  if (o.kv_bytes == 0) {
    o.kv_bytes = kv_bytes_wanted(backend, o.parallel, o.context);
    const uint64_t left = backend.memory_left(), here = available_memory_bytes(),
                   have = left > 0 && here > 0 ? std::min(left, here) : std::max(left, here);
    if (have > 0) o.kv_bytes = std::min(o.kv_bytes, have / 2);
  }
  o.drafts = std::min(o.drafts, kMostDrafts);
  if (o.backend_drafts && !backend.drafts())
    fail("drafts of the model's own need its layer for multi-token prediction, on one device");
  if (backend.keys_depend_on_length() && backend.keys_change_beyond() == SIZE_MAX)
    o.drafts = 0;  // with dynamic scaling, keys follow the length of each step
  if (o.kv_bytes < row)
    fail("{} bytes for keys and values hold not even the {} bytes of {} tokens", o.kv_bytes, row,
         kBlockTokens);
  return o;
}

size_t longest_within(Backend& backend, size_t context, uint64_t bytes) {
  const auto longer = std::views::iota(size_t{2}, context + 1);
  const auto fits = [&](size_t n) { return kv_bytes_of(backend.kv_kinds(), n) <= bytes; };
  return 1 + static_cast<size_t>(std::ranges::partition_point(longer, fits) - longer.begin());
}

// Adds the figures of a step to totals.
void count(EngineSnapshot& t, const StepFigures& f) noexcept {
  ++t.steps;
  t.step_nanoseconds += f.nanoseconds;
  t.sampling_nanoseconds += f.sampling_nanoseconds;
  t.other_nanoseconds += f.other_nanoseconds;
  for (size_t i = 0; i < t.phases.size(); ++i) t.phases[i] += f.backend.phases[i];
  t.weight_bytes += f.backend.weight_bytes;
  t.kv_bytes_read += f.backend.kv_bytes;
  try {
    t.expert_rows.resize(std::max(t.expert_rows.size(), f.backend.expert_rows.size()));
    for (size_t i = 0; i < f.backend.expert_rows.size(); ++i)
      t.expert_rows[i] += f.backend.expert_rows[i];
    t.last = f;
  } catch (const std::exception&) {
    // No memory for counts: they lack this step.
  }
}

}  // namespace

// Counts an additional unfinished block for each: the last turn's block is kept while the next turn
// goes on from it.
uint64_t kv_bytes_wanted(const Backend& backend, size_t parallel, size_t context) {
  const auto kinds = backend.kv_kinds();
  return parallel * (kv_bytes_of(kinds, context) + kv_bytes_of(kinds, 1));
}

StepResult failed_result(uint64_t id, size_t index, std::string why) {
  StepResult r;
  r.id = id;
  r.index = index;
  r.finish = Finish::kError;
  r.error = std::move(why);
  return r;
}

Engine::Engine(Backend& backend, const EngineOptions& options)
    : options_(with_defaults(backend, options)),
      backend_(backend),
      context_(options_.context),
      longest_(longest_within(backend, context_, options_.kv_bytes)),
      vocab_(options_.vocab == 0 ? backend.vocab() : std::min(options_.vocab, backend.vocab())),
      kv_(backend, {options_.kv_bytes, options_.parallel, UINT64_MAX, options_.freed,
                    backend.keys_depend_on_length() ? nullptr : options_.disk, options_.fingerprint,
                    options_.pool}),
      cost_(options_.cost),
      queue_(std::make_unique<RequestQueue>()),
      drafter_(std::make_unique<Drafter>(parts())),
      scheduler_(std::make_unique<Scheduler>(parts(), *queue_, *drafter_)) {
  publish();
}

EngineParts Engine::parts() { return {options_, backend_, kv_, cost_, totals_}; }

Engine::~Engine() {
  try {
    for (const auto& step : pending_steps_) backend_.collect(step->ticket, output_);
  } catch (const std::exception&) {
    // The failure was reported already.
  }
}

size_t Engine::sequences() const {
  const uint64_t one = std::max<uint64_t>(1, kv_bytes_of(backend_.kv_kinds(), longest_));
  return std::clamp<size_t>(kv_bytes() / one, 1, options_.parallel);
}

void check_prompt(std::span<const int32_t> prompt, size_t context, size_t vocab,
                  const char* context_name) {
  const size_t n = prompt.size();
  if (n == 0) fail("the prompt is empty: there is no token to start from");
  if (n >= context)
    fail("the prompt has {} tokens, but the context holds {}; shorten it or raise {}", n, context,
         context_name);
  for (const int32_t t : prompt)
    if (t < 0 || static_cast<size_t>(t) >= vocab)
      fail("the prompt holds token {}, which is not in the vocabulary of {} tokens", t, vocab);
}

uint64_t Engine::add(Request request) {
  const size_t n = request.prompt.size(), answers = request.n;
  check_prompt(request.prompt, context_, backend_.vocab(), options_.context_name);
  if (n >= longest_)
    fail(
        "the prompt has {} tokens, but the {} bytes for keys and values hold {}; shorten it or "
        "raise {}",
        n, kv_bytes(), longest_, options_.kv_name);
  if (answers == 0 || answers > options_.parallel)
    fail("{} answers are asked for; expected 1 to {}, what runs at once", answers,
         options_.parallel);
  for (const int32_t t : request.prediction)
    if (t < 0 || static_cast<size_t>(t) >= backend_.vocab())
      fail("the prediction holds token {}, which is not in the vocabulary of {} tokens", t,
           backend_.vocab());
  check(request.sampling, backend_.vocab());
  const size_t max_new = std::min(request.max_new, longest_ - n);
  const Finish limit = max_new < request.max_new ? Finish::kContext : Finish::kLength;
  const auto shared = std::make_shared<const Request>(std::move(request));
  Sequences made;
  for (size_t i = 0; i < answers; ++i) {
    made.push_back(std::make_unique<Sequence>(0, i, shared));
    made[i]->max_new = max_new;
    made[i]->limit = limit;
    if (i > 0) made[0]->followers.push_back(made[i].get());
  }
  return queue_->add(std::move(made));
}

void Engine::cancel(uint64_t id) noexcept { queue_->cancel(id); }
bool Engine::idle() const { return queue_->idle(); }
bool Engine::wait(std::chrono::nanoseconds most) { return queue_->wait(most); }
void Engine::wake() { queue_->wake(); }

size_t Engine::prompt_left() const {
  return moebius::prompt_left(scheduler_->sequences()) + queue_->prompt_left();
}

// Submits the next step. Returns false if there is nothing to do, or no memory for it before a
// batch is back.
bool Engine::submit_next() {
  scheduler_->plan(!pending_steps_.empty());
  auto step = std::make_unique<StepBatch>();
  for (const auto& s : scheduler_->sequences())
    if (s->running() && s->piece > 0) step->add(*s, vocab_);
  if (step->items.empty()) return false;
  step->figures.batch = step->items.size();
  if (cost_.known())
    step->figures.predicted_nanoseconds = cost_.predict(step->shape) + drafter_->predict(*step);
  step->start = options_.clock();
  pending_steps_.push_back(std::move(step));
  StepBatch& last = *pending_steps_.back();
  try {
    last.ticket = backend_.submit(last.items);
  } catch (const ItemError& e) {
    Sequence& s = *last.parts.at(e.item()).sequence;
    s.error = words_of(e);
    s.blamed = true;  // it ends with the next step
    pending_steps_.pop_back();
    throw;
  } catch (...) {
    pending_steps_.pop_back();
    throw;
  }
  for (const StepBatch::Part& part : last.parts) {
    ++part.sequence->steps_under_way;
    part.sequence->ahead += part.piece;
    part.sequence->piece = 0;
  }
  return true;
}

void Engine::collect(StepReport& report) {
  backend_.collect(pending_steps_.front()->ticket, output_);
  collected_ = std::move(pending_steps_.front());
  pending_steps_.pop_front();
  StepFigures& f = collected_->figures;
  const uint64_t time = options_.clock();
  f.nanoseconds = time - std::max(collected_->start, last_landing_);
  last_landing_ = time;
  const uint64_t drafting = std::min(output_.stats.draft_nanoseconds, f.nanoseconds);
  cost_.observe(collected_->shape, f.nanoseconds - drafting, output_.stats.phases);
  drafter_->observe(*collected_, drafting);
  Drafter::take(*collected_, output_.drafts);
  std::swap(f.backend, output_.stats);
  report.figures = std::move(f);
  collected_->give_logits(output_, backend_.vocab());
  size_t places = report.results.size();
  for (const SampleTask& t : collected_->tasks) places += 2 + t.sequence->drafts();
  report.results.reserve(places);
}

void Engine::sample(StepBatch& step, StepReport& report) {
  if (step.tasks.empty()) return;
  const uint64_t start = options_.clock();
  parallel_for(options_.pool, step.tasks.size(), [&](size_t i) {
    step.tasks[i].sequence->sample(step.tasks[i], backend_.vocab(), vocab_);
  });
  report.figures.sampling_nanoseconds = options_.clock() - start;
}

StepReport Engine::step() {
  StepReport report;
  const uint64_t start = options_.clock();
  stage_ = "planning";
  bool landing = false, blamed = false;
  collected_ = nullptr;
  try {
    scheduler_->take_new(report);
    scheduler_->end_stopped(report);
    kv_.tidy();
    scheduler_->admit();
    while (pending_steps_.size() < backend_.batches_in_flight() && submit_next()) {
    }
    landing = true;
    stage_ = "pass";
    if (!pending_steps_.empty()) collect(report);
  } catch (const ItemError&) {
    blamed = true;
  } catch (const std::exception& e) {
    report.failure = words_of(e);
    report.out_of_memory = is_out_of_memory(e);
  }
  if (blamed || !report.failure.empty()) {
    // A batch that could not be collected took those behind it along.
    collected_ = nullptr;
    if (landing) pending_steps_.clear();
    scheduler_->roll_back(landing);
    report.lost = backend_.lost();
    ++totals_.failed_steps;
  } else if (collected_ != nullptr) {
    stage_ = "sampling";
    sample(*collected_, report);
    stage_ = "commit";
    scheduler_->commit(*collected_, report);
  } else {
    scheduler_->forget_ended();
  }
  const StepFigures& f = report.figures;
  const uint64_t whole = options_.clock() - start, known = f.nanoseconds + f.sampling_nanoseconds;
  report.figures.other_nanoseconds = whole > known ? whole - known : 0;
  count(totals_, f);
  publish();
  stage_ = "idle";
  return report;
}

void Engine::publish() noexcept {
  EngineSnapshot& t = totals_;
  t.running = scheduler_->running();
  t.waiting = scheduler_->sequences().size() - t.running;
  t.evictions = kv_.tree().evictions();
  t.kv = kv_.figures();
  if (kv_.archive() != nullptr) t.disk = kv_.archive()->disk().figures();
  const std::lock_guard lock(snapshot_mutex_);
  try {
    published_ = t;
  } catch (const std::exception&) {
    // The lists could not grow: readers see the step before.
  }
}

EngineSnapshot Engine::snapshot() const {
  const std::lock_guard lock(snapshot_mutex_);
  return published_;
}

void Engine::calibrate() {
  BlockTables tables = kv_.scratch();
  if (tables.empty()) return;
  std::vector<int32_t> tokens(kBlockTokens);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>(i * 7919 % backend_.vocab());
  try {
    for (const size_t rows : {size_t{1}, size_t{8}, size_t{32}, size_t{128}})
      for (const bool warm : {false, true}) {
        const bool all = rows <= 32;
        const BatchItem item{&tables, 0, std::span(tokens).first(rows),
                             all ? LogitsOf::kAll : LogitsOf::kLast};
        const uint64_t start = options_.clock();
        backend_.collect(backend_.submit({&item, 1}), output_);
        StepShape shape;
        shape.add(0, rows, all ? rows : 1);
        if (warm) cost_.measure(shape, options_.clock() - start, output_.stats.phases);
      }
    if (options_.backend_drafts) {
      StepBatch step;
      step.items.push_back({&tables, 0, std::span(tokens).first(1), LogitsOf::kAll, 0, 1});
      backend_.collect(backend_.submit(step.items), output_);
      drafter_->observe(step, output_.stats.draft_nanoseconds);
    }
  } catch (...) {
    kv_.give_back(tables);
    throw;
  }
  kv_.give_back(tables);
}

void Engine::commit_memory() { kv_.commit(context_); }

}  // namespace moebius
