// SPDX-License-Identifier: Apache-2.0
// Runs experts that ranks spread over their GPUs: every rank chooses experts for all rows, which
// are the same everywhere, and computes rows of the experts that it has; these cross uncombined by
// the hosts, and are added in ascending expert, as where one device has them all. So bytes do not
// depend on the number of ranks.
//
// clang-format off
//   few rows    own experts | rows go to all others        | sums of all rows
//   many        own experts | rows go to whoever adds them | sums of own tokens | sums go to all others
// clang-format on
//
// Routing is the same on every rank, so who sends how much is known and never travels, nor which copy of a busy expert
// serves a token.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "device/cuda/cuda_items.h"
#include "quant/expert_copies.h"

namespace moebius {
namespace {

// Ranks share the sums from this many tokens on: that costs a second exchange, but with R ranks
// each receives only an R-th of the rows.
constexpr size_t kSharedSums = 64;
constexpr size_t kMostSpread = 64;  // experts per token that the plugin can add

// Returns the bytes to or from all ranks together.
size_t total(std::span<const size_t> bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), size_t{0});
}

// Knows which rank holds which experts.
class SpreadPlaces {
 public:
  // Lists places. expert_of: expert of each place, the same number of places per rank; empty: every
  // expert has one place.
  SpreadPlaces(size_t experts, size_t ranks, Placement placement, std::vector<uint32_t> expert_of)
      : ranks_(ranks), experts_(experts), expert_of_(std::move(expert_of)) {
    if (expert_of_.empty()) {
      for (size_t r = 0; r < ranks; ++r) {
        const std::vector<int32_t> local = expert_map(experts, ranks, r, placement);
        for (uint32_t e = 0; e < experts; ++e)
          if (local[e] >= 0) expert_of_.push_back(e), rank_of_.push_back(static_cast<uint32_t>(r));
      }
    } else if (expert_of_.size() % ranks != 0) {
      fail("{} places for experts on {} ranks; expected as many on each", expert_of_.size(), ranks);
    } else {
      const size_t each = expert_of_.size() / ranks;
      for (size_t p = 0; p < expert_of_.size(); ++p)
        rank_of_.push_back(static_cast<uint32_t>(p / each));
    }
    place(expert_of_);
  }
  void place(std::vector<uint32_t> expert_of) {
    if (expert_of.size() != expert_of_.size())
      fail("{} places for experts; expected {}", expert_of.size(), expert_of_.size());
    std::vector<std::vector<uint32_t>> places(experts_);
    for (size_t p = 0; p < expert_of.size(); ++p)
      places.at(expert_of[p]).push_back(static_cast<uint32_t>(p));
    first_.assign(1, 0), all_.clear();
    for (const std::vector<uint32_t>& some : places) {
      if (some.empty()) fail("no rank has expert {}", first_.size() - 1);
      all_.insert(all_.end(), some.begin(), some.end());
      first_.push_back(static_cast<uint32_t>(all_.size()));
    }
    expert_of_ = std::move(expert_of);
  }
  std::span<const uint32_t> expert_of() const { return expert_of_; }
  Range of_rank(size_t rank) const {
    const auto [a, b] = std::equal_range(rank_of_.begin(), rank_of_.end(), rank);
    return {static_cast<size_t>(a - rank_of_.begin()), static_cast<size_t>(b - rank_of_.begin())};
  }
  bool has_copies() const { return expert_of_.size() > experts_; }
  // Returns the rank that serves each item; -1: none.
  std::vector<int32_t> ranks_of(std::span<const int32_t> ids) const {
    std::vector<int32_t> out(ids.size());
    for (size_t i = 0; i < ids.size(); ++i)
      out[i] = ids[i] < static_cast<int32_t>(experts_) ? ids[i] : -1;
    if (has_copies()) {
      const std::vector<int32_t> known = out;
      choose_copies(known, {first_, all_, rank_of_, ranks_}, out);
    } else {
      for (int32_t& p : out)
        if (p >= 0) p = static_cast<int32_t>(all_[static_cast<size_t>(p)]);
    }
    for (int32_t& p : out)
      if (p >= 0) p = static_cast<int32_t>(rank_of_[static_cast<size_t>(p)]);
    return out;
  }

 private:
  size_t ranks_, experts_;
  std::vector<uint32_t> expert_of_, rank_of_;  // indexed by place
  std::vector<uint32_t> first_, all_;          // places of every expert (ExpertCopies)
};

