// SPDX-License-Identifier: Apache-2.0
// The one table of the fields that a body may have: which endpoints take a field, its kind, limits
// and range, and which fields are refused in which words. Reading a body, the schemas in
// /openapi.json and the list in docs/serve.md follow it.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "serve/body.h"
#include "serve/fields.h"

namespace moebius {

enum class FieldKind : uint8_t {
  kAny,  // any value; its reader checks the type
  kBoolean,
  kInteger,
  kNumber,
  kString,
  kIds,      // token ids
  kPrompts,  // a text, texts, token ids, or lists of them
  kOutline,  // only the first entries are kept, without what lies in them: enough to refuse it
};

// Values of a refused field that ask for nothing, so that the field is ignored.
enum class Off : uint8_t {
  kNever,  // none: every value asks for a feature
  kEmpty,  // "", [], {} and false
  kFalse,
  kTrue,
  kNumber,   // one number
  kAtMost,   // numbers up to one
  kNone,     // the words "none" and "NONE", and false
  kFloat32,  // the words "float" and "float32"
  kText,     // ["text"]
};

struct BodyField {
  std::string_view name;   // of refused fields several, separated by spaces
  unsigned endpoints = 0;  // as bits of Endpoint
  FieldKind kind = FieldKind::kAny;
  size_t most = SIZE_MAX;  // most entries of its list or object
  // Range of a number; of an integer, as far as the reader does not narrow it.
  double least = 0, greatest = 0;
  int64_t least_integer = 0, greatest_integer = 0;
  std::string_view schema = {};  // JSON schema of the values but null; empty: as the kind says
  bool needed = false;           // true: a body without the field is refused
  // The members below belong to refused fields, whose kind is kOutline.
  std::string_view words = {};  // what a client is told behind the name; empty: not refused
  Off off = Off::kNever;
  double number = 0;  // for kNumber and kAtMost
  // Field to which it belongs: if that one asks for nothing, so does this.
  std::string_view of = {};
};

std::span<const BodyField> body_fields();
// Returns the row of a field at an endpoint; null: the field is ignored there.
const BodyField* find_field(std::string_view name, Endpoint endpoint);

// Throws ApiError 400 "unsupported" for the first refused field that asks for something.
void refuse_fields(const Fields& fields, Endpoint endpoint);

// Returns the JSON schema of the bodies of an endpoint.
std::string body_schema(Endpoint endpoint);
// Replaces "@chat" by the schema of the bodies of chats, and the names of other endpoints likewise.
std::string with_body_schemas(std::string document);
// Returns the endpoint's word in documents: "chat", "completion", ...
std::string_view name_of(Endpoint endpoint);
inline constexpr size_t kEndpoints = 8;  // bits of Endpoint

// The fields of a body itself, whose numbers have the ranges of the table. A number that the
// endpoint does not take counts as absent.
class BodyFields : public Fields {
 public:
  explicit BodyFields(const RequestBody& body) : Fields(body.fields, ""), body_(body) {}
  std::optional<double> number(std::string_view name) const;
  // Reads an integer whose range is narrowed to `least` and `most`.
  std::optional<int64_t> integer(std::string_view name, int64_t least = INT64_MIN,
                                 int64_t most = INT64_MAX) const;

 private:
  const RequestBody& body_;
};

}  // namespace moebius
