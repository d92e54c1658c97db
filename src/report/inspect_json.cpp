// SPDX-License-Identifier: Apache-2.0
// Prints inspect --json: one object. docs/json.md documents the keys, which are added to and never
// changed.
#include "report/inspect.h"

namespace moebius {
namespace {

Json table(const ByteTable& rows) {
  Json out = Json::object();
  for (const auto& [name, bytes] : rows) out.set(name, bytes);
  return out;
}

Json strings(const std::vector<std::string>& values) {
  Json out = Json::array();
  for (const std::string& v : values) out.push(v);
  return out;
}

Json args_json(const std::optional<QuantArgs>& args) {
  return args ? Json(describe(*args)) : Json();
}

Json module_json(const ModuleGroup& g) {
  const Module& m = *g.sample;
  Json shape = Json::array();
  shape.push(m.plan.N);
  if (has_matrix(m)) shape.push(m.plan.K);
  Json j = Json::object();
  j.set("name", g.name);
  j.set("kind", name_of(m.kind));
  j.set("scheme", scheme_name(m));
  j.set("format", name_of(m.decision.scheme.format));
  j.set("rule", g.rule);
  j.set("shape", std::move(shape));
  j.set("bytes", g.bytes);
  j.set("count", g.count);
  j.set("supported", m.supported);
  j.set("reason", m.reason);
  j.set("part", part_name(m));
  j.set("layers", ranges(g.layers));
  j.set("shared_expert", m.shared_expert);
  j.set("weights", args_json(m.decision.scheme.weights));
  j.set("input_activations", args_json(m.decision.scheme.input));
  j.set("output_activations", args_json(m.decision.scheme.output));
  j.set("act_order", m.plan.act_order);
  j.set("zero_points", m.plan.zero_points);
  j.set("bias", static_cast<bool>(m.plan.tensors[Role::kBias]));
  return j;
}

Json tensor_json(const TensorUse& use, const TensorStore& store) {
  Json shape = Json::array();
  for (const uint64_t d : use.tensor->shape) shape.push(d);
  Json j = Json::object();
  j.set("name", use.tensor->name);
  j.set("dtype", name_of(use.tensor->dtype));
  j.set("shape", std::move(shape));
  j.set("bytes", use.tensor->bytes);
  const std::string& path = store.file_of(*use.tensor).path();
  j.set("file", path.substr(path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1));
  j.set("module", use.module.empty() ? Json() : Json(use.module));
  j.set("role", use.role.empty() ? Json() : Json(use.role));
  if (use.module.empty()) j.set("unused", use.reason);
  return j;
}

Json rank_json(const RankSize& r) {
  Json j = Json::object();
  j.set("tp_rank", r.tp_rank);
  j.set("ep_rank", r.ep_rank);
  j.set("experts", r.experts);
  j.set("params", r.params);
  j.set("bytes", r.bytes);
  j.set("kv_per_1k_tokens", r.kv_per_1k_tokens);
  return j;
}

Json part_json(const RankPart& p) {
  Json j = Json::object({{"rank", static_cast<uint64_t>(p.rank)},
                         {"stage", static_cast<uint64_t>(p.stage)},
                         {"member", static_cast<uint64_t>(p.member)}});
  j.set("first_layer", static_cast<uint64_t>(p.layers.begin));
  j.set("layers", static_cast<uint64_t>(p.layers.size()));
  j.set("bytes", p.bytes);
  return j;
}

void add_model(Json& j, const InspectFacts& f) {
  const ModelConfig& c = f.checkpoint.config();
  const bool moe = !f.checkpoint.moe_blocks().empty();
  const MoeSpec spec = moe ? f.checkpoint.moe_blocks().front().spec : MoeSpec{};
  j.set("architecture", c.architecture);
  j.set("model_type", c.model_type);
  j.set("layers", c.layers);
  // These are config.json's numbers: a block may count shared experts among its own.
  j.set("experts", moe && c.experts == 0 ? static_cast<int64_t>(spec.experts) : c.experts);
  j.set("top_k", moe && c.top_k == 0 ? static_cast<int64_t>(spec.router.top_k) : c.top_k);
  j.set("hidden", c.hidden);
  j.set("intermediate", moe ? static_cast<int64_t>(spec.intermediate) : c.intermediate);
  j.set("vocab", c.vocab);
}

void add_run(Json& j, const RunFacts& r) {
  j.set("runs", r.works);
  j.set("runs_reason", r.reason);
  j.set("context", r.context);
  j.set("tokenizer", r.tokenizer.empty() ? Json() : Json(r.tokenizer));
  j.set("chat_template", r.chat_template.empty() ? Json() : Json(r.chat_template));
  j.set("run_notes", strings(r.notes));
  j.set("packed_bytes", r.packed_bytes);
  j.set("kv_bytes_per_token", r.kv_bytes_per_token);
  Json needs = Json::array();
  for (const RunFacts::Need& n : r.memory)
    needs.push(Json::object({{"context", n.context}, {"bytes", n.bytes}}));
  j.set("run_memory", std::move(needs));
}

}  // namespace

Json inspect_json(const InspectFacts& f) {
  const ModelConfig& c = f.checkpoint.config();
  const Summary& s = f.summary;
  Json j = Json::object();
  add_model(j, f);
  j.set("params_total", s.params_total);
  j.set("params_active", s.params_active);
  j.set("bytes_total", s.bytes_total);
  j.set("bits_per_weight", s.bits_per_weight);
  Json modules = Json::array();
  for (const ModuleGroup& g : f.modules) modules.push(module_json(g));
  j.set("modules", std::move(modules));
  Json unused = Json::array();
  uint64_t heads = 0, head_bytes = 0;
  for (const UnusedTensor& u : f.checkpoint.unused()) {
    unused.push(Json::object({{"name", u.name}, {"reason", u.reason}, {"bytes", u.bytes}}));
    if (u.prediction) {
      ++heads;
      head_bytes += u.bytes;
    }
  }
  j.set("unused", std::move(unused));
  Json prediction = Json::object({{"tensors", heads}, {"bytes", head_bytes}});
  prediction.set("runs", f.predictor.checkpoint != nullptr);
  prediction.set("runs_reason", f.predictor.reason);
  prediction.set("packed_bytes", f.predictor.packed_bytes);
  prediction.set("kv_bytes_per_token", f.predictor.kv_bytes_per_token);
  Json predictor = Json::array();
  for (const ModuleGroup& g : f.predictor.modules) predictor.push(module_json(g));
  prediction.set("modules", std::move(predictor));
  j.set("prediction_heads", std::move(prediction));
  j.set("warnings", strings(f.checkpoint.warnings()));
  j.set("memory",
        Json::object({{"weights", s.bytes_used}, {"kv_per_1k_tokens", s.kv_per_1k_tokens}}));
  add_run(j, f.run);
  if (f.question.gpu)
    j.set("device", describe(*f.question.gpu)), j.set("device_bytes", f.device_bytes);
  j.set("family", c.family);
  j.set("dtype", c.dtype);
  j.set("moe_layers", [&] {
    std::vector<int> layers;
    for (const MoeBlock& b : f.checkpoint.moe_blocks()) layers.push_back(b.layer);
    return ranges(layers);
  }());
  j.set("dense_intermediate", c.intermediate);
  j.set("shared_experts", c.shared_experts);
  j.set("shared_intermediate", c.shared_intermediate);
  j.set("routing", f.routing);
  j.set("tied_lm_head", c.tie_embeddings);
  j.set("quant_method", f.checkpoint.quant().method());
  if (!f.gguf.is_null()) j.set("gguf", f.gguf);
  j.set("tensors_total", static_cast<uint64_t>(f.checkpoint.store().tensors().size()));
  j.set("files", static_cast<uint64_t>(f.checkpoint.store().files().size()));
  j.set("bytes_by_scheme", table(s.by_scheme));
  j.set("bytes_by_part", table(s.by_part));
  j.set("bytes_by_role", table(s.by_role));
  if (f.question.tensors) {
    Json tensors = Json::array();
    for (const TensorUse& use : f.tensors) tensors.push(tensor_json(use, f.checkpoint.store()));
    j.set("tensors", std::move(tensors));
  }
  if (!f.ranks.empty()) {
    Json ranks = Json::array();
    for (const RankSize& r : f.ranks) ranks.push(rank_json(r));
    j.set("ranks", std::move(ranks));
  }
  if (!f.parts.empty()) {
    Json parts = Json::array();
    for (const RankPart& p : f.parts) parts.push(part_json(p));
    j.set("parts", std::move(parts));
  }
  if (f.question.deep) j.set("problems", strings(f.problems));
  return j;
}

}  // namespace moebius
