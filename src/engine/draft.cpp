// SPDX-License-Identifier: Apache-2.0
#include "engine/draft.h"

#include <algorithm>

namespace moebius {
namespace {

constexpr double kRemembered = 64;  // drafts that the running means remember
constexpr size_t kPassedOver = 64;  // steps without a draft before drafting is tried again
constexpr double kLeastGain = 1.03;

size_t slot_of(std::span<const int32_t> run, size_t slots) {
  uint64_t h = 0x9E3779B97F4A7C15u;
  for (const int32_t t : run) {
    h = (h ^ static_cast<uint32_t>(t)) * 0xBF58476D1CE4E5B9u;
    h ^= h >> 29;
  }
  return static_cast<size_t>(h) & (slots - 1);
}

}  // namespace

void PromptLookup::add(Table& table, std::span<const int32_t> text, size_t end) {
  if (end < table.tokens) return;
  table.after[slot_of(text.subspan(end - table.tokens, table.tokens), table.after.size())] =
      static_cast<uint32_t>(end);
}

void PromptLookup::extend(std::span<const int32_t> text) {
  if (text.size() > UINT32_MAX) return;
  for (Table& table : tables_) {
    if (table.after.size() >= text.size()) continue;
    size_t slots = 64;
    while (slots < text.size() + text.size() / 4) slots *= 2;
    table.after.assign(slots, 0);
    for (size_t end = table.tokens; end < seen_; ++end) add(table, text, end);
  }
  // Adds runs that end before the last token: no token follows the text's last run yet.
  for (size_t end = std::max<size_t>(seen_, 1); end < text.size(); ++end)
    for (Table& table : tables_) add(table, text, end);
  seen_ = std::max(seen_, text.size());
}

size_t PromptLookup::find(std::span<const int32_t> text, std::span<const int32_t> tail) const {
  for (const Table& table : tables_) {
    if (tail.size() < table.tokens || table.after.empty()) continue;
    const auto run = tail.last(table.tokens);
    const size_t end = table.after[slot_of(run, table.after.size())];
    if (end == 0 || end >= text.size()) continue;
    if (std::equal(run.begin(), run.end(),
                   text.begin() + static_cast<std::ptrdiff_t>(end - run.size())))
      return end;
  }
  return text.size();
}

DraftRecord::DraftRecord(double chance) { means_.fill({chance, 1}); }

double DraftRecord::chance(size_t count) const {
  double all = 1, before = 0;
  for (size_t i = 0; i < count; ++i) {
    // A place that was never reached counts as good as the one before.
    before = means_[i].seen > 1 ? means_[i].right : std::max(means_[i].right, before);
    all *= before;
  }
  return all;
}

void DraftRecord::observe(size_t count, size_t right) {
  for (size_t i = 0; i < std::min(count, right + 1); ++i) {
    Mean& m = means_[i];
    m.seen = std::min(m.seen + 1, kRemembered);
    m.right += ((i < right ? 1.0 : 0.0) - m.right) / m.seen;
  }
  passed_ = 0;
}

bool DraftRecord::pass() {
  if (++passed_ < kPassedOver) return false;
  for (Mean& m : means_) m.seen = 1;
  return true;
}

std::vector<size_t> plan_drafts(const StepCost& cost, const StepShape& decode,
                                std::span<const DraftInLine> drafts, bool replay, double pass) {
  std::vector<size_t> best(drafts.size(), 0), counts(drafts.size(), 0);
  if (!cost.known() || decode.rows == 0) return best;
  for (size_t i = 0; i < drafts.size(); ++i) best[i] = drafts[i].due ? 1 : 0;
  double tokens = static_cast<double>(decode.rows), again = 0;
  double most = kLeastGain * tokens / cost.predict(decode);
  StepShape shape = decode;
  size_t passes = 0;
  while (true) {
    // Takes the row that is most likely to be right next.
    size_t next = drafts.size();
    double chance = 0;
    for (size_t i = 0; i < drafts.size(); ++i) {
      if (counts[i] == drafts[i].found) continue;
      const double c = drafts[i].record->chance(counts[i] + 1);
      if (c > chance) {
        chance = c;
        next = i;
      }
    }
    if (next == drafts.size()) return best;
    if (replay) again += drafts[next].record->chance(counts[next]) - chance;
    ++counts[next];
    tokens += chance;
    shape.add(drafts[next].position + counts[next], 1, 1);
    // A sequence whose rows run again has spent one step in vain.
    if (drafts[next].by_backend) passes = std::max(passes, counts[next]);
    const double time = cost.predict(shape) + static_cast<double>(passes) * pass;
    const double speed = std::max(0.0, tokens - again) / time;
    if (speed > most) {
      most = speed;
      best = counts;
    }
  }
}

}  // namespace moebius
