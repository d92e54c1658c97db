// SPDX-License-Identifier: Apache-2.0
// Reads and writes JSON without exposing the library that parses it (json.cpp is the only unit that
// includes it). parse_json_events calls a JsonHandler, for untrusted files of any size; parse_json
// returns a tree of Json values, for configs. Objects keep their order, duplicate keys are an
// error, depth is bounded, and text must be valid UTF-8.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moebius {

inline constexpr size_t kJsonMaxDepth = 128;

class Json;

// Receives the values of one document, in their order. A handler throws Error to refuse one.
class JsonHandler {
 public:
  virtual ~JsonHandler() = default;
  virtual void key(std::string& /*name*/) {}  // name of the next value; may be moved from
  virtual void begin(bool array) = 0;         // an array or an object begins
  virtual void end() {}
  virtual void value(Json v) = 0;  // anything but an array or an object
  // Receive texts (which may be moved from) and non-negative integers; they call value().
  virtual void text(std::string& v);
  virtual void number(uint64_t v);
  virtual bool wanted() const { return true; }  // false: value() is not called
  virtual bool stops() const { return false; }  // true: the rest of the document is not read
};

// Parses `text` and calls the handler. Throws Error("<what>: ...") for malformed text, invalid
// UTF-8 and depth over max_depth.
void parse_json_events(std::string_view text, JsonHandler& handler, std::string_view what,
                       size_t max_depth = kJsonMaxDepth);

class Json {
 public:
  enum class Kind : uint8_t { kNull, kBool, kInt, kUint, kDouble, kString, kArray, kObject };
  using Member = std::pair<std::string, Json>;

  // json.cpp has the bodies of members that copy or destroy strings and vectors, so that units which
  // use Json do not compile copies of them.
  Json() noexcept;
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();
  Json(bool v) : kind_(Kind::kBool), bool_(v) {}
  Json(int v) : Json(static_cast<int64_t>(v)) {}
  Json(int64_t v) : kind_(v < 0 ? Kind::kInt : Kind::kUint), int_(v) {}
  Json(uint64_t v) : kind_(Kind::kUint), int_(static_cast<int64_t>(v)) {}
  Json(unsigned v) : Json(static_cast<uint64_t>(v)) {}
  Json(double v) : kind_(Kind::kDouble), double_(v) {}
  // Makes an integer that does not fit 64 bits: as_double() returns `v`, dump() writes `digits`.
  Json(double v, std::string digits);
  Json(const char* v);
  Json(std::string v);
  Json(std::string_view v);
  static Json array() { return Json(Kind::kArray); }
  static Json object() { return Json(Kind::kObject); }
  static Json object(std::initializer_list<Member> members);

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  bool is_integer() const { return kind_ == Kind::kInt || kind_ == Kind::kUint; }
  bool is_number() const { return is_integer() || kind_ == Kind::kDouble; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_array() const { return kind_ == Kind::kArray; }
  bool is_object() const { return kind_ == Kind::kObject; }

  // Read the value; call the function that fits kind(). as_int returns no value outside of int64.
  bool as_bool() const { return bool_; }
  std::optional<int64_t> as_int() const;
  uint64_t as_uint() const;  // returns the value; only for kind kUint
  double as_double() const;
  const std::string& as_string() const { return string_; }
  // Returns the digits of an integer that does not fit 64 bits; else "".
  const std::string& digits() const { return string_; }
  const std::vector<Json>& items() const { return items_; }
  const std::vector<Member>& members() const { return members_; }
  // Returns a member of an object; null if there is none, or if this is no object.
  const Json* find(std::string_view key) const;

  // Change the value.
  void push(Json value);
  void set(std::string key, Json value);
  std::string dump(int indent = -1) const;  // returns JSON text; indent < 0: on one line

 private:
  explicit Json(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::kNull;
  bool bool_ = false;
  int64_t int_ = 0;  // for kUint: the bits of the unsigned number
  double double_ = 0;
  std::string string_;
  std::vector<Json> items_;
  std::vector<Member> members_;
};

// Parses `text`, accepting Python's NaN and Infinity. Throws Error that begins with `what`.
Json parse_json(std::string_view text, std::string_view what, size_t max_depth = kJsonMaxDepth);
// Parses only what RFC 8259 allows, for untrusted text. Throws Error that begins with `what`.
Json parse_json_strictly(std::string_view text, std::string_view what,
                         size_t max_depth = kJsonMaxDepth);
// Appends `text` as a JSON string with its quotes.
void append_json_string(std::string& out, std::string_view text);
std::string_view kind_name(Json::Kind kind);  // returns words such as "a string", "an object"

}  // namespace moebius
