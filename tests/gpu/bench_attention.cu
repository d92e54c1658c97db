// SPDX-License-Identifier: Apache-2.0
// Attention with tensor cores on the device: every form (plugins/cuda/attention.h) has the same bytes, and how long each takes.
//   bench_attention [small]      small: bytes alone; forms that the device has no room for are left out, in words
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "attention.h"
#include "device/cuda/device_attention.h"

namespace moebius::cuda {
namespace {

// Numbers between -1 and 1, of no order.
__global__ void fill(uint16_t* to, size_t n, uint32_t seed, float scale, bool f16) {
  const size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x;
  if (i >= n) return;
  uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ull + seed;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull, x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  const float v = scale * (static_cast<float>(x >> 40) * 0x1p-23f - 1.0f);
  to[i] = f16 ? f32_to_f16(v) : f32_to_bf16(v);
}

struct Case {
  const char* name;
  uint32_t heads, kv_heads, dim;
  uint64_t window, chunk;
  bool sinks, f16;
  std::vector<std::pair<uint32_t, uint32_t>> sequences;  // position of the first row, rows
};

// A step whose keys are there already.
class Step {
 public:
  explicit Step(const Case& c) {
    CudaAttention& a = args_.layer;
    a.heads = c.heads, a.kv_heads = c.kv_heads, a.key_dim = a.value_dim = c.dim;
    a.scale = 4.0f / std::sqrt(static_cast<float>(c.dim)), a.window = c.window, a.chunk = c.chunk;
    a.type = c.f16 ? XType::kF16 : XType::kBf16;
    a.storage = static_cast<uint8_t>(c.f16 ? KvType::kF16 : KvType::kBf16);
    std::vector<float> sinks;
    for (uint32_t h = 0; c.sinks && h < c.heads; ++h)
      sinks.push_back(0.3f * static_cast<float>(h) - 1.0f);
    if (c.sinks) a.sinks = kept(sinks);
    const DeviceKv kv{a, static_cast<KvType>(a.storage)};
    std::vector<CudaSequence> sequences;
    std::vector<CudaTokens> tiles;
    uint32_t rows = 0, blocks = 0, longest = 0;
    const auto each = static_cast<uint32_t>(cuda_tile_tokens(a));
    for (const auto& [position, tokens] : c.sequences) {
      const auto i = static_cast<uint32_t>(sequences.size());
      sequences.push_back({position, tokens, rows, blocks, 0});
      rows += tokens, blocks += (position + tokens - 1) / 128 + 1;
      for (uint32_t t = 0; t < tokens; t += each)
        tiles.push_back({i, t, std::min(each, tokens - t), 0});
      longest = std::max(longest, position + tokens);
      for (uint32_t t = 0; t < tokens; ++t) {
        const double seen = static_cast<double>(position + t + 1 - oldest_key(a, position + t));
        flops_ += seen * 4 * c.dim * c.heads;
      }
      bytes_ += static_cast<double>(position + tokens) * 4 * c.dim * c.kv_heads;
    }
    uint8_t* memory = filled<uint8_t>(blocks * kv.block_bytes() / 2, 1, 1.0f, c.f16);
    std::vector<uint8_t*> at;
    for (uint32_t i = 0; i < blocks; ++i)  // in no order
      at.push_back(memory + (i * 7919ull % blocks) * kv.block_bytes());
    args_.blocks = kept(at), args_.sequences = kept(sequences), args_.tiles = kept(tiles);
    args_.tile_count = tiles.size(), args_.sequence_count = sequences.size();
    args_.segments = (longest + kDeviceSegment - 1) / kDeviceSegment;
    const size_t cols = size_t{c.heads} * c.dim;
    args_.q = {filled<uint16_t>(rows * cols, 2, 3.0f, c.f16), a.type, rows, cols};
    args_.out = {filled<uint16_t>(rows * cols, 3, 0.0f, c.f16), a.type, rows, cols};
  }

