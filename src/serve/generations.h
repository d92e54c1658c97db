// SPDX-License-Identifier: Apache-2.0
// Runs requests that generate: prepares them on text threads, hands them to generators, and answers
// as events come. When a client leaves, its request is cancelled. Event thread only, unless noted.
#pragma once
#include <set>

#include "serve/text_threads.h"

namespace moebius {

class Generations {
 public:
  // `all_died` is called when the last generator has ended.
  Generations(const ServerParts& server, TextThreads& threads, std::function<void()> all_died)
      : s_(server), threads_(threads), all_died_(std::move(all_died)) {}
  ~Generations();

  void generate(HttpExchangePtr exchange, Endpoint endpoint);
  // Takes the results of a step.
  void take(Host& host, const TextStep& step);
  // Ends all with an error; host null: of all models.
  void fail_all(const ApiError& error, const Host* host = nullptr);
  size_t count() const { return running_.size(); }

 private:
  using Clock = ServerClock;
  // Reads a request. Runs on a text thread. A grammar that takes more work than `limits` allow is
  // compiled on the thread for grammars.
  void read_request(const GenerationPtr& g, Endpoint endpoint, const GrammarLimits& limits);
  void prepared(const GenerationPtr& g, ApiRequest request, std::vector<Request> prompts);
  void refuse(const GenerationPtr& g, const ApiError& error);
  void take_one(Generation& g, size_t prompt, const StepResult& event);
  void flush(const GenerationPtr& g);
  void complete(const GenerationPtr& g);
  void fail(const GenerationPtr& g, const ApiError& error);
  void end(GenerationPtr g, int status, std::string_view word);
  template <class Work>
  void each(Work&& work);
  void start_ticking();
  void tick();
  void watch(const GenerationPtr& g);
  void watch_step(Host& host);
  void begin_stream(Generation& g);
  void break_silence(const GenerationPtr& g, Clock::time_point now);
  // Runs work for a generation; if it throws, only that one fails.
  template <class Work>
  void guard(const GenerationPtr& g, Work&& work);

  const ServerParts s_;
  TextThreads& threads_;
  const std::function<void()> all_died_;
  std::set<GenerationPtr> running_;
  bool ticking_ = false;
};

}  // namespace moebius
