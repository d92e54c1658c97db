// SPDX-License-Identifier: Apache-2.0
// WAIST 5 (ARCHITECTURE.md): the interface of what answers requests for the server: the engine, a
// model of vectors, or a script in tests. Requests, their events and the figures of steps are the
// engine's own records. Independent of HTTP.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "engine/text_engine.h"
#include "model/ranks.h"

namespace moebius {

// First words of the error message of a request whose weights could not be loaded again after they
// were released (sleep).
inline constexpr std::string_view kNotLoaded = "the model could not be loaded";

// GeneratorState::stage while weights are being loaded again.
inline constexpr std::string_view kLoadingStage = "loading";

// Holds the figures of a generator, for /metrics and the server's page.
struct GeneratorState {
  EngineSnapshot engine;   // its counters include those of generators that were released before
  bool generates = false;  // true: drafts and the times of phases are measured
  bool sleeps = false, asleep = false;  // sleeps: weights may be released; asleep: they are
  uint64_t loads = 0;                   // how often the weights were loaded
  // Seconds since the last step, or since the generator became idle; a large value means that a
  // step hangs.
  double heartbeat_seconds = 0;
  double step_seconds = 0;          // running mean of the time of a step
  double idle_seconds = 0;          // time between steps, since the start
  std::string_view stage = "idle";  // stage of the running step, or kLoadingStage
  size_t slots = 0;
  bool disk = false;               // true: there is a prompt cache on disk
  double read_roof = 0;            // measured bytes per second; 0: not measured
  std::vector<RankFigures> ranks;  // empty: there is one rank
  size_t experts = 0;              // experts per layer of engine.expert_rows; 0: not known

  size_t expert_layers() const { return experts == 0 ? 0 : engine.expert_rows.size() / experts; }
};

// Returns a running mean that takes in a new value; 0 has no value yet.
inline double running_mean(double mean, double now) {
  return mean == 0 ? now : 0.9 * mean + 0.1 * now;
}

class Generator {
 public:
  // Receives the results of a step. Called once per step, on the generator's thread; must not
  // block.
  using Sink = std::function<void(TextStep)>;
  virtual ~Generator() = default;
  virtual void start(Sink sink) = 0;
  // submit(), cancel() and waiting() are thread-safe and do not wait for a step. submit() returns
  // the request's id; throws Error if the request can never run.
  virtual uint64_t submit(Request request) = 0;
  virtual void cancel(uint64_t id) = 0;
  virtual bool waiting(uint64_t id) const = 0;  // true: submitted, but has not run yet
  virtual bool dead() const = 0;                // true: no event will come any more
  virtual GeneratorState state() const = 0;
  // Stops the generator; no event comes afterwards. Returns false if the running step did not end
  // within `most`: its thread is then still running.
  virtual bool stop(std::chrono::milliseconds most) = 0;
};

}  // namespace moebius
