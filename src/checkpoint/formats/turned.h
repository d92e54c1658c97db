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

// Read scales into the view; they must be finite and may have either sign.
void load_signed_scales(const Loader& l, QuantMatrix& w);
void load_signed_scales(const Loader& l, const Piece& piece, QuantMatrix& w);

}  // namespace moebius
