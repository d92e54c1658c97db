// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>

#include "apps/bench_command.h"
#include "apps/cli/interrupt.h"
#include "base/error.h"
#include "base/json.h"
#include "bench/bench_synthetic.h"
#include "checkpoint/folder_write.h"
#include "checkpoint/safetensors.h"

namespace moebius {
namespace {

namespace fs = std::filesystem;

constexpr size_t kGroup = 128;

struct Sizes {
  std::string_view name;
  size_t hidden, heads, kv_heads, head_dim, experts, top_k, width, shared, vocabulary;
  size_t query_latent, latent, nope, rope;  // sizes of latent attention; 0: attention has heads
  size_t layers;                            // layers of the published model
};
constexpr Sizes kSizes[] = {
    {"qwen3-30b", 2048, 32, 4, 128, 128, 8, 768, 0, 151936, 0, 0, 0, 0, 48},
    {"deepseek-v3", 7168, 128, 128, 128, 256, 8, 2048, 1, 129280, 1536, 512, 128, 64, 61},
};

const Sizes& sizes_of(std::string_view name) {
  for (const Sizes& s : kSizes)
    if (s.name == name) return s;
  fail("--synthetic {}: unknown; known: {}", printable(name), fmt::join(bench_model_names(), ", "));
}

Json arguments_of(uint64_t bits, bool weights) {
  Json j = Json::object({{"num_bits", bits}, {"type", "int"}, {"symmetric", true}});
  j.set("strategy", weights ? "group" : "token"), j.set("dynamic", !weights);
  if (weights) j.set("group_size", kGroup);
  return j;
}

Json config_of(const Sizes& s, size_t layers, size_t vocabulary) {
  const bool latents = s.latent != 0;
  Json c =
      Json::object({{"dtype", "bfloat16"}, {"hidden_act", "silu"}, {"tie_word_embeddings", false}});
  Json architectures = Json::array();
  architectures.push(latents ? "DeepseekV3ForCausalLM" : "Qwen3MoeForCausalLM");
  c.set("architectures", std::move(architectures));
  c.set("model_type", latents ? "deepseek_v3" : "qwen3_moe");
  c.set("attention_bias", false), c.set("norm_topk_prob", true), c.set("rms_norm_eps", 1e-6);
  c.set("rope_theta", latents ? 10000.0 : 1000000.0);
  const auto number = [&](const char* key, size_t value) { c.set(key, value); };
  number("hidden_size", s.hidden), number("num_attention_heads", s.heads),
      number("num_key_value_heads", s.kv_heads);
  number("num_hidden_layers", layers), number("vocab_size", vocabulary),
      number("max_position_embeddings", 32768);
  number("num_experts_per_tok", s.top_k), number("moe_intermediate_size", s.width),
      number("intermediate_size", s.width);
  if (latents) {
    number("n_routed_experts", s.experts), number("n_shared_experts", s.shared),
        number("first_k_dense_replace", 0);
    number("n_group", 8), number("topk_group", 4), number("q_lora_rank", s.query_latent),
        number("kv_lora_rank", s.latent);
    number("qk_nope_head_dim", s.nope), number("qk_rope_head_dim", s.rope),
        number("v_head_dim", s.head_dim);
    c.set("routed_scaling_factor", 2.5), c.set("scoring_func", "sigmoid"),
        c.set("topk_method", "noaux_tc");
  } else {
    number("num_experts", s.experts), number("head_dim", s.head_dim),
        number("decoder_sparse_step", 1);
    c.set("mlp_only_layers", Json::array());
  }
  Json targets = Json::array(), ignore = Json::array();
  targets.push("Linear");
  // kv_b_proj is not quantized, so that latents are absorbed.
  for (const char* pattern : {"lm_head", "re:.*mlp.gate$", "re:.*kv_b_proj$"}) ignore.push(pattern);
  Json group = Json::object({{"format", "pack-quantized"}});
  group.set("targets", std::move(targets));
  group.set("weights", arguments_of(4, true)),
      group.set("input_activations", arguments_of(8, false));
  Json q = Json::object({{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}});
  q.set("config_groups", Json::object({{"group_0", std::move(group)}}));
  q.set("ignore", std::move(ignore));
  c.set("quantization_config", std::move(q));
  return c;
}

// Writes the tensors of one file from a few pools of random bytes.
class RandomTensors {
 public:
  RandomTensors()
      : codes_(size_t{1} << 25),
        numbers_(size_t{1} << 25),
        scales_(size_t{1} << 24),
        ones_(1 << 16) {
    BenchRandom random(1);
    for (size_t i = 0; i + 8 <= codes_.size(); i += 8) {
      const uint64_t v = random.next();
      std::memcpy(codes_.data() + i, &v, 8);
    }
    // bf16 numbers around 0.03 of both signs: a random low byte, and one of four high bytes. Scales
    // are 2^-12: rows stay near their tokens' rows, which spread over all experts.
    constexpr uint8_t kHigh[] = {0x3C, 0xBC, 0x3D, 0xBD};
    for (size_t i = 0; i < numbers_.size(); i += 2) {
      numbers_[i] = codes_[i];
      numbers_[i + 1] = kHigh[codes_[i + 1] % 4];
    }
    fill(scales_, 0x3980), fill(ones_, 0x3F80);
  }
  void write(const std::string& folder, const std::string& file) {
    write_safetensors(folder + "/" + file, tensors_);
    for (const TensorData& t : tensors_) {
      files_.set(t.name, file);
      bytes_ += t.data.size();
    }
    tensors_.clear(), own_.clear();
  }
  // Returns the index of which tensor is in which file.
  Json index() const {
    Json j = Json::object();
    j.set("metadata", Json::object({{"total_size", bytes_}})), j.set("weight_map", files_);
    return j;
  }
  void numbers(std::string name, size_t rows, size_t cols) {
    add(name + ".weight", DType::kBf16, {rows, cols}, numbers_);
  }
  void ones(std::string name, size_t n) { add(name + ".weight", DType::kBf16, {n}, ones_); }
  void zeros(std::string name, size_t n) {
    own_.push_back(std::vector<uint8_t>(n * 4));
    tensors_.push_back({std::move(name), DType::kF32, {n}, own_.back()});
  }
  void int4(const std::string& name, size_t outputs, size_t inputs) {
    add(name + ".weight_packed", DType::kI32, {outputs, inputs / 8}, codes_);
    add(name + ".weight_scale", DType::kBf16, {outputs, inputs / kGroup}, scales_);
    const int64_t shape[] = {static_cast<int64_t>(outputs), static_cast<int64_t>(inputs)};
    own_.emplace_back(sizeof shape);
    std::memcpy(own_.back().data(), shape, sizeof shape);
    tensors_.push_back({name + ".weight_shape", DType::kI64, {2}, own_.back()});
  }

