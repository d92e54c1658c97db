// SPDX-License-Identifier: Apache-2.0
// The public C++ and C interfaces: same answers as the layers below, errors in words, nothing
// crosses the C border.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <thread>

#include "moebius/moebius.h"
#include "moebius/moebius.hpp"
#include "unit/checkpoint/checkpoint_util.h"
#include "unit/test_util.h"

namespace moebius::api_test {
namespace {

std::vector<float> rows(size_t n) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = std::sin(static_cast<float>(i) * 0.7f);
  return x;
}

TEST(Api, BlockEqualsItsExpertsWithTheSameRouting) {
  const Folder folder = Folder::open(test::bundled_model_dir().string());
  EXPECT_EQ(folder.architecture(), "Qwen3MoeForCausalLM");
  EXPECT_GT(folder.modules().size(), 150u);
  ASSERT_EQ(folder.moe_blocks().size(), 6u);
  Options options;
  options.threads = 2;
  options.activations = ElementType::kF32;
  const Moe block = folder.moe(folder.moe_blocks()[1], options);
  const Moe experts = folder.moe(folder.moe_blocks()[1], options, MoeScope::kExperts);
  const size_t T = 5, H = block.hidden(), k = block.slots();
  const std::vector<float> x = rows(T * H);
  std::vector<float> y(T * H), z(T * H), weights(T * k);
  std::vector<int32_t> ids(T * k);
  block.run({x.data(), ElementType::kF32, T, H}, {y.data(), ElementType::kF32, T, H}, ids.data(),
            weights.data());
  experts.run_ids({x.data(), ElementType::kF32, T, H}, ids.data(), weights.data(), k,
                  {z.data(), ElementType::kF32, T, H});
  EXPECT_EQ(std::memcmp(y.data(), z.data(), y.size() * 4), 0);
  EXPECT_THROW(
      experts.run({x.data(), ElementType::kF32, T, H}, {z.data(), ElementType::kF32, T, H}), Error);
  EXPECT_THROW(
      block.run({x.data(), ElementType::kF32, T, H - 1}, {z.data(), ElementType::kF32, T, H}),
      Error);
}

// A block whose experts hang on the token is refused when it is opened; its experts take ids, and say so
// where they are given logits.
TEST(Api, ExpertsByTokenIdTakeIds) {
  const Folder folder =
      Folder::open((test::test_data_dir() / "golden" / "deepseekv4-dense").string());
  Options options;
  options.threads = 1;
  options.activations = ElementType::kF32;
  const std::string name = folder.moe_blocks()[0];
  EXPECT_EQ(test::error_of([&] { folder.moe(name, options); }),
            name + ": this layer chooses experts by token id; only its experts can be run");
  const Moe experts = folder.moe(name, options, MoeScope::kExperts);
  const size_t H = experts.hidden(), E = experts.experts();
  const std::vector<float> x = rows(H), logits = rows(E), weights = {0.5f, 0.5f};
  std::vector<float> y(H);
  const int32_t ids[] = {0, 1};
  EXPECT_EQ(test::error_of([&] {
              experts.run_logits({x.data(), ElementType::kF32, 1, H},
                                 {logits.data(), ElementType::kF32, 1, E},
                                 {y.data(), ElementType::kF32, 1, H});
            }),
            "this block chooses experts by token id, not by logits; give ids and weights of "
            "experts");
  experts.run_ids({x.data(), ElementType::kF32, 1, H}, ids, weights.data(), 2,
                  {y.data(), ElementType::kF32, 1, H});
  EXPECT_NE(y, std::vector<float>(H));
}

TEST(Api, RequestedKernelAndUnknownNames) {
  const Folder folder = Folder::open(test::bundled_model_dir().string());
  Options options;
  options.kernel = "reference";
  const Linear layer = folder.linear("model.layers.0.self_attn.q_proj", options);
  EXPECT_EQ(layer.kernel().rfind("reference", 0), 0u);
  EXPECT_EQ(layer.inputs(), 384u);
  options.kernel = "warp_drive";
  EXPECT_THROW(folder.linear("model.layers.0.self_attn.q_proj", options), Error);
  EXPECT_THROW(folder.linear("model.layers.0.self_attn.nope"), Error);
  EXPECT_THROW(folder.moe("model.layers.0.self_attn"), Error);
}

TEST(Api, HandlesThatWereMovedFromThrow) {
  const auto says_so = [](const char* what, auto&& fn) {
    try {
      fn();
      ADD_FAILURE() << what << ": no error";
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()),
                std::string("this moebius::") + what + " is empty: it was moved from");
    }
  };
  Options options;
  options.threads = 1;
  options.activations = ElementType::kF32;
  Folder folder = Folder::open(test::bundled_model_dir().string());
  Linear linear = folder.linear("model.layers.0.self_attn.q_proj", options);
  Moe moe = folder.moe("model.layers.0.mlp", options);
  const Folder other = std::move(folder);
  const Linear taken = std::move(linear);
  Moe kept = std::move(moe);
  EXPECT_EQ(taken.inputs(), 384u);
  EXPECT_GT(kept.hidden(), 0u);
  const InputMatrix x;
  const OutputMatrix y;
  says_so("Folder", [&] { folder.architecture(); });
  says_so("Folder", [&] { folder.modules(); });
  says_so("Folder", [&] { folder.moe_blocks(); });
  says_so("Folder", [&] { folder.warnings(); });
  says_so("Folder", [&] { folder.linear("a"); });
  says_so("Folder", [&] { folder.moe("a"); });
  says_so("Linear", [&] { linear.inputs(); });
  says_so("Linear", [&] { linear.outputs(); });
  says_so("Linear", [&] { linear.kernel(); });
  says_so("Linear", [&] { linear.run(x, y); });
  says_so("Moe", [&] { moe.hidden(); });
  says_so("Moe", [&] { moe.experts(); });
  says_so("Moe", [&] { moe.slots(); });
  says_so("Moe", [&] { moe.kernel(); });
  says_so("Moe", [&] { moe.run(x, y); });
  says_so("Moe", [&] { moe.run_logits(x, x, y); });
  says_so("Moe", [&] { moe.run_ids(x, nullptr, nullptr, 1, y); });
  moe = std::move(kept);  // and can be given something again
  EXPECT_GT(moe.hidden(), 0u);
}

