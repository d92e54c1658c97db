// SPDX-License-Identifier: Apache-2.0
// Implements the functions of the table (device/cuda/cuda_table.h). Each of them catches all
// exceptions.
#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include "launch.h"
#include "layers.h"
#include "model.h"
#include "numbers.cuh"

namespace moebius::cuda {
namespace {

thread_local std::string last_words;
int opened_device = 0;

template <class F>
CudaStatus guarded(F&& f) {
  try {
    thread_local int current = 0;  // every thread starts with the first device
    if (current != opened_device) {
      check(cudaSetDevice(opened_device), "device");
      current = opened_device;
    }
    f();
    return CudaStatus::kOk;
  } catch (const Failure& e) {
    last_words = e.words;
    return e.status;
  } catch (const std::exception& e) {
    last_words = e.what();
    return CudaStatus::kOutOfMemory;
  }
}

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

CudaStatus open(int32_t wanted, CudaFacts* facts) {
  return guarded([&] {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver)
      throw Failure{CudaStatus::kNoDriver,
                    "this machine has no NVIDIA driver, or one that is too old"};
    if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0))
      throw Failure{CudaStatus::kNoDevice, "the driver shows no device"};
    check(error, "devices");
    if (wanted < 0 || wanted >= count)
      throw Failure{CudaStatus::kNoDevice, "there is no device " + std::to_string(wanted) +
                                               "; the driver shows " + std::to_string(count)};
    cudaDeviceProp p{};
    const int device = opened_device = wanted;
    check(cudaSetDevice(device), "device");
    check(cudaGetDeviceProperties(&p, device), "device");
    if (p.major < kCudaLeastMajor)
      throw Failure{CudaStatus::kTooOld,
                    std::string(p.name) + ": compute capability " + std::to_string(p.major) + "." +
                        std::to_string(p.minor) + ", needs " + std::to_string(kCudaLeastMajor) +
                        "." + std::to_string(kCudaLeastMinor)};
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "memory of the device");
    std::memset(facts, 0, sizeof *facts);
    std::copy_n(p.name, std::min(std::strlen(p.name), sizeof facts->name - 1), facts->name);
    facts->major = p.major, facts->minor = p.minor, facts->multiprocessors = p.multiProcessorCount;
    facts->memory_bytes = total, facts->free_bytes = free,
    facts->cache_bytes = static_cast<uint64_t>(p.l2CacheSize);
    if (const GpuModel* m = imitated_gpu())
      facts->major = m->major, facts->minor = m->minor,
      facts->multiprocessors = m->multiprocessors;
    check(cudaDriverGetVersion(&facts->driver), "driver");
    check(cudaRuntimeGetVersion(&facts->runtime), "runtime");
  });
}

CudaStatus allocate(size_t bytes, void** p) {
  return guarded([&] { check(cudaMalloc(p, std::max<size_t>(bytes, 1)), "memory of the device"); });
}
void release(void* p) { cudaFree(p); }
CudaStatus allocate_host(size_t bytes, void** p) {
  return guarded(
      [&] { check(cudaMallocHost(p, std::max<size_t>(bytes, 1)), "memory of the host"); });
}
void release_host(void* p) { cudaFreeHost(p); }
CudaStatus upload(void* to, const void* from, size_t bytes, void* stream) {
  return guarded([&] {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_of(stream)),
          "copy to the device");
  });
}
CudaStatus synchronize(void* stream) {
  return guarded([&] { check(cudaStreamSynchronize(stream_of(stream)), "device"); });
}
CudaStatus fetch(void* to, const void* from, size_t bytes, void* stream) {
  return guarded([&] {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_of(stream)),
          "copy from the device");
  });
}
CudaStatus download(void* to, const void* from, size_t bytes, void* stream) {
  const CudaStatus status = fetch(to, from, bytes, stream);
  return status == CudaStatus::kOk ? synchronize(stream) : status;
}

