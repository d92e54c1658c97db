// SPDX-License-Identifier: Apache-2.0
// Runs a planned step: forward, sample, commit. Everything that can fail for all sequences comes
// before the first sampler draws; afterwards only single sequences fail, and commit() cannot.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/out_of_memory.h"
#include "engine/engine_sequence.h"
#include "runtime/parallel.h"

namespace moebius {
namespace {

std::string copy_of(const std::string& words) noexcept {
  try {
    return words;
  } catch (...) {
    return "out of memory";
  }
}

}  // namespace

void Engine::add_item(PendingStep& step, Sequence& s) const {
  const size_t at = s.next();
  if (!s.draft_rows.empty()) {
    const size_t rows = s.draft_rows.size(), known = s.backend_drafts ? 1 : rows;
    step.items.push_back({&s.kv.tables, at, std::span(s.draft_rows).first(known), LogitsOf::kAll,
                          s.tokens.size(), rows - known});
    step.parts.push_back({&s, s.piece});
    for (size_t i = 0; i < rows; ++i) step.shape.add(at + i, 1, 1);
    step.figures.decode_rows += rows;
    step.tasks.push_back({&s, {}, at, true});
    return;
  }
  BatchItem item{&s.kv.tables, at, std::span(s.tokens).subspan(at, s.piece),
                 s.completes() ? LogitsOf::kLast : LogitsOf::kNone, s.tokens.size()};
  const bool rows = s.wants_prompt_rows() && at + s.piece > s.reported;
  if (rows) item.logits = LogitsOf::kAll;
  if (item.logits == LogitsOf::kLast && !s.constraint) item.need = s.sampler.need(vocab_);
  step.items.push_back(item);
  step.parts.push_back({&s, s.piece});
  step.shape.add(at, s.piece, rows ? s.piece : static_cast<size_t>(item.logits == LogitsOf::kLast));
  (s.pending() == 1 ? step.figures.decode_rows : step.figures.prompt_rows) += s.piece;
  if (item.logits == LogitsOf::kNone) return;
  Task task{&s, {}, rows ? at : s.tokens.size() - 1, s.completes()};
  step.tasks.push_back(task);
  if (!s.completes()) return;
  for (Sequence* f : s.followers) {
    task.sequence = f;
    step.tasks.push_back(task);
  }
}

// Submits the next step. Returns false if there is nothing to do, or no memory for it before a
// batch is back.
bool Engine::submit_next() {
  plan();
  provide_blocks();
  provide_drafts();
  auto step = std::make_unique<PendingStep>();
  for (const auto& s : sequences_)
    if (s->running() && s->piece > 0) add_item(*step, *s);
  if (step->items.empty()) return false;
  step->figures.batch = step->items.size();
  if (cost_.known())
    step->figures.predicted_nanoseconds =
        cost_.predict(step->shape) + draft_pass_ * static_cast<double>(step->passes());
  step->start = now();
  pending_steps_.push_back(std::move(step));
  PendingStep& last = *pending_steps_.back();
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
  for (const PendingStep::Part& part : last.parts) {
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
  const uint64_t time = now();
  f.nanoseconds = time - std::max(collected_->start, last_landing_);
  last_landing_ = time;
  const uint64_t drafting = std::min(output_.stats.draft_nanoseconds, f.nanoseconds);
  cost_.observe(collected_->shape, f.nanoseconds - drafting, output_.stats.phases);
  observe_drafts(*collected_, drafting);
  take_drafts(*collected_, output_.drafts);
  std::swap(f.backend, output_.stats);
  report.figures = std::move(f);
  give_logits(*collected_);
  size_t places = report.results.size();
  for (const Task& t : collected_->tasks) places += 2 + t.sequence->drafts();
  report.results.reserve(places);
}

// Makes the backend's drafts the drafts of the sequences that asked for them.
void Engine::take_drafts(const PendingStep& step, std::span<const int32_t> drafts) {
  for (size_t i = 0; i < step.items.size(); ++i) {
    const size_t n = step.items[i].drafts;
    std::copy_n(drafts.begin(), n, step.parts[i].sequence->draft_rows.begin() + (n > 0));
    drafts = drafts.subspan(n);
  }
}

void Engine::observe_drafts(const PendingStep& step, uint64_t nanoseconds) noexcept {
  constexpr size_t kPassesRemembered = 32;
  const size_t passes = step.passes();
  if (passes == 0) return;
  draft_passes_seen_ = std::min(draft_passes_seen_ + 1, kPassesRemembered);
  draft_pass_ += (static_cast<double>(nanoseconds) / static_cast<double>(passes) - draft_pass_) /
                 static_cast<double>(draft_passes_seen_);
}

void Engine::give_logits(PendingStep& step) const {
  const size_t vocab = backend_.vocab();
  std::vector<Task>& tasks = step.tasks;
  size_t row = 0, t = 0, asked = 0;
  for (const BatchItem& item : step.items) {
    const size_t rows = item.logits == LogitsOf::kAll    ? item.tokens.size() + item.drafts
                        : item.logits == LogitsOf::kLast ? 1
                                                         : 0;
    if (rows == 0) continue;
    asked += rows;
    // The sequence then has a single row.
    const Candidates* candidates = !output_.candidates.empty() && output_.candidates[asked - 1]
                                       ? &*output_.candidates[asked - 1]
                                       : nullptr;
    const size_t whole = candidates != nullptr ? 0 : rows;
    const std::span<const float> all =
        std::span(output_.logits).subspan(row * vocab, whole * vocab);
    row += whole;
    const Sequence* owner = tasks[t].sequence;
    tasks[t].candidates = candidates;
    tasks[t++].logits = all;
    for (; t < tasks.size() && tasks[t].sequence->id == owner->id &&
           tasks[t].sequence->state == Sequence::State::kFollows;
         ++t) {
      tasks[t].candidates = candidates;
      tasks[t].logits = all.last(std::min(all.size(), vocab));
      tasks[t].position = owner->tokens.size() - 1;
    }
  }
}

// Samples one row on any thread of the pool; touches nothing but its sequence.
void Engine::sample_one(const Task& task) const noexcept {
  Sequence& s = *task.sequence;
  const size_t vocab = backend_.vocab(),
               rows = task.candidates != nullptr ? 1 : task.logits.size() / vocab;
  try {
    for (size_t r = 0; r < task.logits.size() / vocab && s.wants_prompt_rows(); ++r) {
      const size_t p = task.position + r;
      if (p < s.reported || p + 1 >= s.prompt()) continue;
      if (s.prompt_choices.empty()) s.prompt_position = p + 1;
      const int32_t next = s.tokens[p + 1];
      s.prompt_choices.push_back(token_logprobs(task.logits.subspan(r * vocab, vocab),
                                                std::max(vocab_, static_cast<size_t>(next) + 1),
                                                next, s.request->prompt_logprobs));
    }
    if (!task.completes) return;
    if (s.max_new == 0) {
      s.finish = s.limit;
      return;
    }
    const size_t drafts = s.drafts();
    s.choices.reserve(drafts + 1);
    if (s.tokens.capacity() - s.tokens.size() <= drafts)
      s.tokens.reserve(2 * s.tokens.size() + drafts + 8);
    for (size_t r = drafts == 0 ? rows - 1 : 0; r < rows; ++r) {
      const bool more = task.candidates != nullptr
                            ? take_choice(s, s.sampler.next(*task.candidates, vocab_))
                            : sample_row(s, task.logits.subspan(r * vocab, vocab));
      if (!more) break;
      if (r < drafts && s.choices.back().token != s.draft_rows[r + 1]) break;
    }
  } catch (const std::exception& e) {
    s.error = words_of(e);
    s.finish = Finish::kError;
  } catch (...) {
    s.error = "unknown error";
    s.finish = Finish::kError;
  }
}

// Draws the sequence's next token; returns false if it has none, or ends with it.
bool Engine::sample_row(Sequence& s, std::span<const float> logits) const {
  const TokenMask* mask = s.constraint ? &s.constraint->mask() : nullptr;
  if (mask != nullptr && mask->count == 0) {
    if (!s.constraint->complete())
      fail("grammar_dead_end: no token of the vocabulary can continue the answer");
    s.finish = Finish::kStop;  // the model has no token that is allowed
    s.stop_token = true;
    return false;
  }
  return take_choice(s, s.sampler.next(logits, vocab_, mask));
}

bool Engine::take_choice(Sequence& s, TokenChoice choice) const {
  const auto& stops = s.request->stop_tokens;
  const bool stop =
      !s.request->ignore_stop && std::find(stops.begin(), stops.end(), choice.token) != stops.end();
  if (s.constraint && !stop) s.constraint->accept(choice.token);
  const bool goes_on = !s.request->watch || s.request->watch(s.index, choice);
  s.choices.push_back(std::move(choice));
  s.stop_token = stop;
  if (stop || !goes_on)
    s.finish = Finish::kStop;
  else if (s.produced + s.choices.size() >= s.max_new)
    s.finish = s.limit;
  return s.finish == Finish::kNone;
}

void Engine::sample(PendingStep& step, StepReport& report) {
  if (step.tasks.empty()) return;
  const uint64_t start = now();
  parallel_for(options_.pool, step.tasks.size(), [&](size_t i) { sample_one(step.tasks[i]); });
  report.figures.sampling_nanoseconds = now() - start;
}

// Undoes a step that failed. lost: all batches under way are lost, too; otherwise they stay as they
// are.
void Engine::roll_back(bool lost) noexcept {
  collected_ = nullptr;
  if (lost) pending_steps_.clear();
  for (const auto& s : sequences_) {
    s->piece = 0;
    if (s->steps_under_way > 0 && !lost) continue;
    const bool took_part = std::exchange(s->steps_under_way, 0) > 0;
    s->ahead = 0;
    if (!s->running()) continue;
    kv_.shrink(s->kv);
    if (!took_part) continue;
    try {
      kv_.cut(s->kv);
    } catch (const std::exception&) {
      // The content of its last block is unknown, so it is computed again.
      kv_.clear(s->kv);
      s->state = Sequence::State::kWaiting;
    }
  }
}

void Engine::commit_piece(Sequence& s, size_t piece) noexcept {
  if (!s.draft_rows.empty()) return commit_drafts(s);
  const size_t length = s.kv.length + piece;
  kv_.advance(s.kv, s.tokens, length);
  if (s.request->prompt_logprobs >= 0) s.reported = std::max(s.reported, length);
  s.ahead -= piece;
  --s.steps_under_way;
}

// Commits drafts, whose tokens are in the text already. Keys after the last right draft are cut;
// states cannot be cut, so their rows run again from the state before.
void Engine::commit_drafts(Sequence& s) noexcept {
  const size_t rows = s.draft_rows.size(), kept = s.choices.size(),
               right = kept - std::min<size_t>(kept, 1);
  s.draft_record().observe(rows - 1, right);
  s.drafts_right += right;
  s.drafts_wrong += rows - 1 - right;
  ++totals_.drafts;
  totals_.drafted_tokens += rows - 1;
  for (size_t i = 0; i < right; ++i) ++totals_.drafts_right[i];
  s.draft_rows.clear();
  s.ahead -= 1;
  --s.steps_under_way;
  if (kept == rows || cuttable_) kv_.advance(s.kv, s.tokens, s.kv.length + kept);
  if (kept == rows) return;
  kv_.shrink(s.kv);
  try {
    kv_.cut(s.kv);
  } catch (const std::exception&) {
    kv_.clear(s.kv);  // its keys are computed again
    s.state = Sequence::State::kWaiting;
  }
}

// Starts the other answers from the prompt that choice 0 has run: they share its full blocks. If
// there is no memory for a copy of the unfinished block, an answer waits and computes it again.
void Engine::spawn(Sequence& leader) noexcept {
  for (Sequence* f : leader.followers) {
    f->cached = leader.cached;
    f->admitted = true;
    f->reported = leader.reported;
    f->state = Sequence::State::kWaiting;
    if (f->finish != Finish::kNone) continue;
    try {
      if (kv_.fork(leader.kv, f->kv, reserved())) f->state = Sequence::State::kRunning;
    } catch (const std::exception&) {
      // It waits.
    }
  }
  leader.followers.clear();
}

void Engine::commit(PendingStep& step, StepReport& report) noexcept {
  for (const Task& t : step.tasks)
    for (const TokenChoice& c : t.sequence->choices)
      t.sequence->tokens.push_back(c.token);  // room was reserved
  for (const PendingStep::Part& part : step.parts) commit_piece(*part.sequence, part.piece);
  for (const Task& t : step.tasks)
    if (t.completes && !t.sequence->followers.empty()) spawn(*t.sequence);
  for (const Task& t : step.tasks) {
    Sequence& s = *t.sequence;
    const bool failed = s.finish == Finish::kError;
    const size_t tokens = s.choices.size(), results = std::max<size_t>(tokens + failed, 1);
    for (size_t i = 0; i < results; ++i) {
      StepResult r;
      r.id = s.id;
      r.index = s.index;
      r.cached_tokens = s.cached;
      r.drafts_right = s.drafts_right;
      r.drafts_wrong = s.drafts_wrong;
      r.prompt_position = s.prompt_position;
      std::swap(r.prompt_choices, s.prompt_choices);  // reported with the first token
      if (i < tokens) r.choice = std::move(s.choices[i]);
      if (i + 1 == results) {
        r.finish = s.finish;
        r.stop_token = s.stop_token;
      }
      if (failed && i == tokens) r.error = copy_of(s.error);
      if (r.choice || r.finish != Finish::kNone || !r.prompt_choices.empty())
        report.results.push_back(std::move(r));
    }
    s.produced += tokens;
    totals_.new_tokens += tokens;
    s.choices.clear();
    if (s.finish != Finish::kNone) end(s, report);
  }
  forget_ended();
}

// Ends a sequence whose result is reported already; the sequences that waited for its prompt end
// with it.
void Engine::end(Sequence& s, StepReport& report) noexcept {
  if (s.finish == Finish::kError)
    kv_.clear(s.kv);
  else
    kv_.end(s.kv, s.tokens);
  s.state = Sequence::State::kEnded;
  ++totals_.finished[static_cast<size_t>(s.finish)];
  --live_;
  for (Sequence* f : s.followers) report_end(*f, s.finish, copy_of(s.error), report);
  s.followers.clear();
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
        const uint64_t start = now();
        backend_.collect(backend_.submit({&item, 1}), output_);
        StepShape shape;
        shape.add(0, rows, all ? rows : 1);
        if (warm) cost_.measure(shape, now() - start, output_.stats.phases);
      }
    if (options_.backend_drafts) {
      PendingStep step;
      step.items.push_back({&tables, 0, std::span(tokens).first(1), LogitsOf::kAll, 0, 1});
      backend_.collect(backend_.submit(step.items), output_);
      observe_drafts(step, output_.stats.draft_nanoseconds);
    }
  } catch (...) {
    kv_.give_back(tables);
    throw;
  }
  kv_.give_back(tables);
}

void Engine::commit_memory() { kv_.commit(context_); }

}  // namespace moebius
