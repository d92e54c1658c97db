// SPDX-License-Identifier: Apache-2.0
#include "serve/metrics.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>

#include "base/folder_names.h"
#include "model/run/decoder.h"
#include "runtime/memory.h"
#include "runtime/system_files.h"

namespace moebius {
namespace {

constexpr double kFirstBounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                   0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                   20,    40,    80,   160,  640,  2560};
constexpr double kGapBounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                 0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
constexpr double kTimeBounds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                  30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
constexpr double kRowBounds[] = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048};
constexpr double kStepBounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                  0.25,  0.5,    1,     2.5,  5,     10};
constexpr double kRatioBounds[] = {0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4};
constexpr double kShareBounds[] = {0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1};
constexpr double kTokenBounds[] = {1,     2,      5,      10,     20,     50,    100,
                                   200,   500,    1000,   2000,   5000,   10000, 20000,
                                   50000, 100000, 200000, 500000, 1000000};
constexpr size_t kRecent = 512;
// Steps between two marks, and number of marks, over which moe_imbalance is computed.
constexpr size_t kMarkSteps = 100, kMarks = 10;

std::string label(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

void write_disk(MetricsText& out, const KvDiskFigures& d) {
  out.simple("kv_disk_bytes", "gauge", "bytes of the prompt cache on disk", d.bytes);
  out.simple("kv_disk_files", "gauge", "its files", d.files);
  out.simple("kv_disk_read_blocks_total", "counter", "blocks read", d.read_files);
  out.simple("kv_disk_read_bytes_total", "counter", "bytes read", d.read_bytes);
  out.simple("kv_disk_written_bytes_total", "counter", "bytes written", d.written_bytes);
  out.simple("kv_disk_dropped_blocks_total", "counter",
             "blocks that were not written: the disk was behind, full or failed", d.dropped);
  out.simple("kv_disk_evicted_blocks_total", "counter", "blocks that made room for others",
             d.evicted);
  out.simple("kv_disk_damaged_blocks_total", "counter", "blocks that were damaged, and removed",
             d.damaged);
}

void write_engine(MetricsText& out, const GeneratorState& state) {
  const EngineSnapshot& s = state.engine;
  out.simple("num_requests_running", "gauge", "sequences in the batch", s.running);
  out.simple("num_requests_waiting", "gauge", "sequences that wait for a slot", s.waiting);
  const KvFigures& kv = s.kv;
  const size_t blocks = kv.blocks_used + kv.blocks_cached + kv.blocks_free;
  const double used =
      blocks == 0 ? 0.0 : static_cast<double>(kv.blocks_used) / static_cast<double>(blocks);
  out.simple("kv_cache_usage_ratio", "gauge", "share of the KV blocks that sequences hold", used);
  out.simple("kv_cache_usage_perc", "gauge", "the same, by the name of vLLM; 1 is all", used);
  out.head("kv_blocks", "gauge", "blocks of 128 tokens");
  out.line("state=\"used\"", kv.blocks_used);
  out.line("state=\"cached\"", kv.blocks_cached);
  out.line("state=\"free\"", kv.blocks_free);
  out.simple("prompt_tokens_total", "counter", "tokens of prompts", s.prompt_tokens);
  out.simple("prompt_tokens_cached_total", "counter", "of these, found in the cache",
             s.cached_tokens);
  out.simple("generation_tokens_total", "counter", "tokens drawn", s.new_tokens);
  out.simple("prefix_cache_queries_total", "counter", "tokens of prompts looked up",
             s.prefix_queries);
  out.simple("prefix_cache_hits_total", "counter", "of these, found", s.prefix_hits);
  if (state.disk)
    out.simple("kv_disk_hits_total", "counter", "tokens of prompts read from disk", s.disk_tokens);
  out.simple("num_preemptions_total", "counter", "sequences preempted for others", s.preemptions);
  out.simple("spec_decode_num_drafts_total", "counter", "sequences and steps with a draft",
             s.drafts);
  out.simple("spec_decode_num_draft_tokens_total", "counter", "tokens of drafts", s.drafted_tokens);
  out.head("spec_decode_num_accepted_tokens_total", "counter",
           "accepted draft tokens, by position in the draft");
  for (size_t i = 0; state.generates && i < s.drafts_right.size(); ++i)
    out.line(fmt::format("position=\"{}\"", i), s.drafts_right[i]);
  out.head("step_phase_seconds_total", "counter", "where the time of steps went");
  for (const auto& [phase, seconds] : phase_seconds(state))
    out.line("phase=" + label(phase), seconds);
  if (state.generates) out.line("phase=\"idle\"", state.idle_seconds);
  out.simple("weight_bytes_read_total", "counter", "packed weights read", s.weight_bytes);
  out.simple("kv_bytes_read_total", "counter", "keys and values read", s.kv_bytes_read);
  if (const auto& e = s.last.backend.experts) {
    out.simple("expert_cache_bytes", "gauge", "memory for experts that are read from disk",
               e->memory);
    out.simple("expert_cache_hits_total", "counter", "experts that were in memory", e->counts.hits);
    out.simple("expert_cache_misses_total", "counter", "experts that steps had to read",
               e->counts.misses);
    out.simple("expert_cache_expected_total", "counter", "experts read before a layer asked",
               e->counts.expected);
    out.simple("expert_cache_expected_used_total", "counter", "of these, wanted later",
               e->counts.expected_used);
    out.simple("expert_bytes_read_total", "counter", "bytes of experts read from disk", e->bytes);
    out.simple("expert_wait_seconds_total", "counter", "time in which steps waited for the disk",
               static_cast<double>(e->waited) * 1e-9);
  }
  out.simple("read_roof_bytes_per_second", "gauge", "what all threads can read from memory",
             state.read_roof);
  out.simple("engine_heartbeat_seconds", "gauge", "since the last step; 0 when idle",
             state.heartbeat_seconds);
}

void write_experts(MetricsText& out, const GeneratorState& s, const std::vector<uint64_t>& before,
                   bool all) {
  const std::vector<uint64_t>& sums = s.engine.expert_rows;
  const StepStats& last = s.engine.last.backend;
  const size_t experts = s.experts;
  if (s.expert_layers() == 0) return;
  out.head("moe_imbalance", "gauge",
           "rows of the busiest expert over the mean, per layer, in the last 1000 steps");
  for (size_t l = 0; l < s.expert_layers(); ++l) {
    uint64_t sum = 0, most = 0;
    for (size_t i = l * experts; i < (l + 1) * experts; ++i) {
      const uint64_t rows = sums[i] - (i < before.size() ? before[i] : 0);
      sum += rows;
      most = std::max(most, rows);
    }
    out.line(fmt::format("layer=\"{}\"", l),
             sum == 0 ? 0.0 : static_cast<double>(most * experts) / static_cast<double>(sum));
  }
  if (last.rank_imbalance > 0) {
    out.simple("moe_rank_imbalance", "gauge", "rows of the busiest rank over the mean",
               last.rank_imbalance);
    out.simple("moe_layers_moved_total", "counter", "layers whose experts moved between ranks",
               last.layers_moved);
    out.simple("moe_moves_given_up_total", "counter", "layers whose experts could not move",
               last.moves_given_up);
  }
  if (!all) return;
  out.head("moe_expert_tokens_total", "counter", "rows per layer and expert");
  for (size_t i = 0; i < sums.size(); ++i)
    out.line(fmt::format("layer=\"{}\",expert=\"{}\"", i / experts, i % experts), sums[i]);
}

void write_ranks(MetricsText& out, const GeneratorState& s) {
  if (s.ranks.empty()) return;
  out.head("rank_exchange_seconds_total", "counter", "waits of a rank for others, by phase");
  for (size_t r = 0; r < s.ranks.size(); ++r)
    for (const auto& [phase, seconds] : s.ranks[r].phases)
      out.line(fmt::format("rank=\"{}\",phase={}", r, label(phase)), seconds);
  out.head("rank_wait_seconds_total", "counter", "waits of a rank within steps");
  for (size_t r = 0; r < s.ranks.size(); ++r)
    out.line(fmt::format("rank=\"{}\"", r), s.ranks[r].wait);
  out.head("rank_bytes_total", "counter", "bytes that a rank got of a peer");
  for (size_t r = 0; r < s.ranks.size(); ++r)
    for (size_t peer = 0; peer < s.ranks[r].received.size(); ++peer)
      if (peer != r)
        out.line(fmt::format("rank=\"{}\",peer=\"{}\"", r, peer), s.ranks[r].received[peer]);
}

void write_process(MetricsText& out, std::span<const ModelMoment> models) {
  const auto status = [](const char* field) {
    return named_number("/proc/self/status", field, 1024);
  };
  out.simple("process_resident_memory_bytes", "gauge", "resident memory", resident_bytes());
  out.simple("process_anonymous_bytes", "gauge", "RssAnon and VmSwap",
             status("RssAnon:") + status("VmSwap:"));
  out.simple("process_open_fds", "gauge", "open descriptors", folder_names("/proc/self/fd").size());
  for (const ModelMoment& m : models) {
    if (m.model == nullptr) continue;
    out.head("build_info", "gauge", "what runs");
    out.line(fmt::format("version={},commit={},model={},kernel={}", label(m.model->version),
                         label(m.model->commit), label(m.model->name), label(m.model->kernel)),
             1);
  }
}

void write_sleep(MetricsText& out, const GeneratorState& s) {
  if (!s.sleeps) return;
  out.simple("model_awake", "gauge", "whether the weights are in memory", s.asleep ? 0 : 1);
  out.simple("model_loads_total", "counter", "loads of the weights", s.loads);
}

}  // namespace

