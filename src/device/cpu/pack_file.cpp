// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/pack_file.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/checksum.h"
#include "base/error.h"

namespace moebius {
namespace {

constexpr std::string_view kPackMagic = "moebius packed\n\x1a";  // 16 bytes
constexpr size_t kFingerprint = 64;

class PackBytes {
 public:
  template <class T>
  void put(const T& value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_text(std::string_view s) {
    put(static_cast<uint32_t>(s.size()));
    text.append(s);
  }
  template <class T>
  void put_list(const std::vector<T>& list) {
    put(static_cast<uint32_t>(list.size()));
    text.append(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(T));
  }
  void put_scale(const GlobalScale& s) { put(s.value), put(static_cast<uint32_t>(s.multiplies)); }
  std::string text;
};

class PackReader {
 public:
  PackReader(std::span<const uint8_t> bytes, const std::string& path)
      : bytes_(bytes), path_(path) {}
  std::span<const uint8_t> take(uint64_t count) {
    if (count > bytes_.size() - at_)
      fail("{}: its index ends at byte {}, and {} more are due", printable(path_), at_, count);
    const auto out = bytes_.subspan(at_, count);
    at_ += count;
    return out;
  }
  template <class T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text() {
    const auto bytes = take(get<uint32_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  template <class T>
  std::vector<T> list() {
    const uint64_t count = get<uint32_t>();
    const auto bytes = take(count * sizeof(T));
    std::vector<T> out(count);
    if (count > 0) std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
  GlobalScale scale() {
    GlobalScale s;
    s.value = get<float>();
    s.multiplies = get<uint32_t>() != 0;
    return s;
  }
  bool done() const { return at_ == bytes_.size(); }

 private:
  std::span<const uint8_t> bytes_;
  const std::string& path_;
  size_t at_ = 0;
};

void put_slot(PackBytes& to, const SlotFacts& s) {
  to.put_scale(s.global_scale);
  to.put(s.act.scale), to.put(s.act.zero_point);
  to.put_scale(s.act.global_scale);
  to.put(s.output_scale);
  to.put_list(s.bias), to.put_list(s.order.columns), to.put_list(s.order.group_ends);
}

SlotFacts read_slot(PackReader& from) {
  SlotFacts s;
  s.global_scale = from.scale();
  s.act.scale = from.get<float>();
  s.act.zero_point = from.get<int32_t>();
  s.act.global_scale = from.scale();
  s.output_scale = from.get<float>();
  s.bias = from.list<float>();
  s.order.columns = from.list<int32_t>();
  s.order.group_ends = from.list<int32_t>();
  return s;
}

}  // namespace

std::vector<uint64_t> usual_pieces(uint64_t bytes) {
  std::vector<uint64_t> ends;
  for (uint64_t end = kPackPiece; end < bytes; end += kPackPiece) ends.push_back(end);
  if (bytes > 0) ends.push_back(bytes);
  return ends;
}

uint64_t pack_block_offset(uint64_t at, uint64_t bytes) {
  return round_up(at, bytes >= kPackLargeBlock ? kPackHugePage : 4096);
}

std::string pack_header(const PackHeader& h) {
  if (h.fingerprint.size() != kFingerprint) fail("a fingerprint of {}", h.fingerprint.size());
  PackBytes out;
  out.text = kPackMagic;
  out.put(kPackLayout), out.put(uint32_t{0});
  out.put(h.file_bytes), out.put(h.index_offset), out.put(h.index_bytes), out.put(h.index_checksum);
  out.text += h.fingerprint;
  out.text.resize(kPackHeaderBytes - sizeof(uint64_t));
  out.put(checksum({reinterpret_cast<const uint8_t*>(out.text.data()), out.text.size()}));
  return out.text;
}

PackHeader parse_pack_header(std::span<const uint8_t> bytes, uint64_t file_bytes,
                             const std::string& path) {
  if (bytes.size() < kPackHeaderBytes || file_bytes < kPackHeaderBytes)
    fail("{}: has {} bytes; expected at least {}", printable(path), file_bytes, kPackHeaderBytes);
  PackReader in(bytes.first(kPackHeaderBytes), path);
  const auto magic = in.take(kPackMagic.size());
  if (std::memcmp(magic.data(), kPackMagic.data(), magic.size()) != 0)
    fail("{}: is no file of packed weights", printable(path));
  if (const auto layout = in.get<uint32_t>(); layout != kPackLayout)
    fail("{}: has layout {}, and this program makes {}", printable(path), layout, kPackLayout);
  uint64_t stored = 0;
  constexpr size_t kChecked = kPackHeaderBytes - sizeof stored;
  std::memcpy(&stored, bytes.data() + kChecked, sizeof stored);
  if (stored != checksum(bytes.first(kChecked))) fail("{}: its header is damaged", printable(path));
  in.take(sizeof(uint32_t));
  PackHeader h;
  h.file_bytes = in.get<uint64_t>();
  h.index_offset = in.get<uint64_t>();
  h.index_bytes = in.get<uint64_t>();
  h.index_checksum = in.get<uint64_t>();
  const auto print = in.take(kFingerprint);
  h.fingerprint.assign(print.begin(), print.end());
  if (h.file_bytes != file_bytes)
    fail("{}: has {} bytes; expected {}", printable(path), file_bytes, h.file_bytes);
  if (h.index_offset < kPackHeaderBytes || h.index_offset > file_bytes ||
      h.index_bytes != file_bytes - h.index_offset)
    fail("{}: an index of {} bytes at {} of {}", printable(path), h.index_bytes, h.index_offset,
         file_bytes);
  return h;
}

std::string pack_index(const PackIndex& index) {
  PackBytes out;
  out.put_text(index.about);
  out.put(static_cast<uint32_t>(index.entries.size()));
  for (const auto& [key, e] : index.entries) {
    out.put_text(key);
    out.put(e.offset), out.put(e.bytes);
    out.put_list(e.ends), out.put_list(e.checksums);
    out.put(static_cast<uint32_t>(e.slots.size()));
    for (const SlotFacts& s : e.slots) put_slot(out, s);
  }
  return out.text;
}

PackIndex parse_pack_index(std::span<const uint8_t> bytes, uint64_t end, const std::string& path) {
  PackReader in(bytes, path);
  PackIndex index;
  index.about = in.text();
  for (uint64_t left = in.get<uint32_t>(); left > 0; --left) {
    const std::string key = in.text();
    PackEntry e;
    e.offset = in.get<uint64_t>();
    e.bytes = in.get<uint64_t>();
    if (e.offset < kPackHeaderBytes || e.offset % kCacheLine != 0 || e.offset > end ||
        e.bytes > end - e.offset)
      fail("{}: {}: {} bytes at {} of {}", printable(path), printable(key), e.bytes, e.offset, end);
    e.ends = in.list<uint64_t>();
    e.checksums = in.list<uint64_t>();
    if (e.checksums.size() != e.ends.size() || (e.ends.empty() ? 0 : e.ends.back()) != e.bytes ||
        !std::is_sorted(e.ends.begin(), e.ends.end()))
      fail("{}: {}: {} checksums of {} pieces of {} bytes", printable(path), printable(key),
           e.checksums.size(), e.ends.size(), e.bytes);
    for (uint64_t slots = in.get<uint32_t>(); slots > 0; --slots) e.slots.push_back(read_slot(in));
    if (!index.entries.emplace(key, std::move(e)).second)
      fail("{}: {} stands twice in its index", printable(path), printable(key));
  }
  if (!in.done()) fail("{}: its index goes on behind its end", printable(path));
  return index;
}

}  // namespace moebius
