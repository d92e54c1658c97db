// SPDX-License-Identifier: Apache-2.0
// Recurrent layers run in pieces, for tests.
#pragma once
#include <random>
#include <vector>

#include "nn/recurrent.h"

namespace moebius {

std::vector<float> normal_values(std::mt19937& rng, size_t n);
// What the layer makes of rows, in pieces, each from the state that the one before left. Pieces of
// more than one token are two runs with a state between them, and going on from there must leave the
// same state.
std::vector<float> run_pieces(const Recurrent& net, const std::vector<float>& in,
                              const std::vector<size_t>& pieces);
// Pieces of many sizes have the bytes of the whole (70 tokens).
void expect_pieces_equal(const Recurrent& net, const std::vector<float>& in);

}  // namespace moebius
