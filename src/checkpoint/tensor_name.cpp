// SPDX-License-Identifier: Apache-2.0
// Parses tensor names from left to right: wrapper prefix, layer, MLP or MoE block, expert,
// projection, role. The registry says which words may stand where; an unknown family may use the
// words of every family.
#include "checkpoint/tensor_name.h"

#include <array>

#include "base/error.h"
#include "checkpoint/methods/method.h"
#include "checkpoint/no_output.h"
#include "checkpoint/token_table.h"

namespace moebius {
namespace {

// Words of a wrapper's other towers, found in the first two components of a name.
constexpr std::string_view kOtherTowers =
    "visual vision_tower vision_model vision_encoder vision_embed_tokens multi_modal_projector "
    "mm_projector "
    "vision_projection audio_tower audio_model embed_vision embed_audio audio_projector "
    "image_newline patch_merger "
    "vision_adapter img_projection vision_language_adapter vit_large_projector projector "
    "pre_mm_projector_norm view_seperator sam_model qwen2_model resampler_model audio talker "
    "code2wav";
constexpr std::string_view kCacheScales =
    "k_scale v_scale q_scale kv_scale qk_scale prob_scale k_zero_point v_zero_point q_zero_point "
    "k_global_scale "
    "v_global_scale q_global_scale";
// Suffixes of other quantization formats, and the formats' names.
struct ForeignSuffix {
  std::string_view suffix, what;
};
constexpr std::array kForeign = {
    ForeignSuffix{"qweight", "GPTQ or AWQ"},
    ForeignSuffix{"qzeros", "GPTQ or AWQ"},
    ForeignSuffix{"scales", "GPTQ or AWQ"},
    ForeignSuffix{"g_idx", "GPTQ"},
    ForeignSuffix{"weight_scale_inv", "native block FP8"},
    ForeignSuffix{"weight_scale_2", "ModelOpt"},
    ForeignSuffix{"absmax", "bitsandbytes"},
    ForeignSuffix{"quant_map", "bitsandbytes"},
    ForeignSuffix{"scale_packed", "marlin-24"},
    ForeignSuffix{"meta", "marlin-24"},
    ForeignSuffix{"compressed", "sparse-bitmask"},
    ForeignSuffix{"bitmask", "sparse-bitmask"},
    ForeignSuffix{"row_offsets", "sparse-bitmask"},
};

struct HeadTail {
  std::string_view head, tail;
};
HeadTail cut_first(std::string_view text) {
  const size_t dot = text.find('.');
  if (dot == std::string_view::npos) return {text, {}};
  return {text.substr(0, dot), text.substr(dot + 1)};
}
HeadTail cut_last(std::string_view text) {
  const size_t dot = text.rfind('.');
  if (dot == std::string_view::npos) return {{}, text};
  return {text.substr(0, dot), text.substr(dot + 1)};
}

Projection projection_of(std::string_view word) {
  if (in_list(kGateNames, word)) return Projection::kGate;
  if (in_list(kUpNames, word)) return Projection::kUp;
  if (in_list(kDownNames, word)) return Projection::kDown;
  return Projection::kNone;
}

// Returns whether a list of the family, or of any family when it is unknown, contains the word.
bool family_lists(const Family* family, std::string_view FamilyNames::*list,
                  std::string_view word) {
  if (family != nullptr) return in_list(family->names.*list, word);
  for (const Family& f : families())
    if (in_list(f.names.*list, word)) return true;
  return false;
}

// Returns 3 for the word "3" or "expert_3"; nothing for another word.
std::optional<int> expert_index(std::string_view word) {
  if (word.starts_with("expert_")) word.remove_prefix(7);
  return parse_index(word);
}

class Parser {
 public:
  Parser(std::string_view name, const ModelConfig& config, const Family* family,
         std::span<const RoleAlias> aliases, bool cache_scales)
      : name_(name),
        config_(config),
        family_(family),
        aliases_(aliases),
        cache_scales_(cache_scales),
        lenient_(lenient(family)) {}

  TensorName run() {
    if (!config_.predictor.stem.empty()) {
      of_predictor();
    } else if (!elsewhere()) {
      std::string_view rest = strip_prefix();
      if (take_layer(rest)) {
        if (out_.part == Part::kUnknown && out_.reason.empty()) in_layer(rest);
      } else {
        at_top(rest);
      }
    }
    return std::move(out_);
  }

