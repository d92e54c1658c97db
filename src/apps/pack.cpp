// SPDX-License-Identifier: Apache-2.0
// Implements the command pack: does what the first start with --pack-dir does, without loading the
// model; and shows and deletes packed files.
#include <fmt/core.h>
#include <sys/stat.h>

#include <chrono>
#include <iostream>

#include "apps/cli/folder.h"
#include "apps/cli/layout.h"
#include "apps/cli/manners.h"
#include "apps/commands.h"
#include "apps/model_commands.h"
#include "base/error.h"
#include "base/file.h"
#include "base/human.h"
#include "base/json.h"
#include "device/packed_files.h"
#include "model/run/packed_weights.h"

namespace moebius {
namespace {

struct PackOptions {
  ModelRunOptions model;
  bool check = false, list = false, json = false;
  std::string remove;       // name of the packed file to delete; "": none
  std::string packed_here;  // folder for --list and --remove; "": the default one
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

int list_packed(const std::string& folder, bool json, std::ostream& out) {
  uint64_t bytes = 0;
  Json list = Json::array();
  std::string text;
  for (const PackedFile& f : list_packed_files(folder)) {
    bytes += f.bytes;
    list.push(Json::object({{"file", f.name},
                            {"bytes", f.bytes},
                            {"model", f.model},
                            {"version", f.version},
                            {"checkpoint", f.checkpoint},
                            {"checkpoint_gone", f.checkpoint_gone},
                            {"problem", f.problem}}));
    text += labelled("", fmt::format("{}  {}", printable(f.name), human_bytes(f.bytes)), 0,
                     output_width());
    text += labelled("  ",
                     fmt::format("{}{}", f.problem.empty() ? printable(f.about) : f.problem,
                                 f.checkpoint_gone ? ", which is gone" : ""),
                     2, output_width());
  }
  const size_t files = list.items().size();
  if (json)
    out << Json::object({{"folder", folder}, {"bytes", bytes}, {"files", std::move(list)}}).dump()
        << '\n';
  else
    out << text
        << fmt::format("{}: {}, {}\n", printable(folder), counted(files, "file"),
                       human_bytes(bytes));
  return kExitDone;
}

int remove_packed(const PackOptions& o, const std::string& folder, std::ostream& out) {
  const uint64_t bytes = remove_packed_file(folder, o.remove);
  const std::string path = join_path(folder, o.remove);
  if (o.json)
    out << Json::object({{"file", path}, {"bytes", bytes}}).dump() << '\n';
  else
    out << fmt::format("deleted {}, {}\n", printable(path), human_bytes(bytes));
  return kExitDone;
}

}  // namespace

Command pack_command() {
  auto o = std::make_shared<PackOptions>();
  Command c("pack", "packs the weights of a model for this CPU into a file that starts map");
  c.argument("DIR", o->model.folder, "checkpoint folder; with --check alone a file that was packed",
             {.default_text = "none: with --list and --remove", .kind = ValueKind::kFile});
  c.argument("OUT", o->model.pack_dir, "folder of packed weights, as --pack-dir takes it",
             {.default_text = "none: with --check, DIR is a file"});
  c.flag("--check", o->check, "verify the existing file by reading all of it; write nothing");
  c.flag("--list", o->list, "show the packed files: bytes, model, version, checkpoint");
  c.option("--remove", "NAME", &o->remove, "delete a packed file, by its name in --list",
           {.default_text = "none"});
  c.option("--pack-dir", "DIR", &o->packed_here, "with --list and --remove: the folder",
           {.default_text = "$XDG_CACHE_HOME/moebius/packed, else ~/.cache/moebius/packed",
            .environment = "MOEBIUS_PACK_DIR",
            .kind = ValueKind::kFile});
  c.at_most_one({"--list", "--remove", "--check"});
  add_json_flag(c, o->json);
  add_run_options(c, o->model.run);
  add_dtype_option(c, o->model.dtype);
  c.examples = {"moebius pack DIR packed", "moebius pack DIR packed --check",
                "moebius pack packed/FILE --check", "moebius pack --list"};
  c.action = [o](const Command&) {
    if (o->list || !o->remove.empty()) {
      if (!o->model.folder.empty())
        throw UsageError("--list and --remove are about a folder of packed files: leave out DIR");
      const std::string folder = o->packed_here.empty() ? default_pack_folder() : o->packed_here;
      return o->list ? list_packed(folder, o->json, std::cout)
                     : remove_packed(*o, folder, std::cout);
    }
    if (o->model.folder.empty()) throw UsageError("`pack` needs DIR, the checkpoint folder");
    if (o->model.pack_dir.empty() && !o->check)
      throw UsageError("`pack` needs OUT, the folder of packed weights");
    if (!o->model.pack_dir.empty()) o->model.folder = usable_folder(o->model.folder);
    return run_pack(*o, std::cout);
  };
  return c;
}

}  // namespace moebius
