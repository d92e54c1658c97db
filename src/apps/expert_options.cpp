// SPDX-License-Identifier: Apache-2.0
#include "apps/expert_options.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "apps/cli/line_reader.h"
#include "apps/cli/manners.h"
#include "base/error.h"
#include "base/file.h"
#include "base/human.h"
#include "device/packed_files.h"

namespace moebius {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Returns the free bytes of the disk that a folder, which may not exist yet, lies on.
uint64_t free_bytes_at(std::filesystem::path folder) {
  std::error_code error;
  while (folder.has_relative_path() && !std::filesystem::exists(folder, error))
    folder = folder.parent_path();
  const auto space = std::filesystem::space(folder, error);
  return error ? 0 : space.available;
}

}  // namespace

void add_expert_options(Command& c, ExpertDiskOptions& o) {
  c.section("Experts that do not fit memory", /*rare=*/true);
  c.option("--expert-gib", "X", &o.gib, "memory for experts in GiB; the others are read from disk",
           {.limits = {{0, 1 << 20}}, .default_text = "what is free"});
  c.option("--expert-cache", "HOW", &o.cache,
           "pool: places in memory; page: the file --pack-dir, mapped",
           {.choices = {"auto", "pool", "page"}});
  c.option("--expected", "HOW", &o.expected, "read experts before a layer asks for them",
           {.choices = {"auto", "off"}});
  c.flag("--no-pack", o.no_pack, "read experts from the checkpoint, pack nothing on disk");
  c.flag("--yes", o.yes, "pack on disk without a question");
}

void take_expert_options(ModelOptions& to, const ExpertDiskOptions& o) {
  if (o.gib > 0) to.expert_bytes = static_cast<uint64_t>(o.gib * 0x1p30);
  to.expert_cache = o.cache == "pool"   ? ExpertCache::kPool
                    : o.cache == "page" ? ExpertCache::kPage
                                        : ExpertCache::kAuto;
  to.expects_experts = o.expected == "auto";
  to.pack_where = [o](uint64_t bytes) { return pack_folder_for(bytes, o); };
}

std::string pack_folder_for(uint64_t bytes, const ExpertDiskOptions& o) {
  if (o.no_pack) return "";
  std::string folder = variable("MOEBIUS_PACK_DIR");
  const bool named = !folder.empty();
  if (!named && variable("HOME").empty() && variable("XDG_CACHE_HOME").empty()) return "";
  if (!named) folder = default_pack_folder();
  const uint64_t free = free_bytes_at(folder), needed = bytes + bytes / 32;
  const auto unpacked = [](const std::string& why) {
    note("{}; experts are read from the checkpoint, which is slower (--pack-dir, --yes)", why);
    return std::string();
  };
  const std::string needs = fmt::format("packing once needs {} in {} ({} free)",
                                        human_bytes(needed), printable(folder), human_bytes(free));
  if (needed > free) return unpacked(needs);
  if (named || o.yes) return folder;
  if (isatty(STDIN_FILENO) == 0 || isatty(STDERR_FILENO) == 0) return unpacked(needs);
  warning("this model does not fit memory: {}", needs);
  const auto answer = make_line_reader()->line("Enter packs, n reads the checkpoint: ");
  return answer && (answer->empty() || *answer == "y") ? folder : "";
}

}  // namespace moebius
