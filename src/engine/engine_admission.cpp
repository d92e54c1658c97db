// SPDX-License-Identifier: Apache-2.0
// Decides who runs, with how many tokens, and who is preempted: admission by memory, the rows of a
// step by its predicted time, preemption by recomputation. None of it changes what is computed.
#include <algorithm>

#include "base/error.h"
#include "engine/engine_sequence.h"
#include "engine/kv_archive.h"

namespace moebius {
namespace {

// Nanoseconds of waiting that gain a level of priority.
constexpr uint64_t kLevelPerWaiting = 30'000'000'000;
// Rows per step of a prompt whose log-probabilities are requested.
constexpr size_t kLogprobRows = 32;

}  // namespace

size_t Engine::running() const noexcept {
  return static_cast<size_t>(std::count_if(sequences_.begin(), sequences_.end(),
                                           [](const auto& s) { return s->running(); }));
}

// Returns the bytes that safe sequences will still need: no other sequence may take them.
uint64_t Engine::reserved() const noexcept {
  uint64_t bytes = 0;
  for (const auto& s : sequences_)
    if (s->running() && s->safe()) bytes += kv_.bytes_until(s->kv, s->final_length());
  return bytes;
}

// Returns the next sequence to admit: by priority, then those that gave way, then clients in turn
// by prompt tokens, then arrival.
Engine::Sequence* Engine::next_waiting() const {
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
void Engine::renew_keys() noexcept {
  const size_t beyond = backend_.keys_change_beyond();
  for (const auto& s : sequences_)
    if (s->running() && s->steps_under_way == 0 && s->keyed_for <= beyond &&
        s->tokens.size() > beyond)
      preempt(*s);
}

void Engine::admit() {
  renew_keys();
  const size_t now_running = running();
  if (stopped_at_running_ != SIZE_MAX && now_running >= stopped_at_running_ &&
      kv_.available() <= stopped_at_available_)
    return;
  stopped_at_running_ = SIZE_MAX;
  stopped_at_available_ = 0;
  while (Sequence* s = next_waiting()) {
    if (admit(*s)) continue;
    if (s->restore.planned && !s->restore.done()) return;  // reading continues in the next step
    stopped_at_running_ = running();
    stopped_at_available_ = kv_.available();
    return;
  }
}

// Returns whether reading the rest from disk is faster than computing it, judged by the times of
// both so far.
bool Engine::reading_pays(const Sequence& s) const {
  if (!cost_.known()) return true;
  const KvRestore& r = s.restore;
  double computing = 0;
  for (size_t at = std::max(r.begin, r.next * kBlockTokens); at < r.end();) {
    const size_t piece = std::min(r.end() - at, options_.prompt_rows);
    StepShape shape;
    shape.add(at, piece, 0);
    computing += cost_.predict(shape);
    at += piece;
  }
  return kv_.archive()->disk().read_nanoseconds(r.bytes, r.files) < computing;
}

// Returns true when everything that the disk has of the sequence is in memory or not worth reading.
// Running sequences wait for this no longer than for a piece of a prompt.
bool Engine::restored(Sequence& s, size_t limit) {
  KvRestore& r = s.restore;
  if (kv_.archive() == nullptr || (r.planned && r.done())) return true;
  if (!r.planned) r = kv_.plan_restore(s.request->salt, s.tokens, limit);
  if (!r.done() && !reading_pays(s)) {
    kv_.archive()->disk().pass_over();
    r.failed = true;
  }
  if (r.done()) return true;
  StepShape decode;
  for (const auto& other : sequences_)
    if (other->running()) decode.add(other->next(), 1, 1);
  double most = options_.max_step * 1e9;
  if (decode.rows > 0 && cost_.known())
    most = std::min(most, (options_.stretch - 1) * cost_.predict(decode));
  const uint64_t start = now();
  const size_t before = r.next;
  kv_.restore(r, s.request->salt, s.tokens, decode.rows * kv_.row_bytes() + reserved(),
              [&] { return static_cast<double>(now() - start) < most && reading_pays(s); });
  totals_.disk_tokens += r.next * kBlockTokens -
                         std::min(r.next * kBlockTokens, std::max(r.begin, before * kBlockTokens));
  return r.done();
}

bool Engine::admit(Sequence& s) {
  size_t slots = 1 + s.followers.size(), now_running = 0;
  for (const auto& other : sequences_)
    if (other->running()) {
      slots += 1 + other->followers.size();
      ++now_running;
    }
  if (slots > options_.parallel) return false;
  size_t limit = s.tokens.size() - 1;  // the last token always runs, because its logits are needed
  if (s.wants_prompt_rows()) limit = std::min(limit, s.reported);
  if (backend_.keys_depend_on_length()) limit = 0;
  if (!restored(s, limit)) return false;
  kv_.attach(s.kv, s.request->salt, s.tokens, limit);
  const size_t length = s.safe() ? s.final_length() : s.tokens.size();
  const uint64_t keep = now_running * kv_.row_bytes() + reserved();
  // A sequence alone always fits: add() has checked it.
  if (now_running > 0 && kv_.available() < kv_.bytes_until(s.kv, length) + keep) {
    kv_.clear(s.kv);
    return false;
  }
  totals_.prefix_queries += limit;
  totals_.prefix_hits += s.kv.length;
  if (!s.admitted) {
    s.cached = s.kv.length;
    s.client->tokens += s.tokens.size() - s.kv.length;
    totals_.cached_tokens += s.kv.length;
    totals_.prompt_tokens += s.prompt();
    if (s.request->admitted) s.request->admitted();
  } else {
    totals_.recomputed_tokens += s.pending() - 1;
  }
  s.admitted = true;
  s.restore = {};
  s.keyed_for = s.tokens.size();
  s.state = Sequence::State::kRunning;
  return true;
}

// Returns whether the next batch can take the sequence. A prompt goes on while its last piece is
// under way: its rows need nothing that has to be sampled.
bool Engine::available(const Sequence& s) const {
  if (!s.running() || s.blamed || s.pending() == 0) return false;
  return s.steps_under_way == 0 || s.request->prompt_logprobs < 0;
}

void Engine::plan() {
  StepShape decode;
  std::vector<PromptInLine> prompts;
  std::vector<Sequence*> owners;
  // The batches in flight get equal shares of the sequences.
  const size_t batches = backend_.batches_in_flight(), most = (running() + batches - 1) / batches;
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
      find_draft(*s);
      continue;
    }
    prompts.push_back(
        {s->next(), s->pending(), s->wants_prompt_rows() ? kLogprobRows : options_.prompt_rows});
    owners.push_back(s.get());
  }
  if (prompts.empty()) return plan_drafts_of(decode);
  // A step with prompts is long enough without drafts.
  for (const auto& s : sequences_) s->draft_rows.clear();
  PlanLimits limits;
  limits.stretch = options_.stretch;
  limits.max_step = options_.max_step * 1e9;
  limits.most = options_.prompt_rows;
  const std::vector<size_t> pieces = plan_prompts(cost_, decode, prompts, limits);
  for (size_t i = 0; i < owners.size(); ++i) owners[i]->piece = pieces[i];
}

