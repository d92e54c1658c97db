// SPDX-License-Identifier: Apache-2.0
// Keeps the memory that the kernels of a call share (check.h).
#include "check.h"

namespace moebius::cuda {
namespace {

// Describes the capture of a stream: its number (0: none) and its graph.
struct Capture {
  unsigned long long id = 0;
  cudaGraph_t graph{};
  explicit Capture(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    // Asks for the edges although they are not used: kernels that start early have edges, and the
    // query fails if it cannot return them.
    const cudaGraphNode_t* before = nullptr;
    const cudaGraphEdgeData* edges = nullptr;
    size_t count = 0;
#if CUDART_VERSION >= 13000
    check(cudaStreamGetCaptureInfo(stream, &status, &id, &graph, &before, &edges, &count),
          "stream");
#else
    check(cudaStreamGetCaptureInfo_v3(stream, &status, &id, &graph, &before, &edges, &count),
          "stream");
#endif
    if (status == cudaStreamCaptureStatusInvalidated)
      refuse("the capture of this stream has failed");
    if (status == cudaStreamCaptureStatusNone) id = 0;
  }
};

}  // namespace

Scratch& scratch() {
  // Never destroyed: the driver is gone before static destructors run.
  static auto* all = new Scratch;
  return *all;
}

ScratchArea& Scratch::of(cudaStream_t stream, int slot) {
  const Capture capture(stream);
  if (capture.id == 0) free_dead();
  const std::lock_guard lock(mutex_);
  std::unique_ptr<ScratchArea>& area = areas_[{stream, capture.id, slot}];
  if (area != nullptr) return *area;
  area = std::make_unique<ScratchArea>();
  if (capture.id == 0) return *area;
  // A user object of the graph, and of every copy, tells when the graph is gone. CUDA memory cannot
  // be freed in its callback.
  area->captured = true;
  cudaUserObject_t object{};
  const auto gone = [](void* p) { static_cast<ScratchArea*>(p)->dead = true; };
  check(cudaUserObjectCreate(&object, area.get(), gone, 1, cudaUserObjectNoDestructorSync),
        "graph");
  check(cudaGraphRetainUserObject(capture.graph, object, 1, cudaGraphUserObjectMove), "graph");
  return *area;
}

void Scratch::free_dead() {
  std::vector<std::unique_ptr<ScratchArea>> dead;
  {
    const std::lock_guard lock(mutex_);
    for (auto i = areas_.begin(); i != areas_.end();) {
      if (i->second->dead) {
        dead.push_back(std::move(i->second));
        i = areas_.erase(i);
      } else {
        ++i;
      }
    }
  }
  if (dead.empty()) return;
  const RelaxedCapture relaxed;
  dead.clear();
}

}  // namespace moebius::cuda
