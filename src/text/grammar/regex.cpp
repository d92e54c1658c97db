// SPDX-License-Identifier: Apache-2.0
// Turns an expression into a nondeterministic automaton, built from its end so that every node
// knows its successor, and then into a deterministic one whose states are sets of nodes.
#include "text/grammar/regex.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "text/grammar/json_text.h"

namespace moebius {
namespace {

struct NfaNode {
  enum class Kind : uint8_t { kRange, kSplit, kBegin, kEnd, kMatch };
  Kind kind = Kind::kSplit;
  uint8_t low = 0, high = 0;  // used by kRange
  uint32_t out = 0;
  std::vector<uint32_t> outs;  // used by kSplit
};

// Holds the bytes of code points that UTF-8 writes with the same length and ranges.
struct ByteSequence {
  uint8_t low[4], high[4];
  size_t size;
};

void encode_code(char32_t c, size_t size, uint8_t* out) {
  for (size_t i = size; i-- > 1; c >>= 6) out[i] = static_cast<uint8_t>(0x80 | (c & 0x3f));
  constexpr uint8_t kLead[] = {0, 0x00, 0xc0, 0xe0, 0xf0};
  out[0] = static_cast<uint8_t>(kLead[size] | c);
}

// Splits ranges of code points until each is the product of the ranges of its bytes.
void utf8_sequences(char32_t low, char32_t high, std::vector<ByteSequence>& out) {
  std::vector<CodeRange> work = {{low, high}};
  while (!work.empty()) {
    auto [a, b] = work.back();
    work.pop_back();
    if (a > b) continue;
    if (a < 0xd800 && b >= 0xd800) {
      work.emplace_back(a, 0xd7ff);
      if (b > 0xdfff) work.emplace_back(0xe000, b);
      continue;
    }
    if (a >= 0xd800 && a <= 0xdfff) {  // surrogates occur in no text
      if (b > 0xdfff) work.emplace_back(0xe000, b);
      continue;
    }
    bool split = false;
    for (const char32_t last : {0x7fu, 0x7ffu, 0xffffu})
      if (a <= last && b > last) {
        work.emplace_back(a, last);
        work.emplace_back(last + 1, b);
        split = true;
        break;
      }
    if (split) continue;
    const size_t size = a <= 0x7f ? 1 : a <= 0x7ff ? 2 : a <= 0xffff ? 3 : 4;
    for (size_t i = 1; i < size && !split; ++i) {
      const char32_t m = (char32_t{1} << (6 * i)) - 1;
      if ((a & ~m) == (b & ~m)) continue;
      if ((a & m) != 0) {
        work.emplace_back(a, a | m);
        work.emplace_back((a | m) + 1, b);
        split = true;
      } else if ((b & m) != m) {
        work.emplace_back(a, (b & ~m) - 1);
        work.emplace_back(b & ~m, b);
        split = true;
      }
    }
    if (split) continue;
    ByteSequence s{};
    s.size = size;
    encode_code(a, size, s.low);
    encode_code(b, size, s.high);
    out.push_back(s);
  }
}

class NfaBuilder {
 public:
  NfaBuilder(const ParsedRegex& regex, RegexBytes bytes, GrammarBudget& budget)
      : regex_(regex), bytes_(bytes), budget_(budget) {
    match_ = add({NfaNode::Kind::kMatch, 0, 0, 0, {}});
  }
  std::vector<NfaNode> nodes;
  uint32_t start = 0;

  void build(bool search) {
    const uint32_t end = search ? loop_of_all(match_) : match_;
    const uint32_t at = part(static_cast<uint32_t>(regex_.nodes.size() - 1), end);
    start = search ? loop_of_all(at) : at;
  }

 private:
  using Kind = ParsedRegex::Kind;
  static constexpr size_t kMostNodes = 100'000;

  uint32_t add(NfaNode n) {
    budget_.work(24);
    if (nodes.size() >= kMostNodes) budget_.too_complex("needs too many states");
    nodes.push_back(std::move(n));
    return static_cast<uint32_t>(nodes.size() - 1);
  }
  uint32_t split(std::vector<uint32_t> outs) {
    return add({NfaNode::Kind::kSplit, 0, 0, 0, std::move(outs)});
  }
  uint32_t range(uint8_t low, uint8_t high, uint32_t out) {
    const auto [it, fresh] = ranges_.try_emplace({low, high, out}, 0);
    if (fresh) it->second = add({NfaNode::Kind::kRange, low, high, out, {}});
    return it->second;
  }
  uint32_t bytes(std::string_view text, uint32_t out) {
    for (size_t i = text.size(); i-- > 0;)
      out = range(static_cast<uint8_t>(text[i]), static_cast<uint8_t>(text[i]), out);
    return out;
  }
  static const CodeSet& all_codes() {
    static const CodeSet all{{{0, 0x10ffff}}};
    return all;
  }
  uint32_t loop_of_all(uint32_t out) {
    const uint32_t again = split({out});
    std::vector<uint32_t> heads;
    characters(all_codes(), again, heads);
    nodes[again].outs.insert(nodes[again].outs.end(), heads.begin(), heads.end());
    return again;
  }

