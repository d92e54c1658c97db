// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/suggest.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include "apps/cli/help.h"
#include "apps/commands.h"
#include "base/error.h"

namespace moebius {
namespace {

struct Foreign {
  std::string_view name, ours;
};

// Lists options of llama.cpp, vLLM and transformers, each with ours; if several are given, the
// first that the command has is suggested.
constexpr Foreign kForeignOptions[] = {
    {"--n-predict", "--max-tokens"},
    {"--predict", "--max-tokens"},
    {"--max-new-tokens", "--max-tokens"},
    {"--max-length", "--ctx"},
    {"--ctx-size", "--ctx"},
    {"--context", "--ctx"},
    {"--max-model-len", "--ctx"},
    {"--threads-batch", "--threads"},
    {"-tb", "--threads"},
    {"--num-threads", "--threads"},
    {"--temperature", "--temp"},
    {"--top_k", "--top-k"},
    {"--top_p", "--top-p"},
    {"--repeat-penalty", "--repetition-penalty"},
    {"--reverse-prompt", "--stop"},
    {"-r", "--stop"},
    {"--system-prompt", "--system"},
    {"-sys", "--system"},
    {"--conversation", "--interactive"},
    {"-cnv", "--interactive"},
    {"--interactive-first", "--interactive"},
    {"-s", "--seed"},
    {"--rng-seed", "--seed"},
    {"--text", "--prompt"},
    {"--n-prompt", "--prompts"},
    {"-pp", "--prompts"},
    {"--batch-size", "--batches"},
    {"--tensor-parallel-size", "--tp"},
    {"-tp", "--tp"},
    {"--ids", "--tokens"},
    {"--output", "--out"},
    {"-o", "--out"},
    {"--input", "--in"},
    {"--silent", "--quiet"},
    {"--served-model-name", "--alias"},
    {"-np", "--parallel"},
    {"--max-num-seqs", "--parallel"},
};
constexpr std::string_view kDownloadNames[] = {"-hf",  "-hfr", "--hf-repo",
                                               "--hf", "-mu",  "--model-url"};
constexpr std::string_view kDownload =
    "models are downloaded with `hf download ORG/NAME --local-dir DIR`, and then run with `run "
    "DIR`";
constexpr std::string_view kModelNames[] = {"-m", "--model", "--model-path", "--tokenizer"};
constexpr std::string_view kGpuNames[] = {"-ngl", "--n-gpu-layers", "--gpu-layers", "--device",
                                          "--gpu-memory-utilization"};

constexpr Foreign kForeignCommands[] = {
    {"chat", "run -i"},     {"generate", "run"},      {"complete", "run"},
    {"ppl", "perplexity"},  {"benchmark", "bench"},   {"info", "inspect"},
    {"show", "inspect"},    {"check", "verify"},      {"test", "verify"},
    {"encode", "tokenize"}, {"decode", "detokenize"}, {"completions", "completion"},
};

bool is_one_of(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_folder(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

// Lists the commands and subjects that have the option.
void owners_of(const Command& command, std::string_view option, std::vector<std::string>& out) {
  if (command.subjects.empty() && command.find(option) != nullptr && !command.hidden)
    out.push_back(command.name);
  for (const Command& c : command.subjects) owners_of(c, option, out);
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      const size_t replaced = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({replaced, d[i - 1][j] + 1, d[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

std::string nearest(std::string_view wanted, std::span<const std::string> names) {
  std::string best;
  size_t best_distance = std::max<size_t>(1, wanted.size() / 3) + 1;
  for (const std::string& name : names) {
    // A prefix or an extension of a name is near, whatever its length.
    const bool prefix = wanted.size() > 3 &&
                        (name.starts_with(wanted) || wanted.starts_with(name)) && name.size() > 3;
    const size_t distance = prefix ? 1 : edit_distance(wanted, name);
    if (distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

std::string unknown_command(const Command& parent, std::string_view name) {
  const std::string shown = printable(name, 60);
  for (const Foreign& f : kForeignCommands)
    if (f.name == name) return fmt::format("there is no command `{}`; ours is `{}`", shown, f.ours);
  if (name == "pull" || name == "download")
    return fmt::format("there is no command `{}`; {}", shown, kDownload);
  if (is_folder(std::string(name)))
    return fmt::format("`{0}` is a folder, not a command; did you mean `run {0}`?", shown);
  const std::vector<std::string> names = shown_subjects(parent);
  const std::string near = nearest(name, names);
  const std::string where = parent.name == "moebius" ? "" : parent.name + " ";
  if (!near.empty())
    return fmt::format("there is no command `{0}{1}`; did you mean `{0}{2}`?", where, shown, near);
  return fmt::format("there is no command `{}{}`; there are {}", where, shown,
                     fmt::join(names, ", "));
}

bool is_foreign_option(std::string_view name) {
  return std::any_of(std::begin(kForeignOptions), std::end(kForeignOptions),
                     [&](const Foreign& f) { return f.name == name; }) ||
         is_one_of(kModelNames, name) || is_one_of(kDownloadNames, name) ||
         is_one_of(kGpuNames, name);
}

std::string unknown_option(const Command& tool, const Command& command, std::string_view name) {
  const std::string shown = printable(name, 60);
  const std::string head = fmt::format("`{}` has no option `{}`", command.name, shown);
  if (is_one_of(kModelNames, name))
    return head +
           (command.positional.empty()
                ? "; a folder is given after the command, as in `run DIR`"
                : fmt::format("; the folder stands without an option: `{} DIR`", command.name));
  if (is_one_of(kGpuNames, name))
    return head + (command.find("--device") == nullptr ? "; this command runs on the CPU alone"
                   : command.find("--gpu-memory") == nullptr
                       ? "; ours is `--device cuda`"
                       : "; ours are `--device cuda`, `--gpu-memory`");
  if (is_one_of(kDownloadNames, name)) return fmt::format("{}; {}", head, kDownload);
  std::string_view ours;
  for (const Foreign& f : kForeignOptions) {
    if (f.name != name) continue;
    if (command.find(f.ours) != nullptr) return fmt::format("{}; ours is `{}`", head, f.ours);
    ours = f.ours;
  }
  constexpr size_t kFew = 3;  // most commands that a sentence lists
  std::vector<std::string> owners, names;
  if (!ours.empty()) owners_of(tool, ours, owners);
  if (!owners.empty() && owners.size() <= kFew)
    return fmt::format("{}; ours is `{}` of {}", head, ours, fmt::join(owners, ", "));
  owners.clear();
  owners_of(tool, name, owners);
  if (!owners.empty()) return fmt::format("{}; it belongs to {}", head, fmt::join(owners, ", "));
  for (const Option& o : command.options) names.insert(names.end(), o.names.begin(), o.names.end());
  const std::string near = nearest(name, names);
  return near.empty() ? head : fmt::format("{}; did you mean `{}`?", head, near);
}

}  // namespace moebius
