// SPDX-License-Identifier: Apache-2.0
#include "gguf/names.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"

namespace moebius {
namespace {

// Names of modules: outside the layers, and with "blk." of a layer. Behind the module's name the
// file has ".weight" or ".bias", as Hugging Face does; a name that ends in '!' is a whole tensor's.
// '*' stands for the number of an expert, or behind '/' of a head (checkpoint/gguf_latent.h), '|'
// separates matrices that lie one behind the other.
constexpr std::string_view kCommonNames =
    "token_embd=model.embed_tokens output_norm=model.norm output=lm_head "
    "blk.attn_norm=input_layernorm blk.ffn_norm=post_attention_layernorm "
    "blk.attn_q=self_attn.q_proj blk.attn_k=self_attn.k_proj blk.attn_v=self_attn.v_proj "
    "blk.attn_qkv=self_attn.q_proj|self_attn.k_proj|self_attn.v_proj "
    "blk.attn_output=self_attn.o_proj "
    "blk.attn_q_norm=self_attn.q_norm blk.attn_k_norm=self_attn.k_norm "
    "blk.ffn_gate=mlp.gate_proj blk.ffn_up=mlp.up_proj blk.ffn_down=mlp.down_proj "
    "blk.ffn_gate_inp=mlp.gate blk.exp_probs_b=mlp.gate.e_score_correction_bias! "
    "blk.ffn_gate_exps=mlp.experts.*.gate_proj blk.ffn_up_exps=mlp.experts.*.up_proj "
    "blk.ffn_down_exps=mlp.experts.*.down_proj "
    "blk.ffn_gate_up_exps=mlp.experts.*.gate_proj|mlp.experts.*.up_proj ";

constexpr std::string_view kSharedExpert =
    "blk.ffn_gate_shexp=mlp.shared_expert.gate_proj blk.ffn_up_shexp=mlp.shared_expert.up_proj "
    "blk.ffn_down_shexp=mlp.shared_expert.down_proj "
    "blk.ffn_gate_inp_shexp=mlp.shared_expert_gate ";
#define MOEBIUS_SHARED_EXPERTS                                                                   \
  "blk.ffn_gate_shexp=mlp.shared_experts.gate_proj blk.ffn_up_shexp=mlp.shared_experts.up_proj " \
  "blk.ffn_down_shexp=mlp.shared_experts.down_proj "

#define MOEBIUS_LATENT                                                              \
  "blk.attn_q_a=self_attn.q_a_proj blk.attn_q_a_norm=self_attn.q_a_layernorm "      \
  "blk.attn_q_b=self_attn.q_b_proj blk.attn_kv_a_mqa=self_attn.kv_a_proj_with_mqa " \
  "blk.attn_kv_a_norm=self_attn.kv_a_layernorm blk.attn_kv_b=self_attn.kv_b_proj "  \
  "blk.attn_k_b=self_attn.kv_b_proj/k.* blk.attn_v_b=self_attn.kv_b_proj/v.* "

constexpr GgufArchitecture kArchitectures[] = {
    {.name = "qwen3moe",
     .model_type = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .config = R"({"decoder_sparse_step": 1, "mlp_only_layers": []})",
     .normalized = true},
    {.name = "llama",
     .model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .experts = false,
     .pairs = true},
    {.name = "llama",
     .model_type = "mixtral",
     .architecture = "MixtralForCausalLM",
     .normalized = true,
     .pairs = true},
    {.name = "qwen3", .model_type = "qwen3", .architecture = "Qwen3ForCausalLM", .experts = false},
    {.name = "qwen2moe",
     .model_type = "qwen2_moe",
     .architecture = "Qwen2MoeForCausalLM",
     .names = kSharedExpert,
     .config = R"({"decoder_sparse_step": 1, "mlp_only_layers": []})"},
    {.name = "qwen2", .model_type = "qwen2", .architecture = "Qwen2ForCausalLM", .experts = false},
    {.name = "deepseek2",
     .model_type = "deepseek_v2",
     .architecture = "DeepseekV2ForCausalLM",
     .names = MOEBIUS_LATENT MOEBIUS_SHARED_EXPERTS},
    {.name = "deepseek2",
     .model_type = "deepseek_v3",
     .architecture = "DeepseekV3ForCausalLM",
     .names = MOEBIUS_LATENT MOEBIUS_SHARED_EXPERTS,
     .config = R"({"rope_interleave": true, "scoring_func": "sigmoid"})",
     .gate = GgufGate::kSigmoid},
    {.name = "glm4moe",
     .model_type = "glm4_moe",
     .architecture = "Glm4MoeForCausalLM",
     .names = "blk.post_attention_norm=post_attention_layernorm " MOEBIUS_SHARED_EXPERTS,
     .gate = GgufGate::kSigmoid},
    {.name = "gpt-oss",
     .model_type = "gpt_oss",
     .architecture = "GptOssForCausalLM",
     .names = "blk.post_attention_norm=post_attention_layernorm "
              "blk.attn_sinks=self_attn.sinks! blk.ffn_gate_inp=mlp.router ",
     .gate = GgufGate::kSoftmaxOfSelected,
     .window_pattern = 2,
     .yarn_truncates = false},
    {.name = "granitemoe",
     .model_type = "granitemoe",
     .architecture = "GraniteMoeForCausalLM",
     .gate = GgufGate::kSoftmaxOfSelected,
     .pairs = true},
    {.name = "olmoe", .model_type = "olmoe", .architecture = "OlmoeForCausalLM"},
    {.name = "minimax-m2",
     .model_type = "minimax_m2",
     .architecture = "MiniMaxM2ForCausalLM",
     .gate = GgufGate::kSigmoid,
     .normalized = true},
    {.name = "lfm2moe",
     .model_type = "lfm2_moe",
     .architecture = "Lfm2MoeForCausalLM",
     .names = "token_embd_norm=model.embedding_norm blk.attn_norm=operator_norm "
              "blk.ffn_norm=ffn_norm blk.attn_output=self_attn.out_proj "
              "blk.attn_q_norm=self_attn.q_layernorm blk.attn_k_norm=self_attn.k_layernorm "
              "blk.shortconv.conv=conv.conv blk.shortconv.in_proj=conv.in_proj "
              "blk.shortconv.out_proj=conv.out_proj blk.ffn_gate_inp=feed_forward.gate "
              "blk.exp_probs_b=feed_forward.expert_bias! blk.ffn_gate=feed_forward.w1 "
              "blk.ffn_up=feed_forward.w3 blk.ffn_down=feed_forward.w2 "
              "blk.ffn_gate_exps=feed_forward.experts.*.w1 "
              "blk.ffn_up_exps=feed_forward.experts.*.w3 "
              "blk.ffn_down_exps=feed_forward.experts.*.w2 ",
     .gate = GgufGate::kSigmoid,
     .normalized = true,
     .headless = "conv"},
};

// Names files that hold no model, which a value of their metadata tells.
struct Refusal {
  std::string_view key, values, what;
};
constexpr std::string_view kDraft = "a draft model for speculation, not a model";
constexpr std::string_view kEncoder = "a model that does not generate text token by token";
constexpr Refusal kRefusals[] = {
    {"general.type", "mmproj clip-vision",
     "an image encoder (mmproj) that belongs to a model; name the model's file"},
    {"general.type", "adapter", "a LoRA adapter, not a model; merge it with llama-export-lora"},
    {"general.type", "imatrix", "calibration data (imatrix), not a model"},
    {"general.architecture", "clip",
     "an image encoder (mmproj) that belongs to a model; name the model's file"},
    {"general.architecture", "controlvector", "a control vector, not a model"},
    {"general.architecture", "eagle3 dflash gemma4-assistant", kDraft},
    {"general.architecture",
     "dream llada llada-moe t5 t5encoder bert modern-bert nomic-bert nomic-bert-moe jina-bert-v2 "
     "neo-bert",
     kEncoder},
    {"general.architecture", "gptoss",
     "ollama's own gpt-oss file; take a GGUF of gpt-oss from Hugging Face"},
};

bool in_words(std::string_view list, std::string_view word) {
  for (size_t at = list.find(word); at != std::string_view::npos && !word.empty();
       at = list.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || list[at - 1] == ' ') && (end == list.size() || list[end] == ' ')) return true;
  }
  return false;
}

