// SPDX-License-Identifier: Apache-2.0
#include "device/packed_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>

#include "base/checked.h"
#include "base/checksum.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "base/file.h"
#include "base/human.h"
#include "base/sha256.h"
#include "checkpoint/folder_write.h"
#include "runtime/parallel.h"

namespace moebius {
namespace {

constexpr uint64_t kMaxPackIndex = uint64_t{1} << 32;
constexpr size_t kSamples = 16, kSampleBytes = 4096;

std::string sha_of(std::string_view text) {
  Sha256 sha;
  sha.add({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  return sha.hex();
}

void write_at(int fd, uint64_t offset, std::span<const uint8_t> bytes, const std::string& path) {
  if (const int code = write_all_at(fd, offset, bytes); code != 0)
    fail("{}: cannot write: {}", printable(path), errno_text(code));
}

std::span<const uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Returns names, types, shapes and places of all tensors as text.
std::string headers_of(const TensorStore& store) {
  std::string text;
  for (const TensorInfo& t : store.tensors())
    text += fmt::format("{} {} {} {} {}\n", t.name, describe(t), t.file, t.offset, t.bytes);
  return sha_of(text);
}

// Returns text that tells apart files with equal shapes and other weights: size, time and some
// bytes of each file.
std::string source_of(const TensorStore& store) {
  std::string text;
  std::vector<uint8_t> sample(kSampleBytes);
  for (const SafetensorsFile& f : store.files()) {
    struct stat st {};
    if (::stat(f.path().c_str(), &st) != 0)
      fail("{}: cannot ask for its size: {}", printable(f.path()), errno_text(errno));
    const ReadFile file(f.path());
    Checksum hash;
    for (size_t i = 0; i < kSamples; ++i) {
      const uint64_t size = std::min<uint64_t>(kSampleBytes, file.size());
      const uint64_t at = (file.size() - size) / (kSamples - 1) * i;
      file.read_at(at, {sample.data(), size});
      hash.add({sample.data(), size});
    }
    text += fmt::format("{} {} {}.{:09} {}\n", base_name(f.path()), file.size(), st.st_mtim.tv_sec,
                        st.st_mtim.tv_nsec, hash.hex());
  }
  return text;
}

// Returns the line that marks a packed file as known to be good: it was read from end to end once,
// and nobody wrote to it since.
std::string identity_of(const struct stat& st) {
  return fmt::format("known good: inode {} bytes {} written {}.{:09} changed {}.{:09}\n", st.st_ino,
                     st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec, st.st_ctim.tv_sec,
                     st.st_ctim.tv_nsec);
}

// Thrown when a packed file cannot be used here although it may be good.
class PackTrouble : public Error {
 public:
  using Error::Error;
};

struct OpenedPack {
  std::shared_ptr<MappedFile> file;
  PackHeader header;
  PackIndex index;
  struct stat st {};
};

// Opens a packed file and reads its header and index. Returns nothing when there is no such file;
// throws Error.
std::optional<OpenedPack> open_pack(const std::string& path) {
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd.open() && errno == ENOENT) return std::nullopt;
  if (!fd.open())
    throw PackTrouble(fmt::format("{}: {}", printable(path), open_failure(path, errno)));
  OpenedPack pack;
  if (::fstat(fd.get(), &pack.st) != 0 || !S_ISREG(pack.st.st_mode))
    fail("{}: is no regular file", printable(path));
  // A process that cleans up sees that the file is in use.
  (void)::flock(fd.get(), LOCK_SH | LOCK_NB);
  const ReadFile file(path);
  std::vector<uint8_t> header(std::min<uint64_t>(file.size(), kPackHeaderBytes));
  file.read_at(0, header);
  pack.header = parse_pack_header(header, file.size(), path);
  if (pack.header.index_bytes > kMaxPackIndex)
    fail("{}: an index of {} bytes", printable(path), pack.header.index_bytes);
  std::vector<uint8_t> index(pack.header.index_bytes);
  file.read_at(pack.header.index_offset, index);
  if (checksum(index) != pack.header.index_checksum)
    fail("{}: its index is damaged", printable(path));
  pack.index = parse_pack_index(index, pack.header.index_offset, path);
  if (static_cast<uint64_t>(pack.st.st_size) != file.size())
    fail("{}: changed while it was opened", printable(path));
  try {
    pack.file = std::make_shared<MappedFile>(fd.release(), path, file.size());
  } catch (const Error& e) {
    throw PackTrouble(e.what());
  }
  return pack;
}

// Checks the checksums of all blocks, with all threads.
void check_blocks(const OpenedPack& pack, ThreadPool* pool) {
  struct Piece {
    const std::string* key;
    uint64_t offset, bytes, checksum;
  };
  std::vector<Piece> pieces;
  for (const auto& [key, e] : pack.index.entries)
    for (size_t i = 0; i < e.checksums.size(); ++i)
      pieces.push_back({&key, e.offset + e.begin_of(i), e.ends[i] - e.begin_of(i), e.checksums[i]});
  std::atomic<size_t> bad{SIZE_MAX};
  const auto check = [&](size_t i) {
    const Piece& p = pieces[i];
    if (bad.load(std::memory_order_relaxed) != SIZE_MAX) return;
    if (checksum({pack.file->data() + p.offset, p.bytes}) != p.checksum) bad = i;
  };
  parallel_for(pool, pieces.size(), check);
  const std::string& path = pack.file->path();
  if (pack.file->faults() > 0) fail("{}: cannot be read to its end", printable(path));
  if (bad != SIZE_MAX)
    fail("{}: {} is damaged, in the {} bytes at {}", printable(path), printable(*pieces[bad].key),
         pieces[bad].bytes, pieces[bad].offset);
}

std::string describe_problem(const Problem& p) {
  const ActSpec& a = p.act;
  return fmt::format(
      "{}x{} code {}/{}/{} scales {} {} {}x{} super {}+{} zero {} offsets {} order {} ragged {} x "
      "{} act {}/{}/{} {} {} {} {} {}",
      p.N, p.K, int(p.code), p.bits, int(p.lut), int(p.scale_type), p.groups, p.block_n, p.block_k,
      p.super_groups, p.super_phase, p.zero_points, p.offsets, p.act_order, p.ragged, int(p.x_type),
      int(a.code), a.bits, a.symmetric, int(a.granule), a.group, int(a.scale), int(a.mode),
      a.bound);
}

}  // namespace

// Locks the file beside a packed one: processes that would write the packed file take turns by it,
// and it holds the line that says which file is known to be good.
class PackedStore::Lock {
 public:
  explicit Lock(const std::string& path)
      : file_(::open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {}
  bool possible() const { return file_.open(); }
  bool take(bool wait) {
    int code = 0;
    do {
      code = ::flock(file_.get(), wait ? LOCK_EX : LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    } while (code == EINTR);
    return code != EWOULDBLOCK;  // a file system without locks: every writer has a file of its own
  }
  void record(const std::string& line) const {
    if (::ftruncate(file_.get(), 0) == 0) (void)!::pwrite(file_.get(), line.data(), line.size(), 0);
  }
  static bool records(const std::string& path, const std::string& line) {
    try {
      return read_text_file(path + ".lock", 4096) == line;
    } catch (const Error&) {
      return false;
    }
  }

 private:
  Descriptor file_;
};

std::string packed_key(std::string_view name, std::string_view what) {
  return fmt::format("{}#{}", name, sha_of(what).substr(0, 32));
}

std::string packed_key(std::span<const ModulePlan> plans, std::string_view what) {
  std::string text(what);
  std::string_view name = "none";
  for (const ModulePlan& p : plans) {
    if (p.module == nullptr) continue;
    if (name == "none") name = p.module->name;
    const ProjectionPlan& projection = p.projection;
    text += fmt::format("\n{} {} {} {} {} {}/{} {} {}", p.module->name, int(p.cut), p.begin, p.end,
                        p.with_bias, projection.kernel->name, projection.kernel->codec,
                        describe_problem(projection.problem), projection.shared_amax.has_value());
  }
  return packed_key(name, text);
}

PackedStore::PackedStore(std::string path, PackRequest request)
    : path_(std::move(path)), request_(std::move(request)) {}

PackedStore::~PackedStore() {
  try {
    if (writes_) ::unlink((path_ + ".tmp").c_str());
  } catch (const std::bad_alloc&) {  // the next start overwrites the broken file
  }
}

PackTarget pack_target(const Checkpoint& checkpoint, const PackRequest& request) {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto canonical = fs::canonical(checkpoint.folder(), error);
  PackTarget place;
  place.model = error ? std::string(base_name(checkpoint.folder())) : canonical.filename().string();
  const TensorStore& store = checkpoint.store();
  const std::string kind =
      fmt::format("{}\n{}\n{}", describe(request.cpu), request.made_for, headers_of(store));
  place.path = join_path(
      request.folder, fmt::format("{}-{}{}", place.model, sha_of(kind).substr(0, 16), kPackSuffix));
  place.fingerprint = sha_of(fmt::format("{}\n{}\n{}", MOEBIUS_VERSION, kind, source_of(store)));
  return place;
}

std::shared_ptr<PackedStore> PackedStore::open(const Checkpoint& checkpoint, PackRequest request) {
  std::error_code error;
  std::filesystem::create_directories(request.folder, error);
  if (std::error_code unseen; !std::filesystem::is_directory(request.folder, unseen))
    fail("--pack-dir {}: {}", printable(request.folder), error ? error.message() : "is no folder");
  const auto [model, path, fingerprint] = pack_target(checkpoint, request);
  std::shared_ptr<PackedStore> packed(new PackedStore(path, std::move(request)));
  const PackRequest& r = packed->request_;
  const auto unpacked = [&](const std::string& reason) -> std::shared_ptr<PackedStore> {
    r.warn(fmt::format("{}; weights are packed into memory", reason));
    return nullptr;
  };
  std::string why;
  try {
    if (packed->open_file(fingerprint, why)) return packed;
  } catch (const PackTrouble& e) {
    return unpacked(e.what());
  }
  if (!why.empty()) r.warn(fmt::format("{}; it is made anew", why));
  auto lock = std::make_unique<Lock>(path);
  if (!lock->possible())
    return unpacked(fmt::format("{}.lock: cannot be made: {}", printable(path), errno_text(errno)));
  if (!lock->take(false)) {
    r.note(fmt::format("another process packs {}; waiting for it", printable(path)));
    lock->take(true);
  }
  try {
    if (packed->open_file(fingerprint, why)) return packed;  // another process made it meanwhile
    // The old file is of no use any more; a process that mapped it keeps it.
    ::unlink(path.c_str());
    const uint64_t needed = r.bytes + r.bytes / 32 + (uint64_t{1} << 20),
                   free = free_bytes(r.folder);
    if (needed > free)
      return unpacked(fmt::format("{}: packed weights need {}, and the disk has {} free",
                                  printable(r.folder), human_bytes(needed), human_bytes(free)));
    r.note(fmt::format("packing {} into {}: it needs {}, and the disk has {} free",
                       printable(model), printable(path), human_bytes(needed), human_bytes(free)));
    packed->lock_ = std::move(lock);
    std::error_code unknown;
    const auto folder = std::filesystem::canonical(checkpoint.folder(), unknown);
    packed->begin_file(fingerprint,
                       fmt::format("{} packed by moebius {} for {}; {}; checkpoint {}", model,
                                   MOEBIUS_VERSION, describe(r.cpu), r.made_for, folder.string()));
  } catch (const Error& e) {
    return unpacked(e.what());
  }
  return packed;
}

// Opens the packed file. Returns false when there is none (`why` is empty) or it cannot be used
// (`why` says why).
bool PackedStore::open_file(const std::string& fingerprint, std::string& why) {
  why.clear();
  try {
    std::optional<OpenedPack> pack = open_pack(path_);
    if (!pack) return false;
    if (pack->header.fingerprint != fingerprint) {
      why = fmt::format("{}: was made from other files or by another version", printable(path_));
      return false;
    }
    const std::string identity = identity_of(pack->st);
    if (!Lock::records(path_, identity)) {
      request_.note(fmt::format("checking {} ({}) from end to end, once", printable(path_),
                                human_bytes(pack->header.file_bytes)));
      check_blocks(*pack, request_.pool);
      if (Lock lock(path_); lock.possible() && lock.take(false)) lock.record(identity);
    }
    file_ = std::move(pack->file);
    index_ = std::move(pack->index);
  } catch (const PackTrouble&) {
    throw;
  } catch (const Error& e) {
    why = e.what();
    return false;
  }
  read_ahead_ = request_.memory != 0 && file_->size() > request_.memory;
  request_.note(
      fmt::format("packed weights: {} of {}{}", human_bytes(file_->size()), printable(path_),
                  read_ahead_ ? ", more than memory has room for: read as they are needed" : ""));
  return true;
}

void PackedStore::begin_file(const std::string& fingerprint, std::string about) {
  const std::string temporary = path_ + ".tmp";
  Descriptor fd(
      ::open(temporary.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!fd.open()) fail("{}: cannot create: {}", printable(temporary), errno_text(errno));
  (void)::flock(fd.get(), LOCK_SH | LOCK_NB);
  // Reserves more addresses than planned, which costs nothing; a model may take more than was
  // foreseen.
  const uint64_t room = 2 * request_.bytes + (uint64_t{1} << 30);
  try {
    file_ = std::make_shared<MappedFile>(fd.release(), path_, room);
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
  fingerprint_ = fingerprint;
  index_.about = std::move(about);
  read_ahead_ = request_.memory != 0 && request_.bytes > request_.memory;
  end_ = kPackHeaderBytes;
  writes_ = true;
}

uint64_t PackedStore::bytes() const { return writes_ || end_ > 0 ? end_ : file_->size(); }

PackedBlock PackedStore::block_at(const PackEntry& e) const {
  return {WeightMemory(file_, {file_->data() + e.offset, e.bytes}), e.slots, read_ahead_};
}

std::optional<PackedBlock> PackedStore::find(const std::string& key) {
  const auto at = index_.entries.find(key);
  if (at != index_.entries.end()) return block_at(at->second);
  if (!writes_) ++missing_;
  return std::nullopt;
}

void PackedStore::refuse(const std::string& key, const std::string& why) {
  request_.warn(fmt::format("{}: {}: {}", printable(path_), printable(key), why));
  ++missing_;
}

std::optional<PackedBlock> PackedStore::keep(const std::string& key, std::span<const uint8_t> bytes,
                                             std::vector<SlotFacts> slots,
                                             std::vector<uint64_t> ends) {
  if (!writes_) return std::nullopt;
  PackEntry e;
  e.offset = pack_block_offset(end_, bytes.size());
  e.bytes = bytes.size();
  e.ends = ends.empty() ? usual_pieces(bytes.size()) : std::move(ends);
  e.checksums.resize(e.ends.size());
  e.slots = std::move(slots);
  try {
    if (e.offset + e.bytes > file_->size())
      fail("{}: takes more than was foreseen", printable(path_));
    const auto write_piece = [&](size_t i) {
      const auto piece = bytes.subspan(e.begin_of(i), e.ends[i] - e.begin_of(i));
      e.checksums[i] = checksum(piece);
      write_at(file_->descriptor(), e.offset + e.begin_of(i), piece, path_);
    };
    parallel_for(request_.pool, e.checksums.size(), write_piece);
  } catch (const Error& error) {
    give_up(error.what());
    return std::nullopt;
  }
#if defined(SYNC_FILE_RANGE_WRITE)  // starts the write early, so that little is left at the end
  (void)::sync_file_range(file_->descriptor(), static_cast<off_t>(e.offset),
                          static_cast<off_t>(e.bytes), SYNC_FILE_RANGE_WRITE);
#endif
  end_ = e.offset + e.bytes;
  return block_at(index_.entries.insert_or_assign(key, std::move(e)).first->second);
}

ExpertStore::Source PackedStore::reader(const std::string& key) {
  if (direct_ == nullptr) {
    direct_ = std::make_shared<DirectFile>(file_->descriptor(), path_);
    if (!direct_->direct())
      request_.note(fmt::format("{}: its file system has no direct reads", printable(path_)));
  }
  struct Pieces {
    std::shared_ptr<const DirectFile> file;
    std::string path, key;
    PackEntry entry;
    std::vector<std::atomic<bool>> checked;
    uint64_t bytes_of(size_t i) const { return entry.ends[i] - entry.begin_of(i); }
  };
  const PackEntry& e = index_.entries.find(key)->second;
  auto pieces = std::make_shared<Pieces>(
      Pieces{direct_, path_, key, e, std::vector<std::atomic<bool>>(e.ends.size())});
  constexpr uint64_t kPart = uint64_t{512} << 10, kMostParts = 8;
  ExpertStore::Source source;
  source.parts = std::clamp<uint64_t>(e.ends[0] / kPart, 1, kMostParts);
  source.read = [pieces, parts = source.parts](size_t i, size_t part, uint8_t* to) {
    const uint64_t bytes = pieces->bytes_of(i),
                   each = round_up(ceil_div(bytes, parts), DirectFile::kAlignment),
                   begin = std::min(bytes, part * each), end = std::min(bytes, begin + each),
                   whole = round_up(end - begin, DirectFile::kAlignment);
    pieces->file->read(pieces->entry.offset + pieces->entry.begin_of(i) + begin,
                       {to + begin, whole}, whole - (end - begin));
  };
  source.check = [pieces](size_t i, const uint8_t* at) {
    if (pieces->checked[i].load(std::memory_order_relaxed)) return;
    if (checksum({at, pieces->bytes_of(i)}) != pieces->entry.checksums[i])
      fail("{}: {} is damaged, in the {} bytes at {}", printable(pieces->path),
           printable(pieces->key), pieces->bytes_of(i),
           pieces->entry.offset + pieces->entry.begin_of(i));
    pieces->checked[i].store(true, std::memory_order_relaxed);
  };
  return source;
}

// Deletes the unfinished file and warns. Blocks of it that are mapped stay usable until the process
// ends.
void PackedStore::give_up(const std::string& why) {
  writes_ = false;
  ::unlink((path_ + ".tmp").c_str());
  lock_ = nullptr;
  request_.warn(fmt::format("{}; the next start packs again", why));
}

void PackedStore::finish() {
  if (file_->faults() > 0) fail("{}: cannot be read", printable(path_));
  if (!writes_ && missing_ > 0) {
    request_.warn(fmt::format("{}: {} not in it; the next start makes it anew", printable(path_),
                              missing_ == 1 ? "a layer is" : "layers are"));
    ::unlink(path_.c_str());
  }
  if (!writes_) return;
  const int fd = file_->descriptor();
  try {
    const std::string index = pack_index(index_);
    PackHeader header;
    header.index_offset = round_up(end_, kCacheLine);
    header.index_bytes = index.size();
    header.file_bytes = header.index_offset + index.size();
    header.index_checksum = checksum(bytes_of(index));
    header.fingerprint = fingerprint_;
    write_at(fd, header.index_offset, bytes_of(index), path_);
    write_at(fd, 0, bytes_of(pack_header(header)), path_);
    if (::fsync(fd) != 0) fail("{}: cannot write: {}", printable(path_), errno_text(errno));
    rename_path(path_ + ".tmp", path_);
    sync_folder(request_.folder);
    end_ = header.file_bytes;
  } catch (const Error& e) {
    give_up(e.what());
    return;
  }
  writes_ = false;
  struct stat st {};
  if (::fstat(fd, &st) == 0) lock_->record(identity_of(st));
  lock_ = nullptr;
  request_.note(fmt::format("packed weights: {} in {}", human_bytes(end_), printable(path_)));
}

uint64_t PackedStore::begin_step() {
  file_->retry();
  return file_->faults();
}

void PackedStore::end_step(uint64_t began) const {
  if (file_->faults() != began)
    fail("{}: packed weights could not be read; was the file cut, or has the disk failed?",
         printable(path_));
}

PackFacts check_pack_file(const std::string& path, ThreadPool* pool) {
  const std::optional<OpenedPack> pack = open_pack(path);
  if (!pack) fail("{}: {}", printable(path), errno_text(ENOENT));
  check_blocks(*pack, pool);
  return {pack->index.about, pack->header.file_bytes, pack->index.entries.size()};
}

}  // namespace moebius
