// SPDX-License-Identifier: Apache-2.0
// Measures structured output without a model: how long schemas take to compile, and the masks of
// answers that are drawn from them. Schemas come from a folder of JSON files, or from a few
// built-in ones.
#include <fmt/format.h>
#include <fmt/ostream.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <map>
#include <ostream>

#include "apps/cli/interrupt.h"
#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "bench/bench_report.h"
#include "text/grammar/json_text.h"
#include "text/grammar/masks.h"
#include "text/tokenizer.h"

namespace moebius {
namespace {

constexpr uint64_t kMostSchemaBytes = uint64_t{16} << 20;
constexpr size_t kAnswerTokens = 200;

constexpr const char* kOwnSchemas[] = {
    R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},"email":{"type":"string","format":"email"}},"required":["name","age"],"additionalProperties":false})",
    R"({"type":"object","properties":{"city":{"type":"string","maxLength":40},"days":{"type":"integer"},"unit":{"enum":["celsius","fahrenheit"]}},"required":["city"]})",
    R"({"$defs":{"node":{"type":"object","properties":{"value":{"type":"number"},"children":{"type":"array","items":{"$ref":"#/$defs/node"}}},"required":["value","children"],"additionalProperties":false}},"$ref":"#/$defs/node"})",
    R"({"type":"array","items":{"anyOf":[{"type":"string","pattern":"^[A-Z]{2}-[0-9]{4}$"},{"type":"null"}]},"minItems":1,"maxItems":16})",
    R"({"type":"object"})",
};

struct MaskInstance {
  std::string text;
  bool valid = true;
};
struct MaskSchema {
  std::string name;
  Json schema;
  std::vector<MaskInstance> instances;
};

// Reads {"schema": ..., "tests": [{"data": ..., "valid": true}]}, or a schema itself.
MaskSchema schema_of(const std::string& name, const Json& value) {
  const Json *schema = value.find("schema"), *tests = value.find("tests");
  if (schema == nullptr || tests == nullptr) return {name, value, {}};
  MaskSchema out{name, *schema, {}};
  if (const Json* words = value.find("description"); words != nullptr && words->is_string())
    out.name += ": " + words->as_string();
  for (const Json& test : tests->items()) {
    const Json *valid = test.find("valid"), *data = test.find("data");
    if (valid != nullptr && valid->is_bool() && data != nullptr)
      out.instances.push_back({compact_json(*data), valid->as_bool()});
  }
  return out;
}

// Reads a file; files of JSON-Schema-Test-Suite are lists of schemas.
void read_schema_file(const std::string& path, std::vector<MaskSchema>& out) {
  const Json file = parse_json(read_text_file(path, kMostSchemaBytes), path);
  const std::string name(base_name(path));
  if (!file.is_array()) return out.push_back(schema_of(name, file));
  for (const Json& one : file.items()) out.push_back(schema_of(name, one));
}

std::vector<MaskSchema> read_schemas(const std::string& folder) {
  std::vector<MaskSchema> out;
  if (folder.empty()) {
    for (const char* text : kOwnSchemas) out.push_back({"", parse_json(text, "schema"), {}});
    return out;
  }
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && entry.path().extension() == ".json")
      files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  for (const std::string& f : files) read_schema_file(f, out);
  if (out.empty()) fail("{} has no .json file", printable(folder));
  return out;
}

// Returns the CPU time of this thread: its work is all computing, and other processes may run.
double thread_microseconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}
template <class Work>
double microseconds(Work&& work) {
  const double start = thread_microseconds();
  work();
  return thread_microseconds() - start;
}

class MaskRun {
 public:
  explicit MaskRun(const Tokenizer& tokenizer)
      : tokenizer_(tokenizer), masks_(tokenizer), vocab_(tokenizer.vocab_size()) {}

  void schema(const MaskSchema& s) {
    GrammarPtr grammar;
    std::string code;
    const double us = microseconds([&] {
      try {
        grammar = grammar_from_schema(s.schema);
      } catch (const GrammarError& e) {
        code = e.code;
      }
    });
    compile.push_back(us);
    if (grammar == nullptr) {
      ++refused[code];
      return;
    }
    ++kept;
    if (s.instances.empty()) draw(grammar);
    for (const MaskInstance& i : s.instances)
      if (follow(grammar, i.text) != i.valid)
        (i.valid ? unfit : let_through).push_back(s.name + ": " + i.text);
  }

  std::vector<double> compile, mask;  // microseconds
  size_t kept = 0;
  std::vector<std::string> unfit, let_through;  // valid but refused; invalid but accepted
  std::map<std::string, size_t> refused;

