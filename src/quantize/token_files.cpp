// SPDX-License-Identifier: Apache-2.0
// Reads documents as token ids and cuts windows out of them (token_files.h).
#include "quantize/token_files.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/json_shown.h"
#include "base/random.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace moebius {
namespace {

constexpr uint64_t kMaxText = uint64_t{1} << 32;

// Reads lines of a .jsonl file. Tokenizer and templates are opened when a line first needs them.
class LineReader {
 public:
  LineReader(std::string path, std::string folder)
      : path_(std::move(path)), folder_(std::move(folder)) {}

  std::vector<int32_t> read(std::string_view line, size_t number) {
    const std::string where = fmt::format("{}, line {}", path_, number);
    const Json object = parse_json_strictly(line, where);
    if (const Json* ids = object.find("input_ids")) return ids_of(*ids, where);
    if (const Json* text = object.find("text"); text != nullptr && text->is_string())
      return tokenizer().encode(text->as_string(), false);
    if (const Json* messages = object.find("messages"); messages != nullptr && messages->is_array())
      return chat(*messages, where);
    fail("{}: neither input_ids, text nor messages; expected one of them", where);
  }

 private:
  static std::vector<int32_t> ids_of(const Json& list, const std::string& where) {
    std::vector<int32_t> out;
    if (!list.is_array()) fail("{}: input_ids is {}; expected a list", where, shown(list));
    for (const Json& v : list.items()) {
      const std::optional<int64_t> id = v.is_integer() ? v.as_int() : std::nullopt;
      if (!id || *id < 0 || *id > INT32_MAX) fail("{}: {} is no token id", where, shown(v));
      out.push_back(static_cast<int32_t>(*id));
    }
    return out;
  }

  std::vector<int32_t> chat(const Json& messages, const std::string& where) {
    if (!templates_) templates_ = ChatTemplates::from_folder(folder_);
    if (templates_->empty()) fail("{}: {} has no chat template for messages", where, folder_);
    ChatInput input;
    input.messages = &messages;
    input.add_generation_prompt = false;
    return tokenizer().encode_segments(templates_->render(input), false);
  }

  const Tokenizer& tokenizer() {
    if (!tokenizer_) tokenizer_ = Tokenizer::from_folder(folder_);
    return *tokenizer_;
  }

  std::string path_, folder_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<ChatTemplates> templates_;
};

}  // namespace

std::vector<std::vector<int32_t>> read_token_documents(const std::string& path,
                                                       const std::string& folder) {
  const std::string bytes = read_input(path, kMaxText);
  std::vector<std::vector<int32_t>> out;
  if (path.ends_with(".jsonl") || path.ends_with(".json")) {
    LineReader reader(path, folder);
    size_t number = 0;
    for (size_t at = 0; at < bytes.size();) {
      const size_t end = std::min(bytes.find('\n', at), bytes.size());
      const std::string_view line(bytes.data() + at, end - at);
      at = end + 1;
      ++number;
      if (line.find_first_not_of(" \t\r") != std::string_view::npos)
        out.push_back(reader.read(line, number));
    }
  } else if (path.ends_with(".bin")) {
    if (bytes.size() % 2 != 0)
      fail("{}: has {} bytes; expected a multiple of 2 for u16 tokens", path, bytes.size());
    std::vector<int32_t>& ids = out.emplace_back(bytes.size() / 2);
    for (size_t i = 0; i < ids.size(); ++i) {
      uint16_t v = 0;
      std::memcpy(&v, bytes.data() + 2 * i, 2);
      ids[i] = v;
    }
  } else {
    out.push_back(Tokenizer::from_folder(folder).encode(bytes, false));
  }
  return out;
}

std::vector<std::vector<int32_t>> calibration_windows(
    std::span<const std::vector<int32_t>> documents, size_t length, size_t count, uint64_t seed) {
  std::vector<int32_t> all;
  for (const std::vector<int32_t>& d : documents) all.insert(all.end(), d.begin(), d.end());
  const size_t whole = length == 0 ? 0 : all.size() / length;
  if (whole == 0)
    fail("calibration: {} tokens; expected at least one window of {}", all.size(), length);
  std::vector<size_t> order(whole);
  std::iota(order.begin(), order.end(), size_t{0});
  SplitMix64 random(seed);
  for (size_t i = 0; i + 1 < whole; ++i) std::swap(order[i], order[i + random.below(whole - i)]);
  order.resize(std::min(whole, std::max<size_t>(1, count)));
  std::sort(order.begin(), order.end());
  std::vector<std::vector<int32_t>> out;
  for (const size_t w : order)
    out.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(w * length),
                     all.begin() + static_cast<std::ptrdiff_t>((w + 1) * length));
  return out;
}

}  // namespace moebius
