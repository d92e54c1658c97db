// SPDX-License-Identifier: Apache-2.0
// Implements the normalizers. Unicode forms are in unicode_form.cpp.
#include "text/normalizer.h"

#include "base/utf8.h"
#include "text/json_fields.h"
#include "text/pattern.h"
#include "text/unicode.h"

namespace moebius {
namespace {

using unicode::Table;

class Form final : public Normalizer {
 public:
  explicit Form(UnicodeForm form) : form_(form) {}
  void apply(NormalizedText& v) const override { to_unicode_form(v, form_); }

 private:
  UnicodeForm form_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string text) : text_(std::move(text)) {}
  void apply(NormalizedText& v) const override {
    if (v.text.empty()) return;
    v.text.insert(0, text_);
    if (!v.trusted.empty()) v.trusted.insert(0, text_.size(), v.trusted[0]);
  }

 private:
  std::string text_;
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(NormalizedText& v) const override {
    const Table& table = Table::get();
    size_t begin = 0, end = v.text.size();
    while (left_ && begin < end) {
      const auto c = unicode::decode(v.text.data() + begin);
      if (!table.is_space(c.code)) break;
      begin += c.length;
    }
    while (right_ && end > begin) {
      const auto c = unicode::decode_before(v.text, end);
      if (!table.is_space(c.code)) break;
      end -= c.length;
    }
    v.from_start = v.from_start && begin == 0;
    v.text = v.text.substr(begin, end - begin);
    if (!v.trusted.empty()) v.trusted = v.trusted.substr(begin, end - begin);
  }

 private:
  bool left_, right_;
};

class Replace final : public Normalizer {
 public:
  Replace(std::unique_ptr<Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(NormalizedText& v) const override {
    Matches matches(*pattern_, v.text);
    size_t done = 0, begin = 0, end = 0;
    if (!matches.next(begin, end)) return;
    v.from_start = v.from_start && (begin > 0 || !content_.empty());
    NormalizedWriter out(v);
    do {
      out.copy(done, begin);
      out.replace(begin, end, content_);
      done = end;
    } while (matches.next(begin, end));
    out.copy(done, v.text.size());
    v = out.take();
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  std::string content_;
};

// Maps characters one by one: to lower case, to nothing (marks), or from bytes to their stand-ins.
class PerChar final : public Normalizer {
 public:
  enum class What { kLowercase, kStripAccents, kByteLevel };
  explicit PerChar(What what) : what_(what) {}
  void apply(NormalizedText& v) const override;

 private:
  What what_;
};

class Sequence final : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Normalizer>> parts) : parts_(std::move(parts)) {}
  void apply(NormalizedText& v) const override {
    for (const auto& part : parts_) part->apply(v);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

std::unique_ptr<Normalizer> parse_one(const Json& json, const std::string& where, int depth) {
  if (depth > 16) fail("{}: sequences nested deeper than 16", where);
  const std::string& type = string_field(json, "type", where);
  if (type == "NFC") return std::make_unique<Form>(UnicodeForm::kNfc);
  if (type == "NFD") return std::make_unique<Form>(UnicodeForm::kNfd);
  if (type == "NFKC") return std::make_unique<Form>(UnicodeForm::kNfkc);
  if (type == "NFKD") return std::make_unique<Form>(UnicodeForm::kNfkd);
  if (type == "Lowercase") return std::make_unique<PerChar>(PerChar::What::kLowercase);
  if (type == "StripAccents") return std::make_unique<PerChar>(PerChar::What::kStripAccents);
  if (type == "ByteLevel") return std::make_unique<PerChar>(PerChar::What::kByteLevel);
  if (type == "Precompiled") return parse_precompiled(json, where);
  if (type == "Prepend") return std::make_unique<Prepend>(string_field(json, "prepend", where));
  if (type == "Replace") {
    // One field per statement: compilers differ in the order of arguments, and the error names the
    // first wrong field.
    auto pattern = parse_pattern(require_field(json, "pattern", where), where + ".pattern");
    return std::make_unique<Replace>(std::move(pattern), string_field(json, "content", where));
  }
  if (type == "Strip") {
    const bool left = bool_field(json, "strip_left", /*absent=*/true, where);
    return std::make_unique<Strip>(left, bool_field(json, "strip_right", /*absent=*/true, where));
  }
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Normalizer>> parts;
    for_each_item(json, "normalizers", where, [&](const Json& item, const std::string& here) {
      parts.push_back(parse_one(item, here, depth + 1));
    });
    return std::make_unique<Sequence>(std::move(parts));
  }
  fail(
      "{}: normalizer type '{}' is not supported (known: NFC, NFD, NFKC, NFKD, Lowercase, Strip, "
      "StripAccents, Prepend, Precompiled, Replace, ByteLevel, Sequence)",
      where, printable(type));
}

}  // namespace

char32_t simple_lowercase(char32_t code);  // defined in unicode_form.cpp

void PerChar::apply(NormalizedText& v) const {
  const Table& table = Table::get();
  const bool mark_first = what_ == What::kStripAccents && !v.text.empty() &&
                          (table.mask(unicode::decode(v.text.data()).code) & unicode::kM) != 0;
  v.from_start = v.from_start && !mark_first;
  NormalizedWriter out(v);
  std::string made;
  for (size_t i = 0; i < v.text.size();) {
    const auto c = unicode::decode(v.text.data() + i);
    made.clear();
    if (what_ == What::kLowercase) {
      unicode::append(made, simple_lowercase(c.code));
      if (c.code == 0x130) made = "i\xcc\x87";  // the only character whose lower case is two
      out.replace(i, i + c.length, made);
    } else if (what_ == What::kStripAccents) {
      if ((table.mask(c.code) & unicode::kM) == 0) out.copy(i, i + c.length);
    } else {
      for (size_t k = 0; k < c.length; ++k)
        unicode::append(made, unicode::byte_to_char(static_cast<uint8_t>(v.text[i + k])));
      out.replace(i, i + c.length, made);
    }
    i += c.length;
  }
  v = out.take();
}

std::unique_ptr<Normalizer> parse_normalizer(const Json* json, const std::string& where) {
  if (json == nullptr || json->is_null()) return nullptr;
  return parse_one(*json, where, 0);
}

}  // namespace moebius
