// SPDX-License-Identifier: Apache-2.0
// Fuzz target: the metadata of a GGUF file that stores a tokenizer. Writing the files of a folder
// throws Error or gives texts that parse; a tokenizer that can be built encodes text to ids in range
// and decodes every id.
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "fuzz/target.h"
#include "gguf/gguf.h"
#include "gguf/tokenizer.h"
#include "text/tokenizer.h"

namespace moebius::fuzz_gguf_tokenizer {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

template <class Work>
void expect_error_only(const Work& work) {
  try {
    work();
  } catch (const Error& e) {
    require(*e.what() != '\0');
  }
}

void use(const GgufMetadata& metadata) {
  const std::string json = gguf_tokenizer_json(metadata);
  const bool whole = metadata.find("tokenizer.huggingface.json") != nullptr;
  require(whole || is_utf8(json));
  const Tokenizer t = Tokenizer::from_json(json, "fuzz.gguf");
  std::string text = "Hello \u2581world <s>\xff 12\n\n";
  for (int32_t id = 0; id < static_cast<int32_t>(t.vocab_size()) && id < 64; ++id) {
    text += t.token_bytes(id);
    require(is_utf8(t.decode(std::vector<int32_t>{id}, false)));
  }
  for (const int32_t id : t.encode(text, true))
    require(id >= 0 && static_cast<size_t>(id) < t.vocab_size());
}

}  // namespace

FUZZ_TARGET(gguf_tokenizer) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  std::optional<GgufHeader> header;
  expect_error_only([&] { header = parse_gguf_header(bytes, size + 1000, "fuzz.gguf"); });
  if (!header) return 0;
  const GgufMetadata& metadata = header->metadata;
  expect_error_only([&] { use(metadata); });
  expect_error_only([&] { parse_json(gguf_tokenizer_config_json(metadata), "config"); });
  expect_error_only([&] { parse_json(gguf_generation_config_json(metadata, 100), "generation"); });
  expect_error_only([&] { gguf_tokenizer_notes(metadata); });
  return 0;
}

}  // namespace moebius::fuzz_gguf_tokenizer