// Tensors that no step reads: a beginning of the name, or an end; and the reason.
struct Idle {
  std::string_view begin, end, reason;
};
constexpr std::string_view kPredictor = "belongs to a head that predicts tokens after the next";
constexpr std::string_view kTower = "belongs to a part for images or sound, which is not run";
constexpr Idle kIdle[] = {
    {"v.", "", kTower},
    {"mm.", "", kTower},
    {"a.", "", kTower},
    {"mtp.", "", kPredictor},
    {"", ".input_scale", "not used: activations are not quantized"},
    {"", ".attn_rot_embd", "the frequencies of the rotation are computed"},
    {"", ".attn_rot_embd.weight", "the frequencies of the rotation are computed"},
    {"token_types", "", "only encoders have types of tokens"},
    {"rope_freqs", "", "the rotation reads it as part of the configuration"},
    {"rope_factors_", "", "the rotation reads it as part of the configuration"},
};

// Returns the Hugging Face name in a list "gguf=hf ..."; empty: none.
std::string_view named(std::string_view list, std::string_view word) {
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(' ', at), list.size());
    const std::string_view entry = list.substr(at, end - at);
    const size_t equals = entry.find('=');
    if (entry.substr(0, equals) == word) return entry.substr(equals + 1);
    at = end + 1;
  }
  return {};
}

