// SPDX-License-Identifier: Apache-2.0
// Implements tokenize and detokenize: reads the input, converts, and writes the output.
#include "apps/tokenize.h"

#include <charconv>
#include <iostream>
#include <istream>
#include <iterator>
#include <memory>
#include <ostream>

#include "apps/cli/options.h"
#include "apps/commands.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer.h"

namespace moebius {
namespace {

constexpr uint64_t kMaxInput = uint64_t{1} << 30;

std::string read_all(std::istream& in) {
  std::string text;
  char buffer[1 << 16];
  while (in.read(buffer, sizeof(buffer)) || in.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(in.gcount()));
    if (text.size() > kMaxInput) fail("standard input: more than {} bytes", kMaxInput);
  }
  return text;
}

std::vector<int32_t> parse_ids(std::string_view text, size_t limit) {
  std::vector<int32_t> ids;
  static constexpr std::string_view kBetween = ", \t\r\n[]";
  for (size_t i = text.find_first_not_of(kBetween); i != std::string_view::npos;
       i = text.find_first_not_of(kBetween, i)) {
    const size_t end = std::min(text.find_first_of(kBetween, i), text.size());
    const std::string_view word = text.substr(i, end - i);
    int64_t id = -1;
    const auto r = std::from_chars(word.data(), word.data() + word.size(), id);
    if (r.ec != std::errc() || r.ptr != word.data() + word.size())
      fail("'{}' is not a token id", printable(word, 60));
    if (id < 0 || static_cast<uint64_t>(id) >= limit)
      fail("token id {} is out of range: the tokenizer has ids 0 to {}", id, limit - 1);
    ids.push_back(static_cast<int32_t>(id));
    i = end;
  }
  return ids;
}

}  // namespace

int run_tokenize(const TokenizeOptions& o, std::istream& in, std::ostream& out) {
  const Tokenizer tokenizer = Tokenizer::from_folder(o.folder);
  const std::string text = o.text   ? *o.text
                           : o.file ? read_input(*o.file, kMaxInput)
                                    : read_all(in);
  const std::vector<int32_t> ids = tokenizer.encode(text, o.add_special);
  if (o.json) {
    Json list = Json::array(), tokens = Json::array();
    for (const int32_t id : ids) {
      list.push(Json(id));
      tokens.push(Json(tokenizer.id_to_token(id).value_or("")));
    }
    out << Json::object({{"count", Json(static_cast<uint64_t>(ids.size()))},
                         {"ids", std::move(list)},
                         {"tokens", std::move(tokens)}})
               .dump()
        << '\n';
    return 0;
  }
  std::string line;
  for (const int32_t id : ids) line += fmt::format("{}{}", line.empty() ? "" : " ", id);
  out << line << '\n';
  return 0;
}

int run_detokenize(const DetokenizeOptions& o, std::istream& in, std::ostream& out) {
  const Tokenizer tokenizer = Tokenizer::from_folder(o.folder);
  const std::vector<int32_t> ids = parse_ids(o.ids ? *o.ids : read_all(in), tokenizer.vocab_size());
  const std::string text = tokenizer.decode(ids, !o.special);
  if (o.json) {
    out << Json::object({{"text", Json(text)}}).dump() << '\n';
  } else {
    out << text;  // adds no line feed, because the text may be piped on
  }
  return 0;
}

Command tokenize_command() {
  auto o = std::make_shared<TokenizeOptions>();
  Command c("tokenize", "turns text into token ids, on one line");
  c.folder(o->folder);
  c.option("--prompt,-p,--text", "TEXT", &o->text, "the text", {.default_text = "standard input"});
  c.option("--file,-f", "FILE", &o->file, "read the text from a file; -: standard input",
           {.kind = ValueKind::kFile});
  c.at_most_one({"--prompt", "--file"});
  c.flag("--no-special", o->add_special, "add no special tokens, such as a beginning of text");
  add_json_flag(c, o->json);
  c.examples = {"moebius tokenize -p 'Hello there'", "moebius tokenize DIR --json < book.txt"};
  c.action = [o](const Command&) { return run_tokenize(*o, std::cin, std::cout); };
  return c;
}

Command detokenize_command() {
  auto o = std::make_shared<DetokenizeOptions>();
  Command c("detokenize", "turns token ids into text");
  c.folder(o->folder);
  c.option("--tokens,--ids", "LIST", &o->ids, "token ids, separated by commas or spaces",
           {.default_text = "standard input"});
  c.flag("--special", o->special, "write special tokens too");
  add_json_flag(c, o->json);
  c.examples = {"moebius detokenize --tokens 12,7,99", "moebius detokenize DIR < ids.txt"};
  c.action = [o](const Command&) { return run_detokenize(*o, std::cin, std::cout); };
  return c;
}

}  // namespace moebius
