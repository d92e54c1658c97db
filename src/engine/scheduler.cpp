// SPDX-License-Identifier: Apache-2.0
#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/kv_archive.h"

namespace moebius {
namespace {

// Nanoseconds of waiting that gain a level of priority.
constexpr uint64_t kLevelPerWaiting = 30'000'000'000;
// Rows per step of a prompt whose log-probabilities are requested.
constexpr size_t kLogprobRows = 32;
constexpr size_t kReadingRows = 4096;  // of a prompt, in a step that reads experts from disk

std::string copy_of(const std::string& words) noexcept {
  try {
    return words;
  } catch (...) {
    return "out of memory";
  }
}

}  // namespace

Scheduler::~Scheduler() {
  for (const auto& s : sequences_) e_.kv.clear(s->kv);
}

void Scheduler::take_new(StepReport& report) {
  const size_t known = sequences_.size();
  const std::vector<uint64_t> cancelled = queue_.take(sequences_);
  // New or cancelled requests let admission look again.
  if (sequences_.size() > known || !cancelled.empty()) stopped_at_running_ = SIZE_MAX;
  for (const uint64_t id : cancelled)
    for (const auto& s : sequences_) s->cancelled = s->cancelled || s->id == id;
  // Every sequence has one result in a step, and one more for each draft: room for them is reserved
  // before anything is committed.
  report.results.reserve(sequences_.size());
  for (const auto& s : sequences_) {
    if (s->client != nullptr) continue;
    // A new client starts at the least counter, so that it does not catch up on time before it
    // came.
    uint64_t least = clients_.empty() ? 0 : UINT64_MAX;
    for (const auto& [name, c] : clients_) least = std::min(least, c.tokens);
    s->client = &clients_.try_emplace(s->request->client, Client{least, 0}).first->second;
    ++s->client->sequences;
    s->waiting_since = now();
  }
}

void Scheduler::report_end(Sequence& s, Finish finish, std::string error,
                           StepReport& report) noexcept {
  StepResult& r = report.results.emplace_back(s.result());
  r.finish = s.finish = finish;
  r.error = std::move(error);
  end(s, report);
}

void Scheduler::end_stopped(StepReport& report) {
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

void Scheduler::forget_ended() {
  std::erase_if(sequences_, [&](const std::unique_ptr<Sequence>& s) {
    if (s->state != Sequence::State::kEnded) return false;
    if (--s->client->sequences == 0) clients_.erase(s->request->client);
    return true;
  });
}

size_t Scheduler::running() const noexcept {
  return static_cast<size_t>(std::count_if(sequences_.begin(), sequences_.end(),
                                           [](const auto& s) { return s->running(); }));
}

// Returns the bytes that safe sequences will still need: no other sequence may take them.
uint64_t Scheduler::reserved() const noexcept {
  uint64_t bytes = 0;
  for (const auto& s : sequences_)
    if (s->running() && s->safe()) bytes += e_.kv.bytes_until(s->kv, s->final_length());
  return bytes;
}

// Returns the next sequence to admit: by priority, then those that gave way, then clients in turn
// by prompt tokens, then arrival.
Sequence* Scheduler::next_waiting() const {
  const uint64_t time = now();
  const auto key = [&](const Sequence& s) {
    const uint64_t waited = time > s.waiting_since ? time - s.waiting_since : 0;
    const int64_t level = s.request->priority - static_cast<int64_t>(waited / kLevelPerWaiting);
    return std::tuple(level, s.preempted == 0, s.client->tokens, s.id, s.index);
  };
  Sequence* best = nullptr;
  for (const auto& s : sequences_)
    if (s->state == Sequence::State::kWaiting && (best == nullptr || key(*s) < key(*best)))
      best = s.get();
  return best;
}

// Makes a sequence that has grown beyond the length where all keys change give up its keys, as if
// it had been preempted.
void Scheduler::renew_keys() noexcept {
  const size_t beyond = e_.backend.keys_change_beyond();
  for (const auto& s : sequences_)
    if (s->running() && s->steps_under_way == 0 && s->keyed_for <= beyond &&
        s->tokens.size() > beyond)
      preempt(*s);
}

void Scheduler::admit() {
  renew_keys();
  const size_t now_running = running();
  if (stopped_at_running_ != SIZE_MAX && now_running >= stopped_at_running_ &&
      e_.kv.available() <= stopped_at_available_)
    return;
  stopped_at_running_ = SIZE_MAX;
  stopped_at_available_ = 0;
  while (Sequence* s = next_waiting()) {
    if (admit(*s)) continue;
    if (s->restore.planned && !s->restore.done()) return;  // reading continues in the next step
    stopped_at_running_ = running();
    stopped_at_available_ = e_.kv.available();
    return;
  }
}

// Returns whether reading the rest from disk is faster than computing it, judged by the times of
// both so far.
bool Scheduler::reading_pays(const Sequence& s) const {
  if (!e_.cost.known()) return true;
  const KvRestore& r = s.restore;
  double computing = 0;
  for (size_t at = std::max(r.begin, r.next * kBlockTokens); at < r.end();) {
    const size_t piece = std::min(r.end() - at, e_.options.prompt_rows);
    StepShape shape;
    shape.add(at, piece, 0);
    computing += e_.cost.predict(shape);
    at += piece;
  }
  return e_.kv.archive()->disk().read_nanoseconds(r.bytes, r.files) < computing;
}

// Returns true when everything that the disk has of the sequence is in memory or not worth reading.
// Running sequences wait for this no longer than for a piece of a prompt.
bool Scheduler::restored(Sequence& s, size_t limit) {
  KvRestore& r = s.restore;
  if (e_.kv.archive() == nullptr || (r.planned && r.done())) return true;
  if (!r.planned) r = e_.kv.plan_restore(s.request->salt, s.tokens, limit);
  if (!r.done() && !reading_pays(s)) {
    e_.kv.archive()->disk().pass_over();
    r.failed = true;
  }
  if (r.done()) return true;
  StepShape decode;
  for (const auto& other : sequences_)
    if (other->running()) decode.add(other->next(), 1, 1);
  double most = e_.options.max_step * 1e9;
  if (decode.rows > 0 && e_.cost.known())
    most = std::min(most, (e_.options.stretch - 1) * e_.cost.predict(decode));
  const uint64_t start = now();
  const size_t before = r.next;
  e_.kv.restore(r, s.request->salt, s.tokens, decode.rows * e_.kv.row_bytes() + reserved(),
                [&] { return static_cast<double>(now() - start) < most && reading_pays(s); });
  e_.totals.disk_tokens +=
      r.next * kBlockTokens -
      std::min(r.next * kBlockTokens, std::max(r.begin, before * kBlockTokens));
  return r.done();
}

bool Scheduler::admit(Sequence& s) {
  size_t slots = 1 + s.followers.size(), now_running = 0;
  for (const auto& other : sequences_)
    if (other->running()) {
      slots += 1 + other->followers.size();
      ++now_running;
    }
  if (slots > e_.options.parallel) return false;
  size_t limit = s.tokens.size() - 1;  // the last token always runs, because its logits are needed
  if (s.wants_prompt_rows()) limit = std::min(limit, s.reported);
  if (e_.backend.keys_depend_on_length()) limit = 0;
  if (!restored(s, limit)) return false;
  e_.kv.attach(s.kv, s.request->salt, s.tokens, limit);
  const size_t length = s.safe() ? s.final_length() : s.tokens.size();
  const uint64_t keep = now_running * e_.kv.row_bytes() + reserved();
  // A sequence alone always fits: add() has checked it.
  if (now_running > 0 && e_.kv.available() < e_.kv.bytes_until(s.kv, length) + keep) {
    e_.kv.clear(s.kv);
    return false;
  }
  e_.totals.prefix_queries += limit;
  e_.totals.prefix_hits += s.kv.length;
  if (!s.admitted) {
    s.cached = s.kv.length;
    s.client->tokens += s.tokens.size() - s.kv.length;
    e_.totals.cached_tokens += s.kv.length;
    e_.totals.prompt_tokens += s.prompt();
    if (s.request->admitted) s.request->admitted();
  } else {
    e_.totals.recomputed_tokens += s.pending() - 1;
  }
  s.admitted = true;
  s.restore = {};
  s.keyed_for = s.tokens.size();
  s.state = Sequence::State::kRunning;
  return true;
}

// Returns whether the next batch can take the sequence. A prompt goes on while its last piece is
// under way: its rows need nothing that has to be sampled.
bool Scheduler::available(const Sequence& s) const {
  if (!s.running() || s.blamed || s.pending() == 0) return false;
  return s.steps_under_way == 0 || s.request->prompt_logprobs < 0;
}

void Scheduler::plan(bool under_way) {
  plan_rows();
  provide_blocks(under_way);
  provide_drafts();
}

void Scheduler::plan_rows() {
  StepShape decode;
  std::vector<PromptInLine> prompts;
  std::vector<Sequence*> owners;
  // A step that reads most experts from disk runs as much of a prompt as it can.
  const bool long_pieces = e_.backend.reads_experts();
  const size_t piece = std::max(e_.options.prompt_rows, long_pieces ? kReadingRows : 0);
  // The batches in flight get equal shares of the sequences.
  const size_t batches = e_.backend.batches_in_flight(), most = (running() + batches - 1) / batches;
  size_t taken = 0;
  for (const auto& s : sequences_) {
    s->piece = 0;
    s->draft_rows.clear();
    s->backend_drafts = false;
    if (taken == most || !available(*s)) continue;
    ++taken;
    if (s->pending() == 1) {
      s->piece = 1;
      decode.add(s->next(), 1, 1);
      drafter_.find(*s);
      continue;
    }
    prompts.push_back({s->next(), s->pending(), s->wants_prompt_rows() ? kLogprobRows : piece});
    owners.push_back(s.get());
  }
  if (prompts.empty()) return drafter_.plan(sequences_, decode);
  // A step with prompts is long enough without drafts.
  for (const auto& s : sequences_) s->draft_rows.clear();
  PlanLimits limits;
  limits.stretch = e_.options.stretch;
  limits.max_step = e_.options.max_step * 1e9;
  limits.most = e_.options.prompt_rows;
  // Sequences that decode beside it would wait for it.
  if (long_pieces && decode.rows == 0) limits.least = limits.most = piece;
  const std::vector<size_t> pieces = plan_prompts(e_.cost, decode, prompts, limits);
  for (size_t i = 0; i < owners.size(); ++i) owners[i]->piece = pieces[i];
}

// Preempts the youngest sequence of the lowest priority among those after `s` (null: among all):
// its blocks go to the cache, and it comes back as a longer prompt. Returns whether there was one.
bool Scheduler::preempt_for(const Sequence* s) {
  Sequence* victim = nullptr;
  for (const auto& other : sequences_) {
    if (!other->running() || other->steps_under_way > 0 || other->safe() ||
        (s != nullptr && !(s->rank() < other->rank())))
      continue;
    if (victim == nullptr || victim->rank() < other->rank()) victim = other.get();
  }
  if (victim == nullptr) return false;
  preempt(*victim);
  return true;
}

void Scheduler::preempt(Sequence& s) noexcept {
  e_.kv.end(s.kv, s.tokens);
  s.state = Sequence::State::kWaiting;
  s.restore = {};
  s.piece = 0;
  ++s.preempted;
  ++e_.totals.preemptions;
}

// Allocates blocks for the sequence's piece, or for a part of it; preempts others if there is no
// memory.
bool Scheduler::provide(Sequence& s) {
  while (true) {
    const size_t reach = e_.kv.grow(s.kv, s.next() + s.piece, s.safe() ? 0 : reserved());
    if (reach > s.next()) {
      s.piece = reach - s.next();
      return true;
    }
    if (preempt_for(&s)) continue;
    s.piece = 0;  // waits for the sequences before it
    return false;
  }
}

// Gives drafts the blocks that are left after every sequence has those it needs.
void Scheduler::provide_drafts() {
  for (const auto& s : sequences_) {
    if (s->draft_rows.empty()) continue;
    size_t rows = 0;
    if (s->running() && s->piece == 1)
      rows = e_.kv.grow(s->kv, s->next() + s->draft_rows.size(),
                        reserved() + running() * e_.kv.row_bytes()) -
             s->next();
    s->draft_rows.resize(rows <= 1 ? 0 : std::min(rows, s->draft_rows.size()));
  }
}

void Scheduler::provide_blocks(bool under_way) {
  std::vector<Sequence*> order;
  for (const auto& s : sequences_)
    if (s->running() && s->piece > 0) order.push_back(s.get());
  std::sort(order.begin(), order.end(), [](const Sequence* a, const Sequence* b) {
    return std::tuple(!a->safe(), a->rank()) < std::tuple(!b->safe(), b->rank());
  });
  const auto provide_all = [&] {
    bool any = false;
    for (Sequence* s : order)
      if (s->running() && s->piece > 0) any = provide(*s) || any;
    return any;
  };
  while (!order.empty() && !provide_all()) {
    if (under_way) return;  // sequences under way can give way when they are back
    if (running() <= 1 || !preempt_for(nullptr))
      fail("there is no memory for the next token of any sequence");
    for (Sequence* s : order) s->piece = s->running() ? 1 : 0;
  }
}

void Scheduler::roll_back(bool lost) noexcept {
  for (const auto& s : sequences_) {
    s->piece = 0;
    if (s->steps_under_way > 0 && !lost) continue;
    const bool took_part = std::exchange(s->steps_under_way, 0) > 0;
    s->ahead = 0;
    if (!s->running()) continue;
    took_part ? s->cut_back(e_.kv) : e_.kv.shrink(s->kv);
  }
}

void Scheduler::commit_piece(Sequence& s, size_t piece) noexcept {
  if (!s.draft_rows.empty()) return drafter_.commit(s);
  const size_t length = s.kv.length + piece;
  e_.kv.advance(s.kv, s.tokens, length);
  if (s.request->prompt_logprobs >= 0) s.reported = std::max(s.reported, length);
  s.ahead -= piece;
  --s.steps_under_way;
}

// Starts the other answers from the prompt that choice 0 has run: they share its full blocks. If
// there is no memory for a copy of the unfinished block, an answer waits and computes it again.
void Scheduler::spawn(Sequence& leader) noexcept {
  for (Sequence* f : leader.followers) {
    f->cached = leader.cached;
    f->admitted = true;
    f->reported = leader.reported;
    f->state = Sequence::State::kWaiting;
    if (f->finish != Finish::kNone) continue;
    try {
      if (e_.kv.fork(leader.kv, f->kv, reserved())) f->state = Sequence::State::kRunning;
    } catch (const std::exception&) {
      // It waits.
    }
  }
  leader.followers.clear();
}

void Scheduler::commit(StepBatch& step, StepReport& report) noexcept {
  for (const SampleTask& t : step.tasks)
    for (const TokenChoice& c : t.sequence->choices)
      t.sequence->tokens.push_back(c.token);  // room was reserved
  for (const StepBatch::Part& part : step.parts) commit_piece(*part.sequence, part.piece);
  for (const SampleTask& t : step.tasks)
    if (t.completes && !t.sequence->followers.empty()) spawn(*t.sequence);
  for (const SampleTask& t : step.tasks) {
    Sequence& s = *t.sequence;
    const bool failed = s.finish == Finish::kError;
    const size_t tokens = s.choices.size(), results = std::max<size_t>(tokens + failed, 1);
    for (size_t i = 0; i < results; ++i) {
      StepResult r = s.result();
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
    e_.totals.new_tokens += tokens;
    s.choices.clear();
    if (s.finish != Finish::kNone) end(s, report);
  }
  forget_ended();
}

// Ends a sequence whose result is reported already; the sequences that waited for its prompt end
// with it.
void Scheduler::end(Sequence& s, StepReport& report) noexcept {
  if (s.finish == Finish::kError)
    e_.kv.clear(s.kv);
  else
    e_.kv.end(s.kv, s.tokens);
  s.state = Sequence::State::kEnded;
  ++e_.totals.finished[static_cast<size_t>(s.finish)];
  queue_.ended();
  for (Sequence* f : s.followers) report_end(*f, s.finish, copy_of(s.error), report);
  s.followers.clear();
}

}  // namespace moebius
