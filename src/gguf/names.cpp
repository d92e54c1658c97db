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
// separates matrices that lie one behind the other, '$' and '@' stand for the row's names. In layers
// with a recurrent net a name with "ssm." in place of "blk." goes first.
constexpr std::string_view kCommonNames =
    "token_embd=model.embed_tokens output_norm=model.norm output=lm_head "
    "blk.attn_norm=input_layernorm blk.ffn_norm=post_attention_layernorm "
    "blk.attn_q=self_attn.q_proj blk.attn_k=self_attn.k_proj blk.attn_v=self_attn.v_proj "
    "blk.attn_qkv=self_attn.q_proj|self_attn.k_proj|self_attn.v_proj "
    "blk.attn_output=self_attn.o_proj blk.attn_sinks=self_attn.sinks! "
    "blk.attn_q_norm=self_attn.q_norm blk.attn_k_norm=self_attn.k_norm "
    "blk.attn_q_a=self_attn.q_a_proj blk.attn_q_a_norm=self_attn.q_a_layernorm "
    "blk.attn_q_b=self_attn.q_b_proj blk.attn_kv_a_mqa=self_attn.kv_a_proj_with_mqa "
    "blk.attn_kv_a_norm=self_attn.kv_a_layernorm blk.attn_kv_b=self_attn.kv_b_proj "
    "blk.attn_k_b=self_attn.kv_b_proj/k.* blk.attn_v_b=self_attn.kv_b_proj/v.* "
    "blk.indexer.attn_k=self_attn.indexer.wk blk.indexer.attn_q_b=self_attn.indexer.wq_b "
    "blk.indexer.k_norm=self_attn.indexer.k_norm blk.indexer.proj=self_attn.indexer.weights_proj "
    "blk.ffn_gate=mlp.gate_proj blk.ffn_up=mlp.up_proj blk.ffn_down=mlp.down_proj "
    "blk.ffn_gate_inp=mlp.gate blk.exp_probs_b=mlp.gate.e_score_correction_bias! "
    "blk.ffn_gate_exps=mlp.experts.*.gate_proj blk.ffn_up_exps=mlp.experts.*.up_proj "
    "blk.ffn_down_exps=mlp.experts.*.down_proj "
    "blk.ffn_gate_up_exps=mlp.experts.*.gate_proj|mlp.experts.*.up_proj "
    "blk.ffn_gate_shexp=mlp.$.gate_proj blk.ffn_up_shexp=mlp.$.up_proj "
    "blk.ffn_down_shexp=mlp.$.down_proj blk.ffn_gate_inp_shexp=mlp.$_gate "
    "blk.ssm_in=@.in_proj blk.ssm_out=@.out_proj blk.ssm_conv1d=@.conv1d blk.ssm_norm=@.norm "
    "blk.ssm_a=@.A_log! blk.ssm_d=@.D! blk.ssm_dt=@.dt_bias! ";

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
        key_heads_(member(config, "linear_num_key_heads")),
        value_heads_(member(config, "linear_num_value_heads")),
        key_width_(member(config, "linear_key_head_dim")),
        value_width_(member(config, "linear_value_head_dim")),
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
    bool recurrent = false;
    if (rest.starts_with("blk.")) {
      const size_t dot = rest.find('.', 4);
      const auto number = number_at_start(rest.substr(4));
      if (!number || dot == std::string_view::npos) unknown(t);
      if (*number >= layers_) return out_.unused.push_back({&t, std::string(kPredictor)});
      layer = fmt::format("model.layers.{}.", *number);
      recurrent = is_recurrent(gguf_, *number);
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
    const std::string whole =
        fmt::format("{}.{}", stem, rest.substr(std::min(dot + 1, rest.size())));
    std::string_view name = named(row_.names, whole);
    if (name.empty() && recurrent) name = named(row_.names, "ssm." + stem.substr(4));
    if (name.empty()) name = named(row_.names, stem);
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
        const auto put = [&](char sign, std::string_view word) {
          if (const size_t place = piece.name.find(sign); place != std::string::npos)
            piece.name.replace(place, 1, word);
        };
        put('*', number);
        put('$', row_.shared);
        put('@', row_.state);
        if (piece.name.ends_with('!'))
          piece.name.pop_back();
        else
          piece.name += fmt::format(".{}", suffix);
        finish(piece);
        out_.pieces.push_back(std::move(piece));
      }
    }
  }

  // Sets the order of rows and columns, changes of numbers, and dimensions that the file leaves out.
  void finish(GgufPiece& piece) const {
    const auto ends = [&](std::string_view end) { return piece.name.ends_with(end); };
    if (ends("shared_expert_gate.weight") && piece.shape.size() == 1)
      piece.shape.insert(piece.shape.begin(), 1);
    if ((ends("conv.weight") || ends("conv1d.weight")) && piece.shape.size() == 2)
      piece.shape.insert(piece.shape.begin() + 1, 1);
    if (ends("layer_scalar")) piece.shape = {1};
    if (row_.plus_one && ends("norm.weight") && !ends("linear_attn.norm.weight"))
      piece.change = NumberChange::kPlusOne;
    if (ends("A_log")) piece.change = NumberChange::kExponential;
    if (piece.change != NumberChange::kNone && piece.tensor->type->name != "F32")
      wrong(*piece.tensor, "type F32");
    if (key_heads_ > 0 && value_heads_ > 0 && value_heads_ % key_heads_ == 0)
      order_value_heads(piece);
    const bool q = piece.name.find(".q_proj.") != std::string::npos,
               k = piece.name.find(".k_proj.") != std::string::npos;
    if (!row_.pairs || !(q || k) || ends("global_scale")) return;
    if (piece.shape[0] % head_dim_ != 0)
      wrong(*piece.tensor, fmt::format("a multiple of {} rows", head_dim_));
    piece.order = {0, 2, static_cast<uint32_t>(head_dim_ / 2), 1};
  }

  // Sets the orders of linear attention: value heads of Qwen3.5 are tiled; Qwen3-Next has b and a of
  // each key head together.
  void order_value_heads(GgufPiece& piece) const {
    const auto ends = [&](std::string_view end) {
      return piece.name.ends_with(fmt::format("linear_attn.{}", end));
    };
    const auto heads = static_cast<uint32_t>(key_heads_),
               each = static_cast<uint32_t>(value_heads_ / key_heads_),
               width = static_cast<uint32_t>(value_width_),
               keys = static_cast<uint32_t>(2 * key_heads_ * key_width_);
    const bool b = ends("in_proj_b.weight"), a = ends("in_proj_a.weight");
    if (!row_.tiled && (a || b)) {
      if (piece.shape[0] != value_heads_)
        wrong(*piece.tensor, fmt::format("{} rows", 2 * value_heads_));
      piece.offset = 0;
      piece.order = {0, 2, heads, each, a ? static_cast<uint32_t>(value_heads_) : 0};
    }
    if (!row_.tiled) return;
    if (a || b || ends("A_log") || ends("dt_bias")) piece.order = {0, heads, each, 1};
    if (ends("in_proj_z.weight")) piece.order = {0, heads, each, width};
    if (ends("in_proj_qkv.weight") || ends("conv1d.weight"))
      piece.order = {keys, heads, each, width};
    if (ends("out_proj.weight")) piece.columns = {0, heads, each, width};
    const uint64_t rows =
        piece.order.first + uint64_t{piece.order.outer} * piece.order.inner * piece.order.width;
    if (piece.order && piece.shape[0] != rows) wrong(*piece.tensor, fmt::format("{} rows", rows));
    if (piece.columns && piece.shape.back() != value_heads_ * width)
      wrong(*piece.tensor, fmt::format("{} columns", value_heads_ * width));
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
    if (parts == 3) {  // q may have gates beside its features
      rows = {0, kv_heads_ * head_dim_, kv_heads_ * value_dim_};
      rows[0] = all - std::min(all, rows[1] + rows[2]);
      if (rows[0] != 0 && rows[0] % (heads_ * head_dim_) == 0) return rows;
    } else if (all > 0 && all % 2 == 0) {
      return rows;
    }
    wrong(t, parts == 2 ? std::string("an even number of rows")
                        : fmt::format("{} + {} + {} rows", heads_ * head_dim_, rows[1], rows[2]));
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
            printable(gguf_.files()[t.part]->path()), printable(t.name),
            gguf_.metadata().text("general.architecture").value_or(""));
  }

  const Gguf& gguf_;
  const GgufArchitecture& row_;
  uint64_t layers_, experts_, heads_;
  uint64_t key_heads_, value_heads_, key_width_, value_width_;  // of linear attention
  uint64_t kv_heads_, head_dim_, value_dim_;
  uint64_t most_pieces_ = kPiecesOfSmallFile;
  GgufNames out_;
};

}  // namespace

GgufNames name_tensors(const Gguf& gguf, const Json& config) { return Namer(gguf, config).run(); }

}  // namespace moebius