CudaStatus free_bytes(uint64_t* bytes) {
  return guarded([&] {
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "memory of the device");
    *bytes = free;
  });
}
CudaStatus make_stream(void** stream) {
  return guarded([&] {
    cudaStream_t made{};
    check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "stream");
    *stream = made;
  });
}
void free_stream(void* stream) { cudaStreamDestroy(stream_of(stream)); }
CudaStatus run_behind(void* stream, void* before) {
  return guarded([&] {
    cudaEvent_t event{};
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
    cudaError_t error = cudaEventRecord(event, stream_of(before));
    if (error == cudaSuccess) error = cudaStreamWaitEvent(stream_of(stream), event, 0);
    cudaEventDestroy(event);  // the event is freed once no stream waits for it
    check(error, "order of streams");
  });
}
CudaStatus copy(void* to, const void* from, size_t bytes, void* stream) {
  return guarded([&] {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_of(stream)), "copy");
  });
}
CudaStatus clear(void* p, size_t bytes, void* stream) {
  return guarded([&] { check(cudaMemsetAsync(p, 0, bytes, stream_of(stream)), "memory"); });
}

CudaStatus begin_capture(void* stream) {
  return guarded([&] {
    check(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal), "capture");
  });
}
CudaStatus end_capture(void* stream, void** graph) {
  return guarded([&] {
    cudaGraph_t captured{};
    cudaGraphExec_t exec{};
    check(cudaStreamEndCapture(stream_of(stream), &captured), "capture");
    const cudaError_t error = cudaGraphInstantiate(&exec, captured, 0);
    cudaGraphDestroy(captured);
    check(error, "graph");
    *graph = exec;
  });
}
CudaStatus launch_graph(void* graph, void* stream) {
  return guarded([&] {
    check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)), "graph");
  });
}
void free_graph(void* graph) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

CudaStatus make_linear(const CudaMatrix* parts, size_t count, CudaPath path, void** layer) {
  return guarded([&] { *layer = static_cast<Layer*>(new Linear(parts, count, path)); });
}
CudaStatus run_linear(void* layer, const CudaRows* x, const CudaRows* y, void* stream) {
  return guarded(
      [&] { static_cast<Linear*>(static_cast<Layer*>(layer))->run(*x, *y, stream_of(stream)); });
}
CudaStatus make_moe(const CudaMoe* moe, void** layer) {
  return guarded([&] { *layer = static_cast<Layer*>(new Moe(*moe)); });
}
Moe& moe_of(void* layer) { return *static_cast<Moe*>(static_cast<Layer*>(layer)); }
CudaStatus set_expert(void* layer, size_t local, const CudaExpert* expert) {
  return guarded([&] { moe_of(layer).set(local, *expert); });
}
CudaStatus set_shared_gate(void* layer, const CudaMatrix* gate) {
  return guarded([&] { moe_of(layer).set_shared_gate(*gate); });
}
CudaStatus run_moe(void* layer, const CudaRows* x, const CudaRouting* routing, const CudaRows* y,
                   const CudaLaunch* launch, void* stream) {
  return guarded([&] {
    moe_of(layer).run(*x, *routing, *y, launch != nullptr ? *launch : CudaLaunch{},
                      stream_of(stream));
  });
}
CudaStatus set_router(void* layer, const CudaRouter* router) {
  return guarded([&] { moe_of(layer).set_router(*router); });
}
CudaStatus run_routed(void* layer, const CudaRows* x, const CudaRows* logits, const CudaRows* y,
                      const CudaChosen* chosen, void* stream) {
  return guarded([&] {
    moe_of(layer).run_routed(*x, logits, *y, chosen != nullptr ? *chosen : CudaChosen{},
                             stream_of(stream));
  });
}
CudaStatus choose_experts(void* layer, const CudaRows* logits, const CudaChosen* chosen,
                          float* zero_weights, void* stream) {
  return guarded([&] { moe_of(layer).choose(*logits, *chosen, zero_weights, stream_of(stream)); });
}
CudaStatus run_items(void* layer, const CudaRows* x, const CudaRouting* routing,
                     const CudaDivided* divided, void* stream) {
  return guarded([&] { moe_of(layer).run_items(*x, *routing, *divided, stream_of(stream)); });
}
CudaStatus add_items(void* layer, const CudaRows* x, const CudaRouting* routing,
                     const CudaDivided* divided, const CudaRows* y, void* stream) {
  return guarded([&] { moe_of(layer).add_items(*x, *routing, *divided, *y, stream_of(stream)); });
}
CudaStatus map_experts(void* layer, const int32_t* expert_map) {
  return guarded([&] { moe_of(layer).map(expert_map); });
}
CudaStatus expert_ranges(const void* layer, size_t local, CudaRange* ranges, size_t* count) {
  return guarded([&] {
    *count = static_cast<const Moe*>(static_cast<const Layer*>(layer))->ranges(local, ranges);
  });
}
uint64_t layer_bytes(const void* layer) { return static_cast<const Layer*>(layer)->bytes(); }
void free_layer(void* layer) { delete static_cast<Layer*>(layer); }

