// SPDX-License-Identifier: Apache-2.0
#include "runtime/binding.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "runtime/affinity.h"
#include "runtime/comm.h"
#include "runtime/runtime.h"

namespace moebius {
namespace {

// Holds a CPU mask in the form that ranks exchange.
using MaskBytes = std::array<uint8_t, 1024>;

MaskBytes bytes_of(const std::vector<int>& cpus) {
  MaskBytes bytes{};
  for (const int c : cpus)
    if (c >= 0 && static_cast<size_t>(c) < bytes.size() * 8)
      bytes[static_cast<size_t>(c) / 8] |= static_cast<uint8_t>(1u << (c % 8));
  return bytes;
}

std::vector<int> cpus_of(const MaskBytes& bytes) {
  std::vector<int> cpus;
  for (size_t c = 0; c < bytes.size() * 8; ++c)
    if ((bytes[c / 8] >> (c % 8) & 1u) != 0) cpus.push_back(static_cast<int>(c));
  return cpus;
}

// Returns the CPUs that the system would grant if the launcher had not bound this process.
std::vector<int> grantable_cpus() {
  const AffinityMask before = AffinityMask::current();
  std::vector<int> cpus = before.cpus();
  if (AffinityMask::all().apply()) {
    cpus = AffinityMask::current().cpus();
    (void)before.apply();
  }
  return cpus;
}

std::string ranges(const Topology& machine, const std::vector<int>& cpus) {
  return usable_cpus(restrict_to(machine, cpus));
}

}  // namespace

RankBinding plan_binding(const Topology& machine, std::span<const std::vector<int>> masks,
                         size_t rank) {
  RankBinding b;
  b.ranks = masks.size();
  b.cpus = masks[rank];
  std::set<int> all, given;
  std::set<std::pair<int, int>> cores;  // pairs (node, core)
  for (const HardwareThread& t : machine.threads) all.insert(t.cpu), cores.insert({t.node, t.core});
  size_t sum = 0;
  for (const std::vector<int>& mask : masks) {
    sum += mask.size();
    given.insert(mask.begin(), mask.end());
  }
  b.crowded = masks.size() > cores.size();
  if (all.empty() || (given.size() == sum && given == all)) return b;
  std::vector<int> part(all.begin(), all.end());
  if (!b.crowded) {
    const std::vector<std::pair<int, int>> list(cores.begin(), cores.end());
    const auto at = [&](size_t r) { return list.size() * r / masks.size(); };
    const std::set<std::pair<int, int>> own(
        list.begin() + static_cast<std::ptrdiff_t>(at(rank)),
        list.begin() + static_cast<std::ptrdiff_t>(at(rank + 1)));
    part.clear();
    for (const HardwareThread& t : machine.threads)
      if (own.count({t.node, t.core}) != 0) part.push_back(t.cpu);
    std::sort(part.begin(), part.end());
  }
  b.changed = part != b.cpus;
  b.cpus = std::move(part);
  return b;
}

RankBinding bind_rank(Comm& comm, bool keep, bool own_only) {
  const auto ranks = static_cast<size_t>(comm.size());
  const std::array<MaskBytes, 2> mine{
      bytes_of(AffinityMask::current().cpus()),
      bytes_of(own_only ? AffinityMask::current().cpus() : grantable_cpus())};
  std::vector<std::array<MaskBytes, 2>> all(ranks);
  comm.wait(comm.start_all_gather(mine.data(), all.data(), std::vector<size_t>(ranks, sizeof mine)),
            "CPUs of ranks");
  std::vector<std::vector<int>> masks;
  std::set<int> usable;
  size_t place = 0;
  for (int r = 0; r < comm.size(); ++r) {
    if (comm.host(r) != comm.host(comm.rank())) continue;
    if (r == comm.rank()) place = masks.size();
    const auto& [current, grantable] = all[static_cast<size_t>(r)];
    masks.push_back(cpus_of(current));
    for (const int c : cpus_of(grantable)) usable.insert(c);
  }
  share_quota(masks.size());
  const AffinityMask before = AffinityMask::current();
  const std::vector<int> list(usable.begin(), usable.end());
  (void)AffinityMask::of(list).apply();
  const Topology machine = usable_topology();
  (void)before.apply();
  RankBinding b = plan_binding(machine, masks, place);
  if (keep) {
    b.changed = false;
    b.cpus = masks[place];
  }
  if (b.changed && !AffinityMask::of(b.cpus).apply()) {
    b.changed = false;
    b.cpus = masks[place];
  }
  b.note = fmt::format("CPUs {} instead of {} ({} ranks on this host; --keep-binding leaves them)",
                       ranges(machine, b.cpus), ranges(machine, masks[place]), masks.size());
  if (!b.changed) b.note.clear();
  return b;
}

}  // namespace moebius
