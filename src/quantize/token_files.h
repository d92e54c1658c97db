// SPDX-License-Identifier: Apache-2.0
// Texts to calibrate and compare with, as token ids.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace moebius {

// Documents of a file: JSON lines (.jsonl) with input_ids, text or messages (through the folder's chat
// template), little-endian u16 (.bin), else one text. The folder's tokenizer is used. Throws Error
// naming file and line.
std::vector<std::vector<int32_t>> read_token_documents(const std::string& path,
                                                       const std::string& folder);

// Windows of `length` tokens cut from documents (which are joined in order), `count` of them at most,
// chosen by `seed`, in order. Throws Error where there is not one whole window.
std::vector<std::vector<int32_t>> calibration_windows(
    std::span<const std::vector<int32_t>> documents, size_t length, size_t count, uint64_t seed);

}  // namespace moebius
