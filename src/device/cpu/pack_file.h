// SPDX-License-Identifier: Apache-2.0
// The file format of packed weights, which are kept between starts of the program.
//
//   0       header, 4096 bytes: what the file is, where its index lies, what it was made from
//   4096    blocks: the packed bytes of a layer each, as in memory; large ones begin at a multiple of 2 MiB;
//           experts of a layer begin at multiples of 4096, so that one of them can be read alone
//   ...     index: every block by its key, with what its matrices are beside their bytes
//
// All numbers are little-endian. Header and index have checksums, which every start verifies;
// checksums of the blocks, one per piece (an expert, or some MB of a linear layer), are in the index. Files are untrusted: every size is
// checked before it is used.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/projection.h"

namespace moebius {

// Version of the file format and of the kernels' packed bytes. Increase it when one of them
// changes: files of other versions are written anew.
inline constexpr uint32_t kPackLayout = 3;
inline constexpr uint64_t kPackHeaderBytes = 4096, kPackPiece = uint64_t{4} << 20,
                          kPackLargeBlock = uint64_t{64} << 20, kPackHugePage = uint64_t{2} << 20;

struct PackHeader {
  uint64_t file_bytes = 0, index_offset = 0, index_bytes = 0, index_checksum = 0;
  std::string fingerprint;  // hash of what the file was made from, 64 characters
};
std::string pack_header(const PackHeader& header);  // returns kPackHeaderBytes bytes
// Parses a header. Throws Error that names `path`.
PackHeader parse_pack_header(std::span<const uint8_t> bytes, uint64_t file_bytes,
                             const std::string& path);

struct PackEntry {
  uint64_t offset = 0, bytes = 0;
  std::vector<uint64_t> ends, checksums;  // [pieces] where each ends in the block, and its checksum

  uint64_t begin_of(size_t piece) const { return piece == 0 ? 0 : ends[piece - 1]; }
  std::vector<SlotFacts> slots;
};
struct PackIndex {
  std::string about;  // description for people: model, program, CPU
  std::map<std::string, PackEntry, std::less<>> entries;
};
std::string pack_index(const PackIndex& index);
// Parses an index. Throws Error that names `path`, also if a block ends after `end`.
PackIndex parse_pack_index(std::span<const uint8_t> bytes, uint64_t end, const std::string& path);

// Returns the ends of pieces of kPackPiece bytes.
std::vector<uint64_t> usual_pieces(uint64_t bytes);
// Returns the first offset >= `at` at which a block of `bytes` bytes may begin.
uint64_t pack_block_offset(uint64_t at, uint64_t bytes);

}  // namespace moebius
