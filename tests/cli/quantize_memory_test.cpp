// SPDX-License-Identifier: Apache-2.0
// Memory of `quantize`: a source that is larger than the forecast, with and without calibration, stays
// within the forecast plus a tenth.
#include <gtest/gtest.h>

#include <deque>

#include "base/json.h"
#include "base/random.h"
#include "checkpoint/safetensors.h"
#include "unit/checkpoint/checkpoint_util.h"

namespace moebius::quantize_memory_test {
namespace {

using test::CommandResult;
using test::run_tool;
using test::shell_quote;

// A Qwen3-MoE model of many layers: 12 of about 13 MB.
class LayeredFolder {
 public:
  explicit LayeredFolder(const test::TempDir& dir) {
    constexpr size_t kLayers = 12, kExperts = 16, kHidden = 512, kInner = 256, kHead = 64;
    test::write_file(dir / "src/config.json",
                     R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
      "dtype": "bfloat16", "hidden_size": 512, "head_dim": 64, "num_attention_heads": 4,
      "num_key_value_heads": 2, "intermediate_size": 512, "moe_intermediate_size": 256,
      "num_experts": 16, "num_experts_per_tok": 2, "num_hidden_layers": 12, "vocab_size": 64,
      "max_position_embeddings": 256, "rms_norm_eps": 1e-06, "norm_topk_prob": true,
      "hidden_act": "silu", "decoder_sparse_step": 1, "mlp_only_layers": [],
      "tie_word_embeddings": true, "rope_theta": 10000.0})");
    add("model.embed_tokens.weight", {64, kHidden});
    add("model.norm.weight", {kHidden});
    for (size_t l = 0; l < kLayers; ++l) {
      const std::string at = "model.layers." + std::to_string(l) + ".";
      for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
        add(at + norm + ".weight", {kHidden});
      for (const char* norm : {"q_norm", "k_norm"})
        add(at + "self_attn." + norm + ".weight", {kHead});
      add(at + "self_attn.q_proj.weight", {4 * kHead, kHidden});
      for (const char* kv : {"k_proj", "v_proj"})
        add(at + "self_attn." + kv + ".weight", {2 * kHead, kHidden});
      add(at + "self_attn.o_proj.weight", {kHidden, 4 * kHead});
      add(at + "mlp.gate.weight", {kExperts, kHidden});
      for (size_t e = 0; e < kExperts; ++e) {
        const std::string expert = at + "mlp.experts." + std::to_string(e) + ".";
        for (const char* in : {"gate_proj", "up_proj"})
          add(expert + in + ".weight", {kInner, kHidden});
        add(expert + "down_proj.weight", {kHidden, kInner});
      }
    }
    write_safetensors((dir / "src/model.safetensors").string(), tensors_);
    std::string lines;
    for (size_t i = 0; i < 256; ++i)
      lines += (i % 64 == 0 ? "{\"input_ids\": [" : ", ") + std::to_string(random_.below(64)) +
               (i % 64 == 63 ? "]}\n" : "");
    test::write_file(dir / "t.jsonl", lines);
  }

 private:
  void add(const std::string& name, std::vector<uint64_t> shape) {
    size_t n = 1;
    for (const uint64_t d : shape) n *= d;
    std::vector<uint16_t>& data = data_.emplace_back(n);
    for (uint16_t& v : data) {  // around +-0.03 (norms about 1)
      const auto bits = static_cast<uint16_t>(random_.below(256));
      v = static_cast<uint16_t>(shape.size() == 1 ? 0x3f80
                                                  : 0x3c80 | (bits & 0x7f) | (bits & 0x80) << 8);
    }
    tensors_.push_back({name,
                        DType::kBf16,
                        std::move(shape),
                        {reinterpret_cast<const uint8_t*>(data.data()), 2 * n}});
  }
  SplitMix64 random_{7};
  std::deque<std::vector<uint16_t>> data_;
  std::vector<TensorData> tensors_;
};

TEST(QuantizeMemory, StaysWithinTheForecast) {
  const test::TempDir dir;
  { const LayeredFolder made(dir); }
  for (const char* how : {"W8A8", "FP8 --method rtn --calib-ctx 64 --calib ",
                          "W4A16 --method search --calib-ctx 64 --calib ",
                          "W4A16 --method gptq --min-rows 0 --calib-ctx 64 --calib "}) {
    SCOPED_TRACE(how);
    const std::string calib =
        std::string(how).ends_with("--calib ") ? shell_quote((dir / "t.jsonl").string()) : "";
    const CommandResult r = run_tool("quantize " + shell_quote((dir / "src").string()) + " " +
                                     shell_quote((dir / "out").string()) +
                                     " --overwrite -q --json --threads 2 --scheme " + how + calib);
    ASSERT_EQ(r.status, 0) << r.err;
    const Json j = parse_json(r.out, "quantize");
    const double forecast = j.find("memory")->as_double(),
                 peak = j.find("memory_peak")->as_double();
    EXPECT_LT(1.1 * forecast, j.find("bytes_in")->as_double());  // else it says nothing
    if (test::plain_build()) {  // sanitizers need memory of their own
      EXPECT_LE(peak, 1.1 * forecast);
    }
    EXPECT_GT(peak, 0);
  }
}

}  // namespace
}  // namespace moebius::quantize_memory_test
