// SPDX-License-Identifier: Apache-2.0
// A layer whose experts lie on the device and on the CPU: the device chooses experts; while it computes
// rows of its own, the CPU computes those of the others, which cross uncombined; the device adds all of them
// in the order of a single one. So where an expert lies changes no byte if both sides have its exact numbers.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "device/cpu/expert_part.h"
#include "device/cuda/cuda_device.h"
#include "nn/schedule.h"

namespace moebius {
namespace {

constexpr size_t kItemBytes = size_t{64} << 20;  // of rows that are computed at a time
constexpr size_t kMostItems = 32768;             // that plain kernels take in one call

class CudaDividedExperts final : public ExpertsOp, public DividedExperts {
 public:
  CudaDividedExperts(const CudaDevice& device, CpuDevice& cpu, const Checkpoint& checkpoint,
                     const MoeRequest& request, const LoadOptions& options)
      : device_(device),
        load_(device.load_of(options)),
        store_(checkpoint.shared_store()),
        layer_(load_cuda_experts(checkpoint, *request.block, load_, request.part,
                                 std::span(request.expert_of).first(request.here))),
        part_(cpu, checkpoint, *request.block, options, request.expert_of, request.here),
        here_(request.here),
        slots_(layer_.slots()) {
    if (!layer_.routes())
      fail("device {}: the experts of {} are chosen on the CPU", device.name(),
           request.block->name);
    load_.progress = nullptr;
    const MoeBlock& block = *request.block;
    const size_t shared = block.shared[2] != nullptr ? 1 : 0;
    facts_.experts = layer_.spec().experts, facts_.top_k = block.spec.router.top_k;
    facts_.outputs = block.spec.hidden;
    facts_.packed_bytes = layer_.layer().bytes() + part_.packed_bytes();
    facts_.expert_bytes = facts_.packed_bytes / (facts_.experts + shared);
    facts_.every_token_bytes = shared * facts_.expert_bytes;
    const size_t row = slots_ * facts_.outputs * sizeof(float);
    most_rows_ = std::max<size_t>(
        1, std::min({kPieceRows, kItemBytes / row, kMostItems / std::max<size_t>(1, slots_)}));
  }
  const ExpertsFacts& facts() const override { return facts_; }
  DividedExperts* divided() override { return this; }
  uint64_t device_bytes() const { return layer_.layer().bytes(); }

  void forward(Step& step, const RowSet& x, const RowSet& logits, const RowSet& y,
               std::span<uint32_t> counts) const override {
    uint32_t* counted = counts.empty() ? nullptr : device_.counts(step, counts);
    for (size_t first = 0; first < x.rows; first += most_rows_) {
      const auto some = [&](RowSet r) {
        r.offset += first * r.stride, r.rows = std::min(most_rows_, x.rows - first);
        return r;
      };
      run(step, some(x), some(logits), some(y), counted);
    }
  }

  std::span<const uint32_t> expert_of() const override { return part_.expert_of(); }
  size_t places_here() const override { return here_; }
  bool may_move() const override { return layer_.exact() && part_.exact(); }

  std::unique_ptr<Staged> stage(std::vector<uint32_t> expert_of) const override {
    const std::span<const uint32_t> before = this->expert_of();
    if (expert_of.size() != before.size())
      fail("{} places for experts; expected {}", expert_of.size(), before.size());
    auto staged = std::make_unique<Coming>();
    for (size_t p = 0; p < here_; ++p)
      if (expert_of[p] != before[p])
        staged->here.emplace_back(
            p, std::make_unique<CudaHostExpert>(*store_, layer_.all().at(expert_of[p]), load_));
    staged->there = part_.pack(expert_of);
    staged->expert_of = std::move(expert_of);
    return staged;
  }
  void change(std::unique_ptr<Staged> staged) override {
    auto& s = static_cast<Coming&>(*staged);
    for (const auto& [place, expert] : s.here) layer_.replace(place, *expert);
    layer_.set_places(std::span(s.expert_of).first(here_));
    part_.place(std::move(s.expert_of), std::move(s.there));
  }

 private:
  struct Coming final : Staged {
    std::vector<uint32_t> expert_of;
    std::vector<std::pair<size_t, std::unique_ptr<CudaHostExpert>>> here;
    CpuExpertPart::Packed there;
  };

