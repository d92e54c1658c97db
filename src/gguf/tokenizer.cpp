// SPDX-License-Identifier: Apache-2.0
// Reads the keys tokenizer.* once into a Vocabulary; three writers turn it into text. Long lists are
// written as they are read, everything small is a tree.
#include "gguf/tokenizer.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "gguf/pre_tokenizers.h"

namespace moebius {
namespace {

constexpr std::string_view kModelKey = "tokenizer.ggml.model", kPreKey = "tokenizer.ggml.pre",
                           kTokensKey = "tokenizer.ggml.tokens",
                           kTypesKey = "tokenizer.ggml.token_type",
                           kScoresKey = "tokenizer.ggml.scores",
                           kMergesKey = "tokenizer.ggml.merges",
                           kTemplateKey = "tokenizer.chat_template";
constexpr size_t kMaxGgufTokens = 1u << 22;

// Types of tokens, as files number them.
enum TokenType : uint8_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

// Texts of tokens that end an answer, whatever type the file gives them.
constexpr std::string_view kEnds =
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> "
    "<|endoftext|> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <turn|> "
    "<|tool_response> <｜end▁of▁sentence｜> [e~[";
// Texts of tokens that end an answer only where they are control tokens.
constexpr std::string_view kControlEnds = "</s> <eos>";
// Texts of tokens between the parts of an answer: control tokens, but no end.
constexpr std::string_view kMarkup = "<|channel|> <|message|> <|start|> <|constrain|>";
// Tokens of fill-in-the-middle that end an answer: the key of the id, and texts where it is absent.
constexpr std::pair<std::string_view, std::string_view> kFillEnds[] = {
    {"fim_pad", "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]"},
    {"fim_rep", "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>"},
    {"fim_sep", "<|file_sep|>"}};

// Returns bytes that are no UTF-8 in characters that the decoder turns into them: the stand-ins of
// byte-level tokenizers, or <0xhh> each (capitals are the vocabulary's own byte tokens).
std::string spelled(std::string_view bytes, bool byte_level) {
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    if (!byte_level) {
      out += fmt::format("<0x{:02x}>", byte);
      continue;
    }
    // Bytes without a printable character of their own have U+0100, U+0101, ... in their order.
    unsigned code = byte;
    if (byte <= 0x20)
      code = 0x100u + byte;
    else if (byte >= 0x7f && byte <= 0xa0)
      code = 0x121u + (byte - 0x7fu);
    else if (byte == 0xad)
      code = 0x143;
    if (code < 0x80) {
      out += c;
    } else {
      out += static_cast<char>(0xc0u | code >> 6);
      out += static_cast<char>(0x80u | (code & 0x3fu));
    }
  }
  return out;
}

bool is_byte_name(std::string_view token) {
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with('>') &&
         token.find_first_not_of("0123456789abcdefABCDEF", 3) == 5;
}

// Returns whether a name is one of the fillers [PAD0], [PAD1], ..., which are no text.
bool is_filler(std::string_view token) {
  return token.starts_with("[PAD") && token.ends_with(']') && token.size() > 5 &&
         token.find_first_not_of("0123456789", 4) == token.size() - 1;
}

enum class Kind { kBytes, kPieces, kGemma, kNone };

// The vocabulary, from which all three texts are made.
struct Vocabulary {
  explicit Vocabulary(const GgufMetadata& file);
  size_t size() const { return tokens.size(); }
  std::optional<uint32_t> id(std::string_view name) const;
  bool has(std::string_view text) const {
    return std::find(seen.begin(), seen.end(), text) != seen.end();
  }

  const GgufMetadata& metadata;
  std::string_view model;
  Kind kind = Kind::kNone;
  std::vector<std::string_view> tokens;  // valid UTF-8
  std::vector<uint8_t> types;
  std::vector<uint32_t> ends;          // tokens that end an answer by their text
  std::vector<std::string_view> seen;  // those of kEnds and kControlEnds that are tokens
  std::deque<std::string> made;        // tokens that the file has in another form
  mutable std::vector<std::string> notes;

