// SPDX-License-Identifier: Apache-2.0
// Reads and writes the journal as JSON, and compares it with the present run (journal.h).
#include "quantize/journal.h"

#include <sys/stat.h>

#include <algorithm>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json_shown.h"
#include "checkpoint/folder_write.h"

namespace moebius {
namespace {

constexpr uint64_t kMaxJournal = uint64_t{256} << 20;
constexpr std::string_view kFormat = "moebius quantize 2";

Json file_facts(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) fail("{}: {}", path, open_failure(path, errno));
  return Json::object(
      {{"name", std::string(base_name(path))},
       {"bytes", static_cast<uint64_t>(st.st_size)},
       {"modified", fmt::format("{}.{:09}", st.st_mtim.tv_sec, st.st_mtim.tv_nsec)}});
}

std::string text_of(const Json& object, std::string_view key, const std::string& path) {
  const Json* v = object.find(key);
  if (v == nullptr || !v->is_string()) fail("{}: no text '{}'", path, key);
  return v->as_string();
}

}  // namespace

Json source_facts(const std::string& folder, const TensorStore& store) {
  Json files = Json::array();
  files.push(file_facts(join_path(folder, "config.json")));
  for (const SafetensorsFile& f : store.files()) files.push(file_facts(f.path()));
  Checksum hash;
  for (const TensorInfo& t : store.tensors()) {
    const std::string line = fmt::format("{} {} {} {}\n", t.name, describe(t), t.file, t.offset);
    hash.add({reinterpret_cast<const uint8_t*>(line.data()), line.size()});
  }
  return Json::object({{"files", files}, {"tensors", hash.hex()}});
}

Json Journal::to_json() const {
  Json list = Json::array();
  for (const FinishedShard& s : shards)
    list.push(Json::object({{"name", s.name}, {"bytes", s.bytes}, {"hash", s.hash}}));
  Json made = Json::array();
  for (const Json& m : modules) made.push(m);
  Json file = Json::object({{"format", kFormat},
                            {"version", MOEBIUS_VERSION},
                            {"source", source},
                            {"options", options},
                            {"shards", list},
                            {"modules", made}});
  if (begun)
    file.set("begun", Json::object({{"name", begun->name},
                                    {"units", static_cast<uint64_t>(begun->units)},
                                    {"hash", begun->hash}}));
  return file;
}

std::string first_difference(const Json& before, const Json& now, const std::string& path) {
  if (before.kind() != now.kind() && !(before.is_number() && now.is_number()))
    return fmt::format("{} was {}, and is {} now", path, shown(before), shown(now));
  if (before.is_object()) {
    for (const auto& [key, value] : before.members()) {
      const std::string at = path.empty() ? key : path + "." + key;
      const Json* other = now.find(key);
      if (other == nullptr) return at + " is gone";
      if (std::string d = first_difference(value, *other, at); !d.empty()) return d;
    }
    for (const auto& [key, value] : now.members())
      if (before.find(key) == nullptr) return fmt::format("{}.{} is new", path, key);
    return {};
  }
  if (before.is_array()) {
    const size_t n = std::max(before.items().size(), now.items().size());
    for (size_t i = 0; i < n; ++i) {
      const std::string at = fmt::format("{}[{}]", path, i);
      if (i >= before.items().size()) return at + " is new";
      if (i >= now.items().size()) return at + " is gone";
      if (std::string d = first_difference(before.items()[i], now.items()[i], at); !d.empty())
        return d;
    }
    return {};
  }
  if (before.dump() != now.dump())
    return fmt::format("{} was {}, and is {} now", path, shown(before), shown(now));
  return {};
}

Journal read_journal(const std::string& folder, const Json& source, const Json& options) {
  const std::string path = join_path(folder, kJournalName);
  if (!path_exists(path))
    fail("{}: no {}; expected an unfinished run to go on with", printable(folder), kJournalName);
  const Json file = parse_json(read_text_file(path, kMaxJournal), path);
  if (!file.is_object())
    fail("{}: {} at the top; expected an object", path, kind_name(file.kind()));
  if (text_of(file, "format", path) != kFormat || text_of(file, "version", path) != MOEBIUS_VERSION)
    fail("{}: begun by another version ({}); --overwrite begins anew", path,
         printable(text_of(file, "version", path), 40));
  const Json none = Json::object();
  for (const auto& [key, now] : {std::pair("source", &source), std::pair("options", &options)}) {
    const Json* before = file.find(key);
    const std::string d = first_difference(before != nullptr ? *before : none, *now, key);
    if (!d.empty())
      fail("{}: begun with another {}: {}; --overwrite begins anew", path,
           std::string_view(key) == "source" ? "source" : "choice of options", d);
  }
  Journal journal{source, options, {}, {}, {}};
  if (const Json* made = file.find("modules"); made != nullptr) journal.modules = made->items();
  if (const Json* shards = file.find("shards"); shards != nullptr)
    for (const Json& s : shards->items()) {
      const Json* bytes = s.find("bytes");
      if (bytes == nullptr || bytes->kind() != Json::Kind::kUint)
        fail("{}: a shard has no number of bytes", path);
      journal.shards.push_back(
          {text_of(s, "name", path), text_of(s, "hash", path), bytes->as_uint()});
    }
  if (const Json* begun = file.find("begun"); begun != nullptr) {
    const Json* units = begun->find("units");
    if (units == nullptr || units->kind() != Json::Kind::kUint)
      fail("{}: no number 'units' of the file that was begun", path);
    journal.begun = {text_of(*begun, "name", path), text_of(*begun, "hash", path),
                     units->as_uint()};
  }
  return journal;
}

void write_journal(const std::string& folder, const Journal& journal) {
  write_text_file(join_path(folder, kJournalName), journal.to_json().dump(1) + "\n");
}

}  // namespace moebius
