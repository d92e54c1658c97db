// SPDX-License-Identifier: Apache-2.0
// Every quantized module of every golden folder, decoded through the format readers, against what
// compressed-tensors itself decoded (exact f32 products): all values by checksum, the stored
// matrices element by element.
#include <filesystem>

#include "base/json.h"
#include "unit/checkpoint/formats_util.h"

namespace moebius::test::formats_golden_test {
namespace {

namespace fs = std::filesystem;

uint32_t crc32_of(const std::vector<float>& values) {
  uint32_t crc = 0xffffffffu;
  for (const float v : values) {
    const float positive = v == 0.0f ? 0.0f : v;  // -0 counts as +0
    uint8_t bytes[4];
    std::memcpy(bytes, &positive, 4);
    for (const uint8_t b : bytes) {
      crc ^= b;
      for (int i = 0; i < 8; ++i) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0xedb88320u : 0u);
    }
  }
  return ~crc;
}

std::string text_of(const Json& object, const char* key) {
  const Json* v = object.find(key);
  return v != nullptr && v->is_string() ? v->as_string() : "";
}
int64_t int_of(const Json& object, const char* key) {
  const Json* v = object.find(key);
  return v != nullptr && v->is_integer() ? v->as_int().value() : 0;
}

QuantArgs args_of(const Json& j) {
  QuantArgs a;
  a.kind = text_of(j, "type") == "float" ? NumberKind::kFloat : NumberKind::kInt;
  a.bits = static_cast<int>(int_of(j, "num_bits"));
  a.symmetric = j.find("symmetric") == nullptr || j.find("symmetric")->as_bool();
  a.group_size = int_of(j, "group_size");
  const std::string strategy = text_of(j, "strategy");
  for (const Strategy s : {Strategy::kTensor, Strategy::kChannel, Strategy::kGroup,
                           Strategy::kTensorGroup, Strategy::kBlock, Strategy::kToken})
    if (name_of(s) == strategy) a.strategy = s;
  if (const Json* b = j.find("block_structure"); b != nullptr && b->is_array()) {
    a.block_n = b->items()[0].as_int().value();
    a.block_k = b->items()[1].as_int().value();
  }
  const Json* dynamic = j.find("dynamic");
  if (dynamic != nullptr && dynamic->is_bool() && dynamic->as_bool()) a.dynamic = Dynamic::kDynamic;
  if (dynamic != nullptr && dynamic->is_string()) a.dynamic = Dynamic::kLocal;
  if (text_of(j, "actorder") == "group") a.act_order = ActOrder::kGroup;
  return a;
}

Scheme scheme_from(const Json& j) {
  Scheme s;
  s.format = format_from_name(text_of(j, "format")).value();
  const auto read = [&](const char* key, std::optional<QuantArgs>& out) {
    if (const Json* v = j.find(key); v != nullptr && v->is_object()) out = args_of(*v);
  };
  read("weights", s.weights);
  read("input_activations", s.input);
  read("output_activations", s.output);
  return s;
}

struct Golden {
  std::string name;
  TensorStore store, expected;
  Json facts;
  std::string version;
};

void check_module(const Golden& g, const std::string& name, const Json& facts) {
  SCOPED_TRACE(g.name + ": " + name);
  const auto index = static_cast<size_t>(int_of(facts, "scheme"));
  const Scheme scheme = scheme_from(g.facts.find("schemes")->items().at(index));
  const auto N = static_cast<uint64_t>(int_of(facts, "N"));
  const auto K = static_cast<uint64_t>(int_of(facts, "K"));
  const ModuleTensors tensors = collect(g.store, name);
  std::unique_ptr<Loaded> loaded;
  ASSERT_NO_THROW(loaded = run_reader(g.store, tensors, scheme, g.version, N, K));
  EXPECT_TRUE(loaded->plan.warning.empty());
  const std::vector<float> values = decode(loaded->view);
  EXPECT_EQ(crc32_of(values), static_cast<uint32_t>(int_of(facts, "crc32")));
  if (const TensorInfo* info = g.expected.find(name)) {
    const std::vector<float> want = read_floats(g.expected, *info);
    ASSERT_EQ(values.size(), want.size());
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], want[i]) << "row " << i / K << " column " << i % K;
  }
}

TEST(FormatsGolden, EveryQuantizedModuleDecodesAsTheLibraryDoes) {
  size_t folders = 0, modules = 0;
  for (const auto& entry : fs::directory_iterator(test_data_dir() / "golden")) {
    if (!fs::exists(entry.path() / "expected.json") || !fs::exists(entry.path() / "config.json"))
      continue;
    std::vector<std::string> warnings;
    const std::string expected = entry.path() / "expected.safetensors";
    Golden g{entry.path().filename(), TensorStore::open_folder(entry.path(), warnings),
             fs::exists(expected) ? TensorStore::open_file(expected) : TensorStore{},
             parse_json(read_file(entry.path() / "expected.json"), "expected.json"), ""};
    const Json config = parse_json(read_file(entry.path() / "config.json"), "config.json");
    if (const Json* q = config.find("quantization_config")) g.version = text_of(*q, "version");
    const Json* listed = g.facts.find("modules");
    if (listed == nullptr) continue;
    ++folders;
    for (const auto& [name, facts] : listed->members()) {
      const Json* quantized = facts.find("quantized");
      if (quantized == nullptr || !quantized->as_bool()) continue;
      check_module(g, name, facts);
      ++modules;
    }
  }
  EXPECT_GE(folders, 20u);
  EXPECT_GE(modules, 300u);
}

}  // namespace
}  // namespace moebius::test::formats_golden_test
