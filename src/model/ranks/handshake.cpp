// SPDX-License-Identifier: Apache-2.0
#include "model/ranks/handshake.h"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/sha256.h"
#include "checkpoint/summary.h"
#include "model/plan/model_plan.h"
#include "model/ranks/wire.h"
#include "runtime/comm.h"
#include "runtime/cpu.h"

namespace moebius {
namespace {

constexpr uint64_t kLongestHandshake = uint64_t{256} << 20;
constexpr uint64_t kLargestJson = uint64_t{256} << 20;
constexpr uint64_t kSampleStep = uint64_t{64} << 20, kSampleBytes = uint64_t{64} << 10;

// Passes everything behind the protocol's number to a writer or reader.
template <class Way, class H>
void visit_handshake(Way& way, H& h) {
  for (auto* s : {&h.version, &h.commit, &h.build, &h.architecture, &h.cpu, &h.trouble})
    way.text(*s);
  way.list(h.options, 8, [&](auto& option) {
    way.text(option.first);
    way.text(option.second);
  });
  way.list(h.files, 16, [&](auto& file) {
    way.text(file.name);
    way.number(file.size);
    way.text(file.hash);
  });
  way.list(h.kernels, 9, [&](auto& kernel) {
    way.text(kernel.modules);
    way.text(kernel.kernel);
    way.choice(kernel.exact, true);
  });
  way.list(h.memory, 12, [&](auto& limit) {
    way.text(limit.of);
    way.number(limit.free);
  });
}

std::string shown(const std::string& text) { return text.empty() ? "none" : printable(text); }

// Returns the first difference between two ranks in a simple fact, such as "commit a, rank 0 has
// commit b".
std::string plain_difference(const Handshake& a, const Handshake& zero) {
  const auto differs = [](const char* what, const std::string& x, const std::string& y) {
    return x == y ? std::string()
                  : fmt::format("has {} {}, rank 0 has {}", what, shown(x), shown(y));
  };
  for (const std::string& d :
       {differs("version", a.version, zero.version), differs("commit", a.commit, zero.commit),
        differs("architecture", a.architecture, zero.architecture),
        differs("build", a.build, zero.build)})
    if (!d.empty()) return d;
  // A rank in trouble has not determined its options.
  const bool unknown = !a.trouble.empty() || !zero.trouble.empty();
  if (unknown || a.options == zero.options) return "";
  for (const auto& [name, value] : a.options)
    for (const auto& [other, theirs] : zero.options)
      if (name == other && value != theirs)
        return fmt::format("was given {} {}, rank 0 {}", printable(name), shown(value),
                           shown(theirs));
  return "was given other options than rank 0";
}

std::string file_difference(const Handshake& a, const Handshake& zero) {
  if (a.files == zero.files) return "";
  const auto find = [](const std::vector<FileMark>& list, const std::string& name) {
    return std::find_if(list.begin(), list.end(),
                        [&](const FileMark& f) { return f.name == name; });
  };
  for (const FileMark& f : zero.files) {
    const auto mine = find(a.files, f.name);
    if (mine == a.files.end()) return fmt::format("lacks {}, which rank 0 has", printable(f.name));
    if (mine->size != f.size)
      return fmt::format("has a {} of {} bytes, rank 0 one of {}", printable(f.name), mine->size,
                         f.size);
    if (mine->hash != f.hash)
      return fmt::format("has another {} than rank 0: its content differs", printable(f.name));
  }
  for (const FileMark& f : a.files)
    if (find(zero.files, f.name) == zero.files.end())
      return fmt::format("has {}, which rank 0 lacks", printable(f.name));
  return "has its files in another order than rank 0";
}

std::string kernel_difference(const Handshake& a, const Handshake& zero) {
  if (a.kernels.size() != zero.kernels.size()) return "has other modules than rank 0";
  for (size_t i = 0; i < a.kernels.size(); ++i) {
    const KernelMark &x = a.kernels[i], &y = zero.kernels[i];
    if (x.modules != y.modules) return "has other modules than rank 0";
    if (x.kernel == y.kernel || (x.exact && y.exact)) continue;
    return fmt::format(
        "would multiply {} with {}, rank 0 with {}, whose sums have another order: give "
        "--common-cpu",
        printable(x.modules), printable(x.kernel), printable(y.kernel));
  }
  return "";
}

// Returns the identifier that the linker stored in this program's notes.
std::string build_id() {
  std::string id;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& header = info->dlpi_phdr[i];
          if (header.p_type != PT_NOTE) continue;
          const auto* p = reinterpret_cast<const uint8_t*>(info->dlpi_addr + header.p_vaddr);
          const auto* end = p + header.p_memsz;
          while (end - p >= 12) {
            uint32_t word[3];  // length of the name, length of the content, kind
            std::memcpy(word, p, sizeof word);
            const size_t name = (word[0] + 3u) & ~3u, content = (word[1] + 3u) & ~3u;
            if (static_cast<size_t>(end - p) - 12 < name + content) break;
            if (word[2] == NT_GNU_BUILD_ID && word[0] == 4)
              for (size_t b = 0; b < word[1]; ++b)
                *static_cast<std::string*>(out) += fmt::format("{:02x}", p[12 + name + b]);
            p += 12 + name + content;
          }
        }
        return 1;  // the program is the first object
      },
      &id);
  return id.substr(0, 16);
}

