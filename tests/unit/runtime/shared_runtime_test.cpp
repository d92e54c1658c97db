// SPDX-License-Identifier: Apache-2.0
// How many threads a machine gets, and why; runtimes that are shared.
#include <gtest/gtest.h>

#include "runtime/runtime.h"

namespace moebius::shared_runtime_test {
namespace {

Topology machine(size_t big, size_t efficient, double quota = 0) {
  Topology t;
  for (size_t i = 0; i < big + efficient; ++i) {
    const int cpu = static_cast<int>(i);
    t.threads.push_back({cpu, cpu, 0, 0, i >= big});
  }
  t.quota = quota;
  return t;
}

TEST(Runtime, SaysWhyItHasSoManyThreads) {
  const auto choice = [](const Topology& t, size_t asked = 0) {
    const ThreadChoice c = choose_threads(t, asked);
    return std::to_string(c.threads) + ": " + c.why;
  };
  EXPECT_EQ(choice(machine(8, 0)), "8: one per core");
  EXPECT_EQ(choice(machine(8, 0), 3), "3: as asked for");
  EXPECT_EQ(choice(machine(8, 0, 2.5)), "3: the control group grants 2.5 of 8 cores");
  EXPECT_EQ(choice(machine(8, 8)), "8: one per big core; the efficient ones add no bandwidth");
  EXPECT_EQ(choice(machine(2, 4)), "6: one per core");
  EXPECT_EQ(choice(machine(8, 0, 100)), "8: one per core");
}

TEST(Runtime, NamesTheMask) {
  Topology t = machine(5, 0);
  EXPECT_EQ(usable_cpus(t), "0-4");
  t.threads.erase(t.threads.begin() + 3);
  EXPECT_EQ(usable_cpus(t), "0-2,4");
  EXPECT_EQ(usable_cpus(Topology{}), "");
}

TEST(Runtime, IsSharedPerNumberOfThreads) {
  const std::shared_ptr<Runtime> two = Runtime::shared(2);
  EXPECT_EQ(two->threads(), 2u);
  EXPECT_EQ(Runtime::shared(2), two);
  EXPECT_NE(Runtime::shared(3), two);
  const std::weak_ptr<Runtime> three = Runtime::shared(3);
  EXPECT_TRUE(three.expired());  // nobody held it
  EXPECT_EQ(Runtime::shared(), Runtime::shared(default_thread_count()));
  Runtime own(2);
  EXPECT_NE(&own, two.get());
}

}  // namespace
}  // namespace moebius::shared_runtime_test
