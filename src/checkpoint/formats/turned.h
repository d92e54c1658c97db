// SPDX-License-Identifier: Apache-2.0
// What GPTQ and AWQ share: tables stored [G, N], scales of either sign, groups whose last one may
// be short, and an index of groups per input.
#pragma once
#include "checkpoint/formats/loading.h"
#include "checkpoint/formats/proofs.h"

namespace moebius {

// A reference to a matrix whose outputs are columns, read as rows.
TensorRef turned(TensorRef ref);
// Throws for a reference that asks to be turned by itself.
void require_as_stored(const Planner& p);

// Granularity, and scales [G, N].
void plan_turned_scales(const Planner& p);
void set_short_groups(const Planner& p);  // granularity alone: the last group may be short

// Scales of a plan into the view: finite, of either sign.
void load_signed_scales(const Loader& l, QuantMatrix& w);
void load_signed_scales(const Loader& l, const Piece& piece, QuantMatrix& w);

}  // namespace moebius