class CudaSpreadExperts final : public ExpertsOp, public DividedExperts {
 public:
  CudaSpreadExperts(const CudaDevice& device, const Checkpoint& checkpoint,
                    const MoeRequest& request, const LayerLoadOptions& options)
      : device_(device),
        load_(device.load_of(options)),
        store_(checkpoint.shared_store()),
        exchange_(*request.exchange),
        ranks_(exchange_.spread()),
        place_(exchange_.spread_place()),
        places_(request.block->experts.size(), ranks_, options.rank.placement,
                options.rank.expert_of) {
    const MoeBlock& block = *request.block;
    if (own_places(places_.expert_of()).empty())
      fail("{}: {} experts on {} ranks; expected at least one each", block.name,
           block.experts.size(), ranks_);
    layer_ =
        load_cuda_experts(checkpoint, block, load_, request.part, own_places(places_.expert_of()));
    load_.progress = nullptr;
    facts_ = facts_of(device, block, layer_, layer_.layer().bytes(), places_here());
    most_rows_ = CudaItemsCall::most_rows(layer_.slots(), facts_.outputs);
  }
  const ExpertsFacts& facts() const override { return facts_; }
  DividedExperts* divided() override { return this; }

  void forward(Step& step, const RowSet& x, const RowSet& logits, const RowSet& y,
               std::span<uint32_t> counts) const override {
    uint32_t* counted = counts.empty() ? nullptr : device_.counts(step, counts);
    each_piece(most_rows_, x, logits, y, [&](const RowSet& a, const RowSet& b, const RowSet& c) {
      run(step, a, b, c, counted);
    });
  }

  std::span<const uint32_t> expert_of() const override { return places_.expert_of(); }
  size_t places_here() const override { return places_.of_rank(place_).size(); }
  bool may_move() const override { return layer_.exact(); }
  std::unique_ptr<Staged> stage(std::vector<uint32_t> expert_of) const override {
    auto staged = std::make_unique<Coming>(places_);
    staged->places.place(std::move(expert_of));
    const std::span<const uint32_t> before = own_places(this->expert_of()),
                                    then = own_places(staged->places.expert_of());
    for (size_t p = 0; p < then.size(); ++p)
      if (then[p] != before[p])
        staged->here.emplace_back(
            p, std::make_unique<CudaHostExpert>(*store_, layer_.all().at(then[p]), load_));
    return staged;
  }
  void change(std::unique_ptr<Staged> staged) override {
    auto& s = static_cast<Coming&>(*staged);
    for (const auto& [place, expert] : s.here) layer_.replace(place, *expert);
    layer_.set_places(own_places(s.places.expert_of()));
    places_ = std::move(s.places);
  }

 private:
  struct Coming final : Staged {
    explicit Coming(SpreadPlaces p) : places(std::move(p)) {}
    SpreadPlaces places;
    std::vector<std::pair<size_t, std::unique_ptr<CudaHostExpert>>> here;
  };
  std::span<const uint32_t> own_places(std::span<const uint32_t> expert_of) const {
    const Range own = places_.of_rank(place_);
    return expert_of.subspan(own.begin, own.size());
  }

  // Describes which rows this rank sends and receives: rows of its experts in the order of tokens
  // and slots, first those for rank 0, then those for rank 1, ...
  struct Crossing {
    std::vector<Range> sums;  // tokens whose rows each rank adds
    // Items whose rows are sent; with few rows, each goes to all other ranks.
    std::vector<int32_t> given;
    std::vector<size_t> out_bytes, in_bytes;  // bytes per rank
  };