 private:
  void find(GrammarMatcher& m, bool first) {
    mask.push_back(microseconds([&] { masks_.find(m, {}, first, mask_); }));
  }
  // Picks one of a few allowed tokens, with a preference for those that close something.
  int32_t pick() {
    int32_t best = -1;
    for (int i = 0; i < 6; ++i) {
      int32_t token = -1;
      if (mask_.listed) {
        token = mask_.ids[random_.below(mask_.ids.size())];
      } else {
        do token = static_cast<int32_t>(random_.below(vocab_));
        while (!mask_.has(token));
      }
      if (best < 0) best = token;
      if (masks_.trie().bytes(token).find_first_of("\"}]") != std::string_view::npos) return token;
    }
    return best;
  }
  void draw(const GrammarPtr& grammar) {
    GrammarMatcher m(grammar);
    for (size_t n = 0; n < kAnswerTokens && !m.must_end(); ++n) {
      find(m, n == 0);
      if (mask_.count == 0) return;
      masks_.accept(m, pick(), n == 0);
    }
  }
  bool follow(const GrammarPtr& grammar, const std::string& text) {
    GrammarMatcher m(grammar);
    bool first = true;
    for (const int32_t token : tokenizer_.encode(text, false)) {
      find(m, first);
      if (!masks_.accept(m, token, first)) return false;
      first = false;
    }
    return m.may_end();
  }

  const Tokenizer& tokenizer_;
  TokenMasks masks_;
  const size_t vocab_;
  TokenMask mask_;
  SplitMix64 random_{1};
};

}  // namespace

int run_bench_mask(const BenchOptions& options, std::ostream& out) {
  interrupt_is_noted();
  const Tokenizer tokenizer = Tokenizer::from_folder(options.folder);
  const std::vector<MaskSchema> schemas = read_schemas(options.schemas);
  std::unique_ptr<MaskRun> run;
  const double tree = microseconds([&] { run = std::make_unique<MaskRun>(tokenizer); });
  for (const MaskSchema& s : schemas) {
    run->schema(s);
    if (interrupt_seen()) return 130;
  }
  const std::vector<double>&c = run->compile, &m = run->mask;
  if (options.json) {
    Json line = Json::object({{"bench", "mask"}});
    line.set("vocab", tokenizer.vocab_size());
    line.set("schemas", schemas.size());
    line.set("kept", run->kept);
    Json codes = Json::object();
    for (const auto& [code, count] : run->refused) codes.set(code, count);
    line.set("refused", std::move(codes));
    line.set("unfit", run->unfit.size());
    line.set("let_through", run->let_through.size());
    line.set("tree_ms", rounded(tree * 1e-3, 4));
    line.set("masks", m.size());
    for (const auto& [name, p] : {std::pair("mask", &m), std::pair("compile", &c)}) {
      line.set(fmt::format("{}_p50_us", name), rounded(at_share(*p, 0.5), 4));
      line.set(fmt::format("{}_mean_us", name), rounded(mean_of(*p), 4));
      line.set(fmt::format("{}_p99_us", name), rounded(at_share(*p, 0.99), 4));
      line.set(fmt::format("{}_max_us", name), rounded(at_share(*p, 1), 4));
    }
    print_json(line, out);
    return 0;
  }
  fmt::print(out, "{} tokens, tree made in {:.0f} ms; {} schemas, {} kept\n",
             tokenizer.vocab_size(), tree * 1e-3, schemas.size(), run->kept);
  for (const auto& [code, count] : run->refused)
    fmt::print(out, "  refused, {}: {}\n", code, count);
  fmt::print(out, "instances: {} valid that do not fit, {} invalid that do\n", run->unfit.size(),
             run->let_through.size());
  if (options.list)
    for (const auto& [what, list] :
         {std::pair("does not fit", &run->unfit), std::pair("LET THROUGH", &run->let_through)})
      for (const std::string& i : *list) fmt::print(out, "  {}: {}\n", what, printable(i, 160));
  fmt::print(out, "{:<12}{:>9}{:>11}{:>11}{:>11}{:>11}\n", "", "count", "p50 us", "mean us",
             "p99 us", "max us");
  for (const auto& [name, p] : {std::pair("compile", &c), std::pair("mask", &m)})
    fmt::print(out, "{:<12}{:>9}{:>11.1f}{:>11.1f}{:>11.1f}{:>11.1f}\n", name, p->size(),
               at_share(*p, 0.5), mean_of(*p), at_share(*p, 0.99), at_share(*p, 1));
  return 0;
}

}  // namespace moebius
