// SPDX-License-Identifier: Apache-2.0
// Planning and loading through options: ranks put together again from what the loader gave them,
// payloads read once, plans made from headers, schemes that only the loader decides.
#include "device/cpu/layer_loader.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/numeric.h"
#include "kernels/list.h"
#include "quant/reference.h"
#include "unit/checkpoint/checkpoint_util.h"
#include "unit/model/rank_meeting.h"
#include "unit/test_util.h"

namespace moebius::layer_loader_test {
namespace {

namespace fs = std::filesystem;

Checkpoint golden(const std::string& name) {
  return Checkpoint::open((test::test_data_dir() / "golden" / name).string());
}

std::vector<float> some_rows(size_t T, size_t K) {
  std::vector<float> x(T * K);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = std::sin(static_cast<float>(i * i % 9973)) * (1.0f + static_cast<float>(i % 7));
  return x;
}

LayerOptions options_for(ThreadPool& pool) {
  LayerOptions o;
  o.pool = &pool;
  o.x_type = XType::kF32;
  return o;
}

std::vector<float> run_linear(const LinearLayer& layer, const std::vector<float>& x, size_t T,
                              ThreadPool& pool, const AmaxReduce* reduce = nullptr) {
  std::vector<float> y(T * layer.out_features());
  layer.forward(f32_rows(x.data(), T, layer.in_features()),
                f32_rows(y.data(), T, layer.out_features()), pool, reduce);
  return y;
}

void expect_near_rows(const std::vector<float>& got, const std::vector<float>& want,
                      const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double norm = 0, difference = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    norm += static_cast<double>(want[i]) * want[i];
    difference += (static_cast<double>(got[i]) - want[i]) * (static_cast<double>(got[i]) - want[i]);
  }
  EXPECT_GT(norm, 0) << what;
  EXPECT_LE(difference, 1e-8 * norm) << what;
}

// The columns that rank r of `tp` sees of rows whose features are cut.
std::vector<float> columns_of_rank(const std::vector<float>& x, size_t T, size_t tp, size_t r) {
  const size_t K = x.size() / T, k = K / tp;
  std::vector<float> out;
  for (size_t t = 0; t < T; ++t)
    out.insert(out.end(), x.begin() + static_cast<long>(t * K + r * k),
               x.begin() + static_cast<long>(t * K + (r + 1) * k));
  return out;
}

// A granule of the input that two ranks share would need an exchange of its own.
bool ranks_share_granules(const Module& m, size_t tp) {
  const ActSpec act = act_spec_of(m, ActRequest{});
  return act.code != ActCode::kAsIs && act.granule == ActGranule::kGroup &&
         m.plan.K / tp % act.group != 0;
}

constexpr const char* kFolders[] = {"qwen3moe-w4a8-g32-pack", "qwen3moe-w4a16-actorder-group",
                                    "qwen3moe-w8a8-static",   "qwen3moe-fp8-block",
                                    "gptoss-w4a16-g32",       "qwen3moe-w4a16-asym-g32",
                                    "qwen3moe-gptq-w4-g32",   "qwen3moe-gptq-v2-dynamic",
                                    "mixtral-awq-gemv-g32",   "glm4moe-awq-sym-channel"};

// By outputs every byte is the byte of one process, whichever matrix it is.
TEST(LayerLoader, RanksCutByOutputsGiveTheBytesOfOne) {
  constexpr size_t T = 5;
  ThreadPool pool(2);
  for (const char* folder : kFolders) {
    const Checkpoint checkpoint = golden(folder);
    for (const char* name : {"q_proj", "o_proj", "lm_head"}) {
      for (const Module& m : checkpoint.modules()) {
        if (!m.name.ends_with(name) || m.name.find("layers.1.") != std::string::npos) continue;
        SCOPED_TRACE(std::string(folder) + " " + m.name);
        LayerOptions o = options_for(pool);
        const std::vector<float> x = some_rows(T, m.plan.K);
        const std::vector<float> whole = run_linear(*load_linear(checkpoint, {&m}, o), x, T, pool);
        for (const uint64_t blocks : {uint64_t{4} << 20, uint64_t{256}}) {  // whole, in blocks
          std::vector<float> together(whole.size());
          o.block_bytes = blocks;
          o.rank.tp = 2, o.rank.second = Cut::kOutputs;
          for (o.rank.tp_rank = 0; o.rank.tp_rank < 2; ++o.rank.tp_rank) {
            const auto layer = load_linear(checkpoint, {&m}, o);
            const size_t n = layer->out_features();
            EXPECT_EQ(n, m.plan.N / 2);
            const std::vector<float> y = run_linear(*layer, x, T, pool);
            for (size_t t = 0; t < T; ++t)
              std::copy_n(y.data() + t * n, n, together.data() + t * m.plan.N + o.rank.tp_rank * n);
          }
          EXPECT_EQ(std::memcmp(together.data(), whole.data(), whole.size() * 4), 0) << blocks;
        }
      }
    }
  }
}

// By inputs the caller adds; the bias is added once, maxima are those of the whole row.
TEST(LayerLoader, RanksCutByInputsAddUp) {
  constexpr size_t T = 5, kRanks = 2;
  for (const char* folder : kFolders) {
    const Checkpoint checkpoint = golden(folder);
    const auto& all = checkpoint.modules();
    const auto m = std::find_if(all.begin(), all.end(), [](const Module& candidate) {
      return candidate.name.ends_with("o_proj");
    });
    ASSERT_NE(m, all.end()) << folder;
    if (ranks_share_granules(*m, kRanks)) continue;
    if (std::string(folder) == "gptoss-w4a16-g32") {
      EXPECT_FALSE(load_bias(m->plan, checkpoint.store()).empty());
    }
    const std::vector<float> x = some_rows(T, m->plan.K);
    ThreadPool one(1);
    const std::vector<float> whole =
        run_linear(*load_linear(checkpoint, {&*m}, options_for(one)), x, T, one);
    test::RankMeeting exchange(kRanks);
    std::vector<std::vector<float>> partial(kRanks);
    std::vector<std::thread> ranks;
    for (size_t r = 0; r < kRanks; ++r)
      ranks.emplace_back([&, r] {
        ThreadPool pool(1);
        LayerOptions o = options_for(pool);
        o.rank.tp = kRanks, o.rank.tp_rank = r;
        const auto layer = load_linear(checkpoint, {&*m}, o);
        const auto maximum = [&](float* amax, size_t n) { exchange.maximum(amax, n); };
        const AmaxReduce reduce(maximum);
        partial[r] = run_linear(*layer, columns_of_rank(x, T, kRanks, r), T, pool, &reduce);
      });
    for (std::thread& t : ranks) t.join();
    for (size_t i = 0; i < whole.size(); ++i) partial[0][i] += partial[1][i];
    expect_near_rows(partial[0], whole, folder);
  }
}

std::vector<float> run_experts(const MoeLayer& layer, const std::vector<float>& x, size_t T,
                               ThreadPool& pool, const AmaxReduce* reduce = nullptr) {
  const size_t E = layer.spec().experts;
  std::vector<int32_t> ids(T * 2);
  std::vector<float> weights(T * 2), y(x.size());
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>((i * 5 + i / 3) % E),
    weights[i] = 0.25f + 0.1f * static_cast<float>(i % 5);
  MoeOptions o;
  o.amax_reduce = reduce;
  const size_t H = x.size() / T;
  layer.forward_ids(f32_rows(x.data(), T, H), ids, weights, f32_rows(y.data(), T, H), pool, o);
  return y;
}

TEST(LayerLoader, RanksOfAMixtureAddUp) {
  constexpr size_t T = 6;
  struct Form {
    uint64_t tp, ep;
    Placement placement;
  };
  for (const char* folder : kFolders) {
    const Checkpoint checkpoint = golden(folder);
    ASSERT_FALSE(checkpoint.moe_blocks().empty()) << folder;
    const MoeBlock& block = checkpoint.moe_blocks()[0];
    const std::vector<float> x = some_rows(T, block.spec.hidden);
    ThreadPool one(1);
    const std::vector<float> whole = run_experts(
        *load_moe(checkpoint, block, options_for(one), MoePart::kExperts).experts, x, T, one);
    for (const Form& form : {Form{2, 1, Placement::kLinear}, Form{1, 2, Placement::kLinear},
                             Form{1, 2, Placement::kRoundRobin}, Form{2, 2, Placement::kLinear}}) {
      if (ranks_share_granules(*block.experts[0][2], form.tp)) continue;
      // maxima are exchanged between the tensor-parallel ranks of the same experts
      std::vector<std::unique_ptr<test::RankMeeting>> exchanges;
      for (uint64_t e = 0; e < form.ep; ++e)
        exchanges.push_back(std::make_unique<test::RankMeeting>(form.tp));
      std::vector<std::vector<float>> partial(form.tp * form.ep);
      std::vector<std::thread> ranks;
      for (uint64_t e = 0; e < form.ep; ++e)
        for (uint64_t t = 0; t < form.tp; ++t)
          ranks.emplace_back([&, e, t] {
            ThreadPool pool(1);
            LayerOptions o = options_for(pool);
            o.rank = {form.tp, t, form.ep, e, form.placement, Cut::kInputs};
            const MoeBlockLayer layer = load_moe(checkpoint, block, o, MoePart::kExperts);
            EXPECT_EQ(layer.experts->local_experts(),
                      expert_count(block.experts.size(), form.ep, e));
            const auto maximum = [&](float* amax, size_t n) { exchanges[e]->maximum(amax, n); };
            const AmaxReduce reduce(maximum);
            partial[e * form.tp + t] = run_experts(*layer.experts, x, T, pool, &reduce);
          });
      for (std::thread& t : ranks) t.join();
      std::vector<float> sum(whole.size(), 0.0f);
      for (const auto& p : partial)
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += p[i];
      expect_near_rows(sum, whole, fmt::format("{} tp {} ep {}", folder, form.tp, form.ep));
    }
  }
}

TEST(LayerLoader, WhatARankCannotRunIsSaidBeforeReading) {
  const auto error = [](const Checkpoint& checkpoint, const Rank& rank) -> std::string {
    ThreadPool pool(1);
    LayerOptions o = options_for(pool);
    o.rank = rank;
    const auto never = [](const Module&) { return std::vector<int32_t>(); };
    try {
      plan_moe(checkpoint.moe_blocks()[0], o, MoePart::kExperts, never);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  const Checkpoint w4a8 = golden("qwen3moe-w4a8-g32-pack");
  EXPECT_NE(error(w4a8, {5, 0, 1, 0, Placement::kLinear, Cut::kInputs})
                .find("96 cannot be split into 5 equal parts"),
            std::string::npos);
  EXPECT_EQ(error(w4a8, {5, 0, 1, 0, Placement::kLinear, Cut::kOutputs}), "")
      << "outputs that are put side by side need no equal parts";
  EXPECT_EQ(error(w4a8, {2, 0, 2, 0, Placement::kLinear, Cut::kOutputs}), "");
  const Checkpoint fake = golden("qwen3moe-w8a8o8-channel-pack");
  EXPECT_NE(error(fake, {2, 0, 1, 0, Placement::kLinear, Cut::kInputs})
                .find("must follow the sum over tensor-parallel ranks"),
            std::string::npos);
}

// Planning asks for column groups of act-order modules, once each, and for nothing else.
TEST(LayerLoader, PlansComeFromHeaders) {
  ThreadPool pool(1);
  for (const auto& [folder, asks] :
       {std::pair<const char*, bool>{"qwen3moe-w4a16-actorder-group", true},
        {"qwen3moe-w4a16-g32", false}}) {
    const Checkpoint checkpoint = golden(folder);
    const MoeBlock& block = checkpoint.moe_blocks()[0];
    for (const uint64_t tp : {1u, 2u}) {
      LayerOptions o = options_for(pool);
      o.rank.tp = tp;
      o.rank.tp_rank = tp - 1;
      std::vector<std::string> asked;
      const auto groups = [&](const Module& m) {
        asked.push_back(m.name);
        return read_g_idx(checkpoint.store(), m.plan);
      };
      const MoeBlockPlan plan = plan_moe(block, o, MoePart::kExperts, groups);
      EXPECT_EQ(asked.size(), asks ? 3 * block.experts.size() : 0u) << folder;
      for (const ExpertModules& e : plan.experts) {
        EXPECT_EQ(e[1].cut, tp == 1 ? Cut::kWhole : Cut::kOutputs);
        EXPECT_EQ(e[2].cut, tp == 1 ? Cut::kWhole : Cut::kInputs);
        EXPECT_EQ(e[1].projection.problem.N, e[1].module->plan.N / tp);
        EXPECT_EQ(e[2].projection.problem.K, e[2].module->plan.K / tp);
        EXPECT_EQ(e[2].projection.problem.act_order, asks);
        EXPECT_EQ(e[2].begin, tp == 2 ? e[2].module->plan.K / 2 : 0);
        EXPECT_EQ(e[2].with_bias, tp == 1);
      }
    }
  }
}

uint64_t bytes_read() {
  std::ifstream io("/proc/self/io");
  std::string word;
  uint64_t value = 0;
  while (io >> word >> value)
    if (word == "rchar:") return value;
  return 0;
}

TEST(LayerLoader, ExpertsAreReadOnce) {
  if (bytes_read() == 0) GTEST_SKIP() << "/proc/self/io does not say how much was read";
  ThreadPool pool(1);
  for (const char* folder : {"qwen3moe-w4a8-g32-pack", "qwen3moe-w4a16-actorder-group"}) {
    const Checkpoint checkpoint = golden(folder);
    const MoeBlock& block = checkpoint.moe_blocks()[0];
    uint64_t payload = 0, small = 4096;  // what else the process may read meanwhile
    for (const auto& modules : block.experts)
      for (const Module* m : modules)
        payload += m->bytes, small += m->plan.act_order ? 4 * m->plan.K + 64 : 64;
    for (const uint64_t tp : {1u, 2u}) {
      LayerOptions o = options_for(pool);
      o.rank.tp = tp;
      const uint64_t before = bytes_read();
      load_moe(checkpoint, block, o, MoePart::kExperts);
      EXPECT_LE(bytes_read() - before, payload + small) << folder << " tp " << tp;
    }
  }
}

// What only GPTQ, AWQ and AutoRound have: scales of both signs, short last groups, zero points and
// act order at every width. Every kernel that takes such a matrix gives what the reference gives.
TEST(LayerLoader, EveryKernelTakesPackedFolders) {
  constexpr size_t T = 9;
  ThreadPool pool(1);
  size_t runs = 0;
  for (const char* folder :
       {"qwen3moe-gptq-w4-g32", "qwen3moe-gptq-v2-dynamic", "deepseekv3-gptq-v2-w3-asym-actorder",
        "qwen3moe-gptq-p-w5", "deepseekv3-awq-g16", "qwen3moe-autoround-real-gptq"}) {
    const Checkpoint checkpoint = golden(folder);
    for (const Module& m : checkpoint.modules()) {
      const bool some = m.layer == 1 && (m.expert <= 0 || m.kind != ModuleKind::kExpert);
      if (!some || !has_matrix(m) || m.plan.scheme.is_dense()) continue;
      for (const XType type : {XType::kF32, XType::kBf16}) {
        std::vector<float> x = some_rows(T, m.plan.K);
        for (float& v : x) v = bf16_to_f32(f32_to_bf16(v));
        LayerOptions o = options_for(pool);
        o.x_type = type;
        o.policy.kernel = "reference";
        const std::vector<float> want = run_linear(*load_linear(checkpoint, {&m}, o), x, T, pool);
        for (const Kernel* k : kernel_list()) {
          o.policy.kernel = title_of(*k);
          std::unique_ptr<LinearLayer> layer;
          try {
            layer = load_linear(checkpoint, {&m}, o);
          } catch (const Error&) {
            continue;  // not of this CPU, or not for this matrix
          }
          ++runs;
          expect_near_rows(run_linear(*layer, x, T, pool), want,
                           fmt::format("{} {} {}", folder, m.name, o.policy.kernel));
        }
      }
    }
  }
  EXPECT_GT(runs, 100u);
}

// 4-bit weights, static int8 inputs, outputs as they are: compressed-tensors writes such folders.
TEST(LayerLoader, FourBitWeightsWithStaticInputsRun) {
  const test::TempDir dir;
  test::TinyModel model(
      R"("architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "intermediate_size": 48,
      "quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"g": {
        "targets": ["re:.*q_proj$"], "weights": {"num_bits": 4, "type": "int", "strategy": "channel"},
        "input_activations": {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": false}}}})");
  const std::string q = "model.layers.0.self_attn.q_proj";
  const float scale = 0.05f;
  std::vector<uint8_t> bytes(sizeof scale);
  std::memcpy(bytes.data(), &scale, sizeof scale);
  model.skeleton().dense_mlp("model.layers.0.mlp").remove(q + ".weight").packed(q, 64, 64, 0);
  model.add(q + ".input_scale", {1}, DType::kF32, std::move(bytes));
  const std::string folder = model.write(dir);

  const Checkpoint checkpoint = Checkpoint::open(folder);
  const Module* m = checkpoint.find_module("model.layers.0.self_attn.q_proj");
  ASSERT_NE(m, nullptr);
  EXPECT_TRUE(m->supported) << m->reason;
  EXPECT_FALSE(m->plan.scheme.output.has_value());
  EXPECT_TRUE(m->plan.has_input_scale);
  ThreadPool pool(1);
  constexpr size_t T = 3;
  const std::vector<float> x = some_rows(T, m->plan.K);
  const LayerOptions o = options_for(pool);
  const std::vector<float> y = run_linear(*load_linear(checkpoint, {m}, o), x, T, pool);

  LoadBuffer buffer;
  const QuantMatrix w = reader_for(m->plan.scheme.format).load(m->plan, checkpoint.store(), buffer);
  const ActSpec act = act_spec_of(*m, ActRequest{});
  EXPECT_EQ(act.granule, ActGranule::kStatic);
  const auto rows =
      quantize_rows(x.data(), m->plan.K, T, m->plan.K, act, m->plan.input, XType::kF32);
  std::vector<float> want(y.size());
  reference_gemm(w, rows.rows, 0, w.N, want.data(), w.N);
  EXPECT_EQ(std::memcmp(y.data(), want.data(), y.size() * 4), 0);
}

}  // namespace
}  // namespace moebius::layer_loader_test
