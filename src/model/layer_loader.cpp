// SPDX-License-Identifier: Apache-2.0
// Plans come from the headers; only a tensor-parallel slice or an act-order index needs a look at
// the payload first.
#include "model/layer_loader.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "kernels/list.h"
#include "kernels/packed_matrix.h"
#include "quant/reference.h"
#include "quant/slice.h"

namespace moebius {
namespace {

// A module's weights in memory, cut for the rank.
struct Loaded {
  QuantMatrix w;
  std::vector<float> bias;
  SliceMemory slices;
};

void load_into(Loaded& to, const Checkpoint& checkpoint, const Module& module, const Rank& rank,
               LoadBuffer& buffer) {
  const TensorStore& store = checkpoint.store();
  to.w = reader_for(module.plan.scheme.format).load(module.plan, store, buffer);
  to.bias = load_bias(module.plan, store);
  if (rank.tp == 1) return;
  const Split split = split_of(module);
  if (split == Split::kOutputs) {
    const auto [begin, end] = parallel_range(to.w.N, rank.tp_rank, rank.tp, module.name.c_str());
    to.w = slice_rows(to.w, begin, end);
    if (!to.bias.empty())
      to.bias = std::vector<float>(to.bias.begin() + static_cast<std::ptrdiff_t>(begin),
                                   to.bias.begin() + static_cast<std::ptrdiff_t>(end));
  } else if (split == Split::kInputs) {
    const auto [begin, end] = parallel_range(to.w.K, rank.tp_rank, rank.tp, module.name.c_str());
    to.w = slice_columns(to.w, begin, end, to.slices);
  }
}

// The problem of a loaded matrix, with the kernel that will run it.
ProjectionPlan plan_of(const Problem& declared, const Module& module, const LayerOptions& options) {
  ProjectionPlan plan;
  plan.problem = declared;
  if (options.rank.tp > 1 && split_of(module) == Split::kInputs &&
      needs_shared_amax(declared.act)) {
    plan.shared_amax = declared.act;
    plan.problem = row_parallel_problem(declared);
  }
  plan.kernel = &kernel_for(plan.problem, options, module.name);
  return plan;
}

bool needs_payload(const Module& module, const Rank& rank) {
  return rank.tp > 1 || module.plan.act_order;
}

ProjectionPlan plan_module(const Checkpoint& checkpoint, const Module& module,
                           const LayerOptions& options) {
  if (!module.supported) fail("{}: {}", module.name, module.reason);
  if (!needs_payload(module, options.rank))
    return plan_of(problem_of(module, options.int8, options.x_type), module, options);
  LoadBuffer buffer;
  Loaded loaded;
  load_into(loaded, checkpoint, module, options.rank, buffer);
  return plan_of(make_problem(loaded.w, act_spec_of(module, options.int8), options.x_type), module,
                 options);
}

// Buffers of the threads that read pieces at the same time.
class BufferPool {
 public:
  std::unique_ptr<LoadBuffer> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<LoadBuffer>();
    std::unique_ptr<LoadBuffer> b = std::move(free_.back());
    free_.pop_back();
    b->reset();
    return b;
  }
  void give(std::unique_ptr<LoadBuffer> b) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(b));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<LoadBuffer>> free_;
};

RowSource row_source(const Checkpoint& checkpoint, const Module& module, uint64_t piece_bytes,
                     BufferPool& buffers) {
  RowSource source;
  source.at_once =
      std::max<uint64_t>(1, piece_bytes / (module.plan.code_bytes / module.plan.N + 1));
  source.rows = [&](size_t n0, size_t n1, FunctionRef<void(const QuantMatrix&)> use) {
    std::unique_ptr<LoadBuffer> buffer = buffers.take();
    use(reader_for(module.plan.scheme.format)
            .load(rows_of(module.plan, n0, n1), checkpoint.store(), *buffer));
    buffers.give(std::move(buffer));
  };
  return source;
}

using Projections = std::array<const Module*, 3>;

ExpertPlan plan_expert(const Checkpoint& checkpoint, const Projections& p,
                       const LayerOptions& options) {
  ExpertPlan plan;
  if (p[0] != nullptr) plan.gate = plan_module(checkpoint, *p[0], options);
  plan.up = plan_module(checkpoint, *p[1], options);
  plan.down = plan_module(checkpoint, *p[2], options);
  return plan;
}