  std::vector<uint16_t> result(AttentionForm form) {
    std::vector<uint16_t> out(args_.out.rows * args_.out.stride);
    check(cudaMemset(args_.out.data, 0xA5, out.size() * 2), "clear");
    attend_tensor(args_, form, nullptr);
    check(cudaMemcpy(out.data(), args_.out.data, out.size() * 2, cudaMemcpyDeviceToHost), "copy");
    return out;
  }
  // Microseconds of one of `count`, the median of five.
  double time(AttentionForm form, int count) {
    cudaEvent_t begin{}, end{};
    check(cudaEventCreate(&begin), "event"), check(cudaEventCreate(&end), "event");
    std::vector<float> all;
    attend_tensor(args_, form, nullptr);
    for (int repeat = 0; repeat < 5; ++repeat) {
      check(cudaEventRecord(begin), "event");
      for (int i = 0; i < count; ++i) attend_tensor(args_, form, nullptr);
      check(cudaEventRecord(end), "event"), check(cudaEventSynchronize(end), "kernels");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin, end), "event");
      all.push_back(ms * 1e3f / static_cast<float>(count));
    }
    cudaEventDestroy(begin), cudaEventDestroy(end);
    std::nth_element(all.begin(), all.begin() + 2, all.end());
    return all[2];
  }
  double flops() const { return flops_; }
  double bytes() const { return bytes_; }

 private:
  template <class T>
  T* kept(const std::vector<T>& v) {
    return buffers_.emplace_back(v.data(), v.size() * sizeof(T)).template as<T>();
  }
  template <class T>
  T* filled(size_t n, uint32_t seed, float scale, bool f16) {
    Buffer& b = buffers_.emplace_back(n * 2);
    fill<<<static_cast<unsigned>((n + 255) / 256), 256>>>(b.as<uint16_t>(), n, seed, scale, f16);
    return b.as<T>();
  }
  CudaAttend args_{};
  std::vector<Buffer> buffers_;
  double flops_ = 0, bytes_ = 0;
};

const char* name_of(AttentionForm form) {
  switch (form) {
    case AttentionForm::kSplit:
      return "split";
    case AttentionForm::kWhole:
      return "whole";
    case AttentionForm::kStaged:
      return "staged";
    case AttentionForm::kStagedFour:
      return "staged, four warps";
    default:
      return "by rule";
  }
}
constexpr AttentionForm kForms[] = {AttentionForm::kWhole, AttentionForm::kByRule,
                                    AttentionForm::kSplit, AttentionForm::kStaged,
                                    AttentionForm::kStagedFour};
bool has_form(const Case& c, AttentionForm form) {
  return form != AttentionForm::kStagedFour || (c.dim == 128 && !c.f16);
}

size_t judge_bytes(const Case& c) {
  Step step(c);
  const std::vector<uint16_t> want = step.result(AttentionForm::kWhole);
  const auto odd = [](uint16_t v) { return v == 0xA5A5; };
  size_t failed =
      std::count_if(want.begin(), want.end(), odd) * 1000 > static_cast<long>(want.size());
  std::string wrong = failed > 0 ? " whole: nothing was written;" : "", left_out;
  for (const AttentionForm form : kForms) {
    if (!has_form(c, form)) continue;
    std::vector<uint16_t> got;
    try {
      got = step.result(form);
    } catch (const Failure& f) {
      if (form == AttentionForm::kByRule || f.status != CudaStatus::kRefused) throw;
      left_out += std::string("; ") + name_of(form) + ": " + f.words;
      continue;
    }
    size_t others = 0, first = got.size();
    for (size_t i = 0; i < got.size(); ++i)
      if (got[i] != want[i]) ++others, first = std::min(first, i);
    if (others == 0) continue;
    ++failed;
    wrong += std::string(" ") + name_of(form) + ": " + std::to_string(others) + " of " +
             std::to_string(got.size()) + " numbers differ, the first " + std::to_string(first) +
             ";";
  }
  std::printf("attention, %s: %s%s\n", c.name,
              failed == 0 ? "equal bytes" : ("WRONG" + wrong).c_str(), left_out.c_str());
  std::fflush(stdout);
  return failed;
}

void time_forms(const Case& c, std::initializer_list<AttentionForm> forms, bool prompt) {
  Step step(c);
  std::printf("attention, %s:", c.name);
  for (const AttentionForm form : forms) {
    const double us = step.time(form, step.flops() > 1e11 ? 4 : 20);
    const double rate = (prompt ? step.flops() : step.bytes()) / us / 1e6;
    std::printf(" %s %.1f us (%.4g %s);", name_of(form), us, rate, prompt ? "TFLOP/s" : "TB/s");
  }
  std::printf("\n");
  std::fflush(stdout);
}

