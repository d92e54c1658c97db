// SPDX-License-Identifier: Apache-2.0
// Kernels of the CUDA plugin on the host (gpu/host_cuda.h): attention by tensor cores in all of its forms, usual lists of row operations
// and the usual choice of experts against their definitions, products of few rows against quant/reference. Launches of attention and of
// products of few rows on devices of each size of shared memory.
#include "gpu/host_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "../plugins/cuda/attention.cu"
#include "../plugins/cuda/candidates.cuh"
#include "../plugins/cuda/few.cu"
#include "../plugins/cuda/items.cuh"
#include "../plugins/cuda/usual_router.cuh"
#include "../plugins/cuda/usual_rows.cuh"
#include "device/cuda/device_rows.h"
#include "quant/reference.h"

// What launches of attention need of other units of the plugin.
namespace moebius::cuda {

Scratch& scratch() {
  static Scratch all;
  return all;
}
ScratchArea& Scratch::of(cudaStream_t stream, int slot) {
  std::unique_ptr<ScratchArea>& area = areas_[{stream, 0, slot}];
  if (area == nullptr) area = std::make_unique<ScratchArea>();
  return *area;
}

template <class F>
void by_one_lane(const CudaAttend& args, F f) {
  const SingleLane lane;
  for (size_t i = 0; i < args.tile_count; ++i)
    for (uint32_t t = args.tiles[i].first; t < args.tiles[i].first + args.tiles[i].count; ++t) {
      const CudaSequence& s = args.sequences[args.tiles[i].sequence];
      if (args.layer.type == XType::kF16)
        f(DeviceAttention<SingleLane, KvType::kF16>(args, lane), s, t);
      else
        f(DeviceAttention<SingleLane, KvType::kBf16>(args, lane), s, t);
    }
}
void append_keys(const CudaAttend& args, cudaStream_t) {
  by_one_lane(args, [](auto a, const CudaSequence& s, uint32_t t) { a.append(s, t); });
}
void merge_segments(const CudaAttend& args, const float* partials, cudaStream_t) {
  std::vector<float> row(args.layer.value_dim + 2);
  by_one_lane(args, [&](auto a, const CudaSequence& s, uint32_t t) {
    for (uint32_t h = 0; h < args.layer.heads; ++h) a.merge_segments(s, t, h, partials, row.data());
  });
}

}  // namespace moebius::cuda

namespace moebius::cuda_kernels_test {
namespace {

using cuda::FewGemm;
using cuda::HostBlock;

// --- attention ---

struct AttentionCase {
  const char* name;
  uint32_t heads, kv_heads, dim;
  uint64_t window, chunk;
  bool sinks, f16;
  std::vector<std::pair<uint32_t, uint32_t>> sequences;  // position of the first row, rows
};

// Rows, blocks and tables of a step.
class Attention {
 public:
  Attention(const AttentionCase& c, unsigned seed) : rng_(seed) {
    CudaAttention& a = args_.layer;
    a.heads = c.heads, a.kv_heads = c.kv_heads, a.key_dim = a.value_dim = c.dim;
    a.scale = 1.0f / std::sqrt(static_cast<float>(c.dim)), a.window = c.window, a.chunk = c.chunk;
    a.type = c.f16 ? XType::kF16 : XType::kBf16;
    a.storage = static_cast<uint8_t>(c.f16 ? KvType::kF16 : KvType::kBf16);
    for (uint32_t h = 0; c.sinks && h < c.heads; ++h)
      sinks_.push_back(0.3f * static_cast<float>(h) - 1.0f);
    if (c.sinks) a.sinks = sinks_.data();
    const DeviceKv kv{a, static_cast<KvType>(a.storage)};
    uint32_t rows = 0, blocks = 0;
    for (const auto& [position, tokens] : c.sequences) {
      sequences_.push_back({position, tokens, rows, blocks, 0});
      rows += tokens, blocks += (position + tokens - 1) / 128 + 1;
    }
    // What nobody has written is NaN.
    memory_.assign(blocks, std::vector<uint8_t>(kv.block_bytes(), 0xFF));
    for (auto& m : memory_) blocks_.push_back(m.data());
    args_.blocks = blocks_.data(), args_.sequences = sequences_.data(),
    args_.sequence_count = sequences_.size();
    uint32_t longest = 0;
    for (uint32_t i = 0; i < sequences_.size(); ++i) {
      const CudaSequence& s = sequences_[i];
      for (size_t t = 0; t < s.position; ++t)
        for (uint32_t h = 0; h < c.kv_heads; ++h)
          for (uint32_t d = 0; d < c.dim; ++d) {
            uint8_t* head = blocks_[s.first_block + t / 128] + h * kv.head_bytes();
            put_kv(kv.type(), head, kv.key_at(t % 128, d), normal(), 1.0f);
            put_kv(kv.type(), head + kv.key_bytes(), kv.value_at(t % 128, d), normal(), 1.0f);
          }
      const auto each = static_cast<uint32_t>(cuda_tile_tokens(a));
      for (uint32_t t = 0; t < s.tokens; t += each)
        tiles_.push_back({i, t, std::min(each, s.tokens - t), 0});
      longest = std::max(longest, static_cast<uint32_t>(s.position) + s.tokens);
    }
    args_.tiles = tiles_.data(), args_.tile_count = tiles_.size();
    args_.segments = (longest + kDeviceSegment - 1) / kDeviceSegment;
    args_.q = rows_of(q_, rows, c.heads * c.dim, 1.5f),
    args_.k = rows_of(k_, rows, c.kv_heads * c.dim, 1.0f);
    args_.v = rows_of(v_, rows, c.kv_heads * c.dim, 1.0f),
    args_.out = rows_of(out_, rows, c.heads * c.dim, 0.0f);
  }

  // The definition, by one lane.
  template <KvType kStored>
  std::vector<uint16_t> defined() {
    const SingleLane lane;
    using Definition = DeviceAttention<SingleLane, kStored>;
    const CudaAttention& a = args_.layer;
    for (const CudaTokens& t : tiles_)
      for (uint32_t i = 0; i < t.count; ++i)
        Definition(args_, lane).append(sequences_[t.sequence], t.first + i);
    std::vector<float> shared(Definition::shared_floats(a) + 4);
    auto* floats =
        reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(shared.data()) + 15) / 16 * 16);
    for (const CudaTokens& t : tiles_)
      for (uint32_t i = 0; i < t.count; ++i)
        for (uint32_t h = 0; h < a.kv_heads; ++h)
          for (uint32_t first = 0; first < a.heads / a.kv_heads; first += kTileQueries)
            Definition(args_, lane)
                .run({t.sequence, t.first + i, 1, 0}, h, first, 0, nullptr, floats);
    return taken();
  }

  template <bool kF16, int D>
  std::vector<uint16_t> whole() {
    std::vector<float> all(kTensorQueries * D);
    each_tile([&](const CudaTokens& t, unsigned h, unsigned first) {
      HostBlock::run(32, [&] { cuda::attend_whole<kF16, D>(args_, t, h, first, all.data()); });
    });
    return taken();
  }

