// SPDX-License-Identifier: Apache-2.0
// A backend without a model: it stores the tokens it is given in its blocks and computes logits as
// a hash of the whole prefix as it is read back through the tables (of windows: as far as they
// reach; of states: the state). So a wrong table, a block written while shared, a stale tail or an
// evicted block that is still in use changes tokens, or is noted in `violations`.
#pragma once
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <limits>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "model/backend.h"
#include "nn/sampler.h"
#include "unit/allocations_util.h"

namespace moebius::test {

// The call of each sort, counted from 0, that fails.
struct FakeFaults {
  long submit = -1, collect = -1, copy = -1, commit = -1, cut = -1;
  long times = 1;          // calls in a row that fail
  bool no_memory = false;  // by bad_alloc
  bool lost = false;       // and the backend with it
};

class FakeBackend : public Backend {
 public:
  static constexpr int32_t kPoison = -99;

  explicit FakeBackend(std::vector<KvKind> kinds, size_t vocab = 64)
      : kinds_(std::move(kinds)), vocab_(vocab), memory_(kinds_.size()) {}

  static std::vector<KvKind> full() { return {{"full", 1000, SIZE_MAX, true}}; }
  static std::vector<KvKind> all_kinds() {
    return {
        {"full", 1000, SIZE_MAX, true}, {"window 150", 700, 150, true}, {"state", 300, 1, false}};
  }

  // What a model would say after these tokens, without any blocks.
  std::vector<float> row(std::span<const int32_t> tokens) const {
    uint64_t h = 0;
    for (size_t k = 0; k < kinds_.size(); ++k) {
      const size_t seen = std::min(tokens.size(), kinds_[k].cuttable ? kinds_[k].reach : SIZE_MAX);
      uint64_t part = k + 1;
      for (const int32_t t : tokens.last(seen)) part = chain(part, t);
      h = chain(h + part, static_cast<int32_t>(k));
    }
    std::vector<float> out(vocab_);
    fill(h, contains(tokens, nan_token), out);
    return out;
  }

  size_t vocab() const override { return vocab_; }
  std::span<const KvKind> kv_kinds() const override { return kinds_; }

  bool drafts() const override { return true; }
  size_t batches_in_flight() const override { return batches_wanted; }

  Ticket submit(std::span<const BatchItem> items) override {
    const NoAllocationFails pause;
    count(calls.submit, faults.submit, "submit");
    std::vector<std::set<BlockId>> written(kinds_.size());
    for (size_t i = 0; i < items.size(); ++i)
      if (contains(items[i].tokens, bad_token)) throw ItemError("this token cannot run", i);
    for (const BatchItem& i : items) check(i, written);
    if (jobs_.size() == batches_wanted) violation("more batches under way than wanted");
    jobs_.push_back({++last_ticket_, {items.begin(), items.end()}, {}});
    // With several batches in flight one runs before what is done to blocks next, and is collected later.
    if (batches_wanted > 1) perform(jobs_.back().items, jobs_.back().out);
    most_under_way = std::max(most_under_way, jobs_.size());
    return last_ticket_;
  }

  void collect(Ticket ticket, StepOutput& out) override {
    const NoAllocationFails pause;
    if (jobs_.empty() || jobs_.front().ticket != ticket) violation("a ticket out of order");
    const std::vector<BatchItem> items = std::move(jobs_.front().items);
    out = std::move(jobs_.front().out);
    jobs_.pop_front();
    if (fails(calls.collect, faults.collect))
      for (const BatchItem& i : items) leave_garbage(i);
    count(calls.collect, faults.collect, "collect");
    if (batches_wanted == 1) perform(items, out);
  }

  bool lost() const override { return is_lost; }

  void perform(const std::vector<BatchItem>& items, StepOutput& out) {
    out = {};
    out.stats.items = items.size();
    uint64_t keys = 0;
    for (BatchItem i : items) {
      const std::vector<int32_t> tokens = drafted(i, out.drafts);
      i.tokens = tokens, i.drafts = 0;
      run(i, out.logits);
      out.stats.rows += i.tokens.size();
      keys += i.tokens.size() * i.position;
    }
    out.stats.nanoseconds = 100000 + 10000 * out.stats.rows + keys;
    out.stats.phases[static_cast<size_t>(Phase::kAttention)] = keys;
    out.stats.weight_bytes = 1000;
    out.stats.kv_bytes = keys;
    out.stats.expert_rows.assign(4, static_cast<uint32_t>(out.stats.rows));
    now += out.stats.nanoseconds;
    rows += out.stats.rows;
  }

