// SPDX-License-Identifier: Apache-2.0
// Counters and histograms of the server, and their text for Prometheus. Event thread only.
#pragma once
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "serve/generator.h"
#include "serve/http.h"
#include "serve/request.h"

namespace moebius {

class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds)
      : bounds_(bounds), counts_(bounds.size() + 1) {}
  void add(double value);
  // Lines with buckets, sum and count; `labels` as in `kind="prompt"`, or empty.
  void write(std::string& out, const std::string& name, const std::string& labels) const;

 private:
  std::span<const double> bounds_;
  std::vector<uint64_t> counts_;
  double sum_ = 0;
};

// The last values, for quantiles that people look at.
class Recent {
 public:
  void add(double value);
  double quantile(double q) const;  // 0 where there is none

 private:
  std::deque<double> values_;
};

// What is true of the moment that is asked about.
struct MetricsMoment {
  double load_share = 1, read_rate = 0;  // bytes per second
  bool experts = false;                  // each expert's rows as well
};

class Metrics {
 public:
  Metrics();
  void request_done(std::string_view path, int status);
  void rejected(const std::string& reason) { ++rejected_[reason]; }
  void ended(EndReason reason) { ++ended_[static_cast<size_t>(reason)]; }
  void broken_call(std::string_view format) { ++broken_calls_[std::string(format)]; }
  void step(const StepSummary& step);
  void first_token(double seconds);
  void gap(double seconds);
  // Counts of experts are looked at every so many steps, so that figures can be those of the last.
  bool wants_expert_rows() const;
  void mark_expert_rows(std::vector<uint64_t> rows);

  Histogram queue_time, total_time, prefill_time, decode_time;
  std::atomic<uint64_t> internal_errors{0}, lost_lines{0};  // from any thread
  const Recent& recent_first() const { return recent_first_; }
  const Recent& recent_gap() const { return recent_gap_; }
  std::string text(const GeneratorStats& stats, const ServedModel* model, HttpCounts connections,
                   const MetricsMoment& moment) const;

 private:
  void write_server(std::string& out, HttpCounts connections) const;
  std::map<std::pair<std::string, int>, uint64_t> requests_;
  std::map<std::string, uint64_t> rejected_, broken_calls_;
  std::array<uint64_t, kEndReasons> ended_{};
  Histogram first_token_, gap_, prompt_rows_, decode_rows_, batch_, step_time_, predicted_,
      experts_;
  Recent recent_first_, recent_gap_;
  size_t steps_ = 0;
  std::deque<std::vector<uint64_t>> expert_marks_;  // added up until then, oldest first
};

}  // namespace moebius
