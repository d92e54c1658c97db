// SPDX-License-Identifier: Apache-2.0
// Measures what steps cost on the present ranks: loads and times a few experts and dense matrices
// of the folder with some numbers of rows, and times an exchange. All of it takes about a second.
#pragma once
#include "model/plan/machine.h"

namespace moebius {

class Checkpoint;
class Comm;
struct ModelOptions;

// Measurements of this rank. All ranks of a communicator measure at the same time, because they may
// share memory and cores. checkpoint null: this rank has none.
struct RankFacts {
  RankCosts costs;
  LinkFacts link;
};
RankFacts measure_ranks(Comm& comm, const Checkpoint* checkpoint, const ModelOptions& options);
LinkFacts measure_link(Comm& comm);

}  // namespace moebius