  void copy_block(size_t kind, BlockId from, BlockId to, size_t tokens) override {
    count(calls.copy, faults.copy, "copy");
    const NoAllocationFails pause;
    const Block b = at(kind, from);
    if (kinds_[kind].cuttable ? tokens > b.filled : tokens != b.filled || b.dirty)
      violation(fmt::format("copy of {} tokens of a block with {}", tokens, b.filled));
    Block& c = at(kind, to) = b;
    c.filled = tokens;
    std::fill(c.tokens.begin() + static_cast<std::ptrdiff_t>(tokens), c.tokens.end(), kPoison);
  }

  void cut_block(size_t kind, BlockId id, size_t tokens) override {
    count(calls.cut, faults.cut, "cut");
    const NoAllocationFails pause;
    Block& b = at(kind, id);
    if (!kinds_[kind].cuttable && tokens != b.filled && tokens == b.filled_before)
      b.filled = b.filled_before, b.state = b.state_before;
    if (kinds_[kind].cuttable ? tokens > b.filled : tokens != b.filled)
      violation(fmt::format("a block of {} tokens is cut at {}", b.filled, tokens));
    b.filled = tokens;
    b.dirty = false;
  }

  // A block as it stands, and the length it is for: what is read again where the other one was not
  // written shows.
  size_t stored_bytes(size_t) const override { return sizeof(Block) + sizeof(uint64_t); }
  void read_block(size_t kind, BlockId id, size_t length, std::span<uint8_t> out) override {
    const NoAllocationFails pause;
    const Block b = at(kind, id);
    if (b.dirty || b.filled != (length - 1) % kBlockTokens + 1)
      violation(fmt::format("a block of {} tokens is kept as one at {}", b.filled, length));
    const uint64_t l = length;
    std::memcpy(out.data(), &b, sizeof(b));
    std::memcpy(out.data() + sizeof(b), &l, sizeof(l));
  }
  bool write_block(size_t kind, BlockId id, size_t length, Fill fill) override {
    const NoAllocationFails pause;
    std::vector<uint8_t> bytes(stored_bytes(kind));
    if (!fill(bytes)) return false;
    uint64_t l = 0;
    std::memcpy(static_cast<void*>(&at(kind, id)), bytes.data(), sizeof(Block));
    std::memcpy(&l, bytes.data() + sizeof(Block), sizeof(l));
    if (l != length) violation(fmt::format("a block for {} is read for {}", l, length));
    now += read_nanoseconds;
    ++blocks_read;
    return true;
  }

  void commit_blocks(size_t, size_t count_of_blocks) override {
    count(calls.commit, faults.commit, "commit");
    committed += count_of_blocks;
  }
  void trim_blocks(size_t kind, size_t n) override {
    if (n < memory_[kind].size()) memory_[kind].resize(n);
  }

  // For KvOptions::freed.
  void freed(size_t kind, BlockId id) {
    if (id < memory_[kind].size()) memory_[kind][id] = Block();
  }
  size_t blocks_seen(size_t kind) const { return memory_[kind].size(); }

  FakeFaults faults, calls{0, 0, 0, 0, 0};
  std::vector<std::string> violations;
  int32_t nan_token = -1;    // a sequence that holds it gets logits that are no numbers
  int32_t bad_token = -1;    // an item with it cannot be run
  size_t wrong_drafts = 50;  // of 100 that it makes
  bool is_lost = false;
  uint64_t now = 0;  // nanoseconds of all steps
  size_t rows = 0, committed = 0;
  size_t batches_wanted = 1, most_under_way = 0;
  uint64_t read_nanoseconds = 0;  // of a block from disk
  size_t blocks_read = 0;

