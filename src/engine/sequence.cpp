// SPDX-License-Identifier: Apache-2.0
#include "engine/sequence.h"

#include "base/error.h"
#include "base/out_of_memory.h"
#include "base/random.h"

namespace moebius {

size_t prompt_left(const Sequences& sequences) {
  size_t left = 0;
  for (const auto& s : sequences)
    if (s->index == 0 && s->produced == 0 && s->state != Sequence::State::kEnded)
      left += s->prompt() - std::min(s->prompt(), s->kv.length);
  return left;
}

uint64_t seed_of_choice(uint64_t seed, size_t index) {
  return index == 0 ? seed : SplitMix64(SplitMix64(seed).next() + index).next();
}

StepResult Sequence::result() const {
  StepResult r;
  r.id = id;
  r.index = index;
  r.cached_tokens = cached;
  r.drafts_right = drafts_right;
  r.drafts_wrong = drafts_wrong;
  return r;
}

void Sequence::sample(const SampleTask& task, size_t width, size_t vocab) noexcept {
  const size_t rows = task.candidates != nullptr ? 1 : task.logits.size() / width;
  try {
    for (size_t r = 0; r < task.logits.size() / width && wants_prompt_rows(); ++r) {
      const size_t p = task.position + r;
      if (p < reported || p + 1 >= prompt()) continue;
      if (prompt_choices.empty()) prompt_position = p + 1;
      const int32_t next = tokens[p + 1];
      prompt_choices.push_back(token_logprobs(task.logits.subspan(r * width, width),
                                              std::max(vocab, static_cast<size_t>(next) + 1), next,
                                              request->prompt_logprobs));
    }
    if (!task.completes) return;
    if (max_new == 0) {
      finish = limit;
      return;
    }
    const size_t drafted = drafts();
    choices.reserve(drafted + 1);
    if (tokens.capacity() - tokens.size() <= drafted)
      tokens.reserve(2 * tokens.size() + drafted + 8);
    for (size_t r = drafted == 0 ? rows - 1 : 0; r < rows; ++r) {
      const bool more = task.candidates != nullptr
                            ? take(sampler.next(*task.candidates, vocab))
                            : draw(task.logits.subspan(r * width, width), vocab);
      if (!more) break;
      if (r < drafted && choices.back().token != draft_rows[r + 1]) break;
    }
  } catch (const std::exception& e) {
    error = words_of(e);
    finish = Finish::kError;
  } catch (...) {
    error = "unknown error";
    finish = Finish::kError;
  }
}

void Sequence::cut_back(KvStore& store) noexcept {
  store.shrink(kv);
  try {
    store.cut(kv);
  } catch (const std::exception&) {
    store.clear(kv);
    state = State::kWaiting;
  }
}

// Draws the sequence's next token; returns false if it has none, or ends with it.
bool Sequence::draw(std::span<const float> logits, size_t vocab) {
  const TokenMask* mask = constraint ? &constraint->mask() : nullptr;
  if (mask != nullptr && mask->count == 0) {
    if (!constraint->complete())
      fail("grammar_dead_end: no token of the vocabulary can continue the answer");
    finish = Finish::kStop;  // the model has no token that is allowed
    stop_token = true;
    return false;
  }
  return take(sampler.next(logits, vocab, mask));
}

bool Sequence::take(TokenChoice choice) {
  const auto& stops = request->stop_tokens;
  const bool stop =
      !request->ignore_stop && std::find(stops.begin(), stops.end(), choice.token) != stops.end();
  if (constraint && !stop) constraint->accept(choice.token);
  const bool goes_on = !request->watch || request->watch(index, choice);
  choices.push_back(std::move(choice));
  stop_token = stop;
  if (stop || !goes_on)
    finish = Finish::kStop;
  else if (produced + choices.size() >= max_new)
    finish = limit;
  return finish == Finish::kNone;
}

void StepBatch::add(Sequence& s, size_t vocab) {
  const size_t at = s.next();
  if (!s.draft_rows.empty()) {
    const size_t rows = s.draft_rows.size(), known = s.backend_drafts ? 1 : rows;
    items.push_back({&s.kv.tables, at, std::span(s.draft_rows).first(known), LogitsOf::kAll,
                     s.tokens.size(), rows - known});
    parts.push_back({&s, s.piece});
    for (size_t i = 0; i < rows; ++i) shape.add(at + i, 1, 1);
    figures.decode_rows += rows;
    tasks.push_back({&s, {}, at, true});
    return;
  }
  BatchItem item{&s.kv.tables, at, std::span(s.tokens).subspan(at, s.piece),
                 s.completes() ? LogitsOf::kLast : LogitsOf::kNone, s.tokens.size()};
  const bool rows = s.wants_prompt_rows() && at + s.piece > s.reported;
  if (rows) item.logits = LogitsOf::kAll;
  if (item.logits == LogitsOf::kLast && !s.constraint) item.need = s.sampler.need(vocab);
  if (item.logits == LogitsOf::kLast && s.sampler.reads_few())
    item.few = [&s, vocab](const LogitBounds& row, std::vector<int32_t>& ids) {
      const TokenMask* mask = s.constraint ? &s.constraint->mask() : nullptr;
      return s.sampler.list_few(row, vocab, mask, ids);
    };
  items.push_back(item);
  parts.push_back({&s, s.piece});
  shape.add(at, s.piece, rows ? s.piece : static_cast<size_t>(item.logits == LogitsOf::kLast));
  (s.pending() == 1 ? figures.decode_rows : figures.prompt_rows) += s.piece;
  if (item.logits == LogitsOf::kNone) return;
  SampleTask task{&s, {}, rows ? at : s.tokens.size() - 1, s.completes()};
  tasks.push_back(task);
  if (!s.completes()) return;
  for (Sequence* f : s.followers) {
    task.sequence = f;
    tasks.push_back(task);
  }
}

void StepBatch::give_logits(const StepOutput& output, size_t vocab) {
  size_t row = 0, t = 0, asked = 0;
  for (const BatchItem& item : items) {
    const size_t rows = item.logits == LogitsOf::kAll    ? item.tokens.size() + item.drafts
                        : item.logits == LogitsOf::kLast ? 1
                                                         : 0;
    if (rows == 0) continue;
    asked += rows;
    // The sequence then has a single row.
    const Candidates* candidates = !output.candidates.empty() && output.candidates[asked - 1]
                                       ? &*output.candidates[asked - 1]
                                       : nullptr;
    const size_t whole = candidates != nullptr ? 0 : rows;
    const std::span<const float> all = std::span(output.logits).subspan(row * vocab, whole * vocab);
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

size_t StepBatch::passes() const {
  size_t most = 0;
  for (const BatchItem& item : items) most = std::max(most, item.drafts);
  return most;
}

}  // namespace moebius