TEST(CApi, SaysWhatIsMissing) {
  EXPECT_EQ(moebius_linear_inputs(nullptr), 0u);
  EXPECT_STREQ(moebius_last_error(), "layer is NULL");
  EXPECT_EQ(moebius_folder_module_count(nullptr), 0u);
  EXPECT_STREQ(moebius_last_error(), "folder is NULL");
  EXPECT_EQ(moebius_moe_hidden(nullptr), 0u);
  EXPECT_STREQ(moebius_last_error(), "layer is NULL");
  moebius_folder* folder = moebius_folder_open(test::bundled_model_dir().c_str());
  ASSERT_NE(folder, nullptr) << moebius_last_error();
  const size_t count = moebius_folder_module_count(folder);
  EXPECT_EQ(moebius_folder_module_name(folder, count), nullptr);
  EXPECT_EQ(std::string(moebius_last_error()),
            "module " + std::to_string(count) + " of a folder that has " + std::to_string(count));
  moebius_folder_free(folder);
}

// What the environment names is for the tool: a program that embeds the library is not changed by it.
TEST(Api, TheEnvironmentChoosesNoKernel) {
  const Folder folder = Folder::open(test::bundled_model_dir().string());
  const std::string module = "model.layers.0.self_attn.q_proj",
                    own = folder.linear(module).kernel();
  for (const char* word : {"reference", "generic", "nonsense"}) {
    setenv("MOEBIUS_KERNEL", word, 1);
    EXPECT_EQ(folder.linear(module).kernel(), own) << word;
  }
  unsetenv("MOEBIUS_KERNEL");
}

size_t threads_of_process() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    ++count;
  return count;
}

