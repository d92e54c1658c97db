// SPDX-License-Identifier: Apache-2.0
// What belongs to the tool is found from where the tool lies, in a build folder and in an installed tree.
#include "apps/cli/places.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "apps/cli/folder.h"
#include "unit/test_util.h"

namespace moebius::places_test {
namespace {

TEST(Places, AreRelativeToTheTool) {
  const BuildPaths places{"../share/moebius", "../lib/x/moebius", "../.."};
  EXPECT_EQ(model_place("/opt/a b/bin", places), "/opt/a b/share/moebius/models");
  EXPECT_EQ(plugin_places("/opt/a b/bin", places),
            (std::vector<std::string>{"/opt/a b/bin", "/opt/a b/lib/x/moebius"}));
  const BuildPaths flat{"..", "../lib", ""};
  EXPECT_EQ(model_place("/bin", flat), "/models");
}

TEST(Places, ABuildFolderHasTheModelsOfItsSources) {
  const test::TempDir clone;
  const std::string build = (clone / "build/release").string();
  const BuildPaths places{"../share/moebius", "../lib/moebius", "../.."};
  std::filesystem::create_directories(build);
  EXPECT_EQ(model_place(build, places), (clone / "build/share/moebius/models").string());
  test::write_file(clone / "build/release/CMakeCache.txt", "");
  EXPECT_EQ(model_place(build, places), (clone / "models").string());
}

TEST(Places, TheBundledModelOfThisBuildIsFound) {
  EXPECT_TRUE(std::filesystem::equivalent(bundled_folder(), test::bundled_model_dir()));
}

}  // namespace
}  // namespace moebius::places_test
