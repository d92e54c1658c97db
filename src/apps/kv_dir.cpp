// SPDX-License-Identifier: Apache-2.0
#include "apps/kv_dir.h"

#include <sys/stat.h>

#include <algorithm>

#include "apps/cli/commit.h"
#include "apps/cli/manners.h"
#include "apps/rank_process.h"
#include "base/error.h"
#include "base/file.h"
#include "base/human.h"
#include "base/sha256.h"
#include "device/gpu.h"

namespace moebius {
namespace {

constexpr uint64_t kMaxConfigBytes = uint64_t{64} << 20;
// Version of the files' content; files of another version are not read.
constexpr const char* kKvLayout = "blocks 1";

class Facts {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    const std::string line = fmt::format(format, std::forward<Args>(args)...);
    const std::string all = fmt::format("{} {}\n", line.size(), line);
    sum_.add({reinterpret_cast<const uint8_t*>(all.data()), all.size()});
  }
  std::string hex() { return sum_.hex(); }

 private:
  Sha256 sum_;
};

void add_files(Facts& facts, const Checkpoint& checkpoint) {
  for (const char* name : {"config.json", "hf_quant_config.json", "quantize_config.json",
                           "quant_config.json", "quantization_config.json"}) {
    const std::string path = join_path(checkpoint.folder(), name);
    if (path_exists(path)) facts.add("{} {}", name, read_text_file(path, kMaxConfigBytes));
  }
  for (const SafetensorsFile& f : checkpoint.store().files()) {
    struct stat s {};
    if (stat(f.path().c_str(), &s) != 0) fail("{}: {}", printable(f.path()), errno_text(errno));
    facts.add("{} {} {}.{}", base_name(f.path()), f.size(), s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
  }
  for (const TensorInfo& t : checkpoint.store().tensors())
    facts.add("{} {} {} {}", t.name, describe(t), t.file, t.offset);
}

}  // namespace

void add_kv_dir_options(Command& c, KvDirOptions& o) {
  c.option("--kv-dir", "DIR", &o.folder, "save the prompt cache in this folder (plain text)",
           {.default_text = "none"});
  c.option("--kv-dir-gib", "X", &o.gib,
           "most that the folder may hold, in GiB, files of earlier runs included",
           {.limits = {{0.001, 1 << 20}}, .rare = true});
}

std::unique_ptr<KvDisk> open_kv_dir(const KvDirOptions& o, const ModelRunOptions& model,
                                    std::function<void(const std::string& words)> say) {
  if (o.folder.empty()) return nullptr;
  const RankOptions& r = model.ranks;
  if (r.ranks > 1 || r.pp > 1 || r.tp > 1 || r.ep > 1 || RankProcess::current() != nullptr)
    fail("--kv-dir: a model on several ranks keeps no prompts on disk; leave one of them out");
  for (const DevicePlacement::Rule& rule : placement_of(model.run).rules)
    if (is_gpu_name(rule.attention))
      fail(
          "--kv-dir: a model whose attention is on a GPU ({}) keeps no prompts on disk; leave one "
          "of them out, or take --place attention=cpu",
          rule.attention);
  KvDiskOptions d;
  d.folder = o.folder;
  d.bytes = static_cast<uint64_t>(o.gib * 0x1p30);
  d.say = std::move(say);
  return std::make_unique<KvDisk>(std::move(d));
}

std::string kv_fingerprint(const ModelRunOptions& model, const OpenModel& open) {
  Facts facts;
  facts.add("{} {} {}", kKvLayout, MOEBIUS_VERSION, kBuildCommit);
  add_files(facts, open.checkpoint);
  const Cpu cpu = host_cpu();
  facts.add("{} {} {} {}", describe(cpu), cpu.caches.l1d, cpu.caches.l2, cpu.caches.l3);
  const ModelOptions o = model_options_of(model, open.checkpoint);
  facts.add("{} {} {} {} {}", o.placement.describe(), model.run.place,
            static_cast<int>(o.policy.accept), o.policy.kernel, o.policy.where_it_can);
  facts.add("{} {} {} {}", static_cast<int>(o.act.mode), o.act.int8_rows, static_cast<int>(o.type),
            o.kv_type ? static_cast<int>(*o.kv_type) : -1);
  for (const KvKind& kind : open.model->kv_kinds())
    facts.add("{} {} {} {}", kind.name, kind.block_bytes, kind.reach, kind.cuttable);
  return facts.hex();
}

void use_kv_dir(KvDisk* disk, const ModelRunOptions& model, const OpenModel& open,
                EngineOptions& options) {
  if (disk == nullptr) return;
  if (open.model->keys_depend_on_length()) {
    warning(
        "--kv-dir: keys of this model depend on the length of their sequence, so that no prompt is "
        "kept, in memory or on disk");
    return;
  }
  options.disk = disk;
  options.fingerprint = kv_fingerprint(model, open);
  const KvDiskFigures f = disk->figures();
  note("--kv-dir {}: {} in {}", printable(disk->folder()), human_bytes(f.bytes),
       counted(f.files, "file"));
}

void keep_kv_dir(const KvDisk* disk, Engine& engine) {
  if (disk == nullptr) return;
  engine.keep_cache();
  const KvDiskFigures f = disk->figures();
  detail("--kv-dir {}: {} written, {} in {} kept", printable(disk->folder()),
         human_bytes(f.written_bytes), human_bytes(f.bytes), counted(f.files, "file"));
}

}  // namespace moebius