TEST(Api, LayersShareTheirThreads) {
  if (!std::filesystem::exists("/proc/self/task")) GTEST_SKIP() << "no /proc to count threads in";
  const Folder folder = Folder::open(test::bundled_model_dir().string());
  Options options;
  options.threads = 2;
  options.activations = ElementType::kF32;
  const size_t before = threads_of_process();
  {
    std::vector<Linear> layers;
    for (int i = 0; i < 30; ++i)
      layers.push_back(folder.linear("model.layers.0.self_attn.q_proj", options));
    const Moe moe = folder.moe("model.layers.0.mlp", options);
    EXPECT_EQ(threads_of_process(), before + 1);  // the other thread is this one
    const std::vector<float> x = rows(64 * layers[0].inputs());
    std::vector<float> first(64 * layers[0].outputs()), y(first.size());
    const auto run = [&](const Linear& layer, std::vector<float>& to) {
      layer.run({x.data(), ElementType::kF32, 64, layer.inputs()},
                {to.data(), ElementType::kF32, 64, layer.outputs()});
    };
    run(layers[0], first);
    // Several threads at once, other layers: turns, equal bytes.
    std::vector<std::vector<float>> answers(4, y);
    std::vector<std::thread> callers;
    for (size_t i = 0; i < answers.size(); ++i)
      callers.emplace_back([&, i] { run(layers[i], answers[i]); });
    for (std::thread& t : callers) t.join();
    for (const std::vector<float>& answer : answers) EXPECT_EQ(answer, first);
    // A runtime of one's own.
    options.runtime = make_runtime(3);
    options.threads = 0;
    EXPECT_EQ(threads_of(*options.runtime), 3u);
    const Linear own = folder.linear("model.layers.0.self_attn.q_proj", options);
    EXPECT_EQ(threads_of_process(), before + 3);
    run(own, y);
    EXPECT_EQ(y, first);
    options.threads = 2;
    EXPECT_THROW(folder.linear("model.layers.0.self_attn.q_proj", options), Error);
    options.runtime = nullptr;
    EXPECT_THROW(make_runtime(-1), Error);
  }
  EXPECT_EQ(threads_of_process(), before);
}

TEST(CApi, LayersOfARuntime) {
  if (!std::filesystem::exists("/proc/self/task")) GTEST_SKIP() << "no /proc to count threads in";
  const size_t before = threads_of_process();
  moebius_folder* folder = moebius_folder_open(test::bundled_model_dir().c_str());
  ASSERT_NE(folder, nullptr) << moebius_last_error();
  moebius_runtime* runtime = moebius_runtime_new(2);
  ASSERT_NE(runtime, nullptr) << moebius_last_error();
  EXPECT_EQ(moebius_runtime_threads(runtime), 2u);
  EXPECT_EQ(moebius_runtime_new(-1), nullptr);
  EXPECT_EQ(moebius_runtime_threads(nullptr), 0u);
  moebius_options options{};
  options.size = sizeof options;
  options.activations = MOEBIUS_F32;
  options.runtime = runtime;
  moebius_linear* a = moebius_linear_load(folder, "model.layers.0.self_attn.q_proj", &options);
  moebius_linear* b = moebius_linear_load(folder, "model.layers.0.self_attn.k_proj", &options);
  ASSERT_TRUE(a != nullptr && b != nullptr) << moebius_last_error();
  moebius_runtime_free(runtime);  // its layers keep it
  EXPECT_EQ(threads_of_process(), before + 1);
  const std::vector<float> x = rows(moebius_linear_inputs(a));
  std::vector<float> y(moebius_linear_outputs(a));
  const moebius_input in = {sizeof(moebius_input), x.data(), MOEBIUS_F32, 1, x.size(), 0};
  const moebius_output out = {sizeof(moebius_output), y.data(), MOEBIUS_F32, 1, y.size(), 0};
  EXPECT_EQ(moebius_linear_run(a, &in, &out), 0) << moebius_last_error();
  moebius_linear_free(a), moebius_linear_free(b), moebius_folder_free(folder);
  EXPECT_EQ(threads_of_process(), before);
}

