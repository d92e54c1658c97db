// SPDX-License-Identifier: Apache-2.0
// Describes the layer that predicts the token after the next, which the model has after its last
// layer. The first token has no predecessor, so nothing is predicted there and no row sees its key.
#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {
namespace {

// Returns whether a layer sees all keys and uses nothing of another layer.
bool stands_alone(const LayerSpec& l) {
  const KeyMixer* m = l.keys();
  return m != nullptr && l.has_block && m->kv_from == 0 && m->reach() == SIZE_MAX &&
         m->ratio() == 0 && !l.beside && !joins_later(l) && !m->takes_choice();
}

// Returns whether a layer is of a kind that no known predictor has.
bool is_unknown(const LayerSpec& l) {
  const KeyMixer* m = l.keys();
  return l.convolutions ||
         (m != nullptr && (m->shared_key || (m->choice && m->choice->indexer.by_head)));
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
  while (i > 0 && !stands_alone(s.layers[i - 1])) --i;
  if (i == 0 || std::any_of(s.layers.begin(), s.layers.end(), is_unknown) ||
      fields_of(config).boolean({"mtp_hidden_states_first"}).value_or(false))
    fail_at({"unsupported", "", "", "", "architectures"},
            "architecture {}: the form of its multi-token prediction is not known",
            printable(config.architecture));
  s.layers = {s.layers[i - 1]};
  KeyMixer& m = s.keys(0);
  m.first_key = 1;
  if (m.choice) m.choice->indexer.first = 1;
  return s;
}

}  // namespace moebius