  // Memory of stages holds NaN, so that what is read too early shows.
  template <bool kF16, int D, int kWarps, int kStages>
  std::vector<uint16_t> staged() {
    const uint32_t each = args_.layer.heads / args_.layer.kv_heads;
    std::vector<uint4> shared(cuda::staged_bytes(D, kWarps, kStages, true) / 16);
    for (size_t i = 0; i < tiles_.size(); i += kWarps)
      for (uint32_t h = 0; h < args_.layer.kv_heads; ++h)
        for (uint32_t first = 0; first < each; first += static_cast<uint32_t>(kTensorQueries)) {
          std::fill(shared.begin(), shared.end(), uint4{~0u, ~0u, ~0u, ~0u});
          // As the kernels do: groups of several sequences are left to the other form.
          if (cuda::is_of_one(args_, i, kWarps))
            HostBlock::run(32 * kWarps, [&] {
              cuda::attend_staged<kF16, D, kWarps, kStages>(
                  args_, i, h, first, reinterpret_cast<uint8_t*>(shared.data()));
            });
          else
            for (size_t t = i; t < std::min(i + kWarps, tiles_.size()); ++t)
              HostBlock::run(32, [&] {
                cuda::attend_whole<kF16, D>(args_, tiles_[t], h, first,
                                            reinterpret_cast<float*>(shared.data()));
              });
        }
    return taken();
  }

  // single: rows of sequences that have one write their keys and values themselves.
  template <bool kF16, int D>
  std::vector<uint16_t> split() {
    const CudaAttention& a = args_.layer;
    std::vector<float> shared(cuda::split_bytes(kTensorQueries, D, 1) / 4, NAN),
        partials(args_.q.rows * a.heads * args_.segments * (D + 2), NAN), row(D + 2);
    const bool several = args_.segments > 1,
               single = tiles_.size() == sequences_.size() && args_.q.rows == tiles_.size();
    each_tile([&](const CudaTokens& t, unsigned h, unsigned first) {
      for (uint32_t segment = 0; segment < args_.segments; ++segment)
        HostBlock::run(32 * cuda::kSplitWarps, [&] {
          if (single) {
            cuda::append_one<D>(args_, t, h, segment);
            cuda::__syncthreads();
          }
          cuda::TensorTile<kF16, D> queries(args_, t, h, first);
          cuda::attend_split<kF16, D, 1>(args_, queries, segment,
                                         several ? partials.data() : nullptr, shared.data());
        });
    });
    const SingleLane lane;
    for (const CudaTokens& t : tiles_)
      for (uint32_t i = 0; i < t.count && several; ++i)
        for (uint32_t h = 0; h < a.heads; ++h)
          DeviceAttention<SingleLane, kF16 ? KvType::kF16 : KvType::kBf16>(args_, lane)
              .merge_segments(sequences_[t.sequence], t.first + i, h, partials.data(), row.data());
    return taken();
  }
  // By the launches of the plugin.
  std::vector<uint16_t> launched(cuda::AttentionForm form) {
    cuda::attend_tensor(args_, form, nullptr);
    return taken();
  }
  // Keys and values of all rows, by blocks of threads; then what the blocks hold.
  template <int D>
  const std::vector<std::vector<uint8_t>>& append_by_rows() {
    for (size_t first = 0; first < args_.k.rows; first += cuda::kAppendRows)
      for (uint32_t h = 0; h < args_.layer.kv_heads; ++h)
        HostBlock::run(32 * cuda::kAppendWarps, [&] { cuda::append_rows<D>(args_, first, h); });
    return memory_;
  }
  const std::vector<std::vector<uint8_t>>& memory() const { return memory_; }
  float number(uint16_t v) const {
    return args_.layer.type == XType::kF16 ? f16_to_f32(v) : bf16_to_f32(v);
  }

 private:
  float normal() { return std::normal_distribution<float>(0.0f, 1.0f)(rng_); }
  CudaRows rows_of(std::vector<uint16_t>& to, size_t rows, size_t cols, float scale) {
    to.resize(rows * cols + 8);
    auto* data =
        reinterpret_cast<uint16_t*>((reinterpret_cast<uintptr_t>(to.data()) + 15) / 16 * 16);
    for (size_t i = 0; i < rows * cols; ++i)
      put_number(data, args_.layer.type, i, scale * normal());
    return {data, args_.layer.type, rows, cols};
  }
  template <class F>
  void each_tile(F f) const {
    const uint32_t each = args_.layer.heads / args_.layer.kv_heads;
    for (const CudaTokens& t : tiles_)
      for (uint32_t h = 0; h < args_.layer.kv_heads; ++h)
        for (uint32_t first = 0; first < each; first += static_cast<uint32_t>(kTensorQueries))
          f(t, h, first);
  }
  std::vector<uint16_t> taken() {
    auto* data = static_cast<uint16_t*>(args_.out.data);
    std::vector<uint16_t> out(data, data + args_.out.rows * args_.out.stride);
    std::fill_n(data, out.size(), uint16_t{0x7FC1});
    return out;
  }
  std::mt19937 rng_;
  CudaAttend args_{};
  std::vector<float> sinks_;
  std::vector<CudaSequence> sequences_;
  std::vector<CudaTokens> tiles_;
  std::vector<std::vector<uint8_t>> memory_;
  std::vector<uint8_t*> blocks_;
  std::vector<uint16_t> q_, k_, v_, out_;
};

template <bool kF16, int D>
void check_attention(const AttentionCase& c) {
  constexpr KvType kStored = kF16 ? KvType::kF16 : KvType::kBf16;
  Attention one(c, 5), other(c, 5);
  const std::vector<uint16_t> split = one.split<kF16, D>();  // may write keys itself, so first
  const std::vector<uint16_t> want = other.defined<kStored>();
  const std::vector<uint16_t> whole = other.whole<kF16, D>();
  EXPECT_EQ((other.staged<kF16, D, 8, 2>()), whole) << c.name;
  EXPECT_EQ((other.staged<kF16, D, 4, 1>()), whole) << c.name;
  size_t sequences_of_one = 0;
  for (const auto& s : c.sequences) sequences_of_one += s.second == 1;
  if (sequences_of_one == c.sequences.size())
    EXPECT_EQ(split, whole) << c.name;
  else
    EXPECT_EQ((other.split<kF16, D>()), whole) << c.name;
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(one.number(want[i])) -
                                     static_cast<double>(one.number(whole[i]))));
  EXPECT_LT(worst, kF16 ? 4e-3 : 2e-2) << c.name;
}