 private:
  void read_types();
  void check(size_t i);
  void find_ends();
};

Vocabulary::Vocabulary(const GgufMetadata& file) : metadata(file) {
  model = metadata.text(kModelKey).value_or("");
  kind = model == "gpt2"     ? Kind::kBytes
         : model == "llama"  ? Kind::kPieces
         : model == "gemma4" ? Kind::kGemma
                             : Kind::kNone;
  if (auto list = metadata.texts(kTokensKey)) tokens = std::move(*list);
  if (tokens.size() > kMaxGgufTokens)
    metadata.refuse(kTokensKey, fmt::format("at most {} tokens", kMaxGgufTokens));
  read_types();
  for (size_t i = 0; i < tokens.size(); ++i) check(i);
  find_ends();
}

void Vocabulary::read_types() {
  types.assign(tokens.size(), kNormal);
  const GgufValue* value = metadata.find(kTypesKey);
  if (value == nullptr) return;
  const bool wide = value->kind == GgufKind::kI32 || value->kind == GgufKind::kU32;
  if (!value->array || !wide || value->count < tokens.size())
    metadata.refuse(kTypesKey, fmt::format("an array of i32, one for each of {} tokens", size()));
  const std::vector<int64_t> list = *metadata.integers(kTypesKey);
  for (size_t i = 0; i < tokens.size(); ++i)
    if (list[i] > kNormal && list[i] <= kByte) types[i] = static_cast<uint8_t>(list[i]);
}

void Vocabulary::check(size_t i) {
  const std::string_view token = tokens[i];
  if (types[i] == kByte && !is_byte_name(token))
    fail("{}: {}[{}] is '{}' and of type byte; expected <0xHH> with two hexadecimal digits",
         printable(metadata.path()), kTokensKey, i, printable(token, 40));
  if (!is_utf8(token)) tokens[i] = made.emplace_back(spelled(token, kind == Kind::kBytes));
}

void Vocabulary::find_ends() {
  enum Role : uint8_t { kEnd, kControlEnd, kMark };
  std::unordered_map<std::string_view, Role> roles;
  const auto add = [&](std::string_view texts, Role role) {
    for (size_t end = 0; !texts.empty(); texts.remove_prefix(std::min(end + 1, texts.size()))) {
      end = std::min(texts.find(' '), texts.size());
      roles.emplace(texts.substr(0, end), role);
    }
  };
  add(kEnds, kEnd);
  add(kControlEnds, kControlEnd);
  add(kMarkup, kMark);
  for (const auto& [key, texts] : kFillEnds)
    if (!id(key)) add(texts, kEnd);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto role = roles.find(tokens[i]);
    if (role == roles.end() || (role->second == kControlEnd && types[i] != kControl)) continue;
    types[i] = kControl;
    if (role->second == kMark) continue;
    ends.push_back(static_cast<uint32_t>(i));
    seen.push_back(role->first);
  }
}

// Returns the id of a special token. Ids beyond the vocabulary, which files have for "none", are
// ignored.
std::optional<uint32_t> Vocabulary::id(std::string_view name) const {
  const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
  std::optional<uint32_t> usual;
  if (kind == Kind::kPieces && name == "bos") usual = 1;
  if (kind == Kind::kPieces && name == "eos") usual = 2;
  if (kind == Kind::kPieces && name == "unknown") usual = 0;
  if (usual && *usual >= size()) usual.reset();
  const GgufValue* value = metadata.find(key);
  if (value == nullptr) return usual;
  if (value->kind == GgufKind::kU64 && value->bytes.size() == 8 &&
      static_cast<signed char>(value->bytes[7]) < 0)
    return usual;  // above the limit of integers(): -1 as u64
  const std::vector<int64_t> ids = *metadata.integers(key);
  if (ids.size() != 1) metadata.refuse(key, "a token id");
  if (ids[0] >= 0 && static_cast<uint64_t>(ids[0]) < size()) return static_cast<uint32_t>(ids[0]);
  notes.push_back(fmt::format("{} is {}, but there are {} tokens: ignored", key, ids[0], size()));
  return usual;
}

// Returns the rule of tokenizer.ggml.pre; an absent name is an old file's.
const PreTokenizerRule& rule_of(const Vocabulary& v) {
  const std::string_view name = v.metadata.text(kPreKey).value_or("default");
  if (const PreTokenizerRule* rule = find_pre_tokenizer(name)) return *rule;
  fail("{}: {} '{}' is not known; token ids work", printable(v.metadata.path()), kPreKey,
       printable(name, 60));
}

bool adds_bos(const Vocabulary& v) {
  if (v.kind == Kind::kGemma) return true;
  const bool usual = v.kind == Kind::kPieces || (v.kind == Kind::kBytes && rule_of(v).adds_bos);
  return v.metadata.flag("tokenizer.ggml.add_bos_token").value_or(usual);
}

