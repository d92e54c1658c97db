// SPDX-License-Identifier: Apache-2.0
// Quantizes folders and measures what quantization lost, as the commands `quantize` and `eval` do.
// Options and results are JSON: options by the names of the commands' options, results as --json
// prints them (docs/quantize.md).
#pragma once
#include "moebius/moebius.hpp"

namespace moebius {

// Writes a compressed-tensors folder from a folder of unquantized weights and returns the summary.
// Options: source, target, scheme, ... `progress` is given bytes of the source; if it returns false
// the run stops, and a later run with "resume": true continues it.
std::string quantize(const std::string& options, const Progress& progress = {});
// Compares the predictions of a quantized folder with those of its base on a text and returns the
// measurements. Options: folder, base, one of text, tokens, file and chat, ... `progress` is given
// positions of the text.
std::string evaluate(const std::string& options, const Progress& progress = {});

}  // namespace moebius
