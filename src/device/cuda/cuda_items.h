// SPDX-License-Identifier: Apache-2.0
// One call of a layer whose experts are divided between this device and another, in parts: the
// choice of experts, the rows of the experts on this device, and the sum of these with rows that
// the caller brought meanwhile (CudaApi::run_items).
#pragma once
#include <algorithm>
#include <span>

#include "device/cuda/cuda_device.h"

namespace moebius {

class CudaItemsCall {
 public:
  // counts: [experts] in GPU memory, to which the rows of each expert are added, or null.
  CudaItemsCall(const CudaDevice& device, Step& step, const CudaExperts& layer, const RowSet& x,
                const RowSet& logits, const RowSet& y, uint32_t* counts);
  // Returns how many rows may be processed at a time.
  static size_t most_rows(size_t slots, size_t hidden,
                          size_t item_bytes = GpuSettings().item_bytes);
  // Returns the bytes of GPU memory that rows take between the parts, for each batch in flight.
  static uint64_t most_bytes(size_t slots, size_t hidden, size_t item_bytes);

  size_t items() const { return items_; }  // number of slots of all rows
  const CudaDivided& divided() const { return divided_; }
  CudaDevice::DividedRoom& room() const { return room_; }

  void choose() const;
  struct Chosen {  // the chosen experts and their weights, [rows, slots]
    std::span<const int32_t> ids;
    std::span<const float> weights;
  };
  void fetch_choice() const;
  // Returns the choice that fetch_choice() copied to host memory: valid after a wait, until the
  // next call.
  Chosen fetched() const;
  Chosen chosen() const;  // fetch_choice(), then waits, then fetched()
  // Queues the computation of this device's experts. ids: [rows, slots] in GPU memory that replace
  // the chosen ones; null: the chosen ones.
  void run_own(const int32_t* ids = nullptr) const;
  // Queues the computation of the other experts by a layer on this device (streamed experts).
  void run_others(void* layer) const;
  void add(Range rows) const;
  // Adds the other device's rows, of which it has already added up those of each row of x.
  void add_sums() const;

 private:
  CudaMark mark(uint64_t what) const;
  const CudaDevice& device_;
  Step& step_;
  CudaDevice::DividedRoom& room_;
  void *layer_, *stream_;
  size_t rows_, slots_, items_, hidden_;
  CudaRows x_, scores_, y_;
  CudaRouting routing_{};
  CudaChosen chosen_{};
  float* zero_weights_ = nullptr;
  CudaDivided divided_{};
};

// Returns the facts of a layer whose packed weights are those of `experts` experts and the shared
// one. Throws Error if the layer's experts are chosen on the CPU.
ExpertsFacts facts_of(const CudaDevice& device, const MoeBlock& block, const CudaExperts& layer,
                      uint64_t packed_bytes, size_t experts);

// Calls f(rows of x, of logits, of y) for all rows, at most `most` at a time.
template <class F>
void each_piece(size_t most, const RowSet& x, const RowSet& logits, const RowSet& y, F f) {
  for (size_t first = 0; first < x.rows; first += most) {
    const auto some = [&](RowSet r) {
      r.offset += first * r.stride;
      r.rows = std::min(most, x.rows - first);
      return r;
    };
    f(some(x), some(logits), some(y));
  }
}

}  // namespace moebius
