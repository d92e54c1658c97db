// SPDX-License-Identifier: Apache-2.0
// Parses the header of a GGUF file and joins the parts of a split model. Little-endian:
//
//   "GGUF"  u32 version  u64 tensors  u64 keys
//   keys:     string key, u32 kind, value
//   tensors:  string name, u32 dimensions, u64 ne[dimensions] (fastest first), u32 type, u64 offset
//   zero bytes up to a multiple of the alignment; then the data section
//   string = u64 length, bytes        array = u32 kind, u64 count, elements
#include "gguf/gguf.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "base/checked.h"
#include "base/error.h"

namespace moebius {

namespace {

constexpr uint64_t kMaxKeyName = 65'535, kMaxGgufTensorName = 256;
constexpr uint64_t kMaxDimension = 1ull << 48, kMaxAlignment = 1u << 20;
constexpr uint64_t kMaxTokenizerJson = 64u << 20;
// Bytes of a file that are read at first, and at most, in search of the end of its header.
constexpr uint64_t kFirstBytes = 1u << 20, kMaxHeader = 1u << 30;
constexpr uint64_t kMaxParts = 99'999;  // what the names of parts can count

constexpr GgufType kTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},      {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},
    {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},   {14, "Q6_K", 256, 210},
    {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98},
    {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},
    {25, "I16", 1, 2},        {26, "I32", 1, 4},        {27, "I64", 1, 8},
    {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},
    {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},    {42, "Q2_0", 64, 18},
};

// Returns why tensors of a type cannot be read.
std::string type_refusal(uint32_t id, std::string_view architecture) {
  if (id == 4 && architecture == "gptoss")
    return "ollama's own form of gpt-oss; take a GGUF of gpt-oss from Hugging Face";
  if (id == 4 || id == 5 || (id >= 31 && id <= 33) || (id >= 36 && id <= 38))
    return "a type that was removed from GGUF in December 2024; quantize again to Q4_0";
  if (id == 9 || id == 15) return "a type of activations, which no file stores";
  if ((id >= 97 && id <= 399)) {
    constexpr std::pair<uint32_t, std::string_view> kNames[] = {
        {133, "Q6_0"},    {134, "IQ1_BN"}, {135, "IQ2_BN"}, {137, "IQ2_K"},  {138, "IQ3_K"},
        {139, "IQ4_K"},   {140, "IQ5_K"},  {141, "IQ6_K"},  {144, "IQ4_KS"}, {145, "IQ2_KS"},
        {146, "IQ4_KSS"}, {152, "IQ5_KS"}, {153, "IQ2_KT"}, {154, "IQ3_KT"}, {155, "IQ4_KT"},
        {156, "IQ3_KS"},  {157, "IQ2_KL"}, {158, "IQ1_KT"}};
    const auto* name = std::find_if(std::begin(kNames), std::end(kNames),
                                    [&](const auto& n) { return n.first == id; });
    return fmt::format("{}one of ik_llama.cpp's, not of GGUF; files that llama.cpp reads run",
                       name != std::end(kNames) ? fmt::format("({}) ", name->second) : "");
  }
  return "a type newer than this program";
}

// Returns what a file without GGUF's magic seems to be.
std::string_view other_format(std::string_view begin) {
  constexpr std::pair<std::string_view, std::string_view> kFormats[] = {
      {"lmgg", "a GGML file, which is older than GGUF; convert the model again"},
      {"tjgg", "a GGJT file, which is older than GGUF; convert the model again"},
      {"algg", "a GGLA file, which is older than GGUF; convert the model again"},
      {"fmgg", "a GGMF file, which is older than GGUF; convert the model again"},
      {"GGML", "a GGML file, which is older than GGUF; convert the model again"},
      {"vers", "a Git LFS pointer: the file itself was not downloaded"},
      {"PK\3\4", "a zip archive or a PyTorch file"},
      {"<!DO", "an HTML page; the download went wrong"},
      {"<htm", "an HTML page; the download went wrong"}};
  for (const auto& [magic, words] : kFormats)
    if (begin.starts_with(magic)) return words;
  return "no GGUF file; if it is one of several pieces of a file that was cut, join them with cat";
}

