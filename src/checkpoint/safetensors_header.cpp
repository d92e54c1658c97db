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
  std::vector<TensorInfo> tensors;

  bool on_null() override {
    return state_ == State::kMetadataValue ? to(State::kTop) : scalar("null", 0, /*text=*/nullptr);
  }
  bool on_bool(bool) override { return scalar("a boolean", /*number=*/0, /*text=*/nullptr); }
  bool on_int(int64_t v) override { return scalar(fmt::format("{}", v), 0, /*text=*/nullptr); }
  bool on_uint(uint64_t v) override { return scalar({}, v, nullptr); }
  bool on_double(double v) override {
    return scalar(fmt::format("{} (no 64-bit integer)", v), /*number=*/0, /*text=*/nullptr);
  }
  bool on_string(std::string& v) override { return scalar("a string", 0, &v); }

  bool on_key(std::string& key) override {
    switch (state_) {
      case State::kTop:
        return top_key(key);
      case State::kEntry:
        return entry_key(key);
      default:
        return true;  // skips keys of metadata and of ignored values
    }
  }

  bool on_object_begin() override {
    switch (state_) {
      case State::kStart:
        return to(State::kTop);
      case State::kMetadataValue:
        return to(State::kMetadata);
      case State::kEntryValue:
        seen_.fill(false);
        return to(State::kEntry);
      case State::kSkip:
        ++skip_depth_;
        return true;
      default:
        return wrong("an object");
    }
  }

  bool on_object_end() override {
    switch (state_) {
      case State::kTop:
        return to(State::kDone);
      case State::kMetadata:
        return to(State::kTop);
      case State::kEntry:
        return entry_end();
      default:
        return skip_end();
    }
  }

  bool on_array_begin() override {
    switch (state_) {
      case State::kShapeValue:
        return to(State::kShape);
      case State::kOffsetsValue:
        offsets_seen_ = 0;
        return to(State::kOffsets);
      case State::kSkip:
        ++skip_depth_;
        return true;
      default:
        return wrong("an array");
    }
  }

  bool on_array_end() override {
    switch (state_) {
      case State::kShape:
        return to(State::kEntry);
      case State::kOffsets:
        if (offsets_seen_ != 2)
          return stop("{}: data_offsets has {} entries; expected 2", current(), offsets_seen_);
        return to(State::kEntry);
      default:
        return skip_end();
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

  bool to(State next) {
    state_ = next;
    return true;
  }
  template <class... Args>
  bool stop(fmt::format_string<Args...> format, Args&&... args) {
    error = fmt::format(format, std::forward<Args>(args)...);
    return false;
  }
  std::string current() const { return fmt::format("tensor '{}'", printable(tensors.back().name)); }

  // Stops with an error that names what the header has here and what it should have.
  bool wrong(std::string_view found) {
    switch (state_) {
      case State::kStart:
        return stop("header is {}; expected a JSON object", found);
      case State::kMetadataValue:
        return stop("__metadata__ is {}; expected an object of strings", found);
      case State::kMetadata:
        return stop("__metadata__ holds {}; expected strings only", found);
      case State::kEntryValue:
        return stop("{} is {}; expected an object", current(), found);
      case State::kDtypeValue:
        return stop("{}: dtype is {}; expected a string", current(), found);
      case State::kShapeValue:
        return stop("{}: shape is {}; expected an array", current(), found);
      case State::kShape:
        return stop("{}: shape holds {}; expected non-negative integers", current(), found);
      case State::kOffsetsValue:
        return stop("{}: data_offsets is {}; expected an array of two integers", current(), found);
      case State::kOffsets:
        return stop("{}: data_offsets holds {}; expected non-negative integers", current(), found);
      default:
        return stop("header has {} in an unexpected place", found);
    }
  }

  bool top_key(std::string& key) {
    if (key == "__metadata__") {
      if (std::exchange(metadata_seen_, true)) return stop("header has two __metadata__ members");
      return to(State::kMetadataValue);
    }
    if (tensors.size() == kMaxTensors) return stop("header has more than {} tensors", kMaxTensors);
    if (key.size() > kMaxTensorName)
      return stop("tensor '{}': name has {} bytes; at most {} are accepted", printable(key, 80),
                  key.size(), kMaxTensorName);
    for (const char c : key)
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
        return stop("tensor '{}': name holds a control character (byte {:#04x})", printable(key),
                    static_cast<unsigned>(c));
    tensors.emplace_back().name = std::move(key);
    return to(State::kEntryValue);
  }

  bool entry_key(const std::string& key) {
    constexpr std::array next = {State::kDtypeValue, State::kShapeValue, State::kOffsetsValue};
    for (size_t i = 0; i < kFields.size(); ++i) {
      if (key != kFields[i]) continue;
      if (std::exchange(seen_[i], true)) return stop("{}: has two members '{}'", current(), key);
      return to(next[i]);
    }
    skip_depth_ = 0;  // unknown members are ignored, as the reference reader does
    return to(State::kSkip);
  }

  bool entry_end() {
    for (size_t i = 0; i < kFields.size(); ++i)
      if (!seen_[i]) return stop("{}: member '{}' is missing", current(), kFields[i]);
    return to(State::kTop);
  }

  bool skip_end() {
    if (--skip_depth_ == 0) state_ = State::kEntry;
    return true;
  }

  // Handles a scalar. `wrong_kind` is empty for a non-negative integer `number`; `text` is set for
  // a string.
  bool scalar(std::string_view wrong_kind, uint64_t number, const std::string* text) {
    if (state_ == State::kSkip) {
      if (skip_depth_ == 0) state_ = State::kEntry;
      return true;
    }
    if (text != nullptr && state_ == State::kMetadata) return true;
    if (text != nullptr && state_ == State::kDtypeValue) return dtype(*text);
    const bool in_array = state_ == State::kShape || state_ == State::kOffsets;
    if (!wrong_kind.empty() || !in_array)
      return wrong(wrong_kind.empty() ? fmt::format("{}", number) : wrong_kind);
    TensorInfo& t = tensors.back();
    if (state_ == State::kShape) {
      if (t.shape.size() == kMaxRank)
        return stop("{}: shape has more than {} dimensions", current(), kMaxRank);
      t.shape.push_back(number);
    } else if (offsets_seen_++ < 2) {
      (offsets_seen_ == 1 ? t.offset : t.bytes) = number;
    }
    return true;
  }

  bool dtype(const std::string& name) {
    const std::optional<DType> found = dtype_from_name(name);
    if (!found) return stop("{}: unsupported dtype '{}'", current(), printable(name, 60));
    tensors.back().dtype = *found;
    return to(State::kEntry);
  }

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
  HeaderHandler handler;
  parse_json_events(header, handler, where);
  std::vector<TensorInfo> tensors = std::move(handler.tensors);
  check_names(tensors, where);
  const uint64_t data_begin = 8 + header.size();
  prove_layout(tensors, data_begin, file_size - data_begin, where);
  tensors.shrink_to_fit();
  return tensors;
}

}  // namespace moebius