bool adds_eos(const Vocabulary& v) {
  return v.metadata.flag("tokenizer.ggml.add_eos_token").value_or(false);
}

bool adds_space(const Vocabulary& v) {
  return v.kind == Kind::kPieces &&
         v.metadata.flag("tokenizer.ggml.add_space_prefix").value_or(true);
}

// A text that is cut out before the model sees it.
struct Added {
  uint32_t last = 0;  // the last id with this text
  uint32_t count = 0;
  bool special = false;
};
using AddedTexts = std::unordered_map<std::string_view, Added>;

bool is_special(uint8_t type) { return type == kControl || type == kUnknown; }

AddedTexts added_texts(const Vocabulary& v) {
  AddedTexts out;
  for (size_t i = 0; i < v.size(); ++i)
    if (!v.tokens[i].empty() &&
        (is_special(v.types[i]) || (v.types[i] == kUserDefined && !is_filler(v.tokens[i]))))
      out[v.tokens[i]].special |= is_special(v.types[i]);
  for (size_t i = 0; i < v.size(); ++i)
    if (const auto it = out.find(v.tokens[i]); it != out.end()) {
      it->second.last = static_cast<uint32_t>(i);
      ++it->second.count;
    }
  return out;
}

void write_added(const Vocabulary& v, const AddedTexts& texts, std::string& out) {
  out += "\"added_tokens\":[";
  bool first = true;
  for (uint32_t i = 0; i < v.size(); ++i) {
    const auto it = texts.find(v.tokens[i]);
    if (it == texts.end() || it->second.last != i) continue;
    out += first ? "{" : ",{";
    first = false;
    out +=
        fmt::format(R"("id":{},"special":{},"normalized":false,"content":)", i, it->second.special);
    append_json_string(out, v.tokens[i]);
    out += '}';
  }
  out += ']';
}

void write_vocabulary(const Vocabulary& v, const AddedTexts& texts, bool hides_special,
                      std::string& out) {
  std::vector<double> scores;
  bool single = false;  // scores are f32: shorter to write
  if (v.kind == Kind::kPieces) {
    const GgufValue* value = v.metadata.find(kScoresKey);
    single = value != nullptr && value->kind == GgufKind::kF32;
    const bool fits = value != nullptr && value->array && value->count >= v.size() &&
                      (single || value->kind == GgufKind::kF64 || value->kind == GgufKind::kI32);
    if (!fits)
      v.metadata.refuse(kScoresKey,
                        fmt::format("an array of f32, one for each of {} tokens", v.size()));
    scores = *v.metadata.numbers(kScoresKey);
  }
  const auto unknown = v.id("unknown");
  out += "\"vocab\":[";
  for (uint32_t i = 0; i < v.size(); ++i) {
    out += i == 0 ? "[" : ",[";
    // A control token is found before the model runs. Text must not become one by merging.
    const bool hidden =
        hides_special && is_special(v.types[i]) && i != unknown && texts.at(v.tokens[i]).count == 1;
    append_json_string(out, hidden ? std::string_view() : v.tokens[i]);
    if (scores.empty())
      out += ",0]";
    else
      out += single ? fmt::format(",{}]", static_cast<float>(scores[i]))
                    : fmt::format(",{}]", scores[i]);
  }
  out += ']';
}

void write_merges(const Vocabulary& v, std::string& out) {
  const auto merges = v.metadata.texts(kMergesKey);
  if (v.kind == Kind::kPieces || (!merges && v.metadata.text(kPreKey) == "kimi-k2")) {
    out += ",\"merges\":\"cuts\"";
    return;
  }
  if (!merges) v.metadata.refuse(kMergesKey, "an array of strings");
  out += ",\"merges\":[";
  for (size_t i = 0; i < merges->size(); ++i) {
    const std::string_view merge = (*merges)[i];
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos)
      fail("{}: {}[{}] is '{}'; expected two tokens with a space between them",
           printable(v.metadata.path()), kMergesKey, i, printable(merge, 60));
    out += i == 0 ? "[" : ",[";
    for (const std::string_view part : {merge.substr(0, space), merge.substr(space + 1)}) {
      if (part.data() != merge.data()) out += ',';
      append_json_string(out, part);
    }
    out += ']';
  }
  out += ']';
}