constexpr size_t kKinds = static_cast<size_t>(GgufKind::kCount);
constexpr std::array<std::string_view, kKinds> kKindNames = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};
constexpr std::array<uint64_t, kKinds> kKindBytes = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

std::string_view name_of(GgufKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

template <class T>
T stored(std::string_view bytes, uint64_t index = 0) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

// Returns an element that is an integer and fits 64 bits with sign.
std::optional<int64_t> integer_of(const GgufValue& v, uint64_t i) {
  switch (v.kind) {
    case GgufKind::kU8:
    case GgufKind::kBool:
      return stored<uint8_t>(v.bytes, i);
    case GgufKind::kI8:
      return stored<int8_t>(v.bytes, i);
    case GgufKind::kU16:
      return stored<uint16_t>(v.bytes, i);
    case GgufKind::kI16:
      return stored<int16_t>(v.bytes, i);
    case GgufKind::kU32:
      return stored<uint32_t>(v.bytes, i);
    case GgufKind::kI32:
      return stored<int32_t>(v.bytes, i);
    case GgufKind::kI64:
      return stored<int64_t>(v.bytes, i);
    case GgufKind::kU64: {
      const auto value = stored<uint64_t>(v.bytes, i);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

// Returns an element that is a finite number.
std::optional<double> number_of(const GgufValue& v, uint64_t i) {
  std::optional<double> value;
  if (v.kind == GgufKind::kF32) value = stored<float>(v.bytes, i);
  if (v.kind == GgufKind::kF64) value = stored<double>(v.bytes, i);
  if (const std::optional<int64_t> integer = integer_of(v, i)) value = *integer;
  if (value && !std::isfinite(*value)) return std::nullopt;
  return value;
}

std::string describe(const GgufValue& v) {
  if (v.array) return fmt::format("an array of {} {}", v.count, name_of(v.kind));
  if (v.kind == GgufKind::kString) return fmt::format("\"{}\"", printable(v.bytes.substr(8), 60));
  if (v.kind == GgufKind::kBool) return v.bytes[0] != 0 ? "true" : "false";
  if (const std::optional<int64_t> integer = integer_of(v, 0)) return fmt::format("{}", *integer);
  if (v.kind == GgufKind::kU64) return fmt::format("{}", stored<uint64_t>(v.bytes));
  return fmt::format("{}",
                     v.kind == GgufKind::kF32 ? stored<float>(v.bytes) : stored<double>(v.bytes));
}

}  // namespace

const GgufType* find_gguf_type(uint32_t id) {
  const auto* found = std::lower_bound(std::begin(kTypes), std::end(kTypes), id,
                                       [](const GgufType& t, uint32_t i) { return t.id < i; });
  return found != std::end(kTypes) && found->id == id ? found : nullptr;
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : &values_[found->second].second;
}

void GgufMetadata::refuse(std::string_view key, std::string_view expected) const {
  const GgufValue* value = find(key);
  fail_at({"file", path_, "", std::string(key), ""}, "{}: {} is {}; expected {}", printable(path_),
          printable(key), value == nullptr ? "missing" : describe(*value), expected);
}

std::optional<uint64_t> GgufMetadata::count(std::string_view key, uint64_t most) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = value->array ? std::nullopt : integer_of(*value, 0);
  if (!number || *number < 0 || static_cast<uint64_t>(*number) > most)
    refuse(key, fmt::format("an integer from 0 to {}", most));
  return static_cast<uint64_t>(*number);
}

std::optional<double> GgufMetadata::number(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<double> number = value->array ? std::nullopt : number_of(*value, 0);
  if (!number) refuse(key, "a finite number");
  return number;
}

std::optional<bool> GgufMetadata::flag(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->array || value->kind != GgufKind::kBool) refuse(key, "true or false");
  return value->bytes[0] != 0;
}

std::optional<std::string_view> GgufMetadata::text(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->array || value->kind != GgufKind::kString) refuse(key, "a string");
  return value->bytes.substr(8);
}

