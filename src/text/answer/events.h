// SPDX-License-Identifier: Apache-2.0
// Represents the parts of an answer as events, in order. Each interface writes these events in its
// own form; the texts of all events of a kind together are the unstreamed answer.
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
    kCallBegin,      // text: the name of the tool
    kCallArguments,  // text: bytes of a JSON object
    kCallEnd,
    kCallBroken,  // a call was unreadable: it became content, or was closed early
  };
  Kind kind = Kind::kContent;
  std::string text;
  size_t call = 0;    // index of the call in the answer, from 0
  std::string id;     // id of the call with kCallBegin, if the format has its own ids
  bool whole = true;  // set with kCallEnd: false if the call was cut off and completed here
  bool operator==(const AnswerEvent&) const = default;
};

using AnswerEvents = std::vector<AnswerEvent>;

// Appends an event; text continues the last event if that is of the same kind.
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
