// SPDX-License-Identifier: Apache-2.0
// Describes the text part of Inkling: no rotation but logits by distance, short convolutions that
// are added to keys, values and what both branches give, windows with heads of their own, a norm of
// the tokens' rows.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;
constexpr std::array kInklingNames = {Pair{"q_proj", "wq_du"}, Pair{"k_proj", "wk_dv"},
                                      Pair{"v_proj", "wv_dv"}};

// Sets the names of the published files, or those under which transformers saves the text model
// alone.
void set_names(DecoderSpec& s, bool published, const RelativeSpec& relative, size_t width) {
  if (published) set_branch_norms(s, {.attention_in = "attn_norm", .block_in = "mlp_norm"});
  if (published)
    norm_heads(s, "attn.q_norm", "attn.k_norm");
  else
    norm_heads(s);
  for (LayerSpec& layer : s.layers) {
    KeyMixer& m = *layer.keys();
    m.relative = relative;
    if (published) {
      m.names = {"attn", "wo_ud", kInklingNames};
      layer.convolutions = {"attn.k_sconv.weight", "attn.v_sconv.weight", "attn_sconv.weight",
                            "mlp_sconv.weight", width};
    } else {
      layer.convolutions = {"self_attn.k_sconv.conv1d.weight", "self_attn.v_sconv.conv1d.weight",
                            "attn_sconv.conv1d.weight", "mlp_sconv.conv1d.weight", width};
    }
  }
}

}  // namespace

DecoderSpec inkling_spec(const ModelConfig& config) {
  using enum LayerRows;
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config, static_cast<size_t>(config.head_dim));
  stop_rotation(s);
  const size_t width = size_of(f, {"conv_kernel_size", "sconv_kernel_size"}, 4);
  if (width > ShortConvolution::kMostTaps)
    fail("{}: is {}; expected at most {}", f.label("conv_kernel_size"), width,
         ShortConvolution::kMostTaps);
  const bool published = config.family == "inkling";
  const size_t dims = size_of(f, {"d_rel"}, 16);
  s.ends.embedding_norm = "embed_norm.weight";
  const double mup = f.number({"logits_mup_width_multiplier"}).value_or(24);
  if (!(mup > 0)) fail("{}: is {}", f.label("logits_mup_width_multiplier"), mup);
  s.ends.divisor = static_cast<float>(mup);
  const HeadSizes local{size_of(f, {"swa_num_attention_heads"}, 64),
                        size_of(f, {"swa_num_key_value_heads"}, 16),
                        size_of(f, {"swa_head_dim"}, 128), size_of(f, {"swa_head_dim"}, 128)};
  if (local.heads % local.kv_heads != 0)
    fail("{}: is {}; expected a divisor of {} heads", f.label("swa_num_key_value_heads"),
         local.kv_heads, local.heads);
  const size_t window = size_of(f, {"sliding_window_size", "sliding_window"}, 512),
               extent = size_of(f, {"rel_extent"}, 1024);
  set_names(
      s, published,
      {published ? "attn.wr_du" : "self_attn.r_proj",
       published ? "attn.rel_logits_proj.proj" : "self_attn.rel_logits_proj.proj", dims, extent},
      width);
  const RowOp::Temperature growth{
      real_of(f, {"log_scaling_alpha"}, 0.1),
      static_cast<float>(f.integer_or({"log_scaling_n_floor"}, 0, 1, 1 << 30)), 1};
  const std::vector<std::string>& types = config.layer_types;
  const std::vector<int64_t> ids =
      f.integers({"local_layer_ids"}, 0, static_cast<int64_t>(s.layers.size()) - 1);
  for (size_t i = 0; i < s.layers.size(); ++i) {
    KeyMixer& m = s.keys(i);
    const bool slides =
        i < types.size() ? types[i] == "hybrid_sliding"
        : !ids.empty()   ? std::find(ids.begin(), ids.end(), static_cast<int64_t>(i)) != ids.end()
                         : (i + 1) % 6 != 0;
    if (i < types.size() && !slides && types[i] != "hybrid")
      fail("{}: layer {} is '{}'; expected hybrid or hybrid_sliding", f.label("layer_types"), i,
           printable(types[i]));
    if (slides) {
      m.sizes = local;
      m.window = m.relative->extent = window;
    }
    m.scale = 1 / static_cast<float>(m.sizes.head_dim);
    if (!slides && growth.floor > 0)
      for (const LayerRows rows : {kQuery, kRelative})
        m.rows.push_back(row_op::log_growth(rows, growth));
    LayerOps& join = s.layers[i].block.join;
    if (!config.moe_layer[i])
      join.insert(join.begin(), row_op::scale_by(kBranch, "mlp.global_scale"));
  }
  return s;
}

}  // namespace moebius
