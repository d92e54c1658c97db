// SPDX-License-Identifier: Apache-2.0
#include "engine/drafter.h"

namespace moebius {

Drafter::Drafter(const EngineParts& engine) : e_(engine) {
  for (const KvKind& kind : e_.backend.kv_kinds()) cuttable_ = cuttable_ && kind.cuttable;
}

void Drafter::find(Sequence& s) const {
  if (e_.options.drafts == 0 || !s.followers.empty() || s.wants_prompt_rows() ||
      e_.backend.batches_in_flight() > 1)
    return;
  size_t most = std::min(
      {e_.options.drafts, s.request->drafts, s.max_new - std::min(s.max_new, s.produced + 1)});
  if (s.tokens.size() <= e_.backend.keys_change_beyond())
    most = std::min(most, e_.backend.keys_change_beyond() - s.tokens.size());
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
  if (at >= from.size() && e_.options.backend_drafts) {
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

void Drafter::plan(const Sequences& sequences, const StepShape& decode) const {
  std::vector<DraftInLine> lines;
  std::vector<Sequence*> owners;
  for (const auto& s : sequences) {
    if (s->draft_rows.empty()) continue;
    lines.push_back({s->next(), s->drafts(), &s->draft_record(), s->draft_due, s->backend_drafts});
    owners.push_back(s.get());
  }
  if (lines.empty() || e_.options.every_draft) return;
  const std::vector<size_t> counts = plan_drafts(e_.cost, decode, lines, !cuttable_, pass_);
  for (size_t i = 0; i < owners.size(); ++i) {
    Sequence& s = *owners[i];
    s.draft_rows.resize(counts[i] == 0 ? 0 : counts[i] + 1);
    s.draft_due = counts[i] == 0 && s.draft_record().pass();
  }
}

void Drafter::observe(const StepBatch& step, uint64_t nanoseconds) noexcept {
  constexpr size_t kPassesRemembered = 32;
  const size_t passes = step.passes();
  if (passes == 0) return;
  passes_seen_ = std::min(passes_seen_ + 1, kPassesRemembered);
  pass_ += (static_cast<double>(nanoseconds) / static_cast<double>(passes) - pass_) /
           static_cast<double>(passes_seen_);
}

void Drafter::take(const StepBatch& step, std::span<const int32_t> drafts) {
  for (size_t i = 0; i < step.items.size(); ++i) {
    const size_t n = step.items[i].drafts;
    std::copy_n(drafts.begin(), n, step.parts[i].sequence->draft_rows.begin() + (n > 0));
    drafts = drafts.subspan(n);
  }
}

// Keys after the last right draft are cut; states cannot be cut, so their rows run again from the
// state before.
void Drafter::commit(Sequence& s) noexcept {
  const size_t rows = s.draft_rows.size(), kept = s.choices.size(),
               right = kept - std::min<size_t>(kept, 1);
  s.draft_record().observe(rows - 1, right);
  s.drafts_right += right;
  s.drafts_wrong += rows - 1 - right;
  ++e_.totals.drafts;
  e_.totals.drafted_tokens += rows - 1;
  for (size_t i = 0; i < right; ++i) ++e_.totals.drafts_right[i];
  s.draft_rows.clear();
  s.ahead -= 1;
  --s.steps_under_way;
  if (kept == rows || cuttable_) e_.kv.advance(s.kv, s.tokens, s.kv.length + kept);
  if (kept != rows) s.cut_back(e_.kv);
}

}  // namespace moebius
