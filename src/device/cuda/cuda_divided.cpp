// SPDX-License-Identifier: Apache-2.0
// Runs a layer whose experts are divided between the GPU and the CPU: the GPU ("device") chooses
// experts; while it computes rows of its own, the CPU computes those of the others, which cross
// uncombined; the device adds all of them in the order of a single one. So where an expert lies
// changes no byte if both sides have its exact numbers. Then the CPU's experts may be streamed,
// too: with enough rows their weights cross, not the rows. Where all are the CPU's, it adds its
// rows before they cross.
#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/human.h"
#include "device/cpu/expert_part.h"
#include "device/cuda/cuda_items.h"

namespace moebius {
namespace {

class CudaDividedExperts final : public ExpertsOp, public DividedExperts {
 public:
  CudaDividedExperts(const CudaDevice& device, CpuDevice& cpu, const Checkpoint& checkpoint,
                     const MoeRequest& request, const LayerLoadOptions& options)
      : device_(device),
        load_(device.load_of(options)),
        store_(checkpoint.shared_store()),
        layer_(load_cuda_experts(checkpoint, *request.block, load_, request.part,
                                 std::span(request.expert_of).first(request.here))),
        part_(cpu, checkpoint, *request.block, options, request.expert_of, request.here),
        here_(request.here) {
    load_.progress = nullptr;
    facts_ = facts_of(device, *request.block, layer_, layer_.layer().bytes() + part_.packed_bytes(),
                      layer_.spec().experts);
    most_rows_ = CudaItemsCall::most_rows(layer_.slots(), facts_.outputs, device.item_bytes());
  }
  void stream(const CudaDevice& device, CudaStreams& streams, const Checkpoint& checkpoint,
              const MoeBlock& block) {
    if (!exact())
      fail(
          "device {}: the experts of {} differ in their last bits from those of the CPU, so they "
          "cannot be streamed",
          device.name(), block.name);
    streams_ = &streams;
    streamed_.emplace(streams, checkpoint, block, load_, expert_of().subspan(here_));
    stream_rows_ = device.stream_rows(*streamed_, part_, layer_.slots());
  }
  const ExpertsFacts& facts() const override { return facts_; }
  DividedExperts* divided() override { return here_ > 0 ? this : nullptr; }
  uint64_t device_bytes() const { return layer_.layer().bytes(); }

  void forward(Step& step, const RowSet& x, const RowSet& logits, const RowSet& y,
               std::span<uint32_t> counts) const override {
    uint32_t* counted = counts.empty() ? nullptr : device_.counts(step, counts);
    if (x.rows >= stream_rows_) return run_streamed(step, x, logits, y, counted);
    each_piece(most_rows_, x, logits, y, [&](const RowSet& a, const RowSet& b, const RowSet& c) {
      run(step, a, b, c, counted);
    });
  }

  std::span<const uint32_t> expert_of() const override { return part_.expert_of(); }
  size_t places_here() const override { return here_; }
  bool may_move() const override { return exact(); }

  std::unique_ptr<Staged> stage(std::vector<uint32_t> expert_of) const override {
    const std::span<const uint32_t> before = this->expert_of();
    if (expert_of.size() != before.size())
      fail("{} places for experts; expected {}", expert_of.size(), before.size());
    auto staged = std::make_unique<Coming>();
    for (size_t p = 0; p < here_; ++p)
      if (expert_of[p] != before[p])
        staged->here.emplace_back(
            p, std::make_unique<CudaHostExpert>(*store_, layer_.all().at(expert_of[p]), load_));
    for (size_t p = here_; p < expert_of.size() && streamed_; ++p)
      if (expert_of[p] != before[p])
        staged->streamed.emplace_back(
            p - here_,
            std::make_unique<CudaHostExpert>(*store_, layer_.all().at(expert_of[p]), load_));
    staged->there = part_.pack(expert_of);
    staged->expert_of = std::move(expert_of);
    return staged;
  }
  void change(std::unique_ptr<Staged> staged) override {
    auto& s = static_cast<Coming&>(*staged);
    for (const auto& [place, expert] : s.here) layer_.replace(place, *expert);
    layer_.set_places(std::span(s.expert_of).first(here_));
    if (streamed_) streamed_->replace(s.streamed, std::span(s.expert_of).subspan(here_));
    part_.place(std::move(s.expert_of), std::move(s.there));
  }

 private:
  struct Coming final : Staged {
    std::vector<uint32_t> expert_of;
    std::vector<StreamedExperts::Coming> here, streamed;
    CpuExpertPart::Packed there;
  };

  bool exact() const { return layer_.exact() && part_.exact(); }