// Adds the plan of an expert to the distinct ones and returns its index. Experts whose headers
// agree share a plan without another look at their payload.
uint32_t add_plan(std::vector<ExpertPlan>& plans, const ExpertPlan& plan) {
  for (size_t i = 0; i < plans.size(); ++i)
    if (plans[i] == plan) return static_cast<uint32_t>(i);
  plans.push_back(plan);
  return static_cast<uint32_t>(plans.size() - 1);
}

uint64_t file_bytes(const Projections& p) {
  uint64_t bytes = 0;
  for (const Module* m : p) bytes += m != nullptr ? m->bytes : 0;
  return bytes;
}

float output_scale(const Module& m) { return m.plan.has_output_scale ? m.plan.output.scale : 0.0f; }

struct ExpertLoad {
  LoadBuffer buffer;
  std::array<Loaded, 3> loaded;

  ExpertWeights load(const Checkpoint& checkpoint, const Projections& p, const Rank& rank) {
    buffer.reset();
    ExpertWeights w;
    for (size_t i = 0; i < 3; ++i)
      if (p[i] != nullptr) {
        loaded[i] = Loaded();
        load_into(loaded[i], checkpoint, *p[i], rank, buffer);
      }
    if (p[0] != nullptr)
      w.gate = &loaded[0].w, w.gate_act = p[0]->plan.input, w.gate_bias = loaded[0].bias,
      w.gate_output = output_scale(*p[0]);
    w.up = &loaded[1].w, w.up_act = p[1]->plan.input, w.up_bias = loaded[1].bias,
    w.up_output = output_scale(*p[1]);
    w.down = &loaded[2].w, w.down_act = p[2]->plan.input, w.down_bias = loaded[2].bias,
    w.down_output = output_scale(*p[2]);
    if (rank.tp > 1 && w.down_output != 0)
      fail(
          "{}: its output is quantized, which must follow the sum over tensor-parallel ranks; run "
          "it with expert parallelism instead",
          p[2]->name);
    return w;
  }
};

void check_block(const MoeBlock& block, bool with_router) {
  for (const Projections& p : block.experts)
    for (const Module* m : p)
      if (m != nullptr && !m->supported) fail("{}: {}", m->name, m->reason);
  if (with_router && !block.routing_reason.empty())
    fail("{}: {}", block.name, block.routing_reason);
  if (with_router && block.router == nullptr)
    fail("{}: the folder has no router for this block", block.name);
}

}  // namespace

ActSpec act_spec_of(const Module& module, Int8Mode mode) {
  const Scheme& scheme = module.plan.scheme;
  const bool is_static = scheme.input && scheme.input->dynamic == Dynamic::kStatic;
  if (is_static && !module.plan.has_input_scale)
    return ActSpec{};  // uncalibrated: the input is used as it is
  return act_spec_of(scheme, mode);
}

Problem problem_of(const Module& module, Int8Mode mode, XType x_type) {
  const MatrixPlan& plan = module.plan;
  static constexpr int8_t kSomeZeroPoint = 0;
  QuantMatrix facts;
  facts.N = plan.N, facts.K = plan.K, facts.code = plan.code, facts.scale_type = plan.scale_type;
  facts.bits = plan.scheme.weights           ? static_cast<uint8_t>(plan.scheme.weights->bits)
               : plan.code == CodeType::kF32 ? uint8_t{32}
                                             : uint8_t{16};
  facts.groups = plan.groups, facts.scale_stride = plan.groups, facts.block_n = plan.block_n,
  facts.block_k = plan.block_k;
  facts.zero_points = plan.zero_points ? &kSomeZeroPoint : nullptr;
  Problem problem = make_problem(facts, act_spec_of(module, mode), x_type);
  problem.act_order = plan.act_order;
  return problem;
}

Policy request_for(const Problem& problem, const Policy& policy) {
  Policy p = policy;
  if (p.kernel.empty() || problem.scale_type != ScaleType::kNone) return p;
  const bool fits = std::any_of(kernel_list().begin(), kernel_list().end(), [&](const Kernel* k) {
    return (k->name == p.kernel || title_of(*k) == p.kernel) && k->supports(problem) == nullptr;
  });
  if (!fits) p.kernel.clear();
  return p;
}

const Kernel& kernel_for(const Problem& problem, const LayerOptions& options,
                         std::string_view module) {
  try {
    return *choose_kernel(problem, options.cpu, request_for(problem, options.policy)).chosen;
  } catch (const Error& e) {
    fail("{}: {}", module, e.what());
  }
}

