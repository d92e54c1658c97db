// SPDX-License-Identifier: Apache-2.0
// Loading holds the packed weights and one expert per thread, no more: measured on a block of more
// than 2 GB made on the fly, and on whole models that are little but token table and output
// projection.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "device/cpu/layer_loader.h"
#include "model/run/decoder.h"
#include "runtime/memory.h"
#include "unit/test_util.h"

namespace moebius::load_memory_test {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t E = 64, H = 4096, I = 5632, G = 128, kExperts = E * 3 * H * I / 2;

std::span<const uint8_t> bytes_of(const auto& v, size_t count) {
  return {reinterpret_cast<const uint8_t*>(v.data()), count};
}

// Every expert has the same bytes: what matters is how much is read and packed.
void write_folder(const fs::path& folder) {
  std::vector<uint32_t> codes(I * H / 8);
  std::mt19937 rng(1);
  for (uint32_t& c : codes) c = static_cast<uint32_t>(rng());
  const std::vector<uint16_t> halves(4 * H * 64, 0x3c00);  // 2^-7
  const std::array<int64_t, 2> wide{static_cast<int64_t>(I), static_cast<int64_t>(H)},
      tall{wide[1], wide[0]};
  std::string map;
  const auto add_file = [&](const std::string& name, const std::vector<TensorData>& tensors) {
    write_safetensors((folder / name).string(), tensors);
    for (const TensorData& t : tensors)
      map += (map.empty() ? "\"" : ",\"") + t.name + "\":\"" + name + "\"";
  };
  for (uint64_t first = 0; first < E; first += 8) {
    std::vector<TensorData> tensors;
    for (uint64_t e = first; e < first + 8; ++e)
      for (const char* p : {"gate_proj", "up_proj", "down_proj"}) {
        const bool down = std::strcmp(p, "down_proj") == 0;
        const uint64_t N = down ? H : I, K = down ? I : H;
        const std::string name = "model.layers.0.mlp.experts." + std::to_string(e) + "." + p;
        tensors.push_back(
            {name + ".weight_packed", DType::kI32, {N, K / 8}, bytes_of(codes, N * K / 2)});
        tensors.push_back(
            {name + ".weight_scale", DType::kBf16, {N, K / G}, bytes_of(halves, 2 * N * (K / G))});
        tensors.push_back(
            {name + ".weight_shape", DType::kI64, {2}, bytes_of(down ? tall : wide, 16)});
      }
    add_file("experts-" + std::to_string(first) + ".safetensors", tensors);
  }
  const std::string layer = "model.layers.0.";
  const auto dense = [&](const std::string& name, std::vector<uint64_t> shape) {
    uint64_t n = 2;
    for (const uint64_t d : shape) n *= d;
    return TensorData{name, DType::kBf16, std::move(shape), bytes_of(halves, n)};
  };
  add_file(
      "rest.safetensors",
      {dense("model.embed_tokens.weight", {16, H}), dense("lm_head.weight", {16, H}),
       dense("model.norm.weight", {H}), dense(layer + "input_layernorm.weight", {H}),
       dense(layer + "post_attention_layernorm.weight", {H}),
       dense(layer + "self_attn.q_proj.weight", {128, H}),
       dense(layer + "self_attn.k_proj.weight", {128, H}),
       dense(layer + "self_attn.v_proj.weight", {128, H}),
       dense(layer + "self_attn.o_proj.weight", {H, 128}),
       dense(layer + "self_attn.q_norm.weight", {128}),
       dense(layer + "self_attn.k_norm.weight", {128}), dense(layer + "mlp.gate.weight", {E, H})});
  test::write_file(folder / "model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
  test::write_file(
      folder / "config.json",
      R"({"architectures":["Qwen3MoeForCausalLM"],"model_type":"qwen3_moe","dtype":"bfloat16",
    "num_hidden_layers":1,"hidden_size":4096,"intermediate_size":64,"moe_intermediate_size":5632,"num_experts":64,
    "num_experts_per_tok":8,"norm_topk_prob":true,"num_attention_heads":1,"num_key_value_heads":1,"head_dim":128,
    "vocab_size":16,"rms_norm_eps":1e-6,"tie_word_embeddings":false,"quantization_config":{"quant_method":"compressed-tensors",
    "format":"pack-quantized","ignore":["lm_head","re:.*mlp.gate$","re:.*self_attn.*"],"config_groups":{"g":{"targets":["Linear"],
    "weights":{"num_bits":4,"type":"int","symmetric":true,"strategy":"group","group_size":128},
    "input_activations":{"num_bits":8,"type":"int","symmetric":true,"strategy":"token","dynamic":true}}}}})");
}

// A model of one small layer whose token table and output projection (unless tied to it) weigh
// kHead bytes each.
constexpr uint64_t kVocab = 65536, kWidth = 2048, kHead = kVocab * kWidth * 2;

void write_head_folder(const fs::path& folder, bool tied) {
  const std::vector<uint16_t> halves(kVocab * kWidth, 0x3c00);
  const auto dense = [&](const std::string& name, std::vector<uint64_t> shape) {
    uint64_t n = 2;
    for (const uint64_t d : shape) n *= d;
    return TensorData{name, DType::kBf16, std::move(shape), bytes_of(halves, n)};
  };
  const std::string layer = "model.layers.0.";
  std::vector<TensorData> tensors = {dense("model.embed_tokens.weight", {kVocab, kWidth}),
                                     dense("model.norm.weight", {kWidth}),
                                     dense(layer + "input_layernorm.weight", {kWidth}),
                                     dense(layer + "post_attention_layernorm.weight", {kWidth}),
                                     dense(layer + "self_attn.q_proj.weight", {128, kWidth}),
                                     dense(layer + "self_attn.k_proj.weight", {128, kWidth}),
                                     dense(layer + "self_attn.v_proj.weight", {128, kWidth}),
                                     dense(layer + "self_attn.o_proj.weight", {kWidth, 128}),
                                     dense(layer + "mlp.gate_proj.weight", {64, kWidth}),
                                     dense(layer + "mlp.up_proj.weight", {64, kWidth}),
                                     dense(layer + "mlp.down_proj.weight", {kWidth, 64})};
  if (!tied) tensors.push_back(dense("lm_head.weight", {kVocab, kWidth}));
  write_safetensors((folder / "model.safetensors").string(), tensors);
  test::write_file(
      folder / "config.json",
      std::string(R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","dtype":"bfloat16",
    "num_hidden_layers":1,"hidden_size":2048,"intermediate_size":64,"num_attention_heads":1,"num_key_value_heads":1,
    "head_dim":128,"vocab_size":65536,"rms_norm_eps":1e-6,"hidden_act":"silu","tie_word_embeddings":)") +
          (tied ? "true}" : "false}"));
}

struct Measured {
  uint64_t before = 0, peak = 0, packed = 0;
};

// In a process of its own, because the peak of a process never sinks.
Measured load_in_child(const std::string& folder, size_t threads, bool whole_model) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    Measured m;
    try {
      const Checkpoint checkpoint = Checkpoint::open(folder);
      ThreadPool pool(threads);
      LayerOptions options;
      options.pool = &pool;
      m.before = resident_bytes();
      if (whole_model) {
        ModelOptions model_options;
        model_options.pool = &pool;
        model_options.shortlist = false;  // a copy of its own, which packed_bytes() does not count
        m.packed = DecoderModel::load(checkpoint, model_options)->packed_bytes();
      } else {
        m.packed =
            load_moe(checkpoint, checkpoint.moe_blocks()[0], options).experts->packed_bytes();
      }
      m.peak = peak_resident_bytes();
    } catch (const std::exception& e) {
      fprintf(stderr, "%s\n", e.what());
    }
    const bool written = write(ends[1], &m, sizeof m) == static_cast<ssize_t>(sizeof m);
    _exit(written ? 0 : 1);
  }
  Measured m;
  EXPECT_EQ(read(ends[0], &m, sizeof m), static_cast<ssize_t>(sizeof m));
  waitpid(child, nullptr, 0);
  close(ends[0]), close(ends[1]);
  return m;
}