  void plain(char32_t low, char32_t high, uint32_t out, std::vector<uint32_t>& heads) {
    sequences_.clear();
    utf8_sequences(low, high, sequences_);
    for (const ByteSequence& s : sequences_) {
      uint32_t at = out;
      for (size_t i = s.size; i-- > 0;) at = range(s.low[i], s.high[i], at);
      heads.push_back(at);
    }
  }
  // Adds nodes that match one character of the set and continue at `out`.
  void characters(const CodeSet& set, uint32_t out, std::vector<uint32_t>& heads) {
    for (const auto& [low, high] : set.ranges) {
      if (bytes_ == RegexBytes::kPlain) {
        plain(low, high, out, heads);
        continue;
      }
      for (char32_t c = low; c <= std::min<char32_t>(high, 0x1f); ++c)
        heads.push_back(control(c, out));
      char32_t from = std::max<char32_t>(low, 0x20);
      for (const char32_t mark : {char32_t{'"'}, char32_t{'\\'}}) {
        if (mark < from || mark > high) continue;
        if (mark > from) plain(from, mark - 1, out, heads);
        heads.push_back(bytes(mark == '"' ? "\\\"" : "\\\\", out));
        from = mark + 1;
      }
      if (from <= high) plain(from, high, out, heads);
    }
  }
  uint32_t control(char32_t c, uint32_t out) {
    const std::string quoted = quoted_plainly(std::string(1, static_cast<char>(c)));
    return bytes(std::string_view(quoted).substr(1, quoted.size() - 2), out);
  }

  // Recursion is bounded by the parser's limit on nested groups.
  uint32_t part(uint32_t index, uint32_t out) {
    const ParsedRegex::Node& n = regex_.nodes[index];
    switch (n.kind) {
      case Kind::kEmpty:
        return out;
      case Kind::kSet: {
        std::vector<uint32_t> heads;
        characters(regex_.sets[n.set], out, heads);
        return heads.size() == 1 ? heads[0] : split(std::move(heads));
      }
      case Kind::kSequence:
        for (size_t i = n.parts.size(); i-- > 0;) out = part(n.parts[i], out);
        return out;
      case Kind::kChoice: {
        std::vector<uint32_t> heads;
        heads.reserve(n.parts.size());
        for (const uint32_t p : n.parts) heads.push_back(part(p, out));
        return split(std::move(heads));
      }
      case Kind::kRepeat: {
        const uint32_t after = out;
        if (n.most == ParsedRegex::kNoEnd) {
          const uint32_t again = split({after});
          const uint32_t body = part(n.parts[0], again);
          nodes[again].outs.push_back(body);
          out = again;
        } else {
          for (uint32_t i = n.least; i < n.most; ++i) out = split({after, part(n.parts[0], out)});
        }
        for (uint32_t i = 0; i < n.least; ++i) out = part(n.parts[0], out);
        return out;
      }
      case Kind::kBegin:
        return add({NfaNode::Kind::kBegin, 0, 0, out, {}});
      case Kind::kEnd:
        return add({NfaNode::Kind::kEnd, 0, 0, out, {}});
    }
    return out;
  }

  const ParsedRegex& regex_;
  const RegexBytes bytes_;
  GrammarBudget& budget_;
  uint32_t match_ = 0;
  std::map<std::tuple<uint8_t, uint8_t, uint32_t>, uint32_t> ranges_;
  std::vector<ByteSequence> sequences_;
};

struct SetHash {
  size_t operator()(const std::vector<uint32_t>& v) const noexcept {
    uint64_t h = v.size();
    for (const uint32_t x : v) h = (h ^ x) * 0x9e3779b97f4a7c15u + (h >> 29);
    return static_cast<size_t>(h);
  }
};

class SubsetBuilder {
 public:
  SubsetBuilder(const std::vector<NfaNode>& nodes, GrammarBudget& budget)
      : nodes_(nodes), budget_(budget), seen_(nodes.size(), 0) {}

