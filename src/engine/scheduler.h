// SPDX-License-Identifier: Apache-2.0
// Owns the sequences of an engine and decides who runs, with how many tokens, and who is preempted:
// admission by memory, the rows of a step by its predicted time, preemption by recomputation. None
// of it changes what is computed. Used by the engine's thread alone.
#pragma once
#include <unordered_map>

#include "engine/drafter.h"
#include "engine/request_queue.h"

namespace moebius {

class Scheduler {
 public:
  // The arguments must outlive the scheduler.
  Scheduler(const EngineParts& engine, RequestQueue& queue, Drafter& drafter)
      : e_(engine), queue_(queue), drafter_(drafter) {}
  ~Scheduler();

  // Takes what the queue has.
  void take_new(StepReport& report);
  // Ends sequences that were cancelled, cannot run, or have nothing to do.
  void end_stopped(StepReport& report);
  void forget_ended();
  void admit();
  // Gives every sequence the rows that it runs in the next batch (Sequence::piece, draft_rows) and
  // their blocks. `under_way`: the backend works on batches. Throws Error if there is no memory for
  // any row.
  void plan(bool under_way);
  // Gives sequences the tokens that were drawn for them, reports these, and ends what is complete.
  void commit(StepBatch& step, StepReport& report) noexcept;
  // Undoes a step that failed. `lost`: all batches under way are lost, too; otherwise they stay as
  // they are.
  void roll_back(bool lost) noexcept;

  const Sequences& sequences() const { return sequences_; }  // in order of arrival
  size_t running() const noexcept;

 private:
  bool admit(Sequence& s);
  bool restored(Sequence& s, size_t limit);
  bool reading_pays(const Sequence& s) const;
  Sequence* next_waiting() const;
  bool available(const Sequence& s) const;
  void plan_rows();
  void provide_blocks(bool under_way);
  bool provide(Sequence& s);
  void provide_drafts();
  bool preempt_for(const Sequence* s);
  void preempt(Sequence& s) noexcept;
  void renew_keys() noexcept;
  void commit_piece(Sequence& s, size_t piece) noexcept;
  void spawn(Sequence& leader) noexcept;
  void end(Sequence& s, StepReport& report) noexcept;
  void report_end(Sequence& s, Finish finish, std::string error, StepReport& report) noexcept;
  uint64_t reserved() const noexcept;
  uint64_t now() const { return e_.options.clock(); }

  const EngineParts e_;
  RequestQueue& queue_;
  Drafter& drafter_;
  Sequences sequences_;
  std::unordered_map<std::string, Client> clients_;
  // Free memory and running sequences when admission last stopped: no request is tried again before
  // memory or a place became free.
  uint64_t stopped_at_available_ = 0;
  size_t stopped_at_running_ = SIZE_MAX;
};

}  // namespace moebius
