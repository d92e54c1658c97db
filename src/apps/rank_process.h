// SPDX-License-Identifier: Apache-2.0
// This process as one of several that a launcher (mpirun, srun) started for one model. Rank 0 runs
// the command as if it were alone; the others do what it says: load the same folder, follow its
// steps, end. Whatever goes wrong on one of them ends all.
#pragma once
#include <memory>
#include <string>

#include "apps/model_commands.h"
#include "model/ranks/rank_costs.h"
#include "runtime/comm.h"
#include "runtime/witness.h"

namespace moebius {

// The ranks cannot run together; all of them know why, and rank 0 says it.
class RanksRefused : public Error {
 public:
  using Error::Error;
};

class RankProcess {
 public:
  static RankProcess* current();  // null: this process is alone

  size_t ranks() const;
  size_t ranks_of_host() const;  // this one among them
  void leaving();                // the process ends on purpose, by another way than returning
  // Of rank 0: what steps cost on all ranks, by a model that load() may be given.
  RankFacts measure(const Checkpoint& checkpoint, const ModelOptions& options);
  // Of rank 0: the others load the same, or throw RanksRefused like this one.
  std::unique_ptr<DecoderModel> load(const Checkpoint& checkpoint, ModelOptions options,
                                     const RankSplit& split);

 private:
  friend int run_as_rank(const Command& command);
  friend int follow_rank_0(const ModelRunOptions& options);
  // What rank 0 wants of the others.
  struct Order {
    enum Kind : uint64_t { kEnd, kMeasure, kLoad };
    uint64_t kind = kEnd;
    uint64_t context = 0, pp = 1, tp = 1, ep = 1, repeat_attention = 0, spare = 0;
    RankSplit split() const { return {pp, tp, ep, repeat_attention != 0, spare}; }
  };
  RankProcess(std::unique_ptr<Comm> comm, const Command& command, Witness& witness);
  Order order(Order mine);
  // Bytes beside the weights on the rank that has the least.
  uint64_t agree(const Checkpoint* checkpoint, const ModelOptions& options, const RankSplit& split,
                 std::string trouble);
  std::unique_ptr<DecoderModel> load_part(const Checkpoint& checkpoint, ModelOptions options,
                                          const RankSplit& split);
  // Of the others: what they load, or why they cannot.
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
  std::unique_ptr<Ranks> ranks_;  // of the model that is loaded
  double timeout_;
  std::string check_;
  bool quiet_;  // as the user wants it: followers are quiet anyway
};

// Runs a command that has a `follow`: at once where this process is alone.
int run_as_rank(const Command& command);
// What ranks other than 0 do instead of a command that opens a model with these options.
int follow_rank_0(const ModelRunOptions& options);

// "[rank 2 host] " in a process that is not rank 0 of its job, else empty: for lines on stderr.
std::string rank_label();

}  // namespace moebius