// Limits the memory that names take; a small file can claim many experts.
constexpr size_t kMostPieces = 262'144, kPiecesOfSmallFile = 4096, kBytesOfPiece = 512;

std::optional<uint64_t> number_at_start(std::string_view text) {
  uint64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end == text.data() || n > 65535) return std::nullopt;
  return n;
}

uint64_t member(const Json& config, std::string_view name, uint64_t otherwise = 0) {
  const Json* value = config.find(name);
  return value != nullptr && value->is_integer() ? value->as_uint() : otherwise;
}

class Namer {
 public:
  Namer(const Gguf& gguf, const Json& config)
      : gguf_(gguf),
        row_(architecture_of(gguf)),
        layers_(member(config, "num_hidden_layers")),
        experts_(member(config, "num_experts")),
        heads_(member(config, "num_attention_heads")),
        kv_heads_(member(config, "num_key_value_heads", heads_)),
        head_dim_(member(config, "head_dim")),
        value_dim_(member(config, "v_head_dim", head_dim_)) {
    for (const auto& file : gguf.files()) most_pieces_ += file->size() / kBytesOfPiece;
    most_pieces_ = std::min<uint64_t>(most_pieces_, kMostPieces);
  }

  GgufNames run() {
    for (const GgufTensor& t : gguf_.tensors())
      if (!idle(t)) place(t);
    return std::move(out_);
  }

 private:
  bool idle(const GgufTensor& t) {
    for (const Idle& i : kIdle)
      if ((i.begin.empty() || t.name.starts_with(i.begin)) && t.name.ends_with(i.end)) {
        out_.unused.push_back({&t, std::string(i.reason)});
        return true;
      }
    return false;
  }