std::unique_ptr<LinearLayer> load_linear(const Checkpoint& checkpoint,
                                         const std::vector<const Module*>& modules,
                                         const LayerOptions& options) {
  LoadBuffer buffer;
  BufferPool buffers;
  std::vector<Loaded> loaded(modules.size());
  std::vector<LinearPart> parts;
  for (size_t i = 0; i < modules.size(); ++i) {
    const Module& m = *modules[i];
    if (!m.supported) fail("{}: {}", m.name, m.reason);
    LinearPart part;
    if (!needs_payload(m, options.rank) && can_cut_rows(m.plan) &&
        m.plan.code_bytes > options.piece_bytes) {
      part.plan = plan_of(problem_of(m, options.int8, options.x_type), m, options);
      part.rows = row_source(checkpoint, m, options.piece_bytes, buffers);
      loaded[i].bias = load_bias(m.plan, checkpoint.store());
    } else {
      load_into(loaded[i], checkpoint, m, options.rank, buffer);
      part.plan = plan_of(make_problem(loaded[i].w, act_spec_of(m, options.int8), options.x_type),
                          m, options);
      part.w = &loaded[i].w;
    }
    part.act = m.plan.input;
    part.bias = loaded[i].bias;
    part.output_scale = output_scale(m);
    part.name = m.name;
    parts.push_back(std::move(part));
  }
  auto layer = std::make_unique<LinearLayer>(std::move(parts), options.pool);
  for (const Module* m : modules)
    if (options.progress) options.progress(m->bytes);
  return layer;
}

uint64_t file_bytes(const MoeBlock& block, const Rank& rank) {
  const std::vector<int32_t> map =
      expert_map(block.experts.size(), rank.ep, rank.ep_rank, rank.placement);
  uint64_t bytes = file_bytes(block.shared) + (block.router != nullptr ? block.router->bytes : 0);
  for (size_t e = 0; e < block.experts.size(); ++e)
    if (map[e] >= 0) bytes += file_bytes(block.experts[e]);
  return bytes;
}

MoeBlockLayer load_moe(const Checkpoint& checkpoint, const MoeBlock& block,
                       const LayerOptions& options, MoePart part) {
  const bool whole_block = part == MoePart::kBlock;
  check_block(block, whole_block);
  const Rank& rank = options.rank;
  const std::vector<int32_t> map =
      expert_map(block.experts.size(), rank.ep, rank.ep_rank, rank.placement);
  std::vector<size_t> mine;  // global ids of the local experts
  for (size_t e = 0; e < map.size(); ++e)
    if (map[e] >= 0) mine.push_back(e);
  std::sort(mine.begin(), mine.end(), [&](size_t a, size_t b) { return map[a] < map[b]; });

  MoePlan plan;
  plan.spec = block.spec;
  plan.x_type = options.x_type;
  plan.name = block.name;
  plan.first_tp_rank = rank.tp_rank == 0;
  plan.first_rank = rank.tp_rank == 0 && rank.ep_rank == 0;
  if (rank.ep > 1) plan.expert_map = map;
  const bool has_shared = whole_block && block.shared[2] != nullptr && rank.ep_rank == 0;
  if (has_shared)
    plan.shared = plan_expert(checkpoint, block.shared, options);
  else
    plan.spec.shared = SharedKind::kNone;
  plan.plan_of.resize(mine.size());
  for (size_t i = 0; i < mine.size(); ++i)
    plan.plan_of[i] =
        add_plan(plan.plans, plan_expert(checkpoint, block.experts[mine[i]], options));

  MoeBlockLayer result;
  result.experts = std::make_unique<MoeLayer>(std::move(plan));
  WorkCounter next;
  options.pool->run([&](ThreadPool::Member&) {
    ExpertLoad load;
    for (size_t i = next.take(); i < mine.size(); i = next.take()) {
      const Projections& p = block.experts[mine[i]];
      result.experts->set_expert(i, load.load(checkpoint, p, rank));
      if (options.progress) options.progress(file_bytes(p));
    }
  });
  if (has_shared) {
    ExpertLoad load;
    result.experts->set_shared(load.load(checkpoint, block.shared, rank), options.pool);
    if (block.shared_gate != nullptr) {
      LayerOptions whole = options;
      whole.rank = {};
      result.experts->set_shared_gate(load_linear(checkpoint, {block.shared_gate}, whole));
    }
    if (options.progress) options.progress(file_bytes(block.shared));
  }
  result.experts->set_router({block.correction_bias, block.per_expert_scale, {}});
  result.experts->finish();
  if (whole_block) {
    LayerOptions whole = options;
    whole.rank = {};
    result.router = load_linear(checkpoint, {block.router}, whole);
  }
  return result;
}

}  // namespace moebius
