// SPDX-License-Identifier: Apache-2.0
#include "serve/engine_generator.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>

#include "base/out_of_memory.h"
#include "model/run/decoder.h"

namespace moebius {

EngineGenerator::EngineGenerator(TextEngine& engine, EngineGeneratorOptions options)
    : engine_(engine), options_(std::move(options)) {}

EngineGenerator::~EngineGenerator() {
  ending_ = true;
  engine_.engine().wake();
  if (thread_.joinable()) thread_.join();
}

void EngineGenerator::start(Sink sink) {
  sink_ = std::move(sink);
  thread_ = std::thread([this] { run(); });
}

bool EngineGenerator::stop(std::chrono::milliseconds most) {
  ending_ = true;
  engine_.engine().wake();
  const auto until = Clock::now() + most;
  while (!ended_ && thread_.joinable() && Clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return ended_ || !thread_.joinable();
}

void EngineGenerator::run() {
  pthread_setname_np(pthread_self(), "moebius-engine");
  while (!ending_ && !dead()) {
    if (!wait()) continue;
    const StepTurns::Turn turn(options_.turns.get());
    const auto begin = Clock::now();
    step_began_ = begin.time_since_epoch().count();
    try {
      TextStep step = engine_.step();
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      step_seconds_ = running_mean(step_seconds_, seconds);
      if (!step.failure.empty()) say(step.failure.c_str());
      dead_ = step.last;
      sink_(std::move(step));
    } catch (const std::bad_alloc& e) {  // nothing was reported; the next step tries again
      say(e.what());
    } catch (const std::exception& e) {
      say(e.what());
      dead_ = true;
      TextStep last;
      last.last = true;
      sink_(std::move(last));
    }
    step_began_ = 0;
  }
  ended_ = true;
}

// Writes to stderr as well, because no client may be there to read it.
void EngineGenerator::say(const char* failure) const noexcept {
  std::fprintf(stderr, "moebius: a step failed: %s%s\n", failure,
               engine_.dead() ? "; the engine gives up" : "");
}

bool EngineGenerator::wait() {
  {
    const std::lock_guard lock(mutex_);
    idle_since_ = Clock::now();
  }
  const bool work = engine_.engine().wait(std::chrono::hours(1));
  const std::lock_guard lock(mutex_);
  idle_ += Clock::now() - *idle_since_;
  idle_since_.reset();
  return work;
}

GeneratorState EngineGenerator::state() const {
  GeneratorState out;
  out.engine = engine_.engine().snapshot();
  out.generates = true;
  const int64_t began = step_began_;
  if (began != 0)
    out.heartbeat_seconds =
        std::chrono::duration<double>(Clock::now().time_since_epoch() - Clock::duration(began))
            .count();
  out.step_seconds = step_seconds_;
  out.stage = engine_.engine().stage();
  out.slots = options_.slots;
  out.disk = options_.disk;
  out.read_roof = options_.read_roof;
  {
    const std::lock_guard lock(mutex_);
    const auto idle = idle_ + (idle_since_ ? Clock::now() - *idle_since_ : Clock::duration(0));
    out.idle_seconds = std::chrono::duration<double>(idle).count();
  }
  if (options_.ranks) out.ranks = options_.ranks();
  out.experts = options_.experts;
  return out;
}

}  // namespace moebius
