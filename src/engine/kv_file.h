// SPDX-License-Identifier: Apache-2.0
// One block of keys and values as a file: what it was computed from, its bytes, and checksums of
// both. Numbers are little-endian.
//
//   0  "MOEBKV2\n"                24  kind     32  length of the sequence
//   8  checksum of 16 to block    28  tokens   40  bytes of the block
//  16  checksum of the block      48  fingerprint, 64 characters
//                                112  parent, 64 characters
// 176  token ids, 4 bytes each; then the block
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moebius {

inline constexpr size_t kKvKeyChars = 64;  // a SHA-256 in hexadecimal
inline constexpr size_t kMostFileTokens = 128;

struct KvFile {
  std::string fingerprint, parent;  // of the model; of the tokens before
  uint32_t kind = 0;
  uint64_t length = 0;          // tokens of the sequence up to the end of the block
  std::vector<int32_t> tokens;  // of the block: 128, fewer of an unfinished one
  uint64_t block_bytes = 0, block_sum = 0;
};

// Where the block lies in a file.
constexpr size_t kv_file_block_at(size_t tokens) { return 48 + 2 * kKvKeyChars + 4 * tokens; }
constexpr size_t kv_file_bytes(size_t tokens, size_t block_bytes) {
  return kv_file_block_at(tokens) + block_bytes;
}

// Fills everything before the block but the checksums; `bytes` is the whole file, whose block is or
// will be there.
void write_kv_file_head(const KvFile& file, std::span<uint8_t> bytes);
void seal_kv_file(std::span<uint8_t> bytes);  // the checksums
// What a file of `size` bytes says that begins with `head`: all before the block, at least. Returns
// why it is none, or "".
std::string read_kv_file_head(std::span<const uint8_t> head, uint64_t size, KvFile& out);
std::string read_kv_file(std::span<const uint8_t> bytes, KvFile& out);  // and its block is whole

}  // namespace moebius
