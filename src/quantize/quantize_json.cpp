// SPDX-License-Identifier: Apache-2.0
// Parses options given as JSON, and prints results (quantize_json.h).
#include "quantize/quantize_json.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/json_shown.h"
#include "checkpoint/module_scheme.h"
#include "quantize/schemes.h"
#include "runtime/memory.h"

namespace moebius {
namespace {

// Reads an object's members, each by a function of its value; null counts as absent.
class JsonOptions {
 public:
  using Take = std::function<void(const Json&)>;
  explicit JsonOptions(std::string_view what) : what_(what) {}
  void add(std::string name, Take take) { takers_.emplace(std::move(name), std::move(take)); }

  void text(const std::string& name, std::string& to) {
    add(name, [this, name, &to](const Json& v) {
      if (!v.is_string()) bad(name, v, "a text");
      to = v.as_string();
    });
  }
  void flag(const std::string& name, bool& to) {
    add(name, [this, name, &to](const Json& v) {
      if (v.kind() != Json::Kind::kBool) bad(name, v, "true or false");
      to = v.as_bool();
    });
  }
  template <class T>
  void count(const std::string& name, T& to) {
    add(name, [this, name, &to](const Json& v) {
      const std::optional<int64_t> n = v.is_integer() ? v.as_int() : std::nullopt;
      if (!n || *n < 0) bad(name, v, "a whole number");
      to = static_cast<T>(*n);
    });
  }
  template <class T>
  void real(const std::string& name, T& to) {
    add(name, [this, name, &to](const Json& v) {
      if (!v.is_number()) bad(name, v, "a number");
      to = static_cast<T>(v.as_double());
    });
  }
  void texts(const std::string& name, std::vector<std::string>& to) {
    add(name, [this, name, &to](const Json& v) {
      if (!v.is_array()) bad(name, v, "a list of texts");
      for (const Json& item : v.items()) {
        if (!item.is_string()) bad(name, item, "texts");
        to.push_back(item.as_string());
      }
    });
  }
  void choice(const std::string& name, std::vector<std::string> values,
              std::function<void(size_t)> take) {
    add(name, [this, name, values = std::move(values), take = std::move(take)](const Json& v) {
      for (size_t i = 0; i < values.size(); ++i)
        if (v.is_string() && v.as_string() == values[i]) return take(i);
      std::string all;
      for (const std::string& value : values) all += (all.empty() ? "" : ", ") + value;
      bad(name, v, all);
    });
  }

  void read(std::string_view json) const {
    const Json object = parse_json_strictly(json, what_);
    if (!object.is_object())
      fail("{}: {} at the top; expected an object", what_, kind_name(object.kind()));
    for (const auto& [key, value] : object.members()) {
      const auto it = takers_.find(key);
      if (it == takers_.end())
        fail_at({"argument", "", "", "", key}, "{}: there is no option '{}'", what_,
                printable(key, 60));
      if (!value.is_null()) it->second(value);
    }
  }

