// SPDX-License-Identifier: Apache-2.0
// Parses the header of a safetensors file. The header is parsed by events into TensorInfo and
// nothing else, so its size in memory stays in proportion to its size in the file; then every
// offset and size is proven before a byte of payload can be asked for.
//
//   0        8                8+n                                       file size
//   | n: u64 | n bytes JSON   | data: tensors without holes or overlaps |
#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>

#include "base/checked.h"
#include "base/error.h"
#include "base/json.h"

namespace moebius {

std::string describe_shape(std::span<const uint64_t> shape) {
  std::string text = "[";
  for (const uint64_t d : shape) text += fmt::format("{}{}", text.size() > 1 ? "," : "", d);
  return text + "]";
}

namespace {

// Parses the tensors of a header; TensorInfo::offset and ::bytes hold begin and end until
// prove_layout().
class HeaderHandler final : public JsonHandler {
 public:
  explicit HeaderHandler(const std::string& where) : where_(where) {}
  std::vector<TensorInfo> tensors;

  void key(std::string& name) override {
    if (state_ == State::kTop)
      top_key(name);
    else if (state_ == State::kEntry)
      entry_key(name);
    // Keys of metadata and of ignored values are skipped.
  }

  void begin(bool array) override {
    if (state_ == State::kSkip)
      ++skip_depth_;
    else if (array && state_ == State::kShapeValue)
      state_ = State::kShape;
    else if (array && state_ == State::kOffsetsValue)
      offsets_seen_ = 0, state_ = State::kOffsets;
    else if (!array && state_ == State::kStart)
      state_ = State::kTop;
    else if (!array && state_ == State::kMetadataValue)
      state_ = State::kMetadata;
    else if (!array && state_ == State::kEntryValue)
      seen_.fill(false), state_ = State::kEntry;
    else
      wrong(array ? "an array" : "an object");
  }

  void end() override {
    if (state_ == State::kOffsets && offsets_seen_ != 2)
      stop("{}: data_offsets has {} entries; expected 2", current(), offsets_seen_);
    if (state_ == State::kEntry) check_entry();
    if (state_ == State::kShape || state_ == State::kOffsets)
      state_ = State::kEntry;
    else if (state_ == State::kMetadata || state_ == State::kEntry)
      state_ = State::kTop;
    else if (state_ == State::kTop)
      state_ = State::kDone;
    else if (--skip_depth_ == 0)
      state_ = State::kEntry;
  }

  void value(Json v) override {
    if (state_ == State::kSkip) {
      if (skip_depth_ == 0) state_ = State::kEntry;
    } else if (v.is_null() && state_ == State::kMetadataValue) {
      state_ = State::kTop;
    } else if (v.is_string() && state_ == State::kDtypeValue) {
      dtype(v.as_string());
    } else if (!v.is_string() || state_ != State::kMetadata) {
      wrong(v.is_string() || v.is_null() || v.is_bool() ? std::string(kind_name(v.kind()))
            : v.is_integer()                            ? v.dump()
                             : fmt::format("{} (no 64-bit integer)", v.as_double()));
    }
  }
  void number(uint64_t v) override {
    if (state_ == State::kShape) {
      TensorInfo& t = tensors.back();
      if (t.shape.size() == kMaxRank)
        stop("{}: shape has more than {} dimensions", current(), kMaxRank);
      t.shape.push_back(v);
    } else if (state_ == State::kOffsets) {
      if (offsets_seen_ < 2)
        (offsets_seen_ == 0 ? tensors.back().offset : tensors.back().bytes) = v;
      ++offsets_seen_;
    } else {
      value(v);
    }
  }

 private:
  enum class State : uint8_t {
    kStart,
    kTop,
    kMetadataValue,
    kMetadata,
    kEntryValue,
    kEntry,
    kDtypeValue,
    kShapeValue,
    kShape,
    kOffsetsValue,
    kOffsets,
    kSkip,
    kDone,
  };
  static constexpr std::array<std::string_view, 3> kFields = {"dtype", "shape", "data_offsets"};

  template <class... Args>
  [[noreturn]] void stop(fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}: {}", where_, fmt::format(format, std::forward<Args>(args)...));
  }
  std::string current() const { return fmt::format("tensor '{}'", printable(tensors.back().name)); }

  // Stops with an error that names what the header has here and what it should have.
  [[noreturn]] void wrong(std::string_view found) const {
    switch (state_) {
      case State::kStart:
        stop("header is {}; expected a JSON object", found);
      case State::kMetadataValue:
        stop("__metadata__ is {}; expected an object of strings", found);
      case State::kMetadata:
        stop("__metadata__ holds {}; expected strings only", found);
      case State::kEntryValue:
        stop("{} is {}; expected an object", current(), found);
      case State::kDtypeValue:
        stop("{}: dtype is {}; expected a string", current(), found);
      case State::kShapeValue:
        stop("{}: shape is {}; expected an array", current(), found);
      case State::kShape:
        stop("{}: shape holds {}; expected non-negative integers", current(), found);
      case State::kOffsetsValue:
        stop("{}: data_offsets is {}; expected an array of two integers", current(), found);
      case State::kOffsets:
        stop("{}: data_offsets holds {}; expected non-negative integers", current(), found);
      default:
        stop("header has {} in an unexpected place", found);
    }
  }

  void top_key(std::string& key) {
    if (key == "__metadata__") {
      if (std::exchange(metadata_seen_, true)) stop("header has two __metadata__ members");
      state_ = State::kMetadataValue;
      return;
    }
    if (tensors.size() == kMaxTensors) stop("header has more than {} tensors", kMaxTensors);
    if (key.size() > kMaxTensorName)
      stop("tensor '{}': name has {} bytes; at most {} are accepted", printable(key, 80),
           key.size(), kMaxTensorName);
    for (const char c : key)
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
        stop("tensor '{}': name holds a control character (byte {:#04x})", printable(key),
             static_cast<unsigned>(c));
    tensors.emplace_back().name = std::move(key);
    state_ = State::kEntryValue;
  }

