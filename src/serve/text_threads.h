// SPDX-License-Identifier: Apache-2.0
// The threads that prepare requests: short ones, long ones, and those whose grammars take long to
// compile, so that none waits behind a slower kind. A job that throws fails its exchange.
#pragma once
#include "serve/replies.h"
#include "serve/text_worker.h"

namespace moebius {

class TextThreads {
 public:
  explicit TextThreads(const ServerParts& server);
  // Queue a job of an exchange, on the thread for its body or on that for grammars. Return false if
  // too many are queued. Thread-safe.
  bool put(const HttpExchangePtr& exchange, std::function<void()> job);
  bool put_grammar(const HttpExchangePtr& exchange, std::function<void()> job);
  // Frees the body of a request when a text thread is done with it. Runs on the event thread.
  void drop_body(const HttpExchangePtr& exchange);

 private:
  bool put_on(TextWorker& worker, const HttpExchangePtr& exchange, std::function<void()> job);
  const ServerParts s_;
  TextWorker grammars_;  // destroyed after the threads that give it jobs
  TextWorker large_, small_;
};

}  // namespace moebius
