// SPDX-License-Identifier: Apache-2.0
#include "text/grammar/dfa.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>

#include "base/sha256.h"

namespace moebius {
namespace {

std::atomic<uint64_t> next_dfa_id{1};

// Equal automata share an id: masks that are kept for their states then serve all schemas with the
// same pattern. Large automata are not compared.
constexpr size_t kMostComparedBytes = 64 << 10, kMostKnownDfas = 1 << 14;
uint64_t id_of_content(std::span<const std::span<const uint8_t>> parts) {
  size_t bytes = 0;
  Sha256 hash;
  for (const auto& part : parts) {
    const auto size = static_cast<uint64_t>(part.size());
    bytes += part.size();
    if (bytes > kMostComparedBytes) return next_dfa_id++;
    hash.add({reinterpret_cast<const uint8_t*>(&size), sizeof size});
    hash.add(part);
  }
  static std::mutex mutex;
  static std::unordered_map<std::string, uint64_t> known;
  const std::lock_guard lock(mutex);
  if (known.size() >= kMostKnownDfas) known.clear();
  const auto [it, fresh] = known.try_emplace(hash.hex(), 0);
  if (fresh) it->second = next_dfa_id++;
  return it->second;
}
template <class T>
std::span<const uint8_t> bytes_of(const T& list) {
  return {reinterpret_cast<const uint8_t*>(std::data(list)),
          std::size(list) * sizeof(*std::data(list))};
}

// Holds an Aho-Corasick automaton over a few words.
struct WordTrie {
  struct Node {
    std::map<uint8_t, uint32_t> children;
    uint32_t fail = 0;
    bool word = false;  // a word ends here, or at a node that its chain of failures reaches
  };
  std::vector<Node> nodes{1};