  void entry_key(const std::string& key) {
    constexpr std::array next = {State::kDtypeValue, State::kShapeValue, State::kOffsetsValue};
    for (size_t i = 0; i < kFields.size(); ++i) {
      if (key != kFields[i]) continue;
      if (std::exchange(seen_[i], true)) stop("{}: has two members '{}'", current(), key);
      state_ = next[i];
      return;
    }
    skip_depth_ = 0;  // unknown members are ignored, as the reference reader does
    state_ = State::kSkip;
  }

  void check_entry() const {
    for (size_t i = 0; i < kFields.size(); ++i)
      if (!seen_[i]) stop("{}: member '{}' is missing", current(), kFields[i]);
  }

  void dtype(const std::string& name) {
    const std::optional<DType> found = dtype_from_name(name);
    if (!found) stop("{}: unsupported dtype '{}'", current(), printable(name, 60));
    tensors.back().dtype = *found;
    state_ = State::kEntry;
  }

  const std::string& where_;
  State state_ = State::kStart;
  bool metadata_seen_ = false;
  std::array<bool, 3> seen_{};
  uint64_t offsets_seen_ = 0;
  size_t skip_depth_ = 0;
};

}  // namespace

// Returns the size of a tensor. The product runs from left to right, so [2^63, 4, 0] overflows
// although its size is 0.
uint64_t bytes_of_shape(const TensorInfo& t, const std::string& path) {
  uint64_t count = 1;
  std::optional<uint64_t> bits;
  bool fits = true;
  for (const uint64_t d : t.shape) {
    const std::optional<uint64_t> next = checked_mul(count, d);
    fits = fits && next.has_value();
    count = next.value_or(0);
  }
  if (fits) bits = checked_mul(count, bits_of(t.dtype));
  if (!bits)
    fail("{}: tensor '{}': {}{} has more elements than 64 bits can count", path, printable(t.name),
         name_of(t.dtype), describe_shape(t.shape));
  if (*bits % 8 != 0)
    fail("{}: tensor '{}': {}{} has {} bits; expected whole bytes", path, printable(t.name),
         name_of(t.dtype), describe_shape(t.shape), *bits);
  return *bits / 8;
}

namespace {

void check_names(const std::vector<TensorInfo>& tensors, const std::string& path) {
  std::vector<std::string_view> names(tensors.size());
  std::transform(tensors.begin(), tensors.end(), names.begin(),
                 [](const TensorInfo& t) { return std::string_view(t.name); });
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end())
    fail("{}: tensor '{}' appears twice in the header; expected different names", path,
         printable(*twice));
}

// Sorts tensors by position and proves the layout: the first begins at 0, each begins where the
// last ended, sizes agree with dtype and shape, and the file's length is exact. Then turns (begin,
// end) into (offset in the file, bytes).
void prove_layout(std::vector<TensorInfo>& tensors, uint64_t data_begin, uint64_t data_bytes,
                  const std::string& path) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  uint64_t expected = 0;
  const TensorInfo* last = nullptr;
  for (TensorInfo& t : tensors) {
    const uint64_t begin = t.offset, end = t.bytes;
    if (begin != expected)
      fail("{}: tensor '{}' has data_offsets [{},{}]; expected to begin at {}, where {} ({})", path,
           printable(t.name), begin, end, expected,
           last == nullptr ? "the data begins" : fmt::format("'{}' ends", printable(last->name)),
           begin < expected ? "tensors overlap" : "bytes between tensors belong to none");
    if (end < begin)
      fail(
          "{}: tensor '{}' has data_offsets [{},{}]; expected the end not to come before the begin",
          path, printable(t.name), begin, end);
    const uint64_t bytes = bytes_of_shape(t, path);
    if (end - begin != bytes)
      fail("{}: tensor '{}' has data_offsets [{},{}], which is {} bytes; {}{} needs {}", path,
           printable(t.name), begin, end, end - begin, name_of(t.dtype), describe_shape(t.shape),
           bytes);
    if (end > data_bytes)
      fail(
          "{}: tensor '{}' ends at byte {} of the data, but the file holds only {} bytes of data: "
          "it is incomplete",
          path, printable(t.name), end, data_bytes);
    t.offset = data_begin + begin;
    t.bytes = bytes;
    expected = end;
    last = &t;
  }
  if (expected != data_bytes)
    fail(
        "{}: file holds {} bytes of data, but the last tensor ends at {}: {} bytes belong to no "
        "tensor",
        path, data_bytes, expected, data_bytes - expected);
}

}  // namespace

std::string describe(const TensorInfo& tensor) {
  return fmt::format("{}{}", name_of(tensor.dtype), describe_shape(tensor.shape));
}

std::vector<TensorInfo> parse_safetensors_header(std::string_view header, uint64_t file_size,
                                                 const std::string& path) {
  const std::string where = printable(path);
  if (file_size < 8 || header.size() > file_size - 8)
    fail("{}: header of {} bytes does not fit a file of {}", where, header.size(), file_size);
  HeaderHandler handler(where);
  parse_json_events(header, handler, where);
  std::vector<TensorInfo> tensors = std::move(handler.tensors);
  check_names(tensors, where);
  const uint64_t data_begin = 8 + header.size();
  prove_layout(tensors, data_begin, file_size - data_begin, where);
  tensors.shrink_to_fit();
  return tensors;
}

}  // namespace moebius
