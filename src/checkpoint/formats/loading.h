// SPDX-License-Identifier: Apache-2.0
// Helpers of the readers' load() functions: they read scales, zero points and column groups into a
// view and check contents that shapes do not tell. Checks visit every byte of every load, so they
// process eight bytes at a time.
#pragma once
#include "checkpoint/formats/piece.h"

namespace moebius {

// Arguments of one load() call (format.h).
struct Loader {
  const MatrixPlan& plan;
  const TensorStore& store;
  LoadBuffer& buffer;
};

// Reads codes of one byte or more and views them as stored. Throws Error for codes beyond the
// declared width (kInt8) and NaN (kFp8).
void load_codes(const Loader& l, const Piece& piece, QuantMatrix& w);
// Reads integer codes packed along the inputs (unpack.h): 4 and 8 bits are viewed as stored, other
// widths are unpacked into a signed byte each.
void load_packed_codes(const Loader& l, const Piece& piece, bool padded, QuantMatrix& w);

// Reads scales and views them as stored. Throws Error unless they are finite and above 0. If zeros
// are allowed and present, returns true: call check_zero_scales after the codes are read.
bool load_scales(const Loader& l, QuantMatrix& w);
// Reads E8M0 exponents and adds `add` to each; a sum must be below 255.
void load_exponents(const Loader& l, QuantMatrix& w, unsigned add);
// Throws Error if a code under a zero scale does not decode to 0.
void check_zero_scales(const Loader& l, const QuantMatrix& w);

// Reads unpacked zero points [rows of blocks, groups] and checks their range; those of a symmetric
// module must be 0 and are dropped.
void load_plain_zero_points(const Loader& l, QuantMatrix& w);
// Sets the view's zero points, laid out as [rows of blocks, groups], and gives the scales the same
// stride.
void attach_zero_points(const Loader& l, const int8_t* values, QuantMatrix& w);
void load_g_idx(const Loader& l, QuantMatrix& w);

}  // namespace moebius
