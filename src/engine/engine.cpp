// SPDX-License-Identifier: Apache-2.0
// Takes requests and returns reports: the queue between threads, the order of a step, and
// statistics. engine_admission.cpp decides who runs, and engine_step.cpp executes a step.
#include "engine/engine.h"

#include <algorithm>

#include "base/error.h"
#include "base/out_of_memory.h"
#include "base/random.h"
#include "engine/engine_sequence.h"
#include "engine/kv_archive.h"
#include "runtime/memory.h"

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
  if (o.kv_bytes < row)
    fail("{} bytes for keys and values hold not even the {} bytes of {} tokens", o.kv_bytes, row,
         kBlockTokens);
  return o;
}

size_t longest_within(Backend& backend, size_t context, uint64_t bytes) {
  size_t low = 1, high = context;
  while (low < high) {
    const size_t middle = low + (high - low + 1) / 2;
    if (kv_bytes_of(backend.kv_kinds(), middle) <= bytes)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

}  // namespace

// Counts an additional unfinished block for each: the last turn's block is kept while the next turn
// goes on from it.
uint64_t kv_bytes_wanted(const Backend& backend, size_t parallel, size_t context) {
  const auto kinds = backend.kv_kinds();
  return parallel * (kv_bytes_of(kinds, context) + kv_bytes_of(kinds, 1));
}

uint64_t seed_of_choice(uint64_t seed, size_t index) {
  return index == 0 ? seed : SplitMix64(SplitMix64(seed).next() + index).next();
}

Engine::Engine(Backend& backend, const EngineOptions& options)
    : options_(with_defaults(backend, options)),
      backend_(backend),
      context_(options_.context),
      longest_(longest_within(backend, context_, options_.kv_bytes)),
      vocab_(options_.vocab == 0 ? backend.vocab() : std::min(options_.vocab, backend.vocab())),
      kv_(backend, {options_.kv_bytes, options_.parallel, options_.hash_seed, UINT64_MAX,
                    options_.freed, backend.keys_depend_on_length() ? nullptr : options_.disk,
                    options_.fingerprint, options_.pool}) {
  cost_ = options_.cost;
  options_.drafts = std::min(options_.drafts, kMostDrafts);
  if (options_.backend_drafts && !backend.drafts())
    fail("drafts of the model's own need its layer for multi-token prediction, on one device");
  if (backend.keys_depend_on_length() && backend.keys_change_beyond() == SIZE_MAX)
    options_.drafts = 0;  // with dynamic scaling, keys follow the length of each step
  for (const KvKind& kind : backend.kv_kinds()) cuttable_ = cuttable_ && kind.cuttable;
  publish();
}

Engine::~Engine() {
  try {
    for (const auto& f : pending_steps_) backend_.collect(f->ticket, output_);
  } catch (const std::exception&) {
    // The failure was reported already.
  }
  for (const auto& s : sequences_) kv_.clear(s->kv);
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
  const std::lock_guard lock(inbox_mutex_);
  inbox_.reserve(inbox_.size() + answers);
  // Memory is reserved here so that cancel() cannot fail.
  cancels_.reserve(cancels_.size() + live_ + answers);
  for (auto& s : made) {
    s->id = next_id_;
    inbox_.push_back(std::move(s));
  }
  live_ += answers;
  inbox_filled_.notify_one();
  return next_id_++;
}

void Engine::cancel(uint64_t id) noexcept {
  const std::lock_guard lock(inbox_mutex_);
  const bool known = std::find(cancels_.begin(), cancels_.end(), id) != cancels_.end();
  if (!known && cancels_.size() < cancels_.capacity()) cancels_.push_back(id);
}

bool Engine::wait(std::chrono::nanoseconds most) {
  std::unique_lock lock(inbox_mutex_);
  inbox_filled_.wait_for(lock, most, [&] { return woken_ || !idle(); });
  woken_ = false;
  return !idle();
}

void Engine::wake() {
  const std::lock_guard lock(inbox_mutex_);
  woken_ = true;
  inbox_filled_.notify_one();
}

size_t Engine::prompt_left() const {
  size_t left = 0;
  const auto count = [&](const Sequences& list) {
    for (const auto& s : list)
      if (s->index == 0 && s->produced == 0 && s->state != Sequence::State::kEnded)
        left += s->prompt() - std::min(s->prompt(), s->kv.length);
  };
  count(sequences_);
  const std::lock_guard lock(inbox_mutex_);
  count(inbox_);
  return left;
}

// Every sequence has one result in a step, and one more for each draft: room for them is reserved
// before anything is committed.
void Engine::take_inbox(StepReport& report) {
  const std::lock_guard lock(inbox_mutex_);
  sequences_.reserve(sequences_.size() + inbox_.size());
  report.results.reserve(sequences_.size() + inbox_.size());
  // New or cancelled requests let admission look again.
  if (!inbox_.empty() || !cancels_.empty()) stopped_at_running_ = SIZE_MAX;
  size_t taken = 0;
  const auto drop_taken = [&] {
    inbox_.erase(inbox_.begin(), inbox_.begin() + static_cast<std::ptrdiff_t>(taken));
  };
  try {
    for (; taken < inbox_.size(); ++taken) {
      Sequence& s = *inbox_[taken];
      // A new client starts at the least counter, so that it does not catch up on time before it
      // came.
      uint64_t least = clients_.empty() ? 0 : UINT64_MAX;
      for (const auto& [name, c] : clients_) least = std::min(least, c.tokens);
      s.client = &clients_.try_emplace(s.request->client, Client{least, 0}).first->second;
      ++s.client->sequences;
      s.waiting_since = now();
      sequences_.push_back(std::move(inbox_[taken]));
    }
  } catch (...) {
    drop_taken();
    throw;
  }
  drop_taken();
  for (const uint64_t id : cancels_)
    for (const auto& s : sequences_) s->cancelled = s->cancelled || s->id == id;
  cancels_.clear();
}

void Engine::report_end(Sequence& s, Finish finish, std::string error,
                        StepReport& report) noexcept {
  StepResult r;
  r.id = s.id;
  r.index = s.index;
  r.finish = finish;
  r.error = std::move(error);
  r.cached_tokens = s.cached;
  r.drafts_right = s.drafts_right;
  r.drafts_wrong = s.drafts_wrong;
  report.results.push_back(std::move(r));
  s.finish = finish;
  end(s, report);
}

// Ends sequences that were cancelled, cannot run, or have nothing to do.
void Engine::end_stopped(StepReport& report) {
  // Answers that wait for another's prompt are part of its batch.
  const auto under_way = [&](const Sequence& s) {
    if (s.steps_under_way > 0 || s.state != Sequence::State::kFollows) return s.steps_under_way > 0;
    return std::any_of(sequences_.begin(), sequences_.end(), [&](const auto& other) {
      return other->id == s.id && other->steps_under_way > 0;
    });
  };
  for (const auto& s : sequences_) {
    const bool nothing_to_do = s->max_new == 0 && s->request->prompt_logprobs < 0;
    if (s->state == Sequence::State::kEnded || !(s->cancelled || s->blamed || nothing_to_do))
      continue;
    if (under_way(*s)) continue;  // it ends when its batch is back
    if (s->blamed) {
      report_end(*s, Finish::kError, s->error, report);
      continue;
    }
    s->followers.clear();  // they end for the same reason
    report_end(*s, s->cancelled ? Finish::kCancelled : s->limit, {}, report);
  }
  forget_ended();
}

void Engine::forget_ended() {
  std::erase_if(sequences_, [&](const std::unique_ptr<Sequence>& s) {
    if (s->state != Sequence::State::kEnded) return false;
    if (--s->client->sequences == 0) clients_.erase(s->request->client);
    return true;
  });
}

StepReport Engine::step() {
  StepReport report;
  const uint64_t start = now();
  stage_ = "planning";
  bool landing = false, blamed = false;
  collected_ = nullptr;
  try {
    take_inbox(report);
    end_stopped(report);
    kv_.tidy();
    admit();
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
    roll_back(landing);
    report.lost = backend_.lost();
    ++totals_.failed_steps;
  } else if (collected_ != nullptr) {
    stage_ = "sampling";
    sample(*collected_, report);
    stage_ = "commit";
    commit(*collected_, report);
  } else {
    forget_ended();
  }
  const StepFigures& f = report.figures;
  const uint64_t whole = now() - start, known = f.nanoseconds + f.sampling_nanoseconds;
  report.figures.other_nanoseconds = whole > known ? whole - known : 0;
  account(report);
  publish();
  stage_ = "idle";
  return report;
}

void Engine::account(StepReport& report) noexcept {
  EngineSnapshot& t = totals_;
  const StepFigures& f = report.figures;
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

void Engine::publish() noexcept {
  EngineSnapshot& t = totals_;
  const KvBlocks& b = kv_.blocks();
  t.running = running();
  t.waiting = sequences_.size() - t.running;
  t.evictions = kv_.tree().evictions();
  t.kv = {};
  t.kv.budget = b.budget();
  t.kv.cached = b.evictable_bytes();
  t.kv.used = b.used_bytes() - b.evictable_bytes();
  for (size_t k = 0; k < b.kinds(); ++k) {
    t.kv.blocks_cached += b.evictable_blocks(k);
    t.kv.blocks_used += b.used(k) - b.evictable_blocks(k);
  }
  t.kv.blocks_free = static_cast<size_t>(b.free_bytes() / kv_.row_bytes()) * b.kinds();
  t.kv.tails = kv_.tree().tails();
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

}  // namespace moebius
