// SPDX-License-Identifier: Apache-2.0
// Runs generation step by step: any number of sequences, each with its own length, sampler and
// limits, share every step of a backend. A sequence's tokens depend on its request alone: not on
// what else runs, on the cache, on memory, or on how prompts are cut. The engine handles tokens
// only; TextEngine adds text.
//
// A step is a transaction: plan, forward, sample, commit. A failure of one sequence ends that
// sequence; a step that fails leaves all of them as they were (docs/engine.md). If the backend
// takes several batches at a time, sequences are divided over them: a step submits all batches,
// then takes the results of the oldest.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/token_mask.h"
#include "engine/engine_stats.h"
#include "engine/kv_store.h"
#include "engine/step_cost.h"
#include "nn/sampler.h"
#include "text/choice_text.h"

namespace moebius {

class Drafter;
class RequestQueue;
class Scheduler;
class ThreadPool;
struct EngineParts;
struct StepBatch;

struct EngineOptions {
  size_t context = 4096;  // most tokens of one sequence, prompt included
  size_t parallel = 1;    // number of sequences that run at once
  size_t vocab = 0;       // token ids below this may be produced; 0: all of the model's
  // Memory for keys and values, in bytes. 0: what `parallel` sequences of `context` tokens need, at
  // most half of the free memory.
  uint64_t kv_bytes = 0;
  // Most drafted tokens (speculative decoding, draft.h) of a sequence per step; 0: none.
  size_t drafts = 0;
  // true: every draft that is found runs; false: as many as the predicted times say pay
  bool every_draft = false;
  // true: the backend's predictor drafts (multi-token prediction), unless a request has a
  // prediction; false: drafts are looked up in earlier text
  bool backend_drafts = false;
  // Limit for the predicted time of a step with prompt tokens, as a multiple of the time of the
  // same step without them.
  double stretch = 3;
  double max_step = 1;  // limit for the predicted time of a step with prompt tokens, in seconds
  size_t prompt_rows = 512;         // most prompt tokens of a step
  ThreadPool* pool = nullptr;       // threads for sampling; null: the calling thread samples
  std::function<uint64_t()> clock;  // returns nanoseconds; empty: the system's clock
  // Called for each KV block that no sequence and no cache holds any more; must not throw.
  KvBlocks::Freed freed;
  KvDisk* disk = nullptr;   // prompt cache on disk; null: none. Must outlive the engine
  std::string fingerprint;  // with `disk`: identifies the model and its options (kv_archive.h)
  // Costs of steps that an engine of the same model measured before; calibrate() is then not
  // needed.
  StepCost cost;
  // Names that messages use for `context` and `kv_bytes`: the caller's options.
  const char *context_name = "--ctx", *kv_name = "--kv-gib";
};

// Returns the bytes of keys and values of `parallel` sequences of `context` tokens.
uint64_t kv_bytes_wanted(const Backend& backend, size_t parallel, size_t context);

// Says why an answer ended. kNone: it goes on. kStop: by a stop token, or by a text that ends it.
// kContext: the context, or the memory for keys and values, has no room for another token.
enum class Finish : uint8_t { kNone, kStop, kLength, kContext, kCancelled, kError };
inline constexpr size_t kFinishes = 6;
static_assert(std::tuple_size_v<decltype(EngineSnapshot::finished)> == kFinishes);

// Restricts one answer to a form (a grammar), token by token. Used by one thread at a time.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  virtual const TokenMask& mask() = 0;  // returns the tokens that may come next
  virtual bool complete() const = 0;    // true: the answer may end here
  // Appends a token to the answer. Throws Error if the mask excludes the token. Not called for the
  // token that ends the answer.
  virtual void accept(int32_t token) = 0;
  // Returns drafts: tokens that the form almost certainly requires next, at most as many as the
  // argument says.
  virtual std::vector<int32_t> forced(size_t) { return {}; }
};

// One request, in every interface: the server, the tool, C, C++ and Python fill it in.
struct Request {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  size_t max_new = SIZE_MAX;  // most tokens of the answer; 0: the prompt alone is run
  // Tokens that end the answer; each is reported as a StepResult, but is not part of the text.
  std::vector<int32_t> stop_tokens;
  bool ignore_stop = false;
  size_t n = 1;  // number of answers; choice 0 draws with the seed itself, i with mix(seed, i)
  int prompt_logprobs = -1;  // alternatives reported per prompt token; -1: no probabilities
  int priority = 0;          // lower runs first; 30 s of waiting count as one level
  std::string client;        // name of the sender; clients take turns, measured in prompt tokens
  std::string salt;          // cached prefixes are shared only between requests of the same salt
  // Most drafts of this request per step; the engine's own limit holds too.
  size_t drafts = SIZE_MAX;
  // Text that the answer may resemble: drafts are looked up in it first.
  std::vector<int32_t> prediction;
  TextRules text;  // how tokens become text; TextEngine reads it
  // For vectors: number of tokens at the start of the prompt whose vectors are not needed.
  size_t prompt_skipped = 0;
  // The three functions below are set by TextEngine.
  // Receives every token of choice `index` as soon as it is sampled, on some thread of the pool;
  // calls of one choice are in order. Returning false ends the sequence (kStop), throwing ends it
  // with kError.
  std::function<bool(size_t index, const TokenChoice& choice)> watch;
  // Makes the constraint of one choice; called once per choice. Empty: no constraint.
  std::function<std::unique_ptr<TokenConstraint>()> constraint;
  // Called once, on the engine's thread, when the request leaves the queue. Must not throw.
  std::function<void()> admitted;
};