TEST(CApi, SizesThatNoMemoryHasAreRefused) {
  const Folder folder = Folder::open(test::bundled_model_dir().string());
  Options options;
  options.threads = 1;
  options.activations = ElementType::kF32;
  const Moe moe = folder.moe("model.layers.0.mlp", options);
  const Linear linear = folder.linear("model.layers.0.self_attn.q_proj", options);
  const size_t H = moe.hidden();
  std::vector<float> x = rows(2 * H), y(2 * H);
  const auto in = [&](size_t n, size_t stride) {
    return InputMatrix{x.data(), ElementType::kF32, n, H, stride};
  };
  const auto out = [&](size_t n, size_t stride) {
    return OutputMatrix{y.data(), ElementType::kF32, n, H, stride};
  };
  for (const size_t n : {SIZE_MAX, SIZE_MAX / H + 1, SIZE_MAX / 4, size_t{1} << 62}) {
    EXPECT_THROW(moe.run(in(n, 0), out(n, 0)), Error) << n;
    EXPECT_THROW(moe.run_logits(in(n, 0), in(n, 0), out(n, 0)), Error) << n;
    EXPECT_THROW(moe.run_ids(in(n, 0), nullptr, nullptr, 1, out(n, 0)), Error) << n;
    EXPECT_THROW(linear.run(in(n, 0), out(n, 0)), Error) << n;
    EXPECT_THROW(moe.run(in(2, n), out(2, 0)), Error) << n;
    EXPECT_THROW(moe.run(in(2, 0), out(2, n)), Error) << n;
    EXPECT_THROW(moe.run_ids(in(2, 0), nullptr, nullptr, n, out(2, 0)), Error) << n;
  }
  EXPECT_THROW(moe.run_ids(in(2, 0), nullptr, nullptr, 1, out(2, 0)), Error);
  EXPECT_THROW(moe.run({nullptr, ElementType::kF32, 2, H, 0}, out(2, 0)), Error);
  EXPECT_THROW(linear.run(in(2, H - 1), out(2, 0)), Error);
  moe.run({nullptr, ElementType::kF32, 0, H, 0}, {nullptr, ElementType::kF32, 0, H, 0});
  EXPECT_THROW(make_runtime(RuntimeOptions{0, {1 << 15}, false}), Error);
}

TEST(CApi, TextsAreFreedOnce) {
  const auto freed = [](char* text) {
    moebius_folder_free(nullptr);
    moebius_string_free(text);
    return std::string(moebius_last_error()).find("text was freed") == std::string::npos;
  };
  moebius_scheme* scheme = moebius_scheme_parse("{}");
  char* text = moebius_scheme_family(scheme);
  EXPECT_STREQ(text, "dense");
  EXPECT_EQ(moebius_kernel_name(SIZE_MAX), nullptr);  // another error before
  EXPECT_TRUE(freed(text));
  EXPECT_FALSE(freed(text));
  char mine[] = "mine";
  EXPECT_FALSE(freed(mine));
  EXPECT_STREQ(moebius_last_error_field("kind"), "state");
  moebius_scheme_free(scheme);
  moebius_scheme_free(scheme);
  EXPECT_STREQ(moebius_last_error(), "scheme was freed");
  EXPECT_GT(std::strlen(moebius_cpu_model()), 0u);
}