template <class T>
std::optional<std::vector<T>> GgufMetadata::list(
    std::string_view key, std::string_view expected,
    const std::function<std::optional<T>(const GgufValue&, uint64_t)>& element) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  std::vector<T> result;
  result.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<T> item = element(*value, i);
    if (!item) refuse(key, expected);
    result.push_back(*item);
  }
  return result;
}

std::optional<std::vector<int64_t>> GgufMetadata::integers(std::string_view key) const {
  return list<int64_t>(key, "integers", integer_of);
}

std::optional<std::vector<double>> GgufMetadata::numbers(std::string_view key) const {
  return list<double>(key, "finite numbers", number_of);
}

std::optional<std::vector<std::string_view>> GgufMetadata::texts(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind != GgufKind::kString) refuse(key, "strings");
  std::string_view left = value->bytes;
  return list<std::string_view>(key, "strings",
                                [&](const GgufValue&, uint64_t) -> std::optional<std::string_view> {
                                  const auto length = stored<uint64_t>(left);
                                  const std::string_view text = left.substr(8, length);
                                  left.remove_prefix(8 + length);
                                  return text;
                                });
}

// Reads a header from the bytes that were read so far.
class GgufParser {
 public:
  GgufParser(std::string_view bytes, uint64_t file_size, const std::string& path)
      : bytes_(bytes), size_(file_size), path_(path) {}

  GgufHeader parse() {
    GgufHeader header;
    header.metadata.path_ = path_;
    parse_magic(header);
    const auto tensors = take<uint64_t>("the number of tensors");
    const auto keys = take<uint64_t>("the number of keys");
    check_count(keys, /*least=*/13, kMaxGgufKeys, "keys");
    check_count(tensors, /*least=*/33, kMaxGgufTensors, "tensors");
    for (uint64_t i = 0; i < keys; ++i) parse_key(header.metadata);
    parse_alignment(header);
    for (uint64_t i = 0; i < tensors; ++i) header.tensors.push_back(parse_tensor(header.metadata));
    header.data = round_up(at_, header.alignment);
    prove_layout(header);
    return header;
  }

