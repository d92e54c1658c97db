// SPDX-License-Identifier: Apache-2.0
// Runs the first mixture-of-experts block of a folder on random rows:  moe_layer FOLDER
#include <cstdio>
#include <random>

#include "moebius/moebius.hpp"

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: moe_layer FOLDER\n"), 2;
  try {
    const moebius::Folder folder = moebius::Folder::open(argv[1]);
    const std::vector<std::string> blocks = folder.moe_blocks();
    if (blocks.empty()) return std::fprintf(stderr, "%s: no mixture of experts\n", argv[1]), 1;
    moebius::Options options;
    options.activations = moebius::ElementType::kF32;
    const moebius::Moe moe = folder.moe(blocks[0], options);

    const size_t T = 4, H = moe.hidden();
    std::vector<float> x(T * H), y(T * H), weights(T * moe.slots());
    std::vector<int32_t> ids(T * moe.slots());
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& v : x) v = normal(random);
    moe.run({x.data(), moebius::ElementType::kF32, T, H},
            {y.data(), moebius::ElementType::kF32, T, H}, ids.data(), weights.data());

    std::printf("%s on %s: %zu experts, kernel %s\n", folder.architecture().c_str(),
                blocks[0].c_str(), moe.experts(), moe.kernel().c_str());
    for (size_t t = 0; t < T; ++t)
      std::printf("token %zu: expert %d with weight %.3f, y[0] = %g\n", t, ids[t * moe.slots()],
                  static_cast<double>(weights[t * moe.slots()]), static_cast<double>(y[t * H]));
    return 0;
  } catch (const moebius::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