int run(bool timed) {
  using Pairs = std::vector<std::pair<uint32_t, uint32_t>>;
  size_t failed = 0;
  for (const Case& c : {
           Case{"prompt of 700", 32, 4, 128, 0, 0, false, false, Pairs{{0, 700}}},
           Case{"prompt of 2100 behind 1000", 32, 4, 128, 0, 0, false, false, Pairs{{1000, 2100}}},
           Case{"several sequences", 32, 4, 128, 0, 0, true, false,
                Pairs{{0, 333}, {2000, 1}, {77, 20}, {1023, 2}, {500, 400}, {1024, 1}}},
           Case{"window and sinks", 64, 8, 64, 128, 0, true, false, Pairs{{1500, 600}, {5, 300}}},
           Case{"chunks, f16", 16, 2, 64, 0, 512, false, true, Pairs{{100, 1200}, {3000, 50}}},
           Case{"f16", 12, 2, 128, 0, 0, true, true, Pairs{{10, 1300}, {0, 100}}},
           Case{"heads of 32, 24 of a kv head", 24, 1, 32, 0, 0, false, false, Pairs{{0, 1100}}},
           Case{"16 heads of a kv head, decode", 64, 4, 128, 0, 0, true, false,
                Pairs{{4095, 1}, {70, 1}, {1024, 1}}},
           Case{"a head for each", 8, 8, 128, 300, 0, false, false, Pairs{{900, 777}}},
           Case{"decode", 32, 4, 128, 0, 0, false, false,
                Pairs{{4095, 1}, {0, 1}, {63, 1}, {1024, 1}, {2047, 1}, {300, 1}, {5000, 1}}},
       })
    failed += judge_bytes(c);
  if (timed) {
    const auto qwen = [](std::string& name, Pairs sequences) {
      return Case{name.c_str(), 32, 4, 128, 0, 0, false, false, std::move(sequences)};
    };
    for (const uint32_t tokens : {128u, 256u, 512u, 2048u, 4096u, 16384u}) {
      std::string name = "prompt of " + std::to_string(tokens);
      const Case c = qwen(name, {{0, tokens}});
      if (tokens <= 512)
        time_forms(c,
                   {AttentionForm::kSplit, AttentionForm::kWhole, AttentionForm::kStaged,
                    AttentionForm::kStagedFour},
                   true);
      else
        time_forms(c, {AttentionForm::kWhole, AttentionForm::kStaged, AttentionForm::kStagedFour},
                   true);
    }
    std::string mixed = "512 rows behind 3584, and 31 single rows behind 4096";
    Pairs together{{3584, 512}};
    for (int i = 0; i < 31; ++i) together.push_back({4096, 1});
    time_forms(qwen(mixed, together), {AttentionForm::kWhole, AttentionForm::kStaged}, true);
    time_forms({"gpt-oss's sizes, prompt of 4096, a window of 128",
                64,
                8,
                64,
                128,
                0,
                true,
                false,
                {{0, 4096}}},
               {AttentionForm::kWhole, AttentionForm::kStaged}, true);
    time_forms({"gpt-oss's sizes, prompt of 4096", 64, 8, 64, 0, 0, true, false, {{0, 4096}}},
               {AttentionForm::kWhole, AttentionForm::kStaged}, true);
    for (const uint32_t sequences : {1u, 8u, 32u}) {
      std::string name = std::to_string(sequences) + " sequences of 4096 keys";
      time_forms(qwen(name, Pairs(sequences, {4095, 1})),
                 {AttentionForm::kSplit, AttentionForm::kWhole}, false);
    }
  }
  std::printf("attention: %zu forms with other bytes\n", failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace moebius::cuda

int main(int argc, char** argv) {
  try {
    return moebius::cuda::run(argc < 2 || std::strcmp(argv[1], "small") != 0);
  } catch (const moebius::cuda::Failure& f) {
    std::printf("FAILED %s\n", f.words.c_str());
    return f.status == moebius::CudaStatus::kNoDevice ? 77 : 1;
  }
}
