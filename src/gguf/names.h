// SPDX-License-Identifier: Apache-2.0
// The architectures of GGUF files, a row of facts each, and the tensors of a file under the names
// that a Hugging Face folder of the same model has.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "gguf/gguf.h"
#include "gguf/row_order.h"

namespace moebius {

enum class GgufGate : uint8_t { kSoftmax = 1, kSigmoid = 2, kSoftmaxOfSelected = 3 };

struct GgufArchitecture {
  std::string_view name{};        // general.architecture, or several
  std::string_view model_type{};  // of the family in config.json
  std::string_view architecture{};
  // Names in addition to the common ones, "gguf=hf ..."; kCommonNames explains the form.
  std::string_view names{};
  std::string_view shared = "shared_experts";  // the shared expert within the block; in names '$'
  std::string_view state = "mamba";            // the recurrent net within a layer; in names '@'
  std::string_view config{};  // members of config.json that are the same for every such file
  bool experts = true;        // false: a dense model
  bool dense_too = false;     // true: the file states how many experts there are, or none
  GgufGate gate = GgufGate::kSoftmax;  // where the file does not state it
  bool normalized = false;             // true: weights of experts are, whatever the file states
  // The last of so many layers, if negative the first, sees all keys, the others a window; 0: no
  // layer has one. A list in the file decides instead.
  int window_pattern = 0;
  std::string_view windowed = "sliding_attention";  // the word of layer_types for windows
  std::string_view headless{};  // what layers with a recurrent net are; empty: there are none
  // Heads that differ by layer are "fields" or a "list" of config.json, or windows have "double" keys.
  std::string_view own_heads{};
  bool window_heads = false;     // true: the model's heads are those of windows
  bool typed_ropes = false;      // true: full attention and windows have rotations of their own
  double window_base = 0;        // of the windows' rotation, where the file has none; 0: as others
  unsigned rotated_divisor = 1;  // of the rotated features of full attention
  bool yarn_truncates = true;    // false: YaRN does not round the range that it corrects
  bool pairs = false;            // true: rows of q and k lie in pairs of the rotation
  bool plus_one = false;         // true: norms are stored with 1 added
  bool tiled = false;            // true: value heads lie one from each key head in turn
  std::string_view computed{};   // keys that change what is computed, which the family knows
};

// Returns whether a layer has a recurrent net in place of attention.
bool is_recurrent(const Gguf& gguf, uint64_t layer);

// Returns the row for a file. Throws Error for a file that is no model that can be run; the message
// says what it is instead.
const GgufArchitecture& architecture_of(const Gguf& gguf);

// A tensor of the Hugging Face folder: a tensor of the file, or a part of one.
struct GgufPiece {
  std::string name;
  const GgufTensor* tensor = nullptr;
  std::vector<uint64_t> shape;
  uint64_t offset = 0, bytes = 0;  // within the tensor
  RowOrder order{}, columns{};
  NumberChange change = NumberChange::kNone;
};
struct GgufNames {
  std::vector<GgufPiece> pieces;
  struct Unused {
    const GgufTensor* tensor;
    std::string reason;
  };
  std::vector<Unused> unused;
};

// Names all tensors of a file; `config` is its gguf_config(). Throws Error for a tensor that has no
// place, or whose shape contradicts the metadata.
GgufNames name_tensors(const Gguf& gguf, const Json& config);

}  // namespace moebius
