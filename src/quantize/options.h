// SPDX-License-Identifier: Apache-2.0
// What is asked of `moebius quantize`.
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

enum class RtnMatch : uint8_t { kLlmcompressor, kF32 };  // whose arithmetic (quant/encode.h)
enum class QuantizeMethod : uint8_t {
  kRtn,     // round to nearest
  kSearch,  // scales that lose the least (search.h)
  kGptq,    // and columns that make up for each other (gptq.h): integers
};
std::string_view name_of(QuantizeMethod method);
std::string_view dtype_name(XType type);  // "bfloat16", as configs say it

struct CalibrationOptions {
  std::vector<std::string> files;  // texts, chats or token ids (token_files.h)
  size_t tokens = 262144, context = 2048;
  uint64_t seed = 0;         // of the choice of windows
  bool all_experts = false;  // every row goes through every expert
};

struct QuantizeOptions {
  std::string source, target;  // folders
  // What to make: a preset with changes, or groups of a file.
  std::string scheme;
  std::optional<int64_t> group;  // of integer weights; -1: per channel
  std::optional<bool> symmetric;
  std::string format;                // "": the scheme's
  std::vector<std::string> targets;  // empty: Linear
  std::vector<std::string> ignore;   // besides the default list
  bool ignore_only = false;          // instead of it
  std::string groups_file;           // config_groups, or a whole quantization_config
  std::string reader = "moebius";    // who must be able to load the result: one of readers()
  std::optional<XType> dtype;        // of scales and of what stays as it is; none: the source's
  RtnMatch match = RtnMatch::kLlmcompressor;
  QuantizeMethod method = QuantizeMethod::kRtn;
  CalibrationOptions calibration;
  float damp = 0.01f;   // GPTQ: of the mean of H's diagonal, added to it
  bool by_size = true;  // GPTQ: columns of large inputs first
  double min_rows = 1;  // GPTQ: experts with fewer rows per input are searched
  uint64_t shard_bytes = 5'000'000'000;
  uint64_t memory = 0;  // bytes; 0: 80 % of what is free
  std::string scratch;  // folder for rows of the calibration; "": memory, or beside the target
  bool resume = false, overwrite = false;
  Links links = Links::kAnywhere;
};

// What decides the bytes of the result, by name: what --resume compares.
Json options_json(const QuantizeOptions& options, const Json& section);

}  // namespace moebius