  DfaPtr build(uint32_t start) {
    make_classes();
    number_of({start}, true);
    std::vector<uint32_t> table;
    std::vector<uint8_t> accepting;
    std::vector<std::vector<uint32_t>> targets(classes_);
    for (size_t i = 0; i < states_.size(); ++i) {
      // A copy, because the map may move its elements.
      const std::vector<uint32_t> set = *states_[i];
      accepting.push_back(accepts(set) ? 1 : 0);
      for (auto& t : targets) t.clear();
      for (const uint32_t n : set) {
        const NfaNode& node = nodes_[n];
        if (node.kind != NfaNode::Kind::kRange) continue;
        for (size_t c = class_of_[node.low]; c <= class_of_[node.high]; ++c)
          targets[c].push_back(node.out);
      }
      budget_.work(set.size() * 3 + classes_ * 2);
      for (size_t c = 0; c < classes_; ++c)
        table.push_back(targets[c].empty() ? Dfa::kDead : number_of(targets[c], false));
    }
    return Dfa::make(class_of_, classes_, std::move(table), std::move(accepting), budget_);
  }

 private:
  void make_classes() {
    std::array<bool, 257> border{};
    border[0] = true;
    for (const NfaNode& n : nodes_)
      if (n.kind == NfaNode::Kind::kRange) border[n.low] = border[n.high + 1u] = true;
    size_t c = 0;
    for (unsigned b = 0; b < 256; ++b) {
      if (b > 0 && border[b]) ++c;
      class_of_[b] = static_cast<uint8_t>(c);
    }
    classes_ = c + 1;
  }
  uint32_t number_of(const std::vector<uint32_t>& from, bool begin) {
    std::vector<uint32_t> set;
    close(from, begin, /*end=*/false, set);
    std::sort(set.begin(), set.end());
    const auto [it, fresh] =
        numbers_.try_emplace(std::move(set), static_cast<uint32_t>(states_.size()));
    if (fresh) {
      states_.push_back(&it->first);
      budget_.check_states(states_.size());
    }
    return it->second;
  }
  // Collects all nodes that take a byte, end or match and are reached without a byte.
  void close(const std::vector<uint32_t>& from, bool begin, bool end, std::vector<uint32_t>& out) {
    ++stamp_;
    work_.assign(from.begin(), from.end());
    while (!work_.empty()) {
      const uint32_t n = work_.back();
      work_.pop_back();
      if (seen_[n] == stamp_) continue;
      seen_[n] = stamp_;
      budget_.work(2);
      const NfaNode& node = nodes_[n];
      switch (node.kind) {
        case NfaNode::Kind::kSplit:
          work_.insert(work_.end(), node.outs.begin(), node.outs.end());
          break;
        case NfaNode::Kind::kBegin:
          if (begin) work_.push_back(node.out);
          break;
        case NfaNode::Kind::kEnd:
          if (end)
            work_.push_back(node.out);
          else
            out.push_back(n);
          break;
        default:
          out.push_back(n);
      }
    }
  }
  bool accepts(const std::vector<uint32_t>& set) {
    bool ends = false;
    for (const uint32_t n : set) {
      if (nodes_[n].kind == NfaNode::Kind::kMatch) return true;
      ends = ends || nodes_[n].kind == NfaNode::Kind::kEnd;
    }
    if (!ends) return false;
    std::vector<uint32_t> out;
    close(set, /*begin=*/false, /*end=*/true, out);
    return std::any_of(out.begin(), out.end(),
                       [&](uint32_t n) { return nodes_[n].kind == NfaNode::Kind::kMatch; });
  }

  const std::vector<NfaNode>& nodes_;
  GrammarBudget& budget_;
  std::array<uint8_t, 256> class_of_{};
  size_t classes_ = 1;
  std::unordered_map<std::vector<uint32_t>, uint32_t, SetHash> numbers_;
  // Addresses of keys of numbers_, which do not move.
  std::vector<const std::vector<uint32_t>*> states_;
  std::vector<uint32_t> seen_, work_;
  uint32_t stamp_ = 0;
};

}  // namespace

DfaPtr regex_dfa(const ParsedRegex& regex, const RegexOptions& options, GrammarBudget& budget) {
  NfaBuilder nfa(regex, options.bytes, budget);
  nfa.build(options.search);
  return SubsetBuilder(nfa.nodes, budget).build(nfa.start);
}

DfaPtr regex_dfa(std::string_view text, const RegexOptions& options, GrammarBudget& budget) {
  return regex_dfa(*parse_regex(text, budget), options, budget);
}

}  // namespace moebius