// Finds tokens that may follow the last one: those that the answer's grammar dictates, or those
// that followed the same tokens in the predicted text, or in the sequence's own text.
void Engine::find_draft(Sequence& s) const {
  if (options_.drafts == 0 || !s.followers.empty() || s.wants_prompt_rows() ||
      backend_.batches_in_flight() > 1)
    return;
  size_t most = std::min(
      {options_.drafts, s.request->drafts, s.max_new - std::min(s.max_new, s.produced + 1)});
  if (s.tokens.size() <= backend_.keys_change_beyond())
    most = std::min(most, backend_.keys_change_beyond() - s.tokens.size());
  if (most == 0) return;
  const auto draft = [&](std::span<const int32_t> tokens, bool forced) {
    s.draft_forced = forced;
    s.draft_rows.push_back(s.tokens.back());
    s.draft_rows.insert(s.draft_rows.end(), tokens.begin(), tokens.end());
  };
  if (s.constraint)
    if (const auto forced = s.constraint->forced(most); !forced.empty()) return draft(forced, true);
  const std::span<const int32_t> text = s.tokens, answer = text.subspan(s.prompt());
  std::span<const int32_t> from = s.request->prediction;
  if (!from.empty()) s.predicted.extend(from);
  // Runs of tokens that cross from the prompt into the answer do not belong to the prediction.
  size_t at = answer.empty() ? 0 : s.predicted.find(from, answer);
  if (answer.size() == 1 && !from.empty() && answer[0] == from[0]) at = 1;
  if (at >= from.size() && options_.backend_drafts) {
    s.backend_drafts = true;
    s.draft_forced = false;
    s.draft_rows.resize(1 + std::min(most, kMostBackendDrafts), s.tokens.back());
    return;
  }
  if (at >= from.size()) {
    from = text;
    s.lookup.extend(text);
    at = s.lookup.find(text, text);
  }
  from = from.subspan(at, std::min(most, from.size() - at));
  if (from.empty() || (s.constraint && !s.constraint->mask().has(from[0]))) return;
  draft(from, false);
}

