// SPDX-License-Identifier: Apache-2.0
// The models that a server offers, each with its running requests, and why no request is taken while
// they cannot answer. Event thread only, unless noted.
#pragma once
#include "serve/metrics.h"

namespace moebius {

using ServerClock = std::chrono::steady_clock;
struct Generation;
using GenerationPtr = std::shared_ptr<Generation>;

// A served model and its running requests. `served` and `queue` never change: any thread reads them.
struct Host {
  struct Sample {
    ServerClock::time_point time;
    GeneratorState state;
  };
  Host(ServedModel model, Generator& g) : served(std::move(model)), generator(g) {}
  const ServedModel served;
  Generator& generator;
  size_t queue = 0;  // sequences that may wait in addition to those that run
  ModelMetrics metrics;
  // Running generations by the generator's id.
  std::map<uint64_t, std::pair<GenerationPtr, size_t>> running;
  size_t sequences = 0;        // number of sequences that were submitted and have not ended
  size_t waiting_tokens = 0;   // tokens of prompts whose first token has not come
  double rate = 0;             // tokens per second, a running mean
  bool stuck = false;          // true: a step that never ends was logged
  bool died = false;           // true: the generator's end was handled
  std::deque<Sample> samples;  // counters of the last seconds, for rates

  size_t most() const { return served.slots + queue; }
  int retry_after() const;
  // Returns the oldest sample of the last seconds; rates are differences between it and now.
  const Sample& sample(std::chrono::milliseconds pace = std::chrono::seconds(1));
  double read_rate();  // bytes of weights read per second
  // Returns the state if a step takes so long that it counts as stuck.
  std::optional<GeneratorState> stuck_step() const;
};

class Hosts {
 public:
  std::vector<std::unique_ptr<Host>> all;  // empty while models are loaded
  std::atomic<double> loaded_share{0};     // of the models' bytes, while they are loaded
  bool draining = false;                   // true: the server ends and takes no requests

  // Returns the model of a name, or the first if there is none. Throws ApiError 404. Thread-safe.
  Host& named(const std::optional<std::string>& name) const;
  // Returns the model that a body names. Thread-safe.
  Host& of_body(std::string_view body) const;
  // Returns the model that the query names; null: none is ready yet.
  Host* of_query(const HttpRequest& request) const;
  double load_share() const { return all.empty() ? loaded_share.load() : 1; }
  bool dead() const;  // returns true if no model can answer any more
  bool died() const;  // returns true if the ends of all generators were handled
  ApiError loading_error() const;
  static ApiError draining_error();
  ApiError text_full() const;  // too many requests wait for text threads
};

// Decodes names that clients put into a target.
std::string percent_decoded(std::string_view text);

}  // namespace moebius
