// SPDX-License-Identifier: Apache-2.0
// Counters and histograms of the server, and their text form for Prometheus. Event thread only.
#pragma once
#include <fmt/format.h>

#include <atomic>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "serve/generator.h"
#include "serve/http.h"
#include "serve/request.h"

namespace moebius {

class MetricsText;

class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds)
      : bounds_(bounds), counts_(bounds.size() + 1) {}
  void add(double value);
  // Writes lines with buckets, sum and count, for the metric named last.
  void write(MetricsText& out, const std::string& labels) const;

 private:
  std::span<const double> bounds_;
  std::vector<uint64_t> counts_;
  double sum_ = 0;
};

// Keeps the latest values, for quantiles.
class Recent {
 public:
  void add(double value);
  // Returns the value below which the share q of the values lies; 0 if there are none.
  double quantile(double q) const;

 private:
  std::deque<double> values_;
};

// Builds the text of metrics. Prometheus wants all lines of one name together: lines for a name
// that was written before are added to the earlier ones.
class MetricsText {
 public:
  // Sets labels for all later lines, as in `model_name="a"`; empty: none.
  void set_common(std::string labels) { common_ = std::move(labels); }
  void head(std::string_view name, std::string_view kind, std::string_view help);
  // Writes a line of the metric named last; `labels` as in `kind="prompt"`, or empty.
  template <class Value>
  void line(std::string_view labels, const Value& value, std::string_view suffix = "") {
    put(labels, fmt::format("{}", value), suffix);
  }
  template <class Value>
  void simple(std::string_view name, std::string_view kind, std::string_view help,
              const Value& value) {
    head(name, kind, help);
    line("", value);
  }
  std::string text() const;

 private:
  void put(std::string_view labels, const std::string& value, std::string_view suffix);
  struct Group {
    std::string name, lines;
  };
  std::vector<Group> groups_;
  std::map<std::string, size_t, std::less<>> places_;
  size_t at_ = 0;
  std::string common_;
};

// Counters and histograms of one model.
class ModelMetrics {
 public:
  ModelMetrics();
  void ended(std::string_view word) { ++ended_[std::string(word)]; }  // as finish_word() says
  void broken_call(std::string_view format) { ++broken_calls_[std::string(format)]; }
  void step(const StepFigures& step);
  void first_token(double seconds);
  void gap(double seconds);
  // Rows per expert are recorded every so many steps, so that figures can cover the recent past.
  bool wants_expert_rows() const;
  void mark_expert_rows(std::vector<uint64_t> rows);

  Histogram queue_time, total_time, prefill_time, decode_time, prompt_tokens, generation_tokens;
  const Recent& recent_first() const { return recent_first_; }
  const Recent& recent_gap() const { return recent_gap_; }
  const std::vector<uint64_t>& expert_mark() const;  // rows per expert at the oldest record
  void write(MetricsText& out) const;

 private:
  std::map<std::string, uint64_t> broken_calls_, ended_;
  Histogram first_token_, gap_, prompt_rows_, decode_rows_, batch_, step_time_, predicted_,
      experts_;
  Recent recent_first_, recent_gap_;
  size_t steps_ = 0;
  std::deque<std::vector<uint64_t>> expert_marks_;  // sums up to each record, oldest first
};

// Returns what a store of experts did, as an object of JSON.
Json expert_figures(const ExpertStoreStats& stats);
// Returns the seconds that steps spent in each phase, by its name.
std::vector<std::pair<std::string_view, double>> phase_seconds(const GeneratorState& state);

// A model at the time of a query; without one, what is known while it is loaded.
struct ModelMoment {
  const ServedModel* model = nullptr;
  const ModelMetrics* metrics = nullptr;
  GeneratorState state;
  double read_rate = 0;  // bytes per second
};

// Counters of the whole server.
class Metrics {
 public:
  void request_done(std::string_view path, int status) { ++requests_[{std::string(path), status}]; }
  void rejected(const std::string& reason) { ++rejected_[reason]; }
  std::atomic<uint64_t> internal_errors{0}, lost_lines{0};  // counters that any thread may increase
  // Returns the metrics as Prometheus reads them. `experts`: with the rows of each expert.
  std::string text(std::span<const ModelMoment> models, HttpCounts connections, double load_share,
                   bool experts) const;

 private:
  void write_server(MetricsText& out, HttpCounts connections) const;
  std::map<std::pair<std::string, int>, uint64_t> requests_;
  std::map<std::string, uint64_t> rejected_;
};

}  // namespace moebius