  explicit WordTrie(std::span<const std::string> words, GrammarBudget& budget) {
    for (const std::string& w : words) {
      if (w.empty()) continue;
      budget.work(w.size());
      uint32_t at = 0;
      for (const char c : w) {
        const auto [it, fresh] = nodes[at].children.try_emplace(
            static_cast<uint8_t>(c), static_cast<uint32_t>(nodes.size()));
        at = it->second;
        if (fresh) nodes.emplace_back();
      }
      nodes[at].word = true;
    }
    std::vector<uint32_t> order = {0};
    for (size_t i = 0; i < order.size(); ++i) {
      const uint32_t at = order[i];
      for (const auto& [byte, child] : nodes[at].children) {
        nodes[child].fail = at == 0 ? 0 : step(nodes[at].fail, byte);
        nodes[child].word = nodes[child].word || nodes[nodes[child].fail].word;
        order.push_back(child);
      }
    }
  }
  uint32_t step(uint32_t at, uint8_t byte) const {
    for (;;) {
      const auto it = nodes[at].children.find(byte);
      if (it != nodes[at].children.end()) return it->second;
      if (at == 0) return 0;
      at = nodes[at].fail;
    }
  }
  // Returns rules whose alphabet is the trie's own bytes and one byte that represents all others.
  DfaRules rules() const {
    DfaRules r;
    std::array<bool, 256> used{};
    for (const Node& n : nodes)
      for (const auto& [byte, child] : n.children) used[byte] = true;
    for (unsigned b = 0; b < 256; ++b)
      if (used[b]) r.alphabet += static_cast<char>(b);
    for (unsigned b = 0; b < 256; ++b)
      if (!used[b]) {
        r.rest = static_cast<int>(r.alphabet.size());
        r.alphabet += static_cast<char>(b);
        break;
      }
    return r;
  }
};

// Numbers the states that are reached from the start, in the order in which they are found.
struct Numbering {
  Numbering(size_t byte_classes, size_t work_of_class)
      : classes(byte_classes), cost(work_of_class) {}
  uint32_t start(uint64_t state) {
    const auto [it, fresh] = number.try_emplace(state, static_cast<uint32_t>(states.size()));
    if (fresh) states.push_back(state);
    return it->second;
  }
  // Fills the table: step(state, class) returns the next state, if there is one.
  template <class Step, class Accepts>
  void run(const Step& step, const Accepts& accepts, GrammarBudget& budget) {
    for (size_t i = 0; i < states.size(); ++i) {
      budget.work(classes * cost);
      budget.check_states(states.size());
      const uint64_t s = states[i];
      accepting.push_back(accepts(s) ? 1 : 0);
      for (size_t c = 0; c < classes; ++c) {
        const std::optional<uint64_t> to = step(s, c);
        table.push_back(to ? start(*to) : Dfa::kDead);
      }
    }
  }
  const size_t classes, cost;
  std::vector<uint64_t> states;
  std::vector<uint32_t> table;
  std::vector<uint8_t> accepting;
  std::unordered_map<uint64_t, uint32_t> number;
};

DfaPtr product(const Dfa& a, const Dfa& b, const DfaPtr& base_dfa, GrammarBudget& budget) {
  const bool without = base_dfa != nullptr;
  budget.work(512);
  // Combines the classes of both automata: a class for each pair.
  std::array<uint8_t, 256> class_of{};
  std::map<std::pair<uint8_t, uint8_t>, uint8_t> known;
  std::vector<std::pair<uint8_t, uint8_t>> pairs;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const std::pair key(a.class_of(static_cast<uint8_t>(byte)),
                        b.class_of(static_cast<uint8_t>(byte)));
    const auto [it, fresh] = known.try_emplace(key, static_cast<uint8_t>(pairs.size()));
    if (fresh) pairs.push_back(key);
    class_of[byte] = it->second;
  }
  const auto packed = [](uint32_t x, uint32_t y) { return (uint64_t{x} << 32) | y; };
  Numbering states(pairs.size(), 6);
  if (!a.empty()) states.start(packed(0, b.empty() ? Dfa::kDead : 0));
  states.run(
      [&](uint64_t s, size_t c) -> std::optional<uint64_t> {
        const auto x = static_cast<uint32_t>(s >> 32), y = static_cast<uint32_t>(s);
        const uint32_t nx = a.next(x, a.first_byte(pairs[c].first));
        const uint32_t ny = y == Dfa::kDead ? Dfa::kDead : b.next(y, b.first_byte(pairs[c].second));
        if (nx == Dfa::kDead || (!without && ny == Dfa::kDead)) return std::nullopt;
        return packed(nx, ny);
      },
      [&](uint64_t s) {
        const auto y = static_cast<uint32_t>(s);
        const bool in_b = y != Dfa::kDead && b.accepts(y);
        return a.accepts(static_cast<uint32_t>(s >> 32)) && in_b != without;
      },
      budget);
  Dfa::Base base{base_dfa, {}, {}};
  if (without)
    for (const uint64_t s : states.states) {
      base.state.push_back(static_cast<uint32_t>(s >> 32));
      base.same.push_back(static_cast<uint32_t>(s) == Dfa::kDead ? 1 : 0);
    }
  return Dfa::make(class_of, pairs.size(), std::move(states.table), std::move(states.accepting),
                   budget, base);
}

}  // namespace

bool Dfa::matches(std::string_view text) const {
  if (empty()) return false;
  uint32_t s = 0;
  for (const char c : text)
    if ((s = next(s, static_cast<uint8_t>(c))) == kDead) return false;
  return accepts(s);
}

