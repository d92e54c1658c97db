// SPDX-License-Identifier: Apache-2.0
// Prints tables for the documents. The scheme table asks the oracle which kernel would run each
// scheme on a few typical CPUs.
#include "apps/cli/docs.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <ostream>

#include "apps/cli/manual.h"
#include "apps/commands.h"
#include "base/error.h"
#include "checkpoint/formats/format.h"
#include "checkpoint/methods/method.h"
#include "checkpoint/quant_args_parse.h"
#include "kernels/oracle.h"
#include "kernels/packed_matrix.h"
#include "quant/reference.h"
#include "quantize/schemes.h"

namespace moebius {
namespace {

struct Sample {
  const char* what;
  const char* preset;  // name in the format's library
};
constexpr Sample kSamples[] = {
    {"int4 weights, int8 activations", "W4A8"},
    {"int8 weights, int8 activations", "W8A8"},
    {"int4 weights", "W4A16"},
    {"int4 weights with zero points", "W4A16_ASYM"},
    {"int8 weights", "W8A16"},
    {"int2 weights", "W2A16"},
    {"int3 weights", "W3A16"},
    {"FP8, per channel and token", "FP8_DYNAMIC"},
    {"FP8, per tensor, static", "FP8"},
    {"FP8, blocks", "FP8_BLOCK"},
    {"int4 weights, FP8 activations", "W4AFP8"},
    {"NVFP4, both sides", "NVFP4"},
    {"NVFP4 weights", "NVFP4A16"},
    {"MXFP4, both sides", "MXFP4"},
    {"MXFP4 weights", "MXFP4A16"},
    {"MXFP8, both sides", "MXFP8"},
    {"MXFP8 weights", "MXFP8A16"},
};
constexpr const char* kProfiles[][2] = {{"Arm with i8mm, bf16", "neon,dotprod,i8mm,bf16,fp16"},
                                        {"Arm with dotprod", "neon,dotprod"},
                                        {"Armv8.0", "neon"},
                                        {"x86-64 with AVX2", "avx2,fma,f16c"},
                                        {"with AVX-512 VNNI", "avx512_vnni"},
                                        {"with AMX", "amx_int8,amx_bf16"}};

// Returns a matrix of 1024 x 1024 as the scheme's own format would store it.
QuantMatrix typical_matrix(const Scheme& s) {
  QuantMatrix w;
  w.N = w.K = 1024;
  const QuantArgs& a = *s.weights;
  w.bits = static_cast<uint8_t>(a.bits);
  if (a.kind == NumberKind::kFloat)
    w.code = a.bits == 4 ? CodeType::kFp4 : CodeType::kFp8;
  else
    w.code =
        s.format == Format::kPackQuantized && a.bits == 4 ? CodeType::kInt4Offset : CodeType::kInt8;
  w.scale_type = is_nvfp4(a)                  ? ScaleType::kFp8
                 : is_mxfp4(a) || is_mxfp8(a) ? ScaleType::kE8m0
                                              : ScaleType::kBf16;
  w.block_n = a.strategy == Strategy::kBlock    ? static_cast<size_t>(a.block_n)
              : a.strategy == Strategy::kTensor ? w.N
                                                : 1;
  w.block_k = a.strategy == Strategy::kBlock ? static_cast<size_t>(a.block_k)
              : a.group_size > 0             ? static_cast<size_t>(a.group_size)
                                             : w.K;
  w.groups = w.scale_stride = w.K / w.block_k;
  static constexpr int8_t kZero = 0;
  w.zero_points = a.symmetric ? nullptr : &kZero;
  return w;
}

void schemes(std::ostream& out) {
  out << "| scheme | what | preset |";
  for (const auto& p : kProfiles) out << " " << p[0] << " |";
  out << "\n|---|---|---|";
  for (size_t i = 0; i < std::size(kProfiles); ++i) out << "---|";
  out << "\n";
  for (const Sample& sample : kSamples) {
    const auto scheme = scheme_of_preset(sample.preset, "0.19.0");
    if (!scheme) fail("no preset {}", sample.preset);
    out << fmt::format("| `{}` | {} | {} |", family_of(*scheme), sample.what, sample.preset);
    const Problem problem = make_problem(typical_matrix(*scheme),
                                         act_spec_of(*scheme, Int8Mode::kDeclared), XType::kBf16);
    for (const auto& p : kProfiles) {
      const Choice choice = choose_kernel(problem, parse_cpu(p[1]), {});
      out << fmt::format(" {}, {} |", title_of(*choice.chosen), name_of(choice.numerics));
    }
    out << "\n";
  }
}

void format_table(std::ostream& out) {
  for (const FormatReader& r : format_readers()) out << fmt::format("- `{}`\n", name_of(r.format));
  std::vector<std::string> run, refused;
  for (const QuantMethod& m : quant_methods())
    (m.parse != nullptr ? run : refused).push_back(fmt::format("`{}`", m.name));
  out << fmt::format(
      "\nMethods (`quant_method`) that are run: {}. Refused in one sentence that says what it is "
      "and "
      "which tool converts it: {}.\n",
      fmt::join(run, ", "), fmt::join(refused, ", "));
}

void quantize_schemes(std::ostream& out) {
  out << "| `--scheme` | makes | stored as |\n|---|---|---|\n";
  for (const SchemeName& s : scheme_names()) {
    QuantizeOptions options;
    options.scheme = s.name;
    out << fmt::format("| `{}` | {} | `{}` |\n", s.name, s.what,
                       name_of(scheme_of(options).format));
  }
}

}  // namespace

int run_docs(const std::string& table, std::ostream& out) {
  if (table == "schemes")
    schemes(out);
  else if (table == "formats")
    format_table(out);
  else if (table == "quantize-schemes")
    quantize_schemes(out);
  else if (table == "environment")
    out << markdown_environment(make_tool());
  else if (table == "exit-codes")
    out << markdown_exit_codes();
  else if (table == "man")
    out << man_page(make_tool());
  else
    fail(
        "no table '{}'; there are schemes, formats, quantize-schemes, environment, exit-codes and "
        "man",
        printable(table));
  return 0;
}

Command docs_command() {
  auto table = std::make_shared<std::string>();
  Command c("docs", "prints tables for the documents");
  c.hidden = true;
  c.argument("TABLE", *table, "which table", {.required = true});
  c.examples = {"moebius docs schemes"};
  c.action = [table](const Command&) { return run_docs(*table, std::cout); };
  return c;
}

}  // namespace moebius
