// SPDX-License-Identifier: Apache-2.0
#include "nn/mamba1.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/math_functions.h"
#include "kernels/row_functions.h"

namespace moebius {
namespace {

constexpr size_t kScanPart = Mamba1Spec::kPart;

RecurrentShape scan_shape(const Mamba1Spec& s) {
  return {3 * s.features + 2 * s.state, 2 * s.features, s.features,
          (s.features + kScanPart - 1) / kScanPart, s.features * s.state};
}

}  // namespace

SelectiveScan::SelectiveScan(const Mamba1Spec& spec, const std::vector<float>& a_log,
                             std::vector<float> d, XType type)
    : Recurrent(scan_shape(spec)), spec_(spec), type_(type), d_(std::move(d)) {
  const size_t I = spec.features, N = spec.state;
  if (I == 0 || N == 0 || a_log.size() != I * N || d_.size() != I)
    fail("Mamba-1 of {} features with {} states: A_log or D have other sizes", I, N);
  rates_.reserve(I * N);
  for (size_t at = 0; at < I; at += kScanPart)
    for (size_t n = 0; n < N; ++n)
      for (size_t i = at; i < std::min(at + kScanPart, I); ++i)
        rates_.push_back(-exp_f32(a_log[i * N + n]));
}

void SelectiveScan::convolve(const RecurrentRows& r, const float*, size_t t) const noexcept {
  const RowFunctions& f = row_functions();
  const size_t I = spec_.features;
  const float* in = r.in + t * shape().in;
  float *step = r.mixed + t * shape().mixed, *gain = step + I;
  f.activate({RowFunction::kSoftplus}, nullptr, in + 2 * I, step, I);
  std::memcpy(gain, in, I * sizeof(float));
  f.multiply(gain, step, I);
}

void SelectiveScan::scan(const RecurrentRows& r, std::span<const RecurrentRun> runs,
                         size_t part) const noexcept {
  const RowFunctions& f = row_functions();
  const size_t I = spec_.features, N = spec_.state, at = part * kScanPart,
               P = std::min(kScanPart, I - at);
  const float* rates = rates_.data() + at * N;
  float decay[kScanPart];
  for (const RecurrentRun& run : runs) {
    float* S = run.to + at * N;
    if (run.from == nullptr)
      std::fill_n(S, P * N, 0.0f);
    else if (run.from != run.to)
      std::memcpy(S, run.from + at * N, P * N * sizeof(float));
    for (size_t t = run.begin; t < run.end; ++t) {
      const float *in = r.in + t * shape().in, *B = in + 3 * I, *C = B + N,
                  *step = r.mixed + t * shape().mixed + at, *gain = step + I;
      float* y = r.out + t * I + at;
      std::fill_n(y, P, 0.0f);
      for (size_t n = 0; n < N; ++n) {
        std::memcpy(decay, step, P * sizeof(float));
        f.multiply(decay, rates + n * P, P);
        f.exp_minus(decay, 0.0f, decay, P);
        f.multiply(S + n * P, decay, P);
        f.fma(S + n * P, B[n], gain, P);
        f.fma(y, C[n], S + n * P, P);
      }
      std::memcpy(decay, in + at, P * sizeof(float));  // the term D x
      f.multiply(decay, d_.data() + at, P);
      f.add(y, decay, P);
    }
  }
}

void SelectiveScan::finish(const RecurrentRows& r, const float*, size_t t) const noexcept {
  const size_t I = spec_.features;
  float* y = r.out + t * I;
  row_functions().activate({RowFunction::kSiluAndMul}, r.in + t * shape().in + I, y, y, I);
  row_functions().round(type_, y, I);
}

}  // namespace moebius
