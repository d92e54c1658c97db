// SPDX-License-Identifier: Apache-2.0
// Two NUMA nodes, faked: a topology says that the two CPUs of this machine belong to different
// nodes, and an object in the pool writes down where packed weights were asked to lie. Then a layer
// runs with a kernel that writes down who reads what.
#include "runtime/node_memory.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "kernels/list.h"
#include "runtime/affinity.h"
#include "runtime/runtime.h"
#include "unit/nn/moe_cases.h"

namespace moebius::test::node_memory_test {
namespace {

class RecordedMemory : public NodeMemory {
 public:
  void begin(const void* p, size_t bytes, size_t node) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto* first = static_cast<const uint8_t*>(p);
    ranges_[first] = {first + bytes, node};
    ++open;
  }
  void end() noexcept override {
    const std::lock_guard lock(mutex_);
    --open;
  }
  void mixed(void* p, size_t bytes) noexcept override {
    mixed_begin = static_cast<uint8_t*>(p), mixed_end = mixed_begin + bytes;
  }
  // The node of a byte; -1: nobody said.
  int node_of(const uint8_t* p) const {
    auto it = ranges_.upper_bound(p);
    if (it == ranges_.begin()) return -1;
    --it;
    return p < it->second.end ? static_cast<int>(it->second.node) : -1;
  }
  size_t bytes_on(size_t node) const {
    size_t sum = 0;
    for (const auto& [first, range] : ranges_)
      if (range.node == node) sum += static_cast<size_t>(range.end - first);
    return sum;
  }
  int open = 0;
  const uint8_t *mixed_begin = nullptr, *mixed_end = nullptr;

