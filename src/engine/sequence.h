// SPDX-License-Identifier: Apache-2.0
// One answer that is being generated, and one batch of a step; private to the engine's files.
#pragma once
#include <algorithm>
#include <tuple>

#include "engine/draft.h"
#include "engine/engine.h"

namespace moebius {

// The values that the parts of an engine share, which outlive the parts.
struct EngineParts {
  const EngineOptions& options;
  Backend& backend;
  KvStore& kv;
  StepCost& cost;
  EngineSnapshot& totals;
};

// The sender of requests, by its name.
struct Client {
  uint64_t tokens = 0;  // prompt tokens of this client that were admitted
  size_t sequences = 0;
};

struct Sequence;
using Sequences = std::vector<std::unique_ptr<Sequence>>;

// Rows of logits of one sequence, from which its next token is drawn and log-probabilities of its
// prompt are read.
struct SampleTask {
  Sequence* sequence = nullptr;
  std::span<const float> logits;  // [rows, vocab] logits
  size_t position = 0;            // position of the first row's token
  bool completes = false;         // true: a token is drawn from the last row
  // Read instead of logits, for one row; null: logits are read.
  const Candidates* candidates = nullptr;
};

struct Sequence {
  enum class State : uint8_t {
    kFollows,  // waits for choice 0 of its request, which runs the prompt for it
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
  std::vector<int32_t> tokens;  // prompt and answer; the blocks hold the first kv.length of them
  SequenceKv kv;
  State state = State::kWaiting;
  bool cancelled = false;
  bool blamed = false;  // the backend cannot run this sequence; `error` says why
  size_t max_new = 0, produced = 0;
  Finish limit = Finish::kLength;  // the Finish to report when max_new is reached
  size_t reported = 0;             // prompt rows whose log-probabilities were reported
  size_t cached = 0;               // number of tokens that the cache had when the sequence arrived
  bool admitted = false;           // true: the sequence has run
  int preempted = 0;               // number of preemptions
  size_t keyed_for = 0;            // number of tokens when its first disk key was made
  KvRestore restore;               // what the sequence still reads from disk before it runs
  uint64_t waiting_since = 0;
  Client* client = nullptr;
  std::vector<Sequence*> followers;  // other choices that wait for the prompt of choice 0

  size_t steps_under_way = 0;  // batches in flight that contain this sequence
  size_t ahead = 0;            // tokens after kv.length that these batches run

  // Tables of drafts: `lookup` over the sequence's own tokens, `predicted` over
  // Request::prediction.
  PromptLookup lookup, predicted;
  DraftRecord found_record, forced_record{DraftRecord::kForced};
  bool draft_due = false, draft_forced = false;
  size_t drafts_right = 0, drafts_wrong = 0;

  // --- the step that is being made ---
  size_t piece = 0;                 // tokens that the step runs, without drafts
  std::vector<int32_t> draft_rows;  // the sequence's last token and its drafts; empty: no drafts
  // true: the backend makes the drafts in the step
  bool backend_drafts = false;
  std::vector<TokenChoice> choices;
  std::vector<TokenChoice> prompt_choices;
  size_t prompt_position = 0;
  Finish finish = Finish::kNone;
  bool stop_token = false;  // true: the last of `choices` is a stop token
  std::string error;

  size_t prompt() const { return request->prompt.size(); }
  size_t final_length() const { return prompt() + max_new; }
  // Returns the position of the first token that no batch has run or is running.
  size_t next() const { return kv.length + ahead; }
  size_t pending() const { return tokens.size() - next(); }
  bool running() const { return state == State::kRunning; }
  // Returns true if the sequence was preempted so often that it is not preempted again.
  bool safe() const { return preempted >= 3; }
  bool completes() const { return piece == pending(); }
  DraftRecord& draft_record() { return draft_forced ? forced_record : found_record; }
  size_t drafts() const { return draft_rows.empty() ? 0 : draft_rows.size() - 1; }
  bool wants_prompt_rows() const {
    return request->prompt_logprobs >= 0 && reported + 1 < prompt();
  }
  // Returns the sequence's place in the order: smaller ones come first if there is not enough
  // memory or room for all.
  auto rank() const { return std::tuple(request->priority, id, index); }
  // Returns a result of this answer without a token.
  StepResult result() const;
  // Draws tokens of rows of `width` logits, of which the first `vocab` may be drawn. Called on any
  // thread of the pool; touches nothing but this sequence.
  void sample(const SampleTask& task, size_t width, size_t vocab) noexcept;
  // Takes back what a step wrote behind kv.length. If that cannot be told from the rest of the last
  // block, all keys are computed again.
  void cut_back(KvStore& store) noexcept;

 private:
  bool draw(std::span<const float> logits, size_t vocab);
  bool take(TokenChoice choice);
  SamplingParams params_of(const Request& r) const {
    SamplingParams p = r.sampling;
    p.seed = seed_of_choice(p.seed, index);
    return p;
  }
};

// Returns the prompt tokens that no step has run yet.
size_t prompt_left(const Sequences& sequences);

// A batch that was submitted to the backend, with the sequences it runs.
struct StepBatch {
  struct Part {
    Sequence* sequence;
    size_t piece;
  };
  Backend::Ticket ticket = 0;
  std::vector<Part> parts;
  std::vector<BatchItem> items;
  std::vector<SampleTask> tasks;
  StepShape shape;
  StepFigures figures;
  uint64_t start = 0;

  // Adds the rows that are planned for a sequence; tokens below `vocab` may be drawn.
  void add(Sequence& s, size_t vocab);
  // Gives every task its rows of the output.
  void give_logits(const StepOutput& output, size_t vocab);
  size_t passes() const;  // returns the number of passes in which the backend drafts
};

}  // namespace moebius