// Returns the stages before the model and after it, as members of tokenizer.json.
std::string stages_of(const Vocabulary& v) {
  constexpr std::string_view kSpaces =
      R"({"type":"Replace","pattern":{"String":" "},"content":"▁"})";
  constexpr std::string_view kPieceDecoder =
      R"({"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"})";
  if (v.kind == Kind::kGemma)
    return fmt::format(
        R"("normalizer":{},"pre_tokenizer":{{"type":"Split","pattern":{{"Regex":"[^\\n]+|[\\n]+"}},"behavior":"Isolated"}},"decoder":{{"type":"Sequence","decoders":[{}]}})",
        kSpaces, kPieceDecoder);
  if (v.kind == Kind::kPieces)
    return fmt::format(
        R"("normalizer":{{"type":"Sequence","normalizers":[{}{}]}},"decoder":{{"type":"Sequence","decoders":[{}{}]}})",
        adds_space(v) ? R"({"type":"Prepend","prepend":"▁"},)" : "", kSpaces, kPieceDecoder,
        adds_space(v) ? R"(,{"type":"Strip","content":" ","start":1,"stop":0})" : "");
  std::string out = R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[)";
  for (const std::string_view stage : rule_of(v).stages) {
    if (stage.empty()) break;
    out += R"({"type":"Split","behavior":"Isolated","pattern":{"Regex":)";
    append_json_string(out, stage);
    out += "}},";
  }
  return out +
         R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},"decoder":{"type":"ByteLevel"})";
}

// Returns the post-processor that adds BOS and EOS.
std::string additions_of(const Vocabulary& v) {
  const auto bos = adds_bos(v) ? v.id("bos") : std::nullopt,
             eos = adds_eos(v) ? v.id("eos") : std::nullopt;
  Json single = Json::array(), table = Json::object();
  const auto add = [&](const char* name, uint32_t id) {
    single.push(Json::object({{"SpecialToken", Json::object({{"id", name}})}}));
    Json ids = Json::array();
    ids.push(id);
    table.set(name, Json::object({{"ids", std::move(ids)}}));
  };
  if (bos) add("bos", *bos);
  single.push(Json::object({{"Sequence", Json::object({{"id", "A"}})}}));
  if (eos) add("eos", *eos);
  return Json::object({{"type", "TemplateProcessing"},
                       {"single", std::move(single)},
                       {"special_tokens", std::move(table)}})
      .dump();
}

}  // namespace

std::string gguf_tokenizer_json(const GgufMetadata& metadata) {
  if (const auto whole = metadata.text("tokenizer.huggingface.json")) return std::string(*whole);
  const Vocabulary v(metadata);
  if (v.model.empty()) metadata.refuse(kModelKey, "gpt2, llama or gemma4; token ids work");
  if (v.kind == Kind::kNone)
    fail("{}: {} is '{}', a tokenizer that this program does not have; token ids work",
         printable(metadata.path()), kModelKey, printable(v.model, 60));
  if (v.size() == 0) metadata.refuse(kTokensKey, "an array of strings, one per token");
  const bool ignores_merges = v.kind == Kind::kBytes && rule_of(v).ignore_merges;
  const AddedTexts texts = added_texts(v);
  std::string out = "{";
  write_added(v, texts, out);
  out += "," + stages_of(v) + R"(,"post_processor":)" + additions_of(v);
  out += fmt::format(R"(,"model":{{"type":"BPE","ignore_merges":{},)", ignores_merges);
  if (v.kind != Kind::kBytes) {
    out += R"("byte_fallback":true,"fuse_unk":true,)";
    if (const auto unknown = v.id("unknown"); unknown && !v.tokens[*unknown].empty()) {
      out += "\"unk_token\":";
      append_json_string(out, v.tokens[*unknown]);
      out += ',';
    }
  }
  write_vocabulary(v, texts, ignores_merges || v.kind == Kind::kPieces, out);
  write_merges(v, out);
  return out += "}}";
}