// Keeps those drafts that are worth their rows.
void Engine::plan_drafts_of(const StepShape& decode) {
  std::vector<DraftInLine> lines;
  std::vector<Sequence*> owners;
  for (const auto& s : sequences_) {
    if (s->draft_rows.empty()) continue;
    lines.push_back({s->next(), s->drafts(), &s->draft_record(), s->draft_due, s->backend_drafts});
    owners.push_back(s.get());
  }
  if (lines.empty() || options_.every_draft) return;
  const std::vector<size_t> counts = plan_drafts(cost_, decode, lines, !cuttable_, draft_pass_);
  for (size_t i = 0; i < owners.size(); ++i) {
    Sequence& s = *owners[i];
    s.draft_rows.resize(counts[i] == 0 ? 0 : counts[i] + 1);
    s.draft_due = counts[i] == 0 && s.draft_record().pass();
  }
}

// Preempts the youngest sequence of the lowest priority among those after `s` (null: among all):
// its blocks go to the cache, and it comes back as a longer prompt. Returns whether there was one.
bool Engine::preempt_for(const Sequence* s) {
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

void Engine::preempt(Sequence& s) noexcept {
  kv_.end(s.kv, s.tokens);
  s.state = Sequence::State::kWaiting;
  s.restore = {};
  s.piece = 0;
  ++s.preempted;
  ++totals_.preemptions;
}

// Allocates blocks for the sequence's piece, or for a part of it; preempts others if there is no
// memory.
bool Engine::provide(Sequence& s) {
  while (true) {
    const size_t reach = kv_.grow(s.kv, s.next() + s.piece, s.safe() ? 0 : reserved());
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
void Engine::provide_drafts() {
  for (const auto& s : sequences_) {
    if (s->draft_rows.empty()) continue;
    size_t rows = 0;
    if (s->running() && s->piece == 1)
      rows = kv_.grow(s->kv, s->next() + s->draft_rows.size(),
                      reserved() + running() * kv_.row_bytes()) -
             s->next();
    s->draft_rows.resize(rows <= 1 ? 0 : std::min(rows, s->draft_rows.size()));
  }
}

void Engine::provide_blocks() {
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
    if (!pending_steps_.empty()) return;  // sequences under way can give way when they are back
    if (running() <= 1 || !preempt_for(nullptr))
      fail("there is no memory for the next token of any sequence");
    for (Sequence* s : order) s->piece = s->running() ? 1 : 0;
  }
}

}  // namespace moebius