  void run(Step& step, const RowSet& x, const RowSet& logits, const RowSet& y,
           uint32_t* counts) const {
    const CudaDevice& d = device_;
    const CudaItemsCall call(d, step, layer_, x, logits, y, counts);
    const bool shares = x.rows >= kSharedSums && y.stride == y.cols;
    call.choose();
    std::vector<Range> sums(ranks_, Range{0, x.rows});
    for (size_t r = 0; r < ranks_ && shares; ++r)
      sums[r] = {x.rows * r / ranks_, x.rows * (r + 1) / ranks_};
    d.run(step, [&] {
      const CudaItemsCall::Chosen chosen = call.chosen();
      // The device works while the host finds out which rank needs which rows.
      if (!places_.has_copies()) call.run_own();
      CudaDevice::DividedRoom& room = call.room();
      room.at_here.grow(d.api(), 3 * call.items() * sizeof(int32_t));
      const std::span at(reinterpret_cast<int32_t*>(room.at_here.data()), call.items());
      const std::vector<int32_t> ranks = places_.ranks_of(chosen.ids);
      if (places_.has_copies()) run_some(step, call, chosen.ids, ranks);
      const Crossing crossing = plan(ranks, sums, at);
      give_rows(step, call, crossing, shares);
      const size_t bytes = total(crossing.in_bytes);
      room.rows_here.grow(d.api(), std::max<size_t>(1, bytes));
      exchange_.start_exchange(room.sent_here.data(), crossing.out_bytes, room.rows_here.data(),
                               crossing.in_bytes);
      exchange_.finish_exchange();
      const CudaItems& others = call.divided().others;
      if (bytes > 0)
        d.check(d.api().upload(others.rows, room.rows_here.data(), bytes, d.stream(step)),
                "rows of experts");
      d.check(d.api().upload(others.at, at.data(), at.size_bytes(), d.stream(step)),
              "rows of experts");
    });
    call.add(sums[place_]);
    if (shares) d.run(step, [&] { share_sums(step, call, sums, y); });
  }

  // Runs only the items that this rank serves, because other ranks may have copies of its experts.
  void run_some(Step& step, const CudaItemsCall& call, std::span<const int32_t> ids,
                std::span<const int32_t> ranks) const {
    CudaDevice::DividedRoom& room = call.room();
    const size_t n = call.items();
    auto* mine = reinterpret_cast<int32_t*>(room.at_here.data()) + 2 * n;
    for (size_t i = 0; i < n; ++i) mine[i] = ranks[i] == static_cast<int32_t>(place_) ? ids[i] : -1;
    device_.reserve(step, room.served, n * sizeof(int32_t));
    auto* to = static_cast<int32_t*>(room.served.data());
    device_.check(device_.api().upload(to, mine, n * sizeof(int32_t), device_.stream(step)),
                  "experts");
    call.run_own(to);
  }

  // Plans the exchange. ranks: the rank that serves each item. at: receives the place of each row
  // that another rank sends; -1: the row does not come here.
  Crossing plan(std::span<const int32_t> ranks, std::span<const Range> sums,
                std::span<int32_t> at) const {
    const size_t slots = layer_.slots(), row = facts_.outputs * sizeof(float);
    Crossing c;
    c.out_bytes.assign(ranks_, 0), c.in_bytes.assign(ranks_, 0);
    std::vector<int32_t> rows(ranks_, 0);  // rows that come from each rank
    const Range& mine = sums[place_];
    const auto has = [](const Range& r, size_t t) { return t >= r.begin && t < r.end; };
    for (size_t i = 0; i < ranks.size(); ++i) {
      at[i] = -1;
      if (ranks[i] < 0) continue;
      const size_t token = i / slots;
      if (const auto rank = static_cast<size_t>(ranks[i]); rank != place_) {
        if (has(mine, token)) at[i] = rows[rank]++;
        continue;
      }
      bool goes = false;
      for (size_t r = 0; r < ranks_; ++r)
        if (r != place_ && has(sums[r], token)) {
          c.out_bytes[r] += row;
          goes = true;
        }
      if (goes) c.given.push_back(static_cast<int32_t>(i));
    }
    std::vector<int32_t> first(ranks_, 0);
    for (size_t r = 0; r + 1 < ranks_; ++r) first[r + 1] = first[r] + rows[r];
    for (size_t i = 0; i < at.size(); ++i)
      if (at[i] >= 0) at[i] += first[static_cast<size_t>(ranks[i])];
    for (size_t r = 0; r < ranks_; ++r) c.in_bytes[r] = static_cast<size_t>(rows[r]) * row;
    return c;
  }

