// SPDX-License-Identifier: Apache-2.0
// One answer in the making, as the engine's files see it.
#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "engine/draft.h"
#include "engine/engine.h"

namespace moebius {

struct Engine::Sequence {
  enum class State : uint8_t {
    kFollows,  // waits for the prompt that choice 0 runs for it
    kWaiting,
    kRunning,
    kEnded,
  };

  Sequence(uint64_t request_id, size_t choice_index, std::shared_ptr<const Request> r)
      : id(request_id),
        index(choice_index),
        request(std::move(r)),
        sampler(params_of(*request), request->stop_tokens) {
    tokens = request->prompt;
    sampler.see_prompt(request->prompt);
    if (request->constraint) constraint = request->constraint();
    if (index > 0) state = State::kFollows;
  }

  uint64_t id;
  size_t index;
  std::shared_ptr<const Request> request;
  Sampler sampler;
  std::unique_ptr<TokenConstraint> constraint;
  std::vector<int32_t> tokens;  // prompt and answer; the blocks hold kv.length of them
  SequenceKv kv;
  State state = State::kWaiting;
  bool cancelled = false;
  bool blamed = false;  // the backend cannot run it; `error` says why
  size_t max_new = 0, produced = 0;
  Finish limit = Finish::kLength;  // what reaching max_new means
  size_t reported = 0;             // rows of the prompt whose log-probabilities were reported
  size_t cached = 0;               // tokens that the cache had when it came
  bool admitted = false;           // at some time
  int preempted = 0;               // times
  size_t keyed_for = 0;            // tokens there were when its first key was made
  KvRestore restore;               // what it reads from disk before it runs
  uint64_t waiting_since = 0;
  Client* client = nullptr;
  std::vector<Sequence*> followers;  // of choice 0, until its prompt is done

  size_t steps_under_way = 0;  // batches under way that it takes part in
  size_t ahead = 0;            // tokens behind kv.length that these run

  PromptLookup lookup, predicted;  // in its tokens; in what was predicted
  DraftRecord found_record, forced_record{DraftRecord::kForced};
  bool draft_due = false, draft_forced = false;
  size_t drafts_right = 0, drafts_wrong = 0;

  // Of the step that is made.
  size_t piece = 0;                 // tokens it runs, without drafts
  std::vector<int32_t> draft_rows;  // its last token and drafts; empty: none
  bool backend_drafts = false;      // which the backend makes in the step
  std::vector<TokenChoice> choices;
  std::vector<TokenChoice> prompt_choices;
  size_t prompt_position = 0;
  Finish finish = Finish::kNo;
  std::string error;

  size_t prompt() const { return request->prompt.size(); }
  size_t final_length() const { return prompt() + max_new; }
  size_t next() const { return kv.length + ahead; }  // first token that nobody has run or runs
  size_t pending() const { return tokens.size() - next(); }
  bool running() const { return state == State::kRunning; }
  bool safe() const { return preempted >= 3; }  // is not preempted again
  bool completes() const { return piece == pending(); }
  DraftRecord& draft_record() { return draft_forced ? forced_record : found_record; }
  size_t drafts() const { return draft_rows.empty() ? 0 : draft_rows.size() - 1; }
  bool wants_prompt_rows() const {
    return request->prompt_logprobs >= 0 && reported + 1 < prompt();
  }
  // Who comes first when there is not enough for all.
  auto rank() const { return std::tuple(request->priority, id, index); }

 private:
  SamplingParams params_of(const Request& r) const {
    SamplingParams p = r.sampling;
    p.seed = seed_of_choice(p.seed, index);
    return p;
  }
};

// A row of logits that a sequence takes its next token from, and rows of its prompt.
struct Engine::Task {
  Sequence* sequence = nullptr;
  std::span<const float> logits;           // [rows, vocab]
  size_t position = 0;                     // of the first row's token
  bool completes = false;                  // the last row brings a token
  const Candidates* candidates = nullptr;  // of one row, instead of its logits
};

// A batch that the backend has.
struct Engine::PendingStep {
  struct Part {
    Sequence* sequence;
    size_t piece;
  };
  Backend::Ticket ticket = 0;
  std::vector<Part> parts;
  std::vector<BatchItem> items;
  std::vector<Task> tasks;
  StepShape shape;
  StepFigures figures;
  uint64_t start = 0;

  size_t passes() const {  // in which the backend drafts
    size_t most = 0;
    for (const BatchItem& item : items) most = std::max(most, item.drafts);
    return most;
  }
};

}  // namespace moebius
