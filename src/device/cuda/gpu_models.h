// SPDX-License-Identifier: Apache-2.0
// Facts of GPUs that can be planned for without having one, as their makers publish them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace moebius {

struct GpuModel {
  const char *name, *title;
  int major, minor, multiprocessors;
  uint64_t memory_gb, cache_mib, shared_kib;  // shared_kib: shared memory of a multiprocessor
  double read_gbs;                            // of its memory, in 10^9 bytes per second
  // Returns the shared memory that a block of threads can have.
  constexpr size_t block_shared() const { return (shared_kib - 1) * 1024; }
};
inline constexpr GpuModel kGpuModels[] = {
    {"h200", "NVIDIA H200", 9, 0, 132, 141, 60, 228, 4800},
    {"h100", "NVIDIA H100", 9, 0, 132, 80, 50, 228, 3350},
    {"h20", "NVIDIA H20", 9, 0, 78, 96, 60, 228, 4000},
    {"a100", "NVIDIA A100", 8, 0, 108, 80, 40, 164, 2039},
    {"l40s", "NVIDIA L40S", 8, 9, 142, 48, 96, 100, 864},
    {"pro6000", "NVIDIA RTX PRO 6000 Blackwell", 12, 0, 188, 96, 128, 100, 1792},
    {"gb10", "NVIDIA GB10", 12, 1, 48, 128, 24, 100, 273},
    {"rtx3060", "NVIDIA GeForce RTX 3060", 8, 6, 28, 12, 3, 100, 360},
    {"rtx3070", "NVIDIA GeForce RTX 3070", 8, 6, 46, 8, 4, 100, 448},
    {"rtx3090", "NVIDIA GeForce RTX 3090", 8, 6, 82, 24, 6, 100, 936},
    {"rtx4060ti", "NVIDIA GeForce RTX 4060 Ti", 8, 9, 34, 16, 32, 100, 288},
    {"rtx4070tis", "NVIDIA GeForce RTX 4070 Ti SUPER", 8, 9, 66, 16, 48, 100, 672},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 8, 9, 128, 24, 72, 100, 1008},
    {"rtx5070ti", "NVIDIA GeForce RTX 5070 Ti", 12, 0, 70, 16, 48, 100, 896},
    {"rtx5090", "NVIDIA GeForce RTX 5090", 12, 0, 170, 32, 96, 100, 1792}};

// Returns the model of that name in any case; null: there is none.
constexpr const GpuModel* gpu_model(std::string_view name) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  for (const GpuModel& m : kGpuModels) {
    const std::string_view own = m.name;
    bool same = own.size() == name.size();
    for (size_t i = 0; same && i < own.size(); ++i) same = own[i] == lower(name[i]);
    if (same) return &m;
  }
  return nullptr;
}

}  // namespace moebius
