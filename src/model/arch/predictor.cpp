// SPDX-License-Identifier: Apache-2.0
// Describes the layer that predicts the token after the next, which the model has after its last
// layer. The first token has no predecessor, so nothing is predicted there and no row sees its key.
#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {
namespace {

// Returns whether a layer sees all keys and uses nothing of another layer.
bool stands_alone(const DecoderSpec& s, size_t i) {
  const LayerSpec& l = s.layers[i];
  return l.attends && l.mixes && !l.recurrent && l.kv_from == 0 && l.window == 0 && l.chunk == 0 &&
         l.ratio == 0 && !l.beside && !joins_later(l) && !takes_choice(s, i);
}

}  // namespace

DecoderSpec predictor_spec(const ModelConfig& config) {
  DecoderSpec s = decoder_spec(config);
  if (s.streams.count > 1)
    fail_at({"unsupported", "", "", "", "architectures"},
            "architecture {}: its layer for multi-token prediction reads {} streams of rows, which "
            "drafts do not have; it is accounted for and not run",
            printable(config.architecture), s.streams.count);
  size_t i = s.layers.size();
  while (i > 0 && !stands_alone(s, i - 1)) --i;
  if (i == 0 || s.shared_key || s.convolutions || s.indexer.by_head ||
      fields_of(config).boolean({"mtp_hidden_states_first"}).value_or(false))
    fail_at({"unsupported", "", "", "", "architectures"},
            "architecture {}: the form of its multi-token prediction is not known",
            printable(config.architecture));
  s.layers = {s.layers[i - 1]};
  s.layers[0].first_key = 1;
  s.indexer.first = 1;
  return s;
}

}  // namespace moebius
