// SPDX-License-Identifier: Apache-2.0
#include "serve/body.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <set>

#include "base/error.h"
#include "base/json_tree.h"
#include "serve/body_fields.h"
#include "serve/fields.h"
#include "serve/request.h"

namespace moebius {
namespace {

constexpr const char* kBody = "the body";
constexpr size_t kBodyDepth = 64, kMostFields = 1024;
constexpr size_t kOutlineEntries = 16;
constexpr size_t kMostDetokenized = 1 << 17;  // the context counts if it is longer

// Receives the values of a text, or of one field of it. Throws ApiError or Error.
class ValueReader : public JsonHandler {
 public:
  virtual void done(RequestBody& /*body*/) {}  // the field is complete
};

class TreeReader final : public ValueReader {
 public:
  // what: holder of the value, for messages.
  TreeReader(std::string what, std::string name, size_t most, size_t& left)
      : what_(std::move(what)), name_(std::move(name)), most_(most), left_(left) {}
  void key(std::string& name) override {
    if (tree_.depth() == 1) entry();
    if (!tree_.name(name)) fail("{}: duplicate key '{}'", what_, printable(name));
  }
  void begin(bool array) override {
    count();
    tree_.open(array ? Json::array() : Json::object());
  }
  void end() override { tree_.close(); }
  void value(Json v) override {
    count();
    tree_.put(std::move(v));
  }
  void done(RequestBody& body) override { body.fields.set(name_, tree_.take()); }
  Json take() { return tree_.take(); }

 private:
  void count() {
    if (left_ == 0) fail("{}: more than {} values", what_, kMostBodyValues);
    --left_;
    if (tree_.depth() == 1 && !tree_.object_at(0)) entry();
  }
  void entry() {
    if (++entries_ > most_) invalid(name_, "{} has more than {} entries", name_, most_);
  }
  JsonTree tree_;
  std::string what_, name_;
  size_t most_, entries_ = 0;
  size_t& left_;
};

// Keeps the first entries of the field's own list or object, and leaves their content empty.
class OutlineReader final : public ValueReader {
 public:
  explicit OutlineReader(std::string name) : name_(std::move(name)) {}
  void key(std::string& name) override {
    if (depth_ == 1) key_ = name;
  }
  void begin(bool array) override {
    put(array ? Json::array() : Json::object());
    ++depth_;
  }
  void end() override { --depth_; }
  void value(Json v) override { put(std::move(v)); }
  void done(RequestBody& body) override { body.fields.set(name_, std::move(root_)); }

 private:
  void put(Json v) {
    if (depth_ == 0) {
      root_ = std::move(v);
    } else if (depth_ == 1 && entries_++ < kOutlineEntries) {
      if (root_.is_array())
        root_.push(std::move(v));
      else
        root_.set(key_, std::move(v));
    }
  }
  std::string name_, key_;
  Json root_;
  size_t depth_ = 0, entries_ = 0;
};

// Reads token ids as counted in a prompt: a list of them, a text, or several of either.
class IdsReader final : public ValueReader {
 public:
  struct Limits {
    size_t vocab, ids, prompts;  // prompts 0: accepts only one list of ids
    const char* expected;
  };
  IdsReader(std::string name, const Limits& limits) : name_(std::move(name)), limits_(limits) {}
  void begin(bool array) override {
    if (!array || depth_ == (limits_.prompts > 0 ? 2u : 1u))
      wrong(array ? Json::array() : Json::object());
    if (depth_ == 1) next_prompt(Json::array(), std::vector<int32_t>());
    ++depth_;
  }
  void end() override { --depth_; }
  void value(Json v) override {
    if (depth_ == 0 && limits_.prompts > 0 && v.is_string()) {
      list_.emplace_back(v.as_string());
    } else if (depth_ == 0) {
      wrong_type(v, name_, limits_.expected);
    } else if (depth_ == 1 && limits_.prompts > 0 && (!v.is_number() || kind_ == Kind::kSeveral)) {
      if (!v.is_string()) wrong(v);
      next_prompt(v, v.as_string());
    } else {
      if (depth_ == 1 && kind_ == Kind::kNone) {
        kind_ = Kind::kAlone;
        list_.emplace_back(std::vector<int32_t>());
      }
      add_id(v);
    }
  }
  void done(RequestBody& body) override { body.lists[name_] = std::move(list_); }

 private:
  enum class Kind : uint8_t { kNone, kAlone, kSeveral };

  [[noreturn]] void wrong(const Json& v) const {
    if (depth_ == 0) wrong_type(v, name_, limits_.expected);
    if (depth_ == 2) wrong_type(v, at_id(), "an integer");
    const bool ids = limits_.prompts == 0 || kind_ == Kind::kAlone;
    const bool lists = !ids && !list_.empty() && list_[0].index() == 1;
    wrong_type(v, ids ? at_id() : fmt::format("{}[{}]", name_, list_.size()),
               ids     ? "an integer"
               : lists ? "a list of token ids"
                       : "a string");
  }
  void next_prompt(const Json& v, PromptInput prompt) {
    if (kind_ == Kind::kAlone || (!list_.empty() && list_[0].index() != prompt.index())) wrong(v);
    kind_ = Kind::kSeveral;
    if (list_.size() == limits_.prompts)
      invalid(name_, "{} has more than {} entries", name_, limits_.prompts);
    list_.push_back(std::move(prompt));
  }
  std::string at_prompt() const {
    return kind_ == Kind::kSeveral ? fmt::format("{}[{}]", name_, list_.size() - 1) : name_;
  }
  std::string at_id() const {
    const auto* ids = list_.empty() ? nullptr : std::get_if<std::vector<int32_t>>(&list_.back());
    return fmt::format("{}[{}]", at_prompt(), ids != nullptr ? ids->size() : 0);
  }
  void add_id(const Json& v) {
    auto& ids = std::get<std::vector<int32_t>>(list_.back());
    if (ids.size() == limits_.ids) {
      if (limits_.prompts > 0) throw context_exceeded(std::nullopt, limits_.ids, at_prompt());
      invalid(name_, "{} has more than {} entries", name_, limits_.ids);
    }
    const auto highest = static_cast<int64_t>(limits_.vocab) - 1;
    const std::optional<int64_t> known = v.as_int();
    const int64_t id =
        known && *known >= 0 && *known <= highest ? *known : integer_at(v, at_id(), 0, highest);
    ids.push_back(static_cast<int32_t>(id));
  }

