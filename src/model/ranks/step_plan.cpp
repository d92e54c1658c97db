// SPDX-License-Identifier: Apache-2.0
// Encodes plans: numbers are little-endian; a list is its length, then its elements (step_plan.h).
#include "model/ranks/step_plan.h"

#include <cstring>

#include "base/error.h"

namespace moebius {
namespace {

constexpr uint32_t kPlanMark = 0x4e4c5053;  // "SPLN"

// Writes the parts of a plan; visit_plan() passes them in turn.
class PlanWriter {
 public:
  template <class T>
  void number(T v) {
    for (size_t i = 0; i < sizeof(T); ++i)
      bytes_.push_back(static_cast<uint8_t>(static_cast<uint64_t>(v) >> (8 * i)));
  }
  template <class E>
  void choice(E v, E /*last*/, const char* /*what*/) {
    number(static_cast<uint8_t>(v));
  }
  template <class T, class F>
  void list(const std::vector<T>& items, size_t /*least*/, F part) {
    number(static_cast<uint32_t>(items.size()));
    for (const T& item : items) part(item);
  }
  std::vector<uint8_t> take() { return std::move(bytes_); }

 private:
  std::vector<uint8_t> bytes_;
};

// Reads the parts of a plan in the same order. Throws Error for bytes that are no plan.
class PlanReader {
 public:
  explicit PlanReader(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  template <class T>
  void number(T& to) {
    if (bytes_.size() - at_ < sizeof(T))
      fail("step plan: ends at byte {}; expected {} more", bytes_.size(), sizeof(T));
    uint64_t v = 0;
    for (size_t i = 0; i < sizeof(T); ++i) v |= uint64_t{bytes_[at_ + i]} << (8 * i);
    at_ += sizeof(T);
    to = static_cast<T>(v);
  }
  template <class E>
  void choice(E& to, E last, const char* what) {
    uint8_t v = 0;
    number(v);
    if (v > static_cast<uint8_t>(last))
      fail("step plan: {} {}; expected 0 to {}", what, v, static_cast<int>(last));
    to = static_cast<E>(v);
  }
  // Reads items of at least `least` bytes each; their number is accepted only if the remaining
  // bytes can hold so many.
  template <class T, class F>
  void list(std::vector<T>& items, size_t least, F part) {
    uint32_t n = 0;
    number(n);
    if (n > (bytes_.size() - at_) / least)
      fail("step plan: a list of {} elements at byte {} of {}", n, at_, bytes_.size());
    items.resize(n);
    for (T& item : items) part(item);
  }
  size_t left() const { return bytes_.size() - at_; }

 private:
  std::span<const uint8_t> bytes_;
  size_t at_ = 0;
};

constexpr size_t kItemBytes = 33;  // bytes of an item without tokens and tables

// Passes everything behind the mark to a writer or reader.
template <class Way, class Plan>
void visit_plan(Way& way, Plan& plan) {
  const auto each = [&](auto& number) { way.number(number); };
  way.number(plan.serial);
  way.choice(plan.kind, StepPlan::Kind::kStop, "kind");
  for (auto* v : {&plan.block_kind, &plan.from, &plan.to, &plan.count}) way.number(*v);
  way.list(plan.ended, sizeof(uint64_t), each);
  way.list(plan.experts, sizeof(uint32_t), each);
  way.list(plan.items, kItemBytes, [&](auto& item) {
    for (auto* v : {&item.sequence, &item.position, &item.length}) way.number(*v);
    way.choice(item.logits, LogitsOf::kAll, "logits of kind");
    way.list(item.tokens, sizeof(int32_t), each);
    way.list(item.tables, sizeof(uint32_t),
             [&](auto& table) { way.list(table, sizeof(BlockId), each); });
  });
}

}  // namespace

std::vector<uint8_t> encode(const StepPlan& plan) {
  PlanWriter out;
  out.number(kPlanMark);
  visit_plan(out, plan);
  return out.take();
}

StepPlan decode_step_plan(std::span<const uint8_t> bytes) {
  PlanReader in(bytes);
  uint32_t mark = 0;
  in.number(mark);
  if (mark != kPlanMark) fail("step plan: begins with {:#x}; expected {:#x}", mark, kPlanMark);
  StepPlan plan;
  visit_plan(in, plan);
  if (in.left() > 0) fail("step plan: {} bytes behind its end", in.left());
  return plan;
}

}  // namespace moebius