 private:
  struct Range {
    const uint8_t* end;
    size_t node;
  };
  std::mutex mutex_;
  std::map<const uint8_t*, Range> ranges_;
};

// A read of a block of outputs: by a thread that is held on `cpu` (-1: on none).
struct Read {
  int cpu;
  const uint8_t* at;
};
std::mutex reads_mutex;
std::vector<Read> reads;
const Kernel* read_with = nullptr;

void recording_gemm(const GemmArgs& a) {
  const std::vector<int> mask = AffinityMask::current().cpus();
  const Problem& p = *a.w->problem;
  const size_t bytes = read_with->packed_bytes(p);
  {
    const std::lock_guard lock(reads_mutex);
    reads.push_back({mask.size() == 1 ? mask[0] : -1, a.w->data + bytes * a.n0 / p.N});
  }
  read_with->gemm(a);
}

// How many reads of a phase were of the member's own node; they must all stand before those of
// other nodes.
size_t own_node_first(const RecordedMemory& memory, const std::vector<int>& cpus, size_t member,
                      bool down) {
  bool left = false;  // its own node, where nothing was left to do
  size_t near = 0;
  for (const Read& r : reads) {
    const bool is_down = r.at >= memory.mixed_begin && r.at < memory.mixed_end;
    if ((r.cpu == cpus[1] ? 1u : 0u) != member || is_down != down) continue;
    const int node = memory.node_of(r.at);
    EXPECT_GE(node, 0) << "memory that nobody placed";
    if (static_cast<size_t>(node) == member) {
      EXPECT_FALSE(left) << "member " << member << " had work of its own node left";
      ++near;
    } else {
      left = true;
    }
  }
  return near;
}

// One CPU on each of two nodes.
Topology two_nodes(const std::vector<int>& cpus) {
  Topology t;
  t.threads = {{cpus[0], cpus[0], 3, 0, false}, {cpus[1], cpus[1], 7, 0, false}};
  return t;
}

TEST(NodeMemory, PackedExpertsLieWhereTheyAreRead) {
  const std::vector<int> cpus = AffinityMask::current().cpus();
  if (cpus.size() < 2) GTEST_SKIP() << "this process may use fewer than two CPUs";
  auto memory = std::make_shared<RecordedMemory>();
  Runtime runtime(two_nodes(cpus), 0, memory);
  ThreadPool& pool = runtime.pool();
  ASSERT_EQ(pool.nodes(), 2u);
  ASSERT_EQ(pool.node_memory(), memory.get());

  Rng rng(5);
  MoeShape shape;
  shape.hidden = 512, shape.intermediate = 384, shape.experts = 8, shape.shared = true;
  const MoeCase c = make_moe(scheme_cases()[0], scheme_cases()[0], shape, {}, XType::kF32, rng);
  const Kernel* base = nullptr;
  const Problem problem = make_problem(c.experts[0].up.w, c.up_scheme.act, c.x_type);
  for (const Kernel* k : kernel_list())
    if (base == nullptr && k->arch == Arch::kOther && k->supports(problem) == nullptr) base = k;
  ASSERT_NE(base, nullptr);
  Kernel recording = *base;
  recording.gemm = recording_gemm;
  read_with = base;

  MoeLayer layer(plan_of(c, recording), &pool);
  pool.parallel_for(c.experts.size(),
                    [&](size_t e) { layer.set_expert(e, weights_of(c.experts[e])); });
  layer.set_shared(weights_of(*c.shared), &pool);
  layer.finish();
  EXPECT_EQ(memory->open, 0);
  // Every byte was placed, half of them on each node (in steps of 64 outputs).
  EXPECT_GE(memory->bytes_on(0) + memory->bytes_on(1) + 64 * 3 * (c.experts.size() + 1),
            layer.packed_bytes());
  const auto on = [&](size_t node) { return static_cast<double>(memory->bytes_on(node)); };
  EXPECT_NEAR(on(0), on(1), 0.01 * on(0));

  ThreadPool plain(1);
  const std::unique_ptr<MoeLayer> same = build(c, *base);
  // Members sit out while their core is taken, so a busy machine needs some rounds; who is late in
  // one may find that the other did all of a phase.
  size_t together = 0;
  for (size_t round = 0; round < 200 && together < 5; ++round) {
    const size_t T = 1 + round % 24;
    const Activations x = make_x(c, T, false, rng);
    std::vector<int32_t> ids;
    std::vector<float> weights;
    for (size_t i = 0; i < T * 2; ++i)
      ids.push_back(static_cast<int32_t>(rng() % 8)), weights.push_back(0.5f);
    reads.clear();
    const std::vector<float> got = run_ids(layer, x, ids, weights, pool);
    ASSERT_EQ(first_difference(got, run_ids(*same, x, ids, weights, plain)), -1);
    size_t worked = 0, ups = 0, downs = 0;
    for (size_t member = 0; member < 2; ++member) {
      const size_t up = own_node_first(*memory, cpus, member, false);
      const size_t down = own_node_first(*memory, cpus, member, true);
      ASSERT_FALSE(HasFailure());
      worked += up > 0 && down > 0 ? 1 : 0;
      ups += up > 0 ? 1 : 0, downs += down > 0 ? 1 : 0;
    }
    EXPECT_GE(ups, 1u);
    EXPECT_GE(downs, 1u);
    together += worked == 2 ? 1 : 0;
  }
  if (together == 0) std::printf("one CPU was taken all the time: only the caller worked\n");
}

TEST(NodeMemory, PoolsOnOneNodeOrWithoutPlacesHaveNone) {
  const std::vector<int> cpus = AffinityMask::current().cpus();
  if (cpus.size() < 2) GTEST_SKIP() << "this process may use fewer than two CPUs";
  Topology one = two_nodes(cpus);
  one.threads[1].node = one.threads[0].node;
  Runtime near(one, 0, std::make_shared<RecordedMemory>());
  EXPECT_EQ(near.pool().nodes(), 1u);
  EXPECT_EQ(near.pool().node_memory(), nullptr);
  Runtime small(two_nodes(cpus), 1, nullptr);  // not pinned
  EXPECT_EQ(small.pool().nodes(), 1u);
  Runtime system(two_nodes(cpus), 0, nullptr);
  ASSERT_NE(system.pool().node_memory(), nullptr);
  // Numbers of nodes that this machine has not: refused by the system, and nothing breaks.
  std::vector<uint8_t> bytes(1 << 20);
  system.pool().node_memory()->mixed(bytes.data(), bytes.size());
  system.pool().node_memory()->begin(bytes.data(), bytes.size(), 1);
  bytes[5] = 1;
  system.pool().node_memory()->end();
  EXPECT_THROW(ThreadPool(CpuList{{cpus[0], cpus[1]}, {0}}), Error);
}

}  // namespace
}  // namespace moebius::test::node_memory_test