Json expert_figures(const ExpertStoreStats& s) {
  return Json::object({{"hits", s.counts.hits},
                       {"misses", s.counts.misses},
                       {"read_bytes", s.bytes},
                       {"waited_s", static_cast<double>(s.waited) * 1e-9}});
}

std::vector<std::pair<std::string_view, double>> phase_seconds(const GeneratorState& s) {
  std::vector<std::pair<std::string_view, double>> out;
  if (!s.generates) return out;
  const auto add = [&](std::string_view name, uint64_t ns) {
    out.emplace_back(name, static_cast<double>(ns) * 1e-9);
  };
  for (size_t i = 0; i < s.engine.phases.size(); ++i)
    add(name_of(static_cast<Phase>(i)), s.engine.phases[i]);
  add("sampling", s.engine.sampling_nanoseconds);
  add("scheduling", s.engine.other_nanoseconds);
  return out;
}

void Histogram::add(double value) {
  const auto it = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++counts_[static_cast<size_t>(it - bounds_.begin())];
  sum_ += value;
}

void Histogram::write(MetricsText& out, const std::string& labels) const {
  uint64_t count = 0;
  const std::string more = labels.empty() ? "" : labels + ",";
  for (size_t i = 0; i < counts_.size(); ++i) {
    count += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    out.line(fmt::format("{}le=\"{}\"", more, bound), count, "_bucket");
  }
  out.line(labels, sum_, "_sum");
  out.line(labels, count, "_count");
}

