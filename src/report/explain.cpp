// SPDX-License-Identifier: Apache-2.0
#include "report/explain.h"

#include <algorithm>

#include "base/error.h"
#include "model/plan/model_plan.h"
#include "report/modules.h"

namespace moebius {
namespace {

Json explained_json(const Explained& e) {
  const Module& m = *e.group.sample;
  if (!e.choice)
    return Json::object({{"name", e.group.name},
                         {"scheme", describe(m.plan.scheme)},
                         {"chosen", Json()},
                         {"reason", m.reason}});
  Json j = Json::object();
  j.set("name", e.group.name);
  j.set("scheme", describe(m.plan.scheme));
  Json shape = Json::array();
  shape.push(m.plan.N), shape.push(m.plan.K);
  j.set("shape", std::move(shape));
  j.set("count", e.group.count);
  j.set("chosen", title_of(*e.choice->chosen));
  j.set("numerics", name_of(e.numerics));
  if (!e.request.empty()) j.set("activations", e.request);
  j.set("packed_bytes", e.packed);
  j.set("file_bytes", m.plan.code_bytes + m.plan.scale_bytes);
  j.set("expected_percent_gbs", e.share ? Json(e.share->percent) : Json());
  j.set("expected_from", e.share ? Json(e.share->from) : Json());
  Json candidates = Json::array();
  for (const Candidate& c : e.choice->candidates)
    candidates.push(Json::object(
        {{"kernel", title_of(*c.kernel)}, {"verdict", name_of(c.verdict)}, {"reason", c.reason}}));
  j.set("candidates", std::move(candidates));
  return j;
}

Json machine_json(const MachineThreads& m) {
  const Topology& t = m.topology;
  Json j = Json::object();
  j.set("threads", static_cast<uint64_t>(m.choice.threads)), j.set("why", m.choice.why);
  j.set("cores", static_cast<uint64_t>(t.cores())),
      j.set("nodes", static_cast<uint64_t>(t.nodes()));
  j.set("cpus", usable_cpus(t)), j.set("quota", t.quota > 0 ? Json(t.quota) : Json());
  return j;
}

// Returns why an expert's matrices always use plain kernels; null: they need not.
const char* plain_reason(const Checkpoint& checkpoint, const Module& m) {
  if (m.kind != ModuleKind::kExpert) return nullptr;
  if (m.shared_expert) return "a shared expert";
  for (const MoeBlock& b : checkpoint.moe_blocks())
    if (b.layer == m.layer) return plain_experts_reason(b.spec);
  return nullptr;
}

// Chooses the kernel of one module, on the CPU or on the device of the question.
void choose(const Checkpoint& checkpoint, const ExplainQuestion& q, const Cpu& cpu, Explained& e) {
  const Module& m = *e.group.sample;
  const Problem problem = problem_of(m, q.act, q.x_type);
  e.request = request_answer(m, q.act);
  if (q.cuda) {
    e.choice = choose_cuda(problem, *q.cuda, q.policy, plain_reason(checkpoint, m));
    e.packed = e.choice->chosen->packed_bytes(problem);
    e.numerics = departs(m.plan.scheme, problem.act) ? Numerics::kApproximate : e.choice->numerics;
    return;
  }
  e.choice = choose_kernel(problem, cpu, request_for(problem, q.policy));
  e.numerics = numerics_of(m, problem, *e.choice->chosen);
  e.share = expected_share(*e.choice->chosen, problem);
  e.packed = e.choice->chosen->packed_bytes(problem);
}

// Returns what a device leaves to the CPU; empty if the architecture cannot run at all.
std::vector<std::string> left_to_cpu(const Checkpoint& checkpoint, const ExplainQuestion& q) {
  Wish wish;
  wish.placement = parse_placement("cuda");
  wish.type = q.x_type;
  wish.policy.accept = q.policy.accept;
  try {
    return plan_model(checkpoint, wish, {}).words;
  } catch (const Error&) {
    return {};
  }
}

void explain_modules(const Checkpoint& checkpoint, const ExplainQuestion& q, Explanation& out) {
  std::vector<ModuleGroup> groups = group_modules(checkpoint);
  // A table that is also the output projection is listed last, with the outputs.
  std::stable_partition(groups.begin(), groups.end(), [](const ModuleGroup& g) {
    return g.sample->kind != ModuleKind::kEmbedding;
  });
  for (ModuleGroup& group : groups) {
    const Module& m = *group.sample;
    if (!has_product(checkpoint, m)) continue;
    Explained e;
    e.group = std::move(group);
    if (m.supported) choose(checkpoint, q, out.cpu, e);
    out.modules.push_back(std::move(e));
  }
}

}  // namespace

Explanation explain(const Checkpoint& checkpoint, const ExplainQuestion& q) {
  check_request(q.policy, q.act);
  Explanation out;
  out.cpu = q.cpu ? *q.cpu : host_cpu();
  out.cuda = q.cuda;
  if (q.cuda) out.on_cpu = left_to_cpu(checkpoint, q);
  if (!q.cpu && !q.cuda) out.machine.emplace(q.threads);
  explain_modules(checkpoint, q, out);
  if (q.predictor && checkpoint.has_predictor()) {
    out.predictor = std::make_shared<const Checkpoint>(checkpoint.open_predictor());
    explain_modules(*out.predictor, q, out);
  }
  return out;
}

Json to_json(const Explanation& e) {
  Json j = e.cuda ? Json::object({{"device", describe(*e.cuda)}})
                  : Json::object({{"cpu", describe(e.cpu)}});
  if (e.machine) j.set("machine", machine_json(*e.machine));
  if (e.cuda) {
    Json words = Json::array();
    for (const std::string& w : e.on_cpu) words.push(w);
    j.set("on_cpu", std::move(words));
  }
  Json modules = Json::array();
  for (const Explained& m : e.modules) modules.push(explained_json(m));
  j.set("modules", std::move(modules));
  return j;
}

}  // namespace moebius