std::string features_of(const Cpu& cpu) {
  if (cpu.arch == Arch::kOther || cpu.features == 0) return "";
  std::string list = describe(cpu);  // such as "aarch64: neon dotprod"
  list.erase(0, list.find(": ") + 2);
  std::replace(list.begin(), list.end(), ' ', ',');
  return list;
}

const char* architecture_name() {
  return kHostArch == Arch::kAarch64 ? "aarch64" : kHostArch == Arch::kX86_64 ? "x86-64" : "other";
}

void add_range(Sha256& hash, const ReadFile& file, uint64_t from, uint64_t to) {
  std::vector<uint8_t> buffer(std::min<uint64_t>(to - from, uint64_t{1} << 20));
  while (from < to) {
    const std::span<uint8_t> part(buffer.data(), std::min<uint64_t>(buffer.size(), to - from));
    file.read_at(from, part);
    hash.add(part);
    from += part.size();
  }
}

FileMark mark_file(const std::string& name, const std::string& path, bool header_only,
                   FolderCheck check) {
  const ReadFile file(path);
  Sha256 hash;
  if (!header_only) {
    if (file.size() > kLargestJson) fail("{}: has {} bytes, too many", path, file.size());
    add_range(hash, file, 0, file.size());
    return {name, file.size(), hash.hex()};
  }
  std::array<uint8_t, 8> length{};
  file.read_at(0, length);
  uint64_t header = 0;
  for (size_t i = 0; i < 8; ++i) header |= uint64_t{length[i]} << (8 * i);
  const uint64_t begin = 8 + std::min(header, file.size() - 8);
  add_range(hash, file, 0, begin);
  if (check == FolderCheck::kDeep) add_range(hash, file, begin, file.size());
  if (check == FolderCheck::kSample)
    for (uint64_t at = begin; at < file.size(); at += kSampleStep)
      add_range(hash, file, at, std::min(file.size(), at + kSampleBytes));
  return {name, file.size(), hash.hex()};
}

}  // namespace

std::vector<uint8_t> encode(const Handshake& h) {
  WireWriter w;
  w.number(h.protocol);
  visit_handshake(w, h);
  return std::move(w.bytes);
}

Handshake decode_handshake(std::span<const uint8_t> bytes) {
  WireReader r(bytes, "a handshake");
  Handshake h;
  r.number(h.protocol);
  if (h.protocol != kRankProtocol) return h;
  visit_handshake(r, h);
  r.end();
  return h;
}

std::string refusal_of(std::span<const Handshake> ranks,
                       const std::function<std::string(size_t)>& host) {
  const auto say = [&](size_t rank, const std::string& what) {
    return fmt::format("rank {} ({}) {}", rank, host(rank), what);
  };
  for (size_t r = 0; r < ranks.size(); ++r)
    if (ranks[r].protocol != ranks[0].protocol)
      return say(
          r, fmt::format("speaks protocol {}, rank 0 {}", ranks[r].protocol, ranks[0].protocol));
  // A difference may be the cause of trouble, so differences are reported first.
  for (const auto& difference : {plain_difference, file_difference, kernel_difference}) {
    for (size_t r = 1; r < ranks.size(); ++r) {
      if (!ranks[r].trouble.empty() && difference != plain_difference) continue;
      if (!ranks[0].trouble.empty() && difference != plain_difference) continue;
      if (const std::string d = difference(ranks[r], ranks[0]); !d.empty()) return say(r, d);
    }
    for (size_t r = 0; r < ranks.size(); ++r)
      if (!ranks[r].trouble.empty())
        return r == 0 ? ranks[r].trouble : say(r, "cannot go on: " + ranks[r].trouble);
  }
  return "";
}