void Recent::add(double value) {
  values_.push_back(value);
  if (values_.size() > kRecent) values_.pop_front();
}

double Recent::quantile(double q) const {
  if (values_.empty()) return 0;
  std::vector<double> sorted(values_.begin(), values_.end());
  const auto at = static_cast<size_t>(q * static_cast<double>(sorted.size() - 1) + 0.5);
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(at), sorted.end());
  return sorted[at];
}

ModelMetrics::ModelMetrics()
    : queue_time(kTimeBounds),
      total_time(kTimeBounds),
      prefill_time(kTimeBounds),
      decode_time(kTimeBounds),
      prompt_tokens(kTokenBounds),
      generation_tokens(kTokenBounds),
      first_token_(kFirstBounds),
      gap_(kGapBounds),
      prompt_rows_(kRowBounds),
      decode_rows_(kRowBounds),
      batch_(kRowBounds),
      step_time_(kStepBounds),
      predicted_(kRatioBounds),
      experts_(kShareBounds) {}

void ModelMetrics::step(const StepFigures& s) {
  if (s.batch == 0) return;
  ++steps_;
  prompt_rows_.add(static_cast<double>(s.prompt_rows));
  decode_rows_.add(static_cast<double>(s.decode_rows));
  batch_.add(static_cast<double>(s.batch));
  step_time_.add(s.seconds());
  if (s.predicted_nanoseconds > 0) predicted_.add(s.seconds() / (s.predicted_nanoseconds * 1e-9));
  const std::vector<uint32_t>& rows = s.backend.expert_rows;
  const auto active = std::count_if(rows.begin(), rows.end(), [](uint32_t n) { return n > 0; });
  if (!rows.empty()) experts_.add(static_cast<double>(active) / static_cast<double>(rows.size()));
}

bool ModelMetrics::wants_expert_rows() const { return steps_ % kMarkSteps == 0; }

void ModelMetrics::mark_expert_rows(std::vector<uint64_t> rows) {
  expert_marks_.push_back(std::move(rows));
  if (expert_marks_.size() > kMarks) expert_marks_.pop_front();
}

void ModelMetrics::first_token(double seconds) {
  first_token_.add(seconds);
  recent_first_.add(seconds);
}

void ModelMetrics::gap(double seconds) {
  gap_.add(seconds);
  recent_gap_.add(seconds);
}

const std::vector<uint64_t>& ModelMetrics::expert_mark() const {
  static const std::vector<uint64_t> kNone;
  return expert_marks_.empty() ? kNone : expert_marks_.front();
}

