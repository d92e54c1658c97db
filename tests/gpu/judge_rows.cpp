// SPDX-License-Identifier: Apache-2.0
#include "judge_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "device/cuda/device_candidates.h"
#include "device/cuda/usual_rows.h"
#include "judge_device.h"

namespace moebius::judge {
namespace {

constexpr size_t kClearedBytes = size_t{160} << 20;  // more than the caches hold

// A list with its operands, each as the first run finds it. An operation on rows that are not there changes nothing, and keeps a list
// from being a usual one.
struct List {
  const char* name;
  std::vector<CudaRowOp> ops;
  std::vector<Array<uint8_t>> operands;
  std::vector<std::vector<uint8_t>> begins;
  std::vector<uint32_t> cols;
  std::vector<Array<float>> numbers;
  size_t rows = 0;
  const float* tables = nullptr;
  size_t table_cols = 0;

  uint32_t add_operand(uint32_t columns, std::mt19937& random) {
    std::vector<float> x(rows * columns);
    std::normal_distribution<float> normal(0, 2);
    for (float& v : x) v = normal(random);
    begins.push_back(stored_rows(x, XType::kBf16));
    operands.emplace_back(begins.back());
    cols.push_back(columns);
    return static_cast<uint32_t>(cols.size() - 1);
  }
  const float* add_numbers(size_t n, std::mt19937& random) {
    std::vector<float> x(n);
    std::normal_distribution<float> normal(1, 0.3f);
    for (float& v : x) v = normal(random);
    numbers.emplace_back(x);
    return numbers.back().data();
  }
  CudaRowProgram program(const std::vector<CudaRowOp>& list) const {
    CudaRowProgram p{};
    p.ops = list.data(), p.count = list.size(), p.rows = rows, p.type = XType::kBf16;
    p.tables = tables, p.table_cols = table_cols;
    for (size_t i = 0; i < operands.size(); ++i)
      p.operands[i] = {operands[i].data(), XType::kBf16, rows, cols[i]}, p.cols[i] = cols[i];
    return p;
  }
  void reset() const {
    for (size_t i = 0; i < operands.size(); ++i)
      must(g_api->upload(operands[i].data(), begins[i].data(), begins[i].size(), nullptr),
           "upload");
  }
  std::vector<std::vector<uint8_t>> results() const {
    std::vector<std::vector<uint8_t>> all;
    for (const Array<uint8_t>& o : operands) all.push_back(o.read());
    return all;
  }
};

CudaRowOp row_op(RowOpKind kind, CudaView y, CudaView x) {
  CudaRowOp op{};
  op.kind = static_cast<uint8_t>(kind), op.y = y, op.x = x;
  op.norm = static_cast<uint8_t>(NormKind::kRms), op.epsilon = 1e-6f;
  return op;
}

List join_and_norm(size_t rows, uint32_t cols) {
  std::mt19937 random(1);
  List l;
  l.name = "sum and norm", l.rows = rows;
  const uint32_t h = l.add_operand(cols, random), x = l.add_operand(cols, random),
                 a = l.add_operand(cols, random);
  const auto whole = [](uint32_t o) { return CudaView{o, 0, 0, 1, 0}; };
  l.ops.push_back(row_op(RowOpKind::kAdd, whole(h), whole(x)));
  l.ops.push_back(row_op(RowOpKind::kNorm, whole(a), whole(h)));
  l.ops.back().weight = l.add_numbers(cols, random);
  return l;
}

List heads(size_t rows, uint32_t q, uint32_t kv, uint32_t width) {
  std::mt19937 random(2);
  List l;
  l.name = "heads", l.rows = rows;
  const uint32_t counts[] = {q, kv, kv}, from = l.add_operand((q + 2 * kv) * width, random);
  uint32_t to[3], at = 0;
  for (int i = 0; i < 3; ++i) {
    const uint32_t columns = counts[i] * width;
    to[i] = l.add_operand(columns, random);
    l.ops.push_back(row_op(RowOpKind::kCopy, {to[i], 0, columns, 1, 0}, {from, at, columns, 1, 0}));
    at += columns;
  }
  for (int i = 0; i < 2; ++i) {
    const CudaView each{to[i], 0, width, counts[i], width};
    l.ops.push_back(row_op(RowOpKind::kNorm, each, each));
    l.ops.back().weight = l.add_numbers(width, random);
  }
  l.tables = l.add_numbers(rows * width, random), l.table_cols = width;
  for (int i = 0; i < 2; ++i) {
    const CudaView each{to[i], 0, width, counts[i], width};
    l.ops.push_back(row_op(RowOpKind::kRotate, each, each));
    l.ops.back().half = width / 2;
  }
  return l;
}

struct Timed {
  const CudaRowProgram* program;  // null: none
  void* cleared;                  // null: nothing is cleared between
};
CudaStatus run_timed(void* context, size_t, void* stream) {
  const Timed& t = *static_cast<const Timed*>(context);
  if (t.cleared != nullptr)
    if (const CudaStatus s = g_api->clear(t.cleared, kClearedBytes, stream); s != CudaStatus::kOk)
      return s;
  return t.program != nullptr ? g_api->run_rows(t.program, 1, stream) : CudaStatus::kOk;
}
double time_of(Timed t) {
  double us = 0;
  must(g_api->time_graph(run_timed, &t, 32, 9, &us), "time_graph");
  return us;
}

void judge_list(const List& l, void* cleared, double clearing, RowsVerdict& verdict) {
  std::vector<CudaRowOp> listed = l.ops;
  listed.push_back(row_op(RowOpKind::kScale, {kCudaOperands - 1, 0, 8, 1, 0}, {}));
  CudaRowProgram usual = l.program(l.ops), read = l.program(listed);
  // Heads for themselves, as cuda_parts.cpp finds them.
  if (std::strcmp(l.name, "heads") == 0)
    for (uint32_t i = 1; i < 4; ++i)
      read.part_heads[i] = l.cols[i] / static_cast<uint32_t>(l.table_cols);
  std::vector<std::vector<uint8_t>> got[2];
  for (int i = 0; i < 2; ++i) {
    l.reset();
    must(g_api->run_rows(i == 0 ? &usual : &read, 1, nullptr), "run_rows");
    got[i] = l.results();
  }
  const bool equal = got[0] == got[1], changed = got[0] != l.begins;
  ++verdict.checks, verdict.failed += equal && changed ? 0 : 1;
  if (!equal || !changed)
    std::printf("WRONG %s of %zu rows: %s\n", l.name, l.rows,
                changed ? "other bytes" : "nothing was done");
  if (clearing == 0) return;
  std::printf(
      "  %-12s %5zu rows: %6.2f us, read as a list %6.2f us; with caches cleared before %6.2f and "
      "%6.2f us\n",
      l.name, l.rows, time_of({&usual, nullptr}), time_of({&read, nullptr}),
      time_of({&usual, cleared}) - clearing, time_of({&read, cleared}) - clearing);
  std::fflush(stdout);
}

// What draws need of rows of logits, against the definition.
CudaStatus run_candidates(void* context, size_t, void* stream) {
  return g_api->find_candidates(static_cast<const CudaCandidates*>(context), stream);
}

void judge_candidates(size_t rows, const char* name, const std::vector<CandidateNeed>& kinds,
                      bool timed, RowsVerdict& verdict) {
  constexpr size_t kCols = 151936;
  constexpr uint32_t kMost = 1024;
  std::mt19937 random(9);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> x(rows * kCols);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = i / kCols % 3 == 1 ? std::floor(normal(random)) : normal(random);
  for (size_t r = 0; r < rows; ++r) x[r * kCols + random() % kCols] = 16.0f;
  std::vector<CandidateNeed> needs;
  for (size_t r = 0; r < rows; ++r) needs.push_back(kinds[r % kinds.size()]);
  const Array<float> rows_there(x);
  const Array<CandidateNeed> needs_there(needs);
  const Array<CudaFound> found(rows);
  const Array<int32_t> ids(rows * kMost);
  const Array<float> logits(rows * kMost);
  const Array<uint8_t> work(g_api->candidate_work_bytes(rows, kCols));
  CudaCandidates c{};
  c.x = {rows_there.data(), XType::kF32, rows, kCols}, c.cols = kCols;
  c.needs = needs_there.data(), c.most = kMost, c.found = found.data();
  c.ids = ids.data(), c.logits = logits.data(), c.work = work.data();
  for (const CandidateNeed& n : needs) c.weighs = c.weighs || n.weighs();
  must(g_api->find_candidates(&c, nullptr), "find_candidates");
  const std::vector<CudaFound> got = found.read();
  const std::vector<int32_t> got_ids = ids.read();
  const std::vector<float> got_logits = logits.read();
  std::vector<int32_t> want_ids(kMost);
  std::vector<float> want_logits(kMost);
  uint32_t most = 0;
  for (size_t r = 0; r < rows; ++r) {
    const CudaFound want =
        find_candidates(x.data() + r * kCols, needs[r], kMost, want_ids.data(), want_logits.data());
    bool equal = want.count == got[r].count && want.top == got[r].top && want.total == got[r].total;
    for (size_t i = 0; equal && want.count <= kMost && i < want.count; ++i)
      equal = want_ids[i] == got_ids[r * kMost + i] && want_logits[i] == got_logits[r * kMost + i];
    most = std::max(most, want.count);
    ++verdict.checks, verdict.failed += equal ? 0 : 1;
    if (!equal)
      std::printf("WRONG candidates of %s, row %zu of %zu: %u and %u, total %.17g and %.17g\n",
                  name, r, rows, want.count, got[r].count, want.total, got[r].total);
  }
  if (!timed) return;
  double us = 0;
  must(g_api->time_graph(run_candidates, &c, 32, 9, &us), "time_graph");
  std::printf("  candidates: %-8s %3zu rows of %zu logits: %6.2f us, at most %u of a row\n", name,
              rows, kCols, us, most);
}

}  // namespace

RowsVerdict judge_rows(bool timed) {
  RowsVerdict verdict;
  const Array<uint8_t> cleared(kClearedBytes);
  const double clearing = timed ? time_of({nullptr, cleared.data()}) : 0;
  if (timed) std::printf("rows: %.1f us to clear %zu MiB\n", clearing, kClearedBytes >> 20);
  for (const size_t rows : {1u, 8u, 32u, 4096u}) {
    judge_list(join_and_norm(rows, 2048), cleared.data(), clearing, verdict);
    judge_list(heads(rows, 32, 4, 128), cleared.data(), clearing, verdict);
  }
  judge_list(join_and_norm(3, 2880), cleared.data(), clearing, verdict);
  judge_list(join_and_norm(3, 7168), cleared.data(), clearing, verdict);
  judge_list(heads(3, 4, 2, 64), cleared.data(), clearing, verdict);
  judge_list(heads(3, 4, 2, 256), cleared.data(), clearing, verdict);
  constexpr uint32_t kVocab = 151669;  // of 151936 logits
  const CandidateNeed greedy{kVocab}, best{kVocab, 2.06f, 0x1p-11f, 50},
      mass{kVocab, 2.06f, 0x1p-11f, 0, 0.95}, least{kVocab, 2.06f, 0x1p-11f, 0, 1.0, 40};
  for (const size_t rows : {1u, 8u, 32u}) {
    judge_candidates(rows, "greedy", {greedy}, timed, verdict);
    judge_candidates(rows, "top-k", {best}, timed, verdict);
    judge_candidates(rows, "top-p", {mass}, timed, verdict);
    judge_candidates(rows, "all", {least, greedy, mass, best}, timed, verdict);
  }
  return verdict;
}

}  // namespace moebius::judge
