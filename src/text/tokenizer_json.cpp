// SPDX-License-Identifier: Apache-2.0
// Reads tokenizer.json. Vocabulary, scores and merges, which make up nearly all of the file, go
// straight into their tables; everything else becomes a small tree.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/json_tree.h"
#include "text/bpe.h"
#include "text/json_fields.h"
#include "text/tokenizer_parts.h"
#include "text/unigram.h"
#include "text/word_level.h"

namespace moebius {
namespace {

// Tokens that are cut: at each place two parts are hashed.
constexpr size_t kMaxCutToken = 256;
constexpr size_t kJsonSmallFile = 4096;  // values that the smallest file may have

class Reader final : public JsonHandler {
 public:
  // Takes the bytes of the file: values are longer than 8 bytes, but for those that only fill memory.
  Reader(const std::string& file, size_t bytes)
      : file_(file), most_values_(std::min(2 * kJsonMaxValues, kJsonSmallFile + bytes / 8)) {}
  JsonTree tree;
  TokenTable vocab;
  std::vector<double> scores;  // scores of a vocabulary that is a list of tokens and scores
  size_t listed = 0;           // number of listed tokens
  double lowest = std::numeric_limits<double>::infinity();
  std::vector<std::pair<int32_t, size_t>> earlier_ids;  // ids of tokens that are listed again later
  bool has_vocab = false, has_scores = false, has_merges = false;
  struct Merge {
    std::string left, right;
  };
  std::vector<Merge> merges;

  void value(Json v) override {
    if (mode_ == Mode::kScores && v.is_number()) return score(v.as_double());
    if (mode_ != Mode::kTree) misplaced(kind_name(v.kind()));
    tree.put(std::move(v));
    check_limit();
  }
  void number(uint64_t v) override {
    if (mode_ != Mode::kVocab) return value(v);
    if (v > static_cast<uint64_t>(kMaxTokenId))
      stop("model.vocab: id {} of '{}' is above the limit of {}", v, printable(token_),
           kMaxTokenId);
    if (!vocab.insert(token_, static_cast<int32_t>(v)))
      stop("model.vocab: token '{}' appears twice", printable(token_));
  }
  void text(std::string& v) override {
    if (mode_ == Mode::kMerges) return merge_string(v);
    if (mode_ != Mode::kScores || parts_ != 0) return value(std::string_view(v));
    token_ = std::move(v);
    parts_ = 1;
  }
  void key(std::string& v) override {
    if (mode_ == Mode::kVocab)
      token_ = std::move(v);
    else if (!tree.name(v))
      stop("duplicate key '{}'", printable(v));
  }
  void begin(bool array) override {
    if (array && (mode_ == Mode::kMerges || mode_ == Mode::kScores) && parts_ < 0) {
      parts_ = 0;
      return;
    }
    if (mode_ != Mode::kTree) misplaced(array ? "an array" : "an object");
    if (in_model("vocab")) {
      mode_ = array ? Mode::kScores : Mode::kVocab;
      (array ? has_scores : has_vocab) = true;
    } else if (array && in_model("merges")) {
      mode_ = Mode::kMerges;
      has_merges = true;
    } else {
      tree.open(array ? Json::array() : Json::object());
    }
  }
  void end() override {
    if (mode_ == Mode::kTree) {
      tree.close();
      check_limit();
    } else if (parts_ < 0) {
      mode_ = Mode::kTree;
    } else if (mode_ == Mode::kScores) {
      scored_token();
    } else if (parts_ != 2) {
      stop("model.merges[{}] has {} parts; expected 2", merges.size(), parts_);
    } else {
      merges.push_back(std::move(pair_));
      parts_ = -1;
    }
  }

 private:
  enum class Mode { kTree, kVocab, kScores, kMerges };
  template <class... Args>
  [[noreturn]] void stop(fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}: {}", file_, fmt::format(format, std::forward<Args>(args)...));
  }
  [[noreturn]] void misplaced(std::string_view what) const {
    if (mode_ == Mode::kVocab)
      stop("model.vocab: the id of '{}' is {}; expected a non-negative integer", printable(token_),
           what);
    if (mode_ == Mode::kScores)
      stop("model.vocab[{}] holds {}; expected a token and its score", listed, what);
    stop("model.merges[{}] is {}; expected a string \"a b\" or a pair of strings", merges.size(),
         what);
  }
  // Returns whether the parser is at a member of the root's object "model".
  bool in_model(std::string_view key) const {
    return tree.depth() == 2 && tree.key_at(0) == "model" && tree.object_at(1) &&
           tree.key_at(1) == key;
  }
  void score(double v) {
    if (parts_ != 1) misplaced("a number");
    score_ = v;
    parts_ = 2;
  }
  void scored_token() {
    if (parts_ != 2) misplaced(fmt::format("{} values", parts_));
    if (listed > static_cast<size_t>(kMaxTokenId))
      stop("model.vocab: more than {} tokens", kMaxTokenId);
    const auto id = static_cast<int32_t>(listed++);
    parts_ = -1;
    if (token_.empty()) return;  // an id without a token
    lowest = std::min(lowest, score_);
    if (const int32_t before = vocab.find(token_); before >= 0) {
      const size_t index = vocab.reassign(token_, id);  // the later entry applies
      earlier_ids.emplace_back(before, index);
      scores[index] = score_;
    } else {
      vocab.insert(token_, id);
      scores.push_back(score_);
    }
  }
  void merge_string(std::string& v) {
    if (parts_ >= 0) {
      if (parts_ < 2) (parts_ == 0 ? pair_.left : pair_.right) = std::move(v);
      ++parts_;
      return;
    }
    const size_t space = v.find(' ');
    if (space == std::string::npos || v.find(' ', space + 1) != std::string::npos) {
      // Old files start with a version line, which is no merge.
      if (merges.empty() && v.starts_with("#version")) return;
      stop("model.merges[{}] is '{}'; expected two tokens with one space between them",
           merges.size(), printable(v));
    }
    merges.push_back({v.substr(0, space), v.substr(space + 1)});
  }
  void check_limit() const {
    if (tree.values() > most_values_)
      stop("more than {} values beside vocabulary and merges", most_values_);
  }