  std::string name_;
  Limits limits_;
  std::vector<PromptInput> list_;
  Kind kind_ = Kind::kNone;
  size_t depth_ = 0;
};

// Reads the body's object, and gives each field's value to its reader.
class BodyReader final : public ValueReader {
 public:
  BodyReader(Endpoint endpoint, const ServedModel& model) : model_(model) {
    body.endpoint = endpoint;
  }
  void key(std::string& v) override {
    if (depth_ > 1) {
      if (reader_) reader_->key(v);
      return;
    }
    if (names_.size() == kMostFields) invalid("", "the body has more than {} fields", kMostFields);
    if (!names_.insert(v).second) fail("{}: duplicate key '{}'", kBody, printable(v));
    reader_ = reader_of(v);
  }
  bool wanted() const override { return depth_ == 0 || reader_ != nullptr; }
  void begin(bool array) override {
    if (depth_ == 0 && array) not_an_object(Json::Kind::kArray);
    if (depth_++ > 0 && reader_) reader_->begin(array);
  }
  void end() override {
    --depth_;
    if (depth_ == 0 || !reader_) return;
    reader_->end();
    end_of_value();
  }
  void value(Json v) override {
    if (depth_ == 0) not_an_object(v.kind());
    if (depth_ == 1 && v.is_null()) {  // counts as absent in every field
      reader_ = nullptr;
      return;
    }
    reader_->value(std::move(v));
    end_of_value();
  }

  RequestBody body;

 private:
  std::unique_ptr<ValueReader> reader_of(const std::string& name) {
    const BodyField* f = find_field(name, body.endpoint);
    if (f == nullptr) return nullptr;
    if (f->kind == FieldKind::kOutline) return std::make_unique<OutlineReader>(name);
    const bool prompts = f->kind == FieldKind::kPrompts;
    if (!prompts && f->kind != FieldKind::kIds)
      return std::make_unique<TreeReader>(kBody, name, f->most, left_);
    IdsReader::Limits limits{model_.vocab, f->most, 0, "an array of token ids"};
    if (prompts)
      limits = {model_.vocab, model_.context, f->most,
                "a string, strings, token ids or lists of token ids"};
    if (name == "tokens") limits.ids = std::max(model_.context, kMostDetokenized);
    return std::make_unique<IdsReader>(name, limits);
  }
  void end_of_value() {
    if (depth_ > 1) return;
    reader_->done(body);
    reader_ = nullptr;
  }
  [[noreturn]] static void not_an_object(Json::Kind kind) {
    refuse("invalid_type", "", "the body is {}; expected an object", kind_name(kind));
  }

  const ServedModel& model_;
  std::set<std::string, std::less<>> names_;
  std::unique_ptr<ValueReader> reader_;  // reader of the current field; null: the field is skipped
  size_t depth_ = 0, left_ = kMostBodyValues;
};

// Reads only the field `model`, if it is a string: it builds nothing else and stops there.
class NameReader final : public ValueReader {
 public:
  bool wanted() const override { return depth_ == 1 && here_; }
  void key(std::string& v) override { here_ = depth_ == 1 ? v == "model" : here_; }
  void begin(bool) override { ++depth_; }
  void end() override { --depth_; }
  void value(Json v) override {
    if (v.is_string()) name = v.as_string();
  }
  bool stops() const override { return name.has_value(); }

  std::optional<std::string> name;

 private:
  size_t depth_ = 0;
  bool here_ = false;
};

}  // namespace

const std::vector<int32_t>* RequestBody::ids(std::string_view name) const {
  static const std::vector<int32_t> none;
  const auto it = lists.find(name);
  if (it == lists.end()) return nullptr;
  return it->second.empty() ? &none : &std::get<std::vector<int32_t>>(it->second[0]);
}

RequestBody parse_body(std::string_view text, Endpoint endpoint, const ServedModel& model) {
  BodyReader reader(endpoint, model);
  try {
    parse_json_events(text, reader, kBody, kBodyDepth);
  } catch (const Error& e) {
    refuse("invalid_json", "", "{}", e.what());
  }
  return std::move(reader.body);
}

std::optional<std::string> model_of_body(std::string_view text) {
  NameReader reader;
  try {
    parse_json_events(text, reader, kBody, kBodyDepth);
  } catch (const Error&) {
    // The text is no valid body, which reading all of it will report.
  }
  return reader.name;
}

Json parse_inner_json(std::string_view text, const std::string& what, size_t& left) {
  TreeReader reader(what, "", SIZE_MAX, left);
  parse_json_events(text, reader, what, kBodyDepth);
  return reader.take();
}

}  // namespace moebius
