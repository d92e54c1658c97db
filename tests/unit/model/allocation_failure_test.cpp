// SPDX-License-Identifier: Apache-2.0
// Loading and running when memory runs out: the n-th allocation fails, for every n with ./test --full, for some of them else. Loading with one thread and with two: each try is a
// process of its own; it must end in an exception, not in a signal, and afterwards, with memory again, the same process must load the model
// and compute the same logits. So must a model one of whose steps failed.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <limits>

#include "model/run/decoder.h"
#include "runtime/thread_pool.h"
#include "unit/allocations_util.h"
#include "unit/test_util.h"

namespace moebius::allocation_failure_test {
namespace {

constexpr long kNever = std::numeric_limits<long>::max();

std::vector<float> load_and_run(const std::string& folder, ThreadPool& pool) {
  const Checkpoint checkpoint = Checkpoint::open(folder);
  ModelOptions options;
  options.pool = &pool;
  const auto model = DecoderModel::load(checkpoint, options);
  SequenceState state = model->new_sequence();
  const std::vector<int32_t> tokens = {1, 2, 3};
  std::vector<float> logits;
  test::allocations_succeed();  // running is not loading
  const StepItem item{&state, tokens, false};
  model->forward({&item, 1}, logits);
  return logits;
}

enum Outcome : int {
  kThrew = 10,
  kLoaded = 11,
  kOtherLogits = 12,
  kNoRecovery = 13,
  kNotAtAll = 14
};

int try_once(const std::string& folder, size_t threads, long fail_at,
             const std::vector<float>& expected) {
  try {
    ThreadPool pool(threads);
    bool threw = false;
    {
      const test::FailAllocation failing(fail_at);
      try {
        (void)load_and_run(folder, pool);
      } catch (const std::exception&) {
        threw = true;
      }
    }
    const std::vector<float> again = load_and_run(folder, pool);
    if (again.size() != expected.size() ||
        std::memcmp(again.data(), expected.data(), again.size() * sizeof(float)) != 0)
      return kOtherLogits;
    return threw ? kThrew : kLoaded;
  } catch (...) {
    return kNoRecovery;
  }
}

// Exit status, or 128 + signal.
int in_child(const std::string& folder, size_t threads, long fail_at,
             const std::vector<float>& expected) {
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(kNotAtAll);
    alarm(60);  // a thread that waits for one that gave up would wait for ever
    _exit(try_once(folder, threads, fail_at, expected));
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void fail_every_allocation(const std::string& name, size_t threads) {
  const std::string folder = (test_data_dir() / "golden" / name).string();
  std::vector<float> expected;
  long total = 0;
  {
    ThreadPool pool(threads);
    (void)load_and_run(folder, pool);  // what is made once per process is there
    const test::FailAllocation none(kNever);
    expected = load_and_run(folder, pool);
    total = kNever - test::allocations_left();
  }
  ASSERT_GT(total, 500) << "allocations are not seen: nothing would be tested";
  long threw = 0, tries = 0;
  for (long n = 0; n < total; n += test::full_run() ? 1 : 7) {
    const int outcome = in_child(folder, threads, n, expected);
    ++tries;
    threw += outcome == kThrew ? 1 : 0;
    ASSERT_TRUE(outcome == kThrew || outcome == kLoaded)
        << name << ", " << threads << " threads: allocation " << n << " of " << total << " fails: "
        << (outcome > 128 ? "signal " + std::to_string(outcome - 128)
                          : "outcome " + std::to_string(outcome));
  }
  std::printf("%s, %zu threads: %ld of %ld allocations failed in turn, %ld ended in an exception\n",
              name.c_str(), threads, tries, total, threw);
  EXPECT_GT(threw, tries * 9 / 10);
}

TEST(AllocationFailure, LoadingThrowsAndCanBeRepeated) {
  if (!test::allocations_can_fail() || !test::plain_build())
    GTEST_SKIP() << "sanitizers bring an allocator of their own";
  fail_every_allocation("qwen3moe-w4a8-g32-pack", 1);
  fail_every_allocation("qwen3moe-w4a16-actorder-group", 2);
}

// Steps whose n-th allocation fails leave nothing half made behind: a later step computes the same logits.
void fail_every_step(const std::string& name) {
  const Checkpoint checkpoint = Checkpoint::open((test_data_dir() / "golden" / name).string());
  ThreadPool pool(1);
  ModelOptions options;
  options.pool = &pool;
  const auto run = [](DecoderModel& model, size_t count) {
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(1 + i % 7));
    SequenceState state = model.new_sequence();
    std::vector<float> logits;
    const StepItem item{&state, tokens, false};
    model.forward({&item, 1}, logits);
    return logits;
  };
  const std::vector<float> expected = run(*DecoderModel::load(checkpoint, options), 5);
  long failed = 0;
  const long stride = test::full_run() ? 1 : 3;
  for (long n = 0, left = -1; left < 0; n += stride) {
    const auto model = DecoderModel::load(checkpoint, options);
    {
      const test::FailAllocation failing(n);
      for (const size_t count : {1, 40}) {
        try {
          (void)run(*model, count);
        } catch (const std::exception&) {
          ++failed;
        }
      }
      left = test::allocations_left();
    }
    ASSERT_EQ(run(*model, 5), expected) << name << ": allocation " << n << " failed before";
  }
  EXPECT_GT(failed, 50 / stride) << name;
}

TEST(AllocationFailure, AStepThatFailsChangesNoLaterOne) {
  if (!test::allocations_can_fail() || !test::plain_build())
    GTEST_SKIP() << "sanitizers bring an allocator of their own";
  fail_every_step("qwen3moe-w4a8-g32-pack");
  fail_every_step("deepseekv2-w8a8");
}

}  // namespace
}  // namespace moebius::allocation_failure_test
