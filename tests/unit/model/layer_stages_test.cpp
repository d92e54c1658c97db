// SPDX-License-Identifier: Apache-2.0
// Models whose layers come and go (model/run/layer_stages.h): modules read the rows that they read
// in a model that is loaded whole, to the byte, in every family.
#include "model/run/layer_stages.h"

#include <gtest/gtest.h>

#include <map>

#include "device/tap.h"
#include "model/arch/arch.h"
#include "runtime/thread_pool.h"
#include "unit/checkpoint/checkpoint_util.h"

namespace moebius::layer_stages_test {
namespace {

// What every module and block reads, and the experts of every row.
class Seen final : public ModuleTap {
 public:
  void linear(std::span<const Module* const> modules, const TappedRows& x) override {
    for (const Module* m : modules)
      if (m->layer >= 0) add(m->name, x);
  }
  void block(const MoeBlock& block, const TappedRows& x, std::span<const int32_t> ids,
             size_t) override {
    add(block.name, x);
    std::vector<float>& to = rows[block.name + " ids"];
    for (const int32_t id : ids) to.push_back(static_cast<float>(id));
  }
  std::map<std::string, std::vector<float>> rows;

 private:
  void add(const std::string& name, const TappedRows& x) {
    std::vector<float>& to = rows[name];
    for (size_t r = 0; r < x.rows; ++r)
      to.insert(to.end(), x.x + r * x.stride, x.x + r * x.stride + x.cols);
  }
};

TEST(LayerStages, ModulesReadTheRowsOfTheWholeModel) {
  ThreadPool pool(2);
  const std::vector<std::vector<int32_t>> windows = {{3, 9, 4, 1, 7, 5}, {2, 2, 8}};
  size_t models = 0, stages = 0;
  for (const auto& e : std::filesystem::directory_iterator(test::test_data_dir() / "golden")) {
    const std::string name = e.path().filename().string();
    if (!name.ends_with("-dense")) continue;
    SCOPED_TRACE(name);
    const Checkpoint checkpoint = Checkpoint::open(e.path().string());
    try {
      (void)decoder_spec(checkpoint.config());
    } catch (const Error&) {
      continue;  // an architecture that does not run whole
    }
    Seen whole, staged;
    ModelOptions options;
    options.pool = &pool;
    options.type = activation_type("auto", checkpoint.config().dtype);
    options.context = 8;
    options.tap = &whole;
    const std::unique_ptr<DecoderModel> model = DecoderModel::load(checkpoint, options);
    std::vector<float> logits;
    for (const std::vector<int32_t>& w : windows) {
      SequenceState state = model->new_sequence();
      const StepItem item{&state, w, false};
      model->forward({&item, 1}, logits);
    }
    options.tap = &staged;
    LayerStages parts(checkpoint, decoder_spec(checkpoint.config()), options);
    std::vector<std::vector<float>> rows;
    for (const std::vector<int32_t>& w : windows) rows.emplace_back(w.size() * parts.width());
    size_t layer = 0;
    for (size_t s = 0; s < parts.count(); ++s) {
      EXPECT_EQ(parts.layers(s).begin, layer);
      EXPECT_EQ(parts.stage_of(layer), s);
      EXPECT_GT(parts.file_bytes(s), 0u);
      layer = parts.layers(s).end;
      parts.load(s);
      for (size_t w = 0; w < windows.size(); ++w) parts.run(windows[w], rows[w]);
    }
    EXPECT_EQ(layer, model->layers());
    ASSERT_FALSE(whole.rows.empty());
    ASSERT_EQ(whole.rows.size(), staged.rows.size());
    for (const auto& [module, read] : whole.rows)
      EXPECT_TRUE(read == staged.rows[module]) << module;
    ++models, stages += parts.count();
  }
  EXPECT_GT(models, 40u);
  EXPECT_GT(stages, models);  // most have a stage per layer
}

}  // namespace
}  // namespace moebius::layer_stages_test