 private:
  // Handles names that begin with the predictor's stem.
  void of_predictor() {
    const PredictorNames& names = config_.predictor;
    const std::string_view rest = name_.substr(names.stem.size());
    const std::string_view first = cut_first(rest).head;
    if (in_list("fc eh_proj pre_fc_norm_embedding enorm pre_fc_norm_hidden hnorm", first)) {
      place(rest, Part::kTop);
    } else if (first == "norm" || rest.starts_with("shared_head.norm.")) {
      place(rest, Part::kFinalNorm);
    } else if (rest.starts_with("shared_head.head.")) {
      place(rest, Part::kLmHead);
    } else if (first == "embed_tokens") {
      prediction("the token table again, for multi-token prediction");
    } else if (name_.starts_with(names.layer)) {
      out_.layer = 0;
      in_layer(name_.substr(names.layer.size()));
    } else {
      prediction("of a further layer for multi-token prediction; the first one is used");
    }
  }

  void unused(std::string reason) {
    out_.part = Part::kUnused;
    out_.reason = std::move(reason);
  }
  void prediction(std::string reason) {
    unused(std::move(reason));
    out_.prediction = true;
  }
  void unknown(std::string reason) {
    out_.part = Part::kUnknown;
    out_.reason = std::move(reason);
  }

  void place(std::string_view rest, Part part) {
    out_.path = take_role(rest);
    out_.part = part;
  }
  void parameter(std::string_view path, Part part) {
    out_.parameter = true;
    out_.module = name_;
    out_.path = path;
    out_.part = part;
  }
  // Handles a name that no list has: an open or unknown family may have it as `part`.
  void unlisted(std::string_view rest, std::string_view path, Part part, std::string_view where) {
    if (foreign(rest) || transform(path)) return;
    if (lenient_)
      out_.part = part;
    else
      unknown(fmt::format("{}{} has {} module or parameter '{}'", where, family_->key,
                          where.empty() ? "no" : "a", printable(path, 80)));
  }

  // Handles tensors that no text model reads, whatever the family.
  bool elsewhere() {
    const HeadTail first = cut_first(name_), second = cut_first(first.tail);
    for (const std::string_view word : {first.head, second.head}) {
      if (in_list(kOtherTowers, word)) {
        place(name_, Part::kTower);
        return true;
      }
      if (word == "mtp" || word.starts_with("mtp_") || word == "nextn")
        return prediction(
                   "multi-token prediction head; decoding uses it with --speculate mtp alone"),
               true;
    }
    if (name_ == "score.weight" && has_no_output(config_))
      return unused("head of a classifier; serve takes it for /v1/rerank"), true;
    if (cut_last(name_).tail == "inv_freq")
      return unused("rotary frequencies; computed from config.json"), true;
    if (in_list("slope_rate query_decay key_decay diagonal_decay", cut_last(name_).tail))
      return unused("decay of lightning attention, rounded; computed from config.json"), true;
    return false;
  }

  std::string_view strip_prefix() const {
    std::string_view rest = name_;
    for (int i = 0; i < 3; ++i) {
      const HeadTail c = cut_first(rest);
      if (!in_list("model language_model text_model thinker llm", c.head) || c.tail.empty()) break;
      rest = c.tail;
    }
    if (!lenient_) return rest;
    // Wrappers may have any names: the first word with a layer number after it begins the layers.
    for (std::string_view from = rest; !from.empty(); from = cut_first(from).tail) {
      const HeadTail word = cut_first(from);
      if (is_layer_word(word.head) && parse_index(cut_first(word.tail).head)) return from;
    }
    return rest;
  }
  bool is_layer_word(std::string_view word) const {
    // "blocks": transformers saves Kimi-K2.5's text model under the word of its image tower.
    return in_list("layers blocks", word) || (lenient_ && in_list("h layer block", word));
  }