TEST(CudaKernels, AttentionByTensorCores) {
  using Pairs = std::vector<std::pair<uint32_t, uint32_t>>;
  check_attention<false, 128>(
      {"decode", 8, 1, 128, 0, 0, false, false, Pairs{{0, 1}, {63, 1}, {64, 1}, {300, 1}}});
  check_attention<false, 64>(
      {"segments", 4, 1, 64, 0, 0, false, false, Pairs{{1500, 1}, {1023, 1}, {1024, 1}}});
  check_attention<false, 32>(
      {"prompt", 4, 2, 32, 0, 0, false, false, Pairs{{0, 37}, {120, 11}, {1020, 9}}});
  check_attention<false, 32>(
      {"window and sinks", 6, 2, 32, 100, 0, true, false, Pairs{{1150, 5}, {90, 20}}});
  check_attention<false, 64>(
      {"groups of tiles", 8, 1, 64, 0, 0, false, false, Pairs{{1013, 20}, {250, 9}, {7, 1}}});
  check_attention<false, 128>(
      {"window of many", 4, 1, 128, 150, 0, true, false, Pairs{{1200, 34}, {2, 1}}});
  check_attention<true, 32>(
      {"f16, chunks", 32, 1, 32, 0, 64, true, true, Pairs{{130, 3}, {60, 9}}});
}

TEST(CudaKernels, KeysAndValuesOfManyRows) {
  const AttentionCase c{"append", 4, 2, 64, 0, 0, false, false, {{120, 37}, {0, 1}, {1000, 30}}};
  Attention defined(c, 3), by_rows(c, 3);
  defined.defined<KvType::kBf16>();
  EXPECT_EQ(defined.memory(), by_rows.append_by_rows<64>());
}

// A row has the same bytes in a prompt and alone behind it.
TEST(CudaKernels, AttentionOfARowIsItsOwn) {
  const AttentionCase c{"prompt", 8, 1, 64, 0, 0, false, false, {{1022, 4}}};
  Attention prompt(c, 9);
  prompt.defined<KvType::kBf16>();
  const std::vector<uint16_t> all = prompt.whole<false, 64>(), split = prompt.split<false, 64>();
  EXPECT_EQ(all, split);
  EXPECT_EQ((prompt.staged<false, 64, 4, 2>()), all);
}

// --- launches ---

constexpr size_t kLimits[] = {101376, 166912, 232448};

// Every form, by its launch: one that the device has no room for is refused before it runs, and the rule chooses none of those.
template <bool kF16, int D>
void check_launches(const AttentionCase& c) {
  using Form = cuda::AttentionForm;
  Attention one(c, 5);
  one.defined<kF16 ? KvType::kF16 : KvType::kBf16>();
  const std::vector<uint16_t> want = one.whole<kF16, D>();
  for (const size_t limit : kLimits) {
    cuda::HostDevice::shared_limit = limit, cuda::HostDevice::most_shared = 0;
    size_t ran = 0;
    for (const Form form :
         {Form::kByRule, Form::kSplit, Form::kWhole, Form::kStaged, Form::kStagedFour}) {
      SCOPED_TRACE(testing::Message()
                   << c.name << " form " << static_cast<int>(form) << " limit " << limit);
      if (limit > kLimits[0] && form > Form::kSplit) continue;
      const bool there = form != Form::kStagedFour || (D == 128 && !kF16),
                 fits = form != Form::kStaged || D < 128 || limit > kLimits[1];
      try {
        EXPECT_EQ(one.launched(form), want);
        EXPECT_TRUE(there && fits);
        ++ran;
      } catch (const cuda::Failure& f) {
        EXPECT_EQ(f.status, CudaStatus::kRefused) << f.words;
        EXPECT_FALSE(there && fits) << f.words;
      }
    }
    EXPECT_GE(ran, limit > kLimits[0] ? 2u : 3u);
    EXPECT_LE(cuda::HostDevice::most_shared, limit) << c.name;
  }
}

TEST(CudaKernels, EveryFormOfAttentionFitsTheDevice) {
  using Pairs = std::vector<std::pair<uint32_t, uint32_t>>;
  check_launches<false, 128>(
      {"decode, 16 heads of a kv head", 16, 1, 128, 0, 0, true, false, Pairs{{1030, 1}, {0, 1}}});
  check_launches<false, 128>({"short prompt", 4, 1, 128, 0, 0, false, false, Pairs{{0, 9}}});
  check_launches<false, 128>({"segments", 8, 1, 128, 0, 0, true, false, Pairs{{1020, 7}}});
  check_launches<true, 128>({"f16", 12, 1, 128, 0, 0, false, true, Pairs{{10, 2}}});
  check_launches<false, 64>({"heads of 64", 8, 2, 64, 0, 0, false, false, Pairs{{1020, 9}}});
  check_launches<false, 32>({"heads of 32", 24, 1, 32, 0, 0, true, false, Pairs{{100, 2}}});
}

// The rule's choice for heads of 128: blocks of 16 queries, many tiles and few, on each size of device.
TEST(CudaKernels, FormsGiveWayToThoseThatFit) {
  using Form = cuda::AttentionForm;
  const auto plan = [](size_t D, size_t queries, size_t tiles, size_t limit) {
    return cuda::plan_attention({D, 4, queries, tiles, 1, true}, limit);
  };
  for (const size_t D : {size_t{32}, size_t{64}, size_t{128}})
    for (const size_t queries : {1u, 8u, 12u, 16u})
      for (const size_t tiles : {1u, 8u, 127u, 128u, 4096u})
        for (const size_t limit : kLimits) {
          const cuda::AttentionPlan p = plan(D, queries, tiles, limit);
          EXPECT_LE(p.bytes, limit) << D << " " << queries << " " << tiles;
          EXPECT_EQ(p.form == Form::kSplit, tiles < 128);
        }
  EXPECT_EQ(plan(128, 16, 8, 101376).passes, 2);
  EXPECT_EQ(plan(128, 12, 8, 101376).passes, 1);
  EXPECT_EQ(plan(128, 16, 8, 166912).passes, 1);
  EXPECT_EQ(plan(128, 16, 4096, 101376).form, Form::kWhole);
  EXPECT_EQ(plan(128, 16, 4096, 166912).form, Form::kWhole);
  EXPECT_EQ(plan(128, 16, 4096, 232448).form, Form::kStaged);
  EXPECT_EQ(plan(64, 16, 4096, 101376).form, Form::kStaged);
}

