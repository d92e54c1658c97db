// SPDX-License-Identifier: Apache-2.0
// Follows one answer through its grammar. A text may be read in several ways: each way is a place
// (a terminal that is being written and the state of its automaton) with the rules that are open
// around it. Open rules are frames in one growing list, each linked to its caller, so that ways
// share them.
//
// Copies are independent. Places from which the grammar's end cannot be reached are never entered.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/grammar/grammar.h"

namespace moebius {

struct GrammarState {
  uint32_t frame = 0;  // innermost open rule
  uint32_t node = 0;   // node of a terminal
  uint32_t state = 0;  // state of the terminal's automaton; for a fixed text: bytes written
  uint32_t count = 0;  // number of characters of a counted string so far
  auto operator<=>(const GrammarState&) const = default;  // NOLINT: its 0 is no pointer
};

struct GrammarStates {
  std::vector<GrammarState> list;
  bool may_end = false;  // true: the text so far is complete
};

class GrammarMatcher {
 public:
  // Most ways that are followed; later ones are dropped, which only forbids texts, and allows no
  // wrong one.
  static constexpr size_t kMostPlaces = 4096;

  explicit GrammarMatcher(GrammarPtr grammar);

  // Advances by these bytes; returns false and changes nothing if they do not fit.
  bool accept(std::string_view bytes);
  bool accept_special(int32_t token);  // advances by a token without text
  bool may_end() const { return places_.may_end; }
  bool must_end() const { return places_.list.empty(); }  // true: nothing can follow

  const Grammar& grammar() const { return *grammar_; }
  const GrammarTerminal& terminal_at(const GrammarState& p) const {
    return grammar_->terminal(grammar_->node(p.node).what);
  }
  const GrammarStates& places() const { return places_; }
  // Writes to `to` the places after one more byte. May add frames.
  void step(std::span<const GrammarState> from, uint8_t byte, GrammarStates& to);
  // The only possible continuation at some places: a byte, or a token without text; both -1: there
  // are several.
  struct Forced {
    int byte = -1;
    int32_t token = -1;
  };
  Forced forced(const GrammarStates& at) const;
  // Writes to `to` the places after the terminal of `p`.
  void behind(const GrammarState& p, GrammarStates& to);
  // Advances a terminal by one byte and returns its new state; kDead if the byte does not fit.
  // Counts characters.
  static uint32_t step(const GrammarTerminal& t, uint32_t state, uint8_t byte, uint32_t& count);
  static bool accepts(const GrammarTerminal& t, uint32_t state);
  static bool ends(const GrammarTerminal& t, uint32_t state);

 private:
  struct Frame {
    uint32_t parent, next;  // the caller's frame, and the node where the caller continues
  };
  struct Closure {
    uint32_t first, count;
    bool may_end;
  };
  uint32_t frame(uint32_t parent, uint32_t next);
  Closure close(uint32_t frame, uint32_t node);
  void add(const Closure& closure, GrammarStates& to) const;
  static void tidy(GrammarStates& places);
  void forget_frames();

  GrammarPtr grammar_;
  GrammarStates places_;
  std::vector<Frame> frames_;  // frame 0 is the root
  std::unordered_map<uint64_t, uint32_t> frame_of_;
  // Places that can be entered first at each node, computed once per node.
  std::unordered_map<uint64_t, Closure> closures_;
  std::vector<GrammarState> closed_;
  static constexpr size_t kFramesToForget = 1 << 14;
  size_t forget_at_ = kFramesToForget;
};

}  // namespace moebius