  // Copies rows for other ranks to host memory. Only the device knows where the row of an item is.
  void give_rows(Step& step, const CudaItemsCall& call, const Crossing& c, bool shares) const {
    const CudaDevice& d = device_;
    CudaDevice::DividedRoom& room = call.room();
    const size_t n = c.given.size(), H = facts_.outputs;
    room.sent_here.grow(d.api(), std::max<size_t>(1, total(c.out_bytes)));
    if (n == 0) return;
    void* stream = d.stream(step);
    d.reserve(step, room.which, 2 * n * sizeof(int32_t));
    d.reserve(step, room.sent, n * H * sizeof(float));
    auto* items = static_cast<int32_t*>(room.which.data());
    int32_t* given = reinterpret_cast<int32_t*>(room.at_here.data()) + call.items();
    std::copy(c.given.begin(), c.given.end(), given);
    d.check(d.api().upload(items, given, n * sizeof(int32_t), stream), "rows of experts");
    const auto numbers = [](void* p, size_t rows, size_t cols) {  // rows of four-byte numbers
      return CudaRows{p, XType::kF32, rows, cols};
    };
    const CudaItems& own = call.divided().own;
    const CudaRows at = numbers(own.at, call.items(), 1), which = numbers(items + n, n, 1),
                   rows = numbers(own.rows, call.items(), H),
                   sent = numbers(room.sent.data(), n, H);
    d.check(d.api().take_rows(&at, items, &which, 1, stream), "rows of experts");
    d.check(d.api().take_rows(&rows, items + n, &sent, H, stream), "rows of experts");
    const size_t bytes = n * H * sizeof(float);
    d.check(d.api().download(room.sent_here.data(), sent.data, bytes, stream), "rows of experts");
    if (!shares) repeat(room.sent_here.data(), bytes);
  }

  // Repeats the first `count` bytes for every other rank.
  void repeat(uint8_t* bytes, size_t count) const {
    for (size_t r = 1; r + 1 < ranks_; ++r) std::memcpy(bytes + r * count, bytes, count);
  }

  // Sends the sums of this rank's tokens to all ranks, and receives theirs.
  void share_sums(Step& step, const CudaItemsCall& call, std::span<const Range> sums,
                  const RowSet& y) const {
    const CudaDevice& d = device_;
    CudaDevice::DividedRoom& room = call.room();
    const CudaRows to = d.at(step, y);
    const size_t row = y.cols * (to.type == XType::kF32 ? 4 : 2);
    const Range& mine = sums[place_];
    std::vector<size_t> out_bytes(ranks_, mine.size() * row), in_bytes(ranks_);
    for (size_t r = 0; r < ranks_; ++r) in_bytes[r] = sums[r].size() * row;
    out_bytes[place_] = in_bytes[place_] = 0;
    auto* rows = static_cast<uint8_t*>(to.data);
    void* stream = d.stream(step);
    d.flush(step);
    room.sent_here.grow(d.api(), total(out_bytes));
    d.check(
        d.api().download(room.sent_here.data(), rows + mine.begin * row, mine.size() * row, stream),
        "sums of experts");  // also waits for earlier uploads
    repeat(room.sent_here.data(), mine.size() * row);
    room.rows_here.grow(d.api(), total(in_bytes));
    exchange_.start_exchange(room.sent_here.data(), out_bytes, room.rows_here.data(), in_bytes);
    exchange_.finish_exchange();
    const size_t before = mine.begin * row, behind = (y.rows - mine.end) * row;
    if (before > 0)
      d.check(d.api().upload(rows, room.rows_here.data(), before, stream), "sums of experts");
    if (behind > 0)
      d.check(d.api().upload(rows + mine.end * row, room.rows_here.data() + before, behind, stream),
              "sums of experts");
  }

  const CudaDevice& device_;
  CudaLoad load_;
  std::shared_ptr<const TensorStore> store_;
  MoeExchange& exchange_;
  size_t ranks_, place_, most_rows_ = 1;
  SpreadPlaces places_;
  CudaExperts layer_;
  ExpertsFacts facts_;
};

}  // namespace

std::unique_ptr<ExpertsOp> CudaDevice::spread_experts(const Checkpoint& checkpoint,
                                                      const MoeRequest& request,
                                                      const LayerLoadOptions& options) {
  const RouterSpec& router = request.block->spec.router;
  if (request.exchange->cut() > 1 || request.part != MoePart::kBlock || request.other != nullptr)
    fail("device {}: ranks spread whole experts of {}, and cut none", name_, request.block->name);
  if (router.shared_slots > 0 || router.top_k > kMostSpread)
    fail(
        "device {}: {} has shared experts in slots of their own, or more than {} for a token; "
        "with --experts cpu ranks can spread them",
        name_, request.block->name, kMostSpread);
  auto made = std::make_unique<CudaSpreadExperts>(*this, checkpoint, request, options);
  add_weights(made->facts().packed_bytes);
  return made;
}

}  // namespace moebius
