// SPDX-License-Identifier: Apache-2.0
// One block of keys and values as a file: the tokens it was computed from, its bytes, and checksums
// of both. Numbers are little-endian.
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

inline constexpr size_t kKvKeyChars = 64;  // length of a SHA-256 in hexadecimal
inline constexpr size_t kMostFileTokens = 128;

struct KvFile {
  // fingerprint: identifies the model (KvArchive); parent: key of the block before this one.
  std::string fingerprint, parent;
  uint32_t kind = 0;
  uint64_t length = 0;          // tokens of the sequence up to the end of the block
  std::vector<int32_t> tokens;  // tokens of this block: 128, or fewer if it is unfinished
  uint64_t block_bytes = 0, block_sum = 0;
};

// Returns the offset of the block's bytes in its file.
constexpr size_t kv_file_block_at(size_t tokens) { return 48 + 2 * kKvKeyChars + 4 * tokens; }
constexpr size_t kv_file_bytes(size_t tokens, size_t block_bytes) {
  return kv_file_block_at(tokens) + block_bytes;
}

// Writes all of a file that stands before the block, except the checksums. `bytes` is the whole
// file; its block may be filled in before or after.
void write_kv_file_head(const KvFile& file, std::span<uint8_t> bytes);
void seal_kv_file(std::span<uint8_t> bytes);  // computes and writes both checksums
// Parses the head of a file of `size` bytes; `head` holds at least everything before the block.
// Returns "" or why it is no valid file.
std::string read_kv_file_head(std::span<const uint8_t> head, uint64_t size, KvFile& out);

}  // namespace moebius
