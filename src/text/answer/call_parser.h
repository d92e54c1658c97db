// SPDX-License-Identifier: Apache-2.0
// Parses tool calls as a model writes them, byte by byte. The automata are configured by a row of
// the table of formats. A parser starts after the marker of a section and ends with the
// section. Results do not depend on how bytes are divided over calls.
#pragma once
#include <initializer_list>
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
  // Returns whether the section is complete; called at the end of the answer.
  virtual bool finish() const = 0;
  // Returns true while the name of a call is known and the call has not ended.
  bool in_call() const { return in_call_; }
  // Completes the arguments of the current call, if there is one.
  void close() {
    if (!in_call_) return;
    close_arguments();
    in_call_ = false;
  }

 protected:
  CallParser(const ToolFormat& format, CallSink& sink) : f_(format), sink_(sink) {}
  // Starts a call; returns false if there is no such tool.
  bool begin_call(std::string_view name, std::string_view id = {}) {
    tool_ = sink_.tool(name);
    if (tool_ == nullptr) return false;
    in_call_ = true;
    arguments_ = 0;
    sink_.begin(name, id);
    return true;
  }
  void end_call() {
    in_call_ = false;
    ++calls_;
    sink_.end();
  }
  virtual void close_arguments() = 0;

  // Consumes one byte of one of `words`, after white space; empty words never match. Returns kDone
  // if one is complete: word_ is its index.
  Take word(char c, std::initializer_list<std::string_view> words);
  bool inside_word() const { return !word_text_.empty(); }
  // Appends a byte to the name of the tool; false if no name has this byte, or it is too long.
  bool name_byte(char c);
  // Pass on the key before a value, and the end of the arguments, if values come one by one.
  void write_key();
  void write_end() { sink_.arguments(arguments_ == 0 ? "{}" : "}"); }
  // Returns the kinds that the schema allows for the value of key_; 0: it does not say.
  JsonKinds kinds_of_key() const;

  const ToolFormat& f_;
  CallSink& sink_;
  const Tool* tool_ = nullptr;
  std::string name_, key_;
  size_t word_ = 0, calls_ = 0;

 private:
  std::string word_text_;
  size_t arguments_ = 0;
  bool in_call_ = false;
};

// Makes the parser of the format's layout. `marked`: the section began with a marker, which some
// formats do not need.
std::unique_ptr<CallParser> make_call_parser(const ToolFormat& format, CallSink& sink, bool marked);

inline constexpr size_t kMostNameBytes = 64;
inline bool is_name_byte(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         c == '.' || c == '-';
}

// Make the parsers of calls as JSON objects, of calls that begin with their name, and of Python's
// calls.
std::unique_ptr<CallParser> make_object_parser(const ToolFormat& format, CallSink& sink);
std::unique_ptr<CallParser> make_named_parser(const ToolFormat& format, CallSink& sink);
std::unique_ptr<CallParser> make_pythonic_parser(const ToolFormat& format, CallSink& sink,
                                                 bool marked);

// Returns a value that stands in an answer as text, as JSON: what the schema's kinds allow, else a
// string. `containers`: an empty text may be an empty object or list.
std::string typed_value(std::string_view text, JsonKinds kinds, bool containers = false);
// Returns the value of an element, which may hold elements itself; `mark` is the text before tags.
std::string element_value(std::string_view text, std::string_view mark, const Json& schema);
// Returns the schema of a member of an object or list, or null.
Json schema_below(const Json& schema, std::string_view key);
// Returns the position after the closing tag of the element that the text is the inside of,
// skipping nested elements of the same name; npos without a closing tag.
size_t end_of_element(std::string_view text, std::string_view mark, std::string_view name);

}  // namespace moebius
