// SPDX-License-Identifier: Apache-2.0
// Generation, step by step: any number of sequences, each with its own length, sampler and limits,
// share every step of a backend. A sequence's tokens depend on its request alone: not on what else
// runs, on the cache, on memory, or on how prompts are cut. Nothing here knows text.
//
// A step is a transaction: plan, forward, sample, commit. What goes wrong with one sequence ends
// that sequence; a step that fails leaves all of them as they were (docs/engine.md). Where a backend
// wants several batches under way, sequences are shared out to them: a step fills them, then
// takes the results of the oldest.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/token_mask.h"
#include "engine/engine_stats.h"
#include "engine/kv_store.h"
#include "engine/step_cost.h"
#include "nn/sampler.h"

namespace moebius {

class ThreadPool;

struct EngineOptions {
  size_t context = 4096;  // most tokens of one sequence, prompt included
  size_t parallel = 1;    // sequences that run at once
  size_t vocab = 0;       // tokens that may be produced; 0: all of the model's
  // For keys and values. 0: what `parallel` sequences of `context` need, at most half of the memory
  // that is free.
  uint64_t kv_bytes = 0;
  size_t drafts = 0;                // most drafted tokens of a sequence and step (draft.h); 0: none
  bool every_draft = false;         // that is found runs, whatever it costs
  bool backend_drafts = false;      // drafts are those of the backend, or a prediction's
  double stretch = 3;               // longest step with prompt tokens, times the step without them
  double max_step = 1;              // seconds of a step with prompt tokens, as predicted
  size_t prompt_rows = 512;         // most prompt tokens of a step
  ThreadPool* pool = nullptr;       // for sampling; null: the calling thread
  std::function<uint64_t()> clock;  // nanoseconds; empty: the system's
  uint64_t hash_seed = 0;           // of the prefix tree
  KvBlocks::Freed freed;            // told of every block that nobody owns any more
  KvDisk* disk = nullptr;   // keeps what leaves memory and reads it again; outlives the engine
  std::string fingerprint;  // with a disk: of the model and its options (kv_archive.h)
  StepCost cost;  // what steps of the same model took before; then there is no need to calibrate
  // The caller's names of `context` and `kv_bytes`, for messages.
  const char *context_name = "--ctx", *kv_name = "--kv-gib";
};

// Bytes of keys and values that `parallel` sequences of `context` tokens take.
uint64_t kv_bytes_wanted(const Backend& backend, size_t parallel, size_t context);

// kContext: no room for another token, in the context or in the memory for keys and values.
enum class Finish : uint8_t { kNo, kStopToken, kStopText, kLength, kContext, kCancelled, kError };

// What one answer may be, token by token. Used by one thread at a time.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  virtual const TokenMask& mask() = 0;  // of the next token
  virtual bool complete() const = 0;    // it may end here
  // Throws Error where the token does not fit. Not called with the token that ends the answer.
  virtual void accept(int32_t token) = 0;
  // Tokens that the form all but dictates behind this place, at most so many: drafts.
  virtual std::vector<int32_t> forced(size_t) { return {}; }
};

struct Request {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  size_t max_new = SIZE_MAX;         // 0: none at all; also bounded by the context
  std::vector<int32_t> stop_tokens;  // end the sequence; reported, not to be shown
  bool ignore_stop = false;
  size_t n = 1;              // answers; choice 0 draws from the seed itself, i from mix(seed, i)
  int prompt_logprobs = -1;  // alternatives per prompt token; -1: none
  int priority = 0;          // lower first; a level is gained per 30 s of waiting
  std::string client;        // who asks: clients take turns by prompt tokens
  std::string salt;          // prefixes are shared only between requests of one salt
  size_t drafts = SIZE_MAX;  // at most; the engine's own limit holds too
  std::vector<int32_t> prediction;  // what the answer may be like: drafts come from it first
  // Sees every token of choice `index` while its sequence is sampled, on some thread of the pool,
  // calls of one choice in order. False ends the sequence (kStopText); what it throws, too (kError).
  std::function<bool(size_t index, const TokenChoice& choice)> watch;
  // Makes the constraint of each choice; empty: there is none.
  std::function<std::unique_ptr<TokenConstraint>()> constraint;
  // Told once, on the engine's thread, when the request leaves the queue. Must not throw.
  std::function<void()> admitted;
};

// Seed of one of several answers.
uint64_t seed_of_choice(uint64_t seed, size_t index);

// What a step brought for one sequence: a token, the end, or both. Where drafts were right a sequence
// has several results in a step, in their order.
struct StepResult {
  uint64_t id = 0;
  size_t index = 0;                   // of the answer, below Request::n
  std::optional<TokenChoice> choice;  // with the last token, finish is set too
  Finish finish = Finish::kNo;
  std::string error;                          // of kError, in words
  size_t cached_tokens = 0;                   // of the prompt that needed no computing
  size_t drafts_right = 0, drafts_wrong = 0;  // so far
  size_t prompt_position = 0;                 // prompt_choices: of the first one's token
  std::vector<TokenChoice> prompt_choices;    // prompt tokens as they were given
};

struct StepReport {
  std::vector<StepResult> results;
  StepFigures figures;
  // Not empty: the step failed, in words; every sequence is as it was before, and the next step
  // tries again, unless the backend is lost.
  std::string failure;
  bool out_of_memory = false;  // which is why it failed
  bool lost = false;
};