  // Consumes "layers.N." and sets the layer; a layer after the last one is decided at once.
  bool take_layer(std::string_view& rest) {
    const HeadTail word = cut_first(rest), number = cut_first(word.tail);
    if (!is_layer_word(word.head) || number.tail.empty()) return false;
    const auto index = parse_index(number.head);
    if (!index) return false;
    out_.layer = *index;
    rest = number.tail;
    if (double_layers()) out_.layer = 2 * *index + second_half(rest);
    if (const HeadTail part = cut_first(rest);
        lenient_ && part.head == "layer" && parse_index(cut_first(part.tail).head))
      rest = cut_first(part.tail).tail;  // "block.0.layer.1.": two numbers, the first is the layer
    if (config_.layers == 0 || out_.layer < config_.layers) return true;
    if (lenient_ || *index < config_.layers + extra_layers()) {
      prediction(
          fmt::format("layer {} lies behind num_hidden_layers = {}: multi-token prediction, "
                      "used with --speculate mtp alone",
                      *index, config_.layers));
    } else {
      unknown(fmt::format("it belongs to layer {}, but config.json says num_hidden_layers = {}",
                          *index, config_.layers));
    }
    return true;
  }

  bool double_layers() const { return layout_of(family_).double_layers; }
  // Returns 1 for names such as "self_attn.1.q_a_proj", which belong to the second of two layers
  // that the file stores as one.
  static int second_half(std::string_view rest) {
    return cut_first(cut_first(rest).tail).head == "1" ? 1 : 0;
  }

  int64_t extra_layers() const {
    for (const std::string_view field :
         {"num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers"})
      if (const Json* v = config_.text.find(field); v != nullptr && v->is_integer())
        return v->as_int().value_or(0);
    return family_->routing == RoutingRule::kDeepseekV3 ||
                   family_->routing == RoutingRule::kSigmoidBias
               ? 1
               : 0;
  }

  // Splits a name into module path and role; when the last component is no role, the tensor is a
  // parameter of its own.
  std::string_view take_role(std::string_view rest) {
    const HeadTail c = cut_last(rest);
    const auto role = role_from_suffix(c.tail, aliases_);
    if (role && !c.head.empty()) {
      out_.role = *role;
      out_.module = name_.substr(0, name_.size() - c.tail.size() - 1);
      return c.head;
    }
    out_.parameter = true;
    out_.module = name_;
    return rest;
  }

  bool foreign(std::string_view rest) {
    const std::string_view last = cut_last(rest).tail;
    if (role_from_suffix(last, aliases_)) return false;
    for (const ForeignSuffix& f : kForeign)
      if (last == f.suffix) {
        unknown(fmt::format("'{}' is a tensor of the {} format, which config.json does not declare",
                            last, f.what));
        return true;
      }
    return false;
  }

  // Handles stored rotation matrices, named "<module>.<group>_<location>.weight".
  bool transform(std::string_view path) {
    const std::string_view last = cut_last(path).tail;
    if (cut_last(path).head.empty()) return false;
    if (last.ends_with("_weight_input") || last.ends_with("_weight_output"))
      return unused("transform matrix that is already folded into the weights"), true;
    for (const std::string_view location : {"_input", "_output", "_q_attn", "_k_cache"})
      if (last.ends_with(location))
        return unknown(
                   "it is the matrix of an online transform; only folded transforms can be run"),
               true;
    return false;
  }

  void in_layer(std::string_view rest) {
    const HeadTail first = cut_first(rest);
    const std::string_view stem = name_.substr(0, name_.size() - rest.size());
    const bool attention =
        first.head == "self_attn" || first.head == "attn" || first.head == "attention";
    if (attention && in_list(kCacheScales, cut_last(rest).tail)) {
      if (!cache_scales_ || !in_list("k_scale v_scale", first.tail))
        return unused("scale of a quantized KV cache; config.json declares no cache that reads it");
      return parameter(rest, Part::kLayer);
    }
    if (in_list(lenient_ ? kOpenBlockNames : kBlockNames, first.head) && !first.tail.empty()) {
      out_.block = name_.substr(0, stem.size() + first.head.size());
      return in_block(first.tail);
    }
    if (double_layers() && first.head == "mlps") {  // "mlps.1.gate_proj"
      const HeadTail half = cut_first(first.tail);
      out_.block = name_.substr(0, stem.size() + first.head.size() + 1 + half.head.size());
      return in_block(half.tail);
    }
    if (belongs_to_block(rest)) {
      out_.block = stem.substr(0, stem.size() - 1);
      return in_block(rest);
    }
    const std::string_view path = take_role(rest);
    out_.path = path;
    if (family_lists(family_, &FamilyNames::layer, path)) {
      out_.part = Part::kLayer;
    } else {
      unlisted(rest, path, Part::kLayer, "no layer of ");
    }
  }

