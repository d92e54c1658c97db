// SPDX-License-Identifier: Apache-2.0
// Prints inspect for people: one screen by default, aligned columns, and names from files made
// printable.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "apps/cli/layout.h"
#include "apps/inspect.h"
#include "base/error.h"
#include "checkpoint/module_scheme.h"

namespace moebius {
namespace {

std::string bytes_text(uint64_t bytes) { return human_bytes(static_cast<double>(bytes)); }
std::string count_text(uint64_t count) { return human_count(static_cast<double>(count)); }

std::string number_of(int64_t n, std::string_view thing) {
  return counted(static_cast<uint64_t>(n), thing);
}

// Returns a, b, ..., z, aa, ab, ...
std::string letter(size_t i) {
  std::string s;
  for (++i; i > 0; i = (i - 1) / 26) s.insert(s.begin(), static_cast<char>('a' + (i - 1) % 26));
  return s;
}

// Holds groups that differ only in the last part of the name.
struct ModuleLine {
  std::vector<std::string> names;
  std::string shape, scheme, by;
  uint64_t count = 0, bytes = 0;
};

class Writer {
 public:
  Writer(const InspectFacts& f, bool colour) : f_(f), colour_(colour), width_(output_width()) {}

  std::string run() {
    header();
    if (!f_.ranks.empty()) ranks();
    if (!f_.parts.empty()) parts();
    if (!f_.gguf.is_null()) gguf_types();
    modules(f_.modules);
    if (f_.predictor.checkpoint != nullptr) {
      out_ += '\n';
      field(
          "predictor",
          fmt::format(
              "with --speculate mtp the layer for multi-token prediction is loaded, too: {} "
              "and {} of keys and values per token",
              bytes_text(f_.predictor.packed_bytes), bytes_text(f_.predictor.kv_bytes_per_token)));
      modules(f_.predictor.modules);
    } else if (!f_.predictor.reason.empty()) {
      field("predictor", f_.predictor.reason);
    }
    if (f_.question.tensors) tensors();
    unused();
    list("warnings", f_.checkpoint.warnings(), Ink::kYellow);
    if (f_.question.deep && f_.problems.empty())
      field("deep", "all weights were read: scales, zero points and codes are in range");
    if (f_.question.deep && !f_.gguf.is_null() && !f_.gguf.find("close")->as_bool())
      field("deep", "tensors of the file are in another order than listed, or have gaps");
    list("problems", f_.problems, Ink::kRed);
    return std::move(out_);
  }

 private:
  void field(std::string_view label, const std::string& value, Ink ink = Ink::kBold) {
    out_ += labelled(label, value, 10, width_, ink, colour_);
  }
  static std::string bytes_line(const ByteTable& table) {
    std::string line;
    for (const auto& [name, bytes] : table)
      line += fmt::format("{}{} {}", line.empty() ? "" : ", ", name, bytes_text(bytes));
    return line;
  }

  void header() {
    const ModelConfig& c = f_.checkpoint.config();
    const Summary& s = f_.summary;
    const std::string_view method = f_.checkpoint.quant().method();
    field("model",
          fmt::format("{} ({}){}{}", printable(c.architecture, 60), printable(c.model_type, 40),
                      method.empty() ? "" : ", quantized with " + printable(method, 60),
                      c.family.empty() ? ", family not in the registry" : ""));
    run_line();
    if (!f_.gguf.is_null()) gguf_lines();
    std::string sizes = fmt::format("{}, hidden size {}, vocabulary {}",
                                    number_of(c.layers, "layer"), c.hidden, c.vocab);
    if (c.heads > 0)
      sizes += fmt::format(", {} ({} KV) of size {}", number_of(c.heads, "head"), c.kv_heads,
                           c.head_dim);
    field("sizes", sizes);
    if (!f_.checkpoint.moe_blocks().empty()) experts_line();
    field("params", fmt::format("{} in total, {} active per token", count_text(s.params_total),
                                count_text(s.params_active)));
    const size_t files = f_.checkpoint.store().files().size();
    field("bytes", fmt::format("{} in {}, {}; {:.2f} bits per weight", bytes_text(s.bytes_total),
                               counted(f_.checkpoint.store().tensors().size(), "tensor"),
                               counted(files, "file"), s.bits_per_weight));
    field("  scheme", bytes_line(s.by_scheme));
    field("  part", bytes_line(s.by_part));
    memory_line();
  }

  // Returns the members of an object as "name value, ...".
  static std::string pairs(const Json& object) {
    std::string out;
    for (const auto& [name, value] : object.members())
      out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name,
                         value.is_string() ? value.as_string() : value.dump());
    return out;
  }