TEST(LoadMemory, PackedWeightsAndOneExpertPerThread) {
  if (!test::plain_build()) GTEST_SKIP() << "sanitizers and emulators need memory of their own";
  const test::TempDir folder;
  if (fs::space(folder.path()).available < 2 * kExperts || available_memory_bytes() < 2 * kExperts)
    GTEST_SKIP() << "needs " << 2 * kExperts / 1000000 << " MB of disk and memory";
  write_folder(folder.path());
  for (const size_t threads : {1u, 2u}) {
    const Measured m = load_in_child(folder.path().string(), threads, false);
    ASSERT_GT(m.packed, uint64_t{2000000000});
    const uint64_t expert = kExperts / E,
                   allowed = m.before + m.packed + m.packed / 20 + threads * expert;
    EXPECT_LE(m.peak, allowed) << threads << " threads, packed " << m.packed;
    RecordProperty("factor", std::to_string(static_cast<double>(m.peak - m.before) /
                                            static_cast<double>(m.packed)));
    printf("peak above start / packed bytes: %.4f with %zu threads (packed %.2f GB)\n",
           static_cast<double>(m.peak - m.before) / static_cast<double>(m.packed), threads,
           static_cast<double>(m.packed) * 1e-9);
  }
}

TEST(LoadMemory, OutputProjectionIsNeverThereTwice) {
  if (!test::plain_build()) GTEST_SKIP() << "sanitizers and emulators need memory of their own";
  for (const bool tied : {false, true}) {
    const test::TempDir folder;
    if (fs::space(folder.path()).available < 3 * kHead || available_memory_bytes() < 4 * kHead)
      GTEST_SKIP() << "needs " << 4 * kHead / 1000000 << " MB of disk and memory";
    write_head_folder(folder.path(), tied);
    for (const size_t threads : {1u, 2u}) {
      const Measured m = load_in_child(folder.path().string(), threads, true);
      ASSERT_GT(m.packed, kHead);
      ASSERT_LT(m.packed, (tied ? 1 : 2) * kHead + kHead / 50);
      EXPECT_LE(m.peak, m.before + m.packed + m.packed / 20)
          << threads << " threads, tied " << tied << ", packed " << m.packed;
      printf("peak above start / packed bytes: %.4f with %zu threads, tied %d\n",
             static_cast<double>(m.peak - m.before) / static_cast<double>(m.packed), threads, tied);
    }
  }
}

}  // namespace
}  // namespace moebius::load_memory_test