  // Thrown where the header goes on behind the bytes that were read.
  struct Incomplete {};

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail_at({"file", path_, "", "", ""}, "{}: {}", printable(path_),
            fmt::format(format, std::forward<Args>(args)...));
  }

  std::string_view take_bytes(uint64_t count, std::string_view what) {
    if (count > size_ - at_)
      refuse("{} needs {} bytes at {}, but the file has {}: it is incomplete or damaged", what,
             count, at_, size_);
    if (count > bytes_.size() - at_) throw Incomplete();
    const std::string_view result = bytes_.substr(at_, count);
    at_ += count;
    return result;
  }
  template <class T>
  T take(std::string_view what) {
    return stored<T>(take_bytes(sizeof(T), what));
  }

  void check_count(uint64_t count, uint64_t least, uint64_t most, std::string_view what) const {
    if (count > most) refuse("{} {}; at most {} are allowed", count, what, most);
    if (count > (size_ - at_) / least)
      refuse("{} {}, but the file has {} bytes: it is incomplete or damaged", count, what, size_);
  }

  void parse_magic(GgufHeader& header) {
    if (size_ == 0) refuse("the file is empty");
    const std::string_view begin = size_ < 4 ? bytes_ : take_bytes(4, "the file's mark");
    if (begin != "GGUF") refuse("{}", other_format(begin));
    header.version = take<uint32_t>("the version");
    if (header.version == 1) refuse("GGUF version 1 is not supported; convert the model again");
    if (header.version != 0 && (header.version & 0xffff) == 0)
      refuse("big-endian GGUF is not supported");
    if (header.version != 2 && header.version != 3)
      refuse("GGUF version {} is not supported; versions 2 and 3 are", header.version);
  }

  std::string_view take_text(uint64_t most, std::string_view what) {
    const auto length = take<uint64_t>(what);
    if (length > size_ - at_)
      refuse("{} has {} bytes, but {} are left of the file: it is incomplete or damaged", what,
             length, size_ - at_);
    if (length > most) refuse("{} has {} bytes; at most {} are allowed", what, length, most);
    return take_bytes(length, what);
  }

  GgufKind take_kind(std::string_view key) {
    const auto kind = take<uint32_t>(key);
    if (kind >= kKinds) refuse("{}: value type {} is not known", printable(key), kind);
    return static_cast<GgufKind>(kind);
  }

  // Takes a string with its length.
  void skip_text(uint64_t most, const std::string& what) { (void)take_text(most, what); }

  void parse_key(GgufMetadata& metadata) {
    const std::string_view key = take_text(kMaxKeyName, "a key");
    if (key.empty()) refuse("a key is empty");
    const std::string name = printable(key);
    GgufValue value;
    value.kind = take_kind(key);
    value.array = value.kind == GgufKind::kArray;
    if (value.array) {
      value.kind = take_kind(key);
      if (value.kind == GgufKind::kArray) refuse("{}: an array of arrays is not allowed", name);
      value.count = take<uint64_t>(name);
      if (value.count > kMaxGgufElements)
        refuse("{}: {} elements; at most {} are allowed", name, value.count, kMaxGgufElements);
    }
    const uint64_t least = kKindBytes[static_cast<size_t>(value.kind)];
    if (value.count > (size_ - at_) / least)
      refuse("{}: {} elements, but {} bytes are left of the file: it is incomplete or damaged",
             name, value.count, size_ - at_);
    const uint64_t begin = at_;
    if (value.kind == GgufKind::kString) {
      const uint64_t most = value.array                           ? 64u << 10
                            : key == "tokenizer.huggingface.json" ? kMaxTokenizerJson
                                                                  : kMaxGgufText;
      for (uint64_t i = 0; i < value.count; ++i) skip_text(most, name);
    } else {
      (void)take_bytes(value.count * least, name);
    }
    value.bytes = bytes_.substr(begin, at_ - begin);
    if (value.kind == GgufKind::kBool)
      for (const char c : value.bytes)
        if (c != 0 && c != 1)
          refuse("{}: a boolean is {}; expected 0 or 1", name, static_cast<uint8_t>(c));
    if (at_ > kMaxGgufMetadata)
      refuse("metadata of more than {} bytes; at most that is allowed", kMaxGgufMetadata);
    if (!metadata.by_key_.emplace(key, metadata.values_.size()).second)
      refuse("{} occurs twice", name);
    metadata.values_.emplace_back(key, value);
  }

  void parse_alignment(GgufHeader& header) const {
    const GgufValue* value = header.metadata.find("general.alignment");
    if (value == nullptr) return;
    const bool u32 = !value->array && value->kind == GgufKind::kU32;
    header.alignment = u32 ? stored<uint32_t>(value->bytes) : 0;
    if (header.alignment < 8 || header.alignment > kMaxAlignment ||
        !std::has_single_bit(header.alignment))
      header.metadata.refuse("general.alignment",
                             fmt::format("a power of two from 8 to {} of type u32", kMaxAlignment));
  }

  GgufTensor parse_tensor(const GgufMetadata& metadata) {
    GgufTensor tensor;
    tensor.name = take_text(kMaxGgufTensorName, "a tensor's name");
    if (tensor.name.empty()) refuse("a tensor's name is empty");
    const std::string name = printable(tensor.name);
    const auto dimensions = take<uint32_t>(name);
    if (dimensions == 0 || dimensions > kMaxGgufDimensions)
      refuse("{} has {} dimensions; expected 1 to {}", name, dimensions, kMaxGgufDimensions);
    std::optional<uint64_t> numbers = 1;
    for (uint32_t i = 0; i < dimensions; ++i) {
      const auto size = take<uint64_t>(name);
      if (size == 0 || size > kMaxDimension)
        refuse("{}: dimension {} is {}; expected 1 to {}", name, i, size, kMaxDimension);
      numbers = checked_mul(*numbers, size);
      if (!numbers) refuse("{}: the product of its dimensions exceeds 64 bits", name);
      tensor.shape.insert(tensor.shape.begin(), size);
    }
    const auto type = take<uint32_t>(name);
    tensor.type = find_gguf_type(type);
    if (tensor.type == nullptr) {
      const GgufValue* value = metadata.find("general.architecture");
      const bool text = value != nullptr && !value->array && value->kind == GgufKind::kString;
      refuse("{}: type {} is {}", name, type,
             type_refusal(type, text ? value->bytes.substr(8) : std::string_view()));
    }
    if (tensor.shape.back() % tensor.type->numbers != 0)
      refuse("{}: rows of {} numbers; expected a multiple of {}, the block of {}", name,
             tensor.shape.back(), tensor.type->numbers, tensor.type->name);
    const std::optional<uint64_t> bytes =
        checked_mul(*numbers / tensor.type->numbers, tensor.type->bytes);
    if (!bytes) refuse("{}: its size exceeds 64 bits", name);
    tensor.bytes = *bytes;
    tensor.offset = take<uint64_t>(name);
    return tensor;
  }

  // Makes offsets positions in the file and checks that tensors lie inside it, aligned and apart.
  void prove_layout(GgufHeader& header) const {
    std::vector<const GgufTensor*> order;
    std::unordered_set<std::string_view> names;
    for (GgufTensor& t : header.tensors) {
      const std::string name = printable(t.name);
      if (!names.insert(t.name).second) refuse("{} occurs twice", name);
      if (t.offset % header.alignment != 0)
        refuse("{}: offset {} is no multiple of {}", name, t.offset, header.alignment);
      const std::optional<uint64_t> begin = checked_add(header.data, t.offset);
      const std::optional<uint64_t> end = begin ? checked_add(*begin, t.bytes) : std::nullopt;
      if (!end || *end > size_)
        refuse("{}: {} bytes at offset {} of the data end behind the file, which lacks {} bytes",
               name, t.bytes, t.offset, end ? fmt::format("{}", *end - size_) : "too many");
      t.offset = *begin;
      order.push_back(&t);
    }
    std::sort(order.begin(), order.end(),
              [](const auto* a, const auto* b) { return a->offset < b->offset; });
    for (size_t i = 1; i < order.size(); ++i)
      if (order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset)
        refuse("{} and {} overlap", printable(order[i - 1]->name), printable(order[i]->name));
  }

  std::string_view bytes_;
  uint64_t size_;
  const std::string& path_;
  uint64_t at_ = 0;
};