// Returns the sampling seed of answer `index` of a request.
uint64_t seed_of_choice(uint64_t seed, size_t index);

// One result of a step for one sequence: a token, the end, or both. If drafts were right, a
// sequence has several results in a step, in order. The event of a request in every interface.
struct StepResult {
  uint64_t id = 0;
  size_t index = 0;                   // which of the request's Request::n answers
  std::optional<TokenChoice> choice;  // the token; with the last token, `finish` is set as well
  Finish finish = Finish::kNone;
  // true: `choice` is a stop token, which ended the answer; without one, no token could follow
  bool stop_token = false;
  std::string error;  // the reason, if `finish` is kError
  // Tokens of the prompt that were not computed, because the prefix cache had them.
  size_t cached_tokens = 0;
  size_t drafts_right = 0, drafts_wrong = 0;  // drafted tokens since the sequence began
  size_t prompt_position = 0;                 // position of the first token of prompt_choices
  std::vector<TokenChoice> prompt_choices;    // log-probabilities of prompt tokens
  // The fields below are set by TextEngine.
  std::string text;  // new content, in whole characters, that later tokens cannot change
  // The content as parts, with all other parts of the answer, if the rules say how to split an
  // answer.
  AnswerEvents parts;
  size_t reasoning_tokens = 0;  // since the answer began
  std::string stop_text;        // text that ended the answer
  double queue_seconds = 0;     // from add() until the request first ran
  std::vector<float> vector;    // of models that return vectors or scores instead of text
};

// Returns the result of an answer that failed for this reason.
StepResult failed_result(uint64_t id, size_t index, std::string why);

struct StepReport {
  std::vector<StepResult> results;
  StepFigures figures;
  // If not empty, the whole step failed for this reason. Every sequence is as it was before, and
  // the next step tries again, unless the backend is lost.
  std::string failure;
  bool out_of_memory = false;  // true: it failed for lack of memory
  bool lost = false;
};

// Throws Error if a prompt is empty, leaves no room in the context or holds an unknown token.
void check_prompt(std::span<const int32_t> prompt, size_t context, size_t vocab,
                  const char* context_name = "--ctx");

// Runs steps on a backend: it submits batches that its Scheduler plans, collects them, and has
// tokens drawn and committed.
class Engine {
 public:
  // Throws Error if the memory for keys and values does not hold one block.
  Engine(Backend& backend, const EngineOptions& options);
  ~Engine();

  // Queue and end requests; thread-safe. add() returns the request's id; throws Error if the prompt
  // is empty, holds an unknown token, or does not fit the context or the memory. cancel() takes
  // effect before the sequence's next step; unknown ids are ignored.
  uint64_t add(Request request);
  void cancel(uint64_t id) noexcept;
  bool idle() const;
  // Returns one word for what the running step does: planning, pass (the forward pass), sampling,
  // commit or idle. Thread-safe.
  std::string_view stage() const { return stage_.load(); }
  EngineSnapshot snapshot() const;  // returns figures as of the end of the last step; thread-safe
  // Waits until there is a request to run, but at most `most`; returns whether there is one. wake()
  // ends the wait early. Both are thread-safe.
  bool wait(std::chrono::nanoseconds most);
  void wake();

  // --- The functions below must be called by one thread at a time. ---

  // Runs one batch through the model: one token for every running sequence (of one batch, if the
  // backend takes several), and pieces of prompts.
  StepReport step();
  // Runs steps of 1, 8, 32 and 128 rows to learn how long steps take, which also warms up caches.
  // Optional: without calibrate() the engine learns that from its steps.
  void calibrate();
  // Allocates all memory for keys and values now, instead of block by block. Throws Error if there
  // is too little.
  void commit_memory();
  // Empties the prefix cache: evicts all blocks that no running sequence uses.
  void clear_cache() { kv_.tree().clear(); }
  // Writes the cached blocks to the disk cache, if there is one, and waits for it.
  void keep_cache() { kv_.keep_all(); }

  size_t context() const { return context_; }
  size_t parallel() const { return options_.parallel; }
  // Longest sequence, in tokens, that context and memory allow.
  size_t longest() const { return longest_; }
  uint64_t kv_bytes() const { return kv_.blocks().budget(); }
  // Number of sequences of longest() tokens that fit into the memory; at least 1.
  size_t sequences() const;
  size_t prompt_left() const;  // prompt tokens that no step has run yet
  const KvStore& kv() const { return kv_; }
  const StepCost& cost() const { return cost_; }

 private:
  EngineParts parts();
  bool submit_next();
  void collect(StepReport& report);
  void sample(StepBatch& step, StepReport& report);
  void publish() noexcept;

  EngineOptions options_;
  Backend& backend_;
  size_t context_, longest_ = 0, vocab_;
  KvStore kv_;
  StepCost cost_;
  EngineSnapshot totals_;
  std::unique_ptr<RequestQueue> queue_;
  std::unique_ptr<Drafter> drafter_;
  std::unique_ptr<Scheduler> scheduler_;
  // Batches that the backend works on, oldest first; and the batch whose results are being read.
  std::deque<std::unique_ptr<StepBatch>> pending_steps_;
  std::unique_ptr<StepBatch> collected_;
  StepOutput output_;
  uint64_t last_landing_ = 0;
  std::atomic<const char*> stage_{"idle"};
  mutable std::mutex snapshot_mutex_;
  EngineSnapshot published_;
};

}  // namespace moebius
