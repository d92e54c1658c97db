// SPDX-License-Identifier: Apache-2.0
// Parses tool calls as a model writes them, byte by byte. Each layout has one automaton, configured
// by a row of the table of formats. A parser starts after the marker of a section and ends with the
// section. Results do not depend on how bytes are divided over calls.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "text/answer/json_stream.h"
#include "text/answer/tool_format.h"

namespace moebius {

// Receives parsed calls. All arguments() of a call together are one JSON object.
class CallSink {
 public:
  virtual ~CallSink() = default;
  // Returns the tool, or null if the request offers none of that name.
  virtual const Tool* tool(std::string_view name) const = 0;
  virtual void begin(std::string_view name, std::string_view id) = 0;
  virtual void arguments(std::string_view bytes) = 0;
  virtual void end() = 0;
};

class CallParser {
 public:
  enum class Take : uint8_t {
    kMore,
    kDone,        // the section ended with this byte
    kDoneBefore,  // the section ended before this byte, which was not consumed
    kBroken,      // this byte does not fit, and was not consumed
  };
  virtual ~CallParser() = default;
  virtual Take put(char c) = 0;
  // Ends the section at the end of the answer. Returns false if the section is not complete.
  virtual bool finish() { return false; }
  // Returns true while the name of a call is known and the call has not ended.
  bool in_call() const { return in_call_; }
  // Completes the arguments of the current call, if there is one.
  void close() {
    if (!in_call_) return;
    close_arguments();
    in_call_ = false;
  }

 protected:
  explicit CallParser(CallSink& sink) : sink_(sink) {}
  // Starts a call; returns false if there is no such tool.
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

// Makes the parser of the format's layout. `marked`: the section began with a marker, which some
// formats do not need.
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

// Matches one of several words at a place, after white space.
class WordMatcher {
 public:
  enum class Take : uint8_t { kMore, kFound, kBroken };
  // Consumes one byte of one of `words`; empty words never match. After kFound, word() is the
  // index.
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
  bool inside() const { return !text_.empty(); }  // true: a word has begun and is not complete

 private:
  std::string text_;
  size_t word_ = 0;
};

// Make the parser of each layout.
std::unique_ptr<CallParser> make_object_parser(const ToolFormat& format, CallSink& sink);
std::unique_ptr<CallParser> make_named_parser(const ToolFormat& format, CallSink& sink);
std::unique_ptr<CallParser> make_tagged_parser(const ToolFormat& format, CallSink& sink);
std::unique_ptr<CallParser> make_pythonic_parser(const ToolFormat& format, CallSink& sink,
                                                 bool marked);
std::unique_ptr<CallParser> make_gemma_parser(const ToolFormat& format, CallSink& sink);
std::unique_ptr<CallParser> make_element_parser(const ToolFormat& format, CallSink& sink);

}  // namespace moebius
