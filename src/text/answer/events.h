// SPDX-License-Identifier: Apache-2.0
// What an answer consists of, in the order it comes. Whoever talks to people writes these events in
// a form of their own; all events of a kind joined are the unstreamed answer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace moebius {

struct AnswerEvent {
  enum class Kind : uint8_t {
    kReasoning,
    kReasoningEnd,
    kContent,
    kCallBegin,      // text: the name
    kCallArguments,  // text: bytes of a JSON object
    kCallEnd,
    kCallBroken,  // what cannot be read became content, or the call was closed for it
  };
  Kind kind = Kind::kContent;
  std::string text;
  size_t call = 0;    // of the answer's calls, from 0 on
  std::string id;     // of kCallBegin, where the format has ids of its own
  bool whole = true;  // of kCallEnd: the model wrote all of it
  bool operator==(const AnswerEvent&) const = default;
};

using AnswerEvents = std::vector<AnswerEvent>;

// Text of a kind that grows is one event.
inline void add_event(AnswerEvents& events, AnswerEvent event) {
  using Kind = AnswerEvent::Kind;
  const bool grows = event.kind == Kind::kReasoning || event.kind == Kind::kContent ||
                     event.kind == Kind::kCallArguments;
  if (grows && event.text.empty()) return;
  if (grows && !events.empty() && events.back().kind == event.kind &&
      events.back().call == event.call)
    events.back().text += event.text;
  else
    events.push_back(std::move(event));
}

}  // namespace moebius
