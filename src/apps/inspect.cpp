// SPDX-License-Identifier: Apache-2.0
#include "apps/inspect.h"

#include <unistd.h>

#include <iostream>
#include <memory>
#include <ostream>

#include "apps/chat/terminal.h"
#include "apps/cli/folder.h"
#include "apps/cli/options.h"
#include "apps/commands.h"

namespace moebius {

int run_inspect(const InspectOptions& options, std::ostream& out) {
  const Checkpoint checkpoint = open_checkpoint(options.folder);
  const InspectFacts facts = gather_facts(checkpoint, options);
  if (options.json)
    out << inspect_json(facts).dump(1) << '\n';
  else
    out << inspect_text(facts, options.colour);
  return facts.problems.empty() ? 0 : 1;
}

Command inspect_command() {
  auto o = std::make_shared<InspectOptions>();
  Command c("inspect",
            "shows what a folder is and whether it will run: modules, schemes, sizes, memory");
  c.folder(o->folder);
  c.flag("--tensors", o->tensors, "list every tensor and what uses it");
  c.option("--layer", "N", &o->layer, "show one layer",
           {.limits = {{0, 1 << 30}}, .default_text = "all"});
  c.flag("--deep", o->deep, "read all weights and check scales, zero points and codes");
  c.option("--ctx,-c", "N", &o->context, "show the memory for a context of N tokens",
           {.limits = {{1, 1 << 30}}, .default_text = "common lengths"});
  c.option("--pp", "N", &o->pp, "show the size of each pipeline stage", {.limits = {{1, 65536}}});
  c.option("--tp", "N", &o->tp, "show the size of each tensor-parallel rank",
           {.limits = {{1, 65536}}});
  c.option("--ep", "N", &o->ep, "show the size of each expert-parallel rank",
           {.limits = {{1, 65536}}});
  add_device_option(c, o->device);
  add_json_flag(c, o->json);
  c.examples = {"moebius inspect", "moebius inspect DIR --tp 4 --ep 2",
                "moebius inspect DIR --json | jq '.modules[] | .scheme'"};
  c.action = [o](const Command&) {
    if (on_gpu(o->device)) o->gpu = gpu_target_of_tool();
    o->colour = colour_wanted(STDOUT_FILENO);
    return run_inspect(*o, std::cout);
  };
  return c;
}

}  // namespace moebius
