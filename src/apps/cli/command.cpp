// SPDX-License-Identifier: Apache-2.0
// Declares options, and converts a value's text to its target's type.
#include "apps/cli/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace moebius {
namespace {

template <class... Args>
[[noreturn]] void misuse(fmt::format_string<Args...> format, Args&&... args) {
  throw UsageError(fmt::format(format, std::forward<Args>(args)...));
}

std::vector<std::string> split(std::string_view text, char by) {
  std::vector<std::string> out;
  while (true) {
    const size_t end = text.find(by);
    out.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return out;
    text.remove_prefix(end + 1);
  }
}

template <class T>
constexpr bool is_vector = false;
template <class T>
constexpr bool is_vector<std::vector<T>> = true;
template <class T>
constexpr bool is_optional = false;
template <class T>
constexpr bool is_optional<std::optional<T>> = true;

std::string expected(const Option& o, bool whole) {
  const char* kind = whole ? "a whole number" : "a number";
  if (!o.limits) return kind;
  return fmt::format("{} from {} to {}", kind, o.limits->first, o.limits->second);
}

template <class T>
T parse_number(const Option& o, std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [next, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || next != end || text.empty())
    misuse("{} is '{}'; expected {}", o.name(), printable(text),
           expected(o, std::is_integral_v<T>));
  const auto number = static_cast<double>(value);
  if (o.limits && !(number >= o.limits->first && number <= o.limits->second))
    misuse("{} is {}; expected {}", o.name(), text, expected(o, std::is_integral_v<T>));
  return value;
}

template <class T>
T parse_value(const Option& o, std::string_view text) {
  if constexpr (std::is_same_v<T, std::string>) {
    if (!o.choices.empty() &&
        std::find(o.choices.begin(), o.choices.end(), text) == o.choices.end())
      misuse("{} is '{}'; expected one of {}", o.name(), printable(text),
             fmt::join(o.choices, ", "));
    return std::string(text);
  } else {
    return parse_number<T>(o, text);
  }
}

// Returns the text by which help shows the target's current value.
template <class T>
std::string show(const T& value) {
  if constexpr (std::is_same_v<T, bool> || is_optional<T>) {
    return "";
  } else if constexpr (is_vector<T>) {
    return fmt::format("{}", fmt::join(value, ","));
  } else {
    return fmt::format("{}", value);
  }
}

Option make_option(std::string_view names, std::string value, OptionTarget target, std::string what,
                   OptionDetails details) {
  Option o;
  static_cast<OptionDetails&>(o) = std::move(details);
  o.names = split(names, ',');
  o.value = std::move(value);
  o.what = std::move(what);
  o.target = target;
  if (o.default_text.empty())
    o.default_text = std::visit([](const auto* t) { return show(*t); }, target);
  // Lists of numbers are separated by commas; texts may contain commas, so their options are
  // repeated unless their details say otherwise.
  o.commas = o.commas || std::holds_alternative<std::vector<size_t>*>(target) ||
             std::holds_alternative<std::vector<int64_t>*>(target);
  return o;
}

}  // namespace

bool Option::is_list() const {
  return std::visit([]<class T>(const T*) { return is_vector<T>; }, target);
}

void Option::set(std::string_view text) {
  if (given > 0 && !is_list()) misuse("{} is given twice", name());
  std::visit(
      [&]<class T>(T* t) {
        if constexpr (std::is_same_v<T, bool>) {
          *t = !inverted;
        } else if constexpr (is_vector<T>) {
          if (given == 0) t->clear();
          using Item = typename T::value_type;
          if (!commas) return t->push_back(parse_value<Item>(*this, text));
          for (const std::string& item : split(text, ','))
            t->push_back(parse_value<Item>(*this, item));
        } else if constexpr (is_optional<T>) {
          *t = parse_value<typename T::value_type>(*this, text);
        } else {
          *t = parse_value<T>(*this, text);
        }
      },
      target);
  ++given;
}

Option& Command::option(std::string_view names, std::string value, OptionTarget target,
                        std::string does, OptionDetails details) {
  details.rare = details.rare || section_rare_;
  Option& o = options.emplace_back(
      make_option(names, std::move(value), target, std::move(does), std::move(details)));
  o.section = section_;
  return o;
}

Option& Command::flag(std::string_view names, bool& target, std::string does,
                      OptionDetails details) {
  Option& o = option(names, "", &target, std::move(does), std::move(details));
  o.inverted = target;
  return o;
}

Option& Command::argument(std::string argument_name, std::string& target, std::string does,
                          OptionDetails details) {
  return positional.emplace_back(
      make_option(argument_name, argument_name, &target, std::move(does), std::move(details)));
}

Option& Command::folder(std::string& target) {
  Option& o = argument("DIR", target, "checkpoint folder, or GGUF file",
                       {.default_text = "the bundled model", .kind = ValueKind::kFolder});
  o.bundled = true;
  return o;
}

const Option* Command::find(std::string_view wanted) const {
  for (const std::deque<Option>* list : {&options, &positional})
    for (const Option& o : *list)
      if (std::find(o.names.begin(), o.names.end(), wanted) != o.names.end()) return &o;
  return nullptr;
}

Option* Command::find(std::string_view wanted) {
  return const_cast<Option*>(std::as_const(*this).find(wanted));
}

bool Command::given(std::string_view wanted) const {
  const Option* o = find(wanted);
  return o != nullptr && o->given > 0;
}

}  // namespace moebius