// Throws Error where a prompt is empty, leaves no room in the context or holds an unknown token.
void check_prompt(std::span<const int32_t> prompt, size_t context, size_t vocab,
                  const char* context_name = "--ctx");

class Engine {
 public:
  // Throws Error where the memory for keys and values holds not even a block.
  Engine(Backend& backend, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // From any thread. add throws Error in words when the prompt is empty, does not fit the context
  // or the memory, or holds an unknown token; cancel takes effect before the sequence's next step.
  uint64_t add(Request request);
  void cancel(uint64_t id) noexcept;
  bool idle() const { return live_.load() == 0; }
  std::string_view stage() const { return stage_.load(); }  // of the step that runs, in a word
  EngineSnapshot snapshot() const;                          // as of the last step
  // Waits until there is something to do, at most so long; wake() ends it.
  bool wait(std::chrono::nanoseconds most);
  void wake();

  // The rest is for one thread at a time.

  // One pass through the model: a token for every running sequence (of a batch, where there are
  // several), and pieces of prompts.
  StepReport step();
  // Measures steps of 1, 8, 32 and 128 rows (also warms up). Without it the engine learns as it goes.
  void calibrate();
  // Makes the whole memory for keys and values usable now, instead of block by block.
  void commit_memory();
  // Forgets what no running sequence uses.
  void clear_cache() { kv_.tree().clear(); }
  // Writes what the cache holds to disk, where there is one, and waits for it.
  void keep_cache() { kv_.keep_all(); }

  size_t context() const { return context_; }
  size_t parallel() const { return options_.parallel; }
  size_t longest() const { return longest_; }  // sequence that context and memory allow
  uint64_t kv_bytes() const { return kv_.blocks().budget(); }
  size_t sequences() const;    // of longest() tokens that run at once in this memory; at least 1
  size_t prompt_left() const;  // tokens of prompts that no step has run yet
  const KvStore& kv() const { return kv_; }
  const StepCost& cost() const { return cost_; }

 private:
  struct Client {
    uint64_t tokens = 0;  // of its prompts that were admitted
    size_t sequences = 0;
  };
  struct Sequence;
  struct Task;
  struct PendingStep;
  using Sequences = std::vector<std::unique_ptr<Sequence>>;

  void take_inbox(StepReport& report);
  void end_stopped(StepReport& report);
  void forget_ended();
  void admit();
  bool admit(Sequence& s);
  bool restored(Sequence& s, size_t limit);
  bool reading_pays(const Sequence& s) const;
  Sequence* next_waiting() const;
  bool available(const Sequence& s) const;
  void find_draft(Sequence& s) const;
  static void take_drafts(const PendingStep& step, std::span<const int32_t> drafts);
  void observe_drafts(const PendingStep& step, uint64_t nanoseconds) noexcept;
  void plan_drafts_of(const StepShape& decode);
  void provide_drafts();
  bool submit_next();
  void plan();
  void provide_blocks();
  bool provide(Sequence& s);
  bool preempt_for(const Sequence* s);
  void preempt(Sequence& s) noexcept;
  void renew_keys() noexcept;
  void collect(StepReport& report);
  void add_item(PendingStep& step, Sequence& s) const;
  void give_logits(PendingStep& step) const;
  void sample(PendingStep& step, StepReport& report);
  void sample_one(const Task& task) const noexcept;
  bool sample_row(Sequence& s, std::span<const float> logits) const;
  bool take_choice(Sequence& s, TokenChoice choice) const;
  void roll_back(bool lost) noexcept;
  void commit(PendingStep& step, StepReport& report) noexcept;
  void commit_piece(Sequence& s, size_t piece) noexcept;
  void commit_drafts(Sequence& s) noexcept;
  void spawn(Sequence& leader) noexcept;
  void end(Sequence& s, StepReport& report) noexcept;
  void report_end(Sequence& s, Finish finish, std::string error, StepReport& report) noexcept;
  void account(StepReport& report) noexcept;
  void publish() noexcept;
  uint64_t reserved() const noexcept;
  size_t running() const noexcept;
  uint64_t now() const { return options_.clock(); }

  EngineOptions options_;
  Backend& backend_;
  size_t context_, longest_ = 0, vocab_;
  bool cuttable_ = true;  // what all kinds hold of a sequence can be cut at any token
  KvStore kv_;
  StepCost cost_;
  double draft_pass_ = 0;  // nanoseconds in which the backend makes a draft for each that wants one
  size_t draft_passes_seen_ = 0;
  Sequences sequences_;  // in order of arrival
  std::unordered_map<std::string, Client> clients_;
  // Where admission stopped last: nothing is tried again before something became free.
  uint64_t stopped_at_available_ = 0;
  size_t stopped_at_running_ = SIZE_MAX;
  // Batches that the backend has, the oldest first, and the one whose results are taken.
  std::deque<std::unique_ptr<PendingStep>> pending_steps_;
  std::unique_ptr<PendingStep> collected_;
  StepOutput output_;
  uint64_t last_landing_ = 0;

  mutable std::mutex inbox_mutex_;
  std::condition_variable inbox_filled_;
  Sequences inbox_;
  std::vector<uint64_t> cancels_;
  bool woken_ = false;
  uint64_t next_id_ = 1;
  std::atomic<size_t> live_{0};
  std::atomic<const char*> stage_{"idle"};

  mutable std::mutex snapshot_mutex_;
  EngineSnapshot totals_, published_;
};

}  // namespace moebius