DfaPtr Dfa::make(const std::array<uint8_t, 256>& class_of, size_t classes,
                 std::vector<uint32_t> table, std::vector<uint8_t> accepting, GrammarBudget& budget,
                 const Base& base) {
  const size_t n = accepting.size();
  budget.work(n * classes * 2 + 256);
  // Searches backwards from the accepting states.
  std::vector<uint32_t> first(n + 1, 0), from(table.size());
  for (const uint32_t t : table)
    if (t != kDead) ++first[t + 1];
  for (size_t i = 0; i < n; ++i) first[i + 1] += first[i];
  std::vector<uint32_t> fill(first.begin(), first.end());
  for (size_t s = 0; s < n; ++s)
    for (size_t c = 0; c < classes; ++c)
      if (const uint32_t t = table[s * classes + c]; t != kDead)
        from[fill[t]++] = static_cast<uint32_t>(s);
  std::vector<uint8_t> live(n, 0);
  std::vector<uint32_t> work;
  for (size_t s = 0; s < n; ++s)
    if (accepting[s] != 0) {
      live[s] = 1;
      work.push_back(static_cast<uint32_t>(s));
    }
  while (!work.empty()) {
    const uint32_t s = work.back();
    work.pop_back();
    for (uint32_t i = first[s]; i < first[s + 1]; ++i)
      if (live[from[i]] == 0) live[from[i]] = 1, work.push_back(from[i]);
  }
  const std::shared_ptr<Dfa> out(new Dfa);
  out->id_ = next_dfa_id++;
  out->class_of_ = class_of;
  out->classes_ = classes;
  out->first_byte_.assign(classes, 0);
  for (unsigned b = 256; b-- > 0;) out->first_byte_[class_of[b]] = static_cast<uint8_t>(b);
  if (n == 0 || live[0] == 0) return out;
  std::vector<uint32_t> renamed(n, kDead);
  uint32_t count = 0;
  for (size_t s = 0; s < n; ++s)
    if (live[s] != 0) renamed[s] = count++;
  budget.states(count);
  out->base_ = base.dfa;
  out->table_.reserve(count * classes);
  for (size_t s = 0; s < n; ++s) {
    if (live[s] == 0) continue;
    bool last = true;
    for (size_t c = 0; c < classes; ++c) {
      const uint32_t t = table[s * classes + c];
      const uint32_t to = t == kDead ? kDead : renamed[t];
      last = last && to == kDead;
      out->table_.push_back(to);
    }
    out->accepting_.push_back(accepting[s]);
    out->last_.push_back(last ? 1 : 0);
    if (base.dfa == nullptr) continue;
    out->base_state_.push_back(base.state[s]);
    out->same_.push_back(base.same[s]);
  }
  const std::array<uint64_t, 1> base_id = {base.dfa != nullptr ? base.dfa->id() : 0};
  const std::array<std::span<const uint8_t>, 6> content = {
      bytes_of(out->class_of_),   bytes_of(out->table_), bytes_of(out->accepting_),
      bytes_of(out->base_state_), bytes_of(out->same_),  bytes_of(base_id)};
  out->id_ = id_of_content(content);
  return out;
}

DfaPtr dfa_from_rules(const DfaRules& rules, GrammarBudget& budget) {
  std::array<uint8_t, 256> class_of{};
  const size_t letters = rules.alphabet.size();
  // All other bytes share a class without transitions.
  const bool others = rules.rest < 0 && letters < 256;
  class_of.fill(static_cast<uint8_t>(rules.rest >= 0 ? static_cast<size_t>(rules.rest) : letters));
  for (size_t c = 0; c < letters; ++c)
    class_of[static_cast<uint8_t>(rules.alphabet[c])] = static_cast<uint8_t>(c);
  const size_t classes = letters + (others ? 1 : 0);
  Numbering states(classes, 4);
  states.start(rules.start);
  states.run(
      [&](uint64_t s, size_t c) {
        return c < letters ? rules.step(s, static_cast<uint8_t>(rules.alphabet[c])) : std::nullopt;
      },
      rules.accepts, budget);
  return Dfa::make(class_of, classes, std::move(states.table), std::move(states.accepting), budget);
}

