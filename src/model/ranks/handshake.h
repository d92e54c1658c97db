// SPDX-License-Identifier: Apache-2.0
// Lets ranks compare program, machine, folder, options and kernels before anything large is read,
// so that ranks which could not compute the same bytes stop with a message. Every rank sees what
// all ranks sent and comes to the same verdict, by a pure function.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/plan/wish.h"
#include "runtime/memory_limits.h"

namespace moebius {

class Comm;

// Version of the messages between ranks. Increase it whenever ranks of two builds can no longer
// understand each other.
inline constexpr uint32_t kRankProtocol = 2;

struct FileMark {
  std::string name;
  uint64_t size = 0;
  std::string hash;  // hash of a whole JSON file, or of a safetensors file's header (and samples)
  bool operator==(const FileMark&) const = default;
};

struct KernelMark {
  std::string modules;  // such as "model.layers.*.mlp.experts.*.gate_proj"
  std::string kernel;   // such as "arm_i8mm/int4"
  bool exact = false;
  bool operator==(const KernelMark&) const = default;
};

struct Handshake {
  uint32_t protocol = kRankProtocol;
  std::string version, commit;
  std::string build;         // hash of the program file; empty if it cannot be read
  std::string architecture;  // such as "aarch64"
  std::string cpu;           // CPU features that kernels use: "neon,dotprod"
  std::vector<std::pair<std::string, std::string>> options;  // options that affect results
  std::vector<FileMark> files;                               // sorted by name
  std::vector<KernelMark> kernels;
  std::vector<MemoryLimit> memory;  // limits of this process
  std::string trouble;              // why this rank cannot go on; other fields may then be empty
  bool operator==(const Handshake&) const = default;
};

std::vector<uint8_t> encode(const Handshake& handshake);
// Parses the bytes of a handshake; of another protocol version only that number. Throws Error for
// bytes that are no handshake.
Handshake decode_handshake(std::span<const uint8_t> bytes);

// Returns why these ranks cannot run together, in one sentence that names the first rank that
// differs from rank 0; empty when they can. host(rank): its host's name for the sentence.
std::string refusal_of(std::span<const Handshake> ranks,
                       const std::function<std::string(size_t)>& host);

// Returns the CPU features that all ranks have, in the form that narrow_host_cpu takes.
std::string common_cpu(std::span<const Handshake> ranks);

// Returns what every rank sent, in the order of ranks. All ranks must call it, and wait for each
// other.
std::vector<Handshake> exchange_handshakes(Comm& comm, const Handshake& mine);

// Selects how much of the weights is compared: only headers, 64 KiB of every 64 MiB, or everything.
enum class FolderCheck : uint8_t { kHeaders, kSample, kDeep };
// name: headers, sample or deep; throws Error for others.
FolderCheck folder_check_from(const std::string& name);

// Returns a handshake with the facts about program and machine.
Handshake handshake_of_process(const std::string& version, const std::string& commit);
std::vector<FileMark> mark_folder(const Checkpoint& checkpoint, FolderCheck check);
// Returns the kernels that this host's CPU would use for every group of modules and for attention.
std::vector<KernelMark> mark_kernels(const Checkpoint& checkpoint, const Wish& wish);

}  // namespace moebius