CudaStatus run_programs(const CudaRowProgram* programs, size_t count, void* stream) {
  return guarded([&] { run_rows(programs, count, stream_of(stream)); });
}
CudaStatus take(const CudaRows* from, const int32_t* which, const CudaRows* to, size_t cols,
                void* stream) {
  return guarded([&] { take_rows(*from, which, *to, cols, stream_of(stream)); });
}
CudaStatus run_attend(const CudaAttend* args, void* stream) {
  return guarded([&] { attend(*args, stream_of(stream)); });
}
CudaStatus run_candidates(const CudaCandidates* candidates, void* stream) {
  return guarded([&] { find_candidates(*candidates, stream_of(stream)); });
}

// ---- measuring ----

struct Stream {
  cudaStream_t stream{};
  Stream() { check(cudaStreamCreate(&stream), "stream"); }
  ~Stream() { cudaStreamDestroy(stream); }
};
struct Event {
  cudaEvent_t event{};
  Event() { check(cudaEventCreate(&event), "event"); }
  ~Event() { cudaEventDestroy(event); }
};

using Clock = std::vector<std::unique_ptr<Event>>;

CudaStatus make_clock(size_t marks, void** clock) {
  return guarded([&] {
    auto made = std::make_unique<Clock>();
    for (size_t i = 0; i < marks; ++i) made->push_back(std::make_unique<Event>());
    *clock = made.release();
  });
}
CudaStatus mark(void* clock, size_t i, void* stream) {
  return guarded([&] {
    cudaStreamCaptureStatus status{};
    check(cudaStreamIsCapturing(stream_of(stream), &status), "stream");
    check(
        cudaEventRecordWithFlags(static_cast<Clock*>(clock)->at(i)->event, stream_of(stream),
                                 status == cudaStreamCaptureStatusActive ? cudaEventRecordExternal
                                                                         : cudaEventRecordDefault),
        "event");
    launch_after_mark = true;
  });
}
CudaStatus read_clock(void* clock, size_t count, float* milliseconds) {
  return guarded([&] {
    const Clock& c = *static_cast<Clock*>(clock);
    for (size_t i = 0; i + 1 < count; ++i)
      check(cudaEventElapsedTime(milliseconds + i, c.at(i)->event, c.at(i + 1)->event), "event");
  });
}
void free_clock(void* clock) { delete static_cast<Clock*>(clock); }

// Times a graph of `count` calls, in microseconds; a failure keeps the words that run() left.
double graph_microseconds(CudaStatus (*run)(void*, size_t, void*), void* context, size_t count,
                          size_t repeats) {
  const Stream s;
  const auto call = [&](size_t i) {
    if (const CudaStatus status = run(context, i, s.stream); status != CudaStatus::kOk)
      throw Failure{status, last_words};
  };
  // Loads kernels and allocates memory before the capture.
  for (size_t i = 0; i < count; ++i) call(i);
  check(cudaStreamSynchronize(s.stream), "device");
  cudaGraph_t graph{};
  cudaGraphExec_t exec{};
  check(cudaStreamBeginCapture(s.stream, cudaStreamCaptureModeThreadLocal), "capture");
  try {
    for (size_t i = 0; i < count; ++i) call(i);
  } catch (...) {
    cudaStreamEndCapture(s.stream, &graph);
    cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(s.stream, &graph), "capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "graph");
  const Event a, b;
  std::vector<float> times;
  for (size_t r = 0; r < repeats + 2; ++r) {  // two to warm up
    check(cudaEventRecord(a.event, s.stream), "event");
    check(cudaGraphLaunch(exec, s.stream), "graph");
    check(cudaEventRecord(b.event, s.stream), "event");
    check(cudaEventSynchronize(b.event), "device");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, a.event, b.event), "event");
    if (r >= 2) times.push_back(ms);
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  std::sort(times.begin(), times.end());
  return static_cast<double>(times[times.size() / 2]) * 1e3 / static_cast<double>(count);
}

