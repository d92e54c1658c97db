// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_file.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/checksum.h"

namespace moebius {
namespace {

static_assert(std::endian::native == std::endian::little);
constexpr std::string_view kKvMagic = "MOEBKV2\n";
constexpr size_t kSumAt = 8, kSummedFrom = 16, kKeysAt = 48;

template <class Number>
void put_number(std::span<uint8_t> bytes, size_t at, Number value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

template <class Number>
Number number_at(std::span<const uint8_t> bytes, size_t at) {
  Number value{};
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

std::string key_at(std::span<const uint8_t> bytes, size_t at) {
  return {reinterpret_cast<const char*>(bytes.data() + at), kKvKeyChars};
}

bool is_key(std::string_view key) {
  return key.size() == kKvKeyChars && std::all_of(key.begin(), key.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace

void write_kv_file_head(const KvFile& file, std::span<uint8_t> bytes) {
  const size_t tokens = file.tokens.size();
  std::memcpy(bytes.data(), kKvMagic.data(), kKvMagic.size());
  put_number<uint64_t>(bytes, kSumAt, 0);
  put_number<uint64_t>(bytes, 16, 0);
  put_number<uint32_t>(bytes, 24, file.kind);
  put_number<uint32_t>(bytes, 28, static_cast<uint32_t>(tokens));
  put_number<uint64_t>(bytes, 32, file.length);
  put_number<uint64_t>(bytes, 40, bytes.size() - kv_file_block_at(tokens));
  std::memcpy(bytes.data() + kKeysAt, file.fingerprint.data(), kKvKeyChars);
  std::memcpy(bytes.data() + kKeysAt + kKvKeyChars, file.parent.data(), kKvKeyChars);
  std::memcpy(bytes.data() + kv_file_block_at(0), file.tokens.data(), 4 * tokens);
}

void seal_kv_file(std::span<uint8_t> bytes) {
  const size_t block = kv_file_block_at(number_at<uint32_t>(bytes, 28));
  put_number<uint64_t>(bytes, 16, checksum(bytes.subspan(block)));
  put_number<uint64_t>(bytes, kSumAt, checksum(bytes.subspan(kSummedFrom, block - kSummedFrom)));
}

std::string read_kv_file_head(std::span<const uint8_t> head, uint64_t size, KvFile& out) {
  if (head.size() < kv_file_block_at(0)) return "it is too short";
  if (std::memcmp(head.data(), kKvMagic.data(), kKvMagic.size()) != 0)
    return "it is no block of keys and values";
  const size_t tokens = number_at<uint32_t>(head, 28), block = kv_file_block_at(tokens);
  if (tokens == 0 || tokens > kMostFileTokens) return "its number of tokens is out of range";
  if (head.size() < block) return "it is too short";
  out.block_bytes = number_at<uint64_t>(head, 40);
  if (out.block_bytes != size - block) return "its length is not what it says";
  if (number_at<uint64_t>(head, kSumAt) != checksum(head.subspan(kSummedFrom, block - kSummedFrom)))
    return "its checksum is wrong";
  out.block_sum = number_at<uint64_t>(head, 16);
  out.kind = number_at<uint32_t>(head, 24);
  out.length = number_at<uint64_t>(head, 32);
  out.fingerprint = key_at(head, kKeysAt);
  out.parent = key_at(head, kKeysAt + kKvKeyChars);
  if (!is_key(out.fingerprint) || !is_key(out.parent)) return "its keys are no keys";
  out.tokens.resize(tokens);
  std::memcpy(out.tokens.data(), head.data() + kv_file_block_at(0), 4 * tokens);
  return "";
}

}  // namespace moebius
