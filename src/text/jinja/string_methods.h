// SPDX-License-Identifier: Apache-2.0
// Declares the methods of strings, with Python's semantics. names.cpp registers them; methods that
// share a function look at the name.
#pragma once
#include "text/jinja/run.h"
#include "text/unicode.h"

namespace moebius::jinja {

class StringMethods {
 public:
  StringMethods(Runtime& runtime, const Str& self, const std::string& name, const Arguments& args)
      : runtime_(runtime), heap_(runtime.heap()), self_(self), name_(name), args_(args) {
    spend(self.text.size() / 64);
  }
  Value strip();
  Value split();
  Value splitlines();
  Value affix();
  Value replace();
  Value upper() { return make(changed_case(self_, true)); }
  Value lower() { return make(changed_case(self_, false)); }
  Value title();
  Value capitalize();
  Value find();
  Value join();
  Value partition();
  Value format();
  Value pad();
  Value remove_affix();
  Value count();
  // Returns whether all characters are of these categories, and there is one.
  template <uint32_t categories>
  Value all_of() {
    return all([](char32_t c) { return (unicode::Table::get().mask(c) & categories) != 0; });
  }
  Value is_space();
  Value is_upper();
  Value is_lower();

 private:
  Value make(Str s) { return heap_.string(std::move(s)); }
  Value part(size_t begin, size_t end) { return make(substr(self_, begin, end)); }
  Value split_spaces(int64_t limit, bool from_right);
  template <class Predicate>
  Value all(const Predicate& predicate) {
    spend(self_.text.size() / 16);
    for (size_t i = 0; i < self_.text.size();) {
      const auto c = unicode::decode(self_.text.data() + i);
      if (!predicate(c.code)) return Value(false);
      i += c.length;
    }
    return Value(!self_.text.empty());
  }
  Value has_case(uint32_t want, uint32_t other);

  Runtime& runtime_;
  Heap& heap_;
  const Str& self_;
  const std::string& name_;
  const Arguments& args_;
};

}  // namespace moebius::jinja
