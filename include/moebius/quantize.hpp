// SPDX-License-Identifier: Apache-2.0
// Making quantized folders, and measuring what they lost: what the commands `quantize` and `eval` do. Options and answers are
// JSON, by the names of the commands' options and as --json prints them (docs/quantize.md).
#pragma once
#include "moebius/moebius.hpp"

namespace moebius {

// A folder of plain weights becomes a compressed-tensors folder. Options: source, target, scheme, ... The progress function is
// told bytes of the source; where it returns false the run stops, and one with "resume": true goes on with it.
std::string quantize(const std::string& options, const Progress& progress = {});
// What a folder lost against its base, on text. Options: folder, base, one of text, tokens, file and chat, ... The progress
// function is told positions.
std::string evaluate(const std::string& options, const Progress& progress = {});

}  // namespace moebius
