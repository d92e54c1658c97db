// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other before anything large is read, so that those who could not compute the
// same bytes part in words: program, machine, folder, options, kernels. Every rank sees what all said
// and comes to the same judgement, a pure function.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "device/load_options.h"
#include "nn/kv_layout.h"
#include "quant/act_request.h"
#include "runtime/memory_limits.h"

namespace moebius {

class Comm;

// Raised whenever ranks of two builds could no longer talk.
inline constexpr uint32_t kRankProtocol = 2;

struct FileMark {
  std::string name;
  uint64_t size = 0;
  std::string hash;  // of a JSON file all, of a safetensors file its header (and samples)
  bool operator==(const FileMark&) const = default;
};

struct KernelMark {
  std::string modules;  // "model.layers.*.mlp.experts.*.gate_proj"
  std::string kernel;   // "arm_i8mm/int4"
  bool exact = false;
  bool operator==(const KernelMark&) const = default;
};

struct Handshake {
  uint32_t protocol = kRankProtocol;
  std::string version, commit;
  std::string build;         // of the program file; empty where it has no name
  std::string architecture;  // "aarch64"
  std::string cpu;           // features that kernels ask for: "neon,dotprod"
  std::vector<std::pair<std::string, std::string>> options;  // that shape results
  std::vector<FileMark> files;                               // by name
  std::vector<KernelMark> kernels;
  std::vector<MemoryLimit> memory;  // of this process
  std::string trouble;              // why this rank cannot go on, in words; the rest may be missing
  bool operator==(const Handshake&) const = default;
};

std::vector<uint8_t> encode(const Handshake& handshake);
// Of another protocol only its number is read. Throws Error for bytes that are no handshake.
Handshake decode_handshake(std::span<const uint8_t> bytes);

// Why these ranks cannot run together, in one sentence that names the first rank that differs from
// rank 0; empty when they can. host(rank) is for the sentence.
std::string refusal_of(std::span<const Handshake> ranks,
                       const std::function<std::string(size_t)>& host);

// The features that all ranks have, as narrow_host_cpu takes them.
std::string common_cpu(std::span<const Handshake> ranks);

// Called by all ranks: what every rank said, in order.
std::vector<Handshake> exchange_handshakes(Comm& comm, const Handshake& mine);

// How much of the weights is compared: nothing but headers, 64 KiB of every 64 MiB, everything.
enum class FolderCheck : uint8_t { kHeaders, kSample, kDeep };
FolderCheck folder_check_from(const std::string& name);  // headers, sample, deep; throws Error

// Program and machine.
Handshake handshake_of_process(const std::string& version, const std::string& commit);
std::vector<FileMark> mark_folder(const Checkpoint& checkpoint, FolderCheck check);
std::vector<KernelMark> mark_kernels(const Checkpoint& checkpoint, const Policy& policy,
                                     const ActRequest& act, XType type, KvType kv);

}  // namespace moebius