std::optional<GgufHeader> parse_gguf_header(std::string_view bytes, uint64_t file_size,
                                            const std::string& path) {
  try {
    return GgufParser(bytes, file_size, path).parse();
  } catch (const GgufParser::Incomplete&) {
    return std::nullopt;
  }
}

namespace {

// Returns the name of another part of the same model.
std::string other_part(const std::string& path, const GgufPart& part, uint64_t number) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", path.substr(0, path.size() - kGgufPartEnd.size()),
                     number, part.parts);
}

// Reads as much of a file as its header needs, and parses it.
GgufHeader read_header(const ReadFile& file, std::string& bytes) {
  for (uint64_t size = std::min(kFirstBytes, file.size());;
       size = std::min(4 * size, file.size())) {
    if (size > kMaxHeader)
      fail_at({"file", file.path(), "", "", ""}, "{}: its header has more than {} bytes",
              printable(file.path()), kMaxHeader / 4);
    const size_t before = bytes.size();
    bytes.resize(size);
    file.read_at(before, {reinterpret_cast<uint8_t*>(bytes.data()) + before, size - before});
    if (std::optional<GgufHeader> header = parse_gguf_header(bytes, file.size(), file.path()))
      return std::move(*header);
  }
}

}  // namespace

std::optional<GgufPart> gguf_part_of(std::string_view path) {
  if (path.size() < kGgufPartEnd.size()) return std::nullopt;
  const std::string_view tail = path.substr(path.size() - kGgufPartEnd.size());
  GgufPart part;
  for (size_t i = 0; i < tail.size(); ++i) {
    const bool digit = tail[i] >= '0' && tail[i] <= '9';
    if (kGgufPartEnd[i] == '0' ? !digit : tail[i] != kGgufPartEnd[i]) return std::nullopt;
    if (!digit) continue;
    uint64_t& number = i < 6 ? part.number : part.parts;
    number = number * 10 + static_cast<uint64_t>(tail[i] - '0');
  }
  return part.number > 0 && part.number <= part.parts ? std::optional(part) : std::nullopt;
}

