// SPDX-License-Identifier: Apache-2.0
// --activations int8: the arithmetic is that of a checkpoint that declares dynamic int8 rows, byte
// for byte; it touches integer weights alone, is granted or refused by the module whatever the CPU,
// and never calls itself anything but approximate.
#include "quant/act_request.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "checkpoint/formats/format.h"
#include "device/cpu/layer_loader.h"
#include "model/run/decoder.h"
#include "model/run/scoring.h"
#include "quant/reference.h"
#include "report/explain.h"
#include "unit/checkpoint/checkpoint_util.h"
#include "unit/test_util.h"

namespace moebius::test::act_request_test {
namespace {

namespace fs = std::filesystem;

constexpr ActRequest kInt8Rows{Int8Mode::kDeclared, true};

Checkpoint golden_folder(const std::string& name) {
  return Checkpoint::open((test_data_dir() / "golden" / name).string());
}

Scheme scheme_of(NumberKind kind, int bits) {
  Scheme s;
  s.weights.emplace();
  s.weights->kind = kind, s.weights->bits = bits, s.weights->strategy = Strategy::kChannel;
  return s;
}

TEST(ActRequest, ConcernsIntegerWeightsAlone) {
  Scheme w4a8 = scheme_of(NumberKind::kInt, 4);
  const Scheme w4a16 = w4a8;
  w4a8.input.emplace();
  w4a8.input->strategy = Strategy::kToken, w4a8.input->dynamic = Dynamic::kDynamic;
  for (const Int8Mode mode : {Int8Mode::kDeclared, Int8Mode::kCompressedTensors, Int8Mode::kVllm}) {
    EXPECT_EQ(act_spec_of(w4a16, ActRequest{mode, true}), act_spec_of(w4a8, mode));
    EXPECT_EQ(act_spec_of(w4a16, ActRequest{mode, false}), ActSpec{});
    EXPECT_EQ(act_spec_of(w4a8, ActRequest{mode, true}), act_spec_of(w4a8, mode));
  }
  EXPECT_EQ(act_spec_of(scheme_of(NumberKind::kFloat, 8), kInt8Rows), ActSpec{});
  EXPECT_EQ(act_spec_of(scheme_of(NumberKind::kFloat, 4), kInt8Rows).code, ActCode::kInt);
  EXPECT_EQ(act_spec_of(Scheme{}, kInt8Rows), ActSpec{});
}

// Groups, zero points, act-order, 3 and 8 bits: the reference's bytes of int8 rows with these codes.
TEST(ActRequest, ModulesGiveTheBytesOfDeclaredInt8Rows) {
  constexpr size_t T = 3;
  ThreadPool pool(2);
  LayerOptions o;
  o.pool = &pool, o.x_type = XType::kF32, o.act = kInt8Rows;
  for (const char* folder :
       {"qwen3moe-w4a16-g32", "qwen3moe-w4a16-asym-g32", "qwen3moe-w3a16-asym-g32",
        "qwen3moe-w4a16-actorder-group", "qwen3moe-w8a16-g32", "qwen3moe-w4a16-channel"}) {
    SCOPED_TRACE(folder);
    const Checkpoint checkpoint = golden_folder(folder);
    size_t seen = 0;
    for (const Module& m : checkpoint.modules()) {
      if (!may_take_int8_rows(m.plan.scheme) || m.kind != ModuleKind::kLinear) continue;
      const size_t K = m.plan.K, N = m.plan.N;
      std::vector<float> x(T * K), y(T * N), want(T * N);
      for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i * i % 9973));
      const auto layer = load_linear(checkpoint, {&m}, o);
      layer->forward(f32_rows(x.data(), T, K), f32_rows(y.data(), T, N), pool);
      LoadBuffer buffer;
      const QuantMatrix w =
          reader_for(m.plan.scheme.format).load(m.plan, checkpoint.store(), buffer);
      ActSpec act;
      act.code = ActCode::kInt;
      const QuantRowsBuffer rows = quantize_rows(x.data(), K, T, K, act, {}, XType::kF32);
      reference_gemm(w, rows.rows, 0, N, want.data(), N);
      EXPECT_EQ(std::memcmp(y.data(), want.data(), y.size() * 4), 0) << m.name;
      EXPECT_EQ(numerics_of(m, problem_of(m, o.act, o.x_type), layer->kernel()),
                Numerics::kApproximate);
      ++seen;
    }
    EXPECT_GT(seen, 0u);
  }
}