void ModelMetrics::write(MetricsText& out) const {
  out.head("request_success_total", "counter", "choices that ended, by reason");
  for (const char* word : {"stop", "length", "tool_calls", "cancelled", "error"}) {
    const auto ended = ended_.find(word);
    out.line(fmt::format("finished_reason=\"{}\"", word),
             ended == ended_.end() ? uint64_t{0} : ended->second);
  }
  out.head("tool_calls_broken_total", "counter", "calls that could not be read, by format");
  for (const auto& [format, count] : broken_calls_) out.line("format=" + label(format), count);
  const auto one = [&](const Histogram& h, const char* name, const char* help) {
    out.head(name, "histogram", help);
    h.write(out, "");
  };
  one(first_token_, "time_to_first_token_seconds", "from the request to its first token");
  one(gap_, "inter_token_latency_seconds", "between two tokens of an answer");
  one(queue_time, "request_queue_time_seconds", "from the request until the engine ran it");
  one(total_time, "e2e_request_latency_seconds", "from the request to the end of its answer");
  one(prefill_time, "request_prefill_time_seconds", "from the first run to the first token");
  one(decode_time, "request_decode_time_seconds", "from the first token to the last");
  one(prompt_tokens, "request_prompt_tokens", "tokens of a request's prompts");
  one(generation_tokens, "request_generation_tokens", "tokens of a request's answers");
  out.head("step_rows", "histogram", "rows of a step");
  prompt_rows_.write(out, "kind=\"prompt\"");
  decode_rows_.write(out, "kind=\"decode\"");
  one(batch_, "step_batch_size", "sequences of a step");
  one(step_time_, "step_seconds", "time of a step");
  one(predicted_, "step_predicted_ratio", "measured over predicted time of a step");
  one(experts_, "moe_experts_active_ratio", "share of the experts that a step touched");
}

void Metrics::write_server(MetricsText& out, HttpCounts connections) const {
  out.head("connections", "gauge", "by what they do");
  out.line("state=\"active\"", connections.active);
  out.line("state=\"idle\"", connections.idle);
  out.simple("internal_errors_total", "counter", "exceptions; each ended one request at most",
             internal_errors.load());
  out.simple("log_lines_lost_total", "counter", "lines that could not be written",
             lost_lines.load());
  out.head("http_requests_total", "counter", "answers by path and status");
  for (const auto& [key, count] : requests_)
    out.line(fmt::format("path={},status=\"{}\"", label(key.first), key.second), count);
  out.head("requests_rejected_total", "counter", "requests that were turned away");
  for (const auto& [reason, count] : rejected_) out.line("reason=" + label(reason), count);
}

std::string Metrics::text(std::span<const ModelMoment> models, HttpCounts connections,
                          double load_share, bool experts) const {
  MetricsText out;
  for (const ModelMoment& m : models) {
    if (m.model != nullptr) {
      const std::string name = label(m.model->name);
      out.set_common("model_name=" + name + (models.size() > 1 ? ",model=" + name : ""));
    }
    write_engine(out, m.state);
    out.simple("read_roof_ratio", "gauge", "bytes read per second of the last 10 s over the roof",
               m.state.read_roof > 0 ? m.read_rate / m.state.read_roof : 0.0);
    write_sleep(out, m.state);
    m.metrics->write(out);
    write_experts(out, m.state, m.metrics->expert_mark(), experts);
    write_ranks(out, m.state);
  }
  out.set_common("");
  for (const ModelMoment& m : models)
    if (m.state.disk) {  // all models share one prompt cache on disk
      write_disk(out, m.state.engine.disk);
      break;
    }
  out.simple("load_ratio", "gauge", "share of the model that is loaded", load_share);
  write_server(out, connections);
  write_process(out, models);
  return out.text();
}

void MetricsText::head(std::string_view name, std::string_view kind, std::string_view help) {
  const auto [it, added] = places_.try_emplace(std::string(name), groups_.size());
  at_ = it->second;
  if (added)
    groups_.push_back({std::string(name), fmt::format("# HELP moebius_{0} {2}\n"
                                                      "# TYPE moebius_{0} {1}\n",
                                                      name, kind, help)});
}

void MetricsText::put(std::string_view labels, const std::string& value, std::string_view suffix) {
  Group& group = groups_[at_];
  const std::string_view comma = common_.empty() || labels.empty() ? "" : ",";
  const std::string all = fmt::format("{}{}{}", common_, comma, labels);
  group.lines += fmt::format("moebius_{}{}{} {}\n", group.name, suffix,
                             all.empty() ? "" : "{" + all + "}", value);
}

std::string MetricsText::text() const {
  std::string out;
  for (const Group& g : groups_) out += g.lines;
  return out;
}

}  // namespace moebius