std::string gguf_tokenizer_config_json(const GgufMetadata& metadata) {
  const Vocabulary v(metadata);
  Json out = Json::object();
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"bos", "bos_token"},     {"eos", "eos_token"},       {"unknown", "unk_token"},
      {"padding", "pad_token"}, {"seperator", "sep_token"}, {"mask", "mask_token"}};
  for (const auto& [key, name] : kNames)
    if (const auto id = v.id(key)) out.set(std::string(name), Json(v.tokens[*id]));
  Json named = Json::array();
  const auto add = [&](std::string_view name, std::string_view text) {
    named.push(Json::object({{"name", Json(name)}, {"template", Json(text)}}));
  };
  const auto usual = metadata.text(kTemplateKey);
  if (usual) add("default", *usual);
  const std::string prefix = std::string(kTemplateKey) + ".";
  for (const auto& [key, value] : metadata.all())
    if (key.starts_with(prefix)) add(key.substr(prefix.size()), *metadata.text(key));
  if (named.items().size() == 1 && usual)
    out.set("chat_template", Json(*usual));
  else if (!named.items().empty())
    out.set("chat_template", std::move(named));
  return out.dump();
}

std::string gguf_generation_config_json(const GgufMetadata& metadata, uint64_t vocabulary) {
  const Vocabulary v(metadata);
  Json out = Json::object();
  std::set<uint32_t> ends(v.ends.begin(), v.ends.end());
  for (const char* name : {"eos", "eot", "eom"})
    if (const auto id = v.id(name)) ends.insert(*id);
  for (const auto& [key, texts] : kFillEnds)
    if (const auto id = v.id(key)) ends.insert(*id);
  const uint64_t below = v.size() > 0 ? v.size() : vocabulary;
  for (const int64_t id :
       metadata.integers("tokenizer.ggml.eos_token_ids").value_or(std::vector<int64_t>()))
    if (id >= 0 && static_cast<uint64_t>(id) < below) ends.insert(static_cast<uint32_t>(id));
  // Within an answer of parts, <|end|> ends a part; where answers call tools, </s> is text.
  const bool parts = (v.has("<|return|>") && v.has("<|call|>")) || v.has("<|flush|>");
  std::erase_if(ends, [&](uint32_t id) {
    const std::string_view text = id < v.size() ? v.tokens[id] : std::string_view();
    return (text == "<|end|>" && parts) || (text == "</s>" && v.has("<|tool_response>"));
  });
  Json ids = Json::array();
  for (const uint32_t id : ends) ids.push(id);
  if (!ends.empty()) out.set("eos_token_id", std::move(ids));
  if (const auto id = v.id("bos")) out.set("bos_token_id", *id);
  if (const auto id = v.id("padding")) out.set("pad_token_id", *id);
  struct Setting {
    std::string_view key;
    const char* name;
    double low, high;
  };
  constexpr Setting kSettings[] = {{"temp", "temperature", 0, 100},
                                   {"top_p", "top_p", 0, 1},
                                   {"min_p", "min_p", 0, 1},
                                   {"penalty_repeat", "repetition_penalty", 1e-6, 1e6}};
  bool draws = false;
  for (const Setting& s : kSettings) {
    const std::string key = fmt::format("general.sampling.{}", s.key);
    const auto number = metadata.number(key);
    if (!number) continue;
    if (*number < s.low || *number > s.high)
      metadata.refuse(key, fmt::format("a number from {} to {}", s.low, s.high));
    draws = draws || s.key != "penalty_repeat";
    // Files have f32: 0.6 stays 0.6.
    const bool single = metadata.find(key)->kind == GgufKind::kF32;
    out.set(s.name, single ? std::stod(fmt::format("{}", static_cast<float>(*number))) : *number);
  }
  if (const auto top = metadata.number("general.sampling.top_k")) {
    draws = true;
    out.set("top_k", Json(static_cast<int64_t>(std::clamp(*top, 0.0, 1e9))));
  }
  if (draws) out.set("do_sample", Json(metadata.number("general.sampling.temp") != 0.0));
  return out.dump();
}

std::vector<std::string> gguf_tokenizer_notes(const GgufMetadata& metadata) {
  const Vocabulary v(metadata);
  for (const char* name : {"bos", "eos", "eot", "eom", "unknown", "padding"}) v.id(name);
  const auto pre = metadata.text(kPreKey);
  if (v.kind == Kind::kBytes && pre.value_or("default") == "default")
    v.notes.emplace_back("old file: its tokenizer's rule is not stored, text may be cut otherwise");
  if (pre && pre->starts_with("qwen"))
    v.notes.emplace_back(
        "text that is not in Unicode form NFC gives other tokens than the model's "
        "own tokenizer");
  return std::move(v.notes);
}

}  // namespace moebius
