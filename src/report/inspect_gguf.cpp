// SPDX-License-Identifier: Apache-2.0
// Gathers what a GGUF file says of itself: origin, calibration, defaults of sampling, tokenizer, and
// the types of its tensors.
#include <algorithm>

#include "base/error.h"
#include "gguf/model_files.h"
#include "gguf/pre_tokenizers.h"
#include "report/inspect.h"

namespace moebius {
namespace {

// Most values of a group and bytes of one that are shown; files come from strangers.
constexpr size_t kMostShown = 32, kMostText = 200;

// Returns the texts and numbers whose keys begin with a prefix.
Json values_of(const GgufMetadata& m, std::string_view prefix) {
  Json out = Json::object();
  for (const auto& [key, value] : m.all()) {
    if (!key.starts_with(prefix) || value.array || out.members().size() == kMostShown) continue;
    const std::string name = printable(key.substr(prefix.size()), 60);
    if (name.find('.') != std::string::npos || out.find(name) != nullptr) continue;
    try {
      if (value.kind == GgufKind::kString)
        out.set(name, printable(*m.text(key), kMostText));
      else if (value.kind == GgufKind::kF32)  // 0.6 stays 0.6
        out.set(name, std::stod(fmt::format("{}", static_cast<float>(*m.number(key)))));
      else if (value.kind != GgufKind::kBool)
        out.set(name, *m.number(key));
    } catch (const Error&) {  // no finite number
    }
  }
  return out;
}

Json tokenizer_of(const GgufMetadata& m) {
  const auto text = [&](std::string_view key) {
    const GgufValue* value = m.find(key);
    const bool one = value != nullptr && value->kind == GgufKind::kString && !value->array;
    return one ? std::optional(*m.text(key)) : std::nullopt;
  };
  const auto model = text("tokenizer.ggml.model"), pre = text("tokenizer.ggml.pre");
  const auto shown = [](const auto& v) { return v ? Json(printable(*v, 60)) : Json(); };
  const bool found = model == "gpt2" ? find_pre_tokenizer(pre.value_or("default")) != nullptr
                                     : model == "llama" || model == "gemma4";
  return Json::object({{"model", shown(model)}, {"pre", shown(pre)}, {"found", Json(found)}});
}

}  // namespace

Json gguf_facts(const std::string& model, const RunFacts& run) {
  const auto path = gguf_file_of(model);
  if (!path) return {};
  const auto gguf = open_gguf(*path);
  const GgufMetadata& m = gguf->metadata();
  uint64_t bytes = 0;
  for (const auto& file : gguf->files()) bytes += file->size();
  struct Row {
    uint64_t tensors = 0, bytes = 0;
  };
  std::map<std::string_view, Row> rows;
  const uint64_t alignment = m.count("general.alignment", UINT32_MAX).value_or(32);
  bool close = true;  // tensors follow one another
  const GgufTensor* last = nullptr;
  for (const GgufTensor& t : gguf->tensors()) {
    if (last != nullptr && last->part == t.part)
      close = close && t.offset >= last->offset + last->bytes &&
              t.offset - last->offset - last->bytes < alignment;
    last = &t;
    ++rows[t.type->name].tensors;
    rows[t.type->name].bytes += t.bytes;
  }
  std::vector<std::pair<std::string_view, Row>> order(rows.begin(), rows.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  Json types = Json::array();
  for (const auto& [name, row] : order) {
    const auto packed = run.packed_by_type.find(name);
    types.push(Json::object(
        {{"type", name},
         {"tensors", row.tensors},
         {"bytes", row.bytes},
         {"packed_bytes", packed == run.packed_by_type.end() ? uint64_t{0} : packed->second}}));
  }
  return Json::object({{"version", gguf->version()},
                       {"parts", static_cast<uint64_t>(gguf->files().size())},
                       {"bytes", bytes},
                       {"close", close},
                       {"about", values_of(m, "general.")},
                       {"imatrix", values_of(m, "quantize.imatrix.")},
                       {"sampling", values_of(m, "general.sampling.")},
                       {"tokenizer", tokenizer_of(m)},
                       {"types", std::move(types)}});
}

}  // namespace moebius
