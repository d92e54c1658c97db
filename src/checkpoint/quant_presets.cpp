// SPDX-License-Identifier: Apache-2.0
// Resolves preset names that may stand for a config group: {"FP8_DYNAMIC": ["Linear"]}. Published
// configs spell the arguments out, but the shorthand is legal.
#include <charconv>

#include "checkpoint/methods/schemes.h"
#include "checkpoint/quant_args_parse.h"

namespace moebius {
namespace {

constexpr NumberKind kInt = NumberKind::kInt, kFloat = NumberKind::kFloat;
constexpr Dynamic kDynamic = Dynamic::kDynamic;
constexpr std::string_view kE4m3 = "float8_e4m3fn", kU8 = "uint8";

// Parses W<b>A<a> for integers: b in 2..8; a is 4, 8 or 16, and weights are not wider than
// activations.
std::optional<Scheme> integer_preset(std::string_view name, std::string_view version) {
  if (name == "INT8") name = "W8A8";
  const size_t a = name.find('A');
  if (name.size() < 4 || name[0] != 'W' || a != 2 || name[1] < '2' || name[1] > '8')
    return std::nullopt;
  const int weight_bits = name[1] - '0';
  const std::string_view act = name.substr(3);
  const int act_bits = act == "4" ? 4 : act == "8" ? 8 : act == "16" ? 16 : 0;
  if (act_bits < weight_bits) return std::nullopt;
  Scheme s;
  s.weights = quant_args(kInt, weight_bits, Strategy::kGroup, 128);
  const std::optional<std::pair<int, int>> writer = parse_version(version);
  const bool channel = name == "W8A8" || (name == "W8A16" && writer && *writer < std::pair(0, 16));
  if (channel) s.weights = quant_args(kInt, 8, Strategy::kChannel);
  if (act_bits < 16) s.input = quant_args(kInt, act_bits, Strategy::kToken, 0, kDynamic);
  s.format = s.input ? Format::kIntQuantized : Format::kPackQuantized;
  return s;
}

std::optional<Scheme> fp8_preset(std::string_view name) {
  Scheme s;
  s.format = Format::kFloatQuantized;
  if (name == "FP8") {
    s.weights = s.input = quant_args(kFloat, 8, Strategy::kTensor);
  } else if (name == "FP8_DYNAMIC") {
    s.weights = quant_args(kFloat, 8, Strategy::kChannel);
    s.input = quant_args(kFloat, 8, Strategy::kToken, 0, kDynamic);
  } else if (name == "FP8_BLOCK") {
    s.weights = quant_args(kFloat, 8, Strategy::kBlock);
    s.weights->block_n = s.weights->block_k = 128;
    s.input = quant_args(kFloat, 8, Strategy::kGroup, 128, kDynamic);
  } else {
    return std::nullopt;
  }
  return s;
}

std::optional<Scheme> block_scaled_preset(std::string_view name) {
  const bool weight_only = name.ends_with("A16");
  const std::string_view base = weight_only ? name.substr(0, name.size() - 3) : name;
  Scheme s;
  if (base == "NVFP4") {
    s.weights = quant_args(kFloat, 4, Strategy::kTensorGroup, 16, Dynamic::kStatic, kE4m3);
    s.input = quant_args(kFloat, 4, Strategy::kTensorGroup, 16, Dynamic::kLocal, kE4m3);
    s.format = Format::kNvfp4Pack;
  } else if (base == "MXFP4" || base == "MXFP8") {
    const int bits = base == "MXFP4" ? 4 : 8;
    s.weights = quant_args(kFloat, bits, Strategy::kGroup, 32, Dynamic::kStatic, kU8);
    s.input = quant_args(kFloat, bits, Strategy::kGroup, 32, kDynamic, kU8);
    s.format = bits == 4 ? Format::kMxfp4Pack : Format::kMxfp8;
  } else {
    return std::nullopt;
  }
  if (weight_only) s.input.reset();
  return s;
}

}  // namespace

std::optional<std::pair<int, int>> parse_version(std::string_view version) {
  int major = 0, minor = 0;
  const char* const end = version.data() + version.size();
  const auto [dot, error] = std::from_chars(version.data(), end, major);
  if (error != std::errc() || dot == end || *dot != '.') return std::nullopt;
  if (std::from_chars(dot + 1, end, minor).ec != std::errc()) return std::nullopt;
  return std::pair(major, minor);
}

std::optional<Scheme> scheme_of_preset(std::string_view preset, std::string_view version) {
  const std::string name = upper_case(preset);
  if (name == "UNQUANTIZED") return Scheme{};
  if (name == "W4A16_ASYM") {
    std::optional<Scheme> s = integer_preset("W4A16", version);
    s->weights->symmetric = false;
    return s;
  }
  if (name == "W4AFP8") {
    std::optional<Scheme> s = integer_preset("W4A8", version);
    s->input->kind = kFloat;
    return s;
  }
  if (std::optional<Scheme> s = integer_preset(name, version)) return s;
  if (std::optional<Scheme> s = fp8_preset(name)) return s;
  return block_scaled_preset(name);
}

}  // namespace moebius