// The driver that the launches above meet refuses what a device has no room for, asked or not.
TEST(CudaKernels, TheHostRefusesAsADriver) {
  using cuda::HostDevice;
  void (*const kernel)() = [] {};
  for (const size_t limit : kLimits) {
    HostDevice::shared_limit = limit;
    const auto* p = reinterpret_cast<const void*>(kernel);
    HostDevice::allowed.erase(p);
    cudaLaunchConfig_t config{};
    config.blockDim = dim3(1), config.dynamicSmemBytes = 48 * 1024;
    EXPECT_EQ(cudaLaunchKernelEx(&config, kernel), cudaSuccess);
    config.dynamicSmemBytes = 48 * 1024 + 16;
    EXPECT_EQ(cudaLaunchKernelEx(&config, kernel), cudaErrorInvalidValue);
    const int most = static_cast<int>(limit);
    EXPECT_EQ(cudaFuncSetAttribute(p, cudaFuncAttributeMaxDynamicSharedMemorySize, most + 1),
              cudaErrorInvalidValue);
    EXPECT_EQ(cudaFuncSetAttribute(p, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
              cudaSuccess);
    config.dynamicSmemBytes = limit;
    EXPECT_EQ(cudaLaunchKernelEx(&config, kernel), cudaSuccess);
    config.dynamicSmemBytes = limit + 1;
    EXPECT_EQ(cudaLaunchKernelEx(&config, kernel), cudaErrorInvalidValue);
    EXPECT_THROW(cuda::launch(kernel, 1, 1, limit + 1, true, nullptr, "nothing"), cuda::Failure);
    EXPECT_EQ(cuda::device_limits().shared_bytes, limit);
  }
}

// --- products ---

struct FewCase {
  const char* name;
  size_t rows, inputs, outputs;
  bool channel, bias;
};

class FewProducts : public testing::TestWithParam<FewCase> {};

std::vector<uint8_t> tiles_of(TileCodes codes, size_t scale_bytes, size_t padded, size_t K,
                              const std::function<uint32_t(size_t, size_t)>& code,
                              const std::function<uint16_t(size_t, size_t)>& scale) {
  const size_t bytes = tile_code_bytes(codes) + scale_bytes;
  std::vector<uint8_t> out(padded / 64 * (K / 128) * bytes);
  for (size_t n = 0; n < padded / 64; ++n)
    for (size_t k = 0; k < K / 128; ++k) {
      uint8_t* tile = out.data() + (n * (K / 128) + k) * bytes;
      for (uint32_t w = 0; w < tile_code_bytes(codes) / 4; ++w) {
        const uint32_t word = tile_word(
            codes, w, [&](uint32_t r, uint32_t i) { return code(n * 64 + r, k * 128 + i); });
        std::memcpy(tile + w * 4, &word, 4);
      }
      for (uint32_t r = 0; scale_bytes > 0 && r < 64; ++r) {
        const uint16_t s = scale(n * 64 + r, k);
        std::memcpy(tile + tile_code_bytes(codes) + group_scale_at(r), &s, 2);
      }
    }
  return out;
}

template <bool kChannel>
void run_few(const FewGemm& g) {
  std::vector<uint8_t> shared(cuda::FewShared<2>::bytes(static_cast<size_t>(g.K)) + 16);
  auto* at =
      reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(shared.data()) + 15) / 16 * 16);
  for (unsigned b = 0; b < (static_cast<unsigned>(g.outputs) + 15) / 16; ++b)
    HostBlock::run(cuda::kFewThreads, [&] {
      cuda::blockIdx = {b, 0, 0};
      g.rows <= 8 ? cuda::few_rows<kChannel, 1>(g, at) : cuda::few_rows<kChannel, 2>(g, at);
    });
}