  // Returns whether the rest names experts, a router or a shared expert that the layer holds
  // without a block.
  bool belongs_to_block(std::string_view rest) const {
    const HeadTail first = cut_first(rest);
    if (layout_of(family_).block_is_layer && in_list(family_->names.router, first.head))
      return true;
    if (lenient_ && in_list(kOpenShared, first.head) &&
        in_list("gate_proj up_proj down_proj w1 w2 w3", cut_first(first.tail).head))
      return true;
    if (family_ != nullptr && first.head == "shared_mlp" &&
        in_list(family_->names.layer, "shared_mlp.output_linear"))
      return true;
    const bool direct = family_ == nullptr || family_->layout.block_is_layer;
    return direct && (first.head == "experts" || first.head == "router");
  }

  bool is_parameter(std::string_view path) const {
    if (layout_of(family_).router_bias_corrects && path == "gate.bias") return true;
    if (lenient_ && (in_list(kOpenCorrections, path) || in_list(kOpenParameters, path)))
      return true;
    return family_lists(family_, &FamilyNames::parameters, path);
  }

  void in_block(std::string_view rest) {
    const HeadTail first = cut_first(rest);
    if (is_parameter(rest)) {
      return parameter(rest, Part::kBlockParameter);
    }
    if (first.head == "experts" && !first.tail.empty()) {
      std::string_view members = first.tail;
      if (layout_of(family_).stacked_experts && cut_first(members).head == "mlp")
        members = cut_first(members).tail;  // "experts.mlp.w1", or "experts.mlp.3.w1.weight"
      const std::string_view word = cut_first(members).head;
      if (const auto id = lenient_ ? expert_index(word) : parse_index(word)) {
        out_.expert = *id;
        return in_expert(cut_first(members).tail);
      }
      return all_experts(members);
    }
    if (layout_of(family_).routed_shared && first.head == "shared_experts") {
      std::string_view members = first.tail;
      if (members.starts_with("shared_")) members.remove_prefix(7);  // "shared_w13_weight"
      out_.shared_stack = true;
      return all_experts(members);
    }
    if (first.head == "switch_mlp" && !first.tail.empty()) return all_experts(first.tail);  // MLX
    if (first.head == "input_linear" || first.head == "output_linear") return all_experts(rest);
    const std::string_view path = take_role(rest);
    out_.path = path;
    const HeadTail head = cut_first(path);
    if (!out_.parameter && family_lists(family_, &FamilyNames::router, path)) {
      out_.part = Part::kRouter;
    } else if (!out_.parameter && projection_of(path) != Projection::kNone) {
      out_.part = Part::kDenseMlp;
      out_.projection = projection_of(path);
    } else if (!out_.parameter && lenient_ && path == "w2_md") {
      out_.part = Part::kDenseMlp;
      out_.projection = Projection::kDown;
    } else if (!out_.parameter && lenient_ && in_list("gate_up_proj w13_dn", path)) {
      out_.part = Part::kDenseMlp;
      out_.gate_up = true;
    } else if (!out_.parameter && path == "shared_expert_gate") {
      out_.part = Part::kSharedGate;
    } else if (!out_.parameter && family_lists(family_, &FamilyNames::shared, head.head) &&
               (projection_of(head.tail) != Projection::kNone ||
                in_list(kGateUpNames, head.tail))) {
      out_.part = Part::kSharedExpert;
      out_.projection = projection_of(head.tail);
      out_.gate_up = out_.projection == Projection::kNone;
    } else {
      unlisted(rest, path, Part::kLayer, "no block of ");
    }
  }

  void in_expert(std::string_view rest) {
    const std::string_view path = take_role(rest);
    out_.path = path;
    if (out_.parameter || path.empty()) {
      if (!foreign(rest))
        something(
            fmt::format("'{}' is not a tensor of an expert's projection", printable(rest, 80)));
      return;
    }
    out_.projection = projection_of(path);
    out_.gate_up = out_.projection == Projection::kNone && in_list(kGateUpNames, path);
    if (out_.projection != Projection::kNone || out_.gate_up) {
      out_.part = Part::kExpert;
    } else if (!transform(path)) {
      something(fmt::format("an expert has no projection '{}'", printable(path, 80)));
    }
  }

  // Accepts a module that only an open or unknown family may have; throws for other families.
  void something(std::string reason) {
    if (!lenient_) return unknown(std::move(reason));
    out_.expert = -1;
    out_.part = Part::kLayer;
  }