// The bundled folder as if it had not declared its activations.
std::string weight_only_copy(const TempDir& dir) {
  fs::copy(bundled_model_dir(), dir.path(), fs::copy_options::recursive);
  std::string config = read_file(dir / "config.json");
  const size_t from = config.find("\"input_activations\": {"), open = config.find('{', from);
  size_t end = open;
  int depth = 0;
  do depth += config[end] == '{' ? 1 : config[end] == '}' ? -1 : 0;
  while (depth != 0 && ++end < config.size());
  config.replace(open, end + 1 - open, "null");
  fs::permissions(dir / "config.json", fs::perms::owner_write, fs::perm_options::add);
  write_file(dir / "config.json", config);
  return dir.path().string();
}

std::vector<float> logits_of(const std::string& folder, const ActRequest& request) {
  ThreadPool pool(2);
  const Checkpoint checkpoint = Checkpoint::open(folder);
  ModelOptions o;
  o.pool = &pool, o.type = XType::kF32, o.act = request, o.context = 32;
  const auto model = DecoderModel::load(checkpoint, o);
  std::vector<int32_t> tokens(9);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(17 * i + 5);
  std::vector<float> all;
  each_logits(*model, tokens, [&](std::span<const float> rows) {
    all.insert(all.end(), rows.begin(), rows.end());
  });
  return all;
}

TEST(ActRequest, WholeModelGivesTheBytesOfTheFolderThatDeclaresIt) {
  const TempDir dir;
  const std::string copy = weight_only_copy(dir);
  const std::vector<float> declared = logits_of(bundled_model_dir().string(), {});
  const std::vector<float> requested = logits_of(copy, kInt8Rows), kept = logits_of(copy, {});
  ASSERT_EQ(requested.size(), declared.size());
  EXPECT_EQ(std::memcmp(requested.data(), declared.data(), declared.size() * 4), 0);
  EXPECT_NE(std::memcmp(kept.data(), declared.data(), declared.size() * 4), 0);
}

const Explained& entry(const Explanation& e, const std::string& name) {
  for (const Explained& m : e.modules)
    if (m.group.name == name) return m;
  throw std::runtime_error("no module " + name);
}

// Mode vllm has no kernel of its own on Arm, so that no architecture grants it.
TEST(ActRequest, ExplainSaysWhatBecameOfItOnEveryCpu) {
  const Checkpoint small = golden_folder("qwen3moe-w4a16-g32");
  const std::string module = "model.layers.0.mlp.gate_proj";
  for (const char* cpu : {"neon", "neon,dotprod,i8mm,bf16", "avx2,fma,f16c"}) {
    SCOPED_TRACE(cpu);
    ExplainQuestion q;
    q.cpu = parse_cpu(cpu), q.wish.act = ActRequest{Int8Mode::kVllm, true};
    const Explanation kept = explain(small, q);
    EXPECT_EQ(entry(kept, module).request, "activations stay as declared: no kernel of its own");
    EXPECT_NE(entry(kept, module).use->numerics, Numerics::kApproximate);
    q.wish.act = kInt8Rows;
    const Explanation e = explain(small, q);
    EXPECT_EQ(entry(e, module).request, "int8 rows on request, not what the checkpoint declares");
    EXPECT_EQ(entry(e, module).use->numerics, Numerics::kApproximate);
    EXPECT_EQ(entry(e, "lm_head").request, "");
    const std::string json = to_json(e).dump();
    EXPECT_NE(json.find("\"numerics\": \"approximate\""), std::string::npos) << json;
    q.wish.act = {};
    for (const Explained& m : explain(small, q).modules) {
      EXPECT_EQ(m.request, "");
      EXPECT_NE(m.use->numerics, Numerics::kApproximate);
    }
  }
}

TEST(ActRequest, APolicyOfExactRefusesIt) {
  Policy exact;
  exact.accept = Accept::kExact;
  EXPECT_NE(error_of([&] { check_request(exact, kInt8Rows); }).find("asks for exact"),
            std::string::npos);
  EXPECT_EQ(error_of([&] { check_request(exact, {}); }), "");
  EXPECT_EQ(error_of([&] { check_request({}, kInt8Rows); }), "");
}

// Ranks that hold parts of a module answer as the whole does, whatever their part looks like.
TEST(ActRequest, PartsOfAModuleAnswerAsTheWhole) {
  const Checkpoint checkpoint = golden_folder("qwen3moe-w4a16-g32");
  ThreadPool pool(1);
  for (const Module& m : checkpoint.modules()) {
    if (!may_take_int8_rows(m.plan.scheme) || m.plan.act_order) continue;
    for (const uint64_t rank : {0u, 1u}) {
      LayerOptions o;
      o.pool = &pool, o.act = kInt8Rows, o.rank.tp = 2, o.rank.tp_rank = rank;
      const ModulePlan p = plan_module(m, o, [](const Module&) { return std::vector<int32_t>(); });
      EXPECT_EQ(p.projection.problem.act.code, ActCode::kInt) << m.name;
    }
  }
}

}  // namespace
}  // namespace moebius::test::act_request_test
