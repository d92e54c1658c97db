// SPDX-License-Identifier: Apache-2.0
// Reads texts for calibration and comparison as token ids.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace moebius {

// Reads the documents of a file: JSON lines (.jsonl) with input_ids, text or messages (rendered
// with the folder's chat template), little-endian u16 ids (.bin), or one text otherwise. Uses the
// folder's tokenizer. Throws Error that names file and line.
std::vector<std::vector<int32_t>> read_token_documents(const std::string& path,
                                                       const std::string& folder);

// Returns at most `count` windows of `length` tokens from the documents, which are concatenated;
// chosen by `seed`, in order. Throws Error if there is not one whole window.
std::vector<std::vector<int32_t>> calibration_windows(
    std::span<const std::vector<int32_t>> documents, size_t length, size_t count, uint64_t seed);

}  // namespace moebius
