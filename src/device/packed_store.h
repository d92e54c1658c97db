// SPDX-License-Identifier: Apache-2.0
// A file of packed weights that is kept between starts of the program (--pack-dir). The first start
// packs and writes the file (pack_file.h); later starts map it, so that weights are neither read
// from the checkpoint nor packed, and processes share them. The loader asks for a layer's bytes by
// a key made of its modules, their cut, kernels and problems; layers that the file does not have
// are packed into memory.
//
// The name of the file consists of the model's name and a hash of its headers, the CPU and the
// options. It is used only if its fingerprint matches (the hash, the program's version, and sizes,
// times and samples of the checkpoint's files). It is written under a temporary name, made durable,
// then renamed, so that a killed process leaves no file that is read.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "device/cpu/layer_plan.h"
#include "device/cpu/pack_file.h"
#include "runtime/direct_file.h"
#include "runtime/mapped_file.h"

namespace moebius {

struct PackRequest {
  std::string folder;    // folder of the files; created if missing
  std::string made_for;  // text of the options on which packed bytes depend
  uint64_t bytes = 0;    // approximate size of the packed weights
  uint64_t memory = 0;   // free memory; 0: unknown
  Cpu cpu = host_cpu();
  ThreadPool* pool = nullptr;
  std::function<void(const std::string&line)> note, warn;
};

// The path of a file, and the fingerprint that it must have to be used.
struct PackTarget {
  std::string model, path, fingerprint;
};
PackTarget pack_target(const Checkpoint& checkpoint, const PackRequest& request);

class PackedStore {
 public:
  // Opens the file, or begins a new one. Returns null after calling `warn` if weights have to be
  // packed into memory instead. Throws Error if the folder cannot be used.
  static std::shared_ptr<PackedStore> open(const Checkpoint& checkpoint, PackRequest request);
  ~PackedStore();
  PackedStore(const PackedStore&) = delete;
  PackedStore& operator=(const PackedStore&) = delete;

  const std::string& path() const { return path_; }
  bool writes() const { return writes_; }
  uint64_t bytes() const;  // size of the file, or of what is written so far

  // --- while layers are loaded, from one thread ---

  std::optional<PackedBlock> find(const std::string& key);
  // Reports that the result of find() does not fit its layer, so that the next start writes the
  // file anew.
  void refuse(const std::string& key, const std::string& why);
  // Writes a layer's packed bytes to the file. Returns them as mapped from the file, or nothing if
  // they stay in memory because the file is only read or cannot be written.
  // ends: where pieces end that are read alone later; empty: there are none.
  std::optional<PackedBlock> keep(const std::string& key, std::span<const uint8_t> bytes,
                                  std::vector<SlotFacts> slots, std::vector<uint64_t> ends = {});
  // Returns what reads the pieces of a layer that the file has, past the page cache, and compares a
  // piece's checksum the first time. It may be used after the store's end.
  ExpertStore::Source reader(const std::string& key);
  // Completes the file and renames it to its final name. Call it when everything is loaded.
  void finish();

  // --- while steps run ---

  // Returns a value for end_step(). Pages of the file that could not be read before are tried
  // again.
  uint64_t begin_step();
  // Throws Error if a page of the file could not be read since the begin_step() that returned
  // `began`.
  void end_step(uint64_t began) const;

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
  std::shared_ptr<const DirectFile> direct_;  // the same file, for reader(); null until used
  PackIndex index_;
  std::string fingerprint_;
  // Held while this process writes the file; other processes wait for it.
  std::unique_ptr<Lock> lock_;
  uint64_t end_ = 0;  // offset at which the next block may begin
  bool writes_ = false, read_ahead_ = false;
  size_t missing_ = 0;
};

// Return "name#digest of what", the key of a layer.
std::string packed_key(std::string_view name, std::string_view what);
std::string packed_key(std::span<const ModulePlan> plans, std::string_view what);

// Reads every byte of a file and returns facts about it. Throws Error at the first damage.
struct PackFacts {
  std::string about;
  uint64_t bytes = 0, blocks = 0;
};
PackFacts check_pack_file(const std::string& path, ThreadPool* pool);
inline constexpr std::string_view kPackSuffix = ".packed";

}  // namespace moebius
