// SPDX-License-Identifier: Apache-2.0
#include "recurrent_util.h"

#include <gtest/gtest.h>

#include <cstring>

namespace moebius {
namespace {

void run_step(const Recurrent& net, const RecurrentRows& r, std::span<const RecurrentRun> runs,
              const float* from) {
  const size_t T = runs.back().end;
  for (size_t t = 0; t < T; ++t) net.convolve(r, from, t);
  for (size_t h = 0; h < net.shape().heads; ++h) net.scan(r, runs, h);
  for (size_t t = 0; t < T; ++t) net.finish(r, from, t);
  for (const RecurrentRun& run : runs) net.keep(r, run, from);
}

}  // namespace

std::vector<float> normal_values(std::mt19937& rng, size_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng);
  return v;
}

std::vector<float> run_pieces(const Recurrent& net, const std::vector<float>& in,
                              const std::vector<size_t>& pieces) {
  const RecurrentShape& s = net.shape();
  const size_t T = in.size() / s.in;
  std::vector<float> out(T * s.out), mixed(T * s.mixed);
  std::vector<std::vector<float>> states;
  size_t first = 0;
  for (const size_t n : pieces) {
    const RecurrentRows r{in.data() + first * s.in, mixed.data(), out.data() + first * s.out};
    const float* from = states.empty() ? nullptr : states.back().data();
    const size_t half = n / 2;
    std::vector<float> middle(s.state), after(s.state);
    std::vector<RecurrentRun> runs;
    if (half > 0) runs.push_back({0, half, from, middle.data()});
    runs.push_back({half, n, half > 0 ? middle.data() : from, after.data()});
    run_step(net, r, runs, from);
    if (half > 0) {
      std::vector<float> again(s.state), scrap((n - half) * s.out);
      const RecurrentRun rest{0, n - half, middle.data(), again.data()};
      run_step(net, {r.in + half * s.in, mixed.data(), scrap.data()}, {&rest, 1}, middle.data());
      EXPECT_EQ(std::memcmp(again.data(), after.data(), after.size() * sizeof(float)), 0);
    }
    states.push_back(std::move(after));
    first += n;
  }
  return out;
}

void expect_pieces_equal(const Recurrent& net, const std::vector<float>& in) {
  const std::vector<float> whole = run_pieces(net, in, {70});
  for (const auto& pieces :
       {std::vector<size_t>(70, 1), std::vector<size_t>{1, 2, 3, 30, 34}, {69, 1}}) {
    const std::vector<float> y = run_pieces(net, in, pieces);
    EXPECT_EQ(std::memcmp(y.data(), whole.data(), y.size() * sizeof(float)), 0);
  }
}

}  // namespace moebius
