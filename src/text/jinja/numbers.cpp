// SPDX-License-Identifier: Apache-2.0
// Implements arithmetic with Python's signs for // and %, formatting with %, dates, and upper and
// lower case.
#include <algorithm>
#include <cmath>
#include <ctime>

#include "base/error.h"
#include "text/jinja/run.h"
#include "text/unicode.h"

namespace moebius {
char32_t simple_lowercase(char32_t code);  // defined in unicode_form.cpp
char32_t simple_uppercase(char32_t code);
}  // namespace moebius

namespace moebius::jinja {
namespace {

using Kind = Value::Kind;

int64_t floor_divide(int64_t a, int64_t b) {
  const int64_t q = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? q - 1 : q;
}

double python_mod(double a, double b) {
  double m = std::fmod(a, b);
  if (m == 0) return std::copysign(0.0, b);
  if ((m < 0) != (b < 0)) m += b;
  return m;
}

Value integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0)
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  int64_t out = 1;
  if (base == 0 || base == 1) return Value(exponent == 0 ? int64_t{1} : base);
  if (base == -1) return Value(exponent % 2 == 0 ? int64_t{1} : int64_t{-1});
  for (; exponent > 0; --exponent)
    if (__builtin_mul_overflow(out, base, &out)) fail("a number is too large");
  return Value(out);
}

Value integer_arithmetic(const std::string& op, int64_t a, int64_t b) {
  int64_t out = 0;
  bool overflow = false;
  if (op == "+")
    overflow = __builtin_add_overflow(a, b, &out);
  else if (op == "-")
    overflow = __builtin_sub_overflow(a, b, &out);
  else if (op == "*")
    overflow = __builtin_mul_overflow(a, b, &out);
  else if (op == "**")
    return integer_power(a, b);
  else if (b == 0)
    fail("division by zero");
  else if (op == "/")
    return Value(static_cast<double>(a) / static_cast<double>(b));
  else if (b == -1)
    overflow = op == "//" && __builtin_sub_overflow(int64_t{0}, a, &out);
  else
    out = op == "//" ? floor_divide(a, b) : a - floor_divide(a, b) * b;
  if (overflow) fail("a number is too large");
  return Value(out);
}

// Returns the upper case of characters that become more than one; empty for all others.
std::string_view long_uppercase(char32_t c) {
  static constexpr std::pair<char32_t, std::string_view> kLong[] = {
      {0xdf, "SS"},   {0x149, "\u02bcN"}, {0x1f0, "J\u030c"}, {0xfb00, "FF"}, {0xfb01, "FI"},
      {0xfb02, "FL"}, {0xfb03, "FFI"},    {0xfb04, "FFL"},    {0xfb05, "ST"}, {0xfb06, "ST"}};
  const auto* at =
      std::find_if(std::begin(kLong), std::end(kLong), [&](const auto& l) { return l.first == c; });
  return at != std::end(kLong) ? at->second : std::string_view();
}

}  // namespace

Value arithmetic(const std::string& op, const Value& a, const Value& b) {
  if (!a.is_number() || !b.is_number())
    fail("bad operand type for {}: '{}'", op, type_name(a.is_number() ? b : a));
  if (a.is_integer() && b.is_integer()) return integer_arithmetic(op, a.integer(), b.integer());
  const double x = a.number(), y = b.number();
  if (op == "+") return Value(x + y);
  if (op == "-") return Value(x - y);
  if (op == "*") return Value(x * y);
  if (op == "**") return Value(std::pow(x, y));
  if (y == 0) fail("division by zero");
  if (op == "/") return Value(x / y);
  if (op == "//") return Value(std::floor(x / y));
  return Value(python_mod(x, y));
}

Value percent_format(Runtime& runtime, const Str& format, const std::vector<Value>& values) {
  StrBuilder out;
  size_t used = 0, done = 0;
  for (size_t i = 0; (i = format.text.find('%', i)) != std::string::npos;) {
    out.add(format, done, i);
    const char kind = i + 1 < format.text.size() ? format.text[i + 1] : '\0';
    if (kind == '%') {
      out.add("%");
    } else {
      if (used >= values.size()) fail("not enough arguments for the format");
      const Value& v = values[used++];
      if (kind == 's')
        out.add(runtime.to_str(v).str());
      else if (kind == 'r')
        write_repr(v, out);
      else if (kind == 'd' && v.is_number())
        out.add(fmt::format("{}", v.is(Kind::kFloat)
                                      ? static_cast<int64_t>(std::clamp(v.number(), -9e18, 9e18))
                                      : v.integer()));
      else
        fail("format '%{}' is not supported for '{}'", kind == '\0' ? ' ' : kind, type_name(v));
    }
    i += 2;
    done = i;
  }
  if (used < values.size()) fail("not all arguments of the format were used");
  out.add(format, std::min(done, format.text.size()), format.text.size());
  return runtime.heap().string(out.take());
}

std::string strftime_now(const std::string& format, std::optional<int64_t> now) {
  if (format.empty()) return {};
  if (format.size() > 1024 || format.find('\0') != std::string::npos)
    fail("the date format is too long");
  const std::time_t t = now ? static_cast<std::time_t>(*now) : std::time(nullptr);
  std::tm parts{};
  if (now ? gmtime_r(&t, &parts) == nullptr : localtime_r(&t, &parts) == nullptr)
    fail("the date cannot be told");
  std::string out(16384, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &parts));
  return unicode::lossy(out);
}

Str changed_case(const Str& s, bool upper) {
  StrBuilder out;
  for (size_t i = 0; i < s.text.size();) {
    const auto c = unicode::decode(s.text.data() + i);
    std::string made;
    if (upper && !long_uppercase(c.code).empty())
      made = long_uppercase(c.code);
    else if (!upper && c.code == 0x130)
      made = "i\u0307";
    else
      unicode::append(made, upper ? simple_uppercase(c.code) : simple_lowercase(c.code));
    // A special token is trusted only as it was written, so changed bytes keep their origin.
    out.add(made, s.trust.at(i));
    i += c.length;
  }
  return out.take();
}

}  // namespace moebius::jinja