  void run(Step& step, const RowSet& x, const RowSet& logits, const RowSet& y,
           uint32_t* counts) const {
    const CudaDevice& d = device_;
    CudaDevice::DividedRoom& room = d.divided_room(step);
    const size_t T = x.rows, n = T * slots_, H = facts_.outputs;
    const bool zeros = layer_.spec().router.zero_experts > 0;
    d.reserve(step, room.chosen, (2 * n + T) * sizeof(float));
    d.reserve(step, room.own, n * H * sizeof(float));
    d.reserve(step, room.others, n * H * sizeof(float));
    d.reserve(step, room.at, 2 * n * sizeof(int32_t));
    d.reserve(step, room.shared, (T * H + T) * sizeof(float));
    auto* ids = static_cast<int32_t*>(room.chosen.data());
    auto* weights = reinterpret_cast<float*>(ids + n);
    float* zero_weights = zeros ? weights + n : nullptr;
    auto* at = static_cast<int32_t*>(room.at.data());
    auto* shared = static_cast<float*>(room.shared.data());
    const CudaRouting routing{ids, weights, zero_weights, slots_};
    const CudaDivided divided{{static_cast<float*>(room.own.data()), at},
                              {static_cast<float*>(room.others.data()), at + n},
                              shared,
                              shared + T * H};
    const CudaRows from = d.at(step, x), to = d.at(step, y), scores = d.at(step, logits);
    const CudaChosen chosen{ids, weights, counts};
    void *layer = layer_.layer().get(), *stream = d.stream(step);
    const auto mark = [&](uint64_t what) {
      return CudaMark()
          .add(what)
          .add(layer)
          .add(from)
          .add(to)
          .add(scores)
          .add(ids)
          .add(counts)
          .add(divided.own.rows)
          .add(divided.others.rows)
          .add(at)
          .add(shared);
    };
    d.launch(step, mark(kChoose), "choice of experts",
             [&d, layer, scores, chosen, zero_weights, stream] {
               d.check(d.api().choose_experts(layer, &scores, &chosen, zero_weights, stream),
                       "experts");
             });
    x.device->on_host(step, x, {}, [&](HostRows rows, HostRows) {
      room.chosen_here.grow(d.api(), 2 * n * sizeof(float));
      room.at_here.grow(d.api(), n * sizeof(int32_t));
      d.check(d.api().download(room.chosen_here.data(), ids, 2 * n * sizeof(float), stream),
              "chosen experts");
      d.launch(step, mark(kItems), "experts", [&d, layer, from, routing, divided, stream] {
        d.check(d.api().run_items(layer, &from, &routing, &divided, stream), "experts");
      });
      d.flush(step);  // runs while the CPU does its part
      const std::span chosen_ids(reinterpret_cast<const int32_t*>(room.chosen_here.data()), n);
      const std::span chosen_weights(reinterpret_cast<const float*>(room.chosen_here.data()) + n,
                                     n);
      const std::span items(reinterpret_cast<int32_t*>(room.at_here.data()), n);
      if (part_.place_items(chosen_ids, items) > 0)
        part_.run(rows.data, chosen_ids, chosen_weights, [&](std::span<const float> made) {
          room.rows_here.grow(d.api(), made.size_bytes());
          std::memcpy(room.rows_here.data(), made.data(), made.size_bytes());
          d.check(
              d.api().upload(divided.others.rows, room.rows_here.data(), made.size_bytes(), stream),
              "rows of experts");
        });
      d.check(d.api().upload(divided.others.at, room.at_here.data(), items.size_bytes(), stream),
              "rows of experts");
    });
    d.launch(step, mark(kSum), "sum of experts", [&d, layer, from, routing, divided, to, stream] {
      d.check(d.api().add_items(layer, &from, &routing, &divided, &to, stream), "experts");
    });
  }

  enum Call : uint64_t { kChoose = 101, kItems, kSum };  // what marks are of
  const CudaDevice& device_;
  CudaLoad load_;
  std::shared_ptr<const TensorStore> store_;
  CudaExperts layer_;
  CpuExpertPart part_;
  size_t here_, slots_, most_rows_ = 1;
  ExpertsFacts facts_;
};

}  // namespace

std::unique_ptr<ExpertsOp> CudaDevice::divided_experts(const Checkpoint& checkpoint,
                                                       const MoeRequest& request,
                                                       const LoadOptions& options) {
  auto* cpu = dynamic_cast<CpuDevice*>(request.other);
  if (cpu == nullptr || !cpu->immediate())
    fail("device {}: experts of {} can be on the CPU, not on {}", name_, request.block->name,
         request.other->name());
  auto made = std::make_unique<CudaDividedExperts>(*this, *cpu, checkpoint, request, options);
  add_weights(made->device_bytes());
  return made;
}

}  // namespace moebius
