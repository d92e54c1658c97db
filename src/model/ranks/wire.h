// SPDX-License-Identifier: Apache-2.0
// Writes and reads the messages of ranks: numbers are little-endian; texts and lists are their
// length in 32 bits, then their parts. One function passes the parts of a message to either a
// WireWriter or a WireReader, so that both agree on the order.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace moebius {

class WireWriter {
 public:
  template <class T>
  void number(T v) {
    for (size_t i = 0; i < sizeof(T); ++i)
      bytes.push_back(static_cast<uint8_t>(static_cast<uint64_t>(v) >> (8 * i)));
  }
  void text(const std::string& s) {
    number(static_cast<uint32_t>(s.size()));
    bytes.insert(bytes.end(), s.begin(), s.end());
  }
  template <class E>
  void choice(E v, E /*last*/) {
    number(static_cast<uint8_t>(v));
  }
  template <class T, class F>
  void list(const std::vector<T>& items, size_t /*least*/, F part) {
    number(static_cast<uint32_t>(items.size()));
    for (const T& item : items) part(item);
  }
  std::vector<uint8_t> bytes;
};

// Reads parts in the same order. The sender is not trusted: no memory is allocated by a stated
// length alone. Throws Error for bytes that are no such message.
class WireReader {
 public:
  // message: its name in errors, such as "a handshake".
  WireReader(std::span<const uint8_t> bytes, const char* message)
      : left_(bytes), message_(message) {}
  template <class T>
  void number(T& to) {
    uint64_t v = 0;
    const std::span<const uint8_t> bytes = take(sizeof(T));
    for (size_t i = 0; i < sizeof(T); ++i) v |= uint64_t{bytes[i]} << (8 * i);
    to = static_cast<T>(v);
  }
  void text(std::string& s) {
    uint32_t n = 0;
    number(n);
    const std::span<const uint8_t> bytes = take(n);
    s.assign(bytes.begin(), bytes.end());
  }
  template <class E>
  void choice(E& to, E last) {
    uint8_t v = 0;
    number(v);
    if (v > static_cast<uint8_t>(last))
      fail("{} has {} where 0 to {} is expected", message_, v, static_cast<int>(last));
    to = static_cast<E>(v);
  }
  // Reads items that take at least `least` bytes each.
  template <class T, class F>
  void list(std::vector<T>& items, size_t least, F part) {
    uint32_t n = 0;
    number(n);
    if (n > left_.size() / least)
      fail("{} announces {} items in {} bytes", message_, n, left_.size());
    for (; n > 0; --n) part(items.emplace_back());
  }
  void end() const {
    if (!left_.empty()) fail("{} has {} bytes too many", message_, left_.size());
  }

 private:
  std::span<const uint8_t> take(size_t n) {
    if (n > left_.size()) fail("{} is {} bytes short", message_, n - left_.size());
    const std::span<const uint8_t> taken = left_.first(n);
    left_ = left_.subspan(n);
    return taken;
  }
  std::span<const uint8_t> left_;
  const char* message_;
};

}  // namespace moebius
