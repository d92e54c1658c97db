// SPDX-License-Identifier: Apache-2.0
// Copies the candidates of rows of logits to the host instead of whole rows.
#include <algorithm>

#include "base/checked.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/device_candidates.h"

namespace moebius {
namespace {

// Returns the most candidates of a row that draws: a quarter of the row's bytes.
uint32_t most_candidates(size_t cols) {
  return static_cast<uint32_t>(std::clamp<size_t>(cols / 8, 1, 1024));
}

}  // namespace

bool CudaDevice::candidates(Step& step, const RowSet& x, std::span<const CandidateNeed> needs,
                            std::span<std::optional<Candidates>> out) {
  Queue& q = queue(step);
  const bool draws =
      std::any_of(needs.begin(), needs.end(), [](const CandidateNeed& n) { return n.rate > 0.0f; });
  CudaCandidates c{};
  c.x = at(step, x);
  c.cols = x.cols;
  c.most = draws ? most_candidates(x.cols) : 1;
  c.weighs = std::any_of(needs.begin(), needs.end(),
                         [](const CandidateNeed& n) { return n.vocab > 0 && n.weighs(); });
  // One copy brings [found][ids][logits]; work memory and needs lie after them.
  const size_t ids_at = x.rows * sizeof(CudaFound),
               logits_at = ids_at + x.rows * c.most * sizeof(int32_t),
               end = logits_at + x.rows * c.most * sizeof(float),
               work_at = round_up(end, size_t{256}),
               needs_at =
                   round_up(work_at + api().candidate_work_bytes(x.rows, x.cols), size_t{256});
  run(step, [&] {
    grow(q, q.found, needs_at + needs.size_bytes());
    check(api().upload(static_cast<uint8_t*>(q.found.data()) + needs_at, needs.data(),
                       needs.size_bytes(), q.stream),
          "what draws need");
  });
  auto* memory = static_cast<uint8_t*>(q.found.data());
  c.needs = reinterpret_cast<const CandidateNeed*>(memory + needs_at);
  c.found = reinterpret_cast<CudaFound*>(memory);
  c.ids = reinterpret_cast<int32_t*>(memory + ids_at);
  c.logits = reinterpret_cast<float*>(memory + logits_at);
  c.work = memory + work_at;
  launch(step, CudaMark().add(c.x).add(c.cols).add(c.most).add(c.weighs ? 1 : 0).add(memory),
         "candidates",
         [this, c, stream = q.stream] { check(api().find_candidates(&c, stream), "candidates"); });
  run(step, [&] {
    flush(q);
    if (std::exchange(q.moved, false)) check(api().synchronize(q.stream), "step");
    q.moving.grow(api(), end);
    check(api().download(q.moving.data(), memory, end, q.stream), "candidates");
  });
  const uint8_t* from = q.moving.data();
  const auto* found = reinterpret_cast<const CudaFound*>(from);
  for (size_t r = 0; r < x.rows; ++r) {
    out[r].reset();
    if (needs[r].vocab == 0 || found[r].count > c.most) continue;
    Candidates& made = out[r].emplace();
    made.top = found[r].top;
    made.total = found[r].total;
    const auto* ids = reinterpret_cast<const int32_t*>(from + ids_at) + r * c.most;
    const auto* logits = reinterpret_cast<const float*>(from + logits_at) + r * c.most;
    made.ids.assign(ids, ids + found[r].count);
    made.logits.assign(logits, logits + found[r].count);
  }
  return true;
}

}  // namespace moebius