TEST_P(FewProducts, HaveTheBytesOfTheReference) {
  const FewCase& c = GetParam();
  std::mt19937 rng(3);
  const size_t padded = (c.outputs + 127) / 128 * 128, groups = c.channel ? 1 : c.inputs / 128;
  std::vector<int8_t> codes(padded * c.inputs);
  for (size_t i = 0; i < c.outputs * c.inputs; ++i)
    codes[i] = static_cast<int8_t>(static_cast<int>(rng() % 16) - 8);
  std::vector<uint16_t> scales(padded * groups);
  std::vector<float> channel(padded), bias(c.outputs);
  for (uint16_t& s : scales) s = f32_to_bf16(0.001f * static_cast<float>(1 + rng() % 100));
  for (float& s : channel) s = 0.001f * static_cast<float>(1 + rng() % 100);
  for (float& b : bias) b = 0.1f * static_cast<float>(rng() % 100);
  std::vector<uint16_t> x(c.rows * c.inputs);
  for (uint16_t& v : x) v = f32_to_bf16(std::normal_distribution<float>(0.0f, 1.0f)(rng));
  const std::vector<uint8_t> tiles = tiles_of(
      TileCodes::kInt4Bytes, c.channel ? 0 : 128, padded, c.inputs,
      [&](size_t n, size_t k) { return static_cast<uint32_t>(codes[n * c.inputs + k]) & 15u; },
      [&](size_t n, size_t g) { return scales[n * groups + g]; });
  QuantMatrix w;
  w.N = c.outputs, w.K = c.inputs, w.code = CodeType::kInt8, w.bits = 4;
  w.codes = reinterpret_cast<const uint8_t*>(codes.data()), w.row_bytes = c.inputs;
  w.scale_type = c.channel ? ScaleType::kF32 : ScaleType::kBf16, w.block_n = 1,
  w.groups = w.scale_stride = groups;
  w.scales = c.channel ? reinterpret_cast<const uint8_t*>(channel.data())
                       : reinterpret_cast<const uint8_t*>(scales.data());
  w.block_k = c.channel ? c.inputs : 128;
  ActSpec act;
  act.code = ActCode::kInt, act.bits = 8, act.granule = ActGranule::kRow, act.symmetric = true;
  std::vector<float> rows(x.size());
  for (size_t i = 0; i < x.size(); ++i) rows[i] = bf16_to_f32(x[i]);
  const QuantRowsBuffer q =
      quantize_rows(rows.data(), c.inputs, c.rows, c.inputs, act, {}, XType::kF32);
  std::vector<float> want(c.rows * c.outputs), got(c.rows * c.outputs);
  reference_gemm(w, q.rows, 0, c.outputs, want.data(), c.outputs);
  if (c.bias)
    for (size_t i = 0; i < want.size(); ++i) want[i] = want[i] + bias[i % c.outputs];
  FewGemm g{};
  g.w = tiles.data(), g.channel = channel.data(), g.K = static_cast<int>(c.inputs);
  g.outputs = static_cast<int>(c.outputs), g.rows = static_cast<int>(c.rows);
  g.x = {x.data(), XType::kBf16, c.rows, c.inputs};
  g.scaling = {act.mode == Int8Mode::kCompressedTensors ? 127.5f : 127.0f, 0.0f};
  g.bias = c.bias ? bias.data() : nullptr, g.out = got.data(), g.out_type = XType::kF32,
  g.out_stride = c.outputs;
  c.channel ? run_few<true>(g) : run_few<false>(g);
  EXPECT_EQ(want, got);
  // And from codes that were made before.
  std::vector<int8_t> made(x.size());
  std::vector<float> made_scales(c.rows);
  for (size_t t = 0; t < c.rows; ++t) {
    uint32_t most = 0;
    for (size_t k = 0; k < c.inputs; ++k)
      most = std::max(most, f32_bits(rows[t * c.inputs + k]) & 0x7FFFFFFFu);
    made_scales[t] = cuda::row_scale(most, g.scaling);
    for (size_t k = 0; k < c.inputs; ++k)
      made[t * c.inputs + k] = cuda::int8_code(rows[t * c.inputs + k], made_scales[t]);
  }
  std::fill(got.begin(), got.end(), 0.0f);
  g.codes = reinterpret_cast<const uint8_t*>(made.data()), g.scales = made_scales.data();
  c.channel ? run_few<true>(g) : run_few<false>(g);
  EXPECT_EQ(want, got);
  // By its launch, on devices that have room for it.
  const HopperScheme scheme = c.channel ? HopperScheme::kInt4Channel : HopperScheme::kInt4Group;
  for (const size_t limit : kLimits) {
    cuda::HostDevice::shared_limit = limit;
    const bool fits = cuda::has_few_form(scheme, c.rows, c.inputs);
    EXPECT_EQ(fits, c.inputs < 5376 || limit > kLimits[0]);
    std::fill(got.begin(), got.end(), 0.0f);
    if (fits) {
      cuda::few_gemm(scheme, g, nullptr);
      EXPECT_EQ(want, got);
    } else {
      EXPECT_THROW(cuda::few_gemm(scheme, g, nullptr), cuda::Failure);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FewProducts,
                         testing::Values(FewCase{"one", 1, 256, 40, false, false},
                                         FewCase{"three", 3, 1280, 16, false, true},
                                         FewCase{"sixteen", 16, 5376, 17, false, false},
                                         FewCase{"channel", 7, 2304, 20, true, true},
                                         FewCase{"eleven", 11, 512, 64, true, false}),
                         [](const auto& which) { return std::string(which.param.name); });

template <bool kF16, int NB>
void run_stretches(const FewGemm& g) {
  std::vector<float> shared(cuda::kFewWarps * 8 * NB * 16, NAN);
  for (unsigned b = 0; b < (static_cast<unsigned>(g.outputs) + 15) / 16; ++b)
    for (unsigned t = 0; t < (static_cast<unsigned>(g.rows) + 8 * NB - 1) / (8 * NB); ++t)
      HostBlock::run(cuda::kFewThreads, [&] {
        cuda::blockIdx = {b, t, 0};
        cuda::stretches<kF16, NB>(g, shared.data());
      });
}

template <bool kF16>
void check_stretches(size_t rows, size_t inputs, size_t outputs) {
  std::mt19937 rng(4);
  const size_t padded = (outputs + 127) / 128 * 128;
  const auto number = [&] {
    const float v = std::normal_distribution<float>(0.0f, 1.0f)(rng);
    return kF16 ? f32_to_f16(v) : f32_to_bf16(v);
  };
  const auto value = [](uint16_t v) { return kF16 ? f16_to_f32(v) : bf16_to_f32(v); };
  std::vector<uint16_t> w(padded * inputs), x(rows * inputs + 8);
  for (size_t i = 0; i < outputs * inputs; ++i) w[i] = number();
  auto* from = reinterpret_cast<uint16_t*>((reinterpret_cast<uintptr_t>(x.data()) + 15) / 16 * 16);
  for (size_t i = 0; i < rows * inputs; ++i) from[i] = number();
  const std::vector<uint8_t> tiles =
      tiles_of(TileCodes::kHalfShared, 0, padded, inputs,
               [&](size_t n, size_t k) { return w[n * inputs + k]; }, {});
  std::vector<float> bias(outputs, 0.5f), got(rows * outputs), again(rows * outputs);
  FewGemm g{};
  g.w = tiles.data(), g.K = static_cast<int>(inputs), g.outputs = static_cast<int>(outputs),
  g.rows = static_cast<int>(rows);
  g.x = {from, kF16 ? XType::kF16 : XType::kBf16, rows, inputs};
  g.bias = bias.data(), g.out = got.data(), g.out_type = XType::kF32, g.out_stride = outputs;
  run_stretches<kF16, 1>(g);
  g.out = again.data();
  run_stretches<kF16, 4>(g);
  EXPECT_EQ(got, again);  // however many rows go together
  for (size_t t = 0; t < rows; ++t)
    for (size_t n = 0; n < outputs; ++n) {
      double sum = 0.5, size = 0;
      for (size_t k = 0; k < inputs; ++k) {
        const double p = static_cast<double>(value(w[n * inputs + k])) *
                         static_cast<double>(value(from[t * inputs + k]));
        sum += p, size += std::abs(p);
      }
      ASSERT_NEAR(static_cast<double>(got[t * outputs + n]), sum, size * 1e-5) << t << " " << n;
    }
}

TEST(CudaKernels, ProductsInStretches) {
  check_stretches<false>(3, 2304, 24);
  check_stretches<true>(9, 256, 130);
}

// --- usual lists of row operations ---

// Rows of numbers of a type, aligned as a device has them.
class TypedRows {
 public:
  TypedRows(XType type, size_t rows, size_t stride, std::mt19937& rng)
      : type_(type), rows_(rows), stride_(stride), memory_(rows * stride * 4 + 16) {
    for (size_t i = 0; i < rows * stride; ++i)
      put_number(data(), type, i, std::normal_distribution<float>(0.0f, 2.0f)(rng));
  }
  uint8_t* data() {
    return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(memory_.data()) + 15) / 16 * 16);
  }
  CudaRows rows() { return {data(), type_, rows_, stride_}; }
  std::vector<uint8_t> bytes() {
    return {data(), data() + rows_ * stride_ * (type_ == XType::kF32 ? 4 : 2)};
  }

 private:
  XType type_;
  size_t rows_, stride_;
  std::vector<uint8_t> memory_;
};

constexpr XType kRowTypes[] = {XType::kF32, XType::kBf16, XType::kF16};
constexpr NormKind kUsualNorms[] = {NormKind::kRms, NormKind::kRmsFused, NormKind::kRmsOnePlus,
                                    NormKind::kRmsPlain};

void run_definition(const CudaRowProgram& p) {
  const SingleLane lane;
  for (size_t t = 0; t < p.rows; ++t) DeviceRow<SingleLane>(p, lane, t).run();
}

template <XType kType, int kPieces>
void run_usual_norm(const UsualNorm& u) {
  std::vector<float> terms(kPieces * kUsualThreads * 8 + 4, NAN);
  for (size_t t = 0; t < u.h.rows; ++t)
    HostBlock::run(kUsualThreads, [&] {
      if (u.norms_x)
        cuda::usual_norm_row<kType, kPieces, true>(u, t, terms.data(), [] {});
      else
        cuda::usual_norm_row<kType, kPieces, false>(u, t, terms.data(), [] {});
    });
}
template <XType kType>
void run_usual_norm(const UsualNorm& u) {
  return u.cols <= 2048 ? run_usual_norm<kType, 1>(u) : run_usual_norm<kType, 4>(u);
}

CudaRowOp norm_row_op(NormKind kind, uint32_t y, uint32_t x, const std::vector<float>& weight) {
  CudaRowOp op{};
  op.kind = static_cast<uint8_t>(RowOpKind::kNorm), op.norm = static_cast<uint8_t>(kind);
  op.y = {y, 0, 0, 1, 0}, op.x = {x, 0, 0, 1, 0}, op.epsilon = 1e-6f;
  if (kind != NormKind::kRmsPlain) op.weight = weight.data();
  return op;
}
CudaRowOp plain_row_op(RowOpKind kind, uint32_t y, uint32_t x) {
  CudaRowOp op{};
  op.kind = static_cast<uint8_t>(kind), op.y = {y, 0, 0, 1, 0}, op.x = {x, 0, 0, 1, 0};
  return op;
}