  void place(const GgufTensor& t) {
    std::string_view rest = t.name;
    std::string stem, layer;
    if (rest.starts_with("blk.")) {
      const size_t dot = rest.find('.', 4);
      const auto number = number_at_start(rest.substr(4));
      if (!number || dot == std::string_view::npos) unknown(t);
      if (*number >= layers_) return out_.unused.push_back({&t, std::string(kPredictor)});
      layer = fmt::format("model.layers.{}.", *number);
      rest.remove_prefix(dot + 1);
      stem = "blk.";
    }
    const size_t dot = rest.rfind('.');
    stem += rest.substr(0, dot);
    std::string_view suffix = dot == std::string_view::npos ? "" : rest.substr(dot + 1);
    if (suffix == "scale") suffix = "weight_global_scale";
    // Mixtral's first files have a tensor for each expert: "ffn_gate.7".
    const size_t inner = stem.rfind('.');
    const auto expert = number_at_start(std::string_view(stem).substr(inner + 1));
    std::string one;
    if (expert && inner > 4) {
      one = std::to_string(*expert);
      stem = stem.substr(0, inner) + "_exps";
    }
    std::string_view name = named(row_.names, stem);
    if (name.empty()) name = named(kCommonNames, stem);
    if (name.empty()) unknown(t);
    const bool stacked = name.find('*') != std::string_view::npos && one.empty();
    const bool heads = name.find('/') != std::string_view::npos;  // kv_b, cut by heads
    const uint64_t copies = !stacked ? 1 : heads ? heads_ : experts_;
    if (stacked && (t.shape.size() < 2 || t.shape[0] != copies) &&
        !(suffix == "weight_global_scale" && t.shape == std::vector{copies}))
      wrong(t, fmt::format("{} {} in the first dimension", copies, heads ? "heads" : "experts"));
    if (out_.pieces.size() + copies > most_pieces_)
      wrong(t, fmt::format("a model of at most {} matrices in a file of this size", most_pieces_));
    const std::vector<std::string_view> parts = split(name);
    const std::vector<uint64_t> rows = rows_of(t, parts.size(), stacked ? 1 : 0);
    const uint64_t each = t.bytes / copies;
    for (uint64_t e = 0; e < copies; ++e) {
      uint64_t at = e * each;
      for (size_t p = 0; p < parts.size(); ++p) {
        GgufPiece piece;
        piece.tensor = &t;
        piece.shape.assign(t.shape.begin() + (stacked ? 1 : 0), t.shape.end());
        if (piece.shape.empty()) piece.shape = {1};
        piece.bytes = each;
        if (parts.size() > 1) {
          piece.bytes = each / piece.shape[0] * rows[p];
          piece.shape[0] = rows[p];
        }
        piece.offset = at;
        at += piece.bytes;
        piece.name = layer + std::string(parts[p]);
        const std::string number = one.empty() ? std::to_string(e) : one;
        if (const size_t star = piece.name.find('*'); star != std::string::npos)
          piece.name.replace(star, 1, number);
        if (piece.name.ends_with('!'))
          piece.name.pop_back();
        else
          piece.name += fmt::format(".{}", suffix);
        finish(piece);
        out_.pieces.push_back(std::move(piece));
      }
    }
  }

  // Sets the order of rows, and dimensions that the file leaves out.
  void finish(GgufPiece& piece) const {
    if (piece.name.ends_with("shared_expert_gate.weight") && piece.shape.size() == 1)
      piece.shape.insert(piece.shape.begin(), 1);
    if (piece.name.ends_with("conv.conv.weight") && piece.shape.size() == 2)
      piece.shape.insert(piece.shape.begin() + 1, 1);
    const bool q = piece.name.find(".q_proj.") != std::string::npos,
               k = piece.name.find(".k_proj.") != std::string::npos;
    if (!row_.pairs || !(q || k) || piece.name.ends_with("global_scale")) return;
    if (piece.shape[0] != (q ? heads_ : kv_heads_) * head_dim_)
      wrong(*piece.tensor, fmt::format("{} rows", (q ? heads_ : kv_heads_) * head_dim_));
    piece.order = {0, 2, static_cast<uint32_t>(head_dim_ / 2), 1};
  }

  static std::vector<std::string_view> split(std::string_view name) {
    std::vector<std::string_view> parts;
    for (size_t at = 0; at <= name.size();) {
      const size_t end = std::min(name.find('|', at), name.size());
      parts.push_back(name.substr(at, end - at));
      at = end + 1;
    }
    return parts;
  }

