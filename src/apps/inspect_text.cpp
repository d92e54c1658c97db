// SPDX-License-Identifier: Apache-2.0
// inspect for people: one screen by default, aligned columns, names from files always printable.
#include <algorithm>
#include <map>

#include "apps/inspect_facts.h"
#include "base/error.h"
#include "checkpoint/module_scheme.h"

namespace moebius {
namespace {

std::string human_bytes(uint64_t bytes) {
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < std::size(kUnits)) value /= 1024.0, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes)
                   : fmt::format("{:.{}f} {}", value,
                                 value < 10    ? 2
                                 : value < 100 ? 1
                                               : 0,
                                 kUnits[unit]);
}

std::string human_count(uint64_t n) {
  constexpr std::string_view kUnits[] = {"", " k", " M", " B", " T"};
  auto value = static_cast<double>(n);
  size_t unit = 0;
  while (value >= 1000.0 && unit + 1 < std::size(kUnits)) value /= 1000.0, ++unit;
  return unit == 0 ? fmt::format("{}", n)
                   : fmt::format("{:.{}f}{}", value,
                                 value < 10    ? 2
                                 : value < 100 ? 1
                                               : 0,
                                 kUnits[unit]);
}

// Rows of cells, each column as wide as its widest cell (up to a limit); columns named in `right`
// are right-aligned.
class Columns {
 public:
  explicit Columns(std::string right) : right_(std::move(right)) {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text(std::string_view indent) const {
    std::vector<size_t> width;
    for (const auto& row : rows_)
      for (size_t i = 0; i < row.size(); ++i) {
        if (width.size() <= i) width.resize(i + 1, 0);
        width[i] = std::max(width[i], row[i].size());
      }
    std::string out;
    for (const auto& row : rows_) {
      std::string line(indent);
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string pad(width[i] - row[i].size(), ' ');
        const bool right = i < right_.size() && right_[i] == 'r';
        line += (i == 0 ? "" : "  ") + (right ? pad + row[i] : row[i] + pad);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      out += line + '\n';
    }
    return out;
  }

 private:
  std::string right_;
  std::vector<std::vector<std::string>> rows_;
};

class Writer {
 public:
  explicit Writer(const InspectFacts& f) : f_(f) {}

  std::string run() {
    header();
    if (!f_.ranks.empty()) ranks();
    modules();
    if (f_.options.tensors) tensors();
    unused();
    list("warnings", f_.checkpoint.warnings(), "33");
    if (f_.options.deep) {
      if (f_.problems.empty())
        out_ += "\ndeep      every module was read: scales, zero points and codes are in range\n";
      else
        list("problems", f_.problems, "31");
    }
    return std::move(out_);
  }

 private:
  std::string paint(std::string_view text, std::string_view code) const {
    return f_.options.colour ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : std::string(text);
  }
  void field(std::string_view label, const std::string& value) {
    out_ += paint(fmt::format("{:<10}", label), "1") + value + '\n';
  }
  static std::string bytes_line(const ByteTable& table) {
    std::string line;
    for (const auto& [name, bytes] : table)
      line += fmt::format("{}{} {}", line.empty() ? "" : ", ", name, human_bytes(bytes));
    return line;
  }

  void header() {
    const ModelConfig& c = f_.checkpoint.config();
    const Summary& s = f_.summary;
    field("model",
          fmt::format("{} ({}){}", printable(c.architecture, 60), printable(c.model_type, 40),
                      c.family.empty() ? ", family not in the registry" : ""));
    std::string sizes =
        fmt::format("{} layers, hidden {}, vocabulary {}", c.layers, c.hidden, c.vocab);
    if (c.heads > 0)
      sizes += fmt::format(", {} heads ({} key-value) of {}", c.heads, c.kv_heads, c.head_dim);
    field("sizes", sizes);
    if (!f_.checkpoint.moe_blocks().empty()) {
      const MoeSpec& m = f_.checkpoint.moe_blocks().front().spec;
      std::string text =
          fmt::format("{} of width {} in {} layers, {} per token; {}", m.experts, m.intermediate,
                      f_.checkpoint.moe_blocks().size(), m.router.top_k, f_.routing);
      if (m.shared != SharedKind::kNone)
        text += fmt::format("; {} shared expert of width {}",
                            m.shared == SharedKind::kGated ? "gated" : "a", m.shared_intermediate);
      field("experts", text);
    }
    field("params", fmt::format("{} in all, {} active per token", human_count(s.params_total),
                                human_count(s.params_active)));
    field("bytes",
          fmt::format("{} in {} tensors, {} file{}; {:.2f} bits per weight",
                      human_bytes(s.bytes_total), f_.checkpoint.store().tensors().size(),
                      f_.checkpoint.store().files().size(),
                      f_.checkpoint.store().files().size() == 1 ? "" : "s", s.bits_per_weight));
    field("  scheme", bytes_line(s.by_scheme));
    field("  part", bytes_line(s.by_part));
    field("  tensor", bytes_line(s.by_role));
    field("memory", fmt::format("weights {}, KV cache {} per 1000 tokens (16-bit)",
                                human_bytes(s.bytes_used), human_bytes(s.kv_per_1k_tokens)));
  }