// Operands h, x, a.
void check_usual_norm(XType type, NormKind kind, uint32_t cols, size_t length) {
  std::mt19937 rng(cols + length);
  const size_t rows = cols < 1024 ? 2 : 1, stride = cols + 8;
  std::vector<float> of_h(cols), of_x(cols);
  for (float& w : of_h) w = std::normal_distribution<float>(1.0f, 0.3f)(rng);
  for (float& w : of_x) w = std::normal_distribution<float>(1.0f, 0.3f)(rng);
  std::vector<CudaRowOp> ops = {norm_row_op(kind, 2, 0, of_h)};
  if (length > 1) ops.insert(ops.begin(), plain_row_op(RowOpKind::kAdd, 0, 1));
  if (length > 2) ops.insert(ops.begin(), norm_row_op(kind, 1, 1, of_x));
  std::vector<std::vector<uint8_t>> results;
  for (const bool usual : {false, true}) {
    std::mt19937 same(7);
    TypedRows h(type, rows, stride, same), x(type, rows, stride, same), a(type, rows, stride, same);
    CudaRowProgram p{};
    p.ops = ops.data(), p.count = ops.size(), p.rows = rows, p.type = type;
    p.operands[0] = h.rows(), p.operands[1] = x.rows(), p.operands[2] = a.rows();
    for (uint32_t& c : p.cols) c = cols;
    UsualNorm u;
    ASSERT_TRUE(is_usual_norm(&p, 1, u));
    if (!usual)
      run_definition(p);
    else if (type == XType::kF32)
      run_usual_norm<XType::kF32>(u);
    else if (type == XType::kBf16)
      run_usual_norm<XType::kBf16>(u);
    else
      run_usual_norm<XType::kF16>(u);
    results.push_back(h.bytes());
    for (TypedRows* r : {&x, &a}) {
      const std::vector<uint8_t> more = r->bytes();
      results.back().insert(results.back().end(), more.begin(), more.end());
    }
  }
  EXPECT_TRUE(results[0] == results[1])
      << static_cast<int>(type) << " " << static_cast<int>(kind) << " " << cols << " " << length;
}

TEST(CudaKernels, UsualNormsHaveTheBytesOfTheirList) {
  for (const XType type : kRowTypes)
    for (const NormKind kind : kUsualNorms) check_usual_norm(type, kind, 200, 3);
  for (const size_t length : {1u, 2u, 3u})
    check_usual_norm(XType::kBf16, NormKind::kRms, 2048, length);
  check_usual_norm(XType::kF16, NormKind::kRmsFused, 2880, 2);
  check_usual_norm(XType::kBf16, NormKind::kRmsOnePlus, 5120, 2);
}

template <XType kType>
void run_usual_heads(const UsualHeads& u, size_t rows) {
  for (size_t t = 0; t < rows; ++t)
    for (uint32_t first = 0; first < head_count(u); first += 2)
      HostBlock::run(32, [&] {
        const uint32_t part = first + cuda::threadIdx.x / 16;
        if (part >= head_count(u)) return;
        if (u.width == 64)
          cuda::usual_head<kType, 4>(u, t, part, [] {});
        else if (u.width == 128)
          cuda::usual_head<kType, 8>(u, t, part, [] {});
        else
          cuda::usual_head<kType, 16>(u, t, part, [] {});
      });
}

// Operands: the projection, then q, k and v.
struct HeadList {
  uint32_t width, heads, kv_heads;
  bool norms, turns, interleaved = false;
};
void check_usual_heads(XType type, NormKind kind, const HeadList& c, bool usual_list = true) {
  std::mt19937 rng(c.width);
  constexpr size_t kRows = 3;
  const uint32_t nq = c.heads * c.width, nk = c.kv_heads * c.width, all = nq + 2 * nk;
  std::vector<float> weight(c.width), tables(kRows * (c.width + 3));
  for (float& w : weight) w = std::normal_distribution<float>(1.0f, 0.3f)(rng);
  for (float& v : tables) v = std::normal_distribution<float>(0.0f, 0.5f)(rng);
  std::vector<CudaRowOp> ops;
  const uint32_t widths[] = {nq, nk, nk};
  for (uint32_t i = 0, at = 0; i < 3; at += widths[i++]) {
    CudaRowOp op = plain_row_op(RowOpKind::kCopy, i + 1, 0);
    op.y.width = op.x.width = widths[i], op.x.at = at;
    ops.push_back(op);
  }
  const auto of_heads = [&](CudaRowOp op, uint32_t i) {
    op.y = op.x = {i + 1, 0, c.width, widths[i] / c.width, c.width};
    ops.push_back(op);
  };
  for (uint32_t i = 0; c.norms && i < 2; ++i) of_heads(norm_row_op(kind, 0, 0, weight), i);
  for (uint32_t i = 0; c.turns && i < 2; ++i) {
    CudaRowOp op = plain_row_op(RowOpKind::kRotate, 0, 0);
    op.half = c.width / 2, op.table = 2, op.interleaved = c.interleaved;
    of_heads(op, i);
  }
  std::vector<std::vector<uint8_t>> results;
  for (const bool usual : {false, true}) {
    std::mt19937 same(9);
    TypedRows from(type, kRows, all, same), q(type, kRows, nq, same), k(type, kRows, nk, same),
        v(type, kRows, nk, same);
    CudaRowProgram p{};
    p.ops = ops.data(), p.count = ops.size(), p.rows = kRows, p.type = type;
    p.operands[0] = from.rows(), p.operands[1] = q.rows(), p.operands[2] = k.rows(),
    p.operands[3] = v.rows();
    p.tables = tables.data(), p.table_cols = c.width + 3;
    UsualHeads u;
    ASSERT_EQ(is_usual_heads(p, u), usual_list);
    if (!usual_list) return;
    if (!usual)
      run_definition(p);
    else if (type == XType::kF32)
      run_usual_heads<XType::kF32>(u, kRows);
    else if (type == XType::kBf16)
      run_usual_heads<XType::kBf16>(u, kRows);
    else
      run_usual_heads<XType::kF16>(u, kRows);
    results.push_back(q.bytes());
    for (TypedRows* r : {&k, &v}) {
      const std::vector<uint8_t> more = r->bytes();
      results.back().insert(results.back().end(), more.begin(), more.end());
    }
  }
  EXPECT_TRUE(results[0] == results[1]) << static_cast<int>(type) << " " << static_cast<int>(kind)
                                        << " " << c.width << " " << c.norms << c.turns;
}

