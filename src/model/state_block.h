// SPDX-License-Identifier: Apache-2.0
// A block of the kind "state": the states of all recurrent layers after some token. It
// has room for two versions, each marked with the length it is for, so that a step writes beside what it
// read: a step that fails half-way has lost nothing, and marks are set when all layers are done.
#pragma once
#include <cstddef>
#include <cstdint>

namespace moebius {

struct StateHeader {
  static constexpr size_t kBytes = 64;
  static constexpr uint64_t kNone = UINT64_MAX;
  uint64_t length[2];
};

inline StateHeader& state_header(uint8_t* block) { return *reinterpret_cast<StateHeader*>(block); }
// Which version is for `length`; 2: neither.
inline size_t state_version(uint8_t* block, size_t length) {
  const StateHeader& h = state_header(block);
  return h.length[0] == length ? 0 : h.length[1] == length ? 1 : 2;
}
// `offset`: of a layer within a version.
inline float* state_at(uint8_t* block, size_t block_bytes, size_t version, size_t offset) {
  return reinterpret_cast<float*>(block + StateHeader::kBytes +
                                  version * ((block_bytes - StateHeader::kBytes) / 2) + offset);
}

}  // namespace moebius
