// SPDX-License-Identifier: Apache-2.0
// Measures the attention of one layer over random keys and values: new rows of one sequence at some
// depth. Bytes are those of the keys and values that the rows see, counted once; operations are the
// two products with them. Sequences are used in turn, so that keys and values come from memory.
#include <algorithm>
#include <memory>
#include <ostream>

#include "apps/chat/terminal.h"
#include "apps/cli/interrupt.h"
#include "base/error.h"
#include "bench/bench_report.h"
#include "bench/bench_synthetic.h"
#include "nn/attention.h"
#include "quant/quant_access.h"
#include "runtime/memory.h"

namespace moebius {
namespace {

// Owns the blocks of one sequence, with all tokens.
class BenchSequence {
 public:
  BenchSequence(const AttentionPlan& plan, size_t tokens, BenchRandom& random)
      : memory_((tokens + kKeyBlock - 1) / kKeyBlock * plan.kv.block_bytes()) {
    const AttentionSpec& spec = plan.spec;
    SyntheticRows rows(XType::kF32, kKeyBlock, spec.kv_heads * spec.key_dim);
    std::vector<float> k(kKeyBlock * spec.kv_heads * spec.key_dim);
    for (size_t begin = 0; begin < tokens; begin += kKeyBlock) {
      uint8_t* block = memory_.data() + begin / kKeyBlock * plan.kv.block_bytes();
      blocks_.push_back(block);
      rows.refill(random);
      for (size_t t = 0; t < kKeyBlock; ++t)
        load_row(rows.view(), t, 0, spec.kv_heads * spec.key_dim,
                 k.data() + t * spec.kv_heads * spec.key_dim);
      for (size_t h = 0; h < spec.kv_heads; ++h)
        plan.kv.put(block, h, 0, std::min(kKeyBlock, tokens - begin), k.data() + h * spec.key_dim,
                    spec.kv_heads * spec.key_dim, k.data() + h * spec.key_dim,
                    spec.kv_heads * spec.key_dim);
    }
  }
  const uint8_t* const* blocks() const { return blocks_.data(); }

 private:
  AlignedBuffer memory_;
  std::vector<const uint8_t*> blocks_;
};

// Returns the number of keys that `tokens` rows after `depth` others see in total.
double keys_seen(size_t depth, size_t tokens) {
  const auto d = static_cast<double>(depth), t = static_cast<double>(tokens);
  return t * d + t * (t + 1) / 2;
}

BenchResult measure(const AttentionPlan& plan, std::span<const BenchSequence> sequences,
                    const BenchOptions& options, size_t depth, size_t tokens, size_t threads,
                    BenchMachine& machine) {
  const AttentionSpec& spec = plan.spec;
  ThreadPool& pool = machine.pool(threads);
  SyntheticRows q(XType::kF32, tokens, spec.heads * spec.key_dim);
  std::vector<float> rows(tokens * spec.heads * spec.key_dim), out(rows.size());
  BenchRandom random(tokens);
  q.refill(random);
  for (size_t t = 0; t < tokens; ++t)
    load_row(q.view(), t, 0, spec.heads * spec.key_dim,
             rows.data() + t * spec.heads * spec.key_dim);
  std::vector<AttentionScratch> scratch(threads);
  size_t calls = 0;
  BenchResult r{"attention", options.kv_dtype, -1, tokens, threads};
  const KvMatrix& keys = plan.kv.keys();
  RoofsBeside roofs(machine, keys.kernel->needs, RoofKind::kBf16, threads);
  r.time = summarize(repeat(
      options.seconds, [] {},
      [&] {
        const AttentionRows one{sequences[calls++ % sequences.size()].blocks(), depth, rows.data(),
                                out.data(), tokens};
        Attention attention(plan, {&one, 1}, Segments::kParallel, threads);
        run_attention(attention, pool, scratch);
      },
      [&] { roofs.sample(); }));
  r.shape = {{"heads", spec.heads},
             {"kv_heads", spec.kv_heads},
             {"head_dim", spec.key_dim},
             {"depth", depth}};
  r.kernel = title_of(*keys.kernel);
  r.numerics = name_of(keys.kernel->numerics(keys.problem));
  const auto dims = static_cast<double>(spec.key_dim + spec.value_dim);
  r.operations = 2.0 * static_cast<double>(spec.heads) * keys_seen(depth, tokens) * dims;
  r.code_bytes = static_cast<double>((depth + tokens) * spec.kv_heads) * dims *
                 static_cast<double>(code_bits(keys.problem.code)) / 8;
  const size_t blocks = (depth + tokens + kKeyBlock - 1) / kKeyBlock;
  r.read_bytes = static_cast<double>(blocks * plan.kv.block_bytes());
  r.packed_bytes = r.read_bytes;
  set_roofs(r, roofs);
  return r;
}

}  // namespace

int run_bench_attention(const BenchOptions& options, std::ostream& out) {
  interrupt_is_noted();
  BenchMachine machine(options.seconds);
  BenchReport report(options, out);
  if (options.heads % options.kv_heads != 0)
    fail("--heads is {}; expected a multiple of --kv-heads, {}", options.heads, options.kv_heads);
  BenchOptions said = options;
  const XType type = x_type_from(options.dtype);
  KvStorage storage;
  storage.type = kv_type_from(options.kv_dtype).value_or(kv_type_of(type));
  if (said.kv_dtype == "auto") said.kv_dtype = options.dtype;
  AttentionSpec spec;
  spec.heads = options.heads;
  spec.kv_heads = options.kv_heads;
  spec.key_dim = spec.value_dim = options.head_dim;
  spec.scale = 1.0f / 16;
  const AttentionPlan plan =
      plan_attention(spec, type, storage, machine.cpu(), policy_of(options.run));
  for (const size_t depth : options.depths) {
    const size_t longest = depth + *std::max_element(options.tokens.begin(), options.tokens.end());
    const size_t copies = copies_for((longest + kKeyBlock - 1) / kKeyBlock * plan.kv.block_bytes());
    std::vector<BenchSequence> sequences;
    BenchRandom random(depth);
    Progress progress("making keys and values", copies, /*bytes=*/false);
    while (sequences.size() < copies && !interrupt_seen())
      sequences.emplace_back(plan, longest, random), progress.advance(1);
    progress.finish();
    each_case(options, [&](size_t tokens, size_t threads) {
      report.add(measure(plan, sequences, said, depth, tokens, threads, machine));
    });
  }
  return interrupt_seen() ? 130 : 0;
}

}  // namespace moebius
