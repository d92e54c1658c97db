// SPDX-License-Identifier: Apache-2.0
// Adapts nlohmann's event parser to JsonHandler, and builds the value tree and the writer on it.
#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_tree.h"
#include "base/utf8.h"

namespace moebius {

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    const size_t n = utf8_length(text.substr(i));
    if (c == '"' || c == '\\') {
      out += '\\';
      out += text[i++];
    } else if (c == '\n') {
      out += "\\n";
      ++i;
    } else if (c < 0x20 || n == 0) {
      out += fmt::format("\\u{:04x}", n == 0 ? 0xfffdu : unsigned{c});
      ++i;
    } else {
      const size_t begin = i;  // characters that stand for themselves are copied together
      i += n;
      while (i < text.size() && static_cast<signed char>(text[i]) >= ' ' && text[i] != '"' &&
             text[i] != '\\')
        ++i;
      out += text.substr(begin, i - begin);
    }
  }
  out += '"';
}

namespace {

using Events = nlohmann::json_sax<nlohmann::json>;

class Adapter final : public Events {
 public:
  Adapter(JsonHandler& handler, std::string_view what, size_t max_depth)
      : handler_(handler), what_(what), max_depth_(max_depth) {}
  bool null() override { return put(); }
  bool boolean(bool v) override { return put(v); }
  bool number_integer(number_integer_t v) override { return put(int64_t{v}); }
  bool number_unsigned(number_unsigned_t v) override {
    if (handler_.wanted()) handler_.number(v);
    return !handler_.stops();
  }
  bool number_float(number_float_t v, const string_t& text) override {
    return text.find_first_of(".eE") != string_t::npos ? put(v) : put(v, text);
  }
  bool string(string_t& v) override {
    if (handler_.wanted()) handler_.text(v);
    return !handler_.stops();
  }
  bool binary(binary_t&) override { return false; }
  bool key(string_t& v) override {
    handler_.key(v);
    return true;
  }
  bool start_object(std::size_t) override { return begin(/*array=*/false); }
  bool start_array(std::size_t) override { return begin(/*array=*/true); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& e) override {
    std::string text = e.what();
    if (const size_t cut = text.find("] "); cut != std::string::npos) text.erase(0, cut + 2);
    fail("{}: malformed JSON at byte {}: {}", what_, position, printable(text, 160));
  }

 private:
  template <class... Value>
  bool put(const Value&... v) {
    if (handler_.wanted()) handler_.value(Json(v...));
    return !handler_.stops();
  }
  bool begin(bool array) {
    if (++depth_ > max_depth_) fail("{}: JSON nested deeper than {} levels", what_, max_depth_);
    handler_.begin(array);
    return true;
  }
  bool end() {
    --depth_;
    handler_.end();
    return true;
  }
  JsonHandler& handler_;
  std::string_view what_;
  size_t max_depth_, depth_ = 0;
};

class Builder final : public JsonHandler {
 public:
  Builder(std::string_view what, size_t most_values) : what_(what), most_values_(most_values) {}
  void key(std::string& name) override {
    if (!tree.name(name)) fail("{}: duplicate key '{}'", what_, printable(name));
  }
  void begin(bool array) override { tree.open(array ? Json::array() : Json::object()); }
  void end() override {
    tree.close();
    check();
  }
  void value(Json v) override {
    const auto number = v.is_null() ? not_finite.find(nulls_++) : not_finite.end();
    tree.put(number == not_finite.end() ? std::move(v) : Json(number->second));
    check();
  }
  JsonTree tree;
  // Value of each null that replaces a number, by the null's index.
  std::map<size_t, double> not_finite;

 private:
  void check() const {
    if (tree.values() > most_values_) fail("{}: more than {} values", what_, most_values_);
  }
  std::string_view what_;
  size_t most_values_, nulls_ = 0;
};

// Replaces NaN, Infinity and -Infinity, which Python writes into configs and JSON does not have, by
// nulls; `numbers` maps the index of each such null to its value.
std::string without_python_numbers(std::string_view text, std::map<size_t, double>& numbers) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static constexpr std::pair<std::string_view, double> kWords[] = {
      {"NaN", std::numeric_limits<double>::quiet_NaN()},
      {"Infinity", kInfinity},
      {"-Infinity", -kInfinity}};
  std::string out;
  size_t nulls = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      out += c;
      if (c == '\\' && i + 1 < text.size()) out += text[++i];
      in_string = c != '"';
      continue;
    }
    const std::string_view rest = text.substr(i);
    const auto word = std::find_if(std::begin(kWords), std::end(kWords),
                                   [&](const auto& w) { return rest.starts_with(w.first); });
    if (word != std::end(kWords)) {
      out += "null";
      numbers[nulls++] = word->second;
      i += word->first.size() - 1;
    } else {
      nulls += rest.starts_with("null") ? 1 : 0;
      out += c;
      in_string = c == '"';
    }
  }
  return out;
}