  void gguf_lines() {
    const Json& g = *f_.gguf.find("tokenizer");
    field("gguf", fmt::format("version {} in {}; {}", f_.gguf.find("version")->as_uint(),
                              counted(f_.gguf.find("parts")->as_uint(), "file"),
                              pairs(*f_.gguf.find("about"))));
    if (const Json& model = *g.find("model"); model.is_string()) {
      std::string text = model.as_string();
      if (g.find("pre")->is_string()) text += ", pre " + g.find("pre")->as_string();
      field("  tokens", text + (g.find("found")->as_bool() ? "" : ": no rule is known"));
    }
    for (const auto& [group, label] :
         {std::pair("imatrix", "  imatrix"), std::pair("sampling", "  sample")})
      if (const Json& values = *f_.gguf.find(group); !values.members().empty())
        field(label, pairs(values));
  }

  void gguf_types() {
    out_ += '\n';
    Table table("wrrr", width_);
    table.header({"type", "tensors", "bytes", "packed"});
    for (const Json& t : f_.gguf.find("types")->items())
      table.add({t.find("type")->as_string(), t.find("tensors")->dump(),
                 bytes_text(t.find("bytes")->as_uint()),
                 bytes_text(t.find("packed_bytes")->as_uint())});
    out_ += table.text();
  }

  void run_line() {
    const RunFacts& r = f_.run;
    if (!r.works) return field("run", "no: " + printable(r.reason, 400), Ink::kRed);
    std::string text = "yes";
    text += r.tokenizer.empty() ? "" : "; " + r.tokenizer;
    text += r.chat_template.empty() ? "" : "; chat template";
    text += r.context == 0 ? "" : fmt::format("; context {}", r.context);
    for (const std::string& note : r.notes) text += "; " + printable(note, 400);
    field("run", text, Ink::kGreen);
  }

  void experts_line() {
    const MoeSpec& m = f_.checkpoint.moe_blocks().front().spec;
    std::string text = fmt::format(
        "{} of size {} in {}, {} per token; {}", m.experts, m.intermediate,
        counted(f_.checkpoint.moe_blocks().size(), "layer"), m.router.top_k, f_.routing);
    if (m.shared != SharedKind::kNone)
      text += fmt::format("; {} shared expert of size {}",
                          m.shared == SharedKind::kGated ? "gated" : "a", m.shared_intermediate);
    field("experts", text);
  }

  void memory_line() {
    const RunFacts& r = f_.run;
    std::string text = bytes_text(r.packed_bytes) + " packed for this CPU";
    if (!f_.gguf.is_null())
      text += fmt::format(" ({:.2f} of the file)",
                          static_cast<double>(r.packed_bytes) /
                              static_cast<double>(f_.gguf.find("bytes")->as_uint()));
    if (r.kv_bytes_per_token != 0)
      text += fmt::format(", KV cache {} per token", bytes_text(r.kv_bytes_per_token));
    for (size_t i = 0; i < r.memory.size(); ++i)
      text += fmt::format("{} {} for -c {}", i == 0 ? ";" : ",", bytes_text(r.memory[i].bytes),
                          r.memory[i].context);
    field("memory", text);
    if (const auto& gpu = f_.question.gpu)
      field("device",
            fmt::format("{} of weights on {}", bytes_text(f_.device_bytes), describe(*gpu)));
  }

  void ranks() {
    out_ += '\n';
    Table table("rrrrrr", width_);
    table.header({"ep rank", "tp rank", "experts", "weights", "params", "KV / 1000 tokens"});
    for (const RankSize& r : f_.ranks)
      table.add({std::to_string(r.ep_rank), std::to_string(r.tp_rank), std::to_string(r.experts),
                 bytes_text(r.bytes), count_text(r.params), bytes_text(r.kv_per_1k_tokens)});
    out_ += table.text();
  }

  void parts() {
    out_ += '\n';
    Table table("rrrrr", width_);
    table.header({"rank", "stage", "member", "layers", "weights"});
    for (const RankPart& p : f_.parts)
      table.add({std::to_string(p.rank), std::to_string(p.stage), std::to_string(p.member),
                 fmt::format("{}-{}", p.layers.begin, p.layers.end - 1), bytes_text(p.bytes)});
    out_ += table.text();
  }

  // Words the rule of a group. A rule that names a single module is worded without the name, so
  // that similar modules share a line.
  static std::string in_words(const ModuleGroup& g) {
    const std::string name = fmt::format("'{}'", g.sample->name);
    std::string rule = g.rule;
    if (const size_t at = rule.find(name); g.count == 1 && at != std::string::npos)
      rule.replace(at, name.size(), "each by its own name");
    return rule;
  }