 private:
  struct Block {
    std::array<int32_t, kBlockTokens> tokens = poisoned();
    size_t filled = 0;
    uint64_t state = 0;        // after `filled` tokens of the block
    size_t filled_before = 0;  // by the step that wrote it last
    uint64_t state_before = 0;
    bool dirty = false;  // a failed step may have written behind them
    static std::array<int32_t, kBlockTokens> poisoned() {
      std::array<int32_t, kBlockTokens> out;
      out.fill(kPoison);
      return out;
    }
  };
  struct Job {
    Ticket ticket;
    std::vector<BatchItem> items;
    StepOutput out;
  };

  static uint64_t chain(uint64_t h, int32_t token) {
    return SplitMix64(h ^ (uint64_t{0x100000001b3} * static_cast<uint32_t>(token + 1))).next();
  }
  static bool contains(std::span<const int32_t> tokens, int32_t t) {
    return std::find(tokens.begin(), tokens.end(), t) != tokens.end();
  }
  void fill(uint64_t h, bool broken, std::span<float> out) const {
    SplitMix64 random(h);
    for (float& v : out)
      v = broken ? std::numeric_limits<float>::quiet_NaN()
                 : static_cast<float>(random.uniform() * 8 - 4);
  }

  void violation(std::string what) {
    if (violations.size() < 20) violations.push_back(std::move(what));
  }
  bool fails(long call, long fails_at) const {
    return fails_at >= 0 && call >= fails_at && call < fails_at + faults.times;
  }
  void count(long& calls_so_far, long fails_at, const char* what) {
    if (!fails(calls_so_far++, fails_at)) return;
    is_lost = faults.lost;
    if (faults.no_memory) throw std::bad_alloc();
    fail("injected fault in {}", what);
  }

  void check(const BatchItem& i, std::vector<std::set<BlockId>>& written) {
    if (i.tokens.empty()) fail("an item without tokens");
    for (const int32_t t : i.tokens)
      if (t < 0 || static_cast<size_t>(t) >= vocab_) fail("token {} is out of range", t);
    if (i.drafts > 0 && (i.tokens.size() != 1 || i.logits != LogitsOf::kAll))
      violation("drafts behind something else than one token with its logits");
    const size_t end = (i.position + i.tokens.size() + i.drafts - 1) / kBlockTokens;
    for (size_t k = 0; k < kinds_.size(); ++k) {
      if (i.tables->size() != kinds_.size() || (*i.tables)[k].size() <= end)
        fail("a table is too short");
      for (size_t b = i.position / kBlockTokens; b <= end; ++b)
        if (!written[k].insert((*i.tables)[k][b]).second || (*i.tables)[k][b] == kNoBlock)
          violation("two items write one block, or none");
    }
  }

  Block& at(size_t kind, BlockId id) {
    if (id >= memory_[kind].size()) memory_[kind].resize(id + 1);
    return memory_[kind][id];
  }
  Block& block_of(size_t kind, const BatchItem& i, size_t position) {
    const BlockId id = (*i.tables)[kind][position / kBlockTokens];
    if (id == kNoBlock) violation(fmt::format("a block of kind {} is missing", kind));
    return at(kind, id == kNoBlock ? 0 : id);
  }
  // Tokens [first, position) of an item.
  void read(size_t kind, const BatchItem& i, size_t first, std::vector<int32_t>& out) {
    for (size_t p = first; p < i.position;) {
      const Block& b = block_of(kind, i, p);
      const size_t end = std::min(i.position, (p / kBlockTokens + 1) * kBlockTokens);
      if (b.filled < end - p / kBlockTokens * kBlockTokens)
        violation(fmt::format("position {} of kind {} is read but not written", end - 1, kind));
      for (; p < end; ++p) out.push_back(b.tokens[p % kBlockTokens]);
    }
  }
  void write(size_t kind, const BatchItem& i, size_t position, int32_t token) {
    Block& b = block_of(kind, i, position);
    const size_t at = position % kBlockTokens;
    if (at == 0)
      b = Block();
    else if (b.filled != at)
      violation(fmt::format("position {} of kind {} is written behind {} tokens", position, kind,
                            b.filled));
    b.tokens[at] = token;
    b.filled = at + 1;
  }

