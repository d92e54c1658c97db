// SPDX-License-Identifier: Apache-2.0
// Calls of tools as a model writes them, byte by byte: one automaton per layout, driven by a row of
// the table of formats. A parser starts behind the marker of a section and ends with it. How the
// bytes are cut changes nothing.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "text/answer/json_stream.h"
#include "text/answer/tool_format.h"

namespace moebius {

// Who is told. The arguments of a call, joined, are one JSON object.
class CallSink {
 public:
  virtual ~CallSink() = default;
  virtual const Tool* tool(std::string_view name) const = 0;  // null: it is not offered
  virtual void begin(std::string_view name, std::string_view id) = 0;
  virtual void arguments(std::string_view bytes) = 0;
  virtual void end() = 0;
};

class CallParser {
 public:
  enum class Take : uint8_t {
    kMore,
    kDone,        // the section ends with this byte
    kDoneBefore,  // it ended before this byte, which is not taken
    kBroken,      // this byte does not fit, and is not taken
  };
  virtual ~CallParser() = default;
  virtual Take put(char c) = 0;
  // The answer ends here. False: what came is no whole section.
  virtual bool finish() { return false; }
  bool in_call() const { return in_call_; }  // its name is known, its end is not
  // Completes the arguments of the call in hand.
  void close() {
    if (!in_call_) return;
    close_arguments();
    in_call_ = false;
  }

 protected:
  explicit CallParser(CallSink& sink) : sink_(sink) {}
  // False: there is no such tool.
  bool begin_call(std::string_view name, std::string_view id) {
    tool_ = sink_.tool(name);
    if (tool_ == nullptr) return false;
    in_call_ = true;
    sink_.begin(name, id);
    return true;
  }
  void end_call() {
    in_call_ = false;
    sink_.end();
  }
  virtual void close_arguments() = 0;

  CallSink& sink_;
  const Tool* tool_ = nullptr;

 private:
  bool in_call_ = false;
};

// Of the format's own layout; `marked`: a marker began the section (some formats do without).
std::unique_ptr<CallParser> make_call_parser(const ToolFormat& format, CallSink& sink, bool marked);

inline JsonKinds kinds_of_json(std::string_view json) {
  switch (json.front()) {
    case '"':
      return kStringKind;
    case '{':
      return kObjectKind;
    case '[':
      return kArrayKind;
    case 'n':
      return kNullKind;
    case 't':
    case 'f':
      return kBoolKind;
    default:
      return kNumberKind;
  }
}

inline constexpr size_t kMostNameBytes = 64;
inline bool is_name_byte(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         c == '.' || c == '-';
}

// Words that may stand at one place, white space before them.
class WordMatcher {
 public:
  enum class Take : uint8_t { kMore, kFound, kBroken };
  // One of `words` (empty ones are none); kFound: word() says which.
  template <class Words>
  Take put(char c, const Words& words) {
    if (text_.empty() && is_json_space(c)) return Take::kMore;
    text_ += c;
    bool prefix = false;
    size_t i = 0;
    for (const std::string_view w : words) {
      if (!w.empty() && w == text_) {
        word_ = i;
        text_.clear();
        return Take::kFound;
      }
      prefix = prefix || w.starts_with(text_);
      ++i;
    }
    if (!prefix) text_.pop_back();
    return prefix ? Take::kMore : Take::kBroken;
  }
  size_t word() const { return word_; }
  bool inside() const { return !text_.empty(); }  // of a word that is not whole

 private:
  std::string text_;
  size_t word_ = 0;
};

// Makers of each layout.
std::unique_ptr<CallParser> make_object_parser(const ToolFormat& format, CallSink& sink);
std::unique_ptr<CallParser> make_named_parser(const ToolFormat& format, CallSink& sink);
std::unique_ptr<CallParser> make_tagged_parser(const ToolFormat& format, CallSink& sink);
std::unique_ptr<CallParser> make_pythonic_parser(const ToolFormat& format, CallSink& sink,
                                                 bool marked);
std::unique_ptr<CallParser> make_gemma_parser(const ToolFormat& format, CallSink& sink);
std::unique_ptr<CallParser> make_element_parser(const ToolFormat& format, CallSink& sink);

}  // namespace moebius
