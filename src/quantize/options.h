// SPDX-License-Identifier: Apache-2.0
// Options of `moebius quantize`.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "checkpoint/tensor_store.h"
#include "quant/activation.h"

namespace moebius {

// Selects whose arithmetic is reproduced (quant/encode.h).
enum class RtnMatch : uint8_t { kLlmcompressor, kF32 };
enum class QuantizeMethod : uint8_t {
  kRtn,     // rounds to nearest
  kSearch,  // chooses scales with the least loss (search.h)
  kGptq,    // for integers: also compensates errors between columns (gptq.h)
};
std::string_view name_of(QuantizeMethod method);
std::string_view dtype_name(XType type);  // returns the name as configs spell it: "bfloat16"

struct CalibrationOptions {
  std::vector<std::string> files;  // texts, chats or token ids (token_files.h)
  size_t tokens = 262144, context = 2048;
  uint64_t seed = 0;         // seed for choosing windows
  bool all_experts = false;  // true: every row goes through every expert
};

struct QuantizeOptions {
  std::string source, target;  // paths of the folders
  // The scheme to make: a preset with changes, or the groups in a file.
  std::string scheme;
  std::optional<int64_t> group;  // group size of integer weights; -1: per channel
  std::optional<bool> symmetric;
  std::string format;                // format of the files; "": the scheme's usual one
  std::vector<std::string> targets;  // classes or patterns of modules; empty: Linear
  std::vector<std::string> ignore;   // modules left as they are, in addition to the default list
  bool ignore_only = false;          // true: `ignore` replaces the default list
  std::string groups_file;           // file with config_groups, or a whole quantization_config
  std::string reader = "moebius";  // program that must be able to load the result: one of readers()
  std::optional<XType> dtype;      // type of scales and of unquantized tensors; none: the source's
  RtnMatch match = RtnMatch::kLlmcompressor;
  QuantizeMethod method = QuantizeMethod::kRtn;
  CalibrationOptions calibration;
  float damp = 0.01f;   // GPTQ: fraction of the mean of H's diagonal that is added to it
  bool by_size = true;  // GPTQ: true: columns of large inputs first
  double min_rows = 1;  // GPTQ: experts with fewer rows per input use kSearch
  uint64_t shard_bytes = 5'000'000'000;
  uint64_t memory = 0;  // most bytes of memory; 0: 80 % of what is free
  std::string scratch;  // folder for rows of the calibration; "": in memory, or beside the target
  bool resume = false, overwrite = false;
  Links links = Links::kAnywhere;
};

// Returns all options that determine the bytes of the result, by name; --resume compares them.
Json options_json(const QuantizeOptions& options, const Json& section);

}  // namespace moebius
