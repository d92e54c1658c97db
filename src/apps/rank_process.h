// SPDX-License-Identifier: Apache-2.0
// Makes this process one of several that a launcher (mpirun, srun) started for one model. Rank 0
// runs the command as if it were alone; the others follow it: they load the same folder, follow its
// steps, and end. A failure of any rank ends all.
#pragma once
#include <memory>
#include <string>

#include "apps/model_commands.h"
#include "model/ranks/rank_costs.h"
#include "runtime/comm.h"
#include "runtime/witness.h"

namespace moebius {

// Thrown if the ranks cannot run together; all of them know why, and rank 0 prints it.
class RanksRefused : public Error {
 public:
  using Error::Error;
};

class RankProcess {
 public:
  static RankProcess* current();  // returns the rank that this process is; null: it is alone

  size_t ranks() const;
  size_t ranks_of_host() const;  // ranks on this host, this one included
  void leaving();                // announces that the process ends on purpose without returning
  // For rank 0: measures what steps cost on all ranks, for a model that load() may load next.
  RankFacts measure(const Checkpoint& checkpoint, const ModelOptions& options);
  // For rank 0: loads the model while the others load the same. Throws RanksRefused, as do the
  // others.
  std::unique_ptr<DecoderModel> load(const Checkpoint& checkpoint, const ModelOptions& options);

 private:
  friend int run_as_rank(const Command& command);
  friend int follow_rank_0(const ModelRunOptions& options);
  // Holds what rank 0 asks the others to do.
  struct Order {
    enum Kind : uint64_t { kEnd, kMeasure, kLoad };
    uint64_t kind = kEnd;
    uint64_t context = 0, pp = 1, tp = 1, ep = 1, repeat_attention = 0, spare = 0;
    RankSplit split() const { return {pp, tp, ep, repeat_attention != 0, spare}; }
  };
  RankProcess(std::unique_ptr<Comm> comm, const Command& command, Witness& witness);
  Order order(Order mine);
  // Returns the plan by which all ranks load; all of them call it and wait for each other. Throws
  // RanksRefused on every rank if one of them differs, is in `trouble` or has too little memory.
  ModelPlan agree(const Checkpoint* checkpoint, const ModelOptions& options, std::string trouble);
  std::unique_ptr<DecoderModel> load_part(const Checkpoint& checkpoint, const ModelPlan& plan,
                                          ModelOptions options);
  // Holds what another rank opens, or the reason why it cannot.
  struct Opened {
    std::unique_ptr<Checkpoint> checkpoint;
    std::shared_ptr<Runtime> runtime;
    ModelOptions options;
    std::string trouble;
  };
  Opened open(const ModelRunOptions& options, const RankSplit& split) const;
  void measure_too(const ModelRunOptions& options);
  void load_and_follow(const ModelRunOptions& options, const Order& order);

  Witness& witness_;
  std::unique_ptr<Comm> comm_;
  std::unique_ptr<Ranks> ranks_;  // ranks of the loaded model
  double timeout_;
  std::string check_;
  bool quiet_;  // true: the user asked for --quiet; followers are always quiet
};

// Runs a command that has a `follow`; without a launcher it just runs the action.
int run_as_rank(const Command& command);
// Runs on ranks other than 0 in place of a command that opens a model with these options.
int follow_rank_0(const ModelRunOptions& options);

// Returns "[rank 2 host] " in a process that is not rank 0 of its job, else an empty text: for
// lines on stderr.
std::string rank_label();

}  // namespace moebius