  // Handles names such as "gate_up_proj", "down_proj_bias", "w13_weight.weight_packed",
  // "gate_up_proj_blocks", "output_linear.weight".
  void all_experts(std::string_view rest) {
    std::string_view stem, tail, list_of_stem;
    for (const std::string_view list : {kGateUpNames, kFusedDownNames, kGateNames, kUpNames})
      for_each_word(list, [&](std::string_view word, bool) {
        if (word.size() <= stem.size() || !rest.starts_with(word)) return;
        const std::string_view after = rest.substr(word.size());
        if (!after.empty() && after[0] != '.' && after[0] != '_') return;
        stem = word;
        tail = after;
        list_of_stem = list;
      });
    const auto role = stem.empty() ? std::nullopt : fused_role(tail);
    if (!role) {
      if (foreign(rest)) return;
      out_.path = take_role(rest);
      return something(
          stem.empty()
              ? fmt::format("'{}' is neither an expert's number nor a fused expert tensor",
                            printable(rest, 80))
              : fmt::format("'{}' is no role of a fused expert tensor", printable(tail, 80)));
    }
    out_.gate_up = list_of_stem == kGateUpNames;
    out_.projection = out_.gate_up                      ? Projection::kNone
                      : list_of_stem == kFusedDownNames ? Projection::kDown
                      : list_of_stem == kGateNames      ? Projection::kGate
                                                        : Projection::kUp;
    out_.path = stem;
    out_.module = name_.substr(0, name_.size() - tail.size());
    out_.role = *role;
    out_.part = Part::kFusedExperts;
  }

  std::optional<Role> fused_role(std::string_view tail) const {
    if (tail.empty()) return Role::kWeight;
    tail.remove_prefix(1);
    if (tail == "blocks") return Role::kWeightPacked;
    if (tail == "scales") return Role::kWeightScale;
    if (const auto role = role_from_suffix(tail, aliases_)) return role;
    // "_scale" and "_packed" lack the word weight
    return role_from_suffix("weight_" + std::string(tail), aliases_);
  }

  void at_top(std::string_view rest) {
    const std::string_view path = take_role(rest);
    out_.path = path;
    if (path == "embed_tokens" || (lenient_ && in_list(kTokenTables, path))) {
      out_.part = Part::kEmbedding;
    } else if (path == "lm_head" ||
               // DeepSeek calls lm_head "head"
               (lenient_ && in_list("head output unembed", path))) {
      out_.part = Part::kLmHead;
    } else if (path == "norm") {
      out_.part = Part::kFinalNorm;
    } else if (family_lists(family_, &FamilyNames::top, path)) {
      out_.part = Part::kTop;
    } else {
      unlisted(rest, path, Part::kTop, "");
    }
  }

  std::string_view name_;
  const ModelConfig& config_;
  const Family* family_;
  std::span<const RoleAlias> aliases_;
  bool cache_scales_;
  bool lenient_;
  TensorName out_;
};

}  // namespace

std::optional<Role> role_from_suffix(std::string_view suffix, std::span<const RoleAlias> aliases) {
  for (const RoleAlias& a : aliases)
    if (suffix == a.suffix) return a.role;
  for (const Role role : kRoles)
    if (suffix == suffix_of(role)) return role;
  return std::nullopt;
}

std::optional<int> parse_index(std::string_view digits) {
  if (digits.empty() || digits.size() > 6 || (digits.size() > 1 && digits[0] == '0'))
    return std::nullopt;
  int value = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return value;
}

TensorName parse_tensor_name(std::string_view name, const ModelConfig& config, const Family* family,
                             std::span<const RoleAlias> aliases, bool cache_scales) {
  return Parser(name, config, family, aliases, cache_scales).run();
}

std::string_view before_layers(std::string_view name) {
  for (std::string_view from = name; !from.empty(); from = cut_first(from).tail) {
    const HeadTail word = cut_first(from);
    if (in_list("layers blocks h layer block", word.head) && parse_index(cut_first(word.tail).head))
      return name.substr(0, name.size() - from.size());
  }
  return name;
}

bool has_no_output(const ModelConfig& config) {
  const Json* names = config.raw.find("architectures");
  if (names == nullptr || !names->is_array() || names->items().empty()) return false;
  const Json& first = names->items()[0];
  return first.is_string() && (first.as_string().ends_with("Model") ||
                               first.as_string().ends_with("ForSequenceClassification"));
}

}  // namespace moebius
