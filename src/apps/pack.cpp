// SPDX-License-Identifier: Apache-2.0
// Implements the command pack: does what the first start with --pack-dir does, without loading the
// model.
#include <fmt/core.h>
#include <sys/stat.h>

#include <chrono>
#include <iostream>

#include "apps/cli/folder.h"
#include "apps/cli/manners.h"
#include "apps/commands.h"
#include "apps/model_commands.h"
#include "base/error.h"
#include "base/human.h"
#include "base/json.h"
#include "model/run/packed_weights.h"

namespace moebius {
namespace {

struct PackOptions {
  ModelRunOptions model;
  bool check = false, json = false;
};

ino_t inode_of(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 ? st.st_ino : 0;
}

void report(const PackOptions& o, const std::string& path, const PackFacts& facts, bool made,
            std::chrono::steady_clock::time_point start, std::ostream& out) {
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (o.json) {
    out << Json::object({{"file", path},
                         {"bytes", facts.bytes},
                         {"blocks", facts.blocks},
                         {"made", made},
                         {"seconds", seconds}})
               .dump()
        << '\n';
    return;
  }
  const char* what = made                       ? "made and checked"
                     : o.model.pack_dir.empty() ? "is whole"
                                                : "is up to date and checked";
  out << fmt::format("{}\n{}, {}, in {}: {}\n", path, facts.about, human_bytes(facts.bytes),
                     human_seconds(seconds), what);
}

int run_pack(const PackOptions& o, std::ostream& out) {
  const auto start = std::chrono::steady_clock::now();
  // Without --pack-dir: checks that a single file is complete, whatever model it is of.
  if (o.model.pack_dir.empty()) {
    const std::shared_ptr<Runtime> runtime = Runtime::shared(thread_count(o.model.run));
    report(o, o.model.folder, check_pack_file(o.model.folder, &runtime->pool()), false, start, out);
    return kExitDone;
  }
  const Checkpoint checkpoint = open_to_run(o.model.folder);
  const size_t threads = thread_count(o.model.run);
  const std::shared_ptr<Runtime> runtime = Runtime::shared(threads);
  const ModelOptions options = model_options_of(o.model, checkpoint);
  const std::string path = pack_target(checkpoint, pack_request(checkpoint, options)).path;
  const ino_t before = inode_of(path);
  if (!o.check) (void)OpenModel(checkpoint, options, o.model.ranks, threads);
  const ino_t after = inode_of(path);
  if (after == 0) {
    if (o.check) fail("{}: there is no such file; without --check it is made", printable(path));
    return kExitFailed;  // the reason was printed
  }
  report(o, path, check_pack_file(path, &runtime->pool()), before != after, start, out);
  return kExitDone;
}

}  // namespace

Command pack_command() {
  auto o = std::make_shared<PackOptions>();
  Command c("pack", "packs the weights of a model for this CPU into a file that starts map");
  c.argument("DIR", o->model.folder, "checkpoint folder; with --check alone a file that was packed",
             {.kind = ValueKind::kFile, .required = true});
  c.argument("OUT", o->model.pack_dir, "folder of packed weights, as --pack-dir takes it",
             {.default_text = "none: with --check, DIR is a file"});
  c.flag("--check", o->check, "verify the existing file by reading all of it; write nothing");
  add_json_flag(c, o->json);
  add_run_options(c, o->model.run);
  add_dtype_option(c, o->model.dtype);
  c.examples = {"moebius pack DIR packed", "moebius pack DIR packed --check",
                "moebius pack packed/FILE --check"};
  c.action = [o](const Command&) {
    if (o->model.pack_dir.empty() && !o->check)
      throw UsageError("`pack` needs OUT, the folder of packed weights");
    if (!o->model.pack_dir.empty()) o->model.folder = usable_folder(o->model.folder);
    return run_pack(*o, std::cout);
  };
  return c;
}

}  // namespace moebius
