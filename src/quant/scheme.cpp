// SPDX-License-Identifier: Apache-2.0
// Names schemes and answers questions about them. Every predicate tests the number type: the same
// widths mean different things for int and float.
#include "quant/scheme.h"

#include <fmt/format.h>

namespace moebius {
namespace {

struct FormatName {
  Format format;
  std::string_view name;
  bool declared = true;  // declared by compressed-tensors' field `format`
};
constexpr FormatName kFormats[] = {
    {Format::kDense, "dense"},
    {Format::kIntQuantized, "int-quantized"},
    {Format::kFloatQuantized, "float-quantized"},
    {Format::kNaiveQuantized, "naive-quantized"},
    {Format::kPackQuantized, "pack-quantized"},
    {Format::kNvfp4Pack, "nvfp4-pack-quantized"},
    {Format::kMxfp4Pack, "mxfp4-pack-quantized"},
    {Format::kMxfp8, "mxfp8-quantized"},
    {Format::kGptOssMxfp4, "mxfp4", false},
    {Format::kNativeFp8, "native-fp8", false},
    {Format::kModeloptNvfp4, "modelopt-nvfp4", false},
    {Format::kGptq, "gptq", false},
    {Format::kGptqV2, "gptq_v2", false},
    {Format::kGptqPlanar, "gptq_p", false},
    {Format::kAwq, "awq", false},
    {Format::kQuarkInt4, "quark-int4", false},
    {Format::kAwqGemv, "awq-gemv", false},
    {Format::kMlx, "mlx", false},
    {Format::kGguf, "gguf", false},
};

bool is_float(const QuantArgs& a, int bits) {
  return a.kind == NumberKind::kFloat && a.bits == bits;
}

// Returns the suffix of a scheme's name for the inputs of integer weights: "a8", "a8_static",
// "afp8", "a16".
std::string input_suffix(const std::optional<QuantArgs>& input) {
  if (!input) return "a16";
  const std::string_view fixed = input->dynamic == Dynamic::kStatic ? "_static" : "";
  return fmt::format("a{}{}{}", input->kind == NumberKind::kFloat ? "fp" : "", input->bits, fixed);
}

// Returns the name of a table, of which two have numbers of 3 bits.
std::string_view name_of(Lut lut) {
  constexpr std::string_view kNames[] = {"", "iq4", "iq3", "iq3", "iq2", "iq1"};
  return kNames[static_cast<size_t>(lut)];
}

std::string fp8_family(const Scheme& s) {
  const QuantArgs& w = *s.weights;
  if (!s.input) return "fp8a16";
  if (s.input->kind == NumberKind::kInt) return "fp8" + input_suffix(s.input);
  if (w.strategy == Strategy::kBlock) return "fp8_block";
  if (s.input->dynamic == Dynamic::kStatic) return "fp8_static";
  return w.strategy == Strategy::kGroup ? "fp8_group" : "fp8";
}

std::string float_family(const Scheme& s) {
  const QuantArgs& w = *s.weights;
  const bool input_float = s.input && s.input->kind == NumberKind::kFloat;
  if (is_nvfp4(w))
    return !s.input ? "nvfp4a16" : is_nvfp4(*s.input) ? "nvfp4" : "nvfp4" + input_suffix(s.input);
  if (is_mxfp4(w)) {
    if (!s.input) return "mxfp4a16";
    if (is_mxfp4(*s.input)) return "mxfp4";
    return input_float && s.input->bits == 8 ? "w4a8_mxfp4" : "mxfp4" + input_suffix(s.input);
  }
  if (is_mxfp8(w))
    return !s.input ? "mxfp8a16" : is_mxfp8(*s.input) ? "mxfp8" : "mxfp8" + input_suffix(s.input);
  return w.bits == 8 ? fp8_family(s) : fmt::format("fp{}{}", w.bits, input_suffix(s.input));
}

}  // namespace

bool is_nvfp4(const QuantArgs& a) {
  return is_float(a, 4) && a.strategy == Strategy::kTensorGroup && a.group_size == 16 &&
         a.symmetric;
}

bool has_e8m0_scales(const QuantArgs& a) {
  return a.scale_dtype == "uint8" || a.scale_dtype == "float8_e8m0fnu";
}

bool is_mxfp4(const QuantArgs& a) {
  return is_float(a, 4) && a.strategy == Strategy::kGroup && a.group_size == 32 && a.symmetric &&
         has_e8m0_scales(a);
}

bool is_mxfp8(const QuantArgs& a) {
  return is_float(a, 8) && a.strategy == Strategy::kGroup && a.group_size == 32 && a.symmetric &&
         has_e8m0_scales(a);
}

bool is_turned(Format format) {
  return format == Format::kGptq || format == Format::kGptqV2 || format == Format::kGptqPlanar ||
         format == Format::kAwq || format == Format::kQuarkInt4 || format == Format::kAwqGemv;
}

std::string_view name_of(Format format) {
  for (const FormatName& f : kFormats)
    if (f.format == format) return f.name;
  return "?";
}

std::optional<Format> format_from_name(std::string_view name) {
  for (const FormatName& f : kFormats)
    if (f.declared && f.name == name) return f.format;
  return std::nullopt;
}

std::string_view name_of(Strategy strategy) {
  switch (strategy) {
    case Strategy::kTensor:
      return "tensor";
    case Strategy::kChannel:
      return "channel";
    case Strategy::kGroup:
      return "group";
    case Strategy::kTensorGroup:
      return "tensor_group";
    case Strategy::kBlock:
      return "block";
    case Strategy::kToken:
      return "token";
    case Strategy::kAttnHead:
      return "attn_head";
  }
  return "?";
}

std::string family_of(const Scheme& scheme) {
  if (!scheme.weights) return "dense";
  if (scheme.weights->kind == NumberKind::kFloat) return float_family(scheme);
  if (scheme.weights->lut != Lut::kNone)
    return fmt::format("{}{}", name_of(scheme.weights->lut), input_suffix(scheme.input));
  if (scheme.input && scheme.output)
    return fmt::format("w{}a{}o{}", scheme.weights->bits, scheme.input->bits, scheme.output->bits);
  return fmt::format("w{}{}", scheme.weights->bits, input_suffix(scheme.input));
}

std::string describe(const QuantArgs& args) {
  std::string text = args.lut != Lut::kNone          ? std::string(name_of(args.lut))
                     : args.kind == NumberKind::kInt ? fmt::format("int{}", args.bits)
                     : args.bits == 4                ? "e2m1"
                                                     : "e4m3";
  switch (args.strategy) {
    case Strategy::kGroup:
    case Strategy::kTensorGroup:
      text += fmt::format(" g{}", args.group_size);
      break;
    case Strategy::kBlock:
      text += fmt::format(" block {}x{}", args.block_n, args.block_k);
      break;
    default:
      text += fmt::format(" per {}", name_of(args.strategy));
      break;
  }
  if (args.kind == NumberKind::kInt)
    text += args.offsets ? " offset" : args.symmetric ? " sym" : " asym";
  if (args.scale_dtype == kPowerOfTwoScales) text += " ue8m0";
  if (args.dynamic == Dynamic::kDynamic) text += " dynamic";
  if (args.dynamic == Dynamic::kLocal) text += " local";
  if (args.bound != 0.0f) text += fmt::format(" up to {}", args.bound);
  if (args.act_order == ActOrder::kGroup) text += " act-order";
  return text;
}

std::string describe(const Scheme& scheme) {
  if (!scheme.weights) return "dense";
  std::string text = fmt::format("{} {}", family_of(scheme), describe(*scheme.weights));
  if (scheme.input)
    text += fmt::format(", {}{}", scheme.input->dynamic == Dynamic::kStatic ? "static " : "",
                        describe(*scheme.input));
  if (scheme.output) text += fmt::format(", output {}", describe(*scheme.output));
  return fmt::format("{}, {}", text, name_of(scheme.format));
}

}  // namespace moebius
