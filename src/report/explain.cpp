// SPDX-License-Identifier: Apache-2.0
#include "report/explain.h"

#include <algorithm>

#include "base/error.h"
#include "device/module_problem.h"
#include "model/plan/model_plan.h"
#include "report/modules.h"

namespace moebius {
namespace {

Json explained_json(const Explained& e) {
  const Module& m = *e.group.sample;
  if (e.use == nullptr)
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
  j.set("chosen", title_of(*e.use->choice->chosen));
  j.set("numerics", name_of(e.use->numerics));
  if (!e.request.empty()) j.set("activations", e.request);
  j.set("packed_bytes", e.packed);
  if (e.shortlist > 0) j.set("int8_copy_bytes", e.shortlist);
  j.set("file_bytes", m.plan.code_bytes + m.plan.scale_bytes);
  j.set("expected_percent_gbs", e.share ? Json(e.share->percent) : Json());
  j.set("expected_from", e.share ? Json(e.share->from) : Json());
  Json candidates = Json::array();
  for (const Candidate& c : e.use->choice->candidates)
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

// Returns what a device leaves to the CPU; empty if the architecture cannot run at all.
std::vector<std::string> left_to_cpu(const Checkpoint& checkpoint, Wish wish) {
  wish.placement = parse_placement("cuda");
  try {
    return plan_model(checkpoint, wish, {}).words;
  } catch (const Error&) {
    return {};
  }
}

void explain_modules(const Checkpoint& checkpoint, const ExplainQuestion& q, Explanation& out) {
  const auto device = make_device(q.gpu ? "cuda" : "cpu", nullptr, out.cpu,
                                  planning_options(q.wish, q.gpu ? &*q.gpu : nullptr));
  ModulePlanner planner(checkpoint, *device, q.wish.act, q.wish.type);
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
    if (m.supported) {
      e.request = request_answer(m, q.wish.act);
      e.use = planner.use(m);
      const Problem problem = problem_of(m, q.wish.act, q.wish.type);
      e.packed = e.use->choice->chosen->packed_bytes(problem);
      if (!q.gpu && q.wish.shortlist.value_or(e.use->shortlist >= kLeastShortlist))
        e.shortlist = e.use->shortlist;
      if (!q.gpu) e.share = expected_share(*e.use->choice->chosen, problem);
    }
    out.modules.push_back(std::move(e));
  }
}

}  // namespace

Explanation explain(const Checkpoint& checkpoint, const ExplainQuestion& q) {
  check_request(q.wish.policy, q.wish.act);
  Explanation out;
  out.cpu = q.cpu ? *q.cpu : host_cpu();
  out.gpu = q.gpu;
  if (q.gpu) out.on_cpu = left_to_cpu(checkpoint, q.wish);
  if (!q.cpu && !q.gpu) out.machine.emplace(q.threads);
  explain_modules(checkpoint, q, out);
  if (q.predictor && checkpoint.has_predictor()) {
    out.predictor = std::make_shared<const Checkpoint>(checkpoint.open_predictor());
    explain_modules(*out.predictor, q, out);
  }
  return out;
}

Json to_json(const Explanation& e) {
  Json j = e.gpu ? Json::object({{"device", describe(*e.gpu)}})
                 : Json::object({{"cpu", describe(e.cpu)}});
  if (e.machine) j.set("machine", machine_json(*e.machine));
  if (e.gpu) {
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
