// SPDX-License-Identifier: Apache-2.0
// What the readers' load() functions share: scales, zero points and column groups brought into a
// view, and the checks of content that shapes cannot give. Checks run over every byte of every
// load, so they go eight bytes at a time.
#pragma once
#include "checkpoint/formats/piece.h"

namespace moebius {

// One load() call.
struct Loader {
  const MatrixPlan& plan;
  const TensorStore& store;
  LoadBuffer& buffer;
};

// Codes one byte or more each, viewed as read; checks declared width (kInt8) and NaN (kFp8).
void load_codes(const Loader& l, const Piece& piece, QuantMatrix& w);
// Integer codes packed along the inputs (unpack.h): 4 and 8 bits are viewed as read, other widths
// become a signed byte each.
void load_packed_codes(const Loader& l, const Piece& piece, bool padded, QuantMatrix& w);

// Scales, viewed as read; finite and above 0, or 0 where allowed (then true: call check_zero_scales
// once codes are there).
bool load_scales(const Loader& l, QuantMatrix& w);
// The same, for a reader that may change the bytes: E8M0 exponents plus `add`, which must stay
// below 255.
void load_exponents(const Loader& l, QuantMatrix& w, unsigned add);
// A zero scale is harmless only if every code under it decodes to 0.
void check_zero_scales(const Loader& l, const QuantMatrix& w);

// Plain zero points [rows of blocks, groups], range-checked; or the all-zero ones of a symmetric
// module, which are dropped.
void load_plain_zero_points(const Loader& l, QuantMatrix& w);
// Attaches zero points laid out [rows of blocks, groups]; makes the scales agree with that stride.
void attach_zero_points(const Loader& l, const int8_t* values, QuantMatrix& w);
void load_g_idx(const Loader& l, QuantMatrix& w);

}  // namespace moebius