CudaStatus time_graph(CudaStatus (*run)(void*, size_t, void*), void* context, size_t count,
                      size_t repeats, double* microseconds) {
  return guarded([&] {
    if (count == 0 || repeats == 0) refuse("nothing to time");
    *microseconds = graph_microseconds(run, context, count, repeats);
  });
}

__global__ void read_kernel(const uint4* p, size_t n, uint32_t* out) {
  uint32_t a = 0;
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    const uint4 v = __ldcs(p + i);
    a ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (a == 0x12345u) *out = a;  // never true, but the compiler does not know that
}
__global__ void empty_kernel() {
  wait_for_predecessor();
  let_successor_start();
}

struct RoofTask {
  Buffer from, to, out;
  unsigned blocks;
  bool early;
};

CudaStatus roofs(CudaRoofs* roofs) {
  return guarded([&] {
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "memory of the device");
    const size_t n = std::min<size_t>(size_t{4} << 30, free / 4) / 256 * 256;
    RoofTask task{Buffer(n), Buffer(n), Buffer(4), 0, false};
    check(cudaMemset(task.from.as<void>(), 1, n), "memory of the device");
    const auto copy = [](void* c, size_t, void* stream) {
      const auto& t = *static_cast<RoofTask*>(c);
      return guarded([&] {
        check(cudaMemcpyAsync(t.to.as<void>(), t.from.as<void>(), t.from.bytes(),
                              cudaMemcpyDeviceToDevice, stream_of(stream)),
              "copy");
      });
    };
    const auto read = [](void* c, size_t, void* stream) {
      const auto& t = *static_cast<RoofTask*>(c);
      return guarded([&] {
        launch(read_kernel, t.blocks, 512, /*bytes=*/0, /*early=*/false, stream_of(stream), "read",
               t.from.as<uint4>(), t.from.bytes() / 16, t.out.as<uint32_t>());
      });
    };
    const auto empty = [](void* c, size_t, void* stream) {
      const auto& t = *static_cast<RoofTask*>(c);
      return guarded([&] {
        launch(empty_kernel, blocks_of(device_limits().multiprocessors), 128, 0, t.early,
               stream_of(stream), "empty kernel");
      });
    };
    const auto bytes = static_cast<double>(n);
    roofs->copy_tbs = 2 * bytes / graph_microseconds(copy, &task, 4, 5) / 1e6;
    roofs->read_tbs = 0;
    for (const unsigned blocks : {264u, 528u, 1056u, 2112u}) {
      task.blocks = blocks;
      roofs->read_tbs =
          std::max(roofs->read_tbs, bytes / graph_microseconds(read, &task, 4, 5) / 1e6);
    }
    roofs->launch_us = graph_microseconds(empty, &task, 64, 9);
    task.early = true;
    roofs->early_launch_us = graph_microseconds(empty, &task, 64, 9);
  });
}

constexpr CudaApi kApi = {kCudaAbi,
                          sizeof(CudaApi),
                          sizeof(CudaMatrix),
                          sizeof(CudaMoe),
                          sizeof(CudaRouter),
                          sizeof(CudaRowProgram),
                          sizeof(CudaRowOp),
                          sizeof(CudaAttend),
                          [] { return last_words.c_str(); },
                          open,
                          allocate,
                          release,
                          allocate_host,
                          release_host,
                          upload,
                          download,
                          fetch,
                          synchronize,
                          free_bytes,
                          make_stream,
                          free_stream,
                          run_behind,
                          copy,
                          clear,
                          begin_capture,
                          end_capture,
                          launch_graph,
                          free_graph,
                          make_linear,
                          run_linear,
                          make_moe,
                          set_expert,
                          set_shared_gate,
                          set_router,
                          run_moe,
                          run_routed,
                          choose_experts,
                          run_items,
                          add_items,
                          map_experts,
                          expert_ranges,
                          layer_bytes,
                          free_layer,
                          run_programs,
                          take,
                          run_attend,
                          run_candidates,
                          candidate_work_bytes,
                          make_clock,
                          mark,
                          read_clock,
                          free_clock,
                          time_graph,
                          roofs};

}  // namespace
}  // namespace moebius::cuda

extern "C" __attribute__((visibility("default"))) const moebius::CudaApi* moebius_device(
    uint32_t abi) {
  return abi == moebius::kCudaAbi ? &moebius::cuda::kApi : nullptr;
}
