// SPDX-License-Identifier: Apache-2.0
// Unpacks parts of a QuantMatrix to the operands that packers need. Declarations only, so that
// units compiled for any instruction set can call these functions, which are in the baseline unit
// unpack.cpp and not inline.
//
// A column range [k0, k1) is in packed order: position i is column columns[i] of w, or column i if
// columns is null.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/kernel.h"

namespace moebius {

// --- codes of row r, positions [k0, k1) ---

// Writes integer codes as signed bytes (zero points not subtracted); kLut4 as numbers of the table,
// kFp4 as twice the value (0 1 2 3 4 6 8 12 and negatives).
void unpack_int8(const QuantMatrix& w, size_t r, size_t k0, size_t k1, const int32_t* columns,
                 int8_t* out);
// Writes code values as f32, exact for every code type, before zero point and scale.
void unpack_f32(const QuantMatrix& w, size_t r, size_t k0, size_t k1, const int32_t* columns,
                float* out);
// Writes code values as bf16 bits: exact for integer codes, fp4, fp8 and bf16; f16 and f32 would be
// rounded to nearest even.
void unpack_bf16(const QuantMatrix& w, size_t r, size_t k0, size_t k1, const int32_t* columns,
                 uint16_t* out);
// Writes two 4-bit codes per byte, low nibble first: value + 8 for integers of at most 4 bits, kFp4
// and kLut4 as they are. The last byte of an odd count has a high nibble of value 0; kLut4: code 0.
void unpack_nibbles(const QuantMatrix& w, size_t r, size_t k0, size_t k1, const int32_t* columns,
                    uint8_t* out);

// --- scales and zero points of row r, one per group (w.groups of them) ---

void row_scales_f32(const QuantMatrix& w, size_t r, float* out);  // writes 1 for dense matrices
// Writes the scales of row r in their stored type, scale_bytes each; those in two levels as f32.
void row_scales_raw(const QuantMatrix& w, size_t r, uint8_t* out);
// Writes w.offsets in the same way.
void row_offsets_raw(const QuantMatrix& w, size_t r, uint8_t* out);
// Writes the zero points of row r; 0 for symmetric weights.
void row_zero_points(const QuantMatrix& w, size_t r, int8_t* out);
void decode_scales(ScaleType type, const uint8_t* raw, size_t count, float* out);

// --- facts of a problem ---

size_t scale_size(ScaleType type);  // returns the bytes of one stored scale; 0 for kNone
// Returns the position at which group g begins.
size_t group_begin(const Problem& p, const int32_t* group_ends, size_t g);
size_t group_end(const Problem& p, const int32_t* group_ends, size_t g);
// Returns true if weights and rows of x have codes that stand for integers, so that a kernel can be
// exact.
bool is_integer_problem(const Problem& p);
// Returns true if codes of weights are places in a table of integers (of kFp4: twice the numbers)
// and rows are int8, symmetric, with one scale each.
bool is_table_problem(const Problem& p);
// Returns true if no sum of (qx - zpx) * (qw - zpw) over one group can overflow int32. Kernels that
// add in int32 check this in limits().
bool fits_int32(const Problem& p);
// Returns the number of super-blocks that the groups touch.
size_t super_blocks(const Problem& p);
// Returns the bytes of codes, scales and zero points at their declared widths, for comparison with
// packed_bytes.
size_t stored_bytes(const Problem& p);

}  // namespace moebius