  // Returns the letter under which the legend explains what decided a module.
  std::string decided_by(const ModuleGroup& g) {
    const Module& m = *g.sample;
    std::string why = m.supported ? printable(in_words(g), 200) : "UNSUPPORTED: " + m.reason;
    if (!m.decision.scheme.is_dense()) why += ": " + describe(m.decision.scheme);
    const auto at = std::find(legend_.begin(), legend_.end(), why);
    const auto i = static_cast<size_t>(at - legend_.begin());
    if (at == legend_.end()) legend_.push_back(std::move(why));
    return letter(i);
  }

  std::vector<ModuleLine> module_lines(const std::vector<ModuleGroup>& groups) {
    // Groups alike but for the layer that were decided differently.
    std::map<std::string, size_t> same;
    for (const ModuleGroup& g : groups) ++same[g.name];
    std::vector<ModuleLine> lines;
    for (const ModuleGroup& g : groups) {
      const Module& m = *g.sample;
      if (!has_matrix(m)) continue;
      std::string name = printable(g.name, 90);
      if (same[g.name] > 1) name += fmt::format(" (layers {})", ranges(g.layers));
      ModuleLine line{
          {}, fmt::format("{}x{}", m.plan.N, m.plan.K), scheme_name(m), decided_by(g), 0, 0};
      const auto at = std::find_if(lines.begin(), lines.end(), [&](const ModuleLine& l) {
        return l.shape == line.shape && l.scheme == line.scheme && l.by == line.by &&
               stem_of(l.names[0]) == stem_of(name);
      });
      ModuleLine& to = at != lines.end() ? *at : *lines.insert(lines.end(), std::move(line));
      to.names.push_back(std::move(name));
      to.count += g.count;
      to.bytes += g.bytes;
    }
    return lines;
  }
  static std::string_view stem_of(std::string_view name) { return name.substr(0, name.rfind('.')); }

  void modules(const std::vector<ModuleGroup>& groups) {
    legend_.clear();
    out_ += '\n';
    Table table("wrrrll", width_);
    table.header({"module", "num", "shape", "bytes", "scheme", "by"});
    for (const ModuleLine& l : module_lines(groups))
      table.add({fmt::format("{}", fmt::join(fold_names(l.names), " ")), std::to_string(l.count),
                 l.shape, bytes_text(l.bytes), l.scheme, l.by});
    uint64_t vectors = 0, vector_bytes = 0;
    for (const ModuleGroup& g : groups)
      if (!has_matrix(*g.sample)) {
        vectors += g.count;
        vector_bytes += g.bytes;
      }
    if (vectors > 0)
      table.add({"norms and parameters", std::to_string(vectors), "", bytes_text(vector_bytes)});
    out_ += table.text();
    for (size_t i = 0; i < legend_.size(); ++i)
      out_ += labelled("by " + letter(i) + ":", legend_[i], 7, width_);
  }

  void tensors() {
    out_ += '\n';
    Table table("wl", width_);
    for (const TensorUse& use : f_.tensors) {
      table.add({printable(use.tensor->name), describe(*use.tensor)});
      table.note(use.module.empty() ? "unused: " + use.reason
                                    : fmt::format("{} of {}", use.role, printable(use.module)));
    }
    out_ += table.text();
  }

  void unused() {
    if (f_.checkpoint.unused().empty() || f_.question.tensors) return;
    struct Group {
      size_t tensors = 0;
      uint64_t bytes = 0;
      std::string name;  // name of the first group
    };
    std::map<std::string, Group> reasons;
    for (const UnusedTensor& u : f_.checkpoint.unused()) {
      Group& g = reasons[u.reason];
      const std::string pattern = collapse_indices(u.name);
      if (g.tensors++ == 0 || pattern < g.name) g.name = pattern;
      g.bytes += u.bytes;
    }
    for (const auto& [reason, g] : reasons)
      field("unused",
            fmt::format("{}{}, e.g. {}: {}", counted(g.tensors, "tensor"),
                        g.bytes > 0 ? fmt::format(" ({})", bytes_text(g.bytes)) : std::string(),
                        printable(g.name, 80), reason));
  }

  void list(std::string_view title, const std::vector<std::string>& lines, Ink ink) {
    constexpr size_t kShown = 12;
    for (size_t i = 0; i < std::min(lines.size(), kShown); ++i)
      field(i == 0 ? title : "", printable(lines[i], 400), ink);
    if (lines.size() > kShown)
      field("", fmt::format("and {} more (--json lists all)", lines.size() - kShown));
  }

  const InspectFacts& f_;
  bool colour_;
  size_t width_;
  std::string out_;
  std::vector<std::string> legend_;
};

}  // namespace

std::string inspect_text(const InspectFacts& facts, bool colour) {
  return Writer(facts, colour).run();
}

}  // namespace moebius