  const std::string& file_;
  size_t most_values_;
  Mode mode_ = Mode::kTree;
  std::string token_;
  Merge pair_;
  double score_ = 0;
  int parts_ = -1;  // values read of the current pair; -1: outside a pair
};

std::string optional_string(const Json& object, std::string_view key, const std::string& where) {
  return has_value(object, key) ? string_field(object, key, where) : std::string();
}

BpeOptions parse_options(const Json& model, bool bytes, const std::string& where) {
  BpeOptions o;
  o.bytes = bytes;
  o.byte_fallback = bool_field(model, "byte_fallback", /*absent=*/false, where);
  o.fuse_unk = bool_field(model, "fuse_unk", /*absent=*/false, where);
  o.ignore_merges = bool_field(model, "ignore_merges", /*absent=*/false, where);
  if (has_value(model, "unk_token")) o.unk_token = string_field(model, "unk_token", where);
  o.continuing_subword_prefix = optional_string(model, "continuing_subword_prefix", where);
  o.end_of_word_suffix = optional_string(model, "end_of_word_suffix", where);
  if (has_value(model, "dropout") &&
      !(model.find("dropout")->is_number() && model.find("dropout")->as_double() == 0))
    fail("{}.dropout is {}; only null is supported", where,
         printable(model.find("dropout")->dump(), 40));
  return o;
}

std::unique_ptr<PieceModel> make_bpe(Reader& reader, const Json& model, bool bytes,
                                     const std::string& where) {
  // The vocabulary may be a list, and the merges "cuts": GGUF files store no others.
  const Json* merges = model.find("merges");
  const bool cuts = reader.has_scores && merges != nullptr && merges->is_string() &&
                    merges->as_string() == "cuts";
  if (!(reader.has_vocab || reader.has_scores) || !(reader.has_merges || cuts))
    fail("{} needs both vocab and merges", where);
  BpeOptions options = parse_options(model, bytes, where);
  options.earlier_ids = std::move(reader.earlier_ids);
  auto bpe = std::make_unique<Bpe>(std::move(reader.vocab), std::move(options), where);
  if (cuts) bpe->add_cuts(reader.scores, kMaxCutToken);
  bpe->reserve(reader.merges.size());
  for (const Reader::Merge& m : reader.merges) bpe->add_merge(m.left, m.right);
  return bpe;
}

std::unique_ptr<PieceModel> make_unigram(Reader& reader, const Json& model, bool bytes,
                                         const std::string& where) {
  if (!reader.has_scores) fail("{}.vocab is missing or not a list of tokens and scores", where);
  Unigram::Options o;
  o.bytes = bytes;
  o.byte_fallback = bool_field(model, "byte_fallback", /*absent=*/false, where);
  if (has_value(model, "unk_id"))
    o.unk_id = static_cast<int32_t>(
        int_field(model, "unk_id", 0, static_cast<int64_t>(reader.listed) - 1, where));
  o.lowest = reader.lowest;
  o.earlier_ids = std::move(reader.earlier_ids);
  return std::make_unique<Unigram>(std::move(reader.vocab), std::move(reader.scores), o);
}

std::unique_ptr<PieceModel> make_model(Reader& reader, const Json& model, bool bytes,
                                       const std::string& where) {
  const std::string type = has_value(model, "type") ? string_field(model, "type", where)
                           : reader.has_merges      ? "BPE"
                           : reader.has_scores      ? "Unigram"
                                                    : "";
  if (type != "BPE" && type != "WordLevel" && type != "Unigram")
    fail("{}.type is '{}'; expected BPE, WordLevel or Unigram", where, printable(type));
  if ((reader.has_vocab || reader.has_scores) && reader.vocab.size() == 0)
    fail("{}.vocab is empty", where);
  if (type == "BPE") return make_bpe(reader, model, bytes, where);
  if (type == "Unigram") return make_unigram(reader, model, bytes, where);
  if (!reader.has_vocab) fail("{}.vocab is missing or not an object", where);
  const std::string unk =
      has_value(model, "unk_token") ? string_field(model, "unk_token", where) : "<unk>";
  return std::make_unique<WordLevel>(std::move(reader.vocab), unk, bytes);
}

void add_special_ids(const Json& piece, const Json& table, const std::string& where,
                     std::vector<int32_t>& out) {
  const std::string& name = string_field(piece, "id", where);
  const Json& entry = require_field(table, name, where);
  const Json& ids = require_field(entry, "ids", where + "." + printable(name));
  if (!ids.is_array() || ids.items().size() > 1024)
    fail("{}.{}.ids is {}; expected a short array", where, printable(name), kind_name(ids.kind()));
  for (const Json& id : ids.items()) {
    const auto v = id.is_integer() ? id.as_int() : std::nullopt;
    if (!v || *v < 0 || *v > kMaxTokenId)
      fail("{}.{}.ids holds {}; expected token ids", where, printable(name),
           printable(id.dump(), 40));
    out.push_back(static_cast<int32_t>(*v));
  }
}

void parse_template(const Json& json, const std::string& where, PostProcessor& out) {
  const Json& single = require_field(json, "single", where);
  const Json& table = require_field(json, "special_tokens", where);
  if (!single.is_array())
    fail("{}.single is {}; expected an array", where, kind_name(single.kind()));
  PostProcessor mine;
  bool seen = false;
  for (const Json& piece : single.items()) {
    if (const Json* special = piece.find("SpecialToken")) {
      add_special_ids(*special, table, where + ".special_tokens", seen ? mine.after : mine.before);
    } else if (piece.find("Sequence") != nullptr && !seen) {
      seen = true;
    } else {
      fail("{}.single: expected one Sequence and SpecialToken entries", where);
    }
  }
  if (!seen) fail("{}.single has no Sequence", where);
  out.before.insert(out.before.begin(), mine.before.begin(), mine.before.end());
  out.after.insert(out.after.end(), mine.after.begin(), mine.after.end());
}

// Returns the id of a pair such as ["</s>", 2].
int32_t named_id(const Json& json, std::string_view key, const std::string& where) {
  const Json& pair = require_field(json, key, where);
  const auto id = pair.is_array() && pair.items().size() == 2 && pair.items()[1].is_integer()
                      ? pair.items()[1].as_int()
                      : std::nullopt;
  if (!id || *id < 0 || *id > kMaxTokenId) fail("{}.{} is not a token and its id", where, key);
  return static_cast<int32_t>(*id);
}

void parse_post(const Json& json, const std::string& where, int depth, PostProcessor& out) {
  if (depth > 16) fail("{}: sequences nested deeper than 16", where);
  const std::string& type = string_field(json, "type", where);
  if (type == "ByteLevel") return;  // affects offsets only
  if (type == "TemplateProcessing") return parse_template(json, where, out);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    out.before.insert(out.before.begin(), named_id(json, "cls", where));
    out.after.push_back(named_id(json, "sep", where));
    return;
  }
  if (type != "Sequence")
    fail(
        "{}: post-processor type '{}' is not supported (known: TemplateProcessing, ByteLevel, "
        "BertProcessing, RobertaProcessing, Sequence)",
        where, printable(type));
  const Json& list = require_field(json, "processors", where);
  if (!list.is_array() || list.items().size() > 64)
    fail("{}.processors is {}; expected a short array", where, kind_name(list.kind()));
  for (size_t i = 0; i < list.items().size(); ++i)
    parse_post(list.items()[i], fmt::format("{}.processors[{}]", where, i), depth + 1, out);
}

}  // namespace

