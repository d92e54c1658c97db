// SPDX-License-Identifier: Apache-2.0
// Where one answer stands in its grammar. There may be several ways to read what was written: each
// is a place (a terminal that is being written, the state of its automaton) with the rules that
// are open around it. Rules that are open are frames of one growing list, each behind the one that
// called it, so that ways share them.
//
// Copies are independent. Nothing here can get stuck: a place from which no text leads to the end
// is never taken.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/grammar/grammar.h"

namespace moebius {

struct GrammarPlace {
  uint32_t frame = 0;  // the rules around it
  uint32_t node = 0;   // of a terminal
  uint32_t state = 0;  // of its automaton; of a text: bytes that were written
  uint32_t count = 0;  // characters of a counted string
  auto operator<=>(const GrammarPlace&) const = default;  // NOLINT: its 0 is no pointer
};

struct GrammarPlaces {
  std::vector<GrammarPlace> list;
  bool may_end = false;  // what was written is a whole text of the grammar
};

class GrammarMatcher {
 public:
  // More ways than this are not followed: later ones are dropped. What is written still fits.
  static constexpr size_t kMostPlaces = 4096;

  explicit GrammarMatcher(GrammarPtr grammar);

  // False, and nothing happened: the text cannot go on so.
  bool accept(std::string_view bytes);
  bool accept_special(int32_t token);  // one without text
  bool may_end() const { return places_.may_end; }
  bool must_end() const { return places_.list.empty(); }  // nothing can follow

  const Grammar& grammar() const { return *grammar_; }
  const GrammarTerminal& terminal_at(const GrammarPlace& p) const {
    return grammar_->terminal(grammar_->node(p.node).what);
  }
  const GrammarPlaces& places() const { return places_; }
  // The places behind one more byte; `to` is overwritten. Frames may be added.
  void step(std::span<const GrammarPlace> from, uint8_t byte, GrammarPlaces& to);
  // What must come next at these places whatever is chosen: a byte, or a token without text.
  struct Forced {
    int byte = -1;
    int32_t token = -1;
  };
  Forced forced(const GrammarPlaces& at) const;
  // The places behind the terminal of `p`.
  void behind(const GrammarPlace& p, GrammarPlaces& to);
  // One state on; kDead where the byte does not fit. Counts characters.
  static uint32_t step(const GrammarTerminal& t, uint32_t state, uint8_t byte, uint32_t& count);
  static bool accepts(const GrammarTerminal& t, uint32_t state);
  static bool ends(const GrammarTerminal& t, uint32_t state);

 private:
  struct Frame {
    uint32_t parent, next;  // where the caller goes on
  };
  struct Closure {
    uint32_t first, count;
    bool may_end;
  };
  uint32_t frame(uint32_t parent, uint32_t next);
  Closure close(uint32_t frame, uint32_t node);
  void add(const Closure& closure, GrammarPlaces& to) const;
  static void tidy(GrammarPlaces& places);
  void forget_frames();

  GrammarPtr grammar_;
  GrammarPlaces places_;
  std::vector<Frame> frames_;  // 0: nobody called
  std::unordered_map<uint64_t, uint32_t> frame_of_;
  // What can be written first at a node, found once.
  std::unordered_map<uint64_t, Closure> closures_;
  std::vector<GrammarPlace> closed_;
  static constexpr size_t kFramesToForget = 1 << 14;
  size_t forget_at_ = kFramesToForget;
};

}  // namespace moebius