  void run(Step& step, const RowSet& x, const RowSet& logits, const RowSet& y,
           uint32_t* counts) const {
    const CudaDevice& d = device_;
    const CudaItemsCall call(d, step, layer_, x, logits, y, counts);
    CudaDevice::DividedRoom& room = call.room();
    const CudaItems& others = call.divided().others;
    void* stream = d.stream(step);
    const auto upload = [&](void* to, const CudaHostRoom& from, size_t bytes) {
      if (bytes > 0) d.check(d.api().upload(to, from.data(), bytes, stream), "rows of experts");
    };
    call.choose();
    call.fetch_choice();
    x.device->on_host(step, x, {}, [&](HostRows rows, HostRows) {
      const CudaItemsCall::Chosen chosen = call.fetched();
      // Runs while the CPU computes its part.
      if (here_ > 0 || facts_.every_token_bytes > 0) call.run_own();
      size_t made = 0;
      const auto place = [&](size_t numbers) {
        made = numbers * sizeof(float);
        room.rows_here.grow(d.api(), made);
        return reinterpret_cast<float*>(room.rows_here.data());
      };
      if (part_.adds()) {
        part_.run(rows.data, chosen.ids, chosen.weights, place);
        upload(others.rows, room.rows_here, made);
        return;
      }
      room.at_here.grow(d.api(), call.items() * sizeof(int32_t));
      const std::span items(reinterpret_cast<int32_t*>(room.at_here.data()), call.items());
      if (part_.place_items(chosen.ids, items) > 0)
        part_.run(rows.data, chosen.ids, chosen.weights, place);
      upload(others.rows, room.rows_here, made);
      upload(others.at, room.at_here, items.size_bytes());
    });
    if (part_.adds())
      call.add_sums();
    else
      call.add({0, x.rows});
  }

  // Runs the CPU's experts on the device; their weights are copied once for all pieces of the rows.
  void run_streamed(Step& step, const RowSet& x, const RowSet& logits, const RowSet& y,
                    uint32_t* counts) const {
    device_.flush(step);
    CudaStreams::Turn turn(*streams_, *streamed_, device_.stream(step));
    each_piece(most_rows_, x, logits, y, [&](const RowSet& a, const RowSet& b, const RowSet& c) {
      const CudaItemsCall call(device_, step, layer_, a, b, c, counts);
      call.choose();
      call.run_own();
      call.run_others(streamed_->layer().get());
      call.add({0, a.rows});
    });
    device_.flush(step);
    turn.end();
  }

  const CudaDevice& device_;
  CudaLoad load_;
  std::shared_ptr<const TensorStore> store_;
  CudaExperts layer_;
  CpuExpertPart part_;
  size_t here_, most_rows_ = 1;
  ExpertsFacts facts_;
  CudaStreams* streams_ = nullptr;
  std::optional<StreamedExperts> streamed_;
  size_t stream_rows_ = kNeverStreamed;
};

}  // namespace

CudaStreams* CudaDevice::streams_of(int layer) {
  if (layer < 0 || std::find(streamed_.layers.begin(), streamed_.layers.end(),
                             static_cast<size_t>(layer)) == streamed_.layers.end())
    return nullptr;
  if (streams_ == nullptr) {
    streams_ = std::make_unique<CudaStreams>(api(), streamed_.buffers, streamed_.buffer_bytes);
    add_weights(streams_->device_bytes());
  }
  return streams_.get();
}

size_t CudaDevice::stream_rows(const StreamedExperts& layer, const CpuExpertPart& part,
                               size_t slots) const {
  if (streamed_.rows > 0) return streamed_.rows;
  const StreamTimes& t = streams_->times(layer, part, slots);
  const size_t rows = rows_to_stream(t);
  if (note_ && !std::exchange(said_, true))
    note_(fmt::format(
        "experts of {} layers: {} of a layer cross to the GPU in {:.2f} ms, its rows take {:.2f} "
        "us "
        "there and {:.2f} us on the CPU (which reads all of it in {:.2f} ms), so {}",
        streamed_.layers.size(), human_bytes(layer.bytes()), t.sent * 1e3, t.gpu_row * 1e6,
        t.cpu_row * 1e6, t.cpu * 1e3,
        rows == kNeverStreamed ? "none are streamed"
                               : fmt::format("steps of {} rows and more stream them", rows)));
  return rows;
}

std::unique_ptr<ExpertsOp> CudaDevice::divided_experts(const Checkpoint& checkpoint,
                                                       const MoeRequest& request,
                                                       const LayerLoadOptions& options) {
  auto* cpu = dynamic_cast<CpuDevice*>(request.other);
  if (cpu == nullptr || !cpu->immediate())
    fail("device {}: experts of {} can be on the CPU, not on {}", name_, request.block->name,
         request.other->name());
  auto made = std::make_unique<CudaDividedExperts>(*this, *cpu, checkpoint, request, options);
  add_weights(made->device_bytes());
  if (CudaStreams* streams = streams_of(request.block->layer); streams != nullptr)
    made->stream(*this, *streams, checkpoint, *request.block);
  return made;
}

}  // namespace moebius
