// SPDX-License-Identifier: Apache-2.0
// Implements apply. MODULE is a linear layer, a MoE block (with router and shared experts) or a
// block's experts (the caller gives logits or ids).
#include "apps/apply.h"

#include <memory>
#include <optional>
#include <vector>

#include "apps/chat/terminal.h"
#include "apps/cli/folder.h"
#include "apps/commands.h"
#include "base/error.h"
#include "base/file.h"
#include "device/cpu/layer_loader.h"
#include "device/cuda/cuda_layers.h"
#include "runtime/runtime.h"

namespace moebius {
namespace {

// Holds an input tensor with its bytes.
struct Input {
  const TensorInfo* info = nullptr;
  std::vector<uint8_t> bytes;
  explicit operator bool() const { return info != nullptr; }
};

Input input_of(const TensorStore& store, const char* name) {
  Input in;
  in.info = store.find(name);
  if (in.info == nullptr) return in;
  in.bytes.resize(in.info->bytes);
  store.read(*in.info, 0, in.bytes);
  return in;
}

ConstRows rows_of(const TensorStore& store, const Input& in, const char* expected) {
  if (in.info->shape.size() != 2 || !is_activation_type(in.info->dtype))
    fail("{} is {}; expected {} of F32, BF16 or F16", store.where(*in.info), describe(*in.info),
         expected);
  return {in.bytes.data(), in.info->dtype, in.info->shape[0], in.info->shape[1], in.info->shape[1]};
}

std::vector<int32_t> ids_of(const TensorStore& store, const Input& in, size_t T) {
  const TensorInfo& info = *in.info;
  const bool wide = info.dtype == DType::kI64;
  if ((!wide && info.dtype != DType::kI32) || info.shape.size() != 2 || info.shape[0] != T)
    fail("{} is {}; expected I32 or I64 [{}, top-k], one row per row of x", store.where(info),
         describe(info), T);
  const size_t n = info.shape[0] * info.shape[1];
  if (wide)
    return narrow_ids({reinterpret_cast<const int64_t*>(in.bytes.data()), n}, info.shape[1]);
  const auto* p = reinterpret_cast<const int32_t*>(in.bytes.data());
  return {p, p + n};
}

DType out_type(const ApplyOptions& options, DType x) {
  if (options.out_dtype.empty()) return x;
  return options.out_dtype == "f32"    ? DType::kF32
         : options.out_dtype == "bf16" ? DType::kBf16
                                       : DType::kF16;
}

struct Outputs {
  std::vector<uint8_t> y;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  size_t slots = 0, N = 0;
};

Rows make_y(Outputs& out, DType type, size_t T, size_t N) {
  out.N = N;
  out.y.resize(T * N * bits_of(type) / 8);
  return {out.y.data(), type, T, N, N};
}

void apply_block(const MoeBlockLayer& layer, const ConstRows& x, const ConstRows* given,
                 Outputs& out, DType type, ThreadPool& pool) {
  const size_t T = x.rows;
  std::vector<float> logits;
  ConstRows rows;
  if (given != nullptr) {
    rows = *given;
  } else {
    logits.resize(T * layer.router->out_features());
    const Rows to = f32_rows(logits.data(), T, layer.router->out_features());
    layer.router->forward(x, to, pool);
    rows = to;
  }
  out.slots = layer.experts->slots();
  out.ids.resize(T * out.slots);
  out.weights.resize(T * out.slots);
  MoeOptions options;
  options.ids_out = out.ids.data();
  options.weights_out = out.weights.data();
  layer.experts->forward_logits(x, rows, make_y(out, type, T, layer.experts->spec().hidden), pool,
                                options);
}

// Holds what a file gives to the experts of a block: logits, or ids and weights.
struct RoutingInput {
  Input logits, ids;
  ConstRows logit_rows;
  std::vector<int32_t> expert_ids;
  std::vector<float> weights;
  size_t slots = 0;
};

RoutingInput routing_input(const TensorStore& store, size_t T) {
  RoutingInput in;
  in.logits = input_of(store, "router_logits");
  in.ids = input_of(store, "topk_ids");
  const Input weights = input_of(store, "topk_weights");
  if (in.logits && (in.ids || weights))
    fail("{}: holds router_logits and topk_ids or topk_weights; expected one or the other",
         store.files()[0].path());
  if (in.logits) {
    in.logit_rows = rows_of(store, in.logits, "router_logits [T, experts]");
    if (in.logit_rows.rows != T)
      fail("{} is {}; expected {} rows, as x has", store.where(*in.logits.info),
           describe(*in.logits.info), T);
    return in;
  }
  if (!in.ids || !weights)
    fail("{}: the experts of a block need router_logits, or topk_ids and topk_weights, besides x",
         store.files()[0].path());
  in.expert_ids = ids_of(store, in.ids, T);
  in.slots = in.ids.info->shape[1];
  if (weights.info->dtype != DType::kF32 || weights.info->shape != in.ids.info->shape)
    fail("{} is {}; expected F32 with the shape of topk_ids, {}", store.where(*weights.info),
         describe(*weights.info), describe(*in.ids.info));
  const auto* w = reinterpret_cast<const float*>(weights.bytes.data());
  in.weights.assign(w, w + in.expert_ids.size());
  return in;
}

void apply_experts(const MoeBlockLayer& layer, const TensorStore& store, const ConstRows& x,
                   Outputs& out, DType type, ThreadPool& pool) {
  RoutingInput in = routing_input(store, x.rows);
  if (in.logits) return apply_block(layer, x, &in.logit_rows, out, type, pool);
  out.ids = std::move(in.expert_ids);
  out.weights = std::move(in.weights);
  out.slots = in.slots;
  layer.experts->forward_ids(x, out.ids, out.weights,
                             make_y(out, type, x.rows, layer.experts->spec().hidden), pool);
}

const Module& linear_named(const Checkpoint& checkpoint, const ApplyOptions& options) {
  const Module* module = checkpoint.find_module(options.module);
  if (module == nullptr || module->plan.N == 0)
    fail("{}: has no linear, MoE block or experts named '{}'; `moebius inspect` lists the modules",
         options.folder, printable(options.module));
  return *module;
}

void write_outputs(const std::string& path, const Outputs& out, DType type, size_t T) {
  const auto bytes = [](const auto& v) {
    return std::span(reinterpret_cast<const uint8_t*>(v.data()), v.size() * sizeof(v[0]));
  };
  std::vector<TensorData> tensors = {{"y", type, {T, out.N}, bytes(out.y)}};
  if (out.slots != 0) {
    tensors.push_back({"topk_ids", DType::kI32, {T, out.slots}, bytes(out.ids)});
    tensors.push_back({"topk_weights", DType::kF32, {T, out.slots}, bytes(out.weights)});
  }
  write_safetensors(path, tensors);
}

// Applies the module on a CUDA device.
void apply_on_cuda(const Checkpoint& checkpoint, const ApplyOptions& options,
                   const TensorStore& inputs, const ConstRows& x, DType type, Outputs& out) {
  CudaLoad load;
  load.module = &gpu_of_tool();
  load.policy = gpu_policy_of(options.run);
  load.act = act_request_of(options.run);
  load.x_type = x_type_of(x.dtype);
  const MoeBlock* block = checkpoint.find_moe(options.module);
  if (block == nullptr) {
    const CudaLinear layer = load_cuda_linear(checkpoint, linear_named(checkpoint, options), load);
    layer.forward(x, make_y(out, type, x.rows, layer.out_features()));
    return;
  }
  const bool experts_alone = block->name != options.module;
  check_rows(x, x.rows, block->spec.hidden, "x");
  const CudaExperts experts = load_cuda_experts(
      checkpoint, *block, load, experts_alone ? MoePart::kExperts : MoePart::kBlock);
  const Rows y = make_y(out, type, x.rows, block->spec.hidden);
  const RoutingInput given = experts_alone ? routing_input(inputs, x.rows) : RoutingInput();
  if (given.ids) {
    out.slots = given.slots;
    out.ids = given.expert_ids;
    out.weights = given.weights;
    return experts.forward_ids(x, out.ids, out.weights, y);
  }
  CudaExperts::Routed routed =
      experts_alone ? experts.forward_logits(x, given.logit_rows, y) : experts.forward(x, y);
  out.slots = experts.slots();
  out.ids = std::move(routed.ids);
  out.weights = std::move(routed.weights);
}

}  // namespace

int run_apply(const ApplyOptions& options) {
  (void)output_target(options.out);
  const Checkpoint checkpoint = open_checkpoint(options.folder);
  const TensorStore inputs = TensorStore::open_file(options.in);
  const Input x_input = input_of(inputs, "x");
  if (!x_input) fail("{}: has no tensor 'x'", options.in);
  const ConstRows x = rows_of(inputs, x_input, "x [T, features]");
  Outputs out;
  if (on_gpu(options.run.device)) {
    const DType y_type = out_type(options, x.dtype);
    apply_on_cuda(checkpoint, options, inputs, x, y_type, out);
    write_outputs(options.out, out, y_type, x.rows);
    return 0;
  }
  const std::shared_ptr<Runtime> runtime = Runtime::shared(thread_count(options.run));
  ThreadPool& pool = runtime->pool();
  LayerOptions layer_options;
  layer_options.pool = &pool;
  layer_options.policy = policy_of(options.run);
  layer_options.act = act_request_of(options.run);
  note_request(checkpoint, layer_options.act);
  layer_options.x_type = x_type_of(x.dtype);
  const DType type = out_type(options, x.dtype);
  if (const MoeBlock* block = checkpoint.find_moe(options.module)) {
    const bool experts = block->name != options.module;
    Progress progress("loading", file_bytes(*block), /*bytes=*/true);
    layer_options.progress = [&](uint64_t bytes) { progress.advance(bytes); };
    const MoeBlockLayer layer =
        load_moe(checkpoint, *block, layer_options, experts ? MoePart::kExperts : MoePart::kBlock);
    check_rows(x, x.rows, block->spec.hidden, "x");
    if (experts)
      apply_experts(layer, inputs, x, out, type, pool);
    else
      apply_block(layer, x, nullptr, out, type, pool);
  } else {
    const auto layer = load_linear(checkpoint, {&linear_named(checkpoint, options)}, layer_options);
    layer->forward(x, make_y(out, type, x.rows, layer->out_features()), pool);
  }
  write_outputs(options.out, out, type, x.rows);
  return 0;
}

Command apply_command() {
  auto o = std::make_shared<ApplyOptions>();
  Command c("apply", "runs one module on given inputs");
  c.argument("DIR", o->folder, "checkpoint folder", {.kind = ValueKind::kFolder, .required = true});
  c.argument("MODULE", o->module, "a linear, a MoE block (...mlp) or its experts (...mlp.experts)",
             {.required = true});
  c.option("--in", "FILE", &o->in,
           "safetensors: x [T,H]; for experts also router_logits, or topk_ids and topk_weights",
           {.kind = ValueKind::kFile, .required = true});
  c.option("--out", "FILE", &o->out, "safetensors: y; for MoE also topk_ids, topk_weights",
           {.kind = ValueKind::kFile, .required = true});
  c.option("--out-dtype", "TYPE", &o->out_dtype, "type of y",
           {.choices = {"f32", "bf16", "f16"}, .default_text = "that of x"});
  add_run_options(c, o->run);
  c.examples = {"moebius apply DIR model.layers.0.self_attn.q_proj --in x --out y",
                "moebius apply DIR model.layers.0.mlp --in x --out y --out-dtype f32"};
  c.action = [o](const Command&) { return run_apply(*o); };
  return c;
}

}  // namespace moebius