  // Returns the rows of each matrix in a tensor that holds q, k and v, or gate and up.
  std::vector<uint64_t> rows_of(const GgufTensor& t, size_t parts, size_t dimension) const {
    if (parts == 1) return {0};
    const uint64_t all = dimension < t.shape.size() ? t.shape[dimension] : 0;
    std::vector<uint64_t> rows(parts, all / parts);
    if (parts == 3) rows = {heads_ * head_dim_, kv_heads_ * head_dim_, kv_heads_ * value_dim_};
    uint64_t sum = 0;
    for (const uint64_t r : rows) sum += r;
    if (sum == all && all > 0) return rows;
    wrong(t, parts == 2 ? std::string("an even number of rows")
                        : fmt::format("{} + {} + {} rows", rows[0], rows[1], rows[2]));
  }

  [[noreturn]] void wrong(const GgufTensor& t, const std::string& expected) const {
    std::string shape;
    for (const uint64_t d : t.shape) shape += fmt::format("{}{}", shape.empty() ? "" : ",", d);
    fail_at({"file", gguf_.files()[t.part]->path(), t.name, "", ""},
            "{}: {} is {}[{}]; expected {}", printable(gguf_.files()[t.part]->path()),
            printable(t.name), t.type->name, shape, expected);
  }
  [[noreturn]] void unknown(const GgufTensor& t) const {
    fail_at({"file", gguf_.files()[t.part]->path(), t.name, "", ""},
            "{}: tensor '{}' cannot be placed: a model of architecture '{}' has none of this name",
            printable(gguf_.files()[t.part]->path()), printable(t.name), row_.name);
  }

  const Gguf& gguf_;
  const GgufArchitecture& row_;
  uint64_t layers_, experts_, heads_, kv_heads_, head_dim_, value_dim_;
  uint64_t most_pieces_ = kPiecesOfSmallFile;
  GgufNames out_;
};

}  // namespace

const GgufArchitecture& architecture_of(const Gguf& gguf) {
  const GgufMetadata& m = gguf.metadata();
  const auto refuse = [&](std::string_view what) {
    fail_at({"unsupported", gguf.path(), "", "", ""}, "{}: {}", printable(gguf.path()), what);
  };
  for (const Refusal& r : kRefusals)
    if (const auto value = m.text(r.key); value && in_words(r.values, *value)) refuse(r.what);
  if (m.find("adapter.type") != nullptr)
    refuse("a LoRA adapter, not a model; merge it with llama-export-lora");
  const auto name = m.text("general.architecture");
  if (!name) m.refuse("general.architecture", "the architecture of a model");
  if (gguf.tensors().empty()) refuse("a tokenizer without weights, not a model");
  if (m.flag(fmt::format("{}.attention.causal", *name)) == false) refuse(kEncoder);
  if (gguf.find("token_embd.weight") != nullptr && gguf.find("blk.0.attn_norm.weight") == nullptr &&
      std::any_of(gguf.tensors().begin(), gguf.tensors().end(),
                  [](const GgufTensor& t) { return t.name.find(".nextn.") != std::string::npos; }))
    refuse("a draft head, not a model");
  const bool experts = m.count(fmt::format("{}.expert_count", *name), 65536).value_or(0) > 0;
  const bool sigmoid =
      m.count(fmt::format("{}.expert_gating_func", *name), 255).value_or(0) == 2 ||
      std::any_of(gguf.tensors().begin(), gguf.tensors().end(), [](const GgufTensor& t) {
        return t.name.find(".exp_probs_b") != std::string::npos;
      });
  const GgufArchitecture* found = nullptr;
  for (const GgufArchitecture& row : kArchitectures)
    if (row.name == *name && (found == nullptr || (row.experts == experts &&
                                                   (row.gate == GgufGate::kSigmoid) == sigmoid)))
      found = &row;
  if (found == nullptr)
    refuse(fmt::format("architecture '{}' of this GGUF cannot be run; `moebius help architectures`",
                       printable(*name, 60)));
  return *found;
}

GgufNames name_tensors(const Gguf& gguf, const Json& config) { return Namer(gguf, config).run(); }

}  // namespace moebius
