// SPDX-License-Identifier: Apache-2.0
#include "model/engine.h"

#include <algorithm>

#include "base/error.h"
#include "runtime/memory.h"

namespace moebius {

Engine::Engine(DecoderModel& model, const EngineOptions& options, size_t context_of_config,
               size_t vocab)
    : model_(model),
      context_(options.context != 0 ? options.context : context_of_config),
      chunk_(options.prefill_chunk),
      vocab_(vocab == 0 ? model.vocab() : std::min(vocab, model.vocab())) {
  if (context_ == 0) context_ = 4096;
  if (chunk_ == 0) fail("the prefill chunk is 0 tokens; expected at least 1");
}

size_t Engine::tokens_in_memory() const {
  const uint64_t have = available_memory_bytes();
  return have == 0 ? SIZE_MAX : have / std::max<uint64_t>(1, model_.kv_plan().bytes_per_token());
}

uint64_t Engine::add(Request request) {
  const size_t n = request.prompt.size();
  if (n == 0) fail("the prompt is empty: there is no token to start from");
  if (n >= context_)
    fail("the prompt has {} tokens, but the context holds {}; shorten it or raise --ctx", n,
         context_);
  for (const int32_t t : request.prompt)
    if (t < 0 || static_cast<size_t>(t) >= model_.vocab())
      fail("the prompt holds token {}, which is not in the vocabulary of {} tokens", t,
           model_.vocab());
  const size_t asked = request.max_new;
  request.max_new = std::min(request.max_new, context_ - n);
  const size_t fit = tokens_in_memory();
  if (n + std::min<size_t>(request.max_new, 1024) > fit)
    fail(
        "a prompt of {} tokens and its answer need {} bytes of KV cache per token, but only {} "
        "tokens fit the free memory; shorten it",
        n, model_.kv_plan().bytes_per_token(), fit);
  request.max_new = std::min(request.max_new, fit - n);
  auto s = std::make_unique<Sequence>(
      Sequence{next_id_++, std::move(request), model_.new_sequence(), Sampler(SamplingParams{})});
  s->limit = s->request.max_new < asked ? Finish::kContext : Finish::kLength;
  s->sampler = Sampler(s->request.sampling);
  s->sampler.see_prompt(s->request.prompt);
  sequences_.push_back(std::move(s));
  return sequences_.back()->id;
}

void Engine::cancel(uint64_t id) {
  for (const auto& s : sequences_)
    if (s->id == id) s->cancelled = true;
}

size_t Engine::prompt_left() const {
  size_t left = 0;
  for (const auto& s : sequences_) left += s->request.prompt.size() - s->prompt_done;
  return left;
}

std::vector<StepResult> Engine::step() {
  std::vector<StepResult> results;
  std::erase_if(sequences_, [&](const std::unique_ptr<Sequence>& s) {
    const bool nothing_to_do = s->request.max_new == 0;
    if (s->cancelled || nothing_to_do)
      results.push_back({s->id, std::nullopt, s->cancelled ? Finish::kCancelled : s->limit});
    return s->cancelled || nothing_to_do;
  });
  std::vector<StepItem> items;
  std::vector<Sequence*> owners;
  size_t budget = chunk_;
  for (const auto& s : sequences_) {
    const size_t left = s->request.prompt.size() - s->prompt_done;
    if (left == 0) {
      items.push_back({&s->state, {&s->next, 1}, false});
    } else {
      const size_t n = std::min(left, budget);
      if (n == 0) continue;
      items.push_back({&s->state, std::span(s->request.prompt).subspan(s->prompt_done, n), false});
      budget -= n;
      s->prompt_done += n;
    }
    owners.push_back(s.get());
  }
  if (items.empty()) return results;
  model_.forward(items, logits_);
  std::vector<uint64_t> ended;
  for (size_t i = 0; i < owners.size(); ++i) {
    Sequence& s = *owners[i];
    if (s.prompt_done < s.request.prompt.size()) continue;
    StepResult r{s.id,
                 s.sampler.next({logits_.data() + i * model_.vocab(), model_.vocab()}, vocab_),
                 Finish::kNo};
    s.next = r.choice->token;
    ++s.produced;
    const auto& stops = s.request.stop_tokens;
    if (!s.request.ignore_stop && std::find(stops.begin(), stops.end(), s.next) != stops.end())
      r.finish = Finish::kStopToken;
    else if (s.produced >= s.request.max_new)
      r.finish = s.limit;
    if (r.finish != Finish::kNo) ended.push_back(s.id);
    results.push_back(std::move(r));
  }
  std::erase_if(sequences_, [&](const auto& s) {
    return std::find(ended.begin(), ended.end(), s->id) != ended.end();
  });
  return results;
}

}  // namespace moebius