 private:
  static void fill(std::vector<uint8_t>& to, uint16_t number) {
    for (size_t i = 0; i < to.size(); i += 2) {
      to[i] = static_cast<uint8_t>(number & 255);
      to[i + 1] = static_cast<uint8_t>(number >> 8);
    }
  }
  // Adds a tensor whose bytes are taken from the pool, repeatedly if it is shorter.
  void add(std::string name, DType dtype, std::vector<uint64_t> shape,
           const std::vector<uint8_t>& pool) {
    size_t bytes = bits_of(dtype) / 8;
    for (const uint64_t n : shape) bytes *= n;
    const size_t at = random_.below(pool.size() / 4) * 2;
    if (at + bytes <= pool.size()) {
      tensors_.push_back(
          {std::move(name), dtype, std::move(shape), std::span(pool).subspan(at, bytes)});
      return;
    }
    std::vector<uint8_t>& out = own_.emplace_back(bytes);
    for (size_t done = 0; done < bytes;) {
      const size_t n = std::min(bytes - done, pool.size());
      std::memcpy(out.data() + done, pool.data(), n);
      done += n;
    }
    tensors_.push_back({std::move(name), dtype, std::move(shape), out});
  }
  std::vector<uint8_t> codes_, numbers_, scales_, ones_;
  std::vector<std::vector<uint8_t>> own_;
  std::vector<TensorData> tensors_;
  Json files_ = Json::object();
  uint64_t bytes_ = 0;
  BenchRandom random_{2};
};

void add_layer(RandomTensors& t, const Sizes& s, size_t layer) {
  const std::string p = fmt::format("model.layers.{}.", layer), a = p + "self_attn.",
                    m = p + "mlp.";
  t.ones(p + "input_layernorm", s.hidden), t.ones(p + "post_attention_layernorm", s.hidden);
  if (s.latent != 0) {
    t.int4(a + "q_a_proj", s.query_latent, s.hidden), t.ones(a + "q_a_layernorm", s.query_latent);
    t.int4(a + "q_b_proj", s.heads * (s.nope + s.rope), s.query_latent);
    t.int4(a + "kv_a_proj_with_mqa", s.latent + s.rope, s.hidden),
        t.ones(a + "kv_a_layernorm", s.latent);
    t.numbers(a + "kv_b_proj", s.heads * (s.nope + s.head_dim), s.latent);
    t.zeros(m + "gate.e_score_correction_bias", s.experts);
  } else {
    t.ones(a + "q_norm", s.head_dim), t.ones(a + "k_norm", s.head_dim);
    t.int4(a + "q_proj", s.heads * s.head_dim, s.hidden),
        t.int4(a + "k_proj", s.kv_heads * s.head_dim, s.hidden);
    t.int4(a + "v_proj", s.kv_heads * s.head_dim, s.hidden);
  }
  t.int4(a + "o_proj", s.hidden, s.heads * s.head_dim);
  t.numbers(m + "gate", s.experts, s.hidden);
  const auto expert = [&](const std::string& name, size_t width) {
    t.int4(name + ".gate_proj", width, s.hidden), t.int4(name + ".up_proj", width, s.hidden);
    t.int4(name + ".down_proj", s.hidden, width);
  };
  if (s.shared > 0) expert(m + "shared_experts", s.shared * s.width);
  for (size_t e = 0; e < s.experts; ++e) expert(fmt::format("{}experts.{}", m, e), s.width);
}

std::string temporary_folder() {
  const char* base = std::getenv("TMPDIR");
  std::string path =
      fmt::format("{}/moebius-synthetic.XXXXXX", base != nullptr && *base != 0 ? base : "/tmp");
  if (mkdtemp(path.data()) == nullptr)
    fail("{}: cannot be made: {}", printable(path), std::strerror(errno));
  return path;
}

}  // namespace

size_t synthetic_layers(std::string_view name) { return sizes_of(name).layers; }

SyntheticFolder::SyntheticFolder(std::string_view name, size_t layers, size_t vocabulary,
                                 size_t experts) {
  Sizes s = sizes_of(name);
  if (experts != 0) s.experts = experts;
  if (vocabulary == 0) vocabulary = s.vocabulary;
  root_ = temporary_folder();
  path_ = fmt::format("{}/{}-{}", root_, name, layers);
  try {
    make_folder(path_);
    RandomTensors t;
    t.numbers("model.embed_tokens", vocabulary, s.hidden),
        t.numbers("lm_head", vocabulary, s.hidden);
    t.ones("model.norm", s.hidden);
    t.write(path_, "model-ends.safetensors");
    for (size_t i = 0; i < layers && !interrupt_seen(); ++i) {
      add_layer(t, s, i);
      t.write(path_, fmt::format("model-{}.safetensors", i));
    }
    write_text_file(path_ + "/model.safetensors.index.json", t.index().dump());
    write_text_file(path_ + "/config.json", config_of(s, layers, vocabulary).dump());
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
    throw;
  }
}

SyntheticFolder::~SyntheticFolder() {
  std::error_code ignored;
  fs::remove_all(root_, ignored);
}

}  // namespace moebius