PostProcessor parse_post_processor(const Json* json, const std::string& where) {
  PostProcessor out;
  if (json != nullptr && !json->is_null()) parse_post(*json, where, 0, out);
  return out;
}

Tokenizer Tokenizer::from_json(std::string_view text, const std::string& file) {
  Reader reader(file, text.size());
  parse_json_events(text, reader, file);
  const Json root = reader.tree.take();
  if (!root.is_object())
    fail("{}: the file is {}; expected an object", file, kind_name(root.kind()));
  const std::string where = file + ": model";
  const Json& model = require_field(root, "model", file + ": tokenizer");
  if (!model.is_object()) fail("{} is {}; expected an object", where, kind_name(model.kind()));
  auto parts = std::make_unique<Parts>();
  parts->file = file;
  parts->added = parse_added_tokens(root.find("added_tokens"), file + ": added_tokens");
  parts->normalizer = parse_normalizer(root.find("normalizer"), file + ": normalizer");
  parts->pre_tokenizer = PreTokenizer(root.find("pre_tokenizer"), file + ": pre_tokenizer");
  parts->model = make_model(reader, model, parts->pre_tokenizer.gives_bytes(), where);
  parts->post = parse_post_processor(root.find("post_processor"), file + ": post_processor");
  parts->decoder = Decoder(root.find("decoder"), file + ": decoder");
  parts->connect();
  return Tokenizer(std::move(parts));
}

}  // namespace moebius