const GgufTensor* Gguf::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.tensors[found->second];
}

void Gguf::add_part(const std::string& path, uint64_t number, uint64_t parts) {
  files_.push_back(std::make_shared<const ReadFile>(path));
  bytes_.push_back(std::make_unique<std::string>());
  GgufHeader header = read_header(*files_.back(), *bytes_.back());
  if (parts > 1) {
    const uint64_t no = header.metadata.count("split.no", kMaxParts).value_or(0);
    const uint64_t count = header.metadata.count("split.count", kMaxParts).value_or(0);
    if (no != number)
      header.metadata.refuse("split.no", fmt::format("{}, as the file's name says", number));
    if (count != parts)
      header.metadata.refuse("split.count", fmt::format("{}, as the file's name says", parts));
    const auto all = metadata().count("split.tensors.count", kMaxGgufTensors);
    const auto said = header.metadata.count("split.tensors.count", kMaxGgufTensors);
    if (all && said && *all != *said)
      header.metadata.refuse("split.tensors.count", fmt::format("{}, as the first part has", *all));
  }
  for (GgufTensor& t : header.tensors) t.part = static_cast<uint32_t>(number);
  if (number == 0) {
    header_ = std::move(header);
  } else {
    std::move(header.tensors.begin(), header.tensors.end(), std::back_inserter(header_.tensors));
  }
}

Gguf Gguf::open(const std::string& path) {
  Gguf gguf;
  const std::optional<GgufPart> name = gguf_part_of(path);
  // A file that is no part may have the name of one.
  const bool first = !name || name->number == 1;
  gguf.add_part(first ? path : other_part(path, *name, 1), 0, /*parts=*/1);
  const uint64_t parts = gguf.metadata().count("split.count", kMaxParts).value_or(1);
  if (parts <= 1) {
    if (!first)
      gguf.metadata().refuse("split.count", fmt::format("{}, as the name {} says", name->parts,
                                                        printable(base_name(path))));
  } else {
    if (!name)
      gguf.metadata().refuse("split.count",
                             "1, or the name of a part: \"NAME-00001-of-00002.gguf\"");
    if (parts != name->parts)
      gguf.metadata().refuse("split.count",
                             fmt::format("{}, as the file's name says", name->parts));
    if (gguf.metadata().count("split.no", kMaxParts).value_or(0) != 0)
      gguf.metadata().refuse("split.no", "0, as the file's name says");
    std::string missing;
    for (uint64_t i = 2; i <= parts && missing.size() < 300; ++i)
      if (const std::string part = other_part(path, *name, i); !path_exists(part))
        missing += fmt::format("{}{}", missing.empty() ? "" : ", ", printable(base_name(part)));
    if (!missing.empty())
      fail_at({"file", gguf.path(), "", "split.count", ""},
              "{}: {} parts, of which are missing: {}", printable(gguf.path()), parts, missing);
    for (uint64_t i = 1; i < parts; ++i) gguf.add_part(other_part(path, *name, i + 1), i, parts);
    const uint64_t said = gguf.metadata()
                              .count("split.tensors.count", kMaxGgufTensors)
                              .value_or(gguf.tensors().size());
    if (said != gguf.tensors().size())
      gguf.metadata().refuse("split.tensors.count",
                             fmt::format("{}, the tensors of all parts", gguf.tensors().size()));
  }
  for (size_t i = 0; i < gguf.tensors().size(); ++i)
    if (!gguf.by_name_.emplace(gguf.tensors()[i].name, i).second)
      fail_at({"file", gguf.path(), gguf.tensors()[i].name, "", ""}, "{}: {} is in two parts",
              printable(gguf.path()), printable(gguf.tensors()[i].name));
  return gguf;
}

}  // namespace moebius
