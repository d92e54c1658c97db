// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V4's table of experts by token id: a wrong one is refused before a row goes through it.
#include <gtest/gtest.h>

#include <deque>

#include "model/run/decoder.h"
#include "moebius/error.h"
#include "runtime/thread_pool.h"
#include "unit/test_util.h"

namespace moebius::test::token_table_test {
namespace {

// What loading says of the folder with another table; "": nothing.
std::string with_table(DType dtype, std::vector<uint64_t> shape, std::span<const uint8_t> data) {
  const std::filesystem::path from = test_data_dir() / "golden" / "deepseekv4-dense";
  const TensorStore store = TensorStore::open_file((from / "model.safetensors").string());
  std::deque<std::vector<uint8_t>> bytes;
  std::vector<TensorData> tensors;
  for (const TensorInfo& t : store.tensors()) {
    if (t.name.ends_with("tid2eid")) {
      tensors.push_back({t.name, dtype, shape, data});
      continue;
    }
    store.read(t, 0, bytes.emplace_back(t.bytes));
    tensors.push_back({t.name, t.dtype, t.shape, bytes.back()});
  }
  const TempDir folder;
  write_safetensors((folder / "model.safetensors").string(), tensors);
  write_file(folder / "config.json", read_file(from / "config.json"));
  try {
    ThreadPool pool(1);
    ModelOptions options;
    options.pool = &pool;
    DecoderModel::load(Checkpoint::open(folder.path().string()), options);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::string with_ids(const std::vector<int64_t>& ids, std::vector<uint64_t> shape) {
  return with_table(DType::kI64, std::move(shape),
                    {reinterpret_cast<const uint8_t*>(ids.data()), ids.size() * sizeof(int64_t)});
}

TEST(TokenTable, WrongOnesAreRefused) {
  std::vector<int64_t> ids(64);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i % 4);
  EXPECT_EQ(with_ids(ids, {32, 2}), "");
  std::vector<int64_t> wrong = ids;
  wrong[63] = 4;
  EXPECT_NE(with_ids(wrong, {32, 2}).find("tid2eid[31,1] is 4; expected an expert from 0 to 3"),
            std::string::npos)
      << with_ids(wrong, {32, 2});
  wrong[63] = -1;
  EXPECT_NE(with_ids(wrong, {32, 2}).find("is -1"), std::string::npos);
  EXPECT_NE(with_ids({ids.begin(), ids.begin() + 62}, {31, 2}).find("expected I64 [32,2]"),
            std::string::npos);  // a token has none
  EXPECT_NE(with_ids(ids, {64, 1}).find("expected I64 [32,2]"), std::string::npos);
  const std::vector<float> floats(64, 1.0f);
  EXPECT_NE(with_table(DType::kF32, {32, 2},
                       {reinterpret_cast<const uint8_t*>(floats.data()), 64 * sizeof(float)}),
            "");
}

}  // namespace
}  // namespace moebius::test::token_table_test
