// SPDX-License-Identifier: Apache-2.0
// Helpers shared by GPTQ and AWQ, which store matrices with outputs as columns ("turned"): tables
// [G, N], scales of either sign, a last group that may be short, and an index of each input's
// group.
#pragma once
#include "checkpoint/formats/loading.h"
#include "checkpoint/formats/proofs.h"

namespace moebius {

// Returns the reference with `transposed` set, so that outputs stored as columns are read as rows.
TensorRef turned(TensorRef ref);
// Throws Error if a reference is transposed already.
void require_as_stored(const Planner& p);

// Sets the granularity of scales and checks their shape [G, N].
void plan_turned_scales(const Planner& p);
// Sets the granularity without a check; the last group may be short.
void set_short_groups(const Planner& p);

// Reads a table of numbers of the view's scale type that may have either sign and must be finite;
// sets the view's stride. `what`: a word for messages.
const uint8_t* load_finite(const Loader& l, const Piece& piece, std::string_view what,
                           QuantMatrix& w);
// Reads scales [G, N] of either sign into the view.
void load_turned_scales(const Loader& l, QuantMatrix& w);

}  // namespace moebius