TEST(CudaKernels, UsualHeadsHaveTheBytesOfTheirList) {
  for (const XType type : kRowTypes)
    for (const NormKind kind : kUsualNorms) check_usual_heads(type, kind, {128, 4, 2, true, true});
  check_usual_heads(XType::kBf16, NormKind::kRms, {64, 3, 1, false, true});
  check_usual_heads(XType::kBf16, NormKind::kRmsOnePlus, {256, 2, 1, true, true});
  check_usual_heads(XType::kBf16, NormKind::kRms, {128, 2, 2, true, false});
  check_usual_heads(XType::kBf16, NormKind::kRms, {96, 2, 2, true, true}, false);
  check_usual_heads(XType::kBf16, NormKind::kRms, {64, 2, 2, false, false}, false);
  check_usual_heads(XType::kBf16, NormKind::kLayer, {64, 2, 2, true, true}, false);
  check_usual_heads(XType::kBf16, NormKind::kRms, {64, 2, 2, true, true, true}, false);
}

TEST(CudaKernels, OtherListsAreReadOperationByOperation) {
  std::mt19937 rng(1);
  TypedRows h(XType::kBf16, 1, 64, rng), x(XType::kBf16, 1, 64, rng), a(XType::kBf16, 1, 64, rng),
      wide(XType::kF32, 1, 64, rng);
  const std::vector<float> weight(64, 1.0f);
  const auto usual = [&](std::vector<CudaRowOp> ops, CudaRows third) {
    CudaRowProgram p{};
    p.ops = ops.data(), p.count = ops.size(), p.rows = 1, p.type = XType::kBf16;
    p.operands[0] = h.rows(), p.operands[1] = x.rows(), p.operands[2] = third;
    for (uint32_t& c : p.cols) c = 64;
    UsualNorm u;
    return is_usual_norm(&p, 1, u);
  };
  const CudaRowOp norm = norm_row_op(NormKind::kRms, 2, 0, weight),
                  add = plain_row_op(RowOpKind::kAdd, 0, 1);
  EXPECT_TRUE(usual({add, norm}, a.rows()));
  EXPECT_FALSE(usual({add, norm}, wide.rows()));
  EXPECT_FALSE(usual({norm, add}, a.rows()));
  EXPECT_FALSE(usual({add, add, norm}, a.rows()));
  EXPECT_FALSE(usual({plain_row_op(RowOpKind::kAdd, 1, 0), norm}, a.rows()));
  EXPECT_FALSE(usual({plain_row_op(RowOpKind::kAdd, 0, 0), norm}, a.rows()));
  EXPECT_FALSE(usual({norm_row_op(NormKind::kLayer, 2, 0, weight)}, a.rows()));
  EXPECT_FALSE(usual(
      {norm_row_op(NormKind::kRms, 2, 0, weight), plain_row_op(RowOpKind::kSilu, 2, 2)}, a.rows()));
}

// --- candidates of draws ---

// Rows with ties, with numbers that are not finite, without any logit; of the last pieces some tokens do not count.
TEST(CudaKernels, CandidatesAreThoseOfTheirDefinition) {
  std::mt19937 rng(11);
  constexpr size_t kRows = 7, kVocab = 2300, kCols = 2400, kStride = 2411, kMost = 500;
  std::vector<float> x(kRows * kStride);
  for (size_t i = 0; i < x.size(); ++i) {
    const float v = std::normal_distribution<float>(0.0f, 4.0f)(rng);
    const size_t row = i / kStride;
    x[i] = row == 1 ? std::floor(v) : row == 2 ? 0.01f * v : row == 6 ? NAN : v;
    if (row == 3 && i % 5 == 0) x[i] = i % 2 == 0 ? NAN : INFINITY;
    if (row == 3 && i % 7 == 0) x[i] = -INFINITY;
    if (i % kStride >= kVocab) x[i] = 100.0f;  // never seen
  }
  const float rate = 1.4426950f / 0.7f, grid = 0x1p-11f;
  const CandidateNeed kinds[] = {{kVocab, 0.0f, 0.0f},
                                 {kVocab, rate, grid, 40},
                                 {kVocab, rate, grid, 0, 0.9},
                                 {kVocab, rate, grid, 0, 1.0, 37},
                                 {kVocab, rate, grid, 2, 1.0, 3},
                                 {0}};
  size_t some = 0, too_many = 0;
  for (size_t shift = 0; shift < std::size(kinds); shift += 2) {
    std::vector<CandidateNeed> needs;
    for (size_t r = 0; r < kRows; ++r) needs.push_back(kinds[(r + shift) % std::size(kinds)]);
    std::vector<CudaFound> found(kRows, CudaFound{-1.0, -1.0f, 12345});
    std::vector<int32_t> ids(kRows * kMost), want_ids(kMost);
    std::vector<float> logits(kRows * kMost), want_logits(kMost);
    const auto pieces = static_cast<size_t>(cuda::piece_count(kCols));
    std::vector<uint64_t> work((kRows * (sizeof(cuda::CandidateWork) + pieces * 8) + 7) / 8,
                               ~uint64_t{0});
    CudaCandidates c{};
    c.x = {x.data(), XType::kF32, kRows, kStride}, c.cols = kCols, c.needs = needs.data();
    c.weighs = true, c.most = kMost, c.found = found.data(), c.ids = ids.data();
    c.logits = logits.data(), c.work = work.data();
    std::vector<uint64_t> shared(sizeof(cuda::CandidateWork) / 8 + 64);
    cuda::ChooseShared chosen;
    const auto blocks = static_cast<unsigned>((pieces + 7) / 8);
    for (int r = 0; r < static_cast<int>(kRows); ++r) {
      for (unsigned b = 0; b < blocks; ++b) {
        cuda::blockIdx = {b, 0, 0};
        HostBlock::run(cuda::kPieceThreads, [&] { cuda::find_maxima(c, r); });
      }
      for (unsigned b = 0; b < blocks; ++b) {
        cuda::blockIdx = {b, 0, 0};
        HostBlock::run(cuda::kPieceThreads, [&] {
          cuda::weigh_tokens(c, r, reinterpret_cast<uint8_t*>(shared.data()));
        });
      }
      HostBlock::run(cuda::kChooseThreads, [&] { cuda::choose_candidates(c, r, chosen); });
    }
    for (size_t r = 0; r < kRows; ++r) {
      SCOPED_TRACE(testing::Message() << "row " << r << " shift " << shift);
      if (needs[r].vocab == 0) {
        EXPECT_EQ(found[r].count, 12345u);
        continue;
      }
      const CudaFound want = find_candidates(x.data() + r * kStride, needs[r], kMost,
                                             want_ids.data(), want_logits.data());
      EXPECT_EQ(want.count, found[r].count);
      EXPECT_EQ(want.top, found[r].top);
      EXPECT_EQ(want.total, found[r].total);
      if (want.count > kMost) {
        ++too_many;
        continue;
      }
      some += want.count > 1 ? 1 : 0;
      for (size_t i = 0; i < want.count; ++i) {
        ASSERT_EQ(want_ids[i], ids[r * kMost + i]);
        ASSERT_EQ(want_logits[i], logits[r * kMost + i]);
      }
    }
  }
  EXPECT_GT(some, 5u);
  EXPECT_GT(too_many, 0u);
}

