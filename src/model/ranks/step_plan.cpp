// SPDX-License-Identifier: Apache-2.0
// Encodes plans: numbers are little-endian; a list is its length, then its elements (step_plan.h).
#include "model/ranks/step_plan.h"

#include <cstring>

#include "base/error.h"

namespace moebius {
namespace {

constexpr uint32_t kPlanMark = 0x4e4c5053;  // "SPLN"

class PlanWriter {
 public:
  template <class T>
  void number(T v) {
    for (size_t i = 0; i < sizeof(T); ++i)
      bytes_.push_back(static_cast<uint8_t>(static_cast<uint64_t>(v) >> (8 * i)));
  }
  template <class T>
  void list(const std::vector<T>& values) {
    number(static_cast<uint32_t>(values.size()));
    for (const T& v : values) number(v);
  }
  std::vector<uint8_t> take() { return std::move(bytes_); }

 private:
  std::vector<uint8_t> bytes_;
};

class PlanReader {
 public:
  explicit PlanReader(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  template <class T>
  T number() {
    if (bytes_.size() - at_ < sizeof(T))
      fail("step plan: ends at byte {}; expected {} more", bytes_.size(), sizeof(T));
    uint64_t v = 0;
    for (size_t i = 0; i < sizeof(T); ++i) v |= uint64_t{bytes_[at_ + i]} << (8 * i);
    at_ += sizeof(T);
    return static_cast<T>(v);
  }
  // Reads a list's length; it is accepted only if the remaining bytes can hold that many elements.
  size_t length(size_t least_bytes) {
    const uint32_t n = number<uint32_t>();
    if (n > (bytes_.size() - at_) / least_bytes)
      fail("step plan: a list of {} elements at byte {} of {}", n, at_, bytes_.size());
    return n;
  }
  template <class T>
  std::vector<T> list() {
    std::vector<T> out(length(sizeof(T)));
    for (T& v : out) v = number<T>();
    return out;
  }
  bool at_end() const { return at_ == bytes_.size(); }
  size_t at() const { return at_; }

 private:
  std::span<const uint8_t> bytes_;
  size_t at_ = 0;
};

StepPlan::Item read_item(PlanReader& in) {
  StepPlan::Item item;
  item.sequence = in.number<uint64_t>();
  item.position = in.number<uint64_t>();
  item.length = in.number<uint64_t>();
  const auto logits = in.number<uint8_t>();
  if (logits > static_cast<uint8_t>(LogitsOf::kAll))
    fail("step plan: logits of kind {}; expected 0 to 2", logits);
  item.logits = static_cast<LogitsOf>(logits);
  item.tokens = in.list<int32_t>();
  item.tables.resize(in.length(4));
  for (auto& table : item.tables) table = in.list<BlockId>();
  return item;
}

}  // namespace

std::vector<uint8_t> encode(const StepPlan& plan) {
  PlanWriter out;
  out.number(kPlanMark);
  out.number(plan.serial);
  out.number(static_cast<uint8_t>(plan.kind));
  for (const uint64_t v : {plan.block_kind, plan.from, plan.to, plan.count}) out.number(v);
  out.list(plan.ended);
  out.list(plan.experts);
  out.number(static_cast<uint32_t>(plan.items.size()));
  for (const StepPlan::Item& item : plan.items) {
    for (const uint64_t v : {item.sequence, item.position, item.length}) out.number(v);
    out.number(static_cast<uint8_t>(item.logits));
    out.list(item.tokens);
    out.number(static_cast<uint32_t>(item.tables.size()));
    for (const auto& table : item.tables) out.list(table);
  }
  return out.take();
}

StepPlan decode_step_plan(std::span<const uint8_t> bytes) {
  PlanReader in(bytes);
  if (const auto mark = in.number<uint32_t>(); mark != kPlanMark)
    fail("step plan: begins with {:#x}; expected {:#x}", mark, kPlanMark);
  StepPlan plan;
  plan.serial = in.number<uint64_t>();
  const auto kind = in.number<uint8_t>();
  if (kind > static_cast<uint8_t>(StepPlan::Kind::kStop))
    fail("step plan: kind {}; expected 0 to {}", kind, static_cast<int>(StepPlan::Kind::kStop));
  plan.kind = static_cast<StepPlan::Kind>(kind);
  for (uint64_t* v : {&plan.block_kind, &plan.from, &plan.to, &plan.count})
    *v = in.number<uint64_t>();
  plan.ended = in.list<uint64_t>();
  plan.experts = in.list<uint32_t>();
  const size_t items = in.length(33);  // bytes of an item without tokens and tables
  plan.items.reserve(items);
  for (size_t i = 0; i < items; ++i) plan.items.push_back(read_item(in));
  if (!in.at_end()) fail("step plan: {} bytes behind its end", bytes.size() - in.at());
  return plan;
}

}  // namespace moebius
