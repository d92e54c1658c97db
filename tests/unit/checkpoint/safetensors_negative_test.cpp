// SPDX-License-Identifier: Apache-2.0
// Every file of build/data/negative/safetensors (made by tests/python/make_negative.py) is refused, and
// the message says file, tensor, what was found and what was expected. A file without an entry here
// is a failure, and so is an entry without a file.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "unit/test_util.h"

namespace moebius::safetensors_negative_test {
namespace {

using Parts = std::vector<std::string_view>;

const std::map<std::string, Parts, std::less<>>& expectations() {
  static const std::map<std::string, Parts, std::less<>> kAll = {
      {"empty", {"file has 0 bytes", "8 bytes of header length"}},
      {"seven_bytes", {"file has 7 bytes"}},
      {"length_above_cap", {"header length is 100000001", "at most 100000000"}},
      {"length_near_2_64", {"header length is 18446744073709551615", "at most 100000000"}},
      {"length_wraps_with_8", {"header length is 18446744073709551608"}},
      {"length_beyond_file", {"header length is 3", "only 2 bytes"}},
      {"invalid_utf8", {"not valid UTF-8"}},
      {"overlong_utf8", {"not valid UTF-8"}},
      {"not_json", {"malformed JSON at byte 1"}},
      {"header_is_array", {"header is an array", "expected a JSON object"}},
      {"header_is_number", {"header is 12345678", "expected a JSON object"}},
      {"header_cut", {"malformed JSON"}},
      {"two_objects", {"malformed JSON"}},
      {"zero_bytes_after_object", {"zero byte at 2"}},
      {"byte_order_mark", {"byte order mark"}},
      {"deep_json", {"nested deeper than 128"}},
      {"negative_dimension", {"tensor 'a'", "shape holds -1", "non-negative integers"}},
      {"negative_offset", {"tensor 'a'", "data_offsets holds -8", "non-negative integers"}},
      {"float_dimension", {"tensor 'a'", "shape holds 2 (no 64-bit integer)"}},
      {"exponent_dimension", {"tensor 'a'", "shape holds 2 (no 64-bit integer)"}},
      {"dimension_beyond_64_bits", {"tensor 'a'", "no 64-bit integer"}},
      {"string_dimension", {"tensor 'a'", "shape holds a string"}},
      {"nested_shape", {"tensor 'a'", "shape holds an array"}},
      {"shape_is_number", {"tensor 'a'", "shape is 2", "expected an array"}},
      {"shape_is_null", {"tensor 'a'", "shape is null"}},
      {"one_offset", {"tensor 'a'", "data_offsets has 1 entries", "expected 2"}},
      {"three_offsets", {"tensor 'a'", "data_offsets has 3 entries", "expected 2"}},
      {"offsets_are_object", {"tensor 'a'", "data_offsets is an object"}},
      {"dtype_is_number", {"tensor 'a'", "dtype is 32", "expected a string"}},
      {"dtype_missing", {"tensor 'a'", "'dtype' is missing"}},
      {"shape_missing", {"tensor 'a'", "'shape' is missing"}},
      {"offsets_missing", {"tensor 'a'", "'data_offsets' is missing"}},
      {"dtype_unknown", {"tensor 'model.w'", "unsupported dtype 'F9_E9M9'"}},
      {"entry_is_string", {"tensor 'a' is a string", "expected an object"}},
      {"entry_is_null", {"tensor 'a' is null", "expected an object"}},
      {"dtype_twice", {"tensor 'a'", "two members 'dtype'"}},
      {"metadata_twice", {"two __metadata__"}},
      {"metadata_is_number", {"__metadata__ is 1", "object of strings"}},
      {"metadata_value_is_number", {"__metadata__ holds 1", "strings only"}},
      {"metadata_value_is_object", {"__metadata__ holds an object"}},
      {"hole_at_start", {"tensor 'a'", "[4,12]", "begin at 0", "belong to none"}},
      {"hole_between", {"tensor 'b'", "[12,20]", "begin at 8", "'a' ends", "belong to none"}},
      {"overlap", {"tensor 'b'", "[4,12]", "begin at 8", "'a' ends", "overlap"}},
      {"same_bytes_twice", {"[0,8]", "begin at 8", "overlap"}},
      {"end_before_begin", {"tensor 'b'", "[8,0]", "end not to come before the begin"}},
      {"shape_product_wraps_to_zero", {"tensor 'a'", "U8[4294967296,4294967296]", "64 bits"}},
      {"shape_product_wraps_to_four", {"tensor 'a'", "64 bits"}},
      {"overflow_before_zero", {"tensor 'a'", "U8[9223372036854775808,4,0]", "64 bits"}},
      {"bits_overflow", {"tensor 'a'", "F64[288230376151711744]", "64 bits"}},
      {"half_a_byte", {"tensor 'a'", "F4[3] has 12 bits", "whole bytes"}},
      {"six_bits", {"tensor 'a'", "F6_E2M3[3] has 18 bits", "whole bytes"}},
      {"shape_smaller_than_offsets", {"tensor 'a'", "8 bytes", "F32[1] needs 4"}},
      {"shape_larger_than_offsets", {"tensor 'a'", "8 bytes", "F32[3] needs 12"}},
      {"scalar_of_8_bytes", {"tensor 'a'", "8 bytes", "F32[] needs 4"}},
      {"truncated_data", {"tensor 'a' ends at byte 8", "only 5 bytes", "incomplete"}},
      {"offsets_near_2_64", {"tensor 'a' ends at byte 2305843009213693944", "only 8 bytes"}},
      {"trailing_bytes",
       {"12 bytes of data", "last tensor ends at 8", "4 bytes belong to no tensor"}},
      {"data_without_tensors", {"8 bytes of data", "8 bytes belong to no tensor"}},
      {"name_twice", {"tensor 'a' appears twice"}},
      {"name_twice_escaped", {"tensor 'ab' appears twice"}},
      {"name_with_nul", {"tensor 'a\\x00b'", "control character (byte 0x00)"}},
      {"name_with_escape_character", {"tensor 'a\\x1b[31m'", "control character (byte 0x1b)"}},
      {"name_with_delete", {"tensor 'a\\x7f'", "control character (byte 0x7f)"}},
      {"name_too_long", {"name has 1025 bytes", "at most 1024"}},
      {"lone_surrogate", {"malformed JSON"}},
      {"rank_too_high", {"tensor 'a'", "more than 64 dimensions"}},
  };
  return kAll;
}

TEST(SafetensorsNegative, EveryFileIsRefusedInWords) {
  std::set<std::string> seen;
  for (const auto& entry :
       std::filesystem::directory_iterator(test_data_dir() / "negative/safetensors")) {
    const std::string name = entry.path().stem().string();
    SCOPED_TRACE(name);
    seen.insert(name);
    const auto expected = expectations().find(name);
    ASSERT_NE(expected, expectations().end()) << "no expectation";
    std::string message;
    try {
      SafetensorsFile::open(entry.path().string());
    } catch (const Error& e) {
      message = e.what();
    }
    EXPECT_TRUE(message.starts_with(entry.path().string() + ": ")) << message;
    for (const std::string_view part : expected->second)
      EXPECT_NE(message.find(part), std::string::npos)
          << "expected '" << part << "' in: " << message;
  }
  for (const auto& [name, parts] : expectations())
    EXPECT_TRUE(seen.contains(name)) << name << " has no file";
}

}  // namespace
}  // namespace moebius::safetensors_negative_test