void write_value(std::string& out, const Json& j, int indent, int level) {
  const auto newline = [&](int depth) {
    if (indent < 0) return;
    out += '\n';
    out.append(static_cast<size_t>(indent) * static_cast<size_t>(depth), ' ');
  };
  const auto separator = [&](bool first) {
    if (!first) out += indent < 0 ? ", " : ",";
    newline(level + 1);
  };
  switch (j.kind()) {
    case Json::Kind::kNull:
      out += "null";
      break;
    case Json::Kind::kBool:
      out += j.as_bool() ? "true" : "false";
      break;
    case Json::Kind::kInt:
      out += fmt::format("{}", *j.as_int());
      break;
    case Json::Kind::kUint:
      out += fmt::format("{}", j.as_uint());
      break;
    case Json::Kind::kDouble:
      out += !j.digits().empty()            ? j.digits()
             : std::isfinite(j.as_double()) ? fmt::format("{}", j.as_double())
                                            : "null";
      break;
    case Json::Kind::kString:
      append_json_string(out, j.as_string());
      break;
    case Json::Kind::kArray: {
      out += '[';
      for (size_t i = 0; i < j.items().size(); ++i)
        separator(i == 0), write_value(out, j.items()[i], indent, level + 1);
      if (!j.items().empty()) newline(level);
      out += ']';
      break;
    }
    case Json::Kind::kObject: {
      out += '{';
      bool first = true;
      for (const auto& [key, value] : j.members()) {
        separator(std::exchange(first, false));
        append_json_string(out, key);
        out += ": ";
        write_value(out, value, indent, level + 1);
      }
      if (!first) newline(level);
      out += '}';
      break;
    }
  }
}

}  // namespace

void parse_json_events(std::string_view text, JsonHandler& handler, std::string_view what,
                       size_t max_depth) {
  // Nlohmann's parser takes a zero byte for the end of the text and skips a byte order mark; JSON
  // allows neither.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    fail("{}: malformed JSON: zero byte at {}", what, zero);
  if (text.starts_with("\xef\xbb\xbf"))
    fail("{}: malformed JSON: text begins with a byte order mark", what);
  if (!is_utf8(text)) fail("{}: text is not valid UTF-8", what);
  Adapter adapter(handler, what, max_depth);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &adapter) && !handler.stops())
    fail("{}: malformed JSON", what);
}

void JsonHandler::text(std::string& v) { value(std::string_view(v)); }
void JsonHandler::number(uint64_t v) { value(v); }

Json parse_json(std::string_view text, std::string_view what, size_t max_depth) {
  Builder builder(what, kJsonMaxValues);
  std::string cleaned;
  if (text.find("NaN") != std::string_view::npos ||
      text.find("Infinity") != std::string_view::npos) {
    cleaned = without_python_numbers(text, builder.not_finite);
    text = cleaned;
  }
  parse_json_events(text, builder, what, max_depth);
  return builder.tree.take();
}

Json parse_json_strictly(std::string_view text, std::string_view what, size_t max_depth) {
  Builder builder(what, SIZE_MAX);
  parse_json_events(text, builder, what, max_depth);
  return builder.tree.take();
}

Json::Json() noexcept = default;
Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) = default;
Json& Json::operator=(Json&& other) noexcept = default;
Json::~Json() = default;

Json::Json(double v, std::string digits)
    : kind_(Kind::kDouble), double_(v), string_(std::move(digits)) {}
Json::Json(const char* v) : kind_(Kind::kString), string_(v) {}
Json::Json(std::string v) : kind_(Kind::kString), string_(std::move(v)) {}
Json::Json(std::string_view v) : kind_(Kind::kString), string_(v) {}

Json Json::object(std::initializer_list<Member> members) {
  Json j = object();
  j.members_ = members;
  return j;
}

void Json::push(Json value) { items_.push_back(std::move(value)); }

void Json::set(std::string key, Json value) {
  members_.emplace_back(std::move(key), std::move(value));
}

std::optional<int64_t> Json::as_int() const {
  if (kind_ == Kind::kInt) return int_;
  if (kind_ == Kind::kUint && int_ >= 0) return int_;
  return std::nullopt;
}

uint64_t Json::as_uint() const { return static_cast<uint64_t>(int_); }

double Json::as_double() const {
  if (kind_ == Kind::kDouble) return double_;
  return kind_ == Kind::kUint ? static_cast<double>(static_cast<uint64_t>(int_))
                              : static_cast<double>(int_);
}

const Json* Json::find(std::string_view key) const {
  for (const Member& m : members_)
    if (m.first == key) return &m.second;
  return nullptr;
}

std::string Json::dump(int indent) const {
  std::string out;
  write_value(out, *this, indent, 0);
  return out;
}

std::string_view kind_name(Json::Kind kind) {
  switch (kind) {
    case Json::Kind::kNull:
      return "null";
    case Json::Kind::kBool:
      return "a boolean";
    case Json::Kind::kInt:
    case Json::Kind::kUint:
      return "an integer";
    case Json::Kind::kDouble:
      return "a number";
    case Json::Kind::kString:
      return "a string";
    case Json::Kind::kArray:
      return "an array";
    case Json::Kind::kObject:
      return "an object";
  }
  return "?";
}

}  // namespace moebius
