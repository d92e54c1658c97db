// SPDX-License-Identifier: Apache-2.0
// Keep in step with tests/python/text_pools.py.
#include "unit/text/mixed_text_util.h"

#include <array>

#include "base/json.h"
#include "text/unicode.h"
#include "unit/test_util.h"

namespace moebius::test {

MixedText::MixedText() {
  const Json pools =
      parse_json(read_file(test_data_dir() / "golden-text/tokenizers/pools.json"), "pools.json");
  for (const Json& j : pools.find("fragments")->items()) fragments_.push_back(j.as_string());
  for (const Json& j : pools.find("specials")->items()) specials_.push_back(j.as_string());
  for (const Json& j : pools.find("ranges")->items())
    ranges_.emplace_back(static_cast<uint32_t>(*j.items()[0].as_int()),
                         static_cast<uint32_t>(*j.items()[1].as_int()));
}

std::string MixedText::line(uint64_t seed, uint64_t index) const {
  static constexpr std::string_view kSpaces[] = {" ",      "\t",     "\n",     "\r\n",
                                                 "\u00a0", "\u3000", "\u2028", " \n"};
  static constexpr std::string_view kPunctuation = "!?.,;:-_=+*/\\|<>()[]{}'\"`~@#$%^&";
  TextRng rng(seed * 1000003 + index);
  std::string out;
  const auto fragment = [&]() -> const std::string& {
    return fragments_[rng.next(fragments_.size())];
  };
  for (uint64_t parts = 1 + rng.next(10); parts > 0; --parts) {
    const uint64_t kind = rng.next(17);
    if (kind < 7) {
      out += fragment();
    } else if (kind == 7) {
      for (uint64_t n = 1 + rng.next(12); n > 0; --n) out += static_cast<char>('0' + rng.next(10));
    } else if (kind == 8) {
      const std::string_view piece = kSpaces[rng.next(8)];
      for (uint64_t n = 1 + rng.next(9); n > 0; --n) out += piece;
    } else if (kind == 9) {
      const auto [low, high] = ranges_[rng.next(ranges_.size())];
      for (uint64_t n = 1 + rng.next(6); n > 0; --n)
        unicode::append(out, static_cast<char32_t>(low + rng.next(high - low + 1)));
    } else if (kind == 10) {
      for (uint64_t n = 1 + rng.next(4); n > 0; --n) {
        out += "aeoinAEO"[rng.next(8)];
        unicode::append(out, static_cast<char32_t>(0x300 + rng.next(0x4f)));
      }
    } else if (kind == 11) {
      if (rng.next(4) == 0)
        for (uint64_t n = 1 + rng.next(4); n > 0; --n)
          out += static_cast<char>(0x80 + rng.next(128));
    } else if (kind == 12) {
      for (uint64_t n = 1 + rng.next(5); n > 0; --n)
        out += kPunctuation[rng.next(kPunctuation.size())];
    } else if (kind == 13) {
      for (const char c : fragment()) {
        const bool letter = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        out += letter && rng.next(2) ? static_cast<char>(c ^ 32) : c;
      }
    } else if (kind == 14) {
      if (rng.next(3) == 0) {
        out.append(rng.next(3), ' ');
        out += specials_[rng.next(specials_.size())];
      }
    } else if (kind == 15) {
      const char letter = static_cast<char>('a' + rng.next(26));
      if (rng.next(4) == 0) out.append(1 + rng.next(60), letter);
    } else {
      const std::string& first = fragment();
      out += first;
      out += fragment();
    }
    if (rng.next(8) < 5) out += ' ';
  }
  return out;
}

uint32_t crc32(std::string_view bytes, uint32_t crc) {
  static const auto table = [] {
    std::array<uint32_t, 256> t{};
    for (uint32_t i = 0; i < 256; ++i) {
      t[i] = i;
      for (int k = 0; k < 8; ++k) t[i] = (t[i] >> 1) ^ ((t[i] & 1) ? 0xedb88320u : 0u);
    }
    return t;
  }();
  crc = ~crc;
  for (const char c : bytes) crc = table[(crc ^ static_cast<uint8_t>(c)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

}  // namespace moebius::test