// --- the usual choice of experts ---

TEST(CudaKernels, UsualRoutersChooseAsTheirDefinition) {
  std::mt19937 rng(3);
  for (const Scoring scoring : {Scoring::kSoftmax, Scoring::kSigmoid})
    for (const size_t experts : {5u, 60u, 128u, 200u}) {
      RouterSpec spec;
      spec.scoring = scoring, spec.experts = experts, spec.top_k = experts < 8 ? experts : 8;
      spec.renormalize = experts % 8 == 0,
      spec.renormalize_epsilon = experts == 200 ? 1e-20f : 0.0f;
      spec.scaling = experts == 60 ? 2.5f : 1.0f;
      const DeviceRouter router{spec, nullptr, nullptr, false};
      ASSERT_TRUE(cuda::is_usual_router(router));
      constexpr size_t kRows = 6;
      std::vector<float> logits(kRows * experts);
      for (size_t i = 0; i < logits.size(); ++i) {
        const float v = std::normal_distribution<float>(0.0f, 2.0f)(rng);
        const size_t t = i / experts;
        logits[i] = t == 1 ? std::floor(v) : t == 2 ? 60.0f * v : t == 3 && i % 7 == 2 ? NAN : v;
        if (t == 4 && i % 3 == 0) logits[i] = -INFINITY;
        if (t == 5 && i % experts == 3) logits[i] = INFINITY;
      }
      std::vector<int32_t> want(kRows * spec.top_k), got(want.size());
      std::vector<float> want_w(want.size()), got_w(want.size()),
          own(experts + device_router_floats(spec));
      std::vector<uint32_t> counts(experts), want_counts(experts);
      const OneLane lane;
      for (size_t t = 0; t < kRows; ++t) {
        std::copy_n(logits.data() + t * experts, experts, own.data());
        RowRouter<OneLane>(router, lane, own.data(), own.data() + experts)
            .run(t, &want[t * spec.top_k], &want_w[t * spec.top_k], nullptr);
      }
      for (const int32_t id : want) ++want_counts[static_cast<size_t>(id)];
      cuda::UsualRouter u = cuda::usual_router(spec);
      u.logits = {logits.data(), XType::kF32, kRows, experts};
      u.ids = got.data(), u.weights = got_w.data(), u.counts = counts.data();
      std::vector<float> shared(cuda::kUsualExperts, NAN);
      for (size_t t = 0; t < kRows; ++t)
        HostBlock::run(32, [&] {
          if (experts <= 128)
            cuda::usual_route<4>(u, t, shared.data());
          else
            cuda::usual_route<8>(u, t, shared.data());
        });
      EXPECT_EQ(want, got) << experts;
      EXPECT_EQ(want_counts, counts) << experts;
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_EQ(f32_bits(want_w[i]), f32_bits(got_w[i])) << experts << " " << i;
    }
  DeviceRouter other{};
  other.spec.experts = 128, other.spec.top_k = 8;
  EXPECT_TRUE(cuda::is_usual_router(other));
  other.spec.has_bias = true;
  EXPECT_FALSE(cuda::is_usual_router(other));
}

// --- the sum of a divided layer ---

TEST(CudaKernels, RowsOfBothPlacesAreAddedByExpert) {
  constexpr size_t kTokens = 5, kSlots = 6, kHidden = 1100, kItems = kTokens * kSlots;
  std::mt19937 rng(11);
  std::normal_distribution<float> normal;
  const auto numbers = [&](size_t n) {
    std::vector<float> out(n);
    for (float& v : out) v = normal(rng);
    return out;
  };
  std::vector<float> own = numbers(kItems * kHidden), others = numbers(kItems * kHidden),
                     weights = numbers(kItems), shared = numbers(kTokens * kHidden),
                     gates = numbers(kTokens), zeros = numbers(kTokens),
                     x = numbers(kTokens * kHidden);
  zeros[1] = 0.0f;
  std::vector<int32_t> ids(kItems), own_at(kItems, -1), others_at(kItems, -1);
  int32_t here = 0, there = 0;
  for (size_t i = 0; i < kItems; ++i) {
    ids[i] = i % 7 == 3 ? -1 : static_cast<int32_t>(rng() % 20);  // some twice for a token
    if (ids[i] < 0) continue;
    if (ids[i] % 3 == 0)
      others_at[i] = there++;
    else
      own_at[i] = here++;
  }
  for (size_t s = 0; s < kSlots; ++s) ids[2 * kSlots + s] = -1;  // a token without experts
  for (const bool weighed : {false, true})
    for (const bool every : {false, true}) {
      std::vector<float> y(kTokens * kHidden, NAN);
      cuda::ItemSum a{};
      a.routing = {ids.data(), weights.data(), every ? zeros.data() : nullptr, kSlots};
      a.rows = {{own.data(), own_at.data()},
                {others.data(), others_at.data()},
                every ? shared.data() : nullptr,
                every ? gates.data() : nullptr};
      a.x = {x.data(), XType::kF32, kTokens, kHidden},
      a.y = {y.data(), XType::kF32, kTokens, kHidden};
      a.hidden = kHidden, a.weighed = weighed;
      cuda::ItemOrder order;
      for (unsigned t = 0; t < kTokens; ++t)
        for (unsigned part = 0; part < (kHidden + cuda::kItemColumns - 1) / cuda::kItemColumns;
             ++part) {
          cuda::blockIdx = {t, part, 0};
          HostBlock::run(cuda::kItemThreads, [&] { cuda::add_items_of(a, order); });
        }
      cuda::blockIdx = {};
      for (size_t t = 0; t < kTokens; ++t) {
        std::vector<std::pair<int32_t, size_t>> sorted;
        for (size_t s = 0; s < kSlots; ++s)
          if (ids[t * kSlots + s] >= 0) sorted.emplace_back(ids[t * kSlots + s], s);
        std::sort(sorted.begin(), sorted.end());
        for (size_t h = 0; h < kHidden; ++h) {
          float sum = 0.0f;
          for (const auto& [id, s] : sorted) {
            const size_t i = t * kSlots + s;
            const float row = own_at[i] >= 0
                                  ? own[static_cast<size_t>(own_at[i]) * kHidden + h]
                                  : others[static_cast<size_t>(others_at[i]) * kHidden + h];
            sum = fma_f32(weighed ? 1.0f : weights[i], row, sum);
          }
          if (every) sum = sum + sigmoid_f32(gates[t]) * shared[t * kHidden + h];
          if (every && zeros[t] != 0.0f) sum = sum + zeros[t] * x[t * kHidden + h];
          ASSERT_EQ(f32_bits(sum), f32_bits(y[t * kHidden + h])) << t << " " << h;
        }
      }
    }
}

}  // namespace
}  // namespace moebius::cuda_kernels_test
