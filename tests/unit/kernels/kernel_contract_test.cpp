// SPDX-License-Identifier: Apache-2.0
// What kernel.h promises to kernels, seen from a kernel: alignment, cuts on steps, memory that was
// announced. A kernel as wide as tile units are (16 outputs a step, 32 a block, 32 rows) looks at
// every argument and lets the reference compute.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <mutex>
#include <set>

#include "kernels/list.h"
#include "nn/attention.h"
#include "unit/nn/kv_cases.h"
#include "unit/nn/moe_cases.h"

namespace moebius::test::kernel_contract_test {
namespace {

std::mutex broken_mutex;
std::set<std::string> broken;
std::atomic<size_t> calls{0}, wide_calls{0}, asked{0};

void promise(bool kept, const char* what) {
  if (kept) return;
  const std::lock_guard lock(broken_mutex);
  broken.insert(what);
}
bool aligned(const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

constexpr size_t kStep = 16, kBlock = 32, kRows = 32;

void spy_pack(const PackArgs& a) {
  promise(aligned(a.packed, 64), "packed");
  promise(a.n0 % kStep == 0 && a.row0 % kStep == 0, "rows to pack");
  promise(aligned(a.columns, 4) && aligned(a.group_ends, 4), "column order");
  reference_kernel().pack(a);
}
size_t spy_code_at(const Problem& p, size_t n, size_t k) {
  promise(p.scale_type == ScaleType::kNone && !p.act_order, "dense");
  promise(n < p.N && k < p.K, "an element");
  ++asked;
  return reference_kernel().code_at(p, n, k);
}
void spy_prepare(const PrepareArgs& a) {
  // rows of the reference are a multiple of 64 bytes long
  promise(aligned(a.rows, 64) && aligned(a.x, 4), "prepared rows");
  reference_kernel().prepare_rows(a);
}
void spy_panel(const RowPanelArgs& a) {
  promise(aligned(a.rows, 64) && aligned(a.panel, 64) && aligned(a.ids, 4), "panel");
  reference_kernel().make_row_panel(a);
}
void spy_gemm(const GemmArgs& a) {
  promise(aligned(a.w->data, 64) && aligned(a.panel, 64), "operands");
  promise(aligned(a.scratch, 64), "scratch");
  promise(aligned(a.y, 4) && a.ldy >= a.n1 - a.n0, "y");
  promise(a.n0 % kStep == 0 && (a.n1 % kStep == 0 || a.n1 == a.w->problem->N), "columns");
  promise(a.M > 0 && a.n0 < a.n1, "an empty call");
  ++calls;
  if (a.n1 - a.n0 >= 2 * kBlock && (a.n1 - a.n0) % kBlock == 0) ++wide_calls;
  reference_kernel().gemm(a);
}

Kernel make_spy() {
  Kernel k = reference_kernel();
  k.name = "spy";
  k.n_step = kStep, k.n_tile = kBlock, k.m_tile = kRows;
  k.pack = spy_pack, k.code_at = spy_code_at;
  k.prepare_rows = spy_prepare, k.make_row_panel = spy_panel, k.gemm = spy_gemm;
  return k;
}

class KernelContract : public testing::Test {
 protected:
  void SetUp() override { broken.clear(), calls = wide_calls = asked = 0; }
  void TearDown() override {
    EXPECT_EQ(broken, std::set<std::string>()) << "promises that were broken";
    EXPECT_GT(calls, 0u);
  }
  const Kernel spy = make_spy();
};

SchemeCase scheme_called(const std::string& name) {
  for (const SchemeCase& s : scheme_cases())
    if (s.name == name) return s;
  throw std::runtime_error("no scheme " + name);
}

TEST_F(KernelContract, HoldsInALinear) {
  Rng rng(3);
  const SchemeCase s = scheme_called("w4a8 g32");
  for (const auto& [N, K, M] : {std::array<size_t, 3>{40, 64, 1}, {200, 96, 5}, {500, 64, 150}}) {
    const MatrixCase a = make_matrix(s, N, K, rng), b = make_matrix(s, 17, K, rng);
    std::vector<LinearPart> parts(2);
    for (size_t i = 0; i < 2; ++i) {
      const MatrixCase& m = i == 0 ? a : b;
      parts[i].plan = {make_problem(m.w, s.act, s.x_type), &spy, {}};
      parts[i].w = &m.w, parts[i].act = m.params, parts[i].name = "linear";
    }
    const LinearLayer layer(std::move(parts), nullptr);
    std::vector<float> x(M * (K + 1), 0.5f), y(M * (N + 17));
    for (const size_t threads : {1u, 3u}) {
      ThreadPool pool(threads);
      // rows that are as little aligned as floats may be
      layer.forward({x.data(), DType::kF32, M, K, K + 1}, f32_rows(y.data(), M, N + 17), pool);
    }
  }
  EXPECT_GT(wide_calls, 0u);
}

TEST_F(KernelContract, HoldsInAMixture) {
  Rng rng(4);
  MoeShape shape;
  shape.hidden = 96, shape.intermediate = 160, shape.experts = 3, shape.shared = true;
  const MoeCase c = make_moe(scheme_called("w4a8 g32"), scheme_called("w4a16 g32 x1"), shape,
                             ActivationSpec{}, XType::kF32, rng);
  const auto layer = build(c, spy);
  for (const size_t T : {1u, 9u, 300u}) {
    const Activations x = make_x(c, T, false, rng);
    std::vector<int32_t> ids(T * 2);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % 3);
    for (const size_t threads : {1u, 2u}) {
      ThreadPool pool(threads);
      run_ids(*layer, x, ids, std::vector<float>(T * 2, 0.5f), pool);
    }
  }
  EXPECT_GT(wide_calls, 0u);
}

TEST_F(KernelContract, HoldsInAttention) {
  AttentionPlan plan;
  plan.spec = {4, 2, 48, 40, 0.25f, 0, 0, 0, {}};
  plan.type = XType::kBf16;
  plan.kv = KvLayout(2, 48, 40, KvStorage{KvType::kBf16}, XType::kBf16,
                     [&](const Problem&) { return &spy; });
  LayerCache cache(plan);
  for (const size_t T : {5u, 1u, 1u, 130u}) {
    const std::vector<float> k(T * 2 * 48, 0.5f), v(T * 2 * 40, 0.25f), q(T * 4 * 48, 1.0f);
    std::vector<float> out(T * 4 * 40);
    cache.append(k.data(), v.data(), T);
    const AttentionRows rows = cache.rows(q.data(), out.data(), T);
    Attention attention(plan, {&rows, 1});
    run_all(attention);
  }
  EXPECT_GT(asked, 0u);  // a growing block is not packed again
}

}  // namespace
}  // namespace moebius::test::kernel_contract_test