  // The tokens of an item and what it drafts: the likeliest of each row, or another. With windows
  // alone what lies behind them is not known, and drafts are wrong.
  std::vector<int32_t> drafted(const BatchItem& i, std::vector<int32_t>& drafts) {
    std::vector<int32_t> out(i.tokens.begin(), i.tokens.end()), text;
    if (i.drafts == 0) return out;
    if (kinds_[0].reach == SIZE_MAX) read(0, i, 0, text);
    text.insert(text.end(), out.begin(), out.end());
    for (size_t n = 0; n < i.drafts; ++n) {
      const std::vector<float> logits = row(text);
      const auto likeliest =
          static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      const bool wrong = random_.below(100) < wrong_drafts;
      text.push_back(wrong ? (likeliest + 1) % 60 : likeliest);
      out.push_back(text.back());
      drafts.push_back(text.back());
    }
    return out;
  }

  // The chains after each token of an item, of one kind.
  std::vector<uint64_t> chains(size_t k, const BatchItem& i, bool& broken) {
    std::vector<uint64_t> out;
    std::vector<int32_t> seen;
    const size_t reach = kinds_[k].reach;
    const size_t first = reach == SIZE_MAX || i.position + 1 <= reach ? 0 : i.position + 1 - reach;
    read(k, i, first, seen);
    uint64_t whole = k + 1;
    for (const int32_t t : seen) whole = chain(whole, t);
    for (size_t n = 0; n < i.tokens.size(); ++n) {
      write(k, i, i.position + n, i.tokens[n]);
      seen.push_back(i.tokens[n]);
      if (reach == SIZE_MAX) {
        out.push_back(whole = chain(whole, i.tokens[n]));
        continue;
      }
      uint64_t part = k + 1;
      for (const int32_t t : std::span(seen).last(std::min(seen.size(), reach)))
        part = chain(part, t);
      out.push_back(part);
    }
    broken = broken || contains(seen, nan_token);
    return out;
  }

  std::vector<uint64_t> states(size_t k, const BatchItem& i) {
    std::vector<uint64_t> out;
    uint64_t state = k + 1;
    if (i.position > 0) {
      const Block& b = block_of(k, i, i.position - 1);
      if (b.dirty || b.filled != (i.position - 1) % kBlockTokens + 1)
        violation(fmt::format("the state at {} is read from one at {}", i.position, b.filled));
      state = b.state;
      Block& first = block_of(k, i, i.position);
      first.filled_before = &first == &b ? b.filled : 0;
      first.state_before = b.state;
    }
    for (size_t n = 0; n < i.tokens.size(); ++n) {
      out.push_back(state = chain(state, i.tokens[n]));
      Block& b = block_of(k, i, i.position + n);
      b.state = state;
      b.filled = (i.position + n) % kBlockTokens + 1;
      b.dirty = false;
    }
    return out;
  }

  void run(const BatchItem& i, std::vector<float>& logits) {
    bool broken = false;
    std::vector<uint64_t> h(i.tokens.size(), 0);
    for (size_t k = 0; k < kinds_.size(); ++k) {
      const std::vector<uint64_t> part = kinds_[k].cuttable ? chains(k, i, broken) : states(k, i);
      for (size_t n = 0; n < h.size(); ++n) h[n] = chain(h[n] + part[n], static_cast<int32_t>(k));
    }
    const size_t from = i.logits == LogitsOf::kAll    ? 0
                        : i.logits == LogitsOf::kLast ? h.size() - 1
                                                      : h.size();
    for (size_t n = from; n < h.size(); ++n) {
      logits.resize(logits.size() + vocab_);
      fill(h[n], broken, std::span(logits).last(vocab_));
    }
  }

  // What a step that failed may leave behind the tokens that were there.
  void leave_garbage(const BatchItem& i) {
    for (size_t k = 0; k < kinds_.size(); ++k)
      for (size_t p = i.position; p < i.position + i.tokens.size() + i.drafts; ++p) {
        Block& b = block_of(k, i, p);
        if (p % kBlockTokens == 0) b = Block();
        if (kinds_[k].cuttable) {
          b.tokens[p % kBlockTokens] = kPoison + 1;
          b.filled = p % kBlockTokens + 1;
        } else {
          b.dirty = true;
        }
      }
  }

  std::vector<KvKind> kinds_;
  SplitMix64 random_{7};
  size_t vocab_;
  std::vector<std::deque<Block>> memory_;
  std::deque<Job> jobs_;
  Ticket last_ticket_ = 0;
};

}  // namespace moebius::test