  void ranks() {
    out_ += '\n';
    Columns columns("rrrrrr");
    columns.add({"ep rank", "tp rank", "experts", "weights", "params", "KV / 1000 tokens"});
    for (const RankSize& r : f_.ranks)
      columns.add({std::to_string(r.ep_rank), std::to_string(r.tp_rank), std::to_string(r.experts),
                   human_bytes(r.bytes), human_count(r.params), human_bytes(r.kv_per_1k_tokens)});
    out_ += columns.text("");
  }

  void modules() {
    out_ += '\n';
    Columns columns("lrrrll");
    columns.add({"module", "count", "shape", "bytes", "scheme", "decided by"});
    std::map<std::string, size_t>
        names;  // the same modules of different layers may differ in scheme
    for (const ModuleGroup& g : f_.modules) ++names[g.name];
    uint64_t vectors = 0, vector_bytes = 0;
    for (const ModuleGroup& g : f_.modules) {
      const Module& m = *g.sample;
      if (!has_matrix(m)) {
        vectors += g.count;
        vector_bytes += g.bytes;
        continue;
      }
      const std::string scheme =
          m.decision.scheme.is_dense() ? scheme_name(m) : describe(m.decision.scheme);
      const std::string layers =
          names[g.name] > 1 ? fmt::format(" (layers {})", ranges(g.layers)) : "";
      columns.add({printable(g.name, 90) + layers, std::to_string(g.count),
                   fmt::format("{}x{}", m.plan.N, m.plan.K), human_bytes(g.bytes), scheme,
                   m.supported ? printable(g.rule, 70) : "UNSUPPORTED: " + m.reason});
    }
    if (vectors > 0)
      columns.add(
          {"norms and parameters", std::to_string(vectors), "", human_bytes(vector_bytes), "", ""});
    out_ += columns.text("");
  }

  void tensors() {
    out_ += '\n';
    Columns columns("lrl");
    for (const TensorUse& use : f_.tensors)
      columns.add({printable(use.tensor->name), describe(*use.tensor),
                   use.module.empty() ? "unused: " + use.reason
                                      : fmt::format("{} of {}", use.role, printable(use.module))});
    out_ += columns.text("");
  }

  void unused() {
    if (f_.checkpoint.unused().empty() || f_.options.tensors) return;
    std::map<std::pair<std::string, std::string>, size_t> groups;
    for (const UnusedTensor& u : f_.checkpoint.unused())
      ++groups[{u.reason, collapse_indices(u.name)}];
    std::map<std::string, std::pair<size_t, std::string>> reasons;  // reason -> tensors, first name
    for (const auto& [key, count] : groups) {
      auto& [total, name] = reasons[key.first];
      if (total == 0) name = key.second;
      total += count;
    }
    out_ += '\n';
    for (const auto& [reason, what] : reasons)
      out_ += fmt::format("unused    {} tensor{}, e.g. {}: {}\n", what.first,
                          what.first == 1 ? "" : "s", printable(what.second, 80), reason);
  }

  void list(std::string_view title, const std::vector<std::string>& lines, std::string_view code) {
    if (lines.empty()) return;
    out_ += '\n';
    constexpr size_t kShown = 12;
    for (size_t i = 0; i < std::min(lines.size(), kShown); ++i)
      out_ +=
          paint(fmt::format("{:<10}", i == 0 ? title : ""), code) + printable(lines[i], 400) + '\n';
    if (lines.size() > kShown)
      out_ += fmt::format("          and {} more (--json lists all)\n", lines.size() - kShown);
  }

  const InspectFacts& f_;
  std::string out_;
};

}  // namespace

std::string inspect_text(const InspectFacts& facts) { return Writer(facts).run(); }

}  // namespace moebius