std::string common_cpu(std::span<const Handshake> ranks) {
  const auto features = [](const std::string& list) {
    std::vector<std::string> out;
    for (size_t at = 0; at < list.size();) {
      const size_t end = std::min(list.find(',', at), list.size());
      out.push_back(list.substr(at, end - at));
      at = end + 1;
    }
    return out;
  };
  std::vector<std::string> common = features(ranks[0].cpu);
  for (const Handshake& h : ranks) {
    const std::vector<std::string> theirs = features(h.cpu);
    std::erase_if(common, [&](const std::string& f) {
      return std::find(theirs.begin(), theirs.end(), f) == theirs.end();
    });
  }
  return common.empty() ? "reference" : fmt::format("{}", fmt::join(common, ","));
}

std::vector<Handshake> exchange_handshakes(Comm& comm, const Handshake& mine) {
  const std::vector<uint8_t> bytes = encode(mine);
  const auto ranks = static_cast<size_t>(comm.size());
  const uint64_t length = bytes.size();
  std::vector<uint64_t> lengths(ranks);
  comm.wait(
      comm.start_all_gather(&length, lengths.data(), std::vector<size_t>(ranks, sizeof length)),
      "handshake");
  uint64_t total = 0;
  for (const uint64_t n : lengths) {
    if (n > kLongestHandshake) fail("a handshake of {} bytes", n);
    total += n;
  }
  std::vector<uint8_t> all(total);
  comm.wait(comm.start_all_gather(bytes.data(), all.data(),
                                  std::vector<size_t>(lengths.begin(), lengths.end())),
            "handshake");
  std::vector<Handshake> out;
  std::span<const uint8_t> left = all;
  for (const uint64_t n : lengths) {
    out.push_back(decode_handshake(left.first(n)));
    left = left.subspan(n);
  }
  return out;
}

FolderCheck folder_check_from(const std::string& name) {
  if (name == "headers") return FolderCheck::kHeaders;
  if (name == "sample") return FolderCheck::kSample;
  if (name == "deep") return FolderCheck::kDeep;
  fail("--check {}; expected headers, sample or deep", printable(name));
}

Handshake handshake_of_process(const std::string& version, const std::string& commit) {
  Handshake h;
  h.version = version;
  h.commit = commit;
  h.build = build_id();
  h.architecture = architecture_name();
  h.cpu = features_of(host_cpu());
  h.memory = memory_limits();
  return h;
}

std::vector<FileMark> mark_folder(const Checkpoint& checkpoint, FolderCheck check) {
  std::set<std::string> opened;
  for (const SafetensorsFile& f : checkpoint.store().files()) opened.insert(f.path());
  std::vector<FileMark> marks;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint.folder(), none)) {
    const std::string name = entry.path().filename().string();
    const std::string path = join_path(checkpoint.folder(), name);
    const bool tensors = name.ends_with(".safetensors");
    if (!tensors && !name.ends_with(".json")) continue;
    if (!std::filesystem::is_regular_file(entry.path(), none)) continue;
    if (tensors && opened.count(path) == 0 &&
        opened.count(std::filesystem::weakly_canonical(path, none).string()) == 0)
      continue;
    marks.push_back(mark_file(name, path, tensors, check));
  }
  std::sort(marks.begin(), marks.end(),
            [](const FileMark& a, const FileMark& b) { return a.name < b.name; });
  return marks;
}

std::vector<KernelMark> mark_kernels(const Checkpoint& checkpoint, const Wish& wish) {
  const auto device = make_device("cpu", nullptr, host_cpu(), planning_options(wish));
  ModulePlanner planner(checkpoint, *device, wish.act, wish.type);
  std::vector<KernelMark> marks;
  const auto mark = [&](const std::string& name, const Choice& choice) {
    marks.push_back({name, title_of(*choice.chosen), choice.numerics == Numerics::kExact});
    return choice.chosen;
  };
  for (const ModuleGroup& group : group_modules(checkpoint)) {
    const Module& m = *group.sample;
    if (!m.supported || m.tower || !has_matrix(m)) continue;
    if (m.kind == ModuleKind::kEmbedding && &m != checkpoint.output_module()) continue;
    if (const auto use = planner.use(m); use->choice) mark(group.name, *use->choice);
  }
  constexpr size_t kHead = 128;
  const KvLayout attention(
      1, kHead, kHead, {.type = wish.kv_type.value_or(kv_type_of(wish.type))}, wish.type,
      [&](const Problem& p) { return mark("attention", *device->plan({.problem = p}).choice); });
  return marks;
}

}  // namespace moebius
