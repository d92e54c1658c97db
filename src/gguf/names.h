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
  std::string_view name;        // general.architecture
  std::string_view model_type;  // of the family in config.json
  std::string_view architecture;
  // Names in addition to the common ones, "gguf=hf ..."; kCommonNames explains the form.
  std::string_view names{};
  std::string_view config{};  // members of config.json that are the same for every such file
  bool experts = true;        // false: a dense model
  GgufGate gate = GgufGate::kSoftmax;  // where the file does not state it
  bool normalized = false;             // true: weights of experts are, whatever the file states
  // Every such layer, counted from 1, sees all keys, the others a window; 0: no layer has one.
  uint32_t window_pattern = 0;
  std::string_view headless{};  // what layers without heads of keys are; empty: there are none
  bool yarn_truncates = true;   // false: YaRN does not round the range that it corrects
  bool pairs = false;           // true: rows of q and k lie in pairs of the rotation
};

// Returns the row for a file. Throws Error for a file that is no model that can be run; the message
// says what it is instead.
const GgufArchitecture& architecture_of(const Gguf& gguf);

// A tensor of the Hugging Face folder: a tensor of the file, or a part of one.
struct GgufPiece {
  std::string name;
  const GgufTensor* tensor = nullptr;
  std::vector<uint64_t> shape;
  uint64_t offset = 0, bytes = 0;  // within the tensor
  RowOrder order{};
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
