// SPDX-License-Identifier: Apache-2.0
// Lists the commands. To add one, describe it in its own file and add one line here.
#include "apps/commands.h"

#include <algorithm>

#include "apps/bench_command.h"
#include "apps/cli/manners.h"
#include "apps/cli/suggest.h"
#include "device/gpu.h"
#include "runtime/launcher.h"

namespace moebius {
namespace {

void add_common_options(Command& command) {
  Manners& m = manners();
  command.section("Every command");
  bool folder = false;
  for (const std::deque<Option>* list : {&command.positional, &command.options})
    for (const Option& o : *list) folder = folder || o.kind == ValueKind::kFolder;
  if (folder)
    command.flag("--no-follow", m.no_follow,
                 "refuse symbolic links that lead out of the folder, except those of the Hugging "
                 "Face cache",
                 {.rare = true});
  command.flag("--quiet,-q", m.quiet, "no progress and no statistics, only warnings and errors");
  command.flag("--verbose,-v", m.verbose, "say more about what is done");
  command.at_most_one({"--quiet", "--verbose"});
  command.flag("--help,-h", m.help, "show the common options");
  command.flag("--help-all", m.help_all, "show every option");
  for (Command& c : command.subjects) add_common_options(c);
}

void gather_variables(const Command& command, std::vector<NamedText>& out) {
  for (const Option& o : command.options) {
    if (o.environment.empty()) continue;
    const auto same = [&](const NamedText& v) { return v.name == o.environment; };
    if (std::none_of(out.begin(), out.end(), same))
      out.push_back({o.environment, "default of " + o.name()});
  }
  for (const Command& c : command.subjects) gather_variables(c, out);
}

}  // namespace

Command make_tool(const BenchActions* bench) {
  Command tool(
      "moebius",
      "runs quantized mixture-of-experts models on CPUs, straight from the folder they were "
      "published in; on NVIDIA GPUs with --device cuda (measured: H200; other cards are slow "
      "today, by a factor of about 50)");
  tool.subjects = {run_command(),
                   serve_command(),
                   inspect_command(),
                   explain_command(),
                   verify_command(),
                   apply_command(),
                   bench_command(bench == nullptr ? BenchActions{} : *bench),
                   logits_command(),
                   perplexity_command(),
                   quantize_command(),
                   eval_command(),
                   pack_command(),
                   tokenize_command(),
                   detokenize_command(),
                   help_command(),
                   completion_command(),
                   docs_command()};
  tool.flag("--version", manners().version, "show the version");
  tool.examples = {"moebius run -p 'It was a dark' -n 40", "moebius inspect DIR",
                   "moebius explain DIR --cpu avx2,fma,f16c", "moebius verify DIR"};
  add_common_options(tool);
  return tool;
}

std::vector<NamedText> exit_codes() {
  return {{std::to_string(kExitDone), "done"},
          {std::to_string(kExitFailed), "a check failed, or the input cannot be used"},
          {std::to_string(kExitUsage), "wrong usage"},
          {std::to_string(kExitDied), "the engine died"},
          {std::to_string(kExitInterrupted), "interrupted by Ctrl-C"}};
}

std::vector<NamedText> environment_variables(const Command& tool) {
  std::vector<NamedText> out;
  gather_variables(tool, out);
  out.push_back({kCpuVariable, "CPU features, as in `explain --cpu`: the tool uses no others"});
  out.push_back(
      {kCommVariable,
       "openmpi, mpich or a file: the plugin that connects ranks, where the launcher does not "
       "say"});
  out.push_back({kGpuVariable, "a file: the module of `--device cuda`"});
  out.push_back({"MOEBIUS_API_KEY", "an API key that `serve` accepts, beside those of its file"});
  out.push_back({"NO_COLOR", "not empty: no colours"});
  out.push_back({"COLUMNS", "width of tables"});
  return out;
}

std::string last_word(const std::string& name) { return name.substr(name.rfind(' ') + 1); }

Command& subject_of(Command& parent, std::string_view name) {
  for (Command& c : parent.subjects)
    if (last_word(c.name) == name) return c;
  throw UsageError(unknown_command(parent, name));
}

}  // namespace moebius