 private:
  [[noreturn]] void bad(const std::string& name, const Json& found,
                        const std::string& expected) const {
    fail_at({"argument", "", "", "", name}, "{}: {} is {}; expected {}", what_, name, shown(found),
            expected);
  }
  std::string what_;
  std::map<std::string, Take, std::less<>> takers_;
};

}  // namespace

QuantizeRequest quantize_request(std::string_view json) {
  QuantizeRequest r;
  QuantizeOptions& o = r.options;
  JsonOptions all("quantize");
  bool method = false;
  all.text("source", o.source), all.text("target", o.target), all.text("scheme", o.scheme);
  all.add("group", [&](const Json& v) {
    const std::optional<int64_t> n = v.is_integer() ? v.as_int() : std::nullopt;
    if (!n) fail_at({"argument", "", "", "", "group"}, "quantize: group is {}", shown(v));
    o.group = *n;
  });
  all.add("symmetric", [&](const Json& v) {
    if (v.kind() != Json::Kind::kBool)
      fail_at({"argument", "", "", "", "symmetric"}, "quantize: symmetric is {}", shown(v));
    o.symmetric = v.as_bool();
  });
  all.text("format", o.format);
  all.texts("targets", o.targets), all.texts("ignore", o.ignore);
  all.flag("ignore_only", o.ignore_only);
  all.text("config_groups", o.groups_file);
  all.choice("for", {readers().begin(), readers().end()},
             [&](size_t i) { o.reader = readers()[i]; });
  all.choice("dtype", {"bf16", "f16", "f32"}, [&](size_t i) {
    o.dtype = i == 0 ? XType::kBf16 : i == 1 ? XType::kF16 : XType::kF32;
  });
  all.choice("match", {"llmcompressor", "f32"},
             [&](size_t i) { o.match = i == 0 ? RtnMatch::kLlmcompressor : RtnMatch::kF32; });
  all.choice("method", {"rtn", "search", "gptq"}, [&](size_t i) {
    method = true;
    o.method = static_cast<QuantizeMethod>(i);
  });
  CalibrationOptions& c = o.calibration;
  all.texts("calib", c.files);
  all.count("calib_tokens", c.tokens), all.count("calib_ctx", c.context);
  all.count("seed", c.seed);
  all.choice("calib_experts", {"routed", "all"}, [&](size_t i) { c.all_experts = i == 1; });
  all.real("damp", o.damp), all.real("min_rows", o.min_rows);
  all.choice("order", {"static", "none"}, [&](size_t i) { o.by_size = i == 0; });
  all.count("shard_size", o.shard_bytes), all.count("memory", o.memory);
  all.text("scratch", o.scratch);
  all.flag("resume", o.resume), all.flag("overwrite", o.overwrite), all.flag("dry_run", r.dry_run);
  all.count("threads", r.threads);
  all.read(json);
  if (o.scheme.empty() == o.groups_file.empty())
    fail_at({"argument", "", "", "", "scheme"},
            "quantize: expected a scheme or config_groups, and not both");
  if (!method) o.method = usual_method(o);
  return r;
}

EvalRequest eval_request(std::string_view json) {
  EvalRequest r;
  JsonOptions all("evaluate");
  all.text("folder", r.folder), all.text("base", r.base);
  all.text("text", r.text), all.text("file", r.file), all.text("chat", r.chat);
  all.add("tokens", [&](const Json& v) {
    if (!v.is_array())
      fail_at({"argument", "", "", "", "tokens"}, "evaluate: tokens is {}; expected a list",
              shown(v));
    for (const Json& t : v.items()) {
      const std::optional<int64_t> id = t.is_integer() ? t.as_int() : std::nullopt;
      if (!id || *id < 0 || *id > INT32_MAX)
        fail_at({"argument", "", "", "", "tokens"}, "evaluate: {} is no token id", shown(t));
      r.tokens.push_back(static_cast<int32_t>(*id));
    }
  });
  all.count("ctx", r.context), all.count("windows", r.windows), all.count("top", r.top);
  all.count("threads", r.threads);
  all.text("dtype", r.dtype);
  all.flag("layers", r.layers);
  all.read(json);
  if (r.context == 0 || r.top == 0 || r.top > 256)
    fail_at({"argument", "", "", "", r.context == 0 ? "ctx" : "top"},
            "evaluate: ctx is {} and top {}; expected at least 1, and top at most 256", r.context,
            r.top);
  const int given = (r.text.empty() ? 0 : 1) + (r.file.empty() ? 0 : 1) + (r.chat.empty() ? 0 : 1) +
                    (r.tokens.empty() ? 0 : 1);
  if (given != 1)
    fail_at({"argument", "", "", "", "tokens"},
            "evaluate: {} of text, tokens, file and chat are given; expected one of them", given);
  return r;
}

Json quantize_answer(const QuantizeJob& job, double seconds, bool done) {
  const QuantizeForecast& f = job.forecast();
  Json schemes = Json::array(), left = Json::array(), files = Json::array(), made = Json::array();
  for (const auto& [what, n] : modules_by_rule(job.selection()))
    schemes.push(Json::object({{"rule", what}, {"count", n}}));
  for (const LeftModule& m : job.selection().left)
    left.push(Json::object({{"name", m.name}, {"reason", m.reason}}));
  for (const ModuleReport& r : job.reports())
    made.push(Json::object({{"name", r.name},
                            {"method", name_of(r.method)},
                            {"rows", r.rows},
                            {"loss", r.loss},
                            {"reason", r.reason}}));
  for (const OutputPlan::Shard& s : job.plan().shards)
    files.push(Json::object({{"name", s.name}, {"bytes", s.bytes}}));
  return Json::object({{"source", job.options().source},
                       {"target", job.options().target},
                       {"done", done},
                       {"method", name_of(job.options().method)},
                       {"made", made},
                       {"modules", schemes},
                       {"left", left},
                       {"files", files},
                       {"bytes_in", f.bytes_in},
                       {"bytes_out", f.bytes_out},
                       {"bits_per_weight", f.bits_per_weight},
                       {"memory", f.memory},
                       {"memory_peak", peak_resident_bytes()},
                       {"scratch", f.scratch},
                       {"calibration_tokens", f.tokens},
                       {"disk_needed", f.disk_needed},
                       {"disk_free", f.disk_free},
                       {"threads", f.threads},
                       {"forecast_seconds", f.seconds},
                       {"seconds", seconds},
                       {"quantization_config", job.selection().section}});
}

Json eval_answer(const EvalFigures& f, const LayerErrors& errors, size_t top) {
  Json layers = Json::array(), hidden = Json::array(), modules = Json::array();
  for (const RoutingFigures& l : f.layers)
    layers.push(Json::object({{"block", l.block}, {"agreement", l.agreement}}));
  for (const HiddenError& h : errors.layers)
    hidden.push(Json::object({{"layer", h.layer}, {"error", h.error}, {"modules", h.modules}}));
  for (size_t i = 0; i < std::min(kWorstModules, errors.modules.size()); ++i)
    modules.push(Json::object({{"name", errors.modules[i].name},
                               {"error", errors.modules[i].error},
                               {"rows", errors.modules[i].rows}}));
  return Json::object({{"tokens", f.positions},
                       {"loss", f.loss.mean},
                       {"stderr", f.loss.error},
                       {"perplexity", std::exp(f.loss.mean)},
                       {"base_loss", f.base_loss.mean},
                       {"base_perplexity", std::exp(f.base_loss.mean)},
                       {"kl", Json::object({{"mean", f.kl.mean},
                                            {"stderr", f.kl.error},
                                            {"p50", f.kl.p50},
                                            {"p90", f.kl.p90},
                                            {"p99", f.kl.p99},
                                            {"p999", f.kl.p999},
                                            {"max", f.kl.max}})},
                       {"top1", f.top1},
                       {"top", top},
                       {"top_overlap", f.top_overlap},
                       {"rms_delta_p", f.rms_delta_p},
                       {"routing", f.routing},
                       {"layers", layers},
                       {"hidden", hidden},
                       {"modules", modules}});
}

}  // namespace moebius