DfaPtr dfa_from_words(std::span<const std::string> words, GrammarBudget& budget) {
  std::vector<std::map<uint8_t, uint32_t>> nodes(1);
  std::vector<uint8_t> accepting(1, 0);
  std::array<bool, 256> used{};
  for (const std::string& w : words) {
    budget.work(w.size() * 8 + 1);
    uint32_t at = 0;
    for (const char c : w) {
      used[static_cast<uint8_t>(c)] = true;
      const auto [it, fresh] =
          nodes[at].try_emplace(static_cast<uint8_t>(c), static_cast<uint32_t>(nodes.size()));
      at = it->second;
      if (!fresh) continue;
      nodes.emplace_back();
      accepting.push_back(0);
      budget.check_states(nodes.size());
    }
    accepting[at] = 1;
  }
  std::array<uint8_t, 256> class_of{};
  size_t classes = 0;
  for (size_t b = 0; b < 256; ++b)
    if (used[b]) class_of[b] = static_cast<uint8_t>(classes++);
  if (classes < 256) {
    for (size_t b = 0; b < 256; ++b)
      if (!used[b]) class_of[b] = static_cast<uint8_t>(classes);
    ++classes;
  }
  budget.work(nodes.size() * classes);
  std::vector<uint32_t> table(nodes.size() * classes, Dfa::kDead);
  for (size_t s = 0; s < nodes.size(); ++s)
    for (const auto& [byte, child] : nodes[s]) table[s * classes + class_of[byte]] = child;
  return Dfa::make(class_of, classes, std::move(table), std::move(accepting), budget);
}

DfaPtr dfa_both(const Dfa& a, const Dfa& b, GrammarBudget& budget) {
  return product(a, b, nullptr, budget);
}
DfaPtr dfa_without(const DfaPtr& a, const Dfa& b, GrammarBudget& budget) {
  return product(*a, b, a, budget);
}

DfaPtr dfa_between(const Dfa& inner, char mark, GrammarBudget& budget) {
  std::array<uint8_t, 256> class_of{};
  for (unsigned b = 0; b < 256; ++b) class_of[b] = inner.class_of(static_cast<uint8_t>(b));
  // If every byte has a class of its own, the mark has one already; else it gets a new one.
  const bool alone = inner.classes() == 256;
  const size_t own = alone ? inner.class_of(static_cast<uint8_t>(mark)) : inner.classes();
  const size_t classes = inner.classes() + (alone ? 0 : 1), n = inner.size();
  class_of[static_cast<uint8_t>(mark)] = static_cast<uint8_t>(own);
  const auto shifted = [](uint32_t s) { return s == Dfa::kDead ? Dfa::kDead : s + 1; };
  const auto last = static_cast<uint32_t>(n + 1);
  std::vector<uint32_t> table((n + 2) * classes, Dfa::kDead);
  std::vector<uint8_t> accepting(n + 2, 0);
  accepting[last] = 1;
  if (n > 0) table[own] = 1;
  for (uint32_t s = 0; s < n; ++s) {
    for (size_t c = 0; c < inner.classes(); ++c)
      table[(s + 1) * classes + c] = shifted(inner.next(s, inner.first_byte(c)));
    const uint32_t within = shifted(inner.next(s, static_cast<uint8_t>(mark)));
    table[(s + 1) * classes + own] = within != Dfa::kDead ? within
                                     : inner.accepts(s)   ? last
                                                          : Dfa::kDead;
  }
  return Dfa::make(class_of, classes, std::move(table), std::move(accepting), budget);
}

DfaPtr dfa_until(std::span<const std::string> words, GrammarBudget& budget) {
  const WordTrie trie(words, budget);
  DfaRules r = trie.rules();
  r.step = [&](uint64_t s, uint8_t b) -> std::optional<uint64_t> {
    if (trie.nodes[s].word) return std::nullopt;
    return trie.step(static_cast<uint32_t>(s), b);
  };
  r.accepts = [&](uint64_t s) { return trie.nodes[s].word; };
  return dfa_from_rules(r, budget);
}

DfaPtr dfa_lacking(std::span<const std::string> words, GrammarBudget& budget) {
  const WordTrie trie(words, budget);
  DfaRules r = trie.rules();
  r.step = [&](uint64_t s, uint8_t b) -> std::optional<uint64_t> {
    const uint32_t to = trie.step(static_cast<uint32_t>(s), b);
    if (trie.nodes[to].word) return std::nullopt;
    return to;
  };
  r.accepts = [](uint64_t) { return true; };
  return dfa_from_rules(r, budget);
}

}  // namespace moebius
