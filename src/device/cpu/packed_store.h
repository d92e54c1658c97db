// SPDX-License-Identifier: Apache-2.0
// Packed weights from start to start (--pack-dir). The first start packs and writes a file
// (pack_file.h); every later one maps it, so that weights are neither read from the checkpoint nor
// packed, and processes share them. The loader asks for the bytes of a layer by a key that names its
// modules, their cut, kernels and problems; what is not there is packed as ever.
//
// A file is found by the model's name and a hash of its headers, the CPU and the options; it is used
// when its fingerprint (the same, with the program's version, and sizes, times and samples of the
// checkpoint's files) is the one expected. It is written beside its place, made durable, then renamed:
// a process that is killed leaves nothing that is read.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "device/cpu/layer_plan.h"
#include "device/cpu/pack_file.h"
#include "runtime/mapped_file.h"

namespace moebius {

struct PackRequest {
  std::string folder;    // that files lie in; made where it is missing
  std::string made_for;  // what packed bytes depend on beside checkpoint and CPU
  uint64_t bytes = 0;    // that packed weights will take, about
  uint64_t memory = 0;   // free for them; 0: not known
  Cpu cpu = host_cpu();
  ThreadPool* pool = nullptr;
  std::function<void(const std::string&line)> note, warn;
};

// Where a file lies and what it has to say of itself.
struct PackPlace {
  std::string model, path, fingerprint;
};
PackPlace pack_place(const Checkpoint& checkpoint, const PackRequest& request);

class PackedStore {
 public:
  // Null where weights have to be packed into memory, which `warn` is told. Throws Error where the folder
  // cannot be one.
  static std::shared_ptr<PackedStore> open(const Checkpoint& checkpoint, PackRequest request);
  ~PackedStore();
  PackedStore(const PackedStore&) = delete;
  PackedStore& operator=(const PackedStore&) = delete;

  const std::string& path() const { return path_; }
  bool writes() const { return writes_; }
  uint64_t bytes() const;  // of the file, or what of it is written

  // --- while layers are loaded, by one thread ---

  std::optional<PackedBlock> find(const std::string& key);
  // What find() gave does not fit the layer: the file is made anew at the next start.
  void refuse(const std::string& key, const std::string& why);
  // Bytes of a layer that was packed; where they lie in the file, or nothing: they stay where they are.
  std::optional<PackedBlock> keep(const std::string& key, std::span<const uint8_t> bytes,
                                  std::vector<SlotFacts> slots);
  // Everything is loaded: the file gets its name.
  void finish();

  // --- while steps run ---

  // What a step compares with at its end; pages that could not be read are tried again.
  uint64_t begin_step();
  void end_step(uint64_t began) const;  // throws Error where one could not be read meanwhile

 private:
  class Lock;
  PackedStore(std::string path, PackRequest request);
  bool open_file(const std::string& fingerprint, std::string& why);
  void begin_file(const std::string& fingerprint, std::string about);
  void give_up(const std::string& why);
  PackedBlock block_at(const PackEntry& entry) const;

  std::string path_;
  PackRequest request_;
  std::shared_ptr<MappedFile> file_;
  PackIndex index_;
  std::string fingerprint_;
  std::unique_ptr<Lock> lock_;  // of who writes
  uint64_t end_ = 0;            // of what is written
  bool writes_ = false, read_ahead_ = false;
  size_t missing_ = 0;
};

// "name#digest of what"
std::string packed_key(std::string_view name, std::string_view what);
std::string packed_key(std::span<const ModulePlan> plans, std::string_view what);

// What a file says of itself. Every byte is read: throws Error at the first that is damaged.
struct PackFacts {
  std::string about;
  uint64_t bytes = 0, blocks = 0;
};
PackFacts check_pack_file(const std::string& path, ThreadPool* pool);
inline constexpr std::string_view kPackSuffix = ".packed";

}  // namespace moebius