// Single layers tell their progress as models do, and can be stopped.
TEST(Api, ProgressOfLayers) {
  const Folder folder = Folder::open(test::bundled_model_dir().string());
  const std::string module = "model.layers.0.self_attn.q_proj", block = "model.layers.0.mlp";
  uint64_t last = 0, whole = 0;
  Options options;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, total);
    last = done, whole = total;
    return true;
  };
  for (const bool moe : {false, true}) {
    last = whole = 0;
    if (moe)
      folder.moe(block, options);
    else
      folder.linear(module, options);
    EXPECT_EQ(last, whole);
    EXPECT_GT(whole, 10000u);
  }
  options.progress = [](uint64_t, uint64_t) { return false; };
  EXPECT_THROW(folder.linear(module, options), Error);
  EXPECT_THROW(folder.moe(block, options), Error);
  options.progress = [](uint64_t, uint64_t) -> bool { throw std::runtime_error("mine"); };
  EXPECT_THROW(folder.linear(module, options), std::runtime_error);
  EXPECT_THROW(folder.moe(block, options), std::runtime_error);

  moebius_folder* c = moebius_folder_open(test::bundled_model_dir().c_str());
  moebius_options o{};
  o.size = sizeof o;
  int calls = 0;
  o.user = &calls;
  o.progress = [](void* user, uint64_t, uint64_t) { return ++*static_cast<int*>(user), 1; };
  EXPECT_EQ(moebius_moe_load(c, block.c_str(), 0, &o), nullptr);
  EXPECT_STREQ(moebius_last_error_field("field"), "progress");
  EXPECT_EQ(calls, 1);
  o.progress = [](void*, uint64_t, uint64_t) -> int { throw 3; };
  EXPECT_EQ(moebius_linear_load(c, module.c_str(), &o), nullptr);
  EXPECT_STREQ(moebius_last_error(), "an unknown error");
  moebius_folder_free(c);
}

TEST(CApi, RunsAndReportsErrors) {
  moebius_folder* folder = moebius_folder_open(test::bundled_model_dir().c_str());
  ASSERT_NE(folder, nullptr) << moebius_last_error();
  EXPECT_GT(moebius_folder_module_count(folder), 150u);
  EXPECT_NE(moebius_folder_module_name(folder, 0), nullptr);
  EXPECT_EQ(moebius_folder_module_name(folder, 1u << 30), nullptr);
  EXPECT_EQ(moebius_folder_module_problem(folder, 0), nullptr);
  moebius_options options{};
  options.size = sizeof options;
  options.threads = 1;
  options.activations = MOEBIUS_F32;
  moebius_moe* moe = moebius_moe_load(folder, "model.layers.0.mlp", 0, &options);
  ASSERT_NE(moe, nullptr) << moebius_last_error();
  const size_t H = moebius_moe_hidden(moe);
  const std::vector<float> x = rows(3 * H);
  std::vector<float> y(3 * H);
  const moebius_input in = {sizeof(moebius_input), x.data(), MOEBIUS_F32, 3, H, 0};
  const moebius_output out = {sizeof(moebius_output), y.data(), MOEBIUS_F32, 3, H, 0};
  EXPECT_EQ(moebius_moe_run(moe, &in, &out, nullptr, nullptr), 0) << moebius_last_error();
  EXPECT_NE(y[0], 0.0f);
  const int32_t bad_ids[] = {0, 99, 0, 1, 0, 1};
  const float weights[] = {1, 1, 1, 1, 1, 1};
  EXPECT_NE(moebius_moe_run_ids(moe, &in, bad_ids, weights, 2, &out), 0);
  EXPECT_NE(std::string(moebius_last_error()).find("99"), std::string::npos);
  EXPECT_NE(moebius_moe_run(moe, nullptr, &out, nullptr, nullptr), 0);
  moebius_input wrong = in;
  const int unknown = 17;
  std::memcpy(&wrong.type, &unknown, sizeof wrong.type);
  EXPECT_NE(moebius_moe_run(moe, &wrong, &out, nullptr, nullptr), 0);
  moebius_options odd = options;
  std::memcpy(&odd.arithmetic, &unknown, sizeof odd.arithmetic);
  EXPECT_EQ(moebius_moe_load(folder, "model.layers.0.mlp", 0, &odd), nullptr);
  EXPECT_NE(std::string(moebius_last_error()).find("unknown arithmetic 17"), std::string::npos);
  EXPECT_EQ(moebius_linear_load(folder, "nope", &options), nullptr);
  EXPECT_EQ(moebius_linear_load(folder, nullptr, &options), nullptr);
  EXPECT_EQ(moebius_folder_open("/does/not/exist"), nullptr);
  EXPECT_GT(std::strlen(moebius_last_error()), 10u);
  moebius_moe_free(moe);
  moebius_moe_free(nullptr);
  moebius_folder_free(folder);
}

}  // namespace
}  // namespace moebius::api_test
