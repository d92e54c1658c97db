// SPDX-License-Identifier: Apache-2.0
#include "serve/text_threads.h"

#include <malloc.h>

#include "base/out_of_memory.h"
#include "serve/server.h"

namespace moebius {
namespace {

constexpr size_t kTextJobs = 256;
constexpr size_t kLargeBody = 64 << 10;
constexpr size_t kTrimmedBody = 1 << 20;  // the memory of a larger body is returned to the system

// Returns the bytes that may wait for text. Reading pauses before more wait, except for bodies of
// clients that left: those being read, one body beyond, and one that a thread is about to free.
size_t most_text(const HttpLimits& limits) { return 2 * (limits.bodies + limits.body); }

// Makes every thread's heap return large blocks to the system when they are freed. By default the
// allocator would adapt to the first large body and keep blocks of its size.
void bound_heaps() {
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 2 << 20);
}

}  // namespace

TextThreads::TextThreads(const ServerParts& server)
    : s_(server),
      grammars_(kTextJobs, most_text(s_.options.limits), TextWorker::Order::kShortest),
      large_(kTextJobs, most_text(s_.options.limits), TextWorker::Order::kShortest),
      small_(kTextJobs, most_text(s_.options.limits)) {
  bound_heaps();
}

bool TextThreads::put(const HttpExchangePtr& exchange, std::function<void()> job) {
  const bool large = exchange->request().body.size() > kLargeBody;
  return put_on(large ? large_ : small_, exchange, std::move(job));
}

bool TextThreads::put_grammar(const HttpExchangePtr& exchange, std::function<void()> job) {
  return put_on(grammars_, exchange, std::move(job));
}

bool TextThreads::put_on(TextWorker& worker, const HttpExchangePtr& exchange,
                         std::function<void()> job) {
  const size_t bytes = exchange->request().body.size();
  auto guarded = [this, exchange, job = std::move(job)] {
    if (!threw(s_.handler, job)) return;
    patiently([&] { s_.http.post([exchange] { exchange->fail(); }); });
  };
  return worker.put(std::move(guarded), bytes, s_.replies.access.check_key(exchange->request()));
}

void TextThreads::drop_body(const HttpExchangePtr& exchange) {
  const size_t bytes = exchange->request().body.size();
  exchange->drop_body();
  // If the job cannot be queued, a later request does it.
  if (bytes > kTrimmedBody) threw(s_.handler, [&] { large_.put([] { malloc_trim(0); }, 0); });
}

}  // namespace moebius
