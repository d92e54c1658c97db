// SPDX-License-Identifier: Apache-2.0
// Converts a folder of unquantized weights to a compressed-tensors folder, tensor by tensor, with
// at most one unit of work per thread in memory. Until it is complete the result is named
// TARGET.partial, which no loader accepts because config.json is written last; --resume continues
// it.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "quantize/output_plan.h"

namespace moebius {

class Calibration;
struct Range;
class ThreadPool;

struct QuantizeForecast {
  uint64_t bytes_in = 0, bytes_out = 0;
  double bits_per_weight = 0;  // mean bits per quantized weight, scales included
  uint64_t memory = 0, memory_free = 0;
  uint64_t disk_needed = 0, disk_free = 0;
  uint64_t scratch = 0;  // bytes of calibration rows in files; 0: rows are in memory
  // Size of the calibration text; mean number of rows per expert.
  size_t tokens = 0, expert_rows = 0;
  size_t threads = 1;
  double seconds = 0;  // estimated from a short probe; 0: not probed
};

struct QuantizeProgress {
  uint64_t done = 0, total = 0;  // bytes of the source that are done, and all
  int layer = -1;                // layer of the unit that was finished last
  std::string_view note = {};    // what is being done, such as "calibrating"; empty: converting
};
// Receives progress; called from any thread.
using OnQuantizeProgress = std::function<void(const QuantizeProgress&)>;

// Reports on a module that was not just rounded.
struct ModuleReport {
  std::string name;
  QuantizeMethod method = QuantizeMethod::kRtn;
  size_t rows = 0;     // rows of the calibration text that it read
  double loss = 0;     // relative loss of rounding, weighted by the inputs if they are known
  std::string reason;  // why another method than requested was used; "": the requested one was
};
struct UnitResult {
  // Bytes of each tensor, in the order of the unit's outputs.
  std::vector<std::vector<uint8_t>> tensors;
  std::vector<ModuleReport> reports;
};

class QuantizeJob {
 public:
  // Opens the source and plans the work. Throws Error for everything that can be refused before the
  // work.
  QuantizeJob(QuantizeOptions options, size_t threads);
  const Checkpoint& source() const { return source_; }
  const Selection& selection() const { return selection_; }
  const OutputPlan& plan() const { return plan_; }
  const QuantizeOptions& options() const { return options_; }
  const QuantizeForecast& forecast() const { return forecast_; }
  // Reports in the order of names; complete after run().
  const std::vector<ModuleReport>& reports() const;
  void probe();  // encodes for 0.02 s and sets forecast().seconds from that
  // Does the work. Throws Error; finished parts are kept for --resume.
  void run(ThreadPool& pool, const OnQuantizeProgress& progress);

 private:
  void check_target() const;
  void find_others();
  void check_method() const;
  void check_room();
  void begin();
  void plan_calibration();
  void make_calibration(ThreadPool& pool, const OnQuantizeProgress& progress);
  // Returns the source with these layers as the written files have them.
  Checkpoint made_layers(Range layers) const;
  void write_shard(size_t number, ThreadPool& pool, const OnQuantizeProgress& progress);
  void keep_journal();
  void finish();
  std::string config_text() const;
  Json index_json() const;

  QuantizeOptions options_;
  Checkpoint source_;
  Selection selection_;
  OutputPlan plan_;
  QuantizeForecast forecast_;
  std::string partial_;  // path of the unfinished folder
  // Files to copy, with their names in the target.
  std::vector<std::pair<std::string, std::string>> others_;
  struct State;
  std::shared_ptr<State> state_;
};

// Does one unit of work. calibration: may be null.
UnitResult do_unit(const WorkUnit& unit, const TensorStore& store, const QuantizeOptions& options,
                   const Calibration* calibration, LoadBuffer& buffer);

}  // namespace moebius
